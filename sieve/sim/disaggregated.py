"""Prefill and decode on engines of their own, with the KV cache sent from one to the other.

An estimate: what is assumed stands in `ASSUMPTIONS` and goes with every result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from sieve.arrays import COMPONENTS, FloatArray, IntArray, Requests, SimResult
from sieve.errors import InvalidInput, TraceError
from sieve.sim._kernels import decode as kernel
from sieve.sim._kernels.clock import GAP_BINS, Clock
from sieve.sim.fleet import static_lanes
from sieve.sim.replay import REQUEST_EXCEEDS_CACHE, ReplaySettings
from sieve.sim.traffic_input import CacheGroup
from sieve.units import NS_PER_S

ASSUMPTIONS: Final = (
    "both pools are dealt round robin; nobody is preempted: a decode engine admits a request when "
    "the blocks of its prompt and answer are free",
    "the KV cache is sent whole when the prompt is done, one request after another on the link of "
    "its prefill engine; nothing overlaps with the prefill, and the prefill engine's blocks are "
    "free at once",
    "the first token reaches the client when a decode engine admits the request; answers of one "
    "token never leave prefill",
    "iterations of a decode engine hold decoding requests only and are not scheduled ahead; with "
    "pipeline stages they go one after another, which is slower than the engine",
)
MAX_ROUNDS: Final = 2000


@dataclass(frozen=True)
class Link:
    """The way of a KV cache from a prefill to a decode engine.

    Attributes:
        bytes_per_s: of one prefill engine, all its ports together.
        latency_s: added to each transfer.
    """

    bytes_per_s: float
    latency_s: float = 0.0

    def __post_init__(self) -> None:
        if not (np.isfinite(self.bytes_per_s) and self.bytes_per_s > 0):
            raise InvalidInput(
                f"the link's bandwidth is {self.bytes_per_s / 1e9:g} GB/s; a KV cache needs a link "
                "above 0"
            )
        if not (np.isfinite(self.latency_s) and 0 <= self.latency_s <= 60):
            raise InvalidInput(f"the link's latency is {self.latency_s:g} s; expected 0 to 60 s")


@dataclass(frozen=True, eq=False)
class DecodePool:
    """Engines that decode.

    Attributes:
        engines: how many.
        settings: limits of each.
        clock: their step times.
        block_bytes: of one KV block, all ranks together.
        roofline: whether the step times are the plain roofline.
    """

    engines: int
    settings: ReplaySettings
    clock: Clock
    block_bytes: float
    roofline: bool = False


def disaggregated(
    requests: Requests,
    prefill: Callable[[Requests, IntArray], SimResult],
    prefill_engines: int,
    pool: DecodePool,
    link: Link,
) -> SimResult:
    """Return the replay of traffic over a prefill and a decode pool.

    `scheduled_s` is when the prefill began, later by the wait for a decode engine, so that a queue
    before either pool is seen.

    Args:
        requests: the traffic.
        prefill: replays requests whose engines are given, as `sieve.sim.replay.simulate` does.
        prefill_engines: how many.
        pool: the engines that decode.
        link: between them.

    Raises:
        InvalidInput: no engine in a pool, or sessions.
        TraceError: a closed loop that does not settle.
    """
    if prefill_engines < 1 or pool.engines < 1:
        raise InvalidInput("prefill and decode need at least one engine each")
    if requests.previous is not None:
        raise InvalidInput("prefill and decode apart take traffic without sessions")
    users = requests.closed_loop_users
    if users is None:
        return _once(requests, prefill, prefill_engines, pool, link)
    # A user sends the next request at an answer: each round settles at least one more request.
    arrival = np.zeros(len(requests))
    for _ in range(min(len(requests), MAX_ROUNDS)):
        sent = replace(requests, arrival_s=arrival, closed_loop_users=None)
        result = _once(sent, prefill, prefill_engines, pool, link)
        if result.status:
            return result
        ends = np.sort(result.finish_s)
        again = np.concatenate([np.zeros(min(users, len(arrival))), ends])[: len(arrival)]
        if np.array_equal(again, arrival):
            return result
        arrival = again
    raise TraceError("the closed loop does not settle; use fewer requests")


def _once(
    requests: Requests,
    prefill: Callable[[Requests, IntArray], SimResult],
    prefill_engines: int,
    pool: DecodePool,
    link: Link,
) -> SimResult:
    lane = static_lanes(requests, prefill_engines, "round_robin", 0)
    ones = np.ones(len(requests), np.int64)
    first = prefill(replace(requests, output_tokens=ones), lane)
    needed = blocks_of(requests.input_tokens + requests.output_tokens, pool.settings)
    if first.status or int(needed.max()) > pool.settings.num_gpu_blocks:
        return replace(first, status=first.status or REQUEST_EXCEEDS_CACHE)
    goes_on = requests.output_tokens > 1
    sent_s = blocks_of(requests.input_tokens, pool.settings) * (pool.block_bytes / link.bytes_per_s)
    there_s = first.finish_s.copy()
    for engine in range(prefill_engines):
        rows = np.flatnonzero((lane == engine) & goes_on)
        there_s[rows] = sent(first.finish_s[rows], sent_s[rows].astype(np.float64))
        there_s[rows] += link.latency_s
    return _decoded(requests, first, there_s, needed, goes_on, pool)


def sent(ready_s: FloatArray, duration_s: FloatArray) -> FloatArray:
    """Return when each transfer ends on one link, first ready first, (n,).

    Args:
        ready_s: (n,) when each may begin.
        duration_s: (n,) how long each takes.
    """
    order = np.argsort(ready_s, kind="stable")
    total = np.cumsum(duration_s[order])
    # Lindley (1952): the busy period that an end lies in began at the latest of these.
    begun = np.maximum.accumulate(ready_s[order] - (total - duration_s[order]))
    out = np.empty(len(ready_s))
    out[order] = begun + total
    return out


def blocks_of(tokens: IntArray, settings: ReplaySettings) -> IntArray:
    """Return the KV blocks of requests of so many tokens, (n,), all kinds of cache together."""
    groups: tuple[CacheGroup, ...] = settings.groups or ((0, settings.block_size, 0),)
    total = np.zeros(len(tokens), np.int64)
    for window, span, fixed in groups:
        held = np.full(len(tokens), fixed) if fixed else -(-tokens // span)
        total += np.minimum(held, -(-window // span) + 1) if window else held
    return total


def _decoded(
    requests: Requests,
    first: SimResult,
    there_s: FloatArray,
    needed: IntArray,
    goes_on: np.ndarray[tuple[int], np.dtype[np.bool_]],
    pool: DecodePool,
) -> SimResult:
    """Return the whole replay from the prefills and the times at which their caches arrive."""
    rows = np.flatnonzero(goes_on)
    rows = rows[np.argsort(there_s[rows], kind="stable")]
    first_token_s, finish_s = first.finish_s.copy(), first.finish_s.copy()
    scheduled_s = first.scheduled_s.copy()
    counters = np.zeros((pool.engines, kernel.NUM_COUNTERS), np.int64)
    component_s = np.zeros(len(COMPONENTS))
    gaps = np.zeros(GAP_BINS, np.int64)
    for engine in range(pool.engines):
        mine = rows[engine :: pool.engines]
        if not len(mine):
            continue
        arrival = np.rint(there_s[mine] * NS_PER_S).astype(np.int64)
        admitted, finish = np.zeros(len(mine), np.int64), np.zeros(len(mine), np.int64)
        kernel.decode(
            arrival, requests.input_tokens[mine].astype(np.int64),
            (requests.output_tokens[mine] - 1).astype(np.int64), needed[mine],
            pool.settings.max_num_seqs, pool.settings.num_gpu_blocks, pool.roofline, pool.clock,
            admitted, finish, counters[engine], component_s, gaps,
        )  # fmt: skip
        first_token_s[mine], finish_s[mine] = admitted / NS_PER_S, finish / NS_PER_S
        scheduled_s[mine] += (admitted - arrival) / NS_PER_S
    return replace(
        first,
        scheduled_s=scheduled_s,
        first_token_s=first_token_s,
        finish_s=finish_s,
        num_steps=first.num_steps + int(counters[:, kernel.D_STEPS].sum()),
        num_request_steps=first.num_request_steps + int(counters[:, kernel.D_REQUEST_STEPS].sum()),
        component_s=first.component_s + component_s,
        peak_blocks=int(counters[:, kernel.D_PEAK_BLOCKS].max()),
        peak_batch=max(first.peak_batch, int(counters[:, kernel.D_PEAK_BATCH].max())),
        makespan_s=float(finish_s.max() - first.arrival_s.min()),
        gaps=gaps,
    )
