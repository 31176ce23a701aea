"""Folders of a user's own kernel tables: importing into them, and using them in a run."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import polars as pl

from sieve.catalog.architecture import Gpu
from sieve.errors import TableError
from sieve.perf.kernel_table import load, read_provenance
from sieve.perf.table_check import check_for_gpu, read_frame
from sieve.perf.table_import import Imported, import_tables
from sieve.perf.table_schema import OPERATIONS
from sieve.perf.table_store import PROVENANCE, folder_name, write_tables
from sieve.perf.vidur import import_vidur, is_vidur

_PACKAGES: Final = ("aiconfigurator_core-*.dist-info", "aisimulate-*.dist-info")


@dataclass(frozen=True, eq=False)
class Import:
    """A finished import.

    Attributes:
        folder: where the tables are.
        gpu: accelerator.
        result: what was read.
        record: the provenance that was written.
    """

    folder: Path
    gpu: Gpu
    result: Imported
    record: dict[str, Any]


def import_into(path: Path, gpu: Gpu, into: Path) -> Import:
    """Read measured kernels of a GPU and write them as tables that a run can use.

    Operations that an earlier import left in the folder stay unless this one brings them anew.

    Args:
        path: `systems` data of aiconfigurator, a Vidur profile folder, or tables by operation.
        gpu: accelerator that they were measured on.
        into: folder of tables; those of the GPU go into a folder named after it.

    Raises:
        TableError: nothing to read, or a file that fails its checks; nothing is written then.
    """
    if is_vidur(path):
        result = import_vidur(path, gpu)
    else:
        result = import_tables(path, gpu, gpu.kernel_system)
    folder = into / folder_name(gpu.name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TableError(f"{folder}: cannot be made ({error.strerror}); choose another") from None
    earlier = _earlier(folder, gpu)
    head: dict[str, Any] = {"system": folder.name, "gpu": gpu.name}
    if gpu.kernel_system:
        head["others_from"] = gpu.kernel_system
    this = {
        "operations": [op for op in OPERATIONS if op in result.tables],
        "format": result.layout,
        "version": _package_version(path),
        "folder": path.resolve().name,
        "files": {_label(file, path): _sha256(file) for file in result.files},
        "skipped": [f"{_label(Path(file), path)}: {why}" for file, why in result.skipped],
        "notes": list(result.notes),
    }
    head["imports"] = [*_still_current(earlier, result), this]
    operations = earlier.get("operations")
    record = write_tables(folder, head, result.tables, result.findings, earlier=operations)
    load.cache_clear()  # this process may have read what was there before
    return Import(folder, gpu, result, record)


def with_tables(gpus: Mapping[str, Gpu], folder: Path) -> dict[str, Gpu]:
    """Return the GPUs, those with a folder of imported tables pointing at it.

    Args:
        gpus: accelerators by name.
        folder: as `import_into` wrote it: one folder a GPU.

    Raises:
        TableError: no such folder, none of these GPUs in it, or tables that are not as imported.
    """
    if not folder.is_dir():
        raise TableError(
            f"{folder}: no such folder of kernel tables; `sieve tables import` makes one"
        )
    out, found = dict(gpus), False
    for name, gpu in gpus.items():
        own = folder.resolve() / folder_name(gpu.name)
        if own.is_dir():
            check_folder(own, gpu)
            out[name], found = replace(gpu, kernel_system=str(own)), True
    if not found:
        there = ", ".join(sorted(p.name for p in folder.iterdir() if p.is_dir())[:10]) or "nothing"
        wanted = ", ".join(folder_name(gpu.name) for gpu in gpus.values())
        raise TableError(f"{folder}: holds {there}, but the fleet needs {wanted}")
    return out


def check_folder(folder: Path, gpu: Gpu) -> None:
    """Check that a folder's tables are those that were imported for a GPU.

    Raises:
        TableError: no provenance, another GPU's, a checksum that differs, or a broken table.
    """
    record = read_provenance(folder)
    if not record:
        raise TableError(f"{folder}: no {PROVENANCE}; bring the tables in by `sieve tables import`")
    if record.get("gpu") != gpu.name:
        raise TableError(f"{folder / PROVENANCE}: gpu is {record.get('gpu')!r}, not {gpu.name!r}")
    operations = record.get("operations")
    if not isinstance(operations, dict) or not operations:
        raise TableError(f"{folder / PROVENANCE}: names no operations; import the tables anew")
    for op in OPERATIONS:
        path = folder / f"{op}.parquet"
        entry = operations.get(op)
        if path.exists() != isinstance(entry, dict):
            state = "not listed" if path.exists() else "missing"
            raise TableError(f"{path}: {state}, unlike {PROVENANCE} says; import the tables anew")
        if not isinstance(entry, dict):
            continue
        if _sha256(path) != entry.get("sha256"):
            raise TableError(f"{path}: changed since it was imported; import the tables anew")
        frame = read_frame(path, op, extra=("condemned",))
        if "condemned" in frame.columns:
            frame = frame.filter(pl.col("condemned").is_null())
        if frame.height:
            check_for_gpu(path, frame, op, gpu)


def label(system: str) -> str:
    """Return a system's name for reports: that of its folder, without the way there."""
    return Path(system).name


def used_tables(gpu: Gpu) -> str:
    """Return in words where a GPU's imported kernels come from, "" if they are the shipped ones."""
    if not Path(gpu.kernel_system).is_absolute():
        return ""
    record = read_provenance(Path(gpu.kernel_system))
    operations = ", ".join(record.get("operations") or {})
    others = record.get("others_from")
    rest = f"; other operations from the shipped {others}" if others else "; others: roofline"
    return f"kernels imported by the user: {operations}{rest}"


def _still_current(earlier: Mapping[str, Any], result: Imported) -> list[dict[str, Any]]:
    """Return the earlier imports, each with the operations that this one leaves."""
    out = []
    imports = earlier.get("imports")
    for entry in imports if isinstance(imports, list) else []:
        if not isinstance(entry, dict):
            continue  # edited by hand into something else
        left = [op for op in entry.get("operations") or [] if op not in result.tables]
        if left:
            out.append({**entry, "operations": left})
    return out


def _earlier(folder: Path, gpu: Gpu) -> dict[str, Any]:
    """Return the provenance of earlier imports into a folder, empty for the first."""
    record = read_provenance(folder)
    if record:
        check_folder(folder, gpu)
    elif folder.is_dir() and any(folder.glob("*.parquet")):
        raise TableError(f"{folder}: holds tables without {PROVENANCE}; choose another folder")
    return record


def _package_version(path: Path) -> str:
    """Return the version of the installed package that a folder belongs to, "unknown" if none."""
    for parent in (path.resolve(), *path.resolve().parents):
        for pattern in _PACKAGES:
            for found in sorted(parent.glob(pattern)):
                return found.name.removesuffix(".dist-info").replace("-", " ")
    return "unknown"


def _label(file: Path, root: Path) -> str:
    """Return a file's path below the folder that was imported."""
    try:
        return file.resolve().relative_to(root.resolve()).as_posix()
    except ValueError:
        return file.name


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
