"""Who wins at which load, the load at which winners change, and the limit that decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl

from sieve.context import RunContext
from sieve.fleet.shapes import FINEST, Shape, prepared, shapes_of, traffic_at
from sieve.perf.capacity import workload_of
from sieve.pipeline import LEVEL_KEYS, entry_of, levels_of, run_stages
from sieve.ranking.verdicts import limits_of
from sieve.sim.metrics import queue_growth
from sieve.spec import load_spec
from stages import s5_simulate, s6_rank


def levels(
    spec: str | Path | Mapping[str, Any], *, overrides: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the winner at each load level and the loads between them at which winners change.

    The stages run for each level by themselves, so that a shortlist made for one load does not hide
    what another needs (in `result.json` all levels share the shortlist of level 1.0). Between two
    neighbouring levels with different winners the load is found by bisection over
    replays of the two. `change.limit` is the objective that is nearest to breaking, or broken, for
    the one that gives way just above that load, `used` its pessimistic end over the limit (above 1:
    missed), and `binds` what its engines ran out of: `kv_cache`, `max_num_seqs`,
    `max_num_batched_tokens` or null.

    Args:
        spec: path of a run spec, or the spec as a mapping.
        overrides: `dotted.key=value` texts.

    Returns:
        `levels` as in `result.json`, and `changes`: `level`, `from_id`, `to_id`, `limit`, `used`,
        `binds`, `because` (`limit`: the first no longer has the verdict of the other, or keeps up;
        `objective`: it has, but the other is better; `neither_holds`: both miss).

    Raises:
        SieveError: any fault of the input.
    """
    asked = load_spec(spec, overrides=overrides).run.traffic.levels
    context, grid = prepared(spec, [*overrides, "traffic.levels=[1.0]"])
    found, ranked = [], []
    for level in sorted(asked):
        requests = traffic_at(context, level)
        here = replace(context, requests=requests, workload=workload_of(requests))
        outcome = run_stages(grid.candidates, here)
        rows = levels_of(outcome, here) or [dict.fromkeys(LEVEL_KEYS)]
        found.append(rows[0] | {"level": level})
        ranked.append(outcome.ranked)
    known = [i for i, row in enumerate(found) if row["candidate_id"] is not None]
    changes = [
        _change(found[i], found[j], [ranked[i], ranked[j]], context)
        for i, j in pairwise(known)
        if found[i]["candidate_id"] != found[j]["candidate_id"]
    ]
    return {"question": "levels", "levels": found, "changes": changes}


def _change(
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    ranked: Sequence[pl.DataFrame],
    context: RunContext,
) -> dict[str, Any]:
    ids = [before["candidate_id"], after["candidate_id"]]
    rows = [
        frame.filter(pl.col("candidate_id") == name)
        for frame, name in zip(ranked, ids, strict=True)
    ]
    frame = pl.concat(rows, how="diagonal")
    shapes = shapes_of(frame, context)
    low, high = before["level"], after["level"]
    while high / low > 1 + FINEST:
        middle = (low * high) ** 0.5
        if _at(shapes, frame, middle, context)[0]["candidate_id"] == ids[0]:
            low = middle
        else:
            high = middle
    above = _at(shapes, frame, high, context)
    loser = next(row for row in above if row["candidate_id"] == ids[0])
    winner = next(row for row in above if row["candidate_id"] == ids[1])
    return {
        "level": high,
        "from_id": ids[0],
        "to_id": ids[1],
        "limit": loser["nearest"],
        "used": loser["used"],
        "binds": loser["binds"],
        "because": _because(loser, winner),
    }


def _because(loser: Mapping[str, Any], winner: Mapping[str, Any]) -> str:
    """Return why a winner gives way: its limit, no one holds, or the objective alone."""
    if loser["verdict"] != winner["verdict"] or loser["growing"]:
        return "limit"
    return "neither_holds" if loser["verdict"] == "misses" else "objective"


def _at(
    shapes: Sequence[Shape], frame: pl.DataFrame, level: float, context: RunContext
) -> list[dict[str, Any]]:
    """Return the entries of both at a load level, the better first."""
    rows = []
    requests = traffic_at(context, level)
    for shape in shapes:
        result = shape.replay(requests, shape.row["replicas"])
        facts = s5_simulate.row_of(requests, shape.table, shape.settings, result, shape.shared)
        growing = queue_growth(requests, result) > s5_simulate.MAX_GROWTH
        rows.append({"candidate_id": shape.row["candidate_id"], **facts, "growing": growing})
    both = pl.DataFrame(rows, infer_schema_length=None)
    priced = s5_simulate.with_money(both.with_columns(level=pl.lit(level)), frame, context)
    axes = frame.select(
        "candidate_id", "num_gpus", "max_num_seqs", "max_num_batched_tokens", "replicas"
    )
    joined = priced.join(axes, on="candidate_id", maintain_order="left")
    ordered = s6_rank.in_order(joined, context).sort("growing", maintain_order=True)
    return [
        entry_of(ordered[i], limits_of(context.slos)) | {"growing": ordered["growing"][i]}
        for i in range(len(ordered))
    ]
