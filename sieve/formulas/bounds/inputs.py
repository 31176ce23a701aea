"""Reading the inputs of a bound, and the comparisons that all bounds share."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Final

from sieve.errors import InvalidInput

NEEDED: Final[Any] = object()
"""Marks an input without a default."""
SLACK: Final = 1e-12
"""Relative slack of comparisons between computed rates, times and sizes (1.3)."""

Formula = Callable[[Mapping[str, Any]], dict[str, Any]]


def formula(compute: Formula) -> Formula:
    """Make a function refuse what is no mapping, and return null for what is not finite (1.7)."""

    @wraps(compute)
    def call(inputs: Mapping[str, Any]) -> dict[str, Any]:
        if not isinstance(inputs, Mapping):
            raise InvalidInput(f"found {type(inputs).__name__}, expected an object of named inputs")
        try:
            result: dict[str, Any] = _finite(compute(inputs))
        except (OverflowError, ZeroDivisionError):
            raise InvalidInput(
                "a result leaves the range of double precision; check the units"
            ) from None
        return result

    return call


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def at_least(a: float, b: float) -> bool:
    """Return whether a >= b up to the slack of a computed rate or time (1.3)."""
    return a >= b * (1 - SLACK)


def part(inputs: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return an object among the inputs."""
    value = _given(inputs, key, NEEDED)
    if not isinstance(value, Mapping):
        raise InvalidInput(f"{key} is {_shown(value)}; expected an object")
    return value


def positive(inputs: Mapping[str, Any], key: str, default: Any = NEEDED) -> float:
    """Return a finite number above 0."""
    value = number(_given(inputs, key, default), key)
    if value <= 0:
        raise InvalidInput(f"{key} is {value:g}; it must be above 0")
    return value


def not_negative(inputs: Mapping[str, Any], key: str, default: Any = NEEDED) -> float:
    """Return a finite number of 0 or more."""
    value = number(_given(inputs, key, default), key)
    if value < 0:
        raise InvalidInput(f"{key} is {value:g}; it must be 0 or more")
    return value


def optional_positive(inputs: Mapping[str, Any], key: str) -> float | None:
    """Return a finite number above 0, or None where the input is missing or null."""
    return None if inputs.get(key) is None else positive(inputs, key)


def whole(inputs: Mapping[str, Any], key: str, least: int = 1, default: Any = NEEDED) -> int:
    """Return a whole number of at least `least`."""
    return whole_number(_given(inputs, key, default), key, least)


def items(inputs: Mapping[str, Any], key: str, default: Any = NEEDED) -> list[Any]:
    """Return a list among the inputs."""
    value = _given(inputs, key, default)
    if not isinstance(value, list | tuple):
        raise InvalidInput(f"{key} is {_shown(value)}; expected a list")
    return list(value)


def choice(inputs: Mapping[str, Any], key: str, allowed: tuple[str, ...], default: Any) -> str:
    """Return one of the allowed texts."""
    value = _given(inputs, key, default)
    if value not in allowed:
        raise InvalidInput(f"{key} is {_shown(value)}; allowed: {', '.join(allowed)}")
    return str(value)


def number(value: Any, name: str) -> float:
    """Return `value` as a finite float."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidInput(f"{name} is {_shown(value)}; expected a number")
    try:
        result = float(value)
    except OverflowError:
        result = math.inf
    if not math.isfinite(result):
        raise InvalidInput(f"{name} is {_shown(value)}; expected a finite number")
    return result


def whole_number(value: Any, name: str, least: int) -> int:
    """Return `value` as an int of at least `least`."""
    result = number(value, name)
    if result != math.floor(result):
        raise InvalidInput(f"{name} is {result:g}; expected a whole number")
    if result < least:
        raise InvalidInput(f"{name} is {result:g}; it must be at least {least}")
    return int(value)


def _given(inputs: Mapping[str, Any], key: str, default: Any) -> Any:
    value = inputs.get(key)
    if value is not None:
        return value
    if default is NEEDED:
        raise InvalidInput(f"{key} is missing; give it among the inputs")
    return default


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
