"""Arrival times of a column: date-times, or numbers whose unit is declared."""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from sieve.arrays import FloatArray, IntArray
from sieve.errors import TraceError
from sieve.traces.files import TraceFile
from sieve.traces.limits import MAX_SPAN_S
from sieve.units import NS_PER_S

SECONDS: Final = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
"""Seconds of each unit that can be declared."""

_DATE_TIME: Final = (
    r"^(?<date>\d{4}-\d{2}-\d{2})[ T](?<clock>\d{2}:\d{2}:\d{2})(?:[.,](?<fraction>\d{1,9}))?"
    r"\s?(?<zone>Z|UTC|[+-]\d{2}:?\d{2})?$"
)


def read_times(
    file: TraceFile,
    series: pl.Series,
    rows: IntArray,
    seconds: float | None,
    *,
    may_be_empty: bool = False,
) -> FloatArray:
    """Return (n,) seconds since the earliest time, nan where a cell is empty.

    Args:
        file: for messages.
        series: the column; text, numbers, or Parquet date-times.
        rows: (n,) index of each row in the file.
        seconds: of one unit of a plain number; None: not declared.
        may_be_empty: an empty cell among date-times is no fault.

    Raises:
        TraceError: a cell that is no time, or numbers without a declared unit.
    """
    if series.dtype.is_temporal():
        text = series.cast(pl.Datetime("ns")).dt.strftime("%Y-%m-%d %H:%M:%S%.f")
        return date_times_ns(file, text, rows) / NS_PER_S
    text = series.str.strip_chars() if series.dtype == pl.String else series
    if series.dtype == pl.String:
        text = text.replace("", None)
    number = text.cast(pl.Float64, strict=False)
    plain = number.is_not_null()
    filled = text.is_not_null().to_numpy()
    dates = not plain.any() if seconds is not None else not plain.all()
    if series.dtype == pl.String and dates:
        out = np.full(len(series), np.nan)
        used = filled if may_be_empty and filled.any() else np.ones(len(series), np.bool_)
        out[used] = date_times_ns(file, text.filter(pl.Series(used)), rows[used]) / NS_PER_S
        return out
    if seconds is None:
        raise TraceError(
            f"{file.label}: column {series.name} does not state its unit, and none is guessed; "
            "declare time_unit (--time-unit): s, ms, us or ns, or write date-times"
        )
    bad = (text.is_not_null() & ~plain).to_numpy()
    file.faults.check(
        bad,
        rows,
        f"{series.name}: no number",
        lambda i: (
            f"{file.where(int(rows[i]))}: {series.name} is {str(series[i])[:40]!r}; "
            "expected a number as in the rows above"
        ),
        file.first_row,
    )
    value = number.to_numpy().astype(np.float64)
    looks = [since_1970(float(v), seconds) if np.isfinite(v) else "" for v in value[:1]]
    if looks and looks[0]:
        raise TraceError(
            f"{file.where(int(rows[0]))}: {series.name} {looks[0]}; declare the unit: format "
            "access_log with columns and time_unit (--time-unit), or convert the column"
        )
    known = value[np.isfinite(value)]
    low = float(known.min()) if len(known) else 0.0
    return np.asarray((value - low) * seconds, np.float64)


def since_1970(value: float, seconds: float) -> str:
    """Return what a date in another unit looks like, empty if it looks like none.

    Args:
        value: of a time as the file has it.
        seconds: of one unit that it is read in.
    """
    read_as = next((name for name, size in SECONDS.items() if size == seconds), f"{seconds:g} s")
    for unit, size in SECONDS.items():
        # Seconds since 1970 between 2001 and 2096, told in a smaller unit.
        if size < seconds and 1e9 <= abs(value) * size <= 4e9:
            return f"looks like {unit} since 1970, read as {read_as}"
    return ""


def date_times_ns(file: TraceFile, text: pl.Series, rows: IntArray) -> IntArray:
    """Return (n,) whole nanoseconds since the earliest full second of the file.

    Raises:
        TraceError: a cell that is no date-time, time zones in some rows only, or a span beyond
            the limit.
    """
    parts = text.str.strip_chars().str.extract_groups(_DATE_TIME).struct.unnest().lazy()
    zone = pl.col("zone").str.replace(":", "")
    digits = zone.str.slice(1)
    offset_s = (
        pl.when(zone.is_in(["Z", "UTC"]) | zone.is_null())
        .then(0)
        .otherwise(
            digits.str.slice(0, 2).cast(pl.Int64, strict=False) * 3600
            + digits.str.slice(2, 2).cast(pl.Int64, strict=False) * 60
        )
    )
    sign = pl.when(zone.str.starts_with("-")).then(-1).otherwise(1)
    date_time = pl.concat_str("date", "clock", separator=" ").str.to_datetime(
        "%Y-%m-%d %H:%M:%S", time_unit="ms", strict=False
    )
    fraction = pl.col("fraction").fill_null("").str.pad_end(9, "0").cast(pl.Int64)
    table = parts.select(
        second=date_time.dt.epoch("s") - sign * offset_s,
        fraction_ns=fraction,
        has_zone=zone.is_not_null(),
    ).collect()
    good = _check(file, text, rows, table)
    second = table["second"].fill_null(0).to_numpy()
    since = np.where(good, second - second[good].min(), 0)
    if since.max() > MAX_SPAN_S:
        raise TraceError(f"{file.label}: the timestamps span more than {MAX_SPAN_S:g} s")
    return np.asarray(since * NS_PER_S + table["fraction_ns"].fill_null(0).to_numpy(), np.int64)


def _check(
    file: TraceFile, text: pl.Series, rows: IntArray, table: pl.DataFrame
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return which rows have a time like the first readable one's, (n,)."""
    unread = table["second"].is_null().to_numpy()
    file.faults.check(
        unread,
        rows,
        f"{text.name}: no date-time",
        lambda i: (
            f"{file.where(int(rows[i]))}: {text.name} is {str(text[i] or '')[:40]!r}; "
            "expected a date and time such as '2023-11-16 18:15:46.6805900'"
        ),
        file.first_row,
    )
    if unread.all():
        raise TraceError(f"{file.label}: column {text.name} holds no date-time")
    zoned = table["has_zone"].fill_null(value=False).to_numpy()
    mixed = (zoned != zoned[int(np.argmin(unread))]) & ~unread
    file.faults.check(
        mixed,
        rows,
        f"{text.name}: time zone in some rows only",
        lambda i: (
            f"{file.where(int(rows[i]))}: {text.name} {text[i]!r} "
            f"{'has a' if zoned[i] else 'lacks the'} time zone, unlike the rows above; "
            "give it in every row or in none"
        ),
        file.first_row,
    )
    return np.asarray(~unread & ~mixed)
