"""Sizing arithmetic against golden cases, brute force and laws."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sieve.errors import InvalidInput
from sieve.formulas import sizing

GOLDEN = Path(__file__).parents[1] / "golden" / "seed_values.json"
CASES = json.loads(GOLDEN.read_text(encoding="utf-8"))["cases"]
quick = settings(deadline=None, derandomize=True, max_examples=60)


def golden(function: str) -> Any:
    cases = [case for case in CASES if case["function"] == function]
    return pytest.mark.parametrize("case", cases, ids=[case["id"] for case in cases])


def agree(found: Any, expected: Any) -> bool:
    if isinstance(expected, bool | str) or expected is None:
        return bool(found == expected)
    return bool(float(found) == pytest.approx(expected, rel=1e-9, abs=1e-12))


@golden("sizing.kv_pages")
def test_kv_pages(case: dict[str, Any]) -> None:
    pages = sizing.kv_pages(**case["inputs"])
    fits = bool(pages.fits)
    reason = None if fits else "weights_overflow" if bool(pages.weights_overflow) else "no_page"
    found = {
        "budget": pages.budget_bytes,
        "shard": pages.shard_bytes,
        "page_bytes": pages.page_bytes,
        "pages": pages.pages,
        "reserved": pages.reserved,
        "usable": pages.usable,
        "fits": fits,
        "reason": reason,
    }
    for key, expected in case["expected"].items():
        assert agree(found[key], expected), (key, found[key], expected)


@golden("sizing.max_batch")
def test_max_batch(case: dict[str, Any]) -> None:
    inputs = dict(case["inputs"])
    inputs["tpot_slo_s"] = inputs.pop("tpot_slo")
    limits = sizing.max_batch(**inputs)
    for key in ("by_pages", "by_tpot", "by_max_num_seqs", "batch"):
        assert int(getattr(limits, key)) == case["expected"][key]
    assert str(limits.binding) == case["expected"]["binding"]


@golden("sizing.shortlist")
def test_shortlist(case: dict[str, Any]) -> None:
    inputs = case["inputs"]
    rows = inputs["candidates"]
    family = [f"{r['gpu']}|{r['tp']}|{r['pp']}|{r['replicas']}" for r in rows]
    taken = sizing.shortlist(
        [r["score"] for r in rows],
        np.array([r["id"] for r in rows]),
        family,
        size=inputs.get("size", 20),
        per_family=inputs.get("per_family", 3),
    )
    assert [rows[i]["id"] for i in taken] == case["expected"]["ids"]


@golden("sizing.cost_per_mtok")
def test_cost_per_mtok(case: dict[str, Any]) -> None:
    inputs = case["inputs"]
    found = sizing.cost_per_mtok(
        usd_per_gpu_hour=inputs["node_rate_per_hour"] / 8,
        gpus=inputs.get("gpus", 8),
        tokens_per_s=inputs["tokens_per_s"],
        gpus_per_node=8,
    )
    if "error" in case["expected"]:
        assert np.isnan(found)  # over arrays a state: no throughput, no cost
    else:
        assert agree(found, case["expected"]["usd_per_mtok"])


@golden("sizing.allreduce")
def test_allreduce(case: dict[str, Any]) -> None:
    inputs = case["inputs"]
    found = sizing.allreduce_s(
        tp=inputs["tp"],
        message_bytes=inputs["bytes"],
        link_bandwidth=inputs["link_bandwidth"],
        step_latency_s=inputs["step_latency"],
    )
    assert agree(found, case["expected"]["time"])


def test_money_by_hand() -> None:
    # 3 GPUs at 2 USD/h, 1,000 tokens/s: 3.6 M tokens an hour for 6 USD
    rate = {"usd_per_gpu_hour": 2.0, "gpus": 3, "tokens_per_s": 1000.0}
    assert sizing.cost_per_mtok(**rate) == pytest.approx(6 / 3.6)
    # whole nodes of 8
    assert sizing.cost_per_mtok(**rate, gpus_per_node=8) == pytest.approx(16 / 3.6)


def test_columns_broadcast() -> None:
    pages = sizing.kv_pages(
        card_bytes=np.array([80e9, 45e9]), weight_bytes=54e9, kv_layers=16, kv_heads=4,
        head_dim=256, kv_bytes_per_element=2,
    )  # fmt: skip
    # 72e9 - 54e9 = 18e9 over 1,048,576 bytes a page: 17,166; one percent up: 172
    assert pages.usable.tolist() == [17_166 - 172, 0]
    assert pages.weights_overflow.tolist() == [False, True]
    assert pages.fits.tolist() == [True, False]


@pytest.mark.parametrize(
    ("name", "value"),
    [("card_bytes", 0), ("kv_layers", 0), ("head_dim", -1), ("tp", 0), ("utilisation", 0),
     ("card_bytes", float("nan")), ("page_tokens", 0)],
)  # fmt: skip
def test_invalid_sizes_are_refused(name: str, value: float) -> None:
    inputs: dict[str, Any] = {
        "card_bytes": 80e9, "weight_bytes": 27e9, "kv_layers": 16, "kv_heads": 4, "head_dim": 256,
        "kv_bytes_per_element": 2,
    }  # fmt: skip
    with pytest.raises(InvalidInput, match=name):
        sizing.kv_pages(**{**inputs, name: value})


def test_a_cache_without_bytes_has_no_batch_limit_and_is_refused() -> None:
    with pytest.raises(InvalidInput):
        sizing.max_batch(
            usable_pages=10, tokens_per_seq=16, max_num_seqs=1, weight_bytes=1.0,
            kv_read_bytes_per_seq=0, bandwidth=1.0, overhead_s=0, tpot_slo_s=1.0,
        )  # fmt: skip


@given(
    card=st.floats(1e9, 2e11),
    more=st.floats(1.0, 4.0),
    weights=st.floats(1e8, 2e11),
    heads=st.integers(1, 64),
    tp=st.sampled_from([1, 2, 4, 8]),
    pp=st.sampled_from([1, 2, 4]),
)
@quick
def test_laws_of_kv_pages(
    card: float, more: float, weights: float, heads: int, tp: int, pp: int
) -> None:
    def pages(card_bytes: float, tp: int) -> sizing.KvPages:
        return sizing.kv_pages(
            card_bytes=card_bytes, weight_bytes=weights, kv_layers=30, kv_heads=heads,
            head_dim=128, kv_bytes_per_element=2, tp=tp, pp=pp,
        )  # fmt: skip

    here = pages(card, tp)
    assert pages(card * more, tp).usable >= here.usable
    assert pages(card, 2 * tp).page_bytes <= here.page_bytes
    assert pages(card, 2 * tp).usable >= here.usable
    assert here.pages == here.usable + here.reserved
    if not here.weights_overflow:
        used = here.shard_bytes + here.pages * here.page_bytes
        assert used <= here.budget_bytes * (1 + 1e-8)
        assert 0.01 * here.pages - 1e-6 <= here.reserved < 0.01 * here.pages + 1
    else:
        assert (here.pages, here.usable) == (0, 0)


@given(
    usable=st.integers(0, 10_000),
    tokens=st.integers(1, 5000),
    seqs=st.integers(1, 512),
    slo_ms=st.integers(1, 200),
)
@quick
def test_the_batch_is_the_largest_that_meets_every_limit(
    usable: int, tokens: int, seqs: int, slo_ms: int
) -> None:
    weights, per_seq, bandwidth, overhead = 16e9, 37_000_000.0, 2e12, 0.001
    limits = sizing.max_batch(
        usable_pages=usable, tokens_per_seq=tokens, max_num_seqs=seqs, weight_bytes=weights,
        kv_read_bytes_per_seq=per_seq, bandwidth=bandwidth, overhead_s=overhead,
        tpot_slo_s=slo_ms / 1e3,
    )  # fmt: skip

    def allowed(batch: int) -> bool:
        step = overhead + (weights + batch * per_seq) / bandwidth
        pages = batch * -(-tokens // 16)
        return pages <= usable and batch <= seqs and step <= slo_ms / 1e3 * (1 + 1e-9)

    best = max((b for b in range(1, seqs + 1) if allowed(b)), default=0)
    assert int(limits.batch) == best


Row = tuple[float, int, bool, bool]  # score, family, and whether two subsets hold it
ROWS = st.lists(
    st.tuples(
        st.sampled_from([1.0, 2.0, 3.0, 4.0, 5.0]), st.integers(0, 6), st.booleans(), st.booleans()
    ),
    max_size=60,
)


def brute_force(rows: list[Row], size: int, per_family: int, subsets: int) -> list[int]:
    order = sorted(range(len(rows)), key=lambda i: (-rows[i][0], i))
    lists = [order, *([i for i in order if rows[i][2 + k]] for k in range(subsets))]
    taken: list[int] = []
    while len(taken) < size:
        before = len(taken)
        for one in lists:
            for i in one:
                family = [j for j in taken if rows[j][1] == rows[i][1]]
                if i not in taken and len(family) < per_family and len(taken) < size:
                    taken.append(i)
                    break
        if len(taken) == before:
            break
    return taken


def take(rows: list[Row], size: int, per_family: int, subsets: int) -> list[int]:
    taken: list[int] = sizing.shortlist(
        [r[0] for r in rows],
        np.arange(len(rows)),
        np.array([r[1] for r in rows], np.int64),
        size=size,
        per_family=per_family,
        preferred=[np.array([r[2 + k] for r in rows], np.bool_) for k in range(subsets)],
    ).tolist()
    return taken


@given(ROWS, st.integers(1, 25), st.integers(1, 4), st.integers(0, 2))
@quick
def test_the_shortlist_respects_its_caps(
    rows: list[Row], size: int, per_family: int, subsets: int
) -> None:
    taken = take(rows, size, per_family, subsets)
    assert len(taken) == len(set(taken)) <= size
    families = [rows[i][1] for i in taken]
    assert all(families.count(f) <= per_family for f in families)
    held = [min(per_family, sum(r[1] == f for r in rows)) for f in {r[1] for r in rows}]
    assert len(taken) == min(size, sum(held))


@given(ROWS, st.integers(1, 25), st.integers(1, 4))
@quick
def test_one_list_equals_the_loop(rows: list[Row], size: int, per_family: int) -> None:
    assert take(rows, size, per_family, 0) == brute_force(rows, size, per_family, 0)


@given(ROWS, st.integers(1, 25), st.integers(1, 4), st.integers(1, 2))
@example(  # the second list's best shares a family with the pick before it
    [(1.0, 0, False, False), (1.0, 0, True, False), (2.0, 2, True, False), (3.0, 2, False, False)],
    2,
    1,
    1,
)
@quick
def test_lists_that_take_turns_equal_the_loop(
    rows: list[Row], size: int, per_family: int, subsets: int
) -> None:
    found = take(rows, size, per_family, subsets)
    assert found == brute_force(rows, size, per_family, subsets)


def test_an_empty_shortlist() -> None:
    none = np.array([], np.int64)
    assert sizing.shortlist(none, none, none, size=3, per_family=1).tolist() == []


@given(tp=st.integers(1, 64), size=st.floats(1, 1e9), link=st.floats(1e9, 1e12))
@quick
def test_allreduce_grows_with_ranks_and_is_free_alone(tp: int, size: float, link: float) -> None:
    def time(ranks: int) -> float:
        return float(
            sizing.allreduce_s(
                tp=ranks, message_bytes=size, link_bandwidth=link, step_latency_s=1e-6
            )
        )

    assert time(1) == 0
    assert time(tp + 1) > time(tp)
    assert time(tp) <= 2 * size / link + 2 * (tp - 1) * 1e-6 + 1e-12
