"""Times of one layer's attention: decode over a batch, prefill over one prompt."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

import numpy as np

from sieve.arrays import FloatArray
from sieve.catalog.architecture import Gpu, LayerKind
from sieve.perf.base import EXTRAPOLATED, MEASURED, ROOFLINE, Part, ServingShape, Timing, split
from sieve.perf.constants import step_constants
from sieve.perf.interpolate import grid_evidence, linear, prompt_curve, refine_loglog
from sieve.perf.kernel_table import KernelTable, Key
from sieve.perf.roofline import (
    decode_attention_limit_s,
    decode_attention_roofline_s,
    prefill_attention_limit_s,
    prefill_attention_roofline_s,
)

_POINTS_PER_SEGMENT: Final = 3
_GROWTH_ABOVE_TABLE: Final = 1.2


@dataclass(frozen=True)
class Heads:
    """Attention of one layer on one GPU.

    Attributes:
        heads: query heads.
        kv_heads: KV heads.
        head_dim: per head.
        kv_bytes: bytes of one cached number.
        window: tokens that a token sees, itself included; 0: all before it.
    """

    heads: int
    kv_heads: int
    head_dim: int
    kv_bytes: int
    window: int = 0

    @classmethod
    def of(cls, shape: ServingShape) -> Heads:
        """Return the attention of a deployment."""
        return cls(
            shape.heads_per_gpu, shape.kv_heads_per_gpu, shape.model.head_dim,
            shape.kv_bytes_per_element,
        )  # fmt: skip

    @classmethod
    def of_kind(cls, kind: LayerKind, shape: ServingShape) -> Heads:
        """Return the attention of one kind of layers of a deployment."""
        return cls(
            split(kind.num_attention_heads, shape.tp), split(kind.num_key_value_heads, shape.tp),
            kind.head_dim, shape.kv_bytes_per_element, kind.window_tokens,
        )  # fmt: skip

    def is_site(self, site: Key) -> bool:
        """Whether a site of an attention table has these heads, KV precision and window."""
        counts = (self.head_dim, self.heads, self.kv_heads)
        same_cache = str(site[1]).startswith("fp8") == (self.kv_bytes == 1)
        return _heads_of(site) == counts and same_cache and site[3] == self.window

    def seen(self, context: FloatArray) -> FloatArray:
        """Return how many of the last `context` tokens a token attends to."""
        return np.minimum(context, self.window) if self.window else context

    def pairs(self, length: FloatArray) -> FloatArray:
        """Return the (query, key) pairs of prompts of `length` tokens, n^2/2 without a window."""
        inside = self.seen(length)
        return np.asarray(inside * length - inside * inside / 2)


@dataclass(frozen=True, eq=False)
class DecodeSurface:
    """Decode attention of one layer over batch and context, before factors.

    Attributes:
        batch: (nb,) rising.
        context: (nc,) rising, tokens attended by a sequence, its new one included.
        latency_s: (nb, nc) seconds without gaps.
        filled: (nb, nc) 1 where the value was not measured, else 0.
        quality: class of evidence of the heads.
    """

    batch: FloatArray
    context: FloatArray
    latency_s: FloatArray
    filled: FloatArray
    quality: int

    def at(self, batch: FloatArray, context: FloatArray) -> Timing:
        """Return the times on the grid batch x context, flattened to (nb * nc,) points."""
        time = linear(context, self.context, linear(batch, self.batch, self.latency_s, 0), 1)
        gaps = linear(
            np.clip(context, self.context[0], self.context[-1]), self.context,
            linear(np.clip(batch, 1, self.batch[-1]), self.batch, self.filled, 0), 1,
        )  # fmt: skip
        evidence = np.maximum(
            grid_evidence(batch, self.batch)[:, None], grid_evidence(context, self.context)
        )
        evidence = np.where(gaps > 0, EXTRAPOLATED, np.maximum(evidence, self.quality))
        return Timing.of(time.ravel(), evidence.ravel())


def decode_timing(
    gpu: Gpu, table: KernelTable | None, heads: Heads, batch: FloatArray, context: FloatArray
) -> Timing:
    """Return the times of one layer on the grid batch x context, flattened to (nb * nc,)."""
    part = decode_part(gpu, table, heads, batch, context)
    return part.at(getattr(step_constants(), part.constant, 1.0))


def decode_part(
    gpu: Gpu,
    table: KernelTable | None,
    heads: Heads,
    batch: FloatArray,
    context: FloatArray,
    count: float = 1.0,
) -> Part:
    """Return `count` layers on the grid batch x context, flattened to (nb * nc,), as measured.

    A window that was not measured is taken as full attention over the tokens it sees.
    """
    kv_tokens = np.outer(batch, heads.seen(context)).ravel()
    facts = (heads.kv_heads, heads.head_dim, heads.kv_bytes)
    site = None if table is None else nearest_site(table, heads)
    if table is None or site is None:
        roofline = decode_attention_roofline_s(gpu, kv_tokens, *facts)
        return Part(Timing.of(roofline, ROOFLINE), count=count)
    limit = decode_attention_limit_s(gpu, kv_tokens, *facts)
    own_window = site[3] == heads.window
    seen = context if own_window else heads.seen(context)
    timing = _decode_surface(gpu, table, site, heads).at(batch, seen)
    return Part(timing, limit, "decode_attention_factor", count)


def decode_grid(
    table: KernelTable | None, heads: Heads, largest: int, longest: int
) -> tuple[FloatArray, FloatArray]:
    """Return the batches and contexts to tabulate: the measured ones and the ends asked for."""
    site = None if table is None else nearest_site(table, heads)
    batch = np.exp2(np.arange(12, dtype=np.float64))
    context = np.exp2(np.arange(4, 18, dtype=np.float64))
    if table is not None and site is not None:
        batch, step, _ = table.surface(site)
        context = step + 1
    return ending_at(batch, largest), ending_at(context, longest)


def prefill_curve(
    gpu: Gpu, table: KernelTable | None, heads: Heads, longest: int
) -> tuple[FloatArray, Timing, Timing]:
    """Return lengths (np,) from 0, one layer's times there, and its floor (one point)."""
    lengths = prefill_grid(table, heads, longest)
    part, floor = prefill_part(gpu, table, heads, lengths)
    return lengths, part.at(getattr(step_constants(), part.constant, 1.0)), floor


def prefill_grid(table: KernelTable | None, heads: Heads, longest: int) -> FloatArray:
    """Return lengths from 0: finer than measured (segments bend), continued beyond `longest`."""
    site = None if table is None else nearest_site(table, heads)
    grid = np.array([16.0])
    if table is not None and site is not None:
        _, measured, surface = table.surface(site)
        grid = measured[np.isfinite(surface[0])]
        grid, _ = refine_loglog(grid, grid, _POINTS_PER_SEGMENT)
    return np.append(0.0, lengths_above(grid, longest))


def prefill_part(
    gpu: Gpu, table: KernelTable | None, heads: Heads, lengths: FloatArray, count: float = 1.0
) -> tuple[Part, Timing]:
    """Return `count` layers at prompts of `lengths` (np,), 0 at 0, and one layer's floor.

    The batch-1 curve with its offset removed, continued above the table in proportion to the
    pairs of tokens, never faster than the hardware.
    """
    site = None if table is None else nearest_site(table, heads)
    if table is None or site is None:
        work = np.sqrt(2 * heads.pairs(lengths))
        time = prefill_attention_roofline_s(gpu, work, heads.heads, heads.head_dim)
        floor = prefill_attention_roofline_s(gpu, np.zeros(1), heads.heads, heads.head_dim)
        return Part(Timing.of(time - floor, ROOFLINE), count=count), Timing.of(floor, ROOFLINE)
    timing, offset = _measured_prefill(gpu, table, site, heads, lengths)
    equal = np.sqrt(2 * heads.pairs(lengths))
    limit = prefill_attention_limit_s(gpu, equal, heads.heads, heads.head_dim)
    return Part(timing, limit, "prefill_attention_factor", count), offset


def _measured_prefill(
    gpu: Gpu, table: KernelTable, site: Key, heads: Heads, lengths: FloatArray
) -> tuple[Timing, Timing]:
    """Return times without offset and the offset of a measured or like layer."""
    _, grid, surface = table.surface(site)
    known = np.isfinite(surface[0])
    grid, latency = grid[known], surface[0][known]
    latency = np.maximum.accumulate(latency * _prefill_scale(gpu, site, heads, grid))
    fine, values = refine_loglog(grid, latency, _POINTS_PER_SEGMENT)
    # Along the site's own pairs of tokens; a full one stands in at the utilisation of its length.
    measured = replace(heads, window=int(site[3]))
    ratio = measured.pairs(lengths) / float(measured.pairs(grid[-1:])[0])
    quality = MEASURED if heads.is_site(site) else EXTRAPOLATED
    shared = heads.pairs(lengths) / np.maximum(measured.pairs(lengths), 1e-9)
    return prompt_curve(lengths, grid, fine, values, ratio, quality, shared)


def _prefill_scale(gpu: Gpu, site: Key, heads: Heads, length: FloatArray) -> FloatArray:
    head_dim, num_heads, _ = _heads_of(site)
    target = prefill_attention_roofline_s(gpu, length, heads.heads, heads.head_dim)
    return target / prefill_attention_roofline_s(gpu, length, num_heads, head_dim)


def _decode_surface(gpu: Gpu, table: KernelTable, site: Key, heads: Heads) -> DecodeSurface:
    batch, context, latency, filled = complete_surface(table, site)
    quality = MEASURED
    if not heads.is_site(site):
        site_bytes = 1 if str(site[1]).startswith("fp8") else 2
        head_dim, _, kv_heads = _heads_of(site)
        window = int(site[3])
        tokens = np.outer(batch, np.minimum(context, window) if window else context)
        target = decode_attention_roofline_s(
            gpu, tokens, heads.kv_heads, heads.head_dim, heads.kv_bytes
        )
        latency = latency * (
            target / decode_attention_roofline_s(gpu, tokens, kv_heads, head_dim, site_bytes)
        )
        quality = EXTRAPOLATED
    return DecodeSurface(batch, context, latency, filled, quality)


@lru_cache(maxsize=1024)
def complete_surface(
    table: KernelTable, site: Key
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Return batches, contexts, a latency surface (nb, nc) without gaps, and what was filled.

    Each batch's curve is continued linearly beyond its longest measured context.
    """
    return fill_gaps(*table.surface(site))


def fill_gaps(
    batch: FloatArray, step: FloatArray, latency: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Return batches, contexts, the surface without gaps, and 1 where it was filled, else 0.

    Args:
        batch: (nb,).
        step: (nc,) cached tokens before the new one.
        latency: (nb, nc) seconds, nan where not measured; changed in place.
    """
    context = step + 1
    filled = ~np.isfinite(latency)
    for row in latency:
        known = np.isfinite(row)
        grid, values = context[known], row[known]
        row[:] = np.where(known, row, linear(context, grid, values))
    return batch, context, latency, filled.astype(np.float64)


@lru_cache(maxsize=1024)
def nearest_site(table: KernelTable, heads: Heads) -> Key | None:
    """Return the measured site most like these heads, None if there is none.

    Sites of the same window come first, if one has the head size; else full attention. The group
    ratio weighs most, then the head size, then the number of KV heads; a KV cache precision that
    was not measured is stood in for by 16 bits.
    """
    keys = _candidates(table, heads)
    if not keys:
        return None
    head_dim, num, kv = np.log(np.asarray([_heads_of(key) for key in keys], np.float64)).T
    ratio = np.abs(num - kv - np.log(heads.heads / heads.kv_heads))
    distance = (
        4 * ratio
        + 2 * np.abs(head_dim - np.log(heads.head_dim))
        + np.abs(kv - np.log(heads.kv_heads))
    )
    return keys[int(np.argmin(distance))]


def _candidates(table: KernelTable, heads: Heads) -> list[Key]:
    wanted = "fp8" if heads.kv_bytes == 1 else "bfloat16"
    for dtype in dict.fromkeys((wanted, "bfloat16")):
        of_type = [key for key in table.sites if key[1] == dtype]
        same = [key for key in of_type if key[3] == heads.window and key[2] == heads.head_dim]
        if heads.window and same:
            return same
        if full := [key for key in of_type if key[3] == 0]:
            return full
    return []


def _heads_of(site: Key) -> tuple[int, int, int]:
    """Return head size, query heads and KV heads of a site."""
    return int(site[2]), int(site[4]), int(site[5])


def ending_at(grid: FloatArray, end: int) -> FloatArray:
    """Return 1, the points of a grid below `end`, and `end`."""
    return np.unique([1.0, *grid[grid < end], float(end)])


def lengths_above(grid: FloatArray, longest: int) -> FloatArray:
    """Return the grid continued geometrically until it passes `longest`."""
    steps = np.ceil(np.log(max(longest / grid[-1], 1.0)) / np.log(_GROWTH_ABOVE_TABLE))
    return np.append(grid, grid[-1] * _GROWTH_ABOVE_TABLE ** np.arange(1, int(steps) + 1))
