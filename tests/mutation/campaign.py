"""Change the code at random places, one at a time, and see whether the tests notice.

    python tests/mutation/campaign.py --mutants 300 --seed 0 --out mutants.json

Needs `cosmic-ray` on the path (`pip install cosmic-ray` in an environment of its own). Works on a
copy of the checkout. The sample is spread over the groups by their number of possible mutants;
kernels run interpreted, so that a change in them is seen without compiling.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
TIMEOUT_S: Final = 240


@dataclass(frozen=True)
class Group:
    """Code and the tests that are to notice a change in it.

    Attributes:
        name: of the group.
        modules: files or folders to change.
        tests: arguments of pytest.
        interpreted: whether numba is switched off.
    """

    name: str
    modules: tuple[str, ...]
    tests: tuple[str, ...]
    interpreted: bool = False


UNIT: Final = "tests/unit"
GROUPS: Final = (
    Group(
        "stages",
        ("stages",),
        tuple(
            f"{UNIT}/test_{name}.py"
            for name in (
                "stage_contract", "validity", "placement", "memory", "shortlist", "simulate",
                "ranking", "levels", "pipeline", "export",
            )
        ),
    ),
    Group(
        "ranking",
        ("sieve/ranking",),
        tuple(
            f"{UNIT}/test_{name}.py"
            for name in ("ranking", "ties", "noise", "interval_ends", "levels")
        ),
    ),
    Group(
        "memory",
        ("sieve/memory",),
        tuple(
            f"{UNIT}/{name}"
            for name in ("memory", "test_fit.py", "test_memory.py", "verify/test_memory.py")
        ),
    ),
    Group(
        "replay",
        ("sieve/sim/_kernels", "sieve/sim/traffic_input.py", "sieve/sim/metrics.py"),
        ("tests/conformance", f"{UNIT}/sim/test_engine.py", f"{UNIT}/sim/test_traffic_input.py"),
        interpreted=True,
    ),
    Group("readers", ("sieve/traces",), (f"{UNIT}/traces",)),
)  # fmt: skip


def _command(group: Group) -> str:
    switch = "env NUMBA_DISABLE_JIT=1 " if group.interpreted else ""
    tests = " ".join(group.tests)
    return f"{switch}{sys.executable} -m pytest -q -x {tests}"


def _init(group: Group, copy: Path) -> Path:
    """Return a session that holds every possible mutant of a group."""
    config, session = copy / f"{group.name}.toml", copy / f"{group.name}.sqlite"
    modules = json.dumps(list(group.modules))
    config.write_text(
        "[cosmic-ray]\n"
        f"module-path = {modules}\n"
        f"timeout = {TIMEOUT_S}.0\n"
        'excluded-modules = ["**/__init__.py"]\n'
        f"test-command = {json.dumps(_command(group))}\n"
        '[cosmic-ray.distributor]\nname = "local"\n'
    )
    subprocess.run(["cosmic-ray", "init", str(config), str(session)], cwd=copy, check=True)
    return session


def _check_green(group: Group, copy: Path) -> float:
    """Return how long the tests take on unchanged code; they have to pass, or all would be killed.

    Raises:
        SystemExit: they fail.
    """
    started = time.monotonic()
    done = subprocess.run(
        _command(group), shell=True, cwd=copy, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{group.name}: the tests fail on unchanged code\n{done.stdout[-2000:]}")
    return time.monotonic() - started


def _keep(session: Path, count: int, rng: random.Random) -> int:
    """Cut a session down to a random sample; returns how many mutants remain."""
    with sqlite3.connect(session) as base:
        jobs = sorted(row[0] for row in base.execute("select job_id from work_items"))
        chosen = set(rng.sample(jobs, min(count, len(jobs))))
        for job in jobs:
            if job not in chosen:
                base.execute("delete from mutation_specs where job_id = ?", (job,))
                base.execute("delete from work_items where job_id = ?", (job,))
    return len(chosen)


def _outcomes(session: Path) -> list[dict[str, Any]]:
    query = (
        "select m.module_path, m.operator_name, m.start_pos_row, r.test_outcome, r.diff "
        "from mutation_specs m join work_results r on m.job_id = r.job_id"
    )
    with sqlite3.connect(session) as base:
        return [
            {
                "file": str(file),
                "operator": operator,
                "line": line,
                "outcome": outcome,
                "diff": diff,
            }
            for file, operator, line, outcome, diff in base.execute(query)
        ]


def main() -> int:
    """Run the campaign and print the share of mutants that the tests killed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--mutants", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--group", choices=[g.name for g in GROUPS], action="append")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    groups = [g for g in GROUPS if g.name in (args.group or [g.name])]
    with tempfile.TemporaryDirectory() as name:
        copy = Path(name) / "copy"
        ignored = shutil.ignore_patterns(".git", ".venv", ".*_cache", "__pycache__", "runs")
        shutil.copytree(ROOT, copy, ignore=ignored)
        os.environ["NUMBA_CACHE_DIR"] = str(Path(name) / "numba")
        sessions = {group: _init(group, copy) for group in groups}
        sizes = {group: _size(session) for group, session in sessions.items()}
        whole = sum(sizes.values())
        found: list[dict[str, Any]] = []
        for group, session in sessions.items():
            took = _check_green(group, copy)
            _keep(session, round(args.mutants * sizes[group] / whole), rng)
            subprocess.run(
                ["cosmic-ray", "exec", f"{group.name}.toml", str(session)], cwd=copy, check=True
            )
            rows = [{"group": group.name, **row} for row in _outcomes(session)]
            found += rows
            counts = Counter(str(row["outcome"]) for row in rows)
            line = {"group": group.name, "possible": sizes[group], "tests_s": round(took, 1)}
            print(json.dumps({**line, **counts}), flush=True)
            args.out.write_text(json.dumps(found, indent=1))
    return 0


def _size(session: Path) -> int:
    with sqlite3.connect(session) as base:
        return int(base.execute("select count(*) from work_items").fetchone()[0])


if __name__ == "__main__":
    sys.exit(main())
