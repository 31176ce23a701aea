"""Traffic files: bytes, compression, columns, and where in the file a row stands."""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl

from sieve.arrays import IntArray
from sieve.errors import TraceError
from sieve.traces.faults import Faults
from sieve.traces.limits import MAX_TOKENS
from sieve.traces.unpack import HEAD_BYTES, PARQUET_MAGIC, Endings, text_pieces

KEPT_BYTES: Final = 256_000_000
"""JSON beyond this is not kept in memory but read again, piece by piece."""
PIECE_BYTES: Final = 32_000_000
"""Of JSON lines that are parsed at a time."""
_INDEX: Final = "__row"


@dataclass(frozen=True, eq=False)
class TraceFile:
    """A traffic file: its beginning, and its content in memory or, if it is large, on disk.

    Attributes:
        label: the path as the user wrote it, for messages.
        name: the file's name without folders, for reports.
        stored: the content, decompressed, with one kind of line ending; or the file's path.
        sha256: hash of the file as stored.
        columns: column names in file order, outer spaces stripped; none in JSON.
        first_row: line of the first row in a text file; 1 in a Parquet file.
        faults: what to do with rows that cannot be read, and those found so far.
        notes: what was changed while reading the bytes.
        head: the first megabyte of the content.
    """

    label: str
    name: str
    stored: bytes | Path
    sha256: str
    columns: tuple[str, ...]
    first_row: int
    faults: Faults = field(default_factory=Faults)
    notes: tuple[str, ...] = ()
    head: bytes = b""

    @property
    def is_parquet(self) -> bool:
        """Whether the content is Parquet; text otherwise."""
        return self.head.startswith(PARQUET_MAGIC)

    @property
    def content(self) -> bytes:
        """The whole content; read anew where it is not kept."""
        return self.stored if isinstance(self.stored, bytes) else b"".join(self._again())

    def pieces(self) -> Iterator[bytes]:
        """Yield the content in pieces of whole lines, each but the last about `PIECE_BYTES` long.

        Raises:
            TraceError: the file can no longer be read.
        """
        held: list[bytes] = []
        for part in self._parts():
            held.append(part)
            if sum(map(len, held)) < PIECE_BYTES or b"\n" not in part:
                continue
            text = b"".join(held)
            end = text.rfind(b"\n") + 1
            held = [text[end:]]
            yield text[:end]
        if last := b"".join(held):
            yield last

    def where(self, row: int) -> str:
        """Return file and line (text) or row (Parquet) of the row with index `row`, from 0."""
        return f"{self.label}, {'row' if self.is_parquet else 'line'} {self.first_row + row}"

    def _parts(self) -> Iterator[bytes]:
        if isinstance(self.stored, Path):
            yield from self._again()
            return
        for start in range(0, len(self.stored), PIECE_BYTES):
            yield self.stored[start : start + PIECE_BYTES]

    def _again(self) -> Iterator[bytes]:
        assert isinstance(self.stored, Path)
        try:
            yield from text_pieces(self.stored, self.label, Endings())
        except OSError as error:
            raise _unreadable(self.label, error) from None


def read_file(path: Path, label: str, faults: Faults | None = None) -> TraceFile:
    """Return the file at `path` with its columns found; memory stays within the limits.

    Raises:
        TraceError: no regular file, unreadable, empty, too large, a line or a compression ratio
            beyond the limits, or without a header of columns.
    """
    endings = Endings()
    try:
        if not path.is_file():
            found = (
                "a folder; give one CSV or Parquet file" if path.is_dir() else "not a regular file"
            )
            raise TraceError(f"{label}: {found if path.exists() else 'no such file'}")
        kept, head = _read(path, label, endings)
        with path.open("rb") as stored:
            digest = hashlib.file_digest(stored, "sha256").hexdigest()
    except OSError as error:
        raise _unreadable(label, error) from None
    if kept is not None and (not kept or kept.isspace()):
        raise TraceError(f"{label}: the file is empty; expected a header line and requests")
    notes = ("line endings of several kinds are mixed; all read",) if endings.mixed else ()
    if head.startswith(PARQUET_MAGIC):
        assert kept is not None
        columns, first_row = _parquet_columns(kept, label), 1
    elif path.name.lower().endswith((".yaml", ".yml")):
        columns, first_row = (), 1
    else:
        columns, first_row = _text_columns(head, label)
    stored_as = path if kept is None else kept
    return TraceFile(
        label, path.name, stored_as, digest, columns, first_row, faults or Faults(), notes, head
    )


def _read(path: Path, label: str, endings: Endings) -> tuple[bytes | None, bytes]:
    """Return the content, None where it is JSON lines beyond `KEPT_BYTES`, and its beginning."""
    head = b""
    parts: list[bytes] = []
    total, keep = 0, True
    for piece in text_pieces(path, label, endings):
        head = head or piece[:HEAD_BYTES]
        total += len(piece)
        if total > KEPT_BYTES and head.lstrip().startswith(b"{"):
            parts, keep = [], False
        if keep:
            parts.append(piece)
    return (b"".join(parts) if keep else None), head


def _unreadable(label: str, error: OSError) -> TraceError:
    return TraceError(f"{label}: cannot be read: {error.strerror or error}; check its permissions")


def read_columns(
    file: TraceFile, names: Sequence[str], optional: Sequence[str] = ()
) -> tuple[pl.DataFrame, IntArray]:
    """Return the named columns and, for each row, its index in the file; blank lines are dropped.

    Text columns come as text, Parquet columns in their own type; an optional column that is not
    there is left out.

    Raises:
        TraceError: a column is missing or there twice, a line has too many fields, or no rows.
    """
    if not file.columns:
        raise TraceError(f"{file.label}: JSON; needed: a table with columns {', '.join(names)}")
    names = [*names, *(name for name in optional if name in file.columns)]
    for name in names:
        if file.columns.count(name) != 1:
            problem = "missing" if name not in file.columns else "there more than once"
            raise TraceError(
                f"{file.label}: column {name} is {problem}; "
                f"columns found: {listing(file.columns)}; needed: {', '.join(names)}"
            )
    frame = _table(file, names)
    kept = frame.with_row_index(_INDEX).filter(~pl.all_horizontal(pl.col(*names).is_null()))
    if kept.is_empty():
        raise TraceError(f"{file.label}: no requests below the header; add at least one row")
    return kept.select(names), kept[_INDEX].to_numpy().astype(np.int64)


def _table(file: TraceFile, names: Sequence[str]) -> pl.DataFrame:
    # In file order, so that it does not matter which order the reader returns.
    positions = sorted(file.columns.index(name) for name in names)
    try:
        if file.is_parquet:
            frame = pl.read_parquet(io.BytesIO(file.content), columns=positions)
        else:
            frame = pl.read_csv(io.BytesIO(file.content), columns=positions, infer_schema=False)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        if file.is_parquet or file.faults.mode == "stop":
            raise TraceError(_table_fault(file, error)) from None
        repaired = _without_torn_lines(file)
        if repaired.content == file.content:
            raise TraceError(_table_fault(file, error)) from None
        return _table(repaired, names)
    frame.columns = [file.columns[position] for position in positions]
    return frame


def _without_torn_lines(file: TraceFile) -> TraceFile:
    """Return the file with lines that are no UTF-8 or have too many fields emptied and noted."""
    lines = file.content.split(b"\n")
    for i, line in enumerate(lines):
        fault = _line_fault(line, len(file.columns))
        if fault and i + 1 >= file.first_row:
            message = f"{file.label}, line {i + 1}: {fault}"
            kind = "line: not UTF-8" if fault.startswith("not") else "line: too many fields"
            file.faults.add(i + 1 - file.first_row, kind, message, file.first_row)
            lines[i] = b""
    return replace(file, stored=b"\n".join(lines))


def _line_fault(line: bytes, most: int) -> str:
    text = line.decode("utf-8", errors="replace")
    if "\ufffd" in text:
        return "not UTF-8 text"
    if text.count('"') % 2:  # a cell over several lines, which cannot be judged by one of them
        return ""
    try:
        found = text.count(",") + 1 if '"' not in text else len(next(csv.reader([text]), []))
    except csv.Error as error:
        return f"no row of a CSV: {error}"
    return f"{found} fields where the header has {most}" if found > most else ""


def token_counts(
    file: TraceFile, frame: pl.DataFrame, rows: IntArray, column: str, *, least: int
) -> IntArray:
    """Return a column as whole token counts of shape (n,), each from `least` to 10 million.

    Whole numbers written as `374.0` are accepted.

    Raises:
        TraceError: names the first row whose count is empty, not whole or outside the limits.
    """
    series = frame[column]
    if not (series.dtype.is_numeric() or series.dtype in (pl.String, pl.Null)):
        raise TraceError(f"{file.label}: column {column} is {series.dtype}; expected whole numbers")
    text = series.str.strip_chars() if series.dtype == pl.String else series
    value = text.cast(pl.Float64, strict=False).fill_null(np.nan).to_numpy()
    with np.errstate(invalid="ignore"):
        good = (value >= least) & (value <= MAX_TOKENS) & (value == np.floor(value))

    def message(i: int) -> str:
        found = "empty" if series[i] in (None, "") else f"{str(series[i])[:40]!r}"
        return (
            f"{file.where(int(rows[i]))}: {column} is {found}; "
            f"expected a whole number of tokens from {least} to {MAX_TOKENS}"
        )

    file.faults.check(~good, rows, f"{column}: no count of tokens", message, file.first_row)
    return np.where(good, value, max(least, 1)).astype(np.int64)


def listing(columns: Sequence[str]) -> str:
    """Return column names for a message, at most twelve and each cut at 40 characters."""
    shown = ", ".join(name[:40] or "(unnamed)" for name in columns[:12]) or "none"
    return shown + (f" and {len(columns) - 12} more" if len(columns) > 12 else "")


def _parquet_columns(content: bytes, label: str) -> tuple[str, ...]:
    try:
        return tuple(pl.read_parquet_schema(io.BytesIO(content)))
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        raise TraceError(f"{label}: damaged Parquet file: {_first_line(error)}") from None


def _text_columns(head: bytes, label: str) -> tuple[tuple[str, ...], int]:
    """Return the header's columns and the line of the first row; blank lines may come first."""
    body = head.lstrip(b"\r\n")
    blank_lines = head[: len(head) - len(body)].count(b"\n")
    line = body.split(b"\n", 1)[0].rstrip(b"\r")
    if b"\0" in head:
        raise TraceError(f"{label}: binary data; expected CSV (UTF-8, plain or .gz) or Parquet")
    if body.startswith((b"{", b"[")):  # JSON has no columns
        return (), blank_lines + 1
    try:
        names = next(csv.reader([line.decode("utf-8")], strict=True))
    except (UnicodeDecodeError, csv.Error):
        raise TraceError(f"{label}: the first line is no CSV header in UTF-8") from None
    if not any(name.strip() for name in names):
        raise TraceError(f"{label}: the first line names no columns")
    return tuple(name.strip() for name in names), blank_lines + 2


def _table_fault(file: TraceFile, error: BaseException) -> str:
    """Return what is wrong with a table that the reader refused, with the line if it is found."""
    if not file.is_parquet:
        for number, line in enumerate(file.content.splitlines(), start=1):
            if fault := _line_fault(line, len(file.columns)):
                return f"{file.label}, line {number}: {fault}"
    return f"{file.label}: cannot be read as a table: {_first_line(error)}"


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or ["unknown fault"])[0][:200]
