"""What a set of measurements cannot tell about the parameters of the saturation model, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sieve.calibration.observations import Observation
from sieve.formulas.slim_fit import FitResult
from sieve.formulas.slim_model import PARAMETERS

_CLOSE = 1.02


def warnings_of(
    rows: Sequence[Observation], models: Mapping[str, Mapping[str, Any]], result: FitResult
) -> list[str]:
    """Return the warnings of a fit, the gravest first; none when all six stand on data.

    Args:
        rows: the fitted points.
        models: facts by the names in the rows.
        result: the fit.
    """
    texts = []
    if "fewer_than_six_observations" in result.flags:
        texts.append(f"{len(rows)} points for six parameters: the fit is not determined")
    if len({(r.model, round(r.isl), round(r.osl)) for r in rows}) == 1:
        texts.append("one curve determines only slope and intercept over the batch")
    else:
        shapes = {models[r.model]["L"] * models[r.model]["D"] ** 2 for r in rows}
        if len(shapes) == 1:
            texts.append("one model width and depth: alpha and gamma cannot be told apart")
        if _same([r.isl for r in rows]):
            texts.append("one input length: prefill and decode cannot be told apart")
        if _same([r.osl for r in rows]):
            texts.append("one output length: per-token and fixed time cannot be told apart")
    if _same([r.batch for r in rows]):
        texts.append("one batch size: B0 is not determined")
    if "rank_deficient" in result.flags:
        texts.append(
            f"the data determine {result.rank} of {len(PARAMETERS)} combinations of the "
            "parameters; single values are arbitrary, predictions within the data are not"
        )
    texts += [
        f"{name} is {value:.3g}, above 1: not an efficiency; its term has another form here, or "
        "too little weight"
        for name, value in (("eta_c", result.params.eta_c), ("eta_m", result.params.eta_m))
        if f"{name}_above_1" in result.flags
    ]
    texts += [
        f"{name} ended at a limit of its range: the data do not need it or want it elsewhere"
        for name in PARAMETERS
        if f"{name}_at_limit" in result.flags and f"{name}_above_1" not in result.flags
    ]
    return texts


def _same(values: Sequence[float]) -> bool:
    return max(values) <= _CLOSE * min(values)
