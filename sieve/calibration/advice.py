"""Predictions and batch caps from a parameter document of the saturation model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sieve.calibration.saturation import hardware_facts, model_facts
from sieve.catalog.accelerators import load_gpu
from sieve.catalog.models import load_model
from sieve.formulas.slim import DEFAULT_REFERENCE, SLIM
from sieve.formulas.slim_model import PRINTED, line, read_hardware, read_model, read_params
from sieve.formulas.slim_scenarios import knee_index

Document = Mapping[str, Any]

LIMITS: Final = {
    "slo": "one more request would miss the latency objective",
    "efficiency": "one more request would push the efficiency to epsilon or below",
    "candidates": "the largest batch considered keeps both limits",
    "saturation": "a larger batch gains nothing",
}


def predict(
    document: Document, model: str, *, gpu: str | None, isl: float, osl: float,
    batches: Sequence[float], kv_dtype: str = "",
) -> dict[str, Any]:  # fmt: skip
    """Return latency and throughput of a model at some batches, each with low and high.

    Raises:
        InvalidInput: a model or GPU that the saturation model cannot describe, or lengths and
            batches that are not positive.
    """
    subject = _subject(document, model, gpu, kv_dtype)
    rows = [
        _ends(document, SLIM["slim.predict"]({**subject, "IL": isl, "OL": osl, "B": batch}), batch)
        for batch in batches
    ]
    return {
        **_about(document, subject, model, isl, osl, max(batches), min(batches)),
        "predictions": rows,
    }


def advise(
    document: Document, model: str, *, gpu: str | None, isl: float, osl: float,
    slo_s: float | None, slo_factor: float | None, epsilon: float, b_max: int, kv_dtype: str = "",
) -> dict[str, Any]:  # fmt: skip
    """Return the batch cap with what binds it, its knee, and the curve around it.

    Raises:
        InvalidInput: as `predict`, and limits that are not positive.
    """
    subject = _subject(document, model, gpu, kv_dtype)
    limit = {"slo_factor": slo_factor} if slo_s is None else {"slo_s": slo_s}
    lengths = {"IL": isl, "OL": osl}
    answer = SLIM["slim.bca"]({**subject, **lengths, **limit, "epsilon": epsilon, "b_max": b_max})
    batches = sorted({2**k for k in range(b_max.bit_length())} | {b_max})
    if answer["B_cap"] is not None:
        batches = sorted({*batches, answer["B_cap"]})
    curve = [
        _ends(document, SLIM["slim.predict"]({**subject, **lengths, "B": b}), b) for b in batches
    ]
    slope, intercept = line(
        read_model(subject["model"]),
        read_hardware(subject["hardware"]),
        read_params(subject["params"]),
        isl,
        osl,
    )
    highest = 1 if answer["B_cap"] is None else answer["B_cap"]
    reason = LIMITS.get(answer["limit"] or "", "no batch was considered")
    if answer["B_cap"] is None:
        reason = f"even a single request does not keep the {answer['limit']} limit"
    return {
        **_about(document, subject, model, isl, osl, highest, 1),
        "answer": answer,
        "reason": reason,
        "slo_from": "given" if slo_s is not None else _slo_words(slo_factor),
        "epsilon": epsilon,
        "b_max": b_max,
        "slope_s": slope,
        "intercept_s": intercept,
        "throughput_limit": (isl + osl) / slope,
        "knee_B": _knee(curve),
        "report": _report(answer, curve, b_max),
        "curve": curve,
    }


def _subject(
    document: Document, model: str, gpu: str | None, kv_dtype: str
) -> dict[str, dict[str, Any]]:
    hardware = dict(document["hardware"])
    if gpu is not None:
        hardware = hardware_facts(load_gpu(gpu), str(hardware.get("F_mode") or "bf16"))
    return {
        "model": model_facts(load_model(model), kv_dtype),
        "hardware": hardware,
        "params": dict(document["params"]),
    }


def _ends(document: Document, got: Mapping[str, Any], batch: float) -> dict[str, Any]:
    """Return one prediction with the ends that the document's errors give it."""
    band = document["error_band"]
    rate = got["throughput"]
    low, high = rate / (1 + band["e_over"]), rate / (1 - band["e_under"])
    tokens = rate * got["e2e"]
    return {
        "batch": batch,
        **got,
        "throughput_low": low,
        "throughput_high": high,
        "e2e_low": tokens / high,
        "e2e_high": tokens / low,
    }


def _knee(curve: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the knee of a predicted curve at the profiled batches, None of a single point."""
    rates = [row["throughput"] for row in curve]
    if len(rates) < 2 or rates[0] == rates[-1]:
        return None
    batch: float = curve[knee_index([row["batch"] for row in curve], rates)]["batch"]
    return batch


def _report(
    answer: Mapping[str, Any], curve: Sequence[Mapping[str, Any]], b_max: int
) -> dict[str, Any] | None:
    """Return what the cap keeps and saves against running at `b_max`."""
    if answer["B_cap"] is None:
        return None
    return SLIM["slim.advisor_report"](
        {
            "B_cap": answer["B_cap"],
            "B_best": b_max,
            "throughput_at_cap": answer["throughput"],
            "throughput_at_best": curve[-1]["throughput"],
            "points_used": len(curve),
            "points_full": b_max,
            "B_max": b_max,
        }
    )


def _slo_words(factor: float | None) -> str:
    isl, osl, batch = DEFAULT_REFERENCE
    return f"{factor:g} × the latency of {batch} requests of {isl} and {osl} tokens"


def _about(
    document: Document, subject: Mapping[str, Mapping[str, Any]], model: str,
    isl: float, osl: float, high: float, low: float,
) -> dict[str, Any]:  # fmt: skip
    name = load_model(model).name
    return {
        "kind": "estimate",
        "model": name,
        "gpu": subject["hardware"]["gpu"],
        "isl": isl,
        "osl": osl,
        "variant": subject["params"].get("variant", PRINTED),
        "warnings": _extrapolated(document, subject, name, isl, osl, high, low),
        "assumptions": _assumptions(document, subject, isl, osl),
    }


def _extrapolated(
    document: Document, subject: Mapping[str, Mapping[str, Any]], model: str,
    isl: float, osl: float, high: float, low: float,
) -> list[str]:  # fmt: skip
    data = document["data"]
    texts = []
    if subject["hardware"]["gpu"] != document["hardware"].get("gpu"):
        texts.append(
            f"the parameters were fitted on {document['hardware'].get('gpu')}, not on "
            f"{subject['hardware']['gpu']}"
        )
    if model not in data["models"]:
        texts.append(f"{model} is not among the fitted models: {', '.join(data['models'])}")
    for what, key, values in (
        ("input length", "isl", (isl,)),
        ("output length", "osl", (osl,)),
        ("batch", "batch", (low, high)),
    ):
        least, most = data[key]
        texts += [
            f"{what} {value:g} is outside the fitted {least:g} to {most:g}"
            for value in dict.fromkeys(values)
            if not 0.98 * least <= value <= 1.02 * most
        ]
    return texts


def _assumptions(
    document: Document, subject: Mapping[str, Mapping[str, Any]], isl: float, osl: float
) -> list[dict[str, str]]:
    """Return the assumption block of the saturation model."""
    data, hardware, model = document["data"], subject["hardware"], subject["model"]
    files = ", ".join(str(entry["name"]) for entry in data.get("inputs", [])) or "unknown"
    band = document["error_band"]
    block = [
        ("parameters", f"fitted to {data.get('num_observations')} points of {files}"),
        ("formula", f"{subject['params'].get('variant', PRINTED)} form of the decode term"),
        ("lengths", f"every request reads {isl:g} and writes {osl:g} tokens and ends together"),
        (
            "F_max",
            f"{hardware['F_max'] / 1e12:g} TFLOP/s ({hardware.get('F_mode', 'bf16')}), limit",
        ),
        ("BW_max", f"{hardware['BW_max'] / 1e12:g} TB/s, limit"),
        ("cache", f"b_kv {model['b_kv']:g} bytes an element, read and reserved context equal"),
        ("weights", f"{', '.join(data.get('weight_dtypes') or ['unknown'])} as fitted; not a term"),
        ("feed-forward", f"{model['ffn_projections']:g} projections, r_ff {model['r_ff']:.4g}"),
        ("memory", "overhead 0, no page limit: whether the batch fits is not looked at"),
        ("speculation", "none, rho 1; no expert traffic; no per-session floor"),
        (
            "interval",
            f"{100 * band['confidence']:.0f} % one-sided each way, from {band['num_points']} "
            f"errors of {band['basis']}",
        ),
    ]
    return [{"about": about, "text": text} for about, text in block]
