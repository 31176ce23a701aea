"""Reading kernel tables that others made: size, columns, types, values, precisions, units."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from sieve.arrays import FloatArray
from sieve.catalog.architecture import Gpu
from sieve.errors import TableError
from sieve.perf.table_schema import (
    DIFFERENCES,
    MAX_BYTES,
    MAX_INTEGER,
    MAX_ROWS,
    MODES,
    OPERATIONS,
    STORED,
    TEXT_COLUMNS,
)
from sieve.perf.table_work import limit_us

MIN_LATENCY_US: Final = 0.1
"""No kernel is shorter; the quickest of five systems takes 0.3 us."""
_FLOOR_US: Final = 5.0
_MAX_TEXT: Final = 200
_TOO_FAST: Final = 0.05
_TOO_SLOW: Final = 100.0
_BROKEN: Final = (pl.exceptions.PolarsError, pl.exceptions.PanicException, ValueError)


def read_frame(path: Path, op: str, *, extra: Sequence[str] = ()) -> pl.DataFrame:
    """Return the columns of an operation's schema, `latency_us` as float64, after checking types.

    Args:
        path: Parquet file.
        op: operation.
        extra: further columns to read where the file has them.

    Raises:
        TableError: file too large, not Parquet, a column missing or of another type, a null, a
            number out of range; with file, row and reason.
    """
    columns = (*OPERATIONS[op].columns, "latency_us")
    schema = parquet_schema(path)
    if missing := [name for name in columns if name not in schema]:
        found = ", ".join(list(schema)[:20])
        raise TableError(
            f"{path}: columns {', '.join(missing)} are missing (found: {found}); an {op} table has "
            f"{', '.join(columns)}"
        )
    wanted = [*columns, *(c for c in extra if c in schema and c not in columns)]
    try:
        frame = pl.read_parquet(path, columns=wanted).select(wanted)
    except _BROKEN as error:
        raise TableError(f"{path}: cannot be read as Parquet ({_first_line(error)})") from None
    check_types(path, frame, columns)
    check_latency(path, frame["latency_us"].cast(pl.Float64).fill_null(np.nan).to_numpy())
    return frame.with_columns(pl.col("latency_us").cast(pl.Float64))


def parquet_schema(path: Path) -> dict[str, pl.DataType]:
    """Return column -> type of a Parquet file within the limits on size.

    Raises:
        TableError: not a file, too large, too many rows, or not Parquet.
    """
    if not path.is_file():
        raise TableError(f"{path}: is not a file")
    size = path.stat().st_size
    if size > MAX_BYTES:
        raise TableError(f"{path}: {size:,} bytes, at most {MAX_BYTES:,} are read; split the table")
    try:
        schema = dict(pl.read_parquet_schema(path))
        rows = int(pl.scan_parquet(path).select(pl.len()).collect().item())
    except _BROKEN as error:
        raise TableError(
            f"{path}: not a readable parquet file ({_first_line(error)}); build it anew"
        ) from None
    if rows > MAX_ROWS:
        raise TableError(f"{path}: {rows:,} rows, at most {MAX_ROWS:,} are read; split the table")
    return schema


def check_types(path: Path, frame: pl.DataFrame, columns: Sequence[str]) -> None:
    """Check that key columns hold texts or whole numbers in range, without nulls.

    Raises:
        TableError: with the column, and the row where one is at fault.
    """
    for name in columns:
        column = frame[name]
        if name == "latency_us":
            if not column.dtype.is_numeric():
                raise TableError(f"{path}: column latency_us is {column.dtype}, must be a number")
            continue
        if name in TEXT_COLUMNS:
            if column.dtype not in (pl.String, pl.Categorical):
                raise TableError(f"{path}: column {name} is {column.dtype}, must be text")
            bad = column.is_null() | (column.cast(pl.String).str.len_bytes() > _MAX_TEXT)
            allowed = f"a text of at most {_MAX_TEXT} bytes"
        else:
            if not column.dtype.is_integer():
                raise TableError(f"{path}: column {name} is {column.dtype}, must be whole numbers")
            value = column.cast(pl.Float64)  # a narrow type cannot be compared with the limit
            bad = column.is_null() | (value < 0) | (value > MAX_INTEGER)
            allowed = f"a whole number from 0 to {MAX_INTEGER}"
        if rows := np.flatnonzero(bad.fill_null(value=True).to_numpy()).tolist():
            found = str(column[rows[0]])[:60]
            raise TableError(f"{path}, row {rows[0]}: {name} is {found}, must be {allowed}")


def check_latency(path: Path, latency_us: FloatArray) -> None:
    """Check that latencies are finite and at least as long as any kernel takes.

    Raises:
        TableError: with the first row at fault.
    """
    bad = np.flatnonzero(~(np.isfinite(latency_us) & (latency_us > 0)))
    if len(bad):
        row = int(bad[0])
        raise TableError(
            f"{path}, row {row}: latency_us is {latency_us[row]}, must be finite and above 0"
        )


def drop_repeats(path: Path, frame: pl.DataFrame, op: str) -> pl.DataFrame:
    """Return the rows of a frame once each.

    Raises:
        TableError: rows of one key disagree on the latency.
    """
    columns = list(OPERATIONS[op].columns)
    once = frame.unique([*columns, "latency_us"], keep="first", maintain_order=True)
    doubled = once.with_row_index("row").filter(pl.struct(columns).is_duplicated())
    if doubled.height:
        first = doubled.row(0, named=True)
        same = doubled.filter(pl.all_horizontal(pl.col(c) == first[c] for c in columns))
        key = ", ".join(f"{c} {first[c]}" for c in columns)
        values = " and ".join(f"{v:g}" for v in same["latency_us"].head(3))
        raise TableError(
            f"{path}, row {first['row']}: {key} occurs {same.height} times with latencies "
            f"{values} us; keep one row a key"
        )
    return once


def check_for_gpu(path: Path, frame: pl.DataFrame, op: str, gpu: Gpu) -> None:
    """Check that a GPU can have measured a table: its precisions, and the unit of the latencies.

    Raises:
        TableError: a precision that is unknown or that the GPU lacks; latencies that no kernel
            reaches, or that are off by about a thousand from the hardware's limit.
    """
    operation = OPERATIONS[op]
    for column in operation.precision:
        _check_precision(path, frame, column, gpu)
    for column in operation.stored:
        unknown = ~frame[column].cast(pl.String).is_in(sorted(STORED))
        if rows := np.flatnonzero(unknown.to_numpy()).tolist():
            raise TableError(
                f"{path}, row {rows[0]}: {column} is {frame[column][rows[0]]!r}; known are "
                f"{', '.join(sorted(STORED))}"
            )
    _check_units(path, frame, op, gpu)


def _check_precision(path: Path, frame: pl.DataFrame, column: str, gpu: Gpu) -> None:
    for name in frame[column].cast(pl.String).unique().sort():
        mode = MODES.get(name)
        row = int((frame[column].cast(pl.String) == name).arg_max() or 0)
        if mode is None:
            raise TableError(
                f"{path}, row {row}: {column} is {name!r}; known are {', '.join(sorted(MODES))}"
            )
        if mode not in gpu.flops_per_s:
            raise TableError(
                f"{path}, row {row}: {column} is {name!r}, but {gpu.name} has no {mode} arithmetic "
                f"(it has {', '.join(gpu.flops_per_s)}); is --gpu right?"
            )


def _check_units(path: Path, frame: pl.DataFrame, op: str, gpu: Gpu) -> None:
    """Refuse latencies a thousand times too small or too large for the hardware.

    The yardstick is the hardware's limit plus 5 us; the tables of five systems have medians of
    0.5 to 12 of it, so 0.05 and 100 leave room on both sides.
    """
    latency = frame["latency_us"].to_numpy()
    limit = limit_us(frame, op, gpu)
    if op in DIFFERENCES:
        return
    if limit is None:
        row = int(latency.argmin())
        if latency[row] < MIN_LATENCY_US:
            raise _unit_error(path, row, latency, f"no kernel takes below {MIN_LATENCY_US} us", "")
        return
    yardstick = limit + _FLOOR_US
    ratio = float(np.median(latency / yardstick))
    if ratio < _TOO_FAST:
        row = int((latency / yardstick).argmin())
        reason = f"{gpu.name} needs at least {limit[row]:.3g} us"
        raise _unit_error(path, row, latency, reason, "milliseconds")
    if ratio > _TOO_SLOW:
        row = int((latency / yardstick).argmax())
        reason = f"the limit of {gpu.name} is {limit[row]:.3g} us"
        raise _unit_error(path, row, latency, reason, "nanoseconds")


def _unit_error(
    path: Path, row: int, latency: npt.NDArray[np.float64], reason: str, unit: str
) -> TableError:
    guess = f"; they look like {unit}" if unit else ""
    return TableError(
        f"{path}, row {row}: latency_us is {latency[row]:.4g}, but {reason}{guess}; latencies must "
        "be microseconds"
    )


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:120]
