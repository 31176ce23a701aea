"""Prediction against measurement, window by window (9.9)."""

from __future__ import annotations

import math
from typing import Final

from sieve.errors import InvalidInput
from sieve.formulas.fields import Fields, Outputs, formula, number
from sieve.units import gfloor

MAX_WINDOWS: Final = 1_000_000


@formula("events", width=120, t0=0, t1=None)
def windows(given: Fields) -> Outputs:
    """Return token rates in windows of `width` seconds and how long each is (9.9).

    The windows are half-open from t0; the last is cut at t1, the last event by default, and holds
    an event there. Events outside are ignored.
    """
    events = [
        (number(time, f"{path}[0]"), number(tokens, f"{path}[1]", low=0))
        for path, (time, tokens) in given.tuples("events", 2)
    ]
    width, t0 = given.number("width", above=0), given.number("t0")
    if not events and not given.has("t1"):
        raise InvalidInput("events: there are none; give t1")
    t1 = given.number("t1") if given.has("t1") else max(time for time, _ in events)
    if t1 <= t0:
        raise InvalidInput(f"t1: {t1:g} is not after t0, {t0:g}")
    if (t1 - t0) / width > MAX_WINDOWS:
        raise InvalidInput(f"width: cuts the time into more than {MAX_WINDOWS:,} windows")
    count = max(1, -gfloor(-(t1 - t0) / width))
    sums = [0.0] * count
    for time, tokens in events:
        if t0 <= time <= t1:
            sums[min(gfloor((time - t0) / width), count - 1)] += tokens
    durations = [width] * (count - 1) + [t1 - (t0 + (count - 1) * width)]
    rates = [tokens / seconds for tokens, seconds in zip(sums, durations, strict=True)]
    return {"rates": rates, "durations": durations}


@formula("predicted", "measured", durations=None)
def tracking(given: Fields) -> Outputs:
    """Return how well predictions follow measurements: signed mean, window errors, balance (9.9).

    `cancellation` is what the mean error hides: 0 when all errors have one sign.
    """
    predicted = given.numbers("predicted", low=0)
    measured = given.numbers("measured", low=0)
    durations = (
        given.numbers("durations", above=0) if given.has("durations") else [1.0] * len(measured)
    )
    if not len(predicted) == len(measured) == len(durations):
        raise InvalidInput(
            f"predicted, measured, durations: have {len(predicted)}, {len(measured)} and "
            f"{len(durations)} entries, expected equally many"
        )
    rows = list(zip(predicted, measured, durations, strict=True))
    total = math.fsum(m * d for _, m, d in rows)
    if total <= 0:
        raise InvalidInput(
            "measured: all values are 0, so no error can be a share; give one above 0"
        )
    mean_error = math.fsum((p - m) * d for p, m, d in rows) / total
    wape = math.fsum(abs(p - m) * d for p, m, d in rows) / total
    relative = [abs(p - m) / m for p, m, _ in rows if m > 0]
    return {
        "mean_error": mean_error,
        "window_mape": 100 * math.fsum(relative) / len(relative),
        "max_abs_error": max(relative),
        "wape": wape,
        "under_fraction": sum(p < m for p, m, _ in rows) / len(rows),
        "cancellation": max(0.0, wape - abs(mean_error)),
        "windows": len(rows),
        "zero_windows": len(rows) - len(relative),
    }
