"""Rooflines of token mixing that is not plain or windowed attention: latent, compressed, recurrent.

They stand where no kernel table of the accelerator holds such layers (`sieve.perf.mixing` decides),
and for sparse and compressed attention and state spaces, which none holds. Bytes at a share of the
bandwidth against arithmetic at a share of the 16-bit rate; the shares are those of measured
attention kernels, the recurrent one a round figure.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from sieve.arrays import FloatArray
from sieve.catalog.architecture import LayerKind, StateFacts
from sieve.perf.base import ROOFLINE, Part, ServingShape, Timing, split
from sieve.perf.roofline import ATTENTION_FLOOR_S, BANDWIDTH_SHARE, flops_per_s

LATENT_FLOPS_SHARE: Final = 0.5
"""Of the 16-bit rate; decode attention over a latent is nearly compute-bound."""
STATE_FLOPS_SHARE: Final = 0.1
"""Of the 16-bit rate; a chunked scan is a chain of small products."""
STATE_CHUNK: Final = 64
"""Tokens of one chunk of the scan, as the common kernels have it."""
SPARSE_TOP_TOKENS: Final = 2048
"""Tokens that sparse attention keeps; the figure of the published checkpoints."""


def is_roofline_kind(kind: LayerKind) -> bool:
    """Whether this kind of token mixing is timed here."""
    return kind.state is not None or kind.kind in {"latent", "compressed"}


def decode_roofline(
    shape: ServingShape, kind: LayerKind, batch: FloatArray, context: FloatArray, count: float
) -> Part:
    """Return `count` layers on the grid batch x context, flattened to (nb * nc,)."""
    if kind.state is not None:
        traffic = np.outer(batch, np.ones_like(context)) * _state_bytes(kind.state, shape.tp)
        return _part(shape, 2.0 * traffic, np.zeros_like(traffic), LATENT_FLOPS_SHARE, count)
    seen, indexed = _seen(shape, kind, context)
    traffic = seen * _entry_bytes(shape, kind) + indexed * kind.index_dim
    # With context parallelism the queries of the ranks that share out the tokens meet.
    flops = 2.0 * seen * _absorbed(shape, kind) * shape.dcp
    flops += 2.0 * indexed * kind.index_heads * kind.index_dim
    grid = np.outer(batch, traffic), np.outer(batch, flops)
    return _part(shape, *grid, LATENT_FLOPS_SHARE, count)


def prefill_roofline(
    shape: ServingShape, kind: LayerKind, length: FloatArray, count: float
) -> tuple[Part, Timing]:
    """Return `count` layers over prompts of `length` (np,), 0 at 0, and one layer's floor."""
    floor = Timing.of(ATTENTION_FLOOR_S, ROOFLINE)
    if kind.state is not None:
        state = kind.state
        heads = split(state.num_heads, shape.tp)
        width = state.key_dim + state.value_dim
        per_token = heads * (6.0 * state.head_values + 2.0 * STATE_CHUNK * width)
        flops, share = per_token * length, STATE_FLOPS_SHARE
    else:
        flops, share = _prefill_flops(shape, kind, length), LATENT_FLOPS_SHARE
    rate = share * flops_per_s(shape.gpu, "bf16")
    return Part(Timing.of(flops / rate, ROOFLINE), flops * share / rate, count=count), floor


def _prefill_flops(shape: ServingShape, kind: LayerKind, length: FloatArray) -> FloatArray:
    heads = split(kind.num_attention_heads, shape.tp)
    whole = length * length / 2
    width = kind.qk_nope_head_dim + kind.qk_rope_head_dim + kind.v_head_dim
    width = width if kind.kind == "latent" else 2 * kind.head_dim
    flops = 2.0 * whole * heads * width
    if is_sparse(shape, kind):
        kept = np.minimum(length, SPARSE_TOP_TOKENS)
        pairs = kept * length - kept * kept / 2
        flops = np.minimum(flops, 2.0 * pairs * _absorbed(shape, kind))
        flops = flops + 2.0 * whole * kind.index_heads * kind.index_dim
    elif kind.kind == "compressed":
        kept = np.minimum(length, kind.window_tokens)
        pairs = kept * length - kept * kept / 2 + whole / max(1, kind.compress_ratio)
        flops = 2.0 * pairs * heads * width
    return np.asarray(flops, np.float64)


def is_sparse(shape: ServingShape, kind: LayerKind) -> bool:
    """Whether a kind reads chosen tokens only: by its own indexer, or a latent by an earlier one's.

    Layers without an indexer beside others that have one take over their choice (GLM-5.2,
    `indexer_types`).
    """
    borrowed = kind.kind == "latent" and any(other.index_dim for other in shape.model.kinds)
    return bool(kind.index_dim) or borrowed


def _seen(
    shape: ServingShape, kind: LayerKind, context: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return cache entries that a token reads, and entries that its indexer looks through."""
    entries = context
    if kind.kind == "compressed":
        far = context / kind.compress_ratio if kind.compress_ratio else np.zeros_like(context)
        entries = np.minimum(context, kind.window_tokens) + far
    if not is_sparse(shape, kind):
        return entries, np.zeros_like(context)
    looked_through = entries if kind.index_dim else np.zeros_like(context)
    return np.minimum(entries, SPARSE_TOP_TOKENS), looked_through


def _entry_bytes(shape: ServingShape, kind: LayerKind) -> float:
    """Return the bytes of one cache entry; every rank holds a latent whole."""
    return float(kind.head_dim * shape.kv_bytes_per_element)


def _absorbed(shape: ServingShape, kind: LayerKind) -> float:
    """Return multiply-adds of all heads of a rank for one query and one cache entry."""
    heads = split(kind.num_attention_heads, shape.tp)
    values = kind.kv_lora_rank if kind.kind == "latent" else kind.head_dim
    return float(heads * (kind.head_dim + values))


def _state_bytes(state: StateFacts, tp: int) -> float:
    """Return the recurrent state of one sequence on one rank."""
    heads = split(state.num_heads, tp)
    conv = state.conv_channels * (state.conv_kernel - 1) * heads / state.num_heads
    return heads * state.head_values * state.state_bytes + 2.0 * conv


def _part(
    shape: ServingShape, traffic: FloatArray, flops: FloatArray, share: float, count: float
) -> Part:
    memory = traffic.ravel() / shape.gpu.mem_bw_bytes_per_s
    compute = flops.ravel() / flops_per_s(shape.gpu, "bf16")
    time = ATTENTION_FLOOR_S + np.maximum(memory / BANDWIDTH_SHARE, compute / share)
    return Part(Timing.of(time, ROOFLINE), np.maximum(memory, compute), count=count)
