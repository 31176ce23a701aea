"""Data-parallel ranks in the step times: own tokens on a rank, experts over those of all."""

import numpy as np
import pytest

from sieve.errors import InvalidInput
from sieve.perf.capacity import unshared
from sieve.perf.compose import build_step_table
from sieve.perf.constants import step_constants
from sieve.perf.expert_exchange import shared_parts
from sieve.perf.kernel_table import load
from sieve.perf.moe import experts_of, moe_timing
from sieve.perf.roofline import arithmetic_mode


@pytest.fixture
def ranks(make_shape, qwen_moe):
    """Qwen3-30B-A3B in 16 bits on H100: `dp` ranks of `tp` GPUs."""

    def make(dp, tp=1, **changes):
        return make_shape(
            model=qwen_moe, tp=tp, dp=dp, ep=tp * dp if dp > 1 else 1, weight_dtype="bf16",
            weight_bytes_per_param=2.0, max_num_batched_tokens=2048, **changes,
        )  # fmt: skip

    return make


def seconds(parts):
    constants = step_constants()
    return sum(part.at(getattr(constants, part.constant, 1.0)).total_s for part in parts)


def test_one_rank_has_nothing_to_share(ranks):
    assert build_step_table(ranks(1)).lock_step is None


def test_the_table_is_that_of_ranks_with_equal_work(ranks):
    table = build_step_table(ranks(4))
    step = table.lock_step
    sizes = np.array([*step.graph_size, *range(len(step.graph_size), 2049)])
    dense = step.local_s[sizes] + step.shared_s[4 * sizes]
    np.testing.assert_allclose(table.decode_token_s, dense[:257])
    np.testing.assert_allclose(table.token_s[1:], np.maximum(dense, step.launch_s)[1:])
    # Captured sizes: 1, 2, 4, multiples of 8, of 16 from 256; twice the sequences at most.
    assert step.graph_size[[1, 3, 5, 250, 257, 512]].tolist() == [1, 4, 8, 256, 272, 512]
    assert len(step.graph_size) == 513
    assert len(step.shared_s) == 4 * (len(step.local_s) - 1) + 1


def test_the_exchange_by_hand(ranks):
    # 512 tokens of all ranks in 48 layers: states of 2,048 numbers there and back, with eight
    # weights and names of 4 bytes each on the way there.
    nccl = load("h100_sxm", "nccl")

    def curve(operation, elements):
        grid, latency = nccl.curve((operation, "half", 4))
        return float(np.interp(elements, grid, latency))

    moved = curve("all_gather", 512 * (2048 + 8 * 4)) + curve("reduce_scatter", 512 * 2048)
    shape, tokens = ranks(4), np.array([512.0])
    experts = moe_timing(shape, load("h100_sxm", "moe"), tokens).total_s[0]
    expected = 48 * (experts + step_constants().allreduce_factor * moved)
    assert seconds(shared_parts(shape, load("h100_sxm", "moe"), tokens))[0] == pytest.approx(
        expected
    )


def test_the_exchange_counts_as_extrapolated(ranks):
    shape = ranks(4)
    _, gather, scatter = shared_parts(shape, load("h100_sxm", "moe"), np.array([16384.0]))[-3:]
    for part in (gather, scatter):
        assert set(part.timing.shares()) == {"extrapolated"}
    table = build_step_table(shape)
    assert table.component_evidence["tokens"]["extrapolated"] > 0.02
    assert any("4 data-parallel ranks share experts over 4 GPUs" in n for n in table.notes)


@pytest.mark.parametrize(("dp", "tp"), [(2, 1), (4, 1), (8, 1), (4, 2)])
def test_experts_of_all_ranks_tokens_are_never_below_the_roofline(ranks, dp, tp):
    shape = ranks(dp, tp)
    experts, tokens = experts_of(shape), np.arange(1.0, 2049.0)
    assert (experts.tp, experts.ep) == (1, dp * tp)
    limit = experts.limit_s(shape.gpu, tokens, arithmetic_mode(shape.gpu, "bf16"))
    step = build_step_table(shape).lock_step
    assert (step.shared_s[1:2049] >= 48 * limit).all()
    # A dealt-out expert is whole: eight of each token's on dp x tp GPUs.
    flops = 2 * 3 * 2048 * 768 * 8 / (dp * tp) * tokens
    assert (step.shared_s[1:2049] >= 48 * flops / 989e12).all()


def test_a_rank_alone_is_never_slower_than_one_among_equals(ranks):
    table = build_step_table(ranks(4, max_num_seqs=1024))
    alone = unshared(table)
    assert (alone.token_s <= table.token_s + 1e-12).all()
    assert (alone.decode_token_s <= table.decode_token_s + 1e-12).all()
    step = table.lock_step
    # A long prompt, and the three tokens of the idle ranks.
    expected = step.local_s[2000] + step.shared_s[2003]
    assert alone.token_s[2000] == pytest.approx(max(expected, step.launch_s))
    # A captured size runs on every rank, whoever has the work.
    assert alone.decode_token_s[100] == pytest.approx(step.local_s[104] + step.shared_s[4 * 104])
    assert unshared(build_step_table(ranks(1))).lock_step is None


def test_experts_go_on_all_ranks(ranks, make_shape, qwen_moe):
    assert experts_of(ranks(2, 2)).size == (2048, 768, 8, 128, 1, 4)
    with pytest.raises(InvalidInput, match="ep 3 does not divide tp x dp = 4"):
        experts_of(make_shape(model=qwen_moe, tp=1, dp=4, ep=3))
    with pytest.raises(InvalidInput, match="dp: found 0"):
        make_shape(dp=0)
