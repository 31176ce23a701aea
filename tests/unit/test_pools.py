"""Two pools split by length: every request once, each pool alone on its class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import sieve
from sieve.errors import InvalidInput
from sieve.pools import pools

Make = Callable[..., dict[str, Any]]


def spec(make_spec: Make) -> dict[str, Any]:
    return make_spec({"grid.axes.replicas": [1, 2], "grid.axes.tp": [1, 2]})


def test_every_request_is_in_one_class_and_gpus_are_equal(make_spec: Make) -> None:
    found = pools(spec(make_spec), "tp=1,replicas=1,weight_dtype=fp8",
                  "tp=1,replicas=1,weight_dtype=bf16")  # fmt: skip
    one = [row for row in found["rows"] if row["layout"] == "one pool"]
    two = [row for row in found["rows"] if row["layout"] == "two pools"]
    assert len(one) == 2
    assert len(two) >= 3
    assert {row["num_gpus"] for row in found["rows"]} == {2} == {found["num_gpus"]}
    for row in two:
        assert row["short"]["num_requests"] + row["long"]["num_requests"] == 100
        met = sum(
            row[name]["num_requests"] * row[name]["slo_attainment"] for name in ("short", "long")
        )
        assert row["slo_attainment"] == pytest.approx(met / 100)
        assert row["ttft_p99_s"] <= max(row["short"]["ttft_p99_s"], row["long"]["ttft_p99_s"])
    assert found["best_split"] in {row["split"] for row in two}


def test_one_pool_is_the_replay_of_that_many_replicas(make_spec: Make) -> None:
    given = spec(make_spec)
    one = "tp=1,replicas=1,weight_dtype=fp8"
    rows = pools(given, one, one)["rows"]
    assert rows[0]["candidate_ids"] == [
        sieve.replay(given, "tp=1,replicas=2,weight_dtype=fp8").data["candidate_id"]
    ]
    alone = sieve.replay(given, "tp=1,replicas=2,weight_dtype=fp8").data["metrics"]
    for name in ("ttft_p99_s", "tpot_p99_s", "slo_attainment", "output_tokens_per_s"):
        assert rows[0][name] == alone[name]


def test_what_cannot_be_compared_is_refused(make_spec: Make) -> None:
    one = "tp=1,replicas=1,weight_dtype=fp8"
    with pytest.raises(InvalidInput, match="leaves a pool without requests"):
        pools(spec(make_spec), one, one, splits=[1])
    closed = spec(make_spec)
    closed["traffic"]["synthetic"]["arrival"] = {"closed_loop": 4}
    with pytest.raises(InvalidInput, match="open-loop"):
        pools(closed, one, one)
