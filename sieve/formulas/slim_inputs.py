"""Reading the inputs of a formula: numbers, lists and mappings, refused by name when unusable."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from sieve.errors import InvalidInput

_EXACT: Final = 10**15
_MOST: Final = 1e60
_LEAST: Final = 1e-60
"""What no quantity here exceeds or falls below, so that products stay within double precision."""


def number(inputs: Mapping[str, Any], key: str, *, default: float | None = None) -> float:
    """Return a finite number; a whole number stays an int, so that counts stay exact.

    Raises:
        InvalidInput: missing, not a number, or not finite.
    """
    value = inputs.get(key, default)
    return finite(value, key)


def finite(value: object, name: str) -> float:
    """Return `value` as a finite number.

    Raises:
        InvalidInput: not a number, or not finite.
    """
    if value is None:
        raise InvalidInput(f"{name} is missing; give a number")
    if hasattr(value, "item") and not isinstance(value, str | bytes):
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidInput(f"{name} is {repr(value)[:40]}; expected a number")
    if isinstance(value, int) and abs(value) <= _EXACT:
        return value
    # Not `math.isfinite`: a whole number may be too large for a float, and nan fails here too.
    if not abs(value) <= _MOST:
        shown = f"{value:g}" if isinstance(value, float) else "a larger whole number"
        raise InvalidInput(f"{name} is {shown}; expected a number within {_MOST:g}")
    return float(value)


def positive(inputs: Mapping[str, Any], key: str, *, default: float | None = None) -> float:
    """Return a finite number above 0.

    Raises:
        InvalidInput: missing, not a number, or not above 0.
    """
    value = number(inputs, key, default=default)
    if value < _LEAST:
        raise InvalidInput(f"{key} is {value:g}; it must be above 0")
    return value


def not_negative(inputs: Mapping[str, Any], key: str, *, default: float | None = None) -> float:
    """Return a finite number of 0 or more.

    Raises:
        InvalidInput: missing, not a number, or below 0.
    """
    value = number(inputs, key, default=default)
    if value < 0:
        raise InvalidInput(f"{key} is {value:g}; it must be 0 or more")
    return value


def whole(inputs: Mapping[str, Any], key: str, *, default: int | None = None) -> int:
    """Return a whole number above 0.

    Raises:
        InvalidInput: missing, not whole, or not above 0.
    """
    value = positive(inputs, key, default=default)
    if value > _EXACT or value != int(value):
        raise InvalidInput(f"{key} is {value:g}; it must be a whole number of at most {_EXACT:g}")
    return int(value)


def mapping(inputs: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return a nested object.

    Raises:
        InvalidInput: missing, or not an object.
    """
    return as_mapping(inputs.get(key), key)


def as_mapping(value: object, name: str) -> Mapping[str, Any]:
    """Return `value` if it is an object with keys.

    Raises:
        InvalidInput: it is something else.
    """
    if not isinstance(value, Mapping):
        raise InvalidInput(f"{name} is {type(value).__name__}; expected an object with keys")
    return value


def sequence(inputs: Mapping[str, Any], key: str) -> Sequence[Any]:
    """Return a list.

    Raises:
        InvalidInput: missing, or not a list.
    """
    value = inputs.get(key)
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise InvalidInput(f"{key} is {type(value).__name__}; expected a list")
    return value


def positives(inputs: Mapping[str, Any], key: str) -> list[float]:
    """Return a list of numbers above 0.

    Raises:
        InvalidInput: missing, not a list, or an entry that is not above 0.
    """
    values = sequence(inputs, key)
    return [positive({f"{key}[{i}]": v}, f"{key}[{i}]") for i, v in enumerate(values)]


def ensure_finite(outputs: Mapping[str, Any]) -> None:
    """Refuse inputs whose result is beyond double precision.

    Raises:
        InvalidInput: an output that is not finite.
    """
    for key, value in outputs.items():
        if isinstance(value, int | float) and not math.isfinite(value):
            raise InvalidInput(f"{key} is beyond double precision; the inputs are out of range")
