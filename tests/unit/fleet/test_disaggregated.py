"""Prefill and decode apart: by hand, against a plain loop, and what must hold for all traffic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sieve.arrays import Requests, SimResult
from sieve.errors import InvalidInput
from sieve.fleet.disaggregate import disaggregate
from sieve.sim.disaggregated import DecodePool, Link, blocks_of, disaggregated, sent
from sieve.sim.merge import blended, merge_results
from sieve.sim.replay import ReplaySettings, simulate
from sieve.sim.traffic_input import clock_of

Make = Callable[..., dict[str, Any]]
LIMITS = ReplaySettings(
    max_num_seqs=4, max_num_batched_tokens=64, num_gpu_blocks=40, block_size=4
)  # fmt: skip


def traffic(seed: int, n: int = 60) -> Requests:
    rng = np.random.default_rng(seed)
    return Requests(
        np.sort(rng.uniform(0, 20, n)), rng.integers(1, 60, n), rng.integers(1, 30, n)
    )  # fmt: skip


def run(
    requests: Requests, table: Any, prefill: int, decode: int, link: Link, block_bytes: float = 1e6
) -> SimResult:
    longest = int((requests.input_tokens + requests.output_tokens).max())
    clock = clock_of(table, LIMITS.max_num_seqs, longest)

    def first(part: Requests, lane: Any) -> SimResult:
        return simulate(part, table, LIMITS, prefill, lane=lane)

    pool = DecodePool(decode, LIMITS, clock, block_bytes)
    return disaggregated(requests, first, prefill, pool, link)


def test_one_request_by_hand(tables: Any) -> None:
    """Prefill 1 s; 3 blocks of 1 MB at 1 MB/s and 0.5 s more; two further tokens of 1 s each."""
    table = tables.affine(base=1.0)
    requests = Requests(np.array([2.0]), np.array([10]), np.array([3]))
    result = run(requests, table, 1, 1, Link(1e6, 0.5))
    assert result.first_token_s.tolist() == [6.5]
    assert result.finish_s.tolist() == [8.5]
    assert result.scheduled_s.tolist() == [2.0]
    assert int(result.gaps.sum()) == 2
    alone = Requests(np.array([2.0]), np.array([10]), np.array([1]))
    assert run(alone, table, 1, 1, Link(1e6, 0.5)).finish_s.tolist() == [3.0]


def test_time_of_decoding_is_told_by_its_part(tables: Any) -> None:
    """Ten tokens and one more are read for the second, twelve for the third: 0.01 s each."""
    requests = Requests(np.array([0.0]), np.array([10]), np.array([3]))
    whole = run(requests, tables.affine(base=1.0, per_context=0.01), 1, 1, Link(1e9))
    plain = run(requests, tables.affine(base=1.0), 1, 1, Link(1e9))
    more = whole.component_s - plain.component_s
    assert more.tolist() == pytest.approx([0.0, 0.0, 0.23, 0.0, 0.0])
    assert whole.finish_s[0] - plain.finish_s[0] == pytest.approx(0.23)


@pytest.mark.parametrize("prompt", [2, 10, 30, 60, 200])
def test_attention_of_decoding_is_read_between_its_grid_points(tables: Any, prompt: int) -> None:
    """The second token reads the prompt and one more, the third two; straight lines between."""
    context, cost_s = np.array([4.0, 20.0, 50.0, 120.0]), np.array([0.5, 0.6, 1.5, 1.9])
    table = replace(
        tables.affine(base=1.0), decode_batch=np.array([1.0, 2.0]), decode_context=context,
        decode_attention_s=np.stack([cost_s, 2 * cost_s]),
    )  # fmt: skip
    limits = replace(LIMITS, num_gpu_blocks=400, max_num_batched_tokens=256)
    expected = 0.0
    for tokens in (prompt + 1, prompt + 2):
        at = max(tokens, 4)
        i = min(int(np.searchsorted(context, at, side="right")) - 1, 2)
        slope = (cost_s[i + 1] - cost_s[i]) / (context[i + 1] - context[i])
        expected += cost_s[i] + (at - context[i]) * slope
    requests = Requests(np.array([0.0]), np.array([prompt]), np.array([3]))
    clock = clock_of(table, limits.max_num_seqs, prompt + 3)

    def first(part: Requests, lane: Any) -> SimResult:
        return simulate(part, table, limits, 1, lane=lane)

    found = disaggregated(requests, first, 1, DecodePool(1, limits, clock, 0.0), Link(1e9))
    assert found.finish_s[0] - found.first_token_s[0] == pytest.approx(2 + expected)


def test_transfers_queue_on_their_link() -> None:
    ready = np.array([3.0, 0.0, 1.0, 10.0])
    assert sent(ready, np.array([1.0, 2.0, 2.0, 1.0])).tolist() == [5.0, 2.0, 4.0, 11.0]


def plain_decode(
    arrival: Any, context: Any, tokens: Any, blocks: Any, table: Any
) -> tuple[list[float], list[float]]:
    """Return admissions and finishes of one decode engine, request by request, step by step."""
    n, now, free = len(arrival), 0.0, LIMITS.num_gpu_blocks
    admitted, finish = [0.0] * n, [0.0] * n
    waiting, running = list(range(n)), []
    left = {i: int(tokens[i]) for i in range(n)}
    while waiting or running:
        if not running and arrival[waiting[0]] > now:
            now = arrival[waiting[0]]
        while (
            waiting and arrival[waiting[0]] <= now and len(running) < LIMITS.max_num_seqs
            and blocks[waiting[0]] <= free
        ):  # fmt: skip
            i = waiting.pop(0)
            admitted[i], free = now, free - blocks[i]
            running.append(i)
        cached = [context[i] + int(tokens[i]) - left[i] + 1 for i in running]
        now += float(table.decode_step_s(len(running), sum(cached) / len(running)))
        for i in list(running):
            left[i] -= 1
            if left[i] == 0:
                finish[i], free = now, free + blocks[i]
                running.remove(i)
    return admitted, finish


@pytest.mark.parametrize("seed", range(6))
def test_the_decode_pool_is_a_plain_loop(tables: Any, seed: int) -> None:
    table = tables.affine(base=0.05, per_token=0.002, per_context=1e-5)
    requests = traffic(seed)
    link = Link(1e8)
    result = run(requests, table, 2, 1, link)
    lane = np.arange(len(requests)) % 2
    ones = replace(requests, output_tokens=np.ones(len(requests), np.int64))
    first = simulate(ones, table, LIMITS, 2, lane=lane)
    more = requests.output_tokens > 1
    there = first.finish_s.copy()
    for engine in (0, 1):
        rows = np.flatnonzero((lane == engine) & more)
        size = blocks_of(requests.input_tokens[rows], LIMITS) * 1e6
        there[rows] = sent(first.finish_s[rows], size / 1e8)
    rows = np.flatnonzero(more)
    rows = rows[np.argsort(there[rows], kind="stable")]
    whole = blocks_of(requests.input_tokens + requests.output_tokens, LIMITS)
    admitted, finish = plain_decode(
        there[rows], requests.input_tokens[rows], requests.output_tokens[rows] - 1, whole[rows],
        table,
    )  # fmt: skip
    assert result.first_token_s[rows] == pytest.approx(admitted, abs=1e-5)
    assert result.finish_s[rows] == pytest.approx(finish, abs=1e-5)
    assert np.array_equal(result.finish_s[~more], first.finish_s[~more])
    assert int(result.gaps.sum()) == int((requests.output_tokens - 1).sum())


def test_a_slower_link_is_never_better(tables: Any) -> None:
    table = tables.affine(base=0.05, per_token=0.002)
    requests = traffic(9)
    fast, slow = (run(requests, table, 1, 2, Link(rate)) for rate in (1e9, 1e7))
    assert slow.first_token_s.mean() > fast.first_token_s.mean()
    assert (fast.first_token_s >= fast.arrival_s).all()
    assert (fast.finish_s >= fast.first_token_s).all()


def test_a_closed_loop_keeps_its_users_busy(tables: Any) -> None:
    table = tables.affine(base=0.05, per_token=0.002)
    requests = replace(traffic(4), arrival_s=np.zeros(60), closed_loop_users=3)
    result = run(requests, table, 1, 1, Link(1e8))
    ends = np.sort(result.finish_s)
    assert result.arrival_s[:3].tolist() == [0, 0, 0]
    assert result.arrival_s[3:] == pytest.approx(ends[:-3], abs=1e-9)


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
def test_a_link_needs_bandwidth(rate: float) -> None:
    with pytest.raises(InvalidInput, match="bandwidth"):
        Link(rate)
    with pytest.raises(InvalidInput, match="latency"):
        Link(1e9, -1.0)


def test_pools_without_engines_or_room_are_told(tables: Any) -> None:
    table = tables.affine(base=1.0)
    requests = Requests(np.zeros(1), np.array([10]), np.array([3]))
    with pytest.raises(InvalidInput, match="at least one engine"):
        run(requests, table, 0, 1, Link(1e9))
    turns = replace(requests, previous=np.array([-1]), delay_s=np.zeros(1))
    with pytest.raises(InvalidInput, match="without sessions"):
        run(turns, table, 1, 1, Link(1e9))
    huge = Requests(np.zeros(1), np.array([100]), np.array([100]))
    assert run(huge, table, 1, 1, Link(1e9)).status == "request_exceeds_cache"


def test_parts_merge_to_the_whole(tables: Any) -> None:
    table = tables.affine(base=0.05, per_token=0.002)
    requests = traffic(2)
    lane = np.arange(60) % 3
    whole = simulate(requests, table, LIMITS, 3, lane=lane)
    rows = [np.flatnonzero(lane == k) for k in range(3)]
    parts = [simulate(requests.take(r), table, LIMITS) for r in rows]
    merged = merge_results(requests, parts, rows)
    for name in ("first_token_s", "finish_s", "gaps", "component_s"):
        assert np.allclose(getattr(merged, name), getattr(whole, name))
    assert merged.num_steps == whole.num_steps
    assert merged.makespan_s == pytest.approx(whole.makespan_s)
    with pytest.raises(InvalidInput, match="exactly once"):
        merge_results(requests, parts[:2], rows[:2])
    with pytest.raises(InvalidInput, match="exactly once"):
        merge_results(requests, parts, [rows[0], rows[0], rows[2]])


def test_evidence_is_weighed_by_time(tables: Any) -> None:
    measured = replace(tables.affine(base=1.0), component_evidence={"tokens": {"measured": 1.0}})
    bound = replace(measured, component_evidence={"tokens": {"roofline": 1.0}})
    mixed = blended([measured, bound], [np.array([3.0, 0, 0, 0, 0]), np.array([1.0, 0, 0, 0, 0])])
    assert mixed.component_evidence["tokens"] == {"measured": 0.75, "roofline": 0.25}


def test_every_ratio_of_the_gpus_is_tried(make_spec: Make) -> None:
    spec = make_spec({"grid.axes.tp": [1], "grid.axes.weight_dtype": ["fp8"]})
    found = disaggregate(spec, 4, link_gbs=50)
    pairs = [(row["prefill_engines"], row["decode_engines"]) for row in found["rows"]]
    assert sorted(pairs) == [(1, 3), (2, 2), (3, 1)]
    assert {row["num_gpus"] for row in [*found["rows"], *found["aggregated"]]} == {4}
    # Qwen3-8B: 36 layers, 8 KV heads of 128, keys and values in two bytes.
    assert found["rows"][0]["kv_bytes_per_token"] == 36 * 2 * 8 * 128 * 2
    assert found["kind"] == "estimate"
    assert found["assumptions"]
    best, rival = found["rows"][0]["headroom"], found["aggregated"][0]["headroom"]
    assert found["gain"] == pytest.approx(best / rival - 1)


@pytest.mark.parametrize(
    ("gpus", "link", "words"), [(1, 50.0, "2 to"), (4, 0.0, "bandwidth"), (4, -1.0, "bandwidth")]
)
def test_fleets_that_cannot_be_are_refused(
    make_spec: Make, gpus: int, link: float, words: str
) -> None:
    with pytest.raises(InvalidInput, match=words):
        disaggregate(make_spec(), gpus, link_gbs=link)
