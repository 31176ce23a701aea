"""Bytes of a weight and of a cached number by format.

Sources: the formats' own definitions (bits and the scales that go with them).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sieve.catalog.architecture import ModelArchitecture
from sieve.errors import InvalidInput

WEIGHT_BYTES: Final[dict[str, float]] = {
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,  # one scale for a tensor, a row or a block of 128 x 128: below 0.05 %
    "int8": 1.0,
    "int4": 0.5 + 2.5 / 128,  # a 16-bit scale and a 4-bit zero for every group of 128
    "mxfp4": 0.5 + 1 / 32,  # an 8-bit scale for every 32 weights
    "nvfp4": 0.5 + 1 / 16,  # an 8-bit scale for every 16 weights
}
PLAIN_BYTES: Final = 2.0
"""Bytes of a weight that quantisation leaves alone: embeddings, head, router, norms."""

KV_BYTES: Final[dict[str, float]] = {
    "auto": 2.0, "bfloat16": 2.0, "float16": 2.0, "fp8": 1.0, "fp8_e4m3": 1.0, "fp8_e5m2": 1.0,
    "fp8_ds_mla": 1.0, "nvfp4": 0.5625, "int8_per_token_head": 1.0, "fp8_per_token_head": 1.0,
    "int4_per_token_head": 0.5,
}  # fmt: skip
"""Bytes of one cached number, scales of whole tensors left out."""
SCALE_BYTES_PER_HEAD: Final = 4.0
"""A float32 scale for each token and head of K and of V, for the `per_token_head` formats."""
LATENT_FP8_BYTES: Final = 656.0
"""Bytes of one token in `fp8_ds_mla`: 512 FP8 numbers, 4 scales, 64 rotary numbers in 16 bits."""


@dataclass(frozen=True)
class WeightFormat:
    """Bytes of a weight by where it stands.

    Attributes:
        name: `bf16`, `fp8` ...
        linear_bytes: of attention, dense and shared matrices.
        expert_bytes: of routed experts.
    """

    name: str
    linear_bytes: float
    expert_bytes: float


def weight_format(model: ModelArchitecture, name: str) -> WeightFormat:
    """Return the bytes per weight of a model served in this format; "auto": as published.

    Raises:
        InvalidInput: an unknown format.
    """
    wanted = model.checkpoint_dtype if name == "auto" else name
    if wanted not in WEIGHT_BYTES:
        raise InvalidInput(
            f"weight format {name!r} is not known; formats are auto, {', '.join(WEIGHT_BYTES)}"
        )
    linear = _with_group(model, wanted)
    expert = linear
    if wanted == model.checkpoint_dtype and model.expert_dtype:
        expert = _with_group(model, model.expert_dtype)
    return WeightFormat(wanted, linear, expert)


def _with_group(model: ModelArchitecture, name: str) -> float:
    """Return the bytes of a weight; int4 groups of the checkpoint's own size where it says so."""
    if name == "int4" and model.quant_group:
        return 0.5 + 2.5 / model.quant_group
    return WEIGHT_BYTES[name]


def kv_bytes(name: str) -> float:
    """Return the bytes of one cached number.

    Raises:
        InvalidInput: an unknown format.
    """
    wanted = "bfloat16" if name == "bf16" else "float16" if name == "fp16" else name
    if wanted not in KV_BYTES:
        raise InvalidInput(
            f"kv_cache_dtype {name!r} is not known; formats are {', '.join(KV_BYTES)}"
        )
    return KV_BYTES[wanted]
