"""Both kernels against a plain loop that was written from the rules alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import plain_replay
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sieve.arrays import Requests, RooflineCost
from sieve.sim.replay import ReplaySettings, simulate


@st.composite
def cases(draw):
    n = draw(st.integers(1, 30))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    size = draw(st.sampled_from([1, 4, 16]))
    prompt = rng.integers(1, draw(st.sampled_from([4, 60, 300])) + 1, n)
    output = rng.integers(1, draw(st.sampled_from([2, 20, 80])) + 1, n)
    arrival = np.cumsum(rng.exponential(draw(st.sampled_from([0.01, 1.0, 20.0])), n))
    least = -(-int((prompt + output).max()) // size)
    seats = draw(st.integers(1, 12))
    return Requests(arrival - arrival[0], prompt, output), ReplaySettings(
        max_num_seqs=seats,
        max_num_batched_tokens=max(seats, draw(st.sampled_from([16, 64, 512]))),
        num_gpu_blocks=least + draw(st.sampled_from([0, 1, least, 20 * least])),
        block_size=size,
        reserve_full_isl=draw(st.booleans()),
    )


def curved(tables):
    """Attention that grows faster than its length, on grids of several segments."""
    flat = tables.affine(base=2**-7, per_token=2**-10)
    batch, context = np.array([1.0, 3.0, 8.0]), np.array([4.0, 20.0, 50.0, 120.0])
    length = np.array([0.0, 10.0, 40.0, 130.0])
    return replace(
        flat, decode_batch=batch, decode_context=context,
        decode_attention_s=2**-14 * batch[:, None] * np.sqrt(batch)[:, None] * context**1.5,
        prefill_length=length, prefill_attention_s=2**-16 * length**2, prefill_floor_s=2**-9,
        host_mixed_s=2**-6, head_s=2**-11 * np.arange(257.0),
        decode_token_s=2**-10 * np.sqrt(np.arange(257.0)),
    )  # fmt: skip


def roofline(tables):
    """Memory decides where few tokens are computed, matrices where many are."""
    cost = RooflineCost(
        sweep_s=2**-6 * np.minimum(np.arange(4097.0), 8), kv_read_s_per_token=2**-12,
        kv_write_s_per_token=2**-11, linear_s_per_token=2**-8, attention_s_per_pair=2**-15,
    )  # fmt: skip
    return replace(curved(tables), roofline=cost)


def affine(tables):
    return tables.affine(
        base=2**-7, per_token=2**-10, per_decode=2**-9, per_prompt=2**-11, per_context=2**-12
    )


@pytest.mark.parametrize("form", [affine, curved, roofline])
@settings(max_examples=120, deadline=None)
@given(case=cases())
def test_kernels_equal_the_plain_loop(tables, form, case):
    requests, limits = case
    table = form(tables)
    plain = plain_replay.replay(requests, table, limits)
    for macro in (True, False):
        got = simulate(requests, table, ReplaySettings(**(vars(limits) | {"macro_steps": macro})))
        assert got.num_steps == plain.steps
        assert got.num_request_steps == plain.request_steps
        assert got.peak_blocks == plain.peak_blocks
        assert got.num_preemptions.tolist() == plain.preemptions
        for name, values in (
            ("scheduled_s", plain.scheduled), ("first_token_s", plain.first),
            ("finish_s", plain.finish),
        ):  # fmt: skip
            # A nanosecond a step: the two add the parts of a step in another order.
            got_ns = np.rint(getattr(got, name) * 1e9)
            assert got_ns == pytest.approx(values, abs=plain.steps + 1)
