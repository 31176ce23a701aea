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
class StateFacts:
    """The recurrent state of a linear attention or state-space layer; per layer, before TP.

    Attributes:
        flavour: `gdn` (gated delta net), `kda` (Kimi delta attention), `mamba2`.
        num_heads: heads that the recurrent state has, split over TP ranks.
        head_values: numbers of the state of one head.
        conv_channels: channels of the short convolution.
        conv_kernel: its width; the state keeps one column less.
        state_bytes: bytes of one number of the recurrent state.
        num_key_heads, key_dim, value_dim: heads and widths of keys and values (`gdn`, `kda`);
            of B and C groups, state size and head size for `mamba2`.
        full_rank_gate: the output gate of `kda` is one whole matrix.
    """

    flavour: str
    num_heads: int
    head_values: int
    conv_channels: int
    conv_kernel: int
    state_bytes: int
    num_key_heads: int
    key_dim: int
    value_dim: int
    full_rank_gate: bool = False


@dataclass(frozen=True)
class LayerKind:
    """One kind of token mixing: what its cache keeps and which matrices it has.

    Attributes:
        kind: `full`, `window` (sliding), `chunk` (local), `latent` (MLA), `compressed`, `state`.
        num_attention_heads: query heads.
        num_key_value_heads: heads of the cache; 1 for a latent.
        head_dim: of queries and keys.
        v_head_dim: of values.
        window_tokens: tokens that a `window`, `chunk` or `compressed` layer sees; 0: all.
        stores_kv: False where the layer reads the cache of an earlier one.
        value_is_key: the value projection is the key projection (both are cached).
        gated: the query projection also makes an output gate.
        q_lora_rank, kv_lora_rank, qk_rope_head_dim, qk_nope_head_dim: of a latent, else 0.
        index_heads, index_dim: of the indexer of sparse attention, 0 if none; the cache then keeps
            `index_dim` numbers more for each token.
        compress_ratio: tokens that share one entry of a `compressed` cache, 0 if none.
        output_groups, output_rank: of a low-rank output projection, 0 if none.
        state: recurrent state, None for attention.
    """

    kind: str
    num_attention_heads: int = 0
    num_key_value_heads: int = 0
    head_dim: int = 0
    v_head_dim: int = 0
    window_tokens: int = 0
    stores_kv: bool = True
    value_is_key: bool = False
    gated: bool = False
    q_lora_rank: int = 0
    kv_lora_rank: int = 0
    qk_rope_head_dim: int = 0
    qk_nope_head_dim: int = 0
    index_heads: int = 0
    index_dim: int = 0
    compress_ratio: int = 0
    output_groups: int = 0
    output_rank: int = 0
    state: StateFacts | None = None


@dataclass(frozen=True)
class RotaryTable:
    """A precomputed table of rotary angles: rows of `width` numbers, held by every rank."""

    rows: int
    width: int


@dataclass(frozen=True)
class ModelArchitecture:
    """A decoder: attention or state layers of one or several kinds, dense or with experts.

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
        kinds: kinds of token mixing; empty: every layer has full attention with the heads above.
        layer_kinds: for each layer the place of its kind in `kinds`, -1: none.
        layer_ffns: for each layer `dense`, `moe`, `dense+moe` or ""; empty: the first
            `moe.num_dense_layers` are dense.
        expert_input_size: width that routed experts read; 0: `hidden_size`.
        expert_dtype: precision of the routed experts where it is not `checkpoint_dtype`, else "".
        unquantised: parts that the checkpoint leaves in 16 bits: `attention`, `dense`, `shared`.
        plain_layers: layers that the checkpoint leaves in 16 bits altogether.
        quant_block: edge of the square blocks with one scale each, 0 if scales are not by block.
        quant_group: weights along a row that share a scale, 0 if the format decides.
        rotary: tables that every rank holds.
        per_layer_embedding: width of the embeddings that each layer adds, 0 if none.
        vision_params: parameters of vision and audio parts.
        multimodal: the class takes images or sound too.
        unmodelled_step_time: features whose step time is not modelled, in words; empty if all are.
        context_limit_sure: the limit is this checkpoint's own, not that of a sibling.
        stored_bytes: of the checkpoint's tensors that are loaded, 0 if not read.
        stored_source: where that comes from, in words.
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
    kinds: tuple[LayerKind, ...] = ()
    layer_kinds: tuple[int, ...] = ()
    layer_ffns: tuple[str, ...] = ()
    expert_input_size: int = 0
    expert_dtype: str = ""
    unquantised: tuple[str, ...] = ()
    plain_layers: tuple[int, ...] = ()
    quant_block: int = 0
    quant_group: int = 0
    rotary: tuple[RotaryTable, ...] = ()
    per_layer_embedding: int = 0
    vision_params: int = 0
    multimodal: bool = False
    unmodelled_step_time: tuple[str, ...] = ()
    context_limit_sure: bool = True
    stored_bytes: int = 0
    stored_source: str = ""

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
        covers: first and last release that the profile was written for, "" for `reference`.
        cache: how the KV cache is laid out; keys are explained in the newest profile's file.
        capability: weight format -> least compute capability, where this version differs.
        expert_block_floor: smallest block to which the FP8 blocks of experts are refined when a
            rank's share is not made of whole ones; 0: they are not refined.
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
    covers: tuple[str, str] = ("", "")
    cache: Mapping[str, Any] = field(default_factory=dict)
    capability: Mapping[str, float] = field(default_factory=dict)
    expert_block_floor: int = 0
