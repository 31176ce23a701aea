"""Traffic noise: paired block bootstrap of a replay's metrics.

A percentile of one short trace is an estimate. Requests that arrive together share a queue, so they
are resampled in blocks of consecutive requests (Kuensch 1989; circular, Politis and Romano 1992),
the same blocks for every candidate and load level of a run: what all candidates share then cancels
in their differences (common random numbers; Nelson and Matejcik 1995).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import sqrt
from statistics import NormalDist
from typing import Final

import numpy as np

from sieve.arrays import FloatArray, IntArray
from sieve.sim._kernels.resamples import places

RESAMPLES: Final = 500
LARGEST_BLOCK: Final = 300
"""Requests in a block: the scale of a busy period. A shorter trace has ten blocks."""
PIECES: Final = 4
"""A block begins at every quarter of a block."""
FEWEST_PIECES: Final = 40
FINEST: Final = 16_000_000
"""Requests x pieces, at most: above it the pieces get fewer."""
SMALLEST: Final = 1e-300
"""Smallest value whose logarithm is taken."""


@dataclass(frozen=True, eq=False)
class Draws:
    """Resamples of a trace.

    Attributes:
        piece: (n,) the piece of the trace that each request belongs to, rising.
        count: (resamples, pieces) how often each piece is drawn.
        blocks: blocks of a resample.
    """

    piece: IntArray
    count: FloatArray
    blocks: int = 1

    def total(self, values: FloatArray) -> FloatArray:
        """Return the sum of (n,) values over each resample, (resamples,)."""
        pieces = np.bincount(self.piece, values, self.count.shape[1])
        return self.total_of_pieces(pieces.astype(np.float64))

    def total_of_pieces(self, values: FloatArray) -> FloatArray:
        """Return the sum of (pieces,) values over each resample, (resamples,)."""
        # Not a matrix product: its rounding may depend on the number of threads.
        return np.asarray((self.count * values).sum(axis=1), np.float64)


@lru_cache(maxsize=8)
def draw(num_requests: int, seed: int, resamples: int = RESAMPLES) -> Draws:
    """Return resamples of a trace of `num_requests` requests; equal arguments, equal draws."""
    block = min(max(num_requests // 10, 1), LARGEST_BLOCK)
    pieces = max(num_requests // max(block // PIECES, 1), 1)
    if pieces > FEWEST_PIECES:  # a long trace gets longer blocks
        pieces = max(min(pieces, FINEST // num_requests), FEWEST_PIECES)
    length = min(PIECES if block >= PIECES else block, pieces)
    blocks = max(round(pieces / length), 1)
    rng = np.random.default_rng([seed, num_requests])
    start = rng.integers(0, pieces, (resamples, blocks))
    drawn = (start[:, :, None] + np.arange(length)) % pieces
    flat = drawn.reshape(resamples, -1) + pieces * np.arange(resamples)[:, None]
    count = np.bincount(flat.ravel(), minlength=resamples * pieces).reshape(resamples, pieces)
    piece = np.arange(num_requests) * pieces // num_requests
    return Draws(piece.astype(np.int64), count.astype(np.float64), blocks)


def statistics(
    draws: Draws, values: FloatArray, wanted: Sequence[str], weight: FloatArray | None = None
) -> dict[str, FloatArray]:
    """Return each statistic (`mean`, `p99`, ...) of every resample, (resamples,) each.

    Percentiles interpolate linearly between ranks, as `numpy.percentile` does. Where a resample
    holds no value the statistic is nan.

    Args:
        draws: the resamples.
        values: (n,) one for each request; nan where there is none.
        wanted: statistics.
        weight: (n,) whole numbers: how often each value counts; 1 by default.
    """
    present = ~np.isnan(values)
    weight = np.where(present, 1.0 if weight is None else weight, 0.0)
    size = draws.total(weight)
    out: dict[str, FloatArray] = {}
    percentiles = []
    for statistic in wanted:
        if not present.any():
            out[statistic] = np.full(len(size), np.nan)
        elif statistic == "mean":
            total = draws.total(np.where(present, values, 0.0) * weight)
            out[statistic] = total / np.where(size > 0, size, np.nan)
        else:
            percentiles.append(statistic)
    if percentiles:
        shares = np.array([float(statistic[1:]) / 100 for statistic in percentiles])
        rank = np.maximum(shares[:, None] * (size - 1), 0.0)
        order = np.flatnonzero(present)[np.argsort(values[present])]
        whole = np.floor(rank)
        place = places(draws.piece[order], weight[order], draws.count, whole, size - 1)
        low, high = values[order][place]
        found = np.where(size > 0, low + (rank - whole) * (high - low), np.nan)
        out |= dict(zip(percentiles, found, strict=True))
    return {statistic: out[statistic] for statistic in wanted}


def rate_factors(
    draws: Draws, output_tokens: IntArray, finish_s: FloatArray, *, open_loop: bool
) -> tuple[FloatArray, FloatArray]:
    """Return the resamples of requests and of output tokens per second, over the replay's own.

    With arrivals of their own time the rate of requests is the plan's and certain: only the
    answers' lengths vary. A closed loop and a burst take what the engine serves, so there the time
    between answers varies too.
    """
    pieces = draws.count.shape[1]
    tokens = draws.total(output_tokens.astype(np.float64)) / float(output_tokens.sum())
    requests = draws.total(np.ones(len(output_tokens))) / len(output_tokens)
    if open_loop:
        return np.ones(len(tokens)), tokens / requests
    ends = np.sort(finish_s)[np.searchsorted(draws.piece, np.arange(pieces), side="right") - 1]
    spans = np.diff(ends, prepend=0.0)
    time = draws.total_of_pieces(spans) / max(float(ends[-1]), SMALLEST)
    time = np.maximum(time, SMALLEST)
    return requests / time, tokens / time


def width_factor(blocks: int, confidence: float) -> float:
    """Return by how much few blocks widen an end: Student's quantile over the normal one.

    The deviation of resamples is that of a mean over `blocks` without the last degree of freedom.
    The quantile is the expansion of Fisher and Cornish (1960) to the second order, 0.1 % off at 9
    degrees.
    """
    z, degrees = NormalDist().inv_cdf(confidence), max(blocks - 1, 1)
    first = (z**3 + z) / (4 * degrees)
    second = (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)
    return (z + first + second) / z * sqrt(max(blocks, 2) / max(blocks - 1, 1))


def ends(
    draws: Draws,
    resamples: Mapping[str, FloatArray],
    values: Mapping[str, float],
    confidence: float,
) -> dict[str, tuple[float, float]]:
    """Return low and high of each metric: as far on either side as its resamples reach on one.

    A percentile's resamples never exceed the largest value seen, so they reach too little upwards:
    both sides take the larger distance, on a logarithmic scale (a share on its own), widened for
    few blocks. Even so the high end of a p99 held in four of five cases instead of nine of ten
    (`reports/validation/ranking.md`).
    """
    factor = width_factor(draws.blocks, confidence)
    known = np.array([not np.isnan(sample).any() for sample in resamples.values()], np.bool_)
    quantiles: dict[str, list[float]] = {}
    if known.any():
        names = [name for name, whole in zip(resamples, known, strict=True) if whole]
        together = np.array([resamples[name] for name in names])
        found = np.quantile(together, [1 - confidence, confidence], axis=1)
        quantiles = dict(zip(names, found.T.tolist(), strict=True))
    out = {}
    for name, sample in resamples.items():
        present, middle = sample[~np.isnan(sample)], values[name]
        if not len(present) or np.isnan(middle):
            out[name] = (float("nan"),) * 2
            continue
        if name not in quantiles:
            quantiles[name] = np.quantile(present, [1 - confidence, confidence]).tolist()
        low, high = quantiles[name]
        if name == "slo_attainment" or min(low, middle) <= 0 or not np.isfinite(high):
            width = factor * max(middle - low, high - middle, 0.0)
            most = 1.0 if name == "slo_attainment" else float("inf")
            out[name] = max(middle - width, 0.0), min(middle + width, most)
        else:
            ratio = max(middle / low, high / middle, 1.0) ** factor
            out[name] = middle / ratio, middle * ratio
    return out


def log_ratio(resamples: FloatArray, middle: float) -> FloatArray:
    """Return the logarithm of resamples over the replay's own value, (resamples,)."""
    ratio = np.maximum(resamples, SMALLEST) / max(middle, SMALLEST)
    return np.asarray(np.log(ratio), np.float64)
