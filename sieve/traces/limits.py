"""Limits on traffic, and the random generators by purpose."""

from __future__ import annotations

import zlib
from typing import Final

import numpy as np

from sieve.arrays import FloatArray
from sieve.errors import TraceError
from sieve.units import NS_PER_S

MAX_TOKENS: Final = 10_000_000
"""Longest input or output in tokens; ten times the longest context in use."""

MAX_FILE_BYTES: Final = 2_000_000_000
"""Largest traffic file, uncompressed: a week of a large service fits."""

MAX_LINE_BYTES: Final = 16_000_000
"""Longest line of a text file with one request a line."""

MAX_DOCUMENT_BYTES: Final = 1_000_000_000
"""Longest JSON document in one line."""

MAX_RATIO: Final = 500
RATIO_FROM_BYTES: Final = 256_000_000
"""A packed file beyond both is refused as a compression bomb; traces pack 5 to 30 times."""

MAX_SPAN_S: Final = 1e9
"""Longest traffic (32 years); nanoseconds of it fit 64 bits with room."""


def check_rate(rate_per_s: float, path: str) -> None:
    """Refuse a rate so low that one gap would outlast the longest traffic.

    Raises:
        TraceError: less than one request in 1e9 seconds; `path` names the key.
    """
    if rate_per_s * MAX_SPAN_S < 1:
        raise TraceError(f"{path} is {rate_per_s:g}/s; expected at least {1 / MAX_SPAN_S:g}/s")


def generator(seed: int, purpose: str) -> np.random.Generator:
    """Return the generator of one purpose; another purpose's draws do not move it."""
    key = zlib.crc32(purpose.encode())
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(key,))))


def whole_ns(time_s: FloatArray) -> FloatArray:
    """Return times in seconds rounded to nanoseconds, so that machines agree on every bit."""
    return np.asarray(np.rint(time_s * NS_PER_S) / NS_PER_S, np.float64)
