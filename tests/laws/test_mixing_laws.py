"""Latent and recurrent layers on every measured GPU: exact on rows, never below the hardware."""

from dataclasses import replace

import numpy as np
import pytest

from sieve.catalog.accelerators import load_gpu
from sieve.catalog.models import load_model
from sieve.perf import latent, recurrent, sparse
from sieve.perf.base import INTERPOLATED, MEASURED, ServingShape
from sieve.perf.compose import build_step_table
from sieve.perf.kernel_table import load
from sieve.perf.layers import mixers
from sieve.perf.mixing import source_of

SYSTEMS = ("h100_sxm", "h200_sxm", "a100_sxm", "l40s", "b200_sxm")
WITH_STATES = tuple(system for system in SYSTEMS if system != "a100_sxm")
DEEPSEEK, KIMI = "deepseek-ai/DeepSeek-V3", "moonshotai/Kimi-K3"
HYBRIDS = ("Qwen/Qwen3.5-397B-A17B", "Qwen/Qwen3.5-27B", KIMI)


def shape_of(name, system, tp=1, kv="auto"):
    model = load_model(name, any_family=True)
    return ServingShape(
        model, load_gpu(system), tp=tp, pp=1, ep=1, weight_dtype="bf16", kv_cache_dtype=kv,
        max_num_batched_tokens=4096, max_num_seqs=128, max_context=32768,
        weight_bytes_per_param=2.0,
    )  # fmt: skip


def kind_of(shape, name):
    return next(m.kind for m in mixers(shape) if m.kind and m.kind.kind == name)


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("kv", ["auto", "fp8"])
def test_measured_latent_decode_comes_back(system, kv):
    """Every row but those that are above twice one with no less work: at most one a GPU."""
    table, shape = load(system, latent.DECODE), shape_of(DEEPSEEK, system, kv=kv)
    kv_dtype = "fp8" if kv == "fp8" else "bfloat16"
    sites = [key for key in table.sites if key[:2] == ("bfloat16", kv_dtype)]
    assert len(sites) >= 8
    left_out = 0
    for key in sites:
        kind = replace(kind_of(shape, "latent"), num_attention_heads=key[2])
        assert latent.decode_site(shape, kind) == key
        batch, step, rows = table.surface(key)
        attention, _ = latent.decode_parts(shape, kind, batch, step + 1, 1)
        time = attention.timing.total_s.reshape(rows.shape)
        known = np.isfinite(rows)
        for i, j in np.argwhere(known):
            known[i, j] = not (rows[i, j] > 2 * rows[i:, j:]).any()
        left_out += np.isfinite(rows).sum() - known.sum()
        np.testing.assert_array_equal(time[known], rows[known])
        classes = attention.timing.by_class[MEASURED].reshape(rows.shape)
        np.testing.assert_array_equal(classes[known], rows[known])
        # 576 numbers a token are read once; queries and values meet 576 + 512 of them a head.
        size, tokens = (1 if kv == "fp8" else 2), np.outer(batch, step + 1).ravel()
        least = tokens * 576 * size / shape.gpu.mem_bw_bytes_per_s
        assert (attention.at(1.0).total_s >= least).all()
        best = max(shape.gpu.flops_per_s.values())
        assert (attention.at(1.0).total_s >= 2 * tokens * key[2] * (576 + 512) / best).all()
    assert left_out <= 2


@pytest.mark.parametrize("system", SYSTEMS)
def test_measured_latent_prompts_come_back(system):
    """The longest measured so far, where a longer prompt was measured quicker than a shorter."""
    table, shape = load(system, latent.PREFILL), shape_of(DEEPSEEK, system)
    for key in [key for key in table.sites if key[:2] == ("bfloat16", "bfloat16")]:
        kind = replace(kind_of(shape, "latent"), num_attention_heads=key[2])
        _, lengths, rows = table.surface(key)
        known = np.isfinite(rows[0])
        (part,), floor = latent.prefill_parts(shape, kind, lengths[known], 1)
        expected = np.maximum.accumulate(rows[0][known])
        np.testing.assert_allclose(part.timing.total_s + floor.total_s, expected, rtol=1e-12)
        assert part.timing.shares() == floor.shares() == {"measured": 1.0}
        # A query and a key meet in 192 numbers, the value has 128; half of all pairs.
        pairs = lengths[known] ** 2 / 2
        flops = 2 * pairs * key[2] * (192 + 128)
        time = part.at(1.0).total_s
        assert (time >= 0.999999 * flops / shape.gpu.flops_per_s["bf16"]).all()


@pytest.mark.parametrize("system", WITH_STATES)
@pytest.mark.parametrize("name", ["Qwen/Qwen3.5-397B-A17B", KIMI])
def test_measured_recurrent_layers_come_back(system, name):
    """Batches and prompts, each kernel of its own, whatever the width of the model."""
    for tp in (1, 2, 4, 8):
        shape = shape_of(name, system, tp)
        kind = kind_of(shape, "state")
        table = load(system, kind.state.flavour)
        assert source_of(shape, kind) == "recurrent"
        keys = recurrent.sites(shape, kind, "generation")
        for key, place in zip(keys, range(len(keys)), strict=True):
            assert (key[4], key[6]) == (kind.state.num_key_heads // tp, kind.state.num_heads // tp)
            batch, _, rows = table.surface(key)
            part = recurrent.decode_parts(shape, kind, batch, np.array([10.0, 1e5]), 1)[place]
            expected = np.maximum.accumulate(rows[:, 0])
            for column in part.timing.total_s.reshape(len(batch), 2).T:
                np.testing.assert_array_equal(column, expected)
            assert part.timing.shares() == {"measured": 1.0}
        keys = recurrent.sites(shape, kind, "context")
        for place, key in enumerate(keys):
            _, lengths, rows = table.surface(key)
            known = np.isfinite(rows[0])
            parts, floor = recurrent.prefill_parts(shape, kind, lengths[known], 1)
            offset = rows[0][known][0]
            expected = np.maximum.accumulate(rows[0][known]) - offset
            np.testing.assert_allclose(parts[place].timing.total_s, expected, rtol=1e-9, atol=1e-12)
            assert floor.total_s[0] >= offset


@pytest.mark.parametrize("system", WITH_STATES)
def test_recurrent_layers_are_not_quicker_than_their_state_and_tokens(system):
    shape = shape_of("Qwen/Qwen3.5-397B-A17B", system, 8)
    kind, rate = kind_of(shape, "state"), shape.gpu.mem_bw_bytes_per_s
    batch = np.array([1.0, 100.0, 5000.0])
    parts = recurrent.decode_parts(shape, kind, batch, np.ones(1), 1)
    time = sum(part.at(1.0).total_s for part in parts)
    state = 64 // 8 * 128 * 128 * 4  # read and written
    assert (time >= 2 * batch * state / rate).all()
    length = np.array([0.0, 10.0, 5000.0, 1e6])
    several, _ = recurrent.prefill_parts(shape, kind, length, 1)
    time = sum(part.at(1.0).total_s for part in several)
    moved = 2 * 2 * (2 * 16 // 8 * 128 + 64 // 8 * 128)  # channels in and out of the convolution
    assert (time >= length * moved / rate).all()
    assert time[0] == 0


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("name", [DEEPSEEK, *HYBRIDS, "zai-org/GLM-5.2"])
@pytest.mark.parametrize("tp", [1, 8])
def test_more_work_is_never_quicker(system, name, tp):
    table = build_step_table(shape_of(name, system, tp))
    assert (np.diff(table.decode_attention_s, axis=0) >= 0).all()
    assert (np.diff(table.decode_attention_s, axis=1) >= 0).all()
    assert (np.diff(table.prefill_attention_s) >= 0).all()
    assert np.isfinite(table.prefill_attention_s).all()
    assert table.decode_attention(64, 32768) > table.decode_attention(64, 1024)


def test_between_measured_points_is_interpolated_and_beyond_them_extrapolated():
    shape = shape_of(DEEPSEEK, "h200_sxm", 8)
    kind = kind_of(shape, "latent")
    table, key = load("h200_sxm", latent.DECODE), latent.decode_site(shape, kind)
    _, _, rows = table.surface(key)
    attention, _ = latent.decode_parts(shape, kind, np.array([4.0]), np.array([3072.0]), 1)
    i, j = 2, 11  # batches 1, 2, 4; contexts 2, 4, ... 2,048 at place 10, 4,096 at 11
    expected = (rows[i, j - 1] + rows[i, j]) / 2
    assert attention.timing.total_s[0] == pytest.approx(expected)
    assert attention.timing.by_class[INTERPOLATED].sum() == attention.timing.total_s.sum()
    beyond, _ = latent.decode_parts(shape, kind, np.array([4.0]), np.array([1e6]), 1)
    assert beyond.timing.shares() == {"extrapolated": 1.0}


def test_heads_that_were_not_measured_are_scaled_and_named():
    shape = shape_of(KIMI, "h200_sxm", 8)  # 96 heads: 12 on a GPU
    kind = kind_of(shape, "latent")
    assert latent.decode_site(shape, kind)[2] == 16
    attention, _ = latent.decode_parts(shape, kind, np.array([64.0]), np.array([4096.0]), 1)
    assert attention.timing.shares() == {"extrapolated": 1.0}
    # Both read the same cache: at a context that decides, the time hardly differs.
    sixteen = replace(kind, num_attention_heads=128)
    measured, _ = latent.decode_parts(shape, sixteen, np.array([64.0]), np.array([4096.0]), 1)
    ratio = attention.timing.total_s / measured.timing.total_s
    assert 12 / 16 <= ratio <= 1
    assert any("16 heads (prompts: 12)" in note for note in build_step_table(shape).notes)


def test_absorbed_products_take_the_place_of_the_projection_when_decoding():
    """Two batched products in 16 bits against one projection of all tokens, never less than 0."""
    shape = shape_of(DEEPSEEK, "h200_sxm", 8)
    kind, table = kind_of(shape, "latent"), load("h200_sxm", latent.PRODUCTS)
    batch = np.array([1.0, 64.0, 1024.0])
    _, products = latent.decode_parts(shape, kind, batch, np.array([100.0]), 1)
    measured = np.zeros(3)
    for step in ("mla_gen_pre", "mla_gen_post"):
        grid, seconds = table.curve((step, "bfloat16", 16))
        measured += seconds[np.isin(grid, batch)]
    assert (products.timing.total_s >= 0).all()
    assert (products.timing.total_s < measured).all()
    assert products.timing.total_s.max() > 0


def test_another_engines_kernels_are_named_where_none_of_this_one_stand_beside_them():
    """A100 has latent attention of TensorRT-LLM only; H200 has whole blocks of vLLM beside it."""
    words = "measured in another engine"
    assert any(words in note for note in build_step_table(shape_of(DEEPSEEK, "a100_sxm")).notes)
    assert not any(words in note for note in build_step_table(shape_of(DEEPSEEK, "h200_sxm")).notes)


def test_layers_that_borrow_an_indexers_choice_read_no_more_than_it_chose():
    """GLM-5.2: 21 of 78 layers have an indexer, the others read the tokens that it chose."""
    shape = shape_of("zai-org/GLM-5.2", "h200_sxm", 8)
    kinds = {m.kind.index_dim: m.count for m in mixers(shape) if m.kind.kind == "latent"}
    assert kinds == {0: 57, 128: 21}
    table = build_step_table(shape)
    at = [float(table.decode_attention(64, context)) for context in (4096, 32768)]
    entry = 576 * 2 / shape.gpu.mem_bw_bytes_per_s
    # Whole contexts would be read in 57 layers at no less than this.
    assert at[1] - at[0] < 57 * 64 * (32768 - 4096) * entry


SPARSE = ("deepseek-ai/DeepSeek-V3.2", "zai-org/GLM-5", "zai-org/GLM-5.2")
WITH_SPARSE = ("h100_sxm", "h200_sxm", "b200_sxm")


@pytest.mark.parametrize("system", WITH_SPARSE)
@pytest.mark.parametrize("name", SPARSE)
@pytest.mark.parametrize("kv", ["auto", "fp8"])
def test_sparse_blocks_come_back_when_put_together(system, name, kv):
    """Products, small kernels and mixing are the block, where it takes longer than the former."""
    for tp in (1, 8):
        shape = shape_of(name, system, tp, kv=kv)
        for kind in [m.kind for m in mixers(shape) if m.kind.kind == "latent"]:
            assert source_of(shape, kind) == "sparse"
            batch, context = sparse.decode_axes(shape, kind)
            (part,) = sparse.decode_parts(shape, kind, batch, context, 1)
            table, site = sparse._found(shape, kind, sparse.DECODE)
            assert site[3] == ("fp8" if kv == "fp8" else "bfloat16")
            assert site[5] == kind.num_attention_heads // tp
            assert site[0].endswith("skip_indexer") == (kind.index_dim == 0)
            _, step, rows = table.surface(site)
            rows = rows[:, np.isin(step, context - 1)]
            rest = part.timing.total_s.reshape(rows.shape)
            outside = sparse.outside_s(shape, kind, site, batch)[:, None]
            known = np.isfinite(rows) & (rows > outside)
            assert known.mean() > 0.9
            np.testing.assert_allclose((rest + outside)[known], rows[known], rtol=1e-9)
            assert part.timing.shares().keys() <= {"interpolated", "extrapolated"}
            # A layer reads at most 2,048 latents a sequence, and looks through the index of all.
            entry = 576 * shape.kv_bytes_per_element
            least = np.outer(batch, np.minimum(context, 2048) * entry + context * kind.index_dim)
            least = least.ravel() / shape.gpu.mem_bw_bytes_per_s
            assert (part.at(1.0).total_s >= 0.999999 * least).all()


@pytest.mark.parametrize("system", WITH_SPARSE)
def test_sparse_prompts_come_back_when_put_together(system):
    shape = shape_of(SPARSE[0], system, 8)
    kind = kind_of(shape, "latent")
    table, site = sparse._found(shape, kind, sparse.PREFILL)
    _, lengths, rows = table.surface(site)
    known = np.isfinite(rows[0])
    (part,), floor = sparse.prefill_parts(shape, kind, lengths[known], 1)
    outside = sparse.outside_s(shape, kind, site, lengths[known])
    put_together = part.timing.total_s + floor.total_s + outside
    error = put_together / rows[0][known] - 1
    assert (error > -1e-9).all()  # above where a longer prompt was measured quicker
    assert np.median(error) < 1e-9
    assert (error < 0.15).all()


def test_indexers_cost_and_layers_without_one_are_quicker():
    shape = shape_of("zai-org/GLM-5.2", "h200_sxm", 8)
    own, borrowed = sorted(
        (m.kind for m in mixers(shape)), key=lambda kind: kind.index_dim, reverse=True
    )
    grid = np.array([64.0]), np.array([65536.0])
    with_indexer, without = (
        sparse.decode_parts(shape, kind, *grid, 1)[0].timing.total_s[0] for kind in (own, borrowed)
    )
    assert with_indexer > 1.5 * without


def test_sizes_that_no_block_has_stay_with_the_roofline():
    shape = shape_of(SPARSE[0], "h200_sxm", 8)
    kind = kind_of(shape, "latent")
    assert source_of(shape, kind) == "sparse"
    assert source_of(shape, replace(kind, v_head_dim=64)) == "roofline"
    assert source_of(replace(shape, dcp=2), kind) == "roofline"
    assert source_of(shape_of(SPARSE[0], "a100_sxm", 8), kind) == "roofline"
