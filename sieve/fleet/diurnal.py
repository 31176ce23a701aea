"""A day or a week in windows: static peak sizing against a schedule of replicas.

The whole span is replayed in one piece for each policy, queues carried over from window to window.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from sieve.arrays import FloatArray, IntArray, Requests
from sieve.errors import InvalidInput
from sieve.fleet.shapes import Shape, fewest, judged, load_shapes, open_loop, point, traffic_at
from sieve.sim.metrics import meets, per_request, statistic_of
from sieve.sim.replay import simulate
from sieve.units import SECONDS_PER_HOUR

HOURS_PER_MONTH: Final = 730.0
MAX_WINDOWS: Final = 2016
"""A fortnight in windows of ten minutes."""
MAX_REQUESTS: Final = 3_000_000
MAX_LANES: Final = 4096
STEPS: Final = 40
"""Load levels of the sizing: forty a decade, so that a window is sized for at most 6 % too much."""
_BLOCK: Final = 50


@dataclass(frozen=True, eq=False)
class Day:
    """Traffic over the whole span and its windows.

    Attributes:
        requests: all of them.
        edges_s: (w + 1,) window edges.
        levels: (w,) load of each window over the run's own.
    """

    requests: Requests
    edges_s: FloatArray
    levels: FloatArray


def diurnal(
    spec: str | Path | Mapping[str, Any],
    candidate: str,
    *,
    profile: Sequence[float] = (),
    window_s: float = SECONDS_PER_HOUR,
    start_up_s: float = 300.0,
    dwell: int = 2,
    overrides: Sequence[str] = (),
    most: int = 64,
) -> dict[str, Any]:
    """Return what static peak sizing and scheduled scaling cost and serve over a day or a week.

    Each window is sized by the fewest replicas of the candidate's shape that clear at its load.
    `static` keeps the peak's. `scheduled` follows the windows: replicas asked for at a window's
    start serve `start_up_s` later, replicas let go finish what they have. `ahead` asks for them
    `start_up_s` earlier. A replica that is up stays for `dwell` windows. Replicas are paid from
    when they are asked for.

    Args:
        spec: path of a run spec, or the spec as a mapping.
        candidate: the shape, as `sieve.replay` takes it; its replicas do not count.
        profile: load of each window over the traffic's own rate, such as 24 numbers for a day; the
            requests are drawn with replacement from the run's in blocks, their gaps stretched.
            Empty: the trace itself, cut into windows; it must hold at least two.
        window_s: length of a window.
        start_up_s: from asking for a replica to its first request.
        dwell: windows that a replica stays at least.
        overrides: `dotted.key=value` texts.
        most: largest number of replicas.

    Returns:
        `windows` (`start_s`, `level`, `num_requests`, `fewest`: null if not up to `most`,
        `static`, `scheduled`), `policies` by name (`peak_replicas`, `gpu_hours`, `usd_per_month`,
        `slo_attainment`, `ttft_p99_s`, `tpot_p99_s`, `verdict`, `num_violations`: requests outside
        the limits, `worst_window`, `windows`: attainment of each), `saving`: share of the static
        cost that `scheduled` and `ahead` save.

    Raises:
        SieveError: any fault of the input, a closed loop, sessions, or a window that the most
            replicas cannot serve.
    """
    _check(profile, window_s, start_up_s, dwell, most)
    context, shapes, _ = load_shapes(spec, [candidate], overrides=overrides)
    shape = shapes[0]
    open_loop(context.requests, "scheduled scaling")
    day = _drawn(context.requests, profile, window_s, context.seed)
    if not profile:
        day = _cut(context.requests, window_s)
    needed = _needed(shape, day, most)
    held = with_dwell(needed, dwell)
    peak = int(needed.max())
    static = np.full(len(needed), peak)
    policies = {
        "static": _policy(shape, day, static, 0.0, 0.0),
        "scheduled": _policy(shape, day, held, start_up_s, 0.0),
        "ahead": _policy(shape, day, held, start_up_s, start_up_s),
    }
    cost = policies["static"]["gpu_hours"]
    return {
        "question": "diurnal",
        "shape": shape.name,
        "window_s": window_s,
        "start_up_s": start_up_s,
        "dwell": dwell,
        "gpus_per_replica": shape.gpus,
        "usd_per_gpu_hour": shape.context.gpus[shape.row["gpu"]].usd_per_gpu_hour,
        "windows": [
            {
                "start_s": float(day.edges_s[i]),
                "level": float(day.levels[i]),
                "num_requests": int(count),
                "fewest": int(needed[i]),
                "static": peak,
                "scheduled": int(held[i]),
            }
            for i, count in enumerate(np.histogram(day.requests.arrival_s, day.edges_s)[0])
        ],
        "policies": policies,
        "saving": {
            name: 1.0 - policies[name]["gpu_hours"] / cost for name in ("scheduled", "ahead")
        },
        "assumptions": _assumptions(profile, start_up_s),
    }


def _assumptions(profile: Sequence[float], start_up_s: float) -> list[str]:
    found = [
        f"a replica takes {start_up_s:g} s to start, a figure of the user's or the default",
        f"a month has {HOURS_PER_MONTH:g} hours that are like those shown",
        "replicas are dealt requests round robin among those that are up",
    ]
    if profile:
        found.append(
            "each window's requests are drawn from the run's with replacement, in blocks of "
            f"{_BLOCK}, so a window holds no lengths or bursts that the run's traffic lacks"
        )
    return found


def _check(
    profile: Sequence[float], window_s: float, start_up_s: float, dwell: int, most: int
) -> None:
    if not (np.isfinite(window_s) and 60 <= window_s <= 7 * 24 * SECONDS_PER_HOUR):
        raise InvalidInput(f"--window: found {window_s:g} s; expected 60 s to a week")
    if not (np.isfinite(start_up_s) and 0 <= start_up_s < window_s):
        raise InvalidInput(f"--start-up: found {start_up_s:g} s; expected 0 to below the window")
    if not 1 <= dwell <= MAX_WINDOWS:
        raise InvalidInput(f"--dwell: found {dwell}; expected 1 to {MAX_WINDOWS} windows")
    if not 1 <= most <= MAX_LANES:
        raise InvalidInput(f"--most: found {most} replicas; expected 1 to {MAX_LANES}")
    if profile and not 2 <= len(profile) <= MAX_WINDOWS:
        raise InvalidInput(f"--profile: found {len(profile)} windows; expected 2 to {MAX_WINDOWS}")
    if any(not (np.isfinite(x) and 0 <= x <= 100) for x in profile):
        raise InvalidInput(
            f"--profile: found {min(profile):g} to {max(profile):g}; loads go from 0 to 100 times "
            "the traffic's rate"
        )
    if profile and max(profile) == 0:
        raise InvalidInput("--profile: every window is 0, so there is no traffic; give one above 0")


def _drawn(requests: Requests, profile: Sequence[float], window_s: float, seed: int) -> Day:
    """Return traffic that follows a profile: blocks of the run's requests, gaps stretched."""
    levels = np.array(profile, np.float64)
    edges = np.arange(len(levels) + 1.0) * window_s
    rate = requests.rate_per_s
    if not len(levels):
        return Day(requests, edges, levels)
    if np.isinf(rate):
        raise InvalidInput(
            "scheduled scaling needs arrivals over time; this traffic is a burst: set "
            "traffic.rate_per_s"
        )
    total = int(rate * window_s * levels.sum())
    if not 1 <= total <= MAX_REQUESTS:
        raise InvalidInput(
            f"the profile makes {total:,} requests; 1 to {MAX_REQUESTS:,} are replayed: change "
            "traffic.rate_per_s, --window or the profile"
        )
    rng = np.random.Generator(np.random.PCG64(seed))
    n, block = len(requests), min(_BLOCK, len(requests))
    start = rng.integers(0, n, -(-total // block))
    rows = ((start[:, None] + np.arange(block)) % n).ravel()[:total]
    gaps = np.diff(requests.arrival_s, append=requests.arrival_s[-1] + 1.0 / rate)
    # Time at load 1 at which each request comes, and the clock time when so much has passed.
    passed = np.cumsum(gaps[rows])
    passed *= window_s * levels.sum() / passed[-1]
    busy = np.concatenate(([0.0], np.cumsum(levels * window_s)))
    arrival = np.interp(passed, busy + 1e-9 * np.arange(len(busy)), edges)
    order = np.sort(rows)  # `take` wants rising indices; the drawn order is put back below
    place = np.argsort(rows, kind="stable")
    part = requests.take(order)
    back = np.empty(total, np.int64)
    back[place] = np.arange(total)
    return Day(
        replace(
            part,
            arrival_s=np.minimum(arrival, edges[-1]),
            input_tokens=part.input_tokens[back],
            output_tokens=part.output_tokens[back],
            prefix=None if part.prefix is None else part.prefix.take(back),
            front_end_s=None if part.front_end_s is None else part.front_end_s[back],
            priority=None if part.priority is None else part.priority[back],
        ),
        edges,
        levels,
    )


def _cut(requests: Requests, window_s: float) -> Day:
    """Return the trace itself in windows."""
    span = float(requests.arrival_s[-1])
    count = int(np.ceil(span / window_s)) if span else 0
    if not 2 <= count <= MAX_WINDOWS:
        raise InvalidInput(
            f"the trace lasts {span:,.0f} s: {count} windows of {window_s:g} s; expected 2 to "
            f"{MAX_WINDOWS}; change --window, or give --profile, the load of each hour"
        )
    edges = np.arange(count + 1.0) * window_s
    held = np.histogram(requests.arrival_s, edges)[0]
    length = np.minimum(edges[1:], span) - edges[:-1]
    levels = held / np.maximum(length, 1e-9) / requests.rate_per_s
    return Day(requests, edges, levels.astype(np.float64))


def _needed(shape: Shape, day: Day, most: int) -> IntArray:
    """Return the fewest replicas that clear at the load of each window, (w,).

    Raises:
        InvalidInput: a window is too busy for the most replicas.
    """
    known: dict[int, int] = {}
    out = np.ones(len(day.levels), np.int64)
    for i, level in enumerate(day.levels):
        if level <= 0:
            continue
        step = int(np.ceil(STEPS * np.log10(level) - 1e-9))
        if step not in known:
            requests = traffic_at(shape.context, 10 ** (step / STEPS))
            found = fewest(partial(_clears, shape, requests), most)
            if found is None:
                raise InvalidInput(
                    f"window {i} has {level:.2f} times the load, and {most} replicas of "
                    f"{shape.name} do not clear it; take a larger shape or more replicas (--most)"
                )
            known[step] = found
        out[i] = known[step]
    return out


def _clears(shape: Shape, requests: Requests, count: int) -> bool:
    return bool(point(shape, count, requests)["verdict"] == "clears")


def with_dwell(needed: IntArray, dwell: int) -> IntArray:
    """Return the replicas held in each window, (w,), when none leaves before `dwell` windows.

    Growth comes at once; the span repeats, so its last windows reach into the first.
    """
    return np.asarray(
        np.max([np.roll(needed, shift) for shift in range(min(dwell, len(needed)))], axis=0),
        np.int64,
    )


def serving(held: IntArray, edges_s: FloatArray, start_up_s: float, lead_s: float) -> FloatArray:
    """Return (k, 2) times from which so many replicas serve: rows of start, replicas.

    Growth serves `start_up_s` after the window's start and `lead_s` earlier; what shrinks does so
    at the start.
    """
    rows = [(0.0, float(held[0]))]
    for i in range(1, len(held)):
        late = max(start_up_s - lead_s, 0.0) if held[i] > held[i - 1] else 0.0
        rows.append((float(edges_s[i]) + late, float(held[i])))
    return np.array(rows)


def _policy(
    shape: Shape, day: Day, held: IntArray, start_up_s: float, lead_s: float
) -> dict[str, Any]:
    times = serving(held, day.edges_s, start_up_s, lead_s)
    at = np.searchsorted(times[:, 0], day.requests.arrival_s, side="right") - 1
    up = times[at, 1].astype(np.int64)
    lane = np.arange(len(day.requests)) % up
    result = simulate(
        day.requests, shape.table, shape.settings, int(held.max()), clock=shape.clock, lane=lane
    )
    shared = shape.shared
    latencies = per_request(day.requests, result, shared.classes)
    met = meets(latencies, shared.limits)
    window = np.clip(
        np.searchsorted(day.edges_s, day.requests.arrival_s, side="right") - 1, 0, len(held) - 1
    )
    counts = np.bincount(window, minlength=len(held))
    good = np.bincount(window, weights=met, minlength=len(held))
    share = np.where(counts > 0, good / np.maximum(counts, 1), np.nan)
    facts = judged(day.requests, result, shape.table, shape)
    grown = np.maximum(np.diff(held, prepend=held[0]), 0)
    window_h = np.diff(day.edges_s) / SECONDS_PER_HOUR
    hours = float((held * window_h).sum() + grown.sum() * lead_s / SECONDS_PER_HOUR) * shape.gpus
    price = shape.usd_per_hour(1)
    span_h = float(window_h.sum())
    return {
        "peak_replicas": int(held.max()),
        "gpu_hours": hours,
        "usd_per_month": None if price is None else hours / span_h * HOURS_PER_MONTH * price,
        "verdict": facts["verdict"],
        "slo_attainment": float(met.mean()),
        "num_violations": int((~met).sum()),
        "ttft_p99_s": statistic_of(latencies["ttft"], "p99"),
        "tpot_p99_s": statistic_of(latencies["tpot"], "p99"),
        "worst_window": int(np.nanargmin(share)),
        "windows": [None if np.isnan(x) else float(x) for x in share],
    }
