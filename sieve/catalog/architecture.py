"""Facts about models, accelerators and engines, as plain frozen data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class MoeFacts:
    """Expert layers of a mixture-of-experts model.

    Attributes:
        num_experts: routed experts per layer.
        num_experts_per_tok: routed experts that each token visits.
        moe_intermediate_size: width of one routed expert.
        shared_intermediate_size: total width of the experts that every token visits, 0 if none.
        num_dense_layers: layers with an ordinary feed-forward block of `intermediate_size`.
    """

    num_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    shared_intermediate_size: int = 0
    num_dense_layers: int = 0


@dataclass(frozen=True)
class ModelArchitecture:
    """A transformer with multi-head or grouped-query attention, dense or with experts.

    Attributes:
        name: catalogue name, path, or the name given inline.
        architecture: Hugging Face class name, "" for inline facts.
        num_hidden_layers: all layers.
        num_kv_layers: layers that keep a growing KV cache.
        hidden_size: width.
        num_attention_heads: query heads.
        num_key_value_heads: KV heads.
        head_dim: per head.
        intermediate_size: width of the dense feed-forward block; None when unknown (inline facts).
        ffn_projections: matrices of a feed-forward block: 3 gated, 2 plain.
        vocab_size: None when unknown.
        tie_word_embeddings: input and output embeddings are one matrix.
        max_position_embeddings: context limit in tokens; None when unknown.
        moe: expert facts, None for dense models.
        params: all parameters.
        active_params: parameters that one token visits, input embedding included.
        checkpoint_dtype: precision of the published weights (`bf16`, `fp8`, `int4`, `mxfp4` ...).
        attention_bias: biases on the QKV projections.
        learned_positions: rows of a learned position table, 0 if none.
        qk_norm_params: weights of the query and key norms of one layer, 0 if none.
        verified: the facts were read from a config.json or a maintained transcription.
        source: where the facts come from.
        assumed: what was assumed while reading, in words.
    """

    name: str
    architecture: str
    num_hidden_layers: int
    num_kv_layers: int
    hidden_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int | None
    ffn_projections: int
    vocab_size: int | None
    tie_word_embeddings: bool
    max_position_embeddings: int | None
    moe: MoeFacts | None
    params: float
    active_params: float
    checkpoint_dtype: str = "bf16"
    attention_bias: bool = False
    learned_positions: int = 0
    qk_norm_params: int = 0
    verified: bool = True
    source: str = ""
    assumed: tuple[str, ...] = ()

    @property
    def is_detailed(self) -> bool:
        """Whether every matrix is known, so that kernels can be looked up one by one."""
        return self.intermediate_size is not None and self.vocab_size is not None


@dataclass(frozen=True)
class Gpu:
    """An accelerator; sizes in bytes, rates per second, money in USD per hour.

    Attributes:
        name: catalogue name.
        memory_bytes: what the device reports to the engine (not the figure on the box).
        mem_bw_bytes_per_s: bandwidth limit.
        flops_per_s: dense rate by arithmetic mode: `bf16`, `fp8`, `fp4`, `int8`; absent if the
            hardware lacks the mode.
        link_bytes_per_s: one direction of the fast link of one GPU; the PCIe rate if there is none.
        pcie_bytes_per_s: one direction.
        scale_up_gpus: GPUs in the fast domain (1: none).
        compute_capability: NVIDIA's, None elsewhere.
        usd_per_gpu_hour: middle of the dated catalogue range or the user's price; None if unknown.
        price_note: where the price comes from, "" if the user gave it.
        vendor: manufacturer.
        kernel_system: folder of `kernel_tables` with measurements of this GPU, "" if none.
        like: catalogue GPU that supplied what inline facts lack, "" if none.
        assumed: what was assumed, in words.
    """

    name: str
    memory_bytes: float
    mem_bw_bytes_per_s: float
    flops_per_s: Mapping[str, float]
    link_bytes_per_s: float
    pcie_bytes_per_s: float
    scale_up_gpus: int
    compute_capability: float | None
    usd_per_gpu_hour: float | None
    price_note: str = ""
    vendor: str = "NVIDIA"
    kernel_system: str = ""
    like: str = ""
    assumed: tuple[str, ...] = ()


@dataclass(frozen=True)
class EngineProfile:
    """Defaults and rules of one engine version range.

    Attributes:
        name: `reference` or `vllm`.
        version: version the profile was written for, "" for `reference`.
        requested: what the user asked for.
        substituted: True when the nearest profile stands in for an unknown version.
        defaults: option -> default value. Sizes that depend on the GPU are lists of
            {min_memory_gib, except, value} read by `engines.default_for_gpu`.
        rules: names of the validity rules in order.
        ledger: constants of the memory ledger.
        replay: switches of the scheduler replay.
        notes: what is not modelled, in words.
    """

    name: str
    version: str
    requested: str
    substituted: bool
    defaults: Mapping[str, Any]
    rules: tuple[str, ...]
    ledger: Mapping[str, float]
    replay: Mapping[str, Any]
    notes: tuple[str, ...] = field(default=())
