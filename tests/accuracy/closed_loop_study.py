"""Closed-loop measurements against the replay, as the page `reports/validation/closed_loop.md`.

    SIEVE_DATA=FOLDER python tests/accuracy/closed_loop_study.py > reports/validation/closed_loop.md

Reads `measured/aiconfigurator_silicon.csv` (points that AIConfigurator's own accuracy checks use;
Apache-2.0) and writes figures, not rows. Every user sends the next request when the last one is
answered; lengths are uniform from 0.8 to 1.0 of nominal and each user sends ten, as those runs did.
Server settings are not in the rows: budget 8,192, a seat for every user, no prefix cache, memory
never short.
"""

from __future__ import annotations

import csv
import os
import sys
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np

from sieve.arrays import Requests, StepTable
from sieve.catalog.accelerators import load_gpu
from sieve.catalog.models import load_model
from sieve.errors import SieveError
from sieve.grid import PRECISIONS
from sieve.perf.base import ServingShape
from sieve.perf.compose import build_step_table
from sieve.sim.metrics import per_request
from sieve.sim.replay import ReplaySettings, simulate

BUDGET, SEATS, CONTEXT, BLOCKS = 8192, 1024, 20_000, 10**6
PRECISION = {"fp4": "nvfp4", "": "bf16"}
TABLES: dict[tuple[object, ...], StepTable] = {}


def table_of(row: dict[str, str]) -> tuple[tuple[str, str], StepTable]:
    """Return ((model, gpu), step table) of a row."""
    model, gpu = load_model(row["model"]), load_gpu(row["gpu"])
    if not gpu.kernel_system:
        raise SieveError(f"no kernel tables for {gpu.name}")
    dtype = PRECISION.get(row["weight_precision"], row["weight_precision"])
    tp, ep = int(float(row["tp"])), int(float(row["ep"] or 1))
    key = (model.name, gpu.name, tp, ep, dtype)
    if key not in TABLES:
        shape = ServingShape(
            model, gpu, tp, 1, ep if ep == tp else 1, dtype, "auto", BUDGET, SEATS, CONTEXT,
            PRECISIONS[dtype][0],
        )  # fmt: skip
        TABLES[key] = build_step_table(shape)
    return (model.name, gpu.name), TABLES[key]


def predict(row: dict[str, str], table: StepTable) -> tuple[float, float]:
    """Return (mean TPOT, mean TTFT) in milliseconds."""
    users = int(float(row["concurrency"]))
    rng = np.random.default_rng(0)
    count = 10 * users

    def lengths(mean: str) -> np.ndarray:
        nominal = float(row[mean]) / 0.9
        return rng.integers(int(0.8 * nominal), int(nominal) + 1, count)

    requests = Requests(
        np.zeros(count), lengths("isl_mean"), lengths("osl_mean"), closed_loop_users=users
    )
    result = simulate(requests, table, ReplaySettings(min(SEATS, users), BUDGET, BLOCKS, 16))
    got = per_request(requests, result)
    return float(np.nanmean(got["tpot"])) * 1e3, float(got["ttft"].mean()) * 1e3


def measured(row: dict[str, str], metric: str) -> float:
    """Return a measured mean in milliseconds; the file's p50 columns hold means."""
    return float(row[f"{metric}_mean_ms"] or row[f"{metric}_p50_ms"])


def collect(path: Path) -> tuple[dict[tuple[str, str], np.ndarray], Counter[str]]:
    """Return log(measured/predicted) of (TPOT, TTFT) by group, and what was left out why."""
    found: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    left_out: Counter[str] = Counter()
    with path.open() as file:
        for row in csv.DictReader(file):
            if "vllm" not in row["engine"].lower() or row["eligible"] != "1":
                left_out["another engine, or not eligible"] += 1
                continue
            if not row["isl_mean"] or not row["concurrency"]:
                left_out["no lengths or concurrency"] += 1
                continue
            try:
                group, table = table_of(row)
            except SieveError as error:
                left_out[str(error).split(";")[0]] += 1
                continue
            tpot, ttft = predict(row, table)
            ratios = measured(row, "tpot") / tpot, measured(row, "ttft") / ttft
            found[group].append((float(np.log(ratios[0])), float(np.log(ratios[1]))))
    return {k: np.array(v) for k, v in sorted(found.items())}, left_out


def line(name: str, errors: np.ndarray, others: np.ndarray | None) -> str:
    """Return one table row: error of the prediction, and coverage of a bound from other groups."""
    cells = [name, str(len(errors))]
    for j in range(2):
        relative = np.expm1(-errors[:, j]) * 100
        cells.append(f"{np.median(np.abs(relative)):.1f}")
        cells.append(f"{np.abs(relative).mean():.1f}")
        cells.append(f"{np.median(relative):+.1f}")
        if others is None:
            cells.append("-")
        else:
            bound = np.quantile(others[:, j], 0.9)
            cells.append(f"{(errors[:, j] <= bound).mean() * 100:.0f}")
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print the page."""
    folder = os.environ.get("SIEVE_DATA")
    if not folder:
        sys.exit("set SIEVE_DATA to the folder that holds measured/")
    groups, left_out = collect(Path(folder) / "measured" / "aiconfigurator_silicon.csv")
    everything = np.concatenate(list(groups.values()))
    print("# Closed-loop measurements of vLLM against the replay\n")
    print("Written by `tests/accuracy/closed_loop_study.py`. Errors in percent, prediction against")
    print("measurement; negative bias: predicted too fast. `cover` is the share of a group's rows")
    print("below the one-sided 90 % bound that the *other* groups' errors give.\n")
    heads = ["model, GPU", "rows"]
    for metric in ("TPOT", "TTFT"):
        heads += [f"{metric} median", "mean", "bias", "cover"]
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    for group, errors in groups.items():
        others = np.concatenate([v for k, v in groups.items() if k != group])
        print(line(", ".join(group), errors, others))
    print(line("all", everything, None))
    print("\n90 % quantile and 10 % quantile of log(measured/predicted), divided by 1.2816, as the")
    print("spread on the high and on the low side:\n")
    for j, metric in enumerate(("TPOT", "TTFT")):
        high, low = np.quantile(everything[:, j], [0.9, 0.1])
        print(f"* {metric}: high {high / 1.2816:.2f}, low {max(-low, 0) / 1.2816:.2f}")
    print("\nLeft out:\n")
    for reason, rows in left_out.most_common():
        print(f"* {rows} rows: {reason}")


if __name__ == "__main__":
    main()
