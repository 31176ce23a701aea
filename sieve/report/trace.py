"""The terminal view of a trace: figures, a picture of the rate, preconditions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rich.table import Table

from sieve.report.format import count, plain, seconds, share
from sieve.report.terminal import console

_BARS: Final = " ▁▂▃▄▅▆▇█"
_ASCII_BARS: Final = " .:-=+*#%"
_SHOWN: Final = ("p1", "p50", "p90", "p95", "p99")


def print_trace(data: Mapping[str, Any], *, summary: Path | None, html: Path | None) -> None:
    """Print the statistics of a trace."""
    out = console()
    out.print(f"{data['source']}: {count(data['num_requests'])} requests", style="bold",
              markup=False)  # fmt: skip
    for line in _sentences(data):
        out.print(line, markup=False)
    out.print(_lengths(data["lengths"]))
    if data["rates"]:
        rates = data["rates"]
        bars = bar_line(rates["windows_per_s"], out.encoding)
        out.print(f"Rate    |{bars}|", markup=False)
        out.print(f"        {seconds(rates['window_s'])} a column, highest "
                  f"{plain(max(rates['windows_per_s']))}/s", markup=False)  # fmt: skip
    if data["prefix"]:
        out.print(_curve(data["prefix"]))
    out.print(_preconditions(data["preconditions"]))
    for name, kind in data["errors"]["kinds"].items():
        out.print(f"Fault   {kind['count']} rows, {name}: {kind['first']}", style="red",
                  markup=False)  # fmt: skip
    for note in data["notes"]:
        out.print(f"Note    {note}", markup=False)
    if summary is not None:
        out.print(f"Summary {summary} ({data['summary']['num_bytes']:,} bytes)", markup=False)
    if html is not None:
        out.print(f"Picture {html}", markup=False)


def print_written(written: Mapping[str, Any], out_path: Path) -> None:
    """Print what was written."""
    out = console()
    form = f"{written['format']}, written for {written['written_for']}"
    out.print(f"{count(written['num_requests'])} requests  {out_path} ({form})", markup=False)
    if written["block_tokens"]:
        out.print(f"Prefix blocks of {written['block_tokens']} tokens", markup=False)
    for note in written["notes"]:
        out.print(f"Note    {note}", markup=False)


def bar_line(values: Sequence[float], encoding: str = "utf-8") -> str:
    """Return a line of bars, one a value, the highest full."""
    bars = _BARS if "utf" in encoding.lower() else _ASCII_BARS
    top = max(1e-300, *values)
    return "".join(bars[min(int(v / top * 8 + 0.999), 8)] for v in values)


def _sentences(data: Mapping[str, Any]) -> list[str]:
    lines = []
    rates, burst = data["rates"], data["burstiness"]
    if rates:
        lines.append(
            f"{plain(rates['mean_per_s'])} {rates['unit']} over {seconds(rates['span_s'])}, peak "
            f"minute {plain(rates['peak_minute_per_s'])}/s; {count(rates['input_tokens_per_s'])} "
            f"input and {count(rates['output_tokens_per_s'])} output tokens/s"
        )
        spread = burst["dispersion_per_s"]
        lines.append(
            f"Gaps: CV {plain(burst['gap_cv'])} (1 = Poisson), variance over mean of arrivals per "
            f"second {plain(spread)}, longest {seconds(burst['longest_gap_s'])}"
        )
    load = data["concurrency"]
    if load["mean"] is None:
        lines.append(f"Concurrency: {load['assumption']}")
    else:
        peak = f", peak {count(load['peak'])}" if "peak" in load else ""
        lines.append(f"Concurrency {plain(load['mean'])}{peak} ({load['assumption']})")
    if data["sessions"]:
        s = data["sessions"]
        lines.append(f"{count(s['num_sessions'])} sessions, turns p50 {plain(s['p50_turns'])}, "
                     f"p95 {plain(s['p95_turns'])}, most {count(s['max_turns'])}")  # fmt: skip
    pinned = [name.replace("_", " ") for name, there in data["pinned"].items() if there]
    lines.append(f"Pinned per request: {', '.join(pinned)}")
    return lines


def _lengths(lengths: Mapping[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False, title="Tokens", title_justify="left")
    table.add_column("length")
    for name in ("mean", "min", *_SHOWN, "max"):
        table.add_column(name, justify="right")
    for name in ("input_tokens", "output_tokens"):
        row = lengths[name]
        values = [row["mean"], row["min"], *(row["percentiles"][p] for p in _SHOWN), row["max"]]
        table.add_row(name.split("_")[0], *(count(round(v)) for v in values))
    return table


def _curve(prefix: Mapping[str, Any]) -> Table:
    title = f"Prefix hits by cache size (blocks of {prefix['block_tokens']} tokens)"
    table = Table(box=None, pad_edge=False, title_justify="left", title=title)
    table.add_column("cache tokens", justify="right")
    table.add_column("prompt tokens found", justify="right")
    rows = list(zip(prefix["cache_tokens"], prefix["hit_ratio"], strict=True))
    for size, ratio in rows[::2] if len(rows) > 8 else rows:
        table.add_row(count(round(size)), share(ratio))
    table.add_row("endless", share(prefix["unlimited_hit_ratio"]))
    return table


def _preconditions(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, title="Preconditions", title_justify="left")
    table.add_column("what")
    table.add_column("holds")
    table.add_column("detail")
    for row in rows:
        held = {True: "yes", False: "no", None: "unknown"}[row["ok"]]
        table.add_row(row["name"], held, row["detail"])
    return table
