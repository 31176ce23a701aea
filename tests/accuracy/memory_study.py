"""The ledger against start-up logs, row by row, as `reports/validation/memory.md`.

    python tests/accuracy/memory_study.py > reports/validation/memory.md

First what `sieve verify memory` says of every row, with each miss explained or called unexplained.
Then how the fitted constants do on models that they were not fitted to: two constants of the
activation peak (bytes per logit, a base) and one of non-torch memory for each of TP 1 and TP above
1, read off start-up logs. There each model's rows are predicted from constants fitted to the rows
of all other models (`tests/data/start_ups.csv`, facts from public threads).
"""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from sieve.catalog.models import load_model
from sieve.units import GIB
from sieve.verify.memory import verify_memory

ROWS = Path(__file__).parents[1] / "data" / "start_ups.csv"
MISS = {
    "weights_gib": 0.25, "activation_gib": 0.03, "non_torch_gib": 0.1, "available_kv_gib": 0.25,
    "kv_tokens": 0.001,
}  # fmt: skip
"""A row misses a figure beyond this: GiB, and for tokens a share of the log's."""
WHY = {
    "M031": "the log's figure was worked out from a published error, not printed",
    "M033": "the log's figure was worked out from a published error, not printed",
    "M046": "weights and cache of this row were worked out from published errors, good to 0.3 GiB; "
    "non-torch 2.21 where seven other rows of 0.19 on two and more ranks have 2.06 to 2.13",
    "M055": "unexplained. The cache was made, then the sampler's warm-up ran out of memory: it "
    "needed about 786 MiB and less than 552 MiB were left outside the budget. The ledger counts "
    "the same 786 MiB for the warm-up (1,024 sequences x 201,088 logits x 4 bytes) but has "
    "2,845 MiB left for it: graphs and context are 2.2 GiB smaller here than on that card, and no "
    "row tells them apart",
    "M060": "a checkpoint of 2024; 57.74 GiB if it stored each KV head twice, which is assumed and "
    "therefore not modelled",
    "M070": "figures of the source are rounded (50 GB, 55,000 tokens)",
    "M071": "figures of the source are rounded (50 GB, 525,000 tokens)",
}


def dense_rows() -> list[dict[str, str]]:
    """Return the rows of dense text models with a stated activation, one engine version range."""
    with ROWS.open(encoding="utf-8") as file:
        known = [r for r in csv.DictReader(file) if r["eligible"] == "1"]
        rows = [r for r in known if r["activation_gib"] and r["max_num_seqs"]]
    kept = []
    for row in rows:
        model = load_model(row["base_model"], any_family=True)
        if model.moe is None and not model.multimodal and row["vllm_version"].startswith("0.19"):
            kept.append(
                {**row, "logits": str(float(row["max_num_seqs"]) * (model.vocab_size or 0))}
            )
    return kept


def left_out(rows: list[dict[str, str]]) -> list[tuple[str, int, float, float]]:
    """Return (model, rows, worst activation error, worst non-torch error) in GiB per model."""
    out = []
    for name in sorted({row["base_model"] for row in rows}):
        train = [row for row in rows if row["base_model"] != name]
        test = [row for row in rows if row["base_model"] == name]
        design = np.array([[float(r["logits"]), 1.0] for r in train])
        measured = np.array([float(r["activation_gib"]) * GIB for r in train])
        slope, base = np.linalg.lstsq(design, measured, rcond=None)[0]
        activation = [
            abs(float(r["logits"]) * slope + base - float(r["activation_gib"]) * GIB) / GIB
            for r in test
        ]
        other = []
        for row in (r for r in test if r["non_torch_gib"]):
            alike = [
                float(r["non_torch_gib"])
                for r in train
                if r["non_torch_gib"] and (r["tp"] == "1") == (row["tp"] == "1")
            ]
            if alike:
                other.append(abs(float(np.mean(alike)) - float(row["non_torch_gib"])))
        out.append((name, len(test), max(activation), max(other, default=float("nan"))))
    return out


def shown(row: dict[str, Any], figure: str) -> str:
    """Return predicted against logged, `-` where the log has no figure."""
    measured, predicted = row[f"{figure}_measured"], row[f"{figure}_predicted"]
    if measured is None:
        return "-"
    if figure == "kv_tokens":
        return f"{predicted:,.0f} / {measured:,.0f}"
    return f"{predicted:.2f} / {measured:.2f}"


def misses(row: dict[str, Any]) -> list[str]:
    """Return the figures of a row beyond `MISS`, and a wrong verdict."""
    out = [] if row["verdict"] == row["expected"] else ["verdict"]
    for figure, most in MISS.items():
        measured, predicted = row[f"{figure}_measured"], row[f"{figure}_predicted"]
        if measured is None:
            continue
        error = abs(predicted - measured)
        if (error / measured if figure == "kv_tokens" else error) > most:
            out.append(figure.removesuffix("_gib").replace("_", " "))
    return out


def print_rows() -> None:
    """Print every row that can be judged, the misses, and why the others cannot be."""
    report = verify_memory(ROWS)
    eligible = verify_memory(ROWS, eligible_only=True)["summary"]
    print(
        "| case | model | verdict / log | weights | activation | non-torch | KV GiB | KV tokens |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for row in report["rows"]:
        figures = " | ".join(shown(row, figure) for figure in MISS)
        print(
            f"| {row['case_id']} | {row['model']} | {row['verdict']} / {row['expected']} "
            f"| {figures} |"
        )
    print("\nPredicted / logged, GiB per GPU; `-`: the log does not say.\n")
    print("| over | rows | verdicts right | KV tokens median | weights | activation | non-torch |")
    print("|---|---|---|---|---|---|---|")
    for name, found in (("all rows", report["summary"]), ("fully known rows", eligible)):
        print(
            f"| {name} | {found['rows']} | {found['verdict_correct']} "
            f"| {found['kv_tokens_median_ape']:.2f} % | {found['weights_mape']:.2f} % "
            f"| {found['activation_mae_gib']:.3f} GiB | {found['non_torch_mae_gib']:.3f} GiB |"
        )
    print("\n## Misses\n")
    print("Weights or cache by more than 0.25 GiB, activation 0.03, non-torch 0.1, tokens 0.1 %.\n")
    for row in report["rows"]:
        if found := misses(row):
            why = WHY.get(row["case_id"], "unexplained")
            print(f"- **{row['case_id']}** ({', '.join(found)}): {why}.")
    reasons = Counter(entry["reason"] for entry in report["skipped"])
    listed = ", ".join(f"{reason} ({n})" for reason, n in reasons.most_common())
    print(f"\n{len(report['skipped'])} further rows lack a fact that a ledger needs: {listed}.\n")


def main() -> None:
    """Print the page."""
    found = left_out(dense_rows())
    print("# The memory ledger against start-up logs\n")
    print("Written by `tests/accuracy/memory_study.py` from `tests/data/start_ups.csv` (public")
    print("threads and logs, the tag of each in the file). The constants of activation, non-torch")
    print(
        "and graphs were read off these rows; weights, blocks and concurrency have no fitted one.\n"
    )
    print_rows()
    print("## Constants, one model left out\n")
    print(
        "Dense text models on H100, vLLM 0.19. Worst error in GiB of each model's rows, constants"
    )
    print("fitted to the other models only.\n")
    print("| model | rows | activation | non-torch |\n|---|---|---|---|")
    for name, rows, activation, other in found:
        print(f"| {name} | {rows} | {activation:.3f} | {other:.3f} |")


if __name__ == "__main__":
    main()
