"""Stress variants, and the order by the worst that happens."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from sieve.api import prepare
from sieve.arrays import PrefixBlocks, Requests
from sieve.jobs.stress import by_worst, stress, variants_of
from sieve.parallel import LocalExecutor
from sieve.pipeline import run_stages
from sieve.spec import load_spec

COST = SimpleNamespace(
    spec=SimpleNamespace(
        run=SimpleNamespace(rank=SimpleNamespace(objective="usd_per_mtok")), source="t"
    )
)


def entry(verdict="clears", used=0.5, usd=1.0, gpus=2):
    return {
        "verdict": verdict, "used": used, "objective": float(np.log(usd)), "num_gpus": gpus,
    }  # fmt: skip


def test_the_worst_verdict_decides_then_the_worst_cost():
    rows = {
        "cheap_but_breaks": [entry(usd=1.0), entry("misses", usd=1.0)],
        "dear": [entry(usd=3.0), entry(usd=3.0)],
        "mean": [entry(usd=1.0), entry(usd=2.0)],
        "stretch": [entry(usd=1.0), entry("point_only", usd=1.0)],
    }
    assert by_worst(rows, COST) == ["mean", "dear", "stretch", "cheap_but_breaks"]


def test_costs_within_three_percent_are_equal_and_room_decides():
    rows = {
        "tight": [entry(usd=1.00, used=0.95)],
        "roomy": [entry(usd=1.02, used=0.40)],
        "dearer": [entry(usd=1.04, used=0.10)],
    }
    assert by_worst(rows, COST) == ["roomy", "tight", "dearer"]


def test_an_unknown_is_the_worst():
    rows = {"unknown": [entry() | {"objective": None}], "known": [entry(usd=9.0)]}
    assert by_worst(rows, COST) == ["known", "unknown"]


def test_variants_by_hand():
    prefix = PrefixBlocks(16, np.array([0, 1, 2]), np.array([0, 0]), np.array([16, 16]))
    requests = Requests(
        np.array([30.0, 90.0]), np.array([16, 16]), np.array([10, 11]), prefix=prefix
    )
    found = variants_of(requests)
    assert found["rate_x1.25"].arrival_s.tolist() == [24.0, 72.0]
    assert found["rate_x1.5"].arrival_s.tolist() == [20.0, 60.0]
    assert found["bursts_x2"].arrival_s.tolist() == [15.0, 75.0]
    assert found["output_x1.2"].output_tokens.tolist() == [12, 14]
    assert found["cold_cache"].prefix is None
    loop = Requests(np.zeros(2), np.array([5, 5]), np.array([5, 5]), closed_loop_users=4)
    assert set(variants_of(loop)) == {"rate_x1.25", "rate_x1.5", "output_x1.2"}
    assert variants_of(loop)["rate_x1.5"].closed_loop_users == 6


def test_stress_never_makes_a_candidate_better(make_spec):
    context, grid = prepare(load_spec(make_spec()), LocalExecutor())
    ids = run_stages(grid.candidates, context, stop_after=6).ranked["candidate_id"].to_list()
    found = stress(grid.candidates, context, ids[:2])
    assert found["variants"] == ["rate_x1.25", "rate_x1.5", "bursts_x2", "output_x1.2"]
    assert found["best"] == found["candidates"][0]["candidate_id"]
    assert {c["candidate_id"] for c in found["candidates"]} == set(ids[:2])
    for candidate in found["candidates"]:
        used = {name: row["used"] for name, row in candidate["variants"].items()}
        assert used["rate_x1.5"] >= used["rate_x1.25"]
        assert candidate["worst"] in used
    assert stress(grid.candidates, context, []) is None


def test_candidates_that_must_be_replayed_are_taken_beside_the_shortlist(make_spec):
    from dataclasses import replace

    spec = make_spec({"shortlist.size": 1})
    context, grid = prepare(load_spec(spec), LocalExecutor())
    plain = run_stages(grid.candidates, context, stop_after=4)
    left = plain.rejected.filter(pl.col("reason") == "not_selected")["candidate_id"][0]
    taken = run_stages(grid.candidates, replace(context, always=(left,)), stop_after=4)
    assert taken.ranked["candidate_id"].to_list() == [
        *plain.ranked["candidate_id"].to_list(), left,
    ]  # fmt: skip
    assert taken.stages[3]["num_rejected"] == plain.stages[3]["num_rejected"] - 1


@pytest.mark.parametrize("name", ["none", "h100-sxm-80gb.tp9.pp1.ep1.r1.fp8.kv-auto.s1.b1"])
def test_a_must_that_is_not_there_changes_nothing(make_spec, name):
    from dataclasses import replace

    context, grid = prepare(load_spec(make_spec()), LocalExecutor())
    plain = run_stages(grid.candidates, context, stop_after=4).ranked
    forced = run_stages(grid.candidates, replace(context, always=(name,)), stop_after=4).ranked
    assert forced.equals(plain)
