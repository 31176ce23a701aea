"""`sieve compare`: what changed between two runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sieve.cli.following import next_command
from sieve.cli.output import JsonFlag, print_json


def compare(
    first: Annotated[Path, typer.Argument(help="Run folder.", metavar="RUN_A")],
    second: Annotated[Path, typer.Argument(help="Run folder to hold against it.", metavar="RUN_B")],
    as_json: JsonFlag = False,
) -> None:
    """Show what moved between two runs: spec, inputs, answer, and every common candidate.

    Example: `sieve compare reports/runs/monday reports/runs/tuesday`
    """
    from sieve.compare import compare_runs

    report = compare_runs(first, second)
    if as_json:
        print_json(report)
        return
    from sieve.report.compare import print_comparison

    print_comparison(report)
    folders = {first.absolute().parent, second.absolute().parent}
    if len(folders) == 1:
        next_command("serve", second.parent)
    else:
        next_command("report", second)
