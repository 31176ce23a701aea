"""Both kernels against a plain loop that was written from the rules alone."""

from __future__ import annotations

import numpy as np
import plain_replay
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sieve.arrays import Requests
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


@settings(max_examples=250, deadline=None)
@given(case=cases())
def test_kernels_equal_the_plain_loop(tables, case):
    requests, limits = case
    table = tables.affine(
        base=2**-7, per_token=2**-10, per_decode=2**-9, per_prompt=2**-11, per_context=2**-12
    )
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
