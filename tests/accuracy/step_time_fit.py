"""Fits the constants of the step-time model and writes `sieve/perf/data/step_time.yaml`.

    SIEVE_DATA=FOLDER python tests/accuracy/step_time_fit.py [WORKERS]

Rows: those of `measured/*.csv` that are marked eligible and that can be replayed. Unknowns are the
logarithms of the constants. Residuals are log errors of mean TPOT (scale 5 %), TTFT (10 %) and
throughput (5 %), with a Cauchy loss, so that a group that the model cannot describe does not bend
the others; each constant is held near a round value by a log-normal prior. Gauss-Newton from the
shipped constants, with derivatives by replay. Each fold leaves one model x GPU out and solves
again with the derivatives at the common solution; its rows are then replayed with the fold's
constants.
"""

from __future__ import annotations

import hashlib
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path

import numpy as np
import yaml

from sieve.errors import SieveError
from sieve.perf.constants import StepConstants, constant_names, step_constants
from sieve.resources import package_data
from sieve.verify.measured_replay import Replays
from sieve.verify.measured_rows import MeasuredRow, read_rows
from sieve.verify.measured_setup import Setup, setup_of

METRICS = {"tpot": 0.05, "ttft": 0.10, "output_tokens_per_s": 0.05}
"""Metric -> scale of its log error."""
PRIORS = {
    "layer_fixed_s": (14e-6, 0.10), "elementwise_dense": (0.3, 0.06),
    "elementwise_moe": (3.0, 0.20), "allreduce_factor": (1.15, 0.04),
    "decode_attention_factor": (1.2, 0.04), "prefill_attention_factor": (1.2, 0.08),
    "experts_factor": (0.86, 0.04), "routing_s": (8e-6, 0.10),
    "marlin_prefill_factor": (1.7, 0.08), "host_decode_s": (0.1e-3, 0.10),
    "host_mixed_s": (2.5e-3, 0.15), "sync_step_s": (0.7e-3, 0.20),
    "sync_sequence_s": (50e-6, 0.10), "block_quant_s": (6.5e-6, 0.12),
    "layer_launch_s": (180e-6, 0.10), "old_host_factor": (3.0, 0.15),
    "blackwell_mixed_s": (5e-3, 0.20), "chat_s": (32e-3, 0.20), "request_s": (4e-3, 0.20),
    "request_token_s": (0.7e-6, 0.20),
}  # fmt: skip
"""Constant -> (round value, deviation of its logarithm).

The round values came out of earlier fits to the same rows with deviations three to five times as
large: TPOT 4.8 % (7.8 % with the group left out) and TTFT 11.8 % (15.1 %) in the median. Narrow
priors keep a constant that only one group determines from wandering when that group is left out;
as their middles have seen all rows, a fold is not wholly blind.
"""
MEANING = {
    "layer_fixed_s": "s a layer: norms, rotary embedding, KV write, activation",
    "elementwise_dense": "share of a layer's activation traffic that reaches memory",
    "elementwise_moe": "the same with experts: sorting, pads and quantisation on top",
    "allreduce_factor": "on measured all-reduces: ranks do not arrive together",
    "decode_attention_factor": "on measured decode attention: lengths of a batch differ",
    "prefill_attention_factor": "on measured prefill attention",
    "experts_factor": "on measured expert kernels",
    "routing_s": "s to choose and sort the experts of one layer, outside the expert kernel",
    "marlin_prefill_factor": "on measured expert kernels where unpacked weights meet many tokens",
    "host_decode_s": "s a decode step outside the GPU",
    "host_mixed_s": "s a step with prompts outside the GPU",
    "sync_step_s": "s a step that synchronous scheduling adds",
    "sync_sequence_s": "the same for each sequence of the step",
    "block_quant_s": "s to quantise the input of one block-FP8 product",
    "layer_launch_s": "s to launch one layer's kernels; a step with prompts takes no less",
    "old_host_factor": "on synchronous host time before vLLM 0.8",
    "blackwell_mixed_s": "s a step with prompts on Blackwell: attention planned on the host",
    "chat_s": "s to the first token over a chat endpoint, however many requests there are",
    "request_s": "s a request outside the engine: HTTP, streaming",
    "request_token_s": "s a prompt token outside the engine: tokenising, hashing",
}
STEP = 0.08  # of a logarithm, for derivatives
ROUNDS = 2
NOT_FITTED = frozenset({"inferencex_token_position"})
"""Sources that are scored but not fitted: their makers call the runs experimental."""

_WORK: list[tuple[Setup, dict[str, float]]] = []
_REPLAYS = Replays()


def load() -> tuple[list[MeasuredRow], list[Setup], str]:
    """Return the rows that are fitted, their setups, and the hash of what was read."""
    folder = os.environ.get("SIEVE_DATA")
    if not folder:
        sys.exit("set SIEVE_DATA to the folder that holds measured/")
    rows, setups, digest = [], [], hashlib.sha256()
    for path in sorted((Path(folder) / "measured").glob("*.csv")):
        digest.update(path.read_bytes())
        for row in read_rows(path):
            if not row.eligible:
                continue
            try:
                setup = setup_of(row)
            except SieveError:
                continue  # the page of the study lists them
            rows.append(row)
            setups.append(setup)
    return rows, setups, digest.hexdigest()


def group_of(setup: Setup) -> str:
    """Return the fold of a row: architecture and GPU."""
    return f"{setup.model.name.removesuffix('-FP8')}, {setup.gpu.name}"


def stated(row: MeasuredRow) -> dict[str, float]:
    """Return what is scored: the mean of each metric, else its median."""
    found = {}
    for metric in METRICS:
        for name in (metric, f"{metric}_p50"):
            if name in row.measured:
                found[name] = row.measured[name]
                break
    return found


def residual(job: tuple[int, dict[str, float]]) -> list[float]:
    """Return log(predicted/measured) of one row with some constants, nan where not stated."""
    place, values = job
    setup, wanted = _WORK[place]
    _REPLAYS.constants = StepConstants(**values)
    got, _, _ = _REPLAYS.predict(setup)
    out = []
    for metric in METRICS:
        name = next((n for n in (metric, f"{metric}_p50") if n in wanted), "")
        ok = name in got
        out.append(float(np.log(got[name] / wanted[name])) if ok else float("nan"))
    return out


def all_residuals(pool: ProcessPoolExecutor, values: list[dict[str, float]]) -> np.ndarray:
    """Return (rows, metrics) log errors, row i with the constants values[i]."""
    jobs = list(enumerate(values))
    return np.array(list(pool.map(residual, jobs, chunksize=8)))


def named(logs: np.ndarray) -> dict[str, float]:
    """Return constants by name from their logarithms."""
    return dict(zip(constant_names(), np.exp(logs).tolist(), strict=True))


def solve(r: np.ndarray, jac: np.ndarray, at: np.ndarray, used: np.ndarray) -> np.ndarray:
    """Return the logarithms that minimise the linearised robust loss and the priors.

    Args:
        r: (k,) scaled residuals at `at`.
        jac: (k, p) their derivatives.
        at: (p,) logarithms.
        used: (k,) which residuals count.
    """
    prior = np.log([PRIORS[name][0] for name in constant_names()])
    spread = np.array([PRIORS[name][1] for name in constant_names()])
    x = at.copy()
    for _ in range(30):
        now = r + jac @ (x - at)
        weight = np.where(used, 1.0 / (1.0 + (now / 2.0) ** 2), 0.0)
        left = (jac * weight[:, None]).T @ jac + np.diag(1.0 / spread**2)
        right = (jac * weight[:, None]).T @ (jac @ at - r) + prior / spread**2
        x = at + np.clip(np.linalg.solve(left, right) - at, -0.7, 0.7)
    return x


def scaled(errors: np.ndarray) -> np.ndarray:
    """Return (rows * metrics,) errors over their scales; 0 where nothing was stated."""
    return np.nan_to_num(errors / np.array(list(METRICS.values()))).ravel()


def jacobian(pool: ProcessPoolExecutor, at: np.ndarray, base: np.ndarray) -> np.ndarray:
    """Return (rows * metrics, constants) derivatives of scaled residuals."""
    columns = []
    for j in range(len(at)):
        moved = at.copy()
        moved[j] += STEP
        there = all_residuals(pool, [named(moved)] * len(_WORK))
        columns.append((scaled(there) - scaled(base)) / STEP)
    return np.stack(columns, axis=1)


def figures(errors: np.ndarray) -> dict[str, dict[str, float]]:
    """Return rows, median and mean error and bias in per cent by metric."""
    out = {}
    for j, metric in enumerate(METRICS):
        e = 100 * np.expm1(errors[:, j][~np.isnan(errors[:, j])])
        out[metric] = {
            "rows": len(e), "median": round(float(np.median(np.abs(e))), 1),
            "mean": round(float(np.abs(e).mean()), 1), "bias": round(float(np.median(e)), 1),
        }  # fmt: skip
    return out


def main() -> None:
    """Fit, leave each group out, write the file and print the errors."""
    rows, setups, digest = load()
    _WORK.extend(zip(setups, map(stated, rows), strict=True))
    groups = np.array([group_of(setup) for setup in setups])
    fitted = np.array([row.source not in NOT_FITTED for row in rows])
    each = np.repeat(fitted, len(METRICS))
    x = np.log([getattr(step_constants(), name) for name in constant_names()])
    with ProcessPoolExecutor(int(sys.argv[1]) if len(sys.argv) > 1 else 2) as pool:
        base = all_residuals(pool, [named(x)] * len(rows))
        print("start", figures(base), flush=True)
        for _ in range(ROUNDS):
            jac = jacobian(pool, x, base)
            at, r = x, scaled(base)
            x = solve(r, jac, at, each)
            base = all_residuals(pool, [named(x)] * len(rows))
            print(figures(base), {k: float(f"{v:.3g}") for k, v in named(x).items()}, flush=True)
        folds = {}
        for group in sorted(set(groups.tolist())):
            used = each & np.repeat(groups != group, len(METRICS))
            folds[group] = named(solve(r, jac, at, used))
        left_out = all_residuals(pool, [folds[group] for group in groups.tolist()])
    print("left out", figures(left_out))
    write(named(x), folds, digest, {"training": figures(base), "left_out": figures(left_out)})


def write(values: dict, folds: dict, digest: str, errors: dict) -> None:
    """Write the constants, what they mean, where they come from and how well they do."""

    def short(constants: dict) -> dict:
        return {name: float(f"{value:.3g}") for name, value in constants.items()}

    document = {
        "values": short(asdict(StepConstants(**values))),
        "meaning": MEANING,
        "priors": {name: {"value": v, "log_deviation": s} for name, (v, s) in PRIORS.items()},
        "data_sha256": digest,
        "errors_percent": errors,
        "folds": {group: short(constants) for group, constants in folds.items()},
    }
    path = package_data("perf", "data", "step_time.yaml")
    text = yaml.safe_dump(document, sort_keys=False, width=100)
    path.write_text(f"# Written by tests/accuracy/step_time_fit.py; do not edit by hand.\n{text}")


if __name__ == "__main__":
    main()
