"""The parts that charts are made of: elements, scales, axes, and the shape of a verdict.

Every text and attribute is escaped by `element`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup, escape

from sieve.report.format import plain

WIDTH: Final = 480.0
LEFT, RIGHT, TOP = 62.0, 14.0, 14.0
_LOG_ABOVE: Final = 30.0
"""Ratio of largest to smallest value from which an axis turns logarithmic."""

Format = Callable[[float], str]


@dataclass(frozen=True)
class Scale:
    """An axis: values from `low` to `high` go to coordinates from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float
    log: bool
    marks: tuple[float, ...] = ()

    def __call__(self, value: float) -> float:
        """Return the coordinate of a value."""
        low, high, x = self.low, self.high, value
        if self.log:
            low, high, x = math.log(low), math.log(high), math.log(max(value, self.low))
        return self.start + (x - low) / (high - low) * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Return the values to mark."""
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


def plain_level(level: float) -> str:
    """Return a load level: `0.75`, `1`."""
    return f"{level:g}"


def finite(value: float | None) -> bool:
    """Return whether a value is known and finite."""
    return value is not None and math.isfinite(value)


def say(value: float | None, form: Format) -> str:
    """Return a value in words, `unknown` where it is."""
    return "unknown" if value is None else form(value)


def short(text: str, most: int) -> str:
    """Return at most `most` letters of a text."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def label(x: float, y: float, text: str, css: str, anchor: str) -> Markup:
    """Return a text of style class `css`."""
    return element("text", escape(text), x=x, y=y, class_=css, text_anchor=anchor)


def line(x1: float, y1: float, x2: float, y2: float, css: str) -> Markup:
    """Return a straight line of style class `css`."""
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=css)


def mark(x: float, y: float, verdict: str, tip: str, **attributes: str) -> Markup:
    """Return the shape of a verdict: full circle, ring with a dot, cross."""
    title = [element("title", escape(tip))] if tip else []
    css = f"mark v-{verdict}"
    if verdict == "clears":
        shape = [element("circle", cx=x, cy=y, r=5.5)]
    elif verdict == "point_only":
        ring = element("circle", cx=x, cy=y, r=5.0, class_="ring")
        shape = [ring, element("circle", cx=x, cy=y, r=1.8)]
    else:
        down = line(x - 4.5, y - 4.5, x + 4.5, y + 4.5, "cross")
        shape = [down, line(x - 4.5, y + 4.5, x + 4.5, y - 4.5, "cross")]
    return element("g", *title, *shape, class_=css, **attributes)


def frame(
    x: Scale,
    y: Scale,
    forms: tuple[Format, Format],
    axes: tuple[str, str],
    bottom: float,
    height: float,
) -> list[Markup]:
    """Return grid, axes and ticks of a chart, y above x.

    Args:
        x: horizontal axis.
        y: vertical axis.
        forms: how values on x and on y are written.
        axes: names of x and y.
        bottom: of the plot.
        height: of the picture.
    """
    out: list[Markup] = []
    for tick in y.ticks():
        out.append(line(LEFT, y(tick), WIDTH - RIGHT, y(tick), "grid"))
        out.append(label(LEFT - 6, y(tick) + 4, forms[1](tick), "tick", "end"))
    for tick in x.ticks():
        out.append(line(x(tick), bottom, x(tick), bottom + 4, "rule"))
        out.append(label(x(tick), bottom + 18, forms[0](tick), "tick", "middle"))
    out.append(line(LEFT, bottom, WIDTH - RIGHT, bottom, "rule"))
    logs = [name for name, scale in (("x", x), ("y", y)) if scale.log]
    note = f" ({' and '.join(logs)} on a logarithmic axis)" if logs else ""
    out.append(label(LEFT, height - 8, f"{axes[1]} against {axes[0]}{note}", "axis", "start"))
    return out


def picture(
    key: str, title: str, desc: str, height: float, body: Sequence[Markup], role: str = "img"
) -> Markup:
    """Return a chart with its alternative text.

    Args:
        key: unique id of the chart in its page.
        title: what it shows.
        desc: its content in words.
        height: of the picture.
        body: what is drawn.
        role: `group` where the marks inside can be visited one by one.
    """
    return element(
        "svg",
        element("title", escape(title), id=f"{key}-title"),
        element("desc", escape(desc), id=f"{key}-desc"),
        *body,
        viewBox=f"0 0 {WIDTH:g} {height:g}",
        class_="chart",
        id=key,
        role=role,
        aria_labelledby=f"{key}-title",
        aria_describedby=f"{key}-desc",
    )


def scale(
    values: Sequence[float], start: float, end: float, *, log: bool | None = None, pad: bool = True
) -> Scale:
    """Return an axis that holds the values; logarithmic where they span decades."""
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
    return Scale(low, high, start, end, log)


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
