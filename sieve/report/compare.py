"""Terminal page of `sieve compare`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rich.console import Console
from rich.markup import escape

from sieve.report.terminal import console

_SHOWN: Final = ("ttft_p99_s", "tpot_p99_s", "output_tokens_per_s_per_gpu", "usd_per_mtok")
_HEADS: Final = ("TTFT p99", "TPOT p99", "tokens/s/GPU", "USD/Mtok")
_MAX_CANDIDATES: Final = 25
_MAX_TEXT: Final = 100


def print_comparison(report: Mapping[str, Any]) -> None:
    """Print what changed, the answer first."""
    out = console()
    for name, run in zip(("A", "B"), report["runs"], strict=True):
        out.print(
            f"{name}  {escape(run['folder'])}  {escape(str(run['name']))}, "
            f"{run['num_ranked']} ranked"
        )
    if report["same"]:
        out.print("Nothing moved: spec, inputs, answer and every metric are equal.")
        return
    _print_answer(out, report)
    _print_pairs(out, "Spec", report["spec"])
    _print_pairs(out, "Inputs", report["inputs"], most=12)
    for entry in report["assumptions"]:
        name = "A" if entry["only"] == "first" else "B"
        out.print(
            f"Only {name} assumes: {escape(entry['about'])}: {escape(_cut(entry['text'], 300))}"
        )
    _print_pairs(out, "Counts", report["stages"])
    _print_candidates(out, report)


def _print_answer(out: Console, report: Mapping[str, Any]) -> None:
    if not report["answer"]:
        out.print("The answer is the same.")
        return
    for row in report["answer"]:
        words = f"{row['key']}: {_shown(row['first'])} -> {_shown(row['second'])}"
        if row.get("within_tie_group"):
            words += "  (tied with the recommendation of A there)"
        out.print(escape(words))


def _print_pairs(
    out: Console, title: str, rows: list[dict[str, Any]], most: int = _MAX_TEXT
) -> None:
    if rows:
        out.print(title)
    for row in rows:
        first, second = (_shown(row[name], most) for name in ("first", "second"))
        out.print(f"  {escape(row['key'])}: {escape(first)} -> {escape(second)}")


def _print_candidates(out: Console, report: Mapping[str, Any]) -> None:
    moved = [entry for entry in report["candidates"] if entry["moved"]]
    if not moved:
        out.print("No candidate moved.")
        return
    out.print("Candidates that moved (change of the middle; * the intervals no longer overlap)")
    for entry in moved[:_MAX_CANDIDATES]:
        words = [f"{name} {_pair(entry[name])}" for name in ("rank", "verdict")]
        shown = zip(_HEADS, (_change(entry["metrics"].get(m)) for m in _SHOWN), strict=True)
        words += [f"{name} {change}" for name, change in shown if change]
        if entry["tie_group"][0] != entry["tie_group"][1]:
            words.append(f"tie group {_pair(entry['tie_group'])}")
        out.print(f"  {escape(entry['candidate_id'])}")
        out.print(f"    {', '.join(words)}")
    if len(moved) > _MAX_CANDIDATES:
        out.print(f"and {len(moved) - _MAX_CANDIDATES} more; --json lists all")


def _pair(values: list[Any]) -> str:
    first, second = ("-" if value is None else str(value) for value in values)
    return first if first == second else f"{first} -> {second}"


def _change(cell: Mapping[str, Any] | None) -> str:
    if cell is None or cell["change"] is None:
        return ""
    return f"{100 * cell['change']:+.1f} %" + ("*" if cell["overlap"] is False else "")


def _shown(value: Any, most: int = _MAX_TEXT) -> str:
    text = (
        "-" if value is None else ", ".join(map(str, value)) if isinstance(value, list) else value
    )
    return _cut(str(text), most)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."
