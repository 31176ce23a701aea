"""The fields of a Hugging Face `config.json`: spellings, ranges, and what a model class adds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sieve.errors import CatalogError

SPELLINGS: Final[dict[str, tuple[str, ...]]] = {
    "num_hidden_layers": ("num_layers", "n_layer", "n_layers"),
    "hidden_size": ("hidden_dim", "n_embd", "d_model"),
    "num_attention_heads": ("n_head", "n_heads"),
    "num_key_value_heads": ("num_kv_heads", "n_kv_heads"),
    "intermediate_size": ("ffn_dim", "ffn_embed_dim", "n_inner"),
    "max_position_embeddings": ("max_seq_len", "n_positions", "max_sequence_length"),
    "num_experts": ("num_local_experts", "n_routed_experts"),
    "num_experts_per_tok": ("experts_per_token", "top_k_experts", "num_experts_per_token"),
    "n_shared_experts": ("num_shared_experts",),
    "torch_dtype": ("dtype",),
}
_LARGEST: Final[dict[str, int]] = {
    "num_hidden_layers": 10_000,
    "num_attention_heads": 100_000,
    "num_key_value_heads": 100_000,
    "head_dim": 100_000,
    "max_position_embeddings": 10**9,
}
_LARGEST_DEFAULT: Final = 10**7
LARGEST_STRETCH: Final = 10_000
"""Most by which rotary scaling may stretch a context."""


@dataclass(frozen=True)
class Family:
    """What a model class fixes that its config does not say.

    Attributes:
        qkv_bias: always there; else `attention_bias` or `qkv_bias` decides.
        qk_norm: "" none, "head" one weight per head dimension, "width" one per element,
            "field" (`use_qk_norm` decides between "" and "head").
        expert_width: config field with the width of one routed expert.
        window_by_default: a given `sliding_window` counts unless `use_sliding_window` is false.
        ffn_projections: matrices of a feed-forward block.
        learned_positions: rows of the position table beyond the context limit; None: rotary.
        tied: value of `tie_word_embeddings` when the config leaves it out.
    """

    qkv_bias: bool = False
    qk_norm: str = ""
    expert_width: str = "moe_intermediate_size"
    window_by_default: bool = True
    ffn_projections: int = 3
    learned_positions: int | None = None
    tied: bool = False


# Source: modelling code of the transformers library, one class each.
FAMILIES: Final[dict[str, Family]] = {
    "LlamaForCausalLM": Family(),
    "MistralForCausalLM": Family(),
    "Phi3ForCausalLM": Family(),
    "MixtralForCausalLM": Family(expert_width="intermediate_size"),
    "Qwen2ForCausalLM": Family(qkv_bias=True, window_by_default=False),
    "Qwen2MoeForCausalLM": Family(qkv_bias=True, window_by_default=False),
    "Qwen3ForCausalLM": Family(qk_norm="head", window_by_default=False),
    "Qwen3MoeForCausalLM": Family(qk_norm="head", window_by_default=False),
    "MiniMaxM2ForCausalLM": Family(qk_norm="width", expert_width="intermediate_size"),
    "Glm4MoeForCausalLM": Family(qk_norm="field"),
    "DeepseekV2ForCausalLM": Family(),
    "DeepseekV3ForCausalLM": Family(),
    "DeepseekV32ForCausalLM": Family(),
    "DeepseekV4ForCausalLM": Family(),
    "GlmMoeDsaForCausalLM": Family(),
    "KimiK25ForConditionalGeneration": Family(),
    "KimiK3ForConditionalGeneration": Family(),
    "KimiLinearForCausalLM": Family(),
    "GptOssForCausalLM": Family(qkv_bias=True, expert_width="intermediate_size"),
    "Gemma2ForCausalLM": Family(tied=True),
    "Gemma3ForCausalLM": Family(qk_norm="head", tied=True),
    "Gemma3ForConditionalGeneration": Family(qk_norm="head", tied=True),
    "Gemma4ForCausalLM": Family(qk_norm="head", tied=True),
    "Gemma4ForConditionalGeneration": Family(qk_norm="head", tied=True),
    "Llama4ForConditionalGeneration": Family(expert_width="intermediate_size"),
    "Llama4ForCausalLM": Family(expert_width="intermediate_size"),
    "Olmo3ForCausalLM": Family(qk_norm="width"),
    "MiMoV2FlashForCausalLM": Family(),
    "MiniMaxM3ForCausalLM": Family(qk_norm="field"),
    "NemotronHForCausalLM": Family(ffn_projections=2),
    "Qwen3NextForCausalLM": Family(qk_norm="head"),
    "Qwen3_5ForConditionalGeneration": Family(qk_norm="head"),
    "Qwen3_5MoeForConditionalGeneration": Family(qk_norm="head"),
    # OPT's position table has two rows more than the context limit.
    "OPTForCausalLM": Family(qkv_bias=True, ffn_projections=2, learned_positions=2, tied=True),
}


def architecture_name(config: Mapping[str, Any]) -> str:
    """Return the model class of a config, else its `model_type`, else ""."""
    for part in (config, text_config(config)):
        classes = part.get("architectures")
        if isinstance(classes, list) and classes and isinstance(classes[0], str):
            return classes[0]
    kind = config.get("model_type") or text_config(config).get("model_type") or ""
    return str(kind)


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part of a config that describes the language model."""
    nested = config.get("text_config")
    return nested if isinstance(nested, Mapping) and nested else config


def lookup(config: Mapping[str, Any], field: str) -> Any:
    """Return a field under the first of its spellings that holds something, else None."""
    for spelling in (field, *SPELLINGS.get(field, ())):
        if config.get(spelling) is not None:
            return config[spelling]
    return None


class ConfigReader:
    """Reads counts out of a config and names the field that is at fault."""

    def __init__(self, text: Mapping[str, Any], name: str) -> None:
        self.text = text
        self.name = name

    def count(self, field: str) -> int:
        """Return a positive whole number that has to be there."""
        value = self.optional(field)
        if value is None:
            others = ", ".join(SPELLINGS.get(field, ()))
            raise CatalogError(
                f"{self.name}: the model config has no {field}, which is needed; add it"
                + (f" (also read: {others})" if others else "")
            )
        return value

    def optional(self, field: str, *, least: int = 1) -> int | None:
        """Return a whole number of at least `least`, or None when the field is absent or null."""
        value = lookup(self.text, field)
        if value is None:
            return None
        most = _LARGEST.get(field, _LARGEST_DEFAULT)
        whole = isinstance(value, float) and value.is_integer()
        if isinstance(value, bool) or not (isinstance(value, int) or whole):
            raise self._bad(field, value, least, most)
        if not least <= value <= most:
            raise self._bad(field, value, least, most)
        return int(value)

    def share(self, field: str, *, most: float = 1.0, default: float = 1.0) -> float:
        """Return a number above 0 and at most `most`, `default` when absent or null."""
        value = self.text.get(field)
        if value is None:
            return default
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not 0 < value <= most:
            raise CatalogError(
                f"{self.name}: {field} is {value!r}; allowed is a number above 0, at most {most:g}"
            )
        return float(value)

    def counts(self, field: str) -> list[int]:
        """Return a list of whole numbers of 0 or more that has to be there."""
        values = self.text.get(field)
        if not isinstance(values, list):
            raise CatalogError(f"{self.name}: {field} is {values!r}; allowed is a list")
        for value in values:
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 10**9:
                raise CatalogError(
                    f"{self.name}: {field} holds {value!r}; allowed are whole numbers from 0"
                )
        return list(values)

    def _bad(self, field: str, value: object, least: int, most: int) -> CatalogError:
        return CatalogError(
            f"{self.name}: {field} is {value!r}; allowed is a whole number from {least} to {most}"
        )
