"""The saturation model for people: parameters, predictions and batch caps on the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sieve.report.format import count, plain, seconds, share
from sieve.report.terminal import console

_MEANING: Final = {
    "eta_c": "share of the arithmetic rate in prefill",
    "eta_m": "share of the bandwidth in decode",
    "alpha": "seconds a step, whatever the model",
    "gamma": "seconds a step, layer and (D/1024)²",
    "B0": "requests' worth of work in every step",
    "t_fixed": "seconds a batch",
}


def print_fit(document: Mapping[str, Any]) -> None:
    """Print fitted parameters, their errors and what the data cannot tell."""
    out, data = console(), document["data"]
    out.print(
        f"Saturation model, {document['variant']} form, fitted to "
        f"{count(data['num_observations'])} points on {escape(document['hardware']['gpu'])}"
    )
    table = Table(box=None, pad_edge=False)
    table.add_column("parameter")
    table.add_column("value", justify="right")
    table.add_column("meaning", style="dim")
    for name, meaning in _MEANING.items():
        table.add_row(name, _figure(document["params"][name]), meaning)
    out.print(table)
    out.print(f"Error on the fitted points: mean {document['mape_percent']:.1f} %")
    held = document["holdout"]
    if held is not None:
        out.print(
            f"Error on {held['num_validate']} held-out points ({escape(held['rule'])}): mean "
            f"{held['mape_percent']:.1f} %, median {held['median_ape_percent']:.1f} %, bias "
            f"{held['bias_percent']:+.1f} %"
        )
    out.print(
        f"Models: {escape(', '.join(data['models']))}; input {_range(data['isl'])}, output "
        f"{_range(data['osl'])} tokens, batch {_range(data['batch'])}"
    )
    _print_warnings(out, document["warnings"])
    if data["num_skipped"]:
        out.print(f"Left out {count(data['num_skipped'])} rows:")
        for reason, number in data["skipped"].items():
            out.print(f"  {count(number)}: {escape(reason)}", style="dim")


def print_predictions(result: Mapping[str, Any]) -> None:
    """Print predictions, one batch a line, with their assumptions."""
    out = console()
    out.print(_subject(result))
    out.print(_curve(result["predictions"]))
    _print_foot(out, result)


def print_advice(result: Mapping[str, Any]) -> None:
    """Print the batch cap, what binds it, and the curve around it."""
    out, answer = console(), result["answer"]
    out.print(_subject(result))
    if answer["B_cap"] is None:
        out.print(f"B_cap   none ({answer['state']}): {result['reason']}", style="bold")
    else:
        out.print(f"B_cap   {count(answer['B_cap'])}: {result['reason']}", style="bold")
        out.print(
            f"There   {plain(answer['throughput'])} tokens/s, {seconds(answer['e2e'])} a batch, "
            f"efficiency {share(answer['efficiency'])}"
        )
        report = result["report"]
        out.print(
            f"Against B = {count(result['b_max'])}: {share(report['throughput_ratio'])} of the "
            f"throughput with {share(1 - report['kv_saved'])} of the cache"
        )
    out.print(f"Limits  {seconds(answer['slo_s'])} ({escape(result['slo_from'])}), efficiency "
              f"above {result['epsilon']:g}, B up to {count(result['b_max'])}")  # fmt: skip
    knee = "none" if result["knee_B"] is None else count(result["knee_B"])
    out.print(
        f"Curve   knee at B = {knee}; never above {plain(result['throughput_limit'])} tokens/s"
    )
    out.print(_curve(result["curve"], answer["B_cap"]))
    _print_foot(out, result)


def _subject(result: Mapping[str, Any]) -> str:
    return escape(
        f"{result['model']} on {result['gpu']}, {result['isl']:g} tokens in, {result['osl']:g} "
        f"out ({result['kind']})"
    )


def _curve(rows: Sequence[Mapping[str, Any]], cap: int | None = None) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("batch", justify="right")
    table.add_column("tokens/s", justify="right")
    table.add_column("low to high", justify="right", style="dim")
    table.add_column("latency", justify="right")
    table.add_column("low to high", justify="right", style="dim")
    table.add_column("prefill", justify="right")
    for row in rows:
        table.add_row(
            plain(row["batch"]) + (" *" if row["batch"] == cap else ""),
            plain(row["throughput"]),
            f"{plain(row['throughput_low'])}-{plain(row['throughput_high'])}",
            seconds(row["e2e"]),
            f"{plain(row['e2e_low'])}-{plain(row['e2e_high'])}",
            share(row["t_prefill"] / row["e2e"]),
        )
    if cap is not None:
        table.caption = "* B_cap"
        table.caption_justify = "left"
    return table


def _print_foot(out: Console, result: Mapping[str, Any]) -> None:
    _print_warnings(out, result["warnings"])
    out.print("Assumed")
    for entry in result["assumptions"]:
        line = f"  {entry['about']:<13} {escape(entry['text'])}"
        out.print(line, style="dim")


def _print_warnings(out: Console, warnings: Sequence[str]) -> None:
    for text in warnings:
        out.print(f"Warning: {escape(text)}", style="yellow")


def _figure(value: float) -> str:
    return f"{value:.4g}"


def _range(ends: Sequence[float]) -> str:
    low, high = ends
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"
