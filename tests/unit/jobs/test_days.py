"""Drift by effect sizes: the distances of cases that can be worked out by hand."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from sieve.arrays import PrefixBlocks, Requests
from sieve.jobs.days import (
    burstiness,
    drift,
    minute_ratio,
    profile,
    reuse_curve,
    stability_index,
    window_rates,
)


def day(seed=1, n=4000, rate=2.0, isl=600.0, osl=200.0, cv=1.0, prefix=None):
    rng = np.random.default_rng(seed)
    gaps = rng.gamma(1 / cv**2, cv**2 / rate, n)
    return Requests(
        np.cumsum(gaps) - gaps[0],
        np.maximum(1, np.rint(isl * rng.lognormal(0, 0.8, n))).astype(np.int64),
        np.maximum(1, np.rint(osl * rng.lognormal(0, 0.8, n))).astype(np.int64),
        prefix=prefix,
    )


def test_two_samples_of_one_service_do_not_drift():
    for seed in range(5):
        found = drift(profile(day(seed)), profile(day(seed + 100)))
        assert found["level"] in {"none", "watch"}, found
        assert found["features"]["joint_lengths"]["value"] < 0.1
        assert found["features"]["input_tokens"]["value"] < 0.1


def test_a_day_does_not_drift_from_itself():
    one = profile(day())
    found = drift(one, json.loads(json.dumps(one)))
    assert found["level"] == "none"
    assert found["moved"] == []
    values = {name: entry["value"] for name, entry in found["features"].items()}
    assert values == {
        "input_tokens": 0.0, "output_tokens": 0.0, "joint_lengths": 0.0, "peak_rate": 1.0,
        "burstiness": 1.0, "prefix_reuse": None,
    }  # fmt: skip


def test_a_shift_of_the_logarithm_is_its_own_distance():
    # All lengths twice as long: ln moves by ln 2, the deviation of ln is 0.8 by construction.
    one, two = day(), day(isl=1200.0)
    value = drift(profile(one), profile(two))["features"]["input_tokens"]["value"]
    assert value == pytest.approx(math.log(2) / 0.8, rel=0.03)


def test_each_feature_is_named_when_it_alone_moves():
    base = profile(day())
    cases = {
        "peak_rate": day(rate=3.0),
        "burstiness": day(cv=2.0),
        "output_tokens": day(osl=400.0),
    }
    for name, moved in cases.items():
        found = drift(base, profile(moved))
        assert found["level"] == "drift"
        assert name in found["moved"]
        assert found["features"]["input_tokens"]["level"] == "none"
    assert drift(base, profile(day(osl=400.0)))["features"]["peak_rate"]["level"] == "none"


def test_a_halved_rate_is_as_far_as_a_doubled_one():
    base = profile(day(rate=4.0, n=8000))
    half, double = profile(day(rate=2.0, n=4000)), profile(day(rate=8.0, n=16000))
    assert drift(base, half)["features"]["peak_rate"]["level"] == "drift"
    assert drift(base, double)["features"]["peak_rate"]["level"] == "drift"


def test_psi_by_hand():
    # Two cells on the input axis: shares (1000.5, 1000.5)/2001 and (500.5, 1500.5)/2001.
    before, after = [[0, 0, 1000], [8, 0, 1000]], [[0, 0, 500], [8, 0, 1500]]
    a, b = 1000.5 / 2002, 500.5 / 2002
    c, d = 1000.5 / 2002, 1500.5 / 2002
    by_hand = (b - a) * math.log(b / a) + (d - c) * math.log(d / c)
    # The empty cells of the other axis add nothing: their shares are equal.
    assert stability_index(before, after) == pytest.approx(by_hand, rel=0.02)
    assert stability_index(before, before) == 0.0


def test_few_requests_do_not_make_an_index_of_noise():
    values = [
        drift(profile(day(s, n=150)), profile(day(s + 50, n=150)))["features"]["joint_lengths"]
        for s in range(20)
    ]
    assert np.mean([v["value"] for v in values]) < 0.1


def test_rates_of_whole_windows():
    arrival = np.concatenate([np.arange(0, 900, 1.0), np.arange(900, 1800, 0.5), [1900.0]])
    assert window_rates(arrival).tolist() == [1.0, 2.0]
    assert window_rates(np.arange(11.0)).tolist() == [1.1]


def test_burstiness_of_equal_gaps_is_zero_and_the_course_of_the_day_is_kept_out():
    arrival = np.concatenate([np.arange(0, 900, 1.0), np.arange(900, 1801, 0.1)])
    assert burstiness(arrival) == pytest.approx(0.0, abs=0.06)
    assert burstiness(np.arange(5.0)) is None
    assert minute_ratio(np.arange(0.0, 1800.5, 0.5)) == pytest.approx(1.0, abs=0.01)
    assert minute_ratio(np.arange(60.0)) is None


def test_reuse_by_hand():
    # Blocks 0 1 0 2 1: the second 0 is 2 back, the second 1 is 3 back: 2 of 5 within 64 blocks.
    prefix = PrefixBlocks(16, np.array([0, 2, 5]), np.array([0, 1, 0, 2, 1]), np.array([32, 48]))
    assert reuse_curve(prefix)["64"] == pytest.approx(0.4)
    far = PrefixBlocks(16, np.array([0, 102]), np.array([0, *range(1, 101), 0]), np.array([1632]))
    curve = reuse_curve(far)
    assert (curve["64"], curve["256"]) == (0.0, pytest.approx(1 / 102))


def test_a_closed_loop_has_lengths_and_no_rate():
    n = 50
    loop = Requests(np.zeros(n), np.full(n, 10), np.full(n, 5), closed_loop_users=4)
    found = profile(loop)
    assert found["rate_per_s"] is None
    assert drift(found, found)["features"]["peak_rate"]["value"] is None
    json.dumps(found, allow_nan=False)
