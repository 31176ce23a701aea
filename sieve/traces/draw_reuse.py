"""Shared prefixes and sessions drawn from a summary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from sieve.arrays import BoolArray, FloatArray, IntArray, PrefixBlocks, Requests
from sieve.traces.limits import generator
from sieve.traces.reuse_summary import PLACES, PrefixSummary, SessionSummary

_NEAR: Final = 64
"""Earlier requests around the drawn distance that are looked at for a long enough prompt."""


def draw_prefix(summary: PrefixSummary, prompt: IntArray, seed: int) -> PrefixBlocks:
    """Return blocks for prompts in order of arrival whose reuse is like the summary's.

    Each prompt draws whether it reuses more than the common beginning, what share of its blocks,
    and how long ago; it then takes them from an earlier prompt near that distance that is long
    enough. Where none is, less is reused.

    Args:
        summary: the reuse.
        prompt: (n,) tokens.
        seed: of the draw.
    """
    rng = generator(seed, "summary.prefix")
    n, size = len(prompt), summary.block_tokens
    count = -(-prompt // size)
    edges = np.array([b.tokens_from for b in summary.bins])
    which = np.clip(np.searchsorted(edges, prompt, side="right") - 1, 0, None)
    deep = rng.random(n) < np.array([b.deep_share for b in summary.bins])[which]
    has_root = rng.random(n) < summary.root_share
    share = np.zeros(n)
    for i, part in enumerate(summary.bins):
        inside = (which == i) & deep
        share[inside] = along(part.reused_share, rng.random(int(inside.sum())))
    wanted = np.minimum(np.rint(share * count).astype(np.int64), count)
    # As many requests ago, or nearer at the beginning, where there are not so many yet.
    distance = np.rint(along(summary.distance, rng.random(n))).astype(np.int64)
    parent = _parents(wanted, count, np.maximum(distance, 1), deep)
    return _chains(size, prompt, count, parent, wanted, np.where(has_root, summary.root_blocks, 0))


def _parents(wanted: IntArray, count: IntArray, distance: IntArray, deep: BoolArray) -> IntArray:
    """Return the earlier request that each deep one shares with, (n,), -1 for none."""
    parent = np.full(len(count), -1, np.int64)
    for i in np.flatnonzero(deep).tolist():
        near = i - int(distance[i])
        if near < 0:
            # So far back nothing is drawn yet: any place before will do.
            near = int(distance[i]) % i if i else -1
            if near < 0:
                continue
        low, high = max(near - _NEAR, 0), min(near + _NEAR, i)
        enough = np.flatnonzero(count[low:high] >= wanted[i])
        if len(enough):
            # A follow-up is a little longer than what it goes on from, and about so long ago.
            spare = (count[low:high][enough] - wanted[i]) / (wanted[i] + 1)
            away = np.abs(low + enough - near) / distance[i]
            parent[i] = low + int(enough[np.argmin(spare + away)])
    return parent


def _chains(
    size: int, prompt: IntArray, count: IntArray, parent: IntArray, wanted: IntArray, root: IntArray
) -> PrefixBlocks:
    start = np.concatenate(([0], np.cumsum(count))).astype(np.int64)
    ids = np.empty(int(start[-1]), np.int64)
    used = int(root.max(initial=0))
    for i in range(len(count)):
        begin, end = int(start[i]), int(start[i + 1])
        source = int(parent[i])
        if source >= 0:
            kept = int(wanted[i])
            ids[begin : begin + kept] = ids[int(start[source]) : int(start[source]) + kept]
        else:
            kept = min(int(root[i]), end - begin)
            ids[begin : begin + kept] = np.arange(kept)
        fresh = end - begin - kept
        ids[begin + kept : end] = np.arange(used, used + fresh)
        used += fresh
    dense = np.unique(ids, return_inverse=True)[1].astype(np.int64)
    return PrefixBlocks(size, start, dense, prompt)


def draw_sessions(
    summary: SessionSummary, start_s: FloatArray, most: int, seed: int, source: str
) -> Requests:
    """Return turns of sessions that begin at `start_s`, (k,), `most` turns or fewer.

    Turns beyond `most` are cut from the end of the list, which is sorted by session start, so that
    whole sessions are kept but for the last.
    """
    rng = generator(seed, "summary.sessions")
    turns = np.maximum(np.rint(along(summary.turns, _even(len(start_s), rng))), 1).astype(np.int64)
    keep = np.cumsum(turns) - turns < 2 * most  # some sessions end early
    turns = turns[keep]
    n = int(turns.sum())
    first = np.cumsum(turns) - turns
    prompt, kept = _prompts(summary, turns, first, n, rng)
    there = np.flatnonzero(prompt)[:most]
    session = np.repeat(np.arange(len(turns)), turns)[there]
    place = there - first[session]
    prompt, kept, n = prompt[there], kept[there], len(there)
    output = np.maximum(np.rint(along(summary.output_tokens, _even(n, rng))), 1).astype(np.int64)
    pause = along(summary.pause_s, rng.random(n))
    return Requests(
        arrival_s=start_s[keep][session],
        input_tokens=prompt,
        output_tokens=output,
        source=source,
        prefix=_session_blocks(summary.block_tokens, prompt, kept, place),
        previous=np.where(place > 0, np.arange(n) - 1, -1),
        delay_s=np.where(place > 0, pause, 0.0),
        session=session,
    )


def _prompts(
    summary: SessionSummary, turns: IntArray, first: IntArray, n: int, rng: np.random.Generator
) -> tuple[IntArray, IntArray]:
    """Return prompt tokens and those kept from the turn before, (n,) each.

    Prompts are 0 from where a session would outgrow the trace's longest.
    """
    prompt, kept = np.zeros(n, np.int64), np.zeros(n, np.int64)
    prompt[first] = np.maximum(
        np.rint(along(summary.first_input_tokens, _even(len(turns), rng))), 1
    )
    edges = np.array([b.tokens_from for b in summary.bins])
    for turn in range(1, int(turns.max(initial=1))):
        at = first[turns > turn] + turn
        at = at[prompt[at - 1] > 0]
        before = prompt[at - 1]
        which = np.clip(np.searchsorted(edges, before, side="right") - 1, 0, None)
        for i in np.unique(which):
            inside = at[which == i]
            u = rng.random((2, len(inside)))
            kept[inside] = np.rint(along(summary.bins[i].kept_share, u[0]) * prompt[inside - 1])
            added = np.rint(along(summary.bins[i].added_tokens, u[1])).astype(np.int64)
            prompt[inside] = np.maximum(kept[inside] + added, 1)
        # The trace has no longer prompt: its sessions end before.
        prompt[at[prompt[at] > summary.max_input_tokens]] = 0
    return prompt, kept


def _session_blocks(
    size: int, prompt: IntArray, kept: IntArray, place: IntArray
) -> PrefixBlocks | None:
    """Return the blocks of prompts that begin as the turn before; whole blocks are kept."""
    if not size:
        return None
    count = prompt // size
    shared = np.where(place > 0, np.minimum(kept // size, count), 0)
    start = np.concatenate(([0], np.cumsum(count))).astype(np.int64)
    ids = np.empty(int(start[-1]), np.int64)
    used = 0
    for i in range(len(prompt)):
        begin, end, same = int(start[i]), int(start[i + 1]), int(shared[i])
        if same:
            source = int(start[i - 1])
            ids[begin : begin + same] = ids[source : source + same]
        ids[begin + same : end] = np.arange(used, used + end - begin - same)
        used += end - begin - same
    return PrefixBlocks(size, start, ids, prompt)


def along(quantiles: Sequence[float], place: FloatArray) -> FloatArray:
    """Return the values at `place` in [0, 1] of quantiles at `PLACES`, linear between them."""
    if not quantiles:
        return np.zeros(len(place))
    return np.asarray(np.interp(place, PLACES, quantiles))


def _even(n: int, rng: np.random.Generator) -> FloatArray:
    """Return (n,) places in random order, each n-th part of [0, 1] once."""
    return np.asarray((rng.permutation(n) + rng.random(n)) / max(n, 1), np.float64)
