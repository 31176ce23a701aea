"""Measured serving results: reading a table of runs and checking every cell before use.

One row is one operating point; columns carry their unit in the name. A row that breaks its format
is an error with file, row and field. A row that is sound but cannot be replayed is left to the
caller, who says why.
"""

from __future__ import annotations

import csv
import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sieve.errors import ResultError

NEEDED: Final = (
    "source", "model", "gpu", "num_gpus", "tp", "pp", "dp", "ep", "weight_precision",
    "kv_precision", "engine", "engine_version", "isl_mean", "osl_mean", "length_distribution",
    "concurrency", "request_rate", "max_num_seqs", "max_num_batched_tokens", "prefix_hit_rate",
    "notes",
)  # fmt: skip
"""Columns that a file must have; cells may be empty."""
_MS: Final = 1e-3
METRIC_COLUMNS: Final[Mapping[str, tuple[str, float]]] = {
    "ttft_mean_ms": ("ttft", _MS), "ttft_p50_ms": ("ttft_p50", _MS),
    "ttft_p99_ms": ("ttft_p99", _MS), "tpot_mean_ms": ("tpot", _MS),
    "tpot_p50_ms": ("tpot_p50", _MS), "tpot_p99_ms": ("tpot_p99", _MS),
    "itl_mean_ms": ("itl", _MS), "e2e_mean_s": ("e2e", 1.0), "e2e_p99_s": ("e2e_p99", 1.0),
    "output_tok_s_total": ("output_tokens_per_s", 1.0),
    "total_tok_s": ("total_tokens_per_s", 1.0),
}  # fmt: skip
"""Column -> (metric, factor to seconds or tokens per second)."""
MEANS_AS_P50: Final = frozenset({"aiconfigurator_silicon"})
"""Sources whose p50 columns hold means."""

_FURTHER: Final = ("url_or_repo", "commit", "params", "grade", "eligible", "src", "file")
# Above these a figure is in another unit than its column says.
_MOST: Final[Mapping[str, float]] = {
    "ttft_mean_ms": 1e8, "ttft_p50_ms": 1e8, "ttft_p99_ms": 1e8, "tpot_mean_ms": 1e5,
    "tpot_p50_ms": 1e5, "tpot_p99_ms": 1e5, "itl_mean_ms": 1e5, "e2e_mean_s": 1e6,
    "e2e_p99_s": 1e6, "output_tok_s_total": 1e7, "total_tok_s": 1e8,
}  # fmt: skip
MAX_PROMPTS: Final = 1_000_000
_MOST_COUNT: Final = 10_000_000
_MOST_RATE: Final = 1e6
_LEAST_MS: Final = 0.05  # no token and no prompt takes less: such a figure is in seconds
_COUNTS: Final = ("num_gpus", "tp", "pp", "dp", "ep", "max_num_seqs", "max_num_batched_tokens")
_NUMBERS: Final = ("isl_mean", "osl_mean", "concurrency", "prefix_hit_rate")
_CLOSED: Final = ("closed-loop", "closed loop")
_BATCH: Final = ("static batch", "offline batch")
_BURST: Final = ("inf", "inf (saturating)", "burst")
_NUM_PROMPTS: Final = re.compile(r"\b(?:n_requests|num_prompts|n)=(\d+)(x concurrency)?")
_LENGTH_SPAN: Final = re.compile(r"lengths uniform in ([\d.]+)\.\.([\d.]+) x nominal")


@dataclass(frozen=True)
class MeasuredRow:
    """One row with its cells read; None where the cell is empty.

    Attributes:
        file, row: where it stands; the line of the file.
        text: all cells.
        numbers: cells of the numeric columns.
        measured: metric -> seconds or tokens per second.
    """

    file: str
    row: int
    text: Mapping[str, str]
    numbers: Mapping[str, float | None]
    measured: Mapping[str, float]

    @property
    def source(self) -> str:
        """Name of the data set."""
        return self.text["source"]

    @property
    def eligible(self) -> bool:
        """Whether the row is marked as one that acceptance counts."""
        return self.text.get("eligible", "") in {"1", "1.0"}

    def count(self, name: str) -> int | None:
        """Return a whole number, None if the cell is empty."""
        value = self.numbers[name]
        return None if value is None else int(value)

    @property
    def regime(self) -> str:
        """`closed loop`, `burst`, `open loop`, `static batch`, or "" if the row does not say."""
        rate = self.text["request_rate"].lower()
        if rate in _CLOSED:
            return "closed loop"
        if rate in _BATCH:
            return "static batch"
        if rate in _BURST:
            return "closed loop" if self.numbers["concurrency"] else "burst"
        return "" if self.rate_per_s is None else "open loop"

    @property
    def rate_per_s(self) -> float | None:
        """Requests per second where the cell holds a number above 0."""
        try:
            rate = float(self.text["request_rate"])
        except ValueError:
            return None
        return rate if 0 < rate <= _MOST_RATE else None

    @property
    def num_prompts(self) -> int | None:
        """Requests of the run, None if the notes do not say.

        Raises:
            ResultError: none, or more than are replayed.
        """
        found = _NUM_PROMPTS.search(self.text["notes"])
        if found is None:
            return None
        users = self.count("concurrency")
        if len(found[1]) > 9:
            raise ResultError(f"notes: {found[1][:40]} requests; at most {MAX_PROMPTS:,}")
        n = int(found[1]) * (users or 1) if found[2] else int(found[1])
        if not 1 <= n <= MAX_PROMPTS:
            raise ResultError(f"notes: {n:,} requests; expected 1 to {MAX_PROMPTS:,}")
        return n

    @property
    def length_span(self) -> tuple[float, float] | None:
        """Lowest and highest length as a share of nominal, None if the lengths do not vary so."""
        found = _LENGTH_SPAN.search(self.text["notes"])
        return (float(found[1]), float(found[2])) if found else None


def read_rows(path: Path) -> list[MeasuredRow]:
    """Return the rows of a table of measured runs.

    Raises:
        ResultError: the file cannot be read; an unknown or missing column; a cell that is not a
            finite number above 0, or cannot be in the unit of its column.
    """
    if path.exists() and not path.is_file():
        raise ResultError(f"{path}: not a regular file; expected one CSV file")
    try:
        with path.open(encoding="utf-8", newline="") as handle:
            reader = csv.DictReader(handle)
            _check_columns(path, list(reader.fieldnames or ()))
            return [_row(path, number, cells) for number, cells in enumerate(reader, start=2)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ResultError(f"{path}: cannot be read: {error}") from error


def _check_columns(path: Path, names: list[str]) -> None:
    known = {*NEEDED, *METRIC_COLUMNS, *_FURTHER}
    missing = [name for name in NEEDED if name not in names]
    unknown = [name for name in names if name not in known]
    doubled = sorted(name for name, times in Counter(names).items() if times > 1)
    if missing:
        raise ResultError(f"{path}, row 1: missing columns {', '.join(missing)}; add them")
    if unknown:
        raise ResultError(
            f"{path}, row 1: unknown columns {', '.join(unknown[:8])}; allowed are "
            f"{', '.join(sorted(known))}"
        )
    if doubled:
        raise ResultError(f"{path}, row 1: columns {', '.join(doubled)} stand twice")


def _row(path: Path, number: int, cells: Mapping[str | None, object]) -> MeasuredRow:
    if None in cells or any(value is None for value in cells.values()):
        raise ResultError(f"{path}, row {number}: has more or fewer cells than the header")
    text = {str(key): str(value).strip() for key, value in cells.items()}
    where = f"{path}, row {number}"
    numbers = {name: _number(where, name, text[name]) for name in (*_COUNTS, *_NUMBERS)}
    for name in _COUNTS:
        value = numbers[name]
        if value is not None and not (1 <= value <= _MOST_COUNT and value == int(value)):
            raise ResultError(
                f"{where}, {name}: found {text[name]!r}; allowed is a whole number from 1 to "
                f"{_MOST_COUNT:,}"
            )
    for name in ("isl_mean", "osl_mean", "concurrency"):
        value = numbers[name]
        if value is not None and not 1 <= value <= _MOST_COUNT:
            raise ResultError(
                f"{where}, {name}: found {text[name]!r}; allowed is 1 to {_MOST_COUNT:,}"
            )
    return MeasuredRow(path.name, number, text, numbers, _metrics(where, text))


def _metrics(where: str, text: Mapping[str, str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for column, (metric, factor) in METRIC_COLUMNS.items():
        value = _number(where, column, text.get(column, ""))
        if value is None:
            continue
        least = _LEAST_MS if column.endswith("_ms") else 0.0
        if not least < value <= _MOST[column]:
            unit = "milliseconds" if column.endswith("_ms") else column.rsplit("_", 1)[-1]
            raise ResultError(
                f"{where}, {column}: found {text[column]!r}; allowed is above {least:g} up to "
                f"{_MOST[column]:g} {unit}; check the unit"
            )
        found[metric] = value * factor
    if text["source"] in MEANS_AS_P50:
        for metric in ("ttft", "tpot"):
            if metric not in found and f"{metric}_p50" in found:
                found[metric] = found.pop(f"{metric}_p50")
    return found


def _number(where: str, name: str, text: str) -> float | None:
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        raise ResultError(f"{where}, {name}: found {text!r}; allowed is a number") from None
    if not math.isfinite(value) or value < 0:
        raise ResultError(f"{where}, {name}: found {text!r}; allowed is a finite number from 0")
    return value
