"""Laws of the replay: conservation, order, limits, and independence of how it is run."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sieve.arrays import Requests
from sieve.sim._kernels import engine as kernel
from sieve.sim.engine import step_arguments
from sieve.sim.metrics import gap_statistic, meets, metrics, per_request, queue_growth
from sieve.sim.replay import REQUEST_EXCEEDS_CACHE, ReplaySettings, simulate
from sieve.sim.traffic_input import clock_of, request_input, settings_array
from sieve.spec import LatencyLimits


@st.composite
def workloads(draw):
    n = draw(st.integers(1, 40))
    gaps = draw(st.lists(st.floats(0, 3), min_size=n, max_size=n))
    prompt = draw(st.lists(st.integers(1, 300), min_size=n, max_size=n))
    output = draw(st.lists(st.integers(1, 60), min_size=n, max_size=n))
    users = draw(st.one_of(st.none(), st.integers(1, 12)))
    arrival = np.zeros(n) if users else np.cumsum(gaps)
    requests = Requests(arrival, np.array(prompt), np.array(output), closed_loop_users=users)
    pp = draw(st.sampled_from([1, 1, 2, 4]))
    limits = ReplaySettings(
        max_num_seqs=draw(st.integers(1, 16)),
        max_num_batched_tokens=draw(st.integers(16, 512)),
        num_gpu_blocks=draw(st.integers(24, 200)),
        block_size=16,
        full_reservation=draw(st.booleans()),
        chunked_prefill=True,
        pipeline_stages=pp,
        async_scheduling=draw(st.booleans()),
        prefix_caching=draw(st.booleans()),
    )
    return requests, limits


@settings(max_examples=150, deadline=None)
@given(work=workloads())
def test_requests_are_served_once_and_in_order_of_time(tables, work):

    requests, limits = work
    table = tables.affine(base=0.01, per_token=0.001, per_context=1e-6, pp=limits.pipeline_stages)
    result = simulate(requests, table, limits)
    assert result.status == ""
    assert (result.arrival_s <= result.scheduled_s).all()
    assert (result.scheduled_s < result.first_token_s).all()
    assert (result.first_token_s <= result.finish_s).all()
    assert result.peak_batch <= limits.max_num_seqs
    assert result.peak_tokens <= limits.max_num_batched_tokens
    assert result.peak_blocks <= limits.num_gpu_blocks
    # Gaps between tokens: one for every token after the first of each request.
    assert int(result.gaps.sum()) == int((requests.output_tokens - 1).sum())
    # Without preemption every prompt token is computed once and every later token once.
    if result.num_preemptions.sum() == 0:
        assert result.num_request_steps >= int(requests.output_tokens.sum())


@settings(max_examples=60, deadline=None)
@given(work=workloads())
def test_same_input_same_bytes(tables, work):

    requests, limits = work
    table = tables.affine(base=0.01, per_token=0.001, pp=limits.pipeline_stages)
    one, two = (simulate(requests, table, limits, replicas=2) for _ in range(2))
    for name in ("finish_s", "first_token_s", "gaps", "component_s", "samples"):
        assert getattr(one, name).tobytes() == getattr(two, name).tobytes()


@settings(max_examples=25, deadline=None)
@given(work=workloads())
def test_compiled_equals_interpreted(tables, work):

    requests, limits = work
    table = tables.affine(base=0.01, per_token=0.001, per_context=1e-6, pp=limits.pipeline_stages)
    values = settings_array(limits, table, requests.closed_loop_users or 0, 400)
    data = request_input(
        values,
        np.rint(requests.arrival_s * 1e9).astype(np.int64),
        requests.input_tokens,
        requests.output_tokens,
        clock=clock_of(table, limits.max_num_seqs, 400),
    )
    args = step_arguments(data)
    for a, b in zip(kernel.replay(*args), kernel.replay.py_func(*args), strict=True):
        assert np.array_equal(a, b)


def test_doubling_replicas_and_traffic_leaves_latency(tables):
    rng = np.random.default_rng(3)
    n = 2000
    arrival = np.cumsum(rng.exponential(0.1, n))
    prompt, output = rng.integers(50, 400, n), rng.integers(5, 80, n)
    table = tables.affine(base=0.01, per_token=2e-5)
    limits = ReplaySettings(64, 2048, 5000, 16)
    once = simulate(Requests(arrival, prompt, output), table, limits)
    # The same traffic to two replicas: every request comes twice, dealt one to each.
    doubled = Requests(*(np.repeat(x, 2) for x in (arrival, prompt, output)))
    twice = simulate(doubled, table, limits, replicas=2)
    assert np.array_equal(twice.finish_s[0::2], once.finish_s)
    assert np.array_equal(twice.finish_s[1::2], once.finish_s)


def test_request_larger_than_the_cache_is_refused(tables):
    requests = Requests(np.zeros(1), np.array([1000]), np.array([100]))
    result = simulate(requests, tables.affine(base=1.0), ReplaySettings(4, 512, 10, 16))
    assert result.status == REQUEST_EXCEEDS_CACHE
    assert np.isnan(result.finish_s).all()


def test_pipeline_keeps_stages_busy(tables):
    """Two stages, two batches in flight: twice the work in the time of one, same latency alone."""
    limits = {"max_num_batched_tokens": 16, "num_gpu_blocks": 100, "block_size": 16}
    pp = ReplaySettings(16, **limits, pipeline_stages=2)
    table = tables.affine(base=1.0, pp=2)
    alone = simulate(Requests(np.zeros(1), np.array([16]), np.array([5])), table, pp)
    assert alone.makespan_s == pytest.approx(5.0)
    # The second prompt enters stage one when the first leaves it: half a step later, not a step.
    pair = simulate(Requests(np.zeros(2), np.array([16, 16]), np.array([5, 5])), table, pp)
    assert pair.makespan_s == pytest.approx(5.5)


def test_closed_loop_keeps_users_in_flight(tables):
    """Three users, unit steps, five tokens each: 4 rounds of 5 steps serve 12 requests."""
    requests = Requests(np.zeros(12), np.full(12, 4), np.full(12, 5), closed_loop_users=3)
    result = simulate(requests, tables.affine(base=1.0), ReplaySettings(8, 64, 100, 16))
    assert result.makespan_s == pytest.approx(20.0)
    assert sorted(result.arrival_s.tolist()) == [0.0] * 3 + [5.0] * 3 + [10.0] * 3 + [15.0] * 3


def test_metrics_by_hand(tables):
    """One request of 3 tokens from t=0 and one of 1 token from t=0.5; steps of one second."""
    requests = Requests(np.array([0.0, 0.5]), np.array([4, 4]), np.array([3, 1]))
    result = simulate(requests, tables.affine(base=1.0), ReplaySettings(8, 64, 100, 16))
    got = per_request(requests, result)
    assert got["ttft"].tolist() == [1.0, 1.5]
    assert got["e2e"].tolist() == [3.0, 1.5]
    assert got["tpot"][0] == 1.0
    assert np.isnan(got["tpot"][1])
    limits = LatencyLimits(ttft_s=1.2, tpot_s=1.0)
    assert meets(got, limits).tolist() == [True, False]
    assert meets(got, LatencyLimits(tpot_s=0.5)).tolist() == [False, True], "one token passes TPOT"
    values = metrics(requests, result, limits=limits)
    assert values["output_tokens_per_s"] == pytest.approx(4 / 3)
    assert values["goodput_per_s"] == pytest.approx(1 / 3)
    assert values["slo_attainment"] == 0.5
    assert values["ttft_p50_s"] == 1.25
    assert values["tpot_p99_s"] == 1.0
    assert gap_statistic(result.gaps, "p50") == pytest.approx(1.0, rel=0.003)


@pytest.mark.parametrize(("rate", "grows"), [(0.8, False), (1.5, True)])
def test_queue_growth_is_the_excess_load(tables, rate, grows):
    """One request at a time, one second each: at 1.5 requests/s the wait grows by 0.5 s per s."""
    n = 400
    requests = Requests(np.arange(n) / rate, np.full(n, 4), np.ones(n, np.int64))
    result = simulate(requests, tables.affine(base=1.0), ReplaySettings(1, 64, 100, 16))
    growth = queue_growth(requests, result)
    assert growth == pytest.approx(0.5, rel=0.02) if grows else growth == 0.0
