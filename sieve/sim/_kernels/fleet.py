"""Several replicas in one loop over arrivals, compiled: who gets each request.

The router sees what runs and waits in every replica at the time of an arrival. A replica is brought
up to that time unless it is known that nothing ends or waits there until then: its load stands.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from sieve.sim._kernels import inlined, jit
from sieve.sim._kernels.clock import HOST_DECODE, whole_ns
from sieve.sim._kernels.events import (
    FREE,
    NEVER,
    V_CALL,
    V_DECODES,
    V_IN_FLIGHT,
    V_MID,
    V_NOW,
    V_NUM_DUE,
    V_NUM_RUNNING,
    V_NUM_WAITING,
    V_STATIC,
    V_UNFINISHED,
    advance,
)
from sieve.sim._kernels.layout import (
    ASYNC,
    BLOCK_SIZE,
    CLOCK,
    CLOCK_LINEAR,
    NUM_BLOCKS,
    STEP_BASE_NS,
)

LEAST_LOADED: Final = 1
PREFIX_AFFINITY: Final = 2

_WAITING_WEIGHT: Final = 6.0
_USAGE_FROM: Final = 0.5
_LOAD_FACTOR: Final = 2.0
_LOAD_SLACK: Final = 4.0
_LOOK_AHEAD: Final = 256
"""Calls in which the next ending of a replica is looked for."""


@inlined
def _load(k, settings, values, order_count, all_cache):
    """Return the load of replica k, as vLLM's data-parallel router counts it."""
    pending = order_count[k] - values[k, V_STATIC]
    load = float(values[k, V_UNFINISHED] + pending)
    waiting = values[k, V_NUM_WAITING] + pending
    if waiting > 0:
        usage = 1.0 - all_cache[k, FREE] / (settings[NUM_BLOCKS] - 1)
        load += waiting * _WAITING_WEIGHT * max(usage - _USAGE_FROM, 0.0)
    return load


@inlined
def _quiet_until(k, settings, values, order_count, all_cache, all_ends, clock):
    """Return a time up to which the load of replica k surely stays as it is.

    Only where all that runs is decoding, nothing waits or is due, and blocks are left for every
    call: then no call before the next ending changes what is unfinished. Such calls take at least
    their share that does not grow with the context.
    """
    now = values[k, V_NOW]
    decodes = values[k, V_DECODES]
    ahead = settings[ASYNC] != 0
    call = values[k, V_CALL]
    last = all_ends.shape[1] - 1
    if (
        decodes == 0
        or values[k, V_MID] >= 0
        or values[k, V_NUM_WAITING] > 0
        or values[k, V_NUM_RUNNING] != decodes
        or values[k, V_NUM_DUE] > 0
        or values[k, V_STATIC] < order_count[k]
        or values[k, V_IN_FLIGHT] != (1 if ahead else 0)
        or (ahead and all_ends[k, call & last, 0] >= 0)
    ):
        return now
    calls = 0
    while calls < _LOOK_AHEAD and all_ends[k, (call + 1 + calls) & last, 0] < 0:
        calls += 1
    if calls < 2 or all_cache[k, FREE] < decodes * (calls // settings[BLOCK_SIZE] + 1):
        return now
    if settings[CLOCK] == CLOCK_LINEAR:
        least = settings[STEP_BASE_NS]
    else:
        part = clock.decode_token_s[decodes] + clock.head_s[decodes]
        least = whole_ns(part + clock.scalars[HOST_DECODE]) - 1
    return now + (calls - 1) * max(least, 0)


@jit
def route(  # noqa: D417 - the rest: `events.advance`
    policy, requests, chain_start, chain, seen, settings, arrival, prompt, order, order_count,
    child_start, child, delay, key_start, shared, keys, clock, values, results, all_counters,
    all_component_s, all_gaps, all_samples, req, all_ends, all_edges, all_edge_count, all_cache,
    all_node, all_stack, all_reg, table, all_running, all_queue, all_due_at, all_due, all_batch,
):  # fmt: skip
    """Route the requests and replay all replicas to the end.

    Args:
        policy: LEAST_LOADED or PREFIX_AFFINITY.
        requests: int64, those with an arrival of their own, in its order.
        chain_start: (n + 1,) int64 offsets into `chain`; read with PREFIX_AFFINITY.
        chain: int64 numbers of the prompts' blocks, equal where all before them are equal too.
        seen: uint64 by such number, a bit for each replica that got a request with it.
        settings: as `events.advance`, and so are the rest; `order` and `order_count` are filled.

    Least loaded: the fewest requests in flight, those that wait weighing more where the cache is
    more than half full; ties go to the first of a scan whose start moves on with every request.
    Prefix affinity: of the replicas that got the longest beginning of this prompt the least loaded,
    unless its load is more than twice the least of all and more than four above it.
    """
    replicas = len(order_count)
    quiet = np.zeros(replicas, np.int64)
    for i in range(len(requests)):
        r = requests[i]
        at = arrival[r]
        least = -1
        least_load = 0.0
        for j in range(replicas):
            k = (i + j) % replicas
            if (
                quiet[k] < at
                and values[k, V_NOW] < at
                and (
                    values[k, V_UNFINISHED] > 0
                    or values[k, V_IN_FLIGHT] > 0
                    or values[k, V_NUM_DUE] > 0
                    or values[k, V_STATIC] < order_count[k]
                )
            ):
                advance(
                    k, at, settings, arrival, prompt, order, order_count, child_start, child,
                    delay, key_start, shared, keys, clock, values, results, all_counters,
                    all_component_s, all_gaps, all_samples, req, all_ends, all_edges,
                    all_edge_count, all_cache, all_node, all_stack, all_reg, table, all_running,
                    all_queue, all_due_at, all_due, all_batch,
                )  # fmt: skip
                quiet[k] = _quiet_until(
                    k, settings, values, order_count, all_cache, all_ends, clock
                )
            load = _load(k, settings, values, order_count, all_cache)
            if least < 0 or load < least_load:
                least = k
                least_load = load
        chosen = least
        if policy == PREFIX_AFFINITY:
            longest = np.uint64(0)
            mask = ~np.uint64(0)
            for j in range(chain_start[r], chain_start[r + 1]):
                mask &= seen[chain[j]]
                if mask == np.uint64(0):
                    break
                longest = mask
            best = -1
            best_load = 0.0
            for j in range(replicas):
                k = (i + j) % replicas
                if (longest >> np.uint64(k)) & np.uint64(1):
                    load = _load(k, settings, values, order_count, all_cache)
                    if best < 0 or load < best_load:
                        best = k
                        best_load = load
            if best >= 0 and best_load <= max(least_load * _LOAD_FACTOR, least_load + _LOAD_SLACK):
                chosen = best
            bit = np.uint64(1) << np.uint64(chosen)
            for j in range(chain_start[r], chain_start[r + 1]):
                seen[chain[j]] |= bit
        order[chosen, order_count[chosen]] = r
        order_count[chosen] += 1
        quiet[chosen] = 0
    for k in range(replicas):
        advance(
            k, NEVER, settings, arrival, prompt, order, order_count, child_start, child, delay,
            key_start, shared, keys, clock, values, results, all_counters, all_component_s,
            all_gaps, all_samples, req, all_ends, all_edges, all_edge_count, all_cache, all_node,
            all_stack, all_reg, table, all_running, all_queue, all_due_at, all_due, all_batch,
        )  # fmt: skip
