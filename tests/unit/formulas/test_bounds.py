"""Decode ceilings against published worked tables, exact fractions and plain scans."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest

from sieve.errors import InvalidInput
from sieve.formulas.bounds import BOUNDS

# Worked tables of the source: sizes in decimal GB, 100,000 tokens reserved, 32,000 read.
QWEN = {
    "weights": {
        "kind": "moe",
        "p_total": 35,
        "p_active": 3,
        "experts": 256,
        "top_k": 8,
        "e_w": 0.5,
    },
    "w_resident": 17.5,
    "kv_alloc": {"kind": "fixed", "bytes": 1.025},
    "kv_read": {"kind": "fixed", "bytes": 0.3268992},
}
GEMMA = {
    "weights": {
        "kind": "moe",
        "p_total": 26,
        "p_active": 4,
        "experts": 128,
        "top_k": 8,
        "e_w": 0.5,
    },
    "w_resident": 13,
    "kv_alloc": {"kind": "fixed", "bytes": 0.618497},
    "kv_read": {"kind": "fixed", "bytes": 0.269504},
}
DEEPSEEK = {
    "weights": {
        "kind": "moe", "p_total": 284, "p_active": 13, "experts": 256, "top_k": 6, "e_w": 0.25,
    },
    "w_resident": 71,
    "kv_alloc": {"kind": "fixed", "bytes": 0.31410256},
    "kv_read": {"kind": "fixed", "bytes": 0.016},
}  # fmt: skip
SPARK, M5 = {"C": 128, "R": 273, "O": 8}, {"C": 128, "R": 614, "O": 8}
LENGTHS = {"L_alloc": 100_000, "L_read": 32_000}
DENSE = {
    "weights": {"kind": "dense", "p_total": 8e9, "p_embed": 5e8, "e_w": 2},
    "kv_alloc": {
        "kind": "linear", "layers": 32, "kv_heads": 8, "head_dim": 128, "bytes_per_element": 2,
    },
    "kv_read": {
        "kind": "linear", "layers": 32, "kv_heads": 8, "head_dim": 128, "bytes_per_element": 2,
    },
}  # fmt: skip
GPU = {"C": 80e9, "R": 3.35e12, "O": 4e9, "L_alloc": 8192, "L_read": 4096, "r_star": 25}


def ask(function: str, /, *parts: dict[str, Any], **inputs: Any) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for given in parts:
        merged |= given
    return BOUNDS[f"bounds.{function}"]({**merged, **inputs})


def swept(weights: dict[str, Any], n: int) -> Fraction:
    """W(n) of a mixture with expected routing, by m(n + 1) = m(n) + k (1 - m(n)/E)."""
    total, active, e_w = (Fraction(weights[key]) for key in ("p_total", "p_active", "e_w"))
    experts, k = weights["experts"], weights["top_k"]
    expert = (total - active) / (experts - k)
    m = Fraction(0)
    for _ in range(n):
        m += k * (1 - m / experts)
    return e_w * (active - k * expert + expert * m)


@pytest.mark.parametrize(
    ("model", "machine", "best", "aggregate"),
    [
        (QWEN, SPARK, 17, 345.57), (GEMMA, SPARK, 16, 332.57), (DEEPSEEK, SPARK, 7, 154.76),
        (QWEN, M5, 50, 1007.6), (GEMMA, M5, 66, 1323.4), (DEEPSEEK, M5, 22, 447.59),
    ],
)  # fmt: skip
def test_published_tables_of_two_machines(
    model: dict[str, Any], machine: dict[str, float], best: int, aggregate: float
) -> None:
    found = ask("decode", machine, LENGTHS, model=model, r_star=20)
    assert (found["state"], found["b_star"]) == ("floor_fit", best)
    assert found["aggregate"] == pytest.approx(aggregate, rel=1e-4)
    read, rate = Fraction(str(model["kv_read"]["bytes"])), Fraction(machine["R"])
    exact = rate / (swept(model["weights"], best) / best + read)
    assert found["aggregate"] == pytest.approx(float(exact), rel=1e-12)
    later = best + 1
    assert rate / (swept(model["weights"], later) + later * read) < 20 <= exact / best


@pytest.mark.parametrize(
    ("model", "rows"),
    [
        (QWEN, {32: (397, 12.4), 64: (482, 7.5)}),
        (GEMMA, {32: (434, 13.6), 64: (581, 9.1)}),
    ],
)
def test_forced_concurrency_as_published(
    model: dict[str, Any], rows: dict[int, tuple[int, float]]
) -> None:
    found = ask("forced", R=273, model=model, L_read=32_000, batches=list(rows))["rows"]
    shown = {row["batch"]: (round(row["aggregate"]), round(row["per_session"], 1)) for row in found}
    assert shown == rows


@pytest.mark.parametrize(("session", "sessions", "rate"), [(1.04, 100, 4_444), (0.26, 400, 17_778)])
def test_toy_machine_as_published(session: float, sessions: int, rate: int) -> None:
    """104/1.04 and 104/0.26 are whole numbers that binary division may miss."""
    found = ask("simple", C=128, R=800, O=6, W=18, K=session)
    assert found["sessions"] == sessions
    assert round(found["memory_power_bound"]) == rate
    assert found["step_rate"] == pytest.approx(800 / 18)


@pytest.mark.parametrize("model", [QWEN, GEMMA, DEEPSEEK])
@pytest.mark.parametrize("routing", ["expected", "floor"])
@pytest.mark.parametrize("floor", [3, 20, 60, 111])
def test_bisection_finds_what_a_scan_finds(
    model: dict[str, Any], routing: str, floor: float
) -> None:
    model = {**model, "weights": {**model["weights"], "routing": routing}}
    found = ask("decode", M5, LENGTHS, model=model, r_star=floor)
    rows = ask("forced", M5, LENGTHS, model=model, batches=list(range(1, found["b_mem"] + 1)))
    best: dict[str, Any] | None = None
    for row in rows["rows"]:
        larger = best is None or row["aggregate"] > best["aggregate"] * (1 + 1e-12)
        if row["per_session"] >= floor * (1 - 1e-12) and larger:
            best = row
    if best is None:
        assert found["state"] == "no_floor"
        return
    assert {key: found[key] for key in ("b_star", "aggregate", "per_session")} == {
        "b_star": best["batch"],
        "aggregate": best["aggregate"],
        "per_session": best["per_session"],
    }


def test_gates_stop_in_order_and_stay_apart() -> None:
    dense = {**GPU, "model": DENSE}
    fits = ask("decode", dense)
    assert fits["state"] == "floor_fit"
    assert ask("decode", dense, C=19.9e9) == {
        "state": "does_not_fit",
        "margin": pytest.approx(-1e8),
    }
    bare = ask("decode", dense, C=20.5e9)
    assert (bare["state"], bare["b_mem"]) == ("resident_only", 0)
    assert not {"b_rate", "b_star"} & bare.keys()
    slow = ask("decode", dense, r_star=1000)
    assert (slow["state"], slow["b_mem"], slow["b_rate"]) == ("no_floor", fits["b_mem"], 0)
    assert "b_star" not in slow


def test_weights_that_fill_the_memory_exactly_fit() -> None:
    found = ask("decode", {**GPU, "model": {**DENSE, "w_resident": 0.1 + 0.2}}, C=0.3, O=0)
    assert (found["state"], found["margin"]) == ("resident_only", 0.0)


def test_a_cache_that_is_never_read_does_not_limit_the_rate() -> None:
    model = {**DENSE, "kv_read": {"kind": "fixed", "bytes": 0}}
    found = ask("decode", GPU, model=model)
    assert found["b_rate"] is None
    assert found["b_usable"] == found["b_mem"] == found["b_star"]


def test_rate_gate_is_necessary_only() -> None:
    """It sweeps W(1), so it lets pass what the exact test refuses."""
    found = ask("decode", SPARK, LENGTHS, model=QWEN, r_star=20)
    assert found["b_rate"] == math.floor((273 / 20 - 1.5) / 0.3268992) == 37
    assert found["b_star"] < found["b_usable"] <= found["b_rate"]


@pytest.mark.parametrize("n", [1, 2, 16, 300])
def test_expected_experts_obey_the_recurrence(n: int) -> None:
    m = [ask("expected_experts", n=i, experts=256, top_k=8)["m"] for i in (n, n + 1)]
    assert m[1] == pytest.approx(m[0] + 8 * (1 - m[0] / 256), rel=1e-12)
    exact = 256 * (1 - (1 - Fraction(8, 256)) ** n)
    assert m[0] == pytest.approx(float(exact), rel=1e-12)


def test_sweep_runs_from_the_active_to_all_weights() -> None:
    weights = {**QWEN["weights"], "p_embed": 0.5}
    first, last = ask("weight_sweep", weights=weights, n=[1, 10**7])["bytes"]
    assert first == pytest.approx(0.5 * (3 - 0.5), rel=1e-12)
    assert last == pytest.approx(0.5 * (35 - 0.5), rel=1e-12)
    floor = ask("weight_sweep", weights={**weights, "routing": "floor"}, n=[1, 10**7])["bytes"]
    assert floor == pytest.approx([first, first])


def test_split_of_a_mixture_adds_up() -> None:
    part = ask("moe_split", p_total=26e9, p_active=4e9, experts=128, top_k=8)
    assert part["p_fixed"] + 8 * part["p_expert"] == pytest.approx(4e9)
    assert part["p_fixed"] + 128 * part["p_expert"] == pytest.approx(26e9)
    nothing_fixed = ask("moe_split", p_total=0.7 * 12, p_active=0.7 * 3, experts=12, top_k=3)
    assert nothing_fixed["p_fixed"] == 0.0


@pytest.mark.parametrize("length", [1, 100, 511, 512, 513, 9000])
def test_hybrid_cache_by_position(length: int) -> None:
    """A window keeps the newest positions, a state is there once."""
    kv = {"kind": "hybrid", "global": 24, "local": [[7, 512], [3, 100]], "state": 1e3}
    by_hand = 24 * length + 7 * min(length, 512) + 3 * min(length, 100) + 1e3
    assert ask("kv_cache", kv=kv, L=[length])["bytes"] == [by_hand]


@pytest.mark.parametrize("alpha", [0, 1e-300, 0.3, 0.5, 0.8, 1 - 1e-9, 1])
@pytest.mark.parametrize("gamma", [0, 1, 4, 40])
def test_rho_is_the_geometric_sum(alpha: float, gamma: int) -> None:
    by_hand = math.fsum(alpha**i for i in range(gamma + 1))
    assert ask("rho", alpha=alpha, gamma=gamma)["rho"] == pytest.approx(by_hand, rel=1e-12)


def test_speculation_by_hand() -> None:
    draft = {"w_draft": 0.4, "w_draft_resident": 0.5, "k_draft_read": 0.01, "k_draft_alloc": 0.03}
    found = ask("speculative", SPARK, LENGTHS, draft, model=QWEN, b=8, gamma=4, rho=3)
    passes = float(swept(QWEN["weights"], 40)) + 4 * 0.4 + 8 * (0.3268992 + 4 * 0.01)
    assert found["aggregate"] == pytest.approx(273 / passes * 8 * 3, rel=1e-12)
    assert found["b_mem"] == math.floor((128 - 17.5 - 0.5 - 8) / 1.055)
    crowded = ask("speculative", SPARK, LENGTHS, draft, model=QWEN, b=97, gamma=4, rho=3)
    assert crowded["state"] == "batch_too_large"
    gone = ask("speculative", SPARK, LENGTHS, draft, model=QWEN, b=8, gamma=4, rho=3, C=20)
    assert (gone["state"], gone["b_mem"]) == ("does_not_fit", 0)


def test_feasible_rectangle_and_streamed_volume() -> None:
    assert ask("feasible", C=24, R=1000, h=24, r=1000 * (1 + 5e-13))["feasible"]
    assert ask("feasible", C=24, R=1000, h=24.1, r=1)["failures"] == ["capacity"]
    assert ask("feasible", C=24, R=1000, h=0, r=1001)["failures"] == ["flux"]
    assert ask("streamed_volume", C=24, R=1000, dt=10)["volume"] == 10_024


def test_simple_tells_its_states_apart() -> None:
    given = {"R": 800, "O": 6, "W": 18, "K": 2}
    states = [ask("simple", given, C=size)["state"] for size in (20, 25, 26)]
    assert states == ["does_not_fit", "resident_only", "fits"]


def test_results_beyond_double_precision_are_null_or_refused() -> None:
    assert ask("feasible", C=1e200, R=1e200, h=0, r=0)["memory_power"] is None
    with pytest.raises(InvalidInput, match="double precision"):
        ask("simple", C=1e300, R=1, O=0, W=1, K=1e-300)


CASE = {**GPU, "model": DENSE}
MOE = QWEN["weights"]


@pytest.mark.parametrize(
    ("function", "inputs", "words"),
    [
        ("decode", {**CASE, "L_read": 8193}, "at most L_alloc"),
        ("decode", {**CASE, "C": 0}, "C is 0"),
        ("decode", {**CASE, "C": "80"}, "expected a number"),
        ("decode", {**CASE, "C": math.inf}, "finite"),
        ("decode", {**CASE, "C": math.nan}, "finite"),
        ("decode", {**CASE, "C": 10**400}, "finite"),
        ("decode", {**CASE, "C": True}, "expected a number"),
        ("decode", {**CASE, "R": -1}, "R is -1"),
        ("decode", {**CASE, "O": -1}, "0 or more"),
        ("decode", {**CASE, "r_star": 0}, "r_star"),
        ("decode", {**CASE, "model": None}, "model is missing"),
        ("decode", {**CASE, "model": []}, "expected an object"),
        ("decode", {**CASE, "model": {"weights": DENSE["weights"]}}, "kv_alloc is missing"),
        (
            "decode",
            {**CASE, "model": {**DENSE, "kv_alloc": {"kind": "fixed", "bytes": 0}}},
            "unbounded",
        ),
        ("decode", {**CASE, "model": {**DENSE, "kv_alloc": {"kind": "paged"}}}, "allowed: fixed"),
        ("forced", {"R": 1, "L_read": 1, "model": DENSE, "batches": [0]}, "at least 1"),
        ("forced", {"R": 1, "L_read": 1, "model": DENSE, "batches": [1.5]}, "whole number"),
        ("forced", {"R": 1, "L_read": 1, "model": DENSE, "batches": 4}, "expected a list"),
        ("moe_split", {**MOE, "top_k": 256}, "below experts"),
        ("moe_split", {**MOE, "top_k": 0}, "top_k"),
        ("moe_split", {**MOE, "p_active": 0.5}, "negative"),
        ("moe_split", {**MOE, "p_active": 36}, "at most p_total"),
        ("weight_sweep", {"weights": {**MOE, "p_embed": 2.5}, "n": [1]}, "p_embed"),
        ("weight_sweep", {"weights": {**MOE, "routing": "none"}, "n": [1]}, "routing"),
        ("weight_sweep", {"weights": {**DENSE["weights"], "p_embed": 8e9}, "n": [1]}, "p_embed"),
        ("weight_sweep", {"weights": {"kind": "explicit", "w_sweep": 1}, "n": [1]}, "w_resident"),
        ("kv_cache", {"kv": {"kind": "hybrid", "local": [[1]]}, "L": [1]}, "pairs"),
        ("kv_cache", {"kv": {"kind": "hybrid", "local": [[1, 0]]}, "L": [1]}, "window above 0"),
        ("kv_cache", {"kv": {"kind": "fixed", "bytes": 1}, "L": [-1]}, "0 or more"),
        ("rho", {"alpha": 1.1, "gamma": 1}, "at most 1"),
        ("rho", {"alpha": -0.1, "gamma": 1}, "0 or more"),
        ("rho", {"alpha": 0.5, "gamma": -1}, "at least 0"),
        ("speculative", {**CASE, "b": 1, "gamma": 2, "rho": 3.1}, "within 1 and 3"),
        ("speculative", {**CASE, "b": 1, "gamma": 2, "rho": 0.9}, "within 1 and 3"),
        ("speculative", {**CASE, "b": 1, "gamma": 2}, "alpha or rho"),
        ("simple", {"C": 1, "R": 1, "W": 1, "K": 0}, "K is 0"),
    ],
)
def test_invalid_input_is_refused(function: str, inputs: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        ask(function, inputs)


def test_only_named_inputs_are_taken() -> None:
    with pytest.raises(InvalidInput, match="object"):
        BOUNDS["bounds.rho"]([("alpha", 1)])  # type: ignore[arg-type]
