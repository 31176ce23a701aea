"""Bytes of a weight and of a cached number by format; the one table that all others read.

Sources: the formats' own definitions (bits and the scales that go with them).
"""

from __future__ import annotations

from typing import Final

NOMINAL_WEIGHT_BYTES: Final[dict[str, float]] = {
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,  # one scale for a tensor, a row or a block of 128 x 128: below 0.05 %
    "int8": 1.0,
    "int4": 0.5,
    "mxfp4": 0.5 + 1 / 32,  # an 8-bit scale for every 32 weights
    "nvfp4": 0.5 + 1 / 16,  # an 8-bit scale for every 16 weights
}
"""As the plain rules and the bounds count: INT4 without the scales of its groups."""

STORED_WEIGHT_BYTES: Final[dict[str, float]] = {
    **NOMINAL_WEIGHT_BYTES,
    "int4": 0.5 + 2.5 / 128,  # a 16-bit scale and a 4-bit zero for every group of 128
}
"""As an engine stores them."""

PEAK_WEIGHT_BYTES: Final[dict[str, float]] = {"int8": 2.0}
"""While loading, where that is more: INT8 is quantised on load from two bytes."""

KV_BYTES: Final[dict[str, float]] = {
    "auto": 2.0, "bfloat16": 2.0, "float16": 2.0, "fp8": 1.0, "fp8_e4m3": 1.0, "fp8_e5m2": 1.0,
    "fp8_ds_mla": 1.0, "nvfp4": 0.5625, "int8_per_token_head": 1.0, "fp8_per_token_head": 1.0,
    "int4_per_token_head": 0.5,
}  # fmt: skip
"""Bytes of one cached number, scales of whole tensors left out."""
