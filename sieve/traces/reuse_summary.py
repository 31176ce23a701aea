"""What a summary keeps of shared prefixes and of sessions: counts and quantiles, no request.

`PrefixSummary` describes reuse as it looks to each request: how many leading blocks an earlier
request had, and how many requests ago it came. `SessionSummary` describes chains of turns that wait
for each other: how many turns, how the prompt grows, what is kept of it, how long the pauses are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from sieve.arrays import FloatArray, IntArray, PrefixBlocks, Requests, chain_starts

PLACES: Final = (
    0.0, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.975, 0.99, 0.995, 0.999,
    1.0,
)  # fmt: skip
"""Places of the quantiles that are kept; closer at the ends, where heavy tails are."""
_ROWS: Final = 1 << 16
"""Requests that are looked at together."""
ROOT_SHARE: Final = 0.2
"""A beginning that this share of the requests has is kept as one."""


@dataclass(frozen=True)
class ReuseBin:
    """Reuse of the prompts of one range of lengths.

    Attributes:
        tokens_from: shortest prompt of the bin.
        num_requests: prompts in it.
        deep_share: share that reuses more than the common beginning.
        reused_share: quantiles of reused over all whole blocks, of those.
    """

    tokens_from: int
    num_requests: int
    deep_share: float
    reused_share: tuple[float, ...]


@dataclass(frozen=True)
class PrefixSummary:
    """Shared prefixes of independent requests.

    Attributes:
        block_tokens: tokens of a block.
        root_blocks: length of the beginning that many requests have in common.
        root_share: share of the requests that have it.
        distance: quantiles of how many requests ago the reused blocks were last used.
        bins: by prompt length, rising.
        hit_ratio: share of prompt tokens that an endless cache holds, of the trace itself.
    """

    block_tokens: int
    root_blocks: int
    root_share: float
    distance: tuple[float, ...]
    bins: tuple[ReuseBin, ...]
    hit_ratio: float


@dataclass(frozen=True)
class TurnBin:
    """The next turn after a prompt of one range of lengths.

    Attributes:
        tokens_from: shortest previous prompt of the bin.
        num_turns: turns in it.
        kept_share: quantiles of kept over previous prompt.
        added_tokens: quantiles of prompt tokens behind what is kept.
    """

    tokens_from: int
    num_turns: int
    kept_share: tuple[float, ...]
    added_tokens: tuple[float, ...]


@dataclass(frozen=True)
class SessionSummary:
    """Chains of turns that wait for each other's answers.

    Attributes:
        num_sessions: chains of the trace.
        block_tokens: tokens of a prefix block; 0: the trace has none.
        turns: quantiles of turns in a chain.
        first_input_tokens: quantiles of the first prompt.
        output_tokens: quantiles of the answers.
        pause_s: quantiles of the wait between an answer and the next turn.
        bins: the next turn by the length of the previous prompt.
        max_input_tokens: the longest prompt.
        hit_ratio: share of prompt tokens that an endless cache holds, of the trace itself.
    """

    num_sessions: int
    block_tokens: int
    turns: tuple[float, ...]
    first_input_tokens: tuple[float, ...]
    output_tokens: tuple[float, ...]
    pause_s: tuple[float, ...]
    bins: tuple[TurnBin, ...]
    max_input_tokens: int
    hit_ratio: float


def summarise_prefix(prefix: PrefixBlocks) -> PrefixSummary:
    """Return the reuse between requests in order of arrival."""
    n = len(prefix.prompt)
    count = np.diff(prefix.start)
    root_blocks, root_share = _root(prefix)
    reused, distance = reuse_of(prefix)
    deep = reused > root_blocks
    bins = []
    octave = np.floor(np.log2(prefix.prompt)).astype(np.int64)
    for value in np.unique(octave):
        inside = octave == value
        chosen = inside & deep
        bins.append(
            ReuseBin(
                int(prefix.prompt[inside].min()),
                int(inside.sum()),
                _tidy(chosen.sum() / inside.sum()),
                _quantiles((reused / np.maximum(count, 1))[chosen]),
            )
        )
    return PrefixSummary(
        prefix.block_tokens,
        root_blocks,
        _tidy(root_share),
        _quantiles(distance[deep]),
        tuple(bins),
        _tidy(1.0 - prefix.fewest_computed().sum() / prefix.prompt.sum()) if n else 0.0,
    )


def reuse_of(prefix: PrefixBlocks) -> tuple[IntArray, IntArray]:
    """Return leading blocks that an earlier request had, and how many requests ago, (n,) each.

    The distance is that of the last reused block; 0 where nothing is reused.
    """
    n = len(prefix.prompt)
    latest = np.full(int(prefix.ids.max(initial=-1)) + 1, -1, np.int64)
    reused, distance = np.zeros(n, np.int64), np.zeros(n, np.int64)
    for low in range(0, n, _ROWS):
        rows = np.arange(low, min(low + _ROWS, n))
        start = prefix.start[low : rows[-1] + 2]
        ids = prefix.ids[start[0] : start[-1]]
        owner = np.repeat(rows, np.diff(start))
        order = np.argsort(ids, kind="stable")
        same = np.concatenate(([False], np.diff(ids[order]) == 0))[: len(order)]
        before = owner[np.concatenate((order[:1], order[:-1]))]
        last = np.empty(len(order), np.int64)
        last[order] = np.where(same, before, latest[ids[order]])
        # Blocks are chains, so those that are there already come first.
        reused[rows] = np.bincount(owner[last >= 0] - low, minlength=len(rows))
        some = rows[reused[rows] > 0]
        distance[some] = some - last[start[some - low] - start[0] + reused[some] - 1]
        latest[ids] = owner
    return reused, distance


def _root(prefix: PrefixBlocks) -> tuple[int, float]:
    """Return the blocks and the share of the beginning that many requests have."""
    n = len(prefix.prompt)
    uses = np.bincount(prefix.ids, minlength=1)
    if uses.max() < max(ROOT_SHARE * n, 2):
        return 0, 0.0
    places = np.flatnonzero(uses[prefix.ids] == uses.max())
    owners = np.searchsorted(prefix.start, places, side="right") - 1
    # All blocks of a beginning are used equally often; the deepest of them tells its length.
    depth = places - prefix.start[owners]
    best = prefix.ids[places[np.argmax(depth)]]
    return int(depth.max()) + 1, len(np.unique(owners[prefix.ids[places] == best])) / n


def summarise_sessions(requests: Requests) -> SessionSummary:
    """Return the statistics of chains of turns; every request is a turn of one."""
    assert requests.previous is not None
    assert requests.delay_s is not None
    previous, n = requests.previous, len(requests)
    follows = previous >= 0
    turns = np.bincount(chain_starts(previous), minlength=n)
    before = requests.input_tokens[previous[follows]]
    after = requests.input_tokens[follows]
    kept = np.minimum(_kept(requests)[follows], np.minimum(before, after))
    bins = []
    octave = np.floor(np.log2(before)).astype(np.int64)
    for value in np.unique(octave):
        inside = octave == value
        bins.append(
            TurnBin(
                int(before[inside].min()),
                int(inside.sum()),
                _quantiles((kept / before)[inside]),
                _quantiles((after - kept)[inside]),
            )
        )
    prefix = requests.prefix
    total = requests.input_tokens.sum()
    return SessionSummary(
        int((~follows).sum()),
        0 if prefix is None else prefix.block_tokens,
        _quantiles(turns[~follows]),
        _quantiles(requests.input_tokens[~follows]),
        _quantiles(requests.output_tokens),
        _quantiles(requests.delay_s[follows]),
        tuple(bins),
        int(requests.input_tokens.max()),
        0.0 if prefix is None else _tidy(1.0 - prefix.fewest_computed().sum() / total),
    )


def _kept(requests: Requests) -> IntArray:
    """Return the tokens of each prompt that the previous turn's prompt begins with, (n,)."""
    prefix, previous = requests.prefix, requests.previous
    n = len(requests)
    assert previous is not None
    if prefix is None:  # nothing is known: what the session said before is taken to be kept
        return np.where(previous >= 0, requests.input_tokens[previous], 0)
    count = np.diff(prefix.start)
    most = np.where(previous >= 0, np.minimum(count, count[previous]), 0)
    owner = np.repeat(np.arange(n), most)
    inside = np.arange(int(most.sum())) - np.repeat(np.cumsum(most) - most, most)
    own = prefix.ids[prefix.start[:-1][owner] + inside]
    other = prefix.ids[prefix.start[:-1][previous[owner]] + inside]
    # Chains: once they differ they never agree again, so agreements are leading.
    return np.bincount(owner[own == other], minlength=n) * prefix.block_tokens


def _quantiles(values: FloatArray | IntArray) -> tuple[float, ...]:
    if not len(values):
        return ()
    found = np.quantile(np.asarray(values, np.float64), PLACES)
    return tuple(_tidy(v) for v in found)


def _tidy(value: float | np.floating[Any]) -> float:
    return float(f"{value:.5g}")
