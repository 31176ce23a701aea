"""Metrics of one replay: latencies at any statistic, throughput, goodput, attainment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from sieve.arrays import FloatArray, IntArray, Requests, SimResult
from sieve.errors import InvalidInput
from sieve.sim._kernels.clock import GAP_FIRST_S, GAP_RATIO
from sieve.spec.slo import USER_RATE, LatencyLimits, in_class, latency_column
from sieve.spec.slo_classes import RequestClass

BASE_STATISTICS = (
    ("ttft", "p50"),
    ("ttft", "p99"),
    ("tpot", "p50"),
    ("tpot", "p99"),
    ("e2e", "p99"),
)
"""Latency statistics that every run reports."""


def per_request(
    requests: Requests, result: SimResult, classes: Iterable[RequestClass] = ()
) -> dict[str, FloatArray]:
    """Return TTFT, TPOT and E2E of every request in seconds as its client sees them, (n,) each.

    The rate of a user, `user_rates`, is 1/TPOT.

    TPOT is (E2E - TTFT)/(output tokens - 1) and nan for one-token answers. Each class adds its
    own, `ttft@NAME` and so on, nan for requests outside it.
    """
    outside_s = 0.0 if requests.front_end_s is None else requests.front_end_s
    ttft = result.first_token_s - result.arrival_s + outside_s
    e2e = result.finish_s - result.arrival_s + outside_s
    gaps = requests.output_tokens - 1
    tpot = np.where(gaps > 0, (e2e - ttft) / np.maximum(gaps, 1), np.nan)
    times = {"ttft": ttft, "tpot": tpot, "e2e": e2e}
    for group in classes:
        members = group.members(requests)
        times |= {
            in_class(metric, group.name): np.where(members, times[metric], np.nan)
            for metric in ("ttft", "tpot", "e2e")
        }
    return times


def user_rates(tpot_s: FloatArray) -> FloatArray:
    """Return the output tokens per second that each request gets, (n,); nan where no TPOT."""
    with np.errstate(divide="ignore"):
        return np.asarray(1.0 / tpot_s, np.float64)


def metrics(
    requests: Requests,
    result: SimResult,
    *,
    limits: LatencyLimits,
    goodput_limits: LatencyLimits | None = None,
    statistics: Iterable[tuple[str, str]] = (),
    classes: Iterable[RequestClass] = (),
) -> dict[str, float]:
    """Return the metrics of one replay by column name; all nan if it could not be served.

    Args:
        requests: the traffic that was replayed.
        result: its replay.
        limits: per-request limits of attainment.
        goodput_limits: those of goodput; the same by default.
        statistics: further (metric, statistic) pairs, such as ("itl", "p95").
        classes: those that `limits` or `statistics` name, as in ("ttft@short", "p99").
    """
    wanted = dict.fromkeys((*BASE_STATISTICS, *statistics))
    served = result.status == ""
    latencies = per_request(requests, result, classes)
    out: dict[str, float] = {}
    for metric, statistic in wanted:
        name = latency_column(metric, statistic)
        if not served:
            out[name] = float("nan")
        elif metric == "itl":
            out[name] = gap_statistic(result.gaps, statistic)
        elif metric.startswith(USER_RATE):
            of = latencies[metric.replace(USER_RATE, "tpot")]
            out[name] = statistic_of(user_rates(of), statistic)
        else:
            out[name] = statistic_of(latencies[metric], statistic)
    span = result.makespan_s if served else float("nan")
    met = meets(latencies, limits)
    good = met if goodput_limits is None else meets(latencies, goodput_limits)
    out["output_tokens_per_s"] = float(requests.output_tokens.sum()) / span
    out["requests_per_s"] = len(requests) / span
    out["goodput_per_s"] = float(good.sum()) / span
    out["slo_attainment"] = float(met.mean()) if served else float("nan")
    return out


def meets(latencies: Mapping[str, FloatArray], limits: LatencyLimits) -> npt.NDArray[np.bool_]:
    """Return which requests meet every per-request limit, (n,); one-token answers pass TPOT.

    A request without an answer meets none.
    """
    ok = ~np.isnan(latencies["e2e"])
    for metric in ("ttft", "tpot", "e2e"):
        limit = getattr(limits, f"{metric}_s")
        if limit is not None:
            # Where a latency is unknown the request has no answer, or no gap between tokens.
            ok &= ~(latencies[metric] > limit)
        for name, inner in limits.classes:
            limit = getattr(inner, f"{metric}_s")
            if limit is not None:
                ok &= ~(latencies[in_class(metric, name)] > limit)
    return ok


def statistic_of(values: FloatArray, statistic: str) -> float:
    """Return `mean` or a percentile (linear interpolation) of the values that exist."""
    present = values[~np.isnan(values)]
    if len(present) == 0:
        return float("nan")
    if statistic == "mean":
        return float(present.mean())
    return float(np.percentile(present, float(statistic[1:])))


def gap_statistic(gaps: IntArray, statistic: str) -> float:
    """Return a statistic of the pooled gaps between tokens in seconds, to 0.3 %.

    The kernel counts gaps in bins of 0.5 %; a bin stands for its geometric middle.
    """
    total = int(gaps.sum())
    if total == 0:
        return float("nan")
    middles = GAP_FIRST_S * GAP_RATIO ** (np.arange(len(gaps)) + 0.5)
    if statistic == "mean":
        return float((gaps * middles).sum() / total)
    rank = float(statistic[1:]) / 100 * (total - 1)
    return float(middles[np.searchsorted(np.cumsum(gaps), rank, side="right")])


def after_warm_up(
    requests: Requests, result: SimResult, warm_up_s: float
) -> tuple[Requests, SimResult]:
    """Return the requests that arrive `warm_up_s` after the first or later, and their results.

    Throughput is then counted from there on. Gaps between tokens stay those of the whole replay:
    they are counted without a time.

    Raises:
        InvalidInput: no request is left.
    """
    first = float(np.nanmin(result.arrival_s))
    rows = np.flatnonzero(result.arrival_s >= first + warm_up_s)
    if warm_up_s <= 0 or not len(rows):
        if warm_up_s > 0:
            last = float(np.nanmax(result.arrival_s)) - first
            raise InvalidInput(
                f"a warm-up of {warm_up_s:g} s leaves no request: the last comes after {last:g} s"
            )
        return requests, result
    kept = replace(
        result,
        **{
            name: getattr(result, name)[rows]
            for name in (
                "arrival_s", "scheduled_s", "first_token_s", "finish_s", "num_preemptions",
                "cached_tokens",
            )
        },
    )  # fmt: skip
    makespan_s = float(np.nanmax(kept.finish_s) - kept.arrival_s.min())
    return requests.take(rows), replace(kept, makespan_s=makespan_s)


def queue_growth(requests: Requests, result: SimResult) -> float:
    """Return by how much the wait for a seat grows per second of trace; 0 when it does not.

    The slope of (first scheduled - arrival) against arrival over the open-loop trace, taken only
    if the last tenth of the requests waits at least three times as long as the first half and
    longer than a tenth of the trace. At utilisation u above 1 the wait grows by u - 1.
    """
    if requests.closed_loop_users is not None or result.status or len(requests) < 20:
        return 0.0
    order = np.argsort(result.arrival_s, kind="stable")
    arrival = result.arrival_s[order]
    span = float(arrival[-1] - arrival[0])
    if span <= 0:
        return 0.0
    wait = result.scheduled_s[order] - arrival
    n = len(wait)
    late, early = float(wait[-(n // 10) :].mean()), float(wait[: n // 2].mean())
    if late < 3 * early or late < 0.1 * span:
        return 0.0
    centred = arrival - arrival.mean()
    return max(0.0, float((centred * wait).sum() / (centred**2).sum()))
