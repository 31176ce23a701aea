"""From requests, a step-time table and limits to the result of one replay."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sieve.arrays import FloatArray, IntArray, Requests, SimResult, StepTable
from sieve.errors import InvalidInput
from sieve.sim._kernels import replay as kernel
from sieve.units import NS_PER_S

REQUEST_EXCEEDS_CACHE = "request_exceeds_cache"


@dataclass(frozen=True)
class ReplaySettings:
    """Limits and switches of one engine.

    Attributes:
        max_num_seqs: most requests in one iteration.
        max_num_batched_tokens: token budget of one iteration.
        num_gpu_blocks: KV blocks that requests can use, per replica.
        block_size: tokens in a block.
        full_reservation: reserve prompt + answer at admission (plain rules); otherwise blocks are
            taken as tokens come, and the last request is preempted when they run out.
        reserve_full_isl: admit only if all known tokens fit.
        chunked_prefill: prompts may be cut to the remaining budget.
        pipeline_stages: pipeline parallel size.
        batches_in_flight: batches scheduled before the oldest result is read.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    num_gpu_blocks: int
    block_size: int
    full_reservation: bool = False
    reserve_full_isl: bool = True
    chunked_prefill: bool = True
    pipeline_stages: int = 1
    batches_in_flight: int = 1


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
    parts = [
        _replay_one(requests, table, settings, lane, lanes, _share(users, lane, lanes))
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


def _settings_array(settings: ReplaySettings, users: int) -> IntArray:
    values = np.zeros(kernel.NUM_SETTINGS, np.int64)
    values[kernel.MAX_NUM_SEQS] = settings.max_num_seqs
    values[kernel.TOKEN_BUDGET] = settings.max_num_batched_tokens
    values[kernel.NUM_BLOCKS] = settings.num_gpu_blocks
    values[kernel.BLOCK_SIZE] = settings.block_size
    values[kernel.FULL_RESERVATION] = settings.full_reservation
    values[kernel.RESERVE_FULL_ISL] = settings.reserve_full_isl
    values[kernel.CHUNKED] = settings.chunked_prefill
    values[kernel.PIPELINE_STAGES] = settings.pipeline_stages
    values[kernel.IN_FLIGHT] = settings.batches_in_flight
    values[kernel.CLOSED_LOOP_USERS] = users
    return values


@dataclass(frozen=True, eq=False)
class _Lane:
    """Raw output of the kernel for one replica; times in nanoseconds."""

    sent_ns: IntArray
    scheduled_ns: IntArray
    first_ns: IntArray
    finish_ns: IntArray
    preemptions: IntArray
    counters: IntArray
    component_s: FloatArray
    gaps: IntArray
    samples: IntArray


def _replay_one(
    requests: Requests,
    table: StepTable,
    settings: ReplaySettings,
    lane: int,
    lanes: int,
    users: int,
) -> _Lane:
    f64 = np.ascontiguousarray
    arrival_ns = np.rint(requests.arrival_s[lane::lanes] * NS_PER_S).astype(np.int64)
    values = _settings_array(settings, users)
    values[kernel.ROOFLINE] = table.roofline is not None
    out = kernel.replay(
        arrival_ns,
        np.array(requests.input_tokens[lane::lanes], np.int64),
        np.array(requests.output_tokens[lane::lanes], np.int64),
        values,
        f64(table.token_s),
        f64(table.decode_token_s),
        f64(table.head_s),
        f64(table.decode_batch),
        f64(table.decode_context),
        f64(table.decode_attention_s),
        f64(table.prefill_length),
        f64(table.prefill_attention_s),
        f64(table.roofline.sweep_s) if table.roofline else np.zeros(1),
        _scalars(table),
    )
    return _Lane(*out)


def _scalars(table: StepTable) -> FloatArray:
    values = np.zeros(kernel.NUM_SCALARS, np.float64)
    values[kernel.PREFILL_FLOOR] = table.prefill_floor_s
    values[kernel.HOST_DECODE] = table.host_decode_s
    values[kernel.HOST_MIXED] = table.host_mixed_s
    values[kernel.STAGE_TRANSFER] = table.pp_transfer_s
    if table.roofline is not None:
        values[kernel.KV_READ] = table.roofline.kv_read_s_per_token
        values[kernel.KV_WRITE] = table.roofline.kv_write_s_per_token
        values[kernel.LINEAR] = table.roofline.linear_s_per_token
        values[kernel.PAIR] = table.roofline.attention_s_per_pair
    return values


def _seconds(values_ns: IntArray) -> FloatArray:
    return np.where(values_ns < 0, np.nan, values_ns / NS_PER_S)


def _merge(requests: Requests, parts: list[_Lane], lanes: int) -> SimResult:
    n = len(requests)

    def gather(name: str) -> IntArray:
        out = np.empty(n, np.int64)
        for lane, part in enumerate(parts):
            out[lane::lanes] = getattr(part, name)
        return out

    finish_ns = gather("finish_ns")
    sent_ns = gather("sent_ns")
    counters = np.array([part.counters for part in parts])
    stalled = bool((counters[:, kernel.STATUS] != kernel.STATUS_DONE).any())
    samples = parts[0].samples.astype(np.float64)
    samples[:, 0] /= NS_PER_S
    makespan_ns = 0 if stalled else int(finish_ns.max() - sent_ns.min())
    return SimResult(
        status=REQUEST_EXCEEDS_CACHE if stalled else "",
        arrival_s=_seconds(sent_ns),
        scheduled_s=_seconds(gather("scheduled_ns")),
        first_token_s=_seconds(gather("first_ns")),
        finish_s=_seconds(finish_ns),
        num_preemptions=gather("preemptions"),
        num_steps=int(counters[:, kernel.STEPS].sum()),
        num_request_steps=int(counters[:, kernel.REQUEST_STEPS].sum()),
        component_s=np.sum([part.component_s for part in parts], axis=0),
        peak_blocks=int(counters[:, kernel.PEAK_BLOCKS].max()),
        peak_batch=int(counters[:, kernel.PEAK_BATCH].max()),
        peak_tokens=int(counters[:, kernel.PEAK_TOKENS].max()),
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
        peak_tokens=0, makespan_s=0.0, gaps=np.zeros(kernel.GAP_BINS, np.int64),
        samples=np.zeros((0, 4)),
    )  # fmt: skip
