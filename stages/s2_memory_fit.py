"""Stage 2: throw out what does not fit beside its own KV cache.

Per rank: usable share of the card, weights, what the engine reserves, and the blocks that are left.
`load_bytes: peak` charges weights at their loading peak, `resident` at what stays.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from sieve.arrays import IntArray
from sieve.context import RunContext
from sieve.memory.ledger import (
    LedgerInput,
    has_one_kind,
    ledger,
    longest_request,
    request_blocks,
)
from sieve.stage import Stage, StageResult, split

MAX_LENGTH: Final = 2**31
"""Of a request where the model states no limit."""

STAGE: Final = Stage(
    number=2,
    name="memory_fit",
    purpose="weights, reserves and at least one usable KV block fit the fullest rank",
    reasons=dict.fromkeys(("weights_overflow", "no_page", "max_model_len"), "infeasible"),
    adds=(
        "weight_bytes_per_gpu", "reserved_bytes_per_gpu", "kv_bytes_per_gpu",
        "kv_block_bytes_per_gpu", "num_gpu_blocks", "kv_tokens", "blocks_per_request",
    ),
)  # fmt: skip


def run(candidates: pl.DataFrame, context: RunContext) -> StageResult:
    """Return candidates that fit, with their ledger, and the rest with what was missing."""
    memory = {name: gpu.memory_bytes for name, gpu in context.gpus.items()}
    resident = candidates["weight_bytes_per_param"]
    peak = context.spec.run.load_bytes == "peak"
    lengths = candidates["max_model_len"]
    shared = candidates["decode_context_parallel_size"]
    given = LedgerInput(
        memory_bytes=candidates["gpu"].replace_strict(memory, return_dtype=pl.Float64).to_numpy(),
        tp=candidates["tp"].to_numpy(),
        pp=candidates["pp"].to_numpy(),
        weight_bytes_per_param=resident.to_numpy(),
        load_bytes_per_param=(candidates["load_bytes_per_param"] if peak else resident).to_numpy(),
        kv_bytes_per_element=candidates["kv_bytes_per_element"].to_numpy(),
        max_num_seqs=candidates["max_num_seqs"].to_numpy(),
        block_size=(candidates["block_size"] // shared).to_numpy(),
        dcp=shared.to_numpy(),
        dp=candidates["data_parallel_size"].to_numpy(),
        utilisation=candidates["gpu_memory_utilization"].to_numpy(),
        ep=candidates["ep"].to_numpy(),
        max_num_batched_tokens=candidates["max_num_batched_tokens"].to_numpy(),
        max_model_len=lengths.to_numpy() if not lengths.has_nulls() else None,
    )
    books = ledger(context.model, context.engine, given)
    mean = np.full(len(candidates), context.workload.mean_tokens)
    held = request_blocks(context.model, context.engine, given, mean)
    kv_tokens = _tokens(books.num_blocks, held, mean, candidates, context)
    chosen_len = _chosen_length(candidates, context)
    most_len = _longest(books.num_blocks, kv_tokens, given, candidates, context)
    overflow = books.weights_overflow
    no_page = ~overflow & (books.num_blocks < 1)
    too_short = ~overflow & ~no_page & (chosen_len > most_len)
    frame = candidates.with_columns(
        pl.Series("weight_bytes_per_gpu", books.weight_bytes),
        pl.Series("reserved_bytes_per_gpu", books.reserved_bytes),
        pl.Series("kv_bytes_per_gpu", books.kv_bytes),
        pl.Series("kv_block_bytes_per_gpu", books.block_bytes),
        pl.Series("num_gpu_blocks", books.num_blocks),
        pl.Series("kv_tokens", kv_tokens),
        pl.Series("blocks_per_request", held),
    )
    if not context.is_reference:
        # A length that the grid leaves open is the model's limit, or what the cache holds.
        frame = frame.with_columns(
            pl.min_horizontal("max_model_len", pl.Series(most_len)).alias("max_model_len")
        )
    return split(
        frame,
        pl.Series(overflow | no_page | too_short),
        kind="infeasible",
        reason=pl.Series(
            _either(overflow, no_page, "weights_overflow", "no_page", "max_model_len")
        ),
        observed=pl.Series(
            _either(
                overflow,
                no_page,
                np.maximum(books.load_bytes, books.weight_bytes),
                books.kv_bytes,
                most_len.astype(np.float64),
            )
        ),
        limit=pl.Series(
            _either(
                overflow,
                no_page,
                books.budget_bytes,
                2 * books.block_bytes,
                chosen_len.astype(np.float64),
            )
        ),
        unit=pl.Series(
            _either(
                overflow,
                no_page,
                "bytes of weights, at most",
                "bytes left for the cache, at least",
                "tokens of cache, at least max_model_len",
            )
        ),
    )


def _tokens(
    blocks: IntArray, held: IntArray, mean: IntArray, candidates: pl.DataFrame, context: RunContext
) -> IntArray:
    """Return the tokens that the cache holds: of mean requests where kinds of layers differ."""
    if context.is_reference or has_one_kind(context.model):
        return np.asarray(blocks * candidates["block_size"].to_numpy(), np.int64)
    return np.asarray(blocks * mean // held, np.int64)


def _longest(
    blocks: IntArray,
    kv_tokens: IntArray,
    given: LedgerInput,
    candidates: pl.DataFrame,
    context: RunContext,
) -> IntArray:
    """Return the longest request that the cache can hold."""
    if context.is_reference or has_one_kind(context.model):
        return kv_tokens
    limit = candidates["max_model_len"].fill_null(MAX_LENGTH).to_numpy()
    return longest_request(context.model, context.engine, given, blocks, limit)


def _either(
    overflow: npt.ArrayLike,
    no_page: npt.ArrayLike,
    first: npt.ArrayLike,
    second: npt.ArrayLike,
    third: npt.ArrayLike,
) -> npt.NDArray[Any]:
    """Return `first` where weights overflow, `second` where no page is left, else `third`."""
    return np.where(overflow, first, np.where(no_page, second, third))


def _chosen_length(
    candidates: pl.DataFrame, context: RunContext
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the max_model_len that the user fixed, 0 where the engine may choose."""
    if "max_model_len" not in context.options:
        return np.zeros(len(candidates), np.int64)
    return candidates["max_model_len"].to_numpy()
