"""A confirmation plan on the terminal."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sieve.report.terminal import console

_BLANK: Final = "FILL_IN"


def print_plan(data: Mapping[str, Any], run: Path) -> None:
    """Print runs in order, what each decides, what it costs, what must be filled in."""
    out = console()
    for note in data["notes"]:
        out.print(escape(note))
    if not data["runs"]:
        _next(out, ["sieve", "explain", str(run)])
        return
    table = Table(title="Benchmarks, in order", title_justify="left", box=None, pad_edge=False)
    for name in ("#", "load", "min", "GPU-h", "USD"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("candidate, and what it decides", overflow="fold")
    for entry in data["runs"]:
        why = "; ".join(reason["decides"] for reason in entry["reasons"])
        times = f"{entry['num_runs']} x " if entry["num_runs"] > 1 else ""
        table.add_row(
            str(entry["number"]),
            f"{times}{entry['level']:g}",
            _minutes(entry["duration_s"]),
            _number(entry["gpu_hours"]),
            _number(entry["usd"]),
            f"{escape(entry['candidate_id'])}\n[dim]{escape(why)}[/dim]",
        )
    out.print(table)
    totals = data["totals"]
    out.print(
        f"{totals['num_runs']} benchmarks, {_minutes(totals['duration_s'])} min, "
        f"{_number(totals['gpu_hours'])} GPU-hours, {_number(totals['usd'])} USD"
    )
    for name, text in data["placeholders"].items():
        where = "in manifests/" if name.startswith("REPLACE_ME_") else "for serve.sh"
        out.print(f"To fill in {where}: {name}: {text}", markup=False)
    first = data["runs"][0]
    out.print(f"Plan    {run / 'plan' / 'plan.md'}", soft_wrap=True, markup=False)
    out.print("First   copy the run's folder to the machine that has the GPUs and vLLM")
    needed = first["serve_needs"]
    if needed:
        words = f"First   fill in {', '.join(needed)}; the next line starts with it"
        out.print(words, markup=False)
    _next(out, [*(f"{name}={_BLANK}" for name in needed), "bash", str(run / first["serve"])])


def _next(out: Console, words: Sequence[str]) -> None:
    out.print(f"Next    {shlex.join(words)}", soft_wrap=True, markup=False)


def _minutes(seconds: float | None) -> str:
    return "?" if seconds is None else f"{seconds / 60:.1f}"


def _number(value: float | None) -> str:
    return "?" if value is None else f"{value:.2f}"
