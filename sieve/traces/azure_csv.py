"""Azure LLM inference traces: a date-time, context tokens and generated tokens a request.

The columns are those of the 2023 and 2024 releases. A row with 0 generated tokens is a request that
failed: it is left out and counted in the notes. A row with 0 context tokens cannot be a request, so
it is an error.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from sieve.arrays import IntArray, Requests
from sieve.errors import TraceError
from sieve.traces.files import TraceFile, read_columns, token_counts
from sieve.traces.limits import MAX_SPAN_S
from sieve.units import NS_PER_S

COLUMNS: Final = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")

_DATE_TIME: Final = (
    r"^(?<date>\d{4}-\d{2}-\d{2})[ T](?<clock>\d{2}:\d{2}:\d{2})(?:\.(?<fraction>\d{1,9}))?"
    r"\s?(?<zone>Z|UTC|[+-]\d{2}:?\d{2})?$"
)


def read(file: TraceFile) -> Requests:
    """Return the requests of a trace, sorted by arrival (rows of equal time keep their order).

    Raises:
        TraceError: a column is missing, or a cell cannot be read; file and line are named.
    """
    if file.is_parquet:
        raise TraceError(f"{file.label}: azure_csv is a CSV format, but this is a Parquet file")
    frame, rows = read_columns(file, COLUMNS)
    input_tokens = token_counts(file, frame, rows, COLUMNS[1], least=1)
    output_tokens = token_counts(file, frame, rows, COLUMNS[2], least=0)
    time_ns = _time_ns(file, frame[COLUMNS[0]], rows)
    notes = []
    answered = output_tokens > 0
    if not answered.all():
        notes.append(f"{(~answered).sum()} failed requests (0 generated tokens) left out")
    if not answered.any():
        raise TraceError(f"{file.label}: every request has 0 generated tokens; nothing to serve")
    if (np.diff(time_ns) < 0).any():
        notes.append("rows were not in order of arrival; sorted")
    order = np.argsort(time_ns, kind="stable")
    order = order[answered[order]]
    since_first_ns = time_ns[order] - time_ns[order[0]]
    return Requests(
        arrival_s=since_first_ns / NS_PER_S,
        input_tokens=input_tokens[order],
        output_tokens=output_tokens[order],
        source=file.name,
        sha256=file.sha256,
        notes=tuple(notes),
    )


def _time_ns(file: TraceFile, text: pl.Series, rows: IntArray) -> IntArray:
    """Return (n,) whole nanoseconds since the earliest full second of the file."""
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
    _check_times(file, text, rows, table)
    second = table["second"].to_numpy()
    since = second - second.min()
    return np.asarray(since * NS_PER_S + table["fraction_ns"].to_numpy(), np.int64)


def _check_times(file: TraceFile, text: pl.Series, rows: IntArray, table: pl.DataFrame) -> None:
    unread = table["second"].is_null().to_numpy()
    if unread.any():
        i = int(np.argmax(unread))
        raise TraceError(
            f"{file.where(int(rows[i]))}: TIMESTAMP is {str(text[i] or '')[:40]!r}; "
            "expected a date and time such as '2023-11-16 18:15:46.6805900'"
        )
    zoned = table["has_zone"].to_numpy()
    mixed = zoned != zoned[0]
    if mixed.any():
        i = int(np.argmax(mixed))
        raise TraceError(
            f"{file.where(int(rows[i]))}: TIMESTAMP {text[i]!r} "
            f"{'has a' if zoned[i] else 'lacks the'} time zone, unlike the rows above; "
            "give it in every row or in none"
        )
    second = table["second"].to_numpy()
    if second.max() - second.min() > MAX_SPAN_S:
        raise TraceError(f"{file.label}: the timestamps span more than {MAX_SPAN_S:g} s")
