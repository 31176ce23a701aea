"""The jobs file of `sieve batch`: YAML, JSON or CSV, read a job at a time.

A job is kept as a short JSON text until its turn, and a YAML file is composed one job after
another, so that a file with 100,000 jobs takes little memory.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sieve.catalog.names import nearest_names
from sieve.errors import Fault, SpecError
from sieve.jobs.sweep import expanded
from sieve.resources import exists
from sieve.spec import RunSpec, parse_yaml
from sieve.spec.loader import stream_yaml

MAX_FILE_BYTES: Final = 256_000_000
MAX_JOBS: Final = 1_000_000
OWN_KEYS: Final = ("name", "spec", "set", "calibration")
TOP_KEYS: Final = ("defaults", "jobs")
_TEXT_COLUMNS: Final = (
    "name", "spec", "calibration", "model", "engine", "traffic.trace", "traffic.format",
)  # fmt: skip
"""Cells that are read as they stand; all others are YAML values."""
_OPEN: Final = ("slo", "model", "grid")
"""Keys whose own keys are checked when the job is read, not from the header."""


@dataclass(frozen=True)
class Job:
    """One entry of a jobs file.

    Attributes:
        number: place in the file, from 1.
        line: of the file where it begins; None in JSON.
        text: the entry as JSON.
    """

    number: int
    line: int | None
    text: str

    def entry(self) -> Any:
        """Return the entry as plain data."""
        return json.loads(self.text)


@dataclass(frozen=True)
class JobFile:
    """A jobs file.

    Attributes:
        source: the path as given, for messages.
        base_dir: folder that relative paths start from.
        defaults: spec keys that every job begins with.
        jobs: at least one.
    """

    source: str
    base_dir: Path
    defaults: dict[str, Any]
    jobs: list[Job]


def read_jobs(path: Path) -> JobFile:
    """Return the jobs of a file; the suffix says how it is written.

    Raises:
        SpecError: missing, too large, of another kind, not well formed, with unknown keys or
            columns, or without a job. Faults inside a job are the job's own and found later.
    """
    text, source = _read(path), str(path)
    kinds = {".csv": _from_csv, ".json": _from_json}
    defaults, jobs = kinds.get(path.suffix.lower(), _from_yaml)(text, source)
    if not jobs:
        raise _fault(source, "jobs", "is empty; list at least one job")
    return JobFile(source, path.parent, defaults, jobs)


def _add(jobs: list[Job], line: int | None, entry: Any, source: str) -> None:
    for single in expanded(entry):
        if len(jobs) == MAX_JOBS:
            raise _fault(source, "jobs", f"more than {MAX_JOBS:,} jobs; split the file")
        text = json.dumps(single, ensure_ascii=False, separators=(",", ":"))
        jobs.append(Job(len(jobs) + 1, line, text))


def _read(path: Path) -> str:
    suffixes = (".yaml", ".yml", ".json", ".csv")
    if not exists(path):
        raise _fault(path, "", "no such jobs file; check the path")
    if not path.is_file():
        raise _fault(path, "", "is not a file; give one YAML, JSON or CSV file of jobs")
    if path.suffix.lower() not in suffixes:
        raise _fault(path, "", f"unknown kind of file; jobs files end in {', '.join(suffixes)}")
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise _fault(path, "", f"larger than {MAX_FILE_BYTES:,} bytes; split the file")
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise _fault(path, "", f"not UTF-8 text (byte {error.start}); save it so") from None
    except OSError as error:
        raise _fault(path, "", f"cannot be read: {error.strerror}") from None


def _fault(source: object, where: str, message: str, line: int | None = None) -> SpecError:
    return SpecError(str(source), [Fault(where, message, line)])


def _from_yaml(text: str, source: str) -> tuple[dict[str, Any], list[Job]]:
    defaults: Any = None
    jobs: list[Job] = []
    keys: set[str] = set()
    for key, line, value in stream_yaml(text, source, listed="jobs"):
        keys.add(key)
        if key == "jobs" and value != []:
            _add(jobs, line, value, source)
        elif key == "defaults":
            defaults = value
    _check_top(keys, source)
    return _defaults(defaults, source), jobs


def _from_json(text: str, source: str) -> tuple[dict[str, Any], list[Job]]:
    try:
        data = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise _fault(source, "", f"not valid JSON: {error}") from None
    if not isinstance(data, dict):
        raise _fault(source, "", f"found {kind_of(data)}, expected a mapping with the key jobs")
    _check_top(data.keys(), source)
    entries = data["jobs"]
    if not isinstance(entries, list):
        raise _fault(source, "jobs", f"found {kind_of(entries)}, expected a list of jobs")
    jobs: list[Job] = []
    for entry in entries:
        _add(jobs, None, entry, source)
    return _defaults(data.get("defaults"), source), jobs


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"key {twice!r} is given twice")
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number that JSON has")


def _check_top(keys: Collection[str], source: str) -> None:
    for key in keys:
        if key not in TOP_KEYS:
            raise _fault(source, key, "unknown key; a jobs file has defaults and jobs")
    if "jobs" not in keys:
        raise _fault(source, "jobs", "missing; list at least one job")


def _defaults(value: Any, source: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _fault(source, "defaults", f"found {kind_of(value)}, expected a mapping of spec keys")
    for key in value:
        if key not in (*RunSpec.model_fields, "calibration"):
            near = nearest_names(str(key), [*RunSpec.model_fields, "calibration"])
            raise _fault(source, f"defaults.{key}", f"unknown key; nearest: {', '.join(near)}")
    return value


def _from_csv(text: str, source: str) -> tuple[dict[str, Any], list[Job]]:
    """Return no defaults, and a job a row; the header names `name`, `spec` and dotted keys."""
    if "\0" in text:
        raise _fault(source, "", "binary data; expected CSV")
    rows = csv.reader(io.StringIO(text), strict=True)
    header: list[str] | None = None
    jobs: list[Job] = []
    try:
        for row in rows:
            if not any(cell.strip() for cell in row):
                continue
            if header is None:
                header = [cell.strip() for cell in row]
                _check_header(header, source, rows.line_num)
                continue
            if len(row) != len(header):
                message = f"{len(row)} fields where the header has {len(header)}"
                raise _fault(source, "", message, rows.line_num)
            _add(jobs, rows.line_num, _row_entry(header, row, source, rows.line_num), source)
    except csv.Error as error:
        raise _fault(source, "", f"not valid CSV: {error}", rows.line_num) from None
    return {}, jobs


def _check_header(header: list[str], source: str, line: int) -> None:
    known, seen = list(columns()), set[str]()
    for name in header:
        if name in seen:
            raise _fault(source, f"column {name!r}", "is there twice; keep one", line)
        seen.add(name)
        if name.split(".")[0] in _OPEN or name in known:
            continue
        if name.startswith("fleet.usd_per_gpu_hour."):
            continue
        near = nearest_names(name, known)
        raise _fault(
            source,
            f"column {name!r}",
            f"unknown; nearest: {', '.join(near)}. Columns are name, spec, calibration and "
            "dotted spec keys",
            line,
        )


def columns() -> Iterator[str]:
    """Yield the columns of a CSV of jobs, but for the keys below `slo`, `model` and `grid`."""
    yield from ("name", "spec", "calibration")
    for name, field in RunSpec.model_fields.items():
        yield name
        inner = getattr(field.annotation, "model_fields", None)
        if inner is not None:
            yield from (f"{name}.{key}" for key in inner)


def _row_entry(header: list[str], row: list[str], source: str, line: int) -> dict[str, Any]:
    entry: dict[str, Any] = {}
    for name, cell in zip(header, row, strict=True):
        text = cell.strip()
        if not text:
            continue
        value = text if name in _TEXT_COLUMNS else _cell(text, name, source, line)
        *parents, last = name.split(".")
        target: Any = entry
        for part in parents:
            target = target.setdefault(part, {}) if isinstance(target, dict) else None
        if not isinstance(target, dict):
            raise _fault(
                source,
                f"column {name!r}",
                f"{'.'.join(parents)} has a value too; keep one of them",
                line,
            )
        target[last] = value
    return entry


def _cell(text: str, name: str, source: str, line: int) -> Any:
    try:
        return parse_yaml(text, source)
    except SpecError as error:
        message = f"found {text[:60]!r}: {error.faults[0].message}"
        raise _fault(source, f"column {name!r}", message, line) from None


def kind_of(value: object) -> str:
    """Return what a value is, in words for a message."""
    if value is None:
        return "nothing"
    kinds: Mapping[type, str] = {dict: "a mapping", list: "a list", str: "a text"}
    return kinds.get(type(value), f"a {type(value).__name__}")
