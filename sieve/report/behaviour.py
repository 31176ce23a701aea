"""The leader over time, and the memory of the first shapes of the ranking."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import polars as pl

from sieve.report import charts, leader
from sieve.report.format import (
    axis_format,
    count,
    gib,
    limit_text,
    number,
    seconds,
    short_deployment,
    whole_share,
)

MAX_SHAPES: Final = 6
MAX_RANKED: Final = 100
"""Rows of the ranking that are looked at for a different ledger."""
MAX_WINDOWS: Final = 1_000
_MEMORY: Final = {
    "weight_bytes_per_gpu": ("m-weights", "weights"),
    "reserved_bytes_per_gpu": ("m-reserved", "reserved"),
    "kv_bytes_per_gpu": ("m-kv", "KV cache"),
}

Row = Mapping[str, Any]


def over_time(timeline: pl.DataFrame | None) -> dict[str, Any] | None:
    """Return queue, batch, cache and latency of the leader over time; None where unknown."""
    wanted = {
        "start_s",
        "mean_waiting",
        "mean_running",
        "kv_usage",
        "ttft_p99_s",
        "max_num_seqs",
        "window_s",
    }
    if timeline is None or not wanted <= set(timeline.columns):
        return None
    rows = timeline.head(MAX_WINDOWS).to_dicts()
    if len(rows) < 2:
        return None
    seats = number(rows[0]["max_num_seqs"])
    limit = None if seats is None else (seats, f"max_num_seqs {count(seats)}")
    shown: list[tuple[str, str, Any, Any]] = [
        ("mean_waiting", "requests waiting", _few, None),
        ("mean_running", "requests running", _few, limit),
        ("kv_usage", "KV cache in use", whole_share, (1.0, "full")),
        ("ttft_p99_s", "TTFT p99 of the window", axis_format("ttft_p99_s"), None),
    ]
    out = []
    for column, name, form, top in shown:
        points = [
            (t, v)
            for row in rows
            if (t := number(row["start_s"])) is not None and (v := number(row[column])) is not None
        ]
        title = f"{name[0].upper()}{name[1:]} over time"
        key = f"time-{column.replace('_', '-')}"
        if drawn := charts.time_chart(key, title, points, form, name, top):
            out.append({"caption": f"{title}.", "svg": drawn})
    if not out:
        return None
    return {"charts": out, "window": seconds(rows[0]["window_s"])}


def _few(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 10 or value == round(value) else f"{value:.2g}"


def ledgers(ranking: Sequence[Row], candidates: pl.DataFrame) -> str:
    """Return a chart with a bar for each different ledger of the ranking, the leader's first."""
    out: list[charts.Bar] = []
    seen = set()
    for entry in ranking[:MAX_RANKED]:
        row = leader.row_of(candidates, entry.get("candidate_id"))
        values = {name: number(row.get(name)) for name in _MEMORY}
        key = (row.get("gpu"), *values.values())
        total = sum(v for v in values.values() if v is not None)
        if key in seen or total <= 0:
            continue
        seen.add(key)
        parts = [
            charts.Part(css, max(values[k] or 0.0, 0.0) / total, f"{name} {gib(values[k])}")
            for k, (css, name) in _MEMORY.items()
        ]
        note = ", ".join(part.label.removesuffix(" GiB") for part in parts)
        note += f" GiB = {count(row.get('kv_tokens'))} tokens"
        label = f"{short_deployment(entry)}: {limit_text(total, 'bytes')} a GPU"
        out.append(charts.Bar(label, parts, note))
        if len(out) == MAX_SHAPES:
            break
    return charts.bar_chart("memory-ledgers", "Memory of one GPU", out, list(_MEMORY.values()))
