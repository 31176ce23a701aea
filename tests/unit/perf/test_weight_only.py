"""Integer weights that are unpacked: measured where they read fewer bytes, else roofline."""

from dataclasses import replace

import numpy as np
import pytest

from sieve.catalog.accelerators import load_gpu
from sieve.catalog.models import load_model
from sieve.perf.base import ServingShape
from sieve.perf.compose import build_step_table
from sieve.perf.gemm import gemm_timing, linear_precision, reads_narrow
from sieve.perf.kernel_table import load

BYTES = {"int4": 0.515625, "int8": 1.0, "bf16": 2.0}


def shape_of(gpu, dtype):
    return ServingShape(
        load_model("Qwen/Qwen3-32B"), load_gpu(gpu), tp=1, pp=1, ep=1, weight_dtype=dtype,
        kv_cache_dtype="auto", max_num_batched_tokens=2048, max_num_seqs=64, max_context=8192,
        weight_bytes_per_param=BYTES[dtype],
    )  # fmt: skip


@pytest.mark.parametrize(("dtype", "name"), [("int4", "int4_wo"), ("int8", "int8_wo")])
def test_a100_has_measured_weight_only_products(dtype, name):
    shape = shape_of("A100-SXM-80GB", dtype)
    precision, table = linear_precision(shape), load("a100_sxm", "gemm")
    assert (precision.table_dtype, precision.weight_bytes) == (name, BYTES[dtype])
    _, n, k = key = next(key for key in table.sites if key[0] == name and key[1] * key[2] > 6e7)
    m, latency = table.curve(key)
    timing = gemm_timing(shape.gpu, table, n, k, precision, m)
    least = np.maximum(BYTES[dtype] * n * k / 2.039e12, 2 * m * n * k / 312e12)
    np.testing.assert_allclose(timing.total_s, np.maximum(latency, least), rtol=1e-12)
    steps = build_step_table(shape)
    assert any("another engine" in note for note in steps.notes)
    assert steps.component_evidence["tokens"]["interpolated"] > 0.3


def test_a_kernel_that_does_not_gain_by_narrow_weights_is_not_taken():
    """H100's INT8 rows: at one token and 60 million weights or more, most take over 0.75."""
    table = load("h100_sxm", "gemm")
    assert any(key[0] == "int8_wo" for key in table.sites)
    assert not reads_narrow(table, "int8_wo")
    shape = shape_of("H100-SXM-80GB", "int8")
    assert linear_precision(shape).table_dtype == ""
    assert any("no measured int8" in note for note in build_step_table(shape).notes)


def test_fewer_bytes_are_quicker_while_weights_decide():
    """One sequence reads all weights: INT4 has a quarter of the bytes, unpacked at some cost."""
    one = {
        dtype: float(build_step_table(shape_of("A100-SXM-80GB", dtype)).decode_token_s[1])
        for dtype in BYTES
    }
    assert one["int4"] < one["int8"] < one["bf16"]
    assert one["int4"] > one["bf16"] * BYTES["int4"] / 2
    plain = replace(load_gpu("A100-SXM-80GB"), kernel_system="")
    roofline = build_step_table(replace(shape_of("A100-SXM-80GB", "int4"), gpu=plain))
    assert 0.8 < one["int4"] / float(roofline.decode_token_s[1]) < 2
