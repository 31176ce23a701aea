"""`sieve verify memory`: the ledger against start-up logs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from sieve.cli.catalogue import EXAMPLE_GPU
from sieve.cli.following import next_command
from sieve.cli.output import JsonFlag, print_json

MISSED: Final = 8


def memory(
    path: Annotated[Path, typer.Argument(help="Table of start-ups.", metavar="CSV")],
    eligible: Annotated[
        bool, typer.Option("--eligible", help="Only rows marked as fully known.")
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 8 if a figure misses its threshold.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Hold the memory ledger against start-up logs, one row a start-up.

    Example: `sieve verify memory my_start_ups.csv --eligible`
    """
    from sieve.verify.memory import missed, verify_memory

    report = verify_memory(path, eligible_only=eligible)
    if as_json:
        print_json(report)
    else:
        from sieve.report.fit import print_memory_check

        print_memory_check(report)
        next_command("calibrate", "vllm.log", "--gpu", EXAMPLE_GPU, "--into", "calibration.json")
    faults = missed(report)
    if strict and faults:
        for words in faults:
            print(words, file=sys.stderr)
        raise typer.Exit(MISSED)
