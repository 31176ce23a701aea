"""Sparse latent attention (DSA) of one layer, from measured whole blocks.

An indexer chooses 2,048 tokens and attention reads only those. The tables have blocks with their
projections (`dsa_*_module`, 16-bit products), with and without the indexer. What a block takes
beyond its products and three small kernels, which a step charges apart, is the mixing: put
together again, the block comes back. Other sizes than those of DeepSeek-V3.2 and GLM-5 and decode
context parallelism stay with the roofline.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Final

import numpy as np

from sieve.arrays import FloatArray
from sieve.catalog.architecture import LayerKind
from sieve.catalog.matrices import LayerPlan, layer_matrices
from sieve.perf.attention import DecodeSurface, fill_gaps
from sieve.perf.base import EXTRAPOLATED, INTERPOLATED, Part, ServingShape, Timing, split, total
from sieve.perf.constants import step_constants
from sieve.perf.gemm import BF16, gemm_timing
from sieve.perf.interpolate import prompt_curve
from sieve.perf.kernel_table import KernelTable, Key, load
from sieve.perf.mixers import decode_roofline, is_sparse, prefill_roofline
from sieve.perf.roofline import flops_per_s

DECODE: Final = "dsa_generation_module"
PREFILL: Final = "dsa_context_module"
SMALL_KERNELS_SHARE: Final = 3 / 5
"""Of a layer's fixed cost that a block holds: norms of the latents, rotary embedding, cache."""
_WITHOUT_INDEXER: Final = "_skip_indexer"
_DTYPE: Final = "bfloat16"
_MODELS: Final = {
    (7168, 1536, 512, 128, 64, 128, 64, 128): "deepseek-ai/DeepSeek-V3.2",
    (6144, 2048, 512, 192, 64, 256, 32, 128): "zai-org/GLM-5.2",
}
"""Width, ranks of queries and latent, head widths (plain, rotary, value), index heads and width ->
name in the table."""


def is_measured(shape: ServingShape, kind: LayerKind) -> bool:
    """Whether decode and prefill of a kind of layers come from the accelerator's tables."""
    if kind.kind != "latent" or not is_sparse(shape, kind) or shape.dcp > 1:
        return False
    return all(_site(shape, kind, op) is not None for op in (DECODE, PREFILL))


def decode_axes(shape: ServingShape, kind: LayerKind) -> tuple[FloatArray, FloatArray]:
    """Return the measured batches and contexts (the new token included)."""
    batch, context, _, _ = _surface(*_found(shape, kind, DECODE))
    return batch, context


def prefill_axis(shape: ServingShape, kind: LayerKind) -> FloatArray:
    """Return the measured lengths of prompts."""
    return _prompts(*_found(shape, kind, PREFILL))[0]


def decode_parts(
    shape: ServingShape, kind: LayerKind, batch: FloatArray, context: FloatArray, count: float
) -> list[Part]:
    """Return `count` layers on the grid batch x context, flattened to (nb * nc,)."""
    table, site = _found(shape, kind, DECODE)
    grid, contexts, block, filled = _surface(table, site)
    rest = np.maximum(block - outside_s(shape, kind, site, grid)[:, None], 0.0)
    surface = DecodeSurface(grid, contexts, rest, filled, _quality(shape, kind, site))
    limit = decode_roofline(shape, kind, batch, context, 1.0).limit_s
    return [Part(surface.at(batch, context), limit, count=count)]


def prefill_parts(
    shape: ServingShape, kind: LayerKind, length: FloatArray, count: float
) -> tuple[list[Part], Timing]:
    """Return `count` layers over prompts of `length` (np,), 0 at 0, and one layer's floor."""
    table, site = _found(shape, kind, PREFILL)
    grid, block = _prompts(table, site)
    rest = np.maximum.accumulate(np.maximum(block - outside_s(shape, kind, site, grid), 0.0))
    work = (length / grid[-1]) ** 2  # the indexer looks through all pairs
    quality = _quality(shape, kind, site)
    timing, floor = prompt_curve(length, grid, grid, rest, work, quality)
    limit = prefill_roofline(shape, kind, length, 1.0)[0].limit_s
    return [Part(timing, limit, count=count)], floor


def outside_s(shape: ServingShape, kind: LayerKind, site: Key, tokens: FloatArray) -> FloatArray:
    """Return what a block's products and small kernels take, (n,) seconds.

    Args:
        shape: the replica, for its model's width and its accelerator.
        kind: of the layers.
        site: key of the block.
        tokens: (n,) tokens of the step.
    """
    heads = replace(kind, num_attention_heads=int(site[5]))
    gemm, gpu = load(shape.gpu.kernel_system, "gemm"), shape.gpu
    small = SMALL_KERNELS_SHARE * step_constants().layer_fixed_s
    rates = gpu.mem_bw_bytes_per_s, flops_per_s(gpu, "bf16")
    key = ("outside", shape.model.hidden_size, heads, *rates, tokens.tobytes())
    if gemm is not None and key in gemm.curves:
        return gemm.curves[key][1] + small
    times = []
    for matrix in layer_matrices(shape.model, LayerPlan(heads, "")):
        if matrix.part in {"attention", "router"}:
            _, rows, columns = matrix.shape(1)
            times.append(gemm_timing(gpu, gemm, rows, columns, BF16, tokens))
    seconds = total(times, len(tokens)).total_s
    if gemm is not None:
        gemm.curves[key] = tokens, seconds, INTERPOLATED
    return seconds + small


def notes(shape: ServingShape, kind: LayerKind) -> list[str]:
    """Return where sparse attention comes from, and heads that were not measured."""
    _, site = _found(shape, kind, DECODE)
    indexer = "" if kind.index_dim else " without an indexer"
    words = [
        f"sparse latent attention{indexer} is what measured blocks of {site[1]} take beyond their "
        "products, a prompt against cached tokens as a longer prompt less a shorter"
    ]
    if _quality(shape, kind, site) == EXTRAPOLATED:
        words.append(
            "sparse latent attention of these heads and cache precision was not measured; used: "
            f"{site[5]} heads on a GPU, KV {site[3]}"
        )
    return words


def _found(shape: ServingShape, kind: LayerKind, op: str) -> tuple[KernelTable, Key]:
    table, site = load(shape.gpu.kernel_system, op), _site(shape, kind, op)
    assert table is not None  # asked only where `is_measured`
    assert site is not None
    return table, site


def _site(shape: ServingShape, kind: LayerKind, op: str) -> Key | None:
    """Return the measured block of these sizes: cache precision first, then nearest heads."""
    table = load(shape.gpu.kernel_system, op)
    indexer = next((k for k in shape.model.kinds if k.index_dim), kind)
    sizes = (
        shape.model.hidden_size, kind.q_lora_rank, kind.kv_lora_rank, kind.qk_nope_head_dim,
        kind.qk_rope_head_dim, kind.v_head_dim, indexer.index_heads, indexer.index_dim,
    )  # fmt: skip
    if table is None or (model := _MODELS.get(sizes)) is None:
        return None
    name = op if kind.index_dim else op + _WITHOUT_INDEXER
    heads = split(kind.num_attention_heads, shape.tp)
    return _nearest(table, (name, model, _DTYPE), heads, shape.kv_bytes_per_element)


@lru_cache(maxsize=1024)
def _nearest(table: KernelTable, names: tuple[str, ...], heads: int, kv_bytes: int) -> Key | None:
    sites = [key for key in table.sites if key[:3] == names and key[4] == _DTYPE]
    return min(
        sites,
        key=lambda key: (
            _site_bytes(key) != kv_bytes, abs(np.log(float(key[5]) / heads)), key[5],
        ),
        default=None,
    )  # fmt: skip


def _site_bytes(site: Key) -> int:
    return 1 if str(site[3]).startswith("fp8") else 2


def _quality(shape: ServingShape, kind: LayerKind, site: Key) -> int:
    heads = split(kind.num_attention_heads, shape.tp)
    same = heads == site[5] and _site_bytes(site) == shape.kv_bytes_per_element
    return INTERPOLATED if same else EXTRAPOLATED


@lru_cache(maxsize=1024)
def _surface(
    table: KernelTable, site: Key
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Return batches, contexts that most batches have, seconds of the block, what was filled."""
    batch, step, latency = table.surface(site)
    most = 2 * np.isfinite(latency).sum(axis=0) > len(batch)
    return fill_gaps(batch, step[most], latency[:, most])


@lru_cache(maxsize=1024)
def _prompts(table: KernelTable, site: Key) -> tuple[FloatArray, FloatArray]:
    """Return measured lengths and seconds of one prompt."""
    _, grid, surface = table.surface(site)
    known = np.isfinite(surface[0])
    return grid[known], surface[0][known]
