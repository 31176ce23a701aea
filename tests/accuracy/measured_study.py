"""Measured runs of vLLM against the replay, as the page `reports/validation/measured.md`.

    SIEVE_DATA=FOLDER python tests/accuracy/measured_study.py > reports/validation/measured.md

Reads the rows of `measured/*.csv` that are marked eligible and writes figures, not rows. Each row
is predicted twice: with the shipped constants, and with those of the fold that left its model x
GPU out (`sieve/perf/data/step_time.yaml`, written by `step_time_fit.py`).
"""

from __future__ import annotations

import os
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sieve.errors import SieveError
from sieve.perf.constants import StepConstants, constant_names, document, step_constants
from sieve.verify.measured_replay import Replays
from sieve.verify.measured_rows import MeasuredRow, read_rows
from sieve.verify.measured_setup import Setup, setup_of

LITTLE = "little"
METRICS = {
    "tpot": "TPOT", "ttft": "TTFT", "output_tokens_per_s": "throughput",
    LITTLE: "throughput, derived",
}  # fmt: skip
TARGETS = {
    "tpot": (5.0, 9.0), "ttft": (12.0, 20.0), "output_tokens_per_s": (None, 8.0),
    LITTLE: (None, 8.0),
}  # fmt: skip
FEW = 20
FAMILIES = {
    "state": "hybrid, linear attention", "latent": "latent attention (MLA), sparse, experts",
    "window": "sliding window, experts", "chunk": "local attention, experts",
}  # fmt: skip
UNMEASURED = (FAMILIES["state"], FAMILIES["latent"])
EXPERIMENTAL = "Qwen/Qwen3.5-397B-A17B"
WHY = {
    EXPERIMENTAL: "The source calls these runs experimental. They prefill 6,000 tokens per second "
    "on eight H200, 3 % of their arithmetic; no kernel table shows anything like it. Not fitted.",
    "deepseek-ai/DeepSeek-V3.2": "Sparse latent attention was measured in vLLM 0.24; vLLM 0.11 ran "
    "its first version of it. Bursts of a thousand short prompts are dominated by host work.",
    "Qwen/Qwen3-235B-A22B": "A100: bursts on vLLM 0.11 with a budget of 2,048 tokens. The traffic "
    "around experts that Hopper and Blackwell rows ask for is too much here.",
    "Qwen/Qwen3-235B-A22B-FP8": "A100: the same; FP8 weights are unpacked, not measured there.",
    "MiniMaxAI/MiniMax-M2.5": "vLLM 0.16 at TP 4 takes 4 ms a step more than its kernels, 0.18 at "
    "TP 8 hardly any; which kernel ran is not known. Short prompts cost 30 to 60 ms more.",
    "meta-llama/Llama-3.1-405B-Instruct": "vLLM 0.6.3: the replay follows a later scheduler, so "
    "queues (TTFT) differ near saturation; the host's factor is fitted to these rows alone.",
    "openai/gpt-oss-20b": "Bursts on vLLM 0.11; four-token answers measure the client.",
    "Qwen/Qwen3-32B": "H100: three FP8 rows are twice as fast as the sweep of 90 beside them. "
    "A100: bursts of conversations whose lengths are drawn, not known.",
}  # fmt: skip


@dataclass
class Case:
    """A row with its two predictions."""

    row: MeasuredRow
    setup: Setup
    trained: dict[str, float]
    left_out: dict[str, float]

    def error(self, metric: str, *, out: bool) -> float:
        """Return the signed relative error in per cent, nan where the metric is not stated."""
        predicted = self.left_out if out else self.trained
        if metric == LITTLE:
            if "output_tokens_per_s" in self.row.measured or self.row.regime != "closed loop":
                return float("nan")
            got, true = self.by_little(predicted), self.by_little(self.row.measured)
        else:
            name = metric if metric in self.row.measured else f"{metric}_p50"
            got, true = predicted.get(name), self.row.measured.get(name)
        return 100 * (got / true - 1) if got and true else float("nan")

    def by_little(self, latency: Mapping[str, float]) -> float:
        """Return the tokens per second of a closed loop that latencies imply (Little's law)."""
        users, answer = self.row.numbers["concurrency"] or 0.0, self.row.numbers["osl_mean"] or 1.0
        return users * answer / (latency["ttft"] + latency["tpot"] * (answer - 1))


def group_of(setup: Setup) -> str:
    """Return model and GPU, checkpoints of one architecture together."""
    return f"{setup.model.name.removesuffix('-FP8')}, {setup.gpu.name}"


def family_of(setup: Setup) -> str:
    """Return what kind of layers a model has."""
    kinds = {kind.kind for kind in setup.model.kinds}
    for kind, words in FAMILIES.items():
        if kind in kinds:
            return words
    return "experts, full attention" if setup.model.moe else "dense, full attention"


def load(folder: Path) -> tuple[list[Case], Counter[str]]:
    """Return every eligible row with its predictions, and what could not be replayed why."""
    folds = document()["folds"]
    replays = {
        group: Replays(StepConstants(**{n: float(v[n]) for n in constant_names()}))
        for group, v in folds.items()
    }
    shipped, cases, skipped = Replays(), [], Counter()
    for path in sorted((folder / "measured").glob("*.csv")):
        for row in read_rows(path):
            if not row.eligible:
                continue
            try:
                setup = setup_of(row)
                trained = shipped.predict(setup)[0]
                left_out = replays[group_of(setup)].predict(setup)[0]
            except SieveError as error:
                skipped[f"{row.source}: {error}"] += 1
                continue
            cases.append(Case(row, setup, trained, left_out))
    return cases, skipped


def cells(cases: list[Case], metric: str) -> list[str]:
    """Return rows, then median, mean and bias left out, then median and mean in training."""
    out = np.array([case.error(metric, out=True) for case in cases])
    trained = np.array([case.error(metric, out=False) for case in cases])
    known = ~np.isnan(out)
    if not known.any():
        return ["-"] * 6
    out, trained = out[known], trained[known]
    return [
        str(len(out)), f"{np.median(np.abs(out)):.1f}", f"{np.abs(out).mean():.1f}",
        f"{np.median(out):+.1f}", f"{np.median(np.abs(trained)):.1f}",
        f"{np.abs(trained).mean():.1f}",
    ]  # fmt: skip


def table(cases: list[Case], name: str, key: Callable[[Case], str]) -> None:
    """Print one table, a line for each group and metric."""
    groups: dict[str, list[Case]] = defaultdict(list)
    for case in cases:
        groups[key(case)].append(case)
    print(f"\n## By {name}\n")
    print(f"| {name} | metric | rows | median | mean | bias | training median | training mean |")
    print("|---|---|---|---|---|---|---|---|")
    for group in sorted(groups):
        for metric, words in METRICS.items():
            found = cells(groups[group], metric)
            if found[0] != "-":
                print(f"| {group} | {words} | {' | '.join(found)} |")


def targets(cases: list[Case]) -> None:
    """Print what was aimed at beside what was reached."""
    print("\n## Against the targets\n")
    print("`others` leaves out the experimental runs of Qwen3.5-397B, see below.\n")
    print("| figure, model x GPU left out | target | reached | others |\n|---|---|---|---|")
    others = [case for case in cases if case.setup.model.name != EXPERIMENTAL]
    for metric, (middle, mean) in TARGETS.items():
        found, rest = cells(cases, metric), cells(others, metric)
        if middle:
            print(
                f"| {METRICS[metric]}, median error | {middle:g} % | {found[1]} % | {rest[1]} % |"
            )
        print(f"| {METRICS[metric]}, mean error | {mean:g} % | {found[2]} % | {rest[2]} % |")
    for metric in ("tpot", "ttft"):
        shares = [
            np.mean([case.error(metric, out=True) < 0 for case in some]) for some in (cases, others)
        ]
        words = f"{METRICS[metric]}, rows predicted faster than measured"
        print(f"| {words} | 50 % | {shares[0]:.0%} | {shares[1]:.0%} |")
    groups: dict[str, list[Case]] = defaultdict(list)
    for case in cases:
        groups[group_of(case.setup)].append(case)
    for metric in ("tpot", "ttft"):
        most = 2 * (TARGETS[metric][0] or 0.0)
        bad = [
            f"{group} ({np.nanmedian(np.abs([c.error(metric, out=True) for c in found])):.0f} %)"
            for group, found in sorted(groups.items())
            if len(found) >= FEW
            and np.nanmedian(np.abs([c.error(metric, out=True) for c in found])) > most
        ]
        words = f"{METRICS[metric]}, groups of {FEW} rows or more with a median above {most:g} %"
        print(f"| {words} | none | {'; '.join(bad) or 'none'} | |")


def worst(cases: list[Case]) -> None:
    """Print the worst groups, why, and the worst single rows of the others."""
    print("\n## Where it fails, and why\n")
    models = {case.setup.model.name for case in cases}
    for model, why in WHY.items():
        if model in models:
            own = [case for case in cases if case.setup.model.name == model]
            found = cells(own, "tpot")
            print(f"* **{model}** (TPOT {found[1]} % median, bias {found[3]} %): {why}")
    others = [case for case in cases if case.setup.model.name not in list(WHY)[:2]]
    others.sort(key=lambda case: -abs(case.error("tpot", out=True)))
    print(
        "\nLargest TPOT errors of single rows, model x GPU left out, but the first two models':\n"
    )
    print("| model, GPU | TP | input | output | load | error |\n|---|---|---|---|---|---|")
    for case in others[:12]:
        text = case.row.text
        load_ = f"{text['concurrency']} users" if text["concurrency"] else text["request_rate"]
        print(
            f"| {group_of(case.setup)} | {case.setup.tp} | {float(text['isl_mean']):.0f} | "
            f"{float(text['osl_mean']):.0f} | {load_} | {case.error('tpot', out=True):+.0f} % |"
        )


def spread(cases: list[Case]) -> None:
    """Print the spread of the log error on either side, as intervals need it."""
    print("\n## Spread\n")
    print("90 % quantile and 10 % quantile of log(measured/predicted) over all rows but those of")
    print("models without kernel tables, model x GPU left out, divided by 1.2816:\n")
    known = [case for case in cases if family_of(case.setup) not in UNMEASURED]
    for metric, words in METRICS.items():
        errors = np.array([case.error(metric, out=True) for case in known])
        logs = -np.log1p(errors[~np.isnan(errors)] / 100)
        high, low = np.quantile(logs, [0.9, 0.1])
        print(f"* {words}: high {max(high, 0) / 1.2816:.2f}, low {max(-low, 0) / 1.2816:.2f}")


def constants() -> None:
    """Print the constants, what they mean and how far they move between folds."""
    facts = document()
    print("\n## The constants\n")
    print("Fitted by `tests/accuracy/step_time_fit.py` with a prior on each; data hash")
    print(
        f"`{facts['data_sha256'][:16]}`. The last column spans the folds. The middles of the priors"
    )
    print("came out of earlier fits to the same rows, so a fold is not wholly blind: with priors")
    print("three to five times as wide the left-out medians were 7.8 % (TPOT) and 15.1 % (TTFT).")
    print("A source whose makers call its runs experimental is scored but not fitted.\n")
    print("| constant | meaning | prior | value | folds |\n|---|---|---|---|---|")
    for name in constant_names():
        spread = [fold[name] for fold in facts["folds"].values()]
        prior = facts["priors"][name]["value"]
        print(
            f"| {name} | {facts['meaning'][name]} | {prior:.3g} | "
            f"{getattr(step_constants(), name):.3g} | {min(spread):.3g} to {max(spread):.3g} |"
        )


def main() -> None:
    """Print the page."""
    folder = os.environ.get("SIEVE_DATA")
    if not folder:
        sys.exit("set SIEVE_DATA to the folder that holds measured/")
    cases, skipped = load(Path(folder))
    print("# Measured runs of vLLM against the replay\n")
    print("Written by `tests/accuracy/measured_study.py`. Errors in percent, prediction against")
    print("measurement, of the mean where a row has one, else of the median; negative bias: below")
    print("measured. `median`, `mean` and `bias` are with constants fitted *without* the row's")
    print("model x GPU, `training` with the shipped constants. Repeats of one configuration differ")
    print("by 2 % in TTFT and 0.3 % in TPOT in the median, and by 20 % and 10 % at the 90th")
    print("percentile: nothing can be closer than that. Closed loops without a measured throughput")
    print("have a derived one on either side: users x answer / (TTFT + TPOT x (answer - 1)).")
    targets(cases)
    table(cases, "regime", lambda case: case.row.regime)
    table(cases, "GPU", lambda case: case.setup.gpu.name)
    table(cases, "family", lambda case: family_of(case.setup))
    table(cases, "model and GPU", lambda case: group_of(case.setup))
    table(cases, "source", lambda case: case.row.source)
    worst(cases)
    spread(cases)
    constants()
    print(f"\n## Not replayed\n\n{sum(skipped.values())} eligible rows:\n")
    for reason, rows in skipped.most_common():
        print(f"* {rows} rows, {reason}")


if __name__ == "__main__":
    main()
