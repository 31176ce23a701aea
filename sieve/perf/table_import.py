"""Reading measured kernels that others collected into the schema of this tool.

Understood are the `systems` data of an installed `aiconfigurator-core` (or of its successor) and of
its older releases, the same tables stacked into one file an operation, tables in this tool's own
schema, and Vidur profiles (`sieve.perf.vidur`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl

from sieve.catalog.architecture import Gpu
from sieve.errors import TableError
from sieve.perf.audit import audit, condemned
from sieve.perf.audit_finding import Finding, num_rows
from sieve.perf.parquet_probe import probe
from sieve.perf.table_check import (
    check_for_gpu,
    check_latency,
    check_types,
    drop_repeats,
    parquet_schema,
    read_frame,
)
from sieve.perf.table_schema import DIFFERENCES, MAX_BYTES, MAX_FILES, MAX_ROWS, OPERATIONS

ENGINES: Final = ("vllm", "nccl", "sglang", "trtllm")
"""Whose kernels are preferred where several were measured, best first."""
REPEAT_TOLERANCE: Final = 2.0
"""Repeats of one row further apart than this condemn it."""
_RAW_UNIT_US: Final = {"moe_a2a": 1.0}
"""Microseconds in one unit of the raw column `latency`; 1000 (milliseconds) where not named."""
_REPLACED: Final = "replaced_in_aisimulate"
_RAW_SUFFIXES: Final = (".parquet", ".txt", ".csv")
_ORIGIN: Final = ("source", "kernel_source")


@dataclass(frozen=True, eq=False)
class Imported:
    """Tables of one GPU.

    Attributes:
        layout: what kind of folder was read.
        tables: operation -> rows with the operation's columns, `latency_us`, `source`,
            `kernel_source` and `condemned` (rule, or null), sorted.
        findings: operation -> findings of the audit over all sources.
        skipped: (file, reason) of what was not read.
        files: files that were read.
        notes: further facts, in words.
    """

    layout: str
    tables: dict[str, pl.DataFrame]
    findings: dict[str, list[Finding]]
    skipped: list[tuple[str, str]]
    files: list[Path]
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _File:
    """A file of raw measurements: operation, engine and version from where it stands."""

    path: Path
    op: str
    source: str


def import_tables(path: Path, gpu: Gpu, system: str) -> Imported:
    """Return the tables that a folder holds for a GPU.

    Args:
        path: folder, searched downwards.
        gpu: accelerator that they were measured on.
        system: name of that accelerator's folder in such data, "" if it has none.

    Raises:
        TableError: no table, several systems to choose from, or a file that fails its checks.
    """
    root = _checked_folder(path)
    raw, skipped = _raw_files(root, system)
    if raw:
        layout, frames = "aiconfigurator systems", _read_all(raw, skipped, gpu)
    else:
        folder = _system_below(root, system)
        plain = _plain_files(folder)
        if not plain:
            raise TableError(
                f"{path}: no kernel tables; expected `<op>_perf.parquet` files of aiconfigurator, "
                f"files named after an operation ({', '.join(OPERATIONS)}), or a Vidur profile "
                "folder with attention.csv and mlp.csv"
            )
        raw = plain
        layout, frames = "tables by operation", _read_all(plain, skipped, gpu)
    tables, findings = choose(frames, gpu)
    return Imported(layout, tables, findings, skipped, [f.path for f in raw])


def choose(
    frames: dict[str, list[pl.DataFrame]], gpu: Gpu
) -> tuple[dict[str, pl.DataFrame], dict[str, list[Finding]]]:
    """Return one table an operation, each site from its best source, and the audits' findings.

    The best source is the first engine of `ENGINES`, its newest version, among those that the
    audit does not condemn at this site; a site that is condemned everywhere stays, marked.
    """
    tables: dict[str, pl.DataFrame] = {}
    findings: dict[str, list[Finding]] = {}
    for op, parts in frames.items():
        rows, repeats = _merge_repeats(pl.concat(parts, how="vertical_relaxed"), op)
        found = [*repeats, *audit(rows, op, gpu)]
        marked = rows.with_columns(
            pl.Series("condemned", condemned(found, rows.height), dtype=pl.String)
        )
        tables[op] = _best_sites(marked, op)
        findings[op] = found
    return tables, findings


def finish(frame: pl.DataFrame, op: str) -> pl.DataFrame:
    """Return a table's columns in order, sorted, with narrow types."""
    operation = OPERATIONS[op]
    origin = [c for c in (*_ORIGIN, "condemned") if c not in operation.columns]
    whole = [c for c in operation.columns if frame[c].dtype.is_integer()]
    return (
        frame.select([*operation.columns, "latency_us", *origin])
        .with_columns(pl.col(whole).cast(pl.Int32), pl.col("latency_us").cast(pl.Float32))
        .sort(operation.columns)
    )


def _best_sites(marked: pl.DataFrame, op: str) -> pl.DataFrame:
    keys = list(OPERATIONS[op].keys)
    order = {name: i for i, name in enumerate(sorted(marked["source"].unique(), key=_preference))}
    # A source is passed over at a site where more than half of its rows are condemned.
    rank = (
        marked.with_columns(
            rank=pl.col("source").replace_strict(order, return_dtype=pl.Int32),
            bad=pl.col("condemned").is_not_null(),
        )
        .group_by([*keys, "source"])
        .agg(pl.col("rank").first(), (pl.col("bad").mean() > 0.5).alias("bad"))
        .sort([*keys, "bad", "rank"])
        .unique(keys, keep="first", maintain_order=True)
    )
    best = marked.join(rank.select([*keys, "source"]), on=[*keys, "source"], how="semi")
    # Several kernels on one key: the engine picks by size, so the quickest is what it would run.
    best = best.sort([*OPERATIONS[op].columns, "latency_us"])
    return finish(best.unique(list(OPERATIONS[op].columns), keep="first", maintain_order=True), op)


def _preference(source: str) -> tuple[int, bool, tuple[int, ...], str]:
    """Return a sort key that puts the best source first."""
    engine, _, version = source.partition(" ")
    rank = ENGINES.index(engine) if engine in ENGINES else len(ENGINES)
    numbers = tuple(-int(n) for n in re.findall(r"\d+", version)[:4])
    if not re.match(r"\d", version):
        numbers = (1,)
    return rank, "(replaced)" in source, numbers, source


def _merge_repeats(rows: pl.DataFrame, op: str) -> tuple[pl.DataFrame, list[Finding]]:
    """Return the median of repeats of one row, and a finding on those that lie far apart."""
    names = list(dict.fromkeys([*OPERATIONS[op].columns, *_ORIGIN]))
    merged = (
        rows.group_by(names, maintain_order=True)
        .agg(
            pl.col("latency_us").median(),
            (pl.col("latency_us").max() / pl.col("latency_us").min()).alias("apart"),
        )
        .with_row_index("at")
    )
    far = merged.filter(pl.col("apart") > REPEAT_TOLERANCE)
    rows = merged.drop("at", "apart")
    if not far.height:
        return rows, []
    worst = float(far["apart"].to_numpy().max())
    detail = f"{num_rows(far.height)} whose repeats lie up to {worst:.1f} times apart"
    at = far["at"].to_numpy().astype(np.int64)
    return rows, [Finding("repeats_disagree", op, "", detail, at, condemns=True)]


def _read_all(
    files: Sequence[_File], skipped: list[tuple[str, str]], gpu: Gpu
) -> dict[str, list[pl.DataFrame]]:
    probe([(f.path, _wanted(f.op)) for f in files if f.path.suffix == ".parquet"])
    frames: dict[str, list[pl.DataFrame]] = {}
    total = 0
    for file in files:
        frame = _read_file(file, skipped, gpu)
        if frame is not None:
            total += frame.height
            if total > MAX_ROWS:
                raise TableError(f"{file.path}: over {MAX_ROWS:,} rows in all; import fewer files")
            frames.setdefault(file.op, []).append(frame)
    return frames


def _read_file(file: _File, skipped: list[tuple[str, str]], gpu: Gpu) -> pl.DataFrame | None:
    """Return a file's rows with `latency_us`, `source` and `kernel_source`, None if left out."""
    operation = OPERATIONS[file.op]
    schema = _schema(file.path)
    if "latency_us" in schema and file.path.suffix == ".parquet":
        frame = drop_repeats(file.path, read_frame(file.path, file.op, extra=_ORIGIN), file.op)
    else:
        if "latency" not in schema and "latency_us" not in schema:
            raise TableError(f"{file.path}: neither latency_us (microseconds) nor latency there")
        lacking = [c for c in operation.columns if c not in schema and c not in operation.defaults]
        if lacking and file.source:
            skipped.append((str(file.path), f"columns {', '.join(lacking)} are missing"))
            return None
        frame = _read_raw(file, schema, lacking)
        if "latency_us" in schema:  # a finished table, where a raw file may repeat a measurement
            frame = drop_repeats(file.path, frame, file.op)
    frame = _kept(file, frame, skipped)
    if not frame.height:
        return None
    check_for_gpu(file.path, frame, file.op, gpu)
    if "source" not in frame.columns:
        frame = frame.with_columns(source=pl.lit(file.source or "own"))
    if "kernel_source" not in frame.columns:
        frame = frame.with_columns(kernel_source=pl.lit(""))
    names = list(dict.fromkeys([*operation.columns, "latency_us", *_ORIGIN]))
    whole = [c for c in operation.columns if frame[c].dtype.is_integer()]
    return frame.select(names).with_columns(pl.col(whole).cast(pl.Int64))


def _read_raw(file: _File, schema: dict[str, pl.DataType], lacking: list[str]) -> pl.DataFrame:
    """Return a raw file's rows: milliseconds turned into microseconds, columns completed."""
    operation = OPERATIONS[file.op]
    if lacking:
        raise TableError(
            f"{file.path}: columns {', '.join(lacking)} are missing; an {file.op} table has "
            f"{', '.join((*operation.columns, 'latency_us'))}"
        )
    frame = _load(file.path, [c for c in _wanted(file.op) if c in schema])
    frame = frame.with_columns(
        [pl.lit(v).alias(c) for c, v in operation.defaults.items() if c not in frame.columns]
    )
    check_types(file.path, frame, operation.columns)
    if "latency_us" not in frame.columns:
        unit = _RAW_UNIT_US.get(file.op, 1000.0)
        if not frame["latency"].dtype.is_numeric():
            raise TableError(f"{file.path}: column latency is {frame['latency'].dtype}, no number")
        frame = frame.with_columns(latency_us=pl.col("latency").cast(pl.Float64) * unit)
    if file.op in DIFFERENCES:
        frame = frame.filter(pl.col("latency_us") > 0)
    check_latency(file.path, frame["latency_us"].cast(pl.Float64).fill_null(np.nan).to_numpy())
    if "src_table" in frame.columns:
        frame = frame.with_columns(source=_source_of("src_table"))
        if "src_status" in frame.columns:
            old = pl.col("src_status") == _REPLACED
            frame = frame.with_columns(
                source=pl.when(old).then(pl.col("source") + " (replaced)").otherwise("source")
            )
    return frame


def _wanted(op: str) -> list[str]:
    """Return the columns that are read of a raw file, where it has them."""
    operation = OPERATIONS[op]
    names = [*operation.columns, *operation.keep, "latency", "latency_us", *_ORIGIN]
    return list(dict.fromkeys([*names, "src_table", "src_status"]))


def _source_of(column: str) -> pl.Expr:
    """Return engine and version from a path such as data/x/gemm/vllm/0.24.0/gemm_perf.parquet."""
    parts = pl.col(column).str.split("/")
    return parts.list.get(-3) + pl.lit(" ") + parts.list.get(-2)


def _kept(file: _File, frame: pl.DataFrame, skipped: list[tuple[str, str]]) -> pl.DataFrame:
    """Return the rows that tables keep; what is left out is named among the skipped."""
    operation = OPERATIONS[file.op]
    kept = frame
    for column, values in operation.keep.items():
        if column in kept.columns:
            kept = kept.filter(pl.col(column).is_in(list(values)))
    if kept.height < frame.height:
        conditions = ", ".join(
            f"{c} {' or '.join(map(str, v))}"
            for c, v in operation.keep.items()
            if c in frame.columns
        )
        skipped.append(
            (str(file.path), f"{frame.height - kept.height:,} rows without {conditions}")
        )
    return kept


def _load(path: Path, columns: list[str]) -> pl.DataFrame:
    try:
        if path.suffix == ".parquet":
            return pl.read_parquet(path, columns=columns)
        return pl.read_csv(path, columns=columns, infer_schema_length=None)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, ValueError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0][:120]
        raise TableError(f"{path}: cannot be read ({first})") from None


def _schema(path: Path) -> dict[str, pl.DataType]:
    if path.suffix == ".parquet":
        return parquet_schema(path)
    if path.stat().st_size > MAX_BYTES:
        raise TableError(f"{path}: {path.stat().st_size:,} bytes, at most {MAX_BYTES:,} are read")
    try:
        return dict(pl.read_csv(path, n_rows=1).schema)
    except (pl.exceptions.PolarsError, ValueError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0][:120]
        raise TableError(f"{path}: cannot be read as CSV ({first})") from None


def _checked_folder(path: Path) -> Path:
    if not path.is_dir():
        raise TableError(f"{path}: no such folder; give the folder that holds the tables")
    return path.resolve()


def _raw_files(root: Path, system: str) -> tuple[list[_File], list[tuple[str, str]]]:
    """Return the files of the layout .../data/SYSTEM/[GROUP/]ENGINE/VERSION/OP_perf.parquet."""
    found = list(_walk(root, "*_perf.*"))
    if not found:
        return [], []
    systems = {path: _system_of(path) for path in found}
    names = sorted(set(systems.values()))
    if system in names:
        found = [path for path in found if systems[path] == system]
    elif len(names) > 1:
        raise TableError(
            f"{root}: holds {', '.join(names[:12])}; this GPU has no name among them, so give the "
            "folder of one"
        )
    files, skipped = [], []
    for path in found:
        op = path.name.rsplit("_perf.", 1)[0]
        if op in OPERATIONS:
            files.append(_File(path, op, f"{path.parent.parent.name} {path.parent.name}"))
        else:
            skipped.append((str(path), f"operation {op} is not read by this version"))
    return files, skipped


def _system_of(path: Path) -> str:
    """Return the folder's name after the last `data`, or four levels up."""
    parts = path.parts
    for i in range(len(parts) - 2, 0, -1):
        if parts[i - 1] == "data":
            return parts[i]
    return parts[max(len(parts) - 5, 0)]


def _system_below(root: Path, system: str) -> Path:
    """Return the folder of a system below the root, the root itself if it has none."""
    return root / system if system and (root / system).is_dir() else root


def _plain_files(folder: Path) -> list[_File]:
    """Return the files of a folder that are named after an operation, `gemm.sglang.parquet` too."""
    files = []
    for path in sorted(folder.iterdir()):
        op = path.name.split(".")[0]
        if path.is_file() and path.suffix in {".parquet", ".csv"} and op in OPERATIONS:
            files.append(_File(path, op, ""))
    return files


def _walk(root: Path, pattern: str) -> Iterator[Path]:
    count = 0
    for path in sorted(root.rglob(pattern)):
        if path.suffix in _RAW_SUFFIXES and path.is_file():
            count += 1
            if count > MAX_FILES:
                raise TableError(f"{root}: over {MAX_FILES:,} tables; give a folder further down")
            yield path


def only(imported: Imported, ops: Sequence[str]) -> Imported:
    """Return the import with these operations alone."""
    return replace(imported, tables={o: t for o, t in imported.tables.items() if o in ops})
