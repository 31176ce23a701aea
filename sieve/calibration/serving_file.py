"""Measured points in a calibration file: read, checked for expiry, merged, written in one step."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

from sieve.calibration.corrections import write_document
from sieve.calibration.points import (
    MAX_POINTS,
    SECTION,
    Point,
    contradiction,
    from_entry,
    to_entry,
)
from sieve.calibration.serving import Calibration
from sieve.catalog.accelerators import load_gpu
from sieve.catalog.engines import load_engine
from sieve.errors import CatalogError, ResultError
from sieve.memory.corrections import SCHEMA_VERSION, read_document
from sieve.perf.constants import step_constants
from sieve.perf.kernel_table import system_folder


@lru_cache(maxsize=256)
def basis_of(engine: str, release: str, gpu: str) -> str:
    """Return a digest of what predictions for this engine release and GPU rest on.

    That is the engine profile, the constants of the step times and the measured kernels.

    Raises:
        CatalogError: unknown engine or GPU.
    """
    profile = load_engine(f"{engine}=={release}")
    facts = asdict(profile)
    for name in ("requested", "substituted", "notes"):
        facts.pop(name)
    folder = system_folder(load_gpu(gpu).kernel_system)
    tables = b"" if folder is None else (folder / "provenance.yaml").read_bytes()
    known = [facts, asdict(step_constants()), hashlib.sha256(tables).hexdigest()]
    text = json.dumps(known, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def read_calibration(path: Path) -> Calibration:
    """Return the points of a calibration file that still hold.

    Raises:
        ResultError: it cannot be read, or an entry is damaged; the message names it.
    """
    document = read_document(path)
    points = points_of(document, str(path))
    if found := contradiction(points):
        raise ResultError(f"{path}: {found.reason}")
    held = tuple(p for p in points if _holds(p))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return Calibration(held, len(points) - len(held), digest).prepared()


def _holds(point: Point) -> bool:
    place = point.place
    try:
        return point.basis == basis_of(place.engine, place.release, place.gpu)
    except CatalogError:
        return False


def points_of(document: Mapping[str, Any], label: str) -> tuple[Point, ...]:
    """Return all points of a calibration document called `label` in messages, by id.

    Raises:
        ResultError: an entry is damaged.
    """
    section = document.get(SECTION, {})
    entries = section.get("points", []) if isinstance(section, dict) else None
    if not isinstance(entries, list) or len(entries) > MAX_POINTS:
        found = len(entries) if isinstance(entries, list) else type(entries).__name__
        raise ResultError(
            f"{label}: {SECTION}.points: found {found}, expected a list of up to {MAX_POINTS:,}"
        )
    out: dict[str, Point] = {}
    for i, entry in enumerate(entries):
        point = from_entry(entry, f"{label}: {SECTION}.points[{i}]")
        if point.id in out:
            raise ResultError(
                f"{label}: {SECTION}.points[{i}]: the same result comes twice; take one out"
            )
        out[point.id] = point
    return tuple(out[key] for key in sorted(out))


def merge_points(path: Path | None, points: Iterable[Point]) -> Calibration:
    """Return the calibration of a file with these points added; without a file, of them alone.

    A result that the file holds already is replaced: reading it twice changes nothing.

    Raises:
        ResultError: the file cannot be read, results contradict each other, or there are too many.
    """
    known: dict[str, Point] = {}
    if path is not None and path.exists():
        document = read_document(path)
        known = {p.id: p for p in points_of(document, str(path))}
    known |= {p.id: p for p in points}
    ordered = tuple(known[key] for key in sorted(known))
    if len(ordered) > MAX_POINTS:
        raise ResultError(
            f"{len(ordered):,} points; a calibration file holds {MAX_POINTS:,}: begin a new one"
        )
    if found := contradiction(ordered):
        raise ResultError(found.reason)
    held = tuple(p for p in ordered if _holds(p))
    return Calibration(held, len(ordered) - len(held)).prepared()


def add_points(path: Path, points: Iterable[Point]) -> Calibration:
    """Merge points into a calibration file, made if missing, and return what it then teaches.

    The file is replaced in one step, and what it holds beside is kept.

    Raises:
        ResultError: as `merge_points`, or the file cannot be written.
    """
    added = list(points)
    merged = merge_points(path, added)
    document: dict[str, Any] = {"schema_version": SCHEMA_VERSION}
    if path.exists():
        document = read_document(path)
    known = {p.id: p for p in points_of(document, str(path))} | {p.id: p for p in added}
    document[SECTION] = {
        "corrections": summary(merged),
        "points": [to_entry(known[key]) for key in sorted(known)],
    }
    write_document(path, document)
    return merged


def summary(calibration: Calibration) -> list[dict[str, Any]]:
    """Return, for people, what each (GPU, model, precision) has taught, by engine release.

    The log factors are at the middle of the points' loads. Nothing reads them back: they follow
    from the points.
    """
    groups: dict[tuple[str, ...], list[Point]] = {}
    for point in calibration.points:
        place = point.place
        groups.setdefault((place.engine, place.release, *place.pair), []).append(point)
    rows = []
    for key, points in sorted(groups.items()):
        ordered = sorted(points, key=lambda p: (p.place.batch, p.id))
        middle = calibration.correction(ordered[len(ordered) // 2].place)
        rows.append(
            {
                **dict(
                    zip(("engine", "release", "gpu", "model", "weight_dtype"), key, strict=True)
                ),
                "num_points": len(points),
                "data_sha256": _data_hash(points),
                "dates": sorted({p.date for p in points if p.date}),
                "ttft_log_factor": middle.ttft,
                "tpot_log_factor": middle.tpot,
                "ttft_host_s": middle.host_s,
                "cells": _cells(calibration, points),
            }
        )
    return rows


def _data_hash(points: Iterable[Point]) -> str:
    return hashlib.sha256("".join(sorted(p.id for p in points)).encode()).hexdigest()


def _cells(calibration: Calibration, points: Iterable[Point]) -> list[dict[str, Any]]:
    out = []
    for cell in sorted({p.place.cell for p in points}):
        scores = calibration.cell_scores(cell)
        family, _, band, pressure = cell
        count = {kind: len(scores.get(kind, ())) for kind in ("ttft", "tpot")}
        out.append({"family": family, "load": band, "prefill": pressure, "num_scores": count})
    return out
