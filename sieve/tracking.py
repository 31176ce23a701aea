"""Throughput over a run, window by window: predicted by a replay of the measured requests.

The replay gets the arrivals and lengths that the benchmark recorded, so that only the engine's
speed is predicted. Windows of two minutes by default; nothing is trimmed: start and drain count,
the last window has its true length (`sizing.windows`, `sizing.tracking`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from sieve.api import prepare
from sieve.arrays import FloatArray, Requests
from sieve.calibration.apply import Local
from sieve.calibration.readers import Series, read_results
from sieve.calibration.serving_file import read_calibration
from sieve.detail import choose, sized
from sieve.errors import InvalidInput, ResultError
from sieve.evaluate import evaluate
from sieve.formulas.sizing_tracking import MAX_WINDOWS
from sieve.matching import check_model
from sieve.parallel import LocalExecutor
from sieve.perf.cache import FAMILY
from sieve.perf.capacity import workload_of
from sieve.perf.front_end import chat_latency_s, request_work_s
from sieve.ranking.intervals import evidence_shares, weakest_class
from sieve.sim.replay import simulate
from sieve.spec import load_spec
from stages import s5_simulate

WINDOW_S: Final = 120.0
MAX_REQUESTS: Final = 1_000_000


def track(
    result: Path,
    spec: Path,
    candidate: str | None = None,
    *,
    overrides: Sequence[str] = (),
    window_s: float = WINDOW_S,
    calibration: Path | None = None,
) -> dict[str, Any]:
    """Return predicted and measured output tokens per second in windows over a run.

    `summary` has the outputs of `sizing.tracking`: `mean_error` (signed), `wape` and what the mean
    hides, `cancellation`; `windows` one row a window.

    Args:
        result: a detailed result of vLLM bench, or AIPerf's `profile_export.jsonl`.
        spec: run spec of the candidate; its traffic is not used.
        candidate: its id, or `axis=value` pairs; by default the id in the result's metadata.
        overrides: `dotted.key=value` texts.
        window_s: width of a window.
        calibration: file of `sieve calibrate` to correct the prediction by.

    Raises:
        SieveError: the result has no requests one by one, is of another model, or the candidate
            cannot run or serve it.
    """
    if not (np.isfinite(window_s) and window_s > 0):
        raise InvalidInput(f"the window is {window_s!r} s; expected a positive number")
    found = [r for r in read_results(result) if r.series is not None]
    if len(found) != 1 or found[0].series is None:
        raise ResultError(
            f"{result}: expected one result with its requests one by one: `vllm bench serve "
            "--save-detailed`, or AIPerf's profile_export.jsonl"
        )
    measured, series = found[0], found[0].series
    said = measured.metadata.get("candidate_id")
    wanted = candidate or (None if said is None else str(said))
    if wanted is None:
        raise ResultError(f"{result}: its metadata names no candidate; give --candidate")
    if len(series.start_s) > MAX_REQUESTS:
        raise ResultError(f"{result}: more than {MAX_REQUESTS:,} requests")
    learned = None if calibration is None else read_calibration(calibration)
    context, grid = prepare(
        load_spec(spec, overrides=overrides), LocalExecutor(), calibration=learned
    )
    check_model(measured, context.model.name)
    requests = _requests(series, front_end=context.requests.front_end_s is not None)
    workload = workload_of(requests)
    tables = replace(context.tables, max_context=workload.longest, _tables={})
    context = replace(context, requests=requests, workload=workload, tables=tables)
    frame = sized(choose(grid.candidates, wanted), context)
    row = frame.row(0, named=True)
    table = context.tables.get(tuple(row[name] for name in FAMILY))
    settings = s5_simulate.settings_of(row, context)
    shared = s5_simulate.shared_of(frame, context)
    replay = simulate(
        requests, table, settings, row["replicas"], routing=shared.routing, seed=context.seed
    )
    if replay.status:
        raise ResultError(f"{row['candidate_id']} cannot serve these requests: {replay.status}")
    if learned is not None:
        local = Local(learned, s5_simulate.deployment_of(row, context), shared.confidence)
        evidence = weakest_class(evidence_shares(replay.component_s, table.component_evidence))
        replay = local.corrected(requests, replay, evidence)[0]
    outside = 0.0 if requests.front_end_s is None else requests.front_end_s
    predicted = spread(
        replay.first_token_s + outside, replay.finish_s + outside, requests.output_tokens
    )
    seen = (
        chunks(series)
        if series.gaps_s
        else spread(series.first_s, series.end_s, series.output_tokens)
    )
    rates, durations = windowed([predicted, seen], window_s)
    summary = evaluate(
        "sizing.tracking",
        {"predicted": rates[0].tolist(), "measured": rates[1].tolist(),
         "durations": durations.tolist()},
    )  # fmt: skip
    starts = np.arange(len(durations)) * window_s
    return {
        "file": measured.file,
        "sha256": measured.sha256,
        "source_format": measured.source_format,
        "candidate_id": row["candidate_id"],
        "calibration": None if learned is None else learned.sha256,
        "num_requests": len(requests),
        "window_s": window_s,
        "makespan_s": {"predicted": float((replay.finish_s + outside).max()),
                       "measured": float(series.end_s.max())},
        "summary": summary,
        "windows": [
            {"start_s": float(s), "duration_s": float(d), "predicted_tokens_per_s": float(p),
             "measured_tokens_per_s": float(m)}
            for s, d, p, m in zip(starts, durations, *rates, strict=True)
        ],
    }  # fmt: skip


def _requests(series: Series, *, front_end: bool) -> Requests:
    """Return the measured requests as traffic."""
    requests = Requests(series.start_s, series.input_tokens, series.output_tokens)
    if not front_end:
        return requests
    outside_s = request_work_s(requests.input_tokens) + chat_latency_s()
    return replace(requests, front_end_s=outside_s)


Events = tuple[FloatArray, FloatArray]
"""(k,) seconds and (k,) tokens that came then."""


def spread(first_s: FloatArray, end_s: FloatArray, tokens: Any) -> Events:
    """Return the tokens of n requests, evenly from first to last token.

    Args:
        first_s: (n,) seconds.
        end_s: (n,) seconds.
        tokens: (n,) output tokens.
    """
    number = np.repeat(np.arange(len(tokens)), tokens)
    place = np.arange(len(number)) - np.repeat(np.cumsum(tokens) - tokens, tokens)
    share = place / np.maximum(tokens - 1, 1)[number]
    times = first_s[number] + share * (end_s - first_s)[number]
    return np.asarray(times, np.float64), np.ones(len(times))


def chunks(series: Series) -> Events:
    """Return the tokens of measured requests when their chunks came.

    A client sees chunks, which may hold several tokens: those of a request are shared out evenly
    among its chunks.
    """
    counts = np.array([len(gaps) for gaps in series.gaps_s]) + 1
    first = np.cumsum(counts) - counts
    steps = np.zeros(int(counts.sum()))
    steps[np.delete(np.arange(len(steps)), first)] = np.concatenate(
        [np.asarray(gaps, np.float64) for gaps in series.gaps_s]
    )
    running = np.cumsum(steps)
    times = running - np.repeat(running[first], counts) + np.repeat(series.first_s, counts)
    return times, np.repeat(series.output_tokens / counts, counts)


def windowed(sides: Sequence[Events], window_s: float) -> tuple[list[FloatArray], FloatArray]:
    """Return tokens per second of each side in windows from 0 on, and the windows' lengths.

    As `sizing.windows`: half-open, the last cut at the last event of any side, which it holds.

    Raises:
        InvalidInput: more windows than are looked at.
    """
    end = max(float(times.max()) for times, _ in sides)
    if end / window_s > MAX_WINDOWS:
        raise InvalidInput(f"windows of {window_s:g} s cut the run into more than {MAX_WINDOWS:,}")
    count = max(1, int(np.ceil(end / window_s - 1e-9)))
    durations = np.full(count, window_s)
    durations[-1] = end - (count - 1) * window_s
    rates = []
    for times, tokens in sides:
        place = np.clip(np.floor(times / window_s + 1e-9).astype(np.int64), 0, count - 1)
        rates.append(np.bincount(place, tokens, count) / durations)
    return rates, durations
