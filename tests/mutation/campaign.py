"""Change the code at random places, one at a time, and see whether the tests notice.

    PYTHONPATH=tests python -m mutation.campaign --mutants 300 --seed 0 --out mutants.json

Needs `cosmic-ray` on the path (`pip install cosmic-ray` in an environment of its own). Works on a
copy of the checkout. The sample is spread over the groups by their number of possible mutants. A
mutant meets the tests that reach its statement, the quickest first; where that is not known for
sure it then meets all tests of its group. What a shared fixture or a cache runs is known of the
first test alone, so what survives is met `--again` by all tests of its group. Kernels run
interpreted, so that a change in them is seen without compiling.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from mutation.reach import SECONDS, Reach
from mutation.sample import Mutant, chosen, possible, shares

ROOT: Final = Path(__file__).parents[2]
UNIT: Final = "tests/unit"


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


def _units(*names: str) -> tuple[str, ...]:
    return tuple(f"{UNIT}/{name}" for name in names)


GROUPS: Final = (
    Group(
        "stages",
        ("stages",),
        _units(
            "test_stage_contract.py", "test_validity.py", "test_placement.py", "test_memory.py",
            "test_shortlist.py", "test_simulate.py", "test_ranking.py", "test_levels.py",
            "test_pipeline.py", "test_export.py", "test_stage_values.py", "test_model_ends.py",
        ),
    ),
    Group(
        "ranking",
        ("sieve/ranking",),
        _units(
            "test_ranking.py", "test_ties.py", "test_noise.py", "test_interval_ends.py",
            "test_levels.py",
        ),
    ),
    Group(
        "memory",
        ("sieve/memory",),
        _units(
            "memory", "test_fit.py", "test_memory.py", "verify/test_memory.py",
            "test_calibrate_command.py",
        ),
    ),
    Group(
        "replay",
        ("sieve/sim/_kernels", "sieve/sim/traffic_input.py", "sieve/sim/metrics.py"),
        (
            "tests/conformance", f"{UNIT}/sim", "tests/laws/test_plain_oracle.py",
            "tests/laws/test_events_kernel.py", "tests/laws/test_lockstep_laws.py",
            "tests/laws/test_replay_laws.py",
            *_units("test_noise.py", "test_interval_ends.py", "fleet/test_disaggregated.py"),
            # They hold compiled against interpreted, or take minutes without a compiler.
            f"--deselect={UNIT}/sim/test_engine.py::test_compiled_equals_interpreted",
            "--deselect=tests/laws/test_replay_laws.py::test_compiled_equals_interpreted",
            f"--deselect={UNIT}/sim/test_kernel_cache.py",
            "--deselect=tests/laws/test_events_kernel.py::test_recorded_scenarios",
            *(
                f"--deselect=tests/conformance/test_engine_schedules.py::test_replay_is_exact[{name}]"
                for name in ("193_large_chat", "195_large_batch", "197_large_priority",
                             "199_large_async_chat")
            ),
        ),
        interpreted=True,
    ),
    Group(
        "readers",
        ("sieve/traces",),
        (
            *_units("traces", "test_trace_command.py", "export/test_traffic_file.py"),
            "tests/accuracy/test_shipped_facts.py",
            # They replay what was read: half a minute for what the others ask already.
            f"--deselect={UNIT}/test_trace_command.py::test_run_takes_every_kind_of_reader",
            f"--deselect={UNIT}/export/test_traffic_file.py"
            "::test_the_replay_of_the_file_is_the_replay_of_the_run",
        ),
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """What came of one mutant.

    Attributes:
        group: of the mutant.
        file, operator, occurrence, line: of the mutant.
        outcome: killed, timeout or survived.
        tests: how many reach the statement.
        seconds: that it took.
        diff: changed lines.
    """

    group: str
    file: str
    operator: str
    occurrence: int
    line: int
    outcome: str
    tests: int
    seconds: float
    diff: str


def _environment(group: Group) -> dict[str, str]:
    env = dict(os.environ, PYTHONPATH="tests")
    return env | ({"NUMBA_DISABLE_JIT": "1"} if group.interpreted else {})


def _pytest(group: Group, copy: Path, arguments: Sequence[str], limit_s: float) -> str:
    """Return passed, killed or timeout."""
    listed = copy / "selected.txt"
    listed.write_text("\n".join(arguments) + "\n")
    command = [sys.executable, "-m", "pytest", "-q", "-x", f"@{listed}"]
    try:
        done = subprocess.run(
            command, cwd=copy, env=_environment(group), timeout=limit_s,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return "timeout"
    return "passed" if done.returncode in {0, 5} else "killed"


def _reach(group: Group, copy: Path) -> tuple[Reach, float]:
    """Run the tests on unchanged code; they have to pass, or all mutants would be killed.

    Raises:
        SystemExit: they fail.
    """
    rc, data, seconds = (copy.parent / f"{group.name}.{end}" for end in ("rc", "data", "json"))
    include = ",".join(
        f"{copy}/{m}" if m.endswith(".py") else f"{copy}/{m}/*" for m in group.modules
    )
    rc.write_text(f"[run]\ndata_file = {data}\ninclude = {include}\n")
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "coverage", "run", f"--rcfile={rc}", "-m", "pytest", "-q",
         "-p", "mutation.reach", *group.tests],
        cwd=copy, env=_environment(group) | {SECONDS: str(seconds)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{group.name}: the tests fail on unchanged code\n{done.stdout[-2000:]}")
    return Reach.load(data, seconds, copy), time.monotonic() - started


def _meet(
    group: Group, mutant: Mutant, reach: Reach, whole_s: float, copy: Path, *, by_all: bool
) -> Outcome:
    """Change the code, run the tests, and put the code back; `by_all`: all tests of the group."""
    path = copy / mutant.file
    source, started = path.read_text(), time.monotonic()
    subprocess.run(
        ["cosmic-ray", "apply", mutant.file, mutant.operator, str(mutant.occurrence)],
        cwd=copy, check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    changed = path.read_text()
    tests, exact = reach.tests(mutant.file, source, mutant.line)
    try:
        outcome = "passed"
        if tests:
            # Measured with tracing, which takes longer than the tests alone.
            limit_s = 40 + sum(reach.seconds.get(name, 0.0) for name in tests)
            outcome = _pytest(group, copy, tests, limit_s)
        if outcome == "passed" and (by_all or not exact):
            outcome = _pytest(group, copy, group.tests, 40 + whole_s)
    finally:
        path.write_text(source)
        # A time of its own: bytecode is kept by size and second.
        os.utime(path, (time.time() + mutant.line, time.time() + mutant.line))
    lines = difflib.unified_diff(source.splitlines(), changed.splitlines(), lineterm="", n=0)
    return Outcome(
        group.name, **asdict(mutant), outcome="survived" if outcome == "passed" else outcome,
        tests=len(tests), seconds=round(time.monotonic() - started, 1),
        diff="\n".join(line for line in lines if not line.startswith(("---", "+++"))),
    )  # fmt: skip


def _sample(copy: Path, count: int, seed: int) -> dict[str, list[Mutant]]:
    """Return the mutants of each group, in random order, and print how many are possible."""
    mutants = {group.name: possible(copy, group.modules) for group in GROUPS}
    sizes = {name: len(found) for name, found in mutants.items()}
    print(json.dumps({"possible": sizes}), flush=True)
    counts = shares(sizes, count)
    return {name: chosen(mutants[name], counts[name], f"{seed} {name}") for name in sizes}


def _key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["file"], row["operator"], row["occurrence"]


def _survivors(path: Path) -> dict[str, list[Mutant]]:
    """Return what survived an earlier run on the same code."""
    out: dict[str, list[Mutant]] = {group.name: [] for group in GROUPS}
    for row in json.loads(path.read_text()):
        if row["outcome"] == "survived":
            fields = (row["file"], row["operator"], row["occurrence"], row["line"])
            out[row["group"]].append(Mutant(*fields))
    return out


def main() -> int:
    """Run the campaign and print the share of mutants that the tests noticed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--mutants", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--group", choices=[g.name for g in GROUPS], action="append")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--resume", action="store_true", help="keep what --out holds already")
    parser.add_argument("--again", type=Path, help="meet the survivors of an earlier run's --out")
    args = parser.parse_args()
    out: Path = args.out.absolute()
    with tempfile.TemporaryDirectory() as name:
        copy = Path(name) / "copy"
        ignored = shutil.ignore_patterns(".git", ".venv", ".*_cache", "__pycache__", "runs")
        shutil.copytree(ROOT, copy, ignore=ignored)
        plan = _survivors(args.again) if args.again else _sample(copy, args.mutants, args.seed)
        rows: list[dict[str, Any]] = json.loads(out.read_text()) if args.resume else []
        met = {_key(row) for row in rows}
        for group in GROUPS:
            if args.group and group.name not in args.group:
                continue
            left = [mutant for mutant in plan[group.name] if _key(asdict(mutant)) not in met]
            if not left:
                continue
            reach, whole_s = _reach(group, copy)
            tally = Counter(row["outcome"] for row in rows if row["group"] == group.name)
            for mutant in left:
                again = args.again is not None
                outcome = _meet(group, mutant, reach, whole_s, copy, by_all=again)
                tally[outcome.outcome] += 1
                rows.append(asdict(outcome))
                out.write_text(json.dumps(rows, indent=1))
            line = {"group": group.name, "tests_s": round(whole_s, 1)}
            print(json.dumps({**line, **tally}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
