"""The replay of one engine's scheduler, exact to the decision: input, result, and the call."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from sieve.arrays import FloatArray, IntArray
from sieve.errors import TraceError
from sieve.sim._kernels import engine, layout
from sieve.sim._kernels.clock import GAP_BINS, GAP_FIRST_S, GAP_RATIO, NUM_SCALARS, Clock
from sieve.units import NS_PER_S

KeyArray = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class EngineInput:
    """A scenario as the compiled loop takes it; the arrays are described there."""

    settings: IntArray
    accept: IntArray
    window: IntArray
    kind: IntArray
    arrival: IntArray
    prompt: IntArray
    output: IntArray
    level: IntArray
    name_rank: IntArray
    child_start: IntArray
    child: IntArray
    delay: IntArray
    key_start: IntArray
    keys: KeyArray
    num_keys: int
    clock: Clock


@dataclass(frozen=True, eq=False)
class EngineResult:
    """What the compiled loop returns.

    Attributes:
        results: (n, NUM_RESULTS) per request, -1 where it never happened.
        counters: (NUM_COUNTERS,).
        log: recorded turns or steps, packed; empty if nothing was recorded.
        left_waiting: indices of requests that were never scheduled to their end, in queue order.
        left_running: the same for the running list.
        component_s: (5,) seconds by component of `sieve.arrays.COMPONENTS`.
        gaps: (GAP_BINS,) gaps between tokens, counted in log-spaced bins.
        samples: (k, 4) a thinned series: nanoseconds, running, waiting, blocks in use.
    """

    results: IntArray
    counters: IntArray
    log: IntArray
    left_waiting: IntArray
    left_running: IntArray
    component_s: FloatArray
    gaps: IntArray
    samples: IntArray

    @property
    def stalled(self) -> bool:
        """Whether requests are left that can never be scheduled."""
        return bool(self.counters[layout.STATUS] == layout.STATUS_STALLED)


def gap_edges_ns() -> IntArray:
    """Return the edges of the bins in which gaps between tokens are counted, (GAP_BINS + 1,)."""
    edges = np.rint(GAP_FIRST_S * NS_PER_S * GAP_RATIO ** np.arange(GAP_BINS + 1.0))
    edges[0] = 0
    edges[-1] = np.iinfo(np.int64).max // 2
    return edges.astype(np.int64)


def idle_clock() -> Clock:
    """Return the clock of an engine that is not timed by a step table."""
    one, table = np.zeros(1), np.zeros((1, 1))
    return Clock(one, one, one, one, table, one, one, one, np.zeros(NUM_SCALARS), gap_edges_ns())


def patience(total: IntArray) -> int:
    """Return the steps without a token after which a run counts as live-locked.

    Every prompt may be computed in steps of one token, and twice over after preemptions.
    """
    return 1000 + 4 * int(total.sum())


def run_engine(data: EngineInput) -> EngineResult:
    """Return the replay of `data`.

    Raises:
        TraceError: requests preempt themselves for ever (no room for any of them).
    """
    results, counters, log, left, component_s, gaps, samples = engine.replay(
        *(getattr(data, field.name) for field in fields(data))
    )
    if counters[layout.STATUS] == layout.STATUS_LIVE_LOCK:
        raise TraceError(
            f"the replay made no progress for {data.settings[layout.PATIENCE]:,} steps: requests "
            "are preempted before they are computed, again and again; the cache is too small"
        )
    waiting = int(left[0])
    return EngineResult(
        results, counters, log, left[1 : 1 + waiting], left[1 + waiting :], component_s, gaps,
        samples,
    )  # fmt: skip
