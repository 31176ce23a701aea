"""Traffic drawn from a `Summary`: a gamma renewal process and the joint histogram of lengths.

Arrivals are drawn in operational time, where one request is expected per unit, and mapped to
seconds through the expected number of arrivals, which grows with the rate of each window. The
windows begin anew when they are used up.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from sieve.arrays import FloatArray, IntArray, Requests
from sieve.errors import TraceError
from sieve.traces.draw_reuse import draw_prefix, draw_sessions
from sieve.traces.limits import generator, whole_ns
from sieve.traces.summary import Summary
from sieve.traces.synthetic import gamma_gaps

_MAX_ARRIVALS: Final = 20_000_000  # drawn while looking for a window; 160 MB


def draw(summary: Summary, requests: int, rate_per_s: float | None, seed: int) -> Requests:
    """Return traffic like the summarised trace.

    Args:
        summary: statistics of the trace.
        requests: how many to draw.
        rate_per_s: mean rate to scale to; None keeps the windows' own rates.
        seed: of the draw; lengths and arrivals have generators of their own.
    """
    if summary.sessions is not None:
        starts = draw_arrivals(summary, num_sessions(summary, requests), seed)
        return with_lengths(summary, starts, seed, requests)
    arrival_s = draw_arrivals(summary, requests, seed)
    if rate_per_s is not None and arrival_s[-1] > 0:
        arrival_s = arrival_s * ((requests - 1) / arrival_s[-1] / rate_per_s)
    return with_lengths(summary, arrival_s, seed)


def num_sessions(summary: Summary, requests: int) -> int:
    """Return how many sessions surely hold so many turns, of a summary with sessions."""
    assert summary.sessions is not None
    turns = max(summary.num_requests / summary.sessions.num_sessions, 1.0)
    return int(requests / turns * 2) + 10


def with_lengths(
    summary: Summary, arrival_s: FloatArray, seed: int, most: int | None = None
) -> Requests:
    """Return requests that arrive at `arrival_s`, (n,), with lengths drawn from the summary.

    Of a summary with sessions these are their starts, and `most` turns are drawn, the first
    sessions' first.
    """
    if summary.sessions is not None:
        wanted = len(arrival_s) if most is None else most
        requests = draw_sessions(summary.sessions, arrival_s, wanted, seed, summary.name)
        return replace(requests, notes=_notes(summary, requests.arrival_s))
    input_tokens, output_tokens = draw_lengths(summary, len(arrival_s), seed)
    return Requests(
        arrival_s=arrival_s,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        source=summary.name,
        notes=_notes(summary, arrival_s),
        prefix=None if summary.prefix is None else draw_prefix(summary.prefix, input_tokens, seed),
    )


def draw_arrivals(summary: Summary, n: int, seed: int) -> FloatArray:
    """Return (n,) arrivals in seconds, the first at 0; more of them begin with the same ones.

    Whole windows are drawn and the gaps of each are scaled to its length, so that every window has
    the number of requests that was counted, and the last one is cut.
    """
    rng = generator(seed, "summary.arrival")
    windows = [window for window in summary.windows if window.num_requests]
    last = np.cumsum([window.num_requests for window in windows])
    num_gaps = _whole_windows(last, n - 1)
    cycle, gap = np.divmod(np.arange(num_gaps), last[-1])
    window = np.searchsorted(last, gap, side="right")
    cv = np.array([w.gap_cv or 1.0 for w in windows])[window]
    gaps = gamma_gaps(cv, rng)
    group = cycle * len(windows) + window
    total = np.bincount(group, weights=gaps)
    count = np.bincount(group)
    scale = np.divide(count, total, out=np.ones(len(total)), where=total > 0)
    operational = np.cumsum(gaps * scale[group])[: n - 1]
    arrival_s = np.concatenate([[0.0], _seconds(summary, operational)])
    if summary.step_s is not None:
        arrival_s = np.floor(arrival_s / summary.step_s) * summary.step_s
    return whole_ns(arrival_s)


def _whole_windows(last: IntArray, num_gaps: int) -> int:
    """Return how many gaps reach the end of the window that holds the last of `num_gaps`."""
    cycles, rest = divmod(num_gaps, int(last[-1]))
    ends = np.concatenate([[0], last])
    return int(cycles * last[-1] + ends[np.searchsorted(ends, rest)])


def _seconds(summary: Summary, operational: FloatArray) -> FloatArray:
    """Return the times at which `operational` requests are expected; windows repeat."""
    counts = [window.num_requests for window in summary.windows]
    expected = np.concatenate([[0], np.cumsum(counts)])
    edges_s = np.concatenate([[0.0], np.cumsum([window.length_s for window in summary.windows])])
    cycle, rest = np.divmod(operational, expected[-1])
    return np.asarray(cycle * edges_s[-1] + np.interp(rest, expected, edges_s), np.float64)


def draw_window(
    summary: Summary, requests: int, window_s: tuple[float, float], seed: int
) -> FloatArray:
    """Return the first `requests` arrivals in [start, end), fewer if the window holds fewer.

    Times are seconds on the axis of the drawn traffic, whose first request arrives at 0.

    Raises:
        TraceError: the window begins too far out to be reached.
    """
    start_s, end_s = window_s
    most = max(_MAX_ARRIVALS, 2 * requests)
    n = int(min(start_s * summary.rate_per_s * 1.25 + requests + 1000, most))
    while True:
        arrival_s = draw_arrivals(summary, n, seed)
        first, last = np.searchsorted(arrival_s, [start_s, end_s])
        if last < n or last - first >= requests:
            return arrival_s[first : min(last, first + requests)]
        if n >= most:
            raise TraceError(
                f"traffic.window_s: {start_s:g} s lies beyond the first {n} requests of "
                f"{summary.name}, which last {arrival_s[-1]:.0f} s; choose an earlier window"
            )
        n = min(2 * n, most)


def draw_lengths(summary: Summary, n: int, seed: int) -> tuple[IntArray, IntArray]:
    """Return (n,) input and (n,) output lengths from the joint histogram.

    Cells are sampled systematically, in random order: each gets its share of the n requests to
    within one, so that a small draw has the trace's mix. Within a cell both lengths follow the
    quantiles of their bins.
    """
    rng = generator(seed, "summary.lengths")
    rows, columns = np.nonzero(summary.cells)
    upper = np.cumsum(summary.cells[rows, columns])
    points = (rng.permutation(n) + rng.random()) / n * upper[-1]
    cell = np.minimum(np.searchsorted(upper, points, side="right"), len(upper) - 1)
    return (
        _within(summary.input_quantiles[rows[cell]], rng),
        _within(summary.output_quantiles[columns[cell]], rng),
    )


def _within(quantiles: IntArray, rng: np.random.Generator) -> IntArray:
    """Return (n,) lengths from (n, q) evenly spaced quantiles, linear between them."""
    n, count = quantiles.shape
    position = rng.random(n) * (count - 1)
    step = position.astype(np.int64)
    row = np.arange(n)
    low, high = quantiles[row, step], quantiles[row, step + 1]
    return np.asarray(np.rint(low + (position - step) * (high - low)), np.int64)


def _notes(summary: Summary, arrival_s: FloatArray) -> tuple[str, ...]:
    notes = [f"drawn from the statistics of: {summary.origin.name} ({summary.origin.licence})"]
    if summary.sessions is not None:
        notes.append(
            "turns wait for the answer before; pauses and prompts of "
            f"{summary.sessions.num_sessions} sessions, growth drawn turn by turn"
        )
    if summary.origin.arrivals != "measured":
        notes.append(f"arrivals: {summary.origin.arrivals}")
    elif arrival_s[-1] > summary.span_s:
        notes.append(
            f"the trace lasts {summary.span_s:.0f} s; its windows repeat for longer traffic"
        )
    return tuple(notes)
