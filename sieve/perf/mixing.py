"""Token mixing of all layers of a deployment, and the grids on which it is tabulated.

Plain, windowed, latent and recurrent layers come from measured kernels where the accelerator has
them; all others from the rooflines of `sieve.perf.mixers`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from sieve.arrays import FloatArray
from sieve.catalog.architecture import LayerKind
from sieve.perf import attention, latent, recurrent
from sieve.perf.attention import Heads
from sieve.perf.base import Part, ServingShape, Timing
from sieve.perf.kernel_table import KernelTable, load
from sieve.perf.layers import Mixer, mixers
from sieve.perf.mixers import decode_roofline, is_roofline_kind, prefill_roofline

WINDOW_TOKENS: Final = 1024
"""What layers without a growing cache see where inline facts do not say."""


def source_of(shape: ServingShape, kind: LayerKind | None) -> str:
    """Return where a kind's times come from: `attention`, `latent`, `recurrent` or `roofline`."""
    if kind is None or not is_roofline_kind(kind):
        return "attention"
    if latent.is_measured(shape, kind):
        return "latent"
    return "recurrent" if recurrent.is_measured(shape, kind) else "roofline"


def decode_axes(shape: ServingShape) -> tuple[FloatArray, FloatArray]:
    """Return batches (nb,) and whole contexts (nc,) to tabulate: all measured ones and the ends."""
    # Contexts are whole sequences; with context parallelism a rank attends to its share of them.
    longest = -(-shape.max_context // shape.dcp)
    table = _table(shape, "generation_attention")
    batches, contexts = [], []
    for kind in _gridded(shape):
        source = source_of(shape, kind)
        if source == "latent":
            batch, context = latent.decode_axes(shape, kind)
            contexts.append(context)
        elif source == "recurrent":
            batch = recurrent.decode_axis(shape, kind)
        else:
            heads = gathered(Heads.of_kind(kind, shape), shape)
            batch, context = attention.decode_grid(table, heads, shape.max_num_seqs, longest)
            contexts.append(context)
        batches.append(batch)
    plain = attention.decode_grid(
        table, gathered(Heads.of(shape), shape), shape.max_num_seqs, longest
    )
    batch = np.concatenate(batches or [plain[0]])
    context = np.concatenate(contexts or [plain[1]])
    ends = attention.ending_at(batch, shape.max_num_seqs), attention.ending_at(context, longest)
    return ends[0], ends[1] * shape.dcp


def prefill_axis(shape: ServingShape) -> FloatArray:
    """Return lengths of prompts (np,) from 0, continued beyond the longest context."""
    axes = []
    for kind in _gridded(shape):
        source = source_of(shape, kind)
        if source == "latent":
            axes.append(latent.prefill_axis(shape, kind))
        elif source == "recurrent":
            axes.append(recurrent.prefill_axis(shape, kind))
        else:
            axes.append(_plain_prefill(shape, Heads.of_kind(kind, shape)))
    found = np.unique(np.concatenate(axes or [_plain_prefill(shape, Heads.of(shape))]))
    return np.append(0.0, attention.lengths_above(found[found > 0], shape.max_context))


def decode_parts(shape: ServingShape, batch: FloatArray, context: FloatArray) -> list[Part]:
    """Return all layers over decoding batches on the grid, flattened to (nb * nc,)."""
    table = _table(shape, "generation_attention")
    parts, share = [], context / shape.dcp
    for mixer in mixers(shape):
        source = source_of(shape, mixer.kind)
        if mixer.kind is None or source == "attention":
            heads = gathered(_heads(shape, mixer), shape)
            parts.append(attention.decode_part(shape.gpu, table, heads, batch, share, mixer.count))
        elif source == "latent":
            parts += latent.decode_parts(shape, mixer.kind, batch, share, mixer.count)
        elif source == "recurrent":
            parts += recurrent.decode_parts(shape, mixer.kind, batch, share, mixer.count)
        else:
            parts.append(decode_roofline(shape, mixer.kind, batch, share, mixer.count))
    return parts


def prefill_parts(shape: ServingShape, length: FloatArray) -> tuple[list[Part], Timing]:
    """Return all layers over prompts of `length` (np,), and their fixed part (one point)."""
    table = _table(shape, "context_attention")
    parts, floors = [], Timing.zeros(1)
    for mixer in mixers(shape):
        source = source_of(shape, mixer.kind)
        if mixer.kind is None or source == "attention":
            heads = _heads(shape, mixer)
            part, floor = attention.prefill_part(shape.gpu, table, heads, length, mixer.count)
            parts.append(part)
        elif source == "latent":
            part, floor = latent.prefill_part(shape, mixer.kind, length, mixer.count)
            parts.append(part)
        elif source == "recurrent":
            several, floor = recurrent.prefill_parts(shape, mixer.kind, length, mixer.count)
            parts += several
        else:
            part, floor = prefill_roofline(shape, mixer.kind, length, mixer.count)
            parts.append(part)
        floors += floor.scaled(mixer.count)
    return parts, floors


def gathered(heads: Heads, shape: ServingShape) -> Heads:
    """Return decode attention with the queries of the ranks that share out a sequence's tokens."""
    return replace(heads, heads=heads.heads * shape.dcp)


def _gridded(shape: ServingShape) -> list[LayerKind]:
    """Return the kinds whose measured points make the grids.

    Of attention one kind, that of a growing cache first; of latent and recurrent layers all.
    """
    kinds = [mixer.kind for mixer in mixers(shape) if mixer.kind is not None]
    plain = [kind for kind in kinds if source_of(shape, kind) == "attention"]
    plain.sort(key=lambda kind: kind.window_tokens)
    own = [kind for kind in kinds if source_of(shape, kind) in {"latent", "recurrent"}]
    return [*plain[:1], *own]


def _plain_prefill(shape: ServingShape, heads: Heads) -> FloatArray:
    return attention.prefill_grid(_table(shape, "context_attention"), heads, shape.max_context)


def _table(shape: ServingShape, op: str) -> KernelTable | None:
    return load(shape.gpu.kernel_system, op) if shape.model.is_detailed else None


def _heads(shape: ServingShape, mixer: Mixer) -> Heads:
    """Return the attention of a kind; inline layers without a cache see a short window."""
    if mixer.kind is not None:
        return Heads.of_kind(mixer.kind, shape)
    plain = Heads.of(shape)
    return Heads(plain.heads, plain.kv_heads, plain.head_dim, plain.kv_bytes, WINDOW_TOKENS)
