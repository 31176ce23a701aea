"""The bytes of a model served in a format, by where a weight stands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sieve.catalog.architecture import ModelArchitecture
from sieve.catalog.precisions import KV_BYTES, STORED_WEIGHT_BYTES
from sieve.errors import InvalidInput

PLAIN_BYTES: Final = 2.0
"""Bytes of a weight that quantisation leaves alone: embeddings, head, router, norms."""

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
    if wanted not in STORED_WEIGHT_BYTES:
        known = ", ".join(["auto", *STORED_WEIGHT_BYTES])
        raise InvalidInput(f"weight format {name!r} is not known; formats are {known}")
    linear = _with_group(model, wanted)
    expert = linear
    if wanted == model.checkpoint_dtype and model.expert_dtype:
        expert = _with_group(model, model.expert_dtype)
    return WeightFormat(wanted, linear, expert)


def _with_group(model: ModelArchitecture, name: str) -> float:
    """Return the bytes of a weight; int4 groups of the checkpoint's own size where it says so."""
    if name == "int4" and model.quant_group:
        return 0.5 + 2.5 / model.quant_group
    return STORED_WEIGHT_BYTES[name]


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
