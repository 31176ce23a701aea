"""Intervals of simulated metrics from the model's error.

No local measurements are used in this version, so every interval is a default and labelled
`uncalibrated`: a log-normal error whose spread was read off public measurements of other models and
GPUs (leave one model and GPU out: TPOT 4.3 %, mean TTFT 18.1 % median error) and widened where the
evidence is weaker.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import NormalDist
from typing import Final

from sieve.arrays import COMPONENTS, EVIDENCE_CLASSES, FloatArray

SPREAD: Final = {"ttft": 0.28, "tpot": 0.08, "itl": 0.10, "e2e": 0.10}
"""Standard deviation of the log error of a latency whose step time rests on kernel tables."""

WIDENING: Final = {"measured": 1.0, "interpolated": 1.0, "extrapolated": 1.5, "roofline": 2.5}
"""Factor on `SPREAD` by evidence class."""

CARRYING_SHARE: Final = 0.1
"""A class counts as evidence of a candidate from this share of the step time on."""


def deviations(confidence: float) -> float:
    """Return the number of standard deviations of a one-sided bound at this confidence."""
    return NormalDist().inv_cdf(confidence)


def log_error(metric: str, evidence: str, confidence: float) -> float:
    """Return the log of the ratio between an interval's end and its middle.

    Args:
        metric: `ttft`, `tpot`, `itl` or `e2e`.
        evidence: the candidate's evidence class.
        confidence: one-sided.
    """
    return SPREAD[metric] * WIDENING[evidence] * deviations(confidence)


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
