"""One job's run spec: defaults, then a spec file, then the job's own keys, then what it sets.

`traffic`, `slo`, `fleet`, `shortlist` and `rank` are merged key by key, prices GPU by GPU; every
other value is replaced whole, and null takes a key away. Paths in a spec file start at that file,
all others at the jobs file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from sieve.catalog.names import nearest_names
from sieve.errors import Fault, SpecError
from sieve.jobs.job_file import OWN_KEYS, Job, JobFile, kind_of
from sieve.jobs.sweep import KEY as SWEEP
from sieve.jobs.sweep import fault_of
from sieve.resources import data_folder
from sieve.spec import ResolvedSpec, RunSpec, is_path, load_mapping, load_spec
from sieve.spec.models import NAME_PATTERN
from sieve.traces import available_traffic

MERGED: Final = ("traffic", "slo", "fleet", "shortlist", "rank")
RESERVED: Final = ("summary.json", "summary.csv")
_NOT_DRAWN: Final = ("synthetic",)
_DRAWN: Final = ("trace", "format", "requests", "arrival")
"""Keys of a traffic that give way when a job names the other kind of source."""


@dataclass(frozen=True)
class Named:
    """A job with its name.

    Attributes:
        job: the entry.
        name: of the job and of its folder; None if there is no usable one.
        fault: what is wrong with the name, None if nothing.
    """

    job: Job
    name: str | None
    fault: str | None = None


def named(jobs: JobFile) -> list[Named]:
    """Return every job with its name: its own, else its spec's, numbered where that is taken.

    Names are compared without letter case, because they become folders.
    """
    found: list[Named | None] = [None] * len(jobs.jobs)
    taken: dict[str, int] = {}
    without: list[tuple[int, str]] = []
    for i, job in enumerate(jobs.jobs):
        entry = job.entry()
        name = entry.get("name") if isinstance(entry, dict) else None
        if name is None:
            without.append((i, _derived(entry, jobs)))
            continue
        fault = _name_fault(name)
        if fault is None and str(name).lower() in taken:
            first = taken[str(name).lower()]
            fault = f"name {name!r} is that of job {first} already; names must differ"
        if fault is None:
            taken[name.lower()] = job.number
        found[i] = Named(job, None if fault else name, fault)
    counts: dict[str, int] = {}
    for i, stem in without:
        name = stem
        while name.lower() in taken:
            counts[stem] = counts.get(stem, 1) + 1
            name = f"{stem}-{counts[stem]}"
        taken[name.lower()] = jobs.jobs[i].number
        found[i] = Named(jobs.jobs[i], name)
    return [entry for entry in found if entry is not None]


def _name_fault(name: object) -> str | None:
    if not isinstance(name, str) or not re.fullmatch(NAME_PATTERN, name):
        shown = repr(name)[:60]
        return (
            f"name {shown} cannot be a folder: expected letters, digits, dots, dashes and "
            "underscores, 100 at most, the first a letter or a digit"
        )
    if name.lower() in RESERVED:
        return f"name {name!r} is that of a file beside the run folders; choose another"
    return None


def _derived(entry: Any, jobs: JobFile) -> str:
    """Return a name for a job without one: its spec file's stem, the defaults' name, or job."""
    spec = entry.get("spec") if isinstance(entry, dict) else None
    name = Path(spec).stem if isinstance(spec, str) else jobs.defaults.get("name")
    return name if _name_fault(name) is None and isinstance(name, str) else "job"


def job_spec(job: Named, jobs: JobFile) -> ResolvedSpec:
    """Return the resolved run spec of a job.

    Raises:
        SpecError: every fault of the job.
    """
    source = f"{jobs.source}: job {job.job.number}" + (f" ({job.name})" if job.name else "")
    if job.fault is not None or job.name is None:
        raise SpecError(source, [Fault("name", job.fault or "missing", job.job.line)])
    entry = job.job.entry()
    if not isinstance(entry, dict):
        message = f"found {kind_of(entry)}, expected a mapping with spec or spec keys"
        raise SpecError(source, [Fault("", message, job.job.line)])
    if SWEEP in entry:  # a sound one was replaced by its jobs
        raise SpecError(source, [Fault(SWEEP, str(fault_of(entry)), job.job.line)])
    allowed = [*OWN_KEYS, SWEEP, *(name for name in RunSpec.model_fields if name not in OWN_KEYS)]
    faults = [
        Fault(key, f"unknown key; nearest: {', '.join(nearest_names(key, allowed))}", job.job.line)
        for key in entry
        if key not in allowed
    ]
    if faults:
        raise SpecError(source, faults)
    calibration_of(job, jobs)
    defaults = {key: value for key, value in jobs.defaults.items() if key != "calibration"}
    raw = merged(defaults, _file_keys(entry.get("spec"), jobs, source))
    raw = merged(raw, {key: value for key, value in entry.items() if key not in OWN_KEYS})
    raw["name"] = job.name
    _apply(raw, entry.get("set"), source)
    try:
        return replace(load_spec(raw, base_dir=jobs.base_dir), source=source)
    except SpecError as error:
        raise SpecError(source, error.faults) from None


def calibration_of(job: Named, jobs: JobFile, otherwise: Path | None = None) -> Path | None:
    """Return the calibration file of a job: its own, else the defaults', else `otherwise`.

    Null in the jobs file stands for none. A relative path starts at the jobs file.

    Raises:
        SpecError: it is no path.
    """
    entry = job.job.entry()
    for keys in (entry if isinstance(entry, dict) else {}, jobs.defaults):
        if "calibration" not in keys:
            continue
        path = keys["calibration"]
        if path is None:
            return None
        if not isinstance(path, str) or not path:
            message = f"found {kind_of(path)}, expected the path of a file of `sieve calibrate`"
            raise SpecError(
                f"{jobs.source}: job {job.job.number}",
                [Fault("calibration", message, job.job.line)],
            )
        return jobs.base_dir / path
    return otherwise


def _file_keys(spec: Any, jobs: JobFile, source: str) -> dict[str, Any]:
    """Return the keys of a job's spec file, its paths made relative to the jobs file."""
    if spec is None:
        return {}
    if not isinstance(spec, str):
        raise SpecError(source, [Fault("spec", f"found {kind_of(spec)}, expected a path")])
    path = jobs.base_dir / spec
    try:
        raw = load_mapping(path, "run spec")
    except SpecError as error:
        faults = [Fault("spec", f"{spec}: {fault}") for fault in error.faults]
        raise SpecError(source, faults) from None
    return _moved(raw, path.parent, jobs.base_dir)


def _moved(raw: dict[str, Any], old: Path, new: Path) -> dict[str, Any]:
    """Return a spec whose relative paths start from another folder."""
    if old.resolve() == new.resolve():
        return raw

    def move(text: str) -> str:
        return text if Path(text).is_absolute() else os.path.relpath(old / text, new)

    out = dict(raw)
    traffic = out.get("traffic")
    if isinstance(traffic, dict) and isinstance(traffic.get("trace"), str):
        trace = traffic["trace"]
        shipped = trace in available_traffic()
        out["traffic"] = traffic if shipped else {**traffic, "trace": move(trace)}
    model, grid, tables = (out.get(key) for key in ("model", "grid", "kernel_tables"))
    if isinstance(model, str) and is_path(model, old):
        out["model"] = move(model)
    if isinstance(grid, str) and not (data_folder("grids") / f"{grid}.yaml").is_file():
        out["grid"] = move(grid)
    if isinstance(tables, str):
        out["kernel_tables"] = move(tables)
    return out


def merged(low: Mapping[str, Any], high: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of both, `high` winning; null takes a key away."""
    out = dict(low)
    for key, value in high.items():
        below = out.get(key)
        if key in MERGED and isinstance(value, dict) and isinstance(below, dict):
            out[key] = _inner(key, below, value)
        elif value is None:
            out.pop(key, None)
        else:
            out[key] = value
    return out


def _inner(key: str, low: Mapping[str, Any], high: Mapping[str, Any]) -> dict[str, Any]:
    out = dict(low)
    if key == "traffic":
        gone = _DRAWN if high.get("synthetic") else _NOT_DRAWN if high.get("trace") else ()
        out = {name: value for name, value in out.items() if name not in gone}
    for name, value in high.items():
        below = out.get(name)
        if name == "usd_per_gpu_hour" and isinstance(value, dict) and isinstance(below, dict):
            out[name] = {**below, **value}
        elif value is None:
            out.pop(name, None)
        else:
            out[name] = value
    return out


def _apply(raw: dict[str, Any], changes: Any, source: str) -> None:
    """Set the dotted keys of `set`; every mapping on the way is copied first."""
    if changes is None:
        return
    if not isinstance(changes, dict):
        message = f"found {kind_of(changes)}, expected dotted keys with values"
        raise SpecError(source, [Fault("set", message)])
    for key, value in changes.items():
        parts = key.split(".")
        if not all(parts) or "[" in key:
            raise SpecError(source, [Fault("set", f"found {key!r}, expected a dotted key")])
        if parts == ["name"]:
            raise SpecError(source, [Fault("set.name", "a job's name is its own key name")])
        target = raw
        for i, part in enumerate(parts[:-1]):
            child = target.get(part)
            if child is not None and not isinstance(child, dict):
                where = ".".join(parts[: i + 1])
                message = f"{where} is {kind_of(child)}, which has no keys"
                raise SpecError(source, [Fault(f"set.{key}", message)])
            target[part] = dict(child or {})
            target = target[part]
        if value is None:
            target.pop(parts[-1], None)
        else:
            target[parts[-1]] = value
