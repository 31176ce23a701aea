"""JSON lines as a frame of typed columns, with the line of every row."""

from __future__ import annotations

import difflib
import io
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import polars as pl

from sieve.arrays import IntArray
from sieve.errors import TraceError
from sieve.traces.files import TraceFile

Check = Callable[[dict[str, Any], str], None]
"""Raises the fault of one record; the second argument is file and line."""

NUMBER: Final = pl.Float64()
MAX_NUMBER: Final = 1e300
COUNT: Final = pl.Int64()
TEXT: Final = pl.String()
IDS: Final = pl.List(pl.Int64())
_SAMPLE: Final = 1000


def read_lines(
    file: TraceFile, schema: Mapping[str, pl.DataType], needed: Sequence[str], check: Check
) -> tuple[pl.DataFrame, IntArray, list[str]]:
    """Return the columns of `schema` (null where absent), the index of each row, and notes.

    Args:
        file: the file; blank lines are left out.
        schema: the keys that are read, with their types.
        needed: keys that every line must have.
        check: finds what is wrong with a record that does not fit.

    Raises:
        TraceError: a line that does not fit; or, when faults are counted, no line that does.
    """
    if file.is_parquet:
        raise TraceError(f"{file.label}: expected JSON lines, but this is a Parquet file")
    content = file.content
    frame, lines = _parse(content, schema, needed)
    if frame is None:
        content = _without_faults(file, check)
        frame, lines = _parse(content, schema, needed)
    if frame is None or not len(frame):
        raise TraceError(
            f"{file.label}: {'no line is a request' if frame is not None else 'not JSON lines'}; "
            f"needed in each line: {', '.join(needed)}"
        )
    rows = lines - file.first_row
    return frame, rows, _misspelt(content, schema)


def _parse(
    content: bytes, schema: Mapping[str, pl.DataType], needed: Sequence[str]
) -> tuple[pl.DataFrame | None, IntArray]:
    lines = _filled_lines(content)
    if not len(lines):
        return pl.DataFrame(schema=dict(schema)), lines
    try:
        frame = pl.read_ndjson(io.BytesIO(content), schema=dict(schema))
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, ValueError):
        return None, lines
    whole = len(frame) == len(lines)
    return (frame if whole and not any(frame[c].has_nulls() for c in needed) else None), lines


def _filled_lines(content: bytes) -> IntArray:
    """Return the numbers of the lines that are not blank, from 1."""
    num_lines = content.count(b"\n") + (not content.endswith(b"\n"))
    blank = b"\n\n" in content or b"\n " in content or content[:1].isspace()
    if not blank and content and not content.isspace():
        return np.arange(1, num_lines + 1)
    filled = [i for i, line in enumerate(content.split(b"\n"), 1) if line.strip()]
    return np.array(filled, np.int64)


def _without_faults(file: TraceFile, check: Check) -> bytes:
    """Return the content with the lines that do not fit emptied; they are noted as faults."""
    lines = file.content.split(b"\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{file.label}, line {number}"
        try:
            check(_record(line, where), where)
        except TraceError as error:
            text = str(error)
            kind = text.removeprefix(f"{where}: ").split(" is ")[0].split(" (")[0][:60]
            file.faults.add(number - file.first_row, kind, text, file.first_row)
            lines[number - 1] = b""
    return b"\n".join(lines)


def _record(line: bytes, where: str) -> dict[str, Any]:
    try:
        record = json.loads(line, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{where}: no JSON ({str(error)[:80]})") from None
    if not isinstance(record, dict):
        raise TraceError(f"{where}: expected a JSON object, found {str(record)[:40]!r}")
    return record


def _no_number(word: str) -> None:
    """Refuse the words that Python reads beyond JSON."""
    raise ValueError(f"{word} is no number of JSON")


def first_records(content: bytes, most: int = 20) -> list[dict[str, Any]]:
    """Return up to `most` records from the beginning, for a look at the keys; may be none."""
    found: list[dict[str, Any]] = []
    for line in content[: 1 << 20].split(b"\n")[: most * 2]:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            found.append(record)
        if len(found) == most:
            break
    return found


def check_types(record: Mapping[str, Any], where: str, schema: Mapping[str, pl.DataType]) -> None:
    """Raise the first value that is of another type than the schema's.

    Raises:
        TraceError: names file, line and key.
    """
    for key, dtype in schema.items():
        value = record.get(key)
        if value is None:
            continue
        shown = json.dumps(value)[:40]
        if dtype == COUNT and (isinstance(value, bool) or not isinstance(value, int)):
            raise TraceError(f"{where}: {key} is {shown}; expected a whole number of tokens")
        if dtype == NUMBER and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise TraceError(f"{where}: {key} is {shown}; expected a number")
        if dtype == NUMBER and not -MAX_NUMBER <= value <= MAX_NUMBER:
            raise TraceError(f"{where}: {key} is {shown}; expected up to {MAX_NUMBER:g}")
        if dtype == TEXT and not isinstance(value, str | int):
            raise TraceError(f"{where}: {key} is {shown}; expected text")
        if dtype == IDS and not (
            isinstance(value, list) and all(type(i) is int and -(2**63) <= i < 2**63 for i in value)
        ):
            raise TraceError(f"{where}: {key} is no list of whole numbers of 64 bits")


def check_counts(record: Mapping[str, Any], where: str, keys: Sequence[str]) -> None:
    """Raise if a count of tokens is missing or no whole number of 64 bits.

    Raises:
        TraceError: names file, line and key.
    """
    for key in keys:
        value = record.get(key)
        fits = isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63
        if not fits:
            raise TraceError(
                f"{where}: {key} is {json.dumps(value)[:40]}; expected a whole number of tokens"
            )


def _misspelt(content: bytes, schema: Mapping[str, pl.DataType]) -> list[str]:
    """Return a note on each key of the first lines that is not read and looks like one that is."""
    names = dict.fromkeys(name for r in first_records(content, _SAMPLE) for name in r)
    missing = [name for name in schema if name not in names]
    near = {
        name: difflib.get_close_matches(name.lower(), missing, n=1, cutoff=0.75)
        for name in list(names)[:1000]
        if name not in schema
    }
    return [f"key {name[:40]!r} is not read; did you mean {n[0]}?" for name, n in near.items() if n]
