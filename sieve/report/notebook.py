"""A run's result as a few lines of HTML, for notebooks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from markupsafe import Markup, escape

from sieve.report.answer import answer_sentence
from sieve.report.format import deployment, engine_limits, interval, metric_name, number

MAX_ROWS: Final = 10
_METRICS: Final = ("ttft_p99_s", "tpot_p99_s", "usd_per_mtok")


def notebook_view(result: Mapping[str, Any]) -> str:
    """Return the answer and the first rows of the ranking as HTML; every text is escaped."""
    heads = ["rank", "deployment", "verdict", *(metric_name(m) for m in _METRICS), "evidence"]
    ranking = result.get("ranking") or []
    rows = Markup("").join(_row(row) for row in ranking[:MAX_ROWS])
    parts = [Markup("<p><strong>{}</strong></p>").format(answer_sentence(result))]
    if rows:
        head = Markup("").join(Markup('<th scope="col">{}</th>').format(h) for h in heads)
        parts.append(Markup("<table><thead><tr>{}</tr></thead><tbody>{}</tbody></table>").format(
            head, rows
        ))  # fmt: skip
    if len(ranking) > MAX_ROWS:
        parts.append(Markup("<p>{} more in .ranking</p>").format(len(ranking) - MAX_ROWS))
    return str(Markup("").join(parts))


def _row(row: Mapping[str, Any]) -> Markup:
    cells = [Markup("<td>{}</td>").format(str(row.get("rank")))]
    words = Markup("{}<br><small>{}</small>").format(deployment(row), engine_limits(row))
    cells += [Markup("<td>{}</td>").format(words), _cell(str(row.get("verdict")))]
    for metric in _METRICS:
        value = row.get(metric)
        ends = value if isinstance(value, Mapping) else {}
        middle, around = interval(metric, *(number(ends.get(e)) for e in ("low", "mid", "high")))
        text = Markup("{}<br><small>{}</small>").format(middle, around)
        cells.append(Markup("<td>{}</td>").format(text))
    cells.append(_cell(str(row.get("evidence"))))
    return Markup("<tr>{}</tr>").format(Markup("").join(cells))


def _cell(text: str) -> Markup:
    return Markup("<td>{}</td>").format(escape(text))


def facts_view(title: str, facts: Mapping[str, Any]) -> str:
    """Return a document as an HTML table of its plain values, two levels deep; all escaped."""
    rows = Markup("").join(
        Markup('<tr><th scope="row">{}</th><td>{}</td></tr>').format(name, text)
        for name, text in _flat(facts)
    )
    head = Markup("<p><strong>{}</strong></p>").format(title)
    return str(head + Markup("<table><tbody>{}</tbody></table>").format(rows))


def _flat(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    out: list[tuple[str, str]] = []
    for key, value in facts.items():
        name = str(key).replace("_", " ")
        if isinstance(value, Mapping):
            plain = ((k, v) for k, v in value.items() if not isinstance(v, Mapping | list))
            out += [(f"{name}, {str(k).replace('_', ' ')}", _say(v)) for k, v in plain]
        elif isinstance(value, list):
            words = [str(item) for item in value if isinstance(item, str)]
            out += [(name, "; ".join(words))] if words else []
        else:
            out.append((name, _say(value)))
    return out


def _say(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
