"""Which ranked candidates cannot be told apart: exact, statistical and practical ties.

Multiple comparison with the best (Hsu 1984; Hansen, Lunde and Nason 2011), leader by leader. With
the paired difference d of a candidate to its leader on the objective's logarithm, its bootstrap
deviation s, and q, the 95 % quantile over resamples of the largest (d* - d)/s of all compared:

    exact        the same schedule, request by request, on as many of the same GPU
    statistical  d <= sqrt((q s)^2 + m^2), m the model error of the difference
    practical    d <= 5 % on a latency, 3 % on cost or a rate (indifference zone, Bechhofer 1954)

Two candidates of one family (GPU, split, precision) share most of the model's error: it cancels in
the difference down to a quarter, which is assumed. Across families both errors add as squares.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from sieve.arrays import FloatArray

LEVEL: Final = 0.95
"""Of the quantile q: all comparisons with a leader hold together at this level."""

RESIDUAL: Final = 0.25
"""Share of the model error that stays in a difference within a family; assumed, not measured."""

COMPARED_AT_ONCE: Final = 100
"""Candidates behind a leader that share one quantile q."""


@dataclass(frozen=True, eq=False)
class Key:
    """One key of the objective for n candidates in ranking order, on a logarithmic scale.

    Attributes:
        middle: (n,) smaller is better; nan where unknown.
        better, worse: (n,) distance to the best and worst end of the model error, at least 0.
        samples: (n, resamples) resamples less the middle, the same traffic in every column.
        indifference: difference that does not matter.
    """

    middle: FloatArray
    better: FloatArray
    worse: FloatArray
    samples: FloatArray
    indifference: float


@dataclass(frozen=True)
class Tie:
    """Where a candidate stands.

    Attributes:
        group: tie group, numbered from 1.
        kind: `exact`, `statistical` or `practical`; None for a leader.
        difference, noise, model: of the first key, against the group's leader: log difference,
            q s and m.
    """

    group: int
    kind: str | None = None
    difference: float = 0.0
    noise: float = 0.0
    model: float = 0.0


def find_ties(
    verdicts: Sequence[str],
    keys: Sequence[Key],
    families: Sequence[Any],
    schedules: Sequence[Any],
) -> list[Tie]:
    """Return the tie of every ranked candidate.

    The first candidate without a group leads the next one. Groups are not transitive: members tie
    with the leader, on every key, and have its verdict. A group ends at the first that can be told
    apart, so that groups keep the order of the ranking.

    Args:
        verdicts: in ranking order.
        keys: the objective's keys, most important first.
        families: equal where the model error is shared.
        schedules: equal where the replay was the same; None where unknown.
    """
    ties: list[Tie] = []
    while len(ties) < len(verdicts):
        leader = len(ties)
        group = ties[-1].group + 1 if ties else 1
        ties.append(Tie(group))
        last = next(
            (i for i in range(leader, len(verdicts)) if verdicts[i] != verdicts[leader]),
            len(verdicts),
        )
        first = leader + 1
        quantiles: list[float] | None = None
        while first < last:
            rows = np.arange(first, min(first + COMPARED_AT_ONCE, last))
            quantiles = quantiles or [_quantile(key, leader, rows) for key in keys]
            found = _compare(leader, rows, keys, quantiles, families, schedules, group)
            ties += found
            if len(found) < len(rows):
                break
            first = len(ties)
    return ties


def _deviations(key: Key, leader: int, rows: Any) -> tuple[FloatArray, FloatArray]:
    """Return the resampled differences less their own, (rows, resamples), and s, (rows,)."""
    apart = key.samples[rows] - key.samples[leader]
    return apart, np.asarray(apart.std(axis=1), np.float64)


def _quantile(key: Key, leader: int, rows: Any) -> float:
    apart, deviation = _deviations(key, leader, rows)
    varies = deviation > 0
    if not varies.any():
        return 0.0
    largest = (apart[varies] / deviation[varies, None]).max(axis=0)
    return max(float(np.quantile(largest, LEVEL)), 0.0)


def _compare(
    leader: int,
    rows: Any,
    keys: Sequence[Key],
    quantiles: Sequence[float],
    families: Sequence[Any],
    schedules: Sequence[Any],
    group: int,
) -> list[Tie]:
    """Return the ties of the rows up to the first that can be told apart from the leader."""
    same = np.array([families[i] == families[leader] for i in rows])
    equal = np.array([schedules[i] is not None and schedules[i] == schedules[leader] for i in rows])
    statistical, close = np.ones(len(rows), np.bool_), np.ones(len(rows), np.bool_)
    shown: list[FloatArray] = []
    for key, quantile in zip(keys, quantiles, strict=True):
        difference = key.middle[rows] - key.middle[leader]
        noise = quantile * _deviations(key, leader, rows)[1]
        model = np.hypot(key.better[rows], key.worse[leader]) * np.where(same, RESIDUAL, 1.0)
        equal &= difference == 0
        statistical &= difference <= np.hypot(noise, model)
        close &= difference <= key.indifference
        shown = shown or [difference, noise, model]
    tied = equal | statistical | close
    stop = len(rows) if tied.all() else int(np.argmin(tied))
    kinds = np.where(equal, "exact", np.where(statistical, "statistical", "practical"))
    return [Tie(group, str(kinds[i]), *(float(values[i]) for values in shown)) for i in range(stop)]
