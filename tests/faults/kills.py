"""Kill runs at random moments, go on with `--resume`, and compare with a run left alone.

    PYTHONPATH=tests python -m faults.kills --kills 100

Prints how many runs were killed, how often a result had been written by then, and whether each
finished run gives the same bytes.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from faults.runs import ROOT, command, content, run


@dataclass
class Tally:
    """What came of the kills."""

    kills: int = 0
    finished_first: int = 0
    finished_runs: int = 0
    different: int = 0


def ended_first(out: Path, delay_s: float) -> float | None:
    """Start a run and kill it after `delay_s`; the seconds it took when it ended by itself."""
    started = time.monotonic()
    process = subprocess.Popen(
        command(out, "--resume"),
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        process.wait(delay_s)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.wait()
        return None
    return time.monotonic() - started


def campaign(kills: int, folder: Path, seed: int, a_run: int = 10) -> Tally:
    """Kill `kills` runs, `a_run` times in a row before one is let through."""
    rng = random.Random(seed)
    started = time.monotonic()
    run(folder / "whole")
    lasts_s = time.monotonic() - started
    expected = content(folder / "whole")
    tally = Tally()
    while tally.kills < kills:
        out = folder / f"run{tally.finished_runs}"
        for _ in range(min(a_run, kills - tally.kills)):
            # Most of a short run is its start: half of the kills fall into the last third.
            low = 0.6 if rng.random() < 0.5 else 0.0
            took_s = ended_first(out, lasts_s * rng.uniform(low, 1.0))
            if took_s is None:
                tally.kills += 1
                lasts_s *= 1.05
            else:
                # What is left to do, and what else the machine does, changes from run to run.
                tally.finished_first += 1
                lasts_s = took_s
        run(out, "--resume")
        tally.finished_runs += 1
        tally.different += content(out) != expected
    return tally


def main() -> int:
    """Run the campaign; the exit code is 1 if a result differs."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        tally = campaign(args.kills, Path(name), args.seed)
    print(json.dumps(asdict(tally)))
    return 1 if tally.different else 0


if __name__ == "__main__":
    sys.exit(main())
