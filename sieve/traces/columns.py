"""Tables and JSON lines whose columns are told by name: the ground of most readers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import polars as pl

from sieve.arrays import IntArray
from sieve.errors import TraceError
from sieve.traces import jsonl
from sieve.traces.chains import Blocks, block_lists
from sieve.traces.files import TraceFile, listing, read_columns, token_counts
from sieve.traces.records import Records, session_codes
from sieve.traces.times import read_times

ROLES: Final = ("time", "input", "output", "session", "delay", "blocks", "id")
"""What a column can hold."""
_ROWS: Final = 1 << 16
"""Rows whose lists are read from text at a time."""


@dataclass(frozen=True)
class Layout:
    """Which column holds what, and how it counts.

    Attributes:
        columns: role of `ROLES` -> name of the column; `input` and `output` are needed.
        needed: roles whose column must be there; the other ones are read where they are.
        seconds: of one unit of a plain number in `time` and `delay`; None: date-times only.
        unit: name of that unit, for messages.
        block_tokens: tokens of a prefix block.
        whole_only: block lists leave out a last block that is partly filled.
        epoch_s: of `delay`, where its unit differs from that of `time`.
    """

    columns: Mapping[str, str]
    needed: Sequence[str] = ("time", "input", "output")
    seconds: float | None = None
    unit: str = "date-times"
    block_tokens: int = 512
    whole_only: bool = False
    delay_seconds: float | None = None


def read(file: TraceFile, layout: Layout) -> Records:
    """Return what the columns of a CSV, Parquet or JSON-lines file say.

    Raises:
        TraceError: a column is missing, or a cell cannot be read; file, line and field are named.
    """
    frame, rows, notes = _frame(file, layout)
    have = {role: name for role, name in layout.columns.items() if name in frame.columns}
    output = token_counts(file, frame, rows, have["output"], least=0)
    given = token_counts(file, frame, rows, have["input"], least=0)
    file.faults.check(
        (given < 1) & (output > 0),
        rows,
        f"{have['input']}: 0",
        lambda i: (
            f"{file.where(int(rows[i]))}: {have['input']} is '0'; "
            "expected a whole number of tokens from 1 on"
        ),
        file.first_row,
    )
    if "id" in have:
        check_ids(file, frame[have["id"]], rows)
    time = delay = None
    if "time" in have:
        time = read_times(
            file, frame[have["time"]], rows, layout.seconds, may_be_empty="delay" in have
        )
    if "delay" in have:
        seconds = layout.delay_seconds or layout.seconds or 1.0
        value = frame[have["delay"]]
        text = value.str.strip_chars() if value.dtype == pl.String else value
        delay = text.cast(pl.Float64, strict=False).to_numpy().astype(np.float64) * seconds
    return Records(
        file=file,
        rows=rows,
        input_tokens=np.maximum(given, 1),
        output_tokens=output,
        time_s=time,
        delay_s=delay,
        session=_sessions(frame, have.get("session")),
        blocks=_blocks(file, frame, rows, have.get("blocks"), layout),
        unit=layout.unit,
        names={"time": have.get("time", "time"), "output": have["output"],
               "blocks": have.get("blocks", "blocks")},
        notes=tuple(notes),
    )  # fmt: skip


def _frame(file: TraceFile, layout: Layout) -> tuple[pl.DataFrame, IntArray, list[str]]:
    needed = [layout.columns[role] for role in layout.needed if role in layout.columns]
    others = [name for name in layout.columns.values() if name not in needed]
    if file.columns:
        frame, rows = read_columns(file, needed, others)
        return frame, rows, []
    schema: dict[str, pl.DataType] = {}
    for role, name in layout.columns.items():
        kinds = {"input": jsonl.COUNT, "output": jsonl.COUNT, "blocks": jsonl.IDS}
        schema[name] = kinds.get(role, jsonl.TEXT)
        if role in {"time", "delay"} and layout.seconds is not None:
            schema[name] = jsonl.NUMBER

    def check(record: dict[str, Any], where: str) -> None:
        jsonl.check_counts(record, where, [layout.columns[r] for r in ("input", "output")])
        for name in needed:
            if record.get(name) is None:
                raise TraceError(f"{where}: {name} is missing; found {listing(tuple(record))}")
        jsonl.check_types(record, where, schema)

    return jsonl.read_lines(file, schema, needed, check)


def check_ids(file: TraceFile, ids: pl.Series, rows: IntArray) -> None:
    """Note the rows whose id another row above has.

    Raises:
        TraceError: an id is there twice, when faults stop.
    """
    again = (ids.is_not_null() & ~ids.is_first_distinct()).to_numpy()
    file.faults.check(
        again,
        rows,
        f"{ids.name}: duplicated",
        lambda i: (
            f"{file.where(int(rows[i]))}: {ids.name} {str(ids[i])[:40]!r} is there twice; "
            "expected one row a request"
        ),
        file.first_row,
    )


def _sessions(frame: pl.DataFrame, name: str | None) -> IntArray | None:
    if name is None:
        return None
    series = frame[name]
    if series.dtype == pl.String:
        series = series.str.strip_chars().replace("", None)
    return session_codes(series)


def _blocks(
    file: TraceFile, frame: pl.DataFrame, rows: IntArray, name: str | None, layout: Layout
) -> Blocks | None:
    """Return lists of block numbers; in CSV they are separated by spaces."""
    if name is None:
        return None
    series = frame[name]
    if series.dtype == pl.String:
        parts = series.to_frame().iter_slices(_ROWS)
        series = pl.concat([_lists(part.to_series()) for part in parts], rechunk=False)
    if not isinstance(series.dtype, pl.List) and series.dtype != pl.Null:
        raise TraceError(f"{file.label}: column {name} is {series.dtype}; expected lists")
    return block_lists(series, rows, layout.block_tokens, file, whole_only=layout.whole_only)


def _lists(texts: pl.Series) -> pl.Series:
    """Return texts of numbers as lists; what is no number is null."""
    text = texts.str.strip_chars(" []").str.replace_all(",", " ").replace("", None)
    return text.str.split(" ").list.eval(
        pl.element().filter(pl.element() != "").cast(pl.Int64, strict=False)
    )
