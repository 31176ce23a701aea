"""Catalogue facts as the bounds functions read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sieve.bounds_of.layers import layer_costs
from sieve.catalog.architecture import Gpu, ModelArchitecture
from sieve.catalog.precisions import KV_BYTES as _ALL_KV_BYTES
from sieve.catalog.precisions import NOMINAL_WEIGHT_BYTES
from sieve.errors import InvalidInput

WEIGHT_BYTES: Final = NOMINAL_WEIGHT_BYTES
KV_BYTES: Final = {
    **{name: _ALL_KV_BYTES[name] for name in ("auto", "bfloat16", "float16", "fp8")},
    **{name: _ALL_KV_BYTES[name] for name in ("fp8_e4m3", "fp8_e5m2")},
    "bf16": _ALL_KV_BYTES["bfloat16"],
    "fp16": _ALL_KV_BYTES["float16"],
}
"""Bytes of one cached element, short spellings too."""
_MODES: Final = {"fp8": "fp8", "int8": "int8", "nvfp4": "fp4", "mxfp4": "fp4"}
_NORMS_PER_LAYER: Final = 6  # vectors of the width at most, biases included


def model_inputs(
    model: ModelArchitecture, weight_bytes: float, kv_bytes: float, expert_traffic: str
) -> dict[str, Any]:
    """Return a model as the bounds functions read it; all weights at one precision."""
    weights: dict[str, Any] = {
        "kind": "dense",
        "p_total": model.params,
        "p_embed": _lookup_only_params(model),
        "e_w": weight_bytes,
    }
    if model.moe is not None and is_moe(model):
        weights |= {
            "kind": "moe",
            "p_active": model.active_params,
            "experts": model.moe.num_experts,
            "top_k": model.moe.num_experts_per_tok,
            "routing": expert_traffic,
        }
    return {
        "weights": weights,
        "p_lin_active": multiplied_params(model),
        **_cache_inputs(model, kv_bytes),
    }


def _cache_inputs(model: ModelArchitecture, kv_bytes: float) -> dict[str, Any]:
    """Return cache and attention: linear in the length, or hybrid where layers differ."""
    if model.kinds:
        costs = layer_costs(model, kv_bytes)
        return {
            "kv_alloc": {"kind": "hybrid", **costs.reserved.inputs()},
            "kv_read": {"kind": "hybrid", **costs.read.inputs()},
            "kv_write_per_token": costs.written,
            "attention": costs.attention.inputs(),
        }
    cache = {
        "kind": "linear",
        "layers": model.num_kv_layers,
        "kv_heads": model.num_key_value_heads,
        "head_dim": model.head_dim,
        "bytes_per_element": kv_bytes,
    }
    elements = 2 * model.num_kv_layers * model.num_key_value_heads * model.head_dim
    pairs = 4.0 * model.num_kv_layers * model.num_attention_heads * model.head_dim
    return {
        "kv_alloc": cache,
        "kv_read": cache,
        "kv_write_per_token": elements * kv_bytes,
        "attention": {"global": pairs},
    }


def multiplied_params(model: ModelArchitecture) -> float:
    """Return the parameters multiplied per prompt token: no embedding, no head, no router.

    Without the shapes (inline facts) that is the active count, which is too many.
    """
    if not model.is_detailed:
        return model.active_params
    if model.kinds:
        return _multiplied_at_least(model)
    width, heads = model.hidden_size, model.num_attention_heads + model.num_key_value_heads
    attention = 2 * width * heads * model.head_dim
    block = model.ffn_projections * width
    dense = block * (model.intermediate_size or 0)
    if model.moe is None:
        return float(model.num_hidden_layers * (attention + dense))
    moe = model.moe
    visited = moe.num_experts_per_tok * moe.moe_intermediate_size + moe.shared_intermediate_size
    expert_layers = model.num_hidden_layers - moe.num_dense_layers
    ffn = moe.num_dense_layers * dense + expert_layers * block * visited
    return float(model.num_hidden_layers * attention + ffn)


def _multiplied_at_least(model: ModelArchitecture) -> float:
    """Return the active parameters less everything that may not be a matrix of a prompt token."""
    ends = (model.vocab_size or 0) * (1 if model.tie_word_embeddings else 2)
    experts = 0 if model.moe is None else model.moe.num_experts
    layers = model.num_hidden_layers * (_NORMS_PER_LAYER + experts)
    aside = (ends + layers) * model.hidden_size + _table_params(model)
    return max(model.active_params - aside, 1.0)


def _lookup_only_params(model: ModelArchitecture) -> float:
    """Return the parameters of which a token reads single rows; a tied embedding is the head."""
    vocab = 0 if model.tie_word_embeddings else model.vocab_size or 0
    return float(vocab * model.hidden_size + _table_params(model))


def _table_params(model: ModelArchitecture) -> float:
    """Return the tables of positions and of embeddings that layers add."""
    per_layer = (model.vocab_size or 0) * model.per_layer_embedding * model.num_hidden_layers
    return float(model.learned_positions * model.hidden_size + per_layer)


def weight_bytes_of(model: ModelArchitecture, dtype: str | None) -> tuple[str, float]:
    """Return (precision, bytes of a weight); of a checkpoint in two precisions the smaller.

    Raises:
        InvalidInput: an unknown precision, with the known ones.
    """
    if dtype is not None:
        return dtype, look_up(WEIGHT_BYTES, dtype, "weight_dtype")
    names = [name for name in (model.checkpoint_dtype, model.expert_dtype) if name]
    sizes = [look_up(WEIGHT_BYTES, name, "weight_dtype of the checkpoint") for name in names]
    return names[sizes.index(min(sizes))], min(sizes)


def is_moe(model: ModelArchitecture) -> bool:
    """Return whether a token visits some of the experts only."""
    return model.moe is not None and model.moe.num_experts_per_tok < model.moe.num_experts


def look_up(table: Mapping[str, float], name: str, option: str) -> float:
    """Return the bytes of a precision.

    Raises:
        InvalidInput: an unknown name, with the known ones.
    """
    if name not in table:
        raise InvalidInput(f"{option} is {name!r}; allowed: {', '.join(table)}")
    return table[name]


def arithmetic_mode(gpu: Gpu, dtype: str) -> str | None:
    """Return the fastest arithmetic mode of operands of this precision; None if not known."""
    modes = (_MODES.get(dtype, "bf16"), "bf16")
    return next((mode for mode in modes if gpu.flops_per_s.get(mode)), None)
