"""The summary of a batch: one row a job."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any, Final

from sieve.jobs.merge import Named
from sieve.pipeline import EXIT_CODES
from sieve.results import clean
from sieve.version import __version__

SCHEMA_VERSION: Final = "1.0"
COLUMNS: Final = (
    "number", "name", "status", "exit_code", "candidate_id", "gpu", "num_gpus",
    "usd_per_mtok_low", "usd_per_mtok_mid", "usd_per_mtok_high", "verdict", "evidence", "num_ties",
    "fewest_gpus", "best_per_gpu", "cheapest", "nearest_miss", "reused", "elapsed_s", "message",
)  # fmt: skip
"""Columns of `summary.csv`. `status` is that of the answer, or `error` (exit code 2), or `bug` (1);
`message` says what is wrong."""
FAILED: Final = (1, 2)
FORMULA: Final = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""Beginnings of a formula, also in full width; tabs and line ends are taken off before."""


def result_row(number: int, data: Mapping[str, Any], *, reused: bool = False) -> dict[str, Any]:
    """Return the row of a job that has a result: its recommendation, if it has one."""
    answer = data["answer"]
    row: dict[str, Any] = dict.fromkeys(COLUMNS)
    row |= {"number": number, "name": data["spec"]["name"], "reused": reused}
    row |= {"status": answer["status"], "exit_code": EXIT_CODES[answer["status"]]}
    if answer["status"] in {"answer", "weak_evidence"}:
        best = data["ranking"][0]
        row |= {name: best[name] for name in ("candidate_id", "gpu", "num_gpus")}
        row |= {f"usd_per_mtok_{end}": value for end, value in best["usd_per_mtok"].items()}
        row |= {"verdict": best["verdict"], "evidence": best["evidence"]}
        row |= {name: answer[name] for name in ("fewest_gpus", "best_per_gpu", "cheapest")}
        row["num_ties"] = len(answer["tie_group"]) - 1
    elif data["nearest_misses"]:
        row["nearest_miss"] = data["nearest_misses"][0]["candidate_id"]
    return row


def error_row(item: Named, exit_code: int, error: BaseException) -> dict[str, Any]:
    """Return the row of a job that has none: bad input (2) or a bug (1)."""
    text = str(error) if exit_code == 2 else f"{type(error).__name__}: {error}"
    return dict.fromkeys(COLUMNS) | {
        "number": item.job.number,
        "name": item.name,
        "status": "error" if exit_code == 2 else "bug",
        "exit_code": exit_code,
        "reused": False,
        "message": text,
    }


def to_document(rows: Sequence[Mapping[str, Any]], elapsed_s: float) -> dict[str, Any]:
    """Return `summary.json`; two batches of the same jobs differ in `elapsed_s` and `reused`."""
    return {
        "schema_version": SCHEMA_VERSION,
        "sieve_version": __version__,
        "num_jobs": len(rows),
        "num_failed": sum(row["exit_code"] in FAILED for row in rows),
        "num_reused": sum(bool(row["reused"]) for row in rows),
        "jobs": [clean(row) for row in rows],
        "elapsed_s": elapsed_s,
    }


def to_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return `summary.csv`; one line a job; what looks like a formula gets a quote."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows:
        writer.writerow([_cell(row[name]) for name in COLUMNS])
    return out.getvalue()


def _cell(value: Any) -> Any:
    """Return a cell that no spreadsheet takes for a formula; texts come from strangers' specs."""
    if isinstance(value, str):
        lines = (line.strip() for line in value.splitlines())
        value = "; ".join(line for line in lines if line)
        if value.startswith(FORMULA):
            return "'" + value
    return "" if value is None else value
