"""`sieve nightly`: the search repeated on new traffic, against the nights before."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sieve.cli.completing import complete_executor, complete_spec
from sieve.cli.following import next_command
from sieve.cli.output import JsonFlag, print_json


def nightly(
    spec: Annotated[
        Path,
        typer.Argument(
            help="Run spec (YAML), or a preset such as chat.",
            metavar="SPEC",
            autocompletion=complete_spec,
        ),
    ],
    traffic: Annotated[
        Path, typer.Option("--traffic", help="The new day's requests.", metavar="FILE")
    ],
    history: Annotated[
        Path,
        typer.Option(
            "--history", help="Folder of the history: one for each service.", metavar="DIR"
        ),
    ],
    form: Annotated[
        str | None,
        typer.Option("--format", help="Format of FILE; detected by default.", metavar="FORM"),
    ] = None,
    day: Annotated[
        str | None,
        typer.Option(help="What the day is called; default the file's name.", metavar="TEXT"),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", help="Override a key: --set fleet.max_gpus=8.", metavar="K=V"),
    ] = None,
    calibration: Annotated[
        Path | None,
        typer.Option(help="Correct predictions by what `sieve calibrate` learned.", metavar="FILE"),
    ] = None,
    executor: Annotated[
        str, typer.Option(help="auto, local or ray.", autocompletion=complete_executor)
    ] = "auto",
    ray_address: Annotated[
        str | None, typer.Option(help="Address of a Ray cluster.", metavar="A")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Replay the deployment of the last night on a new day; search anew if it no longer holds.

    Exit code 6: another candidate is recommended, outside the last night's tie group; 0: the
    recommendation clears every objective; 5: only on the point estimate; 4: none is left; 3: on
    the first night, nothing fits; 2: bad input, and nothing is recorded.

    Example: `sieve nightly service.yaml --traffic day.csv --history nights`
    """
    from sieve.jobs.history import PAGE
    from sieve.jobs.nightly import nightly as night_of
    from sieve.report import nightly as report

    record = night_of(
        spec,
        traffic=traffic,
        history=history,
        form=form,
        day=day,
        overrides=overrides or [],
        calibration=calibration,
        executor=executor,
        ray_address=ray_address,
    )
    if as_json:
        print_json(record)
    else:
        report.print_night(record, history / PAGE)
        if record.get("run"):
            found = record["recommended"] is not None
            next_command("plan" if found else "explain", history / record["run"])
        else:
            next_command("serve", history)
    raise typer.Exit(record["exit_code"])
