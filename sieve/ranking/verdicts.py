"""Whether a candidate meets the objectives, at the pessimistic end and at the middle."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import polars as pl

from sieve.frames import bound_column
from sieve.spec import SloSet


@dataclass(frozen=True)
class Limit:
    """One objective as a test on a metric column."""

    column: str
    at_most: bool
    limit: float
    text: str
    unit: str

    @property
    def worst_column(self) -> str:
        """Column of the metric's pessimistic end."""
        return bound_column(self.column, "high" if self.at_most else "low")

    def eased(self, slack: float) -> Limit:
        """Return the limit made easier to meet by a factor; 1 changes nothing."""
        return replace(self, limit=self.limit * slack if self.at_most else self.limit / slack)

    def holds(self, values: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """Return where the limit holds; an unknown value never does."""
        x = np.asarray(values, np.float64)
        # What is compared with NaN is false.
        return np.asarray(x <= self.limit if self.at_most else x >= self.limit, np.bool_)

    def shortfall(self, values: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Return how far values miss as a ratio: 1.0 just meets, 2.0 is off by a factor of two."""
        x = np.asarray(values, np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = x / self.limit if self.at_most else self.limit / x
        return np.asarray(np.where(np.isnan(ratio), np.inf, ratio), np.float64)


def limits_of(slos: SloSet) -> list[Limit]:
    """Return every objective as a test on a column, gates included."""
    limits = [Limit(s.column, s.at_most, s.limit, s.text, s.unit) for s in slos.limits]
    if slos.attainment:
        share, inner = slos.attainment
        text = f"attainment({inner.text})>={share:g}"
        limits.append(Limit("slo_attainment", at_most=False, limit=share, text=text, unit=""))
    if slos.goodput:
        rate, inner = slos.goodput
        text = f"goodput({inner.text})>={rate:g}/s"
        limits.append(
            Limit("goodput_per_s", at_most=False, limit=rate, text=text, unit="requests/s")
        )
    return limits


def verdicts(frame: pl.DataFrame, limits: list[Limit]) -> list[str]:
    """Return `clears`, `point_only` or `misses` for every row."""
    safe = np.ones(len(frame), np.bool_)
    point = np.ones(len(frame), np.bool_)
    for limit in limits:
        safe &= limit.holds(frame[limit.worst_column].to_numpy())
        point &= limit.holds(frame[limit.column].to_numpy())
    return [
        "clears" if s else "point_only" if p else "misses" for s, p in zip(safe, point, strict=True)
    ]


def class_verdicts(frame: pl.DataFrame, slos: SloSet) -> dict[str, list[str]]:
    """Return the verdict of every row on the limits of each class of requests, by class."""
    out = {}
    for group in slos.classes:
        own = SloSet(tuple(slo for slo in slos.limits if slo.group == group))
        out[group.name] = verdicts(frame, limits_of(own))
    return out
