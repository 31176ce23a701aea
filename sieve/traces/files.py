"""Traffic files: bytes, compression, columns, and where in the file a row stands."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl

from sieve.arrays import IntArray
from sieve.errors import TraceError
from sieve.traces.limits import MAX_FILE_BYTES, MAX_TOKENS

_GZIP_MAGIC: Final = b"\x1f\x8b"
_PARQUET_MAGIC: Final = b"PAR1"
_BOM: Final = b"\xef\xbb\xbf"
_CHUNK_BYTES: Final = 1 << 22
_HEADER_BYTES: Final = 1 << 16
_INDEX: Final = "__row"


@dataclass(frozen=True, eq=False)
class TraceFile:
    """A traffic file in memory.

    Attributes:
        label: the path as the user wrote it, for messages.
        name: the file's name without folders, for reports.
        content: the bytes, decompressed.
        sha256: hash of the file as stored.
        columns: column names in file order, outer spaces stripped; none in JSON.
        first_row: line of the first row in a text file; 1 in a Parquet file.
    """

    label: str
    name: str
    content: bytes
    sha256: str
    columns: tuple[str, ...]
    first_row: int

    @property
    def is_parquet(self) -> bool:
        """Whether the content is Parquet; text otherwise."""
        return self.content.startswith(_PARQUET_MAGIC)

    def where(self, row: int) -> str:
        """Return file and line (text) or row (Parquet) of the row with index `row`, from 0."""
        return f"{self.label}, {'row' if self.is_parquet else 'line'} {self.first_row + row}"


def read_file(path: Path, label: str) -> TraceFile:
    """Return the file at `path` with its columns found.

    Raises:
        TraceError: no regular file, unreadable, empty, too large, or without a header of columns.
    """
    try:
        if not path.is_file():
            found = (
                "a folder; give one CSV or Parquet file" if path.is_dir() else "not a regular file"
            )
            raise TraceError(f"{label}: {found if path.exists() else 'no such file'}")
        size = path.stat().st_size
        stored = path.read_bytes() if size <= MAX_FILE_BYTES else b""
    except OSError as error:
        raise TraceError(f"{label}: cannot be read: {error.strerror or error}") from None
    if size > MAX_FILE_BYTES:
        raise _too_large(label)
    content = _decompress(stored, label) if stored.startswith(_GZIP_MAGIC) else stored
    content = content.removeprefix(_BOM)
    if not content.strip():
        raise TraceError(f"{label}: the file is empty; expected a header line and requests")
    columns, first_row = (
        (_parquet_columns(content, label), 1)
        if content.startswith(_PARQUET_MAGIC)
        else _text_columns(content, label)
    )
    digest = hashlib.sha256(stored).hexdigest()
    return TraceFile(label, path.name, content, digest, columns, first_row)


def read_columns(file: TraceFile, names: Sequence[str]) -> tuple[pl.DataFrame, IntArray]:
    """Return the named columns and, for each row, its index in the file; blank lines are dropped.

    Text columns come as text, Parquet columns in their own type.

    Raises:
        TraceError: a column is missing or there twice, a line has too many fields, or no rows.
    """
    if not file.columns:
        raise TraceError(f"{file.label}: JSON; needed: a table with columns {', '.join(names)}")
    for name in names:
        if file.columns.count(name) != 1:
            problem = "missing" if name not in file.columns else "there more than once"
            raise TraceError(
                f"{file.label}: column {name} is {problem}; "
                f"columns found: {listing(file.columns)}; needed: {', '.join(names)}"
            )
    # In file order, so that it does not matter which order the reader returns.
    positions = sorted(file.columns.index(name) for name in names)
    try:
        if file.is_parquet:
            frame = pl.read_parquet(io.BytesIO(file.content), columns=positions)
        else:
            frame = pl.read_csv(io.BytesIO(file.content), columns=positions, infer_schema=False)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        raise TraceError(_table_fault(file, error)) from None
    frame.columns = [file.columns[position] for position in positions]
    kept = frame.with_row_index(_INDEX).filter(~pl.all_horizontal(pl.col(*names).is_null()))
    if kept.is_empty():
        raise TraceError(f"{file.label}: no requests below the header; add at least one row")
    return kept.select(names), kept[_INDEX].to_numpy().astype(np.int64)


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
    if not good.all():
        i = int(np.argmin(good))
        found = "empty" if series[i] in (None, "") else f"{str(series[i])[:40]!r}"
        raise TraceError(
            f"{file.where(int(rows[i]))}: {column} is {found}; "
            f"expected a whole number of tokens from {least} to {MAX_TOKENS}"
        )
    return value.astype(np.int64)


def listing(columns: Sequence[str]) -> str:
    """Return column names for a message, at most twelve and each cut at 40 characters."""
    shown = ", ".join(name[:40] or "(unnamed)" for name in columns[:12]) or "none"
    return shown + (f" and {len(columns) - 12} more" if len(columns) > 12 else "")


def _decompress(stored: bytes, label: str) -> bytes:
    """Return the content of a gzip file, read in pieces so that the size limit holds."""
    pieces: list[bytes] = []
    total = 0
    try:
        with gzip.open(io.BytesIO(stored)) as stream:
            while piece := stream.read(_CHUNK_BYTES):
                total += len(piece)
                if total > MAX_FILE_BYTES:
                    raise _too_large(label)
                pieces.append(piece)
    except (OSError, EOFError, zlib.error) as error:
        raise TraceError(f"{label}: damaged gzip file: {error}") from None
    return b"".join(pieces)


def _too_large(label: str) -> TraceError:
    limit_gb = MAX_FILE_BYTES // 10**9
    return TraceError(f"{label}: more than {limit_gb} GB uncompressed; cut the trace to a window")


def _parquet_columns(content: bytes, label: str) -> tuple[str, ...]:
    try:
        return tuple(pl.read_parquet_schema(io.BytesIO(content)))
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        raise TraceError(f"{label}: damaged Parquet file: {_first_line(error)}") from None


def _text_columns(content: bytes, label: str) -> tuple[tuple[str, ...], int]:
    """Return the header's columns and the line of the first row; blank lines may come first."""
    head = content[:_HEADER_BYTES]
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
        most = len(file.columns)
        for number, line in enumerate(file.content.splitlines(), start=1):
            text = line.decode("utf-8", errors="replace")
            if "\ufffd" in text:
                return f"{file.label}, line {number}: not UTF-8 text"
            if '"' not in text and text.count(",") >= most:
                count = text.count(",") + 1
                return f"{file.label}, line {number}: {count} fields where the header has {most}"
    return f"{file.label}: cannot be read as a table: {_first_line(error)}"


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or ["unknown fault"])[0][:200]
