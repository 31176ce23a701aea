"""Times of one layer's attention: decode over a batch, prefill over one prompt."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np

from sieve.arrays import FloatArray
from sieve.catalog.architecture import Gpu
from sieve.perf.base import EXTRAPOLATED, MEASURED, ROOFLINE, ServingShape, Timing
from sieve.perf.interpolate import grid_evidence, linear, refine_loglog
from sieve.perf.kernel_table import KernelTable, Key
from sieve.perf.roofline import (
    decode_attention_limit_s,
    decode_attention_roofline_s,
    prefill_attention_limit_s,
    prefill_attention_roofline_s,
)

DECODE_ATTENTION_FACTOR: Final = 1.17
"""The table has equal lengths in a batch. Fitted on 231 vLLM runs (1.14-1.22 over folds)."""
PREFILL_ATTENTION_FACTOR: Final = 1.4
"""Fitted on the same runs (1.2-1.5), weakly: 1.0 costs 0.3 point of median TTFT error."""

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
    """

    heads: int
    kv_heads: int
    head_dim: int
    kv_bytes: int

    @classmethod
    def of(cls, shape: ServingShape) -> Heads:
        """Return the attention of a deployment."""
        return cls(
            shape.heads_per_gpu, shape.kv_heads_per_gpu, shape.model.head_dim,
            shape.kv_bytes_per_element,
        )  # fmt: skip

    def is_site(self, site: Key) -> bool:
        """Whether a site of an attention table has these heads and this KV precision."""
        counts = (self.head_dim, self.heads, self.kv_heads)
        return _heads_of(site) == counts and str(site[1]).startswith("fp8") == (self.kv_bytes == 1)


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
    kv_tokens = np.outer(batch, context).ravel()
    facts = (heads.kv_heads, heads.head_dim, heads.kv_bytes)
    surface = None if table is None else _decode_surface(gpu, table, heads)
    if surface is None:
        return Timing.of(decode_attention_roofline_s(gpu, kv_tokens, *facts), ROOFLINE)
    limit = decode_attention_limit_s(gpu, kv_tokens, *facts)
    return surface.at(batch, context).scaled(DECODE_ATTENTION_FACTOR).at_least(limit)


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
    return _ending_at(batch, largest), _ending_at(context, longest)


def prefill_curve(
    gpu: Gpu, table: KernelTable | None, heads: Heads, longest: int
) -> tuple[FloatArray, Timing, Timing]:
    """Return lengths (np,) from 0, one layer's times there, and its floor (one point).

    The batch-1 curve with its offset removed, finer than measured (its segments bend), continued
    above the table in proportion to the work, never faster than the hardware.
    """
    site = None if table is None else nearest_site(table, heads)
    if table is None or site is None:
        grid = _lengths_above(np.array([16.0]), longest)
        time = prefill_attention_roofline_s(gpu, grid, heads.heads, heads.head_dim)
        floor = prefill_attention_roofline_s(gpu, np.zeros(1), heads.heads, heads.head_dim)
        lengths, timing = grid, Timing.of(time - floor, ROOFLINE)
        offset = Timing.of(floor, ROOFLINE)
    else:
        lengths, timing, offset = _measured_prefill(gpu, table, site, heads, longest)
    limit = prefill_attention_limit_s(gpu, lengths, heads.heads, heads.head_dim)
    timing = timing.scaled(PREFILL_ATTENTION_FACTOR).at_least(limit)
    start = Timing.zeros(1)
    return np.append(0.0, lengths), Timing(np.hstack([start.by_class, timing.by_class])), offset


def _measured_prefill(
    gpu: Gpu, table: KernelTable, site: Key, heads: Heads, longest: int
) -> tuple[FloatArray, Timing, Timing]:
    """Return lengths, times without offset and the offset of a measured or like layer."""
    _, grid, surface = table.surface(site)
    known = np.isfinite(surface[0])
    grid, latency = grid[known], surface[0][known]
    scale = _prefill_scale(gpu, site, heads, grid)
    latency = np.maximum.accumulate(latency * scale)
    fine, values = refine_loglog(grid, latency, _POINTS_PER_SEGMENT)
    lengths = _lengths_above(fine, longest)
    above = latency[-1] * (lengths / grid[-1]) ** 2
    time = np.where(lengths <= grid[-1], np.interp(lengths, fine, values), above)
    quality = MEASURED if heads.is_site(site) else EXTRAPOLATED
    evidence = np.maximum(grid_evidence(lengths, grid), quality)
    return lengths, Timing.of(time - latency[0], evidence), Timing.of(latency[0], quality)


def _prefill_scale(gpu: Gpu, site: Key, heads: Heads, length: FloatArray) -> FloatArray:
    head_dim, num_heads, _ = _heads_of(site)
    target = prefill_attention_roofline_s(gpu, length, heads.heads, heads.head_dim)
    return target / prefill_attention_roofline_s(gpu, length, num_heads, head_dim)


def _decode_surface(gpu: Gpu, table: KernelTable, heads: Heads) -> DecodeSurface | None:
    site = nearest_site(table, heads)
    if site is None:
        return None
    batch, context, latency, filled = _complete(table, site)
    quality = MEASURED
    site_bytes = 1 if str(site[1]).startswith("fp8") else 2
    head_dim, _, kv_heads = _heads_of(site)
    if not heads.is_site(site):
        tokens = np.outer(batch, context)
        target = decode_attention_roofline_s(
            gpu, tokens, heads.kv_heads, heads.head_dim, heads.kv_bytes
        )
        latency = latency * (
            target / decode_attention_roofline_s(gpu, tokens, kv_heads, head_dim, site_bytes)
        )
        quality = EXTRAPOLATED
    return DecodeSurface(batch, context, latency, filled, quality)


@lru_cache(maxsize=1024)
def _complete(
    table: KernelTable, site: Key
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Return batches, contexts, a latency surface (nb, nc) without gaps, and what was filled.

    Each batch's curve is continued linearly beyond its longest measured context.
    """
    batch, step, latency = table.surface(site)
    context = step + 1
    filled = ~np.isfinite(latency)
    for row in latency:
        known = np.isfinite(row)
        grid, values = context[known], row[known]
        row[:] = np.where(known, row, linear(context, grid, values))
    return batch, context, latency, filled.astype(np.float64)


@lru_cache(maxsize=1024)
def nearest_site(table: KernelTable, heads: Heads) -> Key | None:
    """Return the measured full-attention site most like these heads, None if there is none.

    The group ratio weighs most, then the head size, then the number of KV heads; a KV cache
    precision that was not measured is stood in for by 16 bits.
    """
    wanted = "fp8" if heads.kv_bytes == 1 else "bfloat16"
    for dtype in dict.fromkeys((wanted, "bfloat16")):
        keys = [key for key in table.sites if key[1] == dtype and key[3] == 0]
        if keys:
            break
    else:
        return None
    head_dim, num, kv = np.log(np.asarray([_heads_of(key) for key in keys], np.float64)).T
    ratio = np.abs(num - kv - np.log(heads.heads / heads.kv_heads))
    distance = (
        4 * ratio
        + 2 * np.abs(head_dim - np.log(heads.head_dim))
        + np.abs(kv - np.log(heads.kv_heads))
    )
    return keys[int(np.argmin(distance))]


def _heads_of(site: Key) -> tuple[int, int, int]:
    """Return head size, query heads and KV heads of a site."""
    return int(site[2]), int(site[4]), int(site[5])


def _ending_at(grid: FloatArray, end: int) -> FloatArray:
    """Return 1, the points of a grid below `end`, and `end`."""
    return np.unique([1.0, *grid[grid < end], float(end)])


def _lengths_above(grid: FloatArray, longest: int) -> FloatArray:
    """Return the grid continued geometrically until it passes `longest`."""
    steps = np.ceil(np.log(max(longest / grid[-1], 1.0)) / np.log(_GROWTH_ABOVE_TABLE))
    return np.append(grid, grid[-1] * _GROWTH_ABOVE_TABLE ** np.arange(1, int(steps) + 1))
