"""Tables of lengths: an input and an output length a row, and no arrival times.

CSV (plain or .gz) or Parquet. Input and output of a row stay together. A row with 0 output tokens
is a request that failed: it is left out and counted in the notes; 0 input tokens are an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from sieve.arrays import IntArray
from sieve.errors import TraceError
from sieve.spec.models import LengthSpec
from sieve.traces.files import TraceFile, listing, read_columns, token_counts
from sieve.traces.limits import generator
from sieve.traces.synthetic import draw_lengths

COLUMN_PAIRS: Final = (
    ("input_length", "output_length"),
    ("num_prefill_tokens", "num_decode_tokens"),
)

TIME_COLUMNS: Final = frozenset({"timestamp", "arrival", "arrived_at", "arrival_time", "time"})
"""Columns (in lower case) that may hold arrivals whose unit the file does not state."""


@dataclass(frozen=True, eq=False)
class LengthTable:
    """Lengths of n requests in tokens, (n,) each, and what was left out while reading."""

    input_tokens: IntArray
    output_tokens: IntArray
    notes: tuple[str, ...] = ()


def column_pair(columns: Sequence[str]) -> tuple[str, str] | None:
    """Return the names of the input and output column, or None if this is no table of lengths."""
    return next((pair for pair in COLUMN_PAIRS if set(pair) <= set(columns)), None)


def read(file: TraceFile, osl: LengthSpec | None = None, seed: int = 0) -> LengthTable:
    """Return the table of lengths in file order.

    Args:
        file: the table.
        osl: output lengths for a table that has input lengths only.
        seed: of those.

    Raises:
        TraceError: a column is missing, or a cell cannot be read; file and line are named.
    """
    pair = column_pair(file.columns)
    if pair is None and "input_length" in file.columns:
        return _inputs_only(file, osl, seed)
    if pair is None:
        known = " or ".join(", ".join(names) for names in COLUMN_PAIRS)
        raise TraceError(
            f"{file.label}: not a table of lengths; "
            f"columns found: {listing(file.columns)}; needed: {known}"
        )
    frame, rows = read_columns(file, pair)
    input_tokens = token_counts(file, frame, rows, pair[0], least=1)
    output_tokens = token_counts(file, frame, rows, pair[1], least=0)
    good = file.faults.good(rows)
    answered = (output_tokens > 0) & good
    if not answered.any():
        raise TraceError(f"{file.label}: every row has 0 output tokens; nothing to serve")
    failed = int((output_tokens == 0).sum())
    notes = [f"{failed} failed requests (0 output tokens) left out"] if failed else []
    notes += [*file.notes, *file.faults.notes()]
    return LengthTable(input_tokens[answered], output_tokens[answered], tuple(notes))


def _inputs_only(file: TraceFile, osl: LengthSpec | None, seed: int) -> LengthTable:
    """Return input lengths of a table with output lengths of the spec."""
    if osl is None:
        raise TraceError(
            f"{file.label}: columns found: {listing(file.columns)}; there is no output_length; "
            "add it, or state the answers, as in "
            "traffic.osl: {distribution: lognormal, mean: 300, stdev: 200}"
        )
    frame, rows = read_columns(file, ("input_length",))
    input_tokens = token_counts(file, frame, rows, "input_length", least=1)
    input_tokens = input_tokens[file.faults.good(rows)]
    if not len(input_tokens):
        raise TraceError(f"{file.label}: no row is left: every row has a fault")
    rng = generator(seed, "lengths.osl")
    output_tokens = draw_lengths(osl, len(input_tokens), rng, "traffic.osl")
    notes = ("output lengths are stated by traffic.osl, not recorded", *file.faults.notes())
    return LengthTable(input_tokens, output_tokens, notes)


def draw_rows(num_rows: int, n: int, rng: np.random.Generator) -> IntArray:
    """Return n row indices: a random order without repeats, then another one, and so on."""
    repeats = -(-n // num_rows)
    table = np.tile(np.arange(num_rows, dtype=np.int64), (repeats, 1))
    return np.asarray(rng.permuted(table, axis=1).ravel()[:n], np.int64)
