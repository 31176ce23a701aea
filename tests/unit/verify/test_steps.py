"""`sieve verify steps`: what is read, refused, and how it is scored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import typer
from typer.testing import CliRunner

from sieve.cli.verify_measured import steps
from sieve.errors import ResultError
from sieve.verify.steps import COLUMNS, missed, predict, read_steps, verify_steps

APP = typer.Typer()
APP.command()(steps)
STEP: dict[str, Any] = {
    "model": "Qwen/Qwen3-8B", "gpu": "H100-SXM-80GB", "tp": 1, "weight_dtype": "bf16",
    "prefill_tokens": 0, "prefill_context_tokens": 0, "decode_seqs": 16,
    "decode_context_tokens": 16000, "duration_s": 0.008,
}  # fmt: skip


def written(folder: Path, *changes: dict[str, Any], name: str = "steps.csv") -> Path:
    path = folder / name
    rows = [{**STEP, **change} for change in changes]
    if name.endswith(".parquet"):
        pl.DataFrame(rows, infer_schema_length=None).write_parquet(path)
    else:
        lines = [",".join(rows[0])]
        lines += [",".join("" if v is None else str(v) for v in row.values()) for row in rows]
        path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("name", ["steps.csv", "steps.parquet"])
def test_iterations_are_scored_by_composition(tmp_path: Path, name: str) -> None:
    prefill = {"prefill_tokens": 2048, "decode_seqs": 0, "decode_context_tokens": 0}
    mixed = {"prefill_tokens": 512}
    report = verify_steps(written(tmp_path, {}, prefill, mixed, name=name))
    assert [row["composition"] for row in report["rows"]] == ["decode", "prefill", "mixed"]
    assert set(report["by"]["composition"]) == {"decode", "prefill", "mixed"}
    assert report["summary"]["rows"] == report["summary"]["predicted"] == 3
    decode, prompt, both = (row["predicted"] for row in report["rows"])
    # 16.4 GB of weights and 2.4 GB of cache at 3.35 TB/s: 5.6 ms at least.
    assert 0.0056 < decode < 0.012
    # 2 x 8.2e9 x 2048 FLOP at 989 TFLOP/s: 34 ms at least.
    assert 0.034 < prompt < 0.08
    assert both > decode


def test_a_prompt_that_goes_on_costs_more_than_one_that_begins(tmp_path: Path) -> None:
    chunk = {"prefill_tokens": 2048, "decode_seqs": 0, "decode_context_tokens": 0}
    later = {**chunk, "prefill_context_tokens": 30000}
    first, second = (predict(step)[0] for step in read_steps(written(tmp_path, chunk, later)))
    assert second > 1.2 * first


def test_empty_cells_are_assumed_and_said(tmp_path: Path) -> None:
    (step,) = read_steps(written(tmp_path, {"decode_context_tokens": None, "weight_dtype": None}))
    assert step.decode_context_tokens == 16 * 1024
    assert step.assumed == ("contexts of 1024 tokens",)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"duration_s": "nan"}, "row 2, duration_s: found 'nan'"),
        ({"duration_s": 8000}, "row 2, duration_s: .*check the unit"),
        ({"tp": 0}, "row 2, tp"),
        ({"decode_seqs": 2.5}, "row 2, decode_seqs: found '2.5'"),
        ({"decode_context_tokens": 3}, "row 2, decode_context_tokens: found 3"),
        ({"decode_seqs": 0}, "row 2, decode_seqs: found no prompt tokens"),
        ({"model": None}, "row 2, model: found an empty cell"),
        ({"colour": "red"}, "unknown columns colour"),
    ],
)
def test_what_cannot_be_is_refused_with_row_and_field(
    tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    with pytest.raises(ResultError, match=words):
        read_steps(written(tmp_path, change))


def test_files_that_are_none_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("model,gpu\nA,B\n")
    with pytest.raises(ResultError, match="missing columns tp"):
        read_steps(path)
    path.write_text(",".join(COLUMNS) + "\n")
    with pytest.raises(ResultError, match="has no iterations"):
        read_steps(path)
    broken = tmp_path / "x.parquet"
    broken.write_text("no parquet")
    with pytest.raises(ResultError, match="cannot be read"):
        read_steps(broken)


def test_unknown_models_are_skipped_with_the_reason(tmp_path: Path) -> None:
    report = verify_steps(written(tmp_path, {}, {"model": "someone/unheard-of"}))
    assert report["summary"]["predicted"] == 1
    assert report["skipped"][0]["row"] == 3
    assert "unknown model" in report["skipped"][0]["reason"]
    assert "1 iterations were not compared" in missed(report)


def test_the_command(tmp_path: Path) -> None:
    path = written(tmp_path, {})
    shown = CliRunner().invoke(APP, [str(path)])
    assert shown.exit_code == 0
    assert "1 of 1 iterations compared" in shown.output
    document = json.loads(CliRunner().invoke(APP, [str(path), "--json"]).output)
    assert document["rows"][0]["row"] == 2
    far = written(tmp_path, {"duration_s": 0.5})
    assert CliRunner().invoke(APP, [str(far), "--strict"]).exit_code == 8
