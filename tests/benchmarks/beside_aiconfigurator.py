"""The same question to sieve and to AIConfigurator: `tests/benchmarks/beside_aiconfigurator.py`.

Optional: installs AIConfigurator into an environment of its own below a temporary folder (or takes
the one in `AICONFIGURATOR_ENV`), so it needs a package index. It asks for one length of prompts and
answers, takes means, and keeps the precision of the checkpoint. So sieve is asked that too, on
requests of one length that arrive at random, and then its own question: the percentile, every
precision. Prints wall and CPU seconds of the first run (sieve compiles its kernels) and of a
second one, peak memory, points or candidates looked at, and the answer, as a table in Markdown.
"""

from __future__ import annotations

import csv
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
import yaml

ROOT = Path(__file__).resolve().parents[2]
VERSION = "0.12.0"
SIEVE = [sys.executable, "-c", "from sieve.cli.main import main; main()"]
TTFT_MS, TPOT_MS, ISL, OSL = 2000, 50, 1155, 211


class Question(NamedTuple):
    """A model on H100 at a rate of requests."""

    model: str
    rate_per_s: float


QUESTIONS = (Question("Qwen/Qwen3-32B", 12), Question("Qwen/Qwen3-30B-A3B", 40))


def timed(command: list[str], **env: str) -> tuple[str, str]:
    """Return a command's output and its times, the cell of a table."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **env}
    )
    wall = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    output = done.stdout + done.stderr
    if done.returncode not in {0, 4, 5}:
        sys.exit(output)
    return output, f"{wall:.1f} / {cpu:.1f}"


def environment(folder: Path) -> Path:
    """Return the folder with the programs of an environment that has AIConfigurator."""
    ready = os.environ.get("AICONFIGURATOR_ENV")
    if ready:
        return Path(ready) / "bin"
    venv.create(folder, with_pip=True)
    pip = [str(folder / "bin" / "pip"), "install", "--quiet", f"aiconfigurator=={VERSION}"]
    subprocess.run(pip, check=True)
    return folder / "bin"


def aiconfigurator(question: Question, programs: Path, folder: Path) -> tuple[str, str, str]:
    """Return times, points looked at and the answer of AIConfigurator."""
    out = Path(tempfile.mkdtemp(dir=folder))
    command = [
        str(programs / "aiconfigurator"), "cli", "default", "--model", question.model,
        "--system", "h100_sxm", "--backend", "vllm", "--serving-mode", "agg",
        "--isl", str(ISL), "--osl", str(OSL), "--ttft", str(TTFT_MS), "--tpot", str(TPOT_MS),
        "--strict-sla", "--target-request-rate", str(question.rate_per_s), "--save-dir", str(out),
    ]  # fmt: skip
    log, times = timed(command, HF_HUB_OFFLINE="1")
    points = sum(int(n) for n in re.findall(r"completed with (\d+) results", log))
    found = next(out.rglob("agg/best_config_topn.csv"))
    with found.open(encoding="utf-8") as file:
        best = next(csv.DictReader(file))
    answer = (
        f"{best['total_gpus_needed']} GPUs: TP {best['tp']} x PP {best['pp']} x "
        f"{best['replicas_needed']}, {best['gemm']}, {best['bs']} seats; mean TTFT "
        f"{float(best['ttft']):.0f} ms, TPOT {float(best['tpot']):.1f} ms"
    )
    return times, f"{points:,} points", answer


def sieve(question: Question, cache: Path, folder: Path, *, own: bool) -> tuple[str, str, str]:
    """Return times, candidates and the answer of sieve, to the same question or to its own."""
    out = Path(tempfile.mkdtemp(dir=folder))
    statistic = "p99" if own else "mean"
    spec: dict[str, Any] = {
        "name": "beside",
        "model": question.model,
        "traffic": {
            "synthetic": {
                "isl": ISL, "osl": OSL, "requests": 2000,
                "arrival": {"poisson_per_s": question.rate_per_s},
            },
            "rate_per_s": question.rate_per_s,
            "levels": [1.0],
        },
        "slo": {f"ttft_{statistic}": f"{TTFT_MS} ms", f"tpot_{statistic}": f"{TPOT_MS} ms"},
        "fleet": {"gpus": ["H100-SXM-80GB"], "max_gpus": 16},
        "rank": {"objective": ["num_gpus", "usd_per_mtok"]},
    }  # fmt: skip
    if not own:
        grid = yaml.safe_load((ROOT / "grids" / "default.yaml").read_text(encoding="utf-8"))
        grid["axes"] |= {"weight_dtype": ["bf16"], "kv_cache_dtype": ["auto"]}
        spec["grid"] = {"axes": grid["axes"]}
    path = out / "spec.yaml"
    path.write_text(yaml.safe_dump(spec), encoding="utf-8")
    _, times = timed(
        [*SIEVE, "run", str(path), "--out", str(out / "run")], NUMBA_CACHE_DIR=str(cache)
    )
    result = json.loads((out / "run" / "result.json").read_text(encoding="utf-8"))
    name = result["answer"]["fewest_gpus"]
    best = next(row for row in result["ranking"] if row["candidate_id"] == name)
    replays = pl.read_parquet(out / "run" / "simulations.parquet").filter(candidate_id=name)
    ttft, tpot = (replays[f"{m}_{statistic}_s"].item() * 1000 for m in ("ttft", "tpot"))
    answer = (
        f"{best['num_gpus']} GPUs: TP {best['tp']} x PP {best['pp']} x {best['replicas']}, "
        f"{best['weight_dtype']}, {best['max_num_seqs']} seats; {statistic} TTFT {ttft:.0f} ms, "
        f"TPOT {tpot:.1f} ms; {best['verdict']}"
    )
    return times, f"{result['stages'][0]['num_in']:,} candidates", answer


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        programs = environment(folder / "env")
        cache = folder / "compiled"
        print("| question | tool | first run, wall / CPU s | second | looked at | answer |")
        print("|---|---|---|---|---|---|")
        for question in QUESTIONS:
            asked = f"{question.model}, {question.rate_per_s:g}/s"
            calls = (
                ("AIConfigurator", lambda q=question: aiconfigurator(q, programs, folder)),
                ("sieve", lambda q=question: sieve(q, cache, folder, own=False)),
                ("sieve, p99", lambda q=question: sieve(q, cache, folder, own=True)),
            )
            for tool, ask in calls:
                first, looked, answer = ask()
                second, _, _ = ask()
                print(f"| {asked} | {tool} | {first} | {second} | {looked} | {answer} |")


if __name__ == "__main__":
    main()
