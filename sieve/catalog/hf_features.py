"""Which features of a model are not modelled, read from its `config.json`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from sieve.catalog.hf_fields import FAMILIES, Family, architecture_name, lookup, text_config

# Classes whose attention is known to be of another kind even where the config is silent about it.
_UNHANDLED_CLASSES: Final[tuple[tuple[str, str], ...]] = (
    ("Gemma2", "sliding-window attention on every second layer"),
    ("Gemma3", "sliding-window attention on most layers"),
    ("Gemma4", "sliding-window attention on most layers"),
    ("Llama4", "chunked attention"),
    ("GptOss", "sliding-window attention on every second layer"),
    ("Olmo3", "sliding-window attention on most layers"),
    ("Cohere2", "sliding-window attention on most layers"),
    ("MiMoV2", "sliding-window attention on most layers"),
    ("Qwen3Next", "linear attention layers"),
    ("Qwen3_5", "linear attention layers"),
    ("KimiLinear", "linear attention layers"),
    ("MiniMaxM1", "linear attention layers"),
    ("MiniMaxText01", "linear attention layers"),
    ("NemotronH", "state-space layers"),
    ("Jamba", "state-space layers"),
    ("Mamba", "state-space layers"),
    ("Bamba", "state-space layers"),
    ("Zamba", "state-space layers"),
    ("FalconH1", "state-space layers"),
    ("GraniteMoeHybrid", "state-space layers"),
    ("MiniMaxM3", "sparse attention"),
    ("DeepseekV2", "multi-head latent attention (MLA)"),
    ("DeepseekV3", "multi-head latent attention (MLA)"),
    ("DeepseekV4", "compressed sparse attention"),
    ("GlmMoeDsa", "multi-head latent attention (MLA)"),
    ("Mllama", "cross-attention layers"),
)
_HYBRID_FIELDS: Final = (
    "full_attention_interval",
    "linear_attn_config",
    "hybrid_override_pattern",
    "linear_num_value_heads",
    "layers_block_type",
    "ssm_state_size",
    "mamba_num_heads",
)


_ROOFLINE_ONLY: Final = (
    "multi-head latent attention", "sparse attention", "compressed", "linear attention",
    "state-space",
)  # fmt: skip

# Classes of these names are described layer by layer; other hybrids are refused.
_DESCRIBED_HYBRIDS: Final = ("Qwen3Next", "Qwen3_5", "Kimi", "NemotronH")


def undescribed_features(config: Mapping[str, Any]) -> list[str]:
    """Return the features whose memory is not known either, in words; empty when there are none."""
    label = architecture_name(config)
    kept = ("cross-attention layers", "an encoder", "no language head that generates text")
    found = [words for words in special_features(config) if words in kept]
    states = ("linear attention", "state-space")
    hybrid = any(words.startswith(states) for words in special_features(config))
    if hybrid and not label.startswith(_DESCRIBED_HYBRIDS):
        found.append("linear attention or state-space layers of a class that is not described")
    return found


def unmodelled_features(config: Mapping[str, Any]) -> list[str]:
    """Return the features whose step time is not modelled, in words; empty when there are none."""
    return undescribed_features(config)


def roofline_features(config: Mapping[str, Any]) -> list[str]:
    """Return the features whose step time is modelled by a roofline, not by measured kernels."""
    return [f for f in special_features(config) if f.startswith(_ROOFLINE_ONLY)]


def special_features(config: Mapping[str, Any]) -> list[str]:
    """Return what sets a model apart from plain attention in every layer, in words."""
    text = text_config(config)
    label = architecture_name(config)
    found: list[str] = []
    kinds = _layer_kinds(text)
    if text.get("kv_lora_rank"):
        found.append("multi-head latent attention (MLA)")
    if text.get("index_topk") or text.get("sparse_attention_config"):
        found.append("sparse attention")
    if text.get("compress_ratios"):
        found.append("compressed attention")
    if _is_hybrid(text, kinds):
        found.append("linear attention or state-space layers")
    found.extend(_window_features(text, kinds, label))
    if text.get("num_kv_shared_layers"):
        found.append("layers that share a KV cache")
    if text.get("attn_output_gate") or text.get("attention_output_gate"):
        found.append("gated attention output")
    if text.get("moe_latent_size"):
        found.append("experts in a latent width")
    if text.get("cross_attention_layers"):
        found.append("cross-attention layers")
    value_dim = text.get("v_head_dim")
    if value_dim and not text.get("kv_lora_rank") and value_dim != text.get("head_dim", value_dim):
        found.append("values of another head size than keys")
    if config.get("is_encoder_decoder"):
        found.append("an encoder")
    if not found:
        found.extend(words for prefix, words in _UNHANDLED_CLASSES if label.startswith(prefix))
    decoder = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")
    if not found and config.get("architectures") and not label.endswith(decoder):
        found.append("no language head that generates text")
    return found


def _layer_kinds(text: Mapping[str, Any]) -> frozenset[str]:
    kinds = text.get("layer_types")
    if not isinstance(kinds, list):
        return frozenset()
    return frozenset(kind for kind in kinds if isinstance(kind, str))


def _is_hybrid(text: Mapping[str, Any], kinds: Iterable[str]) -> bool:
    attention = {"full_attention", "sliding_attention", "chunked_attention", "attention"}
    if any(kind not in attention for kind in kinds):
        return True
    if any(text.get(field) for field in _HYBRID_FIELDS):
        return True
    # MiniMax marks full attention with 1 and lightning attention with 0.
    pattern = text.get("attn_type_list")
    return isinstance(pattern, list) and any(entry != 1 for entry in pattern)


def _window_features(text: Mapping[str, Any], kinds: frozenset[str], label: str) -> list[str]:
    """Return sliding or chunked attention that limits what a token of the context sees."""
    found = []
    limit = lookup(text, "max_position_embeddings")
    chunk = text.get("attention_chunk_size")
    if "chunked_attention" in kinds or (label.startswith("Llama4") and chunk):
        found.append(f"chunked attention ({chunk} tokens)" if chunk else "chunked attention")
    window = text.get("sliding_window") or text.get("sliding_window_size")
    by_default = FAMILIES.get(label, Family()).window_by_default
    switched_on = text.get("use_sliding_window")
    enabled = by_default if switched_on is None else bool(switched_on)
    some_layers = "sliding_attention" in kinds if kinds else True
    first_windowed = text.get("max_window_layers")
    layers = lookup(text, "num_hidden_layers")
    if switched_on and isinstance(first_windowed, int) and isinstance(layers, int):
        some_layers = some_layers and first_windowed < layers
    if not (window and enabled and some_layers):
        return found
    shorter = not isinstance(limit, int) or not isinstance(window, int) or window < limit
    if shorter:
        found.append(f"sliding-window attention ({window} of {limit or 'unknown'} tokens)")
    return found
