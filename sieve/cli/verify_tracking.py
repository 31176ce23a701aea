"""`sieve verify tracking`: predicted and measured throughput over a run, window by window."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sieve.cli.following import next_command
from sieve.cli.output import JsonFlag, print_json


def tracking(
    result: Annotated[
        Path,
        typer.Argument(
            help="Result with its requests: vllm bench serve --save-detailed, or AIPerf's "
            "profile_export.jsonl.",
            metavar="RESULT",
        ),
    ],
    spec: Annotated[Path, typer.Option("--spec", help="Run spec of the candidate.")],
    candidate: Annotated[
        str | None,
        typer.Option(help="Candidate id or axes; default: the result's.", metavar="ID|K=V,..."),
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="Override a key of the spec.", metavar="K=V")
    ] = None,
    window: Annotated[float, typer.Option(help="Width of a window.", metavar="S")] = 120.0,
    calibration: Annotated[
        Path | None, typer.Option(help="Correct the prediction by what was learned.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Replay the measured requests and compare throughput in windows, nothing trimmed.

    Example: `sieve verify tracking bench.json --spec spec.yaml`
    """
    from sieve.tracking import track

    report = track(
        result, spec, candidate, overrides=overrides or (), window_s=window, calibration=calibration
    )
    if as_json:
        print_json(report)
        return
    from sieve.report.calibration import print_tracking

    print_tracking(report)
    next_command("calibrate", result, "--run", "RUN", "--into", calibration or "calibration.json")
