"""Two pools split by length against one pool of the same GPUs, on the user's own traffic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl

from sieve.api import prepare
from sieve.arrays import BoolArray, FloatArray, Requests
from sieve.context import RunContext
from sieve.detail import choose, sized
from sieve.errors import InvalidInput
from sieve.frames import gpus_per_replica
from sieve.parallel import LocalExecutor
from sieve.perf.cache import FAMILY
from sieve.sim.metrics import meets, per_request, statistic_of
from sieve.sim.replay import simulate
from sieve.spec import load_spec
from sieve.traces import at_level
from stages import s5_simulate

SPLITS: Final = (25, 50, 75, 90, 95)
"""Percentiles of the total length at which a split is tried unless the user names lengths."""


def pools(
    spec: str | Path | Mapping[str, Any],
    short: str,
    long: str,
    *,
    splits: Sequence[int] = (),
    overrides: Sequence[str] = (),
    level: float = 1.0,
) -> dict[str, Any]:
    """Return two pools, split by prompt + answer, beside one pool of as many GPUs.

    Requests up to the split go to the pool of the first candidate, longer ones to that of the
    second, as a router with a good guess of the answer's length would send them. One pool means all
    requests on the shape of either candidate, with as many replicas as the GPUs of both pools give.

    Args:
        spec: path of a run spec, or the spec as a mapping.
        short: candidate of the pool for short requests, as `sieve.replay` takes it, replicas too.
        long: candidate of the pool for longer ones.
        splits: lengths in tokens; empty: at percentiles of the traffic.
        overrides: `dotted.key=value` texts.
        level: multiple of the traffic's rate.

    Returns:
        `num_gpus`; `rows`, one a layout: `layout` (`one pool` or `two pools`), `candidate_ids`,
        `split`, `num_gpus`, `status`, `ttft_p99_s`, `tpot_p99_s`, `e2e_p99_s`, `slo_attainment`,
        `output_tokens_per_s`, and for two pools `short` and `long` with the same of each class;
        `best_split`: of those with the highest attainment the one with the lowest p99 of TTFT.

    Raises:
        SieveError: any fault of the input, a closed loop, sessions, or a split that leaves a pool
            without requests.
    """
    resolved = load_spec(spec, overrides=overrides)
    context, grid = prepare(resolved, LocalExecutor())
    requests = at_level(context.requests, level)
    if requests.closed_loop_users is not None or requests.previous is not None:
        raise InvalidInput("pools are compared on open-loop traffic without sessions")
    frames = [sized(choose(grid.candidates, text), context) for text in (short, long)]
    first, second = (frame.row(0, named=True) for frame in frames)
    shared = s5_simulate.shared_of(pl.concat(frames), context)
    gpus = first["num_gpus"] + second["num_gpus"]
    total = requests.input_tokens + requests.output_tokens
    rows = [_one_pool(row, gpus, requests, shared, context) for row in (first, second)]
    if first["candidate_id"] == second["candidate_id"]:
        rows = rows[:1]
    for split in splits or sorted({int(np.percentile(total, q)) for q in SPLITS}):
        is_short = total <= split
        if is_short.all() or not is_short.any():
            if splits:
                raise InvalidInput(
                    f"a split at {split} tokens leaves a pool without requests; they have "
                    f"{int(total.min())} to {int(total.max())} tokens"
                )
            continue
        rows.append(_two_pools(first, second, split, is_short, requests, shared, context))
    found = [row for row in rows if row["layout"] == "two pools" and not row["status"]]
    best = min(found, key=lambda row: (-row["slo_attainment"], row["ttft_p99_s"]), default=None)
    return {
        "num_gpus": gpus,
        "level": level,
        "rows": rows,
        "best_split": None if best is None else best["split"],
    }


def _one_pool(
    row: Mapping[str, Any], gpus: int, requests: Requests, shared: s5_simulate.Shared,
    context: RunContext,
) -> dict[str, Any]:  # fmt: skip
    each = gpus_per_replica(row)
    replicas = gpus // each
    latencies, span_s, status = _replay(row, replicas, requests, shared, context)
    return {
        "layout": "one pool",
        "candidate_ids": [row["candidate_id"].replace(f".r{row['replicas']}.", f".r{replicas}.")],
        "split": None,
        "num_gpus": replicas * each,
        "status": status,
        **_metrics(latencies, requests, span_s, shared),
    }


def _two_pools(
    first: Mapping[str, Any], second: Mapping[str, Any], split: int, is_short: BoolArray,
    requests: Requests, shared: s5_simulate.Shared, context: RunContext,
) -> dict[str, Any]:  # fmt: skip
    n = len(requests)
    latencies = {name: np.full(n, np.nan) for name in ("ttft", "tpot", "e2e")}
    classes, spans, reasons = {}, [], []
    for name, row, mine in (("short", first, is_short), ("long", second, ~is_short)):
        part = requests.take(np.flatnonzero(mine))
        found, span_s, status = _replay(row, row["replicas"], part, shared, context)
        for metric, values in found.items():
            latencies[metric][mine] = values
        classes[name] = {
            "num_requests": len(part), **_metrics(found, part, span_s, shared)
        }  # fmt: skip
        spans.append(span_s)
        reasons.append(status)
    return {
        "layout": "two pools",
        "candidate_ids": [first["candidate_id"], second["candidate_id"]],
        "split": split,
        "num_gpus": first["num_gpus"] + second["num_gpus"],
        "status": next((reason for reason in reasons if reason), ""),
        **_metrics(latencies, requests, max(spans), shared),
        **classes,
    }


def _replay(
    row: Mapping[str, Any], replicas: int, requests: Requests, shared: s5_simulate.Shared,
    context: RunContext,
) -> tuple[dict[str, FloatArray], float, str]:  # fmt: skip
    """Return latencies, the time from the first arrival to the last answer, and what failed."""
    result = simulate(
        requests,
        shared.tables[tuple(row[name] for name in FAMILY)],
        s5_simulate.settings_of(row, context),
        replicas,
        routing=shared.routing,
        seed=shared.seed,
    )
    span_s = result.makespan_s if not result.status else float("nan")
    return per_request(requests, result), span_s, result.status


def _metrics(
    latencies: dict[str, FloatArray], requests: Requests, span_s: float, shared: s5_simulate.Shared
) -> dict[str, float]:
    return {
        **{f"{m}_p99_s": statistic_of(latencies[m], "p99") for m in ("ttft", "tpot", "e2e")},
        "slo_attainment": float(meets(latencies, shared.limits).mean()),
        "output_tokens_per_s": float(requests.output_tokens.sum()) / span_s,
    }
