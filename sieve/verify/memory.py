"""The memory ledger against start-up logs: one row a start-up, figures in GiB per GPU.

Columns are those of a table of start-ups: model, GPU, parallel sizes, engine options, version, what
the log stated. A row that lacks what a ledger needs is skipped with the reason.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final

from sieve.catalog.accelerators import load_gpu
from sieve.catalog.architecture import ModelArchitecture
from sieve.catalog.models import load_model
from sieve.errors import ResultError, SieveError
from sieve.fit import Fit, configure, fit
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
    for number, row in enumerate(_read(path), start=2):
        label = row["case_id"] or f"line {number}"
        if eligible_only and row.get("eligible") != "1":
            skipped.append({"row": label, "reason": "not marked eligible"})
            continue
        try:
            rows.append(_compared(label, row, judge(row)))
        except SieveError as error:
            skipped.append({"row": label, "reason": str(error)})
    return {"summary": summary(rows), "rows": rows, "skipped": skipped}


def judge(row: Mapping[str, str]) -> Fit:
    """Return the ledger of one row.

    Raises:
        ResultError: a fact that a ledger needs is missing or not understood.
        SieveError: the model, the card or an option is not known.
    """
    for field in ("base_model", "weight_format", "gpu_canonical", "tp", "vllm_version", "outcome"):
        if not row.get(field):
            raise ResultError(f"{field} is not stated")
    version = _VERSION.match(row["vllm_version"])
    if version is None:
        raise ResultError(f"engine version {row['vllm_version']!r} cannot be read")
    model = _model(row)
    gpu = load_gpu(row["gpu_canonical"])
    total = _number(row, "gpu_total_gib")
    if total is not None:
        gpu = replace(gpu, memory_bytes=total * GIB)
    tokens, length = _count(row, "kv_tokens"), _count(row, "max_model_len")
    if length is None and tokens and row["outcome"] == "boots":
        # An engine that started holds one request of full length: the length is at most this.
        length = min(tokens, model.max_position_embeddings or tokens)
    tp = _count(row, "tp") or 1
    ep = _count(row, "ep") or 0
    if ep and (_count(row, "dp") or 1) > 1:
        raise ResultError("experts spread over data-parallel ranks are not described")
    return fit(
        configure(
            model, gpu, engine=f"vllm=={version[1]}", tp=tp, pp=_count(row, "pp") or 1,
            ep=tp if ep else 1, weight_dtype=_format(row["weight_format"], model),
            kv_cache_dtype=row["kv_cache_dtype"] or "auto",
            max_model_len=length, max_num_seqs=_count(row, "max_num_seqs"),
            max_num_batched_tokens=_count(row, "max_num_batched_tokens"),
            gpu_memory_utilization=_number(row, "gpu_memory_utilization"),
            enforce_eager=row.get("enforce_eager") == "1",
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


def _read(path: Path) -> list[dict[str, str]]:
    try:
        with path.open(encoding="utf-8", newline="") as handle:
            reader = csv.DictReader(handle)
            lacking = [name for name in NEEDED if name not in (reader.fieldnames or ())]
            if lacking:
                raise ResultError(f"{path}: missing columns {', '.join(lacking)}")
            return [
                {key: (cell or "").strip() for key, cell in row.items() if key} for row in reader
            ]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ResultError(f"{path}: cannot be read: {error}") from error


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
        return float(text)
    except ValueError:
        raise ResultError(f"{field} is {text!r}; expected a number") from None


def _count(row: Mapping[str, str], field: str) -> int | None:
    value = _number(row, field)
    return None if value is None else int(value)


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
        "eligible": row.get("eligible") == "1",
        "verdict": "boots" if found.fits else "fails",
        "expected": row["outcome"],
        "margin_mib": min(found.margin_bytes, found.outside_bytes) / MIB,
        "reason": found.reason,
    }
    for name in FIGURES:
        out[f"{name}_measured"] = _number(row, name)
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
