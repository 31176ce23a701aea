"""The bytes of a traffic file, piece by piece: unpacked, line endings unified, every limit held."""

from __future__ import annotations

import gzip
import importlib
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from sieve.errors import TraceError
from sieve.traces.limits import (
    MAX_DOCUMENT_BYTES,
    MAX_FILE_BYTES,
    MAX_LINE_BYTES,
    MAX_RATIO,
    RATIO_FROM_BYTES,
)

HEAD_BYTES: Final = 1 << 20
PARQUET_MAGIC: Final = b"PAR1"
_GZIP_MAGIC: Final = b"\x1f\x8b"
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_BOM: Final = b"\xef\xbb\xbf"
_PIECE_BYTES: Final = 1 << 22


@dataclass
class Endings:
    """Line endings of a text by kind, as they were before they became one."""

    unix: int = 0
    windows: int = 0
    old: int = 0

    @property
    def total(self) -> int:
        """Line endings so far."""
        return self.unix + self.windows + self.old

    @property
    def mixed(self) -> bool:
        """Whether there are several kinds."""
        return sum(count > 0 for count in (self.unix, self.windows, self.old)) > 1


def text_pieces(path: Path, label: str, endings: Endings) -> Iterator[bytes]:
    """Yield the content of a file; text has no mark in front and one kind of line ending.

    The first piece is longer than `HEAD_BYTES` if the file is, the others have any length. Parquet
    comes as it is.

    Args:
        path: a regular file, plain, gzip or zstd.
        label: the path as the user wrote it, for messages.
        endings: takes the counts of line endings.

    Raises:
        TraceError: damaged, or a size, a line or a compression ratio beyond the limits.
        OSError: the file cannot be read.
    """
    with path.open("rb") as stored:
        pieces = _with_head(_unpacked_pieces(stored, path.stat().st_size, label))
        first = next(pieces, b"").removeprefix(_BOM)
        if first.startswith(PARQUET_MAGIC):
            yield first
            yield from pieces
            return
        lines = _LineLengths(label)
        held = b""
        for piece in _chain(first, pieces):
            text = held + piece
            held = text[-1:] if text.endswith(b"\r") else b""  # its \n may come next
            before = endings.total
            text = _unified(text[: len(text) - len(held)], endings)
            lines.add(text, endings.total - before)
            yield text
        if held:
            yield _unified(held, endings)


def _chain(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from rest


def _with_head(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the pieces, the first ones joined until the head is full."""
    head: list[bytes] = []
    for piece in pieces:
        head.append(piece)
        if sum(map(len, head)) > HEAD_BYTES:
            break
    yield b"".join(head)
    yield from pieces


def _unified(text: bytes, endings: Endings) -> bytes:
    newlines = text.count(b"\n")
    if b"\r" not in text:
        endings.unix += newlines
        return text
    windows = text.count(b"\r\n")
    endings.unix += newlines - windows
    endings.windows += windows
    endings.old += text.count(b"\r") - windows
    return text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def _unpacked_pieces(stored: BinaryIO, size: int, label: str) -> Iterator[bytes]:
    """Yield the decompressed bytes; the sizes and the ratio are held on the way."""
    head = stored.read(4)
    stored.seek(0)
    packed = head.startswith(_GZIP_MAGIC) or head == _ZSTD_MAGIC
    if not packed and size > MAX_FILE_BYTES and head == PARQUET_MAGIC:
        raise _too_large(label)
    kind = "zstd" if head == _ZSTD_MAGIC else "gzip"
    stream = stored if not packed else _unpacked(stored, kind, label)
    total = 0
    while piece := _next_piece(stream, kind if packed else None, label, total):
        total += len(piece)
        if total > RATIO_FROM_BYTES and packed and total > MAX_RATIO * size:
            raise TraceError(
                f"{label}: unpacks to more than {MAX_RATIO} times its size, as a compression "
                "bomb does; unpack it yourself if it is none"
            )
        if total > MAX_FILE_BYTES:
            raise _too_large(label)
        yield piece


def _next_piece(stream: Any, kind: str | None, label: str, total: int) -> bytes:
    """Return the next bytes of a stream; `kind` says how it is packed."""
    if kind is None:
        return bytes(stream.read(_PIECE_BYTES))
    try:
        return bytes(stream.read(_PIECE_BYTES))
    except _unpack_errors(kind) as error:
        raise TraceError(
            f"{label}: damaged {kind} file after {total:,} bytes of content: {error}; "
            "copy or pack it again"
        ) from None


class _LineLengths:
    """Refuses a line beyond the limit while the file is being read."""

    def __init__(self, label: str) -> None:
        self.label, self.line, self.length, self.limit = label, 1, 0, 0

    def add(self, piece: bytes, newlines: int) -> None:
        if not self.limit:
            is_json = piece.lstrip().startswith((b"{", b"["))
            self.limit = MAX_DOCUMENT_BYTES if is_json else MAX_LINE_BYTES
        first = piece.find(b"\n")
        self.length += len(piece) if first < 0 else first
        if self.length > self.limit:
            raise TraceError(
                f"{self.label}, line {self.line}: longer than {self.limit // 10**6} MB; "
                "one request a line is expected"
            )
        if first >= 0:
            self.line += newlines
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
            "'sieve-sizing[zst]' (in a checkout: '.[zst]'), or unpack the file first (zstd -d)"
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
