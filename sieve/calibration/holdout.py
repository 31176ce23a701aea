"""Which measured points stay out of a fit, so that it can be judged by them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Final

from sieve.calibration.observations import Observation
from sieve.catalog.models import load_model
from sieve.errors import InvalidInput, SieveError
from sieve.formulas import slim_scenarios

_NUMBERS: Final[dict[str, Callable[[Observation], float]]] = {
    "isl": lambda row: row.isl,
    "osl": lambda row: row.osl,
    "batch": lambda row: row.batch,
}
_CURVE_POINTS: Final = 4
_TOLERANCE: Final = 0.5  # mean lengths are rarely whole

Split = tuple[list[Observation], tuple[int, ...], tuple[int, ...], Counter[str]]


def held_out(rows: Sequence[Observation], rule: str) -> Split:
    """Return the rows, positions to fit, positions held out, and dropped rows by reason.

    Args:
        rows: points of one GPU.
        rule: a scenario of `slim.split` (`same_curve` fits any data, the others the OPT models), or
            `model=NAME`, `isl=N`, `osl=N`, `batch=N`; N may be a range `LOW..HIGH`, either end
            open.

    Raises:
        InvalidInput: an unknown rule, or one that leaves a side empty.
    """
    key, equals, value = rule.partition("=")
    kept, dropped = list(rows), Counter[str]()
    if not equals and key in slim_scenarios.SCENARIOS:
        if key == "same_curve":
            kept, dropped = _curves(rows)
        table = [
            {"model": r.model, "IL": r.isl, "OL": r.osl, "B": r.batch, "throughput": r.tokens_per_s}
            for r in kept
        ]
        sides = slim_scenarios.split({"scenario": key, "observations": table})
        return kept, tuple(sides["train"]), tuple(sides["validate"]), dropped
    matches = _matcher(key, value, rule)
    validate = tuple(i for i, row in enumerate(kept) if matches(row))
    train = tuple(i for i, row in enumerate(kept) if not matches(row))
    if not train or not validate:
        raise InvalidInput(
            f"holdout {rule!r} keeps {len(train)} points to fit and {len(validate)} to judge by; "
            "both sides need one"
        )
    return kept, train, validate, dropped


def _matcher(key: str, value: str, rule: str) -> Callable[[Observation], bool]:
    if key == "model" and value:
        try:
            name = load_model(value).name
        except SieveError:
            name = value
        return lambda row: row.model == name or row.model.startswith(f"{name} (")
    if key in _NUMBERS and value:
        of = _NUMBERS[key]
        low, high = _ends(value, rule)
        return lambda row: low - _TOLERANCE <= of(row) <= high + _TOLERANCE
    scenarios = ", ".join(slim_scenarios.SCENARIOS)
    raise InvalidInput(
        f"holdout {rule!r}; expected model=NAME, isl=N, osl=N, batch=N (N or LOW..HIGH), or one "
        f"of: {scenarios}"
    )


def _ends(text: str, rule: str) -> tuple[float, float]:
    first, dots, last = text.partition("..")
    try:
        low = float(first) if first else 0.0
        high = (float(last) if last else float("inf")) if dots else low
    except ValueError as error:
        raise InvalidInput(f"holdout {rule!r}: {text!r} is no number or LOW..HIGH") from error
    return low, high


def _curves(rows: Sequence[Observation]) -> tuple[list[Observation], Counter[str]]:
    """Return the rows of curves that can be split: four batches or more, each once."""
    curves: dict[tuple[str, float, float], dict[float, Observation]] = defaultdict(dict)
    dropped: Counter[str] = Counter()
    for row in rows:
        curve = curves[row.model, row.isl, row.osl]
        if row.batch in curve:
            dropped["same_curve: the batch is already in the curve"] += 1
        else:
            curve[row.batch] = row
    kept: list[Observation] = []
    for curve in curves.values():
        if len(curve) < _CURVE_POINTS:
            dropped["same_curve: fewer than four points in the curve"] += len(curve)
        else:
            kept += curve.values()
    return kept, dropped
