"""Two pools split by length or priority against one pool of the same GPUs, on your traffic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, get_args

import numpy as np

from sieve.arrays import BoolArray, IntArray, Requests, SimResult
from sieve.detail import choose, sized
from sieve.errors import InvalidInput
from sieve.fleet.shapes import (
    By,
    Shape,
    fleet_cost,
    judged,
    open_loop,
    prepared,
    shapes_of,
    traffic_at,
)
from sieve.sim.merge import blended, merge_results
from sieve.sim.metrics import meets, per_request, statistic_of
from sieve.sim.replay import REQUEST_EXCEEDS_CACHE
from sieve.spec.slo_classes import values_of

SPLITS: Final = (25, 50, 75, 90, 95)
"""Percentiles of what is split by at which a split is tried unless the user names them."""
MAX_SPLITS: Final = 50
_PLACE: Final = {"clears": 0, "point_only": 1, "misses": 2}


def pools(
    spec: str | Path | Mapping[str, Any],
    short: str,
    long: str,
    *,
    splits: Sequence[int] = (),
    by: str = "total_tokens",
    overrides: Sequence[str] = (),
    level: float = 1.0,
) -> dict[str, Any]:
    """Return two pools, split by length or priority, beside one pool of as many GPUs.

    Requests up to the split go to the pool of the first candidate, others to that of the second, as
    a router with a good guess of the answer's length would send them. One pool means all requests
    on the shape of either candidate, with as many replicas as the GPUs of both pools give.

    Args:
        spec: path of a run spec, or the spec as a mapping.
        short: candidate of the pool for short or urgent requests, as `sieve.replay` takes it,
            replicas too.
        long: candidate of the pool for the others.
        splits: lengths in tokens, or priorities; empty: at percentiles of the traffic.
        by: what is compared with the split.
        overrides: `dotted.key=value` texts.
        level: multiple of the traffic's rate.

    Returns:
        `num_gpus`; `rows`, one a layout: `layout` (`one pool` or `two pools`), `candidate_ids`,
        `split`, `num_gpus`, `usd_per_hour`, `status`, `verdict`, `ttft_p99_s`, `tpot_p99_s`,
        `e2e_p99_s`, `slo_attainment`, `output_tokens_per_s`, and for two pools `short` and `long`
        with the same of each class; `best_split`: of those with the best verdict the one with the
        highest attainment, then the lowest p99 of TTFT; `better`: whether that is better than one
        pool.

    Raises:
        SieveError: any fault of the input, a closed loop, sessions, a split that leaves a pool
            without requests, or pools that leave requests unserved.
    """
    if by not in get_args(By):
        raise InvalidInput(f"pools are split by {', '.join(get_args(By))}; found {by!r}")
    context, grid = prepared(spec, overrides)
    requests = traffic_at(context, level)
    open_loop(requests, "a comparison of pools")
    values = values_of(requests, by)
    frames = [sized(choose(grid.candidates, text), context) for text in (short, long)]
    first, second = (shapes_of(frame, context)[0] for frame in frames)
    gpus = int(first.row["num_gpus"]) + int(second.row["num_gpus"])
    rows = [_one_pool(shape, gpus, requests) for shape in (first, second)]
    if first.row["candidate_id"] == second.row["candidate_id"]:
        rows = rows[:1]
    for split in splits or _tried(values, by):
        is_short = values <= split
        if is_short.all() or not is_short.any():
            raise InvalidInput(
                f"a split at {by} {split} leaves a pool without requests; they have "
                f"{int(values.min())} to {int(values.max())}"
            )
        rows.append(_two_pools(first, second, split, is_short, requests))
        if splits:
            _refuse_unserved(rows[-1])
    found = [row for row in rows if row["layout"] == "two pools" and not row["status"]]
    if not found and len(rows) > 2:
        _refuse_unserved(rows[-1])
    best = min(found, key=_order, default=None)
    single = min((row for row in rows if row["layout"] == "one pool"), key=_order)
    return {
        "num_gpus": gpus,
        "level": level,
        "by": by,
        "rows": rows,
        "best_split": None if best is None else best["split"],
        "better": best is not None and _order(best)[:2] < _order(single)[:2],
    }


def _tried(values: IntArray, by: str) -> list[int]:
    """Return the splits that are tried when none is named: each leaves requests on both sides.

    Raises:
        InvalidInput: all values are equal.
    """
    if by == "priority":
        found = sorted(set(values.tolist()))[:-1][:MAX_SPLITS]
    else:
        found = sorted({int(np.percentile(values, q)) for q in SPLITS})
        found = [split for split in found if values.min() <= split < values.max()]
    if not found:
        raise InvalidInput(f"every request has the same {by}, {int(values[0])}; nothing to split")
    return found


def _order(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return _PLACE[row["verdict"]], -row["slo_attainment"], row["ttft_p99_s"]


def _refuse_unserved(row: Mapping[str, Any]) -> None:
    """Refuse pools in which a request never fits.

    Raises:
        InvalidInput: names the pool.
    """
    for name in ("short", "long"):
        if row[name]["status"] == REQUEST_EXCEEDS_CACHE:
            raise InvalidInput(
                f"split {row['split']}: the {name} pool leaves requests unserved: its longest "
                f"takes {row[name]['longest']:,} tokens, more than a replica's KV cache of "
                f"{row[name]['kv_tokens']:,}; choose a larger shape or another split"
            )


def _one_pool(shape: Shape, gpus: int, requests: Requests) -> dict[str, Any]:
    replicas = gpus // shape.gpus
    result = shape.replay(requests, replicas)
    used = replicas * shape.gpus
    return {
        "layout": "one pool",
        "candidate_ids": [shape.candidate_id(replicas)],
        "split": None,
        "num_gpus": used,
        "usd_per_hour": shape.usd_per_hour(used),
        **_judged(requests, result, [shape], [result]),
        **_metrics(requests, result, shape),
    }


def _two_pools(
    first: Shape, second: Shape, split: int, is_short: BoolArray, requests: Requests
) -> dict[str, Any]:
    members = [np.flatnonzero(is_short), np.flatnonzero(~is_short)]
    parts = [requests.take(rows) for rows in members]
    shapes = (first, second)
    results = [
        shape.replay(part, int(shape.row["replicas"]))
        for shape, part in zip(shapes, parts, strict=True)
    ]
    whole = merge_results(requests, results, members)
    classes = {
        name: {
            "num_requests": len(part),
            "longest": int((part.input_tokens + part.output_tokens).max()),
            "kv_tokens": int(shape.row["kv_tokens"]),
            "status": result.status,
            **_metrics(part, result, shape),
        }
        for name, shape, part, result in zip(("short", "long"), shapes, parts, results, strict=True)
    }
    return {
        "layout": "two pools",
        "candidate_ids": [shape.row["candidate_id"] for shape in shapes],
        "split": split,
        "num_gpus": sum(int(shape.row["num_gpus"]) for shape in shapes),
        "usd_per_hour": fleet_cost([(shape, int(shape.row["replicas"])) for shape in shapes]),
        **_judged(requests, whole, shapes, results),
        **_metrics(requests, whole, first),
        **classes,
    }


def _judged(
    requests: Requests, whole: SimResult, shapes: Sequence[Shape], results: Sequence[SimResult]
) -> dict[str, str]:
    table = blended([shape.table for shape in shapes], [result.component_s for result in results])
    facts = judged(requests, whole, table, shapes[0])
    return {"status": facts["status"], "verdict": facts["verdict"]}


def _metrics(requests: Requests, result: SimResult, shape: Shape) -> dict[str, float]:
    latencies = per_request(requests, result, shape.shared.classes)
    span_s = result.makespan_s if not result.status else float("nan")
    return {
        **{f"{m}_p99_s": statistic_of(latencies[m], "p99") for m in ("ttft", "tpot", "e2e")},
        "slo_attainment": float(meets(latencies, shape.shared.limits).mean()),
        "output_tokens_per_s": float(requests.output_tokens.sum()) / span_s,
    }
