"""Calibration of the saturation model: six parameters from throughput measurements (3.3).

Minimises the sum of ((T_hat - T)/T)^2 on the logarithms of the parameters. For a given B0 the
latency is linear in (1/eta_c, alpha/eta_m, gamma/eta_m, 1/eta_m, t_fixed): a non-negative least
squares inside a scan over B0 gives the starts, and two fixed ones are added. No step draws random
numbers, so equal input gives equal output.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from sieve.errors import InvalidInput
from sieve.formulas import slim_inputs as checked
from sieve.formulas.slim_model import (
    DENSE_OFFSET,
    PARAMETERS,
    PRINTED,
    Hardware,
    Model,
    Params,
    kv_bytes_per_request,
    prefill_flops,
    read_hardware,
    read_model,
    read_variant,
)

Floats = npt.NDArray[np.float64]

_BOUNDS: Final = {
    "eta_c": (1e-6, 10.0), "eta_m": (1e-6, 10.0), "alpha": (1e-12, 10.0), "gamma": (1e-12, 10.0),
    "B0": (1e-6, 1e4), "t_fixed": (1e-9, 1e3),
}  # fmt: skip
_LOW: Final = np.log([_BOUNDS[name][0] for name in PARAMETERS])
_HIGH: Final = np.log([_BOUNDS[name][1] for name in PARAMETERS])
_SCAN: Final = np.logspace(-6, 4, 61)
_FIXED_STARTS: Final = ((0.4, 0.6, 1e-4, 1e-6, 10.0, 1e-2), (0.1, 0.9, 1e-3, 1e-5, 1.0, 1e-3))
_AT_LIMIT: Final = 1e-4  # distance on the logarithm
_RANK: Final = 1e-7  # smallest singular value that counts, columns of the Jacobian at length 1
_ENOUGH: Final = len(PARAMETERS)
_BEGIN_SHARE: Final = 0.01
_BETTER: Final = 1e-12


@dataclass(frozen=True)
class Observation:
    """One measured point: lengths in tokens, throughput in prompt plus output tokens per second."""

    model: Model
    isl: float
    osl: float
    batch: float
    throughput: float


@dataclass(frozen=True)
class FitResult:
    """Fitted parameters and how far they can be trusted.

    Attributes:
        params: the minimum.
        sse: sum of squared relative errors.
        mape_percent: mean absolute relative error in percent.
        flags: `eta_c_above_1`, `eta_m_above_1`, `NAME_at_limit`, `fewer_than_six_observations`,
            `rank_deficient`.
        rank: how many combinations of the six logarithms the data determine.
        errors: (n,) relative errors (T_hat - T)/T in the order of the observations.
    """

    params: Params
    sse: float
    mape_percent: float
    flags: tuple[str, ...]
    rank: int
    errors: Floats


@dataclass(frozen=True)
class _Terms:
    """(n,) parts of the latency; each times its parameters."""

    prefill: Floats
    dense: Floats
    width: Floats
    cache: Floats
    batch: Floats
    measured_s: Floats
    dense_offset: bool

    @classmethod
    def of(cls, rows: Sequence[Observation], hardware: Hardware, variant: str) -> _Terms:
        def column(values: Sequence[float]) -> Floats:
            return np.array(values, np.float64)

        return cls(
            prefill=column(
                [prefill_flops(r.model, r.isl, r.batch) / hardware.flops_per_s for r in rows]
            ),
            dense=column([r.osl for r in rows]),
            width=column([r.model.layers * (r.model.width / 1024) ** 2 * r.osl for r in rows]),
            cache=column(
                [kv_bytes_per_request(r.model, r.isl, r.osl) / hardware.bytes_per_s for r in rows]
            ),
            batch=column([r.batch for r in rows]),
            measured_s=column([r.batch * (r.isl + r.osl) / r.throughput for r in rows]),
            dense_offset=variant == DENSE_OFFSET,
        )

    def parts(self, logs: Floats) -> tuple[Floats, Floats, Floats, Floats, float, Floats]:
        """Return the parts of the latency, and its derivative after log B0."""
        eta_c, eta_m, alpha, gamma, offset, fixed = np.exp(logs)
        both = (self.batch + offset) / eta_m
        cache = self.batch / eta_m if self.dense_offset else both
        a, g, m = alpha * self.dense * both, gamma * self.width * both, self.cache * cache
        moved = alpha * self.dense + gamma * self.width
        if not self.dense_offset:
            moved = moved + self.cache
        return self.prefill / eta_c, a, g, m, float(fixed), offset / eta_m * moved

    def residuals(self, logs: Floats) -> Floats:
        prefill, a, g, m, fixed, _ = self.parts(logs)
        return np.asarray(self.measured_s / (prefill + a + g + m + fixed) - 1)

    def jacobian(self, logs: Floats) -> Floats:
        prefill, a, g, m, fixed, offset = self.parts(logs)
        total = prefill + a + g + m + fixed
        rows = (-prefill, -(a + g + m), a, g, offset, np.full_like(total, fixed))
        return np.asarray((-self.measured_s / total**2) * np.array(rows)).T

    def sse(self, logs: Floats) -> float:
        residuals = self.residuals(logs)
        return float(residuals @ residuals)


def fit(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return fitted parameters, their error and their flags (3.3).

    The optional input `variant` chooses the form of the decode term; it is repeated in `params`
    where it is not the printed one, so that the result can be given to `slim.predict`.

    Raises:
        InvalidInput: an input that is missing or not positive, an unknown model, no observation.
    """
    hardware = read_hardware(checked.mapping(inputs, "hardware"))
    models = {
        name: read_model(checked.as_mapping(facts, f"models.{name}"))
        for name, facts in checked.mapping(inputs, "models").items()
    }
    rows = []
    for i, item in enumerate(checked.sequence(inputs, "observations")):
        row = checked.as_mapping(item, f"observations[{i}]")
        name = row.get("model")
        if not isinstance(name, str) or name not in models:
            known = ", ".join(sorted(models)[:8]) or "none"
            raise InvalidInput(
                f"observations[{i}]: model {str(name)[:80]!r} is not in models; there are: {known}"
            )
        values = [checked.positive(row, key) for key in ("IL", "OL", "B", "throughput")]
        rows.append(Observation(models[name], *values))
    result = fit_observations(rows, hardware, read_variant(inputs.get("variant", PRINTED)))
    return {
        "params": params_facts(result.params),
        "sse": result.sse,
        "mape_percent": result.mape_percent,
        "flags": list(result.flags),
        "rank": result.rank,
    }


def params_facts(params: Params) -> dict[str, Any]:
    """Return parameters as the mapping that `read_params` reads."""
    values = (
        params.eta_c, params.eta_m, params.alpha, params.gamma, params.offset, params.fixed_s,
    )  # fmt: skip
    facts: dict[str, Any] = dict(zip(PARAMETERS, values, strict=True))
    return facts if params.variant == PRINTED else {**facts, "variant": params.variant}


def fit_observations(
    rows: Sequence[Observation], hardware: Hardware, variant: str = PRINTED
) -> FitResult:
    """Return the parameters of least squared relative throughput error.

    Raises:
        InvalidInput: no observation, or numbers beyond double precision.
    """
    if not rows:
        raise InvalidInput("there is no observation to fit; give one or more")
    terms = _Terms.of(rows, hardware, variant)
    columns = (terms.prefill, terms.width, terms.cache, terms.measured_s)
    if not all(np.all(np.isfinite(column)) for column in columns):
        raise InvalidInput("the observations are beyond double precision; check their units")
    with np.errstate(all="ignore"):
        best = _minimum(terms)
        errors = terms.residuals(best)
        rank = _rank(terms, best)
    if not np.all(np.isfinite(errors)):
        raise InvalidInput(
            "no parameters within their limits describe the observations; check their units"
        )
    eta_c, eta_m, alpha, gamma, offset, t_fixed = (
        min(max(v, low), high)
        for v, (low, high) in zip(np.exp(best).tolist(), _BOUNDS.values(), strict=True)
    )
    return FitResult(
        params=Params(eta_c, eta_m, alpha, gamma, offset, t_fixed, variant=variant),
        sse=float(errors @ errors),
        mape_percent=float(100 * np.mean(np.abs(errors))),
        flags=_flags(best, len(rows), rank),
        rank=rank,
        errors=errors,
    )


def relative_errors(rows: Sequence[Observation], hardware: Hardware, params: Params) -> Floats:
    """Return (T_hat - T)/T of given parameters, shape (n,)."""
    values = (params.eta_c, params.eta_m, params.alpha, params.gamma, params.offset, params.fixed_s)
    terms = _Terms.of(rows, hardware, params.variant)
    with np.errstate(divide="ignore"):
        return terms.residuals(np.log(values))


def _minimum(terms: _Terms) -> Floats:
    """Return the best of all polished starts; the earlier one on a tie."""
    best, least = None, np.inf
    for start in _starts(terms):
        found = _polish(terms, start)
        value = terms.sse(found)
        if best is None or value < least * (1 - _BETTER):
            best, least = found, value
    assert best is not None
    return best


def _polish(terms: _Terms, start: Floats) -> Floats:
    """Return a minimum near `start`; the second method finds minima on the limits exactly."""
    from scipy.optimize import least_squares  # late: slow to import

    inside = np.clip(start, _LOW + 1e-9, _HIGH - 1e-9)
    found = start
    for method in ("trf", "dogbox"):
        inside = np.clip(found, _LOW + 1e-9, _HIGH - 1e-9)
        solved = least_squares(
            terms.residuals, inside, jac=terms.jacobian, bounds=(_LOW, _HIGH), method=method,
            x_scale=1.0, ftol=1e-15, xtol=1e-15, gtol=1e-15, max_nfev=400,
        ).x  # fmt: skip
        found = min(found, np.asarray(solved), key=terms.sse)
    return found


def _starts(terms: _Terms) -> list[Floats]:
    """Return the starts: the best of the scan, twice, and the fixed ones."""
    scanned = [_linear_start(terms, float(offset)) for offset in _SCAN]
    order = sorted(range(len(scanned)), key=lambda i: terms.sse(_logs(scanned[i])))
    first = scanned[order[0]]
    starts = [_logs(first), _logs(_lifted(terms, first))]
    return starts + [np.log(start) for start in _FIXED_STARTS]


def _linear_start(terms: _Terms, offset: float) -> Floats:
    """Return the parameters of least relative latency error for one B0 (not on logarithms)."""
    both = terms.batch + offset
    cache = terms.batch if terms.dense_offset else both
    design = np.column_stack(
        (
            terms.prefill,
            terms.dense * both,
            terms.width * both,
            terms.cache * cache,
            np.ones_like(both),
        )
    )
    design /= terms.measured_s[:, None]
    scale = np.linalg.norm(design, axis=0)
    if not np.all(np.isfinite(scale) & (scale > 0)):
        raise InvalidInput("the observations are beyond double precision; check their units")
    from scipy.optimize import nnls  # late: slow to import

    weights = nnls(design / scale, np.ones(len(both)), maxiter=500)[0] / scale
    compute, dense, width, memory, fixed = weights
    eta_m = 1 / max(memory, 0.1)
    return np.array(
        [1 / max(compute, 0.1), eta_m, dense * eta_m, width * eta_m, offset, fixed], np.float64
    )


def _lifted(terms: _Terms, values: Floats) -> Floats:
    """Return a start whose vanished parts weigh a hundredth: on a limit the gradient is flat."""
    share = _BEGIN_SHARE
    out = values.copy()
    median = float(np.median(terms.measured_s))
    both = float(np.median(terms.batch)) + values[4]
    eta_m = values[1]
    if values[0] >= 10:
        out[0] = float(np.median(terms.prefill)) / (share * median)
    if eta_m >= 10:
        out[1] = float(np.median(terms.cache)) * both / (share * median)
        out[2:4] *= out[1] / eta_m
        eta_m = out[1]
    if values[2] <= 1e-12:
        out[2] = share * median * eta_m / (float(np.median(terms.dense)) * both)
    if values[3] <= 1e-12:
        out[3] = share * median * eta_m / (float(np.median(terms.width)) * both)
    if values[5] <= 1e-9:
        out[5] = share * median
    return out


def _logs(values: Floats) -> Floats:
    return np.clip(np.log(np.maximum(values, 1e-300)), _LOW, _HIGH)


def _rank(terms: _Terms, logs: Floats) -> int:
    """Return the rank of the Jacobian over the logarithms, its columns at length one."""
    jacobian = terms.jacobian(logs)
    lengths = np.linalg.norm(jacobian, axis=0)
    kept = jacobian[:, lengths > _RANK * lengths.max()]
    if not kept.size or not np.all(np.isfinite(kept)):
        return 0
    singular = np.linalg.svd(kept / np.linalg.norm(kept, axis=0), compute_uv=False)
    return int(np.sum(singular > _RANK * singular[0]))


def _flags(logs: Floats, count: int, rank: int) -> tuple[str, ...]:
    flags = [f"{PARAMETERS[i]}_above_1" for i in (0, 1) if logs[i] > 0]
    at_limit = (logs < _LOW + _AT_LIMIT) | (logs > _HIGH - _AT_LIMIT)
    flags += [f"{name}_at_limit" for name, hit in zip(PARAMETERS, at_limit, strict=True) if hit]
    if count < _ENOUGH:
        flags.append("fewer_than_six_observations")
    if rank < len(PARAMETERS):
        flags.append("rank_deficient")
    return tuple(flags)


def mape(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the mean absolute error relative to the measured values, in percent (3.4).

    Raises:
        InvalidInput: series of unequal length or without an entry, or a measured value that is not
            positive.
    """
    predicted = [
        checked.finite(v, f"predicted[{i}]")
        for i, v in enumerate(checked.sequence(inputs, "predicted"))
    ]
    measured = checked.positives(inputs, "measured")
    if len(predicted) != len(measured) or not measured:
        raise InvalidInput(
            f"predicted has {len(predicted)} and measured {len(measured)} entries; both need the "
            "same, one or more"
        )
    ratios = [abs(p - m) / m for p, m in zip(predicted, measured, strict=True)]
    value = 100 * sum(ratios) / len(ratios)
    checked.ensure_finite({"mape_percent": value})
    return {"mape_percent": value}
