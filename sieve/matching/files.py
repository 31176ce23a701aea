"""Measured results beside their predictions: which candidate was it, and what was predicted?

A result finds its candidate by the id that its metadata carries or that the user gives, in a run
folder or by the axes that the id spells out; else by model, GPU, split, precision and engine
options. What belongs to another model, run or traffic is refused by name.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

from sieve.calibration.points import Point
from sieve.calibration.readers import read_results
from sieve.errors import ResultError, SieveError
from sieve.matching.by_facts import by_facts, replayed
from sieve.matching.in_run import Run, in_run
from sieve.matching.stated import Stated
from sieve.verify.measured_replay import Replays
from sieve.verify.measured_rows import MeasuredRow, read_rows


@dataclass(eq=False)
class Matched:
    """Points that were found, and what was not used and why.

    Attributes:
        points: in the order of the files.
        notes: by label of a result: how its figures were read.
        refused: (label, reason) of results that contradict themselves or belong elsewhere.
        skipped: (label, reason) of rows of a table that cannot be replayed.
    """

    points: list[Point] = field(default_factory=list)
    notes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    refused: list[tuple[str, str]] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)


def match_file(path: Path, stated: Stated, run: Run | None, replays: Replays) -> Matched:
    """Return the points of a result file, of whatever tool.

    Raises:
        ResultError: the file cannot be read.
    """
    out = Matched()
    for result in read_results(path):
        try:
            if run is not None:
                out.points.append(in_run(result, run, stated))
            else:
                out.points.append(by_facts(result, stated, replays))
            if result.notes:
                out.notes[result.label] = result.notes
        except SieveError as error:
            message = str(error)
            out.refused.append((result.label, message.removeprefix(f"{result.label}: ")))
    return out


def match_table(path: Path, replays: Replays, *, eligible_only: bool = False) -> Matched:
    """Return the points of a table of measured runs; each row is replayed.

    Args:
        path: CSV file.
        replays: kept step times.
        eligible_only: leave out rows that are not marked eligible.

    Raises:
        ResultError: the file cannot be read or has a cell that cannot be.
    """
    out = Matched()
    rows = read_rows(path)
    if not rows:
        raise ResultError(f"{path}: holds no row: an empty table says nothing")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    for row in rows:
        label = f"{row.file}, row {row.row}"
        if eligible_only and not row.eligible:
            out.skipped.append((label, "not marked eligible"))
            continue
        if why := _inconsistent(row):
            out.refused.append((label, why))
            continue
        try:
            version = row.text["engine_version"]
            facts = ("measured_csv", version, "", "model, GPU, split, precision, load of the row")
            out.points.append(replayed(row, digest, f"row {row.row}", facts, "", replays))
        except SieveError as error:
            out.skipped.append((label, str(error)))
    return out


def _inconsistent(row: MeasuredRow) -> str | None:
    """Return which two cells of a row cannot both be true, in words."""
    pairs = (("ttft_p50", "ttft_p99"), ("tpot_p50", "tpot_p99"), ("ttft", "e2e"),
             ("output_tokens_per_s", "total_tokens_per_s"))  # fmt: skip
    for low, high in pairs:
        a, b = row.measured.get(low), row.measured.get(high)
        if a is not None and b is not None and a > b * 1.02:
            return f"{low} is {a:.6g} and {high} is {b:.6g}: the row was edited"
    return None
