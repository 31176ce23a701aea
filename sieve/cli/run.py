"""`sieve run`: the main job."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from sieve.cli.completing import complete_executor, complete_spec
from sieve.cli.following import next_command, options, set_flags
from sieve.cli.output import JsonFlag, print_json

LAST_STAGE: Final = 7


def run(
    spec: Annotated[
        Path,
        typer.Argument(
            help="Run spec (YAML), or a preset such as chat.",
            metavar="SPEC",
            autocompletion=complete_spec,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="Run folder; default reports/runs/<name>-<time>.", metavar="DIR"),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", help="Override a key: --set traffic.rate_per_s=20.", metavar="K=V"),
    ] = None,
    stop_after: Annotated[
        int, typer.Option(help="Number of the last stage to run (1 to 7).", metavar="N")
    ] = LAST_STAGE,
    executor: Annotated[
        str, typer.Option(help="auto, local or ray.", autocompletion=complete_executor)
    ] = "auto",
    ray_address: Annotated[
        str | None, typer.Option(help="Address of a Ray cluster.", metavar="A")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the replays that --out holds.")
    ] = False,
    exhaustive: Annotated[
        bool, typer.Option("--exhaustive", help="Replay every survivor, not just the shortlist.")
    ] = False,
    audit: Annotated[
        bool, typer.Option("--audit", help="Replay every survivor too: what did we miss?")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print counts and estimated time; write nothing.")
    ] = False,
    calibration: Annotated[
        Path | None,
        typer.Option(help="Correct predictions by what `sieve calibrate` learned.", metavar="FILE"),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Search the deployments of a spec: filter, size, shortlist, replay, rank, write the commands.

    Exit code 0: something clears every objective; 5: only on the point estimate; 4: nothing does;
    3: nothing fits; 2: bad input.

    Presets are the specs of examples/ by name; --set turns one into your own case.

    Examples: `sieve run chat` | `sieve run chat --set model=Qwen/Qwen3-8B --set
    traffic.rate_per_s=20` | `sieve run spec.yaml --out reports/runs/mine --dry-run`
    """
    from sieve import api
    from sieve.dry import dry_run as estimate
    from sieve.parallel import make_executor
    from sieve.report import terminal

    overrides = overrides or []
    if dry_run:
        make_executor(executor, ray_address)
        counts = estimate(spec, overrides=overrides, exhaustive=exhaustive)
        if as_json:
            print_json(counts)
        else:
            terminal.print_dry_run(counts)
            next_command("run", spec, *set_flags(overrides), *options(exhaustive=exhaustive))
        return
    with _progress() as (on_stage, progress, on_block):
        result = api.run(
            spec,
            out=out if out is not None else api.default_folder,
            overrides=overrides,
            stop_after=stop_after,
            executor=executor,
            ray_address=ray_address,
            exhaustive=exhaustive,
            audit=audit,
            resume=resume,
            calibration=calibration,
            on_stage=on_stage,
            progress=progress,
            on_block=on_block,
        )
    if as_json:
        print_json(result.data)
    else:
        terminal.print_result(result.data)
        terminal.print_exhaustive(result.exhaustive, len(result.simulations))
        assert result.folder is not None
        print(f"Report  {result.folder / 'report.html'}")
        kept = options(exhaustive=exhaustive, audit=audit, calibration=calibration)
        again = [spec, "--out", result.folder, "--resume", *set_flags(overrides), *kept]
        _print_next(result.data, result.folder, again if stop_after < LAST_STAGE else None)
    raise typer.Exit(result.exit_code)


def _print_next(data: Mapping[str, Any], folder: Path, again: Sequence[object] | None) -> None:
    """Print what to look at next, or how a run goes on that was stopped."""
    if again is not None:
        next_command("run", *again)
    elif data["ranking"]:
        from sieve.model_folders import folder_of

        first = data["ranking"][0]
        next_command("explain", folder, first["candidate_id"])
        next_command("plan", folder_of(folder, data, first.get("model")))
    else:
        next_command("explain", folder)


_Done = Callable[[int, int], None] | None
Callbacks = tuple[Callable[[Mapping[str, Any]], None] | None, _Done, _Done]


def _progress() -> AbstractContextManager[Callbacks]:
    """Return callbacks that draw a progress bar on stderr, or nothing when it is not a terminal."""
    if not sys.stderr.isatty():
        return nullcontext((None, None, None))
    from sieve.api import compiles_first
    from sieve.report.terminal import progress_bar

    return progress_bar(compiles_first)
