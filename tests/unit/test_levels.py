"""Who is best at each load, and what comes nearest to breaking."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sieve
from sieve.report.terminal import level_lines

Make = Callable[..., dict[str, Any]]


def test_more_load_needs_more_and_the_limit_is_named(make_spec: Make) -> None:
    changes = {
        "traffic.synthetic.arrival": {"poisson_per_s": 150},
        "traffic.synthetic.requests": 400,
        "traffic.levels": [0.25, 1.0, 20.0],
        "grid.axes.tp": [1],
        "grid.axes.replicas": [1, 2],
        "slo": {"ttft_p99": "300 ms", "tpot_p99": "20 ms"},
        "rank.objective": "num_gpus",
        "shortlist.exhaustive_below": 100,
    }
    result = sieve.run(make_spec(changes))
    rows = {row["level"]: row for row in result.data["levels"]}
    assert list(rows) == [0.25, 1.0, 20.0]
    assert rows[1.0]["candidate_id"] == result.data["ranking"][0]["candidate_id"]
    for row in rows.values():
        if row["verdict"] == "clears":
            assert row["used"] <= 1.0
        if row["verdict"] == "misses":
            assert row["used"] > 1.0
        assert row["candidate_id"] is None or row["nearest"] in {
            "ttft:p99<=300ms", "tpot:p99<=20ms"
        }  # fmt: skip
    assert rows[20.0]["verdict"] != "clears"


def test_lines_name_changes_only() -> None:
    row = {"candidate_id": "a", "verdict": "clears", "nearest": "x", "used": 0.5, "binds": None}
    rows = [{"level": level} | row for level in (0.5, 0.75)]
    rows.append({"level": 1.0} | row | {"candidate_id": "b", "used": 1.25, "binds": "kv_cache"})
    rows.append({"level": 2.0} | dict.fromkeys(row))
    lines = level_lines(rows)
    assert [line.split(":")[0] for line in lines[:2]] == ["From load 0.5", "From load 1"]
    assert "125 % of it; the KV cache is full" in lines[1]
    assert lines[2] == "At load 2 no replayed candidate keeps up."
    assert level_lines(rows[:2]) == []
