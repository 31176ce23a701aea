"""Latent attention (MLA) of one layer, from measured kernels.

Decoding reads the latent cache with absorbed queries (`generation_mla`), between two products with
the up-projection in 16 bits (`mla_bmm`) that take the place of `kv_b_proj`; prompts attend over
projected keys and values (`context_mla`). The tables have the sizes of DeepSeek-V3: 512 latent and
64 rotary numbers a token, heads of 128 + 64. Other sizes and heads are scaled by the roofline.
Sparse attention, which reads some tokens only, has other kernels (`sieve.perf.sparse`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

import numpy as np

from sieve.arrays import FloatArray
from sieve.catalog.architecture import Gpu, LayerKind
from sieve.catalog.matrices import Matrix
from sieve.perf.attention import DecodeSurface, fill_gaps
from sieve.perf.base import EXTRAPOLATED, MEASURED, Part, ServingShape, Timing, split
from sieve.perf.gemm import gemm_timing
from sieve.perf.interpolate import grid_evidence, linear, prompt_curve, refine_loglog
from sieve.perf.kernel_table import KernelTable, Key, load
from sieve.perf.layers import precision_of
from sieve.perf.mixers import is_sparse
from sieve.perf.roofline import ATTENTION_FLOOR_S, BANDWIDTH_SHARE, flops_per_s

DECODE: Final = "generation_mla"
PREFILL: Final = "context_mla"
PRODUCTS: Final = "mla_bmm"
FLOPS_SHARE: Final = 0.5
"""Of the 16-bit rate, which both kernels reach over long contexts."""
POINTS_PER_SEGMENT: Final = 3
_DTYPE: Final = "bfloat16"
_SPIKE: Final = 2.0
_STEPS: Final = ("mla_gen_pre", "mla_gen_post")


@dataclass(frozen=True)
class Latent:
    """Latent attention of one layer on one GPU.

    Attributes:
        heads: query heads.
        width: cached numbers of a token, read by queries.
        values: those of them that are also values.
        pair: multiply-adds of one head for a query and a key of a prompt.
        up: numbers of keys (without rotary part) and values of one head.
        kv_bytes: bytes of one cached number.
    """

    heads: int
    width: int = 576
    values: int = 512
    pair: int = 320
    up: int = 256
    kv_bytes: int = 2

    @classmethod
    def of(cls, shape: ServingShape, kind: LayerKind) -> Latent:
        """Return the latent attention of a kind of layers of a deployment, prompts' heads."""
        up = kind.qk_nope_head_dim + kind.v_head_dim
        return cls(
            split(kind.num_attention_heads, shape.tp), kind.head_dim, kind.kv_lora_rank,
            up + kind.qk_rope_head_dim, up, shape.kv_bytes_per_element,
        )  # fmt: skip

    def decode_s(self, gpu: Gpu, tokens: FloatArray) -> FloatArray:
        """Return the seconds of reading `tokens` of the cache at usual efficiency."""
        memory = tokens * self.width * self.kv_bytes / gpu.mem_bw_bytes_per_s
        compute = self._decode_flops(tokens) / flops_per_s(gpu, "bf16")
        return ATTENTION_FLOOR_S + np.maximum(memory / BANDWIDTH_SHARE, compute / FLOPS_SHARE)

    def decode_limit_s(self, gpu: Gpu, tokens: FloatArray) -> FloatArray:
        """Return the seconds that this takes at least; an FP8 cache may be multiplied as it is."""
        memory = tokens * self.width * self.kv_bytes / gpu.mem_bw_bytes_per_s
        mode = "fp8" if self.kv_bytes == 1 else "bf16"
        return np.maximum(memory, self._decode_flops(tokens) / flops_per_s(gpu, mode))

    def prefill_s(self, gpu: Gpu, length: FloatArray) -> FloatArray:
        """Return the seconds of prompts of `length` tokens at usual efficiency."""
        return ATTENTION_FLOOR_S + self.prefill_limit_s(gpu, length) / FLOPS_SHARE

    def prefill_limit_s(self, gpu: Gpu, length: FloatArray) -> FloatArray:
        """Return the seconds that this takes at least."""
        return length * length * self.heads * self.pair / flops_per_s(gpu, "bf16")

    def _decode_flops(self, tokens: FloatArray) -> FloatArray:
        return 2.0 * tokens * self.heads * (self.width + self.values)


def is_measured(shape: ServingShape, kind: LayerKind) -> bool:
    """Whether decode and prefill of a kind of layers come from the accelerator's tables."""
    plain = kind.kind == "latent" and not is_sparse(shape, kind)
    tables = (load(shape.gpu.kernel_system, op) for op in (DECODE, PREFILL, PRODUCTS))
    return plain and all(table is not None for table in tables)


def decode_axes(shape: ServingShape, kind: LayerKind) -> tuple[FloatArray, FloatArray]:
    """Return the measured batches and contexts (the new token included) of a rank."""
    batch, step, _ = _table(shape, DECODE).surface(decode_site(shape, kind))
    return batch, step + 1


def prefill_axis(shape: ServingShape, kind: LayerKind) -> FloatArray:
    """Return lengths of prompts, finer than measured: segments bend."""
    grid, latency = _prompts(_table(shape, PREFILL), prefill_site(shape, kind))
    return refine_loglog(grid, latency, POINTS_PER_SEGMENT)[0]


def decode_parts(
    shape: ServingShape, kind: LayerKind, batch: FloatArray, context: FloatArray, count: float
) -> list[Part]:
    """Return `count` layers on the grid batch x context, flattened to (nb * nc,), as measured.

    Args:
        shape: the replica; its tables must have the kind (`is_measured`).
        kind: of the layers.
        batch: (nb,) sequences.
        context: (nc,) cached tokens of a sequence on one rank.
        count: of layers.
    """
    own, site = _decoding(shape, kind), decode_site(shape, kind)
    measured = replace(Latent(int(site[2])), kv_bytes=_site_bytes(site))
    grid, contexts, latency, filled = _surface(_table(shape, DECODE), site)
    quality = MEASURED
    if not is_site(own, site):
        tokens = np.outer(grid, contexts)
        scale = own.decode_s(shape.gpu, tokens) / measured.decode_s(shape.gpu, tokens)
        latency, quality = latency * scale, EXTRAPOLATED
    surface = DecodeSurface(grid, contexts, latency, filled, quality)
    limit = own.decode_limit_s(shape.gpu, np.outer(batch, context).ravel())
    attention = Part(surface.at(batch, context), limit, "decode_attention_factor", count)
    products = _absorbed(shape, kind, batch)
    repeated = Timing(np.repeat(products.by_class, len(context), axis=1))
    return [attention, Part(repeated, count=count)]


def prefill_parts(
    shape: ServingShape, kind: LayerKind, length: FloatArray, count: float
) -> tuple[list[Part], Timing]:
    """Return `count` layers over prompts of `length` (np,), 0 at 0, and one layer's floor."""
    own, site = Latent.of(shape, kind), prefill_site(shape, kind)
    grid, latency = _prompts(_table(shape, PREFILL), site)
    quality = MEASURED
    if not is_site(own, site, prompts=True):
        measured = Latent(int(site[2]))
        latency = latency * own.prefill_s(shape.gpu, grid) / measured.prefill_s(shape.gpu, grid)
        quality = EXTRAPOLATED
    fine, values = refine_loglog(grid, latency, POINTS_PER_SEGMENT)
    timing, floor = prompt_curve(length, grid, fine, values, (length / grid[-1]) ** 2, quality)
    limit = own.prefill_limit_s(shape.gpu, length)
    return [Part(timing, limit, "prefill_attention_factor", count)], floor


def decode_site(shape: ServingShape, kind: LayerKind) -> Key:
    """Return the measured decode kernel most like a kind's: cache precision first, then heads."""
    return _nearest(_table(shape, DECODE), _decoding(shape, kind))


def prefill_site(shape: ServingShape, kind: LayerKind) -> Key:
    """Return the measured prefill kernel most like a kind's."""
    return _nearest(_table(shape, PREFILL), Latent.of(shape, kind))


def is_site(own: Latent, site: Key, *, prompts: bool = False) -> bool:
    """Whether a site has these sizes: those that prompts, or else decoding, depend on."""
    same = replace(Latent(int(site[2])), kv_bytes=_site_bytes(site))
    if prompts:
        return (own.heads, own.pair, own.kv_bytes) == (same.heads, same.pair, same.kv_bytes)
    return replace(own, pair=same.pair, up=same.up) == same


def notes(shape: ServingShape, kind: LayerKind) -> list[str]:
    """Return what stands in for sizes, or an engine's kernel, that were not measured."""
    words = []
    if load(shape.gpu.kernel_system, "mla_generation_module") is None:
        words.append(
            "latent attention was measured in another engine, whose kernels on this GPU were not "
            "held against this engine's"
        )
    decode, prefill = decode_site(shape, kind), prefill_site(shape, kind)
    own, prompts = _decoding(shape, kind), Latent.of(shape, kind)
    if is_site(own, decode) and is_site(prompts, prefill, prompts=True):
        return words
    return [
        *words,
        "latent attention of these sizes was not measured; used, scaled by the roofline: "
        f"{decode[2]} heads (prompts: {prefill[2]}) on a GPU over a latent of 512 + 64, KV "
        f"{decode[1]}",
    ]


def _decoding(shape: ServingShape, kind: LayerKind) -> Latent:
    """Return the decode attention; ranks that share out a sequence's tokens join their queries."""
    own = Latent.of(shape, kind)
    return replace(own, heads=own.heads * shape.dcp)


def _table(shape: ServingShape, op: str) -> KernelTable:
    table = load(shape.gpu.kernel_system, op)
    assert table is not None  # asked only where `is_measured`
    return table


def _site_bytes(site: Key) -> int:
    return 1 if str(site[1]).startswith("fp8") else 2


@lru_cache(maxsize=1024)
def _nearest(table: KernelTable, own: Latent) -> Key:
    sites = [key for key in table.sites if key[0] == _DTYPE]
    return min(
        sites,
        key=lambda key: (
            _site_bytes(key) != own.kv_bytes, abs(np.log(float(key[2]) / own.heads)), key[2],
        ),
    )  # fmt: skip


@lru_cache(maxsize=1024)
def _surface(
    table: KernelTable, site: Key
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Return batches, contexts, seconds and what was filled (`attention.fill_gaps`).

    A row above twice one with no less work (batch and context) gives way to its neighbours: the
    audit looks for spikes along contexts, and misses those at the end of a curve.
    """
    batch, step, latency = table.surface(site)
    known = np.where(np.isfinite(latency), latency, np.inf)
    later = np.minimum.accumulate(known[::-1], axis=0)[::-1]
    later = np.minimum.accumulate(later[:, ::-1], axis=1)[:, ::-1]
    return fill_gaps(batch, step, np.where(latency > _SPIKE * later, np.nan, latency))


@lru_cache(maxsize=1024)
def _prompts(table: KernelTable, site: Key) -> tuple[FloatArray, FloatArray]:
    """Return measured lengths and rising seconds of one prompt."""
    _, grid, surface = table.surface(site)
    known = np.isfinite(surface[0])
    return grid[known], np.maximum.accumulate(surface[0][known])


def _absorbed(shape: ServingShape, kind: LayerKind, batch: FloatArray) -> Timing:
    """Return what absorbed products take beyond `kv_b_proj`, charged with all tokens, (nb,)."""
    own, table = Latent.of(shape, kind), _table(shape, PRODUCTS)
    heads = [int(key[2]) for key in table.sites if key[1] == _DTYPE and key[0] == _STEPS[0]]
    site = min(heads, key=lambda n: (abs(np.log(n / own.heads)), n))
    exact = site == own.heads and (own.values, own.up) == (Latent(1).values, Latent(1).up)
    share = own.heads * own.values * own.up / (site * Latent(1).values * Latent(1).up)
    taken = np.zeros(len(batch))
    evidence = np.zeros(len(batch), np.int64)
    for step in _STEPS:
        grid, latency = table.curve((step, _DTYPE, site))
        taken += share * linear(batch, grid, np.maximum.accumulate(latency))
        evidence = np.maximum(evidence, grid_evidence(batch, grid))
    matrix = Matrix("self_attn.kv_b_proj", "attention", ())
    precision, columns = precision_of(shape, matrix), own.heads * own.up
    gemm = load(shape.gpu.kernel_system, "gemm")
    projected = gemm_timing(shape.gpu, gemm, columns, own.values, precision, batch).total_s
    quality = MEASURED if exact else EXTRAPOLATED
    return Timing.of(np.maximum(taken - projected, 0.0), np.maximum(evidence, quality))
