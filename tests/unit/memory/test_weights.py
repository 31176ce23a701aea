"""Weights on a rank, by format and by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sieve.catalog.models import load_model
from sieve.catalog.precisions import STORED_WEIGHT_BYTES
from sieve.errors import InvalidInput
from sieve.memory.formats import kv_bytes, weight_format
from sieve.memory.weights import stage_layers, stage_weight_bytes

GIB = 2**30


def gib(name: str, dtype: str = "auto", *, tp: int = 1, pp: int = 1, ep: int = 1) -> float:
    model = load_model(name, any_family=True)
    found = weight_format(model, dtype)
    sizes = stage_weight_bytes(
        model, tp=tp, pp=pp, ep=ep, linear=found.linear_bytes, expert=found.expert_bytes
    )
    return max(sizes) / GIB


def test_rests_that_the_allocator_keeps() -> None:
    # 28 layers: rests of 0.5 MiB (QKV), 1 (gate and up) and 0.5 (down) of 2 MiB steps; that of the
    # output projection, 1.5 MiB, goes to others. Rotary table 8 MiB, 0.5 MiB for either embedding.
    bare = 7_615_616_512 * 2
    kept = 28 * 2 * 2**20 + 32768 * 128 * 2 + 2 * 2**19
    assert gib("Qwen/Qwen2.5-7B-Instruct") * GIB == bare + kept
    assert gib("Qwen/Qwen2.5-7B-Instruct") == pytest.approx(14.2487, abs=1e-4)  # as logged


def test_rotary_tables_are_as_long_as_the_stretched_context() -> None:
    model = load_model("google/gemma-3-4b-it", any_family=True)
    assert [(t.rows, t.width) for t in model.rotary] == [(8 * 131072, 256), (131072, 256)]


def test_formats_leave_the_ends_alone() -> None:
    model = load_model("meta-llama/Llama-3.1-8B-Instruct")
    ends = 2 * 128256 * 4096 * 2 + 131072 * 128 * 2 + (64 + 1) * 4096 * 2
    linear = 32 * (4096 * 6144 + 4096 * 4096 + 3 * 4096 * 14336)
    for name, size in STORED_WEIGHT_BYTES.items():
        (found,) = stage_weight_bytes(model, tp=1, pp=1, linear=size, expert=size)
        # Rests of the allocator: at most 1 MiB for each of 128 matrices.
        assert 0 <= found - (ends + linear * size) <= 128 * 2**20, name


def test_only_experts_of_gpt_oss_are_quantised() -> None:
    model = load_model("openai/gpt-oss-20b", any_family=True)
    assert "attention" in model.unquantised
    assert weight_format(model, "auto").expert_bytes == 0.53125
    # Experts padded to 2,944 by 3,072 as the kernels take them
    experts = 24 * 32 * 3 * 2944 * 3072 * 0.53125
    assert experts / GIB < gib("openai/gpt-oss-20b") < experts / GIB + 3.5
    assert gib("openai/gpt-oss-20b") == pytest.approx(13.7, abs=0.05)


def test_mixed_formats() -> None:
    model = load_model("deepseek-ai/DeepSeek-V4-Flash", any_family=True)
    found = weight_format(model, "auto")
    assert (found.name, found.linear_bytes, found.expert_bytes) == ("fp8", 1.0, 0.53125)
    kimi = weight_format(load_model("moonshotai/Kimi-K2.5", any_family=True), "auto")
    assert kimi.expert_bytes == 0.5 + 2.5 / 32


def test_expert_parallel_spreads_whole_experts() -> None:
    sliced, spread = gib("Qwen/Qwen3-30B-A3B", tp=4), gib("Qwen/Qwen3-30B-A3B", tp=4, ep=4)
    assert spread == pytest.approx(sliced, rel=0.01)
    # 128 experts on 3 ranks: the fullest has 43
    model = load_model("Qwen/Qwen3-30B-A3B")
    (uneven,) = stage_weight_bytes(model, tp=3, pp=1, ep=3, linear=2.0, expert=2.0)
    assert uneven > 43 * 48 * 3 * 2048 * 768 * 2


def test_latent_attention_keeps_its_up_projection_twice() -> None:
    with_latent = load_model("deepseek-ai/DeepSeek-V2-Lite", any_family=True)
    (found,) = stage_weight_bytes(with_latent, tp=1, pp=1, linear=2.0, expert=2.0)
    second = 27 * 16 * (128 + 128) * 512 * 2
    assert found > with_latent.params * 2 + second


def test_stages_of_a_pipeline() -> None:
    assert [len(part) for part in stage_layers(62, 4)] == [15, 16, 16, 15]
    assert [len(part) for part in stage_layers(64, 4)] == [16] * 4
    assert [len(part) for part in stage_layers(11, 4)] == [3, 3, 3, 2]
    assert [list(part) for part in stage_layers(3, 3)] == [[0], [1], [2]]


def test_layers_left_in_16_bits() -> None:
    model = load_model("meta-llama/Llama-3.1-405B-FP8")
    assert (model.unquantised, model.plain_layers) == (("attention",), (0, 125))
    both = 2 * 3 * 16384 * 53248  # one byte more for each weight of two feed-forward blocks
    found = [
        stage_weight_bytes(m, tp=1, pp=1, linear=1.0, expert=1.0)[0]
        for m in (model, replace(model, plain_layers=()))
    ]
    assert found[0] - found[1] == both


def test_unknown_formats_are_named() -> None:
    model = load_model("Qwen/Qwen3-32B")
    with pytest.raises(InvalidInput, match="'int3' is not known"):
        weight_format(model, "int3")
    with pytest.raises(InvalidInput, match="'fp6' is not known"):
        kv_bytes("fp6")
    assert kv_bytes("bf16") == 2.0
