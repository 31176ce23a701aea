"""Decoding Parquet files of others in a process of their own.

A damaged file can end the process that decodes it: the reader checks most lengths, and aborts on
some. So files that somebody else wrote are decoded once in a child process, and read here only
when that has come through.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import polars as pl

from sieve.errors import TableError
from sieve.perf.table_schema import MAX_BYTES, MAX_ROWS

TIMEOUT_S: Final = 600.0
MAX_MEMORY_BYTES: Final = 32 * 2**30
"""Address space of the child where the system can limit it."""
_REFUSED: Final = 3


def probe(files: Sequence[tuple[Path, Sequence[str]]]) -> None:
    """Decode columns of Parquet files in a child process.

    Args:
        files: path and the columns that are wanted of it, those absent left out.

    Raises:
        TableError: a file is too large, or cannot be decoded; names the first.
    """
    if not files:
        return
    for path, _ in files:
        if path.stat().st_size > MAX_BYTES:
            raise TableError(
                f"{path}: {path.stat().st_size:,} bytes, at most {MAX_BYTES:,} are read; split "
                "the table"
            )
    work = json.dumps([[str(path.resolve()), list(columns)] for path, columns in files])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "sieve.perf.parquet_probe"],
            input=work, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
            env=environment, errors="replace",
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise TableError(
            f"{files[0][0].parent}: decoding took over {TIMEOUT_S:.0f} s; import fewer files"
        ) from None
    finished = done.stdout.count("\n")
    if finished < len(files):
        path = files[finished][0]
        raise TableError(f"{path}: not a readable parquet file (decoding it failed); build it anew")


def _decode(path: Path, columns: Sequence[str]) -> None:
    """Decode columns of a file; one with too many rows is left to the checks of reading."""
    schema = pl.read_parquet_schema(path)
    rows = int(pl.scan_parquet(path).select(pl.len()).collect().item())
    if rows <= MAX_ROWS:
        pl.read_parquet(path, columns=[c for c in columns if c in schema])


def _limit_memory() -> None:
    try:
        import resource
    except ImportError:  # not on this system
        return
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    soft = MAX_MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(MAX_MEMORY_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def main() -> None:
    """Decode the files named on stdin and write a line for each that came through."""
    _limit_memory()
    for path, columns in json.loads(sys.stdin.read()):
        try:
            _decode(Path(path), columns)
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, ValueError):
            sys.exit(_REFUSED)
        sys.stdout.write("ok\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
