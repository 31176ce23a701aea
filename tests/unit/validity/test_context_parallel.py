"""Decode context parallelism: which sizes are legal, and what a block then holds."""

from __future__ import annotations

import pytest

from sieve.catalog.models import load_model
from sieve.fit_of import configure, fit
from sieve.validity.context_parallel import context_parallel_fault, legal_context_parallel

BOTH = "attention_and_state"


@pytest.mark.parametrize(
    ("model", "tp", "dcp", "kinds", "numbers"),
    [
        ("Qwen/Qwen3-235B-A22B", 4, 1, "none", None),  # off
        ("Qwen/Qwen3-235B-A22B", 8, 2, BOTH, None),  # 4 KV heads copied twice
        ("Qwen/Qwen3-235B-A22B", 8, 3, BOTH, (8, 3)),  # does not divide the ranks
        ("Qwen/Qwen3-235B-A22B", 4, 2, BOTH, (4, 4)),  # no copies
        ("Qwen/Qwen3-235B-A22B", 8, 4, BOTH, (4, 2)),  # more than the copies
        ("Qwen/Qwen3-14B", 16, 2, BOTH, (5, 2)),  # 40 / 8 query heads do not share out
        ("deepseek-ai/DeepSeek-V3", 8, 8, BOTH, None),  # the latent has no heads
        ("deepseek-ai/DeepSeek-V3", 8, 3, BOTH, (8, 3)),
        ("deepseek-ai/DeepSeek-V3", 8, 8, "none", (8, 1)),
        ("openai/gpt-oss-120b", 16, 2, BOTH, (2, 1)),  # windows
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", 4, 2, BOTH, None),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", 4, 2, "attention", (2, 1)),
    ],
)
def test_rules(
    model: str, tp: int, dcp: int, kinds: str, numbers: tuple[float, float] | None
) -> None:
    facts = load_model(model, any_family=True)
    found = context_parallel_fault(facts, tp=tp, dcp=dcp, kinds=kinds)
    assert (None if found is None else (found.observed, found.limit)) == numbers
    assert found is None or "decode_context_parallel_size" in found.legal


def test_legal_sizes_pass_the_rules() -> None:
    for name in ("Qwen/Qwen3-235B-A22B", "deepseek-ai/DeepSeek-V3", "Qwen/Qwen3-8B"):
        model = load_model(name, any_family=True)
        for tp in (1, 2, 4, 8, 16, 32):
            passing = [
                dcp
                for dcp in range(1, tp + 1)
                if context_parallel_fault(model, tp=tp, dcp=dcp, kinds=BOTH) is None
            ]
            assert passing == legal_context_parallel(model, tp)


def test_a_block_holds_the_tokens_of_all_ranks() -> None:
    plain = fit(configure("deepseek-ai/DeepSeek-V3", "H200-SXM-141GB", tp=8))
    shared = fit(configure("deepseek-ai/DeepSeek-V3", "H200-SXM-141GB", tp=8, dcp=8))
    assert shared.num_blocks == plain.num_blocks
    assert shared.block_tokens == 8 * plain.block_tokens
    assert shared.kv_tokens == pytest.approx(8 * plain.kv_tokens, rel=1e-3)
    assert shared.token_bytes == plain.token_bytes / 8
    assert shared.concurrency_engine == pytest.approx(8 * plain.concurrency_engine, rel=1e-3)


def test_versions() -> None:
    for engine, ok in (("vllm==0.9", False), ("vllm==0.19", True), ("vllm==0.33", True)):
        found = fit(
            configure("deepseek-ai/DeepSeek-V3", "H200-SXM-141GB", engine=engine, tp=8, dcp=2)
        )
        assert found.check.ok == ok
