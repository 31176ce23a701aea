"""`sieve report`: the report of a finished run, written anew."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sieve.cli.following import next_command
from sieve.cli.output import JsonFlag, print_json


def report(
    run: Annotated[Path, typer.Argument(help="Run folder.", metavar="RUN")],
    figures: Annotated[
        Path | None,
        typer.Option(help="Also write every figure as an SVG file here.", metavar="DIR"),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Write report.html of a finished run anew, from result.json and the tables beside it.

    PNG files come from the page itself: each figure has a button for them.

    Examples: `sieve report reports/runs/demo` | `sieve report reports/runs/demo --figures figures`
    """
    from sieve.errors import ResultError
    from sieve.report.rewrite import figures_of, report_of
    from sieve.results import write_atomically

    page, drawn = report_of(run), figures_of(run) if figures is not None else {}
    target = run / "report.html"
    write_atomically(target, page)
    written = []
    if figures is not None:
        try:
            figures.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ResultError(f"{figures}: cannot be created: {error.strerror}") from None
        for name, svg in drawn.items():
            write_atomically(figures / name, svg)
            written.append(figures / name)
    if as_json:
        print_json({"report": str(target), "figures": [str(path) for path in written]})
        return
    print(f"Report  {target}")
    for path in written:
        print(f"Figure  {path}")
    next_command("serve", run.parent)
