"""`sieve fleet`: one document with --json, the answer as text, one clear error for bad input."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from sieve.cli.main import app
from sieve.errors import InvalidInput

Make = Callable[..., dict[str, Any]]


@pytest.fixture
def spec(make_spec: Make, tmp_path: Path) -> str:
    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump(make_spec()))
    return str(path)


def call(*args: str) -> Any:
    return CliRunner().invoke(app, ["fleet", *args])


ONE = "tp=1,weight_dtype=fp8"
QUESTIONS = [
    (["size"], "Fewest GPUs"),
    (["size", "--gpus", "2"], "2 GPUs each"),
    (["levels"], "winner"),
    (["mix"], "USD/h"),
    (["mix", "--budget", "8"], "load"),
    (["diurnal", "--candidate", ONE, "--profile", "0.5,1,2", "--window", "60", "--start-up", "5"],
     "static"),
    (["disaggregate", "--gpus", "2", "--link-gbs", "50"], "estimate"),
]  # fmt: skip


@pytest.mark.parametrize(("args", "words"), QUESTIONS, ids=lambda x: str(x)[:30])
def test_questions_answer_as_text_and_as_json(spec: str, args: list[str], words: str) -> None:
    text = call(args[0], spec, *args[1:])
    assert text.exit_code == 0, text.output
    assert words in text.output
    document = call(args[0], spec, *args[1:], "--json")
    data = json.loads(document.stdout)
    assert data["question"] in {args[0], "compare"}
    assert call(args[0], spec, *args[1:], "--json").stdout == document.stdout


def test_a_profile_may_be_a_file(spec: str, tmp_path: Path) -> None:
    file = tmp_path / "day.txt"
    file.write_text("0.5\n1\n2\n")
    options = ("--candidate", ONE, "--window", "60", "--start-up", "5", "--json")
    by_file = call("diurnal", spec, "--profile", str(file), *options)
    assert by_file.stdout == call("diurnal", spec, "--profile", "0.5,1,2", *options).stdout


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["mix", "--budget", "0.5"], "below the cheapest replica"),
        (["mix", "--budget", "5", "--level", "2"], "leave --level out"),
        (["size", "--gpus", "2", "--level", "2"], "leave --level out"),
        (["size", "--gpus", "0"], "--gpus"),
        (["size", "--shapes", "0"], "shapes to try"),
        (["size", "--candidate", "tp=3"], "no candidate of the grid"),
        (["diurnal", "--candidate", ONE, "--profile", "1,x"], "entry 2 is 'x'"),
        (["disaggregate", "--gpus", "2", "--link-gbs", "0"], "bandwidth"),
    ],
)
def test_bad_input_is_told(spec: str, args: list[str], words: str) -> None:
    done = call(args[0], spec, *args[1:])
    assert isinstance(done.exception, InvalidInput), done.output
    assert words in str(done.exception)


def test_nothing_clears_is_exit_4(make_spec: Make, tmp_path: Path) -> None:
    path = tmp_path / "hard.yaml"
    path.write_text(yaml.safe_dump(make_spec({"slo": {"ttft_p99": "1 ms"}})))
    assert call("size", str(path)).exit_code == 4
