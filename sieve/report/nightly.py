"""One night in the terminal, and the page of all nights as one HTML file without scripts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from markupsafe import Markup, escape

from sieve.report.format import count, money, number, plain, share
from sieve.report.page_policy import POLICY
from sieve.report.svg import element
from sieve.report.terminal import console

MAX_POINTS: Final = 500
MAX_ROWS: Final = 200
_WIDTH: Final = 960.0
_HEIGHT: Final = 130.0
_LEFT: Final = 76.0
_STYLE: Final = """
:root { color-scheme: light dark; --text: #17212b; --soft: #4d5b69; --rule: #c9d1d9; --bg: #fff;
  --line: #0b5cad; --mark: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --text: #e6ebf0; --soft: #a9b5c1; --rule: #3a4652;
  --bg: #11161c; --line: #6cb2ff; --mark: #ff8a80; } }
body { margin: 0 auto; max-width: 1040px; padding: 1rem; background: var(--bg); color: var(--text);
  font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.3rem; } h2 { font-size: 1rem; margin: 1.2rem 0 .2rem; }
p { color: var(--soft); max-width: 75ch; } svg { width: 100%; }
.line, .change { vector-effect: non-scaling-stroke; }
.line { fill: none; stroke: var(--line); stroke-width: 1.5; } .grid { stroke: var(--rule); }
.change { stroke: var(--mark); stroke-dasharray: 3 3; } text { font-size: 12px; fill: var(--soft); }
table { border-collapse: collapse; font-size: .85rem; display: block; overflow-x: auto; }
th, td { text-align: left; padding: .2rem .6rem; border-bottom: 1px solid var(--rule); }
@media (max-width: 700px) { text { font-size: 24px; } svg { overflow: visible; } }
th, td { overflow-wrap: normal; } td.id { overflow-wrap: anywhere; min-width: 14em; }
td.n { text-align: right; white-space: nowrap; } .bad { color: var(--mark); font-weight: 600; }
"""
_CODES: Final = {
    0: "clears every objective", 3: "nothing fits", 4: "nothing meets the objectives",
    5: "meets them on the point estimate only", 6: "another deployment is recommended",
}  # fmt: skip
_FEATURES: Final = {
    "input_tokens": "input length", "output_tokens": "output length",
    "joint_lengths": "joint lengths (PSI)", "peak_rate": "peak rate", "burstiness": "burstiness",
    "prefix_reuse": "prefix reuse",
}  # fmt: skip


def print_night(record: Mapping[str, Any], page: Path) -> None:
    """Print what a night found."""
    out = console()
    for line in night_lines(record):
        out.print(line, markup=False)
    out.print(f"History {page}", soft_wrap=True, markup=False)


def night_lines(record: Mapping[str, Any]) -> list[str]:
    """Return a night in sentences."""
    head = f"Night {record['night']} ({record['day']}): {_CODES[record['exit_code']]}"
    lines = [f"{head}."]
    if record.get("repeated"):
        lines.append(
            f"This day was recorded already, at {record['recorded_at']}; nothing was changed."
        )
    new, old = record["recommended"], record["incumbent"]
    if new is not None:
        words = "Recommended" if record["changed"] or old is None else "Stays"
        cost, size = money(new["usd_per_mtok"]["mid"]), _counted(new["num_gpus"], "GPU")
        lines.append(
            f"{words}: {new['candidate_id']} ({new['verdict']}, {size}, "
            f"{cost} per million output tokens)"
        )
        if new["margin"] is not None:
            lines.append(f"Room to {new['nearest']}: {share(new['margin'])} at its pessimistic end")
    if old is not None and record["changed"]:
        lines.append(f"Before: {old['candidate_id']} ({_standing(old)})")
    if old is not None and old["breaks_slo"]:
        lines.append("The current deployment breaks its objectives on this day.")
    if record["gain_frac"] is not None:
        gain = record["gain_frac"]
        lines.append(f"Cost against it: {share(abs(gain))} {'less' if gain >= 0 else 'more'}")
    if record["drift"] is not None:
        lines.append(f"Traffic: {_drift_words(record['drift'])}")
    why = "; ".join(record["why"])
    lines.append(f"Searched in full: {why}" if record["searched"] else "No full search was needed.")
    sizing = record["sizing"]
    if sizing is not None:
        lines.append(
            f"Plan for {plain(sizing['planned_rate_per_s'])} requests/s (from "
            f"{_counted(sizing['num_days'], 'earlier day')}); it covers "
            f"{share(sizing['share_covered'])} of this day's quarter hours"
        )
    stress = record["stress"]
    if stress is not None:
        first = stress["candidates"][0]
        verdict = first["variants"][first["worst"]]["verdict"]
        lines.append(f"Best under stress: {stress['best']} (worst: {first['worst']}, {verdict})")
    return lines + [f"Note: {text}" for text in record["notes"]]


def _counted(number: int, what: str) -> str:
    return f"{count(number)} {what}{'' if number == 1 else 's'}"


def _standing(entry: Mapping[str, Any]) -> str:
    return str(entry["verdict"] or "unknown") + (f", {entry['reason']}" if entry["reason"] else "")


def _drift_words(found: Mapping[str, Any]) -> str:
    if not found["moved"]:
        return "as the night before"
    parts = []
    for name in found["moved"]:
        entry = found["features"][name]
        values = ""
        if entry["before"] is not None and entry["after"] is not None:
            values = f" ({plain(entry['before'])} to {plain(entry['after'])})"
        parts.append(f"{_FEATURES[name]} {plain(entry['value'])}{values}")
    return f"{found['level']}: {', '.join(parts)}"


def history_page(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the nights as one HTML page: charts of all of them, a table of the last.

    More than 500 nights are drawn as 500 spans, each at its highest and lowest value.

    Args:
        rows: columns of every night, first to last; texts are escaped, values may be of any type.
    """
    name = str(rows[-1]["name"]) if rows else "no nights yet"
    parts = [Markup("<h1>{}: {} nights</h1>").format(name, count(len(rows)))]
    if rows:
        parts.append(Markup("<p>{}</p>").format(_last_words(rows[-1])))
    charts: Sequence[tuple[str, str, Callable[[float], str]]] = (
        ("usd_per_mtok", "Cost of the recommendation, USD per million output tokens", plain),
        ("usd_per_hour", "Cost of the recommendation, USD per hour", plain),
        ("num_gpus", "GPUs", plain),
        ("margin", "Room to the nearest objective at the pessimistic end", share),
        ("peak_rate_per_s", "Requests per second in the busiest 15 minutes", plain),
        ("input_p50_tokens", "Median input length, tokens", plain),
        ("output_p50_tokens", "Median output length, tokens", plain),
    )
    changes = [i for i in range(1, len(rows)) if _changed(rows[i - 1], rows[i])]
    for column, title, form in charts:
        chart = _chart(title, [number(row[column]) for row in rows], changes, form)
        if chart:
            parts += [Markup("<h2>{}</h2>").format(title), chart]
    if len(rows) > MAX_ROWS:
        parts.append(Markup("<p>The last {} nights.</p>").format(MAX_ROWS))
    parts.append(_table(rows[-MAX_ROWS:]))
    body = Markup("\n").join(parts)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n{POLICY}\n'
        '<meta name="viewport" content="width=device-width">\n'
        f"<title>{escape(name)}: nights</title>\n<style>{_STYLE}</style></head>\n<body>\n"
        f"<main>\n{body}\n</main>\n</body></html>\n"
    )


def _changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    return bool(before["recommended"] != after["recommended"])


def _last_words(row: Mapping[str, Any]) -> str:
    words = _CODES.get(row["exit_code"], f"exit code {row['exit_code']}")
    text = f"Last night ({row['day']}): {words}. Recommended: {row['recommended'] or 'none'}."
    if row["incumbent_breaks_slo"]:
        text += " The deployment before broke its objectives."
    return text + " A dashed line marks a night on which the recommendation changed."


def _chart(
    title: str, values: Sequence[float | None], changes: Sequence[int], form: Callable[[float], str]
) -> Markup:
    """Return one line over the nights, or nothing where no value is known."""
    known = [(i, v) for i, v in enumerate(values) if v is not None and math.isfinite(v)]
    if not known:
        return Markup("")
    last = max(len(values) - 1, 1)
    low, high = min(v for _, v in known), max(v for _, v in known)
    low, high = min(low, 0.0), high if high > min(low, 0.0) else min(low, 0.0) + 1.0

    def x(i: float) -> float:
        return _LEFT + i / last * (_WIDTH - _LEFT - 10)

    def y(value: float) -> float:
        return _HEIGHT - 14 - (value - low) / (high - low) * (_HEIGHT - 28)

    out = []
    for value in (low, high):
        out.append(element("line", x1=_LEFT, x2=_WIDTH, y1=y(value), y2=y(value), class_="grid"))
        label = element("text", escape(form(value)), x=_LEFT - 6, y=y(value) + 4, text_anchor="end")
        out.append(label)
    step = max(1, -(-len(changes) // MAX_POINTS))
    out += [
        element("line", x1=x(i), x2=x(i), y1=14.0, y2=_HEIGHT - 14, class_="change")
        for i in changes[::step]
    ]
    points = " ".join(f"{x(i):.1f},{y(v):.1f}" for i, v in _thinned(known, len(values)))
    out.append(element("polyline", points=points, class_="line"))
    ends = f"{title}: from {form(known[0][1])} to {form(known[-1][1])}"
    return element(
        "svg", element("title", escape(ends)), *out,
        viewBox=f"0 0 {_WIDTH:g} {_HEIGHT:g}", role="img", aria_label=ends,
    )  # fmt: skip


def _thinned(known: Sequence[tuple[int, float]], total: int) -> list[tuple[int, float]]:
    """Return the points, of many the lowest and the highest of each span."""
    if total <= MAX_POINTS:
        return list(known)
    spans: dict[int, list[tuple[int, float]]] = {}
    for point in known:
        spans.setdefault(point[0] * MAX_POINTS // total, []).append(point)
    out = []
    for points in spans.values():
        ends = {min(points, key=lambda p: p[1]), max(points, key=lambda p: p[1])}
        out += sorted(ends)
    return out


def _table(rows: Sequence[Mapping[str, Any]]) -> Markup:
    heads = ("night", "day", "outcome", "recommended", "GPUs", "USD/Mtok", "room", "drift",
             "searched", "peak/s")  # fmt: skip
    out = [Markup("").join(Markup('<th scope="col">{}</th>').format(head) for head in heads)]
    for row in reversed(rows):
        words = _CODES.get(row["exit_code"], f"exit code {row['exit_code']}")
        if row["incumbent_breaks_slo"]:
            words += "; the one before broke its objectives"
        css = "bad" if row["exit_code"] in {3, 4, 6} or row["incumbent_breaks_slo"] else ""
        cells = [
            ("n", count(row["night"])),
            ("", row["day"]),
            (css, words),
            ("id", row["recommended"] or "none"),
            ("n", count(row["num_gpus"])),
            ("n", plain(row["usd_per_mtok"])),
            ("n", share(row["margin"])),
            ("bad" if row["drift"] == "drift" else "", row["drift"] or "-"),
            ("", "yes" if row["searched"] else "no"),
            ("n", plain(row["peak_rate_per_s"])),
        ]
        out.append(Markup("").join(Markup('<td class="{}">{}</td>').format(*c) for c in cells))
    body = Markup("\n").join(Markup("<tr>{}</tr>").format(line) for line in out)
    return Markup('<table tabindex="0">{}</table>').format(body)
