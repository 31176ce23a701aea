"""Ends of a metric's interval: model error, traffic noise, and both as squares."""

from __future__ import annotations

from dataclasses import replace
from math import exp, hypot, log
from typing import Any

import numpy as np
import pytest

from sieve.arrays import Requests, SimResult
from sieve.frames import bound_column
from sieve.ranking import noise
from sieve.ranking.ends import WHOLE_RUN, Replayed, metric_ends, resampled
from sieve.ranking.intervals import log_error
from sieve.sim._kernels.clock import GAP_BINS
from sieve.sim.metrics import meets, metrics, per_request
from sieve.spec import LatencyLimits
from sieve.spec.slo import USER_RATE, latency_column

STATISTICS = (
    ("ttft", "p50"), ("ttft", "p99"), ("tpot", "p99"), ("tpot", "mean"), ("e2e", "p99"),
    ("itl", "mean"), ("itl", "p95"), (USER_RATE, "p1"), ("tpot", "p50"),
)  # fmt: skip
N = 400


def replayed(status: str = "", users: int | None = None) -> Replayed:
    rng = np.random.default_rng(4)
    arrival = np.sort(rng.uniform(0, 100, N))
    arrival[0] = 0.0
    if users:
        arrival[:] = 0.0
    output = rng.integers(1, 60, N)
    requests = Requests(arrival, rng.integers(1, 99, N), output, closed_loop_users=users)
    sent = np.sort(rng.uniform(0, 100, N)) if users else arrival
    first = sent + rng.lognormal(-2, 0.5, N)
    finish = first + (output - 1) * rng.uniform(0.01, 0.02, N)
    gaps = np.zeros(GAP_BINS, np.int64)
    gaps[500:520] = 10
    result = SimResult(
        status=status, arrival_s=sent, scheduled_s=sent, first_token_s=first, finish_s=finish,
        num_preemptions=np.zeros(N, np.int64), cached_tokens=np.zeros(N, np.int64), num_steps=1,
        num_request_steps=1, component_s=np.ones(5), peak_blocks=1, peak_batch=1, peak_tokens=1,
        peak_running=1, short_of_blocks=False,
        makespan_s=float(finish.max()), gaps=gaps, samples=np.zeros((0, 4)),
    )  # fmt: skip
    limits = LatencyLimits(ttft_s=0.2, tpot_s=0.019)
    good = LatencyLimits(ttft_s=0.1)
    values = metrics(requests, result, limits=limits, goodput_limits=good, statistics=STATISTICS)
    return Replayed(
        requests, result, per_request(requests, result), values, STATISTICS, "measured",
        lambda t: (meets(t, limits), meets(t, good)),
    )  # fmt: skip


def ends_of(case: Replayed, confidence: float = 0.9) -> dict[str, float]:
    draws = noise.draw(N, 0)
    return metric_ends(case, draws, resampled(case, draws), confidence)


@pytest.mark.parametrize("users", [None, 8])
def test_both_errors_add_as_squares_of_logarithms(users: int | None) -> None:
    case = replayed(users=users)
    ends = ends_of(case)
    columns = [latency_column(m, s) for m, s in STATISTICS] + list(WHOLE_RUN[:2])
    for name in columns:
        middle = case.values[name]
        for end, sign in (("low", -1), ("high", 1)):
            model, spread = (log(ends[bound_column(name, f"{k}_{end}")] / middle)
                             for k in ("model", "noise"))  # fmt: skip
            assert sign * model >= 0, (name, end)
            assert sign * spread >= -1e-12, (name, end)
            both = log(ends[bound_column(name, end)] / middle)
            assert both == pytest.approx(sign * hypot(model, spread)), (name, end)


def test_the_models_ends_are_those_of_the_metric() -> None:
    case, ends = replayed(), ends_of(replayed())
    high, low = (exp(log_error("tpot", "measured", 0.9, end)) for end in ("high", "low"))
    assert ends["tpot_p99_model_high_s"] == pytest.approx(case.values["tpot_p99_s"] * high)
    # A rate is low where the time is long.
    rate = case.values["output_tokens_p1_per_s_per_user"]
    assert ends["output_tokens_p1_model_low_per_s_per_user"] == pytest.approx(rate / high)
    assert ends["output_tokens_p1_model_high_per_s_per_user"] == pytest.approx(rate * low)


def test_shares_add_on_their_own_scale_and_stay_shares() -> None:
    case, ends = replayed(), ends_of(replayed())
    middle = case.values["slo_attainment"]
    width = hypot(*(middle - ends[f"slo_attainment_{k}_low"] for k in ("model", "noise")))
    assert ends["slo_attainment_low"] == pytest.approx(max(middle - width, 0.0))
    assert 0.0 <= ends["slo_attainment_low"] <= middle <= ends["slo_attainment_high"] <= 1.0


def test_goodput_counts_with_its_own_limits() -> None:
    case = replayed()
    ttft = case.latencies["ttft"]
    assert case.values["goodput_per_s"] == pytest.approx(
        (ttft <= 0.1).sum() / case.result.makespan_s
    )
    assert case.values["slo_attainment"] > (ttft <= 0.1).mean()


def test_pooled_gaps_take_their_noise_from_the_requests() -> None:
    case = replayed()
    draws = noise.draw(N, 0)
    sample = resampled(case, draws)["itl_mean_s"]
    gaps = (case.requests.output_tokens - 1).astype(float)
    span = np.nan_to_num(case.latencies["tpot"]) * gaps
    pooled = draws.total(span) / draws.total(gaps)
    expected = pooled / (span.sum() / gaps.sum()) * case.values["itl_mean_s"]
    assert sample == pytest.approx(expected)


def test_what_was_not_served_has_no_ends() -> None:
    served = replayed()
    case = replace(served, result=replace(served.result, status="request_exceeds_cache"))
    case = replace(case, values={name: float("nan") for name in served.values})
    ends: dict[str, Any] = ends_of(case)
    assert all(np.isnan(value) for value in ends.values())


def test_more_confidence_is_wider() -> None:
    narrow, wide = ends_of(replayed()), ends_of(replayed(), 0.95)
    for name in ("ttft_p99", "tpot_p50", "e2e_p99"):
        assert wide[f"{name}_low_s"] < narrow[f"{name}_low_s"]
        assert wide[f"{name}_high_s"] > narrow[f"{name}_high_s"]
