"""Decode context parallelism in the step times: a share of the context, and what is exchanged."""

import numpy as np
import pytest

from sieve.perf.attention import Heads, decode_timing
from sieve.perf.compose import build_step_table
from sieve.perf.constants import step_constants
from sieve.perf.context_parallel import exchange_timing
from sieve.perf.kernel_table import load


@pytest.fixture
def shapes(make_shape, qwen_moe):
    """Qwen3-30B-A3B on 8 H100: 4 KV heads, so each is held twice unless two ranks share it out."""

    def make(dcp):
        return make_shape(
            model=qwen_moe, tp=8, dcp=dcp, weight_dtype="bf16", weight_bytes_per_param=2.0
        )

    return make


def test_a_rank_attends_to_its_share_with_the_queries_of_both(shapes, h100):
    table = build_step_table(shapes(2))
    # 32 query heads on 8 ranks are 4 a rank, 8 once gathered; one KV head of 128 numbers.
    heads = Heads(heads=8, kv_heads=1, head_dim=128, kv_bytes=2)
    batch, context = table.decode_batch, table.decode_context
    raw = decode_timing(h100, load("h100_sxm", "generation_attention"), heads, batch, context / 2)
    rising = raw.scaled(48).total_s.reshape(len(batch), len(context))
    rising = np.maximum.accumulate(np.maximum.accumulate(rising, axis=1), axis=0)
    np.testing.assert_allclose(table.decode_attention_s, rising, rtol=1e-12)


def test_long_contexts_are_read_in_about_half_the_time(shapes):
    alone, shared = build_step_table(shapes(1)), build_step_table(shapes(2))

    def longest(table):
        return table.decode_attention_s[-1, -1]

    assert alone.decode_context[-1] == shared.decode_context[-1] == 16384
    assert 0.4 < longest(shared) / longest(alone) < 0.75


def test_what_is_exchanged_by_hand(shapes):
    # 512 tokens: queries and results of 8 heads x 128 numbers, sums of 8 heads x 2 halves.
    tokens, small = np.array([512.0]), 1e-6
    nccl = load("h100_sxm", "nccl")

    def curve(operation, elements):
        grid, latency = nccl.curve((operation, "half", 2))
        return float(np.interp(elements, grid, latency))

    gathered = curve("all_gather", 512 * 8 * 128) + curve("all_gather", 512 * 8 * 2)
    scattered = curve("reduce_scatter", 512 * 8 * 128)
    expected = step_constants().allreduce_factor * (gathered + scattered) + 10e-6 + 2 * small
    time = exchange_timing(shapes(2), tokens, small)
    assert time.total_s[0] == pytest.approx(expected)
    assert set(time.shares()) == {"measured", "roofline", "extrapolated"}


def test_every_step_pays_for_the_exchange(shapes):
    alone, shared = build_step_table(shapes(1)), build_step_table(shapes(2))
    extra = shared.decode_token_s[1:] - alone.decode_token_s[1:]
    assert (extra > 48 * (10e-6 + 2 / 5 * step_constants().layer_fixed_s)).all()
    assert any("decode context parallel 2" in note for note in shared.notes)
    assert not any("context parallel" in note for note in alone.notes)


def test_without_it_nothing_is_exchanged(shapes):
    assert exchange_timing(shapes(1), np.array([1.0, 64.0]), 1e-6).total_s.tolist() == [0.0, 0.0]
