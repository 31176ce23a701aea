"""What a day of traffic was like, in a few kB, and how far two days are apart.

Distances are effect sizes, not p-values: with 100,000 requests a day every p-value is 0.

| feature | distance | watch | drift |
|---|---|---|---|
| `input_tokens`, `output_tokens` | 1-Wasserstein of ln length over its deviation | 0.1 | 0.25 |
| `joint_lengths` | population stability index (PSI) of the joint histogram | 0.1 | 0.2 |
| `peak_rate` | ratio of the busiest 15 minutes' rates | 1.1 | 1.25 |
| `burstiness` | ratio of the gaps' coefficients of variation inside 15 minutes | 1.2 | 1.5 |
| `prefix_reuse` | widest gap between the shares of prompt blocks seen before | 0.05 | 0.1 |

The bounds on PSI are the usual ones; the others are chosen, not derived: half a deviation is a
medium effect (Cohen 1988), a replica count moves by one in four or five at a quarter more load.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from sieve.arrays import FloatArray, IntArray, PrefixBlocks, Requests

WINDOW_S: Final = 900.0
MINUTE_S: Final = 60.0
BINS_PER_OCTAVE: Final = 4
QUANTILES: Final = 101
MIN_GAPS: Final = 30
LEAST_DEVIATION: Final = 0.05
"""Of ln length: below it a length counts as constant, so that no distance is divided by nothing."""
REUSE_AT: Final = tuple(4**power for power in range(3, 13))
"""Distances of the reuse curve, in blocks that were read in between."""
REQUESTS_PER_CELL: Final = 40
MAX_BINS: Final = 5
LEVELS: Final = ("none", "watch", "drift")
BOUNDS: Final[Mapping[str, tuple[float, float]]] = {
    "input_tokens": (0.1, 0.25),
    "output_tokens": (0.1, 0.25),
    "joint_lengths": (0.1, 0.2),
    "peak_rate": (1.1, 1.25),
    "burstiness": (1.2, 1.5),
    "prefix_reuse": (0.05, 0.1),
}
RATIOS: Final = ("peak_rate", "burstiness")


def profile(requests: Requests) -> dict[str, Any]:
    """Return what a day was like: plain data of a few kB.

    Keys: `num_requests`, `span_s`, `rate_per_s`, `window_s` and `window_rates_per_s` (whole
    windows from the first arrival; a shorter day is one), `peak_rate_per_s`, `burstiness`,
    `minute_ratio_p95`, `input_tokens` and `output_tokens` (mean, p50, p95, p99, and evenly spaced
    quantiles and deviation of the logarithm), `cells` (input bin, output bin, requests), and
    `prefix_reuse` (share of prompt blocks seen before, by distance). What a closed loop or a burst
    does not have is None.
    """
    arrival = requests.arrival_s if requests.closed_loop_users is None else None
    if arrival is not None and float(arrival[-1]) <= 0:
        arrival = None
    rates = None if arrival is None else window_rates(arrival)
    return {
        "num_requests": len(requests),
        "span_s": None if arrival is None else float(arrival[-1]),
        "rate_per_s": None if arrival is None else requests.rate_per_s,
        "window_s": WINDOW_S,
        "window_rates_per_s": None if rates is None else rates.tolist(),
        "peak_rate_per_s": None if rates is None else float(rates.max()),
        "burstiness": None if arrival is None else burstiness(arrival),
        "minute_ratio_p95": None if arrival is None else minute_ratio(arrival),
        "input_tokens": _lengths(requests.input_tokens),
        "output_tokens": _lengths(requests.output_tokens),
        "cells": _cells(requests),
        "prefix_reuse": None if requests.prefix is None else reuse_curve(requests.prefix),
    }


def window_rates(arrival_s: FloatArray, window_s: float = WINDOW_S) -> FloatArray:
    """Return the rate in each whole window in requests per second; a shorter day is one window."""
    span = float(arrival_s[-1])
    whole = int(span // window_s)
    if whole == 0:
        return np.array([len(arrival_s) / span])
    counts = np.histogram(arrival_s, bins=whole, range=(0.0, whole * window_s))[0]
    return np.asarray(counts / window_s, np.float64)


def burstiness(arrival_s: FloatArray) -> float | None:
    """Return the coefficient of variation of the gaps inside windows, weighted by requests.

    Windows keep the course of the day out of it. None with fewer than thirty gaps in every window.
    """
    window = (arrival_s // WINDOW_S).astype(np.int64)
    total = weight = 0.0
    for gaps in np.split(np.diff(arrival_s), np.flatnonzero(np.diff(window)) + 1):
        if len(gaps) >= MIN_GAPS and gaps.mean() > 0:
            total += len(gaps) * float(gaps.std() / gaps.mean())
            weight += len(gaps)
    return total / weight if weight else None


def minute_ratio(arrival_s: FloatArray) -> float | None:
    """Return the 95th percentile of a minute's rate over that of its 15 minutes.

    None when the day is shorter than five minutes.
    """
    minutes = int(float(arrival_s[-1]) // MINUTE_S)
    if minutes < 5:
        return None
    counts = np.histogram(arrival_s, bins=minutes, range=(0.0, minutes * MINUTE_S))[0]
    group = np.arange(minutes) // int(WINDOW_S / MINUTE_S)
    mean = (np.bincount(group, counts) / np.bincount(group))[group]
    busy = mean > 0
    return max(1.0, float(np.quantile(counts[busy] / mean[busy], 0.95)))


def reuse_curve(prefix: PrefixBlocks) -> dict[str, float]:
    """Return the share of prompt blocks seen at most so many blocks before, by that distance.

    A cache of so many blocks that drops the least recently used finds at least these.
    """
    order = np.argsort(prefix.ids, kind="stable")
    same = np.diff(prefix.ids[order]) == 0
    distance = np.diff(order)[same]
    total = max(len(prefix.ids), 1)
    found = np.searchsorted(np.sort(distance), REUSE_AT, side="right") / total
    return {str(at): float(share) for at, share in zip(REUSE_AT, found, strict=True)}


def _lengths(tokens: IntArray) -> dict[str, Any]:
    logs = np.log(tokens)
    p50, p95, p99 = np.quantile(tokens, (0.5, 0.95, 0.99))
    return {
        "mean": float(tokens.mean()),
        "p50": float(p50),
        "p95": float(p95),
        "p99": float(p99),
        "log_deviation": float(logs.std()),
        "log_quantiles": np.quantile(logs, np.linspace(0, 1, QUANTILES)).round(6).tolist(),
    }


def _cells(requests: Requests) -> list[list[int]]:
    bins = [
        np.floor(np.log2(tokens) * BINS_PER_OCTAVE).astype(np.int64)
        for tokens in (requests.input_tokens, requests.output_tokens)
    ]
    cells, counts = np.unique(np.stack(bins, axis=1), axis=0, return_counts=True)
    rows: list[list[int]] = np.column_stack([cells, counts]).tolist()
    return rows


def drift(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return how far a day is from an earlier one.

    Keys: `level` (`none`, `watch` or `drift`, the worst of all), `moved` (features at `watch` or
    above, furthest first), `features`: {name: {`value`, `level`, `before`, `after`}}; a value is
    None where either day does not have it, and then its level is `none`.
    """
    features = {
        "input_tokens": _length_feature(before, after, "input_tokens"),
        "output_tokens": _length_feature(before, after, "output_tokens"),
        "joint_lengths": _feature(stability_index(before["cells"], after["cells"]), None, None),
        "peak_rate": _ratio_feature(before, after, "peak_rate_per_s"),
        "burstiness": _ratio_feature(before, after, "burstiness"),
        "prefix_reuse": _reuse_feature(before["prefix_reuse"], after["prefix_reuse"]),
    }
    for name, entry in features.items():
        entry["level"] = _level(name, entry["value"])
    worst = max((LEVELS.index(entry["level"]) for entry in features.values()), default=0)
    moved = [name for name, entry in features.items() if entry["level"] != "none"]
    moved.sort(key=lambda name: -_excess(name, features[name]["value"]))
    return {"level": LEVELS[worst], "moved": moved, "features": features}


def _feature(value: float | None, before: Any, after: Any) -> dict[str, Any]:
    return {"value": value, "level": "none", "before": before, "after": after}


def _length_feature(before: Any, after: Any, name: str) -> dict[str, Any]:
    one, two = before[name], after[name]
    apart = np.abs(np.subtract(one["log_quantiles"], two["log_quantiles"])).mean()
    value = float(apart) / max(one["log_deviation"], LEAST_DEVIATION)
    return _feature(value, one["p50"], two["p50"])


def _ratio_feature(before: Any, after: Any, name: str) -> dict[str, Any]:
    one, two = before[name], after[name]
    return _feature(two / one if one and two else None, one, two)


def _reuse_feature(one: Any, two: Any) -> dict[str, Any]:
    """Return the gap of two reuse curves; traffic without known prefixes reuses nothing."""
    if one is None and two is None:
        return _feature(None, None, None)
    keys = (one or two).keys()
    ends = [None if curve is None else max(curve.values()) for curve in (one, two)]
    gap = max(abs((one or {}).get(key, 0.0) - (two or {}).get(key, 0.0)) for key in keys)
    return _feature(gap, *ends)


def _excess(name: str, value: float | None) -> float:
    """Return a distance over its bound of drift, on a scale on which 1 is just drift."""
    if value is None:
        return 0.0
    bound = BOUNDS[name][1]
    if name in RATIOS:
        return abs(math.log(value)) / math.log(bound)
    return value / bound


def _level(name: str, value: float | None) -> str:
    if value is None:
        return "none"
    watch, bound = BOUNDS[name]
    distance = math.exp(abs(math.log(value))) if name in RATIOS else value
    return "drift" if distance >= bound else "watch" if distance >= watch else "none"


def stability_index(before: list[list[int]], after: list[list[int]]) -> float:
    """Return the PSI of two joint histograms, sum over cells of (a - b) ln(a / b).

    The cells are made of the earlier day's quantiles, at most 5 by 5 and fewer where there are few
    requests: PSI of two samples of one distribution is about cells x (1/n + 1/m). Half a request is
    added to each cell.

    Args:
        before: rows of (input bin, output bin, requests).
        after: the same of the later day.
    """
    one, two = np.array(before, np.int64), np.array(after, np.int64)
    least = min(one[:, 2].sum(), two[:, 2].sum())
    count = int(np.clip(math.sqrt(least / REQUESTS_PER_CELL), 1, MAX_BINS))
    edges = [_edges(one[:, axis], one[:, 2], count) for axis in (0, 1)]
    shares = []
    for cells in (one, two):
        place = np.searchsorted(edges[0], cells[:, 0]) * count
        place += np.searchsorted(edges[1], cells[:, 1])
        counts = np.bincount(place, cells[:, 2], count * count) + 0.5
        shares.append(counts / counts.sum())
    return float(((shares[1] - shares[0]) * np.log(shares[1] / shares[0])).sum())


def _edges(bins: IntArray, counts: IntArray, count: int) -> IntArray:
    """Return the upper ends of `count` groups of bins with about equal requests, (count - 1,)."""
    order = np.argsort(bins, kind="stable")
    upper = np.cumsum(counts[order])
    points = upper[-1] * np.arange(1, count) / count
    return np.asarray(bins[order][np.searchsorted(upper, points)], np.int64)
