"""Step times of every layer family, against arithmetic written out here."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sieve.catalog.accelerators import load_gpu
from sieve.catalog.models import load_model
from sieve.perf.attention import Heads, decode_timing, nearest_site, prefill_curve
from sieve.perf.base import Part, ServingShape, Timing
from sieve.perf.compose import assemble, build_step_table, default_cudagraph_sizes, step_parts
from sieve.perf.constants import constant_names, document, step_constants
from sieve.perf.kernel_table import load
from sieve.perf.layers import (
    mixers,
    moved_elements,
    norms_over_all_heads,
    num_block_products,
    num_expert_layers,
    products,
)
from sieve.perf.moe import _mxfp8_share, expert_dtype, expert_parts, nearest_experts


def shape_of(
    name: str, gpu: str = "H200-SXM-141GB", tp: int = 8, **changes: object
) -> ServingShape:
    model = load_model(name, any_family=True)
    size = {"fp8": 1.0, "mxfp4": 0.53}.get(model.checkpoint_dtype, 2.0)
    base = ServingShape(
        model, load_gpu(gpu), tp, 1, 1, model.checkpoint_dtype, "auto", 8192, 256, 32768, size
    )
    return replace(base, **changes)


GPT_OSS, DEEPSEEK = "openai/gpt-oss-120b", "deepseek-ai/DeepSeek-V3.2"
QWEN_HYBRID, MINIMAX = "Qwen/Qwen3.5-397B-A17B", "MiniMaxAI/MiniMax-M2.5"


@pytest.mark.parametrize("name", [GPT_OSS, DEEPSEEK, QWEN_HYBRID, MINIMAX])
def test_no_family_beats_its_weights_and_its_arithmetic(name: str) -> None:
    shape = shape_of(name)
    table = build_step_table(shape)
    model = shape.model
    active = model.active_params - model.vocab_size * model.hidden_size * 2
    peak = max(shape.gpu.flops_per_s.values())
    assert table.token_s[8192] > 2 * active * 8192 / shape.tp / peak
    per_weight = 0.53 if name == GPT_OSS else shape.weight_bytes_per_param
    assert table.decode_token_s[1] > active * per_weight / shape.tp / shape.gpu.mem_bw_bytes_per_s
    for values in (table.token_s, table.decode_attention_s, table.prefill_attention_s):
        assert np.isfinite(values).all()


def test_windows_stop_growing_where_full_attention_goes_on() -> None:
    table = load("h200_sxm", "generation_attention")
    full, window = Heads(8, 1, 64, 2), Heads(8, 1, 64, 2, window=128)
    assert nearest_site(table, window)[3] == 128
    gpu = load_gpu("H200-SXM-141GB")
    batch, contexts = np.array([64.0]), np.array([512.0, 16384.0])
    short, long = decode_timing(gpu, table, window, batch, contexts).total_s
    assert long < 1.2 * short
    grown = decode_timing(gpu, table, full, batch, contexts).total_s
    assert grown[1] > 4 * grown[0]


def test_a_window_that_was_not_measured_is_full_attention_over_what_it_sees() -> None:
    table = load("h200_sxm", "generation_attention")
    gpu, odd = load_gpu("H200-SXM-141GB"), Heads(8, 1, 128, 2, window=3000)
    full = Heads(8, 1, 128, 2)
    assert nearest_site(table, odd)[3] == 0
    where = np.array([16.0]), np.array([20000.0])
    seen = decode_timing(gpu, table, full, where[0], np.array([3000.0]))
    assert decode_timing(gpu, table, odd, *where).total_s == pytest.approx(seen.total_s)


def test_pairs_of_a_window_are_counted() -> None:
    heads = Heads(1, 1, 1, 2, window=4)
    # 2 tokens: 2, as n^2/2; 10 tokens: 4 x 10 - 4^2/2.
    np.testing.assert_allclose(heads.pairs(np.array([2.0, 10.0])), [2.0, 32.0])


def test_prefill_over_a_window_grows_in_proportion() -> None:
    table, gpu = load("h200_sxm", "context_attention"), load_gpu("H200-SXM-141GB")
    length, timing, _ = prefill_curve(gpu, table, Heads(8, 1, 64, 2, window=128), 65536)
    at = np.interp([16384.0, 65536.0], length, timing.total_s)
    assert 3 < at[1] / at[0] < 6  # 16 for full attention


def test_a_latent_reads_little_memory_per_token() -> None:
    """576 numbers of 2 bytes a token and layer, sparse: at most 2,048 tokens and the index."""
    table = build_step_table(shape_of(DEEPSEEK))
    read = 64 * (2048 * 576 * 2 + 16384 * 128) * 61 / 4.8e12
    assert read < float(table.decode_attention(64, 16384)) < 16 * read
    assert table.component_evidence["decode_attention"] == {"interpolated": 1.0}
    assert any("what measured blocks of deepseek-ai/DeepSeek-V3.2" in n for n in table.notes)
    unmeasured = build_step_table(shape_of(DEEPSEEK, "L40S-48GB"))
    assert unmeasured.component_evidence["decode_attention"] == {"roofline": 1.0}
    assert any("latent token mixing" in note for note in unmeasured.notes)


def test_recurrent_layers_cost_the_same_at_any_context() -> None:
    shape = shape_of(QWEN_HYBRID)
    kinds = {m.kind.kind: m.count for m in mixers(shape)}
    assert kinds == {"state": 45, "full": 15}
    table = build_step_table(shape)
    few, many = (float(table.decode_attention(64, context)) for context in (1024, 2048))
    assert many < 1.5 * few  # only 15 of 60 layers grow


def test_shared_experts_first_dense_layers_and_routers_are_there() -> None:
    shape = shape_of(DEEPSEEK)
    assert num_expert_layers(shape) == 58
    counts = {(p.n, p.k): p.count for p in products(shape)}
    # Shared experts 2,048 wide, 8 ranks: gate and up 512 x 7,168; dense layers 18,432 wide.
    assert counts[512, 7168] == 58
    assert counts[2 * 18432 // 8, 7168] == 3
    assert counts[256, 7168] >= 58
    dense, experts = moved_elements(shape)
    assert 0 < dense < experts


def test_block_scales_norms_over_heads_and_wide_routers() -> None:
    shape = shape_of(MINIMAX)
    assert norms_over_all_heads(shape)
    assert not norms_over_all_heads(shape_of("Qwen/Qwen3-32B"))
    assert num_block_products(products(shape)) == 2 * 62
    assert num_block_products(products(shape_of("Qwen/Qwen3-32B"))) == 0
    assert not any(p.n == 256 and p.k == 3072 for p in products(shape))  # in 32 bits, apart


def test_experts_alone_are_in_four_bits() -> None:
    shape = shape_of(GPT_OSS)
    assert {p.precision.table_dtype for p in products(shape)} == {"bfloat16"}
    assert expert_dtype(shape) == "mxfp4"


def test_unpacking_experts_costs_more_over_many_tokens() -> None:
    shape, table = shape_of(GPT_OSS, tp=1), load("h200_sxm", "moe")
    few, many = (expert_parts(shape, table, np.array([m])) for m in (64.0, 4096.0))
    assert [part.constant for part in few] == ["experts_factor", "marlin_prefill_factor"]
    assert few[1].timing.total_s[0] == 0
    assert many[0].timing.total_s[0] == 0
    _, latency = table.curve(nearest_experts(table, shape))
    grid = table.curve(nearest_experts(table, shape))[0]
    assert many[1].timing.total_s[0] == pytest.approx(latency[grid == 4096][0])


def test_narrow_activations_are_quicker_on_blackwell() -> None:
    share = _mxfp8_share(np.array([1.0, 16.0, 1024.0, 1e6]))
    np.testing.assert_allclose(share, [0.86, 0.72, 0.45, 0.32])
    shape = shape_of(GPT_OSS, "B200-SXM-180GB", tp=1)
    assert [p.constant for p in expert_parts(shape, load("b200_sxm", "moe"), np.ones(1))] == [
        "experts_factor"
    ]
    assert any("MXFP8" in note for note in build_step_table(shape).notes)


def test_eight_bit_experts_without_eight_bit_arithmetic_use_sixteen_bit_kernels() -> None:
    shape = shape_of("Qwen/Qwen3-235B-A22B-FP8", "A100-SXM-80GB", tp=4)
    key = nearest_experts(load("a100_sxm", "moe"), shape)
    assert key is not None
    assert key[:5] == ("bfloat16", 4096, 1536, 8, 128)


def test_synchronous_scheduling_adds_the_hosts_time() -> None:
    parts, c = step_parts(shape_of("Qwen/Qwen3-32B", tp=2)), step_constants()
    ahead, sync = (assemble(parts, c, asynchronous=flag) for flag in (True, False))
    old = assemble(parts, c, asynchronous=False, before_v1=True)
    added = c.sync_step_s + 64 * c.sync_sequence_s
    assert sync.decode_step_s(64, 1000) - ahead.decode_step_s(64, 1000) == pytest.approx(added)
    assert old.decode_step_s(64, 1000) - ahead.decode_step_s(64, 1000) == pytest.approx(
        c.old_host_factor * added
    )


def test_steps_with_prompts_take_no_less_than_their_launches() -> None:
    parts, c = step_parts(shape_of("Qwen/Qwen3-8B", tp=8)), step_constants()
    slow = assemble(parts, c.changed({"layer_launch_s": 0.01}))
    assert slow.token_s[0] == 0
    assert (slow.token_s[1:] >= 0.36).all()
    assert slow.decode_token_s[1] < 0.01


def test_a_part_is_scaled_limited_and_counted_in_that_order() -> None:
    part = Part(Timing.of([1.0, 4.0], 0), limit_s=np.array([3.0, 3.0]), count=10)
    np.testing.assert_allclose(part.at(0.5).total_s, [30.0, 30.0])
    np.testing.assert_allclose(part.at(2.0).total_s, [30.0, 80.0])


def test_graph_sizes_end_where_the_engine_ends_them() -> None:
    assert default_cudagraph_sizes(1024)[-1] == 1024
    assert default_cudagraph_sizes(6) == [1, 2, 4]
    parts = step_parts(shape_of("Qwen/Qwen3-8B", "B200-SXM-180GB", max_num_seqs=1024))
    assert parts.padded[1000] == 1008  # captured to 1,024 on Blackwell
    assert step_parts(shape_of("Qwen/Qwen3-8B", max_num_seqs=1024)).padded[1000] == 1000


def test_the_constants_say_what_they_mean_and_where_they_come_from() -> None:
    facts = document()
    assert set(facts["meaning"]) == set(facts["priors"]) == set(constant_names())
    assert len(facts["data_sha256"]) == 64
    for fold in facts["folds"].values():
        assert set(fold) == set(constant_names())
