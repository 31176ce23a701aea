"""Intervals of simulated metrics from the model's error.

No measurements of the user's own stack are used in this version, so every interval is a default and
labelled `uncalibrated`: a log-normal error whose spread, apart for either side, is that of public
measurements of vLLM with model and GPU left out of the fit, 1.3 times as wide for families that are
not among them (`reports/validation/measured.md`). The high side of TTFT is wider than that: a run
leaves out the client's and the front end's time.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import NormalDist
from typing import Final, Literal

from sieve.arrays import COMPONENTS, EVIDENCE_CLASSES, FloatArray

End = Literal["low", "high"]

SPREAD: Final = {
    "high": {"ttft": 0.40, "tpot": 0.12, "itl": 0.12, "e2e": 0.15},
    "low": {"ttft": 0.30, "tpot": 0.10, "itl": 0.10, "e2e": 0.12},
}
"""Deviation of the log error on either side, for latencies that rest on kernel tables."""

WIDENING: Final = {"measured": 1.0, "interpolated": 1.0, "extrapolated": 1.25, "roofline": 1.75}
"""Factor on `SPREAD` by evidence class; a guess until weaker evidence has been held to records."""

CARRYING_SHARE: Final = 0.1
"""A class counts as evidence of a candidate from this share of the step time on."""


def log_error(metric: str, evidence: str, confidence: float, end: End) -> float:
    """Return the log of the ratio between an interval's end and its middle, as a positive number.

    Args:
        metric: `ttft`, `tpot`, `itl` or `e2e`.
        evidence: the candidate's evidence class.
        confidence: one-sided.
        end: which end.
    """
    return SPREAD[end][metric] * WIDENING[evidence] * NormalDist().inv_cdf(confidence)


def evidence_shares(
    component_s: FloatArray, component_evidence: Mapping[str, Mapping[str, float]]
) -> dict[str, float]:
    """Return the share of the simulated step time that rests on each evidence class.

    Args:
        component_s: (5,) time by component of `COMPONENTS`.
        component_evidence: {component: {class: share}}; a component that is not named is roofline.
    """
    total = float(component_s.sum())
    shares = dict.fromkeys(EVIDENCE_CLASSES, 0.0)
    if total <= 0:
        return shares
    for name, seconds in zip(COMPONENTS, component_s, strict=True):
        for evidence, share in component_evidence.get(name, {"roofline": 1.0}).items():
            shares[evidence] += float(seconds) * share / total
    return shares


def weakest_class(shares: Mapping[str, float]) -> str:
    """Return the weakest class that carries at least a tenth of the step time."""
    for evidence in reversed(EVIDENCE_CLASSES):
        if shares[evidence] >= CARRYING_SHARE:
            return evidence
    return "roofline"
