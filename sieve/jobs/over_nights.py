"""What several nights together say: the peak to plan for, the choice that holds every day."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import polars as pl

from sieve.context import RunContext
from sieve.jobs.peaks import plan, schedule
from sieve.jobs.stress import by_worst
from sieve.pipeline import Outcome
from sieve.ranking.verdicts import limits_of, verdicts
from stages import s5_simulate

LOOK_BACK: Final = 28
"""Nights before that the peak is planned from."""
ROBUST_OVER: Final = 7
"""Last nights over which a choice has to hold, tonight among them."""
MET: Final = ("clears", "point_only")


def capacity_of(outcome: Outcome, chosen: str | None, context: RunContext) -> dict[str, Any] | None:
    """Return the highest load level up to which the recommended one meets its objectives.

    `rate_per_replica` is that load in requests per second for each replica; `is_limit` says
    whether the next level misses, or the highest level of the spec was reached.
    """
    rate = context.requests.rate_per_s
    if chosen is None or outcome.simulations is None or not 0 < rate < float("inf"):
        return None
    rows = outcome.simulations.filter(pl.col("candidate_id") == chosen).sort("level")
    row = outcome.ranked.filter(pl.col("candidate_id") == chosen).row(0, named=True)
    served = (rows["status"] == "") & (rows["queue_growth"] <= s5_simulate.MAX_GROWTH)
    most, is_limit = None, False
    wanted = MET[: MET.index(row["verdict"]) + 1]
    marks = zip(rows["level"], served, verdicts(rows, limits_of(context.slos)), strict=True)
    for level, is_served, verdict in marks:
        if not (is_served and verdict in wanted):
            is_limit = True
            break
        most = level
    if most is None:
        return None
    replicas = row["replicas"]
    return {
        "level": most,
        "is_limit": is_limit,
        "rate_per_replica": most * rate / replicas,
        "gpus_per_replica": row["num_gpus"] // replicas,
    }


def over_nights(
    record: Mapping[str, Any], before: Sequence[Mapping[str, Any]], context: RunContext
) -> dict[str, Any]:
    """Return what several nights say: `gain_frac`, `sizing` and `robust`.

    Args:
        record: of tonight.
        before: the nights before, first to last, at most `LOOK_BACK`.
        context: of tonight.
    """
    sizing = plan([night["traffic"] for night in before], record["traffic"])
    capacity = record["capacity"]
    if sizing is not None and capacity is not None:
        sizing["schedule"] = schedule(
            sizing["by_hour"],
            capacity["rate_per_replica"],
            gpus_per_replica=capacity["gpus_per_replica"],
        )
    return {
        "gain_frac": _gain(record),
        "sizing": sizing,
        "robust": _robust([*before[-(ROBUST_OVER - 1) :], record], context),
    }


def _gain(record: Mapping[str, Any]) -> float | None:
    """Return by how much the recommended one is cheaper than the incumbent today, a share."""
    new, old = record["recommended"], record["incumbent"]
    if not record["changed"] or new is None or old is None or "usd_per_mtok" not in old:
        return None
    cost = old["usd_per_mtok"]
    old_usd = cost.get("mid") if isinstance(cost, Mapping) else cost
    new_usd = new["usd_per_mtok"]["mid"]
    return None if not old_usd or new_usd is None else 1.0 - new_usd / old_usd


def _robust(nights: Sequence[Mapping[str, Any]], context: RunContext) -> dict[str, Any] | None:
    """Return which candidates hold over the last nights, today included; None on the first.

    `in_every_tie_group` were tied with the best every night. `best_worst` has the best worst night
    of those replayed every night, as `by_worst` orders them, with that night's number.
    """
    if len(nights) < 2:
        return None
    groups = [set(night["tie_group"]) for night in nights]
    always = sorted(set.intersection(*groups))
    rows: dict[str, list[Any]] = {}
    for night in nights:
        for entry in night["replayed"]:
            rows.setdefault(entry["candidate_id"], []).append({**entry, "night": night["night"]})
    common = {name: found for name, found in rows.items() if len(found) == len(nights)}
    best = by_worst(common, context)[0] if common else None
    recommended = nights[-1]["recommended"]
    name = recommended and recommended["candidate_id"]
    return {
        "num_nights": len(nights),
        "in_every_tie_group": always,
        "best_worst": best,
        "recommended_is_robust": name is not None and (name in always or name == best),
    }
