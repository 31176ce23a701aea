"""The saturation model fitted to measured points: the parameter document and what is read off it.

A parameter document says what it was fitted to, how well, and what it cannot know. Predictions
from it are estimates; their ends come from the document's own errors, held-out ones if it has them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from sieve.calibration.holdout import held_out
from sieve.calibration.identifiability import warnings_of
from sieve.calibration.observations import Observation, Observations
from sieve.catalog.accelerators import load_gpu
from sieve.catalog.architecture import Gpu, ModelArchitecture
from sieve.catalog.models import load_model
from sieve.errors import InvalidInput, ResultError, SieveError
from sieve.formulas import slim_fit
from sieve.formulas.slim_model import PRINTED, read_hardware, read_model, read_params
from sieve.version import schema_fault

FORMAT: Final = "sieve-slim-params"
VERSION: Final = 1
_CONFIDENCE: Final = 0.9
_FEW: Final = 10
_REASON: Final = 90


@dataclass(frozen=True)
class Calibration:
    """A fit with what it rests on.

    Attributes:
        document: the parameter document, ready to be written as JSON.
        rows: the points used, models under their catalogue names.
        predicted: (n,) fitted throughput of the rows in tokens per second.
        train: positions of the rows that were fitted.
    """

    document: dict[str, Any]
    rows: tuple[Observation, ...]
    predicted: tuple[float, ...]
    train: tuple[int, ...]


KV_DTYPES: Final = ("", "auto", "bfloat16", "float16", "fp8", "fp8_e4m3", "fp8_e5m2")
"""Cache formats, the first for "not said"."""


def model_facts(arch: ModelArchitecture, kv_dtype: str = "") -> dict[str, Any]:
    """Return what the saturation model needs of an architecture.

    Raises:
        InvalidInput: experts, layers without a growing cache, an unknown feed-forward width, or
            an unknown cache format.
    """
    if arch.moe is not None:
        raise InvalidInput(f"{arch.name} has experts; the saturation model describes dense models")
    other = sorted({kind.kind for kind in arch.kinds} - {"full"})
    if other:
        raise InvalidInput(
            f"{arch.name} has {', '.join(other)} layers; the saturation model describes full "
            "attention in all"
        )
    if arch.num_kv_layers != arch.num_hidden_layers:
        raise InvalidInput(
            f"{arch.name} keeps a growing cache in {arch.num_kv_layers} of "
            f"{arch.num_hidden_layers} layers; the saturation model needs it in all"
        )
    if arch.intermediate_size is None:
        raise InvalidInput(
            f"the feed-forward width of {arch.name} is not known; config.json lacks it"
        )
    if kv_dtype not in KV_DTYPES:
        raise InvalidInput(
            f"cache format is {kv_dtype!r}; it is one of: {', '.join(KV_DTYPES[1:])}"
        )
    facts: dict[str, Any] = {
        "L": arch.num_hidden_layers,
        "D": arch.hidden_size,
        "Hq": arch.num_attention_heads,
        "Hkv": arch.num_key_value_heads,
        "r_ff": arch.intermediate_size / arch.hidden_size,
        "b_kv": 1 if kv_dtype.startswith(("fp8", "int8")) else 2,
        "ffn_projections": arch.ffn_projections,
    }
    if arch.head_dim * arch.num_attention_heads != arch.hidden_size:
        facts["head_dim"] = arch.head_dim
    return facts


def hardware_facts(gpu: Gpu, mode: str = "bf16") -> dict[str, Any]:
    """Return a GPU's catalogue limits as the saturation model reads them.

    Raises:
        InvalidInput: the GPU lacks the arithmetic mode.
    """
    rate = gpu.flops_per_s.get(mode)
    if not rate:
        known = ", ".join(gpu.flops_per_s) or "none"
        raise InvalidInput(f"{gpu.name} has no known {mode} rate; known: {known}")
    return {"gpu": gpu.name, "F_max": rate, "F_mode": mode, "BW_max": gpu.mem_bw_bytes_per_s}


def calibrate(
    found: Observations,
    *,
    gpu: str | None = None,
    engine: str = "",
    variant: str = PRINTED,
    holdout: str = "",
) -> Calibration:
    """Return the saturation model fitted to measured points of one GPU.

    Args:
        found: points as read.
        gpu: whose points to use; may be left out when the files name one GPU.
        engine: whose points to use, "" for all.
        variant: form of the decode term.
        holdout: which points to keep out of the fit and judge it by (`held_out`), "" for none.

    Raises:
        InvalidInput: no usable point, several GPUs, or a holdout that leaves a side empty.
    """
    device = load_gpu(gpu) if gpu else load_gpu(_only_gpu(found.rows))
    left_out = Counter(skip.reason for skip in found.skipped)
    rows, facts = _usable(found.rows, device, engine.lower(), left_out)
    if not rows:
        reasons = "; ".join(f"{n}: {reason}" for reason, n in left_out.most_common(3))
        raise InvalidInput(f"no usable point for {device.name}{f' ({reasons})' if reasons else ''}")
    dtypes = sorted({row.weight_dtype for row in rows if row.weight_dtype})
    engines = sorted({row.engine for row in rows if row.engine})
    mode = "fp8" if dtypes == ["fp8"] and "fp8" in device.flops_per_s else "bf16"
    hardware = hardware_facts(device, mode)
    if holdout:
        rows, train, validate, dropped = held_out(rows, holdout)
        left_out.update(dropped)
    else:
        train, validate = tuple(range(len(rows))), ()
    points = [
        slim_fit.Observation(read_model(facts[r.model]), r.isl, r.osl, r.batch, r.tokens_per_s)
        for r in rows
    ]
    limits = read_hardware(hardware)
    result = slim_fit.fit_observations([points[i] for i in train], limits, variant)
    errors = slim_fit.relative_errors(points, limits, result.params)
    judged = errors[list(validate)] if validate else result.errors
    document = {
        "format": FORMAT,
        "version": VERSION,
        "kind": "estimate",
        "variant": variant,
        "params": slim_fit.params_facts(result.params),
        "hardware": hardware,
        "sse": result.sse,
        "mape_percent": result.mape_percent,
        "flags": list(result.flags),
        "warnings": warnings_of([rows[i] for i in train], facts, result)
        + _mixed("weight precisions", dtypes)
        + _mixed("engines", engines),
        "holdout": _holdout(holdout, len(train), judged) if validate else None,
        "error_band": _band(judged, "held-out points" if validate else "the fitted points"),
        "data": {
            **_data(found, [rows[i] for i in train], facts, left_out),
            "weight_dtypes": dtypes,
            "engines": engines,
        },
    }
    predicted = tuple(
        row.tokens_per_s * (1 + error) for row, error in zip(rows, errors.tolist(), strict=True)
    )
    return Calibration(document, tuple(rows), predicted, tuple(train))


def _only_gpu(rows: Sequence[Observation]) -> str:
    names = sorted({row.gpu for row in rows if row.gpu})
    if len(names) == 1:
        return names[0]
    known = f"the files hold {', '.join(names)}" if names else "the files name no GPU"
    raise InvalidInput(f"{known}; choose one with --gpu")


def _usable(
    rows: Sequence[Observation], device: Gpu, engine: str, left_out: Counter[str]
) -> tuple[list[Observation], dict[str, dict[str, Any]]]:
    """Return the rows of one GPU under catalogue names, and the facts of their models."""
    known: dict[tuple[str, str], _Known | str] = {}
    used: list[Observation] = []
    facts: dict[str, dict[str, Any]] = {}
    for row in rows:
        if row.gpu and row.gpu != device.name:
            left_out[f"another GPU: {row.gpu}"] += 1
            continue
        if engine and row.engine and row.engine != engine:
            left_out[f"another engine: {row.engine}"] += 1
            continue
        key = (row.model, row.kv_dtype)
        if key not in known:
            known[key] = _look_up(*key)
        found = known[key]
        if isinstance(found, str):
            left_out[found] += 1
            continue
        if row.isl + row.osl > found.context:
            left_out[f"longer than the context of {found.name}: the engine refuses it"] += 1
            continue
        facts[found.name] = found.facts
        used.append(replace(row, model=found.name))
    return used, facts


@dataclass(frozen=True)
class _Known:
    """A model of the catalogue as the fit sees it; `context` in tokens."""

    name: str
    facts: dict[str, Any]
    context: float


def _look_up(model: str, kv_dtype: str) -> _Known | str:
    """Return name and facts of a model, or why it cannot be used."""
    try:
        arch = load_model(model)
        facts = model_facts(arch, kv_dtype)
    except SieveError as error:
        text = str(error).split("; nearest", 1)[0]
        return text if len(text) <= _REASON else f"{text[: _REASON - 1]}…"
    name = arch.name if facts["b_kv"] == 2 else f"{arch.name} ({kv_dtype} cache)"
    return _Known(name, facts, arch.max_position_embeddings or float("inf"))


def _holdout(name: str, num_train: int, errors: slim_fit.Floats) -> dict[str, Any]:
    size = np.abs(errors)
    return {
        "rule": name,
        "num_train": num_train,
        "num_validate": len(errors),
        "mape_percent": float(100 * size.mean()),
        "median_ape_percent": float(100 * np.median(size)),
        "bias_percent": float(100 * np.median(errors)),
    }


def _band(errors: slim_fit.Floats, basis: str) -> dict[str, Any]:
    """Return one-sided relative errors at 90 %; of few points the extremes."""
    ends = (0.0, 1.0) if len(errors) < _FEW else (1 - _CONFIDENCE, _CONFIDENCE)
    low, high = np.quantile(errors, ends)
    return {
        "e_over": max(0.0, float(high)),
        "e_under": max(0.0, -float(low)),
        "confidence": _CONFIDENCE,
        "basis": basis,
        "num_points": len(errors),
    }


def _data(
    found: Observations, rows: Sequence[Observation], facts: Mapping[str, Any],
    left_out: Counter[str],
) -> dict[str, Any]:  # fmt: skip
    used = {row.model for row in rows}
    return {
        "inputs": [dict(entry) for entry in found.inputs],
        "num_observations": len(rows),
        "num_skipped": sum(left_out.values()),
        "skipped": dict(left_out.most_common()),
        "models": {name: fact for name, fact in facts.items() if name in used},
        "isl": _range(row.isl for row in rows),
        "osl": _range(row.osl for row in rows),
        "batch": _range(row.batch for row in rows),
        "batch_from": dict(Counter(row.batch_from for row in rows)),
        "throughput_from": dict(Counter(row.throughput_from for row in rows)),
    }


def _mixed(what: str, names: Sequence[str]) -> list[str]:
    return [f"{what} are mixed: {', '.join(names)}"] if len(names) > 1 else []


def _range(values: Any) -> list[float]:
    known = list(values)
    return [min(known), max(known)]


def read_document(path: Path) -> dict[str, Any]:
    """Return a parameter document.

    Raises:
        ResultError: not a readable parameter document of this version.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ResultError(
            f"{path}: cannot be read: {error.strerror or error}; `sieve slim fit --out` writes it"
        ) from error
    except (ValueError, RecursionError) as error:
        raise ResultError(
            f"{path}: not JSON: {error}; give what `sieve slim fit --out` wrote"
        ) from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ResultError(f"{path}: no parameter document; `sieve slim fit --out FILE` writes one")
    remake = "make it anew with `sieve slim fit ... --out FILE`"
    if fault := schema_fault(document.get("version"), VERSION, remake):
        raise ResultError(f"{path}: {fault}")
    try:
        read_params(document["params"])
        read_hardware(document["hardware"])
        band = document["error_band"]
        usable = float(band["e_over"]) >= 0 and 0 <= float(band["e_under"]) < 1
        usable &= all(len(document["data"][k]) == 2 for k in ("isl", "osl", "batch"))
        usable &= isinstance(document["data"]["models"], dict)
    except (KeyError, TypeError, ValueError) as error:
        raise ResultError(f"{path}: a damaged parameter document: {error}; {remake}") from error
    if not usable:
        raise ResultError(
            f"{path}: a damaged parameter document: its error band or data ranges; {remake}"
        )
    return document
