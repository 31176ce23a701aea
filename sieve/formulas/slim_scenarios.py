"""Knee of a saturation curve, and the splits of data into a training and a validation side (3.4).

The source defines neither the knee nor the models of its output-length scenario; what is used here
is written at each function.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from sieve.errors import InvalidInput
from sieve.formulas import slim_inputs as checked

SMALL_MODELS: Final = ("opt-125m", "opt-350m", "opt-1.3b", "opt-2.7b")
LARGE_MODEL: Final = "opt-6.7b"
_LARGER: Final = 1e-12  # of the unit square
_CURVE_POINTS: Final = 4

Row = Mapping[str, Any]
Rule = Callable[[str, float, float], bool]


def knee(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the profiled batch that stands highest over the chord of its curve.

    Both axes are scaled so that the curve runs from (0, 0) to (1, 1); the knee is the first point
    of greatest y - x.

    Raises:
        InvalidInput: batches that do not rise, series of unequal or too small length, or a curve
            that ends at the throughput it starts with.
    """
    batches = checked.positives(inputs, "B")
    rates = [
        checked.finite(v, f"throughput[{i}]")
        for i, v in enumerate(checked.sequence(inputs, "throughput"))
    ]
    return {"knee_B": batches[knee_index(batches, rates)]}


def knee_index(batches: Sequence[float], rates: Sequence[float]) -> int:
    """Return the position of the knee.

    Raises:
        InvalidInput: as `knee`.
    """
    if len(batches) != len(rates) or len(batches) < 2:
        raise InvalidInput(
            f"B has {len(batches)} and throughput {len(rates)} entries; both need the same two or "
            "more"
        )
    if any(b <= a for a, b in pairwise(batches)):
        raise InvalidInput("B must rise from point to point; sort the points, each batch once")
    if rates[0] == rates[-1]:
        raise InvalidInput(
            f"throughput ends where it starts, at {rates[0]:g}; such a curve has no knee: give "
            "one that rises"
        )
    width, height = batches[-1] - batches[0], rates[-1] - rates[0]
    best, found = 0.0, 0
    for i, (b, t) in enumerate(zip(batches, rates, strict=True)):
        over = (t - rates[0]) / height - (b - batches[0]) / width
        if over > best + _LARGER:
            best, found = over, i
    return found


def split(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rows to train on and those to validate on, as rising positions.

    Model names are compared without maker and case. The output-length scenario uses the four small
    models, so that the large one stays unseen in the combined scenario.

    Raises:
        InvalidInput: an unknown scenario, an empty side, a curve of fewer than four points.
    """
    scenario = inputs.get("scenario")
    rows = [
        checked.as_mapping(row, f"observations[{i}]")
        for i, row in enumerate(checked.sequence(inputs, "observations"))
    ]
    if scenario == "same_curve":
        train, validate = _same_curve(rows)
    elif isinstance(scenario, str) and scenario in _RULES:
        keys = [_key(row) for row in rows]
        train_rule, validate_rule = _RULES[scenario]
        train = [i for i, key in enumerate(keys) if train_rule(*key)]
        validate = [i for i, key in enumerate(keys) if validate_rule(*key)]
    else:
        names = ", ".join(("same_curve", *_RULES))
        raise InvalidInput(f"scenario is {str(scenario)[:40]!r}; it is one of: {names}")
    if not train or not validate:
        side = "validation" if train else "training"
        raise InvalidInput(
            f"the {side} side of scenario {scenario} is empty; give observations for it, or take "
            "another scenario"
        )
    return {"train": train, "validate": validate}


def _key(row: Row) -> tuple[str, float, float]:
    model = row.get("model")
    if not isinstance(model, str):
        raise InvalidInput(f"model is {model!r}; expected a name")
    if row.get("B") is not None:
        checked.positive(row, "B")
    name = model.rpartition("/")[2].lower()
    return name, checked.positive(row, "IL"), checked.positive(row, "OL")


def _same_curve(rows: Sequence[Row]) -> tuple[list[int], list[int]]:
    curves: dict[tuple[str, float, float], list[int]] = defaultdict(list)
    for i, row in enumerate(rows):
        curves[_key(row)].append(i)
    train: list[int] = []
    for (model, isl, osl), members in curves.items():
        if len(members) < _CURVE_POINTS:
            raise InvalidInput(
                f"the curve of {model} at IL {isl:g} and OL {osl:g} has {len(members)} points; it "
                f"needs at least {_CURVE_POINTS}"
            )
        batches = {i: checked.positive(rows[i], "B") for i in members}
        order = sorted(members, key=lambda i: (batches[i], i))
        rates = [checked.positive(rows[i], "throughput") for i in order]
        head = order[: knee_index([batches[i] for i in order], rates) + 1]
        few = len(head) < 3
        train += order[:3] if few else [head[0], head[(len(head) - 1) // 2], head[-1]]
    chosen = set(train)
    return sorted(train), [i for i in range(len(rows)) if i not in chosen]


def _small_at_384(model: str, _isl: float, osl: float) -> bool:
    return model in SMALL_MODELS and osl == 384


def _small_at_short(model: str, _isl: float, osl: float) -> bool:
    return model in SMALL_MODELS and osl in (32, 128, 256)


_RULES: Final[Mapping[str, tuple[Rule, Rule]]] = {
    "model_transfer": (_small_at_384, lambda m, _i, o: m == LARGE_MODEL and o == 384),
    "output_length_transfer": (_small_at_short, lambda m, _i, o: m in SMALL_MODELS and o == 512),
    "input_length_transfer": (
        lambda m, i, o: m == "opt-1.3b" and o == 256 and i in (128, 512),
        lambda m, i, o: m == "opt-1.3b" and o == 256 and i == 1024,
    ),
    "combined": (
        lambda m, i, o: _small_at_384(m, i, o) or _small_at_short(m, i, o),
        lambda m, _i, o: m == LARGE_MODEL and o == 512,
    ),
}
SCENARIOS: Final = ("same_curve", *_RULES)
