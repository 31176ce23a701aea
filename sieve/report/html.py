"""The report as one HTML file that needs nothing else: no font, no network, one script of ours.

The page is complete without its script, which adds filters, the choice of scheme, and figures to
save. The content security policy lets exactly this script run, by its hash.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import jinja2
import polars as pl
from markupsafe import Markup

from sieve.report.view import build
from sieve.resources import package_data


def styles() -> str:
    """Return the style sheet of the report, for further pages."""
    return "".join(template_text(name) for name in ("scheme.css", "figures.css", "report.css"))


def render_report(
    result: dict[str, Any],
    candidates: pl.DataFrame,
    simulations: pl.DataFrame,
    timeline: pl.DataFrame | None = None,
    files: Mapping[str, str] | None = None,
) -> str:
    """Return the report of a run as one HTML page; equal input gives equal bytes.

    Args:
        result: content of `result.json`; a run that stopped early has no answer and no ranking.
        candidates: one row a candidate, rejected ones included.
        simulations: one row a candidate and load level; may be empty, without columns too.
        timeline: the leader over time, a row a window; None where it was not kept.
        files: texts of the run's `plan/` by path below the run folder.
    """
    variables = build(result, candidates, simulations, timeline, files or {})
    return render_page("report.html.j2", variables, script=template_text("report.js"))


def render_page(template: str, variables: Mapping[str, Any], *, script: str = "") -> str:
    """Return a page of `templates/`, every value escaped, without empty lines."""
    page = (
        _environment()
        .get_template(template)
        .render(variables, script=Markup(script), script_hash=script_hash(script))
    )
    return "\n".join(line for line in page.split("\n") if line.strip()) + "\n"


@lru_cache(maxsize=1)
def _environment() -> jinja2.Environment:
    """Return where the templates are found; each is compiled once a process."""
    return jinja2.Environment(
        loader=jinja2.PackageLoader("sieve.report", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def script_hash(script: str) -> str:
    """Return the source expression that lets this script run under a content security policy."""
    digest = hashlib.sha256(script.encode("utf-8")).digest()
    return f"sha256-{base64.b64encode(digest).decode('ascii')}"


def template_text(name: str) -> str:
    """Return a file of `templates/` without empty lines, as it stands in a page."""
    text = package_data("report", "templates", name).read_text(encoding="utf-8")
    return "\n".join(line for line in text.split("\n") if line.strip())
