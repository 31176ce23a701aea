"""Prefill and decode apart against public runs: a part of `fleet_study.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from sieve.arrays import Requests
from sieve.fleet.disaggregate import pool_replay
from sieve.fleet.shapes import load_shapes
from sieve.sim.disaggregated import Link
from sieve.sim.metrics import per_request
from sieve.units import GB


def separate_pools(data: Path) -> list[dict[str, Any]]:
    """Return predicted against measured for every public run of prefill and decode pools."""
    table = pl.read_csv(data / "measured" / "dstack_pd_ratio.csv")
    spec = {
        "name": "pd",
        "model": "openai/gpt-oss-120b",
        "traffic": {
            "synthetic": {
                "requests": 20, "isl": 33000, "osl": 13000, "arrival": {"closed_loop": 4},
            }
        },
        "slo": {"ttft_p99": "10 s"},
        "fleet": {"gpus": ["H200-SXM-141GB"], "max_gpus": 8},
        "grid": {
            "axes": {
                "tp": [2], "replicas": [1], "weight_dtype": ["mxfp4"], "max_num_seqs": [256],
                "max_num_batched_tokens": [16384], "kv_cache_dtype": ["auto"],
            }
        },
    }  # fmt: skip
    _, shapes, _ = load_shapes(spec)
    link = Link(2 * 50 * GB, 0.005)
    rows = []
    for row in table.iter_rows(named=True):
        words = row["notes"].split()
        prefill, decode = int(words[words.index("prefill") - 1]), int(words[words.index("+") + 1])
        n = 500
        requests = Requests(
            np.zeros(n), np.full(n, round(row["isl_mean"])), np.full(n, round(row["osl_mean"])),
            closed_loop_users=row["concurrency"],
        )  # fmt: skip
        result = pool_replay(requests, shapes[0], shapes[0], (prefill, decode), link)
        times = per_request(requests, result)
        found = {
            "output_tok_s_total": float(requests.output_tokens.sum()) / result.makespan_s,
            "ttft_mean_ms": 1e3 * float(times["ttft"].mean()),
            "tpot_mean_ms": 1e3 * float(times["tpot"].mean()),
        }
        rows.append(
            {
                "ratio": f"{prefill}+{decode}", "isl": row["isl_mean"], "osl": row["osl_mean"],
                "concurrency": row["concurrency"],
                **{name: (row[name], value) for name, value in found.items()},
            }
        )  # fmt: skip
    return rows


def pool_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the errors of separate pools, by ratio and by length of the answers."""
    lines = ["| runs | rows | tokens/s | TTFT | TPOT |", "|---|---|---|---|---|"]
    groups: dict[str, list[Mapping[str, Any]]] = {"all": list(rows)}
    for row in rows:
        groups.setdefault(f"{row['ratio']} engines", []).append(row)
    groups["answers of 400 to 2,000 tokens"] = [r for r in rows if 400 <= r["osl"] <= 2000]
    groups["answers below 100 tokens"] = [r for r in rows if r["osl"] < 100]
    groups["answers above 6,000 tokens"] = [r for r in rows if r["osl"] > 6000]
    for name, members in groups.items():
        cells = []
        for metric in ("output_tok_s_total", "ttft_mean_ms", "tpot_mean_ms"):
            off = np.array([made / measured - 1 for measured, made in (r[metric] for r in members)])
            cells.append(f"{np.median(np.abs(off)):.0%} ({np.median(off):+.0%})")
        lines.append(f"| {name} | {len(members)} | {' | '.join(cells)} |")
    return lines


def best_ratios(rows: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """Return in how many workloads on eight GPUs the best of the ratios is found, and of how many.

    A workload is a prompt length, a nominal answer length and a concurrency; answers end early, so
    lengths that are alike to a fifth count as one.
    """
    groups: dict[Any, list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["ratio"] != "1+1":
            kind = "short" if row["osl"] < 100 else "long" if row["osl"] > 6000 else "middle"
            groups.setdefault((row["isl"], kind, row["concurrency"]), []).append(row)
    full = [members for members in groups.values() if len(members) >= 2]
    hits = 0
    for members in full:
        measured = max(members, key=lambda r: r["output_tok_s_total"][0])
        made = max(members, key=lambda r: r["output_tok_s_total"][1])
        hits += measured is made
    return hits, len(full)
