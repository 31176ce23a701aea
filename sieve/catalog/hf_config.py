"""Read a Hugging Face `config.json` into a `ModelArchitecture`.

Every architecture is described layer by layer, so that its memory can be told. Step times are
modelled for decoders whose every layer has full multi-head or grouped-query attention; features
beyond that stand in `unmodelled_step_time`, and reading such a model has to be asked for
(`any_family`): its times would be wrong without a word otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from sieve.catalog.architecture import LayerKind, ModelArchitecture
from sieve.catalog.hf_blocks import dense_width, ffn_layers, moe_facts, rotary_tables, vision_params
from sieve.catalog.hf_faults import refuse_faults
from sieve.catalog.hf_features import special_features, undescribed_features, unmodelled_features
from sieve.catalog.hf_fields import (
    FAMILIES,
    LARGEST_STRETCH,
    ConfigReader,
    Family,
    architecture_name,
    text_config,
)
from sieve.catalog.hf_precision import checkpoint_dtype, quantisation_facts
from sieve.catalog.layouts import Layout, read_layout
from sieve.catalog.matrices import counted_params
from sieve.errors import CatalogError, NotYetError

_GATED_ACTIVATIONS: Final = frozenset({"silu", "swish", "swiglu", "geglu", "gelu_pytorch_tanh"})
_PLAIN_ACTIVATIONS: Final = frozenset(
    {"relu", "relu2", "gelu", "gelu_new", "gelu_fast", "quick_gelu"}
)


def architecture_from_config(
    config: Mapping[str, Any],
    *,
    name: str,
    source: str,
    verified: bool = True,
    params: float | None = None,
    active_params: float | None = None,
    any_family: bool = False,
) -> ModelArchitecture:
    """Return the architecture that a config describes.

    Args:
        config: the parsed `config.json`; a nested `text_config` is the model that is read.
        name: how messages and results call the model.
        source: where the config was read.
        verified: whether the shapes come from a file of this very model.
        params: all parameters; None counts them from the shapes.
        active_params: parameters that one token visits; None counts them.
        any_family: also return models whose step time is not modelled.

    Raises:
        NotYetError: the step time is not modelled and `any_family` is False, or the layers are of
            a sort that is not described at all.
        CatalogError: a needed field is missing, outside its range or at odds with another.
    """
    refuse_faults(config, name)
    text = text_config(config)
    label = architecture_name(config)
    features = unmodelled_features(config)
    special = bool(special_features(config))
    refused = undescribed_features(config)
    if refused:
        raise NotYetError(
            f"model {name!r} ({label or 'no architecture named'}) has {', '.join(refused)}; "
            "neither its memory nor its step time can be told"
        )
    if features and not any_family:
        raise NotYetError(no_step_time(name, label, features))
    read = ConfigReader(text, name)
    assumed: list[str] = []
    family = _family(label, text, assumed)
    hidden = read.count("hidden_size")
    heads = read.count("num_attention_heads")
    kv_heads = _kv_heads(read, heads, label, assumed)
    head_dim = _head_dim(read, hidden, heads)
    layers = read.count("num_hidden_layers")
    ffns = ffn_layers(read, label, layers)
    moe = moe_facts(read, family, label, ffns)
    intermediate = dense_width(read, label, moe, ffns)
    limit = _context_limit(read, text, label)
    dtype, note = checkpoint_dtype(config)
    if dtype in {"", "mixed"}:
        features.append(note)
        if not any_family or dtype == "":
            raise NotYetError(f"model {name!r} ({label}): {note}")
    elif note:
        assumed.append(note)
    tied = _flag(config, text, "tie_word_embeddings", default=family.tied)
    plain = LayerKind(
        kind="full",
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        v_head_dim=read.optional("v_head_dim") or head_dim,
        gated=bool(text.get("attn_output_gate")) or label.startswith("Qwen3Next"),
    )
    layout = (
        read_layout(read, label, family, plain, assumed) if special or features else Layout((), ())
    )
    facts = quantisation_facts(config, dtype, label, assumed)
    vision = vision_params(config, label, assumed)
    arch = ModelArchitecture(
        name=name,
        architecture=label,
        num_hidden_layers=layers,
        num_kv_layers=_caching_layers(layout) if layout.kinds else layers,
        hidden_size=hidden,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=intermediate,
        ffn_projections=family.ffn_projections,
        vocab_size=read.count("vocab_size"),
        tie_word_embeddings=tied,
        max_position_embeddings=limit,
        moe=moe,
        params=0.0,
        active_params=0.0,
        checkpoint_dtype="bf16" if dtype == "mixed" else dtype,
        attention_bias=_has_qkv_bias(text, family),
        learned_positions=_position_rows(family, limit, name),
        qk_norm_params=_qk_norm_params(text, family, heads, kv_heads, head_dim),
        verified=verified,
        source=source,
        assumed=tuple(assumed),
        kinds=layout.kinds,
        layer_kinds=layout.layer_kinds,
        layer_ffns=() if moe is None and not layout.kinds else ffns,
        expert_input_size=(
            read.optional("moe_latent_size") or read.optional("routed_expert_hidden_size") or 0
        ),
        expert_dtype=facts.expert_dtype,
        unquantised=facts.unquantised,
        quant_block=facts.block,
        quant_group=facts.group,
        rotary=rotary_tables(read, label, family, layout, head_dim, limit),
        per_layer_embedding=read.optional("hidden_size_per_layer_input", least=0) or 0,
        vision_params=vision,
        multimodal=vision > 0,
        unmodelled_step_time=tuple(features),
    )
    total, active = computed_params(arch)
    if params is not None:
        total = _parameter_count("params", params, name)
        # A given total without an active count keeps the share that the shapes give.
        active = active if moe else total
    if active_params is not None:
        active = _parameter_count("active_params", active_params, name)
    if active > total:
        raise CatalogError(f"{name}: active_params {active:.4g} is more than params {total:.4g}")
    return replace(arch, params=total, active_params=active)


def no_step_time(name: str, label: str, features: Sequence[str]) -> str:
    """Return the words for a model whose step time is not modelled."""
    return (
        f"model {name!r} ({label or 'no architecture named'}) has {', '.join(features)}; "
        "this version has no step times for that"
    )


def _caching_layers(layout: Layout) -> int:
    """Return how many layers keep a cache that grows with the context."""
    kinds = [layout.kinds[place] for place in layout.layer_kinds if place >= 0]
    return max(1, sum(1 for kind in kinds if kind.state is None and kind.stores_kv))


def computed_params(arch: ModelArchitecture) -> tuple[float, float]:
    """Return the parameter counts (all, active per token) that the shapes give.

    The input embedding counts in both. Left out are multi-token-prediction heads, vision parts and
    the routers' correction biases.

    Raises:
        CatalogError: the feed-forward width or the vocabulary is unknown (inline facts).
    """
    if arch.intermediate_size is None or arch.vocab_size is None:
        raise CatalogError(
            f"{arch.name}: parameters cannot be counted without intermediate_size and vocab_size"
        )
    if arch.kinds:
        return counted_params(arch)
    hidden = arch.hidden_size
    # A learned position table marks the older layout: LayerNorm and a bias on every matrix.
    biases = arch.learned_positions > 0
    q_width = arch.num_attention_heads * arch.head_dim
    kv_width = arch.num_key_value_heads * arch.head_dim
    attention = hidden * (q_width + 2 * kv_width) + q_width * hidden
    if arch.attention_bias or biases:
        attention += q_width + 2 * kv_width
    if biases:
        attention += hidden
    norm = 2 * hidden if biases else hidden
    attention += 2 * norm + arch.qk_norm_params
    dense = _ffn_params(arch, arch.intermediate_size, biases=biases)
    layers = arch.num_hidden_layers
    if arch.moe is None:
        all_ffn = active_ffn = layers * dense
    else:
        moe = arch.moe
        expert = _ffn_params(arch, moe.moe_intermediate_size, biases=biases)
        shared = _ffn_params(arch, moe.shared_intermediate_size, biases=biases)
        fixed = hidden * moe.num_experts + shared
        expert_layers = layers - moe.num_dense_layers
        dense_layers = moe.num_dense_layers * dense
        all_ffn = dense_layers + expert_layers * (fixed + moe.num_experts * expert)
        active_ffn = dense_layers + expert_layers * (fixed + moe.num_experts_per_tok * expert)
    embeddings = arch.vocab_size * hidden * (1 if arch.tie_word_embeddings else 2)
    rest = embeddings + arch.learned_positions * hidden + layers * attention + norm
    return float(rest + all_ffn), float(rest + active_ffn)


def _family(label: str, text: Mapping[str, Any], assumed: list[str]) -> Family:
    """Return the family of a model class; an unknown one is read by its fields and noted."""
    known = FAMILIES.get(label)
    if known is not None:
        return known
    activation = text.get("hidden_act") or text.get("hidden_activation")
    activation = activation or text.get("activation_function") or text.get("mlp_hidden_act")
    activation = str(activation or "none")
    plain = activation in _PLAIN_ACTIVATIONS
    how = "given" if activation in _PLAIN_ACTIVATIONS | _GATED_ACTIVATIONS else "not known"
    width = "moe_intermediate_size" if text.get("moe_intermediate_size") else "intermediate_size"
    what = f"architecture {label!r} is not known by name" if label else "no architecture is named"
    assumed.append(
        f"{what}: its fields are read as plain full attention with a "
        f"{'two' if plain else 'three'}-matrix feed-forward block "
        f"(activation {activation}, {how})"
    )
    return Family(ffn_projections=2 if plain else 3, expert_width=width)


def _kv_heads(read: ConfigReader, heads: int, label: str, assumed: list[str]) -> int:
    kv_heads = read.optional("num_key_value_heads")
    if kv_heads is None:
        kv_heads = 1 if read.text.get("multi_query") is True else heads
        if label not in {"LlamaForCausalLM", "OPTForCausalLM"}:
            assumed.append(f"num_key_value_heads is not given, taken as {kv_heads}")
    if heads % kv_heads:
        raise CatalogError(
            f"{read.name}: num_key_value_heads is {kv_heads}; "
            f"allowed is a divisor of num_attention_heads ({heads})"
        )
    return kv_heads


def _head_dim(read: ConfigReader, hidden: int, heads: int) -> int:
    if read.optional("kv_lora_rank"):  # the latent has no heads; this is the width of a query
        return read.count("qk_nope_head_dim") + read.count("qk_rope_head_dim")
    head_dim = read.optional("head_dim")
    if head_dim is not None:
        return head_dim
    if hidden % heads:
        raise CatalogError(
            f"{read.name}: hidden_size {hidden} is not a multiple of num_attention_heads {heads} "
            "and head_dim is not given; correct one of them or add head_dim"
        )
    return hidden // heads


def _context_limit(read: ConfigReader, text: Mapping[str, Any], label: str) -> int | None:
    """Return the context limit in tokens, stretched by the rotary scaling as vLLM does.

    Source: vLLM `config/model.py`, `_get_and_verify_max_len`.
    """
    limit = read.optional("max_position_embeddings")
    if label.startswith("Gemma3"):
        return limit  # the limit of this class is the stretched one already
    scaling = text.get("rope_scaling") or text.get("rope_parameters")
    if limit is None or not isinstance(scaling, Mapping):
        return limit
    kind = str(scaling.get("rope_type") or scaling.get("type"))
    factor = scaling.get("factor")
    if kind not in {"linear", "dynamic", "yarn"} or factor is None:
        return limit
    if not isinstance(factor, int | float) or not 1 <= factor <= LARGEST_STRETCH:
        raise CatalogError(
            f"{read.name}: the rope_scaling factor is {factor!r}; "
            f"allowed is a number from 1 to {LARGEST_STRETCH}"
        )
    original = scaling.get("original_max_position_embeddings")
    if kind == "yarn" and isinstance(original, int):
        limit = min(limit, original)
    return int(limit * factor)


def _flag(config: Mapping[str, Any], text: Mapping[str, Any], field: str, *, default: bool) -> bool:
    for part in (text, config):
        value = part.get(field)
        if isinstance(value, bool):
            return value
    return default


def _has_qkv_bias(text: Mapping[str, Any], family: Family) -> bool:
    return bool(family.qkv_bias or text.get("attention_bias") or text.get("qkv_bias"))


def _qk_norm_params(
    text: Mapping[str, Any], family: Family, heads: int, kv_heads: int, head_dim: int
) -> int:
    kind = family.qk_norm
    if kind == "field":
        kind = "head" if text.get("use_qk_norm") else ""
    if kind == "width":
        return (heads + kv_heads) * head_dim
    return 2 * head_dim if kind == "head" else 0


def _position_rows(family: Family, limit: int | None, name: str) -> int:
    if family.learned_positions is None:
        return 0
    if limit is None:
        raise CatalogError(
            f"{name}: the model config has no max_position_embeddings, which is needed for a "
            "learned position table; add it"
        )
    return limit + family.learned_positions


def _ffn_params(arch: ModelArchitecture, width: int, *, biases: bool) -> int:
    """Return the parameters of one feed-forward block of this width (0: no block)."""
    if width == 0:
        return 0
    count = arch.ffn_projections * arch.hidden_size * width
    return count + (width + arch.hidden_size if biases else 0)


def _parameter_count(field: str, value: float, name: str) -> float:
    if not 0.0 < value < 1e15:  # also refuses NaN
        raise CatalogError(f"{name}: {field} is {value!r}; allowed is a number from 1 to 1e15")
    return float(value)
