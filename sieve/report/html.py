"""The report as one HTML file that needs nothing else: no script, no font, no network."""

from __future__ import annotations

from importlib import resources
from typing import Any

import jinja2
import polars as pl

from sieve.report.view import build


def styles() -> str:
    """Return the style sheet of the report, for further pages."""
    return resources.files("sieve.report").joinpath("templates/report.css").read_text("utf-8")


def render_report(
    result: dict[str, Any], candidates: pl.DataFrame, simulations: pl.DataFrame
) -> str:
    """Return the report of a run as one HTML page; equal input gives equal bytes.

    Args:
        result: content of `result.json`; a run that stopped early has no answer and no ranking.
        candidates: one row a candidate, rejected ones included.
        simulations: one row a candidate and load level; may be empty, without columns too.
    """
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("sieve.report", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    template = environment.get_template("report.html.j2")
    page = template.render(build(result, candidates, simulations))
    return "\n".join(line for line in page.split("\n") if line.strip()) + "\n"
