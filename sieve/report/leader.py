"""The report's closer look at the leader: behaviour under load, and memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import polars as pl

from sieve.frames import bound_column
from sieve.report import answer, charts, objectives, svg
from sieve.report.format import (
    UNKNOWN,
    axis_format,
    count,
    gib,
    interval,
    metric_name,
    number,
    plain,
    share,
    short_deployment,
    whole_share,
)

MAX_LINES: Final = 5
MAX_LEVELS: Final = 100
BATCH_LIMITS: Final = {
    "pages": "the KV cache",
    "tpot": "the TPOT objective",
    "max_num_seqs": "the engine's sequence limit (max_num_seqs)",
}

Row = Mapping[str, Any]


def levels_of(simulations: pl.DataFrame, candidate_id: Any) -> list[dict[str, Any]]:
    """Return one candidate's simulation rows by rising level."""
    if not {"candidate_id", "level"} <= set(simulations.columns) or candidate_id is None:
        return []
    rows = simulations.filter(pl.col("candidate_id") == str(candidate_id)).to_dicts()
    return sorted(
        (r for r in rows if number(r["level"]) is not None), key=lambda r: float(r["level"])
    )


def row_of(frame: pl.DataFrame, candidate_id: Any) -> dict[str, Any]:
    """Return the candidate's row, empty where there is none."""
    if "candidate_id" not in frame.columns or candidate_id is None:
        return {}
    rows = frame.filter(pl.col("candidate_id") == str(candidate_id)).head(1).to_dicts()
    return rows[0] if rows else {}


def load(
    result: Mapping[str, Any],
    simulations: pl.DataFrame,
    levels: Sequence[Row],
    texts: Sequence[str],
) -> dict[str, Any] | None:
    """Return the leader and its ties against load, None where nothing was simulated."""
    if not levels:
        return None
    tied = answer.tied_with_leader(result)
    lines = tied[:MAX_LINES]
    data = [levels_of(simulations, row.get("candidate_id")) for row in lines]
    names = [short_deployment(row) for row in lines]
    out = []
    for metric in ("ttft_p99_s", "tpot_p99_s", "slo_attainment"):
        series = [
            charts.Series(name, [p for r in rows if (p := _level_point(r, metric)) is not None])
            for name, rows in zip(names, data, strict=True)
        ]
        title = f"{metric_name(metric)} against load"
        svg = charts.line_chart(
            f"load-{metric.replace('_', '-')}", title, series, axis_format(metric),
            ("load level", metric_name(metric)), objectives.limit_on(metric, texts),
            (0.0, 1.0) if metric == "slo_attainment" else None,
            objectives.break_level(metric, texts, levels),
        )  # fmt: skip
        if svg:
            out.append({"caption": f"{title}; the band is the leader's interval.", "svg": svg})
    return {
        "charts": out,
        "legend": [(charts.line_sample(i), name) for i, name in enumerate(names)],
        "tied": len(tied),
        "breaks": [objectives.break_point(t, m, levels) for t, m in objectives.limits(texts)],
        "rows": [_level_row(r, _arriving(result)) for r in levels[:MAX_LEVELS]],
    }


def _level_point(row: Row, metric: str) -> tuple[float, float | None, float, float | None] | None:
    nested = _nested(row, metric)
    mid = nested["mid"]
    return None if mid is None else (float(row["level"]), nested["low"], mid, nested["high"])


def _nested(row: Row, metric: str) -> dict[str, float | None]:
    low, high = (bound_column(metric, end) for end in ("low", "high"))
    return {
        "low": number(row.get(low)),
        "mid": number(row.get(metric)),
        "high": number(row.get(high)),
    }


def _level_cell(row: Row, metric: str) -> dict[str, str]:
    nested = _nested(row, metric)
    mid, around = interval(metric, nested["low"], nested["mid"], nested["high"])
    return {"name": metric_name(metric), "mid": mid, "range": around}


def _arriving(result: Mapping[str, Any]) -> float | None:
    """Return the requests per second that arrive at load 1, None where the spec names none."""
    traffic = (result.get("spec") or {}).get("traffic")
    return number(traffic.get("rate_per_s")) if isinstance(traffic, Mapping) else None


def _level_row(row: Row, arriving: float | None) -> dict[str, Any]:
    shown = ("ttft_p99_s", "tpot_p99_s", "e2e_p99_s", "slo_attainment")
    return {
        "level": svg.plain_level(float(row["level"])),
        "rate": plain(row.get("requests_per_s")),
        "of": "" if arriving is None else f"of {plain(arriving * float(row['level']))} arriving",
        "cells": [_level_cell(row, m) for m in shown],
        "batch": plain(row.get("mean_batch")),
        "kv": whole_share(row.get("peak_kv_usage")),
        "evidence": str(row.get("evidence") or UNKNOWN),
        "queue": _queue(row),
    }


def _queue(row: Row) -> str:
    """Return whether the queue grows without bound; one that does not may still be long."""
    growth = number(row.get("queue_growth"))
    if growth is None:
        return UNKNOWN
    first = axis_format("ttft_p50_s")
    half = number(row.get("ttft_p50_s"))
    wait = "" if half is None else f"; half wait {first(half)} or more for a first token"
    if growth <= 0:
        return f"no unbounded growth seen in this trace{wait}"
    return f"grows without bound, by {growth:.2g} s of wait a second{wait}"


def memory(row: Row) -> dict[str, Any] | None:
    """Return the memory ledger of a candidate row, None where it was not worked out."""
    names = {
        "weight_bytes_per_gpu": ("m-weights", "Weights, on the fullest rank"),
        "reserved_bytes_per_gpu": ("m-reserved", "Activations, communication, graphs"),
        "kv_bytes_per_gpu": ("m-kv", "KV cache"),
    }
    values = {k: number(row.get(k)) for k in names}
    usable = sum(v for v in values.values() if v is not None)
    if not row or usable <= 0:
        return None
    limit = row.get("batch_limit")
    used = number(row.get("gpu_memory_utilization"))
    return {
        "rows": [
            {
                "css": css,
                "name": name,
                "bytes": gib(values[k]),
                "share": share(None if values[k] is None else (values[k] or 0.0) / usable),
            }
            for k, (css, name) in names.items()
        ],
        "usable": gib(usable),
        "utilization": None if used is None else share(used),
        "facts": [
            ("KV cache of one replica", f"{count(row.get('kv_tokens'))} tokens"),
            ("Largest batch of one replica", f"{count(row.get('batch'))} requests"),
            (
                "What binds the batch",
                UNKNOWN if limit is None else BATCH_LIMITS.get(str(limit), str(limit)),
            ),
            ("Most of the KV cache in use at load 1", whole_share(row.get("peak_kv_usage"))),
        ],
    }
