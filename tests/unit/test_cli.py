"""The command line: exit codes, one message for bad input, one document for machines."""

from __future__ import annotations

import copy
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from sieve.cli.main import app, main

Make = Callable[..., dict[str, Any]]
Cli = Callable[..., tuple[int, str, str]]
SIEVE = Path(sys.executable).with_name("sieve")


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Cli:
    """Call the entry point in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def call(*args: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["sieve", *map(str, args)])
        try:
            main()
            code = 0
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        seen = capsys.readouterr()
        return code, seen.out, seen.err

    return call


@pytest.fixture
def write(tmp_path: Path) -> Callable[[Any], Path]:
    """Write a spec file beside which other files may stand."""

    def put(spec: Any) -> Path:
        path = tmp_path / "spec.yaml"
        text = spec if isinstance(spec, str) else yaml.safe_dump(spec, sort_keys=False)
        path.write_text(text, encoding="utf-8")
        return path

    return put


@pytest.fixture
def small(make_spec: Make) -> dict[str, Any]:
    return make_spec({"grid.axes.tp": [1], "grid.axes.weight_dtype": ["bf16"]})


def sieve(*args: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [SIEVE, *map(str, args)], cwd=cwd, capture_output=True, text=True, timeout=600, check=False
    )


def test_a_run_in_a_process_of_its_own(
    tmp_path: Path, write: Callable[[Any], Path], small: dict[str, Any]
) -> None:
    done = sieve("run", write(small), "--out", "o", "--json", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    data = json.loads(done.stdout)
    assert data == json.loads((tmp_path / "o/result.json").read_text(encoding="utf-8"))
    shown = sieve("explain", "o", data["ranking"][0]["candidate_id"], cwd=tmp_path)
    assert shown.returncode == 0
    assert data["ranking"][0]["candidate_id"] in shown.stdout


def test_bad_input_in_a_process_of_its_own(
    tmp_path: Path, write: Callable[[Any], Path], small: dict[str, Any]
) -> None:
    done = sieve("run", write({**small, "modle": "x"}), "--out", "o", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.search(r"modle \(line \d+\): unknown key; did you mean 'model'\?", done.stderr)
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "o").exists()


def test_help_imports_nothing_heavy(tmp_path: Path) -> None:
    code = (
        "import sys\nsys.argv = ['sieve', '--help']\nfrom sieve.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit as stop:\n    assert stop.code in (0, None)\n"
        "heavy = {'numpy', 'polars', 'numba', 'ray', 'pandas', 'pyarrow', 'pydantic', 'jinja2'}\n"
        "print('HEAVY', sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=600,
        check=True,
    )  # fmt: skip
    assert "HEAVY []" in done.stdout
    assert "run" in done.stdout
    assert "explain" in done.stdout


def test_an_answer(cli: Cli, write: Callable[[Any], Path], small: dict[str, Any]) -> None:
    code, out, _ = cli("run", write(small), "--out", "o")
    assert code == 0
    assert "clears" in out
    assert Path("o/result.json").is_file()


def test_the_default_folder_is_named_after_the_spec(
    cli: Cli, write: Callable[[Any], Path], small: dict[str, Any]
) -> None:
    assert cli("run", write(small), "--stop-after", "1")[0] == 0
    (folder,) = Path("reports/runs").iterdir()
    assert folder.name.startswith("small-")
    assert (folder / "result.json").is_file()


def test_out_names_the_folder_even_when_it_is_this_one(
    cli: Cli, write: Callable[[Any], Path], small: dict[str, Any], tmp_path: Path
) -> None:
    spec = write(small)
    here = tmp_path / "here"
    here.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(here)
        assert cli("run", spec, "--stop-after", "1", "--out", ".")[0] == 0
    assert (here / "result.json").is_file()


@pytest.mark.parametrize(
    ("changes", "code", "status"),
    [
        ({}, 0, "answer"),
        ({"model": "meta-llama/Llama-3.1-405B-Instruct"}, 3, "no_fit"),
        ({"slo": {"ttft_p99": "1 us"}}, 4, "no_slo"),
        ({"slo": {"tpot_p99": "1 us"}}, 4, "no_slo"),
    ],
)
def test_exit_codes_and_one_document(
    cli: Cli, write: Callable[[Any], Path], make_spec: Make, changes: dict[str, Any], code: int,
    status: str,
) -> None:  # fmt: skip
    spec = write(make_spec({"grid.axes.tp": [1], **changes}))
    found, out, err = cli("run", spec, "--out", "o", "--json")
    assert (found, err) == (code, "")
    assert json.loads(out)["answer"]["status"] == status
    found, out, err = cli("run", spec, "--out", "o")
    assert (found, err) == (code, "")
    assert out
    assert Path("o/result.json").is_file()


def test_weak_evidence_exits_with_five(
    cli: Cli, write: Callable[[Any], Path], small: dict[str, Any]
) -> None:
    _, out, _ = cli("run", write(small), "--out", "o", "--json")
    tpot = json.loads(out)["ranking"][0]["tpot_p99_s"]
    small["slo"] = {"tpot_p99": (tpot["mid"] + tpot["high"]) / 2}
    code, out, _ = cli("run", write(small), "--out", "o", "--json")
    assert (code, json.loads(out)["answer"]["status"]) == (5, "weak_evidence")
    code, out, _ = cli("run", write(small), "--out", "o")
    assert (code, bool(out)) == (5, True)


TRACE = "input_length,output_length\n100,10\n200,20\n"
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096,
    "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8,
    "num_hidden_layers": 32, "vocab_size": 128256, "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip


def traced(text: str) -> tuple[dict[str, Any], dict[str, str]]:
    traffic = {"trace": "t.csv", "arrival": {"poisson_per_s": 2}, "levels": [1.0]}
    return {"traffic": traffic}, {"t.csv": text}


BAD: dict[str, tuple[dict[str, Any], dict[str, str], str]] = {
    "unknown key": ({"trafic": 1}, {}, "did you mean 'traffic'?"),
    "wrong unit": ({"slo.ttft_p99": "2 GB"}, {}, "unit 'GB' in '2 GB'"),
    "impossible objective": ({"slo.ttft_p99": 0}, {}, "slo.ttft_p99"),
    "negative objective": ({"slo.ttft_p99": "-1 s"}, {}, "slo.ttft_p99"),
    "share above one": ({"slo.attainment.share": 1.5}, {}, "slo.attainment.share"),
    "negative length": ({"traffic.synthetic.isl": -5}, {}, "traffic.synthetic.isl"),
    "empty axis": ({"grid.axes.tp": []}, {}, "grid.axes.tp"),
    "empty grid": ({"grid": {"axes": {}}}, {}, "grid.axes"),
    "no gpus": ({"fleet.gpus": []}, {}, "fleet.gpus"),
    "unknown gpu": ({"fleet.gpus": ["H1000"], "fleet.usd_per_gpu_hour": None}, {}, "'H1000'"),
    "unknown model": ({"model": "Qwen/Qwen3-33B"}, {}, "Qwen/Qwen3-3"),
    "unknown engine": ({"engine": "vlm"}, {}, "vlm"),
    "unknown grid": ({"grid": "defualt"}, {}, "default"),
    "unknown objective": ({"rank.objective": "speed"}, {}, "rank.objective"),
    "no levels": ({"traffic.levels": []}, {}, "traffic.levels"),
    "missing trace": (*traced("")[:1], {}, "t.csv"),
    "empty trace": (*traced(""), "t.csv"),
    "header only": (*traced("input_length,output_length\n"), "t.csv"),
    "negative length in a trace": (*traced(TRACE + "-5,10\n"), "line 4"),
    "text in a trace": (*traced(TRACE + "many,10\n"), "line 4"),
    "trace of another format": (*traced("a,b\n1,2\n"), "columns found: a, b"),
    "binary trace": (*traced("\x00\x01\x02"), "t.csv"),
    "config without a field": (
        {"model": "./m"},
        {"m/config.json": json.dumps({k: v for k, v in CONFIG.items() if k != "hidden_size"})},
        "hidden_size",
    ),
    "config that is no JSON": ({"model": "./m"}, {"m/config.json": "{"}, "config.json"),
    "config that is a list": ({"model": "./m"}, {"m/config.json": "[]"}, "config.json"),
    "config of an unknown kind": (
        {"model": "./m"},
        {"m/config.json": json.dumps({**CONFIG, "architectures": ["MambaForCausalLM"],
                                      "model_type": "mamba"})},
        "amba",
    ),
    "inline model without a field": ({"model": {"name": "x", "params": 1e9}}, {}, "layers"),
    "inline model with a negative": (
        {"model": {"name": "x", "params": 1e9, "width": -1, "layers": 2, "heads": 2}}, {}, "width",
    ),
    "router": ({"fleet.routing": "session"}, {}, "needs sessions"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_message_and_leaves_no_run(
    cli: Cli, write: Callable[[Any], Path], make_spec: Make, tmp_path: Path, case: str
) -> None:
    changes, files, complaint = BAD[case]
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    spec = write(make_spec(copy.deepcopy(changes)))
    code, out, err = cli("run", spec, "--out", "o")
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("error:") == 1
    assert complaint in err
    assert "Traceback" not in err
    assert not Path("o/result.json").exists()
    code, out, err = cli("run", spec, "--out", "o", "--json")
    assert code == 2
    document = json.loads(out)
    assert complaint in document["message"]
    assert document["error"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "empty file"),
        ("- a\n", "a list"),
        ("name: a\nname: b\n", "key 'name' is given twice (first on line 1)"),
        ("a: &x 1\nb: *x\n", "aliases are not accepted"),
        ("name: [\n", "line 2"),
        ("\tname: x\n", "line 1"),
    ],
)
def test_what_is_no_spec(cli: Cli, write: Callable[[Any], Path], text: str, complaint: str) -> None:
    code, out, err = cli("run", write(text), "--out", "o")
    assert (code, out) == (2, "")
    assert complaint in err
    assert "spec.yaml" in err
    assert not Path("o").exists()


def test_a_missing_spec_and_a_folder(cli: Cli, tmp_path: Path) -> None:
    for path in (tmp_path / "none.yaml", tmp_path):
        code, out, err = cli("run", path, "--out", "o")
        assert (code, out) == (2, "")
        assert str(path) in err


def test_faults_are_listed_for_machines(
    cli: Cli, write: Callable[[Any], Path], make_spec: Make
) -> None:
    spec = make_spec({"seed": -1, "fleet.max_gpu": 2, "slo.tpot_p99": "x"})
    code, out, _ = cli("run", write(spec), "--json")
    assert code == 2
    assert {fault["path"] for fault in json.loads(out)["faults"]} == {
        "seed",
        "fleet.max_gpu",
        "slo.tpot_p99",
    }


def test_a_foreign_folder_is_left_alone(
    cli: Cli, write: Callable[[Any], Path], small: dict[str, Any]
) -> None:
    Path("mine").mkdir()
    Path("mine/letter.txt").write_text("x", encoding="utf-8")
    code, _, err = cli("run", write(small), "--out", "mine")
    assert code == 2
    assert "other files" in err
    assert [p.name for p in Path("mine").iterdir()] == ["letter.txt"]
    code, _, err = cli("run", write(small), "--out", "mine/letter.txt")
    assert (code, "is a file" in err) == (2, True)


def test_set_and_stop_after(cli: Cli, write: Callable[[Any], Path], small: dict[str, Any]) -> None:
    spec = write(small)
    code, out, _ = cli(
        "run", spec, "--out", "o", "--json", "--stop-after", "2",
        "--set", "fleet.max_gpus=1", "--set", "grid.axes.tp=[1, 2]",
    )  # fmt: skip
    data = json.loads(out)
    assert code == 0
    assert [stage["reasons"] for stage in data["stages"]] == [{"gpu_budget": 1}, {}]
    for bad in ("fleet.max_gpus", "fleet.max_gps=2", "name.x=1"):
        assert cli("run", spec, "--set", bad)[0] == 2
    for last in ("0", "8", "two"):
        assert cli("run", spec, "--out", "o2", "--stop-after", last)[0] == 2
    assert not Path("o2").exists()


def test_a_dry_run_writes_nothing(
    cli: Cli, write: Callable[[Any], Path], small: dict[str, Any], tmp_path: Path
) -> None:
    spec = write(small)
    code, out, _ = cli("run", spec, "--dry-run", "--json", "--out", "o")
    counts = json.loads(out)
    assert (code, counts["num_candidates"], counts["num_replays"]) == (0, 1, 2)
    code, out, _ = cli("run", spec, "--dry-run")
    assert code == 0
    assert out
    assert [p.name for p in tmp_path.iterdir()] == ["spec.yaml"]


def test_every_command_of_the_contract_exists() -> None:
    available = {command.name for command in app.registered_commands if not command.hidden}
    available |= {group.typer_instance.info.name for group in app.registered_groups}
    assert available == {
        "run", "batch", "nightly", "compare", "explain", "plan", "calibrate", "replay", "fit",
        "check", "bound", "slim", "trace", "tables", "models", "gpus", "engines", "verify", "eval",
        "report", "serve", "schema", "fleet",
    }  # fmt: skip


def test_a_calibration_that_is_none_is_refused(
    cli: Cli, write: Callable[[Any], Path], small: dict[str, Any]
) -> None:
    Path("f.json").write_text('{"schema_version": 7}', encoding="utf-8")
    code, out, err = cli("run", write(small), "--out", "o", "--calibration", "f.json")
    assert (code, out) == (2, "")
    assert "schema version 7, this sieve reads 1: a newer sieve wrote it; upgrade" in err
    assert not Path("o").exists()


@pytest.mark.parametrize(
    "args", [[], ["run"], ["runn", "x"], ["run", "--nope", "x"], ["run", "a", "b"], ["explain"]]
)
def test_usage_errors(cli: Cli, args: list[str]) -> None:
    code, out, err = cli(*args)
    assert code == 2
    assert "Traceback" not in out + err
    assert "Usage" in out + err


def test_executors(cli: Cli, write: Callable[[Any], Path], small: dict[str, Any]) -> None:
    spec = write(small)
    assert cli("run", spec, "--out", "o", "--executor", "local")[0] == 0
    code, _, err = cli("run", spec, "--out", "o2", "--executor", "threads")
    assert (code, "auto, local and ray" in err) == (2, True)
    assert cli("run", spec, "--executor", "local", "--ray-address", "x")[0] == 2
    assert not Path("o2").exists()


@pytest.mark.parametrize(
    ("command", "name", "alias"),
    [
        ("models", "Qwen/Qwen3-32B", "qwen3-32b"),
        ("gpus", "H100-SXM-80GB", "h100_sxm"),
        ("engines", "vllm", "vllm==0.19"),
    ],
)
def test_catalogues(cli: Cli, command: str, name: str, alias: str) -> None:
    code, out, _ = cli(command, "--json")
    entries = json.loads(out)
    assert code == 0
    assert name in {entry["name"] for entry in entries}
    code, out, _ = cli(command, alias, "--json")
    assert (code, json.loads(out)["name"]) == (0, name)
    assert cli(command)[0] == cli(command, alias)[0] == 0
    code, out, err = cli(command, "nothing-like-this")
    assert (code, out) == (2, "")
    assert "nothing-like-this" in err
    code, out, _ = cli(command, "nothing-like-this", "--json")
    assert (code, json.loads(out)["error"]) == (2, "CatalogError")


def test_schema(cli: Cli) -> None:
    code, out, _ = cli("schema")
    assert code == 0
    assert json.loads(out)["title"] == "sieve run spec"
    assert cli("schema", "--json")[1] == out


def test_version(cli: Cli) -> None:
    import sieve as package

    assert cli("--version")[:2] == (0, f"sieve {package.__version__}\n")


def test_explain(cli: Cli, small_run: Any, tmp_path: Path) -> None:
    lost = "h100-sxm-80gb.tp4.pp1.ep1.r1.bf16.kv-auto.s64.b2048"
    code, out, _ = cli("explain", small_run.folder, lost)
    assert code == 0
    assert "gpu_budget" in out
    code, out, _ = cli("explain", small_run.folder, lost, "--json")
    assert (code, json.loads(out)["candidate"]["reason"]) == (0, "gpu_budget")
    code, out, err = cli("explain", small_run.folder, lost.replace("b2048", "b2049"))
    assert (code, out) == (2, "")
    assert "nearest" in err
    code, _, err = cli("explain", tmp_path, lost)
    assert code == 2
    assert "no finished run" in err


def test_rich_markup_in_names_is_not_read(
    cli: Cli, write: Callable[[Any], Path], small: dict[str, Any]
) -> None:
    facts = {"name": "[red]G[/x]", "like": "H100-SXM-80GB"}
    small["fleet"] = {"gpus": [facts], "max_gpus": 2}
    code, out, err = cli("run", write(small), "--out", "o")
    assert code in {0, 2}
    assert "Traceback" not in err
    assert code == 2 or "[red]G[/x]" in out


@pytest.mark.parametrize(
    "args",
    [
        ["run", "spec.yaml", "--stop-after", "many", "--json"],
        ["explain", "--json"],
        ["gpus", "--nope", "--json"],
    ],
)
def test_usage_errors_are_one_document_too(cli: Cli, args: list[str]) -> None:
    code, out, err = cli(*args)
    assert code == 2
    assert json.loads(out)["error"] == "usage"
    assert "Usage:" in err
