"""Throughput and latency against batch as one HTML file: measured points, curve, knee, cap, SLO."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup, escape

from sieve.report.format import limit_text, plain, seconds
from sieve.report.page_policy import POLICY
from sieve.report.svg import WIDTH, element

_LEFT: Final = 62.0
_RIGHT: Final = 14.0
_TOP: Final = 18.0
_HEIGHT: Final = 270.0
_BOTTOM: Final = _HEIGHT - 44
MAX_CURVES: Final = 12
_STYLE: Final = """
:root { color-scheme: light dark; --text: #17212b; --soft: #4d5b69; --rule: #c9d1d9; --bg: #fff;
  --line: #0b5cad; --dot: #b4530a; --knee: #0b7a55; --limit: #b3261e; --cap: #8a3ab0; }
@media (prefers-color-scheme: dark) { :root { --text: #e6ebf0; --soft: #a9b5c1; --rule: #3a4652;
  --bg: #11161c; --line: #6cb2ff; --dot: #ffa45c; --knee: #5ed3a4; --limit: #ff8a80;
  --cap: #d39bf0; } }
body { margin: 0 auto; max-width: 1040px; padding: 1rem; background: var(--bg); color: var(--text);
  font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.3rem; } h2 { font-size: 1rem; margin: 1.4rem 0 .2rem; }
p, li { color: var(--soft); max-width: 75ch; }
.pair { display: flex; flex-wrap: wrap; gap: 1rem; } svg { flex: 1 1 380px; max-width: 500px; }
.line { fill: none; stroke: var(--line); stroke-width: 2; }
.band { fill: var(--line); opacity: .15; }
.dot { fill: var(--dot); } .grid, .rule { stroke: var(--rule); }
.knee { stroke: var(--knee); stroke-dasharray: 2 3; }
.cap { stroke: var(--cap); stroke-dasharray: 6 3; }
.limit { stroke: var(--limit); stroke-dasharray: 5 3; }
text { font-size: 12px; fill: var(--soft); } .mark { fill: var(--text); }
"""


@dataclass(frozen=True)
class Curve:
    """One model at one pair of lengths.

    Attributes:
        label: what it is.
        batches: batches of the curve, rising.
        throughput: (low, mid, high) tokens per second at each; equal where there is no interval.
        latency_s: (low, mid, high) seconds at each.
        measured: (batch, tokens per second, seconds) of measured points.
        knee: batch at the knee, None if unknown.
        cap: recommended batch, None if none.
        slo_s: latency objective, None if none.
    """

    label: str
    batches: Sequence[float]
    throughput: Sequence[tuple[float, float, float]]
    latency_s: Sequence[tuple[float, float, float]]
    measured: Sequence[tuple[float, float, float]] = ()
    knee: float | None = None
    cap: float | None = None
    slo_s: float | None = None


def curve_page(
    title: str, notes: Sequence[str], curves: Sequence[Curve], foot: Sequence[str] = ()
) -> str:
    """Return one HTML page that needs nothing else; at most twelve curves are drawn.

    Args:
        title: heading.
        notes: sentences above the charts.
        curves: what is drawn.
        foot: lines of a list below the charts.
    """
    parts = [Markup("<h1>{}</h1>").format(title)]
    parts += [Markup("<p>{}</p>").format(note) for note in notes]
    for i, curve in enumerate(curves[:MAX_CURVES]):
        parts.append(Markup("<h2>{}</h2>").format(curve.label))
        parts.append(Markup('<div class="pair">{}{}</div>').format(*_charts(f"c{i}", curve)))
    if len(curves) > MAX_CURVES:
        parts.append(
            Markup("<p>{} more curves are not drawn.</p>").format(len(curves) - MAX_CURVES)
        )
    if foot:
        items = Markup("").join(Markup("<li>{}</li>").format(text) for text in foot)
        parts.append(Markup("<h2>Assumed</h2><ul>{}</ul>").format(items))
    body = Markup("\n").join(parts)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n{POLICY}\n'
        '<meta name="viewport" content="width=device-width">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style></head>\n<body>\n{body}\n"
        "</body></html>\n"
    )


def _charts(key: str, curve: Curve) -> tuple[Markup, Markup]:
    rates = [(b, rate) for b, rate, _ in curve.measured]
    times = [(b, time) for b, _, time in curve.measured]
    return (
        _chart(f"{key}t", "tokens/s", curve, curve.throughput, rates, plain, None),
        _chart(f"{key}l", "latency", curve, curve.latency_s, times, _axis_time, curve.slo_s),
    )


def _axis_time(value: float) -> str:
    return limit_text(value, "s")


def _chart(
    key: str, what: str, curve: Curve, ends: Sequence[tuple[float, float, float]],
    dots: Sequence[tuple[float, float]], form: Callable[[float], str], limit: float | None,
) -> Markup:  # fmt: skip
    xs = [*curve.batches, *(b for b, _ in dots)]
    xs += [b for b in (curve.knee, curve.cap) if b is not None]
    ys = [y for triple in ends for y in triple] + [y for _, y in dots]
    top = max([*ys, *([limit] if limit is not None else [])]) * 1.06
    x = _log_axis(min(xs), max(xs))

    def y(value: float) -> float:
        return _BOTTOM - value / top * (_BOTTOM - _TOP)

    out: list[Markup] = []
    for tick in _ticks(top):
        out.append(_line(_LEFT, y(tick), WIDTH - _RIGHT, y(tick), "grid"))
        out.append(_text(_LEFT - 6, y(tick) + 4, form(tick), "end"))
    for tick in _powers(min(xs), max(xs)):
        out.append(_line(x(tick), _BOTTOM, x(tick), _BOTTOM + 4, "rule"))
        out.append(_text(x(tick), _BOTTOM + 17, f"{tick:g}", "middle"))
    path = [(b, e[2]) for b, e in zip(curve.batches, ends, strict=True)]
    path += [(b, e[0]) for b, e in reversed(list(zip(curve.batches, ends, strict=True)))]
    points = " ".join(f"{x(b):.1f},{y(v):.1f}" for b, v in path)
    out.append(element("polygon", points=points, class_="band"))
    middle = zip(curve.batches, ends, strict=True)
    points = " ".join(f"{x(b):.1f},{y(e[1]):.1f}" for b, e in middle)
    out.append(element("polyline", points=points, class_="line"))
    for b, value in dots:
        tip = element("title", escape(f"measured, batch {b:g}: {form(value)}"))
        out.append(element("circle", tip, cx=x(b), cy=y(value), r=3.5, class_="dot"))
    for at, css, name in ((curve.knee, "knee", "knee"), (curve.cap, "cap", "B_cap")):
        if at is not None:
            out.append(_line(x(at), _TOP, x(at), _BOTTOM, css))
            height = _TOP - 5 if css == "cap" else _TOP + 9
            out.append(_text(x(at), height, f"{name} {at:g}", "middle", "mark"))
    if limit is not None:
        out.append(_line(_LEFT, y(limit), WIDTH - _RIGHT, y(limit), "limit"))
        out.append(_text(_LEFT + 4, y(limit) - 5, f"SLO {seconds(limit)}", "start", "mark"))
    out.append(_text(_LEFT, _HEIGHT - 8, f"{what} against batch (logarithmic)", "start"))
    title = f"{curve.label}: {what} against batch"
    return element(
        "svg",
        element("title", escape(title), id=f"{key}-title"),
        *out,
        viewBox=f"0 0 {WIDTH:g} {_HEIGHT:g}",
        role="img",
        aria_labelledby=f"{key}-title",
    )


def _log_axis(low: float, high: float) -> Callable[[float], float]:
    start, end = math.log(low), math.log(high)
    width = (end - start) or 1.0
    return lambda v: _LEFT + 10 + (math.log(v) - start) / width * (WIDTH - _RIGHT - _LEFT - 20)


def _powers(low: float, high: float) -> list[float]:
    """Return powers of two within the axis, about eight of them."""
    first, last = math.ceil(math.log2(low) - 1e-9), math.floor(math.log2(high) + 1e-9)
    step = max(1, math.ceil((last - first + 1) / 9))
    return [2.0**k for k in range(first, last + 1, step)]


def _ticks(top: float) -> list[float]:
    raw = top / 5
    size: float = 10.0 ** math.floor(math.log10(raw))
    step = next((m * size for m in (1.0, 2.0, 2.5, 5.0) if m * size >= raw), 10 * size)
    return [i * step for i in range(int(top / step) + 1)]


def _line(x1: float, y1: float, x2: float, y2: float, css: str) -> Markup:
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=css)


def _text(x: float, y: float, text: str, anchor: str, css: str = "tick") -> Markup:
    return element("text", escape(text), x=x, y=y, text_anchor=anchor, class_=css)
