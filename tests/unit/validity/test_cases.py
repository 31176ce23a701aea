"""Verdicts that people met in practice, one test each; the public thread stands beside it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sieve.catalog.accelerators import load_gpu
from sieve.catalog.architecture import ModelArchitecture
from sieve.catalog.models import load_model
from sieve.fit_of import Check, check, configure, fit
from sieve.fit_of.rules import RuleResult

H100 = "H100-SXM-80GB"


def judged(model: str | ModelArchitecture, gpu: Any = H100, **options: Any) -> Check:
    return check(configure(model, gpu, **options))


def broken(model: str | ModelArchitecture, gpu: Any = H100, **options: Any) -> dict[str, Any]:
    rules: dict[str, RuleResult] = {r.rule: r for r in judged(model, gpu, **options).rules}
    return {name: rule for name, rule in rules.items() if not rule.ok}


def sharded(shared: int = 0, experts: int = 1536) -> ModelArchitecture:
    """A block-FP8 model with experts of this width, beside shared ones or not."""
    model = load_model("Qwen/Qwen3-235B-A22B-FP8")
    assert model.moe is not None
    moe = replace(model.moe, shared_intermediate_size=shared, moe_intermediate_size=experts)
    return replace(model, moe=moe)


def test_40_heads_on_three_cards() -> None:  # vllm#596, RTX 3090
    rule = broken("meta-llama/Llama-2-13b-hf", "RTX4090-24GB", tp=3)["tp_divides_heads"]
    assert (rule.observed, rule.limit) == (40, 3)
    assert rule.legal.split(" by this rule")[0] == "tp 1, 2, 4, 5, 8, 10, 20, 40"


def test_40_heads_on_16_cards() -> None:  # vllm#596, the same rule
    rule = broken("Qwen/Qwen3-14B", tp=16)["tp_divides_heads"]
    assert (rule.observed, rule.limit) == (40, 16)
    assert rule.legal.endswith("by all rules 1, 2, 4, 8")  # the vocabulary and KV heads refuse 5


def test_32_heads_on_three_cards() -> None:  # vllm#2652
    rule = broken("meta-llama/Llama-3.1-8B-Instruct", tp=3)["tp_divides_heads"]
    assert (rule.observed, rule.limit) == (32, 3)


def test_the_vocabulary_refuses_what_the_heads_allow() -> None:  # llm-d-planner#205
    found = broken("Qwen/Qwen3-14B", tp=5)
    assert "tp_divides_heads" not in found
    assert {"vocab_tp", "kv_heads_tp"} <= set(found)


def test_expert_width_over_ranks() -> None:  # vllm#17569, engines before blocks were refined
    rule = broken("Qwen/Qwen3-235B-A22B-FP8", tp=8, engine="vllm==0.19")["quant_blocks"]
    assert (rule.observed, rule.limit) == (192, 128)
    assert "by all rules 1, 2, 4" in rule.legal
    assert "or tp 8 with ep 8" in rule.legal


def test_experts_are_whole_under_expert_parallel() -> None:  # index:38962983769
    model = "Qwen/Qwen3-235B-A22B-Instruct-2507-FP8"
    assert judged(model, tp=8, ep=8).ok
    at_4 = fit(configure(model, H100, tp=4, ep=4, max_model_len=4096))
    at_8 = fit(configure(model, H100, tp=8, ep=8, max_model_len=4096))
    assert at_8.token_bytes == at_4.token_bytes  # 4 KV heads: copied, not split further


@pytest.mark.parametrize(("tp", "shard"), [(2, 160), (4, 80), (8, 40)])
def test_narrow_experts(tp: int, shard: int) -> None:  # vllm#54178, 8 x L40S
    rule = broken(sharded(experts=320), "L40S-48GB", tp=tp)["quant_blocks"]
    assert (rule.observed, rule.limit) == (shard, 128)
    assert "mlp.experts" in rule.unit


def test_shared_experts_are_held_to_blocks_too() -> None:  # sglang#26107
    assert not broken(sharded(shared=1024), tp=4)
    rule = broken(sharded(shared=1280), tp=4)["quant_blocks"]
    assert rule.observed == 320
    assert "shared_experts" in rule.unit


def test_shards_below_a_block_are_named() -> None:  # vllm#52997
    rule = broken(sharded(shared=256), tp=4)["quant_blocks"]
    assert (rule.observed, rule.limit) == (64, 128)
    assert "mlp.shared_experts.gate_up_proj" in rule.unit


def test_bf16_on_turing() -> None:  # bring-llms-to-nim#7, Quadro RTX 6000
    turing = replace(load_gpu("A10-24GB"), name="turing", compute_capability=7.5)
    rule = broken("Qwen/Qwen3-8B", turing)["dtype_supported"]
    assert (rule.observed, rule.limit) == (7.5, 8.0)
    assert "fp16" in rule.legal


def test_fp8_on_ampere_by_version() -> None:  # vllm#4327, A10 and RTX 3090
    options = {"weight_dtype": "fp8", "max_model_len": 4096}
    rule = broken("Qwen/Qwen3-8B", "A10-24GB", engine="vllm==0.4", **options)["dtype_supported"]
    assert (rule.observed, rule.limit) == (8.6, 8.9)
    assert "fp8" not in rule.legal
    later = judged("Qwen/Qwen3-8B", "A10-24GB", engine="vllm==0.5.3", **options)
    assert later.ok
    assert any("weights are unpacked" in note for note in later.notes)


def test_mxfp4_on_hopper_is_weight_only() -> None:  # vllm#23278
    found = judged("openai/gpt-oss-120b")
    assert found.ok
    assert any("activations stay in 16 bits" in note for note in found.notes)


def test_chunks_let_a_budget_below_the_context() -> None:  # vllm#18681
    found = judged(
        "deepseek-ai/DeepSeek-R1", tp=16, max_model_len=131_072, max_num_batched_tokens=32_768
    )
    assert found.ok


def test_the_latent_is_whole_on_every_rank() -> None:  # sglang#2591
    sizes = {
        tp: fit(
            configure("deepseek-ai/DeepSeek-V3", "H200-SXM-141GB", tp=tp, max_model_len=4096)
        ).token_bytes
        for tp in (4, 8)
    }
    assert sizes[4] == sizes[8]
    assert any(
        "does not shrink with tp" in n for n in judged("deepseek-ai/DeepSeek-V3", tp=8).notes
    )


def test_stages_are_judged_on_their_own_layers() -> None:  # vllm#34076
    options = {"max_model_len": 4096, "engine": "vllm==0.19"}
    found = fit(configure("Qwen/Qwen3-30B-A3B-FP8", H100, pp=2, **options))
    assert len(found.stages) == 2
    whole = fit(configure("Qwen/Qwen3-30B-A3B-FP8", H100, **options))
    # A block of a stage holds its half of the layers.
    assert found.stages[0].block_bytes == pytest.approx(whole.stages[0].block_bytes / 2)
    # The thread's own split, 16 and 32 of 48 layers: a third and two thirds.
    uneven = fit(
        configure("Qwen/Qwen3-30B-A3B-FP8", H100, pp=2, pp_layer_partition=(16, 32), **options)
    )
    shares = [stage.block_bytes / whole.stages[0].block_bytes for stage in uneven.stages]
    assert shares == pytest.approx([1 / 3, 2 / 3])
    assert uneven.num_blocks == uneven.stages[1].num_blocks < found.num_blocks
    assert found.num_blocks == min(stage.num_blocks for stage in found.stages)


def test_the_cache_is_not_pooled_over_stages() -> None:  # vllm#32105, pp 3 at 0.97
    options = {"gpu_memory_utilization": 0.97, "max_num_seqs": 256, "pp": 3}
    model = "Qwen/Qwen3-30B-A3B-FP8"
    found = fit(configure(model, "A10-24GB", max_model_len=40_960, **options))
    one = found.stages[found.decides]
    request = found.blocks_per_request * one.block_bytes
    pooled = sum(stage.kv_bytes for stage in found.stages)
    assert found.concurrency_engine == pytest.approx(one.kv_bytes / request, rel=0.01)
    assert pooled / request > found.concurrency_engine


def test_context_parallel_needs_copied_heads() -> None:  # vLLM 0.33 source
    rule = broken("Qwen/Qwen3-235B-A22B", tp=4, dcp=2)["decode_context_parallel"]
    assert (rule.observed, rule.limit) == (4, 4)
    assert "tp 8 for decode_context_parallel_size 2" in rule.legal
    assert not broken("Qwen/Qwen3-235B-A22B", tp=8, dcp=2)
