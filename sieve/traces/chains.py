"""Prompts as lists of block numbers: read from a column, and numbered by all that precedes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from sieve.arrays import IntArray
from sieve.errors import TraceError
from sieve.traces.files import TraceFile

MAX_BLOCKS: Final = 200_000_000
"""Most prefix blocks of a trace."""
_ROWS: Final = 1 << 16
"""Rows whose lists are taken apart at a time."""
_PART: Final = 1 << 20
"""Blocks that are worked on at a time: what fits a processor's cache is quick to look up."""


@dataclass(frozen=True)
class Blocks:
    """The prompts of n rows as lists of block numbers.

    Attributes:
        block_tokens: tokens of a block.
        start: (n + 1,) offsets of the lists.
        ids: (m,) block numbers as the file gives them.
        whole_only: the lists leave out a last block that is partly filled.
    """

    block_tokens: int
    start: IntArray
    ids: IntArray
    whole_only: bool = False


def block_lists(
    series: pl.Series,
    rows: IntArray,
    block_tokens: int,
    file: TraceFile,
    *,
    whole_only: bool = False,
) -> Blocks | None:
    """Return a column of lists of block numbers; None if no row has one.

    Raises:
        TraceError: too many, or a list that holds null.
    """
    if series.is_null().all():
        return None
    name = series.name
    count = series.list.len().fill_null(0).to_numpy().astype(np.int64)
    if int(count.sum()) > MAX_BLOCKS:
        raise TraceError(f"{file.label}: more than {MAX_BLOCKS:,} {name}; cut the trace")
    start = np.concatenate(([0], np.cumsum(count))).astype(np.int64)
    ids = np.empty(int(start[-1]), np.int64)
    holes = np.zeros(len(series), np.bool_)
    row = 0
    for part in series.to_frame().iter_slices(_ROWS):  # so that no second copy of all is made
        lists = part.to_series()
        flat = lists.explode(empty_as_null=False, keep_nulls=False)
        if flat.null_count():
            inside = lists.list.eval(pl.element().is_null()).list.any().fill_null(value=False)
            holes[row : row + len(lists)] = inside.to_numpy()
            flat = flat.fill_null(-1)
        ids[start[row] : start[row + len(lists)]] = flat.to_numpy()
        row += len(lists)
    file.faults.check(
        holes,
        rows,
        f"{name}: no whole numbers",
        lambda i: f"{file.where(int(rows[i]))}: {name} holds null or text; expected whole numbers",
        file.first_row,
    )
    return Blocks(block_tokens, start, ids, whole_only)


def chain_ids(start: IntArray, ids: IntArray) -> IntArray:
    """Return numbers from 0 that are equal exactly where an id and all ids before it are.

    Args:
        start: (n + 1,) offsets of the lists.
        ids: (m,) their ids.
    """
    number = _dense(ids)
    num_ids = int(number.max(initial=-1)) + 1
    if _one_before_each(start, number, num_ids):
        return number
    chain = np.empty(len(ids), np.int64)
    count = np.diff(start)
    lists = np.flatnonzero(count)
    at, left = start[lists], count[lists]
    parent = np.zeros(len(lists), np.int64)
    used = 0
    while len(at):
        pairs = parent * num_ids + number[at]
        if (pairs[1:] < pairs[:-1]).any():  # lists stay in order of their chains until they part
            order = np.argsort(pairs, kind="stable")
            at, left, pairs = at[order], left[order], pairs[order]
        begins = np.ones(len(pairs) + 1, np.bool_)
        np.not_equal(pairs[1:], pairs[:-1], out=begins[1:-1])
        parent = np.cumsum(begins[:-1], dtype=np.int64) + (used - 1)
        chain[at] = parent
        used = int(parent[-1]) + 1
        alone = begins[:-1] & begins[1:]  # shares nothing from here on
        used += _number_rest(chain, at[alone] + 1, left[alone] - 1, used)
        more = np.flatnonzero((left > 1) & ~alone)
        at, left, parent = at[more] + 1, left[more] - 1, parent[more]
    return chain


def _number_rest(chain: IntArray, begin: IntArray, count: IntArray, used: int) -> int:
    """Give `count` blocks from each of `begin` on numbers of their own; return how many."""
    ends = np.cumsum(count)
    total = int(ends[-1]) if len(ends) else 0
    place = np.arange(total) + np.repeat(begin - (ends - count), count)
    chain[place] = np.arange(used, used + total)
    return total


def _one_before_each(start: IntArray, number: IntArray, num_ids: int) -> bool:
    """Tell whether every id follows one id only, or begins every list that it is in.

    Most traces give a block of another beginning another id. Then one way leads back from an id to
    a beginning, and the id tells the chain.
    """
    before = np.full(num_ids, -2, np.int32)  # at most MAX_BLOCKS
    first = start[:-1][np.diff(start) > 0]
    for known in (False, True):
        for low in range(0, len(number), _PART):
            part = number[low : low + _PART]
            ahead = np.empty(len(part), np.int32)
            ahead[1:] = part[:-1]
            ahead[0] = number[low - 1] if low else -1
            ends = np.searchsorted(first, (low, low + len(part)))
            ahead[first[ends[0] : ends[1]] - low] = -1
            if not known:
                before[part] = ahead
            elif not np.array_equal(before[part], ahead):
                return False
    return True


def _dense(ids: IntArray) -> IntArray:
    """Return ids as numbers from 0 in rising order; a compact range needs no sorting."""
    if not len(ids):
        return ids.astype(np.int64)
    low, high = int(ids.min()), int(ids.max())
    if high - low < 8 * len(ids):
        there = np.zeros(high - low + 1, np.bool_)
        number = ids - low
        there[number] = True
        if not there.all():
            place = np.cumsum(there, dtype=np.int64) - 1
            for at in range(0, len(number), _PART):
                number[at : at + _PART] = place[number[at : at + _PART]]
        return number
    return np.unique(ids, return_inverse=True)[1].astype(np.int64)
