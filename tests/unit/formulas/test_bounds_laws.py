"""Laws of the ceilings, and the array form against the plain one."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sieve.errors import InvalidInput
from sieve.formulas.bounds import BOUNDS
from sieve.formulas.bounds.arrays import decode_bound_arrays
from sieve.formulas.bounds.model import read_weights

quick = settings(deadline=None, derandomize=True, max_examples=150)
SLACK = 1 + 1e-9


def sizes(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high, allow_nan=False)


@st.composite
def weights(draw: st.DrawFn) -> dict[str, Any]:
    e_w = draw(st.sampled_from([0.5, 1.0, 2.0]))
    total = draw(sizes(1e8, 5e11))
    if draw(st.booleans()):
        embed = draw(sizes(0, 0.5)) * total
        return {"kind": "dense", "p_total": total, "p_embed": embed, "e_w": e_w}
    experts = draw(st.integers(2, 512))
    top_k = draw(st.integers(1, experts - 1))
    fixed = draw(sizes(0.05, 0.9)) * total
    routed = total - fixed
    return {
        "kind": "moe", "p_total": total, "p_active": fixed + routed * top_k / experts,
        "p_embed": draw(sizes(0, 0.5)) * fixed, "experts": experts, "top_k": top_k, "e_w": e_w,
        "routing": draw(st.sampled_from(["expected", "floor"])),
    }  # fmt: skip


@st.composite
def layouts(draw: st.DrawFn) -> dict[str, Any]:
    windows = st.tuples(sizes(0, 1e5), st.integers(1, 4096)).map(list)
    return {
        "kind": "hybrid",
        "global": draw(sizes(1, 1e6)),
        "local": draw(st.lists(windows, max_size=2)),
        "state": draw(sizes(0, 1e8)),
    }


@st.composite
def models(draw: st.DrawFn) -> dict[str, Any]:
    given_weights = draw(weights())
    cache = draw(layouts())
    active = given_weights.get("p_active", given_weights["p_total"])
    attention = draw(layouts())
    return {
        "weights": given_weights,
        "kv_alloc": cache,
        "kv_read": cache,
        "kv_write_per_token": draw(sizes(0, 1e6)),
        "p_lin_active": active * draw(sizes(0.3, 1)),
        "attention": attention,
    }


MACHINES = st.fixed_dictionaries(
    {"C": sizes(1e9, 1e12), "R": sizes(1e11, 1e13), "O": sizes(0, 2e10)}
)


@quick
@given(models(), MACHINES, st.integers(1, 200_000), sizes(0.01, 1), sizes(0.1, 500))
def test_decode_stays_below_memory_power(
    model: dict[str, Any], machine: dict[str, float], length: int, share: float, floor: float
) -> None:
    read = max(1, int(share * length))
    asked = {**machine, "model": model, "L_alloc": length, "L_read": read, "r_star": floor}
    found = BOUNDS["bounds.decode"](asked)
    if found["state"] == "does_not_fit":
        assert found["margin"] < 0
        return
    session = BOUNDS["bounds.kv_cache"]({"kv": model["kv_alloc"], "L": [length]})["bytes"][0]
    first = BOUNDS["bounds.weight_sweep"]({"weights": model["weights"], "n": [1]})["bytes"][0]
    whole_card = machine["C"] * machine["R"] / (session * first)
    assert found["memory_power"] <= whole_card * SLACK
    if found["state"] != "floor_fit":
        return
    assert found["aggregate"] <= found["memory_power"] * SLACK
    assert found["per_session"] >= floor / SLACK
    assert found["b_star"] <= found["b_usable"]
    later = {**asked, "batches": [found["b_star"] + 1]}
    if found["b_star"] < found["b_mem"]:
        assert BOUNDS["bounds.forced"](later)["rows"][0]["per_session"] < floor


@quick
@given(models(), MACHINES, st.integers(1, 20_000), st.integers(1, 64), sizes(1e12, 1e16))
def test_prefill_chain_is_ordered(
    model: dict[str, Any], machine: dict[str, float], length: int, batch: int, rate: float
) -> None:
    found = BOUNDS["bounds.prefill_chain"](
        {**machine, "model": model, "L": length, "L_alloc": length, "b": batch, "F": rate}
    )
    if found["state"] == "does_not_fit":
        return
    assert found["min"] == min(found["memory"], found["compute"])
    assert found["compute"] <= found["linear_only"] * SLACK
    if found["state"] == "ok":
        assert found["memory"] <= found["memory_power"] * SLACK


@quick
@given(layouts(), st.integers(1, 5000), st.integers(1, 5000))
def test_attention_does_not_depend_on_chunks(
    layout: dict[str, Any], length: int, chunk: int
) -> None:
    total = 0.0
    for prefix in range(0, length, chunk):
        width = min(chunk, length - prefix)
        asked = {"attention": layout, "c": width, "prefix": prefix}
        total += width * BOUNDS["bounds.attention_flops"](asked)["flops_per_token"]
    asked = {"attention": layout, "c": length, "prefix": 0}
    whole = length * BOUNDS["bounds.attention_flops"](asked)["flops_per_token"]
    assert total == pytest.approx(whole, rel=1e-9)


@quick
@given(models(), MACHINES, st.integers(1, 3000), st.integers(1, 3000), st.integers(1, 9))
def test_chunks_never_read_less(
    model: dict[str, Any], machine: dict[str, float], length: int, chunk: int, batch: int
) -> None:
    asked = {**machine, "model": model, "L": length, "b": batch}
    one_shot = BOUNDS["bounds.prefill"]({**asked, "c": length})
    chunked = BOUNDS["bounds.prefill"]({**asked, "c": chunk})
    assert chunked["Q"] >= one_shot["Q"] / SLACK
    assert chunked["A_att"] == one_shot["A_att"]


@quick
@given(weights(), st.integers(1, 10_000))
def test_sweep_grows_slower_than_its_tokens(given_weights: dict[str, Any], n: int) -> None:
    here, there = BOUNDS["bounds.weight_sweep"]({"weights": given_weights, "n": [n, n + 1]})[
        "bytes"
    ]
    assert here / SLACK <= there
    assert there / (n + 1) < here / n
    first, last = BOUNDS["bounds.weight_sweep"]({"weights": given_weights, "n": [1, 10**9]})[
        "bytes"
    ]
    e_w, embed = given_weights["e_w"], given_weights["p_embed"]
    active = given_weights.get("p_active", given_weights["p_total"])
    assert first == pytest.approx(e_w * (active - embed), rel=1e-9)
    if given_weights.get("routing") == "floor":
        assert last == first
    else:
        assert last == pytest.approx(e_w * (given_weights["p_total"] - embed), rel=1e-9)


@quick
@given(models(), MACHINES, st.integers(1, 100_000), st.integers(1, 2000), sizes(0.1, 200))
def test_arrays_are_the_plain_form(
    model: dict[str, Any], machine: dict[str, float], length: int, batch: int, floor: float
) -> None:
    asked = {**machine, "model": model, "L_alloc": length, "L_read": length, "r_star": floor}
    plain = BOUNDS["bounds.decode"](asked)
    row = BOUNDS["bounds.forced"]({**asked, "batches": [batch]})["rows"][0]
    size = read_weights(model["weights"])
    cache = BOUNDS["bounds.kv_cache"]({"kv": model["kv_alloc"], "L": [length]})["bytes"][0]
    found = decode_bound_arrays(
        capacity=machine["C"], bandwidth=machine["R"], overhead=machine["O"],
        w_resident=size.resident, w_fixed=size.fixed, w_expert=size.expert, experts=size.experts,
        top_k=size.top_k, expected=size.expected, kv_alloc=cache, kv_read=cache, batch=batch,
        floor=floor,
    )  # fmt: skip
    assert float(found.aggregate) == pytest.approx(row["aggregate"], rel=1e-9)
    assert float(found.per_session) == pytest.approx(row["per_session"], rel=1e-9)
    assert float(found.margin) == pytest.approx(plain["margin"], rel=1e-9)
    assert int(found.b_mem) == plain.get("b_mem", 0)
    assert bool(found.fits) == (batch <= plain.get("b_mem", 0))
    if plain["state"] == "does_not_fit":
        assert math.isnan(float(found.memory_power))
    else:
        assert float(found.memory_power) == pytest.approx(plain["memory_power"], rel=1e-9)
    if plain.get("b_star"):
        assert bool(found.meets_floor) >= (batch <= plain["b_star"])


def test_a_million_candidates_take_less_than_a_second() -> None:
    draw, count = np.random.default_rng(0), 1_000_000
    columns = {
        "capacity": draw.uniform(24e9, 192e9, count), "bandwidth": draw.uniform(3e11, 8e12, count),
        "w_resident": draw.uniform(1e9, 1e11, count), "w_fixed": draw.uniform(1e9, 1e10, count),
        "w_expert": draw.uniform(1e7, 1e9, count), "experts": draw.integers(9, 512, count),
        "kv_alloc": draw.uniform(1e8, 1e10, count), "kv_read": draw.uniform(1e7, 1e9, count),
        "batch": draw.integers(1, 512, count),
    }  # fmt: skip
    found = decode_bound_arrays(**columns, overhead=8e9, floor=20, top_k=8, expected=True)
    assert found.aggregate.shape == (count,)
    within = found.fits
    assert np.all(found.aggregate[within] <= found.memory_power[within] * SLACK)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"capacity": [1e9, 0]}, "capacity is 0"),
        ({"overhead": -1}, "overhead"),
        ({"kv_alloc": 0}, "kv_alloc"),
        ({"batch": float("nan")}, "batch is nan"),
        ({"w_expert": 1, "top_k": 2, "experts": 2}, "below experts"),
        ({"w_fixed": 0}, "w_fixed"),
    ],
)
def test_arrays_refuse_invalid_input(changes: dict[str, Any], words: str) -> None:
    good = {
        "capacity": 8e10, "bandwidth": 1e12, "overhead": 0, "w_resident": 1e9, "w_fixed": 1e9,
        "kv_alloc": 1e6, "kv_read": 1e6, "batch": 4, "floor": 1,
    }  # fmt: skip
    with pytest.raises(InvalidInput, match=words):
        decode_bound_arrays(**{**good, **changes})
