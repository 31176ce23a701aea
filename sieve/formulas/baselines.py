"""Two regression baselines beside the saturation model (specification 4).

The sources name only the families of features; the definitions here are this project's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from sieve.errors import InvalidInput
from sieve.formulas import slim_inputs as checked

Floats = npt.NDArray[np.float64]

_PIECE_ROWS: Final = 4
_GAIN: Final = 1e-9
_GAIN_ABSOLUTE: Final = 1e-18
_LARGER: Final = 1e-12
_CUTOFF: Final = 1e-10
_RAW: Final = ("B", "IL", "OL", "D", "L", "Hq")


@dataclass(frozen=True)
class _Pieces:
    """Weights of one piece, or of the pieces at or below and above the cut."""

    cut: float
    below: Floats
    above: Floats

    def __call__(self, x: Floats, features: Floats) -> Floats:
        return np.where(x <= self.cut, features @ self.below, features @ self.above)


def llmvisor_agg(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return latency and throughput from aggregate features, in one or two linear pieces.

    Time to first token from [1, n, n IL] with n = B IL, time between tokens from [1, B, c] with
    c = B (IL + (OL + 1)/2); non-negative least squares on relative residuals.

    Raises:
        InvalidInput: a row without a positive value, an empty side, or a latency of zero.
    """
    train = _table(inputs, "train", ("B", "IL", "OL", "ttft", "itl"))
    test = _table(inputs, "test", ("B", "IL", "OL"))
    ttft = _fit_pieces(*_prefill(train), train["ttft"])(*_prefill(test))
    itl = _fit_pieces(*_decode(train), train["itl"])(*_decode(test))
    return _outputs(ttft + (test["OL"] - 1) * itl, test)


def imai_ood_lr(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return latency and throughput from a linear regression over six values and their products.

    Features are standardised over the training side, constant ones dropped; least squares of
    minimum norm.

    Raises:
        InvalidInput: a row without a positive value, an empty side, or a prediction that is not
            positive.
    """
    train = _table(inputs, "train", (*_RAW, "e2e"))
    test = _table(inputs, "test", _RAW)
    features, wanted = _products(train), _products(test)
    kept = np.ptp(features, axis=0) > 0
    with np.errstate(over="ignore"):
        mean, spread = features[:, kept].mean(axis=0), features[:, kept].std(axis=0)
    if not np.all(np.isfinite(spread) & (spread > 0)):
        raise InvalidInput("the training rows are beyond double precision; check their units")

    def design(values: Floats) -> Floats:
        return np.column_stack((np.ones(len(values)), (values[:, kept] - mean) / spread))

    weights = np.linalg.lstsq(design(features), train["e2e"], rcond=_CUTOFF)[0]
    return _outputs(design(wanted) @ weights, test)


def _table(inputs: Mapping[str, Any], key: str, columns: Sequence[str]) -> dict[str, Floats]:
    rows = [
        checked.as_mapping(row, f"{key}[{i}]")
        for i, row in enumerate(checked.sequence(inputs, key))
    ]
    if not rows:
        raise InvalidInput(f"{key} is empty; give at least one row")
    return {c: np.array([checked.positive(row, c) for row in rows], np.float64) for c in columns}


def _outputs(e2e: Floats, test: Mapping[str, Floats]) -> dict[str, Any]:
    bad = np.flatnonzero(~(np.isfinite(e2e) & (e2e > 0)))
    if bad.size:
        raise InvalidInput(
            f"test[{bad[0]}]: the predicted latency is {e2e[bad[0]]:g} s, expected above 0; keep "
            "to the range of the training rows"
        )
    throughput = test["B"] * (test["IL"] + test["OL"]) / e2e
    return {"e2e": e2e.tolist(), "throughput": throughput.tolist()}


def _prefill(table: Mapping[str, Floats]) -> tuple[Floats, Floats]:
    """Return the prompt tokens of a batch and the features of the time to first token."""
    tokens = table["B"] * table["IL"]
    return tokens, np.column_stack((np.ones_like(tokens), tokens, tokens * table["IL"]))


def _decode(table: Mapping[str, Floats]) -> tuple[Floats, Floats]:
    """Return the mean context of a batch and the features of the time between tokens."""
    context = table["B"] * (table["IL"] + (table["OL"] + 1) / 2)
    return context, np.column_stack((np.ones_like(context), table["B"], context))


def _fit_pieces(x: Floats, features: Floats, target: Floats) -> _Pieces:
    """Return one piece, or two split at the training value that leaves the least error.

    Args:
        x: (n,) what a cut divides.
        features: (n, 3).
        target: (n,) positive.
    """
    whole, single = _relative_nnls(features, target)
    best, least = _Pieces(np.inf, whole, whole), np.inf
    for cut in np.unique(x):
        low = x <= cut
        if min(low.sum(), (~low).sum()) < _PIECE_ROWS:
            continue
        below, error_below = _relative_nnls(features[low], target[low])
        above, error_above = _relative_nnls(features[~low], target[~low])
        error = error_below + error_above
        if error < least * (1 - _LARGER):
            candidate, least = _Pieces(float(cut), below, above), error
            if single - error > max(_GAIN * single, _GAIN_ABSOLUTE):
                best = candidate
    return best


def _relative_nnls(features: Floats, target: Floats) -> tuple[Floats, float]:
    """Return weights of 0 or more and the sum of squared relative residuals."""
    design = features / target[:, None]
    with np.errstate(over="ignore"):
        scale = np.linalg.norm(design, axis=0)
    if not np.all(np.isfinite(scale)):
        raise InvalidInput("the training rows are beyond double precision; check their units")
    from scipy.optimize import nnls  # late: slow to import

    weights = nnls(design / scale, np.ones(len(target)), maxiter=500)[0] / scale
    residuals = design @ weights - 1
    return weights, float(residuals @ residuals)


def _products(table: Mapping[str, Floats]) -> Floats:
    raw = [table[name] for name in _RAW]
    return np.column_stack(raw + [a * b for a, b in combinations(raw, 2)])


BASELINES: Final[Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]]] = {
    "baseline.llmvisor_agg": llmvisor_agg,
    "baseline.imai_ood_lr": imai_ood_lr,
}
"""The baselines by their names in `sieve eval`."""
