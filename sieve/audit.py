"""The shortlist held against the replay of every survivor: what does leaving out cost?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import exp
from typing import Any, Final

import numpy as np
import polars as pl

from sieve.arrays import BoolArray, FloatArray, IntArray
from sieve.context import RunContext
from sieve.frames import METRICS
from sieve.grid import Grid
from sieve.pipeline import Outcome, run_grid
from sieve.ranking.objective import sort_keys
from stages import s4_shortlist

SIZES: Final = (1, 2, 5, 10, 20, 40, 80)
"""Sizes of shortlist that are compared, besides the spec's own."""
TOP: Final = 5


def audit(grid: Grid, context: RunContext, outcome: Outcome) -> dict[str, Any]:
    """Return `audit` of `result.json`: recall and regret of the shortlist, by its size.

    `recall_best` is 1 if the best of all, or a candidate with the same metrics to the last digit,
    is on the shortlist; `recall_top5` is the share of the five best, such equals counted once;
    `regret` says how much worse the shortlist's best is on the ranking objective (its first metric,
    or the weighted product), as a share; null if its best has a worse verdict, or if nothing can be
    served. `num_met` counts the survivors that meet every objective in the middle; `closed_form`
    and `hard_cut` hold the three for a shortlist without short replays, and for one of those only
    whose middle meets the objectives.

    Args:
        grid: candidates.
        context: of the run.
        outcome: of the run; if its shortlist was replayed only, the survivors are replayed here.
    """
    everything = outcome
    if not context.exhaustive:
        complete = replace(context, exhaustive=True)
        everything = run_grid(grid, complete, stop_after=6)
    own = context.spec.run.shortlist.size
    sizes = sorted({*SIZES, own})
    order = order_of(grid, context, max(sizes), preview=context.spec.run.shortlist.preview)
    rows = [
        {"size": size, **compare(everything.ranked, order[:size], context)}
        for size in sizes
        if size <= len(order) or size == own
    ]
    best = everything.ranked["candidate_id"].to_list()[:1]
    chosen = next(row for row in rows if row["size"] == own)
    return {
        **{key: chosen[key] for key in ("recall_best", "recall_top5", "regret")},
        "size": own,
        "best": best[0] if best else None,
        "num_exhaustive": everything.stages[4]["num_in"],
        "num_met": int((everything.ranked["verdict"] != "misses").sum()),
        "closed_form": compare(everything.ranked, order_of(grid, context, own, preview=0), context),
        "hard_cut": compare(everything.ranked, _hard_cut(grid, context), context),
        "by_size": rows,
    }


def order_of(grid: Grid, context: RunContext, size: int, *, preview: int) -> list[str]:
    """Return a shortlist of `size` in the order taken; a shorter one is its beginning."""
    run = context.spec.run
    changes = {"size": size, "exhaustive_below": 0, "preview": preview}
    limits = run.shortlist.model_copy(update=changes)
    spec = replace(context.spec, run=run.model_copy(update={"shortlist": limits}))
    chosen = run_grid(grid, replace(context, spec=spec, exhaustive=False), stop_after=4).ranked
    return list(chosen["candidate_id"])


def _hard_cut(grid: Grid, context: RunContext) -> list[str]:
    """Return the shortlist by closed forms of those alone whose middle meets the objectives."""
    plain = replace(context, exhaustive=False, preview=None)
    scored = s4_shortlist.score(run_grid(grid, plain, stop_after=3).ranked, plain)
    middle = scored.lists[1:2] if len(scored.lists) > 1 else scored.lists
    if not middle.any():
        return []
    chosen = s4_shortlist.choose(replace(scored, lists=middle), plain, everyone=False)
    return list(chosen.admitted["candidate_id"])


def compare(ranked: pl.DataFrame, shortlist: Sequence[str], context: RunContext) -> dict[str, Any]:
    """Return `recall_best`, `recall_top5` and `regret` of one shortlist.

    Args:
        ranked: every survivor in ranking order, with metrics and verdict.
        shortlist: candidate ids.
        context: of the run.
    """
    if ranked.is_empty():
        return {"recall_best": None, "recall_top5": None, "regret": None}
    equal = _classes(ranked)
    taken = ranked["candidate_id"].is_in(list(shortlist)).to_numpy()
    classes = list(dict.fromkeys(equal.tolist()))[:TOP]
    found = set(equal[taken].tolist())
    return {
        "recall_best": float(classes[0] in found),
        "recall_top5": sum(c in found for c in classes) / len(classes),
        "regret": _regret(ranked, taken, context),
    }


def _classes(ranked: pl.DataFrame) -> IntArray:
    """Return the class of each candidate, (n,); equal where verdict and all metrics are equal."""
    keys = ranked.select("verdict", *METRICS)
    first = keys.unique(maintain_order=True).with_row_index("class")
    joined = keys.join(first, on=keys.columns, how="left", nulls_equal=True, maintain_order="left")
    return joined["class"].to_numpy().astype(np.int64)


def _regret(ranked: pl.DataFrame, taken: BoolArray, context: RunContext) -> float | None:
    verdict = ranked["verdict"].to_numpy()
    fair = np.flatnonzero(taken & (verdict == verdict[0]))
    if not len(fair):
        return None
    mine = int(fair[0])
    objective = context.spec.run.rank.objective

    def value(name: str) -> FloatArray:
        return ranked[name].cast(pl.Float64).fill_null(np.nan).to_numpy()

    if isinstance(objective, Mapping):
        key = sort_keys(objective, value, context.spec.source)[0]
        return exp(key[mine] - key[0]) - 1.0
    values = value(objective if isinstance(objective, str) else objective[0])
    best, own = float(values[0]), float(values[mine])
    return 0.0 if best == own else abs(own / best - 1.0)
