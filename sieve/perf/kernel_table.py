"""Measured kernel latencies: reading, checking and finding them.

A table has key columns, then the axes of a curve or surface, then `latency_us`; rows are sorted
by all of them. A *site* is one key: its rows lie together. Rows that the audit condemned are marked
in the file and left out here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
import yaml

from sieve.arrays import FloatArray, IntArray
from sieve.errors import TableError
from sieve.perf.table_check import read_frame
from sieve.perf.table_schema import SCHEMAS
from sieve.resources import data_folder
from sieve.version import schema_fault

Key = tuple[str | int, ...]

SCHEMA_VERSION: Final = 1
"""Of a folder's provenance and tables."""
_REMAKE: Final = "bring the tables in anew with `sieve tables import`"
_SECONDS_PER_MICROSECOND: Final = 1e-6


@dataclass(frozen=True, eq=False)
class KernelTable:
    """One operation on one system.

    Attributes:
        path: file that it was read from.
        axes: axis column -> (rows,) values.
        latency_s: (rows,) seconds.
        sites: key -> its rows.
        curves: curves that lookups have derived: axis, seconds, class of evidence.
    """

    path: Path
    axes: dict[str, FloatArray]
    latency_s: FloatArray
    sites: dict[Key, slice]
    curves: dict[tuple[object, ...], tuple[FloatArray, FloatArray, int]] = field(
        default_factory=dict
    )

    @cached_property
    def distinct_axis(self) -> FloatArray:
        """(points,) every value of the last axis, rising."""
        return np.unique(list(self.axes.values())[-1])

    def curve(self, key: Key) -> tuple[FloatArray, FloatArray]:
        """Return the axis and the latency in seconds, both (points,), of a table with one axis."""
        rows = self.sites[key]
        (axis,) = self.axes.values()
        return axis[rows], self.latency_s[rows]

    def surface(self, key: Key) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return both axes (n0,), (n1,) and the seconds (n0, n1), nan where not measured."""
        rows = self.sites[key]
        first, second = (axis[rows] for axis in self.axes.values())
        x, i = np.unique(first, return_inverse=True)
        y, j = np.unique(second, return_inverse=True)
        values = np.full((len(x), len(y)), np.nan)
        values[i, j] = self.latency_s[rows]
        return x, y, values


def system_folder(system: str) -> Path | None:
    """Return the folder of a system's tables, None without a name or a folder.

    Args:
        system: name of a folder of the installation, or the absolute path of another one.
    """
    if not system:
        return None
    folder = data_folder("kernel_tables") / system  # an absolute path replaces what is before it
    return folder if folder.is_dir() else None


@cache
def load(system: str, op: str) -> KernelTable | None:
    """Return a system's table, read once per process; None if there is none.

    A folder that lacks the operation hands on to the system that its provenance names under
    `others_from`.

    Raises:
        TableError: the file breaks its schema.
    """
    folder = system_folder(system)
    if folder is None:
        return None
    if (folder / f"{op}.parquet").exists():
        return read(folder / f"{op}.parquet", op)
    others = str(read_provenance(folder).get("others_from") or "")
    if not others or Path(others).name != others or others == system:
        return None
    return load(others, op)


def read_provenance(folder: Path) -> dict[str, Any]:
    """Return the content of a folder's `provenance.yaml`, empty without one.

    Raises:
        TableError: it is not a YAML mapping, or of another schema version.
    """
    path = folder / "provenance.yaml"
    if not path.is_file():
        return {}
    try:
        record = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise TableError(f"{path}: not readable as YAML ({str(error).splitlines()[0]})") from None
    if not isinstance(record, dict):
        raise TableError(f"{path}: holds {type(record).__name__}, must be a mapping")
    # Shipped folders name none; they are of the release that ships them.
    if fault := schema_fault(record.get("schema_version", SCHEMA_VERSION), SCHEMA_VERSION, _REMAKE):
        raise TableError(f"{path}: {fault}")
    return record


def read(path: Path, op: str) -> KernelTable:
    """Return the table in a file after checking it, without the rows that the audit condemned.

    Raises:
        TableError: not Parquet, too large, a column missing or of another type, a latency that is
            not finite and positive, doubled or unsorted key; with file and row.
    """
    keys, axes = SCHEMAS[op]
    frame = read_frame(path, op, extra=("condemned",))
    if not frame.height:
        raise TableError(f"{path}: no rows; build it anew")
    starts = _site_starts(frame, keys)
    _check_axes(path, _axis_values(frame, axes), starts)
    names = frame.select(keys)[starts]
    if names.is_duplicated().any():
        raise TableError(f"{path}: rows of one key do not lie together; build it anew")
    if "condemned" in frame.columns:
        frame = frame.filter(pl.col("condemned").is_null())
        starts = _site_starts(frame, keys)
    bounds = np.append(starts, frame.height)
    sites: dict[Key, slice] = {
        name: slice(int(a), int(b))
        for name, a, b in zip(
            frame.select(keys)[starts].rows(), bounds[:-1], bounds[1:], strict=True
        )
    }
    latency = frame["latency_us"].to_numpy() * _SECONDS_PER_MICROSECOND
    return KernelTable(path, _axis_values(frame, axes), latency, sites)


def _axis_values(frame: pl.DataFrame, axes: tuple[str, ...]) -> dict[str, FloatArray]:
    return {name: frame[name].cast(pl.Float64).to_numpy() for name in axes}


def _site_starts(frame: pl.DataFrame, keys: tuple[str, ...]) -> IntArray:
    """Return the first row of each run of equal keys."""
    run = np.zeros(frame.height, np.int64)
    for name in keys:
        run += frame[name].rle_id().cast(pl.Int64).to_numpy()
    return np.flatnonzero(np.diff(run, prepend=-1)).astype(np.int64)


def _check_axes(path: Path, axes: dict[str, FloatArray], starts: IntArray) -> None:
    """Check that within each site the axes rise from row to row, so that no key is doubled."""
    columns = list(axes.values())
    rises = np.zeros(len(columns[0]), bool)
    equal = np.ones(len(columns[0]), bool)
    for column in columns:
        step = np.diff(column, prepend=-np.inf)
        rises |= equal & (step > 0)
        equal &= step == 0
    rises[starts] = True
    bad = np.flatnonzero(~rises)
    if len(bad):
        row = int(bad[0])
        reason = "repeats the key of the row above" if equal[row] else "is out of order"
        raise TableError(f"{path}, row {row}: {reason}; keys must rise")
