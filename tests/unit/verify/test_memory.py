"""`sieve verify memory`: what is read, what is skipped, how it is scored."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from sieve.cli.verify_memory import memory
from sieve.errors import ResultError
from sieve.verify.memory import missed, summary, verify_memory

START_UPS = Path(__file__).parents[2] / "data" / "start_ups.csv"
APP = typer.Typer()
APP.command()(memory)


def rows() -> list[dict[str, str]]:
    with START_UPS.open(encoding="utf-8", newline="") as handle:
        return list(csv.DictReader(handle))


def written(folder: Path, *changes: dict[str, str]) -> Path:
    first = rows()[0]
    path = folder / "start_ups.csv"
    with path.open("w", encoding="utf-8", newline="") as handle:
        out = csv.DictWriter(handle, fieldnames=list(first))
        out.writeheader()
        out.writerows({**first, **change} for change in changes)
    return path


def test_the_form_of_the_answer() -> None:
    report = verify_memory(START_UPS)
    assert set(report) == {"summary", "rows", "skipped", "unread_columns"}
    assert report["unread_columns"] == []
    assert list(report["summary"]) == [
        "rows", "verdict_correct", "verdict_wrong", "kv_tokens_mape", "kv_tokens_median_ape",
        "weights_mape", "activation_mae_gib", "non_torch_mae_gib",
    ]  # fmt: skip
    row = report["rows"][0]
    assert (row["case_id"], row["verdict"], row["expected"]) == ("M001", "boots", "boots")
    assert row["weights_gib_measured"] == 14.99
    assert row["weights_gib_predicted"] == pytest.approx(14.99, abs=0.01)
    assert row["margin_mib"] > 0


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"base_model": ""}, "base_model is not stated"),
        ({"base_model": "someone/unheard-of"}, "unknown model"),
        ({"gpu_canonical": "GT-9000"}, "unknown gpu"),
        ({"weight_format": "gguf"}, "weight format 'gguf'"),
        ({"weight_format": "fp8 KV"}, "weight format 'fp8 KV'"),
        ({"vllm_version": "nightly"}, "engine version 'nightly'"),
        ({"outcome": "maybe"}, "outcome is 'maybe'; allowed are boots and fails"),
        ({"tp": "1.5"}, "tp is '1.5'; expected a whole number"),
        ({"weights_gib": "nan"}, "weights_gib is 'nan'; expected a finite number"),
        ({"weights_gib": "-3"}, "weights_gib is '-3'; expected a number from 0"),
        ({"enforce_eager": "perhaps"}, "enforce_eager is 'perhaps'"),
        ({"tp": "two"}, "tp is 'two'"),
        ({"kv_cache_dtype": "fp6"}, "kv_cache_dtype 'fp6'"),
        ({"outcome": ""}, "outcome is not stated"),
    ],
)
def test_no_row_is_skipped_silently(tmp_path: Path, change: dict[str, str], reason: str) -> None:
    report = verify_memory(written(tmp_path, {}, change))
    assert report["summary"]["rows"] == 1
    (skipped,) = report["skipped"]
    assert skipped["row"] == "M001"
    assert reason in skipped["reason"]


def test_only_eligible(tmp_path: Path) -> None:
    path = written(tmp_path, {}, {"case_id": "X", "eligible": "0"})
    assert verify_memory(path)["summary"]["rows"] == 2
    report = verify_memory(path, eligible_only=True)
    assert report["summary"]["rows"] == 1
    assert report["skipped"] == [{"row": "X", "reason": "not marked eligible"}]


def test_a_length_that_is_not_stated_is_at_most_the_printed_tokens(tmp_path: Path) -> None:
    row = {"max_model_len": "", "gpu_memory_utilization": "0.30", "kv_tokens": "50000"}
    (found,) = verify_memory(written(tmp_path, row))["rows"]
    assert found["verdict"] == "boots"
    (found,) = verify_memory(written(tmp_path, {**row, "kv_tokens": ""}))["rows"]
    assert (found["verdict"], found["reason"]) == ("fails", "max_model_len")


def test_missing_columns_and_files(tmp_path: Path) -> None:
    path = tmp_path / "short.csv"
    path.write_text("case_id,base_model\n1,x\n", encoding="utf-8")
    with pytest.raises(ResultError, match="missing columns weight_format"):
        verify_memory(path)
    with pytest.raises(ResultError, match="cannot be read"):
        verify_memory(tmp_path / "none.csv")


def test_nothing_stated_is_no_figure() -> None:
    found: dict[str, Any] = summary([])
    assert found["rows"] == 0
    assert found["weights_mape"] is None
    assert missed({"summary": found}) == []


def test_command() -> None:
    result = CliRunner().invoke(APP, [str(START_UPS), "--json"])
    assert result.exit_code == 0
    assert json.loads(result.stdout) == json.loads(json.dumps(verify_memory(START_UPS)))
    shown = CliRunner().invoke(APP, [str(START_UPS), "--eligible"])
    assert shown.exit_code == 0
    assert "weights_mape" in shown.stdout
    strict = CliRunner().invoke(APP, [str(START_UPS), "--strict"])
    assert strict.exit_code == 8
    assert "verdict_wrong is 1" in strict.stderr


def test_columns_that_nobody_reads_are_named(tmp_path: Path) -> None:
    path = written(tmp_path, {})
    lines = path.read_text(encoding="utf-8").splitlines()
    lines = [f"{lines[0]},enforce_eeger", f"{lines[1]},1"]
    path.write_text("\n".join(lines), encoding="utf-8")
    assert verify_memory(path)["unread_columns"] == ["enforce_eeger"]
    assert "enforce_eeger is not known" in " ".join(
        CliRunner().invoke(APP, [str(path)]).stdout.split()
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("case_id,case_id\na,b\n", "columns named twice: case_id"),
        ("case_id,base_modle\na,b\n", r"base_model \(found base_modle\)"),
    ],
)
def test_tables_of_another_form_are_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ResultError, match=words):
        verify_memory(path)


def test_a_table_without_rows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ResultError, match="has no rows"):
        verify_memory(written(tmp_path))


def test_figures_below_nothing_that_logs_do_state(tmp_path: Path) -> None:
    report = verify_memory(
        written(tmp_path, {"non_torch_gib": "-3.58", "available_kv_gib": "-0.12"})
    )
    assert report["skipped"] == []
    assert report["rows"][0]["non_torch_gib_measured"] == -3.58
