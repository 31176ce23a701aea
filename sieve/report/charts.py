"""Charts as inline SVG, each a pure function of its numbers.

Colours come from the classes of the page's style sheet, so that charts follow its light and dark
scheme. Every text and attribute is escaped by `element`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from markupsafe import Markup, escape

from sieve.report.format import plain

WIDTH: Final = 480.0
_LEFT, _RIGHT, _TOP = 62.0, 14.0, 14.0
_LOG_ABOVE: Final = 30.0
"""Ratio of largest to smallest value from which an axis turns logarithmic."""
_FEW: Final = 8

Format = Callable[[float], str]


@dataclass(frozen=True)
class Interval:
    """A labelled middle with its low and high end, None where unknown."""

    label: str
    low: float | None
    mid: float | None
    high: float | None
    verdict: str = ""
    group: int = 0


@dataclass(frozen=True)
class Point:
    """A point of a scatter chart; the verdict chooses its shape."""

    label: str
    x: float
    y: float
    verdict: str


@dataclass(frozen=True)
class Series:
    """A line of (x, low, mid, high), x rising; the band is drawn for the first line only."""

    label: str
    points: Sequence[tuple[float, float | None, float, float | None]]


@dataclass(frozen=True)
class Part:
    """A part of a stacked bar: style class, share of the bar's length, text for its tooltip."""

    css: str
    share: float
    label: str


@dataclass(frozen=True)
class _Scale:
    low: float
    high: float
    start: float
    end: float
    log: bool
    marks: tuple[float, ...] = ()

    def __call__(self, value: float) -> float:
        low, high, x = self.low, self.high, value
        if self.log:
            low, high, x = math.log(low), math.log(high), math.log(max(value, self.low))
        return self.start + (x - low) / (high - low) * (self.end - self.start)

    def ticks(self) -> list[float]:
        if self.marks:
            return list(self.marks)
        return _log_ticks(self.low, self.high) if self.log else _ticks(self.low, self.high)


def element(tag: str, *children: str, **attributes: str | float) -> Markup:
    """Return an SVG element; attribute names take `-` for `_`, floats lose needless digits."""
    words = [tag]
    for name, value in attributes.items():
        text = value if isinstance(value, str) else f"{value:.2f}".rstrip("0").rstrip(".")
        words.append(f'{name.strip("_").replace("_", "-")}="{escape(text)}"')
    inside = Markup("").join(children)
    head = " ".join(words)
    return Markup(f"<{head}>{inside}</{tag}>" if inside else f"<{head}/>")


def interval_chart(
    key: str, title: str, rows: Sequence[Interval], form: Format, axis: str, limit: float | None
) -> Markup:
    """Return dots with low-high whiskers, one row a candidate, on one common axis."""
    known = [v for r in rows for v in (r.low, r.mid, r.high) if v is not None]
    known = [v for v in known if math.isfinite(v)]
    if not known:
        return Markup("")
    step, top = 36.0, 8.0
    bottom = top + step * len(rows)
    x = _scale([*known, *([limit] if limit is not None else [])], 12.0, WIDTH - 16.0)
    out: list[Markup] = []
    for tick in x.ticks():
        out.append(_line(x(tick), top, x(tick), bottom, "grid"))
        out.append(_text(x(tick), bottom + 17, form(tick), "tick", "middle"))
    if limit is not None:
        out.append(_line(x(limit), top, x(limit), bottom, "limit"))
    previous = rows[0].group
    for i, row in enumerate(rows):
        y = top + step * i
        if row.group != previous:
            out.append(_line(0, y, WIDTH, y, "rule"))
            previous = row.group
        out.append(_text(4, y + 14, _short(row.label, 70), "label", "start"))
        if not _finite(row.mid):
            out.append(_text(4, y + 29, "unknown", "tick", "start"))
            continue
        assert row.mid is not None
        if row.low is not None and row.high is not None and _finite(row.low + row.high):
            ends = (x(row.low), x(row.high))
            out.append(_line(ends[0], y + 25, ends[1], y + 25, f"whisker v-{row.verdict}"))
            out += [_line(e, y + 21, e, y + 29, f"whisker v-{row.verdict}") for e in ends]
        out.append(_mark(x(row.mid), y + 25, row.verdict, f"{row.label}: {form(row.mid)}"))
    out.append(_text(WIDTH / 2, bottom + 36, axis, "axis", "middle"))
    desc = "; ".join(
        f"{r.label}: {_say(r.mid, form)} ({_say(r.low, form)} to {_say(r.high, form)})"
        for r in rows[:_FEW]
    )
    return _svg(key, title, desc, bottom + 44, out)


def scatter_chart(
    key: str,
    title: str,
    points: Sequence[Point],
    forms: tuple[Format, Format],
    axes: tuple[str, str],
    limit: float | None,
) -> Markup:
    """Return points by verdict with their Pareto front (both axes: smaller is better)."""
    points = [p for p in points if math.isfinite(p.x) and math.isfinite(p.y)]
    if not points:
        return Markup("")
    height = 330.0
    bottom = height - 50
    x = _scale([p.x for p in points], _LEFT + 10, WIDTH - _RIGHT - 10)
    y = _scale(
        [*(p.y for p in points), *([limit] if limit is not None else [])], bottom - 8, _TOP + 8
    )
    out = _frame(x, y, forms, axes, bottom, height)
    if limit is not None:
        out.append(_line(_LEFT, y(limit), WIDTH - _RIGHT, y(limit), "limit"))
        out.append(_text(_LEFT + 4, y(limit) - 5, f"limit {forms[1](limit)}", "tick", "start"))
    front = pareto_front(points)
    path = " ".join(f"{x(p.x):.1f},{y(p.y):.1f}" for p in front)
    out.append(element("polyline", points=path, class_="front"))
    for p in reversed(points):
        tip = f"{p.label}: {forms[0](p.x)}, {forms[1](p.y)}"
        out.append(_mark(x(p.x), y(p.y), p.verdict, tip))
    desc = f"{len(points)} candidates. On the Pareto front: " + "; ".join(
        f"{p.label} ({forms[0](p.x)}, {forms[1](p.y)})" for p in front[:_FEW]
    )
    return _svg(key, title, desc, height, out)


def line_chart(
    key: str,
    title: str,
    series: Sequence[Series],
    form: Format,
    axes: tuple[str, str],
    limit: float | None,
    span: tuple[float, float] | None = None,
    at: str = "load",
) -> Markup:
    """Return lines over the load level; the first with its low-high band.

    Args:
        key: unique id of the chart in its page.
        title: what it shows.
        series: lines, the leader first.
        form: how a value on the y axis is written.
        axes: names of the axes.
        limit: an objective, drawn as a dashed line.
        span: fixed ends of the y axis.
        at: what the x axis counts, for texts that are read out.
    """
    series = [s for s in series if s.points]
    if not series:
        return Markup("")
    values = [v for s in series for p in s.points for v in p[1:] if v is not None]
    values = [v for v in values if math.isfinite(v)]
    xs = [p[0] for s in series for p in s.points]
    if not values:
        return Markup("")
    height = 300.0
    bottom = height - 50
    x = _scale(xs, _LEFT + 8, WIDTH - _RIGHT - 8, log=False, pad=False)
    if len(set(xs)) <= _FEW:
        x = replace(x, marks=tuple(sorted(set(xs))))
    spread = list(span) if span else [*values, *([limit] if limit is not None else [])]
    y = _scale(spread, bottom - 4, _TOP + 4, log=False if span else None, pad=span is None)
    out = _frame(x, y, (plain_level, form), axes, bottom, height)
    band = [p for p in series[0].points if _finite(p[1]) and _finite(p[3])]
    if len(band) > 1:
        edge = [(p[0], p[3]) for p in band] + [(p[0], p[1]) for p in reversed(band)]
        path = " ".join(f"{x(a):.1f},{y(b or 0.0):.1f}" for a, b in edge)
        out.append(element("polygon", points=path, class_="band"))
    if limit is not None:
        out.append(_line(_LEFT, y(limit), WIDTH - _RIGHT, y(limit), "limit"))
        below = series[0].points[0][2] >= limit  # so that the leader's line starts clear of it
        at = y(limit) + (15 if below else -5)
        out.append(_text(_LEFT + 4, at, f"limit {form(limit)}", "tick", "start"))
    for i, line in reversed(list(enumerate(series))):
        known = [(p[0], p[2]) for p in line.points if math.isfinite(p[2])]
        path = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in known)
        out.append(element("polyline", points=path, class_=f"line s{i}"))
        for a, b in known:
            tip = element("title", escape(f"{line.label}: {form(b)} at {at} {plain_level(a)}"))
            out.append(element("circle", tip, cx=x(a), cy=y(b), r=3.5, class_=f"dot s{i}"))
    desc = f"{series[0].label}: " + "; ".join(
        f"{at} {plain_level(p[0])}: {form(p[2])} ({_say(p[1], form)} to {_say(p[3], form)})"
        for p in series[0].points
    )
    return _svg(key, title, desc, height, out)


def stacked_bar(label: str, parts: Sequence[Part]) -> Markup:
    """Return one bar of parts side by side; shares are of the whole length."""
    out, at = [], 0.0
    for part in parts:
        width = 100 * part.share if math.isfinite(part.share) else 0.0
        width = max(0.0, min(width, 100 - at))
        if width > 0:
            tip = element("title", escape(part.label))
            out.append(element("rect", tip, x=at, y=0.0, width=width, height=10.0, class_=part.css))
        at += width
    return element(
        "svg",
        *out,
        viewBox="0 0 100 10",
        preserveAspectRatio="none",
        class_="bar",
        role="img",
        aria_label=label,
    )


def verdict_mark(verdict: str) -> Markup:
    """Return the shape of a verdict alone, for legends and badges."""
    return element(
        "svg",
        _mark(8, 8, verdict, ""),
        viewBox="0 0 16 16",
        class_="mark",
        aria_hidden="true",
    )


def line_sample(index: int) -> Markup:
    """Return a short piece of the line of series `index`, for a legend."""
    return element(
        "svg",
        element("polyline", points="1,8 31,8", class_=f"line s{index}"),
        element("circle", cx=16.0, cy=8.0, r=3.5, class_=f"dot s{index}"),
        viewBox="0 0 32 16",
        class_="sample",
        aria_hidden="true",
    )


def pareto_front(points: Sequence[Point]) -> list[Point]:
    """Return the points that no other beats on one axis without losing on the other, by x."""
    front: list[Point] = []
    best = math.inf
    for p in sorted(points, key=lambda q: (q.x, q.y, q.label)):
        if p.y < best:
            front.append(p)
            best = p.y
    return front


def plain_level(level: float) -> str:
    """Return a load level: `0.75`, `1`."""
    return f"{level:g}"


def _finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _say(value: float | None, form: Format) -> str:
    return "unknown" if value is None else form(value)


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _text(x: float, y: float, text: str, css: str, anchor: str) -> Markup:
    return element("text", escape(text), x=x, y=y, class_=css, text_anchor=anchor)


def _line(x1: float, y1: float, x2: float, y2: float, css: str) -> Markup:
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=css)


def _mark(x: float, y: float, verdict: str, tip: str) -> Markup:
    """Return the shape of a verdict: full circle, ring with a dot, cross."""
    title = [element("title", escape(tip))] if tip else []
    css = f"mark v-{verdict}"
    if verdict == "clears":
        return element("g", *title, element("circle", cx=x, cy=y, r=5.5), class_=css)
    if verdict == "point_only":
        ring = element("circle", cx=x, cy=y, r=5.0, class_="ring")
        dot = element("circle", cx=x, cy=y, r=1.8)
        return element("g", *title, ring, dot, class_=css)
    down = _line(x - 4.5, y - 4.5, x + 4.5, y + 4.5, "cross")
    up = _line(x - 4.5, y + 4.5, x + 4.5, y - 4.5, "cross")
    return element("g", *title, down, up, class_=css)


def _frame(
    x: _Scale,
    y: _Scale,
    forms: tuple[Format, Format],
    axes: tuple[str, str],
    bottom: float,
    height: float,
) -> list[Markup]:
    out: list[Markup] = []
    for tick in y.ticks():
        out.append(_line(_LEFT, y(tick), WIDTH - _RIGHT, y(tick), "grid"))
        out.append(_text(_LEFT - 6, y(tick) + 4, forms[1](tick), "tick", "end"))
    for tick in x.ticks():
        out.append(_line(x(tick), bottom, x(tick), bottom + 4, "rule"))
        out.append(_text(x(tick), bottom + 18, forms[0](tick), "tick", "middle"))
    out.append(_line(_LEFT, bottom, WIDTH - _RIGHT, bottom, "rule"))
    logs = [name for name, scale in (("x", x), ("y", y)) if scale.log]
    note = f" ({' and '.join(logs)} on a logarithmic axis)" if logs else ""
    out.append(_text(_LEFT, height - 8, f"{axes[1]} against {axes[0]}{note}", "axis", "start"))
    return out


def _svg(key: str, title: str, desc: str, height: float, body: Sequence[Markup]) -> Markup:
    return element(
        "svg",
        element("title", escape(title), id=f"{key}-title"),
        element("desc", escape(desc), id=f"{key}-desc"),
        *body,
        viewBox=f"0 0 {WIDTH:g} {height:g}",
        class_="chart",
        role="img",
        aria_labelledby=f"{key}-title {key}-desc",
    )


def _scale(
    values: Sequence[float], start: float, end: float, *, log: bool | None = None, pad: bool = True
) -> _Scale:
    low, high = min(values), max(values)
    if log is None:
        log = low > 0 and high / low > _LOG_ABOVE
    if low == high:
        low, high = (low * 0.9, high * 1.1) if low > 0 else (low - 1, high + 1)
    elif pad and log:
        low, high = low * 0.9, high * 1.1
    elif pad:
        room = 0.04 * (high - low)
        # A scale that is nearly at zero starts there: lengths then compare.
        low = 0.0 if 0 <= low < 0.4 * high else low - room
        high += room
    return _Scale(low, high, start, end, log)


def _ticks(low: float, high: float) -> list[float]:
    raw = (high - low) / 5
    size: float = 10.0 ** math.floor(math.log10(raw))
    step = next((m * size for m in (1.0, 2.0, 2.5, 5.0) if m * size >= raw), 10 * size)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(plain(i * step, 12).replace(",", "")) for i in range(first, last + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps: tuple[float, ...] = (1.0, 2.0, 5.0) if len(decades) <= 4 else (1.0,)
    ticks = [m * 10.0**d for d in decades for m in steps]
    return [t for t in ticks if low <= t <= high]
