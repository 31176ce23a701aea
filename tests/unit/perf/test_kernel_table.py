import hashlib

import numpy as np
import polars as pl
import pytest
import yaml

from sieve.catalog.accelerators import load_gpu
from sieve.errors import TableError
from sieve.perf.kernel_table import SCHEMAS, load, read, system_folder
from sieve.perf.table_check import check_for_gpu, drop_repeats, read_frame
from sieve.perf.table_schema import OPERATIONS

SYSTEMS = ("h100_sxm", "h200_sxm", "a100_sxm", "l40s", "b200_sxm")


def write(path, **changes):
    columns = {
        "gemm_dtype": ["bfloat16"] * 4, "n": [64, 64, 128, 128], "k": [32] * 4,
        "m": [1, 2, 1, 2], "latency_us": [2.0, 3.0, 4.0, 5.0],
    }  # fmt: skip
    pl.DataFrame(columns | changes).write_parquet(path)
    return path


def test_a_site_returns_its_curve_in_seconds(tmp_path):
    table = read(write(tmp_path / "gemm.parquet"), "gemm")
    m, latency = table.curve(("bfloat16", 128, 32))
    np.testing.assert_array_equal(m, [1, 2])
    np.testing.assert_allclose(latency, [4e-6, 5e-6])
    np.testing.assert_array_equal(table.distinct_axis, [1, 2])


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf"), None])
def test_a_bad_latency_is_named_with_its_row(tmp_path, bad):
    path = write(tmp_path / "gemm.parquet", latency_us=[2.0, 3.0, bad, 5.0])
    with pytest.raises(TableError, match=r"gemm\.parquet, row 2: latency_us"):
        read(path, "gemm")


def test_a_doubled_key_is_named_with_its_row(tmp_path):
    with pytest.raises(TableError, match="row 1: repeats the key"):
        read(write(tmp_path / "gemm.parquet", m=[1, 1, 1, 2]), "gemm")


def test_rows_out_of_order_are_refused(tmp_path):
    with pytest.raises(TableError, match="row 3: is out of order"):
        read(write(tmp_path / "gemm.parquet", m=[1, 2, 2, 1]), "gemm")
    with pytest.raises(TableError, match="do not lie together"):
        read(write(tmp_path / "gemm.parquet", n=[64, 128, 64, 128]), "gemm")


def test_a_missing_column_is_named(tmp_path):
    path = tmp_path / "gemm.parquet"
    pl.DataFrame({"n": [1]}).write_parquet(path)
    with pytest.raises(TableError, match="gemm_dtype, k, m, latency_us are missing"):
        read(path, "gemm")


def test_an_empty_table_is_refused(tmp_path):
    path = write(tmp_path / "gemm.parquet")
    pl.read_parquet(path).head(0).write_parquet(path)
    with pytest.raises(TableError, match="no rows"):
        read(path, "gemm")


def test_a_file_that_is_not_parquet_is_refused(tmp_path):
    path = tmp_path / "gemm.parquet"
    path.write_text("text")
    with pytest.raises(TableError, match="not a readable parquet file"):
        read(path, "gemm")


def test_a_system_without_tables_has_none():
    assert load("", "gemm") is None
    assert load("abacus", "gemm") is None
    assert system_folder("abacus") is None


USED = [name for name, op in OPERATIONS.items() if op.used]
NOT_MEASURED = {
    ("a100_sxm", "gdn"), ("a100_sxm", "kda"), ("a100_sxm", "dsa_context_module"),
    ("a100_sxm", "dsa_generation_module"), ("l40s", "dsa_context_module"),
    ("l40s", "dsa_generation_module"),
}  # fmt: skip


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("op", SCHEMAS)
def test_packaged_tables_pass_their_checks(system, op):
    table = load(system, op)
    assert table is not None or op not in USED or (system, op) in NOT_MEASURED
    if table is not None:
        assert table.sites
        assert load(system, op) is table


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("op", SCHEMAS)
def test_packaged_tables_can_have_been_measured_on_their_gpu(system, op):
    """Precisions that the hardware has, latencies in microseconds, every row with its origin."""
    path = system_folder(system) / f"{op}.parquet"
    if path.exists():
        frame = read_frame(path, op, extra=("source", "condemned"))
        check_for_gpu(path, frame, op, load_gpu(system))
        assert frame["source"].is_not_null().all()
        assert drop_repeats(path, frame, op).height == frame.height


def test_packaged_tables_are_small():
    files = [path for system in SYSTEMS for path in system_folder(system).glob("*.parquet")]
    assert sum(path.stat().st_size for path in files) < 10e6


def test_condemned_rows_stay_in_the_file_and_are_not_used(tmp_path):
    path = write(tmp_path / "gemm.parquet", condemned=[None, "spike", None, None])
    m, latency = read(path, "gemm").curve(("bfloat16", 64, 32))
    np.testing.assert_array_equal(m, [1])
    np.testing.assert_allclose(latency, [2e-6])
    gone = write(tmp_path / "gemm.parquet", condemned=["spike", "spike", None, None])
    assert set(read(gone, "gemm").sites) == {("bfloat16", 128, 32)}


def test_a_folder_hands_on_what_it_lacks(tmp_path):
    write(tmp_path / "gemm.parquet")
    (tmp_path / "provenance.yaml").write_text("others_from: h100_sxm\n")
    assert len(load(str(tmp_path), "gemm").latency_s) == 4
    assert load(str(tmp_path), "moe") is load("h100_sxm", "moe")


@pytest.mark.parametrize("name", ["../kernel_tables/h100_sxm", "/etc", "", "nowhere"])
def test_others_are_a_folder_of_the_installation_or_none(tmp_path, name):
    (tmp_path / "provenance.yaml").write_text(f"others_from: {name!r}\n")
    assert load(str(tmp_path), "moe") is None


def test_a_provenance_that_is_no_mapping_is_refused(tmp_path):
    (tmp_path / "provenance.yaml").write_text("[1, 2]")
    with pytest.raises(TableError, match=r"provenance\.yaml: holds list"):
        load(str(tmp_path), "moe")
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "provenance.yaml").write_text("a: [")
    with pytest.raises(TableError, match="not readable as YAML"):
        load(str(broken), "moe")


def test_surfaces_mark_what_was_not_measured():
    table = load("h100_sxm", "generation_attention")
    batch, step, latency = table.surface(("bfloat16", "bfloat16", 128, 0, 8, 1))
    assert latency.shape == (len(batch), len(step))
    assert np.isfinite(latency[0]).all()
    assert np.isnan(latency[-1, -1])


@pytest.mark.parametrize("system", SYSTEMS)
def test_provenance_describes_the_files_that_are_there(system):
    folder = system_folder(system)
    record = yaml.safe_load((folder / "provenance.yaml").read_text(encoding="utf-8"))
    assert record["source"]["licence"] == "Apache-2.0"
    assert {path.stem for path in folder.glob("*.parquet")} == set(record["operations"])
    for op, entry in record["operations"].items():
        data = (folder / f"{op}.parquet").read_bytes()
        assert hashlib.sha256(data).hexdigest() == entry["sha256"]
        assert len(load(system, op).latency_s) == entry["rows"] - entry["condemned_rows"]
        assert tuple(entry["keys"]) == (*SCHEMAS[op][0], *SCHEMAS[op][1])
