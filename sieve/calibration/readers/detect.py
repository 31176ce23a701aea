"""Which reader a result file needs, by its content."""

from __future__ import annotations

import csv
import hashlib
from pathlib import Path
from typing import Any, Final

from sieve.calibration.readers.aiperf import (
    is_aiperf,
    is_request_record,
    read_aiperf,
    read_requests,
)
from sieve.calibration.readers.guidellm import is_guidellm, read_guidellm
from sieve.calibration.readers.result import Result
from sieve.calibration.readers.vllm_bench import (
    MARKS,
    appended,
    is_bench,
    read_bench,
    read_sweep_csv,
)
from sieve.errors import ResultError

MOST_BYTES: Final = 1_000_000_000
KNOWN: Final = (
    "a result of vllm bench serve, a record of vllm bench sweep (summary.json, summary.csv), "
    "AIPerf's profile_export_aiperf.json or profile_export.jsonl, GuideLLM's JSON report, "
    "a table of measured runs (CSV), a start-up log of vLLM"
)


def kind_of(path: Path) -> str:
    """Return `results`, `measured` (a table of runs) or `log` (a start-up log).

    Raises:
        ResultError: the file cannot be read or is empty.
    """
    head = _read(path, 200_000).lstrip("\ufeff").lstrip()
    if not head:
        raise ResultError(f"{path}: is empty; expected {KNOWN}")
    if head[0] == "{" and '"levelname"' in head.splitlines()[0]:
        return "log"  # one JSON object a line
    if head[0] in "{[":
        # A log line may begin with a bracket, as in "[gpu0] INFO ..."
        return "results" if head[0] == "{" or head[1:].lstrip()[:1] in {"{", "]"} else "log"
    try:
        header = next(csv.reader([head.splitlines()[0]]), [])
    except csv.Error:  # no table
        return "log"
    if {"source", "gpu", "isl_mean"} <= set(header):
        return "measured"
    return "results" if set(MARKS) <= set(header) else "log"


def read_results(path: Path) -> list[Result]:
    """Return the results of a file, whatever tool wrote it.

    Raises:
        ResultError: not one of the known forms, empty, or at fault; the message names the field.
    """
    body = _read(path, MOST_BYTES).lstrip("\ufeff")
    sha256, file = hashlib.sha256(body.encode()).hexdigest(), path.name
    if not body.lstrip().startswith(("{", "[")):
        return read_sweep_csv(body, file, sha256)
    documents = appended(body, file)
    if len(documents) == 1 and isinstance(documents[0], list):
        if not documents[0]:
            raise ResultError(f"{file}: the list is empty; expected {KNOWN}")
        return read_bench(documents[0], file, sha256, "vllm_sweep")
    first: Any = documents[0]
    if is_request_record(first):
        return [read_requests(documents, file, sha256)]
    if len(documents) == 1 and is_guidellm(first):
        return read_guidellm(first, file, sha256)
    if len(documents) == 1 and is_aiperf(first):
        return [read_aiperf(first, file, sha256)]
    if is_bench(first):
        swept = "run_number" in first
        return read_bench(documents, file, sha256, "vllm_sweep" if swept else "vllm_bench")
    keys = ", ".join(sorted(map(str, first))[:8]) if isinstance(first, dict) else "no object"
    raise ResultError(f"{path}: not a result that sieve knows (found {keys}); expected {KNOWN}")


def _read(path: Path, most: int) -> str:
    try:
        if not path.is_file():
            what = "a folder" if path.is_dir() else "no such file"
            raise ResultError(f"{path}: {what}; expected {KNOWN}")
        if path.stat().st_size > MOST_BYTES:
            raise ResultError(f"{path}: larger than {MOST_BYTES:,} bytes")
        with path.open("rb") as handle:
            return handle.read(most).decode("utf-8", errors="strict" if most == MOST_BYTES else
                                            "replace")  # fmt: skip
    except UnicodeDecodeError:
        raise ResultError(f"{path}: is not UTF-8 text; expected {KNOWN}") from None
    except OSError as error:
        raise ResultError(f"{path}: cannot be read: {error.strerror}") from None
