"""Which knob matters: what each value of an axis can reach, and single changes to the leader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import polars as pl

from sieve.frames import AXES, METRICS, OPTIONS
from sieve.ranking.objective import FIXED, smaller_is_better
from sieve.report import charts
from sieve.report.format import (
    UNKNOWN,
    axis_format,
    axis_words,
    count,
    limit_text,
    metric_name,
    metric_value,
    number,
    quantity,
    reason_sentence,
    share,
)

MAX_VALUES: Final = 24
"""Most values of one axis that are listed."""
_LOST: Final = ("infeasible", "misses_slo")

Row = Mapping[str, Any]


def sensitivity(result: Row, candidates: pl.DataFrame, leader: Row) -> dict[str, Any] | None:
    """Return the knobs by how much they move the objective, or None without scored candidates.

    The value of a knob is judged by the best that any candidate with it can reach in the closed
    form of stage 4, at its optimistic end; candidates that cannot meet the objectives do not count.

    Args:
        result: content of `result.json`.
        candidates: one row a candidate.
        leader: the leader's row of `candidates`.
    """
    objective = ((result.get("spec") or {}).get("rank") or {}).get("objective")
    metric = objective if isinstance(objective, str) else None
    if not leader or not {"score", "kind", "reason", "stage"} <= set(candidates.columns):
        return None
    axes = [a for a in (*AXES, *OPTIONS) if a in candidates.columns and a in leader]
    axes = [a for a in axes if candidates[a].n_unique() > 1]
    if not axes or (result.get("spec") or {}).get("engine") == "reference":
        metric = None
    alive = candidates.filter(~pl.col("kind").fill_null("").is_in(_LOST)).drop_nulls("score")
    knobs = [_knob(axis, candidates, alive, leader, metric) for axis in axes]
    knobs.sort(key=lambda k: (-k["spread"], k["axis"]))
    return {
        "knobs": knobs,
        "svg": _chart(knobs, metric) if metric else "",
        "metric": UNKNOWN if metric is None else metric_name(metric),
        "sentence": _sentence(knobs, metric),
        "changes": _changes(candidates, leader, axes, metric),
    }


def _knob(
    axis: str, candidates: pl.DataFrame, alive: pl.DataFrame, leader: Row, metric: str | None
) -> dict[str, Any]:
    """Return what each value of an axis can reach; values in their own order."""
    values = candidates[axis].unique().sort().head(MAX_VALUES).to_list()
    best = dict(alive.group_by(axis).agg(pl.col("score").max()).iter_rows())
    left = dict(alive.group_by(axis).len().iter_rows())
    reached = {v: _objective(best[v], metric) for v in values if v in best}
    known = [x for x in reached.values() if x is not None and x > 0]
    spread = max(known) / min(known) - 1 if metric and known else 0.0
    return {
        "axis": axis,
        "name": axis_words(axis),
        "spread": spread,
        "spread_text": share(spread) if metric else UNKNOWN,
        "reached": reached,
        "leader": reached.get(leader[axis]),
        "values": [
            {
                "text": str(value),
                "is_leader": value == leader[axis],
                "left": count(left.get(value, 0)),
                "best": metric_value(metric, reached[value])
                if metric and value in reached
                else "none left",
            }
            for value in values
        ],
    }


def _objective(score: float, metric: str | None) -> float | None:
    """Return the value of a single objective from its score: larger scores are better."""
    if metric is None:
        return None
    return -score if smaller_is_better(metric) else score


def _chart(knobs: Sequence[Row], metric: str) -> str:
    rows = [
        charts.Interval(
            f"{k['name']}: {share(k['spread'])} between its best and its worst value",
            min(k["reached"].values()),
            k["leader"],
            max(k["reached"].values()),
            "clears",
        )
        for k in knobs
        if k["reached"] and k["leader"] is not None
    ]
    if not rows:
        return ""
    title = f"Best reachable {metric_name(metric)} over the values of each knob"
    axis = f"{metric_name(metric)}, at best"
    form = axis_format(metric)
    return charts.interval_chart("knobs", title, rows, form, axis, None)


def _sentence(knobs: Sequence[Row], metric: str | None) -> str:
    if metric is None:
        return "The objective has no single unit, so the knobs are not weighed against each other."
    moving = [k for k in knobs if k["spread"] > 0.005]
    if not moving:
        return f"No knob moves the best reachable {metric_name(metric)} by more than 0.5 %."
    words = ", ".join(f"{k['name']} ({k['spread_text']})" for k in moving[:3])
    rest = [k["name"] for k in knobs if k["spread"] <= 0.005]
    text = f"What moves the best reachable {metric_name(metric)} most: {words}."
    return f"{text} Hardly any: {', '.join(rest)}." if rest else text


def _changes(
    candidates: pl.DataFrame, leader: Row, axes: Sequence[str], metric: str | None
) -> list[dict[str, str]]:
    """Return every candidate that differs from the leader in one axis alone, and what became of it.

    The number of GPUs follows from the axes and changes with them.
    """
    out = []
    for axis in axes:
        others = [a for a in axes if a != axis]
        same = candidates.filter(
            pl.col(axis).ne_missing(pl.lit(leader[axis])),
            *(pl.col(a).eq_missing(pl.lit(leader[a])) for a in others),
        )
        for row in same.sort(axis).head(MAX_VALUES).iter_rows(named=True):
            change = f"{axis_words(axis)} {leader[axis]} to {row[axis]}"
            out.append({"change": change, **_fate(row, metric)})
    return out


def _fate(row: Row, metric: str | None) -> dict[str, str]:
    verdict, reason = row.get("verdict"), row.get("reason")
    replayed = number(row.get(metric)) if metric in {*METRICS, *FIXED} else None
    if verdict is not None:
        value = "" if replayed is None or metric is None else metric_value(metric, replayed)
        return {"fate": f"replayed: {verdict.replace('_', ' ')}", "value": value, "why": ""}
    if reason is None:
        return {"fate": "not reached", "value": "", "why": ""}
    unit = str(row.get("unit") or "")
    why = reason_sentence(str(reason))
    if reason != "not_selected":
        found = quantity(row.get("observed"), unit)
        why += f" Found {found}, limit {limit_text(row.get('limit'), unit)}."
    score = number(row.get("score"))
    bound = "" if score is None or metric is None else _objective(score, metric)
    value = "" if bound in ("", None) else f"{metric_value(str(metric), bound)} at best"
    return {"fate": f"stage {row.get('stage')}: {reason}", "value": value, "why": why}
