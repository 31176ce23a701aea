"""The picture of a trace as one HTML file that needs nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from sieve.report.charts import Series, line_chart
from sieve.report.format import count, plain, seconds, share
from sieve.report.html import styles
from sieve.report.page_policy import POLICY


def trace_page(data: Mapping[str, Any]) -> str:
    """Return the page: rate over time, lengths, prefix hit curve, preconditions.

    Equal input gives equal bytes; every text is escaped.
    """
    parts = [Markup("<h1>{}</h1>").format(f"Traffic: {data['source']}")]
    parts.append(Markup("<p>{} requests; sha256 {}</p>").format(
        count(data["num_requests"]), data["sha256"]))  # fmt: skip
    rates = data["rates"]
    if rates:
        points = [
            (i * rates["window_s"], None, v, None) for i, v in enumerate(rates["windows_per_s"])
        ]
        title = f"Arrivals ({rates['unit']}), mean {plain(rates['mean_per_s'])}"
        parts.append(_chart("rate", title, points, plain, ("seconds", "per second")))
    for name in ("input_tokens", "output_tokens"):
        curve = data["lengths"][name]["percentiles"]
        points = [(float(p[1:]), None, v, None) for p, v in curve.items()]
        parts.append(_chart(name, f"{name.split('_')[0].capitalize()} length by percentile", points,
                            lambda v: count(round(v)), ("percentile", "tokens")))  # fmt: skip
    prefix = data["prefix"]
    if prefix:
        points = [
            (size / 1e6, None, ratio, None)
            for size, ratio in zip(prefix["cache_tokens"], prefix["hit_ratio"], strict=True)
        ]
        title = f"Prefix hits by cache size; endless cache {share(prefix['unlimited_hit_ratio'])}"
        parts.append(_chart("prefix", title, points, share, ("million cached tokens", "hits")))
    parts.append(_joint(data["lengths"]["joint"]))
    parts.append(_table("Preconditions", ("what", "holds", "detail"), [
        (row["name"], {True: "yes", False: "no", None: "unknown"}[row["ok"]], row["detail"])
        for row in data["preconditions"]
    ]))  # fmt: skip
    load = data["concurrency"]
    mean = "unknown" if load["mean"] is None else plain(load["mean"])
    parts.append(Markup("<p>Concurrency {} ({})</p>").format(mean, load["assumption"]))
    parts += [Markup("<p>{}</p>").format(note) for note in data["notes"]]
    if rates:
        parts.append(Markup("<p>Span {}.</p>").format(seconds(rates["span_s"])))
    head = Markup(
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"\n{POLICY}\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<title>{}</title><style>{}</style></head><body><main>"
    ).format(f"Traffic: {data['source']}", Markup(styles()))
    return f"{head}\n" + "\n".join(parts) + "\n</main></body></html>\n"


def _chart(key: str, title: str, points: Any, form: Any, axes: tuple[str, str]) -> Markup:
    chart = line_chart(f"trace-{key}", title, [Series(title, points)], form, axes, None, at=axes[0])
    return Markup("<h2>{}</h2>{}").format(title, chart)


def _joint(joint: Mapping[str, Any]) -> Markup:
    head = ("input \\ output from", *(count(v) for v in joint["output_tokens_from"]))
    rows = [
        (count(low), *(count(v) if v else "" for v in row))
        for low, row in zip(joint["input_tokens_from"], joint["requests"], strict=True)
    ]
    return _table("Requests by input and output length", head, rows)


def _table(title: str, head: Any, rows: Any) -> Markup:
    cells = Markup("").join(Markup("<th>{}</th>").format(h) for h in head)
    body = Markup("").join(
        Markup("<tr>{}</tr>").format(
            Markup("").join(Markup("<td>{}</td>").format(cell) for cell in row)
        )
        for row in rows
    )
    return Markup("<h2>{}</h2><table><thead><tr>{}</tr></thead><tbody>{}</tbody></table>").format(
        title, cells, body
    )
