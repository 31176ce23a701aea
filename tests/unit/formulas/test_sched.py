"""Cache sizes, pages, buckets, routing and estimates against arithmetic by hand and plain loops."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sieve.errors import InvalidInput
from sieve.formulas.sched import (
    bucket_admit,
    kv_bytes,
    kv_token_capacity,
    latency_estimate,
    little,
    paged,
    route,
)

quick = settings(deadline=None, derandomize=True, max_examples=150)


def test_one_token_of_llama_2_7b_takes_half_a_mebibyte() -> None:
    # Key and value, 32 layers, 32 heads of 128, two bytes.
    llama = {"layers": 32, "kv_heads": 32, "head_dim": 128, "tokens": 1}
    assert kv_bytes(llama) == {"bytes": 512 * 1024}
    assert kv_bytes({**llama, "bytes_per_element": 0.5, "batch": 3}) == {"bytes": 3 * 128 * 1024}
    assert kv_bytes({**llama, "layers": 1, "kv_heads": 1, "head_dim": 1, "bytes_per_element": 0.25}
    ) == {"bytes": 0.5}  # fmt: skip
    assert kv_bytes({**llama, "tokens": 0}) == {"bytes": 0}
    with pytest.raises(InvalidInput, match="layers: found 0"):
        kv_bytes({**llama, "layers": 0})


def test_cache_sizes_beyond_double_precision_stay_exact() -> None:
    big = {"layers": 10**6, "kv_heads": 10**6, "head_dim": 10**6, "tokens": 3, "batch": 1}
    assert kv_bytes(big) == {"bytes": 12 * 10**18}


def test_token_capacity() -> None:
    card = {"card_bytes": 100, "utilisation": 0.9, "weight_bytes": 50, "kv_bytes_per_token": 7}
    assert kv_token_capacity(card) == {"tokens": 5}  # 40 / 7
    assert kv_token_capacity({**card, "weight_bytes": 91}) == {"tokens": 0}
    # 0.7 x 3 is 2.0999999999999996 in binary; three tokens of 0.7 fit exactly.
    exact = {"card_bytes": 3, "utilisation": 0.7, "weight_bytes": 0, "kv_bytes_per_token": 0.7}
    assert kv_token_capacity(exact) == {"tokens": 3}
    for name, value in (("utilisation", 0), ("utilisation", 1.01), ("kv_bytes_per_token", 0)):
        with pytest.raises(InvalidInput, match=name):
            kv_token_capacity({**card, name: value})


# --- pages -----------------------------------------------------------------------------------


def test_pages_by_hand() -> None:
    """Pages of 4 tokens, 5 of them."""
    found = paged({
        "blocks": 5, "page_tokens": 4,
        "ops": [
            ["alloc", "a", 5],   # 2 pages, 3 free
            ["append", "a", 3],  # 8 tokens, still 2
            ["append", "a", 1],  # 9 tokens, 3 pages, 2 free
            ["alloc", "b", 9],   # 3 pages: refused
            ["append", "b", 1],  # refused with it
            ["alloc", "b", 8],   # 2 pages, 0 free
            ["append", "b", 1],  # refused, b keeps 8 tokens
            ["free", "a"],       # 3 free
            ["alloc", "a", 0],   # no page
        ],
    })  # fmt: skip
    assert found == {
        "free_blocks": 3, "tables": {"b": 2, "a": 0}, "waste_tokens": 0, "failed_ops": [3, 4, 6],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("ops", "named"),
    [
        ([["alloc", "a", 1], ["alloc", "a", 1]], r"ops\[1\]: 'a' is allocated already"),
        ([["alloc", 1, 1], ["alloc", "1", 1]], "allocated already"),
        ([["append", "a", 1]], "'a' is not allocated"),
        ([["free", "a"]], "'a' is not allocated"),
        ([["alloc", "a", 1], ["free", "a"], ["free", "a"]], r"ops\[2\]: 'a' is not allocated"),
        ([["alloc", "a", -1]], "at least 0"),
        ([["alloc", "a"]], "expected"),
        ([["grow", "a", 1]], "expected"),
        ([["alloc", [], 1]], "a text or a whole number"),
        ([[["alloc"], "a", 1]], "expected"),
        ([3], "expected"),
    ],
)
def test_pages_refuse(ops: list[Any], named: str) -> None:
    with pytest.raises(InvalidInput, match=named):
        paged({"blocks": 9, "ops": ops})


@given(
    blocks=st.integers(1, 12),
    page=st.integers(1, 8),
    plan=st.lists(
        st.tuples(
            st.sampled_from(["alloc", "append", "free"]), st.sampled_from("abcd"),
            st.integers(0, 30),
        ),
        max_size=30,
    ),
)  # fmt: skip
@quick
def test_pages_are_conserved(blocks: int, page: int, plan: list[tuple[str, str, int]]) -> None:
    """Token by token: a page is taken when a token finds no slot; a failure is rolled back."""
    live: dict[str, int] = {}
    ops: list[list[Any]] = []
    failed = []

    def pages_of(tokens: int) -> int:
        return len(range(0, tokens, page))

    for verb, name, count in plan:
        if (verb == "alloc") == (name in live):
            continue
        ops.append([verb, name] if verb == "free" else [verb, name, count])
        if verb == "free":
            del live[name]
            continue
        trial = {**live, name: live.get(name, 0) + count}
        if sum(map(pages_of, trial.values())) > blocks:
            failed.append(len(ops) - 1)
        else:
            live = trial
    found = paged({"blocks": blocks, "page_tokens": page, "ops": ops})
    assert found["tables"] == {name: pages_of(tokens) for name, tokens in live.items()}
    assert found["free_blocks"] + sum(found["tables"].values()) == blocks
    assert found["waste_tokens"] == sum(-tokens % page for tokens in live.values())
    assert found["failed_ops"] == failed


# --- buckets ---------------------------------------------------------------------------------


def test_buckets_by_hand() -> None:
    """Of 1,000 tokens: 500 short, 300 medium, 200 long."""
    queue = [["s1", 512], ["s2", 100], ["m1", 513], ["l1", 2049], ["m2", 600]]
    # Each head exceeds its quota, so nothing enters; with spill s1 enters, then nothing fits.
    assert bucket_admit({"queue": queue, "max_batch_tokens": 1000}) == {"admitted": []}
    spilled = bucket_admit({"queue": queue, "max_batch_tokens": 1000, "spill": True})
    assert spilled == {"admitted": ["s1", "s2"]}
    # 3,000: quotas 1,500, 900, 600; after 612 + 513 spill offers 1,875: m2 enters, l1 does not.
    assert bucket_admit({"queue": queue, "max_batch_tokens": 3000, "spill": True}) == {
        "admitted": ["s1", "s2", "m1", "m2"]
    }


def test_a_quota_is_not_lost_to_rounding() -> None:
    # 0.3 x 1,710 is 513 and not 512.99 in any rounding.
    assert bucket_admit({"queue": [[7, 513]], "max_batch_tokens": 1710}) == {"admitted": [7]}
    assert bucket_admit({"queue": [[7, 513]], "max_batch_tokens": 1709}) == {"admitted": []}


@given(
    lengths=st.lists(st.integers(1, 8192), max_size=25), most=st.integers(1, 20_000),
    spill=st.booleans(),
)  # fmt: skip
@quick
def test_buckets_keep_their_order_and_the_batch(lengths: list[int], most: int, spill: bool) -> None:
    queue = [[i, tokens] for i, tokens in enumerate(lengths)]
    admitted = bucket_admit({"queue": queue, "max_batch_tokens": most, "spill": spill})["admitted"]
    assert len(set(admitted)) == len(admitted)
    assert sum(lengths[i] for i in admitted) <= most
    for low, high, tenths in ((0, 512, 5), (512, 2048, 3), (2048, 8192, 2)):
        members = [i for i, tokens in enumerate(lengths) if low < tokens <= high]
        taken = [i for i in admitted if i in members]
        assert taken == members[: len(taken)]  # first come, first served
        if not spill:
            assert 10 * sum(lengths[i] for i in taken) <= tenths * most
            for head in members[len(taken) : len(taken) + 1]:
                assert 10 * (sum(lengths[i] for i in taken) + lengths[head]) > tenths * most - 10
    alone = bucket_admit({"queue": queue, "max_batch_tokens": most})["admitted"]
    assert admitted[: len(alone)] == alone


@pytest.mark.parametrize(
    ("queue", "named"),
    [
        ([["a", 8193]], "8193 tokens exceed the longest bucket"),
        ([["a", 0]], "at least 1"),
        ([["a"]], "a list of 2"),
        ([[1.5, 3]], "text or a whole number"),
    ],
)
def test_buckets_refuse(queue: list[Any], named: str) -> None:
    with pytest.raises(InvalidInput, match=named):
        bucket_admit({"queue": queue, "max_batch_tokens": 100})


# --- routing and estimates -------------------------------------------------------------------


@pytest.mark.parametrize("max_tokens", [1, 512, 513])
@pytest.mark.parametrize("priority", ["high", "normal", "HIGH"])
@pytest.mark.parametrize("estimated", [1, 4096, 4097])
@pytest.mark.parametrize("load", [0.0, 0.69, 0.7, 3.0])
def test_route_is_the_printed_chain(
    max_tokens: int, priority: str, estimated: int, load: float
) -> None:
    if max_tokens <= 512 and priority == "high":
        expected = "latency"
    elif estimated > 4096:
        expected = "throughput"
    else:
        expected = "latency" if load < 0.7 else "throughput"
    inputs = {"max_tokens": max_tokens, "priority": priority, "latency_load": load}
    assert route({**inputs, "estimated_tokens": estimated}) == {"replica": expected}


@given(
    steps=st.integers(0, 300), batch=st.floats(1, 500),
    leave=st.one_of(st.sampled_from([0.0, 1e-9, 1.0]), st.floats(0, 1)),
)  # fmt: skip
@quick
def test_latency_equals_the_sum_over_steps(steps: int, batch: float, leave: float) -> None:
    expected, b = 0.25, batch
    for _ in range(steps):
        expected += 0.003 + 0.001 * b
        b = max(1.0, b * (1 - leave))
    found = latency_estimate({
        "queue_time": 0.2, "prefill_time": 0.05, "gen_len": steps, "batch": batch,
        "base": 0.003, "per_seq": 0.001, "leave_rate": leave,
    })  # fmt: skip
    assert found["latency_s"] == pytest.approx(expected, rel=1e-9)


def test_latency_of_a_long_generation_needs_no_loop() -> None:
    found = latency_estimate({
        "queue_time": 0, "prefill_time": 0, "gen_len": 10**12, "batch": 2, "base": 0,
        "per_seq": 1, "leave_rate": 0.5,
    })  # fmt: skip
    assert found["latency_s"] == 10**12 + 1


@pytest.mark.parametrize(("name", "value"), [("batch", 0.5), ("leave_rate", 1.5), ("gen_len", -1)])
def test_latency_refuses(name: str, value: float) -> None:
    inputs = {
        "queue_time": 0, "prefill_time": 0, "gen_len": 5, "batch": 2, "base": 0, "per_seq": 1,
        "leave_rate": 0.5,
    }  # fmt: skip
    with pytest.raises(InvalidInput, match=name):
        latency_estimate({**inputs, name: value})


def test_four_times_the_throughput_at_three_times_the_latency_needs_twelve_times_the_batch() -> (
    None
):
    assert little({"batch_ratio": 12, "latency_ratio": 3}) == {"throughput_ratio": 4.0}
    with pytest.raises(InvalidInput, match="latency_ratio: found 0"):
        little({"batch_ratio": 12, "latency_ratio": 0})
    with pytest.raises(InvalidInput, match="too large or too small"):
        little({"batch_ratio": 1e300, "latency_ratio": 1e-300})
    assert math.isfinite(little({"batch_ratio": 1e-300, "latency_ratio": 1e3})["throughput_ratio"])
