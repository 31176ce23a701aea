"""Terminal pages of `sieve calibrate` on results, and of `sieve verify tracking`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sieve.report.terminal import console

_MAX_ROWS: Final = 40
_MAX_REASONS: Final = 12
_SHOWN: Final = ("ttft", "ttft_p50", "ttft_p99", "tpot", "tpot_p50", "tpot_p99", "itl",
                 "output_tokens_per_s")  # fmt: skip


def print_learned(report: Mapping[str, Any], into: str | None) -> None:
    """Print each result beside its prediction, what was left out, and the corrections."""
    out = console()
    for entry in report["results"][:_MAX_ROWS]:
        _print_result(out, entry)
    if len(report["results"]) > _MAX_ROWS:
        out.print(f"and {len(report['results']) - _MAX_ROWS} further results; --json lists all")
    for entry in report["results"][:1]:
        for note in entry["notes"]:
            out.print(f"  {escape(entry['file'])}: {escape(note)}")
    for how, times in Counter(e["matched_by"] for e in report["results"]).most_common():
        out.print(f"  {times} matched by {escape(how)}")
    for name in ("refused", "skipped"):
        reasons = Counter(entry["reason"] for entry in report[name])
        for reason, times in reasons.most_common(_MAX_REASONS):
            first = next(e["result"] for e in report[name] if e["reason"] == reason)
            out.print(f"  {name} {times} (first: {escape(first)}): {escape(reason)}")
    print_corrections(report)
    out.print(f"Written to {escape(into)}" if into else "Nothing was written: give --into FILE.")


def _print_result(out: Console, entry: Mapping[str, Any]) -> None:
    label = ", ".join(x for x in (entry["file"], entry["where"]) if x)
    place, regime = entry["place"], entry["regime"]
    who = entry["candidate_id"] or f"{place['model']} {place['gpu']} tp{place['tp']}"
    out.print(f"[bold]{escape(label)}[/bold]  {escape(who)}")
    out.print(
        f"  {escape(entry['load'])}, load {regime['load']}, prefill {regime['prefill']}, batch "
        f"{place['batch']:.0f}; {entry['source_format']} {escape(entry['source_version'])}".rstrip()
    )
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for name in ("measured", "predicted", "error %", "corrected %"):
        table.add_column(name, justify="right")
    for metric in (m for m in _SHOWN if m in entry["metrics"]):
        cell = entry["metrics"][metric]
        after = entry["error_percent_corrected"].get(metric)
        table.add_row(
            f"  {metric}", _figure(metric, cell["measured"]), _figure(metric, cell["predicted"]),
            f"{cell['error_percent']:+.1f}", "" if after is None else f"{after:+.1f}",
        )  # fmt: skip
    out.print(table)


def print_corrections(report: Mapping[str, Any]) -> None:
    """Print what a calibration file teaches, one (GPU, model, precision) a block."""
    out = console()
    if report["corrections"]:
        out.print("Corrections, at the middle of the points' loads:")
    for row in report["corrections"]:
        cells = "; ".join(
            f"load {c['load']} prefill {c['prefill']}: TTFT {c['num_scores']['ttft']}, TPOT "
            f"{c['num_scores']['tpot']}"
            for c in row["cells"]
        )
        out.print(
            f"  {escape(row['gpu'])} {escape(row['model'])} {row['weight_dtype']} "
            f"({row['engine']} {row['release']}, {row['num_points']} points): TPOT times "
            f"{math.exp(row['tpot_log_factor']):.3f}, TTFT {row['ttft_host_s'] * 1e3:+.0f} ms "
            f"times {math.exp(row['ttft_log_factor']):.3f}"
        )
        out.print(f"    scores (10 in a regime give local intervals): {cells}")
    if report["expired"]:
        out.print(
            f"{report['expired']} points of the file have expired: what their predictions rest on "
            "has changed. Read their results again."
        )


def _figure(metric: str, value: float) -> str:
    return f"{value:,.0f}/s" if metric.endswith("_per_s") else f"{value * 1e3:,.1f} ms"


def print_tracking(report: Mapping[str, Any]) -> None:
    """Print throughput window by window, and how well the prediction follows."""
    out = console()
    out.print(f"{escape(report['file'])} against {escape(report['candidate_id'])}")
    table = Table(box=None, pad_edge=False)
    for name in ("from s", "length s", "measured tokens/s", "predicted tokens/s", "error %"):
        table.add_column(name, justify="right")
    rows = report["windows"]
    for row in rows[:_MAX_ROWS]:
        seen, planned = row["measured_tokens_per_s"], row["predicted_tokens_per_s"]
        error = f"{100 * (planned / seen - 1):+.1f}" if seen else "-"
        table.add_row(f"{row['start_s']:,.0f}", f"{row['duration_s']:,.1f}", f"{seen:,.1f}",
                      f"{planned:,.1f}", error)  # fmt: skip
    out.print(table)
    if len(rows) > _MAX_ROWS:
        out.print(f"and {len(rows) - _MAX_ROWS} further windows; --json lists all")
    summary = report["summary"]
    out.print(
        f"Mean error {100 * summary['mean_error']:+.1f} %, absolute error by window "
        f"{100 * summary['wape']:.1f} % of the tokens: the mean hides "
        f"{100 * summary['cancellation']:.1f} % (cancellation). Below measured in "
        f"{100 * summary['under_fraction']:.0f} % of {summary['windows']} windows."
    )
