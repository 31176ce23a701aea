"""`sieve calibrate` on benchmark results: read, matched, merged; if one fails none is used."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sieve.calibration.points import Point, contradiction
from sieve.calibration.readers.detect import kind_of
from sieve.calibration.serving import Calibration
from sieve.calibration.serving_file import merge_points, points_of, summary
from sieve.errors import ResultError
from sieve.matching import Matched, Stated, match_file, match_table, open_run
from sieve.memory.corrections import read_document
from sieve.verify.measured_replay import Replays


def sort_inputs(paths: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Return start-up logs and benchmark results among the files, in their order."""
    logs = [path for path in paths if kind_of(path) == "log"]
    return logs, [path for path in paths if path not in logs]


def learn(
    paths: Sequence[Path], stated: Stated, into: Path | None, *, leave_out: bool = False
) -> tuple[dict[str, Any], list[Point]]:
    """Return the report on benchmark results, and the points to add to the calibration file.

    The report has `results` (one entry a point), `refused`, `skipped`, `corrections` (what the file
    then teaches) and `expired`. Nothing is written here.

    Args:
        paths: result files.
        stated: what the user says beside them.
        into: calibration file that the points will be merged into, or None.
        leave_out: go on without results that are refused, instead of refusing all.

    Raises:
        ResultError: a file cannot be read; or a result is of another model, run or traffic, edited,
            empty, or contradicts another, each named.
    """
    run = None if stated.run is None else open_run(stated.run)
    replays, found = Replays(), Matched()
    for path in paths:
        try:
            is_table = kind_of(path) == "measured"
            part = (
                match_table(path, replays) if is_table else match_file(path, stated, run, replays)
            )
        except ResultError as error:
            found.refused.append((path.name, str(error).removeprefix(f"{path.name}: ")))
            continue
        found.points += part.points
        found.notes |= part.notes
        found.refused += part.refused
        found.skipped += part.skipped
    points = _consistent(found, into)
    if found.refused and not leave_out:
        lines = [f"  {label}: {reason}" for label, reason in found.refused]
        count = len(found.refused)
        raise ResultError(
            "\n".join([f"{count} result{'s' if count > 1 else ''} refused, nothing was learned:",
                       *lines, "  --leave-out goes on without them"])
        )  # fmt: skip
    if not points:
        reasons = sorted({reason for _, reason in (*found.refused, *found.skipped)})
        raise ResultError("no result can be used: " + "; ".join(reasons[:5]))
    calibration = merge_points(into, points)
    report = {
        "results": [_entry(point, calibration, found) for point in points],
        "refused": [{"result": label, "reason": reason} for label, reason in found.refused],
        "skipped": [{"result": label, "reason": reason} for label, reason in found.skipped],
        "corrections": summary(calibration),
        "expired": calibration.expired,
    }
    return report, points


def _consistent(found: Matched, into: Path | None) -> list[Point]:
    """Return the points without those that contradict each other or the file; these are refused."""
    held: list[Point] = []
    if into is not None and into.exists():
        held = list(points_of(read_document(into), str(into)))
    points = list({p.id: p for p in found.points}.values())
    new = {p.id for p in points}
    held = [p for p in held if p.id not in new]
    while (clash := contradiction([*held, *points])) is not None:
        out = {clash.first.id, clash.second.id} & new
        if not out:
            raise ResultError(f"{into}: {clash.reason}")
        found.refused.append((clash.second.label, clash.reason))
        points = [p for p in points if p.id not in out]
    return points


def _entry(point: Point, calibration: Calibration, found: Matched) -> dict[str, Any]:
    """Return one point for the report; errors are percent of the prediction."""
    place, fix = point.place, calibration.correction(point.place)
    after = {}
    for kind, log_factor in (("ttft", fix.ttft), ("tpot", fix.tpot)):
        metric = point.middle(kind)
        if metric:
            host = fix.host_s if kind == "ttft" else 0.0
            corrected = (point.predicted[metric] + host) * math.exp(log_factor)
            after[metric] = 100 * (corrected / point.measured[metric] - 1)
    return {
        "file": point.file,
        "where": point.where,
        "sha256": point.sha256,
        "source_format": point.source_format,
        "source_version": point.source_version,
        "date": point.date,
        "matched_by": point.matched_by,
        "candidate_id": point.candidate_id or None,
        "load": point.load,
        "num_requests": point.num_requests,
        "place": asdict(place),
        "regime": {"load": place.band, "prefill": place.pressure},
        "metrics": {
            metric: {
                "measured": value,
                "predicted": point.predicted[metric],
                "error_percent": 100 * (point.predicted[metric] / value - 1),
            }
            for metric, value in point.measured.items()
            if metric in point.predicted
        },
        "error_percent_corrected": after,
        "notes": list(found.notes.get(point.label, ())),
    }
