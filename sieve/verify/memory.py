"""The memory ledger against start-up logs: one row a start-up, figures in GiB per GPU.

Columns are those of a table of start-ups: model, GPU, parallel sizes, engine options, version, what
the log stated. A row that lacks what a ledger needs is skipped with the reason.
"""

from __future__ import annotations

import csv
import difflib
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final

from sieve.catalog.accelerators import load_gpu
from sieve.catalog.architecture import ModelArchitecture
from sieve.catalog.models import load_model
from sieve.errors import ResultError, SieveError
from sieve.fit_of import Fit, configure, fit
from sieve.units import GIB, MIB

NEEDED: Final = (
    "case_id", "base_model", "weight_format", "gpu_canonical", "tp", "pp", "ep",
    "gpu_memory_utilization", "max_model_len", "kv_cache_dtype", "max_num_seqs",
    "max_num_batched_tokens", "vllm_version", "outcome",
)  # fmt: skip
"""Columns that the file must have; cells may be empty."""
FIGURES: Final = (
    "weights_gib", "activation_gib", "non_torch_gib", "cuda_graph_gib", "available_kv_gib",
    "kv_tokens", "max_concurrency",
)  # fmt: skip
"""What a log may state, each compared with the ledger's."""
OPTIONAL: Final = (
    "model", "gpu", "gpu_total_gib", "gpus", "dp", "knobs_from_default", "enforce_eager",
    "outcome_note", "eligible", "confidence", "note", "source",
)  # fmt: skip
"""Columns that the file may have beside those needed and the figures."""
_YES: Final = ("1", "1.0", "true", "yes")
_NO: Final = ("", "0", "0.0", "false", "no")
_MOST_GIB: Final = 1e6
_NEGATIVE: Final = frozenset({"non_torch_gib", "available_kv_gib"})  # both occur below zero in logs
THRESHOLDS: Final[Mapping[str, float]] = {
    "verdict_wrong": 0.0,
    "kv_tokens_median_ape": 2.0,
    "weights_mape": 1.0,
    "activation_mae_gib": 0.4,
    "non_torch_mae_gib": 0.3,
}
"""What `--strict` holds the summary to."""
_VERSION: Final = re.compile(r"(\d+\.\d+(?:\.\d+)?)")
_FORMATS: Final = (
    ("mxfp4", "mxfp4"), ("nvfp4", "nvfp4"), ("awq", "int4"), ("gptq", "int4"), ("w4a16", "int4"),
    ("int4", "int4"), ("int8", "int8"), ("w8a8", "int8"), ("bf16", "bf16"), ("fp16", "fp16"),
)  # fmt: skip


def verify_memory(path: Path, *, eligible_only: bool = False) -> dict[str, Any]:
    """Return the ledger held against every row of a table of start-ups.

    Args:
        path: CSV file.
        eligible_only: skip rows that are not marked as fully known.

    Raises:
        ResultError: the file cannot be read or lacks columns.
    """
    rows: list[dict[str, Any]] = []
    skipped: list[dict[str, str]] = []
    columns, table = _read(path)
    for number, row in enumerate(table, start=2):
        label = row["case_id"] or f"line {number}"
        try:
            if eligible_only and not _flag(row, "eligible"):
                raise ResultError("not marked eligible")
            rows.append(_compared(label, row, judge(row)))
        except SieveError as error:
            skipped.append({"row": label, "reason": str(error)})
    known = (*NEEDED, *FIGURES, *OPTIONAL)
    unread = [name for name in columns if name not in known]
    return {
        "summary": summary(rows), "rows": rows, "skipped": skipped, "unread_columns": unread
    }  # fmt: skip


def judge(row: Mapping[str, str]) -> Fit:
    """Return the ledger of one row.

    Raises:
        ResultError: a fact that a ledger needs is missing or not understood.
        SieveError: the model, the card or an option is not known.
    """
    for field in ("base_model", "weight_format", "gpu_canonical", "tp", "vllm_version", "outcome"):
        if not row.get(field):
            raise ResultError(f"{field} is not stated")
    if row["outcome"] not in {"boots", "fails"}:
        raise ResultError(f"outcome is {row['outcome']!r}; allowed are boots and fails")
    version = _VERSION.match(row["vllm_version"])
    if version is None:
        raise ResultError(f"engine version {row['vllm_version']!r} cannot be read")
    model = _model(row)
    gpu = load_gpu(row["gpu_canonical"])
    total = _number(row, "gpu_total_gib")
    if total is not None:
        if not 0 < total <= _MOST_GIB:
            raise ResultError(
                f"gpu_total_gib is {row['gpu_total_gib']!r}; expected above 0, up to {_MOST_GIB:g}"
            )
        gpu = replace(gpu, memory_bytes=total * GIB)
    tokens, length = int(_figure(row, "kv_tokens") or 0), _count(row, "max_model_len")
    if length is None and tokens and row["outcome"] == "boots":
        # An engine that started holds one request of full length: the length is at most this.
        length = min(tokens, model.max_position_embeddings or tokens)
    tp = _count(row, "tp") or 1
    ep = _count(row, "ep") or 0
    dp = (_count(row, "dp") or 1) if ep and model.moe is not None else 1
    return fit(
        configure(
            model, gpu, engine=f"vllm=={version[1]}", tp=tp, pp=_count(row, "pp") or 1,
            ep=tp * dp if ep else 1, dp=dp, weight_dtype=_format(row["weight_format"], model),
            kv_cache_dtype=row["kv_cache_dtype"] or "auto",
            max_model_len=length, max_num_seqs=_count(row, "max_num_seqs"),
            max_num_batched_tokens=_count(row, "max_num_batched_tokens"),
            gpu_memory_utilization=_number(row, "gpu_memory_utilization"),
            enforce_eager=_flag(row, "enforce_eager"),
        )
    )  # fmt: skip


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the figures over some rows; percentages as numbers, None where nothing is stated."""
    right = sum(1 for row in rows if row["verdict"] == row["expected"])
    tokens = _shares(rows, "kv_tokens")
    weights = _shares(rows, "weights_gib")
    activation = _differences(rows, "activation_gib")
    non_torch = _differences(rows, "non_torch_gib")
    return {
        "rows": len(rows),
        "verdict_correct": right,
        "verdict_wrong": len(rows) - right,
        "kv_tokens_mape": fmean(tokens) if tokens else None,
        "kv_tokens_median_ape": median(tokens) if tokens else None,
        "weights_mape": fmean(weights) if weights else None,
        "activation_mae_gib": fmean(activation) if activation else None,
        "non_torch_mae_gib": fmean(non_torch) if non_torch else None,
    }


def missed(report: Mapping[str, Any]) -> list[str]:
    """Return the checks of `THRESHOLDS` that a report misses, in words."""
    found = report["summary"]
    return [
        f"{name} is {found[name]:.3g}; allowed is up to {most:g}"
        for name, most in THRESHOLDS.items()
        if found[name] is not None and found[name] > most
    ]


def _read(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    """Return the columns and the rows of a table."""
    try:
        with path.open(encoding="utf-8", newline="") as handle:
            reader = csv.DictReader(handle)
            columns = list(reader.fieldnames or ())
            _check_columns(path, columns)
            rows = [
                {key: (cell or "").strip() for key, cell in row.items() if key} for row in reader
            ]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ResultError(f"{path}: cannot be read: {error}") from error
    if not rows:
        raise ResultError(f"{path}: has no rows; give one line for each start-up")
    return columns, rows


def _check_columns(path: Path, columns: Sequence[str]) -> None:
    if not columns:
        raise ResultError(f"{path}: is empty; the first line names the columns")
    twice = sorted(name for name, times in Counter(columns).items() if times > 1)
    if twice:
        raise ResultError(f"{path}: columns named twice: {', '.join(twice)}")
    lacking = [name for name in NEEDED if name not in columns]
    if lacking:
        near = {name: difflib.get_close_matches(name, columns, n=1) for name in lacking}
        shown = [f"{name} (found {near[name][0]})" if near[name] else name for name in lacking]
        raise ResultError(f"{path}: missing columns {', '.join(shown)}; add them")


def _model(row: Mapping[str, str]) -> ModelArchitecture:
    """Return the served checkpoint where its name leads to the base model, else the base model."""
    base = load_model(row["base_model"], any_family=True)
    try:
        served = load_model(row.get("model", ""), any_family=True)
    except SieveError:
        return base
    return served if served.name == base.name else base


def _format(text: str, model: ModelArchitecture) -> str:
    """Return the weight format that a row describes in words."""
    words = text.lower()
    for sign, name in _FORMATS:
        if words.startswith(sign):
            return name
    if words.startswith("fp8") and "kv" not in words:
        return "fp8"
    if words == "checkpoint default":
        return model.checkpoint_dtype
    raise ResultError(f"weight format {text!r} is not understood")


def _number(row: Mapping[str, str], field: str) -> float | None:
    text = row.get(field) or ""
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        raise ResultError(f"{field} is {text!r}; expected a number") from None
    if not math.isfinite(value):
        raise ResultError(f"{field} is {text!r}; expected a finite number")
    return value


def _flag(row: Mapping[str, str], field: str) -> bool:
    text = (row.get(field) or "").lower()
    if text not in {*_YES, *_NO}:
        raise ResultError(f"{field} is {row[field]!r}; allowed are 0 and 1")
    return text in _YES


def _count(row: Mapping[str, str], field: str) -> int | None:
    value = _number(row, field)
    if value is not None and not value.is_integer():
        raise ResultError(f"{field} is {row[field]!r}; expected a whole number")
    return None if value is None else int(value)


def _figure(row: Mapping[str, str], field: str) -> float | None:
    """Return a stated figure; weights, tokens and the like cannot be nothing or less."""
    value = _number(row, field)
    least = -math.inf if field in _NEGATIVE else 0.0
    if value is not None and value < least:
        raise ResultError(f"{field} is {row[field]!r}; expected a number from 0")
    return value


def _compared(label: str, row: Mapping[str, str], found: Fit) -> dict[str, Any]:
    stage = found.stages[found.decides]
    predicted = {
        "weights_gib": max(part.weight_bytes for part in found.stages) / GIB,
        "activation_gib": stage.activation_bytes / GIB,
        "non_torch_gib": stage.non_torch_bytes / GIB,
        "cuda_graph_gib": stage.graph_bytes / GIB,
        "available_kv_gib": stage.kv_bytes / GIB,
        "kv_tokens": float(found.kv_tokens),
        "max_concurrency": found.concurrency_engine,
    }
    out: dict[str, Any] = {
        "case_id": label,
        "model": found.configuration.model.name,
        "eligible": _flag(row, "eligible"),
        "verdict": "boots" if found.fits else "fails",
        "expected": row["outcome"],
        "margin_mib": min(found.margin_bytes, found.outside_bytes) / MIB,
        "reason": found.reason,
    }
    for name in FIGURES:
        out[f"{name}_measured"] = _figure(row, name)
        out[f"{name}_predicted"] = predicted[name]
    return out


def _pairs(rows: Sequence[Mapping[str, Any]], name: str) -> list[tuple[float, float]]:
    return [
        (row[f"{name}_measured"], row[f"{name}_predicted"])
        for row in rows
        if row[f"{name}_measured"] is not None
    ]


def _shares(rows: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    return [100 * abs(got / true - 1) for true, got in _pairs(rows, name) if true]


def _differences(rows: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    return [abs(got - true) for true, got in _pairs(rows, name)]
