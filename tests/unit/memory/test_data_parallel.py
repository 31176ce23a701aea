"""The ledger of one data-parallel rank: attention of its own, its share of the experts."""

from __future__ import annotations

from collections import Counter

import pytest

from sieve.catalog.matrices import layer_plans
from sieve.catalog.models import load_model
from sieve.fit_of import configure, fit
from sieve.memory.weights import stage_weight_bytes


def weights(name: str, *, tp: int, dp: int) -> float:
    model = load_model(name)
    ep = tp * dp if dp > 1 else 1
    return stage_weight_bytes(model, tp=tp, pp=1, linear=2.0, expert=2.0, ep=ep)[0]


def test_experts_are_dealt_out_and_all_else_is_whole() -> None:
    # Qwen3-30B-A3B: 48 layers of 128 experts with 3 x 2048 x 768 weights.
    experts = 48 * 128 * 3 * 2048 * 768 * 2
    whole = weights("Qwen/Qwen3-30B-A3B", tp=1, dp=1)
    for dp in (2, 4, 8):
        expected = whole - experts * (1 - 1 / dp)
        # Large tensors are allocated in steps of 2 MiB, two of them a layer.
        found = weights("Qwen/Qwen3-30B-A3B", tp=1, dp=dp)
        assert found == pytest.approx(expected, abs=2 * 48 * 2 * 2**20)


def test_weights_as_a_start_up_log_states_them() -> None:
    # Public log of Qwen3-30B-A3B in 16 bits on two ranks that share experts: 29.88 GiB a GPU.
    assert weights("Qwen/Qwen3-30B-A3B", tp=1, dp=2) / 2**30 == pytest.approx(29.88, abs=0.02)


def test_shared_experts_stay_whole_where_tensor_ranks_share_out_tokens() -> None:
    # DeepSeek-V3: the shared expert of 58 layers has 3 x 7168 x 2048 weights.
    name = "deepseek-ai/DeepSeek-V3"
    layers = Counter(plan.ffn for plan in layer_plans(load_model(name)))
    count = sum(number for ffn, number in layers.items() if "moe" in ffn)
    assert count == 58
    shared = 58 * 3 * 7168 * 2048 * 2
    model = load_model(name)
    one = stage_weight_bytes(model, tp=8, pp=1, linear=2.0, expert=2.0, ep=8)[0]
    two = weights(name, tp=8, dp=2)
    experts = 58 * 256 * 3 * 7168 * 2048 * 2
    expected = one - experts / 8 + experts / 16 + shared * (1 - 1 / 8)
    assert two == pytest.approx(expected, abs=4 * 58 * 2 * 2**20)


def test_a_rank_has_a_cache_of_its_own_and_gathers_the_tokens_of_all() -> None:
    one = fit(configure("Qwen/Qwen3-30B-A3B", "H100-SXM-80GB", max_num_seqs=64))
    four = fit(configure("Qwen/Qwen3-30B-A3B", "H100-SXM-80GB", dp=4, ep=4, max_num_seqs=64))
    book, other = one.stages[0], four.stages[0]
    assert book.block_bytes == other.block_bytes
    # Trial run of 8,192 tokens: eight experts a token, each with its input of 2 x 768 or its
    # output of 2,048 and its product of 768; with four ranks 32,768, and states of 2,048 before
    # and after. In 16 bits.
    own = 2 * 8192 * (2 * 2048 + 8 * (2048 + 768))
    all_ = 2 * 8192 * (2 * 2048 + 4 * (8 * (2048 + 768) + 2 * 2048))
    base = one.configuration.engine.ledger["activation_base_bytes"]
    assert other.activation_bytes == pytest.approx(base + all_)
    assert book.activation_bytes == pytest.approx(base + own)
    assert other.non_torch_bytes > book.non_torch_bytes  # buffers of ranks that talk
    assert any("one of 4 data-parallel ranks" in note for note in four.notes)
