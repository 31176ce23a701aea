"""The race of short replays for the shortlist."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest

from sieve import preview
from sieve.api import prepare
from sieve.context import RunContext
from sieve.grid import Grid
from sieve.parallel import LocalExecutor
from sieve.pipeline import run_stages
from sieve.preview import Preview, with_preview
from sieve.spec import load_spec
from stages import s4_shortlist

Make = Callable[..., dict[str, Any]]
SHAPE = ["gpu", "tp", "pp", "replicas", "ep", "weight_dtype", "kv_cache_dtype"]


@pytest.fixture(scope="module")
def raced(make_spec: Make) -> tuple[RunContext, Grid]:
    spec = make_spec(
        {
            "traffic.synthetic.requests": 60,
            "traffic.synthetic.arrival": {"poisson_per_s": 40},
            "slo": {"ttft_p99": "300 ms", "tpot_p99": "20 ms"},
            "fleet.max_gpus": 4,
            "grid.axes.replicas": [1, 2],
            "grid.axes.kv_cache_dtype": ["auto", "fp8"],
            "grid.axes.max_num_seqs": [8, 64],
            "grid.axes.max_num_batched_tokens": [512, 2048],
            "shortlist": {"size": 4, "per_family": 2, "preview": 10},
        }
    )
    return prepare(load_spec(spec), LocalExecutor(2))


def test_a_race_orders_as_stage_6_does_and_replays_nobody_twice(
    raced: tuple[RunContext, Grid], monkeypatch: pytest.MonkeyPatch
) -> None:
    context, grid = raced
    everyone = replace(context, exhaustive=True)
    ranked = run_stages(grid.candidates, everyone, stop_after=6).ranked["candidate_id"].to_list()
    hopeful = run_stages(grid.candidates, everyone, stop_after=4).ranked
    replayed: list[int] = []
    run = preview.s5_simulate.run

    def counted(candidates: pl.DataFrame, context: RunContext, *, brief: bool) -> Any:
        replayed.append(len(candidates))
        return run(candidates, context, brief=brief)

    monkeypatch.setattr(preview.s5_simulate, "run", counted)
    race = Preview(context)
    half = hopeful[: len(hopeful) // 2]
    first = half["candidate_id"].gather(race(half)).to_list()
    order = hopeful["candidate_id"].gather(race(hopeful)).to_list()
    assert [name for name in order if name in ranked] == ranked
    assert first == [name for name in order if name in set(first)]
    assert sum(replayed) == len(hopeful)


def test_a_race_runs_over_the_beginning_at_level_one(
    raced: tuple[RunContext, Grid], monkeypatch: pytest.MonkeyPatch
) -> None:
    context, _ = raced
    monkeypatch.setattr(preview, "MOST_REQUESTS", 25)
    short = Preview(context).context
    assert len(short.requests) == 25
    assert (short.requests.arrival_s == context.requests.arrival_s[:25]).all()
    assert short.spec.run.traffic.levels == [1.0]
    assert len(context.requests) == 60
    assert context.spec.run.traffic.levels == [0.5, 1.0]


def test_the_first_round_takes_one_of_a_shape_the_second_more_of_those_that_lead(
    raced: tuple[RunContext, Grid],
) -> None:
    context, grid = raced
    rounds: list[pl.DataFrame] = []

    def race(candidates: pl.DataFrame) -> list[int]:
        rounds.append(candidates)
        # The dearest first: an order that no closed form has.
        gpus = -candidates["num_gpus"].to_numpy()
        return np.lexsort((candidates["candidate_id"].to_numpy(), gpus)).tolist()

    plain = replace(context, preview=None)
    sized = run_stages(grid.candidates, plain, stop_after=3).ranked
    scored = s4_shortlist.score(sized, plain)
    chosen = s4_shortlist.choose(scored, replace(context, preview=race)).admitted
    first, second = rounds
    assert len(first) == 10
    assert first.select(SHAPE).is_unique().all()
    assert set(first["candidate_id"]) < set(second["candidate_id"])
    assert not second.select(SHAPE).is_unique().all()
    dearest = second.sort("num_gpus", "candidate_id", descending=[True, False])
    assert chosen["candidate_id"][0] == dearest["candidate_id"][0]
    assert chosen["num_gpus"].to_list() == sorted(chosen["num_gpus"], reverse=True)
    assert max(chosen.group_by("gpu", "tp", "pp", "replicas").len()["len"]) <= 2


def test_the_plain_rules_and_a_preview_of_none_have_no_race(
    raced: tuple[RunContext, Grid], reference_spec: dict[str, Any]
) -> None:
    context, _ = raced
    assert with_preview(context).preview is not None
    limits = context.spec.run.shortlist.model_copy(update={"preview": 0})
    run = context.spec.run.model_copy(update={"shortlist": limits})
    assert with_preview(replace(context, spec=replace(context.spec, run=run))).preview is None
    plain, _ = prepare(load_spec(reference_spec), LocalExecutor(1))
    assert with_preview(plain).preview is None
