"""Measured iterations against the step-time model, errors by what the iteration consisted of."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final

import numpy as np
import polars as pl

from sieve.arrays import StepTable
from sieve.catalog.accelerators import load_gpu
from sieve.catalog.models import load_model
from sieve.errors import ResultError, SieveError
from sieve.memory.formats import weight_format
from sieve.perf.base import ServingShape
from sieve.perf.compose import build_step_table

COLUMNS: Final = (
    "model", "gpu", "tp", "weight_dtype", "prefill_tokens", "prefill_context_tokens",
    "decode_seqs", "decode_context_tokens", "duration_s",
)  # fmt: skip
"""Columns of a file of iterations; an unknown cell of a composition column is empty."""
LONGEST_S: Final = 1000.0
"""An iteration longer than that is in another unit."""
THRESHOLD_MEDIAN_APE: Final = 10.0
"""What `--strict` holds the median error to, percent."""

_COUNTS: Final = (
    "tp", "prefill_tokens", "prefill_context_tokens", "decode_seqs", "decode_context_tokens",
)  # fmt: skip
_MOST_TOKENS: Final = 1_048_576
_USUAL_CONTEXT: Final = 1024


@dataclass(frozen=True)
class Iteration:
    """One measured iteration.

    Attributes:
        row: line or row of the file.
        model, gpu, tp, weight_dtype: the replica.
        prefill_tokens, prefill_context_tokens: prompt tokens computed, and those before them.
        decode_seqs, decode_context_tokens: sequences that decode, and the sum of their contexts.
        duration_s: measured.
        assumed: what was empty, in words.
    """

    row: int
    model: str
    gpu: str
    tp: int
    weight_dtype: str
    prefill_tokens: int
    prefill_context_tokens: int
    decode_seqs: int
    decode_context_tokens: int
    duration_s: float
    assumed: tuple[str, ...]

    @property
    def composition(self) -> str:
        """`decode`, `prefill` or `mixed`."""
        if not self.prefill_tokens:
            return "decode"
        return "mixed" if self.decode_seqs else "prefill"


def verify_steps(path: Path) -> dict[str, Any]:
    """Return the step-time model held against every iteration of a file.

    Raises:
        ResultError: the file cannot be read, lacks columns or has unknown ones, or a cell is not
            what its column says; with file, row and field.
    """
    rows: list[dict[str, Any]] = []
    skipped: list[dict[str, Any]] = []
    for step in read_steps(path):
        try:
            predicted, evidence = predict(step)
        except SieveError as error:
            skipped.append({"row": step.row, "reason": str(error)})
            continue
        rows.append(
            {
                "row": step.row, "model": step.model, "gpu": step.gpu, "tp": step.tp,
                "composition": step.composition, "prefill_tokens": step.prefill_tokens,
                "decode_seqs": step.decode_seqs, "measured": step.duration_s,
                "predicted": predicted, "evidence": evidence, "assumed": list(step.assumed),
            }
        )  # fmt: skip
    return {
        "summary": {"rows": len(rows) + len(skipped), "predicted": len(rows), **_errors(rows)},
        "by": {name: _by(rows, name) for name in ("composition", "model", "gpu", "decode_batch")},
        "rows": rows,
        "skipped": skipped,
    }


def read_steps(path: Path) -> list[Iteration]:
    """Return the iterations of a Parquet or CSV file; errors as `verify_steps`."""
    if path.exists() and not path.is_file():
        raise ResultError(f"{path}: not a regular file; expected one Parquet or CSV file")
    try:
        if path.suffix.lower() == ".parquet":
            frame = pl.read_parquet(path)
        else:
            frame = pl.read_csv(path, infer_schema_length=0)
    except (OSError, UnicodeDecodeError, pl.exceptions.PolarsError) as error:
        raise ResultError(f"{path}: cannot be read: {error}") from error
    missing = [name for name in COLUMNS if name not in frame.columns]
    unknown = [name for name in frame.columns if name not in COLUMNS]
    if missing or unknown:
        parts = [
            f"{word} columns {', '.join(names)}"
            for word, names in (("missing", missing), ("unknown", unknown))
            if names
        ]
        raise ResultError(f"{path}, row 1: {'; '.join(parts)}; allowed are {', '.join(COLUMNS)}")
    if not len(frame):
        raise ResultError(f"{path}: has no iterations")
    first = 1 if path.suffix.lower() == ".parquet" else 2
    return [_iteration(f"{path}, row {i}", i, row) for i, row in
            enumerate(frame.iter_rows(named=True), start=first)]  # fmt: skip


def _iteration(where: str, number: int, row: Mapping[str, Any]) -> Iteration:
    assumed: list[str] = []
    counts = {name: _count(where, name, row[name]) for name in _COUNTS}
    if (counts["tp"] or 0) < 1:
        raise ResultError(f"{where}, tp: found {row['tp']!r}; allowed is a whole number from 1")
    seqs, prompt = counts["decode_seqs"] or 0, counts["prefill_tokens"] or 0
    if seqs + prompt == 0:
        raise ResultError(
            f"{where}, decode_seqs: found no prompt tokens and no sequences; give one"
        )
    context = counts["decode_context_tokens"]
    if context is None and seqs:
        context = seqs * _USUAL_CONTEXT
        assumed.append(f"contexts of {_USUAL_CONTEXT} tokens")
    before = counts["prefill_context_tokens"]
    if before is None and prompt:
        assumed.append("prompts that begin here")
    if seqs and (context or 0) < seqs:
        raise ResultError(
            f"{where}, decode_context_tokens: found {context}; allowed is at least one for each of "
            f"the {seqs} sequences (their sum)"
        )
    return Iteration(
        number, _text(where, "model", row["model"]), _text(where, "gpu", row["gpu"]),
        counts["tp"] or 1, str(row["weight_dtype"] or "").strip(), prompt, before or 0, seqs,
        context or 0, _duration(where, row["duration_s"]), tuple(assumed),
    )  # fmt: skip


def predict(step: Iteration) -> tuple[float, str]:
    """Return the model's time of an iteration in seconds, and its weakest evidence class.

    Raises:
        SieveError: the model, the card, or a rate is not known.
    """
    table = _table(step.model, step.gpu, step.tp, step.weight_dtype)
    tokens = step.prefill_tokens + step.decode_seqs
    if tokens >= len(table.token_s) or step.decode_seqs >= len(table.head_s):
        raise ResultError(f"{tokens} tokens are more than one iteration takes here")
    decode = 0.0
    if step.decode_seqs:
        mean = step.decode_context_tokens / step.decode_seqs
        decode = float(table.decode_attention(step.decode_seqs, mean))
    components = ["tokens", "head", "decode_attention"]
    if step.prefill_tokens:
        end = step.prefill_context_tokens + step.prefill_tokens
        prefill = table.prefill_attention(end) - table.prefill_attention(
            step.prefill_context_tokens
        )
        time = table.token_s[tokens] + float(prefill) + table.prefill_floor_s + table.host_mixed_s
        components.append("prefill_attention")
    else:
        time = table.decode_token_s[step.decode_seqs] + table.host_decode_s
    sampled = max(1, step.decode_seqs + (1 if step.prefill_tokens else 0))
    time += table.head_s[min(sampled, len(table.head_s) - 1)] + decode
    classes = [name for part in components for name in table.component_evidence[part]]
    order = ("measured", "interpolated", "extrapolated", "roofline")
    return float(time), max(classes, key=order.index)


@lru_cache(maxsize=64)
def _table(model: str, gpu: str, tp: int, weight_dtype: str) -> StepTable:
    facts, card = load_model(model, any_family=True), load_gpu(gpu)
    form = weight_format(facts, weight_dtype or "auto")
    size = form.expert_bytes if facts.moe else form.linear_bytes
    shape = ServingShape(facts, card, tp, 1, 1, form.name, "auto", 32768, 2048, 131072, size)
    return build_step_table(shape)


def _text(where: str, name: str, value: Any) -> str:
    text = "" if value is None else str(value).strip()
    if not text:
        raise ResultError(f"{where}, {name}: found an empty cell; allowed is a name")
    return text


def _count(where: str, name: str, value: Any) -> int | None:
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = float("nan")
    if not np.isfinite(number) or number < 0 or number != int(number) or number > _MOST_TOKENS**2:
        raise ResultError(f"{where}, {name}: found {value!r}; allowed is a whole number from 0")
    return int(number)


def _duration(where: str, value: Any) -> float:
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        seconds = float("nan")
    if not 0 < seconds <= LONGEST_S:
        raise ResultError(
            f"{where}, duration_s: found {value!r}; allowed is above 0 up to {LONGEST_S:g} "
            "seconds; check the unit"
        )
    return seconds


def missed(report: Mapping[str, Any]) -> list[str]:
    """Return what a report misses, in words."""
    summary = report["summary"]
    out = []
    if summary["median_ape"] is not None and summary["median_ape"] > THRESHOLD_MEDIAN_APE:
        out.append(
            f"median error is {summary['median_ape']:.1f} %; allowed is up to "
            f"{THRESHOLD_MEDIAN_APE:g} %"
        )
    if summary["predicted"] < summary["rows"]:
        out.append(f"{summary['rows'] - summary['predicted']} iterations were not compared")
    return out


def _errors(rows: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    signed = [100 * (row["predicted"] / row["measured"] - 1) for row in rows]
    if not signed:
        return {"mape": None, "median_ape": None, "bias": None}
    sizes = [abs(value) for value in signed]
    return {"mape": fmean(sizes), "median_ape": median(sizes), "bias": median(signed)}


def _by(rows: Sequence[Mapping[str, Any]], name: str) -> dict[str, dict[str, Any]]:
    groups: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[_batch(row["decode_seqs"]) if name == "decode_batch" else str(row[name])].append(row)
    return {key: {"rows": len(groups[key]), **_errors(groups[key])} for key in sorted(groups)}


def _batch(seqs: int) -> str:
    """Return the band of a decode batch."""
    for most in (0, 4, 16, 64, 256):
        if seqs <= most:
            return "none" if most == 0 else f"to {most:>3}"
    return "above 256"
