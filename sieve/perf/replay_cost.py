"""How long replays take on one core, before they are made.

A replay of a kernel without a loop over requests costs a fixed part, a part a request, a part an
engine and a part an iteration (a pipeline has as many iterations as stages for one token); the step
kernel, which serves several kinds of layers, thresholds and pipelines with shared prefixes, also a
part for every request in every iteration. Iterations are a closed-form estimate. The constants are
fitted to replays of the shipped examples, see reports/validation/speed.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import polars as pl

from sieve.arrays import BoolArray, IntArray
from sieve.frames import num_engines
from sieve.memory.ledger import has_one_kind
from sieve.perf.estimate import Estimates

# Seconds of one core of a shared virtual x86 machine: a replay, a request, an iteration, an engine,
# and a request in an iteration.
EVENTS: Final = (6.0e-3, 0.7e-6, 13e-9, 0.25e-3, 0.0)
PIPELINE: Final = (6.0e-3, 0.9e-6, 46e-9, 0.25e-3, 0.0)
STEPS: Final = (7.1e-3, 6.2e-6, 179e-9, 0.25e-3, 48e-9)
_IN_PYTHON: Final = (6.0e-3, 0.25e-3)
"""Of these, what holds the interpreter's lock: a replay, an engine."""
SEATS_MARGIN: Final = 2.0
"""Times the mean concurrency that seats must exceed to count as never binding."""


@dataclass(frozen=True)
class ReplayCost:
    """Replays to make, and their time.

    Attributes:
        num_candidates: candidates that are replayed.
        num_replays: candidates times load levels.
        core_s: seconds of one core, candidates that run alike counted once.
        serial_s: of these, what threads of one process cannot share out.
    """

    num_candidates: int
    num_replays: int
    core_s: float
    serial_s: float

    def elapsed_s(self, workers: int) -> float:
        """Return the time on `workers` threads."""
        return max(self.core_s / max(workers, 1), self.serial_s)

    def scaled(self, num_candidates: int) -> ReplayCost:
        """Return the cost of so many candidates, of which these are a sample."""
        if num_candidates == self.num_candidates:
            return self
        factor = num_candidates / self.num_candidates
        replays = num_candidates * (self.num_replays // self.num_candidates)
        return ReplayCost(num_candidates, replays, self.core_s * factor, self.serial_s * factor)

    def to_json(self, workers: int) -> dict[str, Any]:
        """Return candidates, replays and the time on `workers` threads."""
        return {
            "num_candidates": self.num_candidates,
            "num_replays": self.num_replays,
            "estimated_s": self.elapsed_s(workers),
        }


def replay_cost(
    estimates: Estimates, levels: Sequence[float], *, in_sequence: bool, fixed: Sequence[str]
) -> ReplayCost:
    """Return the cost of replaying every candidate of `estimates` at every level.

    Args:
        estimates: closed-form metrics of the candidates at the middle.
        levels: multipliers of the load.
        in_sequence: whether pipelines keep one batch in flight (the plain rules).
        fixed: columns that must be equal for two candidates to run alike, but for `max_num_seqs`.
    """
    frame = estimates.candidates
    chosen = _distinct(estimates, fixed)
    n, load = len(estimates.requests), estimates.workload
    tokens = float(estimates.requests.output_tokens.sum())
    replicas = frame.select(num_engines()).to_series().to_numpy()[chosen]
    engines = np.minimum(replicas, min(load.users or n, n))
    token_s = estimates.tpot_s("mean")[chosen]
    pipelined = (
        np.zeros(len(chosen), np.bool_) if in_sequence else frame["pp"].to_numpy()[chosen] > 1
    )
    slow = _goes_step_by_step(estimates, pipelined, chosen)
    cost = np.where(pipelined[:, None], np.array(PIPELINE), np.array(EVENTS))
    cost[slow] = STEPS
    calls = np.where(pipelined & ~slow, frame["pp"].to_numpy()[chosen], 1)
    core = np.zeros(len(chosen))
    for level in levels:
        steps = np.full(len(chosen), tokens) if load.users else engines * load.span_s / token_s
        if not load.users:
            steps = steps / level
        parts = (1.0, n, np.minimum(steps, tokens) * calls, engines, tokens + n)
        core += sum(cost[:, k] * part for k, part in enumerate(parts))
    serial = len(levels) * (_IN_PYTHON[0] * len(chosen) + _IN_PYTHON[1] * float(engines.sum()))
    return ReplayCost(len(frame), len(frame) * len(levels), float(core.sum()), serial)


def _goes_step_by_step(estimates: Estimates, pipelined: BoolArray, chosen: IntArray) -> BoolArray:
    """Return which of the chosen candidates only the step kernel can replay."""
    frame = estimates.candidates[chosen]
    slow = (
        (pl.col("max_num_seqs") > pl.col("max_num_batched_tokens"))
        | (pl.col("long_prefill_token_threshold") != 0)
        | (pl.col("data_parallel_size") != 1)
    )
    found = frame.select(slow).to_series().to_numpy()
    if estimates.requests.prefix is not None:
        found = found | (pipelined & frame["enable_prefix_caching"].to_numpy())
    return found | (not has_one_kind(estimates.tables.model))


def _distinct(estimates: Estimates, fixed: Sequence[str]) -> IntArray:
    """Return the rows of one candidate of each set that is expected to run alike."""
    frame, load = estimates.candidates, estimates.workload
    rate = load.rate_per_s
    replicas = frame.select(num_engines()).to_series().to_numpy()
    if load.users is not None:
        concurrency = np.ceil(load.users / replicas)
    elif rate is None or not np.isfinite(rate):
        concurrency = len(estimates.requests) / replicas
    else:
        concurrency = rate * estimates.e2e_s("mean") / replicas
    free = frame["max_num_seqs"].to_numpy() > SEATS_MARGIN * concurrency
    keys = frame.select(*fixed).with_columns(
        pl.Series("seats", np.where(free, 0, frame["max_num_seqs"].to_numpy()))
    )
    first = keys.with_row_index("row").unique(keys.columns, keep="first", maintain_order=True)
    return first["row"].to_numpy().astype(np.int64)
