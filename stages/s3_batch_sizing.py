"""Stage 3: the largest batch of one replica, and what stops it.

Three limits: KV pages for whole requests (mean prompt plus answer), the TPOT objective at the
optimistic end, and max_num_seqs. With `batch_sizing: slim` a fourth: the saturation model's batch
advisor, its line of end-to-end time against batch laid through the candidate's own step times. A
batch of zero drops the candidate with the binding limit: `pages` cannot run at all, `tpot` and
`slim` run but are too slow for one request.
"""

from __future__ import annotations

from dataclasses import replace
from math import exp
from typing import Any, Final

import numpy as np
import polars as pl

from sieve.arrays import FloatArray, IntArray
from sieve.context import RunContext
from sieve.formulas.sizing import LIMITS, NO_LIMIT, BatchLimits, decode_step_s, max_batch
from sieve.perf.advisor import advised_batch, end_to_end_s
from sieve.perf.cache import FAMILY, grouped
from sieve.perf.capacity import decode_curve_s, unshared
from sieve.ranking.intervals import log_error
from sieve.spec.slo import USER_RATE
from sieve.stage import Stage, StageResult, split, texts

STAGE: Final = Stage(
    number=3,
    name="batch_sizing",
    purpose="largest batch before KV pages, the TPOT objective or max_num_seqs stop it",
    reasons={"pages": "infeasible", "tpot": "misses_slo", "slim": "misses_slo"},
    adds=("batch", "batch_limit"),
)

_PAGES: Final = "tokens of cache, one mean request"
_TPOT: Final = "tpot of one request alone, optimistic"
_E2E: Final = "e2e of one mean request alone"


def run(candidates: pl.DataFrame, context: RunContext) -> StageResult:
    """Return candidates with their batch, and those whose batch is zero."""
    size = _plain_limits if context.is_reference else _limits
    limits, alone_s = size(candidates, context)
    e2e_alone_s = np.zeros(len(candidates))
    if context.spec.run.batch_sizing == "slim":
        by_slim, e2e_alone_s = _by_slim(candidates, context)
        limits = replace(limits, by_slim=by_slim)
    binding = limits.place
    frame = candidates.with_columns(
        pl.Series("batch", limits.batch, pl.Int64),
        texts(LIMITS, binding).alias("batch_limit"),
    )
    pages, tpot = binding == LIMITS.index("pages"), binding == LIMITS.index("tpot")
    tokens, target_s = float(context.workload.mean_tokens), tpot_limit_s(context) or np.nan
    slow = np.where(tpot, alone_s, e2e_alone_s)
    return split(
        frame,
        pl.Series(limits.batch < 1),
        kind=texts(("misses_slo", "infeasible"), pages.astype(np.int8)),
        reason=texts(LIMITS, binding),
        observed=pl.Series(np.where(pages, frame["kv_tokens"].to_numpy(), slow)),
        limit=pl.Series(np.where(pages, tokens, np.where(tpot, target_s, _e2e_limit_s(context)))),
        unit=texts((_PAGES, _TPOT, "", _E2E), binding),
    )


def tpot_limit_s(context: RunContext) -> float | None:
    """Return the tightest TPOT that the objectives ask of a typical request, or None.

    Limits of a class are left to the replay: its requests need not be typical.
    """
    limits = [slo for slo in context.slos.limits if slo.group is None]
    found = [slo.limit for slo in limits if slo.metric == "tpot"]
    found += [1.0 / slo.limit for slo in limits if slo.metric == USER_RATE]
    gates = [gate for gate in (context.slos.attainment,) if gate is not None]
    found += [gate[1].tpot_s for gate in gates if gate[1].tpot_s is not None]
    return min(found) if found else None


def _e2e_limit_s(context: RunContext) -> float:
    """Return the tightest end-to-end limit, inf if there is none."""
    limits = [slo for slo in context.slos.limits if slo.group is None]
    found = [slo.limit for slo in limits if slo.metric == "e2e"]
    return min(found, default=float("inf"))


def _by_slim(candidates: pl.DataFrame, context: RunContext) -> tuple[IntArray, FloatArray]:
    """Return the advisor's batch and the end-to-end time of one request, (n,) each."""
    batch, alone_s = np.zeros(len(candidates), np.int64), np.zeros(len(candidates))
    keys = (*FAMILY, "max_num_batched_tokens")
    for key, members in grouped(candidates, keys):
        table = context.tables.get(key[:-1])
        e2e_s = end_to_end_s(table, context.workload, int(key[-1]), context.tables.max_num_seqs)
        batch[members], alone_s[members] = advised_batch(e2e_s, _e2e_limit_s(context))
    return batch, alone_s


def _plain_limits(candidates: pl.DataFrame, context: RunContext) -> tuple[BatchLimits, FloatArray]:
    """Return the limits of the sizing specification 9.5 (memory traffic only), and TPOT(1)."""
    model = context.model
    bandwidth = {name: gpu.mem_bw_bytes_per_s for name, gpu in context.gpus.items()}
    ranks = candidates["pp"].to_numpy()
    # One iteration passes all stages in turn, so it moves what all of them hold.
    per_token = (
        candidates["kv_block_bytes_per_gpu"].to_numpy() / candidates["block_size"].to_numpy()
    )
    step: dict[str, Any] = {
        "weight_bytes": model.params
        * candidates["weight_bytes_per_param"].to_numpy()
        / candidates["tp"].to_numpy(),
        "kv_read_bytes_per_seq": per_token * ranks * context.workload.decode_context,
        "bandwidth": candidates["gpu"]
        .replace_strict(bandwidth, return_dtype=pl.Float64)
        .to_numpy(),
        "overhead_s": 0.0,
    }
    limits = max_batch(
        usable_pages=candidates["num_gpu_blocks"].to_numpy(),
        page_tokens=candidates["block_size"].to_numpy(),
        tokens_per_seq=context.workload.mean_tokens,
        max_num_seqs=candidates["max_num_seqs"].to_numpy(),
        tpot_slo_s=tpot_limit_s(context),
        **step,
    )
    return limits, decode_step_s(batch=1, **step)


def _own_share(candidates: pl.DataFrame, context: RunContext) -> FloatArray:
    """Return the least share of a mean request's blocks that no other request holds too, (n,)."""
    share = np.ones(len(candidates))
    requests = context.requests
    if requests.prefix is not None:
        own = float((requests.prefix.fewest_computed() + requests.output_tokens).mean())
        cached = candidates["enable_prefix_caching"].to_numpy()
        share[cached] = own / float((requests.input_tokens + requests.output_tokens).mean())
    return share


def _limits(candidates: pl.DataFrame, context: RunContext) -> tuple[BatchLimits, FloatArray]:
    """Return the limits of a real engine, read from each family's step table, and TPOT(1)."""
    blocks = candidates["num_gpu_blocks"].to_numpy()
    held = candidates["blocks_per_request"].to_numpy()
    by_pages = blocks // np.maximum((held * _own_share(candidates, context)).astype(np.int64), 1)
    seqs = candidates["max_num_seqs"].to_numpy()
    by_tpot, alone_s = np.full(len(candidates), NO_LIMIT, np.int64), np.zeros(len(candidates))
    target_s = tpot_limit_s(context)
    if target_s is None:
        return BatchLimits(by_pages, by_tpot, seqs), alone_s
    optimism = exp(log_error("tpot", "extrapolated", context.spec.run.rank.confidence, "low"))
    for family, members in grouped(candidates, FAMILY):
        table = unshared(context.tables.get(family))
        curve = decode_curve_s(table, context.workload.decode_context, context.tables.max_num_seqs)
        fast = np.flatnonzero(curve <= target_s * optimism)
        # Micro-batches of all pipeline stages run at once, each as long as the whole step.
        most = (int(fast[-1]) + 1) * table.pp if len(fast) else 0
        alone_s[members] = curve[0] / optimism
        if most < context.tables.max_num_seqs * table.pp:
            by_tpot[members] = most
    return BatchLimits(by_pages, by_tpot, seqs), alone_s
