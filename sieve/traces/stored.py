"""Requests as a table that a run folder keeps, so that a plan needs no original trace."""

from __future__ import annotations

import hashlib
from typing import Final

import numpy as np
import polars as pl

from sieve.arrays import IntArray, PrefixBlocks, Requests
from sieve.errors import TraceError
from sieve.traces.limits import MAX_SPAN_S, MAX_TOKENS

COLUMNS: Final = ("arrival_s", "input_tokens", "output_tokens")
_LISTS: Final = "prefix_ids"


def to_frame(requests: Requests) -> pl.DataFrame:
    """Return one row a request: arrival, tokens, and what the trace knows beyond them.

    Columns: `arrival_s`, `input_tokens`, `output_tokens`; with sessions `previous`, `delay_s`; with
    shared prefixes `prefix_ids`, the blocks of the prompt.
    """
    columns = {name: pl.Series(getattr(requests, name)) for name in COLUMNS}
    if requests.previous is not None and requests.delay_s is not None:
        columns |= {
            "previous": pl.Series(requests.previous),
            "delay_s": pl.Series(requests.delay_s),
        }
    frame = pl.DataFrame(columns)
    if requests.prefix is not None:
        owner = np.repeat(np.arange(len(requests)), np.diff(requests.prefix.start))
        lists = pl.DataFrame({"row": owner, _LISTS: requests.prefix.ids})
        lists = lists.group_by("row", maintain_order=True).agg(_LISTS)
        frame = frame.with_row_index("row").with_columns(pl.col("row").cast(pl.Int64))
        empty = pl.col(_LISTS).fill_null(pl.lit([], pl.List(pl.Int64)))
        frame = frame.join(lists, on="row", how="left", maintain_order="left")
        frame = frame.with_columns(empty).drop("row")
    return frame


def from_frame(
    frame: pl.DataFrame, *, users: int | None, block_tokens: int | None, label: str
) -> Requests:
    """Return the requests of `to_frame`.

    Args:
        frame: the table.
        users: of a closed loop, else None.
        block_tokens: tokens in a prefix block, None without prefixes.
        label: names the table in errors.

    Raises:
        TraceError: a column is missing, of another kind, or out of range.
    """
    wanted: dict[str, pl.DataType] = {
        "arrival_s": pl.Float64(),
        "input_tokens": pl.Int64(),
        "output_tokens": pl.Int64(),
    }
    if "previous" in frame.columns:
        wanted |= {"previous": pl.Int64(), "delay_s": pl.Float64()}
    if block_tokens is not None:
        wanted[_LISTS] = pl.List(pl.Int64())
    for name, dtype in wanted.items():
        if frame.schema.get(name) != dtype or frame[name].has_nulls():
            raise TraceError(f"{label}: column {name!r} is missing or not {dtype}")
    arrival_s, prompt, output = (frame[name].to_numpy() for name in COLUMNS)
    counts = (prompt >= 1) & (prompt <= MAX_TOKENS) & (output >= 1) & (output <= MAX_TOKENS)
    timed = np.isfinite(arrival_s) & (arrival_s >= 0) & (arrival_s <= MAX_SPAN_S)
    if not len(frame) or not counts.all() or not timed.all() or (np.diff(arrival_s) < 0).any():
        raise TraceError(f"{label}: times or token counts are out of range or out of order")
    previous = frame["previous"].to_numpy() if "previous" in frame.columns else None
    if previous is not None and not ((previous >= -1) & (previous < np.arange(len(frame)))).all():
        raise TraceError(f"{label}: a turn waits for one that is not before it")
    return Requests(
        arrival_s=arrival_s,
        input_tokens=prompt,
        output_tokens=output,
        closed_loop_users=users,
        source=label,
        prefix=None if block_tokens is None else _blocks(frame[_LISTS], prompt, block_tokens),
        previous=previous,
        delay_s=frame["delay_s"].to_numpy() if previous is not None else None,
    )


def _blocks(lists: pl.Series, prompt: IntArray, block_tokens: int) -> PrefixBlocks:
    count = lists.list.len().to_numpy().astype(np.int64)
    start = np.concatenate(([0], np.cumsum(count))).astype(np.int64)
    flat = lists.explode(empty_as_null=False).to_numpy().astype(np.int64)
    return PrefixBlocks(block_tokens, start, flat, prompt)


def digest(requests: Requests) -> str:
    """Return a checksum of what a replay reads of the requests, the time outside engines left out.

    Equal for equal arrays, however they were read.
    """
    total = hashlib.sha256(f"{len(requests)} {requests.closed_loop_users}".encode())
    arrays = [getattr(requests, name) for name in COLUMNS]
    arrays += [requests.previous, requests.delay_s]
    if requests.prefix is not None:
        total.update(str(requests.prefix.block_tokens).encode())
        arrays += [requests.prefix.start, requests.prefix.ids]
    for array in arrays:
        total.update(b"-" if array is None else np.ascontiguousarray(array).tobytes())
    return total.hexdigest()
