"""Measured corrections of the ledger: what start-up logs showed beyond what was predicted.

A correction belongs to one engine release, GPU, model and set of parallel sizes; it is added to the
terms of the ledger that are fitted constants (activation, non-torch, graphs), never to weights or
blocks, which follow from shapes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from sieve.errors import ResultError
from sieve.units import GIB
from sieve.version import schema_fault

SCHEMA_VERSION: Final = 1
"""Of calibration files."""
_REMAKE: Final = "make it anew with `sieve calibrate RESULT ... --into FILE`"

SECTION: Final = "start_up"
"""Key of the calibration file under which corrections of the ledger stand."""
TERMS: Final = ("activation_bytes", "non_torch_bytes", "graph_bytes", "unsplit_bytes")
"""Terms that are corrected; `unsplit_bytes`: of their sum, where a log does not take it apart."""
KNOBS: Final = ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "enforce_eager")
"""Options that a correction depends on beside its key."""
_MOST_FILE_BYTES: Final = 10_000_000
_MOST_TERM_BYTES: Final = 1024 * GIB


@dataclass(frozen=True, order=True)
class CorrectionKey:
    """What a correction holds for; `version` is the release, as in 0.19."""

    engine: str
    version: str
    gpu: str
    model: str
    tp: int
    pp: int
    ep: int


@dataclass(frozen=True)
class LogCorrection:
    """What one log showed: measured minus predicted, bytes.

    Attributes:
        sha256: of the log.
        date: as the log states it, "" if it does not.
        terms: of `TERMS`, those that the log states.
        knobs: of `KNOBS`, as the engine had them.
    """

    sha256: str
    date: str
    terms: Mapping[str, float]
    knobs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Correction:
    """All logs of one key."""

    key: CorrectionKey
    logs: tuple[LogCorrection, ...]

    @property
    def terms(self) -> dict[str, float]:
        """Return the mean over the logs that state each term, bytes."""
        return {
            name: fmean(given)
            for name in TERMS
            if (given := [log.terms[name] for log in self.logs if name in log.terms])
        }


def release(version: str) -> str:
    """Return major and minor of a version, patch releases share a correction."""
    return ".".join(version.split(".")[:2])


def matching(corrections: Sequence[Correction], key: CorrectionKey) -> Correction | None:
    """Return the correction for a key, None if there is none."""
    return next((found for found in corrections if found.key == key), None)


def merged(
    corrections: Sequence[Correction], key: CorrectionKey, log: LogCorrection
) -> tuple[Correction, ...]:
    """Return corrections with one log more, by key; a log that is there already is replaced."""
    found = matching(corrections, key)
    logs = {known.sha256: known for known in found.logs} if found else {}
    logs[log.sha256] = log
    ordered = tuple(logs[name] for name in sorted(logs))
    rest = [known for known in corrections if known.key != key]
    return tuple(sorted([*rest, Correction(key, ordered)], key=lambda known: known.key))


def read_document(path: Path) -> dict[str, Any]:
    """Return a calibration file as JSON data.

    Raises:
        ResultError: it cannot be read, is too large, no JSON object or of another schema version.
    """
    try:
        if path.is_file() and path.stat().st_size > _MOST_FILE_BYTES:
            raise ResultError(
                f"{path}: a calibration file has at most {_MOST_FILE_BYTES:,} bytes, this one "
                f"{path.stat().st_size:,}"
            )
        document = json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_constant)
    except OSError as error:
        raise ResultError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ResultError(f"{path}: no calibration file: {error}") from error
    if not isinstance(document, dict):
        raise ResultError(f"{path}: no calibration file: expected a JSON object")
    if fault := schema_fault(document.get("schema_version"), SCHEMA_VERSION, _REMAKE):
        raise ResultError(f"{path}: {fault}")
    return document


def read_corrections(path: Path) -> tuple[Correction, ...]:
    """Return the corrections of the ledger in a calibration file, none if it has other things only.

    Raises:
        ResultError: it cannot be read, or an entry is damaged; the message names it.
    """
    return corrections_of(read_document(path), str(path))


def corrections_of(document: Mapping[str, Any], label: str) -> tuple[Correction, ...]:
    """Return the corrections in a calibration document called `label` in messages.

    Raises:
        ResultError: an entry is damaged.
    """
    entries = document.get(SECTION, [])
    if not isinstance(entries, list):
        raise ResultError(f"{label}: {SECTION} is no list")
    out: list[Correction] = []
    for place, entry in enumerate(entries):
        where = f"{label}: {SECTION}[{place}]"
        found = _correction(entry, where)
        if matching(out, found.key):
            raise ResultError(f"{where}: the same deployment comes twice")
        out.append(found)
    return tuple(sorted(out, key=lambda known: known.key))


def to_entries(corrections: Sequence[Correction]) -> list[dict[str, Any]]:
    """Return corrections as JSON data; `corrections_of` reads it."""
    return [
        {
            **{name: getattr(known.key, name) for name in CorrectionKey.__dataclass_fields__},
            "num_logs": len(known.logs),
            "mean": known.terms,
            "logs": [
                {
                    "sha256": log.sha256,
                    "date": log.date,
                    "terms": {name: log.terms[name] for name in TERMS if name in log.terms},
                    "knobs": {name: log.knobs[name] for name in KNOBS if name in log.knobs},
                }
                for log in known.logs
            ],
        }
        for known in corrections
    ]


def _correction(entry: Any, where: str) -> Correction:
    if not isinstance(entry, dict) or not isinstance(entry.get("logs"), list):
        raise ResultError(f"{where}: expected an object with a list of `logs`")
    values: dict[str, Any] = {}
    for name in ("engine", "version", "gpu", "model"):
        if not isinstance(entry.get(name), str):
            raise ResultError(f"{where}.{name}: found {entry.get(name)!r}, expected text")
        values[name] = entry[name]
    for name in ("tp", "pp", "ep"):
        size = entry.get(name)
        if not isinstance(size, int) or isinstance(size, bool) or not 1 <= size <= 4096:
            raise ResultError(f"{where}.{name}: found {size!r}, allowed is 1 to 4096")
        values[name] = size
    logs = tuple(_log(log, f"{where}.logs[{i}]") for i, log in enumerate(entry["logs"]))
    if not logs:
        raise ResultError(f"{where}.logs: empty")
    return Correction(CorrectionKey(**values), logs)


def _log(log: Any, where: str) -> LogCorrection:
    terms = log.get("terms") if isinstance(log, dict) else None
    if not isinstance(terms, dict) or not isinstance(log.get("sha256"), str):
        raise ResultError(f"{where}: expected an object with `sha256` and `terms`")
    for name, value in terms.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if name not in TERMS or not number or not math.isfinite(value):
            raise ResultError(f"{where}.terms.{name}: found {value!r}; terms are {_listed()}")
        if abs(value) > _MOST_TERM_BYTES:
            raise ResultError(f"{where}.terms.{name}: {value!r} bytes are beyond any card")
    knobs = log.get("knobs", {})
    knobs = knobs if isinstance(knobs, dict) else {}
    return LogCorrection(
        sha256=log["sha256"],
        date=str(log.get("date", "")),
        terms={name: float(value) for name, value in terms.items()},
        knobs={
            name: knobs[name] for name in KNOBS if isinstance(knobs.get(name), int | bool)
        },
    )  # fmt: skip


def _listed() -> str:
    return ", ".join(TERMS)


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is not a number")
