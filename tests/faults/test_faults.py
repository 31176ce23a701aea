"""What the machine does to a run costs no more than the work in flight."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from faults.kills import campaign
from faults.runs import content, leftovers, run

ROOTLESS = {"PATH": os.environ["PATH"]}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    done = run(folder)
    assert done.returncode in {0, 4, 5}, done.stderr
    return folder


@pytest.mark.parametrize(("most_bytes", "file"), [(0, "events.jsonl"), (3000, "replays.ledger")])
def test_a_full_disk_is_one_error_and_nothing_is_lost(
    whole: Path, tmp_path: Path, most_bytes: int, file: str
) -> None:
    out = tmp_path / "run"
    broken = run(out, most_bytes=most_bytes)
    assert broken.returncode == 2
    assert broken.stderr.startswith("error: ")
    assert f"{file}: cannot be written" in broken.stderr
    assert "make room, then go on with --resume" in broken.stderr
    assert broken.stderr.count("\n") <= 2
    assert not (out / "result.json").exists()
    assert leftovers(out) == []
    assert run(out, "--resume").returncode in {0, 4, 5}
    assert content(out) == content(whole)


@pytest.mark.parametrize(
    "env",
    [
        ROOTLESS,
        {**ROOTLESS, "HOME": "/proc/none"},
        {**ROOTLESS, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"},
        {**ROOTLESS, "TMPDIR": "/proc/none", "TZ": "Mars/Olympus"},
    ],
    ids=["no home", "a home that is not there", "no locale", "no temporary folder, odd time zone"],
)
def test_a_bare_environment_gives_the_same_bytes(
    whole: Path, tmp_path: Path, env: dict[str, str]
) -> None:
    done = run(tmp_path / "run", env=env)
    assert done.returncode in {0, 4, 5}, done.stderr
    assert "Traceback" not in done.stderr
    assert content(tmp_path / "run") == content(whole)


def test_a_folder_that_cannot_be_made_is_one_error() -> None:
    done = run(Path("/proc/sieve"))
    assert done.returncode == 2
    assert done.stderr.startswith("error: /proc/sieve: cannot be written")


def test_killed_at_random_moments_a_run_gives_the_same_bytes(tmp_path: Path) -> None:
    tally = campaign(3, tmp_path, seed=5, a_run=3)
    assert tally.kills >= 3
    assert tally.different == 0


JUMPING = """
import time
steps, real = iter(range(10**9)), time.time
time.time = lambda: real() + (1e9 if next(steps) % 2 else -1e9)
from sieve.cli.main import main
main()
"""


def test_a_clock_that_jumps_changes_nothing_but_the_times_told(whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    done = run(out, code=JUMPING)
    assert done.returncode in {0, 4, 5}, done.stderr
    assert content(out) == content(whole)
    result = json.loads((out / "result.json").read_text())
    assert 0 <= result["elapsed_s"] < 3600
    assert all(0 <= stage["elapsed_s"] < 3600 for stage in result["stages"])


def test_a_run_out_of_memory_is_gone_on_with(whole: Path, tmp_path: Path) -> None:
    """An allocation that fails in a library ends the process, as the system's own killer does."""
    out = tmp_path / "run"
    broken = run(out, most_memory=1_000_000_000)
    assert broken.returncode not in {0, 4, 5}
    assert not (out / "result.json").exists()
    assert run(out, "--resume").returncode in {0, 4, 5}
    assert content(out) == content(whole)


def test_an_allocation_that_fails_in_python_is_one_error(tmp_path: Path) -> None:
    code = """
import sieve.cli.main as cli
def fail(*_, **__): raise MemoryError
import sieve.api
sieve.api.run = fail
cli.main()
"""
    done = run(tmp_path / "run", code=code)
    assert done.returncode == 2
    assert done.stderr.startswith("error: out of memory; take fewer requests or a smaller grid")
