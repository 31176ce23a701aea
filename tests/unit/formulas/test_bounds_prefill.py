"""Prefill ceilings against sums over chunks and positions, scans, and published numbers."""

from __future__ import annotations

from typing import Any

import pytest

from sieve.errors import InvalidInput
from sieve.formulas.bounds import BOUNDS

# The worked model of the source: 48 layers of which 36 have a window of 512, 4-bit weights.
LAGUNA = {
    "weights": {"kind": "explicit", "w_resident": 71.8987e9, "w_sweep": 71.28e9},
    "kv_alloc": {
        "kind": "linear", "layers": 48, "kv_heads": 8, "head_dim": 128, "bytes_per_element": 1,
    },
    "kv_read": {"kind": "hybrid", "global": 24_576, "local": [[73_728, 512]]},
    "kv_write_per_token": 98_304,
    "p_lin_active": 7.9e9,
    "attention": {"global": 294_912, "local": [[1_327_104, 512]]},
}  # fmt: skip
MOE = {
    "kind": "moe", "p_total": 26e9, "p_active": 4e9, "experts": 128, "top_k": 8, "e_w": 0.5,
}  # fmt: skip
MIXED = {
    "weights": MOE,
    "kv_alloc": {"kind": "fixed", "bytes": 2e9},
    "kv_read": {"kind": "hybrid", "global": 11, "local": [[7, 20], [3, 5]], "state": 1_000},
    "kv_write_per_token": 13,
    "p_lin_active": 3e9,
    "attention": {"global": 100, "local": [[30, 20], [9, 5]], "state": 50},
}
RATES = {"R": 273e9, "F_linear": 5e14, "F_attention": 1.25e14}


def ask(function: str, /, *parts: dict[str, Any], **inputs: Any) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for given in parts:
        merged |= given
    return BOUNDS[f"bounds.{function}"]({**merged, **inputs})


def layout_at(layout: dict[str, Any], length: int) -> float:
    total = layout.get("global", 0) * length + layout.get("state", 0)
    return total + sum(rate * min(length, width) for rate, width in layout.get("local", []))


def by_chunks(model: dict[str, Any], length: int, chunk: int, batch: int) -> tuple[float, float]:
    """Return (traffic, attention FLOP), one chunk and one position at a time."""
    traffic = flop = 0.0
    for prefix in range(0, length, chunk):
        width = min(chunk, length - prefix)
        swept = ask("weight_sweep", weights=model["weights"], n=[batch * width])["bytes"][0]
        old = layout_at(model["kv_read"], prefix) if prefix else 0
        traffic += swept + batch * old + batch * width * model["kv_write_per_token"]
        for j in range(1, width + 1):
            flop += batch * layout_at(model["attention"], prefix + j)
    return traffic, flop


@pytest.mark.parametrize("length", [1, 4, 5, 19, 20, 21, 64, 97])
@pytest.mark.parametrize("chunk", [1, 3, 5, 20, 64, 200])
@pytest.mark.parametrize("batch", [1, 6])
def test_prefill_is_the_sum_over_chunks(length: int, chunk: int, batch: int) -> None:
    found = ask("prefill", RATES, model=MIXED, L=length, c=chunk, b=batch)
    traffic, flop = by_chunks(MIXED, length, chunk, batch)
    assert found["Q"] == pytest.approx(traffic, rel=1e-12)
    assert found["A_att"] == pytest.approx(flop, rel=1e-12)
    assert found["A_lin"] == 2 * batch * length * 3e9
    assert found["n_chunks"] == len(range(0, length, chunk))
    memory, compute = traffic / 273e9, found["A_lin"] / 5e14 + flop / 1.25e14
    assert found["t"] == pytest.approx(max(memory, compute), rel=1e-12)
    assert found["rate"] == pytest.approx(batch * length / max(memory, compute), rel=1e-12)
    assert found["limit"] == ("memory" if memory > compute else "compute")


@pytest.mark.parametrize("chunk", [1, 7, 30])
@pytest.mark.parametrize("prefix", [0, 1, 15, 19, 20, 40])
def test_attention_caps_each_position_before_the_mean(chunk: int, prefix: int) -> None:
    layout = MIXED["attention"]
    found = ask("attention_flops", attention=layout, c=chunk, prefix=prefix)["flops_per_token"]
    mean = sum(layout_at(layout, prefix + j) for j in range(1, chunk + 1)) / chunk
    assert found == pytest.approx(mean, rel=1e-12)


def test_strict_windows_read_one_old_position_less() -> None:
    """A window that holds the current token reads w - 1 cached ones."""
    chunks = {"model": MIXED, "L": 100, "c": 10}
    usual, strict = (
        ask("prefill", RATES, chunks, strict_windows=flag)["Q"] for flag in (False, True)
    )
    # Nine prefixes; the window of 20 is full from prefix 20 on, that of 5 always.
    assert usual - strict == pytest.approx(7 * 8 + 3 * 9, abs=1e-3)


@pytest.mark.parametrize(
    ("length", "chunk", "linear", "rate"),
    [
        (8_192, 8_192, 5e14, 21_491), (32_768, 32_768, 5e14, 13_219),
        (131_072, 131_072, 5e14, 5_218), (8_192, 2_048, 1.25e14, 7_076),
        (32_768, 2_048, 1.25e14, 5_867),
        (131_072, 2_048, 1.25e14, 3_491),
    ],
)  # fmt: skip
def test_published_prefill_table(length: int, chunk: int, linear: float, rate: int) -> None:
    found = ask("prefill", RATES, model=LAGUNA, L=length, c=chunk, F_linear=linear)
    assert round(found["rate"]) == rate


@pytest.mark.parametrize(("rate", "tokens"), [(1.25e14, 2_066), (5e14, 8_263)])
def test_published_crossover(rate: float, tokens: int) -> None:
    found = ask("crossover", model=LAGUNA, F=rate, R=273e9)["S_star"]
    assert round(found) == tokens
    assert found == pytest.approx(71.28e9 * rate / (2 * 7.9e9 * 273e9), rel=1e-12)


def test_crossover_of_a_dense_model_depends_on_precision_alone() -> None:
    model = {"weights": {"kind": "dense", "p_total": 3e10, "e_w": 0.5}, "p_lin_active": 3e10}
    assert ask("crossover", model=model, F=1e14, R=8e11)["S_star"] == pytest.approx(31.25)


@pytest.mark.parametrize("rate", [1e12, 1e13, 1e14, 1e15])
def test_crossover_of_a_mixture_balances_sweep_and_arithmetic(rate: float) -> None:
    tokens = ask("crossover", model=MIXED, F=rate, R=273e9)["S_star"]
    fixed = 0.5 * (4e9 - 8 * 22e9 / 120)
    sweep = fixed + 0.5 * 22e9 / 120 * 128 * (1 - (1 - 8 / 128) ** tokens)
    assert sweep / 273e9 == pytest.approx(2 * 3e9 * tokens / rate, rel=1e-9)


def test_crossover_is_zero_where_even_one_token_is_compute_bound() -> None:
    weights = {**MOE, "p_total": 128.0, "p_active": 8.0}
    found = ask("crossover", model={"weights": weights, "p_lin_active": 8}, F=1, R=1e9)
    assert found["S_star"] == pytest.approx(0, abs=1e-300)


@pytest.mark.parametrize("tau", [None, 0.001, 0.02, 0.05, 0.3, 1.0, 3.0])
@pytest.mark.parametrize("length", [1, 16, 64, 300])
def test_best_batch_is_what_a_scan_finds(length: int, tau: float | None) -> None:
    machine = {**RATES, "C": 128e9, "O": 8e9}
    limit = {} if tau is None else {"tau": tau}
    found = ask("prefill_best", machine, limit, model=MIXED, L=length)
    best: dict[str, Any] | None = None
    most = int((128e9 - 13e9 - 8e9) / 2e9)
    for batch in range(1, most + 1):
        at = ask("prefill", RATES, model=MIXED, L=length, c=length, b=batch)
        if tau is not None and at["t"] > tau * (1 + 1e-12):
            continue
        if best is None or at["rate"] > best["rate"] * (1 + 1e-12):
            best = {"b": batch, **at}
    if best is None:
        assert (found["state"], found["b"]) == ("no_batch", None)
    else:
        keys = ("b", "rate", "t", "mem_rate", "comp_rate", "limit")
        assert {key: found[key] for key in keys} == {key: best[key] for key in keys}
        assert found["c"] == length


def test_best_batch_tells_its_states_apart() -> None:
    machine = {**RATES, "O": 0, "model": LAGUNA, "L": 1_000}
    states = {size: ask("prefill_best", machine, C=size)["state"] for size in (70e9, 71.9e9, 72e9)}
    assert list(states.values()) == ["does_not_fit", "resident_only", "ok"]
    unknown = ask("prefill_best", machine, C=1e11, F_linear=None)
    assert (unknown["b"], unknown["limit"]) == (None, "unavailable")


def test_store_gate_counts_what_the_prompt_has_written() -> None:
    machine = {**RATES, "C": 72e9, "O": 0, "model": LAGUNA, "L": 100, "L_alloc": 8_192}
    assert ask("prefill_best", machine)["state"] == "resident_only"
    found = ask("prefill_best", machine, kv_gate="store")
    assert (found["state"], found["kv_gate"]) == ("ok", "store")


@pytest.mark.parametrize("batch", [None, 1, 20])
@pytest.mark.parametrize("size", [15e9, 60e9])
def test_range_is_what_a_scan_finds(batch: int | None, size: float) -> None:
    session = {"kind": "hybrid", "global": 2e7, "local": [[1e7, 30]], "state": 1e8}
    model = {**MIXED, "kv_alloc": session}
    machine = {**RATES, "C": size, "O": 1e9, "model": model}
    found = ask("prefill_range", machine, L_max=150, **({} if batch is None else {"batch": batch}))
    lo: tuple[int, float] | None = None
    hi: tuple[int, float] | None = None
    for length in range(1, 151):
        fit = int((size - 14e9) / layout_at(session, length) + 1e-9)
        used = fit if batch is None else batch
        if used == 0 or used > fit:
            continue
        rate = ask("prefill", RATES, model=model, L=length, c=length, b=used)["rate"]
        if lo is None or rate < lo[1] * (1 - 1e-12):
            lo = length, rate
        if hi is None or rate > hi[1] * (1 + 1e-12):
            hi = length, rate
    if lo is None or hi is None:
        assert (found["state"], found["lo"], found["hi"]) == ("resident_only", None, None)
        return
    for end, (length, rate) in (("lo", lo), ("hi", hi)):
        assert found[end] == {"L": length, "rate": pytest.approx(rate, rel=1e-12)}


def test_range_spans_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    from sieve.formulas.bounds import prefill_lengths

    machine = {**RATES, "C": 128e9, "O": 8e9, "model": LAGUNA, "L_max": 9_000, "batch": 1}
    whole = ask("prefill_range", machine)
    monkeypatch.setattr(prefill_lengths, "_BLOCK", 1_000)
    assert ask("prefill_range", machine) == whole
    assert whole["hi"]["L"] == 6_000


def test_unknown_rate_is_a_state_and_not_a_number() -> None:
    found = ask("prefill", model=LAGUNA, L=4_096, c=1_024, R=273e9, F_linear=5e14)
    assert found["limit"] == "unavailable"
    assert not {"t", "t_comp", "rate", "comp_rate"} & found.keys()
    machine = {"R": 273e9, "C": 128e9, "O": 8e9, "model": LAGUNA}
    assert ask("prefill_range", machine, L_max=10)["limit"] == "unavailable"
    chain = ask("prefill_chain", machine, L=10, L_alloc=10, b=1)
    assert (chain["state"], "compute" in chain) == ("unavailable", False)


def test_chain_tells_its_states_apart() -> None:
    given = {"R": 273e9, "O": 0, "model": LAGUNA, "L": 1_000, "L_alloc": 1_000, "F": 5e14}
    assert ask("prefill_chain", given, C=70e9, b=1)["state"] == "does_not_fit"
    assert ask("prefill_chain", given, C=72e9, b=1)["state"] == "ok"
    assert ask("prefill_chain", given, C=72e9, b=2)["state"] == "batch_too_large"


@pytest.mark.parametrize(
    ("function", "changes", "words"),
    [
        ("prefill", {"L": 0}, "L is 0"),
        ("prefill", {"L": 10.5}, "whole number"),
        ("prefill", {"c": 0}, "c is 0"),
        ("prefill", {"b": 0}, "b is 0"),
        ("prefill", {"F_linear": 0}, "F_linear"),
        ("prefill", {"model": {**LAGUNA, "p_lin_active": None}}, "p_lin_active is missing"),
        ("prefill", {"model": {**LAGUNA, "p_lin_active": 0}}, "p_lin_active is 0"),
        ("prefill", {"model": {**LAGUNA, "kv_read": None}}, "kv_read is missing"),
        ("prefill_best", {"L_alloc": 999}, "at most L_alloc"),
        ("prefill_best", {"tau": 0}, "tau"),
        ("prefill_best", {"kv_gate": "none"}, "kv_gate"),
        (
            "prefill_best",
            {"kv_gate": "store", "model": {**LAGUNA, "kv_write_per_token": 0}},
            "no memory",
        ),
        ("prefill_range", {"L_max": 0}, "L_max"),
        (
            "prefill_range",
            {"L_max": 9, "model": {**LAGUNA, "kv_alloc": {"kind": "fixed", "bytes": 0}}},
            "unbounded",
        ),
        ("prefill_chain", {"L_alloc": 999, "F": 1e14}, "at most L_alloc"),
        ("crossover", {"F": 0}, "F is 0"),
        ("attention_flops", {"attention": {"global": -1}, "prefix": 0}, "global"),
        ("attention_flops", {"attention": {"global": 1}, "prefix": -1}, "prefix"),
    ],
)
def test_invalid_input_is_refused(function: str, changes: dict[str, Any], words: str) -> None:
    given = {**RATES, "C": 128e9, "O": 8e9, "model": LAGUNA, "L": 1_000, "c": 100, "b": 1}
    with pytest.raises(InvalidInput, match=words):
        ask(function, given, changes)
