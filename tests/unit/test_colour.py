"""Colour and motion: on a terminal that wants them, nowhere else."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

COLOUR = re.compile(r"\x1b\[[0-9;]*3[0-7][0-9;]*m")
ESCAPE = "\x1b"
SIEVE = [sys.executable, "-c", "from sieve.cli.main import main; main()"]


def environment(changes: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without what else decides about colour, with `changes`."""
    named = {"NO_COLOR", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "COLORTERM", "TERM"}
    kept = {k: v for k, v in os.environ.items() if k not in named}
    return {**kept, "TERM": "xterm-256color", "COLUMNS": "80", **changes}


def on_a_terminal(args: list[str], changes: Mapping[str, str]) -> str:
    """Return what a command writes when stdout and stderr are one terminal."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*SIEVE, *args], stdin=theirs, stdout=theirs, stderr=theirs, env=environment(changes)
    ) as process:
        os.close(theirs)
        seen = b""
        while select.select([ours], [], [], 120)[0]:
            try:
                part = os.read(ours, 65536)
            except OSError:  # Linux: the other end was closed
                break
            if not part:
                break
            seen += part
    os.close(ours)
    assert process.returncode == 0, seen.decode()
    return seen.decode()


@pytest.fixture
def spec(make_spec: Any, tmp_path: Path) -> Path:
    path = tmp_path / "spec.yaml"
    path.write_text(json.dumps(make_spec()), encoding="utf-8")
    return path


def test_a_terminal_gets_colour(spec: Path, tmp_path: Path) -> None:
    seen = on_a_terminal(["run", str(spec), "--out", str(tmp_path / "run")], {})
    assert COLOUR.search(seen)


def test_no_color_takes_the_colours_away(spec: Path, tmp_path: Path) -> None:
    args = ["run", str(spec), "--out", str(tmp_path / "run")]
    seen = on_a_terminal(args, {"NO_COLOR": "1"})
    assert "Ranking" in seen
    assert not COLOUR.search(seen)


def test_a_dumb_terminal_gets_no_escape(spec: Path, tmp_path: Path) -> None:
    args = ["run", str(spec), "--out", str(tmp_path / "run")]
    seen = on_a_terminal(args, {"TERM": "dumb"})
    assert "Ranking" in seen
    assert ESCAPE not in seen
    assert "\r" not in seen.replace("\r\n", "\n")  # nor a bar that is drawn over itself


@pytest.mark.parametrize("changes", [{}, {"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_a_pipe_gets_neither_colour_nor_progress(
    spec: Path, tmp_path: Path, changes: dict[str, str]
) -> None:
    done = subprocess.run(
        [*SIEVE, "run", str(spec), "--out", str(tmp_path / "run")], env=environment(changes),
        capture_output=True, text=True, check=True, timeout=300,
    )  # fmt: skip
    assert "Ranking" in done.stdout
    assert ESCAPE not in done.stdout
    assert done.stderr == ""
