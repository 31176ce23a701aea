"""Intervals of simulated metrics from the model's error.

Without measurements of the user's own stack every interval is a default and labelled
`uncalibrated`; `sieve.calibration` replaces it where there is enough local evidence. The default is
a log-normal error whose spread, apart for either side, is that of public
measurements of vLLM with model and GPU left out of the fit, 1.3 times as wide for families that are
not among them (`reports/validation/measured.md`). The high side of TTFT is wider than that: a run
leaves out the client's and the front end's time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Final, Literal

from sieve.arrays import COMPONENTS, EVIDENCE_CLASSES, FloatArray

End = Literal["low", "high"]
ENDS: Final[tuple[End, ...]] = ("low", "high")
LATENCIES: Final = ("ttft", "tpot", "itl", "e2e")
TAIL: Final = 90.0
"""A percentile from here on is part of the tail."""

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


@dataclass(frozen=True)
class ModelError:
    """How far both ends of the model's interval lie from a prediction, on a logarithmic scale.

    Attributes:
        low, high: by metric of `LATENCIES`; `ttft_tail` and `tpot_tail` where percentiles from
            `TAIL` on have an error of their own.
        basis: what each of them rests on, in words, for those that are no default.
    """

    low: Mapping[str, float]
    high: Mapping[str, float]
    basis: Mapping[str, str] = field(default_factory=dict)

    def at(self, end: End, metric: str, statistic: str = "mean") -> float:
        """Return the distance of an end of a statistic, such as ("ttft", "p99")."""
        ends = self.low if end == "low" else self.high
        tail = statistic != "mean" and float(statistic[1:]) >= TAIL
        return ends.get(f"{metric}_tail", ends[metric]) if tail else ends[metric]

    def widest(self, end: End, metric: str) -> float:
        """Return the larger distance of the metric's middle and tail."""
        ends = self.low if end == "low" else self.high
        return max(ends[metric], ends.get(f"{metric}_tail", 0.0))


def default_error(evidence: str, confidence: float) -> ModelError:
    """Return the uncalibrated error of a candidate whose evidence has this class."""
    low, high = (
        {metric: log_error(metric, evidence, confidence, end) for metric in LATENCIES}
        for end in ENDS
    )
    return ModelError(low, high)


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
