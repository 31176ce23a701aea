"""What is refused, with file, row and reason."""

import numpy as np
import polars as pl
import pytest

from sieve.errors import TableError
from sieve.perf import table_check
from sieve.perf.kernel_table import load, read, system_folder
from sieve.perf.table_check import check_for_gpu, drop_repeats, read_frame
from sieve.perf.table_schema import MODES, OPERATIONS, WEIGHT_BYTES
from sieve.perf.table_work import limit_us


def gemm(**changes):
    columns = {
        "gemm_dtype": ["bfloat16"] * 4, "n": [4096, 4096, 8192, 8192], "k": [4096] * 4,
        "m": [1, 2, 1, 2], "latency_us": [12.0, 13.0, 24.0, 25.0],
    }  # fmt: skip
    return pl.DataFrame(columns | changes)


def written(tmp_path, **changes):
    path = tmp_path / "gemm.parquet"
    gemm(**changes).write_parquet(path)
    return path


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"m": ["1", "2", "3", "4"]}, "column m is String, must be whole numbers"),
        ({"m": [1.0, 2.0, 1.0, 2.0]}, "column m is Float64, must be whole numbers"),
        ({"m": [1, None, 1, 2]}, r"row 1: m is None, must be a whole number from 0 to"),
        ({"n": [4096, 4096, -1, 8192]}, r"row 2: n is -1, must be a whole number"),
        ({"k": [4096, 2**40, 4096, 4096]}, r"row 1: k is 1099511627776, must be a whole number"),
        ({"gemm_dtype": [1, 2, 3, 4]}, "column gemm_dtype is Int64, must be text"),
        ({"gemm_dtype": ["bfloat16", None, "x", "y"]}, "row 1: gemm_dtype is None, must be a text"),
        ({"gemm_dtype": ["b", "b", "b", "x" * 201]}, "row 3: gemm_dtype is x+, must be a text of"),
        ({"latency_us": ["a", "b", "c", "d"]}, "column latency_us is String, must be a number"),
        ({"latency_us": [12.0, -1.0, 24.0, 25.0]}, "row 1: latency_us is -1.0, must be finite"),
        ({"latency_us": [12.0, 13.0, np.nan, 25.0]}, "row 2: latency_us is nan, must be finite"),
        ({"latency_us": [12.0, 13.0, 24.0, None]}, "row 3: latency_us is nan, must be finite"),
    ],
)
def test_bad_values_are_named_with_file_and_row(tmp_path, changes, message):
    with pytest.raises(TableError, match=rf"gemm\.parquet.*{message}"):
        read_frame(written(tmp_path, **changes), "gemm")


def test_a_missing_column_names_what_was_found_and_what_is_wanted(tmp_path):
    path = tmp_path / "gemm.parquet"
    gemm().drop("k").write_parquet(path)
    with pytest.raises(TableError, match=r"columns k are missing \(found: gemm_dtype, n, m"):
        read_frame(path, "gemm")


def test_sizes_are_bounded(tmp_path, monkeypatch):
    path = written(tmp_path)
    monkeypatch.setattr(table_check, "MAX_ROWS", 3)
    with pytest.raises(TableError, match="4 rows, at most 3 are read"):
        read_frame(path, "gemm")
    monkeypatch.setattr(table_check, "MAX_BYTES", 10)
    with pytest.raises(TableError, match="bytes, at most 10 are read"):
        read_frame(path, "gemm")


def test_a_folder_in_place_of_a_file_is_refused(tmp_path):
    with pytest.raises(TableError, match="is not a file"):
        read_frame(tmp_path, "gemm")


def test_files_cut_short_are_refused(tmp_path):
    path = written(tmp_path)
    whole = path.read_bytes()
    for i in range(10):
        path.write_bytes(whole[: len(whole) * i // 10])
        with pytest.raises(TableError, match=r"gemm\.parquet: not a readable parquet file"):
            read(path, "gemm")


def test_columns_beyond_the_schema_are_not_read(tmp_path):
    path = tmp_path / "gemm.parquet"
    gemm().with_columns(blob=pl.lit(b"\x80\x04cos\nsystem\n")).write_parquet(path)
    assert read_frame(path, "gemm").columns == ["gemm_dtype", "n", "k", "m", "latency_us"]


def test_repeats_that_disagree_are_refused_and_equal_ones_joined(tmp_path):
    path = tmp_path / "gemm.parquet"
    equal = gemm(m=[1, 1, 1, 2], latency_us=[12.0, 12.0, 24.0, 25.0])
    assert drop_repeats(path, equal, "gemm").height == 3
    with pytest.raises(TableError, match="n 4096, k 4096, m 1 occurs 2 times with latencies 12 an"):
        drop_repeats(path, gemm(m=[1, 1, 1, 2]), "gemm")


@pytest.mark.parametrize(
    ("factor", "words"), [(1e-3, "they look like milliseconds"), (1e3, "they look like nano")]
)
@pytest.mark.parametrize("op", ["gemm", "moe", "generation_attention", "context_attention", "nccl"])
def test_units_off_by_a_thousand_are_refused(h100, op, factor, words):
    path = system_folder("h100_sxm") / f"{op}.parquet"
    frame = read_frame(path, op)
    check_for_gpu(path, frame, op, h100)
    wrong = frame.with_columns(pl.col("latency_us") * factor)
    with pytest.raises(TableError, match=rf"{op}\.parquet, row \d+: latency_us is .*{words}"):
        check_for_gpu(path, wrong, op, h100)


def test_an_operation_without_a_bound_still_has_a_shortest_kernel(h100):
    frame = pl.DataFrame(
        {"op_name": ["a"], "bmm_dtype": ["bfloat16"], "num_heads": [8], "num_tokens": [1],
         "latency_us": [0.005]}
    )  # fmt: skip
    with pytest.raises(TableError, match=r"row 0: latency_us is 0\.005, but no kernel takes"):
        check_for_gpu("t.parquet", frame, "mla_bmm", h100)


@pytest.mark.parametrize("name", ["fp8", "fp8_block", "nvfp4"])
def test_a_precision_that_the_gpu_lacks_is_refused(a100, name):
    frame = gemm(gemm_dtype=["bfloat16", "bfloat16", name, "bfloat16"])
    with pytest.raises(TableError, match=rf"row 2: gemm_dtype is '{name}', but A100 has no"):
        check_for_gpu("gemm.parquet", frame, "gemm", a100)


def test_an_unknown_precision_is_refused(h100):
    with pytest.raises(TableError, match="row 0: gemm_dtype is 'fp7'; known are bfloat16"):
        check_for_gpu("gemm.parquet", gemm(gemm_dtype=["fp7"] * 4), "gemm", h100)
    frame = pl.DataFrame(
        {"op_name": ["all_reduce"], "nccl_dtype": ["fp3"], "num_gpus": [2], "message_size": [1],
         "latency_us": [5.0]}
    )  # fmt: skip
    with pytest.raises(TableError, match="row 0: nccl_dtype is 'fp3'; known are"):
        check_for_gpu("nccl.parquet", frame, "nccl", h100)


def test_the_least_time_follows_from_bytes_and_operations(h100):
    """33.6 MB at 3.35 TB/s; 2 x 8192 x 4096 x 4096 FLOP at 989 TFLOP/s."""
    frame = gemm(m=[1, 8192, 1, 2]).head(2)
    np.testing.assert_allclose(
        limit_us(frame, "gemm", h100), [4096 * 4096 * 2 / 3.35e6, 2 * 8192 * 4096**2 / 989e6]
    )
    heads = {"head_dim": 128, "num_heads": 8, "num_key_value_heads": 2}
    kinds = {"attn_dtype": "bfloat16", "kv_cache_dtype": "fp8"}
    attention = pl.DataFrame(
        kinds | heads | {"window_size": [0, 128], "batch_size": 4, "step": 999}
    )
    np.testing.assert_allclose(
        limit_us(attention, "generation_attention", h100),
        [2 * 4 * 1000 * 2 * 128 / 3.35e6, 2 * 4 * 128 * 2 * 128 / 3.35e6],
    )
    ring = pl.DataFrame({"op_name": "all_reduce", "nccl_dtype": "half", "num_gpus": [8],
                         "message_size": 2**20})  # fmt: skip
    np.testing.assert_allclose(limit_us(ring, "nccl", h100), [2**21 * 7 / 8 / 450e3])


def test_the_schema_is_whole():
    for operation in OPERATIONS.values():
        assert set(operation.precision) | set(operation.stored) <= set(operation.keys)
        assert 1 <= len(operation.axes) <= 2
    assert set(WEIGHT_BYTES) <= set(MODES)
    assert load("h100_sxm", "kda") is not None
