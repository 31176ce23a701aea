"""Start the command line on a small spec, with a fault of the machine, and read what it left."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
SPEC: Final = ROOT / "tests" / "fuzz" / "corpus" / "spec" / "small.yaml"
FRAMES: Final = ("candidates.parquet", "simulations.parquet")


MAIN: Final = "from sieve.cli.main import main; main()"


def command(out: Path, *flags: str, code: str = MAIN) -> list[str]:
    """Return the command that runs the small spec into `out`."""
    return [sys.executable, "-c", code, "run", str(SPEC), "--out", str(out), *flags]


def run(
    out: Path,
    *flags: str,
    most_bytes: int | None = None,
    most_memory: int | None = None,
    code: str = MAIN,
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run to the end.

    Args:
        out: run folder.
        flags: more arguments.
        most_bytes: largest file that the process may write, as on a disk that fills up.
        most_memory: largest address space in bytes.
        code: Python that starts the command line.
        env: the environment, this process's by default.
    """

    def limit() -> None:
        if most_bytes is not None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
        if most_memory is not None:
            resource.setrlimit(resource.RLIMIT_AS, (most_memory, most_memory))

    return subprocess.run(
        command(out, *flags, code=code), capture_output=True, text=True, check=False, cwd=ROOT,
        env=dict(os.environ if env is None else env), preexec_fn=limit,
    )  # fmt: skip


def content(folder: Path) -> tuple[Any, ...]:
    """Return what a run answers, without the clock."""
    data = json.loads((folder / "result.json").read_text())
    del data["elapsed_s"]
    for stage in data["stages"]:
        del stage["elapsed_s"]
    return (json.dumps(data), *((folder / name).read_bytes() for name in FRAMES))


def leftovers(folder: Path, known: Sequence[str] = (".part-",)) -> list[str]:
    """Return temporary files that a broken run left behind."""
    return [path.name for path in folder.rglob("*") if path.name.startswith(tuple(known))]
