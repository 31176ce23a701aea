"""Candidates under variants of the traffic, ranked by the worst that happens to each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import polars as pl

from sieve.arrays import Requests
from sieve.context import RunContext
from sieve.frames import bound_column
from sieve.perf.capacity import workload_of
from sieve.pipeline import run_stages
from sieve.ranking.objective import indifference, log_keys
from sieve.ranking.verdicts import limits_of
from sieve.traces import at_level

BURST_WINDOW_S: Final = 60.0
BURST_FACTOR: Final = 2.0
LONGER: Final = 1.2
MAX_CANDIDATES: Final = 5
_ORDER: Final = {"clears": 0, "point_only": 1, "misses": 2}


def variants_of(requests: Requests) -> dict[str, Requests]:
    """Return the variants of a day's traffic by name.

    `rate_x1.25` and `rate_x1.5`: the same requests faster. `bursts_x2`: the requests of each minute
    arrive in its first half, twice as fast, at the same mean rate. `output_x1.2`: answers a fifth
    longer. `cold_cache`: no prompt shares anything with an earlier one; only where some do.
    A closed loop has no bursts.
    """
    found = {
        "rate_x1.25": at_level(requests, 1.25),
        "rate_x1.5": at_level(requests, 1.5),
    }
    if requests.closed_loop_users is None:
        start = np.floor(requests.arrival_s / BURST_WINDOW_S) * BURST_WINDOW_S
        arrival = start + (requests.arrival_s - start) / BURST_FACTOR
        found["bursts_x2"] = replace(requests, arrival_s=arrival)
    longer = np.ceil(requests.output_tokens * LONGER).astype(np.int64)
    found["output_x1.2"] = replace(requests, output_tokens=longer)
    if requests.prefix is not None:
        found["cold_cache"] = replace(requests, prefix=None)
    return found


def stress(
    candidates: pl.DataFrame, context: RunContext, ids: Sequence[str]
) -> dict[str, Any] | None:
    """Return how candidates fare under each variant, and which has the best worst case.

    Keys: `variants`, `candidates` (one entry a candidate with `variants`: {name: standing}, best
    worst case first, as `by_worst` orders them), `best` (its id). None without candidates.

    Args:
        candidates: the grid.
        context: of the day.
        ids: candidates in order of the ranking; the first five are replayed.
    """
    chosen = list(ids)[:MAX_CANDIDATES]
    frame = candidates.filter(pl.col("candidate_id").is_in(chosen))
    if frame.is_empty():
        return None
    found: dict[str, dict[str, Any]] = {name: {} for name in chosen}
    variants = variants_of(context.requests)
    for name, requests in variants.items():
        for entry in standings(frame, _only_at_one(context, requests)):
            found[entry["candidate_id"]][name] = entry
    order = by_worst({name: list(rows.values()) for name, rows in found.items()}, context)
    return {
        "variants": list(variants),
        "candidates": [
            {
                "candidate_id": name,
                "worst": _worst_variant(found[name]),
                "variants": {
                    variant: {k: row[k] for k in ("verdict", "used", "usd_per_mtok")}
                    for variant, row in found[name].items()
                },
            }
            for name in order
        ],
        "best": order[0],
    }


def _worst_variant(rows: Mapping[str, Mapping[str, Any]]) -> str:
    return max(rows, key=lambda variant: _badness(rows[variant]))


def _only_at_one(context: RunContext, requests: Requests) -> RunContext:
    run = context.spec.run
    traffic = run.traffic.model_copy(update={"levels": [1.0]})
    spec = replace(context.spec, run=run.model_copy(update={"traffic": traffic}))
    # Answers may be longer than the step tables cover; the tables go on with their last segment.
    return replace(
        context,
        spec=spec,
        requests=requests,
        workload=workload_of(requests),
        exhaustive=True,
        progress=None,
    )


def standings(candidates: pl.DataFrame, context: RunContext) -> list[dict[str, Any]]:
    """Return where each candidate stands on a traffic, in the order of the ranking.

    Keys: `candidate_id`, `verdict` (`misses` where it cannot serve the traffic at all), `rank`,
    `tie_group`, `num_gpus`, `used` (share of the nearest limit at its pessimistic end, above 1:
    missed), `nearest`, `usd_per_mtok`, `objective` (logarithm of the ranking objective's first
    key, smaller is better); None where it was not replayed.
    """
    outcome = run_stages(candidates, context, stop_after=6)
    ranked = [standing(row, context) for row in outcome.ranked.iter_rows(named=True)]
    seen = {entry["candidate_id"] for entry in ranked}
    lost = [
        absent(row["candidate_id"], row["num_gpus"], row["reason"])
        for row in outcome.rejected.select("candidate_id", "num_gpus", "reason").iter_rows(
            named=True
        )
        if row["candidate_id"] not in seen
    ]
    return ranked + sorted(lost, key=lambda entry: entry["candidate_id"])


def absent(candidate_id: str, num_gpus: int | None, reason: str) -> dict[str, Any]:
    """Return the standing of a candidate that a stage rejected."""
    keys = ("rank", "tie_group", "used", "nearest", "usd_per_mtok", "objective")
    facts = {"candidate_id": candidate_id, "verdict": "misses", "num_gpus": num_gpus}
    return facts | dict.fromkeys(keys) | {"reason": reason}


def standing(row: Mapping[str, Any], context: RunContext) -> dict[str, Any]:
    """Return the standing of one ranked candidate."""
    used: float | None = None
    nearest = None
    for limit in limits_of(context.slos):
        end = bound_column(limit.column, "high" if limit.at_most else "low")
        share = float(limit.shortfall([row[end]])[0])
        if used is None or share > used:
            used, nearest = share, limit.text
    return {
        "candidate_id": row["candidate_id"],
        "verdict": row["verdict"],
        "num_gpus": row["num_gpus"],
        "rank": row["rank"],
        "tie_group": row["tie_group"],
        "used": used if used is not None and np.isfinite(used) else None,
        "nearest": nearest,
        "usd_per_mtok": row["usd_per_mtok"],
        "objective": _objective(row, context),
        "reason": None,
    }


def _objective(row: Mapping[str, Any], context: RunContext) -> float | None:
    """Return the logarithm of the objective's first key, smaller is better, None if unknown."""
    weights = log_keys(context.spec.run.rank.objective, context.spec.source)[0]
    total = 0.0
    for name, weight in weights.items():
        value = row[name]
        if value is None or not np.isfinite(value) or value <= 0:
            return None
        total += weight * float(np.log(value))
    return total


def _badness(entry: Mapping[str, Any]) -> tuple[int, float, float]:
    """Return what orders standings from good to bad."""
    used, objective = entry["used"], entry["objective"]
    return (
        _ORDER[entry["verdict"]],
        np.inf if used is None else used,
        np.inf if objective is None else objective,
    )


def by_worst(rows: Mapping[str, Sequence[Mapping[str, Any]]], context: RunContext) -> list[str]:
    """Return candidate ids by the worst of their standings, best first.

    The worst verdict decides, then the worst value of the objective. Values within the zone of
    indifference of the best one (3 % on a cost or a rate, 5 % on a latency) count as equal; of
    those the one that uses least of its nearest limit is first, then fewer GPUs, then the id.

    Args:
        rows: standings by candidate id, at least one each.
        context: for the objective.
    """
    objective = log_keys(context.spec.run.rank.objective, context.spec.source)[0]
    zone = sum(abs(w) * float(np.log1p(indifference(name))) for name, w in objective.items())
    worst: dict[str, tuple[int, float, float, int, str]] = {}
    for name, entries in rows.items():
        marks = [_badness(entry) for entry in entries]
        verdict = max(mark[0] for mark in marks)
        value = max(mark[2] for mark in marks)
        used = max(mark[1] for mark in marks)
        worst[name] = (verdict, value, used, entries[0]["num_gpus"] or 0, name)
    order: list[str] = []
    left = dict(worst)
    while left:
        verdict = min(mark[0] for mark in left.values())
        same = {name: mark for name, mark in left.items() if mark[0] == verdict}
        best = min(mark[1] for mark in same.values())
        close = [n for n, m in same.items() if m[1] <= best + zone or not np.isfinite(best)]
        order += sorted(close, key=lambda name: worst[name][2:])
        left = {name: mark for name, mark in left.items() if name not in close}
    return order
