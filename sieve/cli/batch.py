"""`sieve batch`: many sizing jobs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated

import typer

from sieve.cli.completing import complete_executor
from sieve.cli.following import next_command, options
from sieve.cli.output import JsonFlag, print_json
from sieve.errors import InvalidInput

SOME_FAILED = 7


def batch(
    jobs: Annotated[Path, typer.Argument(help="Jobs file (YAML, JSON or CSV).", metavar="JOBS")],
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for run folders and summary; default reports/runs/<jobs>-<time>.",
            metavar="DIR",
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Take over the finished jobs that --out holds.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the jobs and count them; write nothing.")
    ] = False,
    executor: Annotated[
        str, typer.Option(help="auto, local or ray.", autocompletion=complete_executor)
    ] = "auto",
    ray_address: Annotated[
        str | None, typer.Option(help="Address of a Ray cluster.", metavar="A")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Jobs at a time; default one a core.", metavar="N")
    ] = None,
    calibration: Annotated[
        Path | None,
        typer.Option(
            help="Correct predictions by what `sieve calibrate` learned, in jobs that name none.",
            metavar="FILE",
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Run the sizing jobs of a file: one run folder each, and one summary.

    A job with a fault is reported and the others finish. Exit code 7: a job ended with bad input
    or a bug; 0: every job has its answer, that nothing fits or meets the objectives included; 2:
    the jobs file itself cannot be used.

    Examples: `sieve batch examples/batch/teams.yaml` | `sieve batch jobs.csv --dry-run`
    """
    from sieve.jobs import batch as jobs_of
    from sieve.report import batch as report
    from sieve.results import default_folder

    if dry_run:
        checked = jobs_of.check_jobs(jobs)
        if as_json:
            print_json(checked)
        else:
            report.print_check(checked)
            kept = options(out=out, calibration=calibration)
            again = ["--dry-run"] if checked["num_bad"] else []  # once the jobs are corrected
            next_command("batch", jobs, *kept, *again)
        raise typer.Exit(SOME_FAILED if checked["num_bad"] else 0)
    if resume and out is None:
        raise InvalidInput("--resume needs --out with the folder of the batch to go on with")
    folder = out if out is not None else default_folder(report.folder_name(jobs.stem))
    with _progress() as progress:
        summary = jobs_of.batch(
            jobs,
            out=folder,
            resume=resume,
            executor=executor,
            ray_address=ray_address,
            workers=workers,
            calibration=calibration,
            progress=progress,
        )
    for row in summary["jobs"]:
        if row.get("traceback"):
            print(row["traceback"], file=sys.stderr)
    if as_json:
        print_json(summary)
    else:
        report.print_summary(summary, folder)
        next_command("serve", folder)
    raise typer.Exit(SOME_FAILED if summary["num_failed"] else 0)


def _progress() -> AbstractContextManager[Callable[[int, int], None] | None]:
    """Return a callback that draws a progress bar on stderr, or nothing when it is no terminal."""
    if not sys.stderr.isatty():
        return nullcontext(None)
    from sieve.report.batch import jobs_bar

    return jobs_bar()
