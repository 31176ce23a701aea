"""The state of the kernel without a loop over requests: what it keeps between two visits."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from sieve.arrays import FloatArray, IntArray
from sieve.sim._kernels import events, layout
from sieve.sim._kernels.clock import GAP_BINS
from sieve.sim.engine_input import EngineInput

Int32Array = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class EventsState:
    """Arrays of `replicas` engines over n requests, in the order of the kernel's arguments.

    Attributes:
        values: (replicas, NUM_VALUES) scalars.
        results: (n, NUM_RESULTS) of all replicas together.
        counters, component_s, gaps, samples: by replica.
        req: (n, NUM_COLUMNS) of all replicas together.
        ends: (replicas, ring, 2) first and last request of each call's endings.
        edges: (replicas, block size, 2) the same of those that need a block at the same calls.
        edge_count: (replicas, block size).
        cache: (replicas, NUM_CACHE).
        node: (replicas, nodes, 8) nodes of the free list.
        stack: (replicas, nodes) unused ones.
        reg: (replicas, keys) node that a key is found at.
        table: (shared positions,) nodes that a request holds.
        running: (replicas, ...) the running list, then room for those that finish their prompt.
        queue: (replicas, power of two) the waiting requests.
        due_at, due: (replicas, n + 1) requests that wait for another's end.
        batch: (replicas, 3, 2) call, end and fill of the batches in flight.
    """

    values: IntArray
    results: IntArray
    counters: IntArray
    component_s: FloatArray
    gaps: IntArray
    samples: IntArray
    req: IntArray
    ends: IntArray
    edges: IntArray
    edge_count: IntArray
    cache: IntArray
    node: Int32Array
    stack: Int32Array
    reg: Int32Array
    table: Int32Array
    running: IntArray
    queue: IntArray
    due_at: IntArray
    due: IntArray
    batch: IntArray


def new_state(data: EngineInput, replicas: int = 1) -> EventsState:
    """Return the state before the first call of each replica."""
    settings, n = data.settings, len(data.arrival)
    size, limit = int(settings[layout.BLOCK_SIZE]), int(settings[layout.MAX_RUNNING])
    usable = int(settings[layout.NUM_BLOCKS]) - 1
    caching = bool(settings[layout.CACHING])
    total = np.minimum(data.prompt + data.output, settings[layout.MAX_MODEL_LEN])
    ring = _power_of_two(int((total - data.prompt).max(initial=1)) + 2)
    nodes = usable + 1 if caching and data.shared.num_keys > 0 else 0

    results = np.full((n, layout.NUM_RESULTS), -1, np.int64)
    results[:, layout.PREEMPTIONS] = 0
    req = np.zeros((n, events.NUM_COLUMNS), np.int64)
    req[:, events.KNOWN] = data.prompt
    req[:, events.TOTAL] = total
    req[:, events.LAST_NS] = -1

    cache = np.zeros((replicas, events.NUM_CACHE), np.int64)
    cache[:, [events.FREE, events.BARE]] = usable
    cache[:, [events.LOOKED_UP, events.MISSING]] = -1
    cache[:, events.TOP] = nodes
    stack = np.empty((replicas, max(nodes, 1)), np.int32)
    stack[:] = np.arange(n + max(nodes, 1), n, -1)

    values = np.zeros((replicas, events.NUM_VALUES), np.int64)
    values[:, events.V_MID] = -1
    values[:, events.V_SAMPLE_EVERY] = 1
    users = int(settings[layout.USERS])
    due = np.zeros((replicas, n + 1), np.int64)
    if users > 0:
        values[:, events.V_NEXT_UNSENT] = users
        values[:, events.V_NUM_DUE] = min(users, n)
        due[:, : min(users, n)] = np.arange(min(users, n))
    return EventsState(
        values=values,
        results=results,
        counters=np.zeros((replicas, layout.NUM_COUNTERS), np.int64),
        component_s=np.zeros((replicas, 5)),
        gaps=np.zeros((replicas, GAP_BINS), np.int64),
        samples=np.zeros((replicas, layout.SAMPLES, layout.NUM_SAMPLE_COLUMNS), np.int64),
        req=req,
        ends=np.full((replicas, ring, 2), -1, np.int64),
        edges=np.full((replicas, size, 2), -1, np.int64),
        edge_count=np.zeros((replicas, size), np.int64),
        cache=cache,
        node=np.zeros((replicas, 1 + n + nodes if caching else 1, 8), np.int32),
        stack=stack,
        reg=np.zeros((replicas, max(data.shared.num_keys, 1)), np.int32),
        table=np.zeros(len(data.shared.keys), np.int32),
        running=np.zeros((replicas, events.ROOM * limit + 16 + limit + 1), np.int64),
        queue=np.zeros((replicas, _power_of_two(2 * n + 4)), np.int64),
        due_at=np.zeros((replicas, n + 1), np.int64),
        due=due,
        batch=np.zeros((replicas, 3, 2), np.int64),
    )


def _power_of_two(least: int) -> int:
    return 1 << (max(least, 1) - 1).bit_length()


def arguments(
    data: EngineInput, state: EventsState, order: IntArray, order_count: IntArray
) -> tuple[Any, ...]:
    """Return the arguments of `events.advance` behind `k` and `until`.

    Args:
        data: the requests and limits, the same for every replica.
        state: of all replicas.
        order: (replicas, n) the requests that come to each replica, by arrival.
        order_count: (replicas,) how many are known.
    """
    shared = data.shared
    return (
        data.settings, data.arrival, data.prompt, order, order_count,
        data.child_start, data.child, data.delay, shared.start, shared.count, shared.keys,
        data.clock, *(getattr(state, field.name) for field in fields(state)),
    )  # fmt: skip


def complete(data: EngineInput, state: EventsState, k: int, rows: IntArray) -> IntArray:
    """Write what replica k still knows of its requests `rows`; return those left, waiting first.

    Returns:
        (1 + left,): how many wait, these in order, and those that run.
    """
    value, counters = state.values[k], state.counters[k]
    now = int(value[events.V_NOW])
    counters[layout.END_NS] = now
    counters[layout.NUM_SAMPLES] = value[events.V_NUM_SAMPLES]
    req, results = state.req, state.results
    phase, known = req[rows, events.PHASE], req[rows, events.KNOWN].copy()
    read = value[events.V_READ_CALL] - req[rows, events.OFFSET] + 1
    known = np.where(phase == events.DECODING, np.maximum(known, read), known)
    known = np.where(phase == events.LAST_SCHEDULED, req[rows, events.TOTAL] - 1, known)
    results[rows, layout.OUT] = known - data.prompt[rows]
    unread = results[rows, layout.FIRST_TOKEN_NS] > now
    results[rows[unread], layout.FIRST_TOKEN_NS] = -1
    if counters[layout.STATUS] == layout.STATUS_OVERLOADED:
        state.gaps[k] = 0
    return _left(state, k)


def _left(state: EventsState, k: int) -> IntArray:
    value, queue, running = state.values[k], state.queue[k], state.running[k]
    first, last = int(value[events.V_FIRST]), int(value[events.V_LAST])
    places = np.arange(first, first + (last - first) % len(queue)) % len(queue)
    waiting = queue[places]
    waiting = waiting[state.req[waiting, events.PHASE] != events.FINISHED]
    seats = np.arange(int(value[events.V_RUN_END]))
    taken = running[: len(seats)]
    taken = taken[state.req[taken, events.POSITION] == seats]
    taken = taken[np.isin(state.req[taken, events.PHASE], _RUNNING)]
    return np.concatenate(([len(waiting)], waiting, taken)).astype(np.int64)


_RUNNING = (events.MID_PREFILL, events.DECODING, events.LAST_SCHEDULED)
