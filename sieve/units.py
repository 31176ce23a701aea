"""Unit factors and the reading of quantities; the only place where ms, GB and GiB exist.

Inside sieve every time is in seconds, every size in bytes, every rate per second.
"""

from __future__ import annotations

import math
import re
import sys
from typing import Final

from sieve.errors import InvalidInput

GB: Final = 1e9
GIB: Final = float(2**30)
MIB: Final = float(2**20)
TERA: Final = 1e12
NS_PER_S: Final = 1_000_000_000
SECONDS_PER_HOUR: Final = 3600.0

_FACTORS: Final[dict[str, dict[str, float]]] = {
    "s": {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0},
    "bytes": {
        "B": 1.0, "kB": 1e3, "MB": 1e6, "GB": GB, "TB": 1e12,
        "KiB": 2.0**10, "MiB": MIB, "GiB": GIB, "TiB": 2.0**40,
    },
    "per_s": {"/s": 1.0, "/min": 1 / 60.0, "/h": 1 / 3600.0},
    "frac": {"%": 0.01, "": 1.0},
}  # fmt: skip
_QUANTITY: Final = re.compile(r"^\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*(\S*)\s*$")


def parse_quantity(value: object, unit: str) -> float:
    """Return `value` as a float in `unit` (`s`, `bytes`, `per_s` or `frac`).

    A number is taken to be in `unit` already; a text must be a number and a known suffix
    (`500 ms`, `80 GiB`, `4/s`).

    Raises:
        InvalidInput: not a finite number, or a suffix of another dimension.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise InvalidInput(f"found {value!r}, expected a number or a text such as {_example(unit)}")
    if isinstance(value, int | float):
        # A whole number beyond double precision has no float; it is no finite quantity either.
        number = float(value) if abs(value) <= sys.float_info.max else math.inf
        factor = 1.0
    else:
        match = _QUANTITY.match(value)
        suffixes = _FACTORS[unit]
        if match is None:
            raise InvalidInput(
                f"found {value!r}, expected a number with a unit, as {_example(unit)}"
            )
        number, suffix = float(match[1]), match[2]
        if suffix and suffix not in suffixes:
            allowed = ", ".join(s for s in suffixes if s)
            raise InvalidInput(f"unit {suffix!r} in {value!r} is not one of: {allowed}")
        factor = suffixes.get(suffix, 1.0)
    if not math.isfinite(number * factor):
        raise InvalidInput(f"found {str(value)[:40]}, expected a finite number")
    return number * factor


def _example(unit: str) -> str:
    return {"s": "'500 ms'", "bytes": "'80 GiB'", "per_s": "'4/s'", "frac": "0.95"}[unit]


def gfloor(x: float) -> int:
    """Return floor(x), but the nearest integer when x is within 1e-9 relative of it.

    Source: sizing specification 1.3 (102.5/1.025 must give 100 in binary too).
    """
    nearest = round(x)
    if abs(x - nearest) <= 1e-9 * max(1.0, abs(x)):
        return int(nearest)
    return math.floor(x)
