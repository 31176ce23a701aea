"""The rate to plan for from several days, and how many replicas each hour needs.

The rate is the 95th percentile of the rates of 15-minute windows over the days before, times a
burst allowance: the 95th percentile of a minute's rate over that of its 15 minutes, on the most
restless of the days. The day that it is judged on is not among them. Hours count from the first
request of a day, because a trace need not say the time of day.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from sieve.units import SECONDS_PER_HOUR

PERCENTILE: Final = 0.95
START_UP_S: Final = 600.0
"""From the decision to the first answer of a replica: image, weights, graphs; assumed."""
MIN_DWELL_HOURS: Final = 2
"""Hours for which a replica stays once it is started; assumed."""


def plan(days: Sequence[Mapping[str, Any]], today: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the rate to plan for from the days before, judged on today; None without both.

    Keys: `num_days`, `num_windows`, `p95_rate_per_s`, `burst_allowance` (a factor, at least 1),
    `planned_rate_per_s`, `today_peak_rate_per_s`, `share_covered` (of today's windows whose rate
    is within the plan), `by_hour` (rate to plan for in each hour of the day).

    Args:
        days: profiles of the days before, as `sieve.jobs.days.profile` returns them.
        today: the profile of the day to judge on.
    """
    known = [day for day in days if day.get("window_rates_per_s")]
    if not known or not today.get("window_rates_per_s"):
        return None
    rates = np.concatenate([np.asarray(day["window_rates_per_s"], float) for day in known])
    p95 = float(np.quantile(rates, PERCENTILE))
    burst = max(float(day["minute_ratio_p95"] or 1.0) for day in known)
    judged = np.asarray(today["window_rates_per_s"], float)
    return {
        "num_days": len(known),
        "num_windows": len(rates),
        "p95_rate_per_s": p95,
        "burst_allowance": burst,
        "planned_rate_per_s": p95 * burst,
        "today_peak_rate_per_s": float(judged.max()),
        "share_covered": float((judged <= p95 * burst).mean()),
        "by_hour": [rate * burst for rate in _hourly(known)],
    }


def _hourly(days: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return the 95th percentile of the windows of each hour over all days."""
    hours: dict[int, list[float]] = {}
    for day in days:
        for i, rate in enumerate(day["window_rates_per_s"]):
            hour = int(i * day["window_s"] // SECONDS_PER_HOUR) % 24
            hours.setdefault(hour, []).append(float(rate))
    return [float(np.quantile(hours[h], PERCENTILE)) for h in range(len(hours)) if h in hours]


def schedule(
    by_hour: Sequence[float],
    rate_per_replica: float,
    *,
    gpus_per_replica: int,
    start_up_s: float = START_UP_S,
    min_dwell_hours: int = MIN_DWELL_HOURS,
) -> dict[str, Any]:
    """Return how many replicas each hour needs, and the GPU-hours against a fixed number.

    A replica is started one start-up before its hour and stays at least the dwell; its start-up is
    paid. The hours repeat, so the first follows the last.

    Keys: `replicas` (by hour), `gpu_hours`, `gpu_hours_static` (the most at every hour), `saved`
    (share).

    Args:
        by_hour: rate to plan for, requests per second.
        rate_per_replica: the most that one replica carries within its objectives.
        gpus_per_replica: GPUs of one replica.
        start_up_s: from the decision to the first answer.
        min_dwell_hours: hours for which a replica stays.
    """
    needed = [max(1, math.ceil(rate / rate_per_replica - 1e-9)) for rate in by_hour]
    n = len(needed)
    kept = [
        max(needed[(h - back) % n] for back in range(min(min_dwell_hours, n))) for h in range(n)
    ]
    starts = sum(max(0, kept[h] - kept[h - 1]) for h in range(n)) if n > 1 else 0
    hours = sum(kept) + starts * start_up_s / SECONDS_PER_HOUR
    static = max(kept) * n
    return {
        "replicas": kept,
        "gpu_hours": min(hours, static) * gpus_per_replica,
        "gpu_hours_static": float(static * gpus_per_replica),
        "saved": max(0.0, 1.0 - hours / static),
        "start_up_s": start_up_s,
        "min_dwell_hours": min_dwell_hours,
    }
