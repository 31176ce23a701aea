"""Times of whole commands, as a table: `python tests/benchmarks/run.py`.

Each command runs in a process of its own, start included, the compile cache as stated. Nothing here
is a test; figures depend on the machine and are written down where they are quoted.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SIEVE = [sys.executable, "-c", "from sieve.cli.main import main; main()"]
REFERENCE = str(ROOT / "examples" / "reference_27b.yaml")


def timed(name: str, args: list[str], *, cache: Path, repeats: int = 3) -> None:
    """Print the best wall time of a command in seconds and its peak memory in MB."""
    best = float("inf")
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            command = [*SIEVE, *args]
            if args[0] == "run":
                command += ["--out", str(Path(folder) / "run")]
            started = time.perf_counter()
            done = subprocess.run(
                command,
                capture_output=True,
                check=False,
                env={**os.environ, "NUMBA_CACHE_DIR": str(cache)},
            )
            best = min(best, time.perf_counter() - started)
            if done.returncode not in {0, 4, 5}:
                sys.exit(done.stderr.decode())
    peak_mb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(f"{name:<58} {best:7.2f} s   {peak_mb:6.0f} MB (largest so far)")


def main() -> None:
    """Print all figures."""
    print(f"{os.cpu_count()} cores, Python {sys.version.split()[0]}")
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder)
        timed(
            "reference grid, 100 replays, compile cache cold",
            ["run", REFERENCE],
            cache=cache,
            repeats=1,
        )
        timed("reference grid, 100 replays, compile cache warm", ["run", REFERENCE], cache=cache)
        timed("reference grid, stages 1 to 4", ["run", REFERENCE, "--stop-after", "4"], cache=cache)
        for name in ("chat", "long_prompts", "reasoning"):
            timed(
                f"examples/{name}.yaml",
                ["run", str(ROOT / "examples" / f"{name}.yaml")],
                cache=cache,
            )
        timed("sieve --help", ["--help"], cache=cache, repeats=5)
        timed("sieve gpus", ["gpus"], cache=cache)


if __name__ == "__main__":
    main()
