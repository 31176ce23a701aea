"""Which layers a model has: attention of several kinds, recurrent state, experts.

Read from `config.json`: explicit lists of layer types first, then patterns, then what the model
class fixes. A hybrid whose pattern is not known is refused rather than guessed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from sieve.catalog.architecture import LayerKind, StateFacts
from sieve.catalog.hf_fields import ConfigReader, Family, lookup
from sieve.errors import CatalogError, NotYetError

# Every n-th layer has full attention, where the config leaves the pattern out.
# Source: modelling code of the transformers library, one class each.
_FULL_EVERY: Final = {"Gemma2": 2, "Gemma3": 6, "Olmo3": 4, "Cohere2": 4, "GptOss": 2, "Llama4": 4}
_TYPE_NAMES: Final = {
    "full_attention": "full",
    "attention": "full",
    "sliding_attention": "window",
    "chunked_attention": "chunk",
    "linear_attention": "state",
    "mamba": "state",
}
_BYTES: Final = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class Layout:
    """Kinds of token mixing and the kind of each layer; fields as in `ModelArchitecture`."""

    kinds: tuple[LayerKind, ...]
    layer_kinds: tuple[int, ...]


def read_layout(
    read: ConfigReader, label: str, family: Family, plain: LayerKind, assumed: list[str]
) -> Layout:
    """Return the layers of a model that is not plain full attention throughout.

    Args:
        read: the language part of the config.
        label: model class.
        family: what the class fixes.
        plain: the full attention that heads and head size of the config describe.
        assumed: receives what was assumed, in words.

    Raises:
        NotYetError: a hybrid whose pattern is not known.
        CatalogError: a list of layer types that does not fit the number of layers.
    """
    text = read.text
    layers = read.count("num_hidden_layers")
    names = _layer_names(read, label, family, layers, assumed)
    full = _full_kind(read, plain, label)
    by_name = {"full": full, "": None}
    if "window" in names:
        by_name["window"] = _window_kind(read, plain)
    if "chunk" in names:
        chunk = read.count("attention_chunk_size")
        by_name["chunk"] = replace(plain, kind="chunk", window_tokens=chunk)
    if "state" in names:
        by_name["state"] = _state_kind(read, label, assumed)
    chosen: list[LayerKind | None] = [by_name[name] for name in names]
    if text.get("compress_ratios"):
        chosen = _compressed(read, plain, layers, assumed)
    chosen = _with_indexers(read, chosen)
    shared = read.optional("num_kv_shared_layers", least=0) or 0
    if shared:
        chosen = [
            replace(kind, stores_kv=False) if kind and place >= layers - shared else kind
            for place, kind in enumerate(chosen)
        ]
    kinds = tuple(dict.fromkeys(kind for kind in chosen if kind is not None))
    return Layout(kinds, tuple(-1 if kind is None else kinds.index(kind) for kind in chosen))


def _layer_names(
    read: ConfigReader, label: str, family: Family, layers: int, assumed: list[str]
) -> list[str]:
    """Return `full`, `window`, `chunk`, `state` or "" for each layer."""
    text = read.text
    given = text.get("layer_types")
    if isinstance(given, list):
        _right_length("layer_types", given, layers, read.name)
        unknown = sorted({str(name) for name in given} - _TYPE_NAMES.keys())
        if unknown:
            raise NotYetError(f"model {read.name!r}: layer types {unknown} are not known")
        return [_TYPE_NAMES[name] for name in given]
    pattern = text.get("hybrid_override_pattern")
    if isinstance(pattern, str):
        _right_length("hybrid_override_pattern", pattern, layers, read.name)
        return [{"*": "full", "M": "state"}.get(mark, "") for mark in pattern]
    marks = text.get("hybrid_layer_pattern")
    if isinstance(marks, list):
        _right_length("hybrid_layer_pattern", marks, layers, read.name)
        return ["window" if mark else "full" for mark in marks]
    linear = text.get("linear_attn_config")
    if isinstance(linear, Mapping) and isinstance(linear.get("full_attn_layers"), list):
        full = set(ConfigReader(linear, read.name).counts("full_attn_layers"))  # counted from 1
        return ["full" if layer + 1 in full else "state" for layer in range(layers)]
    interval = read.optional("full_attention_interval")
    if interval:
        return ["full" if (layer + 1) % interval == 0 else "state" for layer in range(layers)]
    if text.get("attention_chunk_size") and label.startswith("Llama4"):
        rope = text.get("no_rope_layers")  # 1 marks a layer with rotary angles, hence chunks
        if isinstance(rope, list) and len(rope) == layers:
            return ["chunk" if mark else "full" for mark in rope]
        return _every(layers, _FULL_EVERY["Llama4"], "chunk")
    if _is_windowed(text, label, family):
        return _windowed(read, label, layers, assumed)
    if any(text.get(field) for field in ("ssm_state_size", "mamba_num_heads", "layers_block_type")):
        raise NotYetError(f"model {read.name!r} ({label}): the pattern of its layers is not known")
    return ["full"] * layers


def _is_windowed(text: Mapping[str, Any], label: str, family: Family) -> bool:
    if text.get("compress_ratios") or not text.get("sliding_window"):
        return False
    limit, window = lookup(text, "max_position_embeddings"), text["sliding_window"]
    if isinstance(limit, int) and isinstance(window, int) and window >= limit:
        return False
    if any(label.startswith(prefix) for prefix in _FULL_EVERY):
        return True
    switched_on = text.get("use_sliding_window")
    return family.window_by_default if switched_on is None else bool(switched_on)


def _windowed(read: ConfigReader, label: str, layers: int, assumed: list[str]) -> list[str]:
    period = read.optional("sliding_window_pattern")
    if period is None:
        found = [every for prefix, every in _FULL_EVERY.items() if label.startswith(prefix)]
        if found:
            period = found[0]
            assumed.append(f"every {period}th layer has full attention, as the class has it")
    if period is not None:
        return _every(layers, period, "window")
    first = read.optional("max_window_layers", least=0)
    if read.text.get("use_sliding_window") and first is not None:
        return ["window" if layer >= first else "full" for layer in range(layers)]
    return ["window"] * layers


def _every(layers: int, period: int, other: str) -> list[str]:
    return ["full" if (layer + 1) % period == 0 else other for layer in range(layers)]


def _for_each(
    text: Mapping[str, Any], field: str, default: object, layers: int, name: str
) -> Sequence[Any]:
    """Return the list of a field, an entry for each layer; `default` everywhere when absent."""
    given = text.get(field) or [default] * layers
    if not isinstance(given, list):
        raise CatalogError(f"{name}: {field} is {given!r}; allowed is a list, one for each layer")
    _right_length(field, given, layers, name)
    return given


def _right_length(field: str, given: Any, layers: int, name: str) -> None:
    if len(given) != layers:
        raise CatalogError(
            f"{name}: {field} has {len(given)} entries; allowed is one for each of the {layers} "
            "layers"
        )


def _full_kind(read: ConfigReader, plain: LayerKind, label: str) -> LayerKind:
    """Return the attention that sees the whole context."""
    text = read.text
    rank = read.optional("kv_lora_rank")
    if rank:
        return replace(
            plain,
            kind="latent",
            num_key_value_heads=1,
            head_dim=rank + read.count("qk_rope_head_dim"),
            v_head_dim=read.count("v_head_dim"),
            q_lora_rank=read.optional("q_lora_rank") or 0,
            kv_lora_rank=rank,
            qk_rope_head_dim=read.count("qk_rope_head_dim"),
            qk_nope_head_dim=read.count("qk_nope_head_dim"),
            gated=bool(text.get("mla_use_output_gate")),
        )
    if not label.startswith("Gemma4"):
        return plain
    same = bool(text.get("attention_k_eq_v"))
    heads = read.optional("num_global_key_value_heads") if same else None
    width = read.optional("global_head_dim") or plain.head_dim
    return replace(
        plain,
        num_key_value_heads=heads or plain.num_key_value_heads,
        head_dim=width,
        v_head_dim=width,
        value_is_key=same,
    )


def _window_kind(read: ConfigReader, plain: LayerKind) -> LayerKind:
    window = read.optional("sliding_window") or read.count("sliding_window_size")
    head_dim = read.optional("swa_head_dim") or plain.head_dim
    v_head_dim = read.optional("swa_v_head_dim") or plain.v_head_dim
    return replace(
        plain,
        kind="window",
        window_tokens=window,
        num_attention_heads=read.optional("swa_num_attention_heads") or plain.num_attention_heads,
        num_key_value_heads=read.optional("swa_num_key_value_heads") or plain.num_key_value_heads,
        head_dim=head_dim,
        v_head_dim=v_head_dim,
    )


def _state_kind(read: ConfigReader, label: str, assumed: list[str]) -> LayerKind:
    text = read.text
    precision = text.get("mamba_ssm_dtype") or text.get("mamba_ssm_cache_dtype")
    linear = text.get("linear_attn_config")
    if text.get("linear_num_value_heads"):
        key_heads, value_heads = (
            read.count("linear_num_key_heads"),
            read.count("linear_num_value_heads"),
        )
        key, value = read.count("linear_key_head_dim"), read.count("linear_value_head_dim")
        return LayerKind(
            kind="state",
            state=StateFacts(
                flavour="gdn",
                num_heads=value_heads,
                head_values=key * value,
                conv_channels=2 * key_heads * key + value_heads * value,
                conv_kernel=read.count("linear_conv_kernel_dim"),
                state_bytes=_BYTES.get(str(precision), 2),  # the model's own precision by default
                num_key_heads=key_heads,
                key_dim=key,
                value_dim=value,
            ),
        )
    if isinstance(linear, Mapping):
        inner = ConfigReader(linear, read.name)
        heads, width = inner.count("num_heads"), inner.count("head_dim")
        assumed.append("the recurrent state of linear attention is taken as float32")
        return LayerKind(
            kind="state",
            state=StateFacts(
                flavour="kda",
                num_heads=heads,
                head_values=width * width,
                conv_channels=3 * heads * width,
                conv_kernel=inner.count("short_conv_kernel_size"),
                state_bytes=4,
                num_key_heads=heads,
                key_dim=width,
                value_dim=width,
                full_rank_gate=bool(linear.get("use_full_rank_gate")),
            ),
        )
    if not text.get("mamba_num_heads"):
        raise NotYetError(f"model {read.name!r} ({label}): its state layers are not described")
    heads, width = read.count("mamba_num_heads"), read.count("mamba_head_dim")
    groups = read.optional("n_groups") or 1
    size = read.count("ssm_state_size")
    return LayerKind(
        kind="state",
        state=StateFacts(
            flavour="mamba2",
            num_heads=heads,
            head_values=width * size,
            conv_channels=heads * width + 2 * groups * size,
            conv_kernel=read.count("conv_kernel"),
            state_bytes=_BYTES.get(str(precision), 2),
            num_key_heads=groups,
            key_dim=size,
            value_dim=width,
        ),
    )


def _compressed(
    read: ConfigReader, plain: LayerKind, layers: int, assumed: list[str]
) -> list[LayerKind | None]:
    """Return layers whose cache keeps one entry for `ratio` tokens beside a window."""
    ratios = read.counts("compress_ratios")[:layers]
    _right_length("compress_ratios", ratios, layers, read.name)
    assumed.append(
        "compressed attention: a cache entry of head_dim for every `ratio` tokens, and a window"
    )
    base = replace(
        plain,
        kind="compressed",
        q_lora_rank=read.optional("q_lora_rank") or 0,
        window_tokens=read.optional("sliding_window") or 0,
        output_groups=read.optional("o_groups") or 0,
        output_rank=read.optional("o_lora_rank") or 0,
    )
    return [replace(base, compress_ratio=ratio) for ratio in ratios]


def _with_indexers(read: ConfigReader, chosen: list[LayerKind | None]) -> list[LayerKind | None]:
    """Return the layers with the indexers of sparse attention where there are some."""
    sparse = read.text.get("sparse_attention_config")
    if isinstance(sparse, Mapping):
        often = _for_each(sparse, "sparse_attention_freq", 1, len(chosen), read.name)
        inner = ConfigReader(sparse, read.name)
        heads, width = inner.count("sparse_num_index_heads"), inner.count("sparse_index_dim")
        return [
            replace(kind, index_heads=heads, index_dim=width) if kind and mark else kind
            for kind, mark in zip(chosen, often, strict=True)
        ]
    if not read.text.get("index_topk"):
        return chosen
    heads, width = read.count("index_n_heads"), read.count("index_head_dim")
    types = _for_each(read.text, "indexer_types", "full", len(chosen), read.name)
    out: list[LayerKind | None] = []
    for kind, indexer in zip(chosen, types, strict=True):
        # Of compressed layers only those with the short ratio choose their tokens.
        has = kind is not None and indexer == "full" and kind.compress_ratio in {0, 4}
        has = has and not (
            kind is not None and kind.kind == "compressed" and not kind.compress_ratio
        )
        out.append(replace(kind, index_heads=heads, index_dim=width) if kind and has else kind)
    return out
