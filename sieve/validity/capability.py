"""NVIDIA compute capability from which a number format has kernels in vLLM."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

LEAST_CAPABILITY: Final[dict[str, dict[str, float]]] = {
    # Weight-only FP8 on Ampere, FP8 cache on Ada and Hopper, microscaled 4-bit formats by Marlin on
    # Ampere, NVFP4 likewise.
    "weights": {
        "fp8": 8.0, "int8": 7.5, "int4": 7.5, "mxfp4": 8.0, "nvfp4": 8.0, "bf16": 8.0, "fp16": 7.0,
    },
    "cache": {"fp8": 8.0, "fp8_e4m3": 8.9, "fp8_e5m2": 8.0, "fp8_ds_mla": 9.0, "nvfp4": 10.0},
}  # fmt: skip
NATIVE_CAPABILITY: Final[dict[str, float]] = {
    "fp8": 8.9,
    "int8": 7.5,
    "mxfp4": 10.0,
    "nvfp4": 10.0,
}
"""From here the arithmetic is done in the format; below, weights are unpacked to 16 bits."""


def weight_capability(name: str, special: Mapping[str, float] | None = None) -> float:
    """Return the least capability that a weight format needs, 0 if any will do."""
    return (special or {}).get(name, LEAST_CAPABILITY["weights"].get(name, 0.0))


def least_capability(
    weight_dtype: str, kv_cache_dtype: str, special: Mapping[str, float] | None = None
) -> float:
    """Return the least capability that both formats need, 0 if any will do.

    Args:
        weight_dtype: format of the weights.
        kv_cache_dtype: format of the cache.
        special: weight formats in which an engine version differs.
    """
    weights = weight_capability(weight_dtype, special)
    return max(weights, LEAST_CAPABILITY["cache"].get(kv_cache_dtype, 0.0))
