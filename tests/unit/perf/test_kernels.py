"""GEMM, all-reduce, experts and attention lookups."""

from dataclasses import replace

import numpy as np
import pytest

from sieve.catalog.architecture import MoeFacts
from sieve.errors import CoverageError, InvalidInput
from sieve.perf.attention import (
    Heads,
    decode_timing,
    nearest_site,
    prefill_curve,
)
from sieve.perf.base import Timing
from sieve.perf.collectives import allreduce_note, allreduce_timing, link_rate
from sieve.perf.constants import step_constants
from sieve.perf.gemm import BF16, Precision, gemm_timing, linear_precision
from sieve.perf.kernel_table import load
from sieve.perf.moe import experts_of, moe_timing, nearest_experts

ONE = np.array([64.0])


def only_class(time: Timing) -> str:
    (name,) = time.shares()
    return name


def test_between_measured_tokens_a_product_is_linear(h100):
    table = load("h100_sxm", "gemm")
    m, latency = table.curve(("bfloat16", 4096, 4096))
    i = int(np.flatnonzero(m == 17)[0])
    time = gemm_timing(h100, table, 4096, 4096, BF16, np.array([20.0]))
    share = 3 / (m[i + 1] - 17)
    assert time.total_s[0] == pytest.approx(latency[i] * (1 - share) + latency[i + 1] * share)
    assert only_class(time) == "interpolated"


def test_an_unmeasured_shape_lies_between_its_neighbours(h100):
    table = load("h100_sxm", "gemm")
    times = [gemm_timing(h100, table, n, 8192, BF16, ONE).total_s[0] for n in (8192, 9000, 10240)]
    assert times == sorted(times)
    assert only_class(gemm_timing(h100, table, 9000, 8192, BF16, ONE)) == "interpolated"


def test_beyond_the_measured_shapes_utilisation_is_held(h100):
    table = load("h100_sxm", "gemm")
    wide = gemm_timing(h100, table, 2 * 154880, 4096, BF16, ONE)
    inside = gemm_timing(h100, table, 154880, 4096, BF16, ONE)
    assert only_class(wide) == "extrapolated"
    assert wide.total_s[0] == pytest.approx(2 * inside.total_s[0], rel=0.05)


def test_many_tokens_are_extrapolated_in_proportion(h100):
    table = load("h100_sxm", "gemm")
    time = gemm_timing(h100, table, 8192, 8192, BF16, np.array([32768.0, 65536.0]))
    assert time.total_s[1] == pytest.approx(2 * time.total_s[0], rel=0.01)
    assert set(time.shares()) == {"measured", "extrapolated"}


def test_a_precision_without_a_table_takes_the_roofline(h100):
    int4 = Precision("", 0.5, "bf16")
    assert only_class(gemm_timing(h100, load("h100_sxm", "gemm"), 8192, 8192, int4, ONE)) == (
        "roofline"
    )
    assert only_class(gemm_timing(h100, None, 8192, 8192, BF16, ONE)) == "roofline"


def test_fp8_without_fp8_arithmetic_has_no_table(make_shape, a100):
    assert linear_precision(make_shape(gpu=a100)) == Precision("", 1.0, "bf16")
    assert linear_precision(make_shape()) == Precision("fp8", 1.0, "fp8")


def test_all_reduce_takes_the_quicker_of_the_measured_kernels(make_shape):
    tokens = np.array([4.0])
    key = ("bfloat16", "vllm_graph", 2)
    sizes, latency = load("h100_sxm", "custom_allreduce").curve(key)
    time = allreduce_timing(make_shape(tp=2), tokens)
    expected = step_constants().allreduce_factor * latency[sizes == 4 * 8192][0]
    assert time.total_s[0] == pytest.approx(expected, rel=1e-12)
    assert only_class(time) == "measured"


def test_large_messages_go_through_nccl(make_shape):
    shape = make_shape(tp=4)
    _, latency = load("h100_sxm", "nccl").curve(("all_reduce", "half", 4))
    time = allreduce_timing(shape, np.array([268435456 / 8192]))
    assert time.total_s[0] == pytest.approx(step_constants().allreduce_factor * latency[-1])


def test_beyond_the_fast_link_all_reduce_is_a_slow_ring(make_shape):
    inside = allreduce_timing(make_shape(tp=8), ONE)
    across = allreduce_timing(make_shape(tp=16), ONE)
    assert only_class(across) == "roofline"
    assert across.total_s[0] > 3 * inside.total_s[0]


def test_gpus_without_a_fast_link_use_what_was_measured_over_pcie(make_shape, l40s):
    assert set(allreduce_timing(make_shape(gpu=l40s, tp=4), ONE).shares()) <= {
        "measured", "interpolated",
    }  # fmt: skip


def test_a_condemned_all_reduce_falls_to_a_smaller_group(make_shape, l40s):
    """8 L40S: no row is usable, so the ring of 4 with 7 steps in place of 3."""
    table = load("l40s", "nccl")
    assert ("all_reduce", "half", 8) not in table.sites
    sizes, latency = table.curve(("all_reduce", "half", 4))
    shape = make_shape(gpu=l40s, tp=8)
    time = allreduce_timing(shape, sizes / shape.model.hidden_size)
    np.testing.assert_allclose(
        time.total_s, step_constants().allreduce_factor * latency * 7 / 3, rtol=1e-12
    )
    assert time.shares() == {"extrapolated": 1.0}
    assert "4 GPUs, times 2.33" in allreduce_note(shape)
    assert allreduce_note(make_shape(gpu=l40s, tp=4)) == ""
    assert allreduce_note(make_shape(tp=8)) == ""


def test_an_unknown_link_is_no_answer(make_shape, h100):
    shape = make_shape(gpu=replace(h100, pcie_bytes_per_s=0.0), tp=16)
    with pytest.raises(CoverageError, match="give pcie_bytes_per_s"):
        link_rate(shape, 16)


def test_measured_experts_come_back_exactly(make_shape, qwen_moe):
    shape = make_shape(model=qwen_moe, tp=1, weight_dtype="bf16")
    table = load("h100_sxm", "moe")
    m, latency = table.curve(("bfloat16", 2048, 768, 8, 128, 1, 1, "power_law_1.01"))
    time = moe_timing(shape, table, m)
    np.testing.assert_allclose(time.total_s, step_constants().experts_factor * latency, rtol=1e-12)
    assert only_class(time) == "measured"


def test_experts_are_dealt_out_by_ep(make_shape, qwen_moe):
    shape = make_shape(model=qwen_moe, tp=4, ep=4, weight_dtype="bf16")
    assert experts_of(shape).size == (2048, 768, 8, 128, 1, 4)
    assert nearest_experts(load("h100_sxm", "moe"), shape)[5:7] == (1, 4)
    with pytest.raises(InvalidInput, match="ep 3 does not divide tp x dp = 4"):
        experts_of(make_shape(model=qwen_moe, tp=4, ep=3))


def test_fp8_experts_keep_their_kernel_when_the_split_was_not_measured(make_shape, qwen_moe):
    key = nearest_experts(load("h100_sxm", "moe"), make_shape(model=qwen_moe, tp=8))
    assert key is not None
    assert key[:5] == ("fp8_block", 2048, 768, 8, 128)


def test_like_experts_stand_in_and_unlike_ones_do_not(make_shape, qwen_moe):
    table = load("h100_sxm", "moe")
    like = replace(qwen_moe, moe=MoeFacts(96, 8, 896))
    unlike = replace(qwen_moe, moe=MoeFacts(1024, 1, 64))
    assert only_class(
        moe_timing(make_shape(model=like, tp=1, weight_dtype="bf16"), table, ONE)
    ) == "extrapolated"  # fmt: skip
    assert only_class(
        moe_timing(make_shape(model=unlike, tp=1, weight_dtype="bf16"), table, ONE)
    ) == "roofline"  # fmt: skip


def test_measured_decode_attention_comes_back_exactly(h100):
    table, heads = load("h100_sxm", "generation_attention"), Heads(8, 1, 128, 2)
    batch, step, latency = table.surface(("bfloat16", "bfloat16", 128, 0, 8, 1))
    time = decode_timing(h100, table, heads, batch[:5], step + 1)
    known = np.isfinite(latency[:5]).ravel()
    factor = step_constants().decode_attention_factor
    np.testing.assert_allclose(
        time.total_s[known],
        factor * latency[:5].ravel()[known],
        rtol=1e-12,
    )


def test_decode_attention_beyond_the_table_is_continued(h100):
    table, heads = load("h100_sxm", "generation_attention"), Heads(8, 1, 128, 2)
    near, far = np.array([131072.0]), np.array([262144.0])
    times = [decode_timing(h100, table, heads, np.array([8.0]), c) for c in (near, far)]
    assert only_class(times[1]) == "extrapolated"
    assert times[1].total_s[0] == pytest.approx(2 * times[0].total_s[0], rel=0.1)


@pytest.mark.parametrize(
    ("heads", "counts"),
    [
        (Heads(8, 1, 128, 2), ("bfloat16", 128, 8, 1)),
        (Heads(8, 1, 128, 1), ("fp8", 128, 8, 1)),
        (Heads(128, 8, 128, 2), ("bfloat16", 128, 64, 4)),
        (Heads(8, 1, 120, 2), ("bfloat16", 128, 8, 1)),
    ],
)
def test_attention_takes_the_nearest_group_ratio(heads, counts):
    site = nearest_site(load("h100_sxm", "generation_attention"), heads)
    assert (site[1], site[2], site[4], site[5]) == counts


def test_unmeasured_heads_are_scaled(h100):
    table, where = load("h100_sxm", "generation_attention"), (np.array([64.0]), np.array([8192.0]))
    half = decode_timing(h100, table, Heads(64, 4, 128, 2), *where)
    whole = decode_timing(h100, table, Heads(128, 8, 128, 2), *where)
    assert only_class(whole) == "extrapolated"
    assert 1.7 < whole.total_s[0] / half.total_s[0] < 2.1


def test_prefill_attention_starts_at_zero_and_grows_with_the_square(h100):
    table = load("h100_sxm", "context_attention")
    length, time, floor = prefill_curve(h100, table, Heads(8, 1, 128, 2), 65536)
    assert length[0] == 0
    assert time.total_s[0] == 0
    assert length[-1] >= 65536
    assert floor.total_s[0] == pytest.approx(11.888e-6, rel=1e-4)
    at = np.interp([32768.0, 65536.0], length, time.total_s)
    assert at[1] / at[0] == pytest.approx(4.0, rel=0.05)


def test_attention_without_a_table_takes_the_roofline(h100):
    heads = Heads(8, 1, 128, 2)
    assert only_class(decode_timing(h100, None, heads, ONE, ONE)) == "roofline"
    assert only_class(prefill_curve(h100, None, heads, 4096)[1]) == "roofline"
