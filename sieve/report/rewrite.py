"""A finished run's report written anew, and its figures as files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import polars as pl

from sieve.errors import ResultError
from sieve.report.html import render_report, template_text
from sieve.report.view import build
from sieve.results import read_frame, read_result

MAX_SCRIPT_BYTES: Final = 100_000
_SHAPES: Final = {"spec": dict, "answer": dict, "ranking": list, "stages": list}
_CANDIDATES: Final = ("candidate_id", "stage", "kind", "reason", "score")
_VARIABLE: Final = re.compile(r"var\((--[a-z0-9-]+)\)")
_SIZE: Final = re.compile(r'viewBox="0 0 ([0-9.]+) ([0-9.]+)"')


def report_of(run: Path) -> str:
    """Return the report of a finished run as HTML.

    Raises:
        ResultError: no finished run there, or files that are none of a run's.
    """
    result, candidates, simulations, timeline, files = _read(run)
    return render_report(result, candidates, simulations, timeline, files)


def figures_of(run: Path) -> dict[str, str]:
    """Return the figures of a run's report as SVG files by name, in its light colours.

    Raises:
        ResultError: as `report_of`.
    """
    result, candidates, simulations, timeline, files = _read(run)
    found = dict(_figures(build(result, candidates, simulations, timeline, files)))
    return {f"{key}.svg": standalone(svg) for key, svg in found.items()}


def standalone(svg: str) -> str:
    """Return a chart of the page as a file of its own: with name space, size and style."""
    colours = dict(re.findall(r"(--[a-z0-9-]+): ([^;]+);", _light()))
    style = _VARIABLE.sub(lambda m: colours[m[1]], template_text("figures.css"))
    style += f"\nsvg {{ background: {colours['--bg']}; font-family: sans-serif; }}"
    size = _SIZE.search(svg)
    width, height = (float(size[1]), float(size[2])) if size else (480.0, 300.0)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{2 * width:g}" height="{2 * height:g}" '
    body = str(svg).replace("<svg ", head, 1)  # no longer Markup, which would escape
    return body.replace(">", f"><style>{style}</style>", 1) + "\n"


def _light() -> str:
    return template_text("scheme.css").partition("@media")[0]


def _figures(value: Any) -> Iterator[tuple[str, str]]:
    """Yield (id, SVG) of every chart among the template's variables."""
    if isinstance(value, Mapping):
        for item in value.values():
            yield from _figures(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _figures(item)
    elif isinstance(value, str) and value.startswith("<svg") and 'class="chart"' in value[:200]:
        found = re.search(r' id="([a-z0-9-]+)" role', value)
        if found:
            yield found[1], value


def _read(
    run: Path,
) -> tuple[dict[str, Any], pl.DataFrame, pl.DataFrame, pl.DataFrame | None, dict[str, str]]:
    result = read_result(run)
    for key, kind in _SHAPES.items():
        if not isinstance(result.get(key), kind):
            raise ResultError(f"{run / 'result.json'}: {key!r} is missing or not a {kind.__name__}")
    for key in ("ranking", "stages"):
        if not all(isinstance(entry, dict) for entry in result[key]):
            raise ResultError(f"{run / 'result.json'}: an entry of {key!r} is not an object")
    candidates = read_frame(run, "candidates.parquet", _CANDIDATES if result["ranking"] else ())
    simulations = read_frame(run, "simulations.parquet")
    kept = run / "timeline.parquet"
    timeline = read_frame(run, kept.name) if kept.is_file() else None
    return result, candidates, simulations, timeline, _script(run, result)


def _script(run: Path, result: Mapping[str, Any]) -> dict[str, str]:
    """Return the leader's `serve.sh` by its path below the run folder, where it was written."""
    if not result["ranking"]:
        return {}
    name = f"plan/{result['ranking'][0].get('candidate_id')}/serve.sh"
    path = run / name
    if not path.resolve().is_relative_to(run.resolve()) or not path.is_file():
        return {}
    if path.stat().st_size > MAX_SCRIPT_BYTES:
        return {}
    return {name: path.read_text(encoding="utf-8", errors="replace")}
