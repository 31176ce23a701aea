"""How many replicas: the search against trying every count."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sieve.errors import InvalidInput
from sieve.scaling import _fewest, scaling

Make = Callable[..., dict[str, Any]]
ONE = "tp=1,weight_dtype=fp8"


@pytest.mark.parametrize("first", [1, 2, 3, 7, 8, 9, 30, 31, 32, None])
def test_bisection_finds_the_first_that_clears(first: int | None) -> None:
    asked: list[int] = []

    def clears(count: int) -> bool:
        asked.append(count)
        return first is not None and count >= first

    assert _fewest(clears, 32) == first
    assert len(asked) <= 12


def busy(make_spec: Make) -> dict[str, Any]:
    return make_spec(
        {"traffic.synthetic.arrival": {"poisson_per_s": 400}, "traffic.synthetic.requests": 600,
         "slo": {"ttft_p99": "300 ms", "tpot_p99": "50 ms"}}
    )  # fmt: skip


def test_the_fewest_is_what_trying_all_finds(make_spec: Make) -> None:
    found = scaling(busy(make_spec), ONE, most=12)
    fewest = found["fewest_replicas"]
    assert fewest is not None
    assert fewest > 1
    by_count = {row["replicas"]: row["verdict"] for row in found["rows"]}
    assert by_count[fewest] == "clears"
    assert by_count[fewest - 1] != "clears"
    for count, verdict in by_count.items():
        assert (verdict == "clears") == (count >= fewest)


def test_throughput_at_saturation_grows_less_than_the_replicas(make_spec: Make) -> None:
    rows = scaling(busy(make_spec), ONE, most=8)["rows"]
    efficiency = [row["efficiency"] for row in rows]
    assert efficiency[0] == 1.0
    assert all(0 < e <= 1.02 for e in efficiency)
    assert efficiency[-1] < 1.0
    served = [row["saturation_tokens_per_s"] for row in rows]
    assert served == sorted(served)


def test_none_up_to_the_most_is_said(make_spec: Make) -> None:
    found = scaling(busy(make_spec), ONE, most=1)
    assert found["fewest_replicas"] is None
    assert [row["replicas"] for row in found["rows"]] == [1]


@pytest.mark.parametrize("most", [0, -1, 10**6])
def test_counts_without_sense_are_refused(make_spec: Make, most: int) -> None:
    with pytest.raises(InvalidInput, match="most replicas"):
        scaling(make_spec(), ONE, most=most)
