"""Replays that run alike: limits that never bind are recognised, and one replay stands for all.

A candidate's replay depends on `max_num_seqs`, `max_num_batched_tokens` and the number of KV blocks
only through three comparisons: a waiting request is refused a seat, a step's tokens reach the
budget, blocks run short. Where none of them ever held, the same trajectory follows from every limit
that the trajectory stays strictly below: by induction over iterations every decision is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from sieve.arrays import Requests, SimResult, StepTable
from sieve.sim.fleet import STATIC, Routing
from sieve.sim.replay import longest_request, simulate
from sieve.sim.traffic_input import ReplaySettings, clock_of


def runs_alike(
    ran: ReplaySettings,
    result: SimResult,
    other: ReplaySettings,
    requests: Requests,
    routing: Routing = "round_robin",
) -> bool:
    """Return whether a replay under `other` would take the same course as `result`, under `ran`.

    True only where that is certain. Not certain: after a preemption (its tokens went back into the
    budget), with more blocks where evictions from the prefix cache depend on them, with another
    budget where whole prompts must fit it or windows of attention hold blocks by it.
    """
    if ran == other:
        return True
    limits = {
        name: getattr(other, name)
        for name in ("max_num_seqs", "max_num_batched_tokens", "num_gpu_blocks")
    }
    if replace(ran, **limits) != other or result.status or result.num_preemptions.any():
        return False
    if other.max_num_seqs != ran.max_num_seqs and result.peak_running >= min(
        ran.max_num_seqs, other.max_num_seqs
    ):
        return False
    if other.max_num_batched_tokens != ran.max_num_batched_tokens:
        least = min(ran.max_num_batched_tokens, other.max_num_batched_tokens)
        if not ran.chunked_prefill or ran.groups or result.peak_tokens >= least:
            return False
    if other.num_gpu_blocks != ran.num_gpu_blocks:
        if routing not in STATIC:  # the router looks at the use of the cache
            return False
        evicts = ran.prefix_caching and requests.prefix is not None
        if other.num_gpu_blocks < ran.num_gpu_blocks or result.short_of_blocks or evicts:
            return False
    return True


def replay_alike(
    requests: Requests,
    table: StepTable,
    variants: Sequence[ReplaySettings],
    replicas: int,
    *,
    routing: Routing = "round_robin",
    seed: int = 0,
    known: Callable[[ReplaySettings], SimResult | None] | None = None,
    on_replay: Callable[[ReplaySettings, SimResult], None] | None = None,
) -> list[tuple[int, SimResult]]:
    """Return for each variant (position of the variant that was replayed for it, its replay).

    Variants are tried from the widest limits down; which one stands for which depends on nothing
    but the variants and the traffic.

    Args:
        requests: the traffic.
        table: the time of an iteration.
        variants: settings of the candidates, of one table.
        replicas: engines of each.
        routing: who gets a request.
        seed: of random routing.
        known: gives a replay that is known already, or None.
        on_replay: called with every replay that was not.
    """
    longest = longest_request(requests)
    # Among data-parallel ranks requests go where the least load is, which the cache counts in.
    router: Routing = routing if table.lock_step is None else "least_loaded"
    clock = clock_of(table, max(v.max_num_seqs for v in variants), longest)
    waiting = sorted(range(len(variants)), key=lambda i: (_width(variants[i]), i))
    out: list[tuple[int, SimResult] | None] = [None] * len(variants)
    while waiting:
        first = waiting[0]
        result = known(variants[first]) if known else None
        if result is None:
            result = simulate(
                requests, table, variants[first], replicas, routing=routing, seed=seed, clock=clock
            )
            if on_replay:
                on_replay(variants[first], result)
        left = []
        for i in waiting:
            if runs_alike(variants[first], result, variants[i], requests, router):
                out[i] = (first, result)
            else:
                left.append(i)
        waiting = left
    return [entry for entry in out if entry is not None]


def _width(settings: ReplaySettings) -> tuple[int, int, int]:
    """Return the order in which variants are tried: widest limits and fewest blocks first."""
    return -settings.max_num_seqs, -settings.max_num_batched_tokens, settings.num_gpu_blocks
