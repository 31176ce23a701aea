"""Calibration: what it recovers, what it must only predict, and what it flags."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from sieve.errors import InvalidInput
from sieve.formulas.slim import SLIM
from sieve.formulas.slim_model import PARAMETERS, VARIANTS

OPT = {
    "125M": (12, 768, 12),
    "350M": (24, 1024, 16),
    "1.3B": (24, 2048, 32),
    "2.7B": (32, 2560, 32),
    "6.7B": (32, 4096, 32),
}
MODELS = {name: {"L": n, "D": d, "Hq": h, "Hkv": h} for name, (n, d, h) in OPT.items()}
SMALL = list(OPT)[:4]
HARDWARE = {"F_max": 989e12, "BW_max": 3.35e12}
TRUTHS = [
    {"eta_c": 0.42, "eta_m": 0.71, "alpha": 2.3e-4, "gamma": 1.9e-6, "B0": 11.0, "t_fixed": 0.035},
    {"eta_c": 0.15, "eta_m": 0.9, "alpha": 5e-5, "gamma": 8e-6, "B0": 60.0, "t_fixed": 0.4},
]


def observe(params, names=SMALL, isls=(128, 1024), osls=(32, 384), batches=(1, 16, 64, 256)):
    return [
        {"model": n, "IL": i, "OL": o, "B": b, "throughput": rate(params, n, i, o, b)}
        for n, i, o, b in itertools.product(names, isls, osls, batches)
    ]


def rate(params, name, isl, osl, batch):
    given = {"model": MODELS[name], "hardware": HARDWARE, "params": params}
    return SLIM["slim.predict"]({**given, "IL": isl, "OL": osl, "B": batch})["throughput"]


def fit(observations, **more):
    given = {"hardware": HARDWARE, "models": MODELS, "observations": observations}
    return SLIM["slim.fit"]({**given, **more})


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("truth", TRUTHS)
def test_noiseless_data_give_every_parameter(truth, variant):
    truth = {**truth, "variant": variant}
    got = fit(observe(truth, osls=(32, 128, 384)), variant=variant)
    for name in PARAMETERS:
        assert got["params"][name] == pytest.approx(truth[name], rel=1e-6)
    assert got["sse"] < 1e-15
    assert got["flags"] == []
    assert got["rank"] == 6
    assert got["params"].get("variant", "printed") == variant


@pytest.mark.parametrize("seed", range(4))
def test_noisy_data_give_the_curves(seed):
    """5 % noise: 3 % in range, 6 % on the next larger model, B0 within 10 %."""
    truth, rng = TRUTHS[0], np.random.default_rng(seed)
    points = observe(truth)
    noisy = [
        {**p, "throughput": p["throughput"] * (1 + 0.05 * rng.standard_normal())} for p in points
    ]
    got = fit(noisy)["params"]

    def error(names):
        clean = observe(truth, names)
        seen = [rate(got, p["model"], p["IL"], p["OL"], p["B"]) / p["throughput"] for p in clean]
        return 100 * np.mean(np.abs(np.array(seen) - 1))

    assert error(SMALL) <= 3
    assert error(["6.7B"]) <= 6
    assert got["B0"] == pytest.approx(truth["B0"], rel=0.1)


def test_the_minimum_is_stationary_and_repeats():
    """No step on any logarithm improves the error, and equal input gives equal output."""
    rng = np.random.default_rng(7)
    points = observe(TRUTHS[0])
    for p in points:
        p["throughput"] *= 1 + 0.2 * rng.uniform(-1, 1)
    got = fit(points)
    assert got == fit(points)

    def sse(params):
        rates = [rate(params, p["model"], p["IL"], p["OL"], p["B"]) for p in points]
        return sum((t / p["throughput"] - 1) ** 2 for t, p in zip(rates, points, strict=True))

    assert sse(got["params"]) == pytest.approx(got["sse"], rel=1e-9)
    for name, step in itertools.product(PARAMETERS, (0.99, 1.01)):
        moved = {**got["params"], name: got["params"][name] * step}
        assert sse(moved) >= got["sse"] * (1 - 1e-9)


def test_error_is_that_of_the_predictions():
    points = observe(TRUTHS[0])
    for i, p in enumerate(points):
        p["throughput"] *= 1.1 if i % 2 else 0.9
    got = fit(points)
    rates = [rate(got["params"], p["model"], p["IL"], p["OL"], p["B"]) for p in points]
    measured = [p["throughput"] for p in points]
    again = SLIM["slim.mape"]({"predicted": rates, "measured": measured})
    assert got["mape_percent"] == pytest.approx(again["mape_percent"], rel=1e-9)


def test_one_curve_is_flagged():
    got = fit(observe(TRUTHS[0], ["1.3B"], isls=(128,), osls=(128,)))
    assert {"fewer_than_six_observations", "rank_deficient"} <= set(got["flags"])
    assert got["rank"] <= 2
    assert got["sse"] < 1e-12


def test_one_width_cannot_tell_alpha_from_gamma():
    got = fit(observe(TRUTHS[0], ["1.3B"]))
    assert "rank_deficient" in got["flags"]
    assert got["rank"] <= 5
    assert got["sse"] < 1e-12


def test_an_impossible_rate_is_flagged():
    """Ten times faster than the limits allow."""
    points = observe(TRUTHS[0])
    for p in points:
        p["throughput"] *= 10
    got = fit(points)
    assert "eta_m_above_1" in got["flags"] or "eta_m_at_limit" in got["flags"]
    for name in PARAMETERS:
        assert got["params"][name] > 0


@pytest.mark.parametrize(
    "changes",
    [
        {"observations": []},
        {"observations": None},
        {"observations": [{"model": "none", "IL": 1, "OL": 1, "B": 1, "throughput": 1}]},
        {"observations": [{"model": "1.3B", "IL": 1, "OL": 1, "B": 1, "throughput": 0}]},
        {"observations": [{"model": "1.3B", "IL": 1, "OL": 1, "B": 1}]},
        {"observations": [{"model": "1.3B", "IL": 1e200, "OL": 1, "B": 1, "throughput": 1}]},
        {"observations": [{"model": "1.3B", "IL": 1, "OL": 1, "B": 1, "throughput": 1e-320}]},
        {"models": {"1.3B": {"L": 1}}},
        {"variant": "other"},
        {"hardware": {"F_max": 1, "BW_max": -1}},
    ],
)
def test_unusable_inputs_are_refused(changes):
    with pytest.raises(InvalidInput):
        fit(changes.pop("observations", observe(TRUTHS[0], ["1.3B"])), **changes)


@pytest.mark.parametrize("scale", [1e-12, 1e-3, 1e3, 1e12])
def test_odd_scales_still_give_numbers(scale):
    points = observe(TRUTHS[0], ["1.3B", "2.7B"])
    for p in points:
        p["throughput"] *= scale
    got = fit(points)
    assert np.isfinite(got["sse"])
    assert all(np.isfinite(got["params"][name]) for name in PARAMETERS)
