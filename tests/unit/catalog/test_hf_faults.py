"""A config that contradicts itself is refused by field, not read as another model."""

from __future__ import annotations

from typing import Any

import pytest

from sieve.catalog.hf_config import architecture_from_config
from sieve.catalog.hf_faults import refuse_faults
from sieve.errors import CatalogError

PLAIN: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "num_hidden_layers": 4,
    "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
    "vocab_size": 128256, "max_position_embeddings": 8192, "torch_dtype": "bfloat16",
}  # fmt: skip


def read(**changes: Any) -> Any:
    return architecture_from_config(PLAIN | changes, name="m", source="t", any_family=True)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architectures": "LlamaForCausalLM"}, "architectures is 'LlamaForCausalLM'; allowed is"),
        ({"architectures": [1]}, "a list of class names"),
        ({"rope_scaling": "yarn"}, "rope_scaling is 'yarn'"),
        ({"layer_types": ["full_attention"] * 3}, "has 3 entries; allowed is one for each of 4"),
        ({"layer_types": "full_attention"}, "allowed is a list"),
        ({"architectures": ["DeepseekV3ForCausalLM"], "n_routed_experts": 8}, "no kv_lora_rank"),
        ({"architectures": ["Qwen3MoeForCausalLM"]}, "no num_experts"),
        ({"architectures": ["Qwen3MoeForCausalLM"], "num_experts": 0}, "num_experts 0"),
        ({"architectures": ["MixtralForCausalLM"]}, "no num_experts"),
        ({"quantization_config": "fp8"}, "quantization_config is 'fp8'"),
        (
            {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128]}},
            r"weight_block_size is \[128\]",
        ),
        (
            {"quantization_config": {"quant_method": "fp8", "weight_block_size": [0, 128]}},
            "weight_block_size",
        ),
        (
            {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 0}},
            "group_size is 0",
        ),
    ],
)
def test_faults_are_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(CatalogError, match=words) as caught:
        read(**changes)
    assert str(caught.value).startswith("m: ")


def test_every_fault_is_told_at_once() -> None:
    with pytest.raises(CatalogError) as caught:
        refuse_faults(PLAIN | {"rope_scaling": 2, "quantization_config": []}, "m")
    assert "rope_scaling" in str(caught.value)
    assert "quantization_config" in str(caught.value)


def test_what_real_configs_hold_is_read() -> None:
    whole_rows = {"quant_method": "gptq", "bits": 4, "group_size": -1}
    assert read(quantization_config=whole_rows).checkpoint_dtype == "int4"
    assert read(quantization_config=None, rope_scaling=None).checkpoint_dtype == "bf16"
    assert read(layer_types=["full_attention"] * 4).num_hidden_layers == 4
    assert "no architecture is named" in read(architectures=[]).assumed[0]
