"""From traffic, a step-time table and limits to the arrays of the replay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from sieve.arrays import FloatArray, IntArray, PrefixBlocks, StepTable
from sieve.errors import InvalidInput
from sieve.sim._kernels import clock as kernel
from sieve.sim._kernels import layout
from sieve.sim._kernels.clock import Clock
from sieve.sim._kernels.prefix import expand_keys
from sieve.sim.engine import (
    children_of,
    gap_edges_ns,
    idle_clock,
    kinds_of,
    patience,
)
from sieve.sim.engine_input import EngineInput, SharedKeys

CacheGroup = tuple[int, int, int]
"""A group of layers: its window (0: all tokens), tokens in a block, blocks held whatever the length
(0: as the tokens need)."""

BUCKETS: Final = ((512, 0.5), (2048, 0.3), (None, 0.2))
"""Classes by prompt + answer in tokens, shortest first, and their shares of the cache. The last
takes all longer ones; in the sizing specification (11.4) it ends at 8,192."""


@dataclass(frozen=True)
class ReplaySettings:
    """Limits and switches of one engine.

    Attributes:
        max_num_seqs: most requests that run at once.
        max_num_batched_tokens: token budget of one iteration.
        num_gpu_blocks: KV blocks that requests can use, per replica.
        block_size: tokens in a block.
        groups: kinds of cache that share the blocks; empty: one that grows with the tokens. Prefix
            caching is off where their blocks differ or hold states.
        full_reservation: reserve prompt + answer at admission (plain rules); otherwise blocks are
            taken as tokens come, and the last request is preempted when they run out.
        reserve_full_isl: admit only if all known tokens fit.
        chunked_prefill: prompts may be cut to the remaining budget.
        pipeline_stages: pipeline parallel size.
        async_scheduling: a step is scheduled while the one before it runs.
        prefix_caching: full blocks are kept and found again by their content.
        long_prefill_token_threshold: most tokens of one prompt in an iteration; 0: no such limit.
        watermark: share of the blocks that admissions leave free.
        discipline: `fcfs`, the engine's default; `shortest_first`, the engine's priority policy
            with the answer's length as priority, which a real service would have to guess;
            `buckets`, that policy by class of length, with quotas (`BUCKETS`).
        max_model_len: most tokens of prompt and answer together; None: no such limit.
        max_wait_s: stop when a request waits longer for its first iteration; None: never.
        macro_steps: whether runs of decode-only iterations are advanced together where that
            changes no result.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    num_gpu_blocks: int
    block_size: int
    groups: tuple[CacheGroup, ...] = ()
    full_reservation: bool = False
    reserve_full_isl: bool = True
    chunked_prefill: bool = True
    pipeline_stages: int = 1
    async_scheduling: bool = False
    prefix_caching: bool = False
    long_prefill_token_threshold: int = 0
    watermark: float = 0.0
    discipline: Literal["fcfs", "shortest_first", "buckets"] = "fcfs"
    max_model_len: int | None = None
    max_wait_s: float | None = None
    macro_steps: bool = True

    @property
    def batches_in_flight(self) -> int:
        """Batches that are scheduled before the oldest result is read."""
        return self.pipeline_stages + self.async_scheduling


def settings_array(
    settings: ReplaySettings, table: StepTable, users: int, longest: int
) -> IntArray:
    """Return the settings of the compiled loop; `longest` is the most tokens of one request."""
    values = np.zeros(layout.NUM_SETTINGS, np.int64)
    values[layout.BLOCK_SIZE] = settings.block_size
    values[layout.NUM_BLOCKS] = settings.num_gpu_blocks + 1  # block 0 is never handed out
    values[layout.MAX_RUNNING] = settings.max_num_seqs
    values[layout.TOKEN_BUDGET] = settings.max_num_batched_tokens
    values[layout.MAX_MODEL_LEN] = settings.max_model_len or longest + 1
    values[layout.CHUNKED] = settings.chunked_prefill
    values[layout.CACHING] = settings.prefix_caching
    values[layout.THRESHOLD] = settings.long_prefill_token_threshold
    values[layout.PRIORITY] = settings.discipline != "fcfs"
    values[layout.WATERMARK_BLOCKS] = int(settings.watermark * (settings.num_gpu_blocks + 1))
    values[layout.RESERVE_FULL_ISL] = settings.reserve_full_isl
    values[layout.PREFILL_INTERVAL] = 1
    values[layout.ASYNC] = settings.async_scheduling
    values[layout.PIPELINE] = settings.pipeline_stages
    values[layout.IN_FLIGHT] = settings.batches_in_flight
    values[layout.CLOCK] = layout.CLOCK_TABLE
    values[layout.FULL_RESERVATION] = settings.full_reservation
    values[layout.USERS] = users
    values[layout.ROOFLINE] = table.roofline is not None
    values[layout.MAX_WAIT_NS] = int((settings.max_wait_s or 0.0) * 1e9)
    values[layout.MACRO] = settings.macro_steps
    return values


def bucket_of(total: IntArray) -> IntArray:
    """Return the class of requests with `total` tokens of prompt and answer, (n,)."""
    edges = [edge for edge, _ in BUCKETS if edge is not None]
    return np.searchsorted(np.array(edges), total, side="left").astype(np.int64)


def clock_of(table: StepTable, max_num_seqs: int, longest: int) -> Clock:
    """Return the clock of a step-time table, spread over batch sizes and lengths of prompts.

    Args:
        table: the step times.
        max_num_seqs: most requests that run at once.
        longest: most tokens of a request.
    """
    batch = np.arange(max_num_seqs + 1.0)
    context = _array(table.decode_context)
    if len(context) == 1:
        context = np.array([context[0], context[0] + 1.0])
    decode_s = _array(table.decode_attention(batch[:, None], context[None, :]))
    return Clock(
        token_s=_array(table.token_s),
        decode_token_s=_array(table.decode_token_s),
        head_s=_array(table.head_s),
        context=context,
        decode_s=decode_s,
        decode_slope=_array(np.diff(decode_s, axis=1) / np.diff(context)),
        prompt_s=_array(table.prefill_attention(np.arange(longest + 1.0))),
        sweep_s=_array(table.roofline.sweep_s) if table.roofline else np.zeros(1),
        scalars=_scalars(table),
        gap_edges=gap_edges_ns(),
    )


def _array(values: FloatArray) -> FloatArray:
    """Return a writable, contiguous copy: one signature for the compiled code."""
    return np.array(values, np.float64, order="C")


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


def request_input(
    settings: IntArray,
    arrival: IntArray,
    prompt: IntArray,
    output: IntArray,
    *,
    clock: Clock | None = None,
    shared: SharedKeys | None = None,
    previous: IntArray | None = None,
    delay: IntArray | None = None,
    level: IntArray | None = None,
    bucket: IntArray | None = None,
    quota: IntArray | None = None,
    groups: Sequence[CacheGroup] = (),
) -> EngineInput:
    """Return the arrays of requests.

    Args:
        settings: as `engine_settings`; the table width and the patience are filled in here.
        arrival: (n,) steps, or nanoseconds if the settings are timed.
        prompt: (n,) tokens.
        output: (n,) tokens.
        clock: the step-time table, if the settings name one.
        shared: the keys of blocks that several prompts have; None: no prompts begin alike.
        previous: (n,) index of the request at whose end this one's delay begins; -1: `arrival`.
        delay: (n,) steps or nanoseconds.
        level: (n,) priorities, smaller first; read under the priority policy.
        bucket: (n,) class of each request, for `quota`.
        quota: (k,) tokens that running requests of a class may have while others wait.
        groups: the kinds of cache; empty: one that grows with the tokens.
    """
    values = settings.copy()
    n = len(arrival)
    block_size = int(values[layout.BLOCK_SIZE])
    groups = groups or ((0, block_size, 0),)
    windows = [window for window, _, _ in groups]
    if any(span != block_size or fixed for _, span, fixed in groups):
        values[layout.CACHING] = 0
    total = np.minimum(prompt + output, values[layout.MAX_MODEL_LEN])
    longest = int(total.max(initial=1))
    # Speed: one table for all groups, as wide as the finest of them.
    values[layout.TABLE_WIDTH] = max(fixed or -(-longest // span) for _, span, fixed in groups)
    values[layout.PATIENCE] = patience(total)
    most = len(groups) * _most_blocks(values, total) + n * sum(fixed for _, _, fixed in groups)
    values[layout.NUM_BLOCKS] = min(values[layout.NUM_BLOCKS], most + 1)
    zeros = np.zeros(n, np.int64)
    if previous is None:
        previous = np.full(n, -1, np.int64)
    child_start, child = children_of(previous)
    return EngineInput(
        settings=values,
        accept=np.zeros(1, np.int64),
        window=np.array(windows, np.int64),
        kind=kinds_of(windows),
        span=np.array([span for _, span, _ in groups], np.int64),
        fixed=np.array([fixed for _, _, fixed in groups], np.int64),
        arrival=np.where(previous < 0, arrival, -1).astype(np.int64),
        prompt=np.array(prompt, np.int64),
        output=np.array(output, np.int64),
        level=zeros if level is None else level,
        name_rank=np.arange(n),
        child_start=child_start,
        child=child,
        delay=zeros if delay is None else np.array(delay, np.int64),
        key_start=zeros,
        keys=None,
        num_keys=0,
        clock=idle_clock() if clock is None else clock,
        bucket=zeros if bucket is None else bucket,
        quota=np.zeros(0, np.int64) if quota is None else quota,
        shared=shared or SharedKeys(zeros, zeros, np.zeros(0, np.int32), 0),
    )


def prefix_keys(prefix: PrefixBlocks, block_size: int) -> SharedKeys:
    """Return the keys of an engine's blocks that several prompts of a trace have.

    A prompt's last, partly filled block of the trace counts as far as it is filled, so a hit that
    ends inside a block which another prompt fills further is seen, and one between two prompts
    that fill it differently is not: the share of hits is a lower bound.

    Args:
        prefix: the trace's blocks.
        block_size: tokens in a block of the engine.

    Raises:
        InvalidInput: more keys than 32 bits can number.
    """
    count, prompt = np.diff(prefix.start), prefix.prompt
    uses = np.bincount(prefix.ids, minlength=1)
    common = uses > 1
    number = np.cumsum(common) - 1
    is_common = common[prefix.ids]
    owner = np.repeat(np.arange(len(prompt)), count)
    # A chain is common up to some block and private after it.
    common_blocks = np.bincount(owner[is_common], minlength=len(prompt))
    shared = np.minimum(common_blocks * prefix.block_tokens, prompt) // block_size
    per_chain = -(-prefix.block_tokens // block_size)
    if prefix.block_tokens % block_size and block_size < prefix.block_tokens:
        per_chain += 1
    num_keys = int(common.sum()) * per_chain
    if num_keys >= 2**31:
        raise InvalidInput(
            f"{num_keys:,} keys of shared blocks; at most {2**31 - 1:,} are replayed"
        )
    chain = np.where(common, number, -1)[prefix.ids].astype(np.int64)
    keys = expand_keys(
        chain, np.array(prefix.start[:-1]), shared, prefix.block_tokens, block_size, per_chain
    )
    return SharedKeys(np.cumsum(shared) - shared, shared, keys, num_keys)


def _most_blocks(settings: IntArray, total: IntArray) -> int:
    """Return how many blocks can ever be held or found; a larger pool changes nothing."""
    blocks = -(-total // settings[layout.BLOCK_SIZE]) + 1
    if not settings[layout.CACHING]:
        blocks = np.sort(blocks)[-int(settings[layout.MAX_RUNNING]) :]
    return int(blocks.sum()) + int(settings[layout.WATERMARK_BLOCKS]) + 1
