"""The saturation model against sums, scans and laws that are written out here."""

from __future__ import annotations

import copy
import itertools
import math

import pytest

from sieve.errors import InvalidInput
from sieve.formulas.slim import SLIM, batch_limit
from sieve.formulas.slim_model import VARIANTS, line, read_hardware, read_model, read_params

MODELS = {
    "plain": {"L": 24, "D": 2048, "Hq": 32, "Hkv": 32},
    "gated": {"L": 32, "D": 4096, "Hq": 32, "Hkv": 8, "r_ff": 3.5, "ffn_projections": 3},
}
PARAMS = {"eta_c": 0.4, "eta_m": 0.7, "alpha": 2e-4, "gamma": 2e-6, "B0": 9.0, "t_fixed": 0.03}
CASE = {
    "model": MODELS["plain"],
    "hardware": {"F_max": 312e12, "BW_max": 1.6e12},
    "params": PARAMS,
    "IL": 200,
    "OL": 100,
}


def case(**changes):
    return {**copy.deepcopy(CASE), **changes}


def e2e(given, batch):
    return SLIM["slim.predict"]({**given, "B": batch})["e2e"]


CASES = [
    case(model=model, params={**PARAMS, "variant": variant})
    for model, variant in itertools.product(MODELS.values(), VARIANTS)
]


@pytest.mark.parametrize(("isl", "osl"), [(1, 1), (7, 13), (128, 384), (2048, 2)])
def test_context_sum_is_the_sum_over_the_steps(isl, osl):
    assert SLIM["slim.context_sum"]({"IL": isl, "OL": osl})["C"] == sum(
        isl + j for j in range(1, osl + 1)
    )


def test_prediction_written_out():
    """One token step by step: every matrix, every cache byte."""
    given = case(model=MODELS["gated"])
    got = SLIM["slim.predict"]({**given, "B": 3})
    layers, d, kv, ff = 32, 4096, 1024, 3.5 * 4096
    per_token = 2 * d * d + 2 * 2 * d * kv + 2 * d * d + 3 * 2 * d * ff
    attention = 2 * (2 * 200 * 200 * d)  # scores and values over the whole square
    assert got["flops"] == layers * 3 * (200 * per_token + attention)
    cache = sum(2 * layers * kv * 2 * (200 + j) for j in range(1, 101))
    assert got["kv_bytes_per_request"] == cache
    dense = sum(2e-4 + 2e-6 * layers * 16 for _ in range(100))
    assert got["t_dense"] == pytest.approx(dense, rel=1e-12)
    decode = (3 + 9.0) / 0.7 * (dense + cache / 1.6e12)
    assert got["t_decode"] == pytest.approx(decode, rel=1e-12)
    assert got["e2e"] == pytest.approx(got["flops"] / (0.4 * 312e12) + decode + 0.03, rel=1e-12)
    assert got["throughput"] == pytest.approx(3 * 300 / got["e2e"], rel=1e-12)


def test_variant_takes_the_cache_of_the_offset_off():
    printed = SLIM["slim.predict"]({**CASE, "B": 5})
    variant = SLIM["slim.predict"]({**case(params={**PARAMS, "variant": "dense_offset"}), "B": 5})
    cache_s = printed["kv_bytes_per_request"] / 1.6e12
    assert printed["t_decode"] - variant["t_decode"] == pytest.approx(9.0 * cache_s / 0.7)


@pytest.mark.parametrize("given", CASES)
def test_latency_is_affine_in_the_batch(given):
    first, second, third = (e2e(given, b) for b in (1, 10, 100))
    assert (third - second) / 90 == pytest.approx((second - first) / 9, rel=1e-9)
    subject = (
        read_model(given["model"]),
        read_hardware(given["hardware"]),
        read_params(given["params"]),
    )
    slope, intercept = line(*subject, given["IL"], given["OL"])
    assert slope * 37 + intercept == pytest.approx(e2e(given, 37), rel=1e-12)


@pytest.mark.parametrize("given", CASES)
def test_throughput_rises_concavely_and_efficiency_falls(given):
    rates = [SLIM["slim.predict"]({**given, "B": b})["throughput"] for b in range(1, 200)]
    gains = [b - a for a, b in itertools.pairwise(rates)]
    assert all(gain > 0 for gain in gains)
    assert all(b < a for a, b in itertools.pairwise(gains))
    efficiency = [rate / (b * rates[0]) for b, rate in enumerate(rates, start=1)]
    assert efficiency[0] == 1
    assert all(b < a for a, b in itertools.pairwise(efficiency))


@pytest.mark.parametrize("given", CASES)
@pytest.mark.parametrize("epsilon", [0, 0.05, 0.3, 0.9])
@pytest.mark.parametrize("slo_s", [0.2, 1.5, 10.0, 300.0])
def test_advisor_is_the_best_of_a_full_scan(given, epsilon, slo_s):
    single = 300 / e2e(given, 1)
    usable = {}
    for batch in range(1, 301):
        latency = e2e(given, batch)
        rate = batch * 300 / latency
        if latency <= slo_s and rate / (batch * single) > epsilon:
            usable[batch] = rate
    got = SLIM["slim.bca"]({**given, "slo_s": slo_s, "epsilon": epsilon, "b_max": 300})
    listed = SLIM["slim.bca"](
        {**given, "slo_s": slo_s, "epsilon": epsilon, "candidates": list(range(300, 0, -1))}
    )
    assert got == listed
    assert got["B_cap"] == (max(usable, key=usable.__getitem__) if usable else None)
    subject = (
        read_model(given["model"]),
        read_hardware(given["hardware"]),
        read_params(given["params"]),
    )
    bound = batch_limit(*line(*subject, 200, 100), slo_s, epsilon)
    closed = min(300, math.floor(bound))
    assert (got["B_cap"] or 0) == max(closed, 0)
    assert (got["state"] == "feasible") == (got["B_cap"] is not None)


def test_advisor_keeps_its_states_apart():
    limits = {"slo_s": 1.0, "epsilon": 0.1}
    empty = SLIM["slim.bca"]({**CASE, **limits, "candidates": []})
    none = SLIM["slim.bca"]({**CASE, **limits, "slo_s": 1e-6, "b_max": 10})
    assert (empty["B_cap"], empty["state"]) == (None, "no_candidates")
    assert (none["B_cap"], none["state"]) == (None, "no_feasible_batch")


def test_advisor_takes_the_smallest_of_equal_batches():
    """Without B0 and fixed time every batch has the same throughput."""
    flat = case(params={**PARAMS, "B0": 0.0, "t_fixed": 0.0})
    got = SLIM["slim.bca"]({**flat, "slo_s": 1e6, "epsilon": 0.01, "b_max": 50})
    assert (got["B_cap"], got["limit"]) == (1, "saturation")


def test_efficiency_limit_is_strict():
    given = {**CASE, "slo_s": 1e6, "b_max": 50}
    at_one = SLIM["slim.bca"]({**given, "epsilon": 1.0})
    assert at_one["state"] == "no_feasible_batch"


def test_a_range_beyond_the_closed_form_is_not_walked():
    got = SLIM["slim.bca"]({**CASE, "slo_s": 5.0, "epsilon": 0.1, "b_max": 10**9})
    assert got == SLIM["slim.bca"]({**CASE, "slo_s": 5.0, "epsilon": 0.1, "b_max": 10_000})


def test_objective_scales_the_reference():
    given = {key: CASE[key] for key in ("model", "hardware", "params")}
    reference = e2e({**given, "IL": 10, "OL": 20}, 3)
    got = SLIM["slim.slo"]({**given, "factor": 2.5, "reference": [10, 20, 3]})
    assert got["slo_s"] == pytest.approx(2.5 * reference, rel=1e-12)


def test_own_head_dimension():
    """A model whose heads are wider than D/Hq has wider queries, keys and attention."""
    narrow = SLIM["slim.predict"]({**CASE, "B": 1})
    wide = SLIM["slim.predict"]({**case(model={**MODELS["plain"], "head_dim": 128}), "B": 1})
    assert wide["kv_bytes_per_request"] == 2 * narrow["kv_bytes_per_request"]
    same = SLIM["slim.predict"]({**case(model={**MODELS["plain"], "head_dim": 64}), "B": 1})
    assert same == narrow


BAD = [
    ("slim.predict", {"B": 0}),
    ("slim.predict", {"B": True}),
    ("slim.predict", {"B": "4"}),
    ("slim.predict", {"B": math.nan}),
    ("slim.predict", {"B": 10**400}),
    ("slim.predict", {}),
    ("slim.predict", {"B": 1, "IL": -1}),
    ("slim.predict", {"B": 1, "params": {**PARAMS, "eta_c": 0}}),
    ("slim.predict", {"B": 1, "params": {**PARAMS, "eta_m": 1e-300, "alpha": 1e300}}),
    ("slim.predict", {"B": 1, "params": {**PARAMS, "t_fixed": -1}}),
    ("slim.predict", {"B": 1, "params": {**PARAMS, "variant": "other"}}),
    ("slim.predict", {"B": 1, "params": None}),
    ("slim.predict", {"B": 1, "model": {**MODELS["plain"], "L": 1.5}}),
    ("slim.predict", {"B": 1, "model": {**MODELS["plain"], "Hq": 30}}),
    ("slim.predict", {"B": 1, "hardware": {"F_max": 1e12}}),
    ("slim.bca", {"slo_s": 1, "epsilon": 0.1}),
    ("slim.bca", {"slo_s": 1, "epsilon": 0.1, "b_max": 0}),
    ("slim.bca", {"slo_s": 1, "epsilon": 0.1, "b_max": 4, "candidates": [1]}),
    ("slim.bca", {"slo_s": 1, "epsilon": 0.1, "candidates": [1, 2.5]}),
    ("slim.bca", {"slo_s": 1, "slo_factor": 2, "epsilon": 0.1, "b_max": 4}),
    ("slim.bca", {"epsilon": 0.1, "b_max": 4}),
    ("slim.bca", {"slo_s": 1, "epsilon": -0.1, "b_max": 4}),
    ("slim.slo", {"factor": 0}),
    ("slim.slo", {"factor": 2, "reference": [1, 2]}),
    ("slim.active_context", {"requests": [[0, 1]]}),
    ("slim.active_context", {"requests": [[4, -1]]}),
    ("slim.active_context", {"requests": [7]}),
    ("slim.active_context", {"requests": "ab"}),
    ("slim.advisor_report", {"B_cap": None}),
]


@pytest.mark.parametrize(("name", "changes"), BAD)
def test_unusable_inputs_are_refused(name, changes):
    with pytest.raises(InvalidInput):
        SLIM[name](case(**changes))
