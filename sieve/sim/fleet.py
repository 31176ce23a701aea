"""Replicas of one engine behind a router that looks at them."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, Literal

import numpy as np

from sieve.arrays import IntArray, PrefixBlocks, Requests, chain_starts
from sieve.errors import InvalidInput, TraceError
from sieve.sim._kernels import fleet as kernel
from sieve.sim._kernels import layout
from sieve.sim.engine import EngineResult, has_events_form, replica_result
from sieve.sim.engine_input import EngineInput
from sieve.sim.events_state import arguments, new_state

Routing = Literal["round_robin", "random", "session", "least_loaded", "prefix_affinity"]
STATIC: Final = frozenset({"round_robin", "random", "session"})
"""Policies that do not look at the replicas."""
MAX_REPLICAS: Final = 64
MAX_BYTES: Final = 4_000_000_000
_POLICIES: Final = {
    "least_loaded": kernel.LEAST_LOADED,
    "prefix_affinity": kernel.PREFIX_AFFINITY,
}


def roots_of(previous: IntArray | None, n: int) -> IntArray:
    """Return the first turn of each request's session, (n,); a request alone is its own."""
    return np.arange(n) if previous is None else chain_starts(previous)


def static_lanes(requests: Requests, replicas: int, routing: Routing, seed: int) -> IntArray:
    """Return the replica of each request, (n,), for a policy that does not look at the replicas.

    Turns of a session stay together under every policy. `session` spreads sessions by a fixed hash
    of their first request, as a router without state does.

    Raises:
        InvalidInput: `session` without sessions in the traffic.
    """
    n = len(requests)
    root = roots_of(requests.previous, n)
    begins = root == np.arange(n)
    if routing == "session":
        if requests.previous is None:
            raise InvalidInput(
                "routing by session: the traffic has no turns that wait for the answer before "
                "(a session_id, and a delay from its second turn on); use round_robin"
            )
        # Fibonacci hashing spreads consecutive numbers evenly.
        hashed = root.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        return np.asarray((hashed >> np.uint64(32)) % np.uint64(replicas), np.int64)
    if routing == "random":
        drawn = np.random.Generator(np.random.PCG64(seed)).integers(0, replicas, n)
        return np.asarray(drawn[root], np.int64)
    return np.asarray((np.cumsum(begins) - 1)[root] % replicas, np.int64)


def replay_fleet(
    data: EngineInput, replicas: int, routing: Routing, requests: Requests
) -> tuple[list[EngineResult], list[IntArray]]:
    """Return the result of each replica and the requests that it got.

    Args:
        data: all requests; limits and clock of one replica.
        replicas: how many there are.
        routing: a policy that looks at the replicas.
        requests: the traffic, for its prefixes and sessions.

    Raises:
        InvalidInput: too many replicas, a policy that needs prefixes which the traffic lacks, or
            an engine that is not replayed in one loop with others.
        TraceError: the replay came into a state that it cannot tell.
    """
    _check(data, replicas, routing, requests.prefix)
    state = new_state(data, replicas)
    n = len(requests)
    order = np.zeros((replicas, n), np.int64)
    count = np.zeros(replicas, np.int64)
    own = np.flatnonzero(data.arrival >= 0)
    own = own[np.argsort(data.arrival[own], kind="stable")].astype(np.int64)
    start, chain, seen = _chains(requests.prefix, n, routing)
    kernel.route(_POLICIES[routing], own, start, chain, seen, *arguments(data, state, order, count))
    if (state.counters[:, layout.STATUS] == layout.STATUS_CLASH).any():
        raise TraceError("the prefix cache of a replica cannot be followed; use round_robin")
    lane = np.full(n, -1, np.int64)
    for k in range(replicas):
        lane[order[k, : count[k]]] = k
    lane = lane[roots_of(requests.previous, n)]
    rows = [np.flatnonzero(lane == k) for k in range(replicas)]
    parts = []
    for k in range(replicas):
        result = replica_result(data, state, k, rows[k])
        parts.append(replace(result, results=result.results[rows[k]]))
    return parts, rows


def refuse_closed_loop(routing: Routing) -> None:
    """Refuse a router in front of users who each wait for their own answer.

    Raises:
        InvalidInput: always, for a policy that looks at the replicas.
    """
    if routing not in STATIC:
        raise InvalidInput(f"routing by {routing} takes open-loop traffic; use round_robin")


def _check(data: EngineInput, replicas: int, routing: Routing, prefix: PrefixBlocks | None) -> None:
    if routing == "prefix_affinity" and prefix is None:
        raise InvalidInput(
            "routing by prefix: the traffic does not say which prompts begin alike; "
            "use least_loaded, or a trace with hash_ids"
        )
    if replicas > MAX_REPLICAS:
        raise InvalidInput(f"{replicas} replicas; at most {MAX_REPLICAS} are routed by {routing}")
    if not has_events_form(data):
        raise InvalidInput(
            f"routing by {routing} replays engines without pipelines (pp=1), priorities, "
            "long_prefill_token_threshold or several kinds of cache; choose such candidates "
            "(--set grid.pp=[1]), or fleet.routing: round_robin"
        )
    nodes = int(data.settings[layout.NUM_BLOCKS]) + len(data.arrival)
    needed = replicas * (4 * data.shared.num_keys + 40 * nodes * bool(data.shared.num_keys))
    if needed > MAX_BYTES:
        raise InvalidInput(
            f"{replicas} replicas with {data.shared.num_keys:,} shared blocks would take "
            f"{needed / 1e9:.1f} GB; shorten the traffic"
        )


def _chains(
    prefix: PrefixBlocks | None, n: int, routing: Routing
) -> tuple[IntArray, IntArray, np.ndarray[tuple[int], np.dtype[np.uint64]]]:
    if prefix is None or routing != "prefix_affinity":
        return np.zeros(n + 1, np.int64), np.zeros(0, np.int64), np.zeros(1, np.uint64)
    seen = np.zeros(int(prefix.ids.max(initial=0)) + 1, np.uint64)
    return np.array(prefix.start, np.int64), np.array(prefix.ids, np.int64), seen
