"""Several shapes and GPU types together: a load at least cost, or the most load for a budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any, Final

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from sieve.arrays import IntArray
from sieve.errors import InvalidInput
from sieve.fleet.shapes import (
    FINEST,
    Shape,
    fleet_cost,
    fleet_row,
    highest_level,
    judged,
    load_shapes,
    open_loop,
    point,
    traffic_at,
)
from sieve.grid import require_prices
from sieve.sim.merge import blended, merge_results

MAX_BUDGET: Final = 1e6
TRIES: Final = 12
"""Choices of the integer program that are replayed at most."""


@dataclass(frozen=True, eq=False)
class Point:
    """An operating point: so many replicas of a shape, and the load at which they still clear.

    Attributes:
        shape: the shape.
        replicas: how many.
        capacity: load level of the run's traffic that they take within the objectives.
        usd_per_hour: what they cost.
    """

    shape: Shape
    replicas: int
    capacity: float
    usd_per_hour: float

    @property
    def gpus(self) -> int:
        """GPUs of all replicas."""
        return self.replicas * self.shape.gpus


def mix(
    spec: str | Path | Mapping[str, Any],
    candidates: Sequence[str] = (),
    *,
    budget: float | None = None,
    overrides: Sequence[str] = (),
    level: float = 1.0,
    count: int = 6,
) -> dict[str, Any]:
    """Return the best mix of shapes and the best fleet of each single GPU type.

    One, two, four ... replicas of each shape are replayed at rising load to find what they take
    within the objectives; counts between are interpolated. An integer program (HiGHS) picks at most
    one count of each shape: at least cost for the load, or for the most load within the budget. The
    traffic is dealt by these capacities and the fleet replayed whole: `row` is that replay. A mix
    that misses is solved again for a little more load; `verdict` says how it ended.

    Args:
        spec: path of a run spec, or the spec as a mapping.
        candidates: shapes, as `sieve.replay` takes them; empty: the most promising of the grid.
        budget: USD per hour; None: serve `level` at least cost.
        overrides: `dotted.key=value` texts.
        level: multiple of the traffic's rate to serve; not read with a budget.
        count: most shapes without `candidates`.

    Returns:
        `mix` and `single` (by GPU type): null where none is found, else the row of the replay with
        `pools` (candidate, share of the load), `served_level` (with a budget: the highest load
        level that clears) and `planned_level`; `best_single`, `gain` (with a budget: load of the
        mix over that of the best single type, less 1; else the share of cost that it saves; null if
        one is missing), `points` (replicas and capacity of each shape), `num_shapes`.

    Raises:
        SieveError: any fault of the input, GPUs without prices, or a budget below one replica.
    """
    if budget is not None and not (np.isfinite(budget) and 0 < budget <= MAX_BUDGET):
        raise InvalidInput(f"--budget: found {budget} USD/h; expected above 0 to {MAX_BUDGET:,.0f}")
    context, shapes, total = load_shapes(spec, candidates, overrides=overrides, count=count)
    require_prices(context.gpus)
    open_loop(context.requests, "a mix")
    if np.isinf(context.requests.rate_per_s):
        raise InvalidInput(
            "a mix needs arrivals over time; this traffic comes all at once: set traffic.rate_per_s"
        )
    most = context.spec.fleet.max_gpus or 8
    fitting = [shape for shape in shapes if shape.gpus <= most]
    if budget is not None:
        _refuse_small(budget, fitting)
    points = [p for shape in fitting for p in _points(shape, most, level, budget)]
    found = _solved(points, most, level, budget)
    types = dict.fromkeys(shape.row["gpu"] for shape in fitting)
    single = {
        gpu: _solved([p for p in points if p.shape.row["gpu"] == gpu], most, level, budget)
        for gpu in types
    }
    best = _best_single(single, budget)
    # One type alone is a mix too, and its replay may do better than the program thought.
    others = [row for row in (found, *single.values()) if row]
    found = max(others, key=_rank, default=None)
    return {
        "question": "mix",
        "budget_usd_per_hour": budget,
        "level": None if budget is not None else level,
        "max_gpus": most,
        "num_shapes": total,
        "mix": found,
        "single": single,
        "best_single": best,
        "gain": _gain(found, single.get(best) if best else None, budget),
        "points": [
            {
                "candidate_id": p.shape.candidate_id(p.replicas),
                "replicas": p.replicas,
                "capacity_level": p.capacity,
                "usd_per_hour": p.usd_per_hour,
            }
            for p in points
        ],
    }


def _refuse_small(budget: float, shapes: Sequence[Shape]) -> None:
    least = min(shapes, key=lambda shape: shape.usd_per_hour(shape.gpus) or 0.0)
    cost = least.usd_per_hour(least.gpus) or 0.0
    if budget < cost:
        raise InvalidInput(
            f"--budget {budget:g} USD/h is below the cheapest replica, {least.name} at {cost:g} "
            "USD/h; raise it or add a cheaper GPU"
        )


def _points(shape: Shape, most: int, level: float, budget: float | None) -> list[Point]:
    """Return the operating points of a shape up to what the fleet, load or budget can use."""
    limit = most // shape.gpus
    one = shape.usd_per_hour(shape.gpus) or 0.0
    if budget is not None:
        limit = min(limit, int(budget / one))
    known: dict[int, float] = {}
    replicas, guess = 1, level
    while replicas <= limit:
        found = _capacity(shape, replicas, guess)
        if found is None:
            return []
        known[replicas] = found
        if budget is None and found >= level:
            limit = min(limit, replicas)
        if replicas == limit:
            break
        guess, replicas = 2 * found, min(2 * replicas, limit)
    if not known:
        return []
    counts = np.arange(1, max(known) + 1)
    capacity = np.interp(counts, list(known), list(known.values()))
    return [
        Point(shape, int(k), float(c), shape.usd_per_hour(int(k) * shape.gpus) or 0.0)
        for k, c in zip(counts, capacity, strict=True)
    ]


def _capacity(shape: Shape, replicas: int, guess: float) -> float | None:
    def clears(level: float) -> bool:
        at = traffic_at(shape.context, level)
        return bool(point(shape, replicas, at)["verdict"] == "clears")

    return highest_level(clears, guess)


def choice(
    points: Sequence[Point],
    most: int,
    load: float,
    budget: float | None,
    tried: Sequence[frozenset[int]] = (),
) -> list[int]:
    """Return the indices of the points that an integer program picks; [] without a solution.

    At most one point of each shape, at most `most` GPUs. Without a budget: the least cost of a
    capacity of at least `load`; with one: the most capacity, of equal ones the cheaper.

    Args:
        points: operating points.
        most: GPUs.
        load: level to serve.
        budget: USD per hour, or None.
        tried: choices that are not to come again.
    """
    if not points:
        return []
    capacity = np.array([p.capacity for p in points])
    cost = np.array([p.usd_per_hour for p in points])
    gpus = np.array([float(p.gpus) for p in points])
    names = [p.shape.name for p in points]
    once = np.array([[float(name == other) for name in names] for other in dict.fromkeys(names)])
    rules = [LinearConstraint(once, ub=1.0), LinearConstraint(gpus[None, :], ub=float(most))]
    if budget is None:
        rules.append(LinearConstraint(capacity[None, :], lb=load))
        target = cost
    else:
        rules.append(LinearConstraint(cost[None, :], ub=budget * (1 + 1e-9)))
        target = -capacity + 1e-6 * cost / max(float(cost.sum()), 1e-9)
    for picked in tried:
        inside = np.array([1.0 if i in picked else -1.0 for i in range(len(points))])
        rules.append(LinearConstraint(inside[None, :], ub=len(picked) - 1.0))
    solved = milp(target, constraints=rules, integrality=np.ones(len(points)), bounds=Bounds(0, 1))
    return [] if solved.x is None else np.flatnonzero(solved.x > 0.5).tolist()


def _solved(
    points: Sequence[Point], most: int, level: float, budget: float | None
) -> dict[str, Any] | None:
    """Return the best choice by its replay, tried in the order of the integer program.

    Without a budget that is the first that clears; with one, choices are tried until the next
    promises no more than the best has served.
    """
    tried: list[frozenset[int]] = []
    best: dict[str, Any] | None = None
    for _ in range(TRIES):
        found = choice(points, most, level, budget, tried)
        if not found:
            break
        tried.append(frozenset(found))
        picked = [points[i] for i in found]
        planned = sum(p.capacity for p in picked)
        served: float | None = level
        if budget is not None:
            if best is not None and planned <= (best["served_level"] or 0.0) * (1 + FINEST):
                break
            served = highest_level(partial(_clears, picked), planned)
        row = _replayed(picked, planned if served is None else served)
        row |= {"served_level": served, "planned_level": planned}
        if best is None or _rank(row) > _rank(best):
            best = row
        if budget is None and row["verdict"] == "clears":
            break
    return best


def _rank(row: Mapping[str, Any]) -> tuple[bool, float, float]:
    return row["verdict"] == "clears", row["served_level"] or 0.0, -row["usd_per_hour"]


def _clears(picked: Sequence[Point], level: float) -> bool:
    return bool(_replayed(picked, level)["verdict"] == "clears")


def _replayed(picked: Sequence[Point], level: float) -> dict[str, Any]:
    """Return the row of the whole fleet at a load level, its traffic dealt by capacity."""
    requests = traffic_at(picked[0].shape.context, level)
    weights = np.array([p.capacity for p in picked])
    lane = dealt(weights, len(requests))
    rows = [np.flatnonzero(lane == k) for k in range(len(picked))]
    rows_used = [(p, r) for p, r in zip(picked, rows, strict=True) if len(r)]
    results = [p.shape.replay(requests.take(r), p.replicas) for p, r in rows_used]
    whole = merge_results(requests, results, [r for _, r in rows_used])
    shape = picked[0].shape
    table = blended([p.shape.table for p, _ in rows_used], [r.component_s for r in results])
    facts = judged(requests, whole, table, shape)
    names = {p.shape.candidate_id(p.replicas): p.replicas for p in picked}
    cost = fleet_cost([(p.shape, p.replicas) for p in picked])
    row = fleet_row(facts, names, sum(p.gpus for p in picked), cost)
    shares = weights / weights.sum()
    row["pools"] = [
        {
            "candidate_id": p.shape.candidate_id(p.replicas),
            "gpu": p.shape.row["gpu"],
            "replicas": p.replicas,
            "num_gpus": p.gpus,
            "share": float(share),
        }
        for p, share in zip(picked, shares, strict=True)
    ]
    return row


def dealt(weights: np.ndarray[tuple[int], np.dtype[np.float64]], n: int) -> IntArray:
    """Return the pool of each of n requests, (n,), as evenly as its weight allows.

    The j-th request of a pool is due at (j + 1/2)/weight; requests go to pools in order of what is
    due (Webster's method), so no pool ever leads or lags its share by a whole request.
    """
    counts = [ceil(n * w / weights.sum()) + 1 for w in weights]
    due = np.concatenate([(np.arange(c) + 0.5) / w for c, w in zip(counts, weights, strict=True)])
    pool = np.repeat(np.arange(len(weights)), counts)
    return pool[np.lexsort((pool, due))[:n]].astype(np.int64)


def _best_single(single: Mapping[str, Any], budget: float | None) -> str | None:
    known = {gpu: row for gpu, row in single.items() if row and row["verdict"] == "clears"}
    if not known:
        return None
    if budget is not None:
        return max(known, key=lambda gpu: (known[gpu]["served_level"] or 0.0, gpu))
    return min(known, key=lambda gpu: (known[gpu]["usd_per_hour"], gpu))


def _gain(
    found: Mapping[str, Any] | None, single: Mapping[str, Any] | None, budget: float | None
) -> float | None:
    if not found or not single or found["verdict"] != "clears":
        return None
    if budget is not None:
        return float(found["served_level"] / single["served_level"] - 1.0)
    return float(1.0 - found["usd_per_hour"] / single["usd_per_hour"])
