from dataclasses import replace

import numpy as np
import pytest

from sieve.arrays import COMPONENTS, EVIDENCE_CLASSES
from sieve.perf.compose import (
    build_step_table,
    default_cudagraph_sizes,
    padded_sizes,
)
from sieve.perf.constants import step_constants


@pytest.fixture
def inline(llama):
    return replace(llama, intermediate_size=None, vocab_size=None)


def test_arrays_have_the_shapes_of_the_contract(make_shape):
    table = build_step_table(make_shape(max_num_batched_tokens=2048, max_num_seqs=100))
    assert table.token_s.shape == (2049,)
    assert table.decode_token_s.shape == table.head_s.shape == (101,)
    assert table.decode_attention_s.shape == (len(table.decode_batch), len(table.decode_context))
    assert table.token_s[0] == table.decode_token_s[0] == table.head_s[0] == 0
    assert table.decode_batch[0] == 1
    assert table.decode_batch[-1] == 100
    assert table.decode_context[-1] == 16384
    assert table.prefill_length[0] == table.prefill_attention_s[0] == 0
    for grid in (table.decode_batch, table.decode_context, table.prefill_length):
        assert (np.diff(grid) > 0).all()


@pytest.mark.parametrize("max_context", [1, 2, 100, 200_000])
@pytest.mark.parametrize("max_num_seqs", [1, 3, 3000])
def test_any_limits_give_a_table(make_shape, max_context, max_num_seqs):
    table = build_step_table(make_shape(max_context=max_context, max_num_seqs=max_num_seqs))
    step = table.decode_step_s([1, max_num_seqs], max_context)
    assert np.isfinite(step).all()
    assert (step > 0).all()


def test_every_component_says_how_well_it_is_known(make_shape, qwen_moe, inline):
    for shape in (make_shape(), make_shape(model=qwen_moe), make_shape(model=inline)):
        evidence = build_step_table(shape).component_evidence
        assert set(evidence) == set(COMPONENTS)
        for shares in evidence.values():
            assert set(shares) <= set(EVIDENCE_CLASSES)
            assert sum(shares.values()) == pytest.approx(1.0)
        assert evidence["host"] == {"extrapolated": 1.0}


def test_decode_steps_run_at_the_next_graph_size(make_shape):
    table = build_step_table(make_shape(max_num_seqs=600))
    assert table.decode_token_s[3] == table.token_s[4]
    assert table.decode_token_s[9] == table.token_s[16]
    assert table.decode_token_s[257] == table.token_s[272]
    assert table.decode_token_s[513] == table.token_s[513]


def test_graph_sizes_can_be_given(make_shape):
    np.testing.assert_array_equal(padded_sizes(5, [4, 2]), [0, 2, 2, 4, 4, 5])
    np.testing.assert_array_equal(padded_sizes(3, []), [0, 1, 2, 3])
    table = build_step_table(make_shape(max_num_seqs=3), cudagraph_sizes=[])
    assert table.decode_token_s[3] == table.token_s[3]
    sizes = default_cudagraph_sizes()
    assert sizes[:5] == [1, 2, 4, 8, 16]
    assert sizes[-2:] == [496, 512]


def test_padding_may_exceed_the_token_budget(make_shape):
    table = build_step_table(make_shape(max_num_batched_tokens=250, max_num_seqs=250))
    assert table.token_s.shape == (251,)
    assert table.decode_token_s[250] >= table.token_s[250]


def test_pipeline_stages_add_transfers_and_host_time(make_shape):
    one, two = (build_step_table(make_shape(pp=pp)) for pp in (1, 2))
    np.testing.assert_array_equal(one.token_s, two.token_s)
    assert one.pp_transfer_s == 0
    assert two.pp_transfer_s == pytest.approx(10e-6 + 512 * 8192 * 2 / 450e9)
    assert two.host_decode_s == 2 * step_constants().host_decode_s
    assert two.pp == 2


def test_more_gpus_take_less_time_but_the_fixed_cost_stays(make_shape):
    one, eight = (build_step_table(make_shape(tp=tp)).token_s[4] for tp in (1, 8))
    assert one / 8 < eight < one
    assert eight > 80 * step_constants().layer_fixed_s


def test_worked_example(make_shape, h100):
    # Llama-3.1-70B FP8 on H200, batch 4, context 1.4k: measured 21.5 ms on one GPU and 7.9 ms on
    # eight, prefill stalls of a few per cent included.
    h200 = replace(h100, name="H200", mem_bw_bytes_per_s=4.8e12, kernel_system="h200_sxm")
    steps = [
        build_step_table(make_shape(gpu=h200, tp=tp, kv_cache_dtype="fp8")).decode_step_s(4, 1400)
        for tp in (1, 8)
    ]
    np.testing.assert_allclose(steps, [21.5e-3, 7.9e-3], rtol=0.1)


def test_an_fp8_cache_halves_what_long_contexts_cost(make_shape):
    wide, narrow = (
        build_step_table(make_shape(kv_cache_dtype=dtype)).decode_attention(64, 16000)
        for dtype in ("auto", "fp8_e4m3")
    )
    assert 0.4 < narrow / wide < 0.8


def test_sliding_layers_do_not_grow(make_shape, llama):
    full, half = (
        build_step_table(make_shape(model=replace(llama, num_kv_layers=layers)))
        for layers in (80, 40)
    )
    assert half.decode_attention(64, 16000) < 0.6 * full.decode_attention(64, 16000)
    assert half.prefill_attention(16000) < 0.6 * full.prefill_attention(16000)
    assert any("without a growing KV cache" in note for note in half.notes)


def test_shared_experts_and_dense_layers_cost_time(make_shape, qwen_moe):
    plain = build_step_table(make_shape(model=qwen_moe)).decode_token_s[64]
    shared = replace(qwen_moe, moe=replace(qwen_moe.moe, shared_intermediate_size=768))
    assert build_step_table(make_shape(model=shared)).decode_token_s[64] > plain
    dense = replace(qwen_moe, moe=replace(qwen_moe.moe, num_dense_layers=48))
    assert build_step_table(make_shape(model=dense)).decode_token_s[64] < plain


def test_a_model_known_by_its_parameters_is_near_the_detailed_one(make_shape, inline):
    detailed, rough = (build_step_table(make_shape(**c)) for c in ({}, {"model": inline}))
    assert rough.decode_step_s(16, 2000) == pytest.approx(
        detailed.decode_step_s(16, 2000), rel=0.25
    )
    assert (rough.head_s == 0).all()
    assert any("parameters" in note for note in rough.notes)


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp8", "int8", "int4", "mxfp4", "nvfp4"])
def test_every_weight_precision_has_an_answer(make_shape, qwen_moe, dtype):
    weight_bytes = {"bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0}.get(dtype, 0.5)
    for changes in ({}, {"model": qwen_moe}):
        shape = make_shape(weight_dtype=dtype, weight_bytes_per_param=weight_bytes, **changes)
        table = build_step_table(shape)
        assert np.isfinite(table.token_s).all()
        stands_in = dtype in {"int8", "int4", "nvfp4"} or (dtype == "mxfp4" and not changes)
        assert any("no measured" in note for note in table.notes) == stands_in


def test_hardware_without_fp8_or_without_tables_says_so(make_shape, a100, h100):
    notes = build_step_table(make_shape(gpu=a100)).notes
    assert any("no FP8 arithmetic" in note for note in notes)
    bare = build_step_table(make_shape(gpu=replace(h100, kernel_system="")))
    assert any("roofline" in note for note in bare.notes)
    assert bare.component_evidence["decode_attention"] == {"roofline": 1.0}


def test_unmeasured_heads_and_experts_are_named(make_shape, llama, qwen_moe):
    wide = make_shape(model=replace(llama, num_attention_heads=128), tp=1)
    assert any("attention with these heads" in note for note in build_step_table(wide).notes)
    other = replace(qwen_moe, moe=replace(qwen_moe.moe, moe_intermediate_size=896))
    notes = build_step_table(make_shape(model=other)).notes
    assert any("experts of this size" in note for note in notes)
