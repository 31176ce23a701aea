"""Traffic files: bytes, compression, columns, and where in the file a row stands."""

from __future__ import annotations

import csv
import gzip
import hashlib
import importlib
import io
import sys
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import polars as pl

from sieve.arrays import IntArray
from sieve.errors import TraceError
from sieve.traces.faults import Faults
from sieve.traces.limits import (
    MAX_DOCUMENT_BYTES,
    MAX_FILE_BYTES,
    MAX_LINE_BYTES,
    MAX_RATIO,
    MAX_TOKENS,
    RATIO_FROM_BYTES,
)

_GZIP_MAGIC: Final = b"\x1f\x8b"
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
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
        faults: what to do with rows that cannot be read, and those found so far.
        notes: what was changed while reading the bytes.
    """

    label: str
    name: str
    content: bytes
    sha256: str
    columns: tuple[str, ...]
    first_row: int
    faults: Faults = field(default_factory=Faults)
    notes: tuple[str, ...] = ()

    @property
    def is_parquet(self) -> bool:
        """Whether the content is Parquet; text otherwise."""
        return self.content.startswith(_PARQUET_MAGIC)

    def where(self, row: int) -> str:
        """Return file and line (text) or row (Parquet) of the row with index `row`, from 0."""
        return f"{self.label}, {'row' if self.is_parquet else 'line'} {self.first_row + row}"


def read_file(path: Path, label: str, faults: Faults | None = None) -> TraceFile:
    """Return the file at `path` with its columns found; memory stays within the limits.

    Raises:
        TraceError: no regular file, unreadable, empty, too large, a line or a compression ratio
            beyond the limits, or without a header of columns.
    """
    try:
        if not path.is_file():
            found = (
                "a folder; give one CSV or Parquet file" if path.is_dir() else "not a regular file"
            )
            raise TraceError(f"{label}: {found if path.exists() else 'no such file'}")
        with path.open("rb") as stored:
            content = _content(stored, path.stat().st_size, label)
        with path.open("rb") as stored:  # a stream that unpacks may have closed the first
            digest = hashlib.file_digest(stored, "sha256").hexdigest()
    except OSError as error:
        raise TraceError(f"{label}: cannot be read: {error.strerror or error}") from None
    content = content.removeprefix(_BOM)
    if not content or content.isspace():
        raise TraceError(f"{label}: the file is empty; expected a header line and requests")
    faults = faults or Faults()
    if content.startswith(_PARQUET_MAGIC):
        columns = _parquet_columns(content, label)
        return TraceFile(label, path.name, content, digest, columns, 1, faults)
    notes: tuple[str, ...] = ()
    if b"\r" in content:
        plain = content.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if content.count(b"\n") not in {0, content.count(b"\r\n")}:
            notes = ("line endings of several kinds are mixed; all read",)
        content = plain
    if path.name.lower().endswith((".yaml", ".yml")):
        return TraceFile(label, path.name, content, digest, (), 1, faults, notes)
    columns, first_row = _text_columns(content, label)
    return TraceFile(label, path.name, content, digest, columns, first_row, faults, notes)


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
    return replace(file, content=b"\n".join(lines))


def _line_fault(line: bytes, most: int) -> str:
    text = line.decode("utf-8", errors="replace")
    if "\ufffd" in text:
        return "not UTF-8 text"
    if '"' not in text and text.count(",") >= most:
        return f"{text.count(',') + 1} fields where the header has {most}"
    return ""


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


def _content(stored: BinaryIO, size: int, label: str) -> bytes:
    """Return the decompressed bytes, read in pieces so that every limit holds on the way."""
    head = stored.read(4)
    stored.seek(0)
    packed = head.startswith(_GZIP_MAGIC) or head == _ZSTD_MAGIC
    if not packed and size > MAX_FILE_BYTES and head == _PARQUET_MAGIC:
        raise _too_large(label)
    kind = "zstd" if head == _ZSTD_MAGIC else "gzip"
    stream = stored if not packed else _unpacked(stored, kind, label)
    pieces: list[bytes] = []
    total = 0
    lines = _LineLengths(label)
    try:
        while piece := stream.read(_CHUNK_BYTES):
            total += len(piece)
            if total > RATIO_FROM_BYTES and packed and total > MAX_RATIO * size:
                raise TraceError(
                    f"{label}: unpacks to more than {MAX_RATIO} times its size, as a compression "
                    "bomb does; unpack it yourself if it is none"
                )
            if total > MAX_FILE_BYTES:
                raise _too_large(label)
            if head != _PARQUET_MAGIC:
                lines.add(piece)
            pieces.append(piece)
    except _unpack_errors(kind) as error:
        if not packed:
            raise
        raise TraceError(
            f"{label}: damaged {kind} file after {total:,} bytes of content: {error}"
        ) from None
    return b"".join(pieces)


class _LineLengths:
    """Refuses a line beyond the limit while the file is being read."""

    def __init__(self, label: str) -> None:
        self.label, self.line, self.length, self.limit = label, 1, 0, 0

    def add(self, piece: bytes) -> None:
        if not self.limit:
            is_json = piece.removeprefix(_BOM).lstrip().startswith((b"{", b"["))
            self.limit = MAX_DOCUMENT_BYTES if is_json else MAX_LINE_BYTES
        first = piece.find(b"\n")
        self.length += len(piece) if first < 0 else first
        if self.length > self.limit:
            raise TraceError(
                f"{self.label}, line {self.line}: longer than {self.limit // 10**6} MB; "
                "one request a line is expected"
            )
        if first >= 0:
            self.line += piece.count(b"\n")
            self.length = len(piece) - piece.rfind(b"\n") - 1
            if self.line > 1:  # a document in one line has no second one
                self.limit = MAX_LINE_BYTES


def _unpacked(stored: BinaryIO, kind: str, label: str) -> Any:
    """Return a stream of the unpacked bytes; its end inside a frame is an error.

    Raises:
        TraceError: zstd, and nothing is installed that reads it.
    """
    if kind == "gzip":
        return gzip.open(stored)
    if sys.version_info >= (3, 14):
        return importlib.import_module("compression.zstd").open(stored)
    try:
        return _Zstandard(stored)
    except ImportError:
        raise TraceError(
            f"{label}: zstd, which needs Python 3.14 or the package zstandard; install "
            "'sieve-sizing[zst]', or unpack the file first (zstd -d)"
        ) from None


class _Zstandard:
    """The unpacked bytes of a zstd file; frames may follow each other.

    The package's own stream takes a file that was cut off for one that is whole.
    """

    def __init__(self, stored: BinaryIO) -> None:
        self._stored = stored
        self._new = importlib.import_module("zstandard").ZstdDecompressor().decompressobj
        self._frame = self._new()
        self._left = b""
        self._begun = False

    def read(self, size: int) -> bytes:
        """Return unpacked bytes, b"" at the end.

        Raises:
            EOFError: the file ends inside a frame.
        """
        while True:
            packed = self._left or self._stored.read(max(size // 8, 1))
            self._left = b""
            if not packed:
                if self._begun and not self._frame.eof:
                    raise EOFError("it ends inside a frame")
                return b""
            if self._frame.eof:
                self._frame = self._new()
            self._begun = True
            piece: bytes = self._frame.decompress(packed)
            self._left = self._frame.unused_data
            if piece:
                return piece


def _unpack_errors(kind: str) -> tuple[type[Exception], ...]:
    """Return the errors of damaged content."""
    found: list[type[Exception]] = [OSError, EOFError, zlib.error]
    if kind == "zstd":
        name = "compression.zstd" if sys.version_info >= (3, 14) else "zstandard"
        found.append(importlib.import_module(name).ZstdError)
    return tuple(found)


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
        for number, line in enumerate(file.content.splitlines(), start=1):
            if fault := _line_fault(line, len(file.columns)):
                return f"{file.label}, line {number}: {fault}"
    return f"{file.label}: cannot be read as a table: {_first_line(error)}"


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or ["unknown fault"])[0][:200]
