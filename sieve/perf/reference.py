"""Iteration time of the plain rules (sizing specification 9.7): a roofline over parameter counts.

No efficiency factor: bandwidth, arithmetic and link rates are the hardware's limits, so the time
is a bound, not an estimate.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from sieve.arrays import FloatArray, RooflineCost, StepTable
from sieve.errors import CoverageError
from sieve.formulas.sizing import allreduce_s, ceil_div
from sieve.perf.base import ServingShape

STEP_LATENCY_S: Final = 2e-6
"""Latency of one ring step over NVLink; a round figure, it decides nothing below 8 GPUs."""
ACTIVATION_BYTES: Final = 2.0


def reference_step_table(shape: ServingShape, kv_bytes_per_element: float) -> StepTable:
    """Return the plain iteration time of one replica, all pipeline stages in sequence."""
    tokens = np.arange(shape.max_num_batched_tokens + 1, dtype=np.float64)
    seqs = shape.max_num_seqs
    collectives = _collectives_s(shape, tokens)
    zeros = np.zeros(seqs + 1)
    return StepTable(
        token_s=collectives,
        decode_token_s=np.interp(np.arange(seqs + 1.0), tokens, collectives),
        head_s=zeros,
        decode_batch=np.array([1.0]),
        decode_context=np.array([0.0]),
        decode_attention_s=np.zeros((1, 1)),
        prefill_length=np.array([0.0]),
        prefill_attention_s=np.zeros(1),
        prefill_floor_s=0.0,
        host_decode_s=0.0,
        host_mixed_s=0.0,
        pp=shape.pp,
        roofline=_cost(shape, kv_bytes_per_element, tokens),
        component_evidence={"tokens": {"roofline": 1.0}},
        notes=("iteration time is a roofline at hardware limits, without host overhead",),
    )


def kv_read_bytes_per_token(shape: ServingShape, kv_bytes_per_element: float) -> float:
    """Return the cache bytes of one token on one rank, all stages of the replica together."""
    model = shape.model
    heads = max(1, -(-model.num_key_value_heads // shape.tp))
    layers = int(ceil_div(model.num_kv_layers, shape.pp)) * shape.pp
    return 2.0 * layers * heads * model.head_dim * kv_bytes_per_element


def _cost(shape: ServingShape, kv_bytes_per_element: float, tokens: FloatArray) -> RooflineCost:
    model, gpu = shape.model, shape.gpu
    bandwidth = gpu.mem_bw_bytes_per_s
    mode = {"fp8": "fp8", "int8": "int8"}.get(shape.weight_dtype, "bf16")
    rate = gpu.flops_per_s.get(mode, gpu.flops_per_s["bf16"])
    per_token = kv_read_bytes_per_token(shape, kv_bytes_per_element)
    swept = _swept_params(shape, tokens) * shape.weight_bytes_per_param / shape.tp
    pair_flops = 4.0 * model.num_attention_heads * model.head_dim * model.num_kv_layers
    return RooflineCost(
        sweep_s=np.where(tokens > 0, swept / bandwidth, 0.0),
        kv_read_s_per_token=per_token / bandwidth,
        kv_write_s_per_token=per_token / bandwidth,
        linear_s_per_token=2.0 * model.active_params / (shape.tp * rate),
        attention_s_per_pair=pair_flops / (shape.tp * gpu.flops_per_s["bf16"]),
    )


def _swept_params(shape: ServingShape, tokens: FloatArray) -> FloatArray:
    """Return the parameters that n tokens visit: all of a dense model, expected experts else."""
    model = shape.model
    if model.moe is None:
        return np.full(len(tokens), model.params)
    experts, top_k = model.moe.num_experts, model.moe.num_experts_per_tok
    if not 0 < top_k < experts:
        return np.full(len(tokens), model.params)
    per_expert = (model.params - model.active_params) / (experts - top_k)
    fixed = model.active_params - top_k * per_expert
    visited = experts * (1 - (1 - top_k / experts) ** tokens)
    return np.asarray(fixed + per_expert * visited, np.float64)


def _collectives_s(shape: ServingShape, tokens: FloatArray) -> FloatArray:
    """Return two all-reduces per layer for n tokens in seconds, (n + 1,)."""
    if shape.tp == 1:
        return np.zeros(len(tokens))
    gpu = shape.gpu
    link = gpu.link_bytes_per_s if shape.tp <= gpu.scale_up_gpus else gpu.pcie_bytes_per_s
    if link <= 0:
        raise CoverageError(
            f"{gpu.name}: no link rate is known, so TP {shape.tp} has no all-reduce time; give "
            "scale_up_gbs_unidirectional or `like` a GPU that has one"
        )
    once = allreduce_s(
        tp=shape.tp, message_bytes=tokens * shape.model.hidden_size * ACTIVATION_BYTES,
        link_bandwidth=link, step_latency_s=STEP_LATENCY_S,
    )  # fmt: skip
    return np.asarray(np.where(tokens > 0, 2 * shape.model.num_hidden_layers * once, 0.0))
