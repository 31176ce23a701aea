"""`sieve replay`: one replay in detail."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sieve.cli.completing import complete_spec
from sieve.cli.following import next_command, set_flags
from sieve.cli.output import JsonFlag, print_json
from sieve.errors import InvalidInput


def replay(
    spec: Annotated[
        Path,
        typer.Argument(
            help="Run spec (YAML), or a preset such as chat.",
            metavar="SPEC",
            autocompletion=complete_spec,
        ),
    ],
    candidate: Annotated[
        str,
        typer.Option(
            help="Candidate id, or the axes that tell it apart: gpu=L40S,tp=2,replicas=4.",
            metavar="ID|K=V,...",
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", help="Override a key: --set traffic.rate_per_s=20.", metavar="K=V"),
    ] = None,
    level: Annotated[float, typer.Option(help="Multiple of the traffic's rate.")] = 1.0,
    discipline: Annotated[
        str, typer.Option(help="Who is admitted first: fcfs, shortest_first or buckets.")
    ] = "fcfs",
    compare: Annotated[
        bool,
        typer.Option("--compare", help="Set the disciplines and static batching side by side."),
    ] = False,
    scaling: Annotated[
        int,
        typer.Option(
            help="Look for the fewest replicas of this shape, up to N.", metavar="N", min=0
        ),
    ] = 0,
    pool: Annotated[
        str | None,
        typer.Option(
            help="Second pool for longer requests, set against one pool.", metavar="ID|K=V,..."
        ),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(help="Lengths or priorities that split the pools: 512,2048.", metavar="N,..."),
    ] = None,
    split_by: Annotated[
        str,
        typer.Option(
            help="What is split: total_tokens, input_tokens, output_tokens or priority.",
        ),
    ] = "total_tokens",
    warm_up: Annotated[
        float, typer.Option(help="Seconds at the start that are not counted.", metavar="S")
    ] = 0.0,
    max_wait: Annotated[
        float | None,
        typer.Option(help="Stop when a request waits longer to begin.", metavar="S"),
    ] = None,
    window: Annotated[float, typer.Option(help="Window of the series.", metavar="S")] = 120.0,
    steps: Annotated[
        Path | None,
        typer.Option(help="Write one row an iteration (.parquet or .csv).", metavar="FILE"),
    ] = None,
    requests: Annotated[
        Path | None,
        typer.Option(help="Write one row a request (.parquet or .csv).", metavar="FILE"),
    ] = None,
    calibration: Annotated[
        Path | None,
        typer.Option(help="Correct the metrics by what `sieve calibrate` learned.", metavar="FILE"),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Replay one candidate in detail: latencies, the queue and the cache over time, its iterations.

    Example: `sieve replay examples/chat.yaml --candidate
    h100-sxm-80gb.tp2.pp1.ep1.r2.fp8.kv-fp8.s128.b2048` (an id from the ranking)
    """
    from sieve import detail
    from sieve.report.replay import print_pools, print_replay, print_scaling

    given = {
        "--calibration": calibration is not None,
        "--discipline": discipline != "fcfs", "--compare": compare, "--warm-up": warm_up != 0,
        "--max-wait": max_wait is not None, "--steps": steps is not None,
        "--requests": requests is not None,
    }  # fmt: skip
    _refuse_mixed(scaling, pool, split, split_by, [name for name, there in given.items() if there])
    for path in (steps, requests):
        if path is not None:
            detail.check_table_path(path)
    if steps is not None and requests is not None and steps.absolute() == requests.absolute():
        raise InvalidInput(f"--steps and --requests both name {steps}; give two files")
    if scaling:
        from sieve.scaling import scaling as search

        found = search(spec, candidate, most=scaling, overrides=overrides or [], level=level)
        if as_json:
            print_json(found)
        else:
            print_scaling(found)
            next_command("fleet", "size", spec, *set_flags(overrides))
        return
    if pool is not None:
        from sieve.pools import pools

        layouts = pools(
            spec, candidate, pool, splits=_lengths(split), by=split_by, overrides=overrides or [],
            level=level,
        )  # fmt: skip
        if as_json:
            print_json(layouts)
        else:
            print_pools(layouts)
            next_command("fleet", "size", spec, *set_flags(overrides))
        return
    if discipline not in detail.DISCIPLINES:
        raise InvalidInput(f"--discipline {discipline}: expected {', '.join(detail.DISCIPLINES)}")
    learned = None
    if calibration is not None:
        from sieve.calibration.serving_file import read_calibration

        learned = read_calibration(calibration)
    report = detail.replay(
        spec,
        candidate,
        overrides=overrides or [],
        level=level,
        discipline=discipline,
        warm_up_s=warm_up,
        max_wait_s=max_wait,
        window_s=window,
        record_steps=steps is not None,
        compare=compare,
        calibration=learned,
    )
    if steps is not None and report.steps is not None:
        detail.write_table(report.steps, steps)
    if requests is not None:
        detail.write_table(report.requests, requests)
    if as_json:
        print_json(report.data)
    else:
        print_replay(report.data, steps=steps, requests=requests)
        next_command("run", spec, *set_flags(overrides))


def _refuse_mixed(
    scaling: int, pool: str | None, split: str | None, split_by: str, given: list[str]
) -> None:
    """Refuse options that the question asked does not read.

    Raises:
        InvalidInput: two questions at once, or an option of another one.
    """
    if (split is not None or split_by != "total_tokens") and pool is None:
        raise InvalidInput("--split splits two pools; add --pool with the second candidate")
    asked = [
        name for name, there in (("--scaling", scaling), ("--pool", pool is not None)) if there
    ]
    mixed = [*asked[1:], *given] if asked else []
    if mixed:
        raise InvalidInput(f"{asked[0]} does not take {', '.join(mixed)}; leave one out")


def _lengths(text: str | None) -> list[int]:
    """Return the splits of `512,2048`.

    Raises:
        InvalidInput: something else than whole numbers.
    """
    parts = [] if text is None else text.split(",")
    if not all(part.strip().isdecimal() and len(part) < 10 for part in parts):
        raise InvalidInput(f"--split {text}: expected whole numbers, as in 512,2048")
    return [int(part) for part in parts]
