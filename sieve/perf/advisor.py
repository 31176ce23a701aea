"""The saturation model's batch advisor, laid through a candidate's own step times.

The model says that a batch of B equal requests takes `slope x B + intercept` end to end. Here the
line is fitted to the step table (prefill of B prompts, then decode steps at batch B), so that the
advisor needs no measurements; its recommendation is an estimate like the step times themselves.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from sieve.arrays import FloatArray, StepTable
from sieve.formulas.slim_model import batch_limit
from sieve.perf.capacity import Workload, decode_curve_s, prefill_cost_s
from sieve.units import gfloor

EPSILON: Final = 0.1
"""Least efficiency T(B)/(B T(1)) that the advisor accepts, as published."""


def end_to_end_s(
    table: StepTable, workload: Workload, budget: int, max_num_seqs: int
) -> FloatArray:
    """Return the end-to-end time of a batch of equal mean requests, (max_num_seqs,), B from 1."""
    batch = np.arange(1, max_num_seqs + 1)
    decode = decode_curve_s(table, workload.decode_context, max_num_seqs)
    prompts = batch * prefill_cost_s(table, workload, batch, budget)
    return np.asarray(prompts + workload.mean_output * decode)


def advised_batch(e2e_s: FloatArray, slo_s: float, epsilon: float = EPSILON) -> tuple[int, float]:
    """Return (largest batch that the advisor accepts, end-to-end time of one request).

    The line minimises the relative error over B = 1..n, as the model's calibration does.

    Args:
        e2e_s: (n,) end-to-end time by batch from 1.
        slo_s: limit on it, inf for none.
        epsilon: least efficiency.
    """
    batch = np.arange(1, len(e2e_s) + 1, dtype=np.float64)
    design = np.stack([batch, np.ones_like(batch)], axis=1) / e2e_s[:, None]
    slope, intercept = np.linalg.lstsq(design, np.ones_like(batch), rcond=None)[0]
    alone = float(slope + intercept)
    if slope <= 0:
        return (len(e2e_s) if alone <= slo_s else 0), alone
    limit = batch_limit(float(slope), float(intercept), slo_s, epsilon)
    return max(min(gfloor(min(limit, 1e9)), len(e2e_s)), 0), alone
