"""What the rows of a kernel table ask of the hardware: bytes, operations, and the least time.

The bounds hold for any kernel: only traffic that cannot stay on chip, only arithmetic that the
definition asks for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from sieve.arrays import FloatArray
from sieve.catalog.architecture import Gpu
from sieve.perf.table_schema import ELEMENT_BYTES, MODES, WEIGHT_BYTES

CACHE_BYTES: Final = 128e6
"""Largest last-level cache in the catalogue (B200, 126 MB): so much may be read from it when a
kernel is timed again and again on the same data."""
_LATENT_WIDTH: Final = 576
"""Cached numbers of a token in latent attention: 512 latent and 64 rotary (DeepSeek-V3)."""
_LATENT_PAIR: Final = 192 + 128
"""Width of the products of a query with a key and with a value there."""
_LEAST_PROJECTIONS: Final = 2
"""Matrices of an expert; gated experts have three."""
_US: Final = 1e6


@dataclass(frozen=True, eq=False)
class Work:
    """What n rows ask of the hardware.

    Attributes:
        read_bytes: (n,) bytes read from memory at least.
        compute_s: (n,) seconds of arithmetic at the hardware's peak.
        sent_bytes: (n,) bytes that one GPU sends at least.
    """

    read_bytes: FloatArray
    compute_s: FloatArray
    sent_bytes: FloatArray

    @classmethod
    def of(
        cls, read: FloatArray | None, compute: FloatArray | None, sent: FloatArray | None = None
    ) -> Work:
        """Return the work of rows of which some parts are not known, or none."""
        given = next(part for part in (read, compute, sent) if part is not None)
        zero = np.zeros_like(given)
        return cls(*(zero if part is None else part for part in (read, compute, sent)))


def limit_us(
    frame: pl.DataFrame, op: str, gpu: Gpu, *, cache_bytes: float = 0.0
) -> FloatArray | None:
    """Return (rows,) microseconds that the hardware needs at least; None without such a bound.

    Args:
        frame: rows of a table.
        op: operation.
        gpu: accelerator.
        cache_bytes: bytes that may come from a cache.
    """
    work = work_of(frame, op, gpu)
    if work is None:
        return None
    memory = np.maximum(work.read_bytes - cache_bytes, 0.0) / gpu.mem_bw_bytes_per_s
    link = gpu.link_bytes_per_s or gpu.pcie_bytes_per_s
    sent = work.sent_bytes / link if link > 0 else np.zeros(frame.height)
    return np.asarray(_US * np.maximum(np.maximum(memory, work.compute_s), sent), np.float64)


def work_of(frame: pl.DataFrame, op: str, gpu: Gpu) -> Work | None:
    """Return what the rows of an operation ask for, None where no bound is known."""
    make = _WORK.get(op)
    return None if make is None or not frame.height else make(frame, gpu)


def _number(frame: pl.DataFrame, name: str) -> FloatArray:
    return frame[name].cast(pl.Float64).to_numpy()


def _lookup(
    frame: pl.DataFrame, name: str, values: Mapping[str, float], unknown: float
) -> FloatArray:
    """Return (rows,) the value of each row's text, `unknown` for others."""
    texts = frame[name].cast(pl.String)
    return texts.replace_strict(dict(values), default=unknown, return_dtype=pl.Float64).to_numpy()


def _bytes(frame: pl.DataFrame, name: str, values: Mapping[str, float]) -> FloatArray:
    """Return (rows,) bytes of one number, the fewest of all where the precision is not known."""
    return _lookup(frame, name, values, min(values.values()))


def _peak(frame: pl.DataFrame, name: str, gpu: Gpu) -> FloatArray:
    """Return (rows,) FLOP/s of each row's precision, the GPU's highest where it is not known."""
    best = max(gpu.flops_per_s.values())
    rates = {n: gpu.flops_per_s.get(mode, best) for n, mode in MODES.items()}
    return _lookup(frame, name, rates, best)


def _gemm(frame: pl.DataFrame, gpu: Gpu) -> Work:
    n_k = _number(frame, "n") * _number(frame, "k")
    read = n_k * _bytes(frame, "gemm_dtype", WEIGHT_BYTES)
    return Work.of(read, 2.0 * _number(frame, "m") * n_k / _peak(frame, "gemm_dtype", gpu))


def _attended(frame: pl.DataFrame, length: FloatArray) -> FloatArray:
    """Return (rows,) tokens that a new token attends to at most."""
    window = _number(frame, "window_size")
    return np.where(window > 0, np.minimum(window, length), length)


def _prefill(frame: pl.DataFrame, gpu: Gpu) -> Work:
    length = _number(frame, "isl")
    seen = _attended(frame, length)
    pairs = _number(frame, "batch_size") * (seen * length - seen**2 / 2)
    width = _number(frame, "num_heads") * _number(frame, "head_dim")
    return Work.of(None, 4.0 * pairs * width / _peak(frame, "attn_dtype", gpu))


def _decode(frame: pl.DataFrame, gpu: Gpu) -> Work:
    del gpu
    tokens = _number(frame, "batch_size") * _attended(frame, _number(frame, "step") + 1)
    width = _number(frame, "num_key_value_heads") * _number(frame, "head_dim")
    return Work.of(2.0 * tokens * width * _bytes(frame, "kv_cache_dtype", ELEMENT_BYTES), None)


def _experts(frame: pl.DataFrame, gpu: Gpu) -> Work:
    expert = _LEAST_PROJECTIONS * _number(frame, "hidden_size") * _number(frame, "inter_size")
    expert = expert / _number(frame, "moe_tp_size")
    visits = _number(frame, "topk") / _number(frame, "moe_ep_size")
    # Fewer visits than one may all fall on other GPUs.
    read = np.floor(visits) * expert * _bytes(frame, "moe_dtype", WEIGHT_BYTES)
    flops = 2.0 * expert * visits * _number(frame, "num_tokens")
    return Work.of(read, flops / _peak(frame, "moe_dtype", gpu))


def _collective(dtype: str) -> Callable[[pl.DataFrame, Gpu], Work]:
    def work(frame: pl.DataFrame, gpu: Gpu) -> Work:
        del gpu
        size = _number(frame, "message_size") * _bytes(frame, dtype, ELEMENT_BYTES)
        gpus = _number(frame, "num_gpus")
        return Work.of(None, None, size * (gpus - 1) / gpus)

    return work


def _latent_decode(frame: pl.DataFrame, gpu: Gpu) -> Work:
    del gpu
    tokens = _number(frame, "batch_size") * (_number(frame, "step") + 1)
    return Work.of(tokens * _LATENT_WIDTH * _bytes(frame, "kv_cache_dtype", ELEMENT_BYTES), None)


def _latent_prefill(frame: pl.DataFrame, gpu: Gpu) -> Work:
    pairs = _number(frame, "batch_size") * _number(frame, "isl") ** 2 / 2
    flops = 2.0 * pairs * _number(frame, "num_heads") * _LATENT_PAIR
    return Work.of(None, flops / _peak(frame, "mla_dtype", gpu))


def _encoder(frame: pl.DataFrame, gpu: Gpu) -> Work:
    pairs = _number(frame, "batch_size") * _number(frame, "isl") ** 2
    width = _number(frame, "num_heads") * _number(frame, "head_dim")
    return Work.of(None, 4.0 * pairs * width / _peak(frame, "attn_dtype", gpu))


def _quantise(frame: pl.DataFrame, gpu: Gpu) -> Work:
    del gpu
    return Work.of(2.0 * _number(frame, "m") * _number(frame, "k"), None)


_WORK: Final[dict[str, Callable[[pl.DataFrame, Gpu], Work]]] = {
    "gemm": _gemm,
    "context_attention": _prefill,
    "generation_attention": _decode,
    "moe": _experts,
    "custom_allreduce": _collective("allreduce_dtype"),
    "nccl": _collective("nccl_dtype"),
    "mla_context_module": _latent_prefill,
    "context_mla": _latent_prefill,
    "mla_generation_module": _latent_decode,
    "generation_mla": _latent_decode,
    "encoder_attention": _encoder,
    "scale_matrix": _quantise,
}
