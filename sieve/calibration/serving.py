"""Corrections of latency from measured points, and intervals from what is left.

The log error of a prediction, log(measured/predicted), is taken as a sum of biases of the engine
release, the GPU, the model and their pair (GPU, model, precision), and of the pair's slopes in log
batch, log TP and log prompt length around the mean of its points. Each is shrunk to 0 by its prior
deviation: a ridge, in the form of Gaussian process regression (Rasmussen and Williams 2006, 2.2).
TTFT also has one additive host term for a release. What the correction of a point by all others
leaves is its score; split-conformal bounds (Vovk; Angelopoulos and Bates 2021) come from the scores
of a regime cell, once it has at least ten.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import numpy as np

from sieve.arrays import FloatArray
from sieve.calibration.points import Place, Point
from sieve.ranking.intervals import ENDS, LATENCIES, ModelError, default_error

BIAS: Final[Mapping[str, float]] = {"tpot": 0.15, "ttft": 0.30}
"""Prior deviation of the whole bias of a pair."""
SLOPE: Final[Mapping[str, float]] = {"tpot": 0.08, "ttft": 0.20}
"""Prior deviation of a slope, by unit of the logarithm."""
NOISE: Final[Mapping[str, float]] = {"tpot": 0.12, "ttft": 0.25}
"""Deviation of a single result."""
SHARES: Final[Mapping[str, float]] = {"release": 0.15, "gpu": 0.25, "model": 0.25, "pair": 0.35}
"""How the variance of the bias is split among the levels; an even guess, most for the pair."""
HOST_STEPS_S: Final = np.arange(-0.03, 0.2005, 0.001)
HOST_DEVIATION_S: Final = 0.02
"""Prior deviation of the host term."""
KINDS: Final = ("tpot", "ttft")
LEAST_LOCAL: Final = 10
"""Scores of a regime cell from which on a bound is split-conformal."""
LEAST_OF_PAIR: Final = 3
"""Of them from the candidate's own pair: else left-out errors say too little of it."""


@dataclass(frozen=True, eq=False)
class Fit:
    """The regression of one kind of latency.

    Attributes:
        kind: `tpot` or `ttft`.
        places: of the n points.
        centres: by pair, the mean features of its points, where slopes add nothing.
        weights: (n,) inverse covariance of the log errors times them.
        errors: (n,) log errors.
        left_out: (n,) correction of each point by all others.
    """

    kind: str
    places: Sequence[Place]
    centres: Mapping[tuple[str, ...], FloatArray]
    weights: FloatArray
    errors: FloatArray
    left_out: FloatArray

    def at(self, place: Place) -> float:
        """Return the correction at a place, a log factor."""
        if not self.places:
            return 0.0
        # Not a matrix product: its rounding may depend on the number of threads.
        return float((self._covariance(place)[0] * self.weights).sum())

    def _covariance(self, place: Place) -> FloatArray:
        return covariance(self.kind, [place], self.places, self.centres)


def _features(place: Place) -> FloatArray:
    """Return log batch, log TP and log prompt length, (3,)."""
    values = math.log(place.batch), math.log(place.tp), math.log(place.input_tokens)
    return np.array(values, np.float64)


def centres_of(places: Sequence[Place]) -> dict[tuple[str, ...], FloatArray]:
    """Return the mean features of each pair's points."""
    groups: dict[tuple[str, ...], list[FloatArray]] = {}
    for place in places:
        groups.setdefault(place.pair, []).append(_features(place))
    return {pair: np.asarray(np.mean(rows, axis=0), np.float64) for pair, rows in groups.items()}


def covariance(
    kind: str, left: Sequence[Place], right: Sequence[Place],
    centres: Mapping[tuple[str, ...], FloatArray],
) -> FloatArray:  # fmt: skip
    """Return the prior covariance of the log errors at two lists of places, (left, right)."""

    def same(key: str) -> FloatArray:
        a, b = (np.array(["\x1f".join(_level(p, key)) for p in side]) for side in (left, right))
        return np.asarray(a[:, None] == b[None, :], np.float64)

    total = np.zeros((len(left), len(right)))
    for key, share in SHARES.items():
        total += share * BIAS[kind] ** 2 * same(key)
    first, second = (
        np.array([_features(p) - centres[p.pair] if p.pair in centres else np.zeros(3)
                  for p in side]) for side in (left, right)
    )  # fmt: skip
    slopes = (first[:, None, :] * second[None, :, :]).sum(axis=2)
    return np.asarray(total + SLOPE[kind] ** 2 * same("pair") * slopes, np.float64)


def _level(place: Place, key: str) -> tuple[str, ...]:
    if key == "release":
        return place.engine, place.release
    return place.pair if key == "pair" else (str(getattr(place, key)),)


def fit_kind(
    kind: str, places: Sequence[Place], errors: FloatArray,
    centres: Mapping[tuple[str, ...], FloatArray] | None = None,
) -> Fit:  # fmt: skip
    """Return the regression of n log errors at n places.

    Args:
        kind: `tpot` or `ttft`.
        places: of the points.
        errors: (n,) log errors.
        centres: of the slopes by pair; by default the points' own.
    """
    if not len(errors):
        empty = np.zeros(0)
        return Fit(kind, (), {}, empty, empty, empty)
    centres = centres_of(places) if centres is None else centres
    whole = covariance(kind, places, places, centres) + NOISE[kind] ** 2 * np.eye(len(errors))
    inverse = np.linalg.inv(whole)
    weights = np.asarray(inverse @ errors, np.float64)
    return Fit(kind, places, centres, weights, errors, errors - weights / np.diag(inverse))


def host_term(places: Sequence[Place], measured: FloatArray, predicted: FloatArray) -> float:
    """Return the seconds that all TTFT of n points have in common, by marginal likelihood.

    Args:
        places: of the points.
        measured: (n,) seconds.
        predicted: (n,) seconds.
    """
    if not len(measured):
        return 0.0
    prior = covariance("ttft", places, places, centres_of(places))
    whole = prior + NOISE["ttft"] ** 2 * np.eye(len(places))
    steps = HOST_STEPS_S[-0.5 * predicted.min() < HOST_STEPS_S]
    errors = np.log(measured) - np.log(predicted + steps[:, None])
    fit = ((errors @ np.linalg.inv(whole)) * errors).sum(axis=1)
    return float(steps[np.argmin(fit + (steps / HOST_DEVIATION_S) ** 2)])


@dataclass(frozen=True)
class Correction:
    """What is done to a prediction: TTFT' = (TTFT + host_s) e^ttft, TPOT' = TPOT e^tpot.

    Attributes:
        ttft, tpot: log factors.
        host_s: seconds.
        num_points: points of the pair behind it.
        num_other: further points that share its GPU, model or release.
    """

    ttft: float = 0.0
    tpot: float = 0.0
    host_s: float = 0.0
    num_points: int = 0
    num_other: int = 0


@dataclass(frozen=True, eq=False)
class Calibration:
    """Everything learned from measured points.

    Attributes:
        points: those that hold, in the order of their ids.
        expired: how many do not: their engine profile or step times have changed.
        sha256: of the calibration file, "" if it was made in memory.
    """

    points: tuple[Point, ...]
    expired: int = 0
    sha256: str = ""
    _cells: dict[tuple[str, ...], dict[str, FloatArray]] = field(default_factory=dict, repr=False)

    @cached_property
    def host_s(self) -> dict[tuple[str, str], float]:
        """Host term by engine and release, seconds."""
        out = {}
        for key in sorted({(p.place.engine, p.place.release) for p in self.points}):
            rows = [
                (p.place, p.measured[m], p.predicted[m])
                for p in self.points
                if (p.place.engine, p.place.release) == key and (m := p.middle("ttft"))
            ]
            places, measured, predicted = (list(x) for x in zip(*rows, strict=True)) if rows else (
                [], [], []
            )  # fmt: skip
            out[key] = host_term(places, np.array(measured), np.array(predicted))
        return out

    def host_of(self, place: Place) -> float:
        """Return the host term of a release; of one without points 0."""
        return self.host_s.get((place.engine, place.release), 0.0)

    def _error(self, point: Point, metric: str) -> float:
        host = self.host_of(point.place) if metric.startswith("ttft") else 0.0
        return math.log(point.measured[metric] / (point.predicted[metric] + host))

    @cached_property
    def fits(self) -> dict[str, Fit]:
        """The regression of each kind."""
        out = {}
        for kind in KINDS:
            used = [(p, m) for p in self.points if (m := p.middle(kind))]
            errors = np.array([self._error(p, m) for p, m in used], np.float64)
            out[kind] = fit_kind(kind, [p.place for p, _ in used], errors)
        return out

    def correction(self, place: Place) -> Correction:
        """Return the correction at a place; nothing where no point bears on it."""
        tpot, ttft = (self.fits[kind].at(place) for kind in KINDS)
        own = sum(p.place.pair == place.pair for p in self.points)
        near = sum(
            p.place.gpu == place.gpu or p.place.model == place.model
            or (p.place.engine, p.place.release) == (place.engine, place.release)
            for p in self.points
        )  # fmt: skip
        return Correction(ttft, tpot, self.host_of(place), own, near - own)

    @cached_property
    def scores(self) -> list[dict[str, float]]:
        """Left-out log error of each point: by `tpot`, `ttft`, and `tpot_tail`, `ttft_tail`."""
        out: list[dict[str, float]] = [{} for _ in self.points]
        for kind in KINDS:
            rows = [i for i, p in enumerate(self.points) if p.middle(kind)]
            for place, i in enumerate(rows):
                point, fit = self.points[i], self.fits[kind]
                out[i][kind] = float(fit.errors[place] - fit.left_out[place])
                tail = f"{kind}_p99"
                if tail in point.measured and tail in point.predicted:
                    error = self._error(point, tail)
                    out[i][f"{kind}_tail"] = error - float(fit.left_out[place])
        return out

    def cell_scores(self, cell: tuple[str, ...]) -> dict[str, FloatArray]:
        """Return the scores of a regime cell by kind."""
        if cell not in self._cells:
            rows = [i for i, p in enumerate(self.points) if p.place.cell == cell]
            names = {name for i in rows for name in self.scores[i]}
            self._cells[cell] = {
                name: np.array([self.scores[i][name] for i in rows if name in self.scores[i]])
                for name in sorted(names)
            }
        return self._cells[cell]

    def prepared(self) -> Calibration:
        """Return this with everything computed, so that all processes use the same numbers."""
        assert self.fits
        assert len(self.scores) == len(self.points)
        return self

    def error_of(
        self, place: Place, evidence: str, confidence: float, ttft_share: float
    ) -> ModelError:
        """Return how far the model's ends lie from the corrected prediction.

        Args:
            place: deployment and load.
            evidence: weakest class of the step times, for what stays a default.
            confidence: one-sided.
            ttft_share: of the first token's time in a request's.
        """
        default = default_error(evidence, confidence)
        known = self.cell_scores(place.cell)
        own = sum(p.place.pair == place.pair and p.place.cell == place.cell for p in self.points)
        ends: dict[str, dict[str, float]] = {"low": dict(default.low), "high": dict(default.high)}
        basis = {}
        for kind in KINDS:
            for name in (kind, f"{kind}_tail"):
                found = conformal(known.get(name, np.zeros(0)), confidence)
                if found is None or own < LEAST_OF_PAIR:
                    # Where only the middle has local evidence the tail keeps the default.
                    for end in ENDS:
                        ends[end][name] = getattr(default, end)[kind]
                    continue
                for end, distance in zip(ENDS, found, strict=True):
                    ends[end][name] = distance
                basis[name] = f"{len(known[name])} local points"
        if "tpot" in basis:
            for end in ENDS:
                ends[end]["itl"] = ends[end]["tpot"]
            basis["itl"] = basis["tpot"]
        for tail in ("", "_tail"):
            if f"tpot{tail}" not in basis or f"ttft{tail}" not in basis:
                for end in ENDS:
                    ends[end][f"e2e{tail}"] = getattr(default, end)["e2e"]
                continue
            for end in ENDS:
                first, rest = ends[end][f"ttft{tail}"], ends[end][f"tpot{tail}"]
                ends[end][f"e2e{tail}"] = ttft_share * first + (1 - ttft_share) * rest
            basis[f"e2e{tail}"] = "of TTFT and TPOT"
        assert set(LATENCIES) <= set(ends["low"])
        return ModelError(ends["low"], ends["high"], basis)


def conformal(scores: FloatArray, confidence: float) -> tuple[float, float] | None:
    """Return the distances of the low and the high end on a log scale, at least 0.

    Each is the ceil((n + 1) confidence)-th smallest of n scores on its side. None with fewer than
    ten scores, or too few for the confidence.
    """
    n = len(scores)
    rank = math.ceil((n + 1) * confidence - 1e-9)
    if n < LEAST_LOCAL or rank > n:
        return None
    low, high = (float(np.sort(side)[rank - 1]) for side in (-scores, scores))
    return max(low, 0.0), max(high, 0.0)
