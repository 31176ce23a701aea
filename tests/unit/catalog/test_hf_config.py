"""Shapes against hand-written sums, and what the reader refuses."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from sieve.catalog.hf_config import architecture_from_config, computed_params
from sieve.catalog.hf_precision import checkpoint_dtype
from sieve.errors import CatalogError, NotYetError

LLAMA_8B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}


def read(config: dict[str, Any], **changes: Any) -> Any:
    merged = {**config, **changes}
    return architecture_from_config(
        {key: value for key, value in merged.items() if value is not ...}, name="m", source="test"
    )


def test_llama_8b_parameters_by_hand() -> None:
    per_layer = (
        4096 * 4096  # q
        + 2 * 4096 * 1024  # k and v, 8 heads of 128
        + 4096 * 4096  # o
        + 3 * 4096 * 14336
        + 2 * 4096
    )
    expected = 2 * 128256 * 4096 + 32 * per_layer + 4096
    assert expected == 8_030_261_248  # as the published checkpoint
    arch = read(LLAMA_8B)
    assert arch.params == expected
    assert arch.active_params == expected
    assert arch.head_dim == 128
    assert arch.assumed == ()
    assert arch.is_detailed


def test_mixtral_active_parameters_by_hand() -> None:
    arch = read(
        LLAMA_8B,
        architectures=["MixtralForCausalLM"],
        vocab_size=32000,
        num_local_experts=8,
        num_experts_per_tok=2,
    )
    attention = 2 * 4096 * 4096 + 2 * 4096 * 1024
    expert = 3 * 4096 * 14336
    shared = 2 * 32000 * 4096 + 32 * (attention + 8 * 4096 + 2 * 4096) + 4096
    assert arch.params == shared + 32 * 8 * expert
    assert arch.active_params == shared + 32 * 2 * expert
    assert arch.active_params == pytest.approx(12.9e9, rel=0.002)
    assert arch.moe.moe_intermediate_size == 14336
    assert arch.moe.num_dense_layers == 0


def test_glm_dense_layers_and_shared_expert() -> None:
    arch = read(
        LLAMA_8B,
        architectures=["Glm4MoeForCausalLM"],
        n_routed_experts=16,
        num_experts_per_tok=4,
        moe_intermediate_size=1408,
        n_shared_experts=2,
        first_k_dense_replace=3,
        attention_bias=True,
        head_dim=96,
    )
    assert arch.moe.num_dense_layers == 3
    assert arch.moe.shared_intermediate_size == 2816
    assert arch.attention_bias
    q, kv = 32 * 96, 8 * 96
    attention = 4096 * (q + 2 * kv) + q * 4096 + q + 2 * kv + 2 * 4096
    moe = 4096 * 16 + 3 * 4096 * (2816 + 16 * 1408)
    expected = 2 * 128256 * 4096 + 4096 + 32 * attention + 3 * 3 * 4096 * 14336 + 29 * moe
    assert arch.params == expected


def test_opt_125m_by_hand_under_foreign_field_names() -> None:
    arch = read(
        {
            "architectures": ["OPTForCausalLM"],
            "num_layers": 12,
            "n_head": 12,
            "hidden_dim": 768,
            "vocab_size": 50272,
            "max_seq_len": 2048,
            "ffn_embed_dim": 3072,
            "tie_word_embeddings": True,
        }
    )
    layer = 4 * (768 * 768 + 768) + (2 * 768 * 3072 + 3072 + 768) + 2 * 2 * 768
    assert arch.params == 50272 * 768 + 2050 * 768 + 12 * layer + 2 * 768 == 125_239_296
    assert arch.ffn_projections == 2
    assert arch.learned_positions == 2050
    assert arch.attention_bias


def test_mixed_expert_patterns() -> None:
    base = {
        **LLAMA_8B,
        "architectures": ["Qwen3MoeForCausalLM"],
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 512,
    }
    assert read(base, decoder_sparse_step=2).moe.num_dense_layers == 16
    assert read(base, mlp_only_layers=[0, 5]).moe.num_dense_layers == 2
    assert read(base, moe_layer_freq=[0, 0] + [1] * 30).moe.num_dense_layers == 2
    with pytest.raises(CatalogError, match="moe_layer_freq has 2 entries"):
        read(base, moe_layer_freq=[0, 1])
    assert read(base, mlp_only_layers=list(range(32))).moe is None


def test_nested_text_config_is_read() -> None:
    text = {key: value for key, value in LLAMA_8B.items() if key != "tie_word_embeddings"}
    arch = read(
        {"architectures": ["XForConditionalGeneration"], "text_config": text},
        tie_word_embeddings=True,
    )
    assert arch.num_hidden_layers == 32
    assert arch.tie_word_embeddings
    assert "not known by name" in arch.assumed[0]


def test_given_parameters_stand() -> None:
    arch = architecture_from_config(LLAMA_8B, name="m", source="t", params=8.0e9)
    assert (arch.params, arch.active_params) == (8.0e9, 8.0e9)
    with pytest.raises(CatalogError, match="active_params"):
        architecture_from_config(LLAMA_8B, name="m", source="t", params=1e9, active_params=2e9)
    with pytest.raises(CatalogError, match="params is nan"):
        architecture_from_config(LLAMA_8B, name="m", source="t", params=float("nan"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"layer_types": ["full_attention", "linear_attention"] * 16}, "linear attention"),
        ({"hybrid_override_pattern": "M*M*"}, "state-space"),
        ({"attn_type_list": [1, 0]}, "linear attention"),
        ({"is_encoder_decoder": True}, "an encoder"),
        ({"architectures": ["BertForMaskedLM"]}, "no language head"),
    ],
)
def test_unhandled_attention_is_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(NotYetError, match=words) as caught:
        read(LLAMA_8B, **changes)
    assert "'m'" in str(caught.value)
    assert changes.get("architectures", ["LlamaForCausalLM"])[0] in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"sliding_window": None},
        {"sliding_window": 131072},  # as long as the context: no effect
        {"sliding_window": 4096, "use_sliding_window": False},
        {"sliding_window": 4096, "layer_types": ["full_attention"] * 32},
        {"attn_type_list": [1] * 32},
        {"architectures": ["Qwen2ForCausalLM"], "sliding_window": 4096},
    ],
)
def test_window_without_effect_is_handled(changes: dict[str, Any]) -> None:
    assert read(LLAMA_8B, **changes).num_kv_layers == 32


@pytest.mark.parametrize(
    "field",
    [
        "num_hidden_layers",
        "hidden_size",
        "num_attention_heads",
        "intermediate_size",
        "vocab_size",
    ],
)
@pytest.mark.parametrize("value", [..., 0, -1, 2.5, "32", True, float("nan"), 10**8, [32]])
def test_missing_and_absurd_fields_are_named(field: str, value: object) -> None:
    with pytest.raises(CatalogError, match=field) as caught:
        read(LLAMA_8B, **{field: value})
    if value is not ...:
        assert repr(value) in str(caught.value)
        assert "allowed" in str(caught.value)


def test_heads_have_to_divide() -> None:
    with pytest.raises(CatalogError, match="hidden_size 4100"):
        read(LLAMA_8B, hidden_size=4100)
    assert read(LLAMA_8B, hidden_size=4100, head_dim=128).head_dim == 128
    with pytest.raises(CatalogError, match="num_key_value_heads is 5"):
        read(LLAMA_8B, num_key_value_heads=5)
    with pytest.raises(CatalogError, match="num_experts_per_tok is 9"):
        read(
            LLAMA_8B,
            architectures=["MixtralForCausalLM"],
            num_local_experts=8,
            num_experts_per_tok=9,
        )


def test_missing_kv_heads_are_multi_head() -> None:
    assert read(LLAMA_8B, num_key_value_heads=...).num_key_value_heads == 32


def test_rotary_scaling_stretches_the_context() -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    arch = read(LLAMA_8B, max_position_embeddings=40960, rope_scaling=yarn)
    assert arch.max_position_embeddings == 131072
    llama3 = {"rope_type": "llama3", "factor": 8.0}
    assert read(LLAMA_8B, rope_scaling=llama3).max_position_embeddings == 131072


def test_plain_feed_forward_of_an_unknown_class() -> None:
    arch = read(LLAMA_8B, architectures=["NewForCausalLM"], hidden_act="gelu")
    assert arch.ffn_projections == 2
    assert "NewForCausalLM" in arch.assumed[0]


@pytest.mark.parametrize(
    ("quantization", "dtype"),
    [
        ({"quant_method": "fp8"}, "fp8"),
        ({"quant_method": "mxfp4"}, "mxfp4"),
        ({"quant_method": "gptq", "bits": 4}, "int4"),
        ({"quant_method": "gptq", "bits": 8}, "int8"),
        ({"quant_method": "awq"}, "int4"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4"),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "fp8"),
        ({"quant_method": "compressed-tensors", "format": "float-quantized"}, "fp8"),
        ({"quant_method": "compressed-tensors", "format": "int-quantized"}, "int8"),
        ({"quant_method": "compressed-tensors", "format": "pack-quantized"}, "int4"),
    ],
)
def test_checkpoint_precision(quantization: dict[str, Any], dtype: str) -> None:
    assert checkpoint_dtype({**LLAMA_8B, "quantization_config": quantization})[0] == dtype
    assert read(LLAMA_8B, quantization_config=quantization).checkpoint_dtype == dtype


def test_precision_without_quantisation() -> None:
    assert checkpoint_dtype({"torch_dtype": "float16"}) == ("fp16", "")
    assert checkpoint_dtype({"dtype": "bfloat16"}) == ("bf16", "")
    assert checkpoint_dtype({})[0] == "bf16"
    assert checkpoint_dtype({})[1]
    with pytest.raises(NotYetError, match="MIXED_PRECISION"):
        read(
            LLAMA_8B,
            quantization_config={"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"},
        )
    with pytest.raises(NotYetError, match="'quip'"):
        read(LLAMA_8B, quantization_config={"quant_method": "quip"})


def test_counting_needs_every_width() -> None:
    arch = dataclasses.replace(read(LLAMA_8B), vocab_size=None)
    with pytest.raises(CatalogError, match="vocab_size"):
        computed_params(arch)


@pytest.mark.parametrize(
    ("ignored", "parts"),
    [
        (["lm_head"], ()),
        (["re:.*lm_head", "re:.*self_attn", "re:.*router", "re:vision_model.*"], ("attention",)),
        (["re:.*self_attn.*", "re:.*mlp.gate$", "re:.*shared_expert_gate$"], ("attention",)),
        (["*.linear_attn*", "*.self_attn*", "visual*"], ("attention", "state")),
        ([f"model.layers.{i}.self_attn.kv_b_proj" for i in range(61)], ()),
        ([f"model.layers.{i}.self_attn.q_proj" for i in range(32)], ("attention",)),
        ([f"model.layers.{i}.mlp.gate" for i in range(32)], ()),
        ([f"vision.blocks.{i}.mlp.up_proj" for i in range(32)], ()),
        (["re:.*mlp.shared_experts.*"], ("shared",)),
    ],
)
def test_modules_left_alone(ignored: list[str], parts: tuple[str, ...]) -> None:
    quantization = {
        "quant_method": "compressed-tensors", "format": "float-quantized", "ignore": ignored,
    }  # fmt: skip
    assert read(LLAMA_8B, quantization_config=quantization).unquantised == parts


def test_block_and_group_sizes_are_read() -> None:
    blocks = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    assert read(LLAMA_8B, quantization_config=blocks).quant_block == 128
    groups = {"quant_method": "awq", "bits": 4, "group_size": 64}
    assert read(LLAMA_8B, quantization_config=groups).quant_group == 64
