"""What a measurement of a candidate should show, and in which band it agrees.

A band is the interval of the prediction widened by the spread of the rig: on a logarithmic scale
the two add as squares. A share has its interval only.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import exp, hypot, isfinite, log
from typing import Any, Final

import polars as pl

from sieve.export.bench import level_text
from sieve.export.deployment import Deployment
from sieve.frames import METRICS, bound_column
from sieve.plan.choose import MAX_GROWTH, RIG_SPREAD, gpu_hours
from sieve.plan.run_facts import RunFacts
from sieve.ranking.verdicts import Limit, limits_of
from sieve.units import SECONDS_PER_HOUR

SHARE: Final = "slo_attainment"
_VLLM: Final = {
    "output_tokens_per_s": "output_throughput", "requests_per_s": "request_throughput",
    "goodput_per_s": "request_goodput",
}  # fmt: skip
_AIPERF: Final = {
    "output_tokens_per_s": "output_token_throughput.avg", "goodput_per_s": "goodput.avg",
    "requests_per_s": "request_throughput.avg", SHARE: "good_request_fraction.avg",
}  # fmt: skip
_GUIDELLM: Final = {
    "output_tokens_per_s": "output_tokens_per_second", "requests_per_s": "requests_per_second",
    "goodput_per_s": "request_goodput", SHARE: "slo_attainment",
}  # fmt: skip
_LATENCIES: Final = {
    "ttft": ("ttft", "time_to_first_token", "time_to_first_token_ms"),
    "tpot": ("tpot", "inter_token_latency", "inter_token_latency_ms"),
    "itl": ("itl", "inter_chunk_latency", None),
    "e2e": ("e2el", "request_latency", "request_latency"),
}
"""Names in vLLM, AIPerf and GuideLLM; AIPerf's inter-token latency is a mean of each request."""


def expected(facts: RunFacts, deployment: Deployment) -> dict[str, Any]:
    """Return `expected.json` of a candidate."""
    entry = facts.entry(deployment.candidate_id)
    rows = facts.simulations.filter(pl.col("candidate_id") == entry.candidate_id).sort("level")
    limits = limits_of(facts.slos)
    metrics = list(dict.fromkeys([*METRICS, "requests_per_s", *(lim.column for lim in limits)]))
    metrics = [name for name in metrics if name in rows.columns]
    hourly = usd_per_hour(facts, entry.candidate_id)
    levels = [
        _level(row, metrics, limits, entry.num_gpus, hourly, facts)
        for row in rows.iter_rows(named=True)
    ]
    return {
        "schema_version": "1.0",
        "candidate_id": entry.candidate_id,
        "run": facts.record.spec.name,
        "scope": "fleet",
        "replicas": entry.replicas,
        "num_gpus": entry.num_gpus,
        "gpu": entry.gpu,
        "nodes_per_replica": deployment.nodes,
        "model": deployment.model,
        "engine": facts.record.serving.engine,
        "engine_version": facts.record.serving.engine_version,
        "verdict": entry.verdict,
        "evidence": entry.evidence,
        "confidence": facts.record.spec.rank.confidence,
        "rig_spread": RIG_SPREAD,
        "routing": facts.record.spec.fleet.routing,
        "usd_per_hour": hourly,
        "levels": levels,
        "measured_as": {name: measured_as(name) for name in metrics},
        "derived": {
            "output_tokens_per_s_per_gpu": "output_tokens_per_s / num_gpus",
            "usd_per_mtok": "usd_per_hour / (output_tokens_per_s * 3600) * 1e6",
        },
        "notes": _notes(entry.replicas),
    }


def _notes(replicas: int) -> list[str]:
    notes = [
        "accept_low and accept_high hold prediction error, traffic noise and a rig spread of "
        f"{RIG_SPREAD:.0%}; a value between them agrees with the prediction",
        "the time to start an engine and load its weights is not part of durations and costs",
        "TTFT and E2E hold the time outside the engine of a chat endpoint; benchmarks that send "
        "tokens to the completions endpoint skip its template",
    ]
    if replicas > 1:
        notes.append(
            f"the values are those of all {replicas} replicas behind their router; one replica "
            f"under its share has the same latencies, a rate of one in {replicas}, and more noise"
        )
    return notes


def usd_per_hour(facts: RunFacts, candidate: str) -> float | None:
    """Return what all paid GPUs of a candidate cost an hour, by the run's own prices."""
    entry = facts.entry(candidate)
    cost, rate = entry.usd_per_mtok.mid, entry.output_tokens_per_s.mid
    if cost is None or rate is None:
        return None
    return cost * rate * SECONDS_PER_HOUR / 1e6


def _level(
    row: Mapping[str, Any],
    metrics: list[str],
    limits: list[Limit],
    num_gpus: int,
    hourly: float | None,
    facts: RunFacts,
) -> dict[str, Any]:
    duration_s = row["makespan_s"]
    growth = row["queue_growth"]
    served = row["status"] == "" and growth is not None and growth <= MAX_GROWTH
    known = duration_s is not None and isfinite(duration_s)
    hours = gpu_hours(duration_s, num_gpus) if known else None
    usd = hourly * duration_s / SECONDS_PER_HOUR if known and hourly is not None else None
    out: dict[str, Any] = {
        "level": row["level"],
        "served": served,
        "num_requests": facts.record.serving.traffic.num_requests,
        "duration_s": duration_s if known else None,
        "gpu_hours": hours,
        "usd": usd,
        "metrics": {name: _metric(row, name) for name in metrics},
    }
    if row["level"] == 1.0:
        out["objectives"] = [
            {
                "objective": limit.text,
                "metric": limit.column,
                "limit": limit.limit,
                "passes_if": "at most the limit" if limit.at_most else "at least the limit",
            }
            for limit in limits
        ]
    return out


def _metric(row: Mapping[str, Any], name: str) -> dict[str, Any]:
    mid = row[name]
    low, high = (row.get(bound_column(name, end)) for end in ("low", "high"))
    accept_low, accept_high = band(name, mid, low, high)
    return {
        "expected": mid,
        "low": low,
        "high": high,
        "accept_low": accept_low,
        "accept_high": accept_high,
        "kind": "estimate",
        "evidence": row["evidence"],
    }


def band(
    name: str, mid: float | None, low: float | None, high: float | None
) -> tuple[float | None, float | None]:
    """Return the ends between which a measurement agrees; None where they are not known."""
    if name == SHARE:
        return low, high
    if mid is None or low is None or high is None or not (0 < low <= mid <= high < float("inf")):
        return None, None
    rig = log(1.0 + RIG_SPREAD)
    return mid * exp(-hypot(log(mid / low), rig)), mid * exp(hypot(log(high / mid), rig))


def measured_as(name: str) -> dict[str, str | None]:
    """Return what a metric is called in the results of each benchmark; None: not reported."""
    base, _, statistic = name.removesuffix("_s").partition("_")
    if base in _LATENCIES and statistic:
        vllm, aiperf, guidellm = _LATENCIES[base]
        number = statistic.replace("_", ".")
        aiperf_stat = "avg" if statistic == "mean" else number
        summary = "mean" if statistic == "mean" else f"percentiles.{number}"
        guide = None if guidellm is None else f"metrics.{guidellm}.successful.{summary}"
        return {
            "vllm_bench": f"{number}_{vllm}_ms",
            "aiperf": f"{aiperf}.{aiperf_stat}",
            "guidellm": guide,
        }
    guide = _GUIDELLM.get(name)
    return {
        "vllm_bench": _VLLM.get(name),
        "aiperf": _AIPERF.get(name),
        "guidellm": None if guide is None else f"metrics.{guide}.successful.mean",
    }


def at_level(document: Mapping[str, Any], level: float) -> Mapping[str, Any]:
    """Return the entry of a load level."""
    return next(e for e in document["levels"] if level_text(e["level"]) == level_text(level))
