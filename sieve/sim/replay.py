"""From requests, a step-time table and limits to the result of one replay."""

from __future__ import annotations

import numpy as np

from sieve.arrays import FloatArray, IntArray, Requests, SimResult, StepTable
from sieve.errors import InvalidInput
from sieve.sim._kernels import layout
from sieve.sim._kernels.clock import GAP_BINS, Clock
from sieve.sim.engine import EngineResult, run_engine
from sieve.sim.traffic_input import ReplaySettings, clock_of, private_input, settings_array
from sieve.units import NS_PER_S

__all__ = ["REQUEST_EXCEEDS_CACHE", "ReplaySettings", "simulate"]

REQUEST_EXCEEDS_CACHE = "request_exceeds_cache"


def simulate(
    requests: Requests, table: StepTable, settings: ReplaySettings, replicas: int = 1
) -> SimResult:
    """Return the replay of `requests` over `replicas` engines, requests dealt round robin.

    Raises:
        InvalidInput: the table is shorter than the limits, or a limit is not positive.
    """
    _check(table, settings, replicas)
    longest = int((requests.input_tokens + requests.output_tokens).max())
    if -(-longest // settings.block_size) > settings.num_gpu_blocks:
        return _refused(requests)
    users = requests.closed_loop_users
    lanes = replicas if users is None else min(replicas, users)
    clock = clock_of(table, settings.max_num_seqs, longest)
    parts = [
        _replay_one(requests, table, clock, settings, lane, lanes, _share(users, lane, lanes))
        for lane in range(lanes)
    ]
    return _merge(requests, parts, lanes)


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


def _replay_one(
    requests: Requests,
    table: StepTable,
    clock: Clock,
    settings: ReplaySettings,
    lane: int,
    lanes: int,
    users: int,
) -> EngineResult:
    arrival_ns = np.rint(requests.arrival_s[lane::lanes] * NS_PER_S).astype(np.int64)
    prompt = requests.input_tokens[lane::lanes].astype(np.int64)
    output = requests.output_tokens[lane::lanes].astype(np.int64)
    longest = int((prompt + output).max(initial=0))
    values = settings_array(settings, table, users, longest)
    return run_engine(private_input(values, arrival_ns, prompt, output, clock))


def _seconds(values_ns: IntArray) -> FloatArray:
    return np.where(values_ns < 0, np.nan, values_ns / NS_PER_S)


def _merge(requests: Requests, parts: list[EngineResult], lanes: int) -> SimResult:
    def gather(column: int) -> IntArray:
        out = np.empty(len(requests), np.int64)
        for lane, part in enumerate(parts):
            out[lane::lanes] = part.results[:, column]
        return out

    finish_ns, sent_ns = gather(layout.FINISH_NS), gather(layout.ARRIVAL)
    counters = np.array([part.counters for part in parts])
    stalled = bool((counters[:, layout.STATUS] != layout.STATUS_DONE).any())
    samples = parts[0].samples.astype(np.float64)
    samples[:, 0] /= NS_PER_S
    makespan_ns = 0 if stalled else int(finish_ns.max() - sent_ns.min())
    return SimResult(
        status=REQUEST_EXCEEDS_CACHE if stalled else "",
        arrival_s=_seconds(sent_ns),
        scheduled_s=_seconds(gather(layout.SCHEDULED_NS)),
        first_token_s=_seconds(gather(layout.FIRST_TOKEN_NS)),
        finish_s=_seconds(finish_ns),
        num_preemptions=gather(layout.PREEMPTIONS),
        num_steps=int(counters[:, layout.FILLED_STEPS].sum()),
        num_request_steps=int(counters[:, layout.REQUEST_STEPS].sum()),
        component_s=np.sum([part.component_s for part in parts], axis=0),
        peak_blocks=int(counters[:, layout.PEAK_BLOCKS].max()),
        peak_batch=int(counters[:, layout.PEAK_BATCH].max()),
        peak_tokens=int(counters[:, layout.PEAK_TOKENS].max()),
        makespan_s=makespan_ns / NS_PER_S,
        gaps=np.sum([part.gaps for part in parts], axis=0),
        samples=samples,
    )


def _refused(requests: Requests) -> SimResult:
    never = np.full(len(requests), np.nan)
    return SimResult(
        status=REQUEST_EXCEEDS_CACHE, arrival_s=requests.arrival_s, scheduled_s=never,
        first_token_s=never, finish_s=never, num_preemptions=np.zeros(len(requests), np.int64),
        num_steps=0, num_request_steps=0, component_s=np.zeros(5), peak_blocks=0, peak_batch=0,
        peak_tokens=0, makespan_s=0.0, gaps=np.zeros(GAP_BINS, np.int64),
        samples=np.zeros((0, 4)),
    )  # fmt: skip
