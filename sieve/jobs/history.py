"""The history of `sieve nightly`: one SQLite file with a row a night.

The file carries an application id and a schema version, so that no other database is written to by
mistake. Nights are added in one transaction under a lock on the folder.
"""

from __future__ import annotations

import fcntl
import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from sieve.errors import ResultError
from sieve.results import clean
from sieve.version import schema_fault

FILE: Final = "history.sqlite"
LOCK: Final = "history.lock"
PAGE: Final = "history.html"
APPLICATION_ID: Final = 0x53495645  # "SIVE"
SCHEMA_VERSION: Final = 1
_COLUMNS: Final = {
    "night": "INTEGER PRIMARY KEY",
    "inputs_sha256": "TEXT NOT NULL UNIQUE",
    "recorded_at": "TEXT NOT NULL",
    "day": "TEXT NOT NULL",
    "name": "TEXT NOT NULL",
    "status": "TEXT NOT NULL",
    "exit_code": "INTEGER NOT NULL",
    "searched": "INTEGER NOT NULL",
    "incumbent": "TEXT",
    "incumbent_breaks_slo": "INTEGER",
    "recommended": "TEXT",
    "verdict": "TEXT",
    "num_gpus": "INTEGER",
    "margin": "REAL",
    "usd_per_mtok": "REAL",
    "usd_per_hour": "REAL",
    "drift": "TEXT",
    "rate_per_s": "REAL",
    "peak_rate_per_s": "REAL",
    "input_p50_tokens": "REAL",
    "output_p50_tokens": "REAL",
    "record": "TEXT NOT NULL",
}
COLUMNS: Final = tuple(name for name in _COLUMNS if name != "record")
"""Columns of the table `nights` besides `record`, which holds the whole night as JSON."""

NEEDED: Final = {
    "night", "day", "name", "exit_code", "searched", "recommended", "tie_group", "watched",
    "replayed", "traffic", "spec_sha256",
}  # fmt: skip
"""Keys of a record that later nights read."""


class History:
    """The nights of one service; use `open_history`."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self.path = path

    def rows(self) -> list[dict[str, Any]]:
        """Return the columns of every night, first to last."""
        found = self._run(f"SELECT {', '.join(COLUMNS)} FROM nights ORDER BY night")
        return [dict(zip(COLUMNS, row, strict=True)) for row in found]

    def records(self, last: int) -> list[dict[str, Any]]:
        """Return the whole records of the last nights, first to last."""
        found = self._run("SELECT record FROM nights ORDER BY night DESC LIMIT ?", last)
        return [self._read(text) for (text,) in reversed(found)]

    def by_inputs(self, sha256: str) -> dict[str, Any] | None:
        """Return the night that was recorded from the same inputs, or None."""
        found = self._run("SELECT record FROM nights WHERE inputs_sha256 = ?", sha256)
        return self._read(found[0][0]) if found else None

    def last_search(self) -> dict[str, Any] | None:
        """Return the last night on which the grid was searched in full, or None."""
        found = self._run(
            "SELECT record FROM nights WHERE searched = 1 ORDER BY night DESC LIMIT 1"
        )
        return self._read(found[0][0]) if found else None

    def add(self, row: Mapping[str, Any], record: Mapping[str, Any]) -> None:
        """Add a night in one transaction."""
        text = json.dumps(clean(record), ensure_ascii=False, allow_nan=False)
        values = [row[name] for name in COLUMNS] + [text]
        marks = ", ".join("?" * len(values))
        self._run(f"INSERT INTO nights VALUES ({marks})", *values)

    def _run(self, statement: str, *values: Any) -> list[Any]:
        try:
            return self._connection.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise ResultError(
                f"{self.path}: cannot be used: {error}; check the disk, or restore the file"
            ) from None

    def _read(self, text: Any) -> dict[str, Any]:
        try:
            record = json.loads(text)
        except (TypeError, ValueError, RecursionError):
            record = None
        if not isinstance(record, dict) or not record.keys() >= NEEDED:
            raise ResultError(f"{self.path}: a night's record is damaged; restore the file")
        return record


@contextmanager
def open_history(folder: Path) -> Iterator[History]:
    """Yield the history in a folder, created if need be, locked until the end.

    Raises:
        ResultError: the folder cannot be written, another run holds it, or the file is another
            database or of another version.
    """
    if folder.exists() and not folder.is_dir():
        raise ResultError(f"{folder}: is a file; --history names a folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / LOCK).open("ab")
    except OSError as error:
        raise ResultError(f"{folder}: cannot be written: {error.strerror}") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ResultError(
                f"{folder}: another run is writing to this history; wait for it and start again"
            ) from None
        connection = _connect(folder / FILE, create=True)
        try:
            yield History(connection, folder / FILE)
        finally:
            connection.close()


def read_history(folder: Path) -> list[dict[str, Any]]:
    """Return the columns of every night of a history, without locking or changing it.

    Raises:
        ResultError: no history there, another database, or another version.
    """
    path = folder / FILE
    if not path.is_file():
        raise ResultError(
            f"{folder}: no history here ({FILE} is missing); `sieve nightly --history` begins one"
        )
    connection = _connect(path, create=False)
    try:
        return History(connection, path).rows()
    finally:
        connection.close()


def _connect(path: Path, *, create: bool) -> sqlite3.Connection:
    try:
        connection = sqlite3.connect(
            path if create else f"{path.resolve().as_uri()}?mode=ro",
            uri=not create, isolation_level=None, timeout=5.0,
        )  # fmt: skip
    except sqlite3.Error as error:
        raise ResultError(f"{path}: cannot be opened: {error}") from None
    try:
        _check(connection, path, create=create)
    except sqlite3.Error as error:
        connection.close()
        raise ResultError(
            f"{path}: not a history of sieve: {error}; choose another folder for --history"
        ) from None
    except ResultError:
        connection.close()
        raise
    return connection


def _check(connection: sqlite3.Connection, path: Path, *, create: bool) -> None:
    """Refuse a database that is not ours; make the table in an empty one."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if tables == 0 and application in {0, APPLICATION_ID} and create:
        connection.execute("PRAGMA journal_mode = WAL")
        columns = ", ".join(f"{name} {kind}" for name, kind in _COLUMNS.items())
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        connection.execute(f"CREATE TABLE nights ({columns})")
        connection.execute("COMMIT")
        return
    if application != APPLICATION_ID:
        raise ResultError(
            f"{path}: a database of another program; choose another folder for --history"
        )
    remake = "use the sieve that wrote it, or begin another folder with --history"
    if fault := schema_fault(version, SCHEMA_VERSION, remake):
        raise ResultError(f"{path}: a history of {fault}")
    found = [row[1] for row in connection.execute("PRAGMA table_info(nights)")]
    if found != list(_COLUMNS):
        raise ResultError(f"{path}: the table of nights is damaged; restore the file")
