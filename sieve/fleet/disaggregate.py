"""Prefill and decode engines apart: the best ratio, against engines that do both, an estimate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from sieve.arrays import IntArray, Requests, SimResult
from sieve.errors import InvalidInput
from sieve.fleet.shapes import (
    Shape,
    fleet_cost,
    fleet_row,
    highest_level,
    judged,
    load_shapes,
    point,
    traffic_at,
)
from sieve.sim.disaggregated import ASSUMPTIONS, DecodePool, Link, disaggregated
from sieve.sim.merge import blended
from sieve.sim.replay import simulate
from sieve.units import GB

MAX_GPUS: Final = 1024
MAX_PAIRS: Final = 16


def disaggregate(
    spec: str | Path | Mapping[str, Any],
    gpus: int,
    *,
    link_gbs: float,
    link_latency_s: float = 0.0,
    prefill: Sequence[str] = (),
    decode: Sequence[str] = (),
    overrides: Sequence[str] = (),
    count: int = 4,
) -> dict[str, Any]:
    """Return every ratio of prefill to decode engines, beside aggregated fleets of as many GPUs.

    Fleets are compared by the highest load level at which they clear, found by bisection over the
    same requests, and shown at level 1.0. The model's error is taken to be that of replays.

    Args:
        spec: path of a run spec, or the spec as a mapping.
        gpus: of all engines together.
        link_gbs: GB/s that one GPU can send to another pool, in one direction.
        link_latency_s: of one transfer.
        prefill: shapes of prefill engines, as `sieve.replay` takes candidates; empty: those of the
            decode engines, or the most promising of the grid, each with itself.
        decode: shapes of decode engines; empty: those of the prefill engines.
        overrides: `dotted.key=value` texts.
        count: most shapes that are tried without `prefill` and `decode`.

    Returns:
        `rows` of disaggregated fleets and `aggregated` of others, best first: what
        `sieve.fleet.shapes.fleet_row` holds, `headroom` (null: does not clear), and for the first
        `prefill_engines`, `decode_engines`, `kv_bytes_per_token`; `gain`: headroom of the best over
        that of the best aggregated fleet, less 1, null if one is unknown; `assumptions`.

    Raises:
        SieveError: any fault of the input, a link without bandwidth, sessions, too few GPUs.
    """
    if not 2 <= gpus <= MAX_GPUS:
        raise InvalidInput(
            f"--gpus: found {gpus}; prefill and decode apart take 2 to {MAX_GPUS:,} GPUs"
        )
    Link(link_gbs * GB, link_latency_s)
    raised = [*overrides, f"fleet.max_gpus={gpus}"]
    asked = [*prefill, *decode]
    context, shapes, total = load_shapes(spec, asked, overrides=raised, count=count)
    if context.requests.previous is not None:
        raise InvalidInput(
            "this traffic has sessions; prefill and decode apart take traffic without: give "
            "another trace, or ask `sieve fleet size`"
        )
    shapes = _one_engine(shapes, named=bool(asked))
    pairs = _pairs(shapes, len(prefill), len(decode))
    if len(pairs) > MAX_PAIRS:
        raise InvalidInput(f"{len(pairs)} pairs of shapes; at most {MAX_PAIRS} are tried")
    rows = [
        _ratio(first, second, engines, gpus, link_gbs * GB, link_latency_s)
        for first, second in pairs
        for engines in range(1, gpus // first.gpus + 1)
        if gpus - engines * first.gpus >= second.gpus
    ]
    if not rows:
        raise InvalidInput(f"no pair of these shapes fits {gpus} GPUs; give more GPUs")
    unique = {shape.name: shape for shape in shapes if shape.gpus <= gpus}
    together = [_aggregated(shape, gpus) for shape in unique.values()]
    rows.sort(key=_order)
    together.sort(key=_order)
    best, rival = rows[0]["headroom"], together[0]["headroom"] if together else None
    return {
        "question": "disaggregate",
        "kind": "estimate",
        "num_gpus": gpus,
        "link_gbs_per_gpu": link_gbs,
        "link_latency_s": link_latency_s,
        "num_shapes": total,
        "rows": rows,
        "aggregated": together,
        "gain": None if not best or not rival else best / rival - 1.0,
        "assumptions": list(ASSUMPTIONS),
    }


def _one_engine(shapes: list[Shape], *, named: bool) -> list[Shape]:
    """Return the shapes whose replicas are one engine; data-parallel ranks are not replayed apart.

    Raises:
        InvalidInput: the user named another, or there is none.
    """
    alone = [shape for shape in shapes if shape.table.lock_step is None]
    if not alone or (named and len(alone) < len(shapes)):
        raise InvalidInput(
            "prefill and decode apart take engines without data-parallel ranks; "
            "choose shapes with data_parallel_size=1"
        )
    return alone


def _order(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return -(row["headroom"] or 0.0), row["ttft_p99_s"]["mid"], row["candidate_ids"]


def _pairs(shapes: list[Shape], prefill: int, decode: int) -> list[tuple[Shape, Shape]]:
    first, second = shapes[:prefill], shapes[prefill : prefill + decode]
    if not first and not second:
        return [(shape, shape) for shape in shapes]
    if not first or not second:
        return [(shape, shape) for shape in first or second]
    return [(one, other) for one in first for other in second]


def kv_block_bytes(shape: Shape) -> float:
    """Return the bytes of one KV block of a replica, every rank's copy counted."""
    return float(shape.row["kv_block_bytes_per_gpu"]) * shape.gpus


def pool_replay(
    requests: Requests, first: Shape, second: Shape, engines: tuple[int, int], link: Link
) -> SimResult:
    """Return the replay over prefill engines of one shape and decode engines of another."""

    def prefill(part: Requests, lane: IntArray) -> SimResult:
        return simulate(
            part, first.table, first.settings, engines[0], clock=first.clock, lane=lane
        )  # fmt: skip

    pool = DecodePool(
        engines[1], second.settings, second.clock, kv_block_bytes(second),
        second.table.roofline is not None,
    )  # fmt: skip
    return disaggregated(requests, prefill, engines[0], pool, link)


def _ratio(
    first: Shape, second: Shape, prefill: int, gpus: int, rate: float, latency_s: float
) -> dict[str, Any]:
    decode = (gpus - prefill * first.gpus) // second.gpus
    link = Link(rate * min(first.gpus, second.gpus), latency_s)

    def at(level: float) -> dict[str, Any]:
        requests = traffic_at(first.context, level)
        result = pool_replay(requests, first, second, (prefill, decode), link)
        spent = [result.component_s * share for share in (0.5, 0.5)]
        table = blended([first.table, second.table], spent)
        return judged(requests, result, table, second)

    used = prefill * first.gpus + decode * second.gpus
    names = {f"prefill {first.candidate_id(prefill)}": prefill}
    names[f"decode {second.candidate_id(decode)}"] = decode
    cost = fleet_cost([(first, prefill), (second, decode)])
    row = fleet_row(at(1.0), names, used, cost)
    span = second.settings.block_size
    return row | {
        "prefill_engines": prefill,
        "decode_engines": decode,
        "left_over_gpus": gpus - used,
        "kv_bytes_per_token": kv_block_bytes(second) / span,
        "headroom": _headroom(first, lambda level: at(level)["verdict"] == "clears"),
    }


def _aggregated(shape: Shape, gpus: int) -> dict[str, Any]:
    replicas = gpus // shape.gpus

    def clears(level: float) -> bool:
        at = traffic_at(shape.context, level)
        return bool(point(shape, replicas, at)["verdict"] == "clears")

    row = point(shape, replicas, shape.context.requests)
    return row | {
        "left_over_gpus": gpus - replicas * shape.gpus,
        "headroom": _headroom(shape, clears),
    }


def _headroom(shape: Shape, clears: Any) -> float | None:
    rate = shape.context.requests.rate_per_s
    return None if np.isinf(rate) else highest_level(clears)
