"""Leave-one-model-out error of the ledger's fitted constants, as `reports/validation/memory.md`.

    python tests/accuracy/memory_study.py > reports/validation/memory.md

Two constants of the activation peak (bytes per logit, a base) and one of non-torch memory for each
of TP 1 and TP above 1 were read off start-up logs. Here each model's rows are predicted from
constants fitted to the rows of all other models (`tests/data/start_ups.csv`, facts from public
threads).
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from sieve.catalog.models import load_model
from sieve.units import GIB

ROWS = Path(__file__).parents[1] / "data" / "start_ups.csv"


def dense_rows() -> list[dict[str, str]]:
    """Return the rows of dense text models with a stated activation, one engine version range."""
    with ROWS.open(encoding="utf-8") as file:
        rows = [r for r in csv.DictReader(file) if r["activation_gib"] and r["max_num_seqs"]]
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


def main() -> None:
    """Print the page."""
    found = left_out(dense_rows())
    print("# Memory constants, leave one model out\n")
    print(
        "Written by `tests/accuracy/memory_study.py`: dense text models on H100, vLLM 0.19. Worst"
    )
    print("error in GiB of each model's rows, constants fitted to the other models only.\n")
    print("| model | rows | activation | non-torch |\n|---|---|---|---|")
    for name, rows, activation, other in found:
        print(f"| {name} | {rows} | {activation:.3f} | {other:.3f} |")
    print(
        "\nWeights and block layout have no fitted constant. `sieve verify memory` scores all rows,"
    )
    print("experts and vision included, with the constants that ship.")


if __name__ == "__main__":
    main()
