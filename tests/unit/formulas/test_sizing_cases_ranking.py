"""Verdicts, ranks, windows and tracking against hand arithmetic and plain loops."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sieve.errors import InvalidInput
from sieve.formulas import sizing_cases as cases

quick = settings(deadline=None, derandomize=True, max_examples=100)


# --- ranking ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("point", "latency", "expected"),
    [
        (125, 0.4, "clears"), (124.9, 0.4, "point_only"), (100, 0.4, "point_only"),
        (99.9, 0.4, "misses"), (125, 0.5, "clears"), (125, 0.6, "point_only"),
        (125, 1.0, "point_only"), (125, 1.1, "misses"), (99, 0.1, "misses"),
        (100 * (1 - 1e-13), 0.1, "point_only"),
    ],
)  # fmt: skip
def test_verdict_at_the_ends(point: float, latency: float, expected: str) -> None:
    """True throughput lies in [x/1.25, 2x], so do latencies; targets are 100 and 1."""
    found = cases.verdict({
        "config": {"id": "a", "rate": point, "wait": latency, "other": None},
        "targets": {"rate": ["min", 100], "wait": ["max", 1]}, "e_over": 0.25, "e_under": 0.5,
    })  # fmt: skip
    assert found == {"verdict": expected}


@pytest.mark.parametrize(
    ("changes", "named"),
    [({"config": {}}, r"missing input: config\.rate"), ({"e_under": 1}, "below 1"),
     ({"e_over": -0.1}, "e_over"), ({"targets": {"rate": ["least", 1]}}, r"targets\.rate"),
     ({"targets": {"rate": 5}}, r"targets\.rate"), ({"config": {"rate": None}}, r"config\.rate")],
)  # fmt: skip
def test_verdict_refuses(changes: dict[str, Any], named: str) -> None:
    inputs = {"config": {"rate": 5}, "targets": {"rate": ["min", 1]}, "e_over": 0, "e_under": 0}
    assert cases.verdict(inputs) == {"verdict": "clears"}
    with pytest.raises(InvalidInput, match=named):
        cases.verdict({**inputs, **changes})


@given(
    values=st.lists(st.integers(1, 60), max_size=12), over=st.sampled_from([0.0, 0.05, 0.3]),
    under=st.sampled_from([0.0, 0.05, 0.3]),
)  # fmt: skip
@quick
def test_groups_equal_a_loop_over_intervals(values: list[int], over: float, under: float) -> None:
    rows = [{"id": f"k{i:02}", "rate": value, "other": 1} for i, value in enumerate(values)]
    found = cases.rank({"configs": rows, "metric": "rate", "e_over": over, "e_under": under})
    rest = sorted(rows, key=lambda r: (-r["rate"] / (1 + over), r["id"]))
    groups = []
    while rest:
        floor = rest[0]["rate"] / (1 + over) * (1 - 1e-12)
        groups.append([r["id"] for r in rest if r["rate"] / (1 - under) >= floor])
        rest = [r for r in rest if r["id"] not in groups[-1]]
    assert found["groups"] == groups
    assert found["separation_ratio"] == pytest.approx((1 + over) / (1 - under))
    # Beyond the separation ratio no two share a group.
    value = {row["id"]: row["rate"] for row in rows}
    for group in groups:
        ratio = max(value[i] for i in group) / min(value[i] for i in group)
        assert ratio <= found["separation_ratio"] * (1 + 1e-9)


# --- tracking --------------------------------------------------------------------------------


def test_windows_by_hand() -> None:
    events = [[-1, 100], [0, 1], [9.9, 2], [10, 4], [25, 8], [25.1, 100]]
    found = cases.windows({"events": events, "width": 10, "t0": 0, "t1": 25})
    assert found == {"rates": [0.3, 0.4, 1.6], "durations": [10, 10, 5]}
    # The end of a whole number of windows belongs to the last; the order does not matter.
    found = cases.windows({"events": [[20, 5], [0, 1]], "width": 10})
    assert found == {"rates": [0.1, 0.5], "durations": [10, 10]}
    found = cases.windows({"events": [], "width": 10, "t1": 15})
    assert found == {"rates": [0, 0], "durations": [10, 5]}


@given(
    times=st.lists(st.integers(-5, 40), min_size=1, max_size=20), tenths=st.integers(1, 30),
    t0=st.integers(-3, 3), t1=st.integers(4, 45),
)  # fmt: skip
@quick
def test_windows_lose_no_token(times: list[int], tenths: int, t0: int, t1: int) -> None:
    """In whole tenths: a window holds the events from its start up to its end."""
    events = [[t / 10, i + 1] for i, t in enumerate(times)]
    found = cases.windows({"events": events, "width": tenths / 10, "t0": t0 / 10, "t1": t1 / 10})
    starts = list(range(t0, t1, tenths))
    expected = [
        sum(i + 1 for i, t in enumerate(times) if start <= t < start + tenths and t <= t1)
        + sum(i + 1 for i, t in enumerate(times) if start + tenths == t == t1)
        for start in starts
    ]
    sums = [r * d for r, d in zip(found["rates"], found["durations"], strict=True)]
    assert sums == pytest.approx(expected)
    assert sum(found["durations"]) == pytest.approx((t1 - t0) / 10)


@pytest.mark.parametrize(
    ("inputs", "named"),
    [({"events": []}, "give t1"), ({"events": [[0, 1]]}, "t1: 0 is not after"),
     ({"events": [[5, 1]], "width": 0}, "width"),
     ({"events": [[5, 1]], "width": 1e-9}, "more than"),
     ({"events": [[5, -1]]}, r"events\[0\]\[1\]"),
     ({"events": [[5]]}, "a list of 2")],
)  # fmt: skip
def test_windows_refuse(inputs: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidInput, match=named):
        cases.windows(inputs)


def test_tracking_by_hand() -> None:
    """Measured 10, 20, 0, 5 tokens/s over 1, 2, 1, 2 s are 60 tokens; errors +2, -10, +3, 0."""
    found = cases.tracking({
        "predicted": [12, 15, 3, 5], "measured": [10, 20, 0, 5], "durations": [1, 2, 1, 2],
    })  # fmt: skip
    assert found == {
        "mean_error": pytest.approx(-5 / 60), "wape": pytest.approx(15 / 60),
        "cancellation": pytest.approx(10 / 60), "window_mape": pytest.approx(15),
        "max_abs_error": pytest.approx(0.25), "under_fraction": 0.25, "windows": 4,
        "zero_windows": 1,
    }  # fmt: skip


@given(
    pairs=st.lists(st.tuples(st.floats(0.1, 100), st.floats(0.1, 100)), min_size=1, max_size=20),
    sense=st.sampled_from([-1, 0, 1]),
)
@quick
def test_nothing_cancels_when_errors_have_one_sign(
    pairs: list[tuple[float, float]], sense: int
) -> None:
    measured = [m for _, m in pairs]
    predicted = [p if sense == 0 else m * (1 + sense * p / 101) for p, m in pairs]
    found = cases.tracking({"predicted": predicted, "measured": measured})
    assert 0 <= found["cancellation"] <= found["wape"]
    assert abs(found["mean_error"]) <= found["wape"] + 1e-12
    if sense:
        assert found["cancellation"] == pytest.approx(0, abs=1e-12)
        assert found["under_fraction"] == (sense < 0)


@pytest.mark.parametrize(
    ("inputs", "named"),
    [
        ({"predicted": [1], "measured": [1, 2]}, "expected equally many"),
        ({"predicted": [], "measured": []}, "predicted: has 0 entries"),
        ({"predicted": [1], "measured": [0]}, "all values are 0"),
        ({"predicted": [1], "measured": [1], "durations": [0]}, r"durations\[0\]: found 0"),
        ({"predicted": [1], "measured": [1], "durations": [1, 1]}, "expected equally many"),
        ({"predicted": [-1], "measured": [1]}, r"predicted\[0\]: found -1"),
    ],
)
def test_tracking_refuses(inputs: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidInput, match=named):
        cases.tracking(inputs)
