from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from sieve.catalog.architecture import Gpu, ModelArchitecture, MoeFacts
from sieve.perf.base import ServingShape

LLAMA_70B = ModelArchitecture(
    name="llama-70b", architecture="LlamaForCausalLM", num_hidden_layers=80, num_kv_layers=80,
    hidden_size=8192, num_attention_heads=64, num_key_value_heads=8, head_dim=128,
    intermediate_size=28672, ffn_projections=3, vocab_size=128256, tie_word_embeddings=False,
    max_position_embeddings=131072, moe=None, params=70.6e9, active_params=70.6e9,
)  # fmt: skip
QWEN3_30B_A3B = ModelArchitecture(
    name="qwen3-30b-a3b", architecture="Qwen3MoeForCausalLM", num_hidden_layers=48,
    num_kv_layers=48, hidden_size=2048, num_attention_heads=32, num_key_value_heads=4,
    head_dim=128, intermediate_size=6144, ffn_projections=3, vocab_size=151936,
    tie_word_embeddings=False, max_position_embeddings=40960, moe=MoeFacts(128, 8, 768),
    params=30.5e9, active_params=3.3e9,
)  # fmt: skip
H100 = Gpu(
    name="H100", memory_bytes=85e9, mem_bw_bytes_per_s=3.35e12,
    flops_per_s={"bf16": 989e12, "fp8": 1979e12}, link_bytes_per_s=450e9, pcie_bytes_per_s=64e9,
    scale_up_gpus=8, compute_capability=9.0, usd_per_gpu_hour=None, kernel_system="h100_sxm",
)  # fmt: skip
A100 = replace(
    H100, name="A100", mem_bw_bytes_per_s=2.039e12, flops_per_s={"bf16": 312e12},
    link_bytes_per_s=300e9, pcie_bytes_per_s=32e9, kernel_system="a100_sxm",
)  # fmt: skip
L40S = replace(
    H100, name="L40S", mem_bw_bytes_per_s=864e9, flops_per_s={"bf16": 362e12, "fp8": 733e12},
    link_bytes_per_s=32e9, pcie_bytes_per_s=32e9, scale_up_gpus=1, kernel_system="l40s",
)  # fmt: skip


@pytest.fixture
def h100() -> Gpu:
    return H100


@pytest.fixture
def a100() -> Gpu:
    return A100


@pytest.fixture
def l40s() -> Gpu:
    return L40S


@pytest.fixture
def llama() -> ModelArchitecture:
    return LLAMA_70B


@pytest.fixture
def qwen_moe() -> ModelArchitecture:
    return QWEN3_30B_A3B


@pytest.fixture
def make_shape() -> Callable[..., ServingShape]:
    """Llama-70B FP8 on two H100 unless told otherwise."""

    def make(**changes: Any) -> ServingShape:
        base = ServingShape(
            LLAMA_70B, H100, tp=2, pp=1, ep=1, weight_dtype="fp8", kv_cache_dtype="auto",
            max_num_batched_tokens=8192, max_num_seqs=256, max_context=16384,
            weight_bytes_per_param=1.0,
        )  # fmt: skip
        return replace(base, **changes)

    return make
