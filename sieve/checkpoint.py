"""An append-only ledger of finished replays, from which a run goes on after it was killed.

One line a replay: key, checksum, data in base64. A line that was cut off or damaged has another
checksum; it is passed over, and its replay is made again.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import threading
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol

from sieve.errors import ResultError

_KEY_LENGTH: Final = 64
_SUM_LENGTH: Final = 16


class Replays(Protocol):
    """Replays of other runs."""

    def get(self, key: str) -> bytes | None:
        """Return what was put under a key, or None."""
        ...

    def put(self, key: str, data: bytes, num_bytes: int) -> None:
        """Keep data under a key."""
        ...


class Ledger:
    """The replays of a run folder, by key.

    Attributes:
        num_damaged: lines that were passed over when it was opened.
        num_reused: replays that were found in it since.
    """

    def __init__(self, path: Path, others: Replays | None = None) -> None:
        """Open or create the ledger, and index what is sound.

        Args:
            path: the file.
            others: replays of other runs in memory, looked at where the file has none.

        Raises:
            ResultError: it cannot be written.
        """
        self.others = others
        self.num_damaged = 0
        self.num_reused = 0
        self._path = path
        self._lock = threading.Lock()
        self._places: dict[str, tuple[int, int]] = {}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise ResultError(f"{path}: cannot be written: {error.strerror}") from None
        self._index(path)

    def _index(self, path: Path) -> None:
        offset, ended = 0, True
        with path.open("rb") as lines:
            for line in lines:
                ended = line.endswith(b"\n")
                entry = _read(line)
                if entry is None:
                    self.num_damaged += 1
                else:
                    self._places[entry[0]] = (offset, len(line))
                offset += len(line)
        if not ended:
            os.write(self._file, b"\n")
            offset += 1
        self._end = offset

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, key: str) -> bool:
        return key in self._places

    def get(self, key: str) -> bytes | None:
        """Return the data stored under `key`, None if there is none that is sound."""
        place = self._places.get(key)
        if place is None:
            return None if self.others is None else self.others.get(key)
        entry = _read(os.pread(self._file, place[1], place[0]))
        if entry is None or entry[0] != key:
            return None
        self.num_reused += 1
        return entry[1]

    def put(self, key: str, data: bytes) -> None:
        """Append one entry; it survives the end of this process from here on.

        Raises:
            ResultError: it cannot be written, for example because the disk is full.
        """
        text = base64.b64encode(data)
        if self.others is not None:
            self.others.put(key, data, len(data))
        line = b" ".join((key.encode(), _checksum(key.encode(), text), text)) + b"\n"
        with self._lock:
            self._places[key] = (self._end, len(line))
            while line:
                try:
                    line = line[os.write(self._file, line) :]
                except OSError as error:
                    raise ResultError(
                        f"{self._path}: cannot be written: {error.strerror}; make room, then go on "
                        "with --resume"
                    ) from None
            self._end += self._places[key][1]

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _checksum(key: bytes, text: bytes) -> bytes:
    return hashlib.sha256(key + b" " + text).hexdigest()[:_SUM_LENGTH].encode()


def _read(line: bytes) -> tuple[str, bytes] | None:
    """Return (key, data) of a line, None if it is not whole."""
    parts = line.rstrip(b"\n").split(b" ")
    if len(parts) != 3 or len(parts[0]) != _KEY_LENGTH or not line.endswith(b"\n"):
        return None
    key, checksum, text = parts
    if _checksum(key, text) != checksum:
        return None
    try:
        return key.decode("ascii"), base64.b64decode(text, validate=True)
    except (binascii.Error, UnicodeDecodeError):
        return None
