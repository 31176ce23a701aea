"""`sieve tables`, and runs on imported tables."""

import hashlib
import json
import shutil

import polars as pl
import pytest
import yaml
from typer.testing import CliRunner

import sieve
from sieve.cli.main import app
from sieve.errors import TableError
from sieve.resources import data_folder

SPEC = {
    "name": "tables",
    "model": "Qwen/Qwen3-8B",
    "traffic": {"trace": "chat", "requests": 50, "rate_per_s": 1, "levels": [1.0]},
    "slo": {"ttft_p99": "30 s", "tpot_p99": "1 s"},
    "fleet": {"gpus": ["H100-SXM-80GB"], "max_gpus": 1},
    "shortlist": {"size": 2},
    "grid": {"axes": {"gpu": ["H100-SXM-80GB"], "tp": [1], "weight_dtype": ["bf16"]}},
}
N_K = [(4096, 4096), (6144, 4096), (24576, 4096), (4096, 12288)]  # of Qwen3-8B


def call(*args):
    return CliRunner().invoke(app, ["tables", *map(str, args)])


def document(*args):
    done = call(*args, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.fixture
def measured(tmp_path):
    """Own products of Qwen3-8B, in a folder to import."""
    folder = tmp_path / "measured"
    folder.mkdir()
    rows = [
        {"gemm_dtype": "bfloat16", "n": n, "k": k, "m": m, "latency_us": n * k / 1.2e6 + m * 0.4}
        for n, k in N_K
        for m in (1, 64, 1024, 8192)
    ]
    pl.DataFrame(rows).write_csv(folder / "gemm.csv")
    return folder


@pytest.fixture
def imported(tmp_path, measured):
    done = call("import", measured, "--gpu", "h100_sxm", "--into", tmp_path / "mine")
    assert done.exit_code == 0, done.output
    return tmp_path / "mine"


@pytest.mark.parametrize(
    "args",
    [
        ["list"], ["show", "l40s"], ["show", "H100-SXM-80GB"], ["show", "l40s", "--table", "nccl"],
        ["show", "b200_sxm", "--table", "moe"], ["show", "L4-24GB"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_pages_fit_80_columns(args):
    done = call(*args)
    assert done.exit_code == 0, done.output
    assert done.output.strip()
    assert max(len(line) for line in done.output.splitlines()) <= 80


def test_list_names_every_system_with_its_rows():
    systems = {entry["system"]: entry for entry in document("list")}
    assert set(systems) == {"a100_sxm", "b200_sxm", "h100_sxm", "h200_sxm", "l40s"}
    for name, entry in systems.items():
        files = list((data_folder("kernel_tables") / name).glob("*.parquet"))
        assert len(entry["operations"]) == len(files)
        assert entry["bytes"] == sum(path.stat().st_size for path in files)
        rows = sum(pl.scan_parquet(path).select(pl.len()).collect().item() for path in files)
        assert entry["rows"] == rows
        assert sum(entry["sources"].values()) == rows


def test_show_tells_precisions_ranges_sources_and_findings():
    (entry,) = document("show", "l40s", "--table", "nccl")["operations"]
    parts = {part["name"]: part for part in entry["parts"]}
    assert parts["all_reduce half"]["ranges"]["num_gpus"] == [2, 8, 3]
    assert parts["all_reduce half"]["sources"] == {"nccl 2.27.3": 63}
    assert parts["all_reduce half"]["condemned"] == 21
    assert any(f["rule"] == "slow_ring" and f["condemns"] for f in entry["findings"])
    assert entry["evidence"] == "measured"


def test_a_gpu_without_tables_is_said_to_have_none():
    assert "L4-24GB has no measured kernels" in call("show", "L4-24GB").output
    assert document("show", "L4-24GB")["operations"] == []
    assert "A100-SXM-80GB has no moe_a2a table" in call("show", "a100", "--table", "moe_a2a").output


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["show", "H1000"], "H100"),
        (["show", "l40s", "--table", "gem"], "operations are gemm"),
        (["list", "--tables", "nowhere"], "no such folder of kernel tables"),
        (["import", "nowhere", "--gpu", "l40s", "--into", "x"], "no such folder"),
    ],
)
def test_bad_arguments_are_named(args, message):
    with pytest.raises(sieve.errors.SieveError, match=message):
        CliRunner().invoke(app, ["tables", *args], catch_exceptions=False)


def test_an_import_writes_tables_and_their_origin(imported, measured):
    folder = imported / "h100-sxm-80gb"
    record = yaml.safe_load((folder / "provenance.yaml").read_text())
    assert record["gpu"] == "H100-SXM-80GB"
    assert record["others_from"] == "h100_sxm"
    entry = record["operations"]["gemm"]
    content = (folder / "gemm.parquet").read_bytes()
    assert entry["sha256"] == hashlib.sha256(content).hexdigest()
    source = hashlib.sha256((measured / "gemm.csv").read_bytes()).hexdigest()
    assert record["imports"][0]["files"] == {"gemm.csv": source}
    assert record["imports"][0]["operations"] == ["gemm"]
    assert document("show", "h100", "--tables", imported)["operations"][0]["rows"] == 16
    assert [entry["gpu"] for entry in document("list", "--tables", imported)] == ["H100-SXM-80GB"]


def test_a_second_import_adds_operations(imported, tmp_path):
    more = tmp_path / "more"
    more.mkdir()
    shutil.copy(data_folder("kernel_tables") / "h100_sxm" / "nccl.parquet", more)
    assert call("import", more, "--gpu", "h100", "--into", imported).exit_code == 0
    shown = document("show", "h100", "--tables", imported)["operations"]
    assert [entry["op"] for entry in shown] == ["gemm", "nccl"]
    path = imported / "h100-sxm-80gb" / "provenance.yaml"
    imports = yaml.safe_load(path.read_text())["imports"]
    assert [entry["operations"] for entry in imports] == [["gemm"], ["nccl"]]
    assert call("import", more, "--gpu", "h100", "--into", imported).exit_code == 0
    imports = yaml.safe_load(path.read_text())["imports"]
    assert [entry["operations"] for entry in imports] == [["gemm"], ["nccl"]]


def test_the_same_import_gives_the_same_bytes(imported, measured, tmp_path):
    call("import", measured, "--gpu", "h100", "--into", tmp_path / "again")
    for name in ("gemm.parquet", "provenance.yaml"):
        first = (imported / "h100-sxm-80gb" / name).read_bytes()
        assert first == (tmp_path / "again" / "h100-sxm-80gb" / name).read_bytes()


def test_nothing_is_written_when_a_table_is_refused(measured, tmp_path):
    pl.DataFrame({"gemm_dtype": "bfloat16", "n": 64, "k": 64, "m": [1], "latency_us": [-1.0]}
                 ).write_csv(measured / "gemm.csv")  # fmt: skip
    with pytest.raises(TableError, match=r"gemm\.csv, row 0: latency_us is -1"):
        CliRunner().invoke(
            app,
            ["tables", "import", str(measured), "--gpu", "h100", "--into", str(tmp_path / "x")],
            catch_exceptions=False,
        )
    assert not (tmp_path / "x").exists()


def test_a_file_in_the_way_is_named(measured, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(TableError, match="cannot be made"):
        CliRunner().invoke(
            app,
            ["tables", "import", str(measured), "--gpu", "h100", "--into", str(tmp_path / "file")],
            catch_exceptions=False,
        )


def test_a_gpu_without_shipped_tables_can_have_imported_ones(measured, tmp_path):
    """Its products are then measured; what was not imported comes from the roofline."""
    into = tmp_path / "l4"
    slower = pl.read_csv(measured / "gemm.csv").with_columns(
        latency_us=pl.col("n") * pl.col("k") * (2 / 0.25e6 + pl.col("m") * 2 / 80e6)
    )  # 0.25 TB/s and 80 TFLOP/s, of 0.3 and 121
    slower.write_csv(measured / "gemm.csv")
    assert call("import", measured, "--gpu", "L4-24GB", "--into", into).exit_code == 0
    spec = SPEC | {
        "fleet": {"gpus": ["L4-24GB"], "max_gpus": 2},
        "grid": {"axes": {"gpu": ["L4-24GB"], "tp": [2], "weight_dtype": ["bf16"]}},
        "kernel_tables": str(into),
    }
    result = sieve.run(spec)
    texts = [a["text"] for a in result.data["assumptions"]]
    assert "kernels imported by the user: gemm; others: roofline" in texts
    shares = result.data["ranking"][0]["evidence_shares"]
    assert shares["roofline"] > 0
    assert sum(shares.get(name, 0) for name in ("measured", "interpolated", "extrapolated")) > 0.3


def test_a_run_uses_the_imported_tables_and_says_so(imported):
    """Products a third slower than the shipped ones make each token slower."""
    shipped = sieve.run(SPEC)
    mine = sieve.run(SPEC | {"kernel_tables": str(imported)})
    names = {entry["name"]: entry["sha256"] for entry in mine.data["inputs"]}
    provenance = (imported / "h100-sxm-80gb" / "provenance.yaml").read_bytes()
    assert names["kernel_tables:h100-sxm-80gb"] == hashlib.sha256(provenance).hexdigest()
    assert any("imported by the user: gemm" in a["text"] for a in mine.data["assumptions"])
    assert str(imported) not in json.dumps(mine.data)
    assert mine.data["spec"]["kernel_tables"] == "mine"
    by_id = {row["candidate_id"]: row for row in shipped.data["ranking"]}
    assert mine.data["ranking"]
    for row in mine.data["ranking"]:
        own, other = row["tpot_p50_s"]["mid"], by_id[row["candidate_id"]]["tpot_p50_s"]["mid"]
        assert 1.1 * other < own < 2 * other


def test_a_path_is_taken_from_the_spec(imported, tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump(SPEC | {"kernel_tables": "mine"}))
    result = sieve.run(path, stop_after=4)
    assert any(e["name"] == "kernel_tables:h100-sxm-80gb" for e in result.data["inputs"])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "gemm.parquet").write_bytes(b"PAR1"), "changed since it was imported"),
        (lambda f: (f / "gemm.parquet").unlink(), "missing, unlike provenance"),
        (lambda f: shutil.copy(f / "gemm.parquet", f / "moe.parquet"), "not listed, unlike"),
        (lambda f: (f / "provenance.yaml").unlink(), "no provenance.yaml; bring the tables in"),
        (lambda f: (f / "provenance.yaml").write_text("gpu: L4-24GB"), "not 'H100-SXM-80GB'"),
        (lambda f: (f / "provenance.yaml").write_text("gpu: H100-SXM-80GB"), "names no operations"),
        (lambda f: f.rename(f.parent / "l40s-48gb"), "holds l40s-48gb, but the fleet needs h100"),
    ],
)  # fmt: skip
def test_tables_that_are_not_as_imported_are_refused(imported, damage, message):
    damage(imported / "h100-sxm-80gb")
    with pytest.raises(TableError, match=message) as caught:
        sieve.run(SPEC | {"kernel_tables": str(imported)}, stop_after=4)
    assert str(caught.value).startswith("spec: kernel_tables: ")
