"""Stage 3: the largest batch of one replica, and what stops it.

Three limits: KV pages for whole requests (mean prompt plus answer), the TPOT objective at the
optimistic end, and max_num_seqs. A batch of zero drops the candidate with the binding limit:
`pages` cannot run at all, `tpot` runs but is too slow for one request.
"""

from __future__ import annotations

from math import exp
from typing import Final

import numpy as np
import polars as pl

from sieve.arrays import IntArray
from sieve.context import RunContext
from sieve.formulas.sizing import NO_LIMIT, BatchLimits, ceil_div, max_batch
from sieve.perf.cache import FAMILY
from sieve.perf.capacity import decode_curve_s
from sieve.ranking.intervals import log_error
from sieve.stage import Stage, StageResult, split

STAGE: Final = Stage(
    number=3,
    name="batch_sizing",
    purpose="largest batch before KV pages, the TPOT objective or max_num_seqs stop it",
    reasons={"pages": "infeasible", "tpot": "misses_slo"},
    adds=("batch", "batch_limit"),
)


def run(candidates: pl.DataFrame, context: RunContext) -> StageResult:
    """Return candidates with their batch, and those whose batch is zero."""
    limits = (
        _plain_limits(candidates, context) if context.is_reference else _limits(candidates, context)
    )
    batch, binding = limits.batch, limits.binding
    frame = candidates.with_columns(
        pl.Series("batch", batch, pl.Int64),
        pl.Series("batch_limit", binding.astype(str), pl.String),
    )
    tokens = _tokens_per_seq(context)
    by_pages = binding == "pages"
    return split(
        frame,
        pl.Series(batch < 1),
        kind=pl.Series(np.where(by_pages, "infeasible", "misses_slo")),
        reason=pl.Series(np.where(by_pages, "pages", "tpot")),
        observed=pl.Series(np.where(by_pages, frame["kv_tokens"].to_numpy(), 0.0)),
        limit=pl.Series(np.where(by_pages, float(tokens), 1.0)),
        unit=pl.Series(
            np.where(
                by_pages, "tokens of cache, one mean request", "requests within the TPOT target"
            )
        ),
    )


def _tokens_per_seq(context: RunContext) -> int:
    """Return the tokens that one mean request holds when it ends."""
    return int(np.ceil(context.workload.mean_input + context.workload.mean_output))


def tpot_limit_s(context: RunContext) -> float | None:
    """Return the tightest TPOT that the objectives ask of a typical request, or None."""
    found = [slo.limit for slo in context.slos.limits if slo.metric == "tpot"]
    gates = [gate for gate in (context.slos.attainment,) if gate is not None]
    found += [gate[1].tpot_s for gate in gates if gate[1].tpot_s is not None]
    return min(found) if found else None


def _plain_limits(candidates: pl.DataFrame, context: RunContext) -> BatchLimits:
    """Return the limits of the sizing specification 9.5: memory traffic only, no overhead."""
    model = context.model
    bandwidth = {name: gpu.mem_bw_bytes_per_s for name, gpu in context.gpus.items()}
    ranks = candidates["pp"].to_numpy()
    # One iteration passes all stages in turn, so it moves what all of them hold.
    per_token = (
        candidates["kv_block_bytes_per_gpu"].to_numpy() / candidates["block_size"].to_numpy()
    )
    weights = model.params * candidates["weight_bytes_per_param"].to_numpy()
    return max_batch(
        usable_pages=candidates["num_gpu_blocks"].to_numpy(),
        page_tokens=candidates["block_size"].to_numpy(),
        tokens_per_seq=_tokens_per_seq(context),
        max_num_seqs=candidates["max_num_seqs"].to_numpy(),
        weight_bytes=weights / candidates["tp"].to_numpy(),
        kv_read_bytes_per_seq=per_token * ranks * context.workload.decode_context,
        bandwidth=candidates["gpu"].replace_strict(bandwidth, return_dtype=pl.Float64).to_numpy(),
        overhead_s=0.0,
        tpot_slo_s=tpot_limit_s(context),
    )


def _limits(candidates: pl.DataFrame, context: RunContext) -> BatchLimits:
    """Return the limits of a real engine, its decode step read from the family's step table."""
    blocks = ceil_div(_tokens_per_seq(context), candidates["block_size"].to_numpy())
    by_pages = candidates["num_gpu_blocks"].to_numpy() // blocks
    seqs = candidates["max_num_seqs"].to_numpy()
    return BatchLimits(by_pages, _by_tpot(candidates, context), seqs)


def _by_tpot(candidates: pl.DataFrame, context: RunContext) -> IntArray:
    by_tpot = np.full(len(candidates), NO_LIMIT, np.int64)
    limit_s = tpot_limit_s(context)
    if limit_s is None:
        return by_tpot
    optimism = exp(log_error("tpot", "extrapolated", context.spec.run.rank.confidence, "low"))
    rows = candidates.select(*FAMILY).with_row_index("row")
    for family, group in rows.group_by(*FAMILY, maintain_order=True):
        table = context.tables.get(family)
        curve = decode_curve_s(table, context.workload.decode_context, context.tables.max_num_seqs)
        fast = np.flatnonzero(curve <= limit_s * optimism)
        # Micro-batches of all pipeline stages run at once, each as long as the whole step.
        most = (int(fast[-1]) + 1) * table.pp if len(fast) else 0
        if most == context.tables.max_num_seqs * table.pp:
            most = NO_LIMIT
        by_tpot[group["row"].to_numpy()] = most
    return by_tpot
