"""Stage 1: throw out what the engine refuses, whatever the memory.

The engine profile names the rules and their order; the first one that a candidate breaks is its
reason. Kind: exact.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import polars as pl

from sieve.context import RunContext
from sieve.stage import Stage, StageResult, split
from sieve.validity.capability import LEAST_CAPABILITY
from sieve.validity.rules import RULES, Candidates, check

STAGE: Final = Stage(
    number=1,
    name="validity",
    purpose="rules that a deployment must obey before memory or speed matter",
    reasons=dict.fromkeys(RULES, "infeasible"),
)


def run(candidates: pl.DataFrame, context: RunContext) -> StageResult:
    """Return candidates that obey every rule of the engine profile, and the rest with the rule."""
    fleet = context.spec.fleet

    def column(name: str) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return candidates[name].fill_null(0).to_numpy()

    capability = {name: gpu.compute_capability for name, gpu in context.gpus.items()}
    by_gpu = candidates["gpu"].replace_strict(capability, return_dtype=pl.Float64)
    needed = np.maximum(
        _least(
            candidates["weight_dtype"],
            {**LEAST_CAPABILITY["weights"], **context.engine.capability},
        ),
        _least(candidates["kv_cache_dtype"], LEAST_CAPABILITY["cache"]),
    )
    verdicts = check(
        Candidates(
            model=context.model,
            tp=column("tp"),
            pp=column("pp"),
            ep=column("ep"),
            replicas=column("replicas"),
            max_num_seqs=column("max_num_seqs"),
            max_num_batched_tokens=column("max_num_batched_tokens"),
            max_model_len=column("max_model_len"),
            rates_known=_rates_known(candidates, context),
            compute_capability=by_gpu.fill_null(float("nan")).to_numpy(),
            needs_capability=needed,
            gpus_per_node=fleet.gpus_per_node or 8,
            nodes_per_replica=fleet.nodes_per_replica or 1,
            tp_across_nodes=bool(fleet.tp_across_nodes),
            dcp=column("decode_context_parallel_size"),
            dp=column("data_parallel_size"),
            data_parallel=str(context.engine.cache.get("data_parallel", "none")),
            chunked_prefill=candidates["enable_chunked_prefill"].to_numpy(),
            context_parallel=str(context.engine.cache.get("context_parallel", "none")),
            max_gpus=fleet.max_gpus or 8,
            # A precision other than the published one drops the checkpoint's own blocks.
            expert_block_floor=context.engine.expert_block_floor,
            has_blocks=(candidates["weight_dtype"] == context.model.checkpoint_dtype).to_numpy(),
            longest_request=context.workload.longest,
        ),
        context.engine.rules,
    )
    reason = pl.Series(verdicts.reason.tolist(), dtype=pl.String)
    return split(
        candidates,
        reason != "",
        kind="infeasible",
        reason=reason,
        observed=pl.Series(verdicts.observed),
        limit=pl.Series(verdicts.limit),
        unit=pl.Series(verdicts.unit.tolist(), dtype=pl.String),
    )


def _rates_known(
    candidates: pl.DataFrame, context: RunContext
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    alone = {name: "bf16" in gpu.flops_per_s for name, gpu in context.gpus.items()}
    linked = {
        name: alone[name] and min(gpu.link_bytes_per_s, gpu.pcie_bytes_per_s) > 0
        for name, gpu in context.gpus.items()
    }
    ranks = pl.col("tp") * pl.col("pp") * pl.col("data_parallel_size")
    return (
        candidates.select(
            pl.when(ranks > 1)
            .then(pl.col("gpu").replace_strict(linked, return_dtype=pl.Boolean))
            .otherwise(pl.col("gpu").replace_strict(alone, return_dtype=pl.Boolean))
        )
        .to_series()
        .to_numpy()
    )


def _least(
    names: pl.Series, table: dict[str, float]
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return names.replace_strict(table, default=0.0, return_dtype=pl.Float64).to_numpy()
