"""Laws of the step-time model, on models and accelerators written out here."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sieve.catalog.architecture import Gpu, ModelArchitecture, MoeFacts
from sieve.perf.base import ServingShape
from sieve.perf.compose import build_step_table
from sieve.perf.gemm import Precision, gemm_timing
from sieve.perf.kernel_table import load

H100 = Gpu(
    name="H100", memory_bytes=85e9, mem_bw_bytes_per_s=3.35e12,
    flops_per_s={"bf16": 989e12, "fp8": 1979e12}, link_bytes_per_s=450e9, pcie_bytes_per_s=64e9,
    scale_up_gpus=8, compute_capability=9.0, usd_per_gpu_hour=None, kernel_system="h100_sxm",
)  # fmt: skip


def model(name, layers, hidden, heads, kv_heads, inner, vocab, params, **moe):
    return ModelArchitecture(
        name=name, architecture="", num_hidden_layers=layers, num_kv_layers=layers,
        hidden_size=hidden, num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=128,
        intermediate_size=inner, ffn_projections=3, vocab_size=vocab, tie_word_embeddings=False,
        max_position_embeddings=131072, moe=MoeFacts(**moe) if moe else None, params=params,
        active_params=params,
    )  # fmt: skip


MODELS = (
    model("qwen3-8b", 36, 4096, 32, 8, 12288, 151936, 8.2e9),
    model("qwen3-32b", 64, 5120, 64, 8, 25600, 151936, 32.8e9),
    model("llama-70b", 80, 8192, 64, 8, 28672, 128256, 70.6e9),
    model(
        "qwen3-30b-a3b", 48, 2048, 32, 4, 6144, 151936, 30.5e9,
        num_experts=128, num_experts_per_tok=8, moe_intermediate_size=768,
    ),
)  # fmt: skip
WEIGHT_BYTES = {"bf16": 2.0, "fp8": 1.0, "int4": 0.5}


def shape_of(model_, gpu=H100, tp=1, weight_dtype="bf16", kv="auto"):
    return ServingShape(
        model_, gpu, tp=tp, pp=1, ep=1, weight_dtype=weight_dtype, kv_cache_dtype=kv,
        max_num_batched_tokens=4096, max_num_seqs=256, max_context=32768,
        weight_bytes_per_param=WEIGHT_BYTES[weight_dtype],
    )  # fmt: skip


def layer_params(m):
    """Parameters of a layer's matrices that one token visits."""
    attention = m.hidden_size * m.head_dim * (2 * m.num_attention_heads + 2 * m.num_key_value_heads)
    width = (
        m.moe.num_experts_per_tok * m.moe.moe_intermediate_size if m.moe else m.intermediate_size
    )
    return attention + 3 * m.hidden_size * width


@pytest.mark.parametrize("weight_dtype", WEIGHT_BYTES)
@pytest.mark.parametrize("tp", [1, 2, 4, 8])
@pytest.mark.parametrize("m", MODELS, ids=lambda m: m.name)
@pytest.mark.parametrize("system", ["h100_sxm", ""])
def test_no_step_beats_the_hardware(m, tp, weight_dtype, system):
    gpu = replace(H100, kernel_system=system)
    table = build_step_table(shape_of(m, gpu, tp, weight_dtype))
    params = m.num_hidden_layers * layer_params(m) / tp
    tokens = np.arange(len(table.token_s))
    peak = gpu.flops_per_s["fp8" if weight_dtype == "fp8" else "bf16"]
    memory = params * WEIGHT_BYTES[weight_dtype] / gpu.mem_bw_bytes_per_s
    compute = 2 * params * tokens / peak
    assert (table.token_s[1:] >= np.maximum(memory, compute)[1:]).all()
    head = m.vocab_size / tp * m.hidden_size * 2 / gpu.mem_bw_bytes_per_s
    assert (table.head_s[1:] >= head).all()
    kv_heads = max(m.num_key_value_heads // tp, 1)
    batch, context = np.meshgrid([1, 7, 64, 256], [16, 1000, 20000, 32768], indexing="ij")
    read = batch * context * m.num_kv_layers * kv_heads * 128 * 2 * 2
    decode = table.decode_attention(batch, context)
    assert (decode >= 0.999 * read / gpu.mem_bw_bytes_per_s).all()
    length = np.array([100, 1000, 10000, 32768])
    flops = 2 * m.num_hidden_layers * m.num_attention_heads / tp * 128 * length**2
    assert (table.prefill_attention(length) >= 0.999 * flops / gpu.flops_per_s["bf16"]).all()


@pytest.mark.parametrize(
    ("dtype", "mode", "size"), [("bfloat16", "bf16", 2.0), ("fp8", "fp8", 1.0)]
)
def test_measured_products_come_back_exactly(dtype, mode, size):
    table = load("h100_sxm", "gemm")
    for key in [key for key in table.sites if key[0] == dtype]:
        m, latency = table.curve(key)
        time = gemm_timing(H100, table, key[1], key[2], Precision(dtype, size, mode), m)
        np.testing.assert_array_equal(time.total_s, latency)
        assert time.shares() == {"measured": 1.0}


@pytest.mark.parametrize("m", MODELS, ids=lambda m: m.name)
@pytest.mark.parametrize("tp", [1, 8])
def test_attention_rises_with_context_and_batch(m, tp):
    table = build_step_table(shape_of(m, tp=tp))
    assert (np.diff(table.decode_attention_s, axis=0) >= 0).all()
    assert (np.diff(table.decode_attention_s, axis=1) >= 0).all()
    assert (np.diff(table.prefill_attention_s) >= 0).all()
    assert table.decode_attention(64, 32768) > table.decode_attention(64, 1024)


@settings(max_examples=30, deadline=None, database=None)
@given(
    m=st.sampled_from(MODELS),
    tp=st.sampled_from([1, 2, 4, 8, 16]),
    weight_dtype=st.sampled_from(sorted(WEIGHT_BYTES)),
    faster=st.sampled_from(["memory", "link", "compute"]),
    factor=st.floats(1.01, 4.0),
)
def test_faster_hardware_is_never_slower_on_the_roofline(m, tp, weight_dtype, faster, factor):
    slow = replace(H100, kernel_system="")
    fast = {
        "memory": replace(slow, mem_bw_bytes_per_s=factor * slow.mem_bw_bytes_per_s),
        "link": replace(
            slow, link_bytes_per_s=factor * slow.link_bytes_per_s,
            pcie_bytes_per_s=factor * slow.pcie_bytes_per_s,
        ),
        "compute": replace(
            slow, flops_per_s={mode: factor * rate for mode, rate in slow.flops_per_s.items()}
        ),
    }[faster]  # fmt: skip
    before, after = (build_step_table(shape_of(m, gpu, tp, weight_dtype)) for gpu in (slow, fast))
    for name in ("token_s", "decode_token_s", "head_s", "decode_attention_s"):
        assert (getattr(after, name) <= getattr(before, name) * (1 + 1e-12)).all()
    length = np.linspace(0, 32768, 50)
    assert (after.prefill_attention(length) <= before.prefill_attention(length) + 1e-12).all()


@settings(max_examples=20, deadline=None, database=None)
@given(m=st.sampled_from(MODELS), tp=st.sampled_from([1, 2, 8]))
def test_the_same_shape_gives_the_same_table(m, tp):
    first, second = (build_step_table(shape_of(m, tp=tp)) for _ in range(2))
    for name in ("token_s", "decode_attention_s", "prefill_attention_s"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))
