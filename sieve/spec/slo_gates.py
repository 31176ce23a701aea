"""The gates of the objectives, attainment and goodput, and the quantities of every limit."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any, Final

from sieve.errors import Fault, InvalidInput
from sieve.spec.slo_forms import GATE_METRICS
from sieve.units import parse_quantity

MIN_LIMIT: Final = 1e-6
MAX_LIMIT: Final = 1e9
"""Smallest and largest limit, in seconds, tokens or requests per second."""
_USER_RATE: Final = "output_tokens_per_s_per_user"


def positive(value: Any, unit: str, path: str, faults: list[Fault]) -> float | None:
    """Return a limit in `unit`, or None with a fault noted."""
    try:
        number = parse_quantity(value, unit)
    except InvalidInput as error:
        faults.append(Fault(path, str(error)))
        return None
    if number <= 0:
        faults.append(Fault(path, f"found {value!r}; a limit must be above 0 to be reachable"))
        return None
    if not MIN_LIMIT <= number <= MAX_LIMIT:
        allowed = f"{MIN_LIMIT:g} to {MAX_LIMIT:g}"
        faults.append(Fault(path, f"found {value!r}; limits go from {allowed}"))
        return None
    return number


def in_ms(value: Any) -> Any:
    """Return a number of milliseconds as a text with its unit; other values stay."""
    return (
        f"{value} ms" if isinstance(value, int | float) and not isinstance(value, bool) else value
    )


def parse_gate(
    kind: str, item: Any, path: str, given: Container[str], faults: list[Fault]
) -> tuple[str, float, dict[str, float]] | None:
    """Return a gate's kind, its share or rate, and its limits in seconds by field; None if faulty.

    Args:
        kind: `attainment` or `goodput`, as the user calls it.
        item: what stands under it.
        path: of the key.
        given: kinds that were given before.
        faults: where faults are noted.
    """
    if kind == "goodput" and isinstance(item, Mapping) and "target_attainment" in item:
        kind = "attainment"  # a share of requests, whatever the other tool calls it
    if kind in given:
        faults.append(Fault(path, f"{kind} is given twice; one gate of a kind holds"))
        return None
    target = "share" if kind == "attainment" else "per_s"
    example = f"{{{target}: {'0.95' if kind == 'attainment' else '4'}, ttft: 2 s, tpot: 50 ms}}"
    if not isinstance(item, Mapping):
        faults.append(Fault(path, f"found {item!r}, expected a mapping as {example}"))
        return None
    values: dict[str, float] = {}
    named = {"target_attainment": "share", "slo_attainment_fraction": "share"}
    num_limits = 0
    for key, value in item.items():
        name = named.get(str(key), str(key)) if kind == "attainment" else str(key)
        if name == target:
            unit = "frac" if kind == "attainment" else "per_s"
            number = positive(value, unit, f"{path}.{key}", faults)
            if number is not None and kind == "attainment" and number > 1:
                faults.append(Fault(f"{path}.{key}", f"found {value!r}; a share is at most 1"))
            elif number is not None:
                values[target] = number
        elif str(key).removesuffix("_ms") in GATE_METRICS:
            num_limits += 1
            _gate_limit(str(key), value, f"{path}.{key}", values, faults)
        else:
            text = f"unknown key; allowed are {target}, ttft, tpot, e2e, {_USER_RATE}"
            faults.append(Fault(f"{path}.{key}", text))
    if target not in item and not named.keys() & item.keys():
        faults.append(Fault(f"{path}.{target}", f"missing; write it as {example}"))
    if not num_limits:
        faults.append(Fault(path, f"needs at least one limit of ttft, tpot, e2e, as {example}"))
    return (kind, values.pop(target), values) if target in values else None


def _gate_limit(
    key: str, value: Any, path: str, values: dict[str, float], faults: list[Fault]
) -> None:
    """Note one per-request limit; the least rate of a user is the largest TPOT."""
    name = GATE_METRICS[key.removesuffix("_ms")]
    is_rate = name == _USER_RATE
    item = in_ms(value) if key.endswith("_ms") else value
    number = positive(item, "per_s" if is_rate else "s", path, faults)
    column = "tpot_s" if is_rate else f"{name}_s"
    if column in values:
        faults.append(Fault(path, f"{column.removesuffix('_s')} is limited twice in one gate"))
    elif number is not None:
        values[column] = 1.0 / number if is_rate else number
