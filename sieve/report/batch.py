"""The summary of a batch in the terminal."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from sieve.report.format import count, duration, plain
from sieve.report.terminal import console

MAX_ROWS: Final = 60
MAX_FAULTS: Final = 20
WIDE: Final = 140
_STATUS: Final = {
    "answer": "green", "weak_evidence": "yellow", "no_slo": "red", "no_fit": "red",
    "error": "bold red", "bug": "bold red",
}  # fmt: skip


def folder_name(stem: str) -> str:
    """Return a file's stem as part of a folder's name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-.") or "batch"


@contextmanager
def jobs_bar() -> Iterator[Callable[[int, int], None]]:
    """Yield a callback that draws (done, total) jobs on stderr."""
    bar = Progress(
        TextColumn("jobs"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        console=Console(stderr=True), transient=True,
    )  # fmt: skip
    with bar:
        task = bar.add_task("jobs", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def print_summary(summary: Mapping[str, Any], folder: Path) -> None:
    """Print one line a job, what is wrong with the failed ones, and where the summary lies."""
    out, rows = console(), summary["jobs"]
    out.print(_table(rows[:MAX_ROWS], wide=out.width >= WIDE))
    if len(rows) > MAX_ROWS:
        out.print(f"{count(len(rows) - MAX_ROWS)} more in summary.csv")
    failed = [row for row in rows if row["message"]]
    _print_faults(out, [row["message"] for row in failed])
    done = len(rows) - len(failed)
    words = f"{count(done)} of {count(len(rows))} jobs done in {duration(summary['elapsed_s'])}"
    if summary["num_reused"]:
        words += f", {count(summary['num_reused'])} taken over"
    out.print(words)
    out.print(f"Summary {folder / 'summary.csv'}", soft_wrap=True, markup=False)


def _print_faults(out: Console, messages: Sequence[str]) -> None:
    for message in messages[:MAX_FAULTS]:
        out.print(f"error: {message}", soft_wrap=True, markup=False)
    if len(messages) > MAX_FAULTS:
        out.print(f"{count(len(messages) - MAX_FAULTS)} more jobs failed")


def _table(rows: Sequence[Mapping[str, Any]], *, wide: bool) -> Table:
    table = Table(title="Jobs", title_justify="left", box=None, pad_edge=False)
    table.add_column("job", overflow="fold")
    table.add_column("answer", no_wrap=True)
    table.add_column("GPUs", justify="right", no_wrap=True)
    table.add_column("deployment", overflow="fold")
    table.add_column("USD/Mtok", justify="right", no_wrap=True)
    if wide:
        table.add_column("verdict", no_wrap=True)
    table.add_column("evidence", no_wrap=True)
    table.add_column("time", justify="right", no_wrap=True)
    for row in rows:
        style = _STATUS[row["status"]]
        verdict = [row["verdict"] or "-"] if wide else []
        table.add_row(
            escape(row["name"] or f"job {row['number']}"),
            f"[{style}]{row['status']}[/]",
            "-" if row["num_gpus"] is None else count(row["num_gpus"]),
            escape(_deployment(row, wide=wide)),
            "-" if row["usd_per_mtok_mid"] is None else plain(row["usd_per_mtok_mid"]),
            *verdict,
            (row["evidence"] or "-") if wide else (row["evidence"] or "-")[:8],
            duration(row["elapsed_s"]),
        )
    return table


def _deployment(row: Mapping[str, Any], *, wide: bool) -> str:
    """Return the candidate's id, or only its GPU and split where there is little room."""
    if row["candidate_id"] is None:
        return "-"
    parts = str(row["candidate_id"])
    if wide:
        return parts
    found = re.search(r"\.(tp\d+)\.(pp\d+)\.ep\d+\.(r\d+)\.([^.]+)", parts)
    return f"{row['gpu']} {' '.join(found.groups())}" if found else parts


def print_check(checked: Mapping[str, Any]) -> None:
    """Print what a batch would run, and what is wrong with its jobs."""
    out = console()
    _print_faults(out, [row["error"] for row in checked["jobs"] if row["error"] is not None])
    good = checked["num_jobs"] - checked["num_bad"]
    out.print(
        f"{count(good)} of {count(checked['num_jobs'])} jobs can run; models, GPUs and traffic are "
        "looked up when they do"
    )
