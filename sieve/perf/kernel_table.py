"""Measured kernel latencies: reading, checking and finding them.

A table has key columns, then the axes of a curve or surface, then `latency_us`; rows are sorted
by all of them. A *site* is one key: its rows lie together.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl

from sieve.arrays import FloatArray, IntArray
from sieve.errors import TableError
from sieve.resources import data_folder

Key = tuple[str | int, ...]

_ATTENTION_KEYS: Final = (
    "attn_dtype", "kv_cache_dtype", "head_dim", "window_size", "num_heads", "num_key_value_heads",
)  # fmt: skip
SCHEMAS: Final[dict[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "gemm": (("gemm_dtype", "n", "k"), ("m",)),
    "context_attention": (_ATTENTION_KEYS, ("batch_size", "isl")),
    "generation_attention": (_ATTENTION_KEYS, ("batch_size", "step")),
    "custom_allreduce": (("allreduce_dtype", "backend", "num_gpus"), ("message_size",)),
    "nccl": (("op_name", "nccl_dtype", "num_gpus"), ("message_size",)),
    "moe": (
        (
            "moe_dtype", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size",
            "moe_ep_size", "distribution",
        ),
        ("num_tokens",),
    ),
}  # fmt: skip
"""Operation -> (key columns, axis columns)."""

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
    """Return the folder of a system's tables, None without a name or a folder."""
    folder = data_folder("kernel_tables") / system
    return folder if system and folder.is_dir() else None


@cache
def load(system: str, op: str) -> KernelTable | None:
    """Return a table of the installation, read once per process; None if it has none.

    Raises:
        TableError: the file breaks its schema.
    """
    folder = system_folder(system)
    if folder is None or not (folder / f"{op}.parquet").exists():
        return None
    return read(folder / f"{op}.parquet", op)


def read(path: Path, op: str) -> KernelTable:
    """Return the table in a file after checking it.

    Raises:
        TableError: missing column, latency that is not finite and positive, doubled or unsorted
            key; with file and row.
    """
    keys, axes = SCHEMAS[op]
    columns = (*keys, *axes, "latency_us")
    try:
        frame = pl.read_parquet(path)
    except pl.exceptions.PolarsError as error:
        raise TableError(f"{path}: not a readable parquet file ({error}); build it anew") from error
    if missing := [name for name in columns if name not in frame.columns]:
        raise TableError(f"{path}: columns {', '.join(missing)} are missing; build it anew")
    latency = frame["latency_us"].cast(pl.Float64).fill_null(np.nan).to_numpy()
    _check_latency(path, latency)
    starts = _site_starts(frame, keys)
    values = {name: frame[name].cast(pl.Float64).to_numpy() for name in axes}
    _check_axes(path, values, starts)
    bounds = np.append(starts, frame.height)
    names = frame.select(keys)[starts].rows()
    sites: dict[Key, slice] = {
        name: slice(int(a), int(b))
        for name, a, b in zip(names, bounds[:-1], bounds[1:], strict=True)
    }
    if len(sites) < len(starts):
        raise TableError(f"{path}: rows of one key do not lie together; build it anew")
    return KernelTable(path, values, latency * _SECONDS_PER_MICROSECOND, sites)


def _site_starts(frame: pl.DataFrame, keys: tuple[str, ...]) -> IntArray:
    """Return the first row of each run of equal keys."""
    run = np.zeros(frame.height, np.int64)
    for name in keys:
        run += frame[name].rle_id().cast(pl.Int64).to_numpy()
    return np.flatnonzero(np.diff(run, prepend=-1)).astype(np.int64)


def _check_latency(path: Path, latency_us: FloatArray) -> None:
    bad = np.flatnonzero(~(np.isfinite(latency_us) & (latency_us > 0)))
    if len(bad):
        row = int(bad[0])
        raise TableError(
            f"{path}, row {row}: latency_us is {latency_us[row]}, must be finite and above 0"
        )


def _check_axes(path: Path, axes: dict[str, FloatArray], starts: IntArray) -> None:
    """Check that within each site the axes rise from row to row, so that no key is doubled."""
    columns = list(axes.values())
    if not len(columns[0]):
        raise TableError(f"{path}: no rows; build it anew")
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
