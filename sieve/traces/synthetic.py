"""Synthetic traffic: lengths from distributions, arrivals from a process.

Lengths and arrivals have generators of their own, so changing one leaves the other as it was.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from sieve.arrays import FloatArray, IntArray, PrefixBlocks, Requests
from sieve.errors import TraceError
from sieve.spec.models import ArrivalSpec, LengthSpec, PrefixSpec, SyntheticSpec
from sieve.traces.limits import MAX_TOKENS, check_rate, generator, whole_ns
from sieve.traces.prefixes import shared_beginnings

_MAX_CV: Final = 100.0  # beyond it nearly every gamma gap is zero in floating point
_MIN_CV: Final = 1e-6  # below it gaps are equal to a nanosecond in practice


def draw_synthetic(spec: SyntheticSpec, *, seed: int) -> Requests:
    """Return the requests of `spec`, drawn with `seed` (whatever seed the spec states).

    Raises:
        TraceError: a distribution outside the limits on lengths or burstiness.
    """
    n = spec.requests
    isl_rng, osl_rng = (generator(seed, f"synthetic.{name}") for name in ("isl", "osl"))
    arrival_s, users = draw_arrivals(spec.arrival, n, generator(seed, "synthetic.arrival"))
    input_tokens = draw_lengths(spec.isl, n, isl_rng, "traffic.synthetic.isl")
    return Requests(
        arrival_s=arrival_s,
        input_tokens=input_tokens,
        output_tokens=draw_lengths(spec.osl, n, osl_rng, "traffic.synthetic.osl"),
        closed_loop_users=users,
        source="synthetic",
        prefix=None if spec.prefix is None else _beginnings(spec.prefix, input_tokens, seed),
    )


def _beginnings(spec: PrefixSpec, input_tokens: IntArray, seed: int) -> PrefixBlocks:
    rng = generator(seed, "synthetic.prefix")
    n = len(input_tokens)
    tokens = np.where(rng.random(n) < spec.share, spec.tokens, 0)
    return shared_beginnings(input_tokens, tokens, rng.integers(0, spec.groups, n))


def draw_lengths(
    spec: LengthSpec, n: int, rng: np.random.Generator, path: str = "length"
) -> IntArray:
    """Return (n,) token counts, rounded and clipped to [min, max] of `spec`.

    `mean` and `stdev` are those of the length itself before clipping, also for the lognormal, whose
    logarithm then has variance ln(1 + (stdev/mean)^2) and mean ln(mean) - variance/2. `path` names
    the key in messages.

    Raises:
        TraceError: a length above 10 million tokens, or a mean below one.
    """
    low, high = spec.min, MAX_TOKENS if spec.max is None else spec.max
    _check_lengths(spec, path)
    if spec.distribution == "constant":
        return np.clip(np.full(n, spec.value, np.int64), low, high)
    if spec.distribution == "uniform":
        return rng.integers(low, high, size=n, dtype=np.int64, endpoint=True)
    mean, stdev = float(spec.mean or 0.0), float(spec.stdev or 0.0)
    if spec.distribution == "normal":
        value = rng.normal(mean, stdev, n)
    else:
        variance = math.log1p((stdev / mean) ** 2)
        value = rng.lognormal(math.log(mean) - variance / 2, math.sqrt(variance), n)
    return np.asarray(np.clip(np.rint(value), low, high), np.int64)


def _check_lengths(spec: LengthSpec, path: str) -> None:
    for name in ("value", "mean", "stdev", "min", "max"):
        value = getattr(spec, name)
        if value is not None and value > MAX_TOKENS:
            raise TraceError(f"{path}.{name} is {value:g} tokens; at most {MAX_TOKENS}")
    if spec.mean is not None and spec.mean < 1:
        raise TraceError(f"{path}.mean is {spec.mean:g} tokens; at least 1")


def draw_arrivals(
    spec: ArrivalSpec, n: int, rng: np.random.Generator
) -> tuple[FloatArray, int | None]:
    """Return (n,) arrivals in seconds, the first at 0, and the users of a closed loop.

    In a closed loop, and in a burst, all arrivals are 0; users are None for every open loop.
    Random gaps are stretched to the stated mean rate.

    Raises:
        TraceError: a coefficient of variation above 100, or a rate below 1e-9 per second.
    """
    if spec.closed_loop is not None:
        return np.zeros(n), spec.closed_loop
    if spec.burst:
        return np.zeros(n), None
    rate_per_s = spec.constant_per_s or spec.poisson_per_s or 0.0
    if spec.gamma is not None:
        rate_per_s = spec.gamma.rate_per_s
    check_rate(rate_per_s, "the arrival rate")
    if spec.constant_per_s is not None:
        return whole_ns(np.arange(n) / rate_per_s), None
    if spec.gamma is not None:
        gaps = gamma_gaps(np.full(n - 1, spec.gamma.cv), rng)
    else:
        gaps = rng.standard_exponential(n - 1)
    # Stretched so that the draw has the stated mean rate: a few hundred bursty gaps stray far.
    total = float(gaps.sum())
    scale = (n - 1) / (total * rate_per_s) if total > 0 else 0.0
    return whole_ns(np.concatenate([[0.0], np.cumsum(gaps) * scale])), None


def gamma_gaps(cv: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Return (n,) gaps of mean 1 with the given coefficients of variation, (n,).

    A gamma variable of shape k has a coefficient of variation of 1/sqrt(k).

    Raises:
        TraceError: a coefficient above 100.
    """
    if (cv > _MAX_CV).any():
        raise TraceError(f"cv is {cv.max():g}; the burstiness of arrivals goes up to {_MAX_CV:g}")
    shape = np.maximum(cv, _MIN_CV) ** -2.0
    return np.asarray(rng.standard_gamma(shape) / shape, np.float64)
