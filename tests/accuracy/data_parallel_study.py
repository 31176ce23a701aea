"""Measured runs with data-parallel attention, as `reports/validation/data_parallel.md`.

    SIEVE_DATA=FOLDER python tests/accuracy/data_parallel_study.py \
        > reports/validation/data_parallel.md

Public runs of that kind are of other engines (SGLang, TensorRT-LLM): each is predicted as if vLLM
had run it with one GPU a rank and experts dealt out over all, with the defaults of the release that
was newest then. Writes figures, not rows.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np

from sieve.errors import SieveError
from sieve.verify.measured_replay import Replays
from sieve.verify.measured_rows import MeasuredRow, read_rows
from sieve.verify.measured_setup import setup_of

METRICS = ("output_tokens_per_s", "tpot", "ttft")


def as_vllm(row: MeasuredRow) -> MeasuredRow:
    """Return the row as a run of vLLM: the published tp counts the GPUs of all ranks."""
    tp, dp = row.count("tp") or 1, row.count("dp") or 1
    own = tp // dp if tp % dp == 0 else tp
    text = {**row.text, "engine": "vllm", "tp": str(own), "ep": str(own * dp)}
    text["engine_version"] = ""
    numbers = {**row.numbers, "tp": float(own), "ep": float(own * dp)}
    return replace(row, text=text, numbers=numbers)


def why_not(row: MeasuredRow) -> str:
    """Return why a row with several ranks is left out, "" if it is not."""
    words = row.text["notes"].lower()
    if "disaggregated" in words:
        return "prefill and decode on GPUs of their own"
    if "replicas_on_one_gpu" in words:
        return "engines without experts that share a GPU"
    if "max load" in row.text["request_rate"]:
        return "the number of requests is not stated"
    return ""


def main() -> None:
    """Write the page to standard output."""
    folder = Path(os.environ["SIEVE_DATA"]) / "measured"
    replays, skipped = Replays(), Counter[str]()
    errors: dict[tuple[str, str, str, str], dict[str, list[float]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for path in sorted(folder.glob("*.csv")):
        for row in read_rows(path):
            if (row.count("dp") or 1) == 1:
                continue
            reason = why_not(row)
            if not reason:
                try:
                    found, _, _ = replays.predict(setup_of(as_vllm(row)))
                except SieveError as error:
                    reason = str(error).split(":")[0]
            if reason:
                skipped[reason] += 1
                continue
            key = (row.text["model"], row.text["gpu"], row.text["engine"], row.regime)
            for name in METRICS:
                stated = name if name in row.measured else f"{name}_p50"
                if stated in row.measured:
                    errors[key][name].append(found[stated] / row.measured[stated] - 1)
    print(HEAD)
    for key, by_metric in sorted(errors.items()):
        count = max(len(values) for values in by_metric.values())
        print(f"| {' | '.join(key)} | {count} | {' | '.join(_cells(by_metric))} |")
    print(f"\nNot predicted: {sum(skipped.values())} rows.\n")
    for reason, count in skipped.most_common():
        print(f"- {count}: {reason}")
    print(TAIL)


def _cells(by_metric: dict[str, list[float]]) -> list[str]:
    """Return the median size of the errors and their median, metric by metric."""
    cells = []
    for name in METRICS:
        values = 100 * np.array(by_metric[name])
        text = "-"
        if len(values):
            text = f"{np.median(np.abs(values)):.0f} % ({np.median(values):+.0f} %)"
        cells.append(text)
    return cells


HEAD = """# Data-parallel attention against runs of other engines

`SIEVE_DATA=FOLDER python tests/accuracy/data_parallel_study.py` writes this page.

No public run of vLLM with data-parallel ranks is at hand. These runs are of SGLang and TensorRT-LLM
with attention on every GPU's own requests; each is predicted as if vLLM had run it with one GPU a
rank and experts dealt out over all. Engines, kernels and options differ (some rows are steps of a
tuning: other attention kernels, memory shares, limits), so this is no measure of accuracy: it shows
that the order of magnitude is right. Median of the errors' size, and their median with sign.

| model | GPU | engine | regime | rows | output tokens/s | TPOT | TTFT |
|---|---|---|---|---|---|---|---|"""
TAIL = """
What limits it: the exchange of tokens is timed as NCCL collectives of equal parts, experts by the
kernels of another split where their own was not measured, and the agreement of the ranks on sizes
before each step is not charged. Nothing was fitted to these rows."""

if __name__ == "__main__":
    main()
