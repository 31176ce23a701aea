"""Results of `vllm bench serve` and of `vllm bench sweep` (0.33.0, and earlier with these keys).

A sweep's records are bench results with the overrides of the engine and the client beside them.
`median_*` is p50. Of detailed results the requests are kept one by one.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from sieve.calibration.readers.result import (
    MOST_SECONDS,
    Result,
    Series,
    agrees,
    count,
    metadata_of,
    number,
    optional,
    rising,
    shown,
    text,
)
from sieve.errors import ResultError
from sieve.json_text import whole_number

MARKS: Final = ("output_throughput", "completed", "duration")
"""Keys that every bench result has."""
_MS: Final = 1e-3
_NAMES: Final = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2el": "e2e"}
_STATISTICS: Final = {"mean": "", "median": "_p50", "p99": "_p99"}
_LISTS: Final = ("input_lens", "output_lens", "ttfts", "itls", "start_times", "latencies")


def is_bench(data: Any) -> bool:
    """Return whether this is a bench result."""
    return isinstance(data, dict) and all(mark in data for mark in MARKS)


def read_bench(
    documents: Sequence[Any], file: str, sha256: str, source_format: str
) -> list[Result]:
    """Return the results of a bench file: one, or several appended; or the records of a sweep.

    Raises:
        ResultError: one of them is no result, empty, or its totals contradict each other.
    """
    several = len(documents) > 1
    out = []
    for i, data in enumerate(documents):
        where = _where(data, i) if several else ""
        label = f"{file}, {where}" if where else file
        if not is_bench(data):
            raise ResultError(f"{label}: not a result of vllm bench: {', '.join(MARKS)} expected")
        out.append(_result(data, file, where, label, sha256, source_format))
    return out


def _where(data: Any, number_: int) -> str:
    run = data.get("run_number") if isinstance(data, dict) else None
    return f"record {number_}" + (f" (run {run})" if isinstance(run, int) else "")


def read_sweep_csv(body: str, file: str, sha256: str) -> list[Result]:
    """Return the records of a sweep's `summary.csv`.

    Raises:
        ResultError: it has no rows, or one is at fault.
    """
    try:
        rows = list(csv.DictReader(io.StringIO(body, newline="")))
    except csv.Error as error:
        raise ResultError(f"{file}: no table of a sweep: {error}") from None
    if not rows:
        raise ResultError(f"{file}: holds no result: the sweep's table is empty")
    return read_bench([_typed(row) for row in rows], file, sha256, "vllm_sweep")


def _typed(row: Mapping[str | None, Any]) -> dict[str, Any]:
    """Return the cells of a row, numbers as numbers; lists of a detailed run are left out."""
    out: dict[str, Any] = {}
    for name, cell in row.items():
        if name is None or cell is None or cell == "" or name in _LISTS:
            continue
        try:
            out[name] = float(cell)
        except ValueError:
            out[name] = cell
    for name in ("model_id", "candidate_id", "run", "date"):
        if name in out:
            out[name] = str(row[name])
    return out


def _result(
    data: Mapping[str, Any], file: str, where: str, label: str, sha256: str, source_format: str
) -> Result:
    completed = count(label, data, "completed")
    if not completed:
        failed = count(label, data, "failed")
        raise ResultError(
            f"{label}: no request was answered (completed 0, failed {failed or 0}): an empty "
            "result says nothing"
        )
    duration = number(label, data, "duration", most=MOST_SECONDS)
    tokens_out = count(label, data, "total_output_tokens")
    tokens_in = count(label, data, "total_input_tokens")
    _check_totals(label, data, completed, duration, tokens_in, tokens_out)
    measured = _latencies(label, data)
    measured["output_tokens_per_s"] = number(label, data, "output_throughput")
    for name, key in (("requests_per_s", "request_throughput"),
                      ("total_tokens_per_s", "total_token_throughput")):  # fmt: skip
        value = optional(label, data, key)
        if value:
            measured[name] = value
    if not any(name.startswith(("ttft", "tpot", "itl")) for name in measured):
        raise ResultError(f"{label}: holds no TTFT, TPOT or ITL, such as median_ttft_ms")
    series = _series(label, data, completed, tokens_out)
    users = count(label, data, "max_concurrency")
    return Result(
        file=file,
        where=where,
        sha256=sha256,
        source_format=source_format,
        source_version=text(data, "vllm_version"),
        date=text(data, "date"),
        model=text(data, "model_id"),
        metadata=metadata_of(data),
        users=users or None,
        rate_per_s=_rate(label, data),
        num_requests=completed,
        input_tokens=tokens_in / completed if tokens_in else None,
        output_tokens=tokens_out / completed if tokens_out else None,
        duration_s=duration,
        measured=measured,
        series=series,
    )


def _rate(label: str, data: Mapping[str, Any]) -> float | None:
    rate = data.get("request_rate")
    if rate is None or rate == "":
        return None
    if rate in ("inf", math.inf):
        return math.inf
    value = optional(label, data, "request_rate")
    if not value:
        raise ResultError(f"{label}: request_rate: found {shown(rate)}; allowed is above 0 or inf")
    return value


def _latencies(label: str, data: Mapping[str, Any]) -> dict[str, float]:
    out: dict[str, float] = {}
    for name in ("mean", "median"):
        both = [(f"{name}_{key}_ms", optional(label, data, f"{name}_{key}_ms", most=1e10))
                for key in ("ttft", "e2el")]  # fmt: skip
        rising(label, both)
    for key, metric in _NAMES.items():
        found = {
            name: optional(label, data, f"{name}_{key}_ms", most=MOST_SECONDS * 1e3)
            for name in ("mean", "median", "p50", "p90", "p95", "p99")
        }
        percentiles = [("median", found["median"]), *((p, found[p]) for p in ("p90", "p95", "p99"))]
        rising(label, [(f"{name}_{key}_ms", value) for name, value in percentiles])
        found["median"] = found["median"] if found["median"] is not None else found["p50"]
        for name, ending in _STATISTICS.items():
            value = found[name]
            if value:  # answers of one token have a TPOT of 0, which is none
                out[f"{metric}{ending}"] = value * _MS
    return out


def _check_totals(
    label: str, data: Mapping[str, Any], completed: int, duration: float,
    tokens_in: int | None, tokens_out: int | None,
) -> None:  # fmt: skip
    """Refuse totals that do not follow from each other."""
    agrees(label, "output_throughput", optional(label, data, "output_throughput"),
           "total_output_tokens and duration",
           None if tokens_out is None else tokens_out / duration)  # fmt: skip
    agrees(label, "request_throughput", optional(label, data, "request_throughput"),
           "completed and duration", completed / duration)  # fmt: skip
    if tokens_in is not None and tokens_out is not None:
        agrees(label, "total_token_throughput", optional(label, data, "total_token_throughput"),
               "total tokens and duration", (tokens_in + tokens_out) / duration)  # fmt: skip
    prompts = count(label, data, "num_prompts")
    if prompts is not None and completed > prompts:
        raise ResultError(f"{label}: completed is {completed}, more than num_prompts, {prompts}")
    users = count(label, data, "max_concurrency")
    mean = optional(label, data, "mean_e2el_ms")
    if users and mean:
        # Little's law: no more requests are in flight than users.
        most = completed * mean * _MS / duration
        if most > users * (1 + 5 * 0.02):
            raise ResultError(
                f"{label}: mean_e2el_ms, completed and duration make {most:.1f} requests in "
                f"flight, more than max_concurrency, {users}: the file was edited or cut"
            )


def _series(
    label: str, data: Mapping[str, Any], completed: int, tokens_out: int | None
) -> Series | None:
    if not all(isinstance(data.get(name), list) for name in ("start_times", "ttfts")):
        return None
    size = len(data["start_times"])
    for name in ("input_lens", "output_lens", "ttfts", "itls"):
        if not isinstance(data.get(name), list) or len(data[name]) != size:
            raise ResultError(f"{label}: {name}: expected a list of {size}, as start_times has")
    try:
        columns = [np.asarray(data[n], np.float64)
                   for n in ("start_times", "ttfts", "input_lens", "output_lens")]  # fmt: skip
        gaps = tuple(tuple(float(gap) for gap in row) for row in data["itls"])
    except (TypeError, ValueError):
        raise ResultError(f"{label}: the lists of a detailed result hold numbers only") from None
    start, ttft, prompt, answer = columns
    if not all(np.isfinite(c).all() and (c >= 0).all() for c in columns):
        raise ResultError(f"{label}: start_times, ttfts, lengths: a number below 0 or not finite")
    kept = (answer > 0) & (ttft > 0)
    if int(kept.sum()) != completed:
        raise ResultError(
            f"{label}: completed is {completed}, but {int(kept.sum())} entries of output_lens hold "
            "an answer: the file was edited or cut"
        )
    agrees(label, "total_output_tokens", tokens_out and float(tokens_out), "output_lens",
           float(answer.sum()))  # fmt: skip
    mean = optional(label, data, "mean_ttft_ms")
    agrees(label, "mean_ttft_ms", mean, "ttfts", float(ttft[kept].mean()) * 1e3)
    order = np.flatnonzero(kept)[np.argsort(start[kept], kind="stable")]
    first = start[order] + ttft[order]
    spans = np.array([math.fsum(gaps[i]) for i in order])
    origin = start[order[0]]
    return Series(
        start[order] - origin, first - origin, first + spans - origin,
        np.maximum(prompt[order], 1).astype(np.int64), answer[order].astype(np.int64),
        tuple(gaps[i] for i in order),
    )  # fmt: skip


def appended(body: str, file: str) -> list[Any]:
    """Return the JSON documents of a file: one, or several one after the other.

    Raises:
        ResultError: it is no JSON.
    """
    decoder = json.JSONDecoder(parse_constant=_no_constant, parse_int=whole_number)
    place, out = 0, []
    while place < len(body):
        if body[place].isspace() or body[place] == ",":
            place += 1
            continue
        try:
            value, place = decoder.raw_decode(body, place)
        except (ValueError, RecursionError) as error:
            raise ResultError(f"{file}: not JSON: {error}") from None
        out.append(value)
    return out


def _no_constant(name: str) -> float:
    if name == "Infinity":
        return math.inf
    raise ValueError(f"{name} is not a number")
