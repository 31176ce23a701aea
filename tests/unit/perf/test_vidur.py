"""Vidur profiles: sizes of matrices from the model's widths, medians in milliseconds."""

import polars as pl
import pytest

from sieve.errors import TableError
from sieve.perf.vidur import import_vidur, is_vidur

# Llama-2-70B: 64 query and 8 KV heads of 128, width 8192, feed-forward 28672, gated.
MLP = {
    "n_head": 64, "n_kv_head": 8, "n_embd": 8192, "n_expanded_embd": 28672, "vocab_size": 32000,
    "use_gated_mlp": True, "num_tensor_parallel_workers": 4, "num_tokens": [1, 128],
    "time_stats.attn_pre_proj.median": [0.03, 0.05],
    "time_stats.attn_post_proj.median": [0.02, 0.04],
    "time_stats.mlp_up_proj.median": [0.09, 0.12], "time_stats.mlp_down_proj.median": [0.06, 0.08],
    "time_stats.mlp_act.median": [0.01, 0.01],
}  # fmt: skip
ATTENTION = {
    "n_embd": 8192, "n_q_head": 64, "n_kv_head": 8, "num_tensor_parallel_workers": 4,
    "block_size": 16, "batch_size": [1, 1, 8, 8], "prefill_chunk_size": [512, 512, 0, 0],
    "kv_cache_size": [0, 1024, 512, 4096], "is_prefill": [True, True, False, False],
    "time_stats.attn_prefill.median": [0.08, 0.1, None, None],
    "time_stats.attn_decode.median": [None, None, 0.02, 0.05],
}  # fmt: skip
NETWORK = {
    "rank": 0, "num_workers": [2, 4, 4], "size": [2**20] * 3, "devices_per_node": [2, 4, 1],
    "time_stats.all_reduce.median": [0.02, 0.03, 0.2],
}  # fmt: skip


def profiles(root, mlp=MLP, attention=ATTENTION, network=NETWORK, device="h100"):
    compute = root / "compute" / device / "meta-llama" / "Llama-2-70b-hf"
    for folder, name, columns in (
        (compute, "mlp.csv", mlp), (compute, "attention.csv", attention),
        (root / "network" / f"{device}_dgx", "all_reduce.csv", network),
    ):  # fmt: skip
        if columns is not None:
            folder.mkdir(parents=True, exist_ok=True)
            pl.DataFrame(columns).write_csv(folder / name)
    return root


def test_products_have_the_sizes_of_one_gpu(tmp_path, h100):
    table = import_vidur(profiles(tmp_path), h100).tables["gemm"]
    sizes = set(table.select("n", "k").rows())
    # QKV (64 + 2 x 8) x 128 / 4; O 64 x 128 / 4; gate and up 2 x 28672 / 4; down 28672 / 4.
    assert sizes == {(2560, 8192), (8192, 2048), (14336, 8192), (8192, 7168)}
    up = table.filter((pl.col("n") == 14336) & (pl.col("m") == 128))
    assert up["latency_us"].item() == pytest.approx(120.0)
    assert table["gemm_dtype"].unique().to_list() == ["bfloat16"]


def test_attention_is_split_into_prefill_and_decode(tmp_path, h100):
    result = import_vidur(profiles(tmp_path), h100)
    prefill, decode = result.tables["context_attention"], result.tables["generation_attention"]
    row = prefill.row(0, named=True)
    assert (row["head_dim"], row["num_heads"], row["num_key_value_heads"]) == (128, 16, 2)
    assert (row["batch_size"], row["isl"]) == (1, 512)
    assert row["latency_us"] == pytest.approx(80.0)
    assert decode.select("batch_size", "step", "window_size").rows() == [(8, 512, 0), (8, 4096, 0)]
    assert any("1 rows of prefill against cached tokens" in why for _, why in result.skipped)


def test_all_reduces_across_hosts_are_left_out(tmp_path, h100):
    result = import_vidur(profiles(tmp_path), h100)
    rows = result.tables["nccl"].select("num_gpus", "message_size", "latency_us").rows()
    assert rows == [(2, 2**19, 20.0), (4, 2**19, 30.0)]
    assert any("1 rows across hosts" in why for _, why in result.skipped)


def test_the_folder_of_a_model_alone_will_do(tmp_path, h100):
    root = profiles(tmp_path, network=None)
    model = root / "compute" / "h100" / "meta-llama" / "Llama-2-70b-hf"
    assert is_vidur(model)
    assert set(import_vidur(model, h100).tables) == {
        "gemm", "context_attention", "generation_attention",
    }  # fmt: skip


def test_other_folders_are_not_taken_for_profiles(tmp_path):
    assert not is_vidur(tmp_path)
    assert not is_vidur(tmp_path / "none")
    pl.DataFrame(MLP).write_csv(tmp_path / "mlp.csv")
    assert is_vidur(tmp_path)
    (tmp_path / "gemm_perf.txt").write_text("m\n")
    assert not is_vidur(tmp_path)


@pytest.mark.parametrize(
    ("part", "changes", "message"),
    [
        ("mlp", {"n_embd": None}, r"mlp\.csv, row 0: n_embd is None, must be a whole number"),
        ("mlp", {"num_tokens": [1, -2]}, r"mlp\.csv, row 1: num_tokens is -2"),
        ("mlp", {"num_tensor_parallel_workers": 0}, "num_tensor_parallel_workers is 0"),
        (
            "mlp", {"time_stats.mlp_up_proj.median": [0.1, -0.1]},
            r"mlp\.csv, row 1: time_stats.mlp_up_proj.median is -0.1",
        ),
        (
            "attention", {"time_stats.attn_decode.median": [None, None, 0.02, None]},
            r"attention\.csv, row 3: time_stats.attn_decode.median is None",
        ),
        ("network", {"time_stats.all_reduce.median": ["x", "y", "z"]}, "must be a number"),
        ("mlp", {"time_stats.attn_pre_proj.median": [30.0, 50.0],
                 "time_stats.attn_post_proj.median": [30.0, 50.0],
                 "time_stats.mlp_up_proj.median": [90.0, 120.0],
                 "time_stats.mlp_down_proj.median": [60.0, 80.0]}, "latencies must be micro"),
    ],
)  # fmt: skip
def test_bad_profiles_are_refused(tmp_path, h100, part, changes, message):
    base = {"mlp": MLP, "attention": ATTENTION, "network": NETWORK}
    with pytest.raises(TableError, match=message):
        import_vidur(profiles(tmp_path, **{part: base[part] | changes}), h100)


def test_a_missing_column_is_named(tmp_path, h100):
    mlp = {name: values for name, values in MLP.items() if name != "n_kv_head"}
    with pytest.raises(TableError, match=r"mlp\.csv: columns n_kv_head are missing"):
        import_vidur(profiles(tmp_path, mlp=mlp), h100)


def test_models_of_several_makers_are_one_device(tmp_path, h100):
    profiles(tmp_path)
    other = tmp_path / "compute" / "h100" / "Qwen" / "Qwen-72B"
    other.mkdir(parents=True)
    pl.DataFrame(MLP | {"n_expanded_embd": 24576}).write_csv(other / "mlp.csv")
    sizes = import_vidur(tmp_path, h100).tables["gemm"].select("n", "k").rows()
    assert {(2 * 24576 // 4, 8192), (14336, 8192)} <= set(sizes)


def test_several_devices_are_refused(tmp_path, h100):
    profiles(tmp_path)
    model = tmp_path / "compute" / "a100" / "meta-llama"
    model.mkdir(parents=True)
    pl.DataFrame(MLP).write_csv(model / "mlp.csv")
    with pytest.raises(TableError, match="profiles of the devices a100, h100; give"):
        import_vidur(tmp_path, h100)
