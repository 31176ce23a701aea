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
from sieve.arrays import FloatArray, IntArray
from sieve.context import RunContext
from sieve.formulas.race import race as run_race
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
    first = half["candidate_id"].gather(race(half, 1.0)).to_list()
    order = hopeful["candidate_id"].gather(race(hopeful, 1.0)).to_list()
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


def test_eased_limits_let_a_near_miss_lead(raced: tuple[RunContext, Grid]) -> None:
    context, grid = raced
    everyone = replace(context, exhaustive=True)
    ranked = run_stages(grid.candidates, everyone, stop_after=6).ranked
    hopeful = run_stages(grid.candidates, everyone, stop_after=4).ranked
    race = Preview(context)
    # With limits of 1,000 times as much everyone clears, and the cheapest leads.
    wide = hopeful["candidate_id"].gather(race(hopeful, 1000.0)).to_list()
    cost = dict(zip(ranked["candidate_id"], ranked["usd_per_mtok"], strict=True))
    costs = [cost[name] for name in wide if name in cost]
    assert costs == sorted(cost.values())
    strict = [cost[name] for name in ranked["candidate_id"]]
    assert strict != sorted(strict)
    reached = dict(zip(hopeful["candidate_id"], race.cleared(hopeful).tolist(), strict=True))
    for name, verdict in ranked.select("candidate_id", "verdict").iter_rows():
        assert reached.pop(name) == (cost[name] if verdict == "clears" else np.inf)
    assert set(reached.values()) <= {np.inf}


def test_nobody_enters_who_at_best_is_worse_than_what_enough_shapes_reach() -> None:
    """40 shapes of one candidate each, as many families; all clear at their bound, or none do."""
    order = np.arange(40)
    bound = np.arange(40.0)
    for clear, raced in ((True, 24), (False, 40)):
        asked: set[int] = set()

        def ask(rows: IntArray, _slack: float, asked: set[int] = asked) -> IntArray:
            asked |= set(rows.tolist())
            return rows

        def cleared(rows: IntArray, clear: bool = clear) -> FloatArray:
            return bound[rows] if clear else np.full(len(rows), np.inf)

        run_race([order], order, order, order, ask, cleared, bound, entries=80)
        assert asked == set(range(raced))


def test_the_first_round_takes_two_ends_of_a_shape_the_second_more_of_those_that_lead(
    raced: tuple[RunContext, Grid],
) -> None:
    context, grid = raced
    rounds: list[pl.DataFrame] = []

    class Race:
        def __call__(self, candidates: pl.DataFrame, slack: float) -> list[int]:
            if slack == 1.0:
                rounds.append(candidates)
            # The dearest first: an order that no closed form has.
            gpus = -candidates["num_gpus"].to_numpy()
            return np.lexsort((candidates["candidate_id"].to_numpy(), gpus)).tolist()

        def cleared(self, candidates: pl.DataFrame) -> FloatArray:
            return np.full(len(candidates), np.inf)

    plain = replace(context, preview=None)
    sized = run_stages(grid.candidates, plain, stop_after=3).ranked
    scored = s4_shortlist.score(sized, plain)
    chosen = s4_shortlist.choose(scored, replace(context, preview=Race())).admitted
    first, second = rounds
    assert first["candidate_id"].is_unique().all()
    limits = ["max_num_seqs", "max_num_batched_tokens"]
    shapes = first.select(SHAPE).unique()
    assert len(shapes) < len(first) <= 10
    for shape in shapes.iter_rows(named=True):
        assert (64, 512) in first.join(pl.DataFrame([shape]), on=SHAPE).select(limits).rows()
    assert set(first["candidate_id"]) < set(second["candidate_id"])
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
