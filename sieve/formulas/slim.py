"""The saturation model by name: each function takes a mapping of inputs and returns one.

Numbers in parentheses name the equation of the source, 3.x the section of the sizing
specification. Latencies are seconds, throughput counts prompt and output tokens per second.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from sieve.errors import InvalidInput
from sieve.formulas import slim_inputs as checked
from sieve.formulas.slim_fit import fit, mape
from sieve.formulas.slim_model import (
    batch_limit,
    head_dim,
    line,
    read_hardware,
    read_model,
    read_params,
)
from sieve.formulas.slim_model import (
    context_sum as _context_sum,
)
from sieve.formulas.slim_model import (
    predict as _predict,
)
from sieve.formulas.slim_scenarios import knee, split

DEFAULT_REFERENCE: Final = (2, 128, 32)
"""IL, OL and B of the batch whose latency scales the objectives of 3.1."""
_MOST_BATCHES: Final = 10_000_000
_LARGER: Final = 1e-12


def active_context(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tokens whose cache a decode step reads (eq. 3).

    Raises:
        InvalidInput: a prompt that is not positive, or a negative count of output tokens.
    """
    total: float = 0
    for i, pair in enumerate(checked.sequence(inputs, "requests")):
        name = f"requests[{i}]"
        values = checked.sequence({name: pair}, name)
        if len(values) != 2:
            raise InvalidInput(f"{name} has {len(values)} entries; expected [prompt, generated]")
        prompt, generated = (checked.finite(value, name) for value in values)
        if prompt <= 0 or generated < 0:
            raise InvalidInput(
                f"{name} is [{prompt:g}, {generated:g}]; a prompt is above 0 tokens, what was "
                "generated 0 or more"
            )
        total += prompt + generated
    checked.ensure_finite({"active_context": total})
    return {"active_context": total}


def kv_width(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the head dimension and the width of the keys (eq. 4).

    Raises:
        InvalidInput: a size that is not positive, or D not a multiple of Hq.
    """
    dim = head_dim(checked.whole(inputs, "D"), checked.whole(inputs, "Hq"))
    return {"head_dim": dim, "D_kv": checked.whole(inputs, "Hkv") * dim}


def context_sum(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tokens that all decode steps of one request read (eq. 12).

    Raises:
        InvalidInput: a length that is not positive.
    """
    value = _context_sum(checked.positive(inputs, "IL"), checked.positive(inputs, "OL"))
    checked.ensure_finite({"C": value})
    return {"C": value}


def predict(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return latency and throughput of one batch with their parts (eq. 5 to 11).

    Raises:
        InvalidInput: an input that is missing or not positive.
    """
    model, hardware, params = _subject(inputs)
    isl, osl = checked.positive(inputs, "IL"), checked.positive(inputs, "OL")
    return dict(vars(_predict(model, hardware, params, isl, osl, checked.positive(inputs, "B"))))


def slo(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return a latency objective in seconds: a multiple of a reference batch's latency (3.1).

    Raises:
        InvalidInput: a factor or reference that is not positive.
    """
    factor = checked.positive(inputs, "factor")
    return {"slo_s": _slo_s(inputs, factor, inputs.get("reference"))}


def _slo_s(inputs: Mapping[str, Any], factor: float, reference: object) -> float:
    triple = {"reference": DEFAULT_REFERENCE if reference is None else reference}
    values = checked.positives(triple, "reference")
    if len(values) != 3:
        raise InvalidInput(f"reference has {len(values)} entries; expected [IL, OL, B]")
    model, hardware, params = _subject(inputs)
    value = factor * _predict(model, hardware, params, *values).e2e
    checked.ensure_finite({"slo_s": value})
    return value


def bca(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the batch of largest throughput within a latency and an efficiency limit (eq. 13).

    `B_cap` is null when no batch keeps both limits (`state` no_feasible_batch) or when the list of
    candidates is empty (no_candidates). `limit` names what stops the next larger batch: `slo`,
    `efficiency`, `candidates` (the largest one is taken) or `saturation` (no gain beyond 1e-12).

    Raises:
        InvalidInput: an input that is missing or out of range, or both or none of `b_max` and
            `candidates`, or of `slo_s` and `slo_factor`.
    """
    model, hardware, params = _subject(inputs)
    isl, osl = checked.positive(inputs, "IL"), checked.positive(inputs, "OL")
    epsilon = checked.not_negative(inputs, "epsilon")
    slo_s = _limit_s(inputs)
    slope, intercept = line(model, hardware, params, isl, osl)
    candidates = _candidates(inputs, batch_limit(slope, intercept, slo_s, epsilon))
    single = _predict(model, hardware, params, isl, osl, 1).throughput
    best: dict[str, Any] | None = None
    limit = "candidates"
    for batch in candidates:
        got = _predict(model, hardware, params, isl, osl, batch)
        efficiency = got.throughput / (batch * single)
        if got.e2e > slo_s or not efficiency > epsilon:
            limit = "slo" if got.e2e > slo_s else "efficiency"
            break  # latency rises and efficiency falls with the batch
        if best is not None and not got.throughput > best["throughput"] * (1 + _LARGER):
            limit = "saturation"
            continue
        limit = "candidates"
        best = {
            "B_cap": batch,
            "throughput": got.throughput,
            "e2e": got.e2e,
            "efficiency": efficiency,
        }
    if best is None:
        state = "no_feasible_batch" if candidates else "no_candidates"
        best = {"B_cap": None, "throughput": None, "e2e": None, "efficiency": None}
        return {**best, "slo_s": slo_s, "state": state, "limit": limit if candidates else None}
    return {**best, "slo_s": slo_s, "state": "feasible", "limit": limit}


def _limit_s(inputs: Mapping[str, Any]) -> float:
    given = [key for key in ("slo_s", "slo_factor") if inputs.get(key) is not None]
    if len(given) != 1:
        raise InvalidInput(
            f"found {' and '.join(given) or 'neither'}; give either slo_s or slo_factor"
        )
    if given == ["slo_s"]:
        return float(checked.positive(inputs, "slo_s"))
    return _slo_s(inputs, checked.positive(inputs, "slo_factor"), inputs.get("slo_reference"))


def _candidates(inputs: Mapping[str, Any], bound: float) -> list[int]:
    """Return the batches to look at, rising; of a range only up to just above the closed form."""
    if (inputs.get("candidates") is None) == (inputs.get("b_max") is None):
        found = "both" if inputs.get("b_max") is not None else "neither"
        raise InvalidInput(f"found {found}; give either b_max or candidates")
    if inputs.get("b_max") is None:
        values = checked.sequence(inputs, "candidates")
        names = [f"candidates[{i}]" for i in range(len(values))]
        return sorted({checked.whole({n: v}, n) for n, v in zip(names, values, strict=True)})
    last = checked.whole(inputs, "b_max")
    if bound < last:
        last = min(last, 1 + math.ceil(max(bound, 0.0) * (1 + 1e-6)))
    if last > _MOST_BATCHES:
        raise InvalidInput(f"{last} batches are usable; b_max must be at most {_MOST_BATCHES}")
    return list(range(1, last + 1))


def advisor_report(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a batch cap keeps of the throughput and saves of cache and profiling (3.2).

    Raises:
        InvalidInput: an input that is missing or not positive.
    """
    cap, most = checked.positive(inputs, "B_cap"), checked.positive(inputs, "B_max")
    rate, best = (checked.positive(inputs, f"throughput_at_{end}") for end in ("cap", "best"))
    used, full = (
        checked.not_negative(inputs, "points_used"),
        checked.positive(inputs, "points_full"),
    )
    result = {
        "throughput_ratio": rate / best,
        "batch_ratio": cap / checked.positive(inputs, "B_best"),
        "profiling_saved": 1 - used / full,
        "kv_saved": 1 - cap / most,
    }
    checked.ensure_finite(result)
    return result


def _subject(inputs: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    return (
        read_model(checked.mapping(inputs, "model")),
        read_hardware(checked.mapping(inputs, "hardware")),
        read_params(checked.mapping(inputs, "params")),
    )


SLIM: Final[Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]]] = {
    "slim.active_context": active_context,
    "slim.kv_width": kv_width,
    "slim.context_sum": context_sum,
    "slim.predict": predict,
    "slim.slo": slo,
    "slim.bca": bca,
    "slim.advisor_report": advisor_report,
    "slim.fit": fit,
    "slim.mape": mape,
    "slim.knee": knee,
    "slim.split": split,
}
"""The functions of the saturation model by their names in `sieve eval`."""
