"""Help pages, suggestions, widths: what a person meets at the prompt."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import typer
from rich.cells import cell_len
from typer.testing import CliRunner

import sieve
from sieve.cli.following import help_with_examples
from sieve.cli.main import app
from sieve.errors import ResultError, SpecError
from sieve.explain import first_of
from sieve.spec import load_spec, load_specs
from sieve.spec.presets import find_spec, preset_names

ESCAPE = "\x1b"


def commands(group: Any, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    found = []
    for name, command in sorted(group.commands.items()):
        if hasattr(command, "commands"):
            found += commands(command, (*path, name))
        elif not command.hidden:
            found.append(((*path, name), command))
    return found


COMMANDS = commands(typer.main.get_command(app))


@pytest.mark.parametrize(("path", "command"), COMMANDS, ids=[" ".join(p) for p, _ in COMMANDS])
def test_every_help_page_has_examples_that_parse(path: tuple[str, ...], command: Any) -> None:
    page = CliRunner().invoke(app, [*path, "--help"])
    assert page.exit_code == 0
    shown = [line.strip() for line in page.output.splitlines()]
    examples = [line for line in shown if line.startswith(f"sieve {' '.join(path)}")]
    assert examples, f"no example of {' '.join(path)}"
    known = {option for parameter in command.params for option in parameter.opts}
    for example in examples:
        given = {w for w in shlex.split(example) if w.startswith("--")}
        assert given <= known | {"--help"}, example


def test_examples_stand_one_to_a_line() -> None:
    text = "Do it.\n\nExamples: `sieve a --b\n    c` | `echo x |\n    sieve d` (a note)\n\nMore."
    assert help_with_examples(text) == (
        "Do it.\n\n\b\nExamples:\n  sieve a --b c\n  echo x | sieve d\n\n(a note)\n\nMore."
    )
    assert help_with_examples("Do it.") == "Do it."


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_is_the_example_of_its_name(name: str, tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_spec(name).name == f"{name}.yaml"
    assert all(spec.run.slo for spec in load_specs(name))


def test_a_file_of_that_name_comes_before_the_preset(tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "chat").write_text("name: mine\n", encoding="utf-8")
    assert find_spec("chat") == Path("chat")


def test_a_path_given_to_a_preset_is_where_the_user_is(tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_spec("chat", overrides=["model=config.json"]).base_dir == tmp_path


@pytest.mark.parametrize("name", ["chatt", "reasonning"])
def test_a_mistyped_preset_names_the_nearest(name: str) -> None:
    with pytest.raises(SpecError, match=r"no preset; nearest preset: (chat|reasoning)"):
        load_spec(name)


@pytest.mark.parametrize("name", ["../chat", "chat.yaml", "a/b", "", "chat\n"])
def test_only_a_plain_word_is_a_preset(name: str, tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SpecError):
        load_spec(name)


PAGES = [
    ["gpus"], ["gpus", "H100-SXM-80GB"], ["engines"], ["engines", "vllm==0.19"], ["models"],
    ["models", "deepseek-ai/DeepSeek-V3"], ["tables", "list"], ["tables", "show", "L40S-48GB"],
    ["tables", "show", "H100-SXM-80GB", "--table", "gemm"],
    ["fit", "Qwen/Qwen3-8B", "--gpu", "H100-SXM-80GB"],
    ["check", "Qwen/Qwen3-8B", "--gpu", "H100-SXM-80GB"],
    ["bound", "Qwen/Qwen3-8B", "--gpu", "H100-SXM-80GB"],
    ["eval", "--list", "sizing"], ["trace", "inspect", "chat"], ["run", "chat", "--dry-run"],
    ["verify", "scheduler", "tests/conformance/data"],
]  # fmt: skip
ON_A_SPEC = [
    ["run", "{spec}", "--out", "{folder}/new"],
    ["run", "{spec}", "--out", "{folder}/new", "--stop-after", "3"],
    ["run", "{spec}", "--out", "{folder}/new", "--set", "slo.tpot_p99=0.1ms"],
    ["run", "{spec}", "--out", "{folder}/new", "--set", "slo.ttft_p99=12ms", "--exhaustive"],
    ["run", "{spec}", "--out", "{folder}/new", "--set", "model=deepseek-ai/DeepSeek-V3"],
    ["run", "{spec}", "--dry-run"], ["explain", "{run}"], ["report", "{run}"], ["plan", "{run}"],
    ["compare", "{run}", "{run}"],
    ["replay", "{spec}", "--candidate", "tp=1,weight_dtype=bf16"],
    ["nightly", "{spec}", "--traffic", "{folder}/day.csv", "--history", "{folder}/nights",
     "--set", "model=deepseek-ai/DeepSeek-V3"],
    ["fleet", "size", "{spec}"], ["fleet", "size", "{spec}", "--set", "slo.ttft_p99=1ms"],
    ["fleet", "levels", "{spec}"], ["fleet", "mix", "{spec}"],
    ["trace", "synth", "{spec}", "--requests", "50", "--out", "{folder}/drawn.jsonl"],
]  # fmt: skip


@pytest.mark.parametrize("width", [80, 160])
@pytest.mark.parametrize("args", PAGES, ids=lambda a: " ".join(a[:2]))
def test_pages_fit_the_terminal_and_end_with_the_next_command(
    args: list[str], width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    done = CliRunner().invoke(app, args)
    assert done.exit_code == 0, done.output
    assert wide_lines(done.output, width) == []
    assert ESCAPE not in done.output  # no colour where it is piped
    assert following(done.output)[0] == "sieve"
    assert following(done.output)[1] in {path[0] for path, _ in COMMANDS}


@pytest.mark.parametrize("width", [80, 160])
@pytest.mark.parametrize("args", ON_A_SPEC, ids=lambda a: " ".join(a[:1] + a[2:]))
def test_outputs_on_a_spec_fit_the_terminal_and_end_with_the_next_command(
    args: list[str], width: int, make_spec: Any, small_run: Any, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Whatever the answer: the exit codes here are 0, 3 and 4."""
    monkeypatch.setenv("COLUMNS", str(width))
    run = Path(shutil.copytree(small_run.folder, tmp_path / "run"))
    spec = tmp_path / "spec.yaml"
    spec.write_text(json.dumps(make_spec()), encoding="utf-8")
    day = (
        "TIMESTAMP,ContextTokens,GeneratedTokens",
        *(f"2026-11-16 18:15:0{i}.5,300,40" for i in range(9)),
    )
    (tmp_path / "day.csv").write_text("\n".join(day), encoding="utf-8")
    done = CliRunner().invoke(
        app, [word.format(spec=spec, run=run, folder=tmp_path) for word in args]
    )
    assert done.exit_code in {0, 3, 4}, done.output
    assert wide_lines(done.output, width) == []
    assert ESCAPE not in done.output
    words = following(done.output)
    assert words[0] in {"sieve", "bash"}
    if words[0] == "sieve":
        again = CliRunner().invoke(app, [*words[1:], "--help"])
        assert again.exit_code == 0, again.output


def following(output: str) -> list[str]:
    """Return the words of the command that an output ends with."""
    return shlex.split(output.rstrip().splitlines()[-1].removeprefix("Next"))


MODEL, GPU = "meta-llama/Llama-3.1-8B-Instruct", "A100-SXM-80GB"


def test_the_next_command_keeps_what_was_given() -> None:
    done = CliRunner().invoke(
        app, ["check", MODEL, "--gpu", GPU, "--weight-dtype", "fp8", "--max-num-seqs", "8"]
    )
    assert following(done.output) == [
        "sieve", "fit", MODEL, "--gpu", GPU, "--tp", "1", "--weight-dtype", "fp8",
        "--max-num-seqs", "8",
    ]  # fmt: skip


@pytest.mark.parametrize("command", ["check", "fit"])
def test_a_broken_rule_is_followed_by_the_nearest_legal_split(command: str) -> None:
    """32 query heads and 8 KV heads do not divide by 3; 4 is the next that divides both."""
    done = CliRunner().invoke(app, [command, MODEL, "--gpu", GPU, "--tp", "3"])
    assert done.exit_code == 3
    assert following(done.output) == ["sieve", command, MODEL, "--gpu", GPU, "--tp", "4"]
    again = CliRunner().invoke(app, following(done.output)[1:])
    assert again.exit_code == 0


@pytest.mark.parametrize("gpu", ["A100-SXM-80GB", "H100-SXM-80GB", "A100-SXM-40GB"])
def test_what_does_not_fit_is_followed_by_what_does(gpu: str) -> None:
    """70.6 billion parameters of two bytes are more than any of these cards holds."""
    done = CliRunner().invoke(app, ["fit", "meta-llama/Llama-3.1-70B-Instruct", "--gpu", gpu])
    assert done.exit_code == 3
    again = CliRunner().invoke(app, following(done.output)[1:])
    assert again.exit_code == 0, again.output


def test_an_unknown_command_or_option_names_the_nearest() -> None:
    unknown = CliRunner().invoke(app, ["rnu"])
    assert (unknown.exit_code, "Did you mean 'run'?" in unknown.output) == (2, True)
    option = CliRunner().invoke(app, ["run", "chat", "--ou", "x"])
    assert (option.exit_code, "--out" in option.output) == (2, True)


def wide_lines(output: str, width: int) -> list[str]:
    """Return the lines beyond the width, but for commands and paths, which stay whole."""
    whole = re.compile(r"(Next|Report|Plan|History|Summary|Figure|Params|Plot)\s+\S")
    lines = (line.rstrip() for line in output.splitlines())
    return [line for line in lines if cell_len(line) > width and not whole.match(line)]


def test_a_model_too_large_for_a_card_is_followed_by_a_card_that_holds_it() -> None:
    """671 billion parameters of one byte: 625 GiB, more than eight cards of 80 GB offer."""
    done = CliRunner().invoke(app, ["fit", "deepseek-ai/DeepSeek-V3", "--gpu", "L40S-48GB"])
    assert done.exit_code == 3
    again = CliRunner().invoke(app, following(done.output)[1:])
    assert again.exit_code == 0, again.output


@pytest.mark.parametrize("changes", [{}, {"model": "deepseek-ai/DeepSeek-V3"}])
def test_a_run_that_ranks_nothing_explains_what_came_furthest(
    changes: dict[str, Any], make_spec: Any, tmp_path: Path
) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text(json.dumps(make_spec({"slo.tpot_p99": "0.1 ms", **changes})), encoding="utf-8")
    done = CliRunner().invoke(app, ["run", str(spec), "--out", str(tmp_path / "run")])
    assert done.exit_code == (3 if changes else 4)
    again = CliRunner().invoke(app, following(done.output)[1:])
    assert again.exit_code == 0, again.output
    assert "would change it" in again.output


def test_a_run_that_was_stopped_goes_on_with_its_next_command(
    make_spec: Any, tmp_path: Path
) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text(json.dumps(make_spec()), encoding="utf-8")
    out = ["--out", str(tmp_path / "run")]
    done = CliRunner().invoke(app, ["run", str(spec), *out, "--stop-after", "3"])
    again = CliRunner().invoke(app, following(done.output)[1:])
    assert again.exit_code == 0, again.output
    assert "Ranking" in again.output


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("examples/chat.yaml", "the shipped one is the preset chat"),
        ("sevice.yaml", "beside it: service.yaml"),
        ("nowhere/spec.yaml", "check the path"),
    ],
)
def test_a_spec_that_is_not_there_names_what_is(
    given: str, words: str, tmp_path: Any, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "service.yaml").write_text("name: mine\n", encoding="utf-8")
    with pytest.raises(SpecError, match=f"no such run spec; {words}"):
        load_spec(given)


def test_an_edited_table_of_candidates_is_refused(make_spec: Any, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    sieve.run(make_spec({"model": "deepseek-ai/DeepSeek-V3"}), out=folder)
    path = folder / "candidates.parquet"
    pl.read_parquet(path).with_columns(observed=pl.lit("many")).write_parquet(path)
    with pytest.raises(ResultError, match="observed and limit are not numbers"):
        first_of(folder)
