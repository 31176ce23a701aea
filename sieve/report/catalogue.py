"""Terminal pages of the catalogues: models, GPUs, engines, and the facts of one entry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table

from sieve.report.format import gib
from sieve.report.terminal import console

if TYPE_CHECKING:
    from sieve.catalog.architecture import EngineProfile, Gpu
    from sieve.catalog.models import ModelEntry


def print_models(entries: Sequence[ModelEntry]) -> None:
    """Print the model catalogue."""
    table = Table(box=None, pad_edge=False)
    table.add_column("model", overflow="fold")
    table.add_column("params", justify="right")
    table.add_column("active", justify="right")
    table.add_column("weights")
    table.add_column("note", overflow="fold")
    for entry in entries:
        kind = "by roofline" if entry.handled else "not yet"
        note = [f"{kind}: {entry.reason}"] if entry.reason else []
        note += [] if entry.verified else ["facts assumed"]
        table.add_row(
            escape(entry.name),
            _billions(entry.params),
            _billions(entry.active_params),
            entry.checkpoint_dtype,
            escape("; ".join(note)),
        )
    out = console()
    out.print(table)
    handled = sum(entry.handled for entry in entries)
    out.print(f"{handled} of {len(entries)} can be sized; a path to a config.json works too.")


def _billions(params: float | None) -> str:
    return "-" if params is None else f"{params / 1e9:.1f}B"


def print_gpus(entries: Sequence[Gpu]) -> None:
    """Print the GPU catalogue."""
    table = Table(box=None, pad_edge=False)
    table.add_column("GPU")
    for name in ("memory", "TB/s", "BF16", "FP8", "USD/h"):
        table.add_column(name, justify="right")
    table.add_column("kernels")
    for gpu in entries:
        table.add_row(
            gpu.name,
            gib(gpu.memory_bytes),
            f"{gpu.mem_bw_bytes_per_s / 1e12:.2f}",
            _tflops(gpu, "bf16"),
            _tflops(gpu, "fp8"),
            "-" if gpu.usd_per_gpu_hour is None else f"{gpu.usd_per_gpu_hour:.2f}",
            "measured" if gpu.kernel_system else "roofline",
        )
    out = console()
    out.print(table)
    out.print("BF16 and FP8 in dense TFLOPS; prices are the middle of dated list ranges.")


def _tflops(gpu: Gpu, mode: str) -> str:
    rate = gpu.flops_per_s.get(mode)
    return "-" if rate is None else f"{rate / 1e12:,.0f}"


def print_engines(entries: Sequence[EngineProfile]) -> None:
    """Print the engine profiles."""
    table = Table(box=None, pad_edge=False)
    table.add_column("engine")
    table.add_column("validity rules", overflow="fold")
    table.add_column("notes", overflow="fold")
    for entry in entries:
        name = f"{entry.name}=={entry.version}" if entry.version else entry.name
        table.add_row(name, ", ".join(entry.rules), "; ".join(entry.notes))
    out = console()
    out.print(table)
    out.print("Another version of an engine takes the nearest profile and says so.")


def print_facts(facts: Mapping[str, Any]) -> None:
    """Print one catalogue entry, a fact a row; what is unset is left out."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for key, value in facts.items():
        if value is not None and value not in ("", (), [], {}):
            table.add_row(escape(key), escape(_lines(value)))
    console().print(table)


def _lines(value: Any) -> str:
    """Return a fact in words, each key of a mapping on a line of its own."""
    if isinstance(value, Mapping):
        return "\n".join(f"{key} {_part(part)}" for key, part in value.items())
    return fact(value)


def fact(value: Any) -> str:
    """Return a fact in words: entries of a list by `;`, a mapping's by `,`, repeats counted."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_part(part)}" for key, part in value.items())
    if isinstance(value, tuple | list):
        runs = [(text, len(list(same))) for text, same in groupby(fact(part) for part in value)]
        return "; ".join(text if times == 1 else f"{times} x {text}" for text, times in runs)
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return f"{value:,.16g}"
    return str(value)


def _part(value: Any) -> str:
    """Return the value of a mapping's key, in brackets where it has parts of its own."""
    return f"({fact(value)})" if isinstance(value, Mapping | tuple | list) else fact(value)
