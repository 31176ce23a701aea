"""Runs the stages in order, holds each to its contract, and puts the answer together."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl
import polars.selectors as cs

from sieve.context import RunContext
from sieve.frames import METRICS, RESAMPLES, bound_column, engine_option
from sieve.ranking.answer import nearest_misses, settle, status_of, winners
from sieve.ranking.objective import metrics_of
from sieve.ranking.verdicts import limits_of
from sieve.remedies import with_remedies
from sieve.stage import Stage, StageResult, verify
from stages import STAGES

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
    """

    stages: list[dict[str, Any]] = field(default_factory=list)
    ranked: pl.DataFrame = field(default_factory=pl.DataFrame)
    rejected: pl.DataFrame = field(default_factory=pl.DataFrame)
    simulations: pl.DataFrame | None = None
    files: dict[str, str] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        """Whether every stage ran."""
        return len(self.stages) == len(STAGES)


def run_stages(
    candidates: pl.DataFrame,
    context: RunContext,
    *,
    stop_after: int = len(STAGES),
    on_stage: Callable[[Mapping[str, Any]], None] | None = None,
) -> Outcome:
    """Return the outcome of the first `stop_after` stages over a candidate frame."""
    outcome = Outcome(ranked=candidates)
    rejected: list[pl.DataFrame] = []
    for module in STAGES[:stop_after]:
        stage: Stage = module.STAGE
        started = time.perf_counter()
        result: StageResult = module.run(outcome.ranked, context)
        verify(stage, outcome.ranked, result)
        record = _record(stage, outcome.ranked, result, time.perf_counter() - started)
        outcome.stages.append(record)
        outcome.ranked = result.admitted
        rejected.append(result.rejected.with_columns(pl.lit(stage.number, pl.Int64).alias("stage")))
        outcome.simulations = result.tables.get("simulations", outcome.simulations)
        outcome.files |= result.files
        if on_stage is not None:
            on_stage(record)
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


def candidates_table(candidates: pl.DataFrame, outcome: Outcome) -> pl.DataFrame:
    """Return one row per candidate of the grid, in grid order, with the stage that rejected it."""
    known = pl.concat([outcome.ranked, outcome.rejected], how="diagonal")
    facts = [c for c in known.columns if c not in candidates.columns or c == "candidate_id"]
    table = candidates.drop("max_model_len").join(
        known.select(*facts, "max_model_len"),
        on="candidate_id",
        how="left",
        maintain_order="left",
    )
    table = table.drop(cs.starts_with(RESAMPLES))
    first = ["candidate_id", *(c for c in candidates.columns if c in table.columns)]
    why = ["stage", "kind", "reason", "observed", "limit", "unit"]
    order = list(dict.fromkeys([*first, "max_model_len", *why]))
    return table.select(*order, *(c for c in table.columns if c not in order))


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


def ranking_rows(outcome: Outcome, options: Sequence[str]) -> list[dict[str, Any]]:
    """Return `ranking` of `result.json`; `options` are the further engine options of the grid."""
    if not outcome.is_complete:
        return []
    rows = []
    for row in outcome.ranked.iter_rows(named=True):
        entry = {name: row[name] for name in _RANKING_FACTS}
        if options:
            entry["options"] = {name: engine_option(row, name) for name in options}
        for metric in METRICS:
            entry[metric] = {
                "low": row[bound_column(metric, "low")],
                "mid": row[metric],
                "high": row[bound_column(metric, "high")],
            }
        entry["intervals"] = {metric: _sources(row, metric) for metric in METRICS}
        entry["evidence"] = row["evidence"]
        entry["evidence_shares"] = {
            name.removeprefix("evidence_share_"): row[name]
            for name in row
            if name.startswith("evidence_share_")
        }
        rows.append(entry)
    return rows


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
