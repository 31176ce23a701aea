"""What kernel tables cover: operations, precisions, ranges, origin, and what the audit found."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import polars as pl

from sieve.perf.kernel_table import read_provenance
from sieve.perf.table_check import read_frame
from sieve.perf.table_schema import OPERATIONS

_KINDS: Final = frozenset({"op_name", "backend", "phase", "comm_backend", "kernel_source"})
_ORIGIN: Final = ("source", "kernel_source", "condemned")


@dataclass(frozen=True, eq=False)
class Part:
    """Rows of one table that share precision and kind.

    Attributes:
        name: precisions and kinds, such as `fp8` or `all_reduce half`.
        rows, condemned: rows in the file, and those among them that step times leave out.
        sites: distinct keys.
        sources: source -> rows.
        kernels: kernel -> rows.
        ranges: whole-number column -> (smallest, largest, number of values).
    """

    name: str
    rows: int
    condemned: int
    sites: int
    sources: dict[str, int]
    kernels: dict[str, int]
    ranges: dict[str, tuple[int, int, int]]


@dataclass(frozen=True, eq=False)
class Coverage:
    """One table.

    Attributes:
        op: operation.
        about: what is timed.
        used: whether step times are composed from it.
        evidence: class of a row's evidence.
        keys, axes: columns.
        bytes: size of the file.
        precisions: of arithmetic, caches and messages.
        parts: by precision and kind.
        findings: of the audit: `rule`, `where`, `detail`, `rows`, `condemns`.
        sha256: checksum that the provenance states.
    """

    op: str
    about: str
    used: bool
    evidence: str
    keys: tuple[str, ...]
    axes: tuple[str, ...]
    bytes: int
    precisions: tuple[str, ...]
    parts: tuple[Part, ...]
    findings: tuple[dict[str, Any], ...]
    sha256: str

    @property
    def rows(self) -> int:
        """Rows of all parts."""
        return sum(part.rows for part in self.parts)

    @property
    def condemned(self) -> int:
        """Rows that step times leave out."""
        return sum(part.condemned for part in self.parts)

    def sources(self) -> dict[str, int]:
        """Return {source: rows}."""
        return _added([part.sources for part in self.parts])


def cover(folder: Path) -> list[Coverage]:
    """Return what the tables of one folder cover, in the order of `OPERATIONS`.

    Raises:
        TableError: a table or the provenance cannot be read.
    """
    operations = read_provenance(folder).get("operations") or {}
    return [
        cover_table(folder / f"{op}.parquet", op, operations.get(op) or {})
        for op in OPERATIONS
        if (folder / f"{op}.parquet").is_file()
    ]


def cover_table(path: Path, op: str, record: dict[str, Any]) -> Coverage:
    """Return what one table covers.

    Args:
        path: its file.
        op: operation.
        record: its entry in the provenance.

    Raises:
        TableError: the file breaks its schema.
    """
    operation = OPERATIONS[op]
    frame = read_frame(path, op, extra=_ORIGIN)
    missing = [c for c in _ORIGIN if c not in frame.columns]
    frame = frame.with_columns([pl.lit(None, pl.String).alias(c) for c in missing])
    kinds = [c for c in operation.keys if c in _KINDS or c in operation.precision]
    kinds += [c for c in operation.stored if c not in kinds]
    groups = frame.group_by(kinds, maintain_order=True)
    parts = tuple(_part(name, rows, op) for name, rows in groups)
    return Coverage(
        op, operation.about, operation.used, "measured", operation.keys, operation.axes,
        path.stat().st_size, _precisions(frame, op), parts, tuple(record.get("findings") or ()),
        str(record.get("sha256") or ""),
    )  # fmt: skip


def _precisions(frame: pl.DataFrame, op: str) -> tuple[str, ...]:
    columns = [*OPERATIONS[op].precision, *OPERATIONS[op].stored]
    names = [str(name) for c in columns for name in frame[c].unique().sort().to_list()]
    return tuple(dict.fromkeys(names))


def _part(name: tuple[object, ...], rows: pl.DataFrame, op: str) -> Part:
    operation = OPERATIONS[op]
    whole = [c for c in operation.columns if rows[c].dtype.is_integer()]
    return Part(
        name=" ".join(dict.fromkeys(str(part) for part in name)),
        rows=rows.height,
        condemned=_whole(rows["condemned"].is_not_null().sum()),
        sites=rows.select(operation.keys).n_unique(),
        sources=_counted(rows["source"]),
        kernels=_counted(rows["kernel_source"]),
        ranges={
            c: (_whole(rows[c].min()), _whole(rows[c].max()), rows[c].n_unique()) for c in whole
        },
    )


def _whole(value: Any) -> int:
    return int(value)


def _counted(column: pl.Series) -> dict[str, int]:
    named = column.drop_nulls()
    return dict(named.value_counts().sort(column.name).rows()) if len(named) else {}


def _added(parts: list[dict[str, int]]) -> dict[str, int]:
    out: dict[str, int] = {}
    for part in parts:
        for name, rows in part.items():
            out[name] = out.get(name, 0) + rows
    return dict(sorted(out.items(), key=lambda item: -item[1]))
