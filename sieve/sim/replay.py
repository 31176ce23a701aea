"""From requests, a step-time table and limits to the result of one replay."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np

from sieve.arrays import FloatArray, IntArray, PrefixBlocks, Requests, SimResult, StepTable
from sieve.errors import InvalidInput
from sieve.invariants import checking
from sieve.sim._kernels import layout
from sieve.sim._kernels.clock import GAP_BINS, Clock
from sieve.sim.engine import EngineResult, run_engine
from sieve.sim.engine_input import EngineInput, SharedKeys
from sieve.sim.fleet import STATIC, Routing, refuse_closed_loop, replay_fleet, static_lanes
from sieve.sim.invariants import check_replay
from sieve.sim.lockstep import run_ranks
from sieve.sim.traffic_input import (
    BUCKETS,
    ReplaySettings,
    bucket_of,
    clock_of,
    prefix_keys,
    request_input,
    settings_array,
)
from sieve.units import NS_PER_S

__all__ = ["REQUEST_EXCEEDS_CACHE", "STOPPED_EARLY", "ReplaySettings", "simulate"]

MAX_TOKENS = 10_000_000
MAX_SPAN_S = 1e9
"""Nanoseconds of it fit 64 bits with room."""

REQUEST_EXCEEDS_CACHE = "request_exceeds_cache"
STOPPED_EARLY = "max_wait_exceeded"
"""A request waited longer than `ReplaySettings.max_wait_s`."""


def simulate(
    requests: Requests,
    table: StepTable,
    settings: ReplaySettings,
    replicas: int = 1,
    *,
    routing: Routing = "round_robin",
    seed: int = 0,
    record_steps: bool = False,
    clock: Clock | None = None,
    lane: IntArray | None = None,
) -> SimResult:
    """Return the replay of `requests` over `replicas` engines that share nothing but a router.

    The turns of a session stay on one replica. Where a replica has data-parallel ranks, `table` and
    `settings` are of one rank, and the ranks step together, each request on the least loaded.

    Args:
        requests: the traffic.
        table: the time of an iteration.
        settings: limits and switches of each engine.
        replicas: how many engines there are.
        routing: who gets a request; `sieve.sim.fleet` explains the policies.
        seed: of random routing.
        record_steps: whether every iteration is kept in the result; takes the slower kernel.
        clock: `clock_of` the table for at least `max_num_seqs`, if it is there already.
        lane: (n,) the replica of each request, if that is known already; `routing` is not read.

    Raises:
        InvalidInput: the table is shorter than the limits, a limit is not positive, or a closed
            loop has sessions; or a routing that this traffic or engine does not allow.
    """
    _check(table, settings, replicas)
    _check_requests(requests)
    users = requests.closed_loop_users
    if users is not None and requests.previous is not None:
        raise InvalidInput("a closed loop has no sessions: each user sends the next request")
    if users is not None:
        refuse_closed_loop(routing)
    longest = longest_request(requests)
    result = _replayed(
        requests, table, settings, replicas, routing, seed, longest, record_steps, clock, lane
    )
    if checking():
        check_replay(requests, result, settings, replicas)
    return result


def _replayed(
    requests: Requests,
    table: StepTable,
    settings: ReplaySettings,
    replicas: int,
    routing: Routing,
    seed: int,
    longest: int,
    record_steps: bool,  # noqa: FBT001 - as the caller got it
    clock: Clock | None,
    lane: IntArray | None,
) -> SimResult:
    """Return the replay of checked traffic."""
    users = requests.closed_loop_users
    if _blocks_of_one(settings, longest) > settings.num_gpu_blocks:
        return _refused(requests)
    if table.lock_step is not None:
        _check_ranks(settings, routing, replicas, record_steps=record_steps)
    lanes = replicas if users is None else min(replicas, users)
    if lane is not None:
        _check_lane(lane, requests, replicas)
    if clock is None:
        clock = clock_of(table, settings.max_num_seqs, longest)
    elif len(clock.prompt_s) <= longest or len(clock.decode_s) <= settings.max_num_seqs:
        raise InvalidInput("the clock is shorter than the traffic's longest request or its seats")
    values = settings_array(settings, table, 0, longest)
    if lane is None and routing not in STATIC and replicas > 1:
        everyone = np.arange(len(requests))
        data = _input(requests, everyone, values, clock, settings)
        parts, rows = replay_fleet(data, replicas, routing, requests)
        if not record_steps:
            return _merge(requests, parts, rows)
    else:
        if lane is None:
            policy: Routing = routing if routing in STATIC else "round_robin"
            lane = static_lanes(requests, lanes, policy, seed)
        rows = [np.flatnonzero(lane == k) for k in range(lanes)]
    if record_steps:
        values[layout.RECORD] = layout.RECORD_STEPS
    parts, idle = [], 0
    for k in range(lanes):
        values[layout.USERS] = _share(users, k, lanes)
        data = _input(requests, rows[k], values, clock, settings)
        if table.lock_step is None:
            parts.append(run_engine(data))
        else:
            part, _, steps = run_ranks(data, table.lock_step, settings.num_gpu_blocks)
            parts.append(part)
            idle += steps
    return replace(_merge(requests, parts, rows), num_idle_steps=idle)


def _check_ranks(
    settings: ReplaySettings, routing: Routing, replicas: int, *, record_steps: bool
) -> None:
    """Refuse what is not replayed with data-parallel ranks."""
    if routing not in STATIC and replicas > 1:
        raise InvalidInput(
            f"routing by {routing} takes replicas of one engine each; data-parallel ranks are "
            "routed within a replica: use round_robin between replicas"
        )
    if settings.discipline != "fcfs":
        raise InvalidInput(f"data-parallel ranks are replayed as fcfs, not {settings.discipline}")
    if record_steps:
        raise InvalidInput("the iterations of data-parallel ranks are not recorded")


def _check_lane(lane: IntArray, requests: Requests, replicas: int) -> None:
    """Refuse replicas by request that leave a request unserved or part a session.

    Raises:
        InvalidInput: says which.
    """
    if len(lane) != len(requests) or ((lane < 0) | (lane >= replicas)).any():
        raise InvalidInput("every request needs a replica; some have none")
    if requests.closed_loop_users is not None:
        raise InvalidInput("replicas by request take open-loop traffic")
    if requests.previous is not None:
        turns = np.flatnonzero(requests.previous >= 0)
        if (lane[turns] != lane[requests.previous[turns]]).any():
            raise InvalidInput("the turns of a session must stay on one replica")


def longest_request(requests: Requests) -> int:
    """Return the most tokens of prompt and answer together."""
    return int((requests.input_tokens + requests.output_tokens).max())


def _blocks_of_one(settings: ReplaySettings, tokens: int) -> int:
    """Return the blocks that a request of `tokens` may need at once."""
    total = 0
    for window, span, fixed in settings.groups or ((0, settings.block_size, 0),):
        held = fixed or -(-tokens // span)
        if window:
            ahead = settings.batches_in_flight * settings.max_num_batched_tokens
            held = min(held, -(-(window - 1 + ahead) // span) + 1)
        total += held
    return total


def _check_requests(requests: Requests) -> None:
    """Refuse traffic that no reader makes: the compiled loops trust their arrays.

    Raises:
        InvalidInput: names the first request that is wrong.
    """
    n = len(requests)
    if n == 0:
        raise InvalidInput("the traffic has no requests")
    previous = np.full(n, -1) if requests.previous is None else requests.previous
    delay = np.zeros(n) if requests.delay_s is None else requests.delay_s
    arrival, prompt, output = requests.arrival_s, requests.input_tokens, requests.output_tokens
    if not all(len(a) == n for a in (prompt, output, previous, delay)):
        raise InvalidInput("the traffic's arrays differ in length")
    waits = previous >= 0
    faults = (
        (
            ~((arrival >= 0) & (arrival <= MAX_SPAN_S)),
            arrival,
            f"arrival, expected 0 to {MAX_SPAN_S:g} s",
        ),
        (np.diff(arrival, prepend=0.0) < 0, arrival, "arrival, earlier than the request before"),
        (
            (prompt < 1) | (prompt > MAX_TOKENS),
            prompt,
            f"prompt tokens, expected 1 to {MAX_TOKENS:,}",
        ),
        (
            (output < 1) | (output > MAX_TOKENS),
            output,
            f"answer tokens, expected 1 to {MAX_TOKENS:,}",
        ),
        (
            (previous < -1) | (previous >= np.arange(n)),
            previous,
            "previous turn, expected one before it",
        ),
        (
            waits & ~((delay >= 0) & (delay <= MAX_SPAN_S)),
            delay,
            f"delay, expected 0 to {MAX_SPAN_S:g} s",
        ),
    )
    for bad, values, what in faults:
        if bad.any():
            i = int(np.argmax(bad))
            raise InvalidInput(f"request {i}: {values[i]} is its {what}")


def _share(users: int | None, lane: int, lanes: int) -> int:
    return 0 if users is None else users // lanes + (lane < users % lanes)


def _check(table: StepTable, settings: ReplaySettings, replicas: int) -> None:
    for name in ("max_num_seqs", "max_num_batched_tokens", "num_gpu_blocks", "block_size"):
        value = getattr(settings, name)
        if value < 1:
            raise InvalidInput(f"{name} is {value}; it must be at least 1")
    if replicas < 1:
        raise InvalidInput(f"replicas is {replicas}; it must be at least 1")
    if len(table.token_s) <= settings.max_num_batched_tokens:
        raise InvalidInput("the step table is shorter than max_num_batched_tokens")
    if min(len(table.decode_token_s), len(table.head_s)) <= settings.max_num_seqs:
        raise InvalidInput("the step table is shorter than max_num_seqs")


def _input(
    requests: Requests, rows: IntArray, values: IntArray, clock: Clock, settings: ReplaySettings
) -> EngineInput:
    """Return what the compiled loops take for the requests with the indices `rows`."""
    whole = len(rows) == len(requests)
    part = requests if whole else replace(requests, prefix=None).take(rows)
    shared = None
    if requests.prefix is not None and values[layout.CACHING]:
        shared = _shared_keys(requests.prefix, int(values[layout.BLOCK_SIZE]), rows.tobytes())
    delay = None if part.delay_s is None else np.rint(part.delay_s * NS_PER_S).astype(np.int64)
    return request_input(
        values,
        np.rint(part.arrival_s * NS_PER_S).astype(np.int64),
        part.input_tokens,
        part.output_tokens,
        clock=clock,
        shared=shared,
        previous=part.previous,
        delay=delay,
        groups=settings.groups,
        **_classes(part, settings),
    )


def _classes(part: Requests, settings: ReplaySettings) -> dict[str, IntArray]:
    """Return priorities and quotas of a queue discipline."""
    if settings.discipline == "shortest_first":
        return {"level": part.output_tokens.astype(np.int64)}
    if settings.discipline == "fcfs":
        return {}
    bucket = bucket_of(part.input_tokens + part.output_tokens)
    tokens = settings.num_gpu_blocks * settings.block_size
    quota = np.array([int(share * tokens) for _, share in BUCKETS], np.int64)
    return {"level": bucket, "bucket": bucket, "quota": quota}


@lru_cache(maxsize=8)
def _shared_keys(prefix: PrefixBlocks, block_size: int, rows: bytes) -> SharedKeys:
    """Return the keys of one replica's requests; the same for every candidate and load level."""
    return prefix_keys(prefix.take(np.frombuffer(rows, np.int64)), block_size)


def _seconds(values_ns: IntArray) -> FloatArray:
    return np.where(values_ns < 0, np.nan, values_ns / NS_PER_S)


def _merge(requests: Requests, parts: list[EngineResult], rows: list[IntArray]) -> SimResult:
    def gather(column: int) -> IntArray:
        out = np.empty(len(requests), np.int64)
        for part, places in zip(parts, rows, strict=True):
            out[places] = part.results[:, column]
        return out

    finish_ns, sent_ns = gather(layout.FINISH_NS), gather(layout.ARRIVAL)
    counters = np.array([part.counters for part in parts])
    status = _status(counters[:, layout.STATUS])
    samples = parts[0].samples.astype(np.float64)
    samples[:, 0] /= NS_PER_S
    makespan_ns = int(finish_ns.max() - sent_ns.min()) if status == "" else 0
    return SimResult(
        status=status,
        arrival_s=_seconds(sent_ns),
        scheduled_s=_seconds(gather(layout.SCHEDULED_NS)),
        first_token_s=_seconds(gather(layout.FIRST_TOKEN_NS)),
        finish_s=_seconds(finish_ns),
        num_preemptions=gather(layout.PREEMPTIONS),
        cached_tokens=np.maximum(gather(layout.CACHED), 0),
        num_steps=int(counters[:, layout.FILLED_STEPS].sum()),
        num_request_steps=int(counters[:, layout.REQUEST_STEPS].sum()),
        component_s=np.sum([part.component_s for part in parts], axis=0),
        peak_blocks=int(counters[:, layout.PEAK_BLOCKS].max()),
        peak_batch=int(counters[:, layout.PEAK_BATCH].max()),
        peak_tokens=int(counters[:, layout.PEAK_TOKENS].max()),
        peak_running=int(counters[:, layout.PEAK_RUNNING].max()),
        short_of_blocks=bool(counters[:, layout.SHORT_OF_BLOCKS].any()),
        makespan_s=makespan_ns / NS_PER_S,
        gaps=np.sum([part.gaps for part in parts], axis=0),
        samples=samples,
        steps=_steps(parts),
    )


def _status(codes: IntArray) -> str:
    """Return what ended the replay: nothing, or the gravest of the replicas' reasons."""
    if (codes == layout.STATUS_STALLED).any():
        return REQUEST_EXCEEDS_CACHE
    return STOPPED_EARLY if (codes == layout.STATUS_OVERLOADED).any() else ""


def _steps(parts: list[EngineResult]) -> IntArray | None:
    """Return the recorded iterations of all replicas, the replica in the first column."""
    logs = [part.log.reshape(-1, layout.NUM_STEP_COLUMNS) for part in parts]
    if not any(len(log) for log in logs):
        return None
    replica = np.repeat(np.arange(len(logs)), [len(log) for log in logs])
    return np.column_stack([replica, np.concatenate(logs)]).astype(np.int64)


def _refused(requests: Requests) -> SimResult:
    never = np.full(len(requests), np.nan)
    return SimResult(
        status=REQUEST_EXCEEDS_CACHE, arrival_s=requests.arrival_s, scheduled_s=never,
        first_token_s=never, finish_s=never, num_preemptions=np.zeros(len(requests), np.int64),
        cached_tokens=np.zeros(len(requests), np.int64),
        num_steps=0, num_request_steps=0, component_s=np.zeros(5), peak_blocks=0, peak_batch=0,
        peak_tokens=0, peak_running=0, short_of_blocks=True, makespan_s=0.0,
        gaps=np.zeros(GAP_BINS, np.int64), samples=np.zeros((0, 4)),
    )  # fmt: skip
