"""How many replicas of one shape: the fewest that clear the objectives, and what each one adds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl

from sieve.api import prepare
from sieve.arrays import Requests, StepTable
from sieve.context import RunContext
from sieve.detail import choose, sized
from sieve.errors import InvalidInput
from sieve.frames import gpus_per_replica
from sieve.parallel import LocalExecutor
from sieve.perf.cache import FAMILY
from sieve.ranking.verdicts import limits_of, verdicts
from sieve.sim.fleet import STATIC
from sieve.sim.metrics import queue_growth
from sieve.sim.replay import ReplaySettings, simulate
from sieve.spec import load_spec
from sieve.traces import at_level
from stages import s5_simulate

MAX_REPLICAS: Final = 4096


@dataclass(frozen=True, eq=False)
class _Shape:
    """What the search replays, but for the number of replicas."""

    requests: Requests
    table: StepTable
    settings: ReplaySettings
    shared: s5_simulate.Shared
    context: RunContext


def scaling(
    spec: str | Path | Mapping[str, Any],
    candidate: str,
    *,
    most: int = 64,
    overrides: Sequence[str] = (),
    level: float = 1.0,
) -> dict[str, Any]:
    """Return the fewest replicas of a candidate's shape that clear, and a curve over replicas.

    Every count sees the same requests. The search doubles the count until it clears and then halves
    the interval: more replicas never serve less, so the fewest is where it first clears; the counts
    on either side are replayed and shown. Throughput at saturation is that of all requests at once,
    its efficiency that of one replica times the count.

    Args:
        spec: path of a run spec, or the spec as a mapping.
        candidate: an id or `axis=value` pairs, as `sieve.replay` takes; its replicas do not count.
        most: largest count that is tried.
        overrides: `dotted.key=value` texts.
        level: multiple of the traffic's rate.

    Returns:
        `fewest_replicas` and `fewest_point_only` (None: not up to `most`), `gpus_per_replica`, and
        `rows`, one a count: `replicas`, `num_gpus`, `verdict`, `ttft_p99_s`, `tpot_p99_s`,
        `slo_attainment`, `output_tokens_per_s`, `saturation_tokens_per_s`, `efficiency`,
        `headroom` (saturation over what the traffic asks for; None for a closed loop or a burst).

    Raises:
        SieveError: any fault of the input, or a shape that cannot run.
    """
    if not 1 <= most <= MAX_REPLICAS:
        raise InvalidInput(
            f"most replicas (--scaling): found {most}; expected 1 to {MAX_REPLICAS:,}"
        )
    resolved = load_spec(spec, overrides=overrides)
    context, grid = prepare(resolved, LocalExecutor())
    frame = sized(_shape_of(grid.candidates, candidate), context)
    row = frame.row(0, named=True)
    shared = s5_simulate.shared_of(frame, context)
    shape = _Shape(
        requests=at_level(context.requests, level),
        table=shared.tables[tuple(row[name] for name in FAMILY)],
        settings=s5_simulate.settings_of(row, context),
        shared=shared,
        context=context,
    )
    gpus = gpus_per_replica(row)
    known: dict[int, dict[str, Any]] = {}

    def at(count: int) -> dict[str, Any]:
        if count not in known:
            known[count] = _row(shape, count, gpus)
        return known[count]

    fewest = {
        name: _fewest(lambda count, ok=ok: at(count)["verdict"] in ok, most)
        for name, ok in (("clears", {"clears"}), ("point", {"clears", "point_only"}))
    }
    for count in (1, 2, 4, 8):
        if count <= most:
            at(count)
    _saturate(shape, known)
    return {
        "shape": row["candidate_id"].replace(f".r{row['replicas']}.", ".r*."),
        "level": level,
        "routing": shared.routing,
        "gpus_per_replica": gpus,
        "fewest_replicas": fewest["clears"],
        "fewest_point_only": fewest["point"],
        "rows": [known[count] for count in sorted(known)],
    }


def _shape_of(candidates: pl.DataFrame, text: str) -> pl.DataFrame:
    """Return one candidate of the shape, whatever its replicas."""
    if "=" not in text or "replicas=" in text:
        return choose(candidates, text)
    one = candidates.filter(pl.col("replicas") == candidates["replicas"].min())
    return choose(one, text)


def _fewest(clears: Any, most: int) -> int | None:
    """Return the fewest replicas for which `clears` holds, found by doubling and bisection."""
    low, high = 0, 1
    while not clears(high):
        if high == most:
            return None
        low, high = high, min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if clears(middle) else (middle, high)
    return high


def _row(shape: _Shape, count: int, gpus: int) -> dict[str, Any]:
    requests, shared = shape.requests, shape.shared
    result = simulate(
        requests, shape.table, shape.settings, count, routing=shared.routing, seed=shared.seed
    )
    facts = s5_simulate.row_of(requests, shape.table, shape.settings, result, shared)
    growing = queue_growth(requests, result) > s5_simulate.MAX_GROWTH
    verdict = "misses"
    if not (growing or result.status):
        (verdict,) = verdicts(pl.DataFrame([facts]), limits_of(shape.context.slos))
    names = ("ttft_p99_s", "tpot_p99_s", "slo_attainment", "output_tokens_per_s")
    return {
        "replicas": count,
        "num_gpus": count * gpus,
        "verdict": verdict,
        **{name: facts[name] for name in names},
    }


def _saturate(shape: _Shape, rows: dict[int, dict[str, Any]]) -> None:
    """Add throughput at saturation, its efficiency and the headroom to every row."""
    requests = shape.requests
    burst = replace(
        requests, arrival_s=np.zeros(len(requests)), previous=None, delay_s=None,
        closed_loop_users=None,
    )  # fmt: skip
    routing = shape.shared.routing if shape.shared.routing in STATIC else "round_robin"
    if routing == "session":
        routing = "round_robin"
    rate = requests.rate_per_s
    asked = rate * float(requests.output_tokens.mean()) if np.isfinite(rate) else None
    first = None
    for count in sorted({1, *rows}):
        result = simulate(burst, shape.table, shape.settings, count, routing=routing)
        served = (
            float(requests.output_tokens.sum()) / result.makespan_s if result.makespan_s else 0.0
        )
        first = first or served
        if count in rows:
            rows[count] |= {
                "saturation_tokens_per_s": served,
                "efficiency": served / (count * first) if first else None,
                "headroom": served / asked if asked else None,
            }
