"""`sieve explain`: one candidate's life."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sieve.cli.completing import complete_candidate
from sieve.cli.following import next_command
from sieve.cli.output import JsonFlag, print_json


def explain(
    run: Annotated[Path, typer.Argument(help="Run folder.", metavar="RUN")],
    candidate_id: Annotated[
        str | None,
        typer.Argument(
            help="Candidate, as in the ranking; default: its first.",
            metavar="ID",
            autocompletion=complete_candidate,
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Tell what happened to one candidate: the rule, the two numbers, what would have to change.

    Examples: `sieve explain reports/runs/demo` | `sieve explain reports/runs/demo
    h100-sxm-80gb.tp1.pp1.ep1.r1.bf16.kv-auto.s32.b2048`
    """
    from sieve.explain import explain as life_of
    from sieve.explain import first_of
    from sieve.model_folders import folder_of
    from sieve.report.terminal import print_life
    from sieve.results import read_result

    life = life_of(run, candidate_id if candidate_id is not None else first_of(run))
    own = folder_of(run, read_result(run), life["candidate"].get("model"))
    if as_json:
        print_json(life)
    else:
        print_life(life)
        next_command(*(("plan", own) if life["ranking"] else ("report", run)))
