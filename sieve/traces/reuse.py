"""How much of the prompts a prefix cache of a given size would hold: the hit curve of a trace.

The cache is seen as one LRU list of blocks (Mattson's stack): a block hits if fewer distinct blocks
than the cache holds were used since its last use. One pass gives the hits of every size. Large
traces are sampled by block number as SHARDS does (Waldspurger et al., FAST 2015): a share of all
blocks is followed, and distances are scaled by it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from sieve.arrays import BoolArray, FloatArray, IntArray, PrefixBlocks

MAX_USES: Final = 400_000
"""Uses of blocks that are followed exactly; more are sampled."""
_PART: Final = 1 << 22


@dataclass(frozen=True, eq=False)
class HitCurve:
    """Share of prompt tokens found in a cache, by its size.

    Attributes:
        block_tokens: tokens of a block.
        cache_tokens: (k,) rising sizes.
        hit_ratio: (k,) share of prompt tokens that hit.
        unlimited: share with an endless cache.
        sampled: share of the blocks that were followed; 1.0 is all.
    """

    block_tokens: int
    cache_tokens: FloatArray
    hit_ratio: FloatArray
    unlimited: float
    sampled: float


def hit_curve(prefix: PrefixBlocks, points: int = 16) -> HitCurve:
    """Return the hit curve for blocks used in the order of the requests.

    Args:
        prefix: the blocks of the prompts, in order of arrival.
        points: sizes of the curve, a factor of two apart, the last that of all distinct blocks.
    """
    ids, share = prefix.ids, 1.0
    if len(ids) > MAX_USES:
        share = MAX_USES / len(ids)
        parts = [ids[low : low + _PART] for low in range(0, len(ids), _PART)]
        ids = np.concatenate([part[_followed(part, share)] for part in parts])
    tokens = float(prefix.prompt.sum())
    distance = stack_distances(ids)
    again = distance >= 0
    distinct = int(prefix.ids.max(initial=0)) + 1
    most = max(distinct, 1)
    sizes = np.unique(np.ceil(most / 2.0 ** np.arange(points)[::-1]))
    found = np.searchsorted(np.sort(distance[again] / share), sizes, side="left")
    scale = prefix.block_tokens / share / tokens
    return HitCurve(
        prefix.block_tokens,
        np.asarray(sizes * prefix.block_tokens, np.float64),
        np.minimum(found * scale, 1.0),
        float(min(1.0 - prefix.fewest_computed().sum() / tokens, 1.0)),
        share,
    )


def _followed(ids: IntArray, share: float) -> BoolArray:
    """Return which uses are followed, (m,): a fixed mixing decides alike for uses of a block."""
    mixed = (ids.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    return np.asarray((mixed >> np.uint64(32)) < np.uint64(share * 2**32), np.bool_)


def stack_distances(ids: IntArray) -> IntArray:
    """Return how many distinct ids were used since each id's last use, (m,); -1 at the first.

    By divide and conquer over the last uses: the distance is the number of positions since the last
    use that are themselves a last use so far, counted for all positions by a merge sort.

    Args:
        ids: (m,) ids in order of use.
    """
    m = len(ids)
    order = np.argsort(ids, kind="stable")
    same = np.concatenate(([False], np.diff(ids[order]) == 0))
    last = np.full(m, -1, np.int64)
    last[order] = np.where(same, np.concatenate(([-1], order[:-1])), -1)
    # Between last[i] and i there are i - last[i] - 1 uses; those whose own last use is also after
    # last[i] are repeats and count once.
    again = last >= 0
    repeats = _count_greater_before(last)
    distance = np.where(again, np.arange(m) - last - 1 - repeats, -1)
    return np.asarray(distance, np.int64)


def _count_greater_before(last: IntArray) -> IntArray:
    """Return, for each i, how many j < i have last[j] > last[i], (m,), by merging blocks."""
    m = len(last)
    # Ties do not count: an element that equals another must not be greater than it.
    count = np.zeros(m, np.int64)
    rank = np.argsort(np.argsort(last, kind="stable"), kind="stable").astype(np.int64)
    width = 1
    order = np.arange(m)
    while width < m:
        block = np.arange(m) // (2 * width)
        is_right = (np.arange(m) // width) % 2 == 1
        order = np.lexsort((rank, block))
        right = is_right[order]
        lefts = np.cumsum(~right)
        start = np.searchsorted(block[order], np.arange(block[-1] + 1))
        before = lefts - np.concatenate(([0], lefts))[start][block[order]]
        total = np.bincount(block[~is_right], minlength=int(block[-1]) + 1)
        add = total[block[order]] - before
        count[order[right]] += add[right]
        width *= 2
    return count
