"""Weight bytes on the fullest rank, from the shapes of the matrices."""

from __future__ import annotations

from typing import Final

import numpy as np

from sieve.arrays import FloatArray, IntArray
from sieve.catalog.architecture import ModelArchitecture

UNQUANTISED_BYTES: Final = 2.0
"""Bytes of a weight that quantisation leaves alone: embeddings, head, router, norms."""


def weight_bytes_per_gpu(
    model: ModelArchitecture, *, tp: IntArray, pp: IntArray, bytes_per_param: FloatArray
) -> FloatArray:
    """Return the weights on the fullest rank in bytes, (n,).

    Linear layers are split over TP ranks (KV projections only as far as there are KV heads, then
    replicated) and over stages by whole layers; embeddings stay on the first stage, the head on
    the last. Without the matrix shapes (inline facts) all parameters are split evenly.

    Args:
        model: architecture.
        tp: (n,) tensor parallel sizes.
        pp: (n,) pipeline parallel sizes.
        bytes_per_param: (n,) bytes of one quantised weight.
    """
    if not model.is_detailed:
        return np.asarray(model.params * bytes_per_param / (tp * pp), np.float64)
    linear, plain = _layer_params(model, tp)
    layers = -(-model.num_hidden_layers // pp)
    per_layer = linear * bytes_per_param + plain * UNQUANTISED_BYTES
    width, vocab = model.hidden_size, model.vocab_size or 0
    embedding = (vocab / tp + model.learned_positions) * width * UNQUANTISED_BYTES
    head = vocab / tp * width * UNQUANTISED_BYTES
    tied = model.tie_word_embeddings
    ends = np.where(pp == 1, embedding + (0.0 if tied else head), np.maximum(embedding, head))
    return np.asarray(layers * per_layer + ends, np.float64)


def _layer_params(model: ModelArchitecture, tp: IntArray) -> tuple[FloatArray, float]:
    """Return (quantised, unquantised) parameters of a mean layer on one rank."""
    width, head_dim = model.hidden_size, model.head_dim
    kv_heads = np.maximum(1, -(-model.num_key_value_heads // tp))
    attention = 2 * width * model.num_attention_heads * head_dim / tp
    attention = attention + 2 * width * kv_heads * head_dim
    dense = model.ffn_projections * width * (model.intermediate_size or 0) / tp
    norms = 2.0 * width
    if model.moe is None:
        return np.asarray(attention + dense, np.float64), norms
    moe = model.moe
    experts = moe.num_experts * moe.moe_intermediate_size + moe.shared_intermediate_size
    expert_part = model.ffn_projections * width * experts / tp
    dense_share = moe.num_dense_layers / model.num_hidden_layers
    ffn = dense * dense_share + expert_part * (1 - dense_share)
    router = width * moe.num_experts * (1 - dense_share)
    return np.asarray(attention + ffn, np.float64), norms + router
