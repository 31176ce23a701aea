"""The time of an iteration inside the compiled loops, and the count of gaps between tokens."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from sieve.sim._kernels import jit

# Positions in the scalars, seconds.
PREFILL_FLOOR: Final = 0
HOST_DECODE: Final = 1
HOST_MIXED: Final = 2
STAGE_TRANSFER: Final = 3
KV_READ: Final = 4
KV_WRITE: Final = 5
LINEAR: Final = 6
PAIR: Final = 7
NUM_SCALARS: Final = 8

GAP_BINS: Final = 4608
GAP_FIRST_S: Final = 1e-6
GAP_RATIO: Final = 1.005
"""Gaps between tokens are counted in log-spaced bins of 0.5 % from 1 us on."""


class Clock(NamedTuple):
    """A step-time table as the compiled loops read it; see `sieve.arrays.StepTable`.

    Attributes:
        token_s: float64 (max_num_batched_tokens + 1,).
        decode_token_s: float64 (max_num_seqs + 1,), decode-only steps.
        head_s: float64 (max_num_seqs + 1,) by yielding sequences.
        context: float64 (nc,) rising mean contexts.
        decode_s: float64 (max_num_seqs + 1, nc) attention of a decoding batch.
        decode_slope: float64 (max_num_seqs + 1, nc - 1), by one token of mean context.
        prefill_length: float64 (np,) rising lengths.
        prefill_s: float64 (np,) attention over a prompt of that length.
        sweep_s: float64 of `RooflineCost`, length 1 when it is not used.
        scalars: float64 (NUM_SCALARS,).
        gap_edges: int64 (GAP_BINS + 1,) nanoseconds.
    """

    token_s: Any
    decode_token_s: Any
    head_s: Any
    context: Any
    decode_s: Any
    decode_slope: Any
    prefill_length: Any
    prefill_s: Any
    sweep_s: Any
    scalars: Any
    gap_edges: Any


@jit
def segment(grid, x):  # type: ignore[no-untyped-def]
    """Return the index of the grid segment that holds, or is nearest to, x."""
    low, high = 0, len(grid) - 1
    while high - low > 1:
        middle = (low + high) // 2
        if grid[middle] <= x:
            low = middle
        else:
            high = middle
    return low


@jit
def decode_attention_s(clock, decodes, context_sum):  # type: ignore[no-untyped-def]
    """Return the attention of `decodes` sequences with `context_sum` cached tokens together."""
    grid = clock.context
    if len(grid) < 2:
        return clock.decode_s[decodes, 0]
    x = max(context_sum * (1.0 / decodes), grid[0])
    j = segment(grid, x)
    return clock.decode_s[decodes, j] + (x - grid[j]) * clock.decode_slope[decodes, j]


@jit
def _prompt_attention_s(clock, length):  # type: ignore[no-untyped-def]
    grid = clock.prefill_length
    if len(grid) < 2:
        return clock.prefill_s[0]
    i = segment(grid, length)
    u = (length - grid[i]) / (grid[i + 1] - grid[i])
    return clock.prefill_s[i] * (1 - u) + clock.prefill_s[i + 1] * u


@jit
def chunk_attention_s(clock, past, upto):  # type: ignore[no-untyped-def]
    """Return the attention of a prompt's chunk from token `past` to token `upto`."""
    return _prompt_attention_s(clock, float(upto)) - _prompt_attention_s(clock, float(past))


@jit
def iteration_s(  # type: ignore[no-untyped-def]
    clock, roofline, prefill_tokens, prefill_s, prefill_past, prefill_pairs, decodes,
    context_sum, yields, component_s,
):  # fmt: skip
    """Return the seconds of one iteration and add its parts to `component_s`, (5,)."""
    scalars = clock.scalars
    if prefill_tokens > 0:
        tokens_part = clock.token_s[prefill_tokens + decodes]
        host_part = scalars[HOST_MIXED]
        prefill_part = prefill_s + scalars[PREFILL_FLOOR]
    else:
        tokens_part = clock.decode_token_s[decodes]
        host_part = scalars[HOST_DECODE]
        prefill_part = 0.0
    head_part = clock.head_s[yields]
    decode_part = 0.0
    if roofline:
        tokens = prefill_tokens + decodes
        memory = (
            clock.sweep_s[tokens]
            + (context_sum + prefill_past) * scalars[KV_READ]
            + tokens * scalars[KV_WRITE]
        )
        compute = tokens * scalars[LINEAR] + (context_sum + prefill_pairs) * scalars[PAIR]
        tokens_part += max(memory, compute)
    elif decodes > 0:
        decode_part = decode_attention_s(clock, decodes, context_sum)
    component_s[0] += tokens_part
    component_s[1] += head_part
    component_s[2] += decode_part
    component_s[3] += prefill_part
    component_s[4] += host_part
    return tokens_part + head_part + decode_part + prefill_part + host_part


@jit
def batch_end_ns(clock, stage_free, start, seconds):  # type: ignore[no-untyped-def]
    """Return when a batch leaves the last stage, and note when each stage is free again."""
    stages = len(stage_free)
    if stages == 1:
        stage_free[0] = max(start, stage_free[0]) + np.int64(seconds * 1e9 + 0.5)
        return stage_free[0]
    stage_ns = np.int64(seconds / stages * 1e9 + 0.5)
    hop_ns = np.int64(clock.scalars[STAGE_TRANSFER] * 1e9 + 0.5)
    end = start
    for s in range(stages):
        end = max(end, stage_free[s]) + stage_ns
        stage_free[s] = end
        if s + 1 < stages:
            end += hop_ns
    return end


@jit
def gap_bin(edges, gap):  # type: ignore[no-untyped-def]
    """Return the bin of a gap in nanoseconds."""
    low, high = 0, len(edges) - 2
    while low < high:
        middle = (low + high + 1) // 2
        if edges[middle] <= gap:
            low = middle
        else:
            high = middle - 1
    return low
