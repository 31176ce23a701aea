"""No measured run beats its ceiling, or a ceiling is wrong.

Every `eligible` row of `measured/*.csv` under the folder that SIEVE_DATA names, against
`sieve.bounds_of.bound` at its most generous: no memory overhead, the prompt as read and as reserved
context, the fewest experts a step can visit, hardware limits, and a cache of 8 bits where the row
does not say. What a row measured and the ceiling that it must stay below:

* time per token, or the gap between tokens: one session alone,
* time to first token: one prompt alone, taken whole (rows without cached prefixes),
* output tokens/s: the batch of all users, or where users are not stated the largest that fits,
* closed loops without a throughput: users / (time to first token + answer), by Little's law.

Means are taken where a row has them: a median may belong to requests shorter than the mean.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from sieve.bounds_of import WEIGHT_BYTES, bound
from sieve.catalog.accelerators import load_gpu
from sieve.catalog.models import load_model
from sieve.errors import CatalogError, NotYetError

DATA = os.environ.get("SIEVE_DATA")
needs_data = pytest.mark.skipif(
    not DATA, reason="SIEVE_DATA is not set: it names the folder with the measured runs"
)
NO_FLOOR = 1e-9  # tokens/s of a session; the batch is then limited by memory alone
ELIGIBLE_ROWS = 507
# Shares of the ceiling that the best row reaches at least.
NEAREST = {
    "tpot": 0.6, "itl": 0.6, "ttft": 0.4, "throughput": 0.55, "prompt rate": 0.4,
    "throughput by Little's law": 0.7,
}  # fmt: skip


@dataclass
class Checks:
    """What was compared.

    Attributes:
        rows: rows with at least one figure compared.
        figures: comparisons by name.
        closest: largest share of a ceiling reached, by name, with its row.
        violations: figures better than their ceiling, with file and line.
        skipped: rows left out, by reason.
    """

    rows: int = 0
    figures: Counter[str] = field(default_factory=Counter)
    closest: dict[str, tuple[float, str]] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)


@cache
def ceilings(
    model: str, gpu: str, num_gpus: int, weights: str, kv: str, isl: int, users: int
) -> dict[str, float]:
    """Return the shortest times in seconds and the highest rates in tokens/s."""
    found = bound(
        load_model(model, any_family=True), load_gpu(gpu), num_gpus=num_gpus, weight_dtype=weights,
        kv_cache_dtype=kv, context_tokens=isl, read_context_tokens=isl, overhead_bytes=0.0,
        floor_tokens_per_s=NO_FLOOR, prompt_tokens=isl, expert_traffic="floor", batches=(users,),
    )  # fmt: skip
    decode, prefill = found["decode"], found["prefill"]
    assert decode["kinds"]["aggregate_tokens_per_s"] == "bound", model
    most = decode["aggregate_tokens_per_s"]
    if most is None:
        raise CatalogError(f"{decode['state']} by our ledger of bytes")
    return {
        "tpot_s": 1 / decode["single_tokens_per_s"],
        "ttft_s": prefill["one_prompt"].get("time_s", prefill["one_prompt"]["memory_s"]),
        "by_users": decode["batches"][0]["aggregate_tokens_per_s"],
        "by_memory": most,
        "prompt_tokens_per_s": prefill["linear_only_tokens_per_s"] or float("inf"),
    }


def first(row: dict[str, Any], *names: str) -> float | None:
    """Return the first figure that the row has."""
    return next((float(row[name]) for name in names if row[name] not in {None, ""}), None)


def compare(row: dict[str, Any]) -> Iterator[tuple[str, float, float]]:
    """Yield (figure, share of its ceiling that was reached, what was measured)."""
    isl, osl = float(row["isl_mean"]), float(row["osl_mean"])
    users = first(row, "concurrency")
    limit = ceilings(
        row["model"], row["gpu"], int(float(row["num_gpus"])), row["weight_precision"],
        row["kv_precision"] or "fp8", int(isl), int(users or 1),
    )  # fmt: skip
    tpot_s = first(row, "tpot_mean_ms", "tpot_p50_ms")
    itl_s, ttft_s = first(row, "itl_mean_ms"), first(row, "ttft_mean_ms", "ttft_p50_ms")
    for name, value in (("tpot", tpot_s), ("itl", itl_s)):
        if value is not None:
            yield name, limit["tpot_s"] / (value / 1e3), value
    uncached = row["prefix_hit_rate"] in {"0", "0.0"}
    if ttft_s is not None and uncached:
        yield "ttft", limit["ttft_s"] / (ttft_s / 1e3), ttft_s
    rate = first(row, "output_tok_s_total")
    most = limit["by_memory"] if users is None else min(limit["by_users"], limit["by_memory"])
    if rate is not None:
        yield "throughput", rate / most, rate
    elif users is not None and tpot_s is not None and ttft_s is not None:
        rate = users * osl / (ttft_s / 1e3 + tpot_s / 1e3 * (osl - 1))
        yield "throughput by Little's law", rate / most, rate
    if rate is not None and uncached:
        yield "prompt rate", rate * isl / osl / limit["prompt_tokens_per_s"], rate * isl / osl


@pytest.fixture(scope="module")
def checks() -> Checks:
    found = Checks()
    for path in sorted((Path(DATA or "") / "measured").glob("*.csv")):
        frame = pl.read_csv(path, infer_schema_length=0)
        if "eligible" not in frame.columns:
            continue
        for i, row in enumerate(frame.iter_rows(named=True)):
            if row["eligible"] != "1":
                continue
            where = f"{path.name}, line {i + 2}"
            if row["weight_precision"] not in WEIGHT_BYTES:
                found.skipped[f"weights {row['weight_precision']}"] += 1
                continue
            try:
                results = list(compare(row))
            except (CatalogError, NotYetError) as error:
                found.skipped[f"{row['model']} on {row['gpu']}: {error}"] += 1
                continue
            found.rows += bool(results)
            for name, share, value in results:
                found.figures[name] += 1
                if share > found.closest.get(name, (0.0, ""))[0]:
                    found.closest[name] = share, where
                if share > 1:
                    found.violations.append(
                        f"{where}: {name} {value:g} is {share:.3f} of the ceiling "
                        f"({row['model']} on {row['num_gpus']} x {row['gpu']})"
                    )
    return found


@needs_data
def test_no_measured_run_beats_its_ceiling(checks: Checks) -> None:
    assert not checks.violations, "\n".join(checks.violations)


@needs_data
def test_enough_rows_come_near_enough(checks: Checks) -> None:
    """A ceiling that nothing comes near would pass with any mistake in it."""
    assert checks.rows >= 300, checks.skipped
    assert checks.rows + checks.skipped.total() == ELIGIBLE_ROWS
    for name, share in NEAREST.items():
        assert checks.closest[name][0] > share, (name, checks.closest[name])


def test_a_run_faster_than_the_hardware_is_found() -> None:
    """Llama-3.1-8B in 16 bits reads 15.0 GB a step: 4.5 ms at 3.35 TB/s."""
    row = dict.fromkeys(
        ("itl_mean_ms", "tpot_p50_ms", "ttft_p50_ms", "kv_precision"), None
    ) | {
        "model": "meta-llama/Llama-3.1-8B", "gpu": "H100-SXM-80GB", "num_gpus": "1",
        "weight_precision": "bf16", "isl_mean": "1024", "osl_mean": "100", "concurrency": "1",
        "prefix_hit_rate": "0", "ttft_mean_ms": "100", "tpot_mean_ms": "4",
        "output_tok_s_total": "250",
    }  # fmt: skip
    found = {name: share for name, share, _ in compare(row)}
    assert {name for name, share in found.items() if share > 1} == {"tpot", "throughput"}
    assert found["tpot"] == pytest.approx(15.01e9 / 3.35e12 / 4e-3, rel=0.01)
    slower = {name: share for name, share, _ in compare(row | {"tpot_mean_ms": "5"})}
    assert slower["tpot"] == pytest.approx(found["tpot"] * 4 / 5)
