"""Terminal pages of `sieve tables`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.markup import escape
from rich.table import Table

from sieve.report.format import count
from sieve.report.terminal import console

if TYPE_CHECKING:
    from sieve.catalog.architecture import Gpu
    from sieve.perf.coverage import Coverage, Part
    from sieve.perf.table_folder import Import

_EVIDENCE: Final = (
    "A row is evidence of class measured; between rows interpolated, beyond them "
    "extrapolated; precisions and operations without rows come from the roofline."
)
_MAX_SKIPPED: Final = 12


def print_systems(systems: Sequence[Mapping[str, Any]]) -> None:
    """Print the list of GPUs with measured kernels."""
    out = console()
    if not systems:
        out.print("No kernel tables here.")
        return
    table = _table(
        "GPU", "folder", "ops", "rows", "unused", "MB", "most rows from", right=(2, 3, 4, 5)
    )
    for system in systems:
        table.add_row(
            escape(system["gpu"]), escape(system["system"]), str(len(system["operations"])),
            count(system["rows"]), count(system["condemned_rows"]),
            f"{system['bytes'] / 1e6:.2f}", escape(", ".join(list(system["sources"])[:2])),
        )  # fmt: skip
    out.print(table)
    out.print("unused: rows that the audit condemned; `sieve tables show GPU` tells why.")


def print_coverage(gpu: Gpu, covered: Sequence[Coverage], wanted: str | None) -> None:
    """Print the operations of a GPU and the findings of the audit."""
    out = console()
    if not covered:
        what = "measured kernels" if wanted is None else f"{wanted} table"
        out.print(
            f"{gpu.name} has no {what}: the roofline stands in. "
            "`sieve tables list` names what there is; `sieve tables import` brings in more.",
            soft_wrap=False,
        )
        return
    table = _table("operation", "rows", "unused", "precision", "most rows from", right=(1, 2))
    for entry in covered:
        table.add_row(
            entry.op + ("" if entry.used else " *"), count(entry.rows), count(entry.condemned),
            escape(", ".join(entry.precisions) or "-"),
            escape(next(iter(entry.sources()), "not stated")),
        )  # fmt: skip
    out.print(f"Kernels measured on {gpu.name}")
    out.print(table)
    if not all(entry.used for entry in covered):
        out.print("* not part of step times in this version.")
    findings = [(entry.op, f) for entry in covered for f in entry.findings]
    condemning = [(op, f) for op, f in findings if f["condemns"]]
    _print_findings(condemning)
    if len(findings) > len(condemning):
        rest = len(findings) - len(condemning)
        out.print(f"{rest} further findings condemn no row; --table OPERATION lists them.")
    out.print(_EVIDENCE)


def print_table(gpu: Gpu, entry: Coverage) -> None:
    """Print one table in detail."""
    out = console()
    out.print(f"{entry.op} on {gpu.name}: {entry.about}")
    out.print(f"keys {', '.join(entry.keys)}; axes {', '.join(entry.axes)}", soft_wrap=False)
    table = _table("precision or kind", "rows", "unused", "sites", "source", right=(1, 2, 3))
    for part in entry.parts:
        table.add_row(
            escape(part.name), count(part.rows), count(part.condemned), count(part.sites),
            escape(", ".join(part.sources) or "not stated"),
        )  # fmt: skip
    out.print(table)
    ranges = _table("column", "from", "to", "values", right=(1, 2, 3))
    for name, (low, high) in _ranges(entry.parts).items():
        values = max(part.ranges[name][2] for part in entry.parts if name in part.ranges)
        ranges.add_row(name, count(low), count(high), count(values))
    out.print(ranges)
    kernels: dict[str, int] = {}
    for part in entry.parts:
        for name, rows in part.kernels.items():
            kernels[name] = kernels.get(name, 0) + rows
    for name, rows in sorted(kernels.items(), key=lambda item: -item[1]):
        if name:
            out.print(f"kernel {escape(name)}: {count(rows)} rows", soft_wrap=False)
    _print_findings([(entry.op, f) for f in entry.findings])
    if not entry.used:
        out.print("Not part of step times in this version.")
    out.print(_EVIDENCE)


def print_import(done: Import, covered: Sequence[Coverage], into: Path) -> None:
    """Print what an import wrote and how to use it."""
    out = console()
    print_coverage(done.gpu, covered, None)
    skipped = done.result.skipped
    for file, reason in skipped[:_MAX_SKIPPED]:
        out.print(f"left out: {escape(Path(file).name)}: {escape(reason)}", soft_wrap=False)
    if len(skipped) > _MAX_SKIPPED:
        out.print(f"left out: {len(skipped) - _MAX_SKIPPED} more; --json lists them")
    for note in done.result.notes:
        out.print(escape(note))
    out.print(
        f"Read as {done.result.layout}; written to {escape(str(done.folder))}", soft_wrap=True
    )
    out.print(f"Use them: kernel_tables: {escape(str(into))} in a run spec", soft_wrap=True)


def _print_findings(findings: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
    out = console()
    if not findings:
        out.print("The audit found nothing.")
        return
    out.print("Audit (! these rows are not used)")
    for op, finding in findings:
        mark = "!" if finding["condemns"] else "-"
        where = f" {finding['where']}" if finding.get("where") else ""
        out.print(
            f"{mark} {op}{escape(where)}: {finding['rule']}: {escape(finding['detail'])}",
            soft_wrap=False,
        )


def _ranges(parts: Sequence[Part]) -> dict[str, tuple[int, int]]:
    out: dict[str, tuple[int, int]] = {}
    for part in parts:
        for name, (low, high, _) in part.ranges.items():
            old = out.get(name, (low, high))
            out[name] = (min(low, old[0]), max(high, old[1]))
    return out


def _table(*columns: str, right: Sequence[int] = ()) -> Table:
    table = Table(box=None, pad_edge=False)
    for i, name in enumerate(columns):
        table.add_column(name, justify="right" if i in right else "left", overflow="fold")
    return table
