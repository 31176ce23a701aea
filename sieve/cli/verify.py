"""`sieve verify`: the tool held against recorded truth."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from sieve.cli.following import next_command
from sieve.cli.output import JsonFlag, print_json

if TYPE_CHECKING:
    from sieve.verify.scheduler import SchedulerReport

MISSED: Final = 8
"""Exit code of `--strict` when something is not as recorded."""

EXAMPLE_CANDIDATE: Final = "h100-sxm-80gb.tp2.pp1.ep1.r1.fp8.kv-fp8.s128.b2048"

_MAX_SHOWN: Final = 10
_MAX_WIDTH: Final = 60

app = typer.Typer(
    name="verify",
    help="Hold the tool against recorded truth.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

StrictFlag = Annotated[
    bool, typer.Option("--strict", help=f"Exit with {MISSED} if anything is not as recorded.")
]


@app.callback()
def root() -> None:
    """Hold the tool against recorded truth."""


@app.command("scheduler")
def scheduler(
    path: Annotated[
        Path,
        typer.Argument(help="A recorded schedule (JSON lines, plain or gzip) or a folder of them."),
    ],
    as_json: JsonFlag = False,
    strict: StrictFlag = False,
) -> None:
    """Replay recorded schedules of a real engine and compare decision by decision.

    Example: `sieve verify scheduler recordings/`
    """
    from sieve.verify.scheduler import verify_schedules

    report = verify_schedules(path)
    if as_json:
        print_json(report.as_dict())
    else:
        _print_report(report)
        next_command("replay", "chat", "--candidate", EXAMPLE_CANDIDATE)
    if strict and report.failures:
        raise typer.Exit(MISSED)


def _print_report(report: SchedulerReport) -> None:
    rows = [
        *report.by_feature(),
        ("all", len(report.outcomes), report.num_exact, report.num_steps),
    ]
    print(f"{'feature':<16} {'scenarios':>9} {'exact':>6} {'steps':>9}")
    for feature, scenarios, exact, steps in rows:
        print(f"{feature:<16} {scenarios:>9} {exact:>6} {steps:>9,}")
    versions = sorted({_printable(outcome.vllm_version) for outcome in report.outcomes})
    print(f"\nRecorded from vLLM {', '.join(versions)}; compared field by field.")
    for failure in report.failures[:_MAX_SHOWN]:
        where = "summary" if failure.step is None else f"step {failure.step}"
        print(f"\n{_printable(failure.scenario)}, {where}, {_printable(failure.field)}:")
        print(f"  expected {_shown(failure.expected)}")
        print(f"  got      {_shown(failure.got)}")
    more = len(report.failures) - _MAX_SHOWN
    if more > 0:
        print(f"\n... and {more} more; --json lists all.")


def _printable(text: str) -> str:
    """Return text from a file without control characters, which a terminal would obey."""
    return "".join(c if c.isprintable() else "?" for c in text)


def _shown(value: Any) -> str:
    text = _printable(json.dumps(value, ensure_ascii=False))
    return text if len(text) <= _MAX_WIDTH else f"{text[: _MAX_WIDTH - 3]}..."
