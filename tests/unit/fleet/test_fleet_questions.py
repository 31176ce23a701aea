"""`sieve.fleet`: searches against trying everything, replays against each other, bad input."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import sieve
from sieve.arrays import Requests
from sieve.errors import InvalidInput, TraceError
from sieve.fleet.diurnal import diurnal, serving, with_dwell
from sieve.fleet.levels import levels
from sieve.fleet.mix import Point, choice, dealt, mix
from sieve.fleet.shapes import fewest, highest_level, load_shapes, point
from sieve.fleet.size import compare, size
from sieve.pools import pools
from sieve.traces import at_level

Make = Callable[..., dict[str, Any]]
ONE = "tp=1,weight_dtype=fp8"


@pytest.fixture
def busy(make_spec: Make) -> dict[str, Any]:
    return make_spec(
        {"traffic.synthetic.arrival": {"poisson_per_s": 300}, "traffic.synthetic.requests": 600,
         "slo": {"ttft_p99": "300 ms", "tpot_p99": "50 ms"}, "fleet.max_gpus": 8}
    )  # fmt: skip


@pytest.mark.parametrize("edge", [0.02, 0.5, 0.99, 1.0, 1.7, 60.0])
def test_the_highest_level_is_found_to_a_hundredth(edge: float) -> None:
    asked: list[float] = []

    def clears(level: float) -> bool:
        asked.append(level)
        return level <= edge

    found = highest_level(clears)
    assert found is not None
    assert edge / 1.0101 <= found <= edge
    assert len(asked) < 20
    assert highest_level(lambda _: False) is None
    assert highest_level(lambda _: True) == 256


def test_no_count_clears_where_none_is_allowed() -> None:
    assert fewest(lambda _: True, 0) is None
    assert fewest(lambda k: k >= 5, 4) is None
    assert fewest(lambda k: k >= 3, 4) == 3


def test_size_is_the_fewest_of_each_shape(busy: dict[str, Any]) -> None:
    found = size(busy, count=4)
    assert found["num_shapes"] == 6
    context, shapes, _ = load_shapes(busy, count=4)
    by_name = {shape.name: shape for shape in shapes}
    assert len(found["rows"]) == len(by_name)
    for row in found["rows"]:
        replicas = row["replicas"]
        shape = next(s for s in shapes if s.candidate_id(replicas) == row["candidate_ids"][0])
        assert row["num_gpus"] == replicas * shape.gpus <= 8
        assert row["usd_per_hour"] == pytest.approx(3.6 * row["num_gpus"])
        tried = [
            point(shape, k, context.requests)["verdict"] for k in range(1, 8 // shape.gpus + 1)
        ]
        clearing = [k for k, verdict in enumerate(tried, 1) if verdict == "clears"]
        if clearing:
            assert replicas == clearing[0]
            assert row["verdict"] == "clears"
    clears = [row for row in found["rows"] if row["verdict"] == "clears"]
    assert clears, "the case must have an answer"
    fewest_gpus = min(row["num_gpus"] for row in clears)
    named = next(r for r in found["rows"] if r["candidate_ids"][0] == found["fewest_gpus"])
    assert named["num_gpus"] == fewest_gpus


def test_equal_gpus_are_filled_and_ordered_by_load(busy: dict[str, Any]) -> None:
    found = compare(busy, 3, count=6)
    rows = found["rows"]
    assert {row["num_gpus"] + row["left_over_gpus"] for row in rows} == {3}
    assert {row["left_over_gpus"] for row in rows} == {0, 1}
    loads = [row["headroom"] or 0.0 for row in rows]
    assert loads == sorted(loads, reverse=True)
    best = rows[0]
    context, shapes, _ = load_shapes(busy, count=6)
    shape = next(s for s in shapes if s.candidate_id(best["replicas"]) == best["candidate_ids"][0])
    at = at_level(context.requests, best["headroom"])
    assert point(shape, best["replicas"], at)["verdict"] == "clears"
    with pytest.raises(InvalidInput, match="--gpus"):
        compare(busy, 0)


def test_winners_change_where_the_first_gives_way(make_spec: Make) -> None:
    spec = make_spec(
        {
            "traffic.synthetic.arrival": {"poisson_per_s": 150},
            "traffic.synthetic.requests": 400,
            "traffic.levels": [0.25, 1.0],
            "grid.axes.tp": [1],
            "grid.axes.weight_dtype": ["fp8"],
            "grid.axes.replicas": [1, 2],
            "slo": {"ttft_p99": "300 ms", "tpot_p99": "18 ms"},
            "rank.objective": "num_gpus",
            "shortlist.exhaustive_below": 100,
        }
    )
    found = levels(spec)
    ids = [row["candidate_id"] for row in found["levels"]]
    assert [".r1." in ids[0], ".r2." in ids[1]] == [True, True]
    (change,) = found["changes"]
    assert 0.25 < change["level"] < 1.0
    assert (change["from_id"], change["to_id"]) == (ids[0], ids[1])
    assert change["because"] == "limit"
    assert change["used"] > 1.0
    # Well below the load the first clears, at it it does not; between, the verdict may flicker.
    shape = load_shapes(spec, [ids[0]])[1][0]
    verdicts = [
        point(shape, 1, at_level(shape.context.requests, change["level"] * f))["verdict"]
        for f in (0.85, 1.0)
    ]
    assert verdicts[0] == "clears" != verdicts[1]


def test_requests_are_dealt_by_weight() -> None:
    weights = np.array([5.0, 1.0, 2.0])
    lane = dealt(weights, 800)
    assert np.bincount(lane).tolist() == [500, 100, 200]
    for k in (10, 77, 400):
        share = np.bincount(lane[:k], minlength=3) - k * weights / 8
        assert np.abs(share).max() <= 1.0
    assert dealt(np.array([1.0]), 3).tolist() == [0, 0, 0]


@pytest.mark.parametrize("budget", [None, 7.0])
def test_the_program_finds_what_enumeration_finds(budget: float | None) -> None:
    rng = np.random.default_rng(5)
    for _ in range(20):
        points = [
            Point(
                SimpleNamespace(name=name, gpus=1),  # type: ignore[arg-type]
                k,
                float(k * speed * rng.uniform(0.9, 1.0)),
                float(k * price),
            )
            for name, speed, price in zip(
                "abc", rng.uniform(0.2, 1, 3), rng.uniform(1, 3, 3), strict=True
            )
            for k in (1, 2, 3)
        ]
        best = None
        for combo in product(range(4), repeat=3):
            picked = [points[3 * i + k - 1] for i, k in enumerate(combo) if k]
            capacity, cost = sum(p.capacity for p in picked), sum(p.usd_per_hour for p in picked)
            if not picked or sum(combo) > 5:
                continue
            if budget is None and capacity < 1.0:
                continue
            if budget is not None and cost > budget:
                continue
            value = -cost if budget is None else capacity
            best = value if best is None else max(best, value)
        found = [points[i] for i in choice(points, 5, 1.0, budget)]
        if best is None:
            assert found == []
            continue
        assert sum(p.gpus for p in found) <= 5
        mine = (
            -sum(p.usd_per_hour for p in found)
            if budget is None
            else sum(p.capacity for p in found)
        )
        assert mine == pytest.approx(best, rel=1e-5)


def test_a_mix_is_replayed_whole_and_no_worse_than_one_type(busy: dict[str, Any]) -> None:
    busy["fleet"] |= {
        "gpus": ["H100-SXM-80GB", "L40S-48GB"],
        "usd_per_gpu_hour": {"H100-SXM-80GB": 3.6, "L40S-48GB": 1.1},
    }
    found = mix(busy, count=3)
    row = found["mix"]
    assert row["verdict"] == "clears"
    assert sum(pool["share"] for pool in row["pools"]) == pytest.approx(1.0)
    assert sum(pool["num_gpus"] for pool in row["pools"]) == row["num_gpus"] <= 8
    assert found["gain"] is not None
    assert found["gain"] >= 0
    for single in found["single"].values():
        if single and single["verdict"] == "clears":
            assert row["usd_per_hour"] <= single["usd_per_hour"]
    limited = mix(busy, budget=5.0, count=3)["mix"]
    assert limited["usd_per_hour"] <= 5.0
    assert limited["served_level"] > 0


def test_a_budget_below_one_gpu_and_traffic_without_time_are_refused(
    busy: dict[str, Any], make_spec: Make
) -> None:
    with pytest.raises(InvalidInput, match="below the cheapest replica"):
        mix(busy, budget=1.0)
    for bad in (0.0, -3.0, float("nan"), float("inf")):
        with pytest.raises(InvalidInput, match="--budget"):
            mix(busy, budget=bad)
    closed = make_spec({"traffic.synthetic.arrival": {"closed_loop": 4}})
    with pytest.raises(InvalidInput, match="open-loop"):
        mix(closed)
    burst = make_spec({"traffic.synthetic.arrival": {"burst": True}})
    with pytest.raises(InvalidInput, match="all at once"):
        mix(burst)


def test_dwell_keeps_replicas_and_growth_waits_for_the_start() -> None:
    needed = np.array([1, 1, 4, 1, 1, 2])
    assert with_dwell(needed, 1).tolist() == needed.tolist()
    assert with_dwell(needed, 2).tolist() == [2, 1, 4, 4, 1, 2]
    edges = np.arange(7) * 100.0
    late = serving(needed, edges, 30.0, 0.0)
    assert late.tolist() == [[0, 1], [100, 1], [230, 4], [300, 1], [400, 1], [530, 2]]
    ahead = serving(needed, edges, 30.0, 30.0)
    assert ahead[:, 0].tolist() == [0, 100, 200, 300, 400, 500]


def test_a_day_costs_less_scheduled_and_serves_every_request(make_spec: Make) -> None:
    spec = make_spec(
        {"traffic.synthetic.arrival": {"poisson_per_s": 100}, "traffic.synthetic.requests": 500,
         "slo": {"ttft_p99": "300 ms", "tpot_p99": "50 ms"}}
    )  # fmt: skip
    profile = [0.2, 0.2, 3.0, 3.0, 0.2, 0.2]
    found = diurnal(
        spec, ONE, profile=profile, window_s=60, start_up_s=30, dwell=1, most=16
    )  # fmt: skip
    windows, policies = found["windows"], found["policies"]
    total = sum(row["num_requests"] for row in windows)
    assert total == pytest.approx(100 * 60 * sum(profile), rel=0.02)
    rates = np.array([row["num_requests"] for row in windows]) / np.array(profile)
    assert np.ptp(rates) < 0.15 * rates.mean()
    peak = windows[2]["fewest"]
    assert peak > 1 == windows[0]["fewest"]
    assert policies["static"]["gpu_hours"] == pytest.approx(peak * 360 / 3600)
    grown = peak - 1
    held = (4 + 2 * peak) * 60 / 3600
    assert policies["scheduled"]["gpu_hours"] == pytest.approx(held)
    assert policies["ahead"]["gpu_hours"] == pytest.approx(held + grown * 30 / 3600)
    month = policies["static"]["usd_per_month"]
    assert month == pytest.approx(peak * 3.6 * 730)
    # Thirty seconds of a threefold load on one replica: what a late start costs.
    assert policies["scheduled"]["num_violations"] > policies["ahead"]["num_violations"]
    assert policies["scheduled"]["worst_window"] == 2
    assert policies["static"]["slo_attainment"] >= 0.99


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"profile": [1.0]}, "1 windows"),
        ({"profile": [1.0, -1.0]}, "0 to 100"),
        ({"profile": [0.0, 0.0]}, "no traffic"),
        ({"profile": [1.0, 2.0], "window_s": 1.0}, "--window"),
        ({"profile": [1.0, 2.0], "start_up_s": 4000.0}, "--start-up"),
        ({"profile": [1.0, 2.0], "dwell": 0}, "--dwell"),
        ({"profile": [1.0, 2.0], "most": 0}, "--most"),
        ({}, "give --profile"),
        ({"profile": [90.0, 90.0], "most": 1}, "1 replicas of"),
    ],
)
def test_days_that_cannot_be_are_refused(
    make_spec: Make, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidInput, match=words):
        diurnal(make_spec(), ONE, **options)


def test_a_trace_of_several_windows_needs_no_profile(make_spec: Make) -> None:
    spec = make_spec({"traffic.synthetic.arrival": {"poisson_per_s": 0.5}})
    found = diurnal(spec, ONE, window_s=60, start_up_s=10)
    assert sum(row["num_requests"] for row in found["windows"]) == 100
    assert {row["fewest"] for row in found["windows"]} == {1}


def test_lanes_that_leave_a_request_out_are_refused(make_spec: Make) -> None:
    from sieve.sim.replay import simulate

    _, (shape,), _ = load_shapes(make_spec(), [ONE])
    requests = Requests(np.arange(4.0), np.full(4, 50), np.full(4, 5))
    for lane in ([0, 1, 2, 0], [0, -1, 0, 0], [0, 0]):
        with pytest.raises(InvalidInput, match="needs a replica"):
            simulate(requests, shape.table, shape.settings, 2, lane=np.array(lane))
    turns = Requests(
        np.zeros(2), np.full(2, 50), np.full(2, 5), previous=np.array([-1, 0]), delay_s=np.zeros(2)
    )
    with pytest.raises(InvalidInput, match="one replica"):
        simulate(turns, shape.table, shape.settings, 2, lane=np.array([0, 1]))


def test_zero_replicas_are_refused(make_spec: Make) -> None:
    with pytest.raises(sieve.errors.SieveError):
        sieve.run(make_spec({"grid.axes.replicas": [0]}))


def test_a_clock_of_shorter_traffic_is_refused(make_spec: Make) -> None:
    _, (shape,), _ = load_shapes(make_spec(), [ONE])
    longer = Requests(np.zeros(1), np.array([9000]), np.array([5]))
    with pytest.raises(InvalidInput, match="clock is shorter"):
        shape.replay(longer, 1)


def test_pools_may_be_split_by_the_priority_of_a_trace(make_spec: Make, tmp_path: Path) -> None:
    lines = [
        f'{{"timestamp": {100 * i}, "input_length": 200, "output_length": 20, "priority": {i % 2}}}'
        for i in range(40)
    ]
    (tmp_path / "urgent.jsonl").write_text("\n".join(lines))
    spec = make_spec(
        {"traffic": {"trace": str(tmp_path / "urgent.jsonl"), "format": "mooncake_trace"},
         "slo": {"classes": {"urgent": {"where": "priority<=0", "ttft_p99": "2 s"}}}}
    )  # fmt: skip
    one = "tp=1,replicas=1,weight_dtype=fp8"
    found = pools(spec, one, one, by="priority")
    assert found["best_split"] == 0
    two = next(row for row in found["rows"] if row["layout"] == "two pools")
    assert two["short"]["num_requests"] == two["long"]["num_requests"] == 20
    assert two["verdict"] == "clears"
    (tmp_path / "urgent.jsonl").write_text(
        "\n".join([*lines, lines[0].replace(', "priority": 0', "")])
    )
    with pytest.raises(TraceError, match="line 41: no priority"):
        pools(spec, one, one, by="priority")
    with pytest.raises(InvalidInput, match="no priorities"):
        pools(make_spec(), one, one, by="priority")
    with pytest.raises(InvalidInput, match="split by"):
        pools(make_spec(), one, one, by="colour")
