"""Experts that read a narrower width (Nemotron-3-Super), and layers of one block each."""

import numpy as np
import pytest

from sieve.catalog.accelerators import load_gpu
from sieve.catalog.models import load_model
from sieve.perf.base import MEASURED, ServingShape
from sieve.perf.compose import build_step_table, step_parts
from sieve.perf.kernel_table import load
from sieve.perf.layers import moved_elements, num_blocks, num_expert_layers, products
from sieve.perf.moe import expert_parts, experts_of, nearest_experts

SUPER = "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-FP8"


def shape_of(name=SUPER, gpu="B200-SXM-180GB", tp=4):
    model = load_model(name)
    size = {"fp8": 1.0}.get(model.checkpoint_dtype, 2.0)
    return ServingShape(
        model, load_gpu(gpu), tp=tp, pp=1, ep=1, weight_dtype=model.checkpoint_dtype,
        kv_cache_dtype="auto", max_num_batched_tokens=8192, max_num_seqs=256, max_context=32768,
        weight_bytes_per_param=size,
    )  # fmt: skip


def test_experts_read_the_narrow_width_as_measured():
    """512 experts of 1,024 x 2,688, 22 a token, split over 4: a site of the table."""
    shape, table = shape_of(), load("b200_sxm", "moe")
    assert experts_of(shape).size == (1024, 2688, 22, 512, 4, 1)
    key = nearest_experts(table, shape)
    assert key[1:7] == (1024, 2688, 22, 512, 4, 1)
    grid, latency = table.curve(key)
    (part,) = expert_parts(shape, table, grid)
    np.testing.assert_array_equal(part.timing.by_class[MEASURED], latency)


def test_products_into_and_out_of_the_width_are_whole_and_in_16_bits():
    """40 expert layers: 4,096 to 1,024 and back, on every rank, not quantised."""
    shape = shape_of()
    counts = {(p.n, p.k, p.precision.table_dtype): p.count for p in products(shape)}
    assert num_expert_layers(shape) == 40
    assert counts[1024, 4096, "bfloat16"] == 40
    assert counts[4096, 1024, "bfloat16"] >= 40
    assert any("1024 of 4096 numbers" in note for note in build_step_table(shape).notes)


def test_a_step_reads_all_weights_that_its_tokens_touch():
    """256 tokens x 22 of 512 experts: nearly all 512 are read, 2 matrices each, in FP8."""
    shape = shape_of()
    table = build_step_table(shape)
    experts = 40 * 512 * 2 * 1024 * 2688 / 4
    assert float(table.decode_token_s[256]) > experts / shape.gpu.mem_bw_bytes_per_s
    assert float(table.decode_token_s[256]) < 10 * experts / shape.gpu.mem_bw_bytes_per_s
    assert (np.diff(table.decode_token_s[1:]) >= -0.1 * table.decode_token_s[1:-1]).all()


def test_layers_of_one_block_have_one_all_reduce_each():
    """Nemotron-H: 88 layers, each token mixing or experts; Qwen3-32B: 64 layers of both."""
    assert num_blocks(shape_of()) == 88
    assert num_blocks(shape_of("Qwen/Qwen3-32B")) == 2 * 64
    parts = step_parts(shape_of()).token_parts
    counts = {part.constant: part.count for part in parts if part.constant}
    assert counts["allreduce_factor"] == 88
    assert counts["layer_fixed_s"] == 44


def test_what_experts_hand_over_has_their_width():
    """A token and expert layer: 4 x 4,096, 2 x 22 x 1,024, 3 x (22 x 2,688 + 5,376) / 4."""
    _, experts = moved_elements(shape_of())
    assert experts == pytest.approx(40 * (4 * 4096 + 44 * 1024 + 3 * (22 * 2688 + 5376) / 4))


def test_experts_measured_far_above_the_roofline_are_named():
    """H200's FP8 experts of this size: 1.3 ms at 64 tokens for 0.35 GB a GPU."""
    slow = build_step_table(shape_of(gpu="H200-SXM-141GB")).notes
    assert any("times the roofline with 64 tokens" in note for note in slow)
    assert not any("times the roofline" in note for note in build_step_table(shape_of()).notes)
