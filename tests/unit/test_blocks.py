"""A grid searched in blocks gives what one block over everything gives."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

import sieve
from sieve import blocks, pipeline
from sieve.api import prepare
from sieve.dry import dry_run
from sieve.errors import InvalidInput, ResultError
from sieve.explain import explain
from sieve.grid import Grid, find
from sieve.parallel import LocalExecutor, RayExecutor
from sieve.pipeline import Outcome, candidates_table, run_grid
from sieve.results import life_of
from sieve.spec import load_spec

Make = Callable[..., dict[str, Any]]
AXES = {
    "tp": [1, 2, 4],
    "ep": {"values": [1, 2], "when": {"model.moe": True}, "otherwise": 1},
    "replicas": [1, 2, 3],
    "weight_dtype": ["bf16", "fp8"],
    "kv_cache_dtype": ["auto", "fp8"],
    "max_num_seqs": [8, 32, 512],
    "max_num_batched_tokens": [512, 2048, 4096],
    "long_prefill_token_threshold": {
        "values": [0, 256], "when": {"max_num_seqs": [32, 512]}, "otherwise": 0,
    },
}  # fmt: skip
NUMBER = 3 * 3 * 2 * 2 * 3 * (1 + 2 + 2)


@pytest.fixture(scope="module")
def spec(make_spec: Make) -> dict[str, Any]:
    return make_spec(
        {
            "model": "Qwen/Qwen3-14B",
            "traffic.synthetic.requests": 60,
            "traffic.synthetic.arrival": {"poisson_per_s": 60},
            "slo": {"ttft_p99": "80 ms", "tpot_p99": "30 ms"},
            "fleet.gpus": ["H100-SXM-80GB", "L4-24GB"],
            "fleet.max_gpus": 4,
            "grid.axes": AXES,
            "shortlist": {"size": 5, "per_family": 2, "preview": 8},
        }
    )


def outcome(
    spec: dict[str, Any], executor: Any = None, **options: Any
) -> tuple[Grid, Outcome, list[tuple[int, int]]]:
    context, grid = prepare(load_spec(spec), executor or LocalExecutor(2))
    calls: list[tuple[int, int]] = []
    found = run_grid(
        grid, context, stop_after=4, on_block=lambda *done: calls.append(done), **options
    )
    return grid, found, calls


@pytest.fixture(scope="module")
def whole(spec: dict[str, Any]) -> tuple[Grid, Outcome]:
    grid, found, calls = outcome(spec)
    assert not calls
    return grid, found


def timeless(stages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in stage.items() if k != "elapsed_s"} for stage in stages]


def assert_same(grid: Grid, blocked: Outcome, expected: Outcome) -> None:
    assert timeless(blocked.stages) == timeless(expected.stages)
    assert_frame_equal(blocked.ranked, expected.ranked, check_exact=True)
    mine, theirs = (candidates_table(grid, x).sort("candidate_id") for x in (blocked, expected))
    if len(mine) < len(theirs):  # of a reason with more than a thousand the first are kept
        assert max(n for stage in expected.stages for n in stage["reasons"].values()) > blocks.FIRST
        theirs = theirs.join(mine.select("candidate_id"), on="candidate_id", how="semi")
    assert_frame_equal(mine.select(theirs.columns), theirs, check_exact=True)


def test_the_whole_is_a_grid_where_every_stage_rejects(whole: tuple[Grid, Outcome]) -> None:
    grid, found = whole
    assert grid.index.num_candidates == len(grid.candidates) == 2 * NUMBER
    assert grid.index.size > 2 * NUMBER
    reasons = {reason for stage in found.stages for reason in stage["reasons"]}
    assert {"gpu_budget", "weights_overflow", "bound_misses_slo", "not_selected"} <= reasons
    assert len(found.ranked) == 5


def test_candidates_left_behind_are_dropped_on_the_way(
    spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = {**spec, "shortlist": {"size": 1, "per_family": 1, "preview": 0}}
    _, expected, _ = outcome(spec)
    narrowed: list[int] = []
    narrow = blocks._narrow

    def counted(grid: Grid, merged: blocks.Merged, context: Any) -> None:
        before = sum(map(len, merged.leading))
        narrow(grid, merged, context)
        narrowed.append(before - len(merged.leading[0]))

    monkeypatch.setattr(blocks, "LEADING", 5)
    monkeypatch.setattr(blocks, "_narrow", counted)
    grid, found, _ = outcome(spec, whole=0, block=40)
    assert_same(grid, found, expected)
    assert max(narrowed) > 0


@settings(
    max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(size=st.integers(1, 2 * NUMBER), workers=st.integers(1, 3))
def test_blocks_of_any_size_give_the_whole(
    size: int, workers: int, spec: dict[str, Any], whole: tuple[Grid, Outcome]
) -> None:
    grid, found, calls = outcome(spec, LocalExecutor(workers), whole=0, block=size)
    assert_same(grid, found, whole[1])
    assert calls[-1] == (grid.index.size, grid.index.size)
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)


@pytest.mark.parametrize(
    "change",
    [
        {"shortlist": {"size": 5, "per_family": 2, "preview": 0}},
        {"shortlist": {"size": 30, "per_family": 12, "preview": 40}},
        {"shortlist": {"exhaustive_below": 10_000}},
        {"rank": {"objective": ["num_gpus", "ttft_p99_s"]}},
        {"batch_sizing": "slim", "slo": {"e2e_p99": "2 s"}},
    ],
    ids=["closed_forms", "large", "everyone", "lexicographic", "slim"],
)
def test_blocks_give_the_whole_under_other_rules(
    change: dict[str, Any], spec: dict[str, Any]
) -> None:
    changed = {**spec, **change}
    _, expected, _ = outcome(changed)
    grid, found, _ = outcome(changed, whole=0, block=100)
    assert_same(grid, found, expected)


def test_the_plain_rules_in_blocks(reference_spec: dict[str, Any]) -> None:
    _, expected, _ = outcome(reference_spec)
    grid, found, _ = outcome(reference_spec, whole=0, block=1000)
    assert_same(grid, found, expected)


@pytest.mark.ray
def test_blocks_on_ray_give_the_whole(
    spec: dict[str, Any],
    whole: tuple[Grid, Outcome],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    grid, found, _ = outcome(spec, RayExecutor(workers=2), whole=0, block=300)
    assert_same(grid, found, whole[1])


def test_a_large_grid_keeps_the_best_and_the_first_of_each_reason(
    spec: dict[str, Any], whole: tuple[Grid, Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "KEPT", 40)
    monkeypatch.setattr(blocks, "FIRST", 3)
    monkeypatch.setattr(blocks, "NEAREST", 2)
    grid, found, _ = outcome(spec, whole=0, block=50)
    assert timeless(found.stages) == timeless(whole[1].stages)
    assert_frame_equal(found.ranked, whole[1].ranked, check_exact=True)
    kept = candidates_table(grid, found)
    everyone = candidates_table(grid, whole[1])
    assert len(kept) < 100 < len(everyone)
    rows = everyone.join(kept.select("candidate_id"), on="candidate_id", how="semi")
    assert_frame_equal(
        kept.sort("candidate_id").select(rows.columns), rows.sort("candidate_id"), check_exact=True
    )
    for reason, first in everyone.group_by("reason", maintain_order=True):
        here = set(first["candidate_id"].head(3)) - set(kept["candidate_id"])
        assert not here or reason == (None,) or reason[0] == "not_selected"
    best = everyone.filter(pl.col("score").is_not_null()).sort(
        "score", descending=True, maintain_order=True
    )
    assert set(best["candidate_id"].head(40)) <= set(kept["candidate_id"])


def test_a_run_in_blocks_says_so_and_explains_every_candidate(
    spec: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = sieve.run(spec, out=tmp_path / "whole")
    monkeypatch.setattr(pipeline, "WHOLE", 0)
    monkeypatch.setattr(blocks, "KEPT", 40)
    monkeypatch.setattr(blocks, "FIRST", 3)
    monkeypatch.setattr("sieve.api.WHOLE", 0)
    found = sieve.run(spec, out=tmp_path / "blocks")
    assert found.data["ranking"] == expected.data["ranking"]
    assert found.data["answer"] == expected.data["answer"]
    notes = [a["text"] for a in found.data["assumptions"] if a["about"] == "candidates"]
    assert len(notes) == 1
    assert f"holds {len(found.candidates):,} of {2 * NUMBER:,}" in notes[0]
    assert set(found.data["spec"]) == set(expected.data["spec"])
    events = (tmp_path / "blocks" / "events.jsonl").read_text().splitlines()
    progress = [e for e in map(json.loads, events) if e["event"] == "progress" and e["stage"] == 1]
    assert progress[-1]["done"] == progress[-1]["total"] > 2 * NUMBER
    assert progress[-1]["per_s"] > 0
    held = set(found.candidates["candidate_id"])
    # One of each fate that the folder does not hold, and one that it does.
    for (_, reason), rows in expected.candidates.group_by("stage", "reason"):
        missing = rows.filter(~pl.col("candidate_id").is_in(list(held)))
        for name in missing["candidate_id"].head(1):
            mine, theirs = explain(tmp_path / "blocks", name), life_of(tmp_path / "whole", name)
            row, full = mine.pop("candidate"), theirs.pop("candidate")
            assert mine == theirs, reason
            assert row == {key: full[key] for key in row}, reason
            # Metrics are of those that were replayed.
            assert not any(value for key, value in full.items() if key not in row)
    assert len(held) < 2 * NUMBER
    first = found.data["ranking"][0]["candidate_id"]
    assert explain(tmp_path / "blocks", first)["ranking"]["rank"] == 1
    with pytest.raises(ResultError, match="no candidate 'x' in this run; nearest"):
        explain(tmp_path / "blocks", "x")
    result = json.loads((tmp_path / "blocks" / "result.json").read_text())
    result["inputs"][0]["sha256"] = "other"
    (tmp_path / "blocks" / "result.json").write_text(json.dumps(result))
    name = next(x for x in expected.candidates["candidate_id"] if x not in held)
    with pytest.raises(ResultError, match="inputs have changed"):
        explain(tmp_path / "blocks", name)


def test_every_candidate_is_found_by_its_id(whole: tuple[Grid, Outcome]) -> None:
    grid = whole[0]
    ids = grid.candidates["candidate_id"].to_list()
    for place in (0, 17, len(ids) // 2, len(ids) - 1):
        number = find(grid, ids[place])
        assert number is not None
        assert grid.rows(np.array([number]))["candidate_id"].to_list() == [ids[place]]
    assert find(grid, ids[0] + ".x") is None
    assert find(grid, ids[0].replace(".tp1.", ".tp3.")) is None


def test_a_dry_run_of_a_very_large_grid_samples_it(
    spec: dict[str, Any], whole: tuple[Grid, Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sieve.dry.SAMPLED_ABOVE", 100)
    monkeypatch.setattr("sieve.dry.SAMPLED_BLOCK", 30)
    monkeypatch.setattr("sieve.dry.SAMPLES", 40)
    counts = dry_run(spec)
    assert counts["num_candidates"] == 2 * NUMBER
    assert counts["sampled"] < whole[0].index.size
    exact = whole[1].stages
    for mine, theirs in zip(counts["stages"], exact, strict=True):
        assert mine["num_in"] == pytest.approx(theirs["num_in"], rel=0.25)
    assert sum(counts["stages"][0]["reasons"].values()) == counts["stages"][0]["num_rejected"]


def test_too_many_to_replay_them_all_is_refused(
    spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "KEPT", 40)
    context, grid = prepare(load_spec(spec), LocalExecutor(1), exhaustive=True)
    with pytest.raises(InvalidInput, match=r"--exhaustive: \d+ candidates .* Shorten an axis"):
        run_grid(grid, context, whole=0)


def test_a_row_beyond_a_block_is_refused(make_spec: Make) -> None:
    axes = {
        "max_num_seqs": list(range(1, 2001)),
        "max_num_batched_tokens": {
            "values": list(range(1, 2001)), "when": {"max_num_seqs": [5]}, "otherwise": 2048,
        },
    }  # fmt: skip
    context, grid = prepare(load_spec(make_spec({"grid.axes": axes})), LocalExecutor(1))
    with pytest.raises(InvalidInput, match=r"have 4,000,000 combinations.*Shorten one"):
        run_grid(grid, context)
