"""Laws of every operator on every measured GPU: exact on its rows, never quicker than hardware."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sieve.catalog.accelerators import load_gpu
from sieve.catalog.models import load_model
from sieve.perf.attention import (
    Heads,
    decode_timing,
    prefill_curve,
)
from sieve.perf.base import MEASURED, ServingShape
from sieve.perf.collectives import allreduce_timing, in_fast_domain
from sieve.perf.compose import build_step_table
from sieve.perf.constants import step_constants
from sieve.perf.gemm import Precision, gemm_timing
from sieve.perf.kernel_table import load, system_folder
from sieve.perf.moe import experts_of, moe_timing, nearest_experts
from sieve.perf.roofline import arithmetic_mode, gemm_limit_s

FACTORS = step_constants()
SYSTEMS = ("h100_sxm", "h200_sxm", "a100_sxm", "l40s", "b200_sxm")
GPUS = {system: load_gpu(system) for system in SYSTEMS}
PRECISIONS = {
    "bfloat16": Precision("bfloat16", 2.0, "bf16"),
    "fp8": Precision("fp8", 1.0, "fp8"),
    "nvfp4": Precision("nvfp4", 0.5625, "fp4"),
    "int4_wo": Precision("int4_wo", 0.5, "bf16"),
    "int8_wo": Precision("int8_wo", 1.0, "bf16"),
}
DENSE = load_model("Qwen/Qwen3-32B")
EXPERTS = load_model("Qwen/Qwen3-30B-A3B")
systems = st.sampled_from(SYSTEMS)


def shape_of(system, model=DENSE, tp=1, weight_dtype="bf16", kv="auto"):
    weight = {"bf16": 2.0, "fp8": 1.0}[weight_dtype]
    return ServingShape(
        model, GPUS[system], tp=tp, pp=1, ep=1, weight_dtype=weight_dtype, kv_cache_dtype=kv,
        max_num_batched_tokens=4096, max_num_seqs=128, max_context=32768,
        weight_bytes_per_param=weight,
    )  # fmt: skip


def usable(system, precision):
    return precision.mode in GPUS[system].flops_per_s and any(
        key[0] == precision.table_dtype for key in load(system, "gemm").sites
    )


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("dtype", PRECISIONS)
def test_measured_products_come_back(system, dtype):
    """Exactly, but for rows that a cache made quicker than memory: those are held at the limit."""
    precision, table, gpu = PRECISIONS[dtype], load(system, "gemm"), GPUS[system]
    keys = [key for key in table.sites if key[0] == dtype]
    assert keys or dtype not in {"bfloat16", "fp8"} or system == "a100_sxm"
    for key in keys[::3]:
        m, latency = table.curve(key)
        time = gemm_timing(gpu, table, key[1], key[2], precision, m).total_s
        limit = gemm_limit_s(gpu, m, key[1], key[2], precision.weight_bytes, precision.mode)
        np.testing.assert_allclose(time, np.maximum(latency, limit), rtol=1e-12)


@pytest.mark.parametrize("system", SYSTEMS)
def test_measured_decode_attention_comes_back(system):
    table, gpu = load(system, "generation_attention"), GPUS[system]
    keys = [key for key in table.sites if key[3] == 0]
    for key in keys[::7]:
        size = 1 if str(key[1]).startswith("fp8") else 2
        heads = Heads(int(key[4]), int(key[5]), int(key[2]), size)
        batch, step, latency = table.surface(key)
        time = decode_timing(gpu, table, heads, batch, step + 1)
        read = 2 * np.outer(batch, step + 1) * heads.kv_heads * heads.head_dim * size
        limit = read / gpu.mem_bw_bytes_per_s
        known = np.isfinite(latency)
        wanted = np.maximum(FACTORS.decode_attention_factor * latency, limit)
        got = time.total_s.reshape(latency.shape)
        np.testing.assert_allclose(got[known], wanted[known], rtol=1e-12)


@pytest.mark.parametrize("system", SYSTEMS)
def test_measured_prefill_attention_comes_back(system):
    """Less its zero offset, and never less than a shorter prompt took."""
    table, gpu = load(system, "context_attention"), GPUS[system]
    for key in [key for key in table.sites if key[3] == 0][::7]:
        size = 1 if str(key[1]).startswith("fp8") else 2
        heads = Heads(int(key[4]), int(key[5]), int(key[2]), size)
        _, isl, latency = table.surface(key)
        known = np.isfinite(latency[0])
        rising = np.maximum.accumulate(latency[0][known])
        length, time, floor = prefill_curve(gpu, table, heads, int(isl[known][-1]))
        at = np.searchsorted(length, isl[known])
        np.testing.assert_array_equal(length[at], isl[known])
        limit = 2.0 * heads.heads * heads.head_dim * isl[known] ** 2 / gpu.flops_per_s["bf16"]
        wanted = np.maximum(FACTORS.prefill_attention_factor * (rising - rising[0]), limit)
        np.testing.assert_allclose(time.total_s[at], wanted, rtol=1e-12, atol=1e-18)
        np.testing.assert_allclose(floor.total_s, rising[0], rtol=1e-12)


@pytest.mark.parametrize("system", SYSTEMS)
def test_measured_experts_come_back(system):
    shape = shape_of(system, EXPERTS)
    table = load(system, "moe")
    key = nearest_experts(table, shape)
    if key is None or key[1:7] != experts_of(shape).size:
        assert system == "a100_sxm"  # the only one without these experts
        return
    m, latency = table.curve(key)
    time = moe_timing(shape, table, m)
    limit = experts_of(shape).limit_s(shape.gpu, m, arithmetic_mode(shape.gpu, "bf16"))
    np.testing.assert_allclose(
        time.total_s, np.maximum(FACTORS.experts_factor * latency, limit), rtol=1e-12
    )


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("tp", [2, 4, 8])
def test_measured_all_reduces_come_back(system, tp):
    """The quicker of the engine's own kernel, where it runs, and NCCL."""
    shape = shape_of(system, tp=tp)
    nccl, own = load(system, "nccl"), load(system, "custom_allreduce")
    sites = {"nccl": ("all_reduce", "half", tp), "own": ("bfloat16", "vllm_graph", tp)}
    if sites["nccl"] not in nccl.sites:
        assert (system, tp) == ("l40s", 8)
        return
    size, latency = nccl.curve(sites["nccl"])
    wanted = latency
    if sites["own"] in own.sites and (in_fast_domain(shape, tp) or tp == 2):
        wanted = np.minimum(latency, np.interp(size, *own.curve(sites["own"])))
    time = allreduce_timing(shape, size / shape.model.hidden_size)
    np.testing.assert_allclose(time.total_s, FACTORS.allreduce_factor * wanted, rtol=1e-9)


@settings(max_examples=150, deadline=None, database=None)
@given(
    system=systems, dtype=st.sampled_from(sorted(PRECISIONS)), n=st.integers(8, 200_000),
    k=st.integers(16, 60_000), m=st.integers(1, 200_000),
)  # fmt: skip
def test_no_product_is_quicker_than_the_hardware(system, dtype, n, k, m):
    precision = PRECISIONS[dtype]
    if not usable(system, precision):
        return
    gpu = GPUS[system]
    time = gemm_timing(gpu, load(system, "gemm"), n, k, precision, np.array([float(m)])).total_s[0]
    assert time >= 0.999999 * precision.weight_bytes * n * k / gpu.mem_bw_bytes_per_s
    assert time >= 0.999999 * 2.0 * m * n * k / gpu.flops_per_s[precision.mode]
    assert np.isfinite(time)


@settings(max_examples=100, deadline=None, database=None)
@given(
    system=systems, kv_heads=st.sampled_from([1, 2, 4, 5, 8, 16]), group=st.integers(1, 16),
    head_dim=st.sampled_from([64, 80, 96, 128, 256]), size=st.sampled_from([1, 2]),
    batch=st.integers(1, 4096), context=st.integers(1, 2_000_000),
)  # fmt: skip
def test_no_attention_is_quicker_than_the_hardware(
    system, kv_heads, group, head_dim, size, batch, context
):
    gpu, heads = GPUS[system], Heads(kv_heads * group, kv_heads, head_dim, size)
    decode = decode_timing(
        gpu, load(system, "generation_attention"), heads, np.array([float(batch)]),
        np.array([float(context)]),
    ).total_s[0]  # fmt: skip
    read = 2.0 * batch * context * kv_heads * head_dim * size
    assert decode >= 0.999999 * read / gpu.mem_bw_bytes_per_s
    length, time, _ = prefill_curve(
        gpu, load(system, "context_attention"), heads, min(context, 10**6)
    )
    flops = 2.0 * heads.heads * head_dim * length**2
    assert (time.total_s >= 0.999999 * flops / gpu.flops_per_s["bf16"]).all()
    assert (np.diff(time.total_s) >= -1e-15).all()


@settings(max_examples=60, deadline=None, database=None)
@given(
    system=systems, tp=st.sampled_from([1, 2, 4, 8]), weight=st.sampled_from(["bf16", "fp8"]),
    m=st.integers(1, 300_000),
)  # fmt: skip
def test_no_experts_and_no_all_reduce_are_quicker_than_the_hardware(system, tp, weight, m):
    shape = shape_of(system, EXPERTS, tp, weight)
    gpu, moe = shape.gpu, EXPERTS.moe
    expert = 3 * EXPERTS.hidden_size * moe.moe_intermediate_size / tp
    mode = arithmetic_mode(gpu, weight)
    time = moe_timing(shape, load(system, "moe"), np.array([float(m)])).total_s[0]
    assert time >= 0.999999 * 2.0 * m * moe.num_experts_per_tok * expert / gpu.flops_per_s[mode]
    read = moe.num_experts_per_tok * expert * shape.weight_bytes_per_param
    assert time >= 0.999999 * read / gpu.mem_bw_bytes_per_s
    if tp > 1:
        reduce = allreduce_timing(shape, np.array([float(m)])).total_s[0]
        sent = 2.0 * m * EXPERTS.hidden_size * (tp - 1) / tp
        assert reduce >= 0.999999 * sent / (gpu.link_bytes_per_s or gpu.pcie_bytes_per_s)


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("tp", [1, 8])
@pytest.mark.parametrize("kv", ["auto", "fp8"])
def test_attention_rises_on_every_gpu(system, tp, kv):
    table = build_step_table(shape_of(system, tp=tp, kv=kv))
    assert (np.diff(table.decode_attention_s, axis=0) >= 0).all()
    assert (np.diff(table.decode_attention_s, axis=1) >= 0).all()
    assert (np.diff(table.prefill_attention_s) >= 0).all()


@pytest.mark.parametrize("system", SYSTEMS)
def test_condemned_products_are_interpolated_between_their_neighbours(system):
    """At a spike the time lies between those of the rows beside it, and is not called measured."""
    path = system_folder(system) / "gemm.parquet"
    frame = pl.read_parquet(path).filter(pl.col("gemm_dtype").is_in(list(PRECISIONS)))
    table = load(system, "gemm")
    marked = frame.filter(pl.col("condemned").is_not_null())
    assert marked.height or system == "a100_sxm"
    for row in marked.head(40).rows(named=True):
        key = (row["gemm_dtype"], row["n"], row["k"])
        m, latency = table.curve(key)
        i = int(np.searchsorted(m, row["m"]))
        precision = PRECISIONS[row["gemm_dtype"]]
        time = gemm_timing(
            GPUS[system], table, row["n"], row["k"], precision, np.array([float(row["m"])])
        )
        beside = latency[max(i - 1, 0) : i + 1]
        limit = gemm_limit_s(
            GPUS[system], np.array([float(row["m"])]), row["n"], row["k"],
            precision.weight_bytes, precision.mode,
        )[0]  # fmt: skip
        assert max(beside.min(), limit) <= time.total_s[0] * (1 + 1e-12)
        assert time.total_s[0] <= max(beside.max(), limit) * (1 + 1e-12)
        assert time.by_class[MEASURED].sum() == 0 or limit >= beside.min()
