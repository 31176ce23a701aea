"""`sieve verify measured` and `sieve verify steps`: the replay and step times against records."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from sieve.cli.following import next_command
from sieve.cli.output import JsonFlag, print_json

MISSED: Final = 8

_StrictFlag = Annotated[
    bool, typer.Option("--strict", help=f"Exit with {MISSED} if a figure misses its threshold.")
]


def measured(
    path: Annotated[Path, typer.Argument(help="Table of measured runs.", metavar="CSV")],
    eligible: Annotated[
        bool, typer.Option("--eligible", help="Only rows marked as fully known.")
    ] = False,
    strict: _StrictFlag = False,
    calibration: Annotated[
        Path | None,
        typer.Option(help="Correct predictions by what `sieve calibrate` learned.", metavar="FILE"),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Replay measured runs and compare latency and throughput, one row a run.

    Example: `sieve verify measured my_runs.csv --eligible`
    """
    from sieve.verify.measured import missed, verify_measured

    learned = None
    if calibration is not None:
        from sieve.calibration.serving_file import read_calibration

        learned = read_calibration(calibration)
    report = verify_measured(path, eligible_only=eligible, calibration=learned)
    if as_json:
        print_json(report)
    else:
        from sieve.report.measured import print_measured_check

        print_measured_check(report)
        next_command("calibrate", path, "--into", calibration or "calibration.json")
    _leave(missed(report), strict=strict)


def steps(
    path: Annotated[
        Path, typer.Argument(help="Table of iterations, Parquet or CSV.", metavar="FILE")
    ],
    strict: _StrictFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Compare measured iterations with the step-time model, by what they consisted of.

    Example: `sieve verify steps my_iterations.parquet`
    """
    from sieve.verify.steps import missed, verify_steps

    report = verify_steps(path)
    if as_json:
        print_json(report)
    else:
        from sieve.report.measured import print_steps_check

        print_steps_check(report)
        next_command("tables", "list")
    _leave(missed(report), strict=strict)


def _leave(faults: list[str], *, strict: bool) -> None:
    if strict and faults:
        for words in faults:
            print(words, file=sys.stderr)
        raise typer.Exit(MISSED)
