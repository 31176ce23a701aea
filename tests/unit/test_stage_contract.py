"""What every stage owes the runner: no row lost, declared reasons, declared columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest

from sieve import pipeline
from sieve.api import prepare
from sieve.frames import COLUMNS, KINDS, bound_column, columns_after
from sieve.parallel import make_executor
from sieve.spec import load_spec
from sieve.stage import Stage, StageResult, no_rejections, reject, split, verify
from stages import STAGES

Make = Callable[..., dict[str, Any]]
STAGE = Stage(1, "test", "for the test", reasons={"too_big": "infeasible"}, adds=("size",))


def rows(*ids: str) -> pl.DataFrame:
    return pl.DataFrame({"candidate_id": list(ids), "size": [float(len(i)) for i in ids]})


def rejected(*ids: str, kind: str = "infeasible", reason: str = "too_big") -> pl.DataFrame:
    return reject(rows(*ids), kind=kind, reason=reason, observed=2.0, limit=1.0, unit="bytes")


def test_an_honest_stage_passes() -> None:
    result = split(
        rows("a", "bb"), pl.Series([False, True]), kind="infeasible", reason="too_big",
        observed=pl.Series([1.0, 2.0]), limit=1.0, unit="bytes",
    )  # fmt: skip
    verify(STAGE, rows("a", "bb"), result)
    assert result.admitted["candidate_id"].to_list() == ["a"]
    assert result.rejected.row(0, named=True) == {
        "candidate_id": "bb", "size": 2.0, "kind": "infeasible", "reason": "too_big",
        "observed": 2.0, "limit": 1.0, "unit": "bytes",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("admitted", "thrown", "complaint"),
    [
        (rows("a"), rejected("b"), "3 rows in, 2 out"),
        (rows("a", "b"), rejected("b", "c"), "4 out"),
        (rows("a", "a"), rejected("b"), "came out twice"),
        (rows("a", "d"), rejected("b"), "exchanged"),
        (rows("a", "b").drop("size"), rejected("c"), "not added"),
        (rows("a", "b"), rejected("c", reason="too_small"), "undeclared"),
        (rows("a", "b"), rejected("c", kind="misses_slo"), "undeclared"),
    ],
)
def test_a_dishonest_stage_is_caught(
    admitted: pl.DataFrame, thrown: pl.DataFrame, complaint: str
) -> None:
    with pytest.raises(AssertionError, match=complaint):
        verify(STAGE, rows("a", "b", "c"), StageResult(admitted, thrown))


def test_the_runner_catches_a_stage_that_loses_a_row(
    make_spec: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, grid = prepare(load_spec(make_spec()), make_executor("local"))

    def lossy(candidates: pl.DataFrame, context: Any) -> StageResult:
        return StageResult(candidates.head(len(candidates) - 1), no_rejections(candidates))

    stage = replace(STAGE, adds=())
    monkeypatch.setattr(pipeline, "STAGES", (SimpleNamespace(STAGE=stage, run=lossy),))
    with pytest.raises(AssertionError, match="6 rows in, 5 out"):
        pipeline.run_stages(grid.candidates, context, stop_after=1)


def test_no_rejections_has_the_columns_of_a_rejection() -> None:
    empty = no_rejections(rows("a"))
    assert len(empty) == 0
    assert empty.columns == rejected("a").columns
    assert empty.schema == rejected("a").schema


def test_the_seven_stages_declare_what_the_contract_allows() -> None:
    stages = [module.STAGE for module in STAGES]
    assert [stage.number for stage in stages] == [1, 2, 3, 4, 5, 6, 7]
    assert [stage.name for stage in stages] == [
        "validity", "memory_fit", "batch_sizing", "shortlist", "simulate", "rank", "confirm",
    ]  # fmt: skip
    assert set(stages[0].reasons.values()) == {"infeasible"}
    assert set(stages[1].reasons.values()) == {"infeasible"}
    assert dict(stages[2].reasons) == {
        "pages": "infeasible",
        "tpot": "misses_slo",
        "slim": "misses_slo",
    }
    assert dict(stages[3].reasons) == {
        "bound_misses_slo": "misses_slo",
        "not_selected": "not_selected",
    }
    assert dict(stages[4].reasons) == {
        "queue_grows_without_bound": "misses_slo",
        "request_exceeds_cache": "infeasible",
    }
    assert dict(stages[5].reasons) == dict(stages[6].reasons) == {}
    assert {kind for stage in stages for kind in stage.reasons.values()} <= set(KINDS)


def test_columns_are_declared_once_and_by_the_stage_that_adds_them() -> None:
    names = [column.name for column in COLUMNS]
    assert len(names) == len(set(names))
    for module in STAGES:
        declared = {c.name for c in COLUMNS if c.stage == module.STAGE.number}
        assert declared <= set(module.STAGE.adds)
    assert columns_after(0)[0] == "candidate_id"
    assert set(columns_after(2)) < set(columns_after(3))


@pytest.mark.parametrize(
    ("metric", "column"),
    [
        ("ttft_p99_s", "ttft_p99_high_s"),
        ("output_tokens_per_s", "output_tokens_high_per_s"),
        ("output_tokens_per_s_per_gpu", "output_tokens_high_per_s_per_gpu"),
        ("goodput_per_s", "goodput_high_per_s"),
        ("slo_attainment", "slo_attainment_high"),
        ("usd_per_mtok", "usd_per_mtok_high"),
    ],
)
def test_bounds_stand_before_the_unit(metric: str, column: str) -> None:
    assert bound_column(metric, "high") == column


@pytest.mark.parametrize("engine", ["vllm", "reference"])
def test_an_empty_frame_passes_all_seven_stages(make_spec: Make, engine: str) -> None:
    context, grid = prepare(load_spec(make_spec(engine=engine)), make_executor("local"))
    outcome = pipeline.run_stages(grid.candidates.clear(), context)
    assert [stage["num_in"] for stage in outcome.stages] == [0] * 7
    assert outcome.is_complete
    assert (len(outcome.ranked), len(outcome.rejected)) == (0, 0)
    assert outcome.simulations is not None
    assert len(outcome.simulations) == 0
    assert {"candidate_id", "level", "ttft_p99_high_s"} <= set(outcome.simulations.columns)
    assert pipeline.answer_of(outcome, context)["status"] == "no_fit"


@pytest.mark.parametrize("engine", ["vllm", "reference"])
def test_stages_conserve_candidates(make_spec: Make, engine: str) -> None:
    spec = make_spec(
        {
            "engine": engine,
            "fleet.gpus": ["H100-SXM-80GB", "L40S-48GB"],
            "grid.axes.tp": [1, 2, 3, 16],
            "grid.axes.replicas": [1, 2, 3],
            "model": "Qwen/Qwen3-32B",
            "shortlist.size": 2,
        }
    )
    context, grid = prepare(load_spec(spec), make_executor("local"))
    outcome = pipeline.run_stages(grid.candidates, context)
    num_in = len(grid.candidates)
    for stage in outcome.stages:
        assert stage["num_in"] == num_in
        assert stage["num_admitted"] + stage["num_rejected"] == num_in
        assert sum(stage["reasons"].values()) == stage["num_rejected"]
        num_in = stage["num_admitted"]
    ids = [*outcome.ranked["candidate_id"], *outcome.rejected["candidate_id"]]
    assert sorted(ids) == sorted(grid.candidates["candidate_id"])
    assert outcome.rejected["reason"].null_count() == 0
    numbers = outcome.rejected.select("observed", "limit")
    assert not any(numbers.null_count().row(0))
    assert outcome.stages[0]["num_rejected"] > 0
    assert outcome.stages[1]["num_rejected"] > 0
    assert outcome.stages[3]["num_rejected"] > 0
