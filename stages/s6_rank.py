"""Stage 6: verdicts, order and ties. Nothing is rejected: candidates that miss stay listed.

Verdict on the pessimistic end of every interval: `clears` if each objective holds there,
`point_only` if each holds at the middle, else `misses`; an unknown is never a pass. Order: verdict,
objective, fewer GPUs, lower cost, id. Ties with a group's leader are exact, statistical or
practical (`sieve.ranking.ties`); groups never cross a verdict and a group is one rank. `pareto`
marks what no other candidate of the best verdict beats on cost, TTFT p99 and TPOT p99 at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import polars as pl
import polars.selectors as cs

from sieve.arrays import BoolArray, FloatArray
from sieve.context import RunContext
from sieve.frames import RESAMPLES, bound_column, resample_column
from sieve.ranking.noise import RESAMPLES as RESAMPLES_PER_RUN
from sieve.ranking.noise import SMALLEST
from sieve.ranking.objective import indifference, log_keys, sort_keys, source_of
from sieve.ranking.pareto import pareto_front
from sieve.ranking.ties import Key, Tie, find_ties
from sieve.ranking.verdicts import limits_of, verdicts
from sieve.stage import Stage, StageResult, no_rejections

STAGE: Final = Stage(
    number=6,
    name="rank",
    purpose="verdict on the pessimistic end, order by the objective, ties named",
    reasons={},
    adds=("verdict", "rank", "tie_group", "tie", "pareto"),
)


SHARED_ERROR: Final = ("gpu", "tp", "pp", "ep", "weight_dtype", "kv_cache_dtype")
"""Candidates equal in these share most of the model's error."""


def run(candidates: pl.DataFrame, context: RunContext) -> StageResult:
    """Return the candidates in ranking order with verdict, rank and tie group."""
    ranked = in_order(candidates, context)
    ties = _ties(ranked, context)
    groups = [tie.group for tie in ties]
    ranked = ranked.drop(cs.starts_with(RESAMPLES)).with_columns(
        pl.Series("rank", groups, pl.Int64),
        pl.Series("tie_group", groups, pl.Int64),
        pl.Series("tie", [tie.kind for tie in ties], pl.String),
        pl.Series("tie_difference", [tie.difference for tie in ties], pl.Float64),
        pl.Series("tie_noise", [tie.noise for tie in ties], pl.Float64),
        pl.Series("tie_model", [tie.model for tie in ties], pl.Float64),
        pl.Series("pareto", _on_front(ranked), pl.Boolean),
    )
    return StageResult(ranked, no_rejections(ranked))


def in_order(candidates: pl.DataFrame, context: RunContext, slack: float = 1.0) -> pl.DataFrame:
    """Return the candidates with their verdict, best first; `slack` eases every limit."""
    limits = [limit.eased(slack) for limit in limits_of(context.slos)]
    verdict = verdicts(candidates, limits)
    frame = candidates.with_columns(pl.Series("verdict", verdict, pl.String))
    return frame[_order(frame, context)]


def _value_of(frame: pl.DataFrame, name: str, end: str = "") -> FloatArray:
    column = bound_column(name, end) if end and bound_column(name, end) in frame.columns else name
    return frame[column].cast(pl.Float64).fill_null(np.nan).to_numpy()


def keys(frame: pl.DataFrame, context: RunContext) -> list[FloatArray]:
    """Return the objective's keys, each (n,), the most important first; smaller is better."""
    return sort_keys(
        context.spec.run.rank.objective, lambda m: _value_of(frame, m), context.spec.source
    )


def _order(frame: pl.DataFrame, context: RunContext) -> list[int]:
    place = {"clears": 0, "point_only": 1, "misses": 2}
    columns = {
        "verdict": frame["verdict"].replace_strict(place, return_dtype=pl.Int64),
        **{f"k{i}": key for i, key in enumerate(keys(frame, context))},
        "num_gpus": frame["num_gpus"],
        "cost": frame["usd_per_mtok"].fill_nan(None),
        "candidate_id": frame["candidate_id"],
    }
    table = pl.DataFrame(columns).with_row_index("row")
    return table.sort(list(columns), nulls_last=True)["row"].to_list()


def _ties(ranked: pl.DataFrame, context: RunContext) -> list[Tie]:
    if ranked.is_empty():
        return []
    objective, source = context.spec.run.rank.objective, context.spec.source
    keys = [_key(ranked, weights) for weights in log_keys(objective, source)]
    families = ranked.select(name for name in SHARED_ERROR if name in ranked.columns).rows()
    schedules: list[object] = [None] * len(ranked)
    if "trajectory" in ranked.columns:
        schedules = list(ranked.select("trajectory", "gpu", "num_gpus").rows())
    return find_ties(ranked["verdict"].to_list(), keys, families, schedules)


def _key(ranked: pl.DataFrame, weights: Mapping[str, float]) -> Key:
    """Return one key: the weighted logarithms, their model ends and their resamples."""
    size = len(ranked)
    middle, better, worse = np.zeros(size), np.zeros(size), np.zeros(size)
    samples = np.zeros((size, RESAMPLES_PER_RUN))
    margin = 0.0
    for metric, weight in weights.items():
        mid = _log(ranked, metric)
        low, high = (np.abs(_log(ranked, metric, end) - mid) for end in ("model_low", "model_high"))
        middle += weight * mid
        better += abs(weight) * (low if weight > 0 else high)
        worse += abs(weight) * (high if weight > 0 else low)
        name, sign = source_of(metric)
        if resample_column(name) in ranked.columns:
            drawn = ranked[resample_column(name)].to_list()
            samples += weight * sign * np.array([x or [np.nan] * samples.shape[1] for x in drawn])
        margin += abs(weight) * np.log1p(indifference(metric))
    return Key(middle, better, worse, samples, float(margin))


def _log(frame: pl.DataFrame, name: str, end: str = "") -> FloatArray:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log(np.maximum(_value_of(frame, name, end), SMALLEST))


def _on_front(ranked: pl.DataFrame) -> BoolArray:
    """Return which candidates of the best verdict no other beats, (n,)."""
    if ranked.is_empty():
        return np.zeros(0, np.bool_)
    cost = _value_of(ranked, "usd_per_mtok")
    if np.isnan(cost).all():
        cost = -_value_of(ranked, "output_tokens_per_s_per_gpu")
    best = (ranked["verdict"] == ranked["verdict"].first()).to_numpy()
    keys = np.stack([cost, _value_of(ranked, "ttft_p99_s"), _value_of(ranked, "tpot_p99_s")])
    # Answers of one token have no TPOT; they compete on the rest.
    keys = keys[~np.isnan(keys).all(axis=1)]
    front = np.zeros(len(ranked), np.bool_)
    front[best] = pareto_front(keys[:, best])
    return front
