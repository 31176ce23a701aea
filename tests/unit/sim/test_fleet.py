"""Replicas behind a router: every replica is the engine alone on its share; policies by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sieve.arrays import PrefixBlocks, Requests
from sieve.errors import InvalidInput
from sieve.sim._kernels import events, layout
from sieve.sim.events_state import arguments, new_state
from sieve.sim.fleet import replay_fleet, roots_of, static_lanes
from sieve.sim.replay import ReplaySettings, _input, simulate
from sieve.sim.traffic_input import clock_of, settings_array


def settings_(**keys):
    given = {"max_num_seqs": 8, "max_num_batched_tokens": 64, "num_gpu_blocks": 60}
    return ReplaySettings(**(given | {"block_size": 4} | keys))


def traffic(seed, n=120, *, shared=True, sessions=True):
    rng = np.random.default_rng(seed)
    arrival = np.sort(rng.uniform(0, 40, n))
    prompt, output = rng.integers(1, 60, n), rng.integers(1, 30, n)
    previous = np.full(n, -1)
    if sessions:
        for i in np.flatnonzero(rng.random(n) < 0.3):
            if i:
                previous[i] = rng.integers(0, i)
        root = roots_of(previous, n)
        order = np.argsort(arrival[root], kind="stable")
        place = np.empty(n + 1, np.int64)
        place[order] = np.arange(n)
        place[-1] = -1
        arrival, prompt, output = arrival[root][order], prompt[order], output[order]
        previous = place[previous[order]]
    prefix = None
    if shared:
        chains = []
        for i in range(n):
            common = 100 * int(rng.integers(0, 4))
            blocks = -(-int(prompt[i]) // 4)
            same = int(rng.integers(0, blocks + 1))
            own = 1000 * i + 7000
            chains.append([*range(common, common + same), *range(own, own + blocks - same)])
        start = np.concatenate(([0], np.cumsum([len(c) for c in chains])))
        _, ids = np.unique(np.concatenate(chains), return_inverse=True)
        prefix = PrefixBlocks(4, start, ids, prompt)
    return Requests(
        arrival, prompt, output, prefix=prefix,
        previous=previous if sessions else None,
        delay_s=np.full(n, 0.25) if sessions else None,
    )  # fmt: skip


@pytest.mark.parametrize("routing", ["least_loaded", "prefix_affinity"])
@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("caching", [False, True])
def test_every_replica_is_the_engine_alone_on_its_share(tables, routing, ahead, caching):
    table = tables.affine(base=0.05, per_token=0.002, per_context=1e-5)
    preempted = 0
    for seed in range(6):
        requests = traffic(seed, sessions=bool(seed % 2))
        limits = settings_(num_gpu_blocks=28, async_scheduling=ahead, prefix_caching=caching)
        longest = int((requests.input_tokens + requests.output_tokens).max())
        values = settings_array(limits, table, 0, longest)
        clock = clock_of(table, limits.max_num_seqs, longest)
        data = _input(requests, np.arange(len(requests)), values, clock, limits)
        parts, rows = replay_fleet(data, 3, routing, requests)
        assert sorted(np.concatenate(rows).tolist()) == list(range(len(requests)))
        whole = simulate(requests, table, limits, 3, routing=routing)
        for part, share in zip(parts, rows, strict=True):
            alone = simulate(requests.take(share), table, replace(limits, macro_steps=False))
            for name in ("first_token_s", "finish_s", "num_preemptions", "cached_tokens"):
                assert np.array_equal(getattr(alone, name), getattr(whole, name)[share]), name
            assert alone.gaps.sum() == part.gaps.sum()
        preempted += int(whole.num_preemptions.sum())
    assert preempted > 0


def test_the_least_loaded_gets_the_next(tables):
    """One long request, then three: the replica that is busy gets none while the other has room."""
    table = tables.affine(base=1.0)
    requests = Requests(np.array([0.0, 0.5, 0.6, 5.5]), np.full(4, 4), np.array([20, 2, 2, 2]))
    limits = settings_(max_num_seqs=1, num_gpu_blocks=100)
    result = simulate(requests, table, limits, 2, routing="least_loaded")
    # The second goes to the idle replica; then both have one, and the scan starts at the first.
    assert result.scheduled_s.tolist()[:2] == [0.0, 0.5]
    assert result.scheduled_s[3] == 5.5
    dealt = simulate(requests, table, limits, 2)
    assert dealt.finish_s[2] > 20


def test_prefixes_gather_until_the_load_is_too_high(tables):
    table = tables.affine(base=1.0)
    n = 30
    prefix = PrefixBlocks(4, np.arange(n + 1) * 2, np.tile([0, 1], n), np.full(n, 8))
    requests = Requests(np.arange(n) * 100.0, np.full(n, 8), np.full(n, 2), prefix=prefix)
    limits = settings_(prefix_caching=True)
    gathered = simulate(requests, table, limits, 4, routing="prefix_affinity")
    # All go where the first went: one computes the whole prompt, the others its last block.
    assert (gathered.cached_tokens == 4).sum() == n - 1
    spread = simulate(requests, table, limits, 4)
    assert (spread.cached_tokens == 4).sum() == n - 4
    burst = replace(requests, arrival_s=np.zeros(n))
    loaded = simulate(burst, table, limits, 4, routing="prefix_affinity")
    assert (loaded.scheduled_s == 0.0).sum() > 8, "more than one replica must have begun at once"


def test_sessions_by_hash_and_random_lanes():
    requests = traffic(3, n=400)
    for routing in ("session", "random", "round_robin"):
        lane = static_lanes(requests, 5, routing, 7)
        assert np.array_equal(lane, static_lanes(requests, 5, routing, 7))
        assert np.array_equal(lane, lane[roots_of(requests.previous, 400)])
        counts = np.bincount(lane, minlength=5)
        assert counts.min() > 40
    assert not np.array_equal(
        static_lanes(requests, 5, "random", 7), static_lanes(requests, 5, "random", 8)
    )


def test_what_a_policy_needs_and_lacks_is_named(tables):
    table = tables.affine(base=1.0, pp=2)
    plain = Requests(np.zeros(3), np.full(3, 4), np.full(3, 2))
    with pytest.raises(InvalidInput, match="does not say which prompts begin alike"):
        simulate(plain, table, settings_(), 2, routing="prefix_affinity")
    with pytest.raises(InvalidInput, match="no turns that wait"):
        simulate(plain, table, settings_(), 2, routing="session")
    with pytest.raises(InvalidInput, match="without pipelines"):
        simulate(plain, table, settings_(pipeline_stages=2), 2, routing="least_loaded")
    with pytest.raises(InvalidInput, match="open-loop"):
        simulate(replace(plain, closed_loop_users=2), table, settings_(), 2, routing="least_loaded")
    with pytest.raises(InvalidInput, match="at most 64"):
        simulate(plain, table, settings_(), 65, routing="least_loaded")


def test_iterations_of_a_routed_fleet_are_recorded(tables):
    table = tables.affine(base=0.05, per_token=0.002)
    requests = traffic(1, shared=False, sessions=False)
    silent = simulate(requests, table, settings_(), 3, routing="least_loaded")
    loud = simulate(requests, table, settings_(), 3, routing="least_loaded", record_steps=True)
    assert loud.steps is not None
    assert len(loud.steps) == silent.num_steps
    assert np.array_equal(loud.finish_s, silent.finish_s)


def every_replica_brought_up(data, replicas):
    """Return who gets each request when all replicas are advanced at every arrival, in Python."""
    state = new_state(data, replicas)
    n = len(data.arrival)
    order, count = np.zeros((replicas, n), np.int64), np.zeros(replicas, np.int64)
    given = arguments(data, state, order, count)
    usable = int(data.settings[layout.NUM_BLOCKS]) - 1
    lane = np.full(n, -1)
    own = np.flatnonzero(data.arrival >= 0)
    for i, r in enumerate(own[np.argsort(data.arrival[own], kind="stable")]):
        loads = np.zeros(replicas)
        for k in range(replicas):
            events.advance(k, int(data.arrival[r]), *given)
            pending = count[k] - state.values[k, events.V_STATIC]
            waiting = state.values[k, events.V_NUM_WAITING] + pending
            used = 1 - state.cache[k, events.FREE] / usable
            loads[k] = state.values[k, events.V_UNFINISHED] + pending
            loads[k] += waiting * 6 * max(used - 0.5, 0)
        scan = (i + np.arange(replicas)) % replicas
        lane[r] = scan[np.argmin(loads[scan])]
        order[lane[r], count[lane[r]]] = r
        count[lane[r]] += 1
    return lane


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("caching", [False, True])
def test_a_replica_left_alone_has_the_load_that_is_assumed(tables, ahead, caching):
    table = tables.affine(base=0.05, per_token=0.002, per_context=1e-5)
    for seed in range(8):
        requests = traffic(seed, sessions=bool(seed % 2))
        if seed % 3 == 0:  # long answers: many calls in which nothing ends
            requests = replace(requests, output_tokens=requests.output_tokens * 9)
        limits = settings_(
            num_gpu_blocks=40 + 40 * (seed % 4), async_scheduling=ahead, prefix_caching=caching
        )
        longest = int((requests.input_tokens + requests.output_tokens).max())
        limits = replace(limits, num_gpu_blocks=max(limits.num_gpu_blocks, longest // 4 + 1))
        values = settings_array(limits, table, 0, longest)
        clock = clock_of(table, limits.max_num_seqs, longest)
        data = _input(requests, np.arange(len(requests)), values, clock, limits)
        _, rows = replay_fleet(data, 4, "least_loaded", requests)
        lane = every_replica_brought_up(data, 4)
        lane = lane[roots_of(requests.previous, len(requests))]
        for k, share in enumerate(rows):
            assert share.tolist() == np.flatnonzero(lane == k).tolist(), (seed, k)
