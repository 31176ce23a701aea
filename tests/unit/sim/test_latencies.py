"""Latencies of single requests by hand, with one, two and three tokens."""

from __future__ import annotations

import numpy as np

from sieve.arrays import Requests
from sieve.sim._kernels.clock import GAP_FIRST_S, GAP_RATIO
from sieve.sim.metrics import gap_statistic, per_request
from sieve.sim.replay import ReplaySettings, simulate


def test_the_time_per_token_is_that_between_tokens(tables) -> None:
    """Alone, a step lasts a second: the first token comes after one, each further one after one."""
    requests = Requests(np.array([0.0, 10.0, 20.0]), np.array([4, 4, 4]), np.array([1, 2, 3]))
    limits = ReplaySettings(
        max_num_seqs=4, max_num_batched_tokens=16, num_gpu_blocks=8, block_size=4
    )
    found = per_request(requests, simulate(requests, tables.affine(base=1.0), limits))
    assert found["ttft"].tolist() == [1.0, 1.0, 1.0]
    assert found["e2e"].tolist() == [1.0, 2.0, 3.0]
    assert np.isnan(found["tpot"][0])
    assert found["tpot"][1:].tolist() == [1.0, 1.0]


def test_time_outside_the_engine_is_waited_before_the_first_token(tables) -> None:
    """A quarter and half a second of HTTP and tokenising; time per token does not change."""
    outside = np.array([0.25, 0.5])
    requests = Requests(
        np.array([0.0, 10.0]), np.array([4, 4]), np.array([2, 3]), front_end_s=outside
    )
    limits = ReplaySettings(
        max_num_seqs=4, max_num_batched_tokens=16, num_gpu_blocks=8, block_size=4
    )
    found = per_request(requests, simulate(requests, tables.affine(base=1.0), limits))
    assert found["ttft"].tolist() == [1.25, 1.5]
    assert found["e2e"].tolist() == [2.25, 3.5]
    assert found["tpot"].tolist() == [1.0, 1.0]


def test_a_percentile_of_gaps_is_that_of_the_sorted_gaps() -> None:
    gaps = np.zeros(50, np.int64)
    gaps[[10, 20, 30]] = 3, 4, 1
    middle = {k: GAP_FIRST_S * GAP_RATIO ** (k + 0.5) for k in (10, 20, 30)}
    ranked = [10] * 3 + [20] * 4 + [30]
    for p in (0, 10, 40, 50, 85, 99, 100):
        assert gap_statistic(gaps, f"p{p}") == middle[ranked[int(p / 100 * 7)]]
    mean = sum(middle[k] for k in ranked) / 8
    assert abs(gap_statistic(gaps, "mean") - mean) < 1e-12
    assert np.isnan(gap_statistic(np.zeros(5, np.int64), "p50"))
