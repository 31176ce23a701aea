"""Terminal pages of `sieve verify measured` and `sieve verify steps`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sieve.report.terminal import console

_MAIN: Final = ("tpot", "tpot_p50", "ttft", "ttft_p50", "e2e", "output_tokens_per_s")
_MAX_REASONS: Final = 12


def print_measured_check(report: Mapping[str, Any]) -> None:
    """Print errors by metric and group, and what was skipped why."""
    out = console()
    summary = report["summary"]
    table = _table("metric")
    for metric, figures in summary["metrics"].items():
        _add(table, metric, figures)
    if report["rows"]:
        out.print(table)
    for name, groups in report["by"].items() if report["rows"] else ():
        table = _table(name, "metric")
        for group, metrics in groups.items():
            for metric in _MAIN:
                if metric in metrics:
                    _add(table, group, metrics[metric], metric)
        out.print(table)
    out.print("Error of the prediction in percent; negative bias: predicted below measured.")
    out.print("Coverage: share of measured values inside the stated interval.")
    _print_skipped(out, report)
    out.print(f"{summary['predicted']} of {summary['rows']} rows replayed")


def print_steps_check(report: Mapping[str, Any]) -> None:
    """Print errors by composition, model, GPU and batch, and what was skipped why."""
    out = console()
    for name, groups in report["by"].items():
        table = _table(name.replace("_", " "), coverage=False)
        for group, figures in groups.items():
            _add(table, group, figures, coverage=False)
        out.print(table)
    summary = report["summary"]
    table = _table("all", coverage=False)
    if summary["mape"] is not None:
        _add(table, "all", {**summary, "rows": summary["predicted"]}, coverage=False)
    out.print(table)
    out.print("Error of the prediction in percent; negative bias: predicted too fast.")
    _print_skipped(out, report)
    out.print(f"{summary['predicted']} of {summary['rows']} iterations compared")


def _print_skipped(out: Console, report: Mapping[str, Any]) -> None:
    reasons = Counter(skipped["reason"] for skipped in report["skipped"])
    for reason, times in reasons.most_common(_MAX_REASONS):
        first = next(s["row"] for s in report["skipped"] if s["reason"] == reason)
        out.print(f"  skipped {times} (first: row {first}): {escape(reason)}")
    if len(reasons) > _MAX_REASONS:
        out.print(f"  and {len(reasons) - _MAX_REASONS} further reasons; --json lists every row")


def _table(*names: str, coverage: bool = True) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in names:
        table.add_column(name)
    for name in ("rows", "median", "mean", "bias", *(("coverage",) if coverage else ())):
        table.add_column(name, justify="right")
    return table


def _add(
    table: Table,
    name: str,
    figures: Mapping[str, float],
    metric: str | None = None,
    *,
    coverage: bool = True,
) -> None:
    cells = [escape(name), *([metric] if metric else []), f"{figures['rows']:,}"]
    cells += [f"{figures['median_ape']:.1f}", f"{figures['mape']:.1f}", f"{figures['bias']:+.1f}"]
    if coverage:
        cells.append(f"{figures['coverage']:.2f}")
    table.add_row(*cells)
