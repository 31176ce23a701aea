"""Stage 6: verdicts, order and ties. Nothing is rejected: candidates that miss stay listed.

Verdict on the pessimistic end of every interval: `clears` if each objective holds there,
`point_only` if each holds at the middle, else `misses`; an unknown is never a pass. Order: verdict,
objective, fewer GPUs, lower cost, id. A candidate ties with its group's leader when their intervals
on the objective overlap; groups never cross a verdict and a group is one rank.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from sieve.arrays import FloatArray
from sieve.context import RunContext
from sieve.frames import bound_column
from sieve.ranking.objective import smaller_is_better, sort_keys
from sieve.ranking.ties import tie_groups
from sieve.ranking.verdicts import limits_of, verdicts
from sieve.stage import Stage, StageResult, no_rejections

STAGE: Final = Stage(
    number=6,
    name="rank",
    purpose="verdict on the pessimistic end, order by the objective, ties named",
    reasons={},
    adds=("verdict", "rank", "tie_group"),
)


def run(candidates: pl.DataFrame, context: RunContext) -> StageResult:
    """Return the candidates in ranking order with verdict, rank and tie group."""
    limits = limits_of(context.slos)
    verdict = verdicts(candidates, limits)
    frame = candidates.with_columns(pl.Series("verdict", verdict, pl.String))
    order = _order(frame, context)
    ranked = frame[order]
    groups = _groups(ranked, context)
    ranked = ranked.with_columns(
        pl.Series("rank", groups, pl.Int64), pl.Series("tie_group", groups, pl.Int64)
    )
    return StageResult(ranked, no_rejections(ranked))


def _value_of(frame: pl.DataFrame, name: str, end: str = "") -> FloatArray:
    column = bound_column(name, end) if end and bound_column(name, end) in frame.columns else name
    return frame[column].cast(pl.Float64).fill_null(np.nan).to_numpy()


def _keys(frame: pl.DataFrame, context: RunContext, end: str = "") -> list[FloatArray]:
    """Return sort keys at the middle, or at every metric's `best` or `worst` end."""

    def value(name: str) -> FloatArray:
        if not end:
            return _value_of(frame, name)
        low = (end == "best") == smaller_is_better(name)
        return _value_of(frame, name, "low" if low else "high")

    return sort_keys(context.spec.run.rank.objective, value, context.spec.source)


def _order(frame: pl.DataFrame, context: RunContext) -> list[int]:
    place = {"clears": 0, "point_only": 1, "misses": 2}
    columns = {
        "verdict": frame["verdict"].replace_strict(place, return_dtype=pl.Int64),
        **{f"k{i}": key for i, key in enumerate(_keys(frame, context))},
        "num_gpus": frame["num_gpus"],
        "cost": frame["usd_per_mtok"].fill_nan(None),
        "candidate_id": frame["candidate_id"],
    }
    table = pl.DataFrame(columns).with_row_index("row")
    return table.sort(list(columns), nulls_last=True)["row"].to_list()


def _groups(ranked: pl.DataFrame, context: RunContext) -> list[int]:
    best, worst = _keys(ranked, context, "best"), _keys(ranked, context, "worst")
    return tie_groups(ranked["verdict"].to_list(), best, worst)
