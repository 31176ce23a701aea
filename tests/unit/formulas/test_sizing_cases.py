"""The sizing functions of the evaluation interface against hand arithmetic, brute force, laws."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sieve.errors import InvalidInput
from sieve.formulas import sizing_cases as cases

quick = settings(deadline=None, derandomize=True, max_examples=100)


# --- money, time, tokens ---------------------------------------------------------------------


def test_whole_nodes_are_paid() -> None:
    rate = {"node_rate_per_hour": 36, "tokens_per_s": 10_000}  # 0.01 USD/s, a million in 100 s
    for more, nodes in (({}, 1), ({"nodes": 3}, 3), ({"gpus": 8}, 1), ({"gpus": 9}, 2),
                        ({"gpus": 9, "gpus_per_node": 4}, 3)):  # fmt: skip
        assert cases.cost_per_mtok({**rate, **more}) == {"usd_per_mtok": pytest.approx(nodes)}
    with pytest.raises(InvalidInput, match="give one of them"):
        cases.cost_per_mtok({**rate, "nodes": 1, "gpus": 8})
    with pytest.raises(InvalidInput, match="tokens_per_s: found 0"):
        cases.cost_per_mtok({**rate, "tokens_per_s": 0})


def test_a_campaign_on_two_nodes() -> None:
    found = cases.campaign({
        "runs": 1460, "hours_per_run": 2, "node_rate_per_hour": 3, "gpus_per_run": 4,
        "parallel_nodes": 2,
    })  # fmt: skip
    assert found == {"node_hours": 2920, "gpu_hours": 11_680, "cost": 8760, "months": 2}


def test_shares_and_speedups() -> None:
    assert cases.prefill_share({"isl": 3, "osl": 1}) == {"share": 0.75}
    assert cases.scaling({"t_1": 2, "t_n": 6, "n": 4}) == {"speedup": 3, "efficiency": 0.75}
    with pytest.raises(InvalidInput, match="both are 0"):
        cases.prefill_share({"isl": 0, "osl": 0})
    with pytest.raises(InvalidInput, match="t_1: found 0"):
        cases.scaling({"t_1": 0, "t_n": 6, "n": 4})


@given(budget=st.integers(1, 10**6), requests=st.integers(1, 300), prompt=st.integers(1, 10**5))
@quick
def test_a_prompt_passes_in_chunks(budget: int, requests: int, prompt: int) -> None:
    inputs = {"max_num_batched_tokens": budget, "concurrency": requests, "prompt": prompt}
    if budget < requests:
        with pytest.raises(InvalidInput, match="less than one token"):
            cases.token_budget(inputs)
        return
    found = cases.token_budget(inputs)
    assert found["per_request"] * requests <= budget < (found["per_request"] + 1) * requests
    assert (found["chunks"] - 1) * found["per_request"] < prompt
    assert prompt <= found["chunks"] * found["per_request"]


# --- pages and batch -------------------------------------------------------------------------

PAGES: dict[str, Any] = {
    "card_bytes": 1000, "weight_bytes": 100, "kv_layers": 2, "kv_heads": 1, "head_dim": 1,
    "kv_bytes_per_element": 2, "utilisation": 0.5, "page_tokens": 1,
}  # fmt: skip


def test_pages_by_hand() -> None:
    # 500 - 100 bytes, 2 x 2 x 1 x 2 = 8 bytes a page; 1 % of 50 pages is one page.
    assert cases.kv_pages(PAGES) == {
        "budget": 500, "shard": 100, "page_bytes": 8, "pages": 50, "reserved": 1, "usable": 49,
        "fits": True, "reason": None,
    }  # fmt: skip
    assert cases.kv_pages({**PAGES, "reserve": 0})["usable"] == 50
    # Weights that fill the budget exactly do not overflow it, but leave no page.
    full = cases.kv_pages({**PAGES, "weight_bytes": 500})
    assert (full["pages"], full["fits"], full["reason"]) == (0, False, "no_page")
    over = cases.kv_pages({**PAGES, "weight_bytes": 501})
    assert (over["pages"], over["reserved"], over["reason"]) == (0, 0, "weights_overflow")
    # Three layers over two stages: the fuller has two. One head cannot be split over four ranks.
    split = cases.kv_pages({**PAGES, "kv_layers": 3, "pp": 2, "tp": 4})
    assert (split["shard"], split["page_bytes"]) == (12.5, 8)
    assert cases.kv_pages({**PAGES, "kv_bytes_per_element": 0.3})["page_bytes"] == 1.2


@given(
    card=st.integers(1, 10**6), weights=st.integers(0, 10**6), layers=st.integers(1, 9),
    heads=st.integers(1, 9), tp=st.integers(1, 9), pp=st.integers(1, 9), page=st.integers(1, 32),
    percent=st.integers(0, 100), used=st.integers(1, 100),
)  # fmt: skip
@quick
def test_pages_in_exact_fractions(
    card: int, weights: int, layers: int, heads: int, tp: int, pp: int, page: int, percent: int,
    used: int,
) -> None:  # fmt: skip
    found = cases.kv_pages({
        "card_bytes": card, "weight_bytes": weights, "kv_layers": layers, "kv_heads": heads,
        "head_dim": 3, "kv_bytes_per_element": 2, "tp": tp, "pp": pp, "page_tokens": page,
        "reserve": percent / 100, "utilisation": used / 100,
    })  # fmt: skip
    room = Fraction(card * used, 100) - Fraction(weights, tp * pp)
    size = page * 2 * math.ceil(Fraction(layers, pp)) * math.ceil(Fraction(heads, tp)) * 3 * 2
    pages = max(0, math.floor(room / size))
    reserved = math.ceil(Fraction(pages * percent, 100))
    assert found["page_bytes"] == size
    assert (found["pages"], found["reserved"]) == (pages, reserved)
    assert found["usable"] == pages - reserved
    assert found["fits"] == (pages - reserved >= 1)
    if abs(room) > 1e-6:
        assert (found["reason"] == "weights_overflow") == (room < 0)


@pytest.mark.parametrize(
    ("name", "value"),
    [("card_bytes", 0), ("weight_bytes", -1), ("kv_layers", 0), ("tp", 0), ("pp", 1.5),
     ("utilisation", 0), ("utilisation", 1.1), ("reserve", -0.1), ("reserve", 1.1),
     ("kv_bytes_per_element", 0), ("page_tokens", True), ("head_dim", "3"),
     ("card_bytes", math.inf), ("card_bytes", math.nan), ("card_bytes", 10**400),
     ("card_bytes", 1e300), ("head_dim", 2**53), ("kv_heads", 2**54)],
)  # fmt: skip
def test_pages_refuse(name: str, value: Any) -> None:
    with pytest.raises(InvalidInput, match=name):
        cases.kv_pages({**PAGES, name: value})


def test_too_many_ranks_are_refused() -> None:
    with pytest.raises(InvalidInput, match="ranks"):
        cases.kv_pages({**PAGES, "tp": 2**40, "pp": 2**40})


def test_requests_hold_whole_pages() -> None:
    assert cases.concurrency({"usable_pages": 11, "tokens_per_seq": 17}) == {"requests": 5}
    assert cases.concurrency({"usable_pages": 11, "tokens_per_seq": 16}) == {"requests": 11}
    found = cases.concurrency({"usable_pages": 0, "tokens_per_seq": 16, "page_tokens": 1})
    assert found == {"requests": 0}


BATCH: dict[str, Any] = {
    "usable_pages": 100, "tokens_per_seq": 16, "max_num_seqs": 50, "weight_bytes": 10,
    "kv_read_bytes_per_seq": 2, "bandwidth": 10, "overhead_s": 1, "tpot_slo": 10,
}  # fmt: skip


def test_batch_limits_by_hand() -> None:
    # 10 x (10 - 1) - 10 bytes, two each.
    assert cases.max_batch(BATCH) == {
        "by_pages": 100, "by_tpot": 40, "by_max_num_seqs": 50, "batch": 40, "binding": "tpot",
    }  # fmt: skip
    for changes, batch, binding in (
        ({"tpot_slo": 0.5}, 0, "tpot"), ({"usable_pages": 0}, 0, "pages"),
        ({"max_num_seqs": 3}, 3, "max_num_seqs"),
        ({"usable_pages": 40}, 40, "pages"), ({"max_num_seqs": 40}, 40, "tpot"),  # ties
    ):  # fmt: skip
        found = cases.max_batch({**BATCH, **changes})
        assert (found["batch"], found["binding"]) == (batch, binding)


def test_an_exact_quotient_is_not_rounded_down() -> None:
    """1.025 bytes a sequence and 102.5 bytes of room hold 100, though binary says 99.99..."""
    found = cases.max_batch({
        **BATCH, "weight_bytes": 0, "overhead_s": 0, "bandwidth": 1, "tpot_slo": 102.5,
        "kv_read_bytes_per_seq": 1.025,
    })  # fmt: skip
    assert found["by_tpot"] == 100


@pytest.mark.parametrize(
    ("changes", "named"),
    [({"kv_read_bytes_per_seq": 0}, "takes no memory"), ({"bandwidth": 0}, "bandwidth"),
     ({"tokens_per_seq": 0}, "tokens_per_seq"), ({"kv_read_bytes_per_seq": 1e-300}, "so small"),
     ({"tpot_slo": None}, "tpot_slo: found None")],
)  # fmt: skip
def test_batch_limits_refuse(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidInput, match=named):
        cases.max_batch({**BATCH, **changes})


# --- stages 1 and 2 over a grid --------------------------------------------------------------


def rules(tp: int, pp: int, replicas: int, model: dict[str, Any], grid: dict[str, Any]) -> str:
    """Return every broken rule in order, each found on its own."""
    broken = [
        name
        for name, bad in (
            ("tp_divides", model["heads"] / tp % 1 or model["width"] / tp % 1),
            ("pp_divides", model["layers"] / pp % 1),
            ("node", tp * pp > grid["node_gpus"]),
            ("gpu_budget", tp * pp * replicas > grid["gpu_budget"]),
        )
        if bad
    ]
    return (broken or [""])[0]


def test_the_first_broken_rule_is_the_reason() -> None:
    model = {"heads": 24, "width": 5120, "layers": 60}
    grid = {"node_gpus": 8, "gpu_budget": 16}
    for tp, pp, replicas in itertools.product(range(1, 13), range(1, 9), range(1, 5)):
        found = cases.stage1({**model, **grid, "tp": tp, "pp": pp, "replicas": replicas})
        reason = rules(tp, pp, replicas, model, grid)
        assert found == {"ok": not reason, "reason": reason or None}


def small_grid(**changes: Any) -> dict[str, Any]:
    return {
        "node_gpus": 4, "gpu_budget": 6, "use_load_bytes": True, "inert_axes": ["token_budget"],
        "model": {"name": "m", "params": 40e9, "width": 12, "layers": 6, "heads": 6,
                  "kv_layers": 6, "kv_heads": 2, "head_dim": 400_000},
        "axes": {
            "gpu": [{"name": "S", "memory_gb": 22.5}, {"name": "M", "memory_gb": 48},
                    {"name": "L", "memory_gb": 90}],
            "tp": [1, 2, 3, 4, 5], "pp": [1, 2, 4], "replicas": [1, 2, 3],
            "weight_precision": [
                {"name": "BF16", "bytes_per_param": 2},
                {"name": "INT8", "bytes_per_param": 1, "load_bytes_per_param": 2},
                {"name": "FP8", "bytes_per_param": 1},
            ],
            "kv_format": [{"name": "BF16", "bytes": 2}, {"name": "FP8", "bytes": 1}],
            "token_budget": [1, 2, 3],
        },
        **changes,
    }  # fmt: skip


@pytest.mark.parametrize("loading", [True, False])
def test_grid_counts_by_brute_force(loading: bool) -> None:
    grid = small_grid(use_load_bytes=loading)
    axes, model = grid["axes"], grid["model"]
    stage1: dict[str, int] = {}
    stage2: dict[str, int] = {}
    where: dict[str, int] = {}
    left = total = 0
    for gpu, tp, pp, replicas, weight, cache, _ in itertools.product(*axes.values()):
        total += 1
        reason = rules(tp, pp, replicas, model, grid)
        if reason:
            stage1[reason] = stage1.get(reason, 0) + 1
            continue
        size = weight["bytes_per_param"]
        if loading:
            size = weight.get("load_bytes_per_param", size)
        shard = Fraction(model["params"]) * Fraction(size) / (tp * pp)
        room = Fraction(9, 10) * Fraction(gpu["memory_gb"]) * 10**9 - shard
        page = (16 * 2 * math.ceil(6 / pp) * math.ceil(2 / tp) * 400_000) * cache["bytes"]
        pages = math.floor(room / page)
        if room < 0:
            reason = "weights_overflow"
        elif pages - math.ceil(Fraction(pages, 100)) < 1:
            reason = "no_page"
        if reason:
            stage2[reason] = stage2.get(reason, 0) + 1
            place = f"{gpu['name']}/{weight['name']}"
            where[place] = where.get(place, 0) + 1
        else:
            left += 1
    found = cases.grid({"grid": grid})
    assert set(stage2) == {"weights_overflow", "no_page"}
    assert found == {
        "total": total, "stage1_removed": sum(stage1.values()),
        "after_stage1": total - sum(stage1.values()), "stage1_reasons": stage1,
        "stage2_removed": sum(stage2.values()), "after_stage2": left, "stage2_reasons": stage2,
        "stage2_where": where,
    }  # fmt: skip


def test_an_empty_axis_makes_an_empty_grid() -> None:
    grid = small_grid()
    grid["axes"]["kv_format"] = []
    found = cases.grid({"grid": grid})
    assert (found["total"], found["after_stage2"]) == (0, 0)
    assert (found["stage1_reasons"], found["stage2_where"]) == ({}, {})


def test_further_axes_are_inert_unless_named_otherwise() -> None:
    grid = small_grid()
    expected = cases.grid({"grid": grid})
    del grid["inert_axes"]
    assert cases.grid({"grid": grid}) == expected


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"inert_axes": []}, r"grid\.axes\.token_budget: decides nothing"),
        ({"inert_axes": ["token_budget", "colour"]}, "inert_axes"),
        ({"utilisation": 0.8}, "fixed at 0.9"),
        ({"reserve": 0.02}, "fixed at 0.01"),
        ({"gpu_budget": 0}, "gpu_budget"),
        ({"budget": 3}, "mean 'gpu_budget'"),
        ({"axes": {}}, r"missing input: grid\.axes\.gpu"),
        ({"model": {"params": 1}}, r"grid\.model\.width"),
    ],
)
def test_a_grid_is_refused_by_name(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidInput, match=named):
        cases.grid({"grid": small_grid(**changes)})


def test_a_grid_beyond_the_limit_is_refused() -> None:
    grid = small_grid()
    grid["axes"]["replicas"] = [1] * 200_000
    with pytest.raises(InvalidInput, match="shorten an axis"):
        cases.grid({"grid": grid})


# --- shortlist and tables --------------------------------------------------------------------


@given(
    picks=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), max_size=30),
    size=st.integers(0, 20), per_family=st.integers(1, 4),
)  # fmt: skip
@quick
def test_the_shortlist_equals_a_loop(
    picks: list[tuple[int, int]], size: int, per_family: int
) -> None:
    rows = [
        {"id": f"c{(7 * i) % 31:02}", "score": score / 3, "gpu": "G", "tp": 1 + family % 2,
         "pp": 1, "replicas": 1 + family // 2, "weight_precision": i}
        for i, (score, family) in enumerate(picks)
    ]  # fmt: skip
    taken: list[dict[str, Any]] = []
    for row in sorted(rows, key=lambda r: (-r["score"], r["id"])):
        kin = [t for t in taken if (t["tp"], t["replicas"]) == (row["tp"], row["replicas"])]
        if len(kin) < per_family and len(taken) < size:
            taken.append(row)
    found = cases.shortlist({"candidates": rows, "size": size, "per_family": per_family})
    assert found == {"ids": [row["id"] for row in taken]}


def test_ids_of_a_shortlist() -> None:
    row = {"score": 1, "gpu": "G", "tp": 1, "pp": 1, "replicas": 1}
    numbers = [{**row, "id": i} for i in (10, 9, 100)]
    assert cases.shortlist({"candidates": numbers}) == {"ids": [9, 10, 100]}
    with pytest.raises(InvalidInput, match=r"candidates\[1\]\.id: 9 stands twice"):
        cases.shortlist({"candidates": [numbers[1], numbers[1]]})
    with pytest.raises(InvalidInput, match=r"missing input: candidates\[0\]\.id"):
        cases.shortlist({"candidates": [row]})


TABLE: dict[str, Any] = {"x": [1, 2, 4], "y": [10, 30], "z": [[0, 2], [4, 8], [5, 5]]}


@pytest.mark.parametrize(
    ("at", "value", "flag"),
    [
        ([2, 10], 4, False), ([4, 30], 5, False), ([1.5, 20], 3.5, False), ([3, 20], 5.5, False),
        ([0, 0], 0, False), ([-5, 20], 1, False), ([1.5, 5], 2, False),
        ([6, 10], 6, True), ([2, 50], 12, True), ([6, 50], -2, True), ([0, 50], 4, True),
    ],
)  # fmt: skip
def test_table_by_hand(at: list[float], value: float, flag: bool) -> None:
    found = cases.interpolate({**TABLE, "at": at})
    assert found == {"value": pytest.approx(value), "extrapolated": flag}


@given(
    c=st.tuples(*[st.integers(-5, 5)] * 4), x=st.floats(1, 20), y=st.floats(10, 90),
)  # fmt: skip
@quick
def test_a_bilinear_function_is_met_everywhere(c: tuple[int, ...], x: float, y: float) -> None:
    def f(x: float, y: float) -> float:
        return c[0] + c[1] * x + c[2] * y + c[3] * x * y

    xs, ys = [1, 2, 5, 9], [10, 20, 40]
    table = {"x": xs, "y": ys, "z": [[f(a, b) for b in ys] for a in xs]}
    found = cases.interpolate({**table, "at": [x, y]})
    assert found["value"] == pytest.approx(f(x, y), rel=1e-9, abs=1e-9)
    assert found["extrapolated"] == (x > 9 or y > 40)


@pytest.mark.parametrize(
    ("changes", "named"),
    [({"x": [1, 1, 2]}, "x: must rise"), ({"y": [30, 10]}, "y: must rise"), ({"x": [1]}, "x: has"),
     ({"z": [[0, 2], [4, 8]]}, "z: has 2 rows"), ({"z": [[0], [4], [5]]}, r"z\[0\]: found"),
     ({"at": [1]}, "at: has 1"), ({"at": [1, None]}, r"at\[1\]")],
)  # fmt: skip
def test_tables_refuse(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidInput, match=named):
        cases.interpolate({**TABLE, "at": [1, 10], **changes})


@given(tp=st.integers(1, 64), size=st.integers(0, 10**9))
@quick
def test_a_ring_passes_every_slice_twice(tp: int, size: int) -> None:
    """Each rank sends a slice of 1/tp of the message in each of tp - 1 steps, twice over."""
    found = cases.allreduce({
        "tp": tp, "bytes": size, "link_bandwidth": 1e9, "step_latency": 1e-6,
    })  # fmt: skip
    sent = float(sum(Fraction(size, tp) for _ in range(2) for _ in range(tp - 1)))
    steps = sum(1 for _ in range(2) for _ in range(tp - 1))
    assert found["steps"] == steps
    assert found["bytes_sent_per_gpu"] == pytest.approx(sent)
    assert found["time"] == pytest.approx(sent / 1e9 + steps * 1e-6)


def test_reasons_against_a_comparison_come_in_order() -> None:
    rows = [{"arrival": 2, "prompt": 5, "output": 5, "session": "s"},
            {"arrival": 1, "prompt": 1, "output": 1}]  # fmt: skip
    wrong = {"requests": rows, "input_scale": 2, "output_scale": 0.5, "max_model_len": 10}
    assert cases.trace_check(wrong) == {
        "ok": False, "reasons": ["input_scale", "output_scale", "max_length", "arrival_order"],
    }  # fmt: skip
    right = {"requests": rows[:1], "input_scale": 1, "output_scale": 1.0, "max_model_len": 11}
    assert cases.trace_check(right) == {"ok": True, "reasons": []}
