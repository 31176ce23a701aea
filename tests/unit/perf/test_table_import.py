"""Kernels that others collected, brought into the schema."""

import polars as pl
import pytest

from sieve.errors import TableError
from sieve.perf import table_import
from sieve.perf.kernel_table import read
from sieve.perf.table_import import import_tables
from sieve.perf.table_store import write_tables


def raw(latency_ms, m=None, **columns):
    """Rows as the collectors write them, latencies in milliseconds."""
    m = m or list(range(1, len(latency_ms) + 1))
    frame = pl.DataFrame({"m": m, "latency": [float(v) for v in latency_ms]})
    facts = {
        "framework": "VLLM", "version": "0.24.0", "device": "NVIDIA H100", "op_name": "gemm",
        "kernel_source": "k", "gemm_dtype": "bfloat16", "n": 4096, "k": 4096,
    }  # fmt: skip
    return frame.with_columns([pl.lit(v).alias(c) for c, v in {**facts, **columns}.items()])


def put(root, frame, engine="vllm", version="0.24.0", system="h100_sxm", op="gemm", group="gemm/"):
    folder = root / "systems" / "data" / system / f"{group}{engine}" / version
    folder.mkdir(parents=True)
    frame.write_parquet(folder / f"{op}_perf.parquet")
    return folder / f"{op}_perf.parquet"


def test_milliseconds_become_microseconds_and_the_source_comes_from_the_folder(tmp_path, h100):
    put(tmp_path, raw([0.012, 0.013]))
    result = import_tables(tmp_path, h100, "h100_sxm")
    table = result.tables["gemm"]
    assert table["latency_us"].to_list() == pytest.approx([12.0, 13.0])
    assert table["source"].to_list() == ["vllm 0.24.0"] * 2
    assert table["kernel_source"].to_list() == ["k"] * 2
    assert result.layout == "aiconfigurator systems"


def test_the_newest_version_of_the_first_engine_wins_site_by_site(tmp_path, h100):
    put(tmp_path, raw([0.012, 0.013]), version="0.9.0")
    put(tmp_path, raw([0.014, 0.015]), version="0.24.0")
    other = pl.concat([raw([0.011, 0.011]), raw([0.030, 0.031], n=8192)])
    put(tmp_path, other, engine="sglang", version="9.0")
    table = import_tables(tmp_path, h100, "h100_sxm").tables["gemm"]
    assert table.filter(pl.col("n") == 4096)["source"].unique().to_list() == ["vllm 0.24.0"]
    assert table.filter(pl.col("n") == 8192)["source"].unique().to_list() == ["sglang 9.0"]


def test_a_version_that_the_audit_condemns_gives_way(tmp_path, h100):
    """The newest version was timed with its launches, so the one before is taken."""
    m = [1, 2, 4, 8, 16, 32]
    put(tmp_path, raw([0.012] * 6, m=m), version="0.24.0")
    put(tmp_path, raw([0.090] * 6, m=m), version="0.27.0")
    result = import_tables(tmp_path, h100, "h100_sxm")
    assert result.tables["gemm"]["source"].unique().to_list() == ["vllm 0.24.0"]
    assert result.tables["gemm"]["condemned"].null_count() == 6
    assert [f.rule for f in result.findings["gemm"] if f.condemns] == ["launch_in_timing"]


def test_a_site_condemned_everywhere_stays_marked(tmp_path, h100):
    put(tmp_path, raw([0.090] * 6, m=[1, 2, 4, 8, 16, 32]))
    table = import_tables(tmp_path, h100, "h100_sxm").tables["gemm"]
    assert table["condemned"].to_list() == ["launch_in_timing"] * 6


def test_repeats_become_their_median_and_far_ones_are_condemned(tmp_path, h100):
    put(tmp_path, raw([0.012, 0.014, 0.016, 0.013, 0.050], m=[1, 1, 1, 2, 2]))
    table = import_tables(tmp_path, h100, "h100_sxm").tables["gemm"]
    assert table["latency_us"].to_list() == pytest.approx([14.0, 31.5])
    assert table["condemned"].to_list() == [None, "repeats_disagree"]


def test_of_two_kernels_the_quicker_is_what_runs(tmp_path, h100):
    both = pl.concat([raw([0.012, 0.020]), raw([0.015, 0.016], kernel_source="j")])
    put(tmp_path, both)
    table = import_tables(tmp_path, h100, "h100_sxm").tables["gemm"]
    assert table["latency_us"].to_list() == pytest.approx([12.0, 16.0])
    assert table["kernel_source"].to_list() == ["k", "j"]


def test_older_releases_wrote_text(tmp_path, h100):
    folder = tmp_path / "data" / "h100_sxm" / "vllm" / "0.8.0"
    folder.mkdir(parents=True)
    raw([0.012, 0.013]).write_csv(folder / "gemm_perf.txt")
    assert import_tables(tmp_path, h100, "h100_sxm").tables["gemm"].height == 2


def test_what_is_not_read_is_named(tmp_path, h100):
    put(tmp_path, raw([0.012]))
    put(tmp_path, raw([0.012]), op="msa_context_module", group="sparse/")
    put(tmp_path, raw([0.012]).drop("k"), engine="trtllm", version="1.0")
    skipped = import_tables(tmp_path, h100, "h100_sxm").skipped
    assert any("msa_context_module is not read by this version" in why for _, why in skipped)
    assert any(why == "columns k are missing" for _, why in skipped)


def test_only_the_gpus_own_system_is_read(tmp_path, h100):
    put(tmp_path, raw([0.012]))
    put(tmp_path, raw([0.009]), system="b200_sxm")
    assert import_tables(tmp_path, h100, "h100_sxm").tables["gemm"]["latency_us"].item() == 12.0
    with pytest.raises(TableError, match="holds b200_sxm, h100_sxm; this GPU has no name among"):
        import_tables(tmp_path, h100, "")


def test_the_microseconds_of_the_all_to_all_stay(tmp_path, h100):
    frame = pl.DataFrame(
        {"comm_backend": "d", "phase": "combine", "ep_size": 8, "node_num": 1, "hidden_size": 4096,
         "topk": 8, "num_experts": 256, "sms": 20, "num_tokens": [16, 32], "latency": [70.0, 80.0]}
    )  # fmt: skip
    put(tmp_path, frame, op="moe_a2a", group="comm/")
    table = import_tables(tmp_path, h100, "h100_sxm").tables["moe_a2a"]
    assert table["latency_us"].to_list() == [70.0, 80.0]


def test_own_tables_need_no_package(tmp_path, h100):
    own = pl.DataFrame({"gemm_dtype": "bfloat16", "n": 4096, "k": 4096, "m": [2, 1],
                        "latency_us": [13.0, 12.0]})  # fmt: skip
    own.write_parquet(tmp_path / "gemm.parquet")
    result = import_tables(tmp_path, h100, "h100_sxm")
    assert result.tables["gemm"]["m"].to_list() == [1, 2]
    assert result.tables["gemm"]["source"].unique().to_list() == ["own"]
    own.with_columns(source=pl.lit("bench 3")).write_csv(tmp_path / "gemm.csv")
    (tmp_path / "gemm.parquet").unlink()
    again = import_tables(tmp_path, h100, "h100_sxm").tables["gemm"]
    assert again["source"].unique().to_list() == ["bench 3"]
    assert again["latency_us"].to_list() == [12.0, 13.0]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"latency_us": [12.0, -3.0]}, r"gemm\.parquet, row 1: latency_us is -3"),
        ({"latency_us": [12.0, 14.0], "m": [1, 1]}, "occurs 2 times with latencies 12 and 14"),
        ({"latency_us": [0.012, 0.013]}, "they look like milliseconds"),
        ({"latency_us": [12.0, 13.0], "gemm_dtype": "nvfp4"}, "but H100 has no fp4 arithmetic"),
    ],
)
def test_bad_own_tables_are_refused(tmp_path, h100, columns, message):
    base = {"gemm_dtype": "bfloat16", "n": 4096, "k": 4096, "m": [1, 2]}
    pl.DataFrame(base | columns).write_parquet(tmp_path / "gemm.parquet")
    with pytest.raises(TableError, match=message):
        import_tables(tmp_path, h100, "h100_sxm")


def test_a_missing_column_of_an_own_table_is_refused(tmp_path, h100):
    pl.DataFrame({"n": [1], "m": [1], "latency": [0.01]}).write_csv(tmp_path / "gemm.csv")
    with pytest.raises(TableError, match=r"gemm\.csv: columns gemm_dtype, k are missing"):
        import_tables(tmp_path, h100, "h100_sxm")


def test_a_folder_without_tables_says_what_is_expected(tmp_path, h100):
    with pytest.raises(TableError, match="no kernel tables; expected"):
        import_tables(tmp_path, h100, "h100_sxm")
    with pytest.raises(TableError, match="no such folder"):
        import_tables(tmp_path / "none", h100, "h100_sxm")


def test_the_number_of_files_and_rows_is_bounded(tmp_path, h100, monkeypatch):
    put(tmp_path, raw([0.012, 0.013]))
    put(tmp_path, raw([0.012]), version="0.25.0")
    monkeypatch.setattr(table_import, "MAX_ROWS", 2)
    with pytest.raises(TableError, match="over 2 rows in all"):
        import_tables(tmp_path, h100, "h100_sxm")
    monkeypatch.setattr(table_import, "MAX_FILES", 1)
    with pytest.raises(TableError, match="over 1 tables"):
        import_tables(tmp_path, h100, "h100_sxm")


def test_what_is_written_reads_back(tmp_path, h100):
    put(tmp_path, raw([0.012, 0.090, 0.013, 0.014, 0.015]))
    result = import_tables(tmp_path, h100, "h100_sxm")
    record = write_tables(tmp_path / "out", {"gpu": "H100"}, result.tables, result.findings)
    m, latency = read(tmp_path / "out" / "gemm.parquet", "gemm").curve(("bfloat16", 4096, 4096))
    assert m.tolist() == [1, 3, 4, 5]
    assert latency.tolist() == pytest.approx([12e-6, 13e-6, 14e-6, 15e-6])
    assert record["operations"]["gemm"]["condemned_rows"] == 1
