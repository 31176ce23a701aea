"""`sieve calibrate`: a start-up beside its prediction, corrections kept and applied."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from sieve.calibration.corrections import add_correction
from sieve.cli.calibrate import calibrate as calibrate_command
from sieve.cli.fit import fit as fit_command
from sieve.errors import CatalogError, ResultError
from sieve.fit_of import configure, fit
from sieve.memory.corrections import CorrectionKey, LogCorrection, read_corrections, release
from sieve.units import GIB

APP = typer.Typer()
APP.command("calibrate")(calibrate_command)
APP.command("fit")(fit_command)
LOGS = Path(__file__).parent / "calibration" / "logs"
V19, V33 = LOGS / "vllm-0.19.0.txt", LOGS / "vllm-0.33.0.txt"
H100 = "H100-SXM-80GB"
KEY = CorrectionKey("vllm", "0.33", H100, "Qwen/Qwen3-8B", 2, 1, 1)


def run(*words: Any) -> Any:
    return CliRunner().invoke(APP, [str(word) for word in words])


def compared(*words: Any) -> dict[str, Any]:
    done = run("calibrate", *words, "--json")
    assert done.exit_code == 0, done.exception
    (log,) = json.loads(done.stdout)["logs"]
    return {**log, **{term["term"]: term for term in log["terms"]}}


def changed(tmp_path: Path, log: Path, *pairs: tuple[str, str]) -> Path:
    text = log.read_text(encoding="utf-8")
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    path = tmp_path / "changed.log"
    path.write_text(text, encoding="utf-8")
    return path


def gib(term: dict[str, Any], name: str = "measured") -> float:
    return float(round(term[name] / GIB, 2))


def test_a_log_that_the_ledger_was_read_from() -> None:
    found = compared(V19, "--gpu", "h100-sxm")
    assert (found["version"], found["engine"]) == ("0.19.0", "vllm==0.19.0")
    assert found["model"] == "meta-llama/Llama-3.1-8B-Instruct"
    assert (found["outcome"], found["predicted_outcome"]) == ("boots", "boots")
    assert found["configuration"]["max_model_len"] == 8192
    assert found["configuration"]["gpu_memory_utilization"] == 0.95
    assert found["defaulted"] == ["max_num_batched_tokens", "max_num_seqs", "block_size"]
    for name in ("weight_bytes", "activation_bytes", "non_torch_bytes", "graph_bytes", "kv_bytes"):
        assert abs(gib(found[name], "difference")) <= 0.01
    assert set(found["corrections"]) == {"activation_bytes", "non_torch_bytes", "graph_bytes"}
    assert found["kv_tokens"]["line"] == 7
    assert not found["notes"]


def test_sums_are_taken_apart() -> None:
    found = compared(V33, "--gpu", "h100-sxm")
    assert found["configuration"]["tp"] == 2
    assert gib(found["non_torch_bytes"]) == 2.12  # 9.81 consumed - 7.69 weights
    assert gib(found["activation_bytes"]) == 2.34  # 3.44 - 1.10, the estimate of the graphs
    assert gib(found["graph_bytes"]) == 1.1  # the estimate is what is subtracted
    assert gib(found["reserved_bytes"]) == 5.58  # 72.85 - 7.69 - 59.58


def test_only_what_is_logged_by_default(tmp_path: Path) -> None:
    """Without the debug lines the terms are known together only."""
    text = V33.read_text(encoding="utf-8").splitlines(keepends=True)
    log = tmp_path / "info.log"
    log.write_text("".join(text[:-2]), encoding="utf-8")
    found = compared(log, "--gpu", "h100-sxm")
    assert found["activation_bytes"]["measured"] is None
    assert gib(found["graph_bytes"]) == 1.1
    assert set(found["corrections"]) == {"graph_bytes", "unsplit_bytes"}
    # Together with what the weights miss they bring the ledger to the measured cache.
    total = sum(found["corrections"].values()) + found["weight_bytes"]["difference"]
    assert total == pytest.approx(-found["kv_bytes"]["difference"], abs=0.01 * GIB)


@pytest.mark.parametrize("dealt", [True, False])
def test_a_rank_that_shares_experts(tmp_path: Path, *, dealt: bool) -> None:
    log = tmp_path / "ranks.log"
    log.write_text(
        "INFO vLLM API server version 0.19.0\n"
        "INFO non-default args: {'model': 'Qwen/Qwen3-30B-A3B', 'data_parallel_size': 2, "
        f"'enable_expert_parallel': {dealt}, 'max_model_len': 8192}}\n"
        "INFO Model loading took 29.88 GiB memory and 8 seconds\n",
        encoding="utf-8",
    )
    found = compared(log, "--gpu", "h100-sxm")
    taken = found["configuration"]
    assert (taken["data_parallel_size"], taken["ep"]) == ((2, 2) if dealt else (1, 1))
    assert (abs(gib(found["weight_bytes"], "difference")) < 0.02) is dealt
    assert any("sliced over data-parallel" in note for note in found["notes"]) is not dealt


def test_a_start_up_that_failed(tmp_path: Path) -> None:
    log = tmp_path / "failed.log"
    log.write_text(
        "INFO vLLM API server version 0.19.0\n"
        "INFO non-default args: {'model': 'meta-llama/Llama-3.1-8B-Instruct'}\n"
        "INFO Model loading took 14.99 GiB memory and 8 seconds\n"
        "ValueError: To serve at least one request with the models's max seq len (131072), "
        "(16.00 GiB KV cache is needed, which is larger than the available KV cache memory "
        "(2.70 GiB). \n",
        encoding="utf-8",
    )
    found = compared(log, "--gpu", "l4")
    assert (found["outcome"], found["predicted_outcome"]) == ("fails", "fails")
    assert gib(found["kv_bytes"]) == 2.7
    assert "one request does not fit" in found["notes"][0]


def test_what_the_ledger_does_not_describe_is_not_corrected(tmp_path: Path) -> None:
    log = changed(tmp_path, V19, ("speculative_config=None", "speculative_config=Draft(k=3)"))
    found = compared(log, "--gpu", "h100-sxm")
    assert found["corrections"] == {}
    assert "speculative decoding: nothing is corrected" in found["notes"][0]
    done = run("calibrate", log, "--gpu", "h100-sxm", "--into", tmp_path / "c.json")
    assert done.exit_code == 0
    assert not (tmp_path / "c.json").exists()


def test_an_unexplained_rest_is_named(tmp_path: Path) -> None:
    log = changed(tmp_path, V19, ("KV cache memory: 58.11", "KV cache memory: 50.00"))
    found = compared(log, "--gpu", "h100-sxm")
    assert any("+8.10 GiB unexplained" in note for note in found["notes"])


@pytest.mark.parametrize(
    ("pairs", "words", "message"),
    [
        ([], [], "does not name the GPU; give --gpu"),
        ([], ["--gpu", "h200"], "another card?"),
        ([], ["--gpu", "h100-sxm", "--tp", "2"], "--tp 2 contradicts"),
        ([], ["--gpu", "h100-sxm", "--engine", "vllm==0.20"], "contradicts"),
        (
            [("0.19.0", "X"), ("(vX)", "(X)"), ("version X", "")],
            ["--gpu", "h100-sxm"],
            "lines are those of 0.10 to 0.26; give --engine",
        ),
        ([("'model_tag'", "'m'"), ("model=", "m=")], ["--gpu", "h100-sxm"], "give --model"),
        ([("size=1,", "size=many,")], ["--gpu", "h100-sxm"], "'many', no whole number"),
    ],
)
def test_what_is_missing_or_contradicts(
    tmp_path: Path, pairs: list[tuple[str, str]], words: list[str], message: str
) -> None:
    done = run("calibrate", changed(tmp_path, V19, *pairs), *words)
    assert isinstance(done.exception, ResultError)
    assert message in str(done.exception)
    assert "changed.log" in str(done.exception)


def test_other_input_is_refused(tmp_path: Path) -> None:
    bench = tmp_path / "bench.json"
    bench.write_text('{"mean_ttft_ms": 30}', encoding="utf-8")
    assert isinstance(run("calibrate", bench, "--gpu", "l4").exception, ResultError)
    log = changed(tmp_path, V19, ("meta-llama/Llama-3.1-8B-Instruct", "/models/unknown-model"))
    assert isinstance(run("calibrate", log, "--gpu", "h100-sxm").exception, CatalogError)


def test_corrections_are_kept_and_applied(tmp_path: Path) -> None:
    kept = tmp_path / "calibration.json"
    done = run("calibrate", V19, V33, "--gpu", "h100-sxm", "--into", kept)
    assert done.exit_code == 0
    assert "1 log of this deployment there" in re.sub(r"\s+", " ", done.stdout)
    first = kept.read_bytes()
    assert run("calibrate", V33, V19, "--gpu", "h100-sxm", "--into", kept).exit_code == 0
    assert kept.read_bytes() == first  # a log counts once, whatever the order
    assert len(read_corrections(kept)) == 2
    words = ("qwen3-8b", "--gpu", "h100-sxm", "--tp", 2, "--max-model-len", 16_384)
    plain = json.loads(run("fit", *words, "--json").stdout)
    done = run("fit", *words, "--calibration", kept, "--json")
    out = json.loads(done.stdout)
    assert plain["correction"] is None
    assert out["correction"]["num_logs"] == 1
    measured = {"activation_gib": 2.34, "non_torch_gib": 2.12, "cuda_graph_gib": 1.10}
    for name, value in measured.items():
        assert out["per_gpu"][name] == pytest.approx(value, abs=0.005)
    assert out["per_gpu"]["weights_gib"] == plain["per_gpu"]["weights_gib"]
    (note,) = [note for note in out["notes"] if note.startswith("corrected from")]
    assert "1 start-up log of 2026-11-20" in note
    # Another deployment is left as it is, and told so.
    other = run("fit", "qwen3-8b", "--gpu", "h100-sxm", "--calibration", kept, "--json")
    notes = json.loads(other.stdout)["notes"]
    assert any("has no correction for vllm 0.33" in note for note in notes)


def test_other_options_than_measured_are_noted(tmp_path: Path) -> None:
    kept = tmp_path / "calibration.json"
    run("calibrate", V33, "--gpu", "h100-sxm", "--into", kept)
    found = fit(
        configure("qwen3-8b", H100, tp=2, max_num_seqs=64, corrections=read_corrections(kept))
    )
    assert "the correction was measured at max_num_seqs 1024, not 64" in found.notes


def test_several_logs_are_averaged_and_other_content_kept(tmp_path: Path) -> None:
    kept = tmp_path / "calibration.json"
    kept.write_text('{"schema_version": 1, "speed": {"a": 1}}', encoding="utf-8")
    for name, value in (("b", 3.0), ("a", 1.0), ("b", 5.0)):
        known = add_correction(kept, KEY, LogCorrection(name, "", {"graph_bytes": value}))
    assert known.terms == {"graph_bytes": 3.0}
    assert [log.sha256 for log in known.logs] == ["a", "b"]
    assert json.loads(kept.read_text(encoding="utf-8"))["speed"] == {"a": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["calibration.json"]
    assert release("0.33.1") == "0.33"


def test_a_correction_never_makes_a_term_negative() -> None:
    from sieve.memory.corrections import Correction

    log = LogCorrection("a", "", {"activation_bytes": -1e12, "graph_bytes": 1e9})
    given = (Correction(KEY, (log,)),)
    found = fit(configure("qwen3-8b", H100, tp=2, corrections=given))
    assert found.stages[0].activation_bytes == 0
    eager = fit(configure("qwen3-8b", H100, tp=2, enforce_eager=True, corrections=given))
    assert eager.stages[0].graph_bytes == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no calibration file"),
        ("[]", "expected a JSON object"),
        ('{"schema_version": 1, "start_up": 3}', "start_up is no list"),
        ('{"schema_version": 1, "start_up": [{"logs": []}]}', "start_up[0].engine"),
        ('{"schema_version": 1, "start_up": [{}]}', "start_up[0]: expected"),
        ('{"schema_version": 1, "start_up": NaN}', "NaN is not a number"),
        (
            '{"schema_version": 1, "start_up": [{"engine": "vllm", "version": "0.19", "gpu": "g", '
            '"model": "m", '
            '"tp": 0, "pp": 1, "ep": 1, "logs": []}]}',
            "start_up[0].tp: found 0",
        ),
        (
            '{"schema_version": 1, "start_up": [{"engine": "vllm", "version": "0.19", "gpu": "g", '
            '"model": "m", '
            '"tp": 1, "pp": 1, "ep": 1, "logs": [{"sha256": "a", "terms": {"weights": 3}}]}]}',
            "logs[0].terms.weights",
        ),
        (
            '{"schema_version": 1, "start_up": [{"engine": "vllm", "version": "0.19", "gpu": "g", '
            '"model": "m", '
            '"tp": 1, "pp": 1, "ep": 1, "logs": [{"sha256": "a", "terms": '
            '{"graph_bytes": 1e300}}]}]}',
            "beyond any card",
        ),
    ],
)
def test_damaged_calibration_files(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "c.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ResultError) as caught:
        read_corrections(path)
    assert message in str(caught.value)
    assert isinstance(
        run("fit", "qwen3-8b", "--gpu", "l4", "--calibration", path).exception, ResultError
    )


def test_files_that_cannot_be_written(tmp_path: Path) -> None:
    log = LogCorrection("a", "", {})
    with pytest.raises(ResultError, match="cannot be written"):
        add_correction(tmp_path / "missing" / "c.json", KEY, log)
    other = tmp_path / "c.json"
    other.write_text("{}", encoding="utf-8")
    with pytest.raises(
        ResultError, match="names no schema version, this sieve reads 1: make it anew with"
    ):
        add_correction(other, KEY, log)
    assert other.read_text(encoding="utf-8") == "{}"


@pytest.mark.parametrize("name", ["tp", "pp", "ep"])
@pytest.mark.parametrize("size", [True, 1.0, "2", None, 0, -1, 4097])
def test_a_correction_with_no_size_is_refused(tmp_path: Path, name: str, size: Any) -> None:
    entry = {"engine": "vllm", "version": "0.19", "gpu": "g", "model": "m", "tp": 1, "pp": 1,
             "ep": 1, "logs": [{"sha256": "a", "terms": {"weights": 3}}], name: size}  # fmt: skip
    path = tmp_path / "c.json"
    path.write_text(json.dumps({"schema_version": 1, "start_up": [entry]}), encoding="utf-8")
    with pytest.raises(ResultError) as caught:
        read_corrections(path)
    assert f"start_up[0].{name}: found {size!r}, allowed is 1 to 4096" in str(caught.value)
