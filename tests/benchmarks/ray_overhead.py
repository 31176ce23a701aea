"""Ray beside threads on the same run: `python tests/benchmarks/ray_overhead.py [REQUESTS]`.

Replays every survivor of the chat example at one level, on threads and on a local Ray, and prints
wall and CPU time (of Ray only the driver's) and the difference. A run that is not timed compiles
the code first, which both then find on the disk.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SIEVE = [sys.executable, "-c", "from sieve.cli.main import main; main()"]


def timed(executor: str, requests: str, folder: Path) -> tuple[float, float, str]:
    """Return wall and CPU seconds of a run, and its result without times."""
    out = folder / executor
    command = [
        *SIEVE, "run", str(ROOT / "examples" / "chat.yaml"), "--exhaustive", "--executor", executor,
        "--set", "traffic.levels=[1.0]", "--set", f"traffic.requests={requests}",
        "--out", str(out),
    ]  # fmt: skip
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    home = {"HOME": str(folder.parent)}  # Ray leaves a token there
    subprocess.run(command, check=False, capture_output=True, env={**os.environ, **home})
    wall = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    result = json.loads((out / "result.json").read_text(encoding="utf-8"))
    result.pop("elapsed_s")
    for stage in result["stages"]:
        stage.pop("elapsed_s")
    return wall, cpu, json.dumps(result)


def main() -> None:
    """Print the figures."""
    requests = sys.argv[1] if len(sys.argv) > 1 else "2000"
    with tempfile.TemporaryDirectory() as folder:
        timed("local", "200", Path(folder) / "first")
        rows = {name: timed(name, requests, Path(folder) / "run") for name in ("local", "ray")}
    for name, (wall, cpu, _) in rows.items():
        print(f"{name:<6} {wall:7.1f} s  {cpu:7.1f} CPU-s")
    print(f"Ray adds {rows['ray'][0] - rows['local'][0]:.1f} s")
    print(f"same result: {rows['ray'][2] == rows['local'][2]}")


if __name__ == "__main__":
    main()
