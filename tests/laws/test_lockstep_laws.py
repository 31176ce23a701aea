"""Data-parallel ranks: against a plain loop, against one engine, and what must always hold."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from unittest.mock import patch

import numpy as np
import plain_lockstep
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sieve.arrays import LockStep, PrefixBlocks, Requests
from sieve.sim.lockstep import run_ranks
from sieve.sim.replay import ReplaySettings, simulate

BASE, TOKEN, SHARED = 2**-7, 2**-13, 2**-12
TIMES = ("arrival_s", "scheduled_s", "first_token_s", "finish_s")
GRAPHS = np.array([0, 1, 2, 4, 4, 8, 8, 8, 8], np.int64)


def lock_step(ranks: int, tokens: int = 4096, graphs: np.ndarray = GRAPHS) -> LockStep:
    """Cost by hand: 1/8,192 s a token of a rank, 1/1,024 s and 1/4,096 s a token of all."""
    shared = 2**-10 + SHARED * np.arange(ranks * tokens + 1.0)
    shared[0] = 0.0
    return LockStep(ranks, TOKEN * np.arange(tokens + 1.0), shared, graphs, 2**-9)


def with_ranks(tables, ranks: int, *, curved: bool = False, **cost):
    """Return a table of data-parallel ranks; curved: attention on a grid of several segments."""
    table = tables.affine(base=BASE, per_decode=2**-11, per_prompt=2**-12, **cost)
    if curved:
        batch, context = np.array([1.0, 3.0, 8.0]), np.array([4.0, 20.0, 50.0, 120.0])
        attention_s = 2**-14 * np.sqrt(batch)[:, None] * context**1.3
        table = replace(
            table, decode_batch=batch, decode_context=context, decode_attention_s=attention_s
        )
    step = lock_step(ranks)
    runs = np.arange(4097)
    runs[: len(step.graph_size)] = step.graph_size
    dense = (step.local_s + step.shared_s[::ranks])[runs]
    mixed = np.maximum(dense, step.launch_s)
    mixed[0] = 0.0
    return replace(table, token_s=mixed, decode_token_s=dense[:257], lock_step=step)


@st.composite
def cases(draw):
    n = draw(st.integers(1, 40))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    size = draw(st.sampled_from([1, 4, 16]))
    prompt = rng.integers(1, draw(st.sampled_from([4, 60, 300])) + 1, n)
    output = rng.integers(1, draw(st.sampled_from([2, 20, 80])) + 1, n)
    arrival = np.cumsum(rng.exponential(draw(st.sampled_from([0.001, 0.1, 2.0])), n))
    least = -(-int((prompt + output).max()) // size)
    seats = draw(st.integers(1, 12))
    return Requests(arrival - arrival[0], prompt, output), ReplaySettings(
        max_num_seqs=seats,
        max_num_batched_tokens=max(seats, draw(st.sampled_from([16, 64, 512]))),
        num_gpu_blocks=least + draw(st.sampled_from([0, 1, least, 20 * least])),
        block_size=size,
        reserve_full_isl=draw(st.booleans()),
    )


@settings(max_examples=150, deadline=None)
@given(case=cases(), ranks=st.integers(2, 5))
def test_ranks_equal_the_plain_loop(tables, case, ranks):
    requests, limits = case
    table = with_ranks(tables, ranks)
    plain = plain_lockstep.Plain(requests, table, limits, ranks)
    got = simulate(requests, table, limits)
    assert got.num_idle_steps == plain.idle
    assert got.num_steps == plain.steps
    assert got.num_preemptions.tolist() == plain.preemptions
    for name, values in (
        ("scheduled_s", plain.scheduled), ("first_token_s", plain.first),
        ("finish_s", plain.finish),
    ):  # fmt: skip
        assert np.rint(getattr(got, name) * 1e9).astype(np.int64).tolist() == values


def shared_prompts(requests: Requests, seed: int) -> PrefixBlocks:
    """Blocks of 8 tokens; a prompt begins like those of its third, up to a depth of its own."""
    rng = np.random.default_rng(seed)
    names: dict[tuple[int, int, int], int] = {}
    start, ids = [0], []
    for i, tokens in enumerate(requests.input_tokens.tolist()):
        depth, third = int(rng.integers(0, 20)), int(rng.integers(0, 3))
        for j in range(-(-tokens // 8)):
            own = -1 if j < depth else i
            ids.append(names.setdefault((third, j, own), len(names)))
        start.append(len(ids))
    return PrefixBlocks(8, np.array(start), np.array(ids), requests.input_tokens)


@settings(max_examples=40, deadline=None)
@given(case=cases(), ahead=st.booleans(), seed=st.integers(0, 99), waits=st.booleans())
def test_one_rank_finds_what_one_engine_finds(tables, case, ahead, seed, waits):
    requests, limits = case
    requests = replace(requests, prefix=shared_prompts(requests, seed))
    if waits:
        n = len(requests)
        previous = np.where(np.arange(n) % 3 == 2, np.arange(n) - 1, -1)
        requests = replace(requests, previous=previous, delay_s=np.where(previous < 0, 0.0, 2**-5))
    limits = replace(limits, async_scheduling=ahead, prefix_caching=True)
    table = with_ranks(tables, 1, curved=True)
    alone = simulate(requests, replace(table, lock_step=None), limits)
    with patch("sieve.sim.replay.run_ranks", partial(run_ranks, sync_steps=0)):
        ranks = simulate(requests, table, limits)
    for name in (*TIMES, "num_preemptions", "cached_tokens", "gaps"):
        np.testing.assert_array_equal(getattr(alone, name), getattr(ranks, name))


@settings(max_examples=40, deadline=None)
@given(
    case=cases(), ahead=st.booleans(), caching=st.booleans(), windowed=st.booleans(),
    threshold=st.sampled_from([0, 40]),
)  # fmt: skip
def test_one_rank_is_one_engine(tables, case, ahead, caching, windowed, threshold):
    requests, limits = case
    size = limits.block_size
    limits = replace(
        limits, async_scheduling=ahead, prefix_caching=caching,
        long_prefill_token_threshold=threshold, num_gpu_blocks=3 * limits.num_gpu_blocks,
        groups=((0, size, 0), (2 * size, size, 0)) if windowed else (),
    )  # fmt: skip
    table = with_ranks(tables, 1, per_context=2**-20)
    alone = simulate(requests, replace(table, lock_step=None), limits)
    # A single engine stops when it has no work, without a look at others.
    with patch("sieve.sim.replay.run_ranks", partial(run_ranks, sync_steps=0)):
        ranks = simulate(requests, table, limits)
    for name in (*TIMES, "num_preemptions", "cached_tokens", "gaps"):
        np.testing.assert_array_equal(getattr(alone, name), getattr(ranks, name))
    for name in ("num_steps", "num_request_steps", "peak_blocks", "peak_batch", "peak_tokens"):
        assert getattr(alone, name) == getattr(ranks, name)
    np.testing.assert_allclose(alone.component_s, ranks.component_s, rtol=1e-12)
    assert ranks.num_idle_steps == 0


@settings(max_examples=60, deadline=None)
@given(case=cases(), ranks=st.integers(2, 4), ahead=st.booleans(), users=st.integers(0, 6))
def test_nothing_is_lost_and_nothing_is_quicker_than_alone(tables, case, ranks, ahead, users):
    requests, limits = case
    limits = replace(limits, async_scheduling=ahead)
    if users:
        requests = replace(requests, arrival_s=np.zeros(len(requests)), closed_loop_users=users)
    result = simulate(requests, with_ranks(tables, ranks), limits)
    assert result.status == ""
    assert not np.isnan(result.finish_s).any()
    assert (result.arrival_s <= result.scheduled_s).all()
    assert (result.scheduled_s < result.first_token_s).all()
    assert (result.first_token_s <= result.finish_s).all()
    # Every answer's tokens but the first came after a gap.
    assert result.gaps.sum() == (requests.output_tokens - 1).sum()
    steps = requests.output_tokens.astype(np.float64)
    least = BASE + TOKEN + 2**-10 + SHARED * ranks
    assert (result.finish_s - result.scheduled_s > steps * least - 1e-6).all()


def test_a_lone_request_pays_for_the_ranks_that_run_along(tables):
    requests = Requests(np.array([0.0]), np.array([3]), np.array([2]))
    result = simulate(requests, with_ranks(tables, 4), ReplaySettings(8, 64, 100, 16))
    # A prompt of 3 runs the size of 4 on all four ranks, its second token that of 1.
    prompt = BASE + 4 * TOKEN + 2**-10 + 16 * SHARED + 3 * 2**-12
    token = BASE + TOKEN + 2**-10 + 4 * SHARED + 2**-11
    assert result.first_token_s[0] == pytest.approx(prompt, abs=1e-9)
    assert result.finish_s[0] == pytest.approx(prompt + token, abs=2e-9)
    assert result.num_idle_steps == 2 * 3


def test_without_a_captured_size_ranks_run_their_own_tokens(tables):
    requests = Requests(np.array([0.0, 0.0]), np.array([40, 9]), np.array([1, 1]))
    result = simulate(requests, with_ranks(tables, 3), ReplaySettings(8, 64, 100, 16))
    # 40 and 9 tokens and the one of the idle rank: 50 for the experts; the long prompt decides.
    step = BASE + 40 * TOKEN + 2**-10 + 50 * SHARED + 40 * 2**-12
    assert result.finish_s.tolist() == pytest.approx([step, step], abs=1e-9)


def test_a_burst_is_dealt_out_in_turn(tables):
    requests = Requests(np.zeros(8), np.full(8, 20), np.full(8, 5))
    four = simulate(requests, with_ranks(tables, 4), ReplaySettings(2, 64, 100, 16))
    assert four.peak_running == 2
    assert np.unique(four.scheduled_s).tolist() == [0.0]


def test_who_comes_in_the_tail_waits_for_its_step(tables):
    step = simulate(
        Requests(np.array([0.0]), np.array([1]), np.array([2])), with_ranks(tables, 2),
        ReplaySettings(8, 64, 100, 16),
    ).finish_s[0]  # fmt: skip
    idle = BASE + TOKEN + 2**-10 + 2 * SHARED
    late = step + 3.5 * idle
    requests = Requests(np.array([0.0, late]), np.array([1, 1]), np.array([2, 1]))
    result = simulate(requests, with_ranks(tables, 2), ReplaySettings(8, 64, 100, 16))
    # Two steps with work, then idle ones up to the sixteenth: the fourth is under way.
    assert result.scheduled_s[1] == pytest.approx(step + 4 * idle, abs=1e-8)
    after = step + 14.5 * idle  # the ranks have looked at step 16 and stand still
    requests = Requests(np.array([0.0, after]), np.array([1, 1]), np.array([2, 1]))
    result = simulate(requests, with_ranks(tables, 2), ReplaySettings(8, 64, 100, 16))
    assert result.scheduled_s[1] == pytest.approx(after, abs=1e-8)


def test_more_work_for_all_is_never_sooner(tables):
    rng = np.random.default_rng(5)
    requests = Requests(np.zeros(60), rng.integers(1, 90, 60), rng.integers(1, 40, 60))
    table = with_ranks(tables, 4)
    assert table.lock_step is not None
    slow = replace(table.lock_step, shared_s=2 * table.lock_step.shared_s)
    limits = ReplaySettings(16, 128, 400, 16)
    quick = simulate(requests, table, limits)
    heavy = simulate(requests, replace(table, lock_step=slow), limits)
    assert (heavy.finish_s > quick.finish_s).all()
