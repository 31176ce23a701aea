"""Token mixing of all layers of a deployment, and the grids on which it is tabulated.

Plain, windowed, latent, sparse latent and recurrent layers come from measured kernels where the
accelerator has them; all others from the rooflines of `sieve.perf.mixers`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from sieve.arrays import FloatArray
from sieve.catalog.architecture import LayerKind
from sieve.perf import attention, latent, recurrent, sparse
from sieve.perf.attention import Heads
from sieve.perf.base import Part, ServingShape, Timing
from sieve.perf.kernel_table import KernelTable, load
from sieve.perf.layers import Mixer, mixers
from sieve.perf.mixers import decode_roofline, is_roofline_kind, prefill_roofline

WINDOW_TOKENS: Final = 1024
"""What layers without a growing cache see where inline facts do not say."""


MEASURED_KINDS: Final = {"latent": latent, "sparse": sparse, "recurrent": recurrent}
"""Source of a kind's times -> its module; all have the same functions."""


def source_of(shape: ServingShape, kind: LayerKind | None) -> str:
    """Return where a kind's times come from: a key of `MEASURED_KINDS`, `attention`, `roofline`."""
    if kind is None or not is_roofline_kind(kind):
        return "attention"
    if not shape.model.is_detailed:
        return "roofline"
    measured = (name for name, part in MEASURED_KINDS.items() if part.is_measured(shape, kind))
    return next(measured, "roofline")


def decode_axes(shape: ServingShape) -> tuple[FloatArray, FloatArray]:
    """Return batches (nb,) and whole contexts (nc,) to tabulate: all measured ones and the ends."""
    # Contexts are whole sequences; with context parallelism a rank attends to its share of them.
    longest = -(-shape.max_context // shape.dcp)
    axes = []
    for kind in _gridded(shape):
        part = MEASURED_KINDS.get(source_of(shape, kind))
        own = part.decode_axes(shape, kind) if part else None
        axes.append(own or _plain_axes(shape, Heads.of_kind(kind, shape), longest))
    if not any(len(context) for _, context in axes):
        axes.append(_plain_axes(shape, Heads.of(shape), longest))
    batch = attention.ending_at(np.concatenate([a[0] for a in axes]), shape.max_num_seqs)
    context = attention.ending_at(np.concatenate([a[1] for a in axes]), longest)
    return batch, context * shape.dcp


def prefill_axis(shape: ServingShape) -> FloatArray:
    """Return lengths of prompts (np,) from 0, continued beyond the longest context."""
    axes = []
    for kind in _gridded(shape):
        part = MEASURED_KINDS.get(source_of(shape, kind))
        own = part.prefill_axis(shape, kind) if part else None
        axes.append(_plain_prefill(shape, Heads.of_kind(kind, shape)) if own is None else own)
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
        elif part := MEASURED_KINDS.get(source):
            parts += part.decode_parts(shape, mixer.kind, batch, share, mixer.count)
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
            one, floor = attention.prefill_part(shape.gpu, table, heads, length, mixer.count)
            parts.append(one)
        elif part := MEASURED_KINDS.get(source):
            several, floor = part.prefill_parts(shape, mixer.kind, length, mixer.count)
            parts += several
        else:
            one, floor = prefill_roofline(shape, mixer.kind, length, mixer.count)
            parts.append(one)
        floors += floor.scaled(mixer.count)
    return parts, floors


def gathered(heads: Heads, shape: ServingShape) -> Heads:
    """Return decode attention with the queries of the ranks that share out a sequence's tokens."""
    return replace(heads, heads=heads.heads * shape.dcp)


def _gridded(shape: ServingShape) -> list[LayerKind]:
    """Return the kinds whose measured points make the grids.

    Of attention one kind, that of a growing cache first; of the other measured kinds all.
    """
    kinds = [mixer.kind for mixer in mixers(shape) if mixer.kind is not None]
    plain = [kind for kind in kinds if source_of(shape, kind) == "attention"]
    plain.sort(key=lambda kind: kind.window_tokens)
    own = [kind for kind in kinds if source_of(shape, kind) in MEASURED_KINDS]
    return [*plain[:1], *own]


def _plain_axes(shape: ServingShape, heads: Heads, longest: int) -> tuple[FloatArray, FloatArray]:
    table = _table(shape, "generation_attention")
    return attention.decode_grid(table, gathered(heads, shape), shape.max_num_seqs, longest)


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
