"""Ends of the model's error by hand, with an error that is written down."""

from __future__ import annotations

from math import log

import numpy as np
import pytest

from sieve.arrays import Requests, SimResult
from sieve.errors import ResultError
from sieve.memory.corrections import SECTION, corrections_of
from sieve.ranking import noise
from sieve.ranking.ends import Replayed, metric_ends, resampled
from sieve.ranking.intervals import ModelError
from sieve.ranking.ties import Key, Tie, find_ties
from sieve.sim._kernels.clock import GAP_BINS
from sieve.sim.metrics import meets, metrics, per_request
from sieve.spec import LatencyLimits

RATES = ("output_tokens_per_s", "requests_per_s", "goodput_per_s", "slo_attainment")
ERROR = ModelError(
    {"ttft": log(1.5), "tpot": log(1.25), "itl": log(1.25), "e2e": log(1.5)},
    {"ttft": log(2.0), "tpot": log(1.5), "itl": log(1.5), "e2e": log(2.0)},
)


def case(arrival_s, users=None, makespan_s=100.0):
    """Ten requests of 11 tokens; TTFT 0.1 to 1.0 s, 0.1 s a token, the last ends at 100 s."""
    arrival = np.asarray(arrival_s, np.float64)
    n = len(arrival)
    first = arrival + np.arange(1, n + 1) * 0.1
    finish = first + 1.0
    finish[-1] = makespan_s
    requests = Requests(arrival, np.full(n, 5), np.full(n, 11), closed_loop_users=users)
    result = SimResult(
        status="", arrival_s=arrival, scheduled_s=arrival, first_token_s=first, finish_s=finish,
        num_preemptions=np.zeros(n, np.int64), cached_tokens=np.zeros(n, np.int64), num_steps=1,
        num_request_steps=1, component_s=np.ones(5), peak_blocks=1, peak_batch=1, peak_tokens=1,
        peak_running=1, short_of_blocks=False, makespan_s=makespan_s,
        gaps=np.zeros(GAP_BINS, np.int64), samples=np.zeros((0, 4)),
    )  # fmt: skip
    limits, good = LatencyLimits(ttft_s=0.65), LatencyLimits(ttft_s=0.45)
    statistics = (("ttft", "p50"),)
    values = metrics(requests, result, limits=limits, goodput_limits=good, statistics=statistics)
    return Replayed(
        requests, result, per_request(requests, result), values, statistics, "measured",
        lambda t: (meets(t, limits), meets(t, good)), ERROR,
    )  # fmt: skip


def ends(replayed):
    draws = noise.draw(len(replayed.requests), 0)
    return metric_ends(replayed, draws, resampled(replayed, draws), 0.9)


def test_rates_of_arrivals_that_last_most_of_the_time() -> None:
    """Requests arrive for 90 of 100 s: only the last tenth can become longer."""
    replayed = case(np.linspace(0, 90, 10))
    assert replayed.values["requests_per_s"] == pytest.approx(0.1)
    found = ends(replayed)
    # 10 s longer by a half: 105 s. The last request takes 10 s, the whole tail: 90 s remain.
    service_s = np.percentile(replayed.result.finish_s - replayed.result.scheduled_s, 99)
    late_s = service_s + (10 - service_s) * (1 - 1 / 1.25)
    low, high = 100 / 105, 100 / (100 - late_s)
    for name, middle in (("requests_per_s", 0.1), ("output_tokens_per_s", 1.1)):
        base = name.removesuffix("_per_s")
        assert found[f"{base}_model_low_per_s"] == pytest.approx(middle * low)
        assert found[f"{base}_model_high_per_s"] == pytest.approx(middle * high)
    # TTFT of 0.1 to 1.0 s: twice as long 2 of 10 stay below 0.45 s, by 1.5 shorter 6 do.
    assert found["goodput_model_low_per_s"] == pytest.approx(0.1 * low * 0.2)
    assert found["goodput_model_high_per_s"] == pytest.approx(0.1 * high * 0.6)
    # Below 0.65 s stay 3 and 9.
    assert found["slo_attainment_model_low"] == pytest.approx(0.3)
    assert found["slo_attainment_model_high"] == pytest.approx(0.9)
    assert found["ttft_p50_model_low_s"] == pytest.approx(0.55 / 1.5)
    assert found["ttft_p50_model_high_s"] == pytest.approx(0.55 * 2)


@pytest.mark.parametrize("users", [None, 4])
def test_rates_of_bursts_and_closed_loops_scale_with_the_step_time(users) -> None:
    found = ends(case(np.zeros(10), users))
    assert found["requests_model_low_per_s"] == pytest.approx(0.1 / 1.5)
    assert found["requests_model_high_per_s"] == pytest.approx(0.1 * 1.25)


def test_only_an_open_loop_varies_with_its_arrivals() -> None:
    """In a closed loop, and where all arrive at once, the noise of a rate is the tokens' alone."""
    draws = noise.draw(10, 0)
    size = draws.total(np.ones(10))
    for replayed in (case(np.zeros(10)), case(np.zeros(10), 4)):
        sample = resampled(replayed, draws)
        requests, tokens = noise.rate_factors(
            draws, replayed.requests.output_tokens, replayed.result.finish_s, open_loop=False
        )
        assert sample["requests_per_s"] == pytest.approx(0.1 * requests)
        assert sample["output_tokens_per_s"] == pytest.approx(1.1 * tokens)
    opened = resampled(case(np.linspace(0, 90, 10)), draws)
    expected = noise.rate_factors(draws, np.full(10, 11), np.zeros(10), open_loop=True)[0]
    assert opened["requests_per_s"] == pytest.approx(0.1 * expected)
    ttft = np.arange(1, 11) * 0.1
    share = draws.total((ttft <= 0.45).astype(float)) / size
    assert opened["goodput_per_s"] == pytest.approx(share * opened["requests_per_s"])


def test_a_leader_is_no_distance_from_itself() -> None:
    flat = np.zeros((2, 5))
    key = Key(middle=np.array([1.0, 9.0]), better=np.ones(2) * 0.1, worse=np.ones(2) * 0.1,
              samples=flat, indifference=0.03)  # fmt: skip
    ties = find_ties(["pass", "pass"], [key], ["a", "b"], [None, None])
    assert ties == [Tie(1, None, 0.0, 0.0, 0.0), Tie(2, None, 0.0, 0.0, 0.0)]


@pytest.mark.parametrize("value", [1024 * 2**30, -1024 * 2**30])
def test_a_correction_is_no_larger_than_a_card(value: int) -> None:
    def document(number):
        log_ = {"sha256": "0" * 64, "terms": {"non_torch_bytes": number}}
        entry = {"engine": "vllm", "version": "0.19", "gpu": "g", "model": "m", "tp": 1, "pp": 1,
                 "ep": 1, "logs": [log_]}  # fmt: skip
        return {SECTION: [entry]}

    (kept,) = corrections_of(document(value), "c")
    assert kept.logs[0].terms == {"non_torch_bytes": float(value)}
    for more in (value + np.sign(value), value * 2):
        with pytest.raises(ResultError, match="bytes are beyond any card"):
            corrections_of(document(int(more)), "c")
