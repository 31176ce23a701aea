"""Read a Hugging Face `config.json` into a `ModelArchitecture`.

Handled are decoders whose every layer has full multi-head or grouped-query attention, with a
dense or an expert feed-forward block. Any other attention answers with `NotYetError` and its name:
sizes and times of such a model would be wrong without a word otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from sieve.catalog.architecture import ModelArchitecture, MoeFacts
from sieve.catalog.hf_features import unhandled_features
from sieve.catalog.hf_fields import FAMILIES, ConfigReader, Family, architecture_name, text_config
from sieve.catalog.hf_precision import checkpoint_dtype
from sieve.errors import CatalogError, NotYetError

_LARGEST_STRETCH: Final = 10_000
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
) -> ModelArchitecture:
    """Return the architecture that a config describes.

    Args:
        config: the parsed `config.json`; a nested `text_config` is the model that is read.
        name: how messages and results call the model.
        source: where the config was read.
        verified: whether the shapes come from a file of this very model.
        params: all parameters; None counts them from the shapes.
        active_params: parameters that one token visits; None counts them.

    Raises:
        NotYetError: the model has a feature that this version does not handle.
        CatalogError: a needed field is missing or outside its range.
    """
    text = text_config(config)
    features = unhandled_features(config)
    label = architecture_name(config)
    if features:
        raise NotYetError(
            f"model {name!r} ({label or 'no architecture named'}) has {', '.join(features)}; "
            "this version sizes models with full multi-head or grouped-query attention only"
        )
    read = ConfigReader(text, name)
    assumed: list[str] = []
    family = _family(label, text, assumed)
    hidden = read.count("hidden_size")
    heads = read.count("num_attention_heads")
    kv_heads = _kv_heads(read, heads, label, assumed)
    head_dim = _head_dim(read, hidden, heads)
    layers = read.count("num_hidden_layers")
    moe = _moe(read, family, layers)
    intermediate = _dense_width(read, moe)
    limit = _context_limit(read, text)
    dtype, note = checkpoint_dtype(config)
    if dtype in {"", "mixed"}:
        raise NotYetError(f"model {name!r} ({label}): {note}")
    if note:
        assumed.append(note)
    tied = _flag(config, text, "tie_word_embeddings", default=family.tied)
    arch = ModelArchitecture(
        name=name,
        architecture=label,
        num_hidden_layers=layers,
        num_kv_layers=layers,
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
        checkpoint_dtype=dtype,
        attention_bias=_has_qkv_bias(text, family),
        learned_positions=_position_rows(family, limit, name),
        qk_norm_params=_qk_norm_params(text, family, heads, kv_heads, head_dim),
        verified=verified,
        source=source,
        assumed=tuple(assumed),
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
    head_dim = read.optional("head_dim")
    if head_dim is not None:
        return head_dim
    if hidden % heads:
        raise CatalogError(
            f"{read.name}: hidden_size {hidden} is not a multiple of num_attention_heads {heads} "
            "and head_dim is not given; correct one of them or add head_dim"
        )
    return hidden // heads


def _moe(read: ConfigReader, family: Family, layers: int) -> MoeFacts | None:
    experts = read.optional("num_experts", least=0)
    if not experts or experts == 1:
        return None
    per_token = read.count("num_experts_per_tok")
    if per_token > experts:
        raise CatalogError(
            f"{read.name}: num_experts_per_tok is {per_token}; "
            f"allowed is up to num_experts ({experts})"
        )
    width = read.count(family.expert_width)
    dense = _dense_layers(read, layers)
    if dense == layers:
        return None
    return MoeFacts(
        num_experts=experts,
        num_experts_per_tok=per_token,
        moe_intermediate_size=width,
        shared_intermediate_size=_shared_width(read, width),
        num_dense_layers=dense,
    )


def _shared_width(read: ConfigReader, expert_width: int) -> int:
    for field in ("shared_expert_intermediate_size", "shared_intermediate_size"):
        width = read.optional(field, least=0)
        if width is not None:
            return width
    shared = read.optional("n_shared_experts", least=0)
    return (shared or 0) * expert_width


def _dense_layers(read: ConfigReader, layers: int) -> int:
    """Return how many layers have an ordinary feed-forward block instead of experts."""
    text = read.text
    first = read.optional("first_k_dense_replace", least=0) or 0
    only = text.get("mlp_only_layers")
    named = {layer for layer in only if isinstance(layer, int)} if isinstance(only, list) else ()
    frequency = text.get("moe_layer_freq")
    step = read.optional("decoder_sparse_step") or read.optional("interleave_moe_layer_step") or 1
    if isinstance(frequency, list):
        if len(frequency) != layers:
            raise CatalogError(
                f"{read.name}: moe_layer_freq has {len(frequency)} entries; "
                f"allowed is one for each of the {layers} layers"
            )
        return sum(1 for entry in frequency if not entry)
    if isinstance(frequency, int) and frequency > 1:
        step = frequency
    return sum(
        1
        for layer in range(layers)
        if layer < first or layer in named or (layer + 1) % step != 0
    )  # fmt: skip


def _dense_width(read: ConfigReader, moe: MoeFacts | None) -> int:
    if moe is None:
        return read.count("intermediate_size")
    width = read.optional("intermediate_size")
    # Without dense layers nothing has this width; the experts' own keeps the record complete.
    if width is None and moe.num_dense_layers:
        return read.count("intermediate_size")
    return width or moe.moe_intermediate_size


def _context_limit(read: ConfigReader, text: Mapping[str, Any]) -> int | None:
    """Return the context limit in tokens, stretched by the rotary scaling as vLLM does.

    Source: vLLM `config/model.py`, `_get_and_verify_max_len`.
    """
    limit = read.optional("max_position_embeddings")
    scaling = text.get("rope_scaling") or text.get("rope_parameters")
    if limit is None or not isinstance(scaling, Mapping):
        return limit
    kind = str(scaling.get("rope_type") or scaling.get("type"))
    factor = scaling.get("factor")
    if kind not in {"linear", "dynamic", "yarn"} or factor is None:
        return limit
    if not isinstance(factor, int | float) or not 1 <= factor <= _LARGEST_STRETCH:
        raise CatalogError(
            f"{read.name}: the rope_scaling factor is {factor!r}; "
            f"allowed is a number from 1 to {_LARGEST_STRETCH}"
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
