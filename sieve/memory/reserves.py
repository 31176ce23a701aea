"""What an engine takes beside weights and cache: activations, communication buffers, graphs.

Mechanisms with constants read off start-up logs; the profile of the engine version holds the
constants and says where each comes from.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from sieve.arrays import BoolArray, FloatArray, IntArray
from sieve.catalog.architecture import ModelArchitecture

ACTIVATION_BYTES = 2.0


def sampler_bytes(
    model: ModelArchitecture,
    constants: Mapping[str, float],
    *,
    max_num_seqs: IntArray,
    max_num_batched_tokens: IntArray,
) -> FloatArray:
    """Return the activation peak of the sampler's trial run in bytes, (n,).

    The sorted logits of a full batch dominate; the hidden states of the trial batch are still held.
    """
    logits = max_num_seqs * float(model.vocab_size or 0)
    hidden = max_num_batched_tokens * float(model.hidden_size) * ACTIVATION_BYTES
    extra = constants["activation_moe_bytes"] if model.moe is not None else 0.0
    if model.multimodal:
        extra += constants["activation_vision_bytes"]
    total = constants["activation_bytes_per_logit"] * logits + hidden + extra
    return np.asarray(total + constants["activation_base_bytes"], np.float64)


def forward_bytes(
    model: ModelArchitecture,
    constants: Mapping[str, float],
    *,
    max_num_batched_tokens: IntArray,
    tp: IntArray,
    ep: IntArray,
    dp: IntArray | int = 1,
) -> FloatArray:
    """Return the activation peak of the trial forward pass in bytes, (n,).

    Input and residual, and the widest feed-forward block: gate and up side by side and their
    product; for experts the gathered tokens of one pass (vLLM `fused_moe`), with data-parallel
    ranks those of all of them, before and after the experts.
    """
    tokens = np.asarray(max_num_batched_tokens, np.float64)
    wide = model.ffn_projections * float(model.intermediate_size or 0) / tp
    if model.moe is not None:
        inner = model.moe.moe_intermediate_size / np.maximum(1, tp // np.maximum(1, ep))
        outer = model.expert_input_size or model.hidden_size
        gathered = np.maximum((model.ffn_projections - 1) * inner, outer) + inner
        copies = np.where(dp > 1, 2.0 * outer, 0.0)
        wide = np.maximum(wide, dp * (model.moe.num_experts_per_tok * gathered + copies))
    elements = tokens * (2.0 * model.hidden_size + wide)
    return np.asarray(constants["activation_base_bytes"] + elements * ACTIVATION_BYTES, np.float64)


def graph_sizes(max_num_seqs: IntArray, max_num_batched_tokens: IntArray) -> IntArray:
    """Return how many batch sizes are captured, (n,).

    1, 2, 4, multiples of 8 below 256, multiples of 16 up to the largest: twice the sequences, 512,
    or the token budget. Source: vLLM 0.33 `config/vllm.py`.
    """
    largest = np.minimum(np.minimum(2 * max_num_seqs, 512), max_num_batched_tokens)
    small = (largest >= 1) + (largest >= 2).astype(np.int64) + (largest >= 4)
    eights = np.minimum(largest, 255) // 8
    sixteens = np.maximum(0, largest // 16 - 15)
    return np.asarray(small + eights + sixteens, np.int64)


def graph_bytes(
    constants: Mapping[str, float],
    *,
    layers: FloatArray,
    max_num_seqs: IntArray,
    max_num_batched_tokens: IntArray,
    enforce_eager: BoolArray,
) -> FloatArray:
    """Return the memory of captured graphs on one rank in bytes, (n,): one per layer and size."""
    sizes = graph_sizes(max_num_seqs, max_num_batched_tokens)
    each = constants["graph_bytes_per_layer_and_size"]
    return np.asarray(np.where(enforce_eager, 0.0, each * layers * sizes), np.float64)


def non_torch_bytes(constants: Mapping[str, float], ranks: IntArray) -> FloatArray:
    """Return communication buffers and handles of one rank in bytes, (n,)."""
    alone, linked = constants["non_torch_bytes_tp1"], constants["non_torch_bytes_tp"]
    return np.asarray(np.where(ranks > 1, linked, alone), np.float64)
