"""What the report's template shows: every section as plain texts and finished charts."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, Final

import polars as pl

from sieve.arrays import EVIDENCE_CLASSES
from sieve.frames import METRICS
from sieve.model_folders import own_id
from sieve.report import answer, behaviour, charts, leader, objectives
from sieve.report.format import (
    UNKNOWN,
    axis_format,
    class_words,
    count,
    deployment,
    engine_limits,
    interval,
    metric_name,
    number,
    reason_sentence,
    seconds,
    share,
    short_deployment,
)
from sieve.report.sensitivity import sensitivity

MAX_ROWS: Final = 100
"""Most rows of any table; the result file holds all."""
MAX_INTERVALS: Final = 30
MAX_SPEC_CHARS: Final = 60_000

SHOWN_METRICS: Final = (
    "output_tokens_per_s_per_gpu", "ttft_p99_s", "tpot_p99_s", "e2e_p99_s", "slo_attainment",
    "usd_per_mtok",
)  # fmt: skip
VERDICTS: Final = {
    "clears": "clears",
    "point_only": "point only",
    "misses": "misses",
    "unknown": "unknown",
}
VERDICT_MEANINGS: Final = {
    "clears": "meets every objective at the pessimistic end of its interval",
    "point_only": "meets every objective at the middle, but not at the pessimistic end",
    "misses": "misses at least one objective at the middle",
}
EVIDENCE_MEANINGS: Final = {
    "measured": "kernel times measured at exactly this shape",
    "interpolated": "between shapes that were measured",
    "extrapolated": "beyond measured shapes, or a measured kernel that stands in for another",
    "roofline": "from peak arithmetic and memory rates alone, nothing measured",
}
MAX_POINTS: Final = 2_000
"""Most points of a scatter chart; the ranking is in order of quality."""
NUMBER_KINDS: Final = (
    ("Counts of candidates", "exact", "the grid and the rules of the engine"),
    ("Weights, reserves, cache of a GPU", "estimate", "the ledger; held against start-up logs"),
    ("Score of stage 4", "bound", "closed form at the optimistic end"),
    ("Latency, throughput, cost", "estimate", "replay of the scheduler; interval and evidence"),
    ("Prices", "assumed or given", "named above where assumed"),
)
Row = Mapping[str, Any]


def build(
    result: Mapping[str, Any],
    candidates: pl.DataFrame,
    simulations: pl.DataFrame,
    timeline: pl.DataFrame | None = None,
    files: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return the template's variables, one key a section."""
    spec = result.get("spec") or {}
    texts = [str(t) for t in spec.get("slo") or []]
    first = answer.leader(result)
    leader_id = None if first is None else str(first.get("candidate_id"))
    levels = leader.levels_of(simulations, leader_id)
    flat = {**(first or {}), **leader.row_of(candidates, leader_id)}
    flat.update(next((r for r in levels if r["level"] == 1.0), {}))
    return {
        "name": str(spec.get("name") or "run"),
        "model": _model_name(spec),
        "engine": str(spec.get("engine") or UNKNOWN),
        "version": str(result.get("sieve_version") or UNKNOWN),
        "schema_version": str(result.get("schema_version") or UNKNOWN),
        "answer": _answer(result),
        "leader": None if first is None else _leader(first, result),
        "checks": [objectives.check(t, lim, flat) for t, lim in objectives.limits(texts)]
        if first
        else [],
        "slo_texts": texts,
        "ranking": _ranking(result),
        "charts": _charts(result, spec, texts),
        "funnel": _funnel(result),
        "funnel_chart": _funnel_chart(result.get("stages") or []),
        "load": leader.load(result, simulations, levels, texts),
        "over_time": behaviour.over_time(timeline),
        "memory": leader.memory(leader.row_of(candidates, leader_id)),
        "ledgers": behaviour.ledgers(result.get("ranking") or [], candidates),
        "sensitivity": sensitivity(result, candidates, leader.row_of(candidates, leader_id)),
        "number_kinds": NUMBER_KINDS,
        "filters": _filters(result),
        "script_text": (files or {}).get(f"plan/{leader_id}/serve.sh", ""),
        "audit": _audit(result.get("audit")),
        "advice": [dict(item) for item in result.get("advice") or []],
        "misses": _misses(result, candidates),
        "assumed": _assumed(result, spec),
        "verdicts": VERDICTS,
        "verdict_meanings": VERDICT_MEANINGS,
        "verdict_mark": charts.verdict_mark,
        "evidence_meanings": EVIDENCE_MEANINGS,
    }


def _audit(found: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if not found:
        return None
    return {"survivors": count(found["num_exhaustive"]), "rows": answer.audit_rows(found)}


def _answer(result: Mapping[str, Any]) -> dict[str, Any]:
    notes = [
        str(a.get("text"))
        for a in result.get("assumptions") or []
        if str(a.get("about")) == "intervals"
    ]
    return {
        "models": answer.model_rows(result),
        "status": str((result.get("answer") or {}).get("status") or "unfinished"),
        "sentence": answer.answer_sentence(result),
        "follows": answer.follows_sentence(result),
        "settle": answer.settle_sentence(result),
        "yardsticks": answer.yardsticks(result),
        "notes": notes,
    }


def _leader(row: Row, result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the first of the ranking, and where its own run's folder and plan lie."""
    model, candidate = row.get("model"), str(row.get("candidate_id"))
    folders = {m.get("name"): str(m.get("folder")) for m in result.get("models") or []}
    folder = folders.get(model, ".") if model else "."
    own = own_id(candidate)[0] if model else candidate
    return {
        "folder": folder,
        "own_id": own,
        "plan": f"plan/{own}" if folder == "." else f"{folder}/plan/{own}",
        "id": str(row.get("candidate_id")),
        "words": deployment(row),
        "limits": engine_limits(row),
        "verdict": _verdict(row),
        "sources": [_sources(row, m) for m in SHOWN_METRICS if m in (row.get("intervals") or {})],
    }


def _sources(row: Row, metric: str) -> dict[str, str]:
    """Return a metric's middle and its range from each source of error, as texts."""
    mid = _end(row, metric, "mid")
    found = {"name": metric_name(metric), "mid": interval(metric, mid, mid, mid)[0]}
    for source in ("model", "noise"):
        ends = row["intervals"][metric][source]
        low, high = number(ends.get("low")), number(ends.get("high"))
        found[source] = interval(metric, low, mid, high)[1] or UNKNOWN
    both = interval(metric, _end(row, metric, "low"), mid, _end(row, metric, "high"))[1]
    return found | {"both": both or UNKNOWN}


def _model_name(spec: Mapping[str, Any]) -> str:
    model = spec.get("model")
    if isinstance(model, Sequence) and not isinstance(model, str):
        return ", ".join(_model_name({"model": one}) for one in model)
    if isinstance(model, Mapping):
        return str(model.get("name") or UNKNOWN)
    return UNKNOWN if model is None else str(model)


def _verdict(row: Row) -> str:
    verdict = str(row.get("verdict"))
    return verdict if verdict in VERDICTS else "unknown"


def _end(row: Row, metric: str, end: str) -> float | None:
    value = row.get(metric)
    return number(value.get(end)) if isinstance(value, Mapping) else None


def _cell(row: Row, metric: str) -> dict[str, str]:
    low, mid, high = (_end(row, metric, end) for end in ("low", "mid", "high"))
    middle, around = interval(metric, low, mid, high)
    return {"name": metric_name(metric), "mid": middle, "range": around}


def _ranking(result: Mapping[str, Any]) -> dict[str, Any]:
    rows = result.get("ranking") or []
    groups: list[dict[str, Any]] = []
    for _, members in groupby(rows[:MAX_ROWS], key=lambda r: r.get("tie_group")):
        listed = [_ranked(row, leading=not groups) for row in members]
        groups.append({"rank": listed[0]["rank"], "rows": listed})
    return {
        "groups": groups,
        "heads": [metric_name(m) for m in SHOWN_METRICS],
        "total": len(rows),
        "shown": min(len(rows), MAX_ROWS),
    }


def _filters(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the page can filter its ranking and its points by."""
    rows = result.get("ranking") or []
    sizes = [number(r.get("num_gpus")) for r in rows]
    whole = [int(x) for x in sizes if x is not None and math.isfinite(x)]
    return {
        "gpus": sorted({str(r.get("gpu")) for r in rows}),
        "models": sorted({str(r["model"]) for r in rows if r.get("model")}),
        "verdicts": [v for v in VERDICTS if any(_verdict(r) == v for r in rows)],
        "most": max(whole, default=1),
        "least": min(whole, default=1),
    }


def _ranked(row: Row, *, leading: bool) -> dict[str, Any]:
    shares = row.get("evidence_shares") or {}
    known = [(c, number(shares.get(c)) or 0.0) for c in EVIDENCE_CLASSES]
    texts = [f"{share(x)} {c}" for c, x in known if x > 0]
    parts = [charts.Part(f"e-{c}", x, f"{share(x)} {c}") for c, x in known]
    return {
        "rank": str(row.get("rank")),
        "id": str(row.get("candidate_id")),
        "words": deployment(row),
        "limits": engine_limits(row),
        "verdict": _verdict(row),
        "gpu": str(row.get("gpu")),
        "model": str(row.get("model") or ""),
        "num_gpus": str(row.get("num_gpus")),
        "tied": "yes" if leading else "no",
        "notes": _notes(row),
        "cells": [_cell(row, m) for m in SHOWN_METRICS],
        "evidence": str(row.get("evidence") or UNKNOWN),
        "evidence_text": ", ".join(f"{round(100 * x)}\u00a0% {c}" for c, x in known if x >= 0.005),
        "evidence_bar": charts.stacked_bar("evidence: " + ", ".join(texts), parts),
    }


def _notes(row: Row) -> str:
    """Return how a candidate ties with its leader, and whether it is on the Pareto front."""
    notes = [f"{row['tie']} tie"] if row.get("tie") else []
    if row.get("pareto"):
        notes.append("on the Pareto front of cost, TTFT and TPOT")
    if words := class_words(row):
        notes.append(f"by class: {words}")
    return "; ".join(notes)


def _charts(result: Mapping[str, Any], spec: Mapping[str, Any], texts: Sequence[str]) -> list[Any]:
    rows = result.get("ranking") or []
    if not rows:
        return []
    wanted = str((spec.get("rank") or {}).get("objective") or "")
    metric = wanted if wanted in METRICS else "output_tokens_per_s_per_gpu"
    form = axis_format(metric)
    intervals = [
        charts.Interval(
            f"{row.get('rank')}. {short_deployment(row)}",
            _end(row, metric, "low"),
            _end(row, metric, "mid"),
            _end(row, metric, "high"),
            _verdict(row),
            int(row.get("tie_group") or 0),
        )
        for row in rows[:MAX_INTERVALS]
    ]
    note = f", the first {MAX_INTERVALS} of {count(len(rows))}" if len(rows) > MAX_INTERVALS else ""
    out = [
        {
            "caption": f"{metric_name(metric)}: middle, low and high end of the interval of each "
            f"ranked candidate{note}. Rules separate tie groups.",
            "svg": charts.interval_chart(
                "intervals", f"{metric_name(metric)} of the ranked candidates", intervals, form,
                metric_name(metric), objectives.limit_on(metric, texts),
            ),
        }
    ]  # fmt: skip
    priced = any(_end(row, "usd_per_mtok", "mid") is not None for row in rows)
    cost = "usd_per_mtok" if priced else "output_tokens_per_s_per_gpu"
    pairs = [("num_gpus", "e2e_p99_s")] + ([(cost, "tpot_p99_s")] if priced else [])
    out += [_scatter(rows, x, y, texts) for x, y in reversed(pairs)]
    return [c for c in out if c["svg"]]


def _scatter(rows: Sequence[Row], x: str, y: str, texts: Sequence[str]) -> dict[str, Any]:
    def at(row: Row, metric: str) -> float | None:
        return number(row.get(metric)) if metric == "num_gpus" else _end(row, metric, "mid")

    first = rows[0].get("tie_group")
    points = [
        charts.Point(
            f"{row.get('rank')}. {short_deployment(row)}", a, b, _verdict(row),
            str(row.get("gpu")), str(row.get("num_gpus")), row.get("tie_group") == first,
            str(row.get("model") or ""),
        )
        for row in rows[:MAX_POINTS]
        if (a := at(row, x)) is not None and (b := at(row, y)) is not None
    ]  # fmt: skip
    cut = f" The first {count(MAX_POINTS)} of {count(len(rows))}." if len(rows) > MAX_POINTS else ""
    names = (metric_name(x), metric_name(y))
    return {
        "caption": f"{names[1]} against {names[0]}, middles of the intervals. The line joins the "
        f"candidates that no other beats on both (the Pareto front); down and left is better.{cut}",
        "svg": charts.scatter_chart(
            f"pareto-{x.replace('_', '-')}", f"Pareto front: {names[1]} against {names[0]}",
            points, (axis_format(x), axis_format(y)), names, objectives.limit_on(y, texts),
        ),
    }  # fmt: skip


def _funnel(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    out = []
    for stage in result.get("stages") or []:
        num_in = number(stage.get("num_in")) or 0.0
        kept = number(stage.get("num_admitted")) or 0.0
        lost = number(stage.get("num_rejected")) or 0.0
        reasons = sorted((stage.get("reasons") or {}).items(), key=lambda r: (-r[1], r[0]))
        name = str(stage.get("name"))
        out.append(
            {
                "number": str(stage.get("number")),
                "name": answer.STAGE_NAMES.get(name, name),
                "num_in": count(num_in),
                "num_admitted": count(kept),
                "num_rejected": count(lost),
                "elapsed": seconds(stage.get("elapsed_s")),
                "reasons": [
                    {"name": str(r), "count": count(n), "sentence": reason_sentence(str(r))}
                    for r, n in reasons
                ],
            }
        )
    return out


def _funnel_chart(stages: Sequence[Row]) -> str:
    """Return a bar a stage: what it kept of what came in, and why it rejected the rest."""
    bars = []
    for stage in stages:
        num_in = number(stage.get("num_in")) or 0.0
        kept = number(stage.get("num_admitted")) or 0.0
        lost = number(stage.get("num_rejected")) or 0.0
        reasons = sorted((stage.get("reasons") or {}).items(), key=lambda r: (-r[1], r[0]))
        name = str(stage.get("name"))
        parts = [
            charts.Part("f-kept", kept / max(num_in, 1.0), f"{count(kept)} admitted"),
            charts.Part("f-lost", lost / max(num_in, 1.0), f"{count(lost)} rejected"),
        ]
        label = f"{stage.get('number')}. {answer.STAGE_NAMES.get(name, name)}: "
        label += f"{count(kept)} of {count(num_in)} admitted"
        why = ", ".join(f"{reason} {count(n)}" for reason, n in reasons)
        bars.append(charts.Bar(label, parts, f"rejected: {why}" if why else ""))
    legend = (("f-kept", "admitted"), ("f-lost", "rejected"))
    return charts.bar_chart("funnel-stages", "Candidates through the stages", bars, legend)


def _misses(result: Mapping[str, Any], candidates: pl.DataFrame) -> list[dict[str, Any]]:
    out = []
    for miss in (result.get("nearest_misses") or [])[:MAX_ROWS]:
        row = leader.row_of(candidates, miss.get("candidate_id"))
        out.append(
            {
                "id": str(miss.get("candidate_id")),
                "words": deployment(row) if row else "",
                "limits": engine_limits(row) if row else "",
                "stage": str(miss.get("stage")),
                **answer.miss_words(miss),
                "fixes": answer.fix_words(miss),
            }
        )
    return out


def _assumed(result: Mapping[str, Any], spec: Mapping[str, Any]) -> dict[str, Any]:
    about: dict[str, list[dict[str, str]]] = {}
    for note in (result.get("assumptions") or [])[: 3 * MAX_ROWS]:
        item = {"text": str(note.get("text")), "source": str(note.get("source") or "")}
        about.setdefault(str(note.get("about") or "general"), []).append(item)
    text = json.dumps(spec, indent=2, ensure_ascii=False, default=str)
    return {
        "groups": list(about.items()),
        "total": len(result.get("assumptions") or []),
        "shown": min(len(result.get("assumptions") or []), 3 * MAX_ROWS),
        "inputs": [
            {"name": str(i.get("name")), "sha256": str(i.get("sha256"))}
            for i in (result.get("inputs") or [])[:MAX_ROWS]
        ],
        "num_inputs": len(result.get("inputs") or []),
        "seed": UNKNOWN if spec.get("seed") is None else str(spec["seed"]),
        "elapsed": seconds(result.get("elapsed_s")),
        "spec": text[:MAX_SPEC_CHARS],
        "spec_cut": len(text) > MAX_SPEC_CHARS,
    }
