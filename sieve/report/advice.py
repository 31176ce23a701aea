"""Advice for the terminal: a paragraph for each piece, its figures below on request."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill
from typing import Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sieve.advice import Advice, Figure
from sieve.report.format import UNKNOWN, count, plain, seconds, share

_TITLES: Final = {
    "fit": "Does it fit",
    "service": "Latency or throughput",
    "pools": "One pool or two",
    "quantise": "Quantising",
    "quality": "Answer quality",
}


def print_advice(advice: Sequence[Advice], *, figures: bool = False) -> None:
    """Print each piece of advice with its kind; with `figures` also the numbers and sources."""
    out = Console(highlight=False, soft_wrap=False)
    title = ""
    for piece in advice:
        if piece.topic != title:
            title = piece.topic
            out.print(f"\n[bold]{escape(_TITLES[title])}[/] [dim]({piece.kind})[/]")
        out.print(fill(piece.text, out.width - 1), markup=False)
        if figures:
            out.print(_figures(piece.figures))
    notes = dict.fromkeys(note for piece in advice for note in piece.notes)
    if notes:
        out.print("\nStep times assume:")
    for note in notes:
        text = fill(note, out.width - 1, initial_indent="  - ", subsequent_indent="    ")
        out.print(text, markup=False)


def _figures(figures: Sequence[Figure]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column("", max_width=34)
    table.add_column("", justify="right", no_wrap=True)
    table.add_column("", style="dim")
    for figure in figures:
        table.add_row(escape(figure.name), figure_text(figure), escape(figure.source))
    return table


def figure_text(figure: Figure) -> str:
    """Return a figure with its unit, as in `31.2 ms`."""
    if figure.value is None:
        return UNKNOWN
    if figure.unit == "s":
        return seconds(figure.value)
    if figure.unit == "share":
        return share(figure.value)
    if figure.unit == "ratio":
        return f"× {plain(figure.value)}"
    if figure.unit == "tokens/s":
        return f"{plain(figure.value)} tokens/s"
    return f"{count(figure.value)} {figure.unit}"
