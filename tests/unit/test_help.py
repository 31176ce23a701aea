"""Help pages, suggestions, widths: what a person meets at the prompt."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from sieve.cli.following import help_with_examples
from sieve.cli.main import app
from sieve.errors import SpecError
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
    ["gpus"], ["engines"], ["models"], ["tables", "list"], ["tables", "show", "L40S-48GB"],
    ["fit", "Qwen/Qwen3-8B", "--gpu", "H100-SXM-80GB"],
    ["check", "Qwen/Qwen3-8B", "--gpu", "H100-SXM-80GB"],
    ["bound", "Qwen/Qwen3-8B", "--gpu", "H100-SXM-80GB"],
    ["eval", "--list", "sizing"], ["trace", "inspect", "chat"],
]  # fmt: skip


@pytest.mark.parametrize("width", [80, 160])
@pytest.mark.parametrize("args", PAGES, ids=lambda a: " ".join(a[:2]))
def test_pages_fit_the_terminal_and_end_with_the_next_command(
    args: list[str], width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    done = CliRunner().invoke(app, args)
    assert done.exit_code == 0, done.output
    *lines, last = done.output.rstrip().splitlines()
    assert max(map(len, lines)) <= width
    assert ESCAPE not in done.output  # no colour where it is piped
    assert re.match(r"Next    sieve \w+", last)
    following = shlex.split(last.removeprefix("Next"))[1:]
    assert following[0] in {path[0] for path, _ in COMMANDS}


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
