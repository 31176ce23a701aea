"""`sieve plan`: how a run's answer is confirmed on real GPUs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sieve.cli.output import JsonFlag, print_json


def plan(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run.", metavar="RUN")],
    top: Annotated[
        int, typer.Option(help="Measure at least the first N of the ranking.", metavar="N")
    ] = 3,
    model: Annotated[
        str | None,
        typer.Option(help="Hub name or path that the engines load.", metavar="NAME"),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Write a confirmation plan: engine commands, manifests, benchmarks, expected values.

    Everything goes to RUN/plan. Exit code as that of the run: 0, 5, 4; 3: nothing to measure.

    Example: `sieve plan reports/runs/demo --top 5`
    """
    from sieve.plan import make_plan
    from sieve.report.plan import print_plan

    made = make_plan(run, top=top, model=model)
    made.save(run)
    if as_json:
        print_json(made.data)
    else:
        print_plan(made.data, run)
    raise typer.Exit(made.exit_code)
