"""Runs the stages in order, holds each to its contract, and puts the answer together."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl
import polars.selectors as cs

from sieve.blocks import BLOCK, search
from sieve.calibration.apply import COLUMNS as CORRECTIONS
from sieve.context import RunContext
from sieve.frames import (
    AXES,
    METRICS,
    REJECTION_COLUMNS,
    RESAMPLES,
    bound_column,
    columns_after,
    engine_option,
)
from sieve.grid import Grid
from sieve.perf.estimate import Ends, Estimates
from sieve.perf.replay_cost import ReplayCost, replay_cost
from sieve.preview import with_preview
from sieve.ranking.answer import nearest_misses, settle, status_of, winners
from sieve.ranking.objective import metrics_of
from sieve.ranking.verdicts import Limit, class_verdicts, limits_of
from sieve.remedies import with_remedies
from sieve.spec import SloSet
from sieve.spec.slo import latency_column
from sieve.stage import Stage, StageResult, verify
from stages import STAGES, s5_simulate, s6_rank

_COSTED = 50_000
"""Candidates of a part of a grid whose replay is estimated; they stand for all."""
_KINDS = 400
"""Of these, so many kinds that differ by more than their seats."""
WHOLE = 1_000_000
"""A grid of more combinations is searched in blocks, and its run folder holds a part of it."""
NO_SLOS = SloSet()
EXIT_CODES = {"answer": 0, "no_fit": 3, "no_slo": 4, "weak_evidence": 5}
_RANKING_FACTS = (
    "rank", "tie_group", "candidate_id", "gpu", "tp", "pp", "ep", "replicas", "num_gpus",
    "weight_dtype", "kv_cache_dtype", "max_num_seqs", "max_num_batched_tokens", "verdict", "tie",
    "pareto",
)  # fmt: skip


@dataclass(eq=False)
class Outcome:
    """What the stages left behind.

    Attributes:
        stages: one record a stage, as in `result.json`.
        ranked: candidates that reached the end, in order.
        rejected: all rejected candidates with the number of the stage, in order of rejection.
        simulations: one row per candidate and level.
        files: text files below the run folder.
        is_partial: whether only a part of the grid is kept.
        num_hopeful: candidates that stage 4's bounds let through, where it is partial.
        simulated: candidates that stage 5 admitted, with the resamples of their metrics.
    """

    stages: list[dict[str, Any]] = field(default_factory=list)
    ranked: pl.DataFrame = field(default_factory=pl.DataFrame)
    rejected: pl.DataFrame = field(default_factory=pl.DataFrame)
    simulations: pl.DataFrame | None = None
    files: dict[str, str] = field(default_factory=dict)
    is_partial: bool = False
    num_hopeful: int = 0
    simulated: pl.DataFrame = field(default_factory=pl.DataFrame)

    @property
    def is_complete(self) -> bool:
        """Whether every stage ran."""
        return len(self.stages) == len(STAGES)


def run_grid(
    grid: Grid,
    context: RunContext,
    *,
    whole: int | None = None,
    block: int | None = None,
    stop_after: int = len(STAGES),
    on_stage: Callable[[Mapping[str, Any]], None] | None = None,
    on_block: Callable[[int, int], None] | None = None,
    preview: bool = True,
) -> Outcome:
    """Return the outcome of the first `stop_after` stages over a grid of any size.

    Args:
        grid: candidates.
        context: of the run.
        whole: a grid of more combinations is searched in blocks, and not all of it is kept;
            default: `WHOLE`.
        block: combinations of a block; default: `blocks.BLOCK`.
        stop_after: number of the last stage.
        on_stage: called with each stage's record.
        on_block: called with (done, total) combinations of a search in blocks.
        preview: whether stage 4 may ask for short replays.
    """
    context = with_preview(context) if preview else context
    if grid.index.size <= (WHOLE if whole is None else whole):
        outcome = Outcome(ranked=grid.candidates)
        return _run_on(outcome, context, STAGES[:stop_after], on_stage)
    found = search(grid, context, block=block or BLOCK, on_block=on_block)
    outcome = Outcome(
        stages=found.stages[:stop_after],
        ranked=found.chosen,
        rejected=found.rejected,
        is_partial=True,
        num_hopeful=found.num_hopeful,
    )
    if stop_after < len(found.stages):
        # Blocks pass all four stages at once; what later ones made of the rest is undone.
        later = pl.col("stage") > stop_after
        nothing = [pl.lit(None, dtype).alias(name) for name, dtype in REJECTION_COLUMNS.items()]
        undone = outcome.rejected.filter(later).with_columns(nothing)
        outcome.ranked = pl.concat([outcome.ranked, undone], how="diagonal")
        outcome.rejected = outcome.rejected.filter(~later)
        return outcome
    if on_stage is not None:
        for record in outcome.stages:
            on_stage(record)
    return _run_on(outcome, context, STAGES[len(found.stages) : stop_after], on_stage)


def run_stages(
    candidates: pl.DataFrame,
    context: RunContext,
    *,
    stop_after: int = len(STAGES),
    on_stage: Callable[[Mapping[str, Any]], None] | None = None,
) -> Outcome:
    """Return the outcome of the first `stop_after` stages over a candidate frame."""
    outcome = Outcome(ranked=candidates)
    return _run_on(outcome, with_preview(context), STAGES[:stop_after], on_stage)


def _run_on(
    outcome: Outcome,
    context: RunContext,
    modules: Sequence[Any],
    on_stage: Callable[[Mapping[str, Any]], None] | None,
) -> Outcome:
    """Return the outcome with further stages."""
    rejected: list[pl.DataFrame] = [outcome.rejected] if outcome.is_partial else []
    for module in modules:
        stage: Stage = module.STAGE
        started = time.perf_counter()
        result: StageResult = module.run(outcome.ranked, context)
        verify(stage, outcome.ranked, result)
        record = _record(stage, outcome.ranked, result, time.perf_counter() - started)
        outcome.stages.append(record)
        outcome.ranked = result.admitted
        if module is s5_simulate:
            outcome.simulated = result.admitted
        rejected.append(result.rejected.with_columns(pl.lit(stage.number, pl.Int64).alias("stage")))
        outcome.simulations = result.tables.get("simulations", outcome.simulations)
        outcome.files |= result.files
        if on_stage is not None:
            on_stage(record)
    if outcome.is_partial:
        rejected = [_declared(part) for part in rejected]
    outcome.rejected = pl.concat(rejected, how="diagonal")
    return outcome


def _record(
    stage: Stage, given: pl.DataFrame, result: StageResult, elapsed_s: float
) -> dict[str, Any]:
    counts = result.rejected.group_by("reason").len().sort("reason")
    by_reason = dict(counts.iter_rows())
    return {
        "number": stage.number,
        "name": stage.name,
        "num_in": len(given),
        "num_admitted": len(result.admitted),
        "num_rejected": len(result.rejected),
        "reasons": {reason: by_reason[reason] for reason in stage.reasons if reason in by_reason},
        "elapsed_s": elapsed_s,
    }


def candidates_table(grid: Grid, outcome: Outcome) -> pl.DataFrame:
    """Return one row per candidate, in the order of the grid, with the stage that rejected it.

    Of a part of a grid the candidates that were not rejected come first.
    """
    if outcome.is_partial:
        # A million rows have no room for the metrics of twenty; `simulations` holds them.
        ranked = _declared(outcome.ranked)
        return _in_order(pl.concat([ranked, outcome.rejected], how="diagonal"), columns_after(0))
    known = pl.concat([outcome.ranked, outcome.rejected], how="diagonal")
    candidates = grid.candidates
    facts = [c for c in known.columns if c not in candidates.columns or c == "candidate_id"]
    table = candidates.drop("max_model_len").join(
        known.select(*facts, "max_model_len"),
        on="candidate_id",
        how="left",
        maintain_order="left",
    )
    return _in_order(table.drop(cs.starts_with(RESAMPLES)), candidates.columns)


def _declared(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the declared columns of a frame, without the metrics."""
    names = [*columns_after(len(STAGES)), *REJECTION_COLUMNS]
    return frame.select(name for name in names if name in frame.columns)


def _in_order(table: pl.DataFrame, columns: Sequence[str]) -> pl.DataFrame:
    """Return the table with its columns in order: those of the grid, the reason, the rest."""
    first = ["candidate_id", *(c for c in columns if c in table.columns)]
    why = ["stage", "kind", "reason", "observed", "limit", "unit"]
    order = list(dict.fromkeys([*first, "max_model_len", *why]))
    return table.select(*order, *(c for c in table.columns if c not in order))


def exhaustive_cost(outcome: Outcome, context: RunContext, *, chosen: bool = False) -> ReplayCost:
    """Return the cost of replaying every candidate that may meet the objectives.

    Args:
        outcome: of a run through stage 4 or further.
        context: of that run.
        chosen: count only those that were taken for the replay.
    """
    taken = outcome.rejected.filter(pl.col("stage") > STAGES[3].STAGE.number)
    frames = [outcome.ranked, taken]
    if not chosen:
        step = max(1, len(outcome.rejected) // _COSTED) if outcome.is_partial else 1
        frames.append(outcome.rejected.gather_every(step).filter(reason="not_selected"))
    frame = pl.concat(frames, how="diagonal")
    if frame.is_empty():
        return ReplayCost(0, 0, 0.0, 0.0)
    total = len(frame)
    if outcome.is_partial and not chosen:
        total = outcome.num_hopeful
    fixed = [name for name in (*AXES, *context.options) if name != "max_num_seqs"]
    kinds = frame.select(fixed).unique(maintain_order=True)
    if len(kinds) > 2 * _KINDS:  # candidates that run alike stay together
        kinds = kinds.gather_every(len(kinds) // _KINDS)
        frame = frame.join(kinds, on=fixed, how="semi", nulls_equal=True, maintain_order="left")
    middle = Ends(step=1.0, prompt=1.0)
    estimates = Estimates(frame, context.tables, context.requests, context.workload, middle)
    cost = replay_cost(
        estimates,
        context.spec.run.traffic.levels,
        in_sequence=context.engine.replay["batches_in_flight"] != "pp",
        fixed=fixed,
    )
    return cost.scaled(total)


def answer_of(outcome: Outcome, context: RunContext) -> dict[str, Any]:
    """Return `answer` of `result.json`; `status` is null when stages were left out."""
    if not outcome.is_complete:
        empty: dict[str, Any] = {"status": None, **dict.fromkeys(("fewest_gpus", "best_per_gpu"))}
        return empty | {"cheapest": None, "tie_group": [], "settle": None}
    ranked = outcome.ranked
    objective = next(iter(metrics_of(context.spec.run.rank.objective, context.spec.source)))
    leading = ranked.filter((pl.col("tie_group") == 1) & (pl.col("verdict") != "misses"))
    return {
        "status": status_of(ranked, outcome.rejected),
        **winners(ranked),
        "tie_group": leading["candidate_id"].to_list(),
        "settle": settle(
            ranked, objective, len(context.requests), context.spec.run.rank.confidence
        ),
    }


def ranking_rows(
    outcome: Outcome, options: Sequence[str], slos: SloSet = NO_SLOS
) -> list[dict[str, Any]]:
    """Return `ranking` of `result.json`.

    Args:
        outcome: of all stages.
        options: further engine options of the grid.
        slos: the objectives; where they name classes of requests, an entry has `classes`.
    """
    if not outcome.is_complete:
        return []
    rows = []
    by_class = class_verdicts(outcome.ranked, slos)
    for i, row in enumerate(outcome.ranked.iter_rows(named=True)):
        entry = {name: row[name] for name in _RANKING_FACTS}
        if "model" in row:
            entry["model"] = row["model"]
        entry["replay_of"] = row["replay_of"]
        if options:
            entry["options"] = {name: engine_option(row, name) for name in options}
        for metric in METRICS:
            entry[metric] = {
                "low": row[bound_column(metric, "low")],
                "mid": row[metric],
                "high": row[bound_column(metric, "high")],
            }
        if by_class:
            entry["classes"] = {
                name: {"verdict": found[i], **_of_class(row, slos, name)}
                for name, found in by_class.items()
            }
        entry["intervals"] = {metric: _sources(row, metric) for metric in METRICS}
        if "correction_tpot" in row:
            entry["calibration"] = {
                name: row[name]
                for name in (*CORRECTIONS, *(f"basis_{kind}" for kind in s5_simulate.BASES))
            }
        entry["evidence"] = row["evidence"]
        entry["evidence_shares"] = {
            name.removeprefix("evidence_share_"): row[name]
            for name in row
            if name.startswith("evidence_share_")
        }
        rows.append(entry)
    return rows


def _of_class(row: Mapping[str, Any], slos: SloSet, name: str) -> dict[str, Any]:
    """Return the limited metrics of one class of requests, each with low, mid and high."""
    own = [slo for slo in slos.limits if slo.group is not None and slo.group.name == name]
    return {
        latency_column(slo.metric, slo.statistic): {
            "low": row[bound_column(slo.column, "low")],
            "mid": row[slo.column],
            "high": row[bound_column(slo.column, "high")],
        }
        for slo in own
    }


def _sources(row: Mapping[str, Any], metric: str) -> dict[str, dict[str, float]]:
    """Return low and high of a metric from each source of error alone."""
    return {
        source: {end: row[bound_column(metric, f"{source}_{end}")] for end in ("low", "high")}
        for source in ("model", "noise")
    }


def misses_of(outcome: Outcome, context: RunContext) -> list[dict[str, Any]]:
    """Return `nearest_misses` of `result.json`; empty when something clears."""
    if not outcome.is_complete or status_of(outcome.ranked, outcome.rejected) == "answer":
        return []
    missing = outcome.ranked.filter(pl.col("verdict") != "clears")
    thrown_out = outcome.rejected.filter(pl.col("kind") == "misses_slo")
    misses = nearest_misses(missing, thrown_out, limits_of(context.slos))
    near = pl.col("candidate_id").is_in([miss["candidate_id"] for miss in misses])
    known = pl.concat([outcome.ranked.filter(near), outcome.rejected.filter(near)], how="diagonal")
    return with_remedies(misses, known, context)


def levels_of(outcome: Outcome, context: RunContext) -> list[dict[str, Any]]:
    """Return who is best at each load level, and which limit comes nearest to breaking there.

    `nearest` is the objective with the least room at its pessimistic end, `used` that value over
    its limit (above 1: missed), and `binds` what the engine ran out of, if anything.
    """
    if not outcome.is_complete or outcome.simulations is None or outcome.ranked.is_empty():
        return []
    facts = outcome.ranked.select(
        "candidate_id", "num_gpus", "max_num_seqs", "max_num_batched_tokens", "replicas"
    )
    limits, rows = limits_of(context.slos), []
    for level in sorted(set(outcome.simulations["level"].to_list())):
        at = outcome.simulations.filter(pl.col("level") == level)
        served = (at["status"] == "") & (at["queue_growth"] <= s5_simulate.MAX_GROWTH)
        frame = at.filter(served).join(facts, on="candidate_id", maintain_order="left")
        if frame.is_empty():
            rows.append({"level": level, **dict.fromkeys(LEVEL_KEYS)})
            continue
        best = s6_rank.in_order(frame, context).head(1)
        rows.append({"level": level, **entry_of(best, limits)})
    return rows


def entry_of(best: pl.DataFrame, limits: Sequence[Limit]) -> dict[str, Any]:
    """Return one candidate's verdict at a load, what comes nearest to breaking, and what binds."""
    used = {limit.text: _used(best, limit) for limit in limits}
    nearest = max(used, key=lambda text: used[text], default=None)
    row = best.row(0, named=True)
    return {
        "candidate_id": row["candidate_id"],
        "verdict": row["verdict"],
        "nearest": nearest,
        "used": None if nearest is None else used[nearest],
        "binds": _what_binds(row),
    }


LEVEL_KEYS = ("candidate_id", "verdict", "nearest", "used", "binds")
_FULL = 0.95


def _used(best: pl.DataFrame, limit: Limit) -> float:
    """Return how much of a limit is used up; of an attainment, how many of the misses allowed."""
    end = bound_column(limit.column, "high" if limit.at_most else "low")
    value = float(best[end][0])
    if limit.column == "slo_attainment" and limit.limit < 1.0:
        return (1.0 - value) / (1.0 - limit.limit)
    return float(limit.shortfall([value])[0])


def _what_binds(row: Mapping[str, Any]) -> str | None:
    """Return what an engine ran out of at its peak, the gravest first."""
    if row["num_preemptions"] > 0 or row["peak_kv_usage"] >= _FULL:
        return "kv_cache"
    if row["peak_batch"] >= row["max_num_seqs"]:
        return "max_num_seqs"
    if row["peak_batched_tokens"] >= row["max_num_batched_tokens"]:
        return "max_num_batched_tokens"
    return None
