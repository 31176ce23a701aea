"""Writing a folder of kernel tables with its provenance."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import yaml

from sieve.perf.audit_finding import Finding
from sieve.perf.kernel_table import SCHEMA_VERSION, read
from sieve.perf.table_schema import OPERATIONS, UNITS

PROVENANCE = "provenance.yaml"


def folder_name(gpu_name: str) -> str:
    """Return the folder of a GPU's imported tables, such as `h100-sxm-80gb`."""
    return re.sub(r"[^a-z0-9]+", "-", gpu_name.lower()).strip("-")


def write_tables(
    folder: Path,
    head: Mapping[str, Any],
    tables: Mapping[str, pl.DataFrame],
    findings: Mapping[str, Sequence[Finding]],
    *,
    earlier: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Write the tables of one system and their provenance, and return the latter.

    Args:
        folder: made where it is missing; tables of other operations in it are left alone.
        head: what the provenance says before the operations.
        tables: operation -> rows as `table_import.finish` returns them.
        findings: operation -> findings of the audit.
        earlier: operation -> provenance of tables that are already in the folder.

    Raises:
        TableError: a table written does not pass the checks of reading.
    """
    folder.mkdir(parents=True, exist_ok=True)
    operations = dict(earlier or {})
    for op in (name for name in OPERATIONS if name in tables):
        path = folder / f"{op}.parquet"
        tables[op].write_parquet(path, compression="zstd", compression_level=19, statistics=False)
        read(path, op)
        operations[op] = describe(tables[op], op, path.read_bytes(), findings.get(op, ()))
    named = {"schema_version": SCHEMA_VERSION, **head}
    record = {**named, "operations": {op: operations[op] for op in OPERATIONS if op in operations}}
    text = yaml.safe_dump(record, sort_keys=False, width=100)
    (folder / PROVENANCE).write_text(text, encoding="utf-8")
    return record


def describe(
    table: pl.DataFrame, op: str, content: bytes, findings: Sequence[Finding]
) -> dict[str, Any]:
    """Return the provenance of one table: columns, units, origin, findings, checksum."""
    operation = OPERATIONS[op]
    columns = [*operation.columns, "latency_us"]
    marked = table.filter(pl.col("condemned").is_not_null())
    return {
        "about": operation.about,
        "rows": table.height,
        "condemned_rows": marked.height,
        "keys": list(operation.columns),
        "units": {name: UNITS[name] for name in columns if name in UNITS},
        "source_versions": counts(table, "source"),
        "kernels": counts(table, "kernel_source"),
        "kept": {column: list(values) for column, values in operation.keep.items()},
        "findings": [
            {
                "rule": f.rule, "where": f.where, "detail": f.detail, "rows": len(f.rows),
                "condemns": f.condemns,
            }
            for f in findings
        ],
        "sha256": hashlib.sha256(content).hexdigest(),
    }  # fmt: skip


def counts(table: pl.DataFrame, column: str) -> dict[str, int]:
    """Return {value: rows} of a text column, by name."""
    return dict(table[column].value_counts().sort(column).rows())
