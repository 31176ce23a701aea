"""`sieve fleet`: how many GPUs, which mix, which schedule, prefill and decode apart."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final

import typer

from sieve.cli.completing import complete_spec
from sieve.cli.following import next_command, set_flags
from sieve.cli.output import JsonFlag, print_json
from sieve.errors import InvalidInput

NOTHING: Final = 4
"""Exit code when no fleet clears the objectives."""
MAX_PROFILE_BYTES: Final = 1_000_000

app = typer.Typer(
    name="fleet",
    help="Fleets: replicas, mixes of GPUs, schedules, prefill and decode apart.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Spec = Annotated[
    Path,
    typer.Argument(
        help="Run spec (YAML), or a preset such as chat.",
        metavar="SPEC",
        autocompletion=complete_spec,
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", help="Override a key: --set traffic.rate_per_s=20.", metavar="K=V"),
]
Candidates = Annotated[
    list[str] | None,
    typer.Option(
        "--candidate",
        help="A shape to try (repeatable); default: the most promising of the grid.",
        metavar="ID|K=V,...",
    ),
]
Shapes = Annotated[int, typer.Option("--shapes", help="Most shapes to try.", metavar="N")]
Level = Annotated[float, typer.Option("--level", help="Multiple of the traffic's rate.")]


@app.command("size")
def size(
    spec: Spec,
    candidates: Candidates = None,
    gpus: Annotated[
        int | None,
        typer.Option("--gpus", help="Compare all shapes on exactly N GPUs instead.", metavar="N"),
    ] = None,
    shapes: Shapes = 12,
    level: Level = 1.0,
    overrides: Overrides = None,
    as_json: JsonFlag = False,
) -> None:
    """Find the fewest replicas of each shape that clear; or, with --gpus, compare at N GPUs.

    Example: `sieve fleet size examples/chat.yaml --gpus 8`
    """
    from sieve.fleet import size as question
    from sieve.report.fleet import print_compare, print_size

    if gpus is None:
        found = question.size(
            spec, candidates or [], overrides=overrides or [], level=level, count=shapes
        )
        _show(found, print_size, spec, overrides, as_json=as_json)
    else:
        if level != 1.0:
            raise InvalidInput("--gpus searches the load itself; leave --level out")
        found = question.compare(
            spec, gpus, candidates or [], overrides=overrides or [], count=shapes
        )
        _show(found, print_compare, spec, overrides, as_json=as_json)
    _exit(any(row["verdict"] == "clears" for row in found["rows"]))


@app.command("levels")
def levels(spec: Spec, overrides: Overrides = None, as_json: JsonFlag = False) -> None:
    """Find who wins at which load, and the load and limit at which winners change.

    Example: `sieve fleet levels examples/chat.yaml`
    """
    from sieve.fleet.levels import levels as question
    from sieve.report.fleet import print_levels

    found = question(spec, overrides=overrides or [])
    _show(found, print_levels, spec, overrides, as_json=as_json)
    at_one = [row for row in found["levels"] if row["level"] == 1.0]
    _exit(any(row["verdict"] == "clears" for row in at_one))


@app.command("mix")
def mix(
    spec: Spec,
    candidates: Candidates = None,
    budget: Annotated[
        float | None,
        typer.Option("--budget", help="Most load for so much an hour.", metavar="USD_PER_HOUR"),
    ] = None,
    shapes: Shapes = 6,
    level: Level = 1.0,
    overrides: Overrides = None,
    as_json: JsonFlag = False,
) -> None:
    """Find the cheapest mix of shapes and GPU types for the load, or the most load for a budget.

    Example: `sieve fleet mix examples/chat.yaml --budget 20`
    """
    from sieve.fleet.mix import mix as question
    from sieve.report.fleet import print_mix

    if budget is not None and level != 1.0:
        raise InvalidInput("--budget searches the load itself; leave --level out")
    found = question(
        spec, candidates or [], budget=budget, overrides=overrides or [], level=level, count=shapes
    )
    _show(found, print_mix, spec, overrides, as_json=as_json)
    _exit(bool(found["mix"]) and found["mix"]["verdict"] == "clears")


@app.command("diurnal")
def diurnal(
    spec: Spec,
    candidate: Annotated[
        str, typer.Option(help="The shape; its replicas do not count.", metavar="ID|K=V,...")
    ],
    profile: Annotated[
        str | None,
        typer.Option(
            "--profile",
            help="Load of each window over the traffic's rate: numbers, or a file of them.",
            metavar="N,N,...|FILE",
        ),
    ] = None,
    window: Annotated[
        float, typer.Option("--window", help="Length of a window.", metavar="S")
    ] = 3600.0,
    start_up: Annotated[
        float,
        typer.Option("--start-up", help="From asking for a replica to serving.", metavar="S"),
    ] = 300.0,
    dwell: Annotated[
        int, typer.Option("--dwell", help="Windows that a replica stays at least.", metavar="N")
    ] = 2,
    most: Annotated[int, typer.Option("--most", help="Most replicas.", metavar="N")] = 64,
    overrides: Overrides = None,
    as_json: JsonFlag = False,
) -> None:
    """Compare static peak sizing with scheduled scaling over a day or a week.

    Example: `sieve fleet diurnal examples/chat.yaml --candidate
    h100-sxm-80gb.tp1.pp1.ep1.r2.fp8.kv-fp8.s128.b2048 --profile 0.2,0.2,0.6,1,1.2,0.5`
    """
    from sieve.fleet.diurnal import diurnal as question
    from sieve.report.fleet import print_diurnal

    found = question(
        spec,
        candidate,
        profile=_numbers(profile),
        window_s=window,
        start_up_s=start_up,
        dwell=dwell,
        overrides=overrides or [],
        most=most,
    )
    _show(found, print_diurnal, spec, overrides, as_json=as_json)


@app.command("disaggregate")
def disaggregate(
    spec: Spec,
    gpus: Annotated[int, typer.Option("--gpus", help="Of all engines together.", metavar="N")],
    link: Annotated[
        float,
        typer.Option(
            "--link-gbs", help="GB/s that a GPU can send to the other pool.", metavar="GB/S"
        ),
    ],
    latency: Annotated[
        float, typer.Option("--link-latency", help="Of one transfer.", metavar="S")
    ] = 0.0,
    prefill: Annotated[
        list[str] | None,
        typer.Option("--prefill", help="Shape of prefill engines.", metavar="ID|K=V,..."),
    ] = None,
    decode: Annotated[
        list[str] | None,
        typer.Option("--decode", help="Shape of decode engines.", metavar="ID|K=V,..."),
    ] = None,
    shapes: Shapes = 4,
    overrides: Overrides = None,
    as_json: JsonFlag = False,
) -> None:
    """Find the ratio of prefill to decode engines, against engines that do both (an estimate).

    Example: `sieve fleet disaggregate examples/chat.yaml --gpus 8 --link-gbs 50`
    """
    from sieve.fleet.disaggregate import disaggregate as question
    from sieve.report.fleet import print_disaggregate

    found = question(
        spec,
        gpus,
        link_gbs=link,
        link_latency_s=latency,
        prefill=prefill or [],
        decode=decode or [],
        overrides=overrides or [],
        count=shapes,
    )
    _show(found, print_disaggregate, spec, overrides, as_json=as_json)
    _exit(any(row["headroom"] for row in [*found["rows"], *found["aggregated"]]))


def _show(
    found: dict[str, Any],
    printer: Any,
    spec: Path,
    overrides: list[str] | None,
    *,
    as_json: bool,
) -> None:
    """Print an answer, and where it was no document, the run that goes into its detail."""
    if as_json:
        print_json(found)
    else:
        printer(found)
        next_command("run", spec, *set_flags(overrides))


def _exit(clears: bool) -> None:
    if not clears:
        raise typer.Exit(NOTHING)


def _numbers(text: str | None) -> list[float]:
    """Return the numbers of `0.2,1,0.5`, or of a file that holds them by comma or line.

    Raises:
        InvalidInput: something else than numbers.
    """
    if text is None:
        return []
    source = "--profile"
    path = Path(text)
    if "," not in text and path.is_file():
        if path.stat().st_size > MAX_PROFILE_BYTES:
            raise InvalidInput(f"{path}: larger than {MAX_PROFILE_BYTES:,} bytes")
        source, text = str(path), path.read_text(encoding="utf-8", errors="replace")
    found = []
    for number, part in enumerate(text.replace("\n", ",").split(","), 1):
        if not part.strip():
            continue
        try:
            found.append(float(part))
        except ValueError:
            raise InvalidInput(
                f"{source}: entry {number} is {part.strip()[:40]!r}; expected numbers such as "
                "0.3,1,1.2, or a file of them"
            ) from None
    return found
