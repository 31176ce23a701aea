"""Columns of the candidate frame and of the simulation frame, declared once.

A candidate is one row; `candidate_id` is its key for life. Every column has a unit in its name or
none, and one stage that adds it. The schema check of the runner and the documentation read this
table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import polars as pl


@dataclass(frozen=True)
class Column:
    """One column: name, dtype, unit ("" if none), the stage that adds it (0: the grid), meaning."""

    name: str
    dtype: pl.DataType
    unit: str
    stage: int
    meaning: str


UNSTABLE_BELOW: Final = "unstable_at_lower_level"
"""Status of a level that is not replayed, because the queue grows at level 1.0 already."""
METRICS: Final = {
    # key in result.json -> (unit, smaller is better)
    "output_tokens_per_s": ("tokens/s", False),
    "output_tokens_per_s_per_gpu": ("tokens/s", False),
    "ttft_p50_s": ("s", True),
    "ttft_p99_s": ("s", True),
    "tpot_p50_s": ("s", True),
    "tpot_p99_s": ("s", True),
    "e2e_p99_s": ("s", True),
    "goodput_per_s": ("requests/s", False),
    "slo_attainment": ("", False),
    "usd_per_mtok": ("USD", True),
}
"""Metrics of every ranking row, in order."""

_I, _F, _S, _B = pl.Int64(), pl.Float64(), pl.String(), pl.Boolean()

AXES: Final = (
    "gpu", "tp", "pp", "ep", "replicas", "weight_dtype", "kv_cache_dtype", "max_num_seqs",
    "max_num_batched_tokens",
)  # fmt: skip
"""Axis columns in the order of the candidate id."""

OPTIONS: Final = {
    "async_scheduling": "bool",
    "block_size": "int",
    "data_parallel_size": "int",
    "decode_context_parallel_size": "int",
    "enable_chunked_prefill": "bool",
    "enable_prefix_caching": "bool",
    "gpu_memory_utilization": "float",
    "long_prefill_token_threshold": "int",
    "max_model_len": "int",
}
"""Further engine options that a grid may vary, by kind."""

COLUMNS: Final = (
    Column("candidate_id", _S, "", 0, "axis values joined in fixed order; equal axes, equal id"),
    Column("gpu", _S, "", 0, "accelerator name"),
    Column("tp", _I, "", 0, "tensor parallel size"),
    Column("pp", _I, "", 0, "pipeline parallel size"),
    Column("ep", _I, "", 0, "expert parallel size"),
    Column("replicas", _I, "", 0, "independent engines behind the router"),
    Column("weight_dtype", _S, "", 0, "precision of the weights"),
    Column("kv_cache_dtype", _S, "", 0, "precision of the KV cache, engine spelling"),
    Column("max_num_seqs", _I, "", 0, "most requests in one iteration of an engine"),
    Column("max_num_batched_tokens", _I, "tokens", 0, "token budget of one iteration"),
    Column("data_parallel_size", _I, "", 0, "engines of a replica that share its experts"),
    Column(
        "decode_context_parallel_size", _I, "", 0, "ranks that share out the tokens of a sequence"
    ),
    Column("block_size", _I, "tokens", 0, "tokens in one KV block, of all ranks that share it out"),
    Column(
        "gpu_memory_utilization", _F, "", 0, "share of the GPU's memory that the engine may use"
    ),
    Column("max_model_len", _I, "tokens", 0, "longest prompt plus answer"),
    Column("enable_chunked_prefill", _B, "", 0, "prompts are cut to the token budget"),
    Column("enable_prefix_caching", _B, "", 0, "full KV blocks are found again by content"),
    Column("async_scheduling", _B, "", 0, "a step is scheduled while the one before it runs"),
    Column(
        "long_prefill_token_threshold",
        _I,
        "tokens",
        0,
        "most tokens of one prompt in an iteration, 0: no such limit",
    ),
    Column("num_gpus", _I, "", 0, "tp x pp x data_parallel_size x replicas"),
    Column("weight_bytes_per_param", _F, "bytes", 0, "resident bytes of one weight"),
    Column("load_bytes_per_param", _F, "bytes", 0, "peak bytes of one weight while loading"),
    Column("kv_bytes_per_element", _F, "bytes", 0, "bytes of one cached number"),
    Column("weight_bytes_per_gpu", _F, "bytes", 2, "weights on the fullest rank"),
    Column("reserved_bytes_per_gpu", _F, "bytes", 2, "activation peak, communication, graphs"),
    Column("kv_bytes_per_gpu", _F, "bytes", 2, "what is left for the KV cache"),
    Column("kv_block_bytes_per_gpu", _F, "bytes", 2, "one KV block on one rank"),
    Column("num_gpu_blocks", _I, "", 2, "KV blocks a request can use"),
    Column("kv_tokens", _I, "tokens", 2, "tokens of KV cache of one engine"),
    Column("blocks_per_request", _I, "", 2, "KV blocks that a mean request holds when it ends"),
    Column("batch", _I, "", 3, "largest batch of an engine before the binding limit"),
    Column("batch_limit", _S, "", 3, "what binds the batch: pages, tpot, max_num_seqs or slim"),
    Column("score", _F, "", 4, "shortlist score, larger is better"),
    Column("bound_output_tokens_per_s", _F, "tokens/s", 4, "optimistic capacity of all replicas"),
    Column("bound_ttft_s", _F, "s", 4, "optimistic TTFT"),
    Column("bound_tpot_s", _F, "s", 4, "optimistic TPOT"),
    Column(
        "replay_of", _S, "", 5, "candidate whose replay it is: equal where no limit apart binds"
    ),
    Column("evidence", _S, "", 5, "weakest class with at least a tenth of the step time"),
)
"""Columns that exist in every run; stage 5 adds the metrics with low and high beside them."""

REJECTION_COLUMNS: Final = {
    "stage": _I, "kind": _S, "reason": _S, "observed": _F, "limit": _F, "unit": _S,
}  # fmt: skip
"""What a rejected row carries: the stage, why, and the two numbers compared."""

KINDS: Final = ("infeasible", "misses_slo", "not_selected")


def engine_option(row: Mapping[str, Any], name: str) -> Any:
    """Return the value of an option as the engine takes it; its blocks are those of one rank."""
    if name == "block_size":
        return row[name] // row.get("decode_context_parallel_size", 1)
    return row[name]


def gpus_per_replica(row: Mapping[str, Any]) -> int:
    """Return the GPUs of one replica of a candidate: of all its data-parallel ranks."""
    return int(row["tp"] * row["pp"] * row.get("data_parallel_size", 1))


def num_engines() -> pl.Expr:
    """Return the engines of a candidate, each with a scheduler: replicas x data-parallel ranks."""
    return pl.col("replicas") * pl.col("data_parallel_size")


def num_gpus() -> pl.Expr:
    """Return the GPUs of a candidate."""
    return (pl.col("tp") * pl.col("pp") * num_engines()).alias("num_gpus")


def columns_after(stage: int) -> list[str]:
    """Return the declared columns that exist once `stage` has run (0: the grid)."""
    return [c.name for c in COLUMNS if c.stage <= stage]


INTERVAL_ENDS: Final = ("low", "high", "model_low", "model_high", "noise_low", "noise_high")
"""Ends of a metric's interval: of both errors together, of the model's, of the traffic noise."""

RESAMPLES: Final = "resamples."
"""Begins the names of columns with resamples, which stage 6 compares and takes away."""


def resample_column(metric: str) -> str:
    """Return the column with a metric's resamples over its value, as logarithms."""
    return f"{RESAMPLES}{metric}"


def bound_column(metric: str, end: str) -> str:
    """Return the column of an interval end: `ttft_p99_s`, `high` -> `ttft_p99_high_s`."""
    for unit in ("_per_s_per_gpu", "_per_s_per_user", "_per_s", "_s"):
        if metric.endswith(unit):
            return f"{metric.removesuffix(unit)}_{end}{unit}"
    return f"{metric}_{end}"
