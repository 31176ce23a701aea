"""How many GPUs: the fewest replicas of each shape, and all shapes on equally many GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from sieve.arrays import Requests
from sieve.errors import InvalidInput
from sieve.fleet.shapes import Shape, fewest, highest_level, load_shapes, point, traffic_at

MAX_GPUS: Final = 4096
_PLACE: Final = {"clears": 0, "point_only": 1, "misses": 2}


def size(
    spec: str | Path | Mapping[str, Any],
    candidates: Sequence[str] = (),
    *,
    overrides: Sequence[str] = (),
    level: float = 1.0,
    count: int = 12,
) -> dict[str, Any]:
    """Return the fewest replicas of each shape that clear, and the best by three yardsticks.

    The search doubles the replicas and halves the interval over the same requests (common random
    numbers), up to `fleet.max_gpus`. Where none clears, the fewest that hold in the middle of the
    intervals is shown, and else the most replicas, with their verdict.

    Args:
        spec: path of a run spec, or the spec as a mapping.
        candidates: shapes, as `sieve.replay` takes them; empty: the most promising of the grid.
        overrides: `dotted.key=value` texts.
        level: multiple of the traffic's rate.
        count: most shapes without `candidates`.

    Returns:
        `rows`, one a shape, best first by verdict and cost (GPUs without prices): what
        `sieve.fleet.shapes.fleet_row` holds and `num_replayed`; `fewest_gpus`, `cheapest`,
        `best_per_gpu`: candidate ids of the best verdict present, null where all miss; and
        `num_shapes`, how many of the grid can run.

    Raises:
        SieveError: any fault of the input, or no shape that can run.
    """
    context, shapes, total = load_shapes(spec, candidates, overrides=overrides, count=count)
    requests = traffic_at(context, level)
    gpus = context.spec.fleet.max_gpus or 8
    rows = [_fewest_of(shape, requests, gpus) for shape in shapes if shape.gpus <= gpus]
    rows.sort(key=_order)
    return {
        "question": "size",
        "level": level,
        "max_gpus": gpus,
        "routing": shapes[0].shared.routing,
        "num_shapes": total,
        "rows": rows,
        **_yardsticks(rows),
    }


def compare(
    spec: str | Path | Mapping[str, Any],
    gpus: int,
    candidates: Sequence[str] = (),
    *,
    overrides: Sequence[str] = (),
    count: int = 12,
) -> dict[str, Any]:
    """Return all shapes on equally many GPUs: verdict at level 1, capacity within the objectives.

    Each shape fills the GPUs with as many replicas as go; GPUs that are left over are named and
    count as used. `headroom` is the highest load level that clears, found by bisection over the
    same requests, `saturation_tokens_per_s` what all requests at once get.

    Args:
        spec: path of a run spec, or the spec as a mapping.
        gpus: how many.
        candidates: shapes; empty: the most promising of the grid.
        overrides: `dotted.key=value` texts.
        count: most shapes without `candidates`.

    Raises:
        SieveError: any fault of the input, or no shape that can run on so many GPUs.
    """
    if not 1 <= gpus <= MAX_GPUS:
        raise InvalidInput(f"--gpus: found {gpus}; expected 1 to {MAX_GPUS:,}")
    raised = [*overrides, f"fleet.max_gpus={gpus}"]
    _, shapes, total = load_shapes(spec, candidates, overrides=raised, count=count)
    fitting = [shape for shape in shapes if shape.gpus <= gpus]
    if not fitting:
        raise InvalidInput(
            f"--gpus: no shape runs on {gpus} GPUs; the smallest takes {_least(shapes)}"
        )
    rows = [_filled(shape, gpus) for shape in fitting]
    rows.sort(key=lambda row: (-(row["headroom"] or 0.0), _order(row)))
    return {
        "question": "compare",
        "level": 1.0,
        "num_gpus": gpus,
        "routing": shapes[0].shared.routing,
        "num_shapes": total,
        "rows": rows,
        **_yardsticks(rows),
    }


def _least(shapes: Sequence[Shape]) -> int:
    return min(shape.gpus for shape in shapes)


def _fewest_of(shape: Shape, requests: Requests, gpus: int) -> dict[str, Any]:
    known: dict[int, dict[str, Any]] = {}

    def at(count: int) -> dict[str, Any]:
        if count not in known:
            known[count] = point(shape, count, requests)
        return known[count]

    most = gpus // shape.gpus
    found = fewest(lambda k: at(k)["verdict"] == "clears", most)
    found = found or fewest(lambda k: at(k)["verdict"] != "misses", most) or most
    return at(found) | {"num_replayed": len(known)}


def _filled(shape: Shape, gpus: int) -> dict[str, Any]:
    replicas = gpus // shape.gpus
    requests = shape.context.requests
    row = point(shape, replicas, requests)

    def clears(level: float) -> bool:
        at = traffic_at(shape.context, level)
        return bool(point(shape, replicas, at)["verdict"] == "clears")

    headroom = None if requests.rate_per_s == float("inf") else highest_level(clears)
    return row | {
        "left_over_gpus": gpus - replicas * shape.gpus,
        "headroom": headroom,
        "saturation_tokens_per_s": saturation(shape, replicas),
    }


def saturation(shape: Shape, replicas: int) -> float | None:
    """Return output tokens per second when all requests come at once; None if not served.

    Sessions keep their turns' order and delays; a closed loop is replayed as it is.
    """
    requests = shape.context.requests
    if requests.closed_loop_users is None:
        requests = replace(requests, arrival_s=np.zeros(len(requests)))
    result = shape.replay(requests, replicas)
    if result.status or result.makespan_s <= 0:
        return None
    return float(requests.output_tokens.sum()) / result.makespan_s


def _order(row: Mapping[str, Any]) -> tuple[Any, ...]:
    usd = row["usd_per_hour"]
    cost = usd if usd is not None else float("inf")
    return _PLACE[row["verdict"]], cost, row["num_gpus"], row["candidate_ids"]


def _yardsticks(rows: Sequence[Mapping[str, Any]]) -> dict[str, str | None]:
    """Return the best by each yardstick among the rows of the best verdict present."""
    for verdict in ("clears", "point_only"):
        best = [row for row in rows if row["verdict"] == verdict]
        if best:
            priced = [row for row in best if row["usd_per_hour"] is not None]
            fewest_gpus = min(best, key=lambda row: row["num_gpus"])
            per_gpu = max(best, key=lambda row: row["output_tokens_per_s_per_gpu"])
            cheapest = min(priced, key=lambda row: row["usd_per_hour"], default=None)
            return {
                "fewest_gpus": fewest_gpus["candidate_ids"][0],
                "best_per_gpu": per_gpu["candidate_ids"][0],
                "cheapest": None if cheapest is None else cheapest["candidate_ids"][0],
            }
    return dict.fromkeys(("fewest_gpus", "best_per_gpu", "cheapest"))
