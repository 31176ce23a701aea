"""Every matrix of a model: its shape, what it belongs to, and how tensor parallelism splits it.

Matrices stand as the engine merges them (query, key and value in one, gate and up in one, all
experts of a layer in two), so that sums over them are what a rank allocates and a width that does
not fit can be named.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from sieve.catalog.architecture import LayerKind, ModelArchitecture, MoeFacts, StateFacts

VOCABULARY_STEP: Final = 64
"""The engine pads the vocabulary to a multiple of this (vLLM `vocab_parallel_embedding.py`)."""
PARTS: Final = ("attention", "dense", "shared", "experts", "state")
"""Parts whose matrices a format may quantise; all else stays in 16 bits."""
_WHOLE_SHARED_EXPERTS: Final = (
    "DeepseekV2", "DeepseekV3", "GlmMoeDsa", "KimiK2", "Llama4", "NemotronH",
)  # fmt: skip


@dataclass(frozen=True)
class Side:
    """One side of a matrix, or one of the matrices that are merged along it.

    Attributes:
        width: elements without tensor parallelism.
        units: indivisible pieces (heads, elements) that ranks share out; 0: every rank has all.
    """

    width: int
    units: int = 0

    def per_rank(self, tp: int) -> int:
        """Return the elements on the fullest rank; a unit that cannot be split is copied."""
        if self.units == 0:
            return self.width
        return max(1, -(-self.units // tp)) * (self.width // self.units)


@dataclass(frozen=True)
class Matrix:
    """A weight matrix, or `experts` of them as one tensor.

    Attributes:
        name: as the engine's parameter is called, without the layer number.
        part: one of `PARTS`, else `embedding`, `head`, `router`, `norm`, `vision`, `other`.
        rows: outputs; several where matrices are merged.
        cols: inputs.
        experts: copies with their own weights.
        bytes_per_weight: fixed precision, 0 where the format or 16 bits decide.
    """

    name: str
    part: str
    rows: tuple[Side, ...]
    cols: Side = field(default_factory=lambda: Side(1))
    experts: int = 0
    bytes_per_weight: float = 0.0

    @property
    def params(self) -> int:
        """Weights without parallelism."""
        return sum(side.width for side in self.rows) * self.cols.width * max(1, self.experts)

    def shape(self, tp: int, ep: int = 1) -> tuple[int, int, int]:
        """Return (copies, rows, cols) on the fullest rank."""
        if self.experts == 0:
            return 1, sum(side.per_rank(tp) for side in self.rows), self.cols.per_rank(tp)
        inner = max(1, tp // ep)
        copies = -(-self.experts // ep)
        return copies, sum(side.per_rank(inner) for side in self.rows), self.cols.per_rank(inner)


def shares_tokens(model: ModelArchitecture, *, tp: int, dp: int) -> bool:
    """Whether tensor ranks share out the tokens, not the widths, of the shared experts.

    So where data-parallel ranks share experts (vLLM 0.33 `use_sequence_parallel_moe`) in models
    whose code then keeps the shared experts whole on every rank: `deepseek_v2.py`, `llama4.py`,
    `nemotron_h.py`.
    """
    return tp > 1 and dp > 1 and model.architecture.startswith(_WHOLE_SHARED_EXPERTS)


def whole(width: int) -> Side:
    """Return a side that every rank holds whole."""
    return Side(width)


def split(width: int, units: int | None = None) -> Side:
    """Return a side that ranks share, by elements or by units."""
    return Side(width, width if units is None else units)


@dataclass(frozen=True)
class LayerPlan:
    """One layer: its attention or state (None: none) and its feed-forward part."""

    kind: LayerKind | None
    ffn: str


def layer_plans(model: ModelArchitecture) -> list[LayerPlan]:
    """Return the plan of each layer; plain models have full attention throughout."""
    layers = model.num_hidden_layers
    if model.kinds:
        kinds = [None if place < 0 else model.kinds[place] for place in model.layer_kinds]
    else:
        kinds = plain_kinds(model)
    if model.layer_ffns:
        ffns: Sequence[str] = model.layer_ffns
    elif model.moe is None:
        ffns = ["dense"] * layers
    else:
        dense = model.moe.num_dense_layers
        ffns = ["dense"] * dense + ["moe"] * (layers - dense)
    return [LayerPlan(kind, ffn) for kind, ffn in zip(kinds, ffns, strict=True)]


def plain_kinds(model: ModelArchitecture) -> list[LayerKind | None]:
    """Return full attention for each layer; inline facts may say that only some keep a cache."""
    storing = LayerKind(
        kind="full",
        num_attention_heads=model.num_attention_heads,
        num_key_value_heads=model.num_key_value_heads,
        head_dim=model.head_dim,
        v_head_dim=model.head_dim,
    )
    layers, cached = model.num_hidden_layers, model.num_kv_layers
    # Caches are spread evenly, so that each stage of a pipeline gets its share.
    return (
        [
            storing if (i + 1) * cached // layers > i * cached // layers else None
            for i in range(layers)
        ]
        if cached < layers
        else [storing] * layers
    )


def layer_matrices(model: ModelArchitecture, plan: LayerPlan) -> list[Matrix]:
    """Return the matrices of one layer, norms included."""
    width = model.hidden_size
    out: list[Matrix] = []
    norms = 0
    if plan.kind is not None or not model.kinds:
        kind = plan.kind or plain_kinds(model)[-1]
        if kind is not None:
            out += _mixer(model, kind)
            norms += 1
    if plan.ffn:
        norms += 1
    if "dense" in plan.ffn and model.intermediate_size:
        out += _feed_forward(model, "dense", model.intermediate_size, "mlp")
    if "moe" in plan.ffn and model.moe is not None:
        out += _experts(model, model.moe)
    sandwich = 2 if model.architecture.startswith("Gemma") else 1
    layer_norm = 2 if model.learned_positions else 1
    out.append(Matrix("norms", "norm", (whole(norms * sandwich * layer_norm * width),)))
    if model.per_layer_embedding:
        inner = model.per_layer_embedding
        out.append(Matrix("per_layer_gate", "other", (whole(inner),), whole(width)))
        out.append(Matrix("per_layer_projection", "other", (whole(width),), whole(inner)))
    return out


def first_matrices(model: ModelArchitecture) -> list[Matrix]:
    """Return what only the first stage holds: embeddings, vision parts."""
    width = model.hidden_size
    out = [Matrix("embed_tokens", "embedding", (split(padded_vocabulary(model)),), whole(width))]
    if model.learned_positions:
        table = Matrix(
            "embed_positions", "embedding", (whole(model.learned_positions),), whole(width)
        )
        out.append(table)
    if model.per_layer_embedding:
        inner = model.per_layer_embedding * model.num_hidden_layers
        vocab = split(padded_vocabulary(model))
        out.append(Matrix("embed_tokens_per_layer", "embedding", (vocab,), whole(inner)))
        out.append(Matrix("per_layer_model_projection", "other", (whole(inner),), whole(width)))
    if model.vision_params:
        out.append(Matrix("vision", "vision", (whole(model.vision_params),)))
    return out


def last_matrices(model: ModelArchitecture) -> list[Matrix]:
    """Return what only the last stage holds: head (also where it is tied) and final norm."""
    width = model.hidden_size
    return [
        Matrix("lm_head", "head", (split(padded_vocabulary(model)),), whole(width)),
        Matrix("norm", "norm", (whole(width * (2 if model.learned_positions else 1)),)),
    ]


def padded_vocabulary(model: ModelArchitecture) -> int:
    """Return the vocabulary with the rows that the engine adds."""
    return -(-(model.vocab_size or 0) // VOCABULARY_STEP) * VOCABULARY_STEP


def counted_params(model: ModelArchitecture) -> tuple[float, float]:
    """Return parameters (all, active per token) summed over the matrices, vision parts left out."""
    total = active = 0
    for plan, count in Counter(layer_plans(model)).items():
        for matrix in layer_matrices(model, plan):
            total += count * matrix.params
            share = matrix.params
            if matrix.experts and model.moe is not None:
                share = matrix.params * model.moe.num_experts_per_tok // matrix.experts
            active += count * share
    ends = first_matrices(model) + last_matrices(model)
    rest = sum(m.params for m in ends if m.part not in {"vision", "head"})
    head = 0 if model.tie_word_embeddings else padded_vocabulary(model) * model.hidden_size
    return float(total + rest + head), float(active + rest + head)


def _mixer(model: ModelArchitecture, kind: LayerKind) -> list[Matrix]:
    if kind.state is not None:
        return _state(model, kind.state)
    if kind.kind == "latent":
        return _latent(model, kind)
    if kind.kind == "compressed":
        return _compressed(model, kind)
    width, heads, kv = model.hidden_size, kind.num_attention_heads, kind.num_key_value_heads
    q = heads * kind.head_dim * (2 if kind.gated else 1)
    sides = [split(q, heads), split(kv * kind.head_dim, kv)]
    if not kind.value_is_key:
        sides.append(split(kv * kind.v_head_dim, kv))
    o_width = heads * kind.v_head_dim
    out = [
        Matrix("self_attn.qkv_proj", "attention", tuple(sides), whole(width)),
        Matrix("self_attn.o_proj", "attention", (whole(width),), split(o_width, heads)),
    ]
    if model.attention_bias or model.learned_positions:
        out.append(Matrix("self_attn.qkv_proj.bias", "norm", tuple(sides)))
    if model.qk_norm_params:
        out.append(Matrix("self_attn.qk_norm", "norm", (whole(model.qk_norm_params),)))
    return out + _indexer(kind, width, width)


def _indexer(kind: LayerKind, width: int, query_width: int) -> list[Matrix]:
    """Return the matrices that choose tokens in sparse attention; every rank holds them whole."""
    if not kind.index_dim:
        return []
    heads, inner = kind.index_heads, kind.index_dim
    return [
        Matrix("indexer.wq_b", "attention", (whole(heads * inner),), whole(query_width)),
        Matrix("indexer.wk", "attention", (whole(inner),), whole(width)),
        Matrix("indexer.weights_proj", "router", (whole(heads),), whole(width)),
    ]


def _latent(model: ModelArchitecture, kind: LayerKind) -> list[Matrix]:
    width, heads, rank = model.hidden_size, kind.num_attention_heads, kind.kv_lora_rank
    query = kind.qk_nope_head_dim + kind.qk_rope_head_dim
    up = kind.qk_nope_head_dim + kind.v_head_dim
    latent = rank + kind.qk_rope_head_dim
    if kind.q_lora_rank:
        sides = (whole(kind.q_lora_rank), whole(latent))
        out = [
            Matrix("self_attn.fused_qkv_a_proj", "attention", sides, whole(width)),
            Matrix(
                "self_attn.q_b_proj", "attention", (split(heads * query, heads),),
                whole(kind.q_lora_rank),
            ),
        ]  # fmt: skip
    else:
        out = [
            Matrix("self_attn.q_proj", "attention", (split(heads * query, heads),), whole(width)),
            Matrix("self_attn.kv_a_proj", "attention", (whole(latent),), whole(width)),
        ]
    out += [
        Matrix("self_attn.kv_b_proj", "attention", (split(heads * up, heads),), whole(rank)),
        Matrix(
            "self_attn.o_proj", "attention", (whole(width),),
            split(heads * kind.v_head_dim, heads),
        ),
    ]  # fmt: skip
    if kind.gated:
        gate = split(heads * kind.v_head_dim, heads)
        out.append(Matrix("self_attn.g_proj", "attention", (gate,), whole(width)))
    return out + _indexer(kind, width, kind.q_lora_rank or width)


def _compressed(model: ModelArchitecture, kind: LayerKind) -> list[Matrix]:
    width, heads, rank = model.hidden_size, kind.num_attention_heads, kind.q_lora_rank
    groups, inner = max(1, kind.output_groups), kind.output_rank
    out = [
        Matrix(
            "self_attn.fused_wqa_wkv", "attention", (whole(rank), whole(kind.head_dim)),
            whole(width),
        ),
        Matrix(
            "self_attn.wq_b", "attention", (split(heads * kind.head_dim, heads),), whole(rank)
        ),
        Matrix(
            "self_attn.wo_a", "attention", (split(groups * inner, groups),),
            whole(heads * kind.head_dim // groups),
        ),
        Matrix("self_attn.wo_b", "attention", (whole(width),), split(groups * inner, groups)),
    ]  # fmt: skip
    if kind.compress_ratio:
        out.append(
            Matrix("self_attn.compressor", "other", (whole(2 * kind.head_dim),), whole(width))
        )
    return out + _indexer(kind, width, rank or width)


def _state(model: ModelArchitecture, state: StateFacts) -> list[Matrix]:
    width, heads = model.hidden_size, state.num_heads
    conv = Matrix("conv1d", "other", (split(state.conv_channels, heads),), whole(state.conv_kernel))
    if state.flavour == "mamba2":
        inner = heads * state.value_dim
        groups = state.num_key_heads
        sides = (
            split(inner, heads), split(inner, heads), split(2 * groups * state.key_dim, groups),
            split(heads, heads),
        )  # fmt: skip
        channels = (split(inner, heads), split(2 * groups * state.key_dim, groups))
        return [
            Matrix("mixer.in_proj", "state", sides, whole(width)),
            Matrix("mixer.conv1d", "other", channels, whole(state.conv_kernel)),
            Matrix("mixer.out_proj", "state", (whole(width),), split(inner, heads)),
            Matrix("mixer.norm", "norm", (split(inner + 3 * heads, heads),)),
        ]
    keys, values = state.num_key_heads * state.key_dim, heads * state.value_dim
    if state.flavour == "kda":
        three = (split(keys, heads), split(keys, heads), split(values, heads))
        low = state.value_dim
        out = [
            Matrix("self_attn.qkv_proj", "state", three, whole(width)),
            Matrix("self_attn.f_a_proj", "state", (whole(low),), whole(width)),
            Matrix("self_attn.f_b_proj", "state", (split(values, heads),), whole(low)),
            Matrix("self_attn.b_proj", "other", (split(heads, heads),), whole(width)),
            Matrix("self_attn.o_proj", "state", (whole(width),), split(values, heads)),
        ]
        if state.full_rank_gate:
            out.append(Matrix("self_attn.g_proj", "state", (split(values, heads),), whole(width)))
        else:
            out.append(Matrix("self_attn.g_a_proj", "state", (whole(low),), whole(width)))
            out.append(Matrix("self_attn.g_b_proj", "state", (split(values, heads),), whole(low)))
        return [*out, conv]
    key_heads = state.num_key_heads
    sides = (
        split(keys, key_heads), split(keys, key_heads), split(values, heads), split(values, heads),
    )  # fmt: skip
    return [
        Matrix("linear_attn.in_proj_qkvz", "state", sides, whole(width)),
        Matrix("linear_attn.in_proj_ba", "other", (split(2 * heads, heads),), whole(width)),
        conv,
        Matrix("linear_attn.out_proj", "state", (whole(width),), split(values, heads)),
    ]


def _feed_forward(
    model: ModelArchitecture, part: str, inner: int, name: str, width: int = 0
) -> list[Matrix]:
    width = width or model.hidden_size
    gated = model.ffn_projections == 3
    rows = (split(inner), split(inner)) if gated else (split(inner),)
    up = "gate_up_proj" if gated else "up_proj"
    out = [
        Matrix(f"{name}.{up}", part, rows, whole(width)),
        Matrix(f"{name}.down_proj", part, (whole(width),), split(inner)),
    ]
    if model.learned_positions:
        out.append(Matrix(f"{name}.bias", "norm", (split(inner), whole(width))))
    return out


def _experts(model: ModelArchitecture, moe: MoeFacts) -> list[Matrix]:
    width, inner, count = model.hidden_size, moe.moe_intermediate_size, moe.num_experts
    outer = model.expert_input_size or width
    gated = model.ffn_projections == 3
    rows = (split(inner), split(inner)) if gated else (split(inner),)
    out = [
        Matrix("mlp.gate", "router", (whole(count),), whole(width)),
        Matrix("mlp.experts.w13_weight", "experts", rows, whole(outer), experts=count),
        Matrix("mlp.experts.w2_weight", "experts", (whole(outer),), split(inner), experts=count),
    ]
    if moe.shared_intermediate_size:
        out += _feed_forward(model, "shared", moe.shared_intermediate_size, "mlp.shared_experts")
    if model.expert_input_size:
        out.append(Matrix("mlp.latent_down", "other", (whole(outer),), whole(width)))
        out.append(Matrix("mlp.latent_up", "other", (whole(width),), whole(outer)))
    return out
