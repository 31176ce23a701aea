"""Candidates that are not replayed themselves have the replay that they would have had."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sieve.arrays import PrefixBlocks, Requests
from sieve.sim.alike import replay_alike, runs_alike
from sieve.sim.replay import ReplaySettings, simulate


def equal(one, two) -> None:
    for field in fields(one):
        a, b = getattr(one, field.name), getattr(two, field.name)
        if isinstance(a, np.ndarray):
            assert a.tobytes() == b.tobytes(), field.name
        else:
            assert a == b, field.name


def shared_prefix(draw, prompt) -> PrefixBlocks:
    """Chains of blocks of 32 tokens, the first few common to all that are long enough."""
    common = draw(st.integers(0, 4))
    counts = -(-np.array(prompt) // 32)
    start = np.concatenate(([0], np.cumsum(counts)))
    ids, number = [], common
    for count in counts:
        for j in range(count):
            # A chain is common up to some block: its last block, perhaps partly filled, is its own.
            if j < min(common, count - 1):
                ids.append(j)
            else:
                ids.append(number)
                number += 1
    return PrefixBlocks(32, start.astype(np.int64), np.array(ids, np.int64), np.array(prompt))


@st.composite
def cases(draw):
    n = draw(st.integers(1, 40))
    gaps = draw(
        st.lists(st.floats(0, draw(st.sampled_from([0.01, 0.3, 3]))), min_size=n, max_size=n)
    )
    prompt = draw(st.lists(st.integers(1, 300), min_size=n, max_size=n))
    output = draw(st.lists(st.integers(1, 60), min_size=n, max_size=n))
    users = draw(st.one_of(st.none(), st.integers(1, 12)))
    prefix = shared_prefix(draw, prompt) if draw(st.booleans()) else None
    requests = Requests(
        np.zeros(n) if users else np.cumsum(gaps), np.array(prompt), np.array(output),
        closed_loop_users=users, prefix=prefix,
    )  # fmt: skip
    common = {
        "block_size": 16,
        "full_reservation": draw(st.booleans()),
        "chunked_prefill": draw(st.sampled_from([True, True, False])),
        "pipeline_stages": draw(st.sampled_from([1, 1, 1, 2])),
        "async_scheduling": draw(st.booleans()),
        "prefix_caching": draw(st.booleans()),
        "reserve_full_isl": draw(st.booleans()),
        "watermark": draw(st.sampled_from([0.0, 0.01, 0.2])),
        "groups": draw(st.sampled_from([(), (), ((0, 16, 0), (64, 16, 0))])),
        "long_prefill_token_threshold": draw(st.sampled_from([0, 0, 40])),
    }
    seats = st.sampled_from([1, 2, 3, 5, 8, 16, 64, 256])
    budgets = st.sampled_from([304, 400, 600, 1000, 4096])
    blocks = st.sampled_from([90, 120, 200, 400, 1000, 3000])
    variants = [
        ReplaySettings(
            max_num_seqs=draw(seats), max_num_batched_tokens=draw(budgets),
            num_gpu_blocks=draw(blocks), **common,
        )
        for _ in range(draw(st.integers(2, 8)))
    ]  # fmt: skip
    return requests, variants, draw(st.integers(1, 3))


@settings(max_examples=150, deadline=None)
@given(case=cases())
def test_shared_replays_equal_separate_ones(tables, case):
    requests, variants, replicas = case
    table = tables.affine(
        base=0.01, per_token=0.0005, per_context=1e-6, pp=variants[0].pipeline_stages
    )
    shared = replay_alike(requests, table, variants, replicas)
    for settings_, (first, result) in zip(variants, shared, strict=True):
        alone = simulate(requests, table, settings_, replicas)
        equal(result, alone)
        assert shared[first][0] == first


def test_limits_that_never_bind_take_one_replay(tables):
    """Ten requests two seconds apart, each done in one: one seat and 100 tokens at a time."""
    requests = Requests(2.0 * np.arange(10), np.full(10, 100), np.full(10, 5))
    table = tables.affine(base=0.1)
    kept = {"block_size": 16, "num_gpu_blocks": 500}
    variants = [
        ReplaySettings(max_num_seqs=s, max_num_batched_tokens=b, **kept)
        for s in (1, 2, 8, 32)
        for b in (64, 100, 101, 512)
    ]
    replays = []
    shared = replay_alike(
        requests, table, variants, 1, on_replay=lambda settings, _: replays.append(settings)
    )
    # 101 and 512 tokens with two seats and more never bind; one seat, and 64 or 100 tokens, may.
    free = [
        i for i, v in enumerate(variants) if v.max_num_seqs > 1 and v.max_num_batched_tokens > 100
    ]
    assert {shared[i][0] for i in free} == {variants.index(replays[0])}
    assert len(replays) == 6
    assert len(replays) < len(variants) / 2


@pytest.mark.parametrize(
    ("change", "alike"),
    [
        ({"max_num_seqs": 3}, True),
        ({"max_num_seqs": 2}, False),  # two ran at once: the limit may have kept a third out
        ({"max_num_batched_tokens": 201}, True),
        ({"max_num_batched_tokens": 200}, False),
        ({"num_gpu_blocks": 501}, True),
        ({"num_gpu_blocks": 499}, False),
        ({"block_size": 32}, False),
        ({"async_scheduling": True}, False),
    ],
)
def test_a_limit_must_lie_above_all_that_was_reached(tables, change, alike):
    requests = Requests(np.zeros(2), np.full(2, 100), np.full(2, 5))
    ran = ReplaySettings(
        max_num_seqs=8, max_num_batched_tokens=512, num_gpu_blocks=500, block_size=16
    )
    result = simulate(requests, tables.affine(base=0.1), ran)
    assert (result.peak_running, result.peak_tokens) == (2, 200)
    other = ReplaySettings(**{**ran.__dict__, **change})
    assert runs_alike(ran, result, other, requests) is alike
