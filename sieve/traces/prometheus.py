"""Range queries of a running vLLM in Prometheus's JSON: histograms become lengths and rates.

Needed are the raw counters `vllm:request_prompt_tokens_bucket` and
`vllm:request_generation_tokens_bucket` (not `rate(...)` of them), over a range and a step; several
answers of the HTTP API may stand in one file, as a list or one a line. Times are seconds by
Prometheus's own format.

Drawn are as many requests as were finished in each step, evenly spread at random inside it; lengths
by the histograms, even on a logarithmic scale inside a bucket, input and output independently. What
the metrics cannot tell is said in the notes.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from sieve.arrays import FloatArray, IntArray, Requests
from sieve.errors import TraceError
from sieve.traces.documents import documents
from sieve.traces.files import TraceFile
from sieve.traces.limits import generator, whole_ns

INPUT: Final = "vllm:request_prompt_tokens"
OUTPUT: Final = "vllm:request_generation_tokens"
MAX_REQUESTS: Final = 20_000_000
MAX_COUNTER: Final = 1e15
"""No counter and no time in seconds is larger."""


def read(file: TraceFile, seed: int) -> Requests:
    """Return drawn requests.

    Raises:
        TraceError: no range query, a counter that is not there, or nothing was served.
    """
    series = _series(file)
    times, input_edges, input_counts = _histogram(series, INPUT, file.label)
    _, output_edges, output_counts = _histogram(series, OUTPUT, file.label)
    per_step = input_counts.sum(axis=1)
    n = int(per_step.sum())
    if n < 1:
        raise TraceError(f"{file.label}: no request finished in the range")
    if n > MAX_REQUESTS:
        raise TraceError(f"{file.label}: {n:,} requests; query a shorter range")
    rng = generator(seed, "prometheus.arrival")
    step = np.repeat(np.arange(len(per_step)), per_step)
    width = np.diff(times)
    arrival_s = np.sort(times[step] + rng.random(n) * width[step]) - times[0]
    totals = [counts.sum(axis=0) for counts in (input_counts, output_counts)]
    lengths = [
        _draw(edges, total, n, generator(seed, f"prometheus.{name}"))
        for edges, total, name in zip(
            (input_edges, output_edges), totals, ("input", "output"), strict=True
        )
    ]
    return Requests(
        arrival_s=whole_ns(arrival_s - arrival_s[0]),
        input_tokens=lengths[0],
        output_tokens=lengths[1],
        source=file.name,
        sha256=file.sha256,
        notes=tuple(_notes(series, input_edges, output_edges, totals)),
    )


def _series(file: TraceFile) -> dict[str, list[tuple[Mapping[str, str], FloatArray, FloatArray]]]:
    """Return labels, times and values of each series by metric name."""
    found: dict[str, list[tuple[Mapping[str, str], FloatArray, FloatArray]]] = defaultdict(list)
    for document, where, _ in documents(file):
        if document.get("status", "success") != "success":
            raise TraceError(f"{where}: the query failed: {str(document.get('error'))[:80]}")
        data = document.get("data", document)
        if not isinstance(data, Mapping) or data.get("resultType") != "matrix":
            raise TraceError(f"{where}: no range query; expected data.resultType matrix "
                             "(/api/v1/query_range)")  # fmt: skip
        results = data.get("result")
        if not isinstance(results, list):
            raise TraceError(f"{where}: data.result is no list of series")
        for i, item in enumerate(results):
            try:
                labels = {str(k): str(v) for k, v in dict(item["metric"]).items()}
                values = np.array([[float(t), float(v)] for t, v in item["values"]]).reshape(-1, 2)
            except (KeyError, TypeError, ValueError, OverflowError) as error:
                raise TraceError(f"{where}, result {i + 1}: cannot be read ({error})") from None
            if not ((values >= 0) & (values <= MAX_COUNTER)).all():
                raise TraceError(
                    f"{where}, result {i + 1}: holds a value that is no counter (NaN, Inf, below 0 "
                    f"or above {MAX_COUNTER:g}); query raw counters"
                )
            if (np.diff(values[:, 0]) <= 0).any():
                raise TraceError(f"{where}, result {i + 1}: the clock goes back")
            found[str(labels.get("__name__", ""))].append((labels, values[:, 0], values[:, 1]))
    return found


def _histogram(series: Mapping[str, Any], name: str, label: str) -> tuple[Any, Any, Any]:
    """Return (s + 1,) times, (b,) upper edges, and (s, b) requests by step and bucket."""
    buckets = series.get(f"{name}_bucket")
    if not buckets:
        seen = ", ".join(key or "(no name: a function was applied)" for key in sorted(series)[:8])
        raise TraceError(
            f"{label}: no {name}_bucket; query the raw counter over a range. "
            f"Found: {seen or 'none'}"
        )
    times = np.unique(np.concatenate([t for _, t, _ in buckets]))
    if len(times) < 2:
        raise TraceError(f"{label}: {name}_bucket has one moment; a range and a step are needed")
    by_edge: dict[float, FloatArray] = defaultdict(lambda: np.zeros(len(times) - 1))
    for labels, t, value in buckets:
        try:
            edge = float(labels["le"].replace("+Inf", "inf"))
        except (KeyError, ValueError):
            raise TraceError(f"{label}: a series of {name}_bucket has no label le") from None
        if not edge > 0:
            raise TraceError(f"{label}: a series of {name}_bucket has le {edge:g}; expected > 0")
        # A counter that falls was reset by a restart: it counts from 0 again.
        grown = np.where(np.diff(value) < 0, value[1:], np.diff(value))
        np.add.at(by_edge[edge], np.searchsorted(times, t[1:]) - 1, grown)
    edges = np.array(sorted(by_edge))
    if not math.isinf(edges[-1]) or len(edges) < 2:
        raise TraceError(f'{label}: {name}_bucket lacks le="+Inf" or has one bucket only')
    counts = np.diff(np.array([by_edge[e] for e in edges]).T, axis=1, prepend=0.0)
    if (counts < -1e-6).any():
        raise TraceError(f"{label}: {name}_bucket falls with rising le; scrapes are torn")
    return times, edges, np.rint(counts).astype(np.int64)


def _draw(edges: FloatArray, counts: IntArray, n: int, rng: np.random.Generator) -> IntArray:
    """Return (n,) lengths, even on a logarithmic scale within a bucket."""
    share = np.cumsum(counts) / counts.sum()
    place = (rng.permutation(n) + rng.random(n)) / n
    bucket = np.minimum(np.searchsorted(share, place, side="right"), len(edges) - 1)
    top = np.where(np.isinf(edges), edges[-2], edges)  # nothing is known beyond the last edge
    low = np.concatenate(([0.0], top[:-1])) + 1
    low, high = np.minimum(low, top)[bucket], top[bucket]
    value = np.rint(low * (high / low) ** rng.random(n))
    return np.asarray(np.maximum(value, 1), np.int64)


def _notes(
    series: Mapping[str, Any],
    input_edges: FloatArray,
    output_edges: FloatArray,
    totals: list[IntArray],
) -> list[str]:
    notes = [
        "drawn from Prometheus histograms: finished requests, spread evenly inside each step; "
        "lengths even on a logarithmic scale inside a bucket, input and output independent; "
        "sessions, prefixes and bursts within a step are not in these metrics"
    ]
    for name, edges, total in (
        ("input", input_edges, totals[0]),
        ("output", output_edges, totals[1]),
    ):
        beyond = float(total[-1] / total.sum())
        if beyond:
            notes.append(f"{beyond:.1%} of {name} lengths lie above the largest bucket "
                         f"({edges[-2]:g}); drawn at that edge, so too short")  # fmt: skip
    queries, hits = (
        sum(float(np.maximum(np.diff(v), 0).sum()) for _, _, v in series.get(key, ()))
        for key in ("vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total")
    )
    if queries:
        notes.append(f"prefix cache: {hits / queries:.1%} of queried tokens hit; not replayed")
    for name in ("running", "waiting"):
        gauges = [v.mean() for _, _, v in series.get(f"vllm:num_requests_{name}", ())]
        if gauges:
            notes.append(f"{sum(gauges):.3g} requests {name} on average, all instances together")
    return notes
