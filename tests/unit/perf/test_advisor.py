"""The batch advisor on lines that can be solved by hand."""

from __future__ import annotations

import numpy as np
import pytest

from sieve.perf.advisor import advised_batch


def test_the_objective_binds():
    """e2e = 2 + 0.5 B: at most 12 s gives B = 20."""
    e2e = 2 + 0.5 * np.arange(1, 101)
    assert advised_batch(e2e, slo_s=12.0, epsilon=0.01) == (20, pytest.approx(2.5))


def test_the_efficiency_binds():
    """Efficiency (s + i)/(s B + i) = 2.5/(2 + 0.5 B) falls below 0.25 above B = 16."""
    e2e = 2 + 0.5 * np.arange(1, 101)
    assert advised_batch(e2e, slo_s=np.inf, epsilon=0.25)[0] == 16


def test_one_request_is_too_slow():
    batch, alone_s = advised_batch(2 + 0.5 * np.arange(1, 11), slo_s=2.0)
    assert (batch, alone_s) == (0, pytest.approx(2.5))


def test_a_batch_that_costs_nothing_is_taken_whole():
    assert advised_batch(np.full(8, 3.0), slo_s=4.0)[0] == 8
    assert advised_batch(np.full(8, 3.0), slo_s=2.0)[0] == 0
