"""Charts as inline SVG, each a pure function of its numbers.

Colours come from the classes of the page's style sheet, so that charts follow its light and dark
scheme. Every text and attribute is escaped by `svg.element`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from markupsafe import Markup, escape

from sieve.report import svg
from sieve.report.svg import Format

_FEW: Final = 8
_BAR_WORDS: Final = 66
"""Most letters of a line beside a bar: a phone shows them larger, and they must still fit."""


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
    """A point of a scatter chart; the verdict chooses its shape, the page filters by the rest."""

    label: str
    x: float
    y: float
    verdict: str
    gpu: str = ""
    num_gpus: str = ""
    tied: bool = False
    model: str = ""


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
class Bar:
    """A bar of parts side by side, with words above and below it."""

    label: str
    parts: Sequence[Part]
    note: str = ""


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
    x = svg.scale([*known, *([limit] if limit is not None else [])], 12.0, svg.WIDTH - 16.0)
    out: list[Markup] = []
    for tick in x.ticks():
        out.append(svg.line(x(tick), top, x(tick), bottom, "grid"))
        out.append(svg.label(x(tick), bottom + 17, form(tick), "tick", "middle"))
    if limit is not None:
        out.append(svg.line(x(limit), top, x(limit), bottom, "limit"))
    previous = rows[0].group
    for i, row in enumerate(rows):
        y = top + step * i
        if row.group != previous:
            out.append(svg.line(0, y, svg.WIDTH, y, "rule"))
            previous = row.group
        out.append(svg.label(4, y + 14, svg.short(row.label, 70), "label", "start"))
        if not svg.finite(row.mid):
            out.append(svg.label(4, y + 29, "unknown", "tick", "start"))
            continue
        assert row.mid is not None
        if row.low is not None and row.high is not None and svg.finite(row.low + row.high):
            ends = (x(row.low), x(row.high))
            out.append(svg.line(ends[0], y + 25, ends[1], y + 25, f"whisker v-{row.verdict}"))
            out += [svg.line(e, y + 21, e, y + 29, f"whisker v-{row.verdict}") for e in ends]
        out.append(svg.mark(x(row.mid), y + 25, row.verdict, f"{row.label}: {form(row.mid)}"))
    out.append(svg.label(svg.WIDTH / 2, bottom + 36, axis, "axis", "middle"))
    desc = "; ".join(
        f"{r.label}: {svg.say(r.mid, form)} ({svg.say(r.low, form)} to {svg.say(r.high, form)})"
        for r in rows[:_FEW]
    )
    return svg.picture(key, title, desc, bottom + 44, out)


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
    x = svg.scale([p.x for p in points], svg.LEFT + 10, svg.WIDTH - svg.RIGHT - 10)
    whole = sorted({p.x for p in points})
    if len(whole) <= _FEW and all(float(v).is_integer() for v in whole):
        x = replace(x, marks=tuple(whole))
    y = svg.scale(
        [*(p.y for p in points), *([limit] if limit is not None else [])], bottom - 8, svg.TOP + 8
    )
    out = svg.frame(x, y, forms, axes, bottom, height)
    if limit is not None:
        out.append(svg.line(svg.LEFT, y(limit), svg.WIDTH - svg.RIGHT, y(limit), "limit"))
        out.append(
            svg.label(svg.LEFT + 4, y(limit) - 5, f"limit {forms[1](limit)}", "tick", "start")
        )
    front = pareto_front(points)
    path = " ".join(f"{x(p.x):.1f},{y(p.y):.1f}" for p in front)
    out.append(svg.element("polyline", points=path, class_="front"))
    ahead = {id(p) for p in front}
    for p in reversed(points):
        tip = f"{p.label}: {axes[0]} {forms[0](p.x)}, {axes[1]} {forms[1](p.y)}"
        held = {"tabindex": "0"} if id(p) in ahead else {}
        out.append(
            svg.mark(
                x(p.x), y(p.y), p.verdict, tip, role="img", aria_label=f"{tip}, {p.verdict}",
                data_gpu=p.gpu, data_gpus=p.num_gpus, data_verdict=p.verdict,
                data_tied="yes" if p.tied else "no", data_model=p.model, **held,
            )
        )  # fmt: skip
    desc = f"{len(points)} candidates. On the Pareto front: " + "; ".join(
        f"{p.label} ({forms[0](p.x)}, {forms[1](p.y)})" for p in front[:_FEW]
    )
    return svg.picture(key, title, desc, height, out, role="group")


def line_chart(
    key: str,
    title: str,
    series: Sequence[Series],
    form: Format,
    axes: tuple[str, str],
    limit: float | None,
    span: tuple[float, float] | None = None,
    break_at: float | None = None,
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
        break_at: the load level at which the leader first misses the objective.
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
    x = svg.scale(xs, svg.LEFT + 8, svg.WIDTH - svg.RIGHT - 8, log=False, pad=False)
    if len(set(xs)) <= _FEW:
        x = replace(x, marks=tuple(sorted(set(xs))))
    spread = list(span) if span else [*values, *([limit] if limit is not None else [])]
    y = svg.scale(spread, bottom - 4, svg.TOP + 4, log=False if span else None, pad=span is None)
    out = svg.frame(x, y, (svg.plain_level, form), axes, bottom, height)
    band = [p for p in series[0].points if svg.finite(p[1]) and svg.finite(p[3])]
    if len(band) > 1:
        edge = [(p[0], p[3]) for p in band] + [(p[0], p[1]) for p in reversed(band)]
        path = " ".join(f"{x(a):.1f},{y(b or 0.0):.1f}" for a, b in edge)
        out.append(svg.element("polygon", points=path, class_="band"))
    if limit is not None:
        out.append(svg.line(svg.LEFT, y(limit), svg.WIDTH - svg.RIGHT, y(limit), "limit"))
        below = series[0].points[0][2] >= limit  # so that the leader's line starts clear of it
        base = y(limit) + (15 if below else -5)
        out.append(svg.label(svg.LEFT + 4, base, f"limit {form(limit)}", "tick", "start"))
    if break_at is not None:
        out.append(svg.line(x(break_at), svg.TOP, x(break_at), bottom, "breaks"))
        late = x(break_at) > svg.WIDTH / 2
        place, anchor = (x(break_at) - 4, "end") if late else (x(break_at) + 4, "start")
        words = f"breaks at {svg.plain_level(break_at)}"
        out.append(svg.label(place, bottom - 7, words, "tick", anchor))
    for i, line in reversed(list(enumerate(series))):
        known = [(p[0], p[2]) for p in line.points if math.isfinite(p[2])]
        path = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in known)
        out.append(svg.element("polyline", points=path, class_=f"line s{i}"))
        for a, b in known:
            tip = svg.element(
                "title", escape(f"{line.label}: {form(b)} at {at} {svg.plain_level(a)}")
            )
            out.append(svg.element("circle", tip, cx=x(a), cy=y(b), r=3.5, class_=f"dot s{i}"))
    desc = f"{series[0].label}: " + "; ".join(
        f"{at} {svg.plain_level(p[0])}: {form(p[2])} "
        f"({svg.say(p[1], form)} to {svg.say(p[3], form)})"
        for p in series[0].points
    )
    return svg.picture(key, title, desc, height, out)


def time_chart(
    key: str,
    title: str,
    points: Sequence[tuple[float, float]],
    form: Format,
    name: str,
    limit: tuple[float, str] | None = None,
) -> Markup:
    """Return one quantity over the time of the traffic.

    Args:
        key: unique id of the chart in its page.
        title: what it shows.
        points: (seconds, value), seconds rising.
        form: how a value is written.
        name: of the quantity.
        limit: a value that it cannot exceed, with its name; drawn where it is near.
    """
    points = [p for p in points if math.isfinite(p[0]) and math.isfinite(p[1])]
    if len(points) < 2:
        return Markup("")
    values = [v for _, v in points]
    near = limit is not None and limit[0] <= 2.5 * max(*values, 0.0)
    height = 210.0
    bottom = height - 50
    x = svg.scale([t for t, _ in points], svg.LEFT, svg.WIDTH - svg.RIGHT, log=False, pad=False)
    top = [limit[0]] if limit is not None and near else []
    ceiling = [*top, 1.0] if max(values) <= 0 else top
    y = svg.scale([0.0, *values, *ceiling], bottom, svg.TOP + 4, log=False)
    out = svg.frame(x, y, (lambda t: f"{t:,.0f}", form), ("time in s", name), bottom, height)
    path = " ".join(f"{x(t):.1f},{y(v):.1f}" for t, v in points)
    ends = f"{x(points[-1][0]):.1f},{bottom:.1f} {x(points[0][0]):.1f},{bottom:.1f}"
    out.append(svg.element("polygon", points=f"{path} {ends}", class_="band"))
    out.append(svg.element("polyline", points=path, class_="line s0"))
    if limit is not None and near:
        out.append(svg.line(svg.LEFT, y(limit[0]), svg.WIDTH - svg.RIGHT, y(limit[0]), "limit"))
        out.append(svg.label(svg.LEFT + 4, y(limit[0]) + 14, limit[1], "tick", "start"))
    most = max(points, key=lambda p: p[1])
    mean = sum(values) / len(values)
    desc = f"{name}: {form(mean)} in the mean, at most {form(most[1])} at {most[0]:,.0f} s"
    return svg.picture(key, title, desc, height, out)


def bar_chart(
    key: str, title: str, rows: Sequence[Bar], legend: Sequence[tuple[str, str]]
) -> Markup:
    """Return stacked bars of one length below each other, each between its words.

    Args:
        key: unique id of the chart in its page.
        title: what it shows.
        rows: bars from the top down; the shares of a bar are of its whole length.
        legend: style class and name of each kind of part.
    """
    if not rows:
        return Markup("")
    left, width = 4.0, svg.WIDTH - 8
    out: list[Markup] = []
    at = left
    for css, name in legend:
        out.append(svg.element("rect", x=at, y=4.0, width=11.0, height=11.0, class_=css))
        out.append(svg.label(at + 16, 14, name, "tick", "start"))
        at += 34 + 6.6 * len(name)
    y = 24.0
    for row in rows:
        out.append(svg.label(left, y + 14, svg.short(row.label, _BAR_WORDS), "label", "start"))
        empty = svg.element("rect", x=left, y=y + 21, width=width, height=12.0, class_="empty")
        out += [empty, *_parts(row.parts, left, y + 21, width, 12.0)]
        if row.note:
            out.append(svg.label(left, y + 46, svg.short(row.note, _BAR_WORDS), "tick", "start"))
        y += 54 if row.note else 40
    desc = "; ".join(f"{r.label}: {r.note or ', '.join(p.label for p in r.parts)}" for r in rows)
    return svg.picture(key, title, desc, y + 4, out)


def _parts(
    parts: Sequence[Part], left: float, top: float, length: float, height: float
) -> list[Markup]:
    """Return the parts of a bar from `left` on, none beyond its length."""
    out, at = [], 0.0
    for part in parts:
        width = length * part.share if math.isfinite(part.share) else 0.0
        width = max(0.0, min(width, length - at))
        if width > 0:
            tip = svg.element("title", escape(part.label))
            size = {"x": left + at, "y": top, "width": width, "height": height}
            out.append(svg.element("rect", tip, **size, class_=part.css))
        at += width
    return out


def stacked_bar(label: str, parts: Sequence[Part]) -> Markup:
    """Return one bar of parts side by side; shares are of the whole length."""
    return svg.element(
        "svg",
        *_parts(parts, 0.0, 0.0, 100.0, 10.0),
        viewBox="0 0 100 10",
        preserveAspectRatio="none",
        class_="bar",
        role="img",
        aria_label=label,
    )


def verdict_mark(verdict: str) -> Markup:
    """Return the shape of a verdict alone, for legends and badges."""
    return svg.element(
        "svg",
        svg.mark(8, 8, verdict, ""),
        viewBox="0 0 16 16",
        class_="mark",
        aria_hidden="true",
    )


def line_sample(index: int) -> Markup:
    """Return a short piece of the line of series `index`, for a legend."""
    return svg.element(
        "svg",
        svg.element("polyline", points="1,8 31,8", class_=f"line s{index}"),
        svg.element("circle", cx=16.0, cy=8.0, r=3.5, class_=f"dot s{index}"),
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
