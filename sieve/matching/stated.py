"""What the user states of results, and a result beside its prediction as a point."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sieve.calibration.points import Place, Point
from sieve.calibration.readers import Result
from sieve.calibration.serving_file import basis_of
from sieve.catalog.models import load_model
from sieve.errors import CatalogError, NotYetError, ResultError

ID: Final = re.compile(
    r"(?P<gpu>[a-z0-9-]+)\.tp(?P<tp>\d{1,4})\.pp(?P<pp>\d{1,4})\.ep(?P<ep>\d{1,4})"
    r"\.r(?P<replicas>\d{1,6})\.(?P<weight>[a-z0-9_-]+)\.kv-(?P<kv>[a-z0-9_-]+)"
    r"\.s(?P<seqs>\d{1,7})\.b(?P<budget>\d{1,8})(\.(?P<rest>.*))?"
)
"""A candidate id that spells out its axes."""


@dataclass(frozen=True)
class Stated:
    """What the user says of results beside their files; None: not stated."""

    run: Path | None = None
    candidate: str | None = None
    level: float | None = None
    model: str | None = None
    gpu: str | None = None
    engine: str | None = None
    tp: int | None = None
    pp: int | None = None
    ep: int | None = None
    weight_dtype: str | None = None
    kv_cache_dtype: str | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None


def check_model(result: Result, wanted: str) -> None:
    """Refuse a result of another model; the names of one checkpoint's copies are one model."""
    if not result.model or result.model == wanted:
        return
    if _canonical(result.model) != _canonical(wanted):
        raise ResultError(f"is of model {result.model!r}, not of {wanted!r}")


def _canonical(name: str) -> str:
    try:
        return load_model(name, any_family=True).name.lower()
    except (CatalogError, NotYetError):
        return name.rstrip("/").split("/")[-1].lower()


def point_of(
    result: Result, place: Place, predicted: Mapping[str, float], how: str, candidate: str,
    load: str,
) -> Point:  # fmt: skip
    """Return a result beside its prediction.

    Args:
        result: with what was measured.
        place: deployment and load.
        predicted: by metric, before any correction.
        how: how the candidate was found.
        candidate: its id, "" if it is none of a run.
        load: what was offered, in words.

    Raises:
        ResultError: nothing that was measured was predicted.
    """
    measured = {k: v for k, v in result.measured.items() if v > 0}
    positive = {k: v for k, v in predicted.items() if k in measured and v > 0}
    point = Point(
        id=hashlib.sha256(f"{result.sha256}\n{result.where}".encode()).hexdigest(),
        file=result.file, where=result.where, sha256=result.sha256,
        source_format=result.source_format, source_version=result.source_version,
        date=result.date, matched_by=how, candidate_id=candidate, load=load,
        num_requests=result.num_requests,
        basis=basis_of(place.engine, place.release, place.gpu), place=place, measured=measured,
        predicted=positive,
    )  # fmt: skip
    if not positive:
        raise ResultError("measures nothing that was predicted: TTFT, TPOT or throughput")
    return point
