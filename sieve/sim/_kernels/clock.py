"""The time of an iteration inside the compiled loops, and the count of gaps between tokens."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from sieve.sim._kernels import inlined, jit

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
        context: float64 (nc,) rising mean contexts, at least two.
        decode_s: float64 (max_num_seqs + 1, nc) attention of a decoding batch.
        decode_slope: float64 (max_num_seqs + 1, nc - 1), by one token of mean context.
        prompt_s: float64 (longest + 1,) attention over a prompt of that many tokens.
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
    prompt_s: Any
    sweep_s: Any
    scalars: Any
    gap_edges: Any


@inlined
def roofline_s(sweep, tokens, read, pairs, kv_read, kv_write, linear, pair):
    """Return max(memory, compute) of an iteration, as `RooflineCost`."""
    memory = sweep + read * kv_read + tokens * kv_write
    return max(memory, tokens * linear + pairs * pair)


@inlined
def whole_ns(seconds):
    """Return seconds as nanoseconds, rounded."""
    return np.int64(seconds * 1e9 + 0.5)


@jit
def batch_end_ns(stage_free, start, seconds, transfer_s):
    """Return when a batch leaves the last stage, and note when each stage is free again."""
    stages = len(stage_free)
    stage_ns = whole_ns(seconds / stages)
    hop_ns = whole_ns(transfer_s)
    end = start
    for s in range(stages):
        end = max(end, stage_free[s]) + stage_ns
        stage_free[s] = end
        if s + 1 < stages:
            end += hop_ns
    return end


@jit
def gap_bin(edges, gap):
    """Return the bin of a gap in nanoseconds."""
    low, high = 0, len(edges) - 2
    while low < high:
        middle = (low + high + 1) // 2
        if edges[middle] <= gap:
            low = middle
        else:
            high = middle - 1
    return low
