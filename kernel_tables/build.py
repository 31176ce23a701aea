"""Write the packaged kernel tables from the compact source set.

    python kernel_tables/build.py COMPACT_FOLDER [SYSTEM ...]

COMPACT_FOLDER holds `<system>/<op>.parquet` with one row a key and `latency_us`. Operations and
precisions that it lacks are taken from the stacked tables of all versions beside it
(`COMPACT_FOLDER/../<system>`), where they are there: newest version of the engine that comes first
in `sieve.perf.table_import.ENGINES`. The result is `<system>/<op>.parquet` beside this script (keys
sorted, the axes of a curve last, latency in microseconds as float32, origin of each row, zstd) and
`<system>/provenance.yaml`. No latency is altered; rows that the audit condemns stay, with the rule
in the column `condemned`, and step times leave them out. Left out altogether: the all-reduce timed
outside a CUDA graph (it holds host launches), the NCCL byte-wise rows and the steepest expert
imbalance (no better than the milder one).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import polars as pl

from sieve.catalog.accelerators import load_gpu
from sieve.perf.audit import audit, condemned
from sieve.perf.table_import import finish, import_tables
from sieve.perf.table_schema import DIFFERENCES, OPERATIONS
from sieve.perf.table_store import write_tables

HERE = Path(__file__).parent
SYSTEMS = ("h100_sxm", "h200_sxm", "a100_sxm", "l40s", "b200_sxm")
SOURCE = {
    "packages": [
        {"name": "aiconfigurator-core", "version": "0.12.0"},
        {"name": "aisimulate", "version": "0.13.0.dev202610270000000085"},
    ],
    "upstream": [
        "https://github.com/ai-dynamo/aiconfigurator",
        "https://github.com/ai-dynamo/aisimulate",
    ],
    "taken": "2026-11-29",
    "licence": "Apache-2.0",
    "copyright": "Copyright NVIDIA CORPORATION & AFFILIATES",
    "changes": "best version of each key chosen, milliseconds turned into microseconds, columns "
    "and rows that sieve does not read left out; no latency was altered",
}
KNOWN_DEFECTS = [
    "vLLM 0.24.0 timed block-scaled FP8 products with their launches from the host (56-290 us at "
    "small m against 5-9 in later versions); that version is left out for this precision",
    "no repeat counts and no spread: differences between versions stand in for the noise",
    "all collectives were measured within one node",
    "prefill attention against cached tokens was not measured",
]
EXTRA_PRECISIONS = {"gemm": ("gemm_dtype", ("int4_wo", "int8_wo"))}
"""Operation -> column and precisions that come from the stacked tables."""


def compact_table(path: Path, op: str) -> pl.DataFrame:
    """Return the rows of a compact file that the packaged table keeps."""
    operation = OPERATIONS[op]
    frame = pl.read_parquet(path)
    frame = frame.with_columns(
        [pl.lit(v).alias(c) for c, v in operation.defaults.items() if c not in frame.columns]
    )
    for column, values in operation.keep.items():
        frame = frame.filter(pl.col(column).is_in(list(values)))
    if op in DIFFERENCES:
        frame = frame.filter(pl.col("latency_us") > 0)
    frame = frame.with_columns(pl.col("latency_us").cast(pl.Float64))
    check(frame, path, op)
    return frame


def check(frame: pl.DataFrame, path: Path, op: str) -> None:
    """Stop on doubled keys and on latencies that are not finite and positive."""
    doubled = frame.height - frame.select(OPERATIONS[op].columns).n_unique()
    bad = frame.filter(~(pl.col("latency_us").is_finite() & (pl.col("latency_us") > 0))).height
    if doubled or bad:
        raise SystemExit(f"{path}: {doubled} doubled keys, {bad} bad latencies; nothing written")


def build(compact: Path, system: str) -> None:
    """Write all tables of one system and its provenance."""
    gpu = load_gpu(system)
    stacked = compact.resolve().parent / system
    extra = import_tables(stacked, gpu, system) if stacked.is_dir() else None
    tables: dict[str, pl.DataFrame] = {}
    findings: dict[str, Any] = {}
    for op in OPERATIONS:
        path = compact / system / f"{op}.parquet"
        if path.exists():
            frame = compact_table(path, op)
            if extra is not None and op in EXTRA_PRECISIONS:
                frame = with_extra(frame, extra.tables[op], *EXTRA_PRECISIONS[op])
            findings[op] = audit(frame, op, gpu)
            marks = pl.Series("condemned", condemned(findings[op], frame.height), pl.String)
            tables[op] = finish(frame.with_columns(marks), op)
        elif extra is not None and op in extra.tables:
            tables[op] = extra.tables[op]
            rows = tables[op].drop("condemned").with_columns(pl.col("latency_us").cast(pl.Float64))
            repeats = [f for f in extra.findings[op] if f.rule == "repeats_disagree"]
            findings[op] = [*repeats, *audit(rows, op, gpu)]
    head = {"system": system, "gpu": gpu.name, "source": SOURCE, "known_defects": KNOWN_DEFECTS}
    record = write_tables(HERE / system, head, tables, findings)
    for op, entry in record["operations"].items():
        size = (HERE / system / f"{op}.parquet").stat().st_size
        print(
            f"{system}/{op}: {entry['rows']} rows, {entry['condemned_rows']} condemned, "
            f"{size} bytes"
        )


def with_extra(
    frame: pl.DataFrame, other: pl.DataFrame, column: str, names: tuple[str, ...]
) -> pl.DataFrame:
    """Return the frame with the rows of `other` in precisions that the frame does not have."""
    missing = [name for name in names if name not in frame[column].unique().to_list()]
    rows = other.filter(pl.col(column).is_in(missing) & pl.col("condemned").is_null())
    columns = [c for c in frame.columns if c in rows.columns]
    return pl.concat(
        [frame.select(columns), rows.select(columns).cast(frame.select(columns).schema)]
    )


def main(arguments: list[str]) -> None:
    """Build the systems named on the command line, by default all."""
    if not arguments:
        raise SystemExit(__doc__)
    compact = Path(arguments[0])
    for system in arguments[1:] or SYSTEMS:
        build(compact, system)


if __name__ == "__main__":
    main(sys.argv[1:])
