"""The replay of one engine's scheduler, exact to the decision: input, result, and the call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from sieve.arrays import FloatArray, IntArray
from sieve.errors import TraceError
from sieve.sim._kernels import engine, events, layout, pipeline
from sieve.sim._kernels.clock import GAP_BINS, GAP_FIRST_S, GAP_RATIO, NUM_SCALARS, Clock
from sieve.sim.engine_input import EngineInput, KeyArray, SharedKeys
from sieve.sim.events_state import EventsState, arguments, complete, new_state
from sieve.units import NS_PER_S


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
    one, table = np.zeros(2), np.zeros((1, 2))
    return Clock(one, one, one, one, table, table, one, one, np.zeros(NUM_SCALARS), gap_edges_ns())


def patience(total: IntArray) -> int:
    """Return the steps without a token after which a run counts as live-locked.

    Every prompt may be computed in steps of one token, and twice over after preemptions.
    """
    return 1000 + 4 * int(total.sum())


def children_of(parent: IntArray) -> tuple[IntArray, IntArray]:
    """Return the requests that wait for each request's end, in file order, as start and list."""
    n = len(parent)
    waiting = np.flatnonzero(parent >= 0)
    child = waiting[np.argsort(parent[waiting], kind="stable")]
    counts = np.bincount(parent[waiting], minlength=n) if n else np.zeros(0, np.int64)
    return np.concatenate(([0], np.cumsum(counts))).astype(np.int64), child.astype(np.int64)


def kinds_of(windows: Sequence[int]) -> IntArray:
    """Return the kind of each group: full attention first, then windows as they appear."""
    order = [w for w in dict.fromkeys(windows) if w == 0] + [
        w for w in dict.fromkeys(windows) if w != 0
    ]
    return np.array([order.index(w) for w in windows], np.int64)


def run_engine(data: EngineInput) -> EngineResult:
    """Return the replay of `data`.

    Raises:
        TraceError: requests preempt themselves for ever (no room for any of them).
    """
    result = None
    if has_events_form(data):
        result = run_events(data)
    elif has_pipeline_form(data):
        result = run_pipeline(data)
    if result is None:
        result = _run_steps(data)
    if result.counters[layout.STATUS] == layout.STATUS_LIVE_LOCK:
        raise TraceError(
            f"the replay made no progress for {data.settings[layout.PATIENCE]:,} steps: requests "
            "are preempted before they are computed, again and again; the cache is too small"
        )
    return result


def _run_steps(data: EngineInput) -> EngineResult:
    """Return the replay step by step.

    Where no two prompts begin alike, the prefix cache can only be hit by a request that was
    preempted: without preemptions the quicker replay without it makes the same decisions.
    """
    values = data.settings
    if (
        values[layout.CACHING]
        and data.shared.num_keys == 0
        and values[layout.RECORD] in {layout.RECORD_NOTHING, layout.RECORD_STEPS}
    ):
        plain = values.copy()
        plain[layout.CACHING] = 0
        result = _result(engine.replay(*step_arguments(replace(data, settings=plain))))
        if result.counters[layout.PREEMPTED] == 0:
            return result
    return _result(engine.replay(*step_arguments(data)))


def has_events_form(data: EngineInput) -> bool:
    """Return whether the kernel without a loop over requests decides the same on `data`."""
    values = data.settings
    return bool(
        values[layout.PIPELINE] == 1
        and _is_plain(data)
        and not (values[layout.FULL_RESERVATION] and values[layout.CACHING])
        and not (values[layout.CACHING] and data.shared.early_output)
    )


def has_pipeline_form(data: EngineInput) -> bool:
    """Return whether the kernel for pipelines decides the same on `data`, or says that it cannot.

    Where no two prompts begin alike, the prefix cache can only be hit by a request that was
    preempted, and that kernel preempts nobody.
    """
    values = data.settings
    return bool(
        values[layout.PIPELINE] > 1
        and _is_plain(data)
        and not values[layout.FULL_RESERVATION]
        and not (values[layout.CACHING] and data.shared.num_keys)
    )


def _is_plain(data: EngineInput) -> bool:
    """Return whether all that decode take part alike: in every call, or in every so many."""
    values = data.settings
    return bool(
        values[layout.MACRO]
        and values[layout.RECORD] == layout.RECORD_NOTHING
        and values[layout.CLOCK] != layout.CLOCK_STEPS
        and not values[layout.PRIORITY]
        and not values[layout.THRESHOLD]
        and values[layout.PREFILL_INTERVAL] == 1
        and not values[layout.DRAFTS_K]
        and values[layout.MAX_RUNNING] <= values[layout.TOKEN_BUDGET]
        and len(data.window) == 1
        and len(data.quota) == 0
        and data.window[0] == 0
        and data.fixed[0] == 0
    )


def step_arguments(data: EngineInput) -> tuple[Any, ...]:
    """Return the arguments of `engine.replay`."""
    if data.settings[layout.CACHING] and data.keys is None:
        data = replace(data, **_all_keys(data))
    elif data.keys is None:
        data = replace(data, keys=np.zeros(1, np.int32))
    return tuple(getattr(data, field.name) for field in fields(data) if field.name != "shared")


def _all_keys(data: EngineInput) -> dict[str, Any]:
    """Return the keys of all blocks: the shared ones, then those that only one request has."""
    shared = data.shared
    total = np.minimum(data.prompt + data.output, data.settings[layout.MAX_MODEL_LEN])
    count = np.maximum(total // data.settings[layout.BLOCK_SIZE], shared.count)
    start = np.cumsum(count) - count
    num_blocks = int(count.sum())
    inside = np.arange(num_blocks) - np.repeat(start, count)
    is_shared = inside < np.repeat(shared.count, count)
    keys = np.empty(max(num_blocks, 1), np.int32)
    own = ~is_shared
    keys[:num_blocks][is_shared] = shared.keys
    keys[:num_blocks][own] = shared.num_keys + np.arange(int(own.sum()))
    return {
        "key_start": start.astype(np.int64),
        "keys": keys,
        "num_keys": shared.num_keys + int(own.sum()),
    }


def run_events(data: EngineInput) -> EngineResult | None:
    """Return the replay without a loop over requests, or None where it has to be step by step.

    None: the prefix cache came into a form that only the other kernel can tell.
    """
    state = new_state(data)
    arrives = np.flatnonzero(data.arrival >= 0)
    order = arrives[np.argsort(data.arrival[arrives], kind="stable")].astype(np.int64)
    if data.settings[layout.USERS] > 0:
        order = order[:0]
    count = np.array([len(order)], np.int64)
    order = np.append(order, 0).reshape(1, -1)
    events.advance(0, events.NEVER, *arguments(data, state, order, count))
    if state.counters[0, layout.STATUS] == layout.STATUS_CLASH:
        return None
    return replica_result(data, state, 0, np.arange(len(data.arrival)))


def run_pipeline(data: EngineInput) -> EngineResult | None:
    """Return the replay of a pipeline without a loop over requests, or None where it preempts."""
    results, counters, component_s, gaps, samples = pipeline.replay(
        data.settings, data.arrival, data.prompt, data.output, data.child_start, data.child,
        data.delay, data.clock,
    )  # fmt: skip
    if counters[layout.STATUS] == layout.STATUS_CLASH:
        return None
    nobody = np.zeros(1, np.int64)
    return _result((results, counters, nobody[:0], nobody, component_s, gaps, samples))


def replica_result(data: EngineInput, state: EventsState, k: int, rows: IntArray) -> EngineResult:
    """Return what replica k did with its requests `rows`; the results of all requests with it."""
    left = complete(data, state, k, rows)
    return _result(
        (
            state.results, state.counters[k], np.zeros(0, np.int64), left, state.component_s[k],
            state.gaps[k], state.samples[k],
        )
    )  # fmt: skip


def _result(out: tuple[Any, ...]) -> EngineResult:
    results, counters, log, left, component_s, gaps, samples = out
    waiting = int(left[0])
    log = log[: counters[layout.LOG_LENGTH]].copy()
    samples = samples[: counters[layout.NUM_SAMPLES]].copy()
    return EngineResult(
        results, counters, log, left[1 : 1 + waiting], left[1 + waiting :], component_s, gaps,
        samples,
    )  # fmt: skip


def shared_keys(
    count: IntArray, keys: KeyArray, num_keys: int, *, early_output: bool
) -> SharedKeys:
    """Return the keys that occur in several requests, numbered densely.

    Args:
        count: (n,) how many keys a request has.
        keys: all keys, 0 .. num_keys - 1, those of a request in the order of its blocks.
        num_keys: how many there are.
        early_output: as `SharedKeys`.
    """
    users = np.bincount(keys[: int(count.sum())], minlength=max(num_keys, 1))
    common = users > 1
    number = np.where(common, np.cumsum(common) - 1, -1)
    is_common = common[keys[: int(count.sum())]]
    # A chain's keys are common up to some block and private after it.
    owner = np.repeat(np.arange(len(count)), count)
    shared = np.bincount(owner[is_common], minlength=len(count)).astype(np.int64)
    return SharedKeys(
        start=np.cumsum(shared) - shared,
        count=shared,
        keys=number[keys[: int(count.sum())][is_common]].astype(np.int32),
        num_keys=int(common.sum()),
        early_output=early_output,
    )
