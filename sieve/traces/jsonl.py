"""JSON lines as a frame of typed columns, with the line of every row."""

from __future__ import annotations

import difflib
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import polars as pl

from sieve.arrays import IntArray
from sieve.errors import TraceError
from sieve.traces.files import TraceFile

Check = Callable[[dict[str, Any], str], None]
"""Raises the fault of one record; the second argument is file and line."""

NUMBER: Final = pl.Float64()
MAX_NUMBER: Final = 2**63 - 1
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
    frames, numbers, first = [], [], 1
    for piece in file.pieces():
        frame, lines = _parse(piece, schema, needed)
        if frame is None:
            frame, lines = _repaired(_without_faults(file, piece, first, check), schema, needed,
                                     file, first)  # fmt: skip
        frames.append(frame)
        numbers.append(lines + (first - file.first_row))
        first += piece.count(b"\n")
    whole = pl.concat(frames, rechunk=False)
    if not len(whole):
        raise TraceError(
            f"{file.label}: no line is a request; needed in each line: {', '.join(needed)}"
        )
    return whole, np.concatenate(numbers), _misspelt(file.head, schema)


def _parse(
    content: bytes, schema: Mapping[str, pl.DataType], needed: Sequence[str]
) -> tuple[pl.DataFrame | None, IntArray]:
    """Return the rows of whole lines, None if one does not fit, and their lines from 0."""
    try:
        frame = pl.read_ndjson(io.BytesIO(content), schema=dict(schema))
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, ValueError):
        return None, np.zeros(0, np.int64)
    num_lines = content.count(b"\n") + (not content.endswith(b"\n"))
    lines = np.arange(num_lines)
    if len(frame) != num_lines:  # a filled line is one row, a blank line none
        filled = [bool(line.strip()) for line in content.split(b"\n")]
        lines = np.flatnonzero(filled)
    fits = len(frame) == len(lines) and not any(frame[c].has_nulls() for c in needed)
    return (frame if fits else None), lines


def _without_faults(file: TraceFile, piece: bytes, first: int, check: Check) -> list[bytes]:
    """Return the lines, those that do not fit emptied and noted as faults; `first` is a number."""
    lines = piece.split(b"\n")
    for number, line in enumerate(lines, first):
        if not line.strip():
            continue
        where = f"{file.label}, line {number}"
        try:
            check(_record(line, where), where)
        except TraceError as error:
            text = str(error)
            kind = text.removeprefix(f"{where}: ").split(" is ")[0].split(" (")[0][:60]
            file.faults.add(number - file.first_row, kind, text, file.first_row)
            lines[number - first] = b""
    return lines


def _repaired(
    lines: list[bytes],
    schema: Mapping[str, pl.DataType],
    needed: Sequence[str],
    file: TraceFile,
    first: int,
) -> tuple[pl.DataFrame, IntArray]:
    """Return the rows of lines that passed the check; one that is refused even so is a fault."""
    for i in _refused(lines, schema, needed):
        text = f"{file.label}, line {first + i}: no JSON of the form that is read here"
        text += f"; needed in each line: {', '.join(needed)}"
        file.faults.add(first + i - file.first_row, "no JSON", text, file.first_row)
        lines[i] = b""
    frame, places = _parse(b"\n".join(lines), schema, needed)
    return (pl.DataFrame(schema=dict(schema)) if frame is None else frame), places


def _refused(
    lines: list[bytes], schema: Mapping[str, pl.DataType], needed: Sequence[str]
) -> Iterator[int]:
    """Yield the places of lines that the parser refuses, found by halving."""
    if not any(line.strip() for line in lines) or (
        _parse(b"\n".join(lines), schema, needed)[0] is not None
    ):
        return
    if len(lines) == 1:
        yield 0
        return
    half = len(lines) // 2
    yield from _refused(lines[:half], schema, needed)
    for i in _refused(lines[half:], schema, needed):
        yield half + i


def _record(line: bytes, where: str) -> dict[str, Any]:
    try:
        record = json.loads(line, parse_constant=no_number)
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{where}: no JSON ({str(error)[:80]})") from None
    if not isinstance(record, dict):
        raise TraceError(f"{where}: expected a JSON object, found {str(record)[:40]!r}")
    return record


def no_number(word: str) -> None:
    """Refuse the words that Python reads beyond JSON.

    Raises:
        ValueError: always.
    """
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
        if isinstance(dtype, pl.Int64):
            fits, expected = type(value) is int, "expected a whole number of tokens"
        elif isinstance(dtype, pl.Float64):
            fits = type(value) in (int, float) and -MAX_NUMBER <= value <= MAX_NUMBER
            expected = f"expected a number up to {MAX_NUMBER:g}"
        elif isinstance(dtype, pl.String):
            fits, expected = isinstance(value, str | int), "expected text"
        elif not (
            isinstance(value, list) and all(type(i) is int and -(2**63) <= i < 2**63 for i in value)
        ):
            raise TraceError(f"{where}: {key} is no list of whole numbers of 64 bits")
        else:
            continue
        if not fits:
            raise TraceError(f"{where}: {key} is {json.dumps(value)[:40]}; {expected}")


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
