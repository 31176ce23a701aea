"""Measured serving results against the replay: errors by metric, source, GPU, model and regime."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import exp
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final

from sieve.arrays import SimResult
from sieve.calibration.apply import Deployment, load_of
from sieve.calibration.points import Place
from sieve.calibration.serving import Calibration
from sieve.catalog.engines import load_engine
from sieve.errors import SieveError
from sieve.memory.corrections import release
from sieve.ranking.intervals import (
    ENDS,
    ModelError,
    default_error,
    evidence_shares,
    weakest_class,
)
from sieve.verify.measured_replay import Replays, finite, inverse_direction
from sieve.verify.measured_rows import MeasuredRow, read_rows
from sieve.verify.measured_setup import Setup, setup_of

CONFIDENCE: Final = 0.9
"""One-sided; both ends together hold 80 %."""
BY: Final[Mapping[str, Callable[[Mapping[str, Any]], str]]] = {
    "source": lambda row: str(row["source"]),
    "gpu": lambda row: str(row["gpu"]),
    "model": lambda row: str(row["model"]),
    "regime": lambda row: str(row["regime"]),
}
THRESHOLDS: Final[Mapping[tuple[str, str], float]] = {
    ("tpot", "median_ape"): 5.0, ("tpot", "mape"): 9.0, ("ttft", "median_ape"): 12.0,
    ("ttft", "mape"): 20.0, ("output_tokens_per_s", "mape"): 8.0,
}  # fmt: skip
"""What `--strict` holds the summary to, percent."""

_INTERVAL_OF: Final = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2e": "e2e"}


def verify_measured(
    path: Path,
    *,
    eligible_only: bool = False,
    replays: Replays | None = None,
    calibration: Calibration | None = None,
) -> dict[str, Any]:
    """Return the replay held against every row of a table of measured runs.

    Args:
        path: CSV file.
        eligible_only: leave out rows that are not marked eligible, with that reason.
        replays: with other constants than the shipped ones.
        calibration: corrects TTFT, TPOT and ITL, and their intervals where it has local evidence.

    Raises:
        ResultError: the file cannot be read or has a cell that cannot be.
    """
    table = read_rows(path)
    replays = replays or Replays()
    rows: list[dict[str, Any]] = []
    skipped: list[dict[str, Any]] = []
    for row in table:
        if eligible_only and not row.eligible:
            skipped.append({"row": row.row, "reason": "not marked eligible"})
        else:
            try:
                rows.append(compare(row, replays, calibration))
            except SieveError as error:
                skipped.append({"row": row.row, "reason": str(error)})
    return {
        "summary": {
            "rows": len(rows) + sum(s["reason"] != "not marked eligible" for s in skipped),
            "predicted": len(rows),
            "metrics": errors_by_metric(rows),
        },
        "by": {name: _by(rows, key) for name, key in BY.items()},
        "rows": rows,
        "skipped": skipped,
    }


def compare(
    row: MeasuredRow, replays: Replays, calibration: Calibration | None = None
) -> dict[str, Any]:
    """Return one row beside its replay.

    Raises:
        SieveError: the row cannot be replayed; why.
    """
    setup = setup_of(row)
    predicted, result, table = replays.predict(setup)
    evidence = weakest_class(evidence_shares(result.component_s, table.component_evidence))
    error = default_error(evidence, CONFIDENCE)
    if calibration is not None and (place := place_of(setup, result)) is not None:
        predicted, error = _corrected(predicted, place, calibration, evidence)
    out: dict[str, Any] = {
        "row": row.row,
        "file": row.file,
        "source": row.source,
        "model": setup.model.name,
        "gpu": setup.gpu.name,
        "regime": row.regime,
        "eligible": row.eligible,
        "evidence": evidence,
        "assumed": list(setup.assumed),
    }
    for metric, measured in row.measured.items():
        middle = finite(predicted).get(metric)
        if middle is None:
            continue
        low, high = _interval(metric, middle, error)
        out[metric] = {"measured": measured, "predicted": middle, "low": low, "high": high}
    return out


def errors_by_metric(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Return rows, mean and median absolute error, bias and coverage of each metric, percent."""
    found: dict[str, list[Mapping[str, float]]] = defaultdict(list)
    for row in rows:
        for name, cell in row.items():
            if isinstance(cell, dict) and "predicted" in cell:
                found[name].append(cell)
    return {name: _errors(found[name]) for name in sorted(found)}


def missed(report: Mapping[str, Any]) -> list[str]:
    """Return the thresholds that a report misses, in words; rows that were skipped count too."""
    metrics = report["summary"]["metrics"]
    out = [
        f"{metric} {name} is {metrics[metric][name]:.1f} %; allowed is up to {most:g} %"
        for (metric, name), most in THRESHOLDS.items()
        if metric in metrics and metrics[metric][name] > most
    ]
    summary = report["summary"]
    if summary["predicted"] < summary["rows"]:
        out.append(f"{summary['rows'] - summary['predicted']} rows were not replayed")
    return out


def _errors(cells: Sequence[Mapping[str, float]]) -> dict[str, float]:
    signed = [100 * (cell["predicted"] / cell["measured"] - 1) for cell in cells]
    inside = [cell["low"] <= cell["measured"] <= cell["high"] for cell in cells]
    return {
        "rows": len(cells),
        "mape": fmean(map(abs, signed)),
        "median_ape": median(map(abs, signed)),
        "bias": median(signed),
        "coverage": sum(inside) / len(inside),
    }


def _by(
    rows: Iterable[Mapping[str, Any]], key: Callable[[Mapping[str, Any]], str]
) -> dict[str, dict[str, dict[str, float]]]:
    groups: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    return {name: errors_by_metric(groups[name]) for name in sorted(groups)}


def place_of(setup: Setup, result: SimResult) -> Place | None:
    """Return the deployment and load of a replayed row; None if it was not served."""
    load = load_of(setup.requests, result)
    if load is None:
        return None
    version = ".".join(map(str, setup.version))
    deployment = Deployment(
        engine="vllm", release=release(load_engine(f"vllm=={version}").version),
        gpu=setup.gpu.name, model=setup.model.name, family=setup.model.architecture,
        weight_dtype=setup.weight_dtype, kv_cache_dtype=setup.kv_cache_dtype, tp=setup.tp,
        pp=setup.pp, replicas=setup.replicas,
    )  # fmt: skip
    return deployment.place(**load)


def _corrected(
    predicted: Mapping[str, float], place: Place, calibration: Calibration, evidence: str
) -> tuple[dict[str, float], ModelError]:
    """Return the predictions corrected, and their error; throughput stays as it is."""
    fix = calibration.correction(place)
    out = dict(predicted)
    for name, value in predicted.items():
        if name.startswith("ttft"):
            out[name] = (value + fix.host_s) * exp(fix.ttft)
        elif name.startswith(("tpot", "itl")):
            out[name] = value * exp(fix.tpot)
    if "e2e" in predicted and "ttft" in predicted:
        rest = predicted["e2e"] - predicted["ttft"]
        out["e2e"] = out["ttft"] + rest * exp(fix.tpot)
    share = min(out.get("ttft", 0.0) / max(out.get("e2e", 0.0), 1e-9), 1.0)
    return out, calibration.error_of(place, evidence, CONFIDENCE, share)


def _interval(metric: str, middle: float, error: ModelError) -> tuple[float, float]:
    """Return low and high of a metric; a throughput moves against the time of a token."""
    name, _, statistic = metric.partition("_")
    kind = _INTERVAL_OF.get(name, "tpot")
    tail = statistic if kind == name and statistic.startswith("p") else "mean"
    low, high = (exp(error.at(end, kind, tail)) for end in ENDS)
    if inverse_direction(metric):
        return middle / high, middle * low
    return middle / low, middle * high
