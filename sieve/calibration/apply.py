"""A replay corrected by calibration: the same schedule, with the times that a client would see."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from sieve.arrays import Requests, SimResult
from sieve.calibration.points import Place, band_of
from sieve.calibration.serving import Calibration, Correction
from sieve.ranking.intervals import ModelError
from sieve.sim._kernels.clock import GAP_RATIO

SMALLEST_S: Final = 1e-6
COLUMNS: Final = ("correction_ttft", "correction_tpot", "correction_host_s", "calibration_points")
"""Columns of a corrected simulation row; with them the prediction before is known again."""


@dataclass(frozen=True)
class Deployment:
    """What a calibration needs to know of a candidate beside its replay."""

    engine: str
    release: str
    gpu: str
    model: str
    family: str
    weight_dtype: str
    kv_cache_dtype: str
    tp: int
    pp: int
    replicas: int

    def place(self, batch: float, input_tokens: float, output_tokens: float, band: str) -> Place:
        """Return the deployment under a load."""
        facts = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return Place(
            **facts, batch=batch, input_tokens=input_tokens, output_tokens=output_tokens, band=band
        )


@dataclass(frozen=True, eq=False)
class Local:
    """A calibration for one deployment."""

    calibration: Calibration
    deployment: Deployment
    confidence: float

    def corrected(
        self, requests: Requests, result: SimResult, evidence: str
    ) -> tuple[SimResult, ModelError | None, dict[str, Any]]:
        """Return a replay corrected, its model error, and the columns of `COLUMNS`.

        A replay that could not serve its traffic is returned as it is.
        """
        load = load_of(requests, result)
        if load is None:
            return result, None, dict.fromkeys(COLUMNS)
        place = self.deployment.place(**load)
        correction = self.calibration.correction(place)
        fixed = correct(requests, result, correction)
        outside = 0.0 if requests.front_end_s is None else requests.front_end_s
        first = float((fixed.first_token_s - fixed.arrival_s + outside).sum())
        whole = float((fixed.finish_s - fixed.arrival_s + outside).sum())
        error = self.calibration.error_of(
            place, evidence, self.confidence, min(first / max(whole, SMALLEST_S), 1.0)
        )
        values = (correction.ttft, correction.tpot, correction.host_s, correction.num_points)
        return fixed, error, dict(zip(COLUMNS, values, strict=True))


def load_of(requests: Requests, result: SimResult) -> dict[str, Any] | None:
    """Return batch, mean lengths and load band of a replay; None if it was not served."""
    if result.status or not len(requests):
        return None
    batch = result.num_request_steps / max(result.num_steps, 1)
    whole = float((result.finish_s - result.arrival_s).sum())
    waited = float((result.scheduled_s - result.arrival_s).sum())
    return {
        "batch": max(batch, 1.0),
        "input_tokens": float(requests.input_tokens.mean()),
        "output_tokens": float(requests.output_tokens.mean()),
        "band": band_of(batch, waited / max(whole, SMALLEST_S)),
    }


def correct(requests: Requests, result: SimResult, correction: Correction) -> SimResult:
    """Return a served replay with its latencies corrected.

    TTFT gets the host term and its factor, the time from first to last token the factor of TPOT;
    the span of all requests follows. The schedule is not made again: who waited for whom stays.
    """
    outside = 0.0 if requests.front_end_s is None else requests.front_end_s
    ttft = result.first_token_s - result.arrival_s + outside
    factor = math.exp(correction.tpot)
    ttft = np.maximum((ttft + correction.host_s) * math.exp(correction.ttft), SMALLEST_S)
    first = result.arrival_s + ttft - outside
    finish = first + (result.finish_s - result.first_token_s) * factor
    if requests.closed_loop_users is None:
        span = float(finish.max() - result.arrival_s.min())
    else:
        before, after = (float((f - result.arrival_s).sum()) for f in (result.finish_s, finish))
        span = result.makespan_s * after / max(before, SMALLEST_S)
    shift = round(correction.tpot / math.log(GAP_RATIO))
    places = np.clip(np.arange(len(result.gaps)) + shift, 0, len(result.gaps) - 1)
    gaps = np.zeros_like(result.gaps)
    np.add.at(gaps, places, result.gaps)
    return replace(
        result, first_token_s=first, finish_s=finish, makespan_s=max(span, SMALLEST_S), gaps=gaps
    )


def uncorrected(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the latencies of a simulation row as they were before any correction, by metric.

    Percentiles of TTFT and TPOT only: for them the correction can be taken back.
    """
    ttft, tpot, host = (float(row.get(name) or 0.0) for name in COLUMNS[:3])
    out = {}
    for statistic in ("p50", "p99"):
        for kind, log_factor, added in (("ttft", ttft, host), ("tpot", tpot, 0.0)):
            value = row.get(f"{kind}_{statistic}_s")
            if isinstance(value, float) and math.isfinite(value):
                raw = value / math.exp(log_factor) - added
                if raw > 0:
                    out[f"{kind}_{statistic}"] = raw
    return out
