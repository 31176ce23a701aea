"""Rooflines from hardware facts.

`*_limit_s` is what the hardware cannot beat: no efficiency, no floor, only traffic that cannot
stay on chip. `*_roofline_s` is an estimate with efficiencies and a floor per kernel, used where no
table answers and as the yardstick of utilisation between and beyond measured shapes.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from sieve.arrays import FloatArray
from sieve.catalog.architecture import Gpu
from sieve.errors import CoverageError

# Shares of the limits that kernels reach. H100 and H200 GEMM tables: median 0.82 of bandwidth for
# weights above 100 MB and at most 16 tokens, 0.78 (BF16) and 0.5-0.6 (FP8) of FLOPs when large.
BANDWIDTH_SHARE: Final = 0.8
FLOPS_SHARE: Final = 0.7
MOE_FLOPS_SHARE: Final = 0.4
LINK_SHARE: Final = 0.7
PCIE_SHARE: Final = 0.25  # L40S NCCL table: 0.56 of the link for 2 GPUs, 0.16 for 4
# Shortest kernels of the tables: dense GEMM 2-5 us, attention 6-12 us, experts 12-25 us, all-reduce
# 3-5 us (own kernel) and 5-19 us (NCCL).
GEMM_FLOOR_S: Final = 4e-6
ATTENTION_FLOOR_S: Final = 10e-6
MOE_FLOOR_S: Final = 8e-6
COLLECTIVE_FLOOR_S: Final = 3e-6
COLLECTIVE_STEP_S: Final = 0.5e-6
NETWORK_STEP_S: Final = 2.7e-6  # NCCL `src/graph/tuning.cc`: ring, low-latency protocol, network
ACTIVATION_BYTES: Final = 2
FP32_BYTES: Final = 4
FP32_RATE_SHARE: Final = 1 / 15
"""Of the dense 16-bit rate: 67 of 989 TFLOP/s on H100 and H200, 19.5 of 312 on A100."""


def arithmetic_mode(gpu: Gpu, weight_dtype: str) -> str:
    """Return the mode in which weights of this precision are multiplied.

    FP8 and NVFP4 weights use their own mode where the hardware has it; all else is dequantised
    and multiplied in 16 bits.
    """
    own = {"fp8": "fp8", "nvfp4": "fp4"}.get(weight_dtype, "bf16")
    return own if own in gpu.flops_per_s else "bf16"


def flops_per_s(gpu: Gpu, mode: str) -> float:
    """Return the dense peak of a mode.

    Raises:
        CoverageError: the catalogue has no rate for it.
    """
    rate = gpu.flops_per_s.get(mode) or gpu.flops_per_s.get("bf16")
    if not rate:
        known = ", ".join(gpu.flops_per_s) or "none"
        raise CoverageError(
            f"{gpu.name}: no FLOP rate for {mode!r} or 'bf16' (known: {known}); give flops_per_s"
        )
    return rate


def gemm_limit_s(
    gpu: Gpu, m: FloatArray, n: float, k: float, weight_bytes: float, mode: str
) -> FloatArray:
    """Return (len(m),) seconds that y[m, n] = x[m, k] w[n, k] takes at least."""
    memory = weight_bytes * n * k / gpu.mem_bw_bytes_per_s
    return np.maximum(memory, 2.0 * m * n * k / flops_per_s(gpu, mode))


def gemm_roofline_s(
    gpu: Gpu, m: FloatArray, n: float, k: float, weight_bytes: float, mode: str
) -> FloatArray:
    """Return (len(m),) seconds of that product at usual efficiency."""
    traffic = weight_bytes * n * k + ACTIVATION_BYTES * m * (n + k)
    memory = traffic / (BANDWIDTH_SHARE * gpu.mem_bw_bytes_per_s)
    compute = 2.0 * m * n * k / (FLOPS_SHARE * flops_per_s(gpu, mode))
    return np.asarray(GEMM_FLOOR_S + np.maximum(memory, compute), np.float64)


def fp32_gemm_roofline_s(gpu: Gpu, m: FloatArray, n: float, k: float) -> FloatArray:
    """Return (len(m),) seconds of a product of 32-bit numbers, outside the matrix units."""
    memory = FP32_BYTES * n * k / (BANDWIDTH_SHARE * gpu.mem_bw_bytes_per_s)
    rate = FP32_RATE_SHARE * FLOPS_SHARE * flops_per_s(gpu, "bf16")
    return np.asarray(GEMM_FLOOR_S + np.maximum(memory, 2.0 * m * n * k / rate), np.float64)


def decode_attention_limit_s(
    gpu: Gpu, kv_tokens: FloatArray, kv_heads: int, head_dim: int, kv_bytes: float
) -> FloatArray:
    """Return the seconds that reading `kv_tokens` cached tokens of one layer takes at least."""
    return np.asarray(2.0 * kv_tokens * kv_heads * head_dim * kv_bytes / gpu.mem_bw_bytes_per_s)


def decode_attention_roofline_s(
    gpu: Gpu, kv_tokens: FloatArray, kv_heads: int, head_dim: int, kv_bytes: float
) -> FloatArray:
    """Return the seconds of one layer's decode attention at usual efficiency."""
    limit = decode_attention_limit_s(gpu, kv_tokens, kv_heads, head_dim, kv_bytes)
    return ATTENTION_FLOOR_S + limit / BANDWIDTH_SHARE


def prefill_attention_limit_s(
    gpu: Gpu, length: FloatArray, heads: int, head_dim: int
) -> FloatArray:
    """Return the seconds that causal attention over prompts of `length` takes at least."""
    return np.asarray(2.0 * heads * head_dim * length * length / flops_per_s(gpu, "bf16"))


def prefill_attention_roofline_s(
    gpu: Gpu, length: FloatArray, heads: int, head_dim: int
) -> FloatArray:
    """Return the seconds of one layer's prefill attention at usual efficiency."""
    return ATTENTION_FLOOR_S + prefill_attention_limit_s(gpu, length, heads, head_dim) / FLOPS_SHARE


def allreduce_limit_s(size_bytes: FloatArray, num_gpus: int, link_bytes_per_s: float) -> FloatArray:
    """Return the seconds that an all-reduce takes at least, reduction inside the switch allowed."""
    return np.asarray(size_bytes * (num_gpus - 1) / num_gpus / link_bytes_per_s)


def ring_roofline_s(
    size_bytes: FloatArray, num_gpus: int, bytes_per_s: float, *, passes: int = 2, hosts: int = 1
) -> FloatArray:
    """Return the seconds of a ring collective over `size_bytes`, (n,).

    Args:
        size_bytes: (n,) the whole buffer: of an all-reduce, the gathered one of an all-gather.
        num_gpus: ranks.
        bytes_per_s: that the slowest hop carries.
        passes: round the ring: 2 for an all-reduce, 1 for an all-gather or a reduce-scatter.
        hosts: that the ring visits; the slowest part of the buffer leaves each of them once a pass.
    """
    sent = passes * (num_gpus - 1) / num_gpus * size_bytes
    crossings = passes * min(hosts, num_gpus - 1) if hosts > 1 else 0
    steps = passes * (num_gpus - 1) - crossings
    latency = COLLECTIVE_FLOOR_S + steps * COLLECTIVE_STEP_S + crossings * NETWORK_STEP_S
    return np.asarray(latency + sent / bytes_per_s, np.float64)


def elementwise_s(gpu: Gpu, size_bytes: FloatArray) -> FloatArray:
    """Return the seconds of moving bytes through memory in small kernels."""
    return np.asarray(size_bytes / (0.7 * gpu.mem_bw_bytes_per_s))
