from __future__ import annotations

import math
from xml.etree import ElementTree as ET

import pytest

from sieve.report import charts, svg
from sieve.report.charts import Bar, Interval, Part, Point, Series


def test_every_text_is_escaped_and_the_svg_is_well_formed():
    bad = "<b>\"'&"
    pictures = [
        charts.interval_chart("a", bad, [Interval(bad, 1, 2, 3, bad)], str, bad, None),
        charts.scatter_chart("b", bad, [Point(bad, 1, 2, bad)], (str, str), (bad, bad), 2.0),
        charts.line_chart("c", bad, [Series(bad, [(1, 1, 2, 3)])], str, (bad, bad), 2.0),
        charts.stacked_bar(bad, [Part(bad, 0.5, bad)]),
        charts.bar_chart("d", bad, [Bar(bad, [Part(bad, 0.5, bad)], bad)], [(bad, bad)]),
    ]
    for picture in pictures:
        assert bad not in picture
        assert any(bad in text for text in ET.fromstring(picture).itertext()) or "bar" in picture


def test_nothing_known_draws_nothing():
    nothing = [Interval("a", None, math.nan, math.inf)]
    assert not charts.interval_chart("a", "t", nothing, str, "x", None)
    assert not charts.scatter_chart("b", "t", [Point("p", math.nan, 1, "")], (str, str), "xy", None)
    assert not charts.line_chart("c", "t", [Series("s", [])], str, ("x", "y"), None)
    assert not charts.bar_chart("d", "t", [], [("css", "name")])


def test_one_unknown_row_does_not_hide_the_others():
    rows = [Interval("a", 1, 2, 3, "clears"), Interval("b", None, None, None)]
    assert "unknown" in charts.interval_chart("a", "t", rows, str, "x", None)


@pytest.mark.parametrize("values", [[0.0], [5.0], [-3.0, 2.0], [1e-6, 1e6], [1.0, 1.0 + 1e-12]])
def test_marks_stay_on_the_canvas(values: list[float]):
    points = [Point("p", v, v, "clears") for v in values]
    drawn = ET.fromstring(charts.scatter_chart("a", "t", points, (str, str), ("x", "y"), None))
    for circle in drawn.iter("circle"):
        assert 0 <= float(circle.attrib["cx"]) <= svg.WIDTH
        assert 0 <= float(circle.attrib["cy"]) <= 330


def test_the_pareto_front_leaves_out_what_another_beats():
    points = [
        Point("a", 1, 5, ""),
        Point("b", 2, 5, ""),
        Point("c", 2, 3, ""),
        Point("d", 3, 4, ""),
    ]
    assert [p.label for p in charts.pareto_front(points)] == ["a", "c"]


def test_a_bar_never_exceeds_its_length():
    bar = ET.fromstring(charts.stacked_bar("x", [Part("a", 0.7, "a"), Part("b", 0.7, "b")]))
    assert sum(float(r.attrib["width"]) for r in bar.iter("rect")) == pytest.approx(100)


def test_bars_of_a_chart_share_one_length():
    rows = [Bar("a", [Part("x", 0.25, "a quarter")]), Bar("b", [Part("x", math.nan, "unknown")])]
    drawn = ET.fromstring(charts.bar_chart("a", "t", rows, []))
    widths = {name: [] for name in ("empty", "x")}
    for rect in drawn.iter("rect"):
        widths[rect.attrib["class"]].append(float(rect.attrib["width"]))
    assert len(set(widths["empty"])) == 1
    assert widths["x"] == [pytest.approx(widths["empty"][0] / 4)]
