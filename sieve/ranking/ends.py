"""Low and high end of every metric of one replay: model error, traffic noise, and both together.

The two are independent, so on a logarithmic scale their widths add as squares; a share's on its own
scale. Columns: `ttft_p99_model_high_s`, `ttft_p99_noise_high_s`, `ttft_p99_high_s`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, hypot, isnan, log
from typing import Final

import numpy as np

from sieve.arrays import BoolArray, FloatArray, Requests, SimResult
from sieve.frames import bound_column
from sieve.ranking import noise
from sieve.ranking.intervals import ENDS, LATENCIES, ModelError, default_error
from sieve.spec.slo import USER_RATE, latency_column

WHOLE_RUN: Final = ("output_tokens_per_s", "requests_per_s", "goodput_per_s", "slo_attainment")
Meets = Callable[[Mapping[str, FloatArray]], tuple[BoolArray, BoolArray]]


@dataclass(frozen=True, eq=False)
class Replayed:
    """One replay as its intervals need it.

    Attributes:
        requests: the traffic.
        result: its replay.
        latencies: (n,) by metric, in seconds.
        values: the metrics by column.
        statistics: (metric, statistic) pairs among them.
        evidence: weakest class of the step times.
        meets: which requests meet the limits of attainment and of goodput, given latencies.
        error: of the model; None: the uncalibrated default of the evidence class.
    """

    requests: Requests
    result: SimResult
    latencies: Mapping[str, FloatArray]
    values: Mapping[str, float]
    statistics: Sequence[tuple[str, str]]
    evidence: str
    meets: Meets
    error: ModelError | None = None


def resampled(replayed: Replayed, draws: noise.Draws) -> dict[str, FloatArray]:
    """Return the resamples of every metric by column, (resamples,) each; {} if not served.

    Gaps between tokens are counted without their request, so the noise of an ITL percentile is
    taken from the requests' TPOT, each as often as it has gaps.
    """
    requests, result = replayed.requests, replayed.result
    if result.status:
        return {}
    tpot = replayed.latencies["tpot"]
    gaps = (requests.output_tokens - 1).astype(np.float64)
    by_metric: dict[str, list[str]] = {}
    for metric, statistic in replayed.statistics:
        by_metric.setdefault(metric, []).append(statistic)
    out: dict[str, FloatArray] = {}
    for metric, wanted in by_metric.items():
        if metric == "itl":
            found = noise.statistics(draws, tpot, wanted, gaps)
            middle = {s: _pooled(tpot, gaps, s) for s in wanted}
            for s in wanted:
                name = latency_column("itl", s)
                out[name] = found[s] * (replayed.values[name] / middle[s])
            continue
        with np.errstate(divide="ignore"):
            if metric.startswith(USER_RATE):
                values = 1.0 / replayed.latencies[metric.replace(USER_RATE, "tpot")]
            else:
                values = replayed.latencies[metric]
        for s, sample in noise.statistics(draws, values, wanted).items():
            out[latency_column(metric, s)] = sample
    open_loop = requests.closed_loop_users is None and requests.arrival_s[-1] > 0
    requests_rate, tokens_rate = noise.rate_factors(
        draws, requests.output_tokens, result.finish_s, open_loop=bool(open_loop)
    )
    size = draws.total(np.ones(len(requests)))
    attained, good = (
        draws.total(met.astype(np.float64)) / size for met in replayed.meets(replayed.latencies)
    )
    rate = replayed.values["requests_per_s"]
    out["output_tokens_per_s"] = replayed.values["output_tokens_per_s"] * tokens_rate
    out["requests_per_s"] = rate * requests_rate
    out["goodput_per_s"] = good * rate * requests_rate
    out["slo_attainment"] = attained
    return out


def _pooled(tpot: FloatArray, gaps: FloatArray, statistic: str) -> float:
    """Return a statistic of the requests' TPOT, each as often as it has gaps."""
    alone = noise.Draws(np.zeros(len(tpot), np.int64), np.ones((1, 1)))
    return float(noise.statistics(alone, tpot, [statistic], gaps)[statistic][0])


def metric_ends(
    replayed: Replayed,
    draws: noise.Draws,
    resamples: Mapping[str, FloatArray],
    confidence: float,
) -> dict[str, float]:
    """Return both ends of every metric by column, of each source of error and together.

    Args:
        replayed: the replay.
        draws: the resamples of the trace.
        resamples: what `resampled` returned; without it the ends of the noise are nan.
        confidence: one-sided, of each end.
    """
    model = _model_ends(replayed, confidence)
    noisy = noise.ends(draws, resamples, replayed.values, confidence)
    out: dict[str, float] = {}
    for name, ends in model.items():
        middle = replayed.values[name]
        spread = noisy.get(name, (float("nan"),) * 2)
        for i, end in enumerate(ENDS):
            out[bound_column(name, f"model_{end}")] = ends[i]
            out[bound_column(name, f"noise_{end}")] = spread[i]
            both = _together(name, middle, ends[i], spread[i])
            out[bound_column(name, end)] = both
    return out


def _together(name: str, middle: float, model: float, spread: float) -> float:
    """Return the end of the interval that holds both errors; nan where one is unknown."""
    if isnan(middle) or isnan(model) or isnan(spread):
        return float("nan")
    if name == "slo_attainment" or min(middle, model, spread) <= 0:
        width = hypot(model - middle, spread - middle)
        end = middle + width if max(model, spread) > middle else middle - width
        return min(max(end, 0.0), 1.0) if name == "slo_attainment" else max(end, 0.0)
    if not all(map(np.isfinite, (middle, model, spread))):
        return model
    width = hypot(log(model / middle), log(spread / middle))
    return middle * exp(width if max(model, spread) > middle else -width)


def _model_ends(replayed: Replayed, confidence: float) -> dict[str, tuple[float, float]]:
    """Return low and high of every metric from the model's error alone."""
    error = replayed.error or default_error(replayed.evidence, confidence)
    low, high = ({m: exp(error.widest(end, m)) for m in LATENCIES} for end in ENDS)
    values = replayed.values
    ends: dict[str, tuple[float, float]] = {}
    for metric, statistic in replayed.statistics:
        name = latency_column(metric, statistic)
        base = metric.partition("@")[0]
        if base == USER_RATE:
            ends[name] = values[name] / high["tpot"], values[name] * low["tpot"]
        else:
            down, up = (exp(error.at(end, base, statistic)) for end in ENDS)
            ends[name] = values[name] / down, values[name] * up
    slow = {m: v * high[m.partition("@")[0]] for m, v in replayed.latencies.items()}
    fast = {m: v / low[m.partition("@")[0]] for m, v in replayed.latencies.items()}
    attained, good = zip(*(_shares(replayed, x) for x in (slow, fast)), strict=True)
    slower, faster = (exp(error.at(end, "tpot")) for end in ("high", "low"))
    slower, faster = _rate_ends(replayed.requests, replayed.result, slower, faster)
    tokens, rate = values["output_tokens_per_s"], values["requests_per_s"]
    ends["output_tokens_per_s"] = tokens * slower, tokens * faster
    ends["requests_per_s"] = rate * slower, rate * faster
    ends["goodput_per_s"] = good[0] * rate * slower, good[1] * rate * faster
    ends["slo_attainment"] = attained[0], attained[1]
    return ends


def _shares(replayed: Replayed, latencies: Mapping[str, FloatArray]) -> tuple[float, float]:
    """Return the shares of requests within the limits of attainment and of goodput."""
    if replayed.result.status:
        return float("nan"), float("nan")
    attained, good = replayed.meets(latencies)
    return float(attained.mean()), float(good.mean())


def _rate_ends(
    requests: Requests, result: SimResult, slower: float, faster: float
) -> tuple[float, float]:
    """Return the factors on throughput at its low and high end.

    Throughput is tokens over makespan. The part of the makespan in which requests still arrive is
    the traffic's and certain. The drain of the last requests, at most one service time, is an edge
    of the finite trace that steady traffic does not have: the high end leaves it out. What remains
    (all of it for bursts and closed loops) scales with the step time.
    """
    if result.makespan_s <= 0:
        return 1.0, 1.0
    if requests.closed_loop_users is not None:
        return 1.0 / slower, faster
    arriving = float(requests.arrival_s[-1] - requests.arrival_s[0])
    tail = max(1.0 - arriving / result.makespan_s, 0.0)
    service_s = float(np.percentile(result.finish_s - result.scheduled_s, 99))
    edge = min(tail, service_s / result.makespan_s) if arriving > 0 else 0.0
    late = edge + (tail - edge) * (1.0 - 1.0 / faster)
    return 1.0 / (1.0 + tail * (slower - 1.0)), 1.0 / (1.0 - late)
