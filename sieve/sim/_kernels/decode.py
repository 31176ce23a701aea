"""One engine that only decodes, compiled: prompts arrive with their KV cache computed elsewhere.

First come, first served; a request that is admitted holds the blocks of prompt and answer to its
end. Every iteration gives each running request one token; ends are kept in a ring over iterations,
so an iteration costs the same for ten requests as for a thousand.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from sieve.sim._kernels import jit
from sieve.sim._kernels.clock import (
    HOST_DECODE,
    KV_READ,
    KV_WRITE,
    LINEAR,
    PAIR,
    gap_bin,
    roofline_s,
    whole_ns,
)

D_STEPS: Final = 0
D_REQUEST_STEPS: Final = 1
D_PEAK_BATCH: Final = 2
D_PEAK_BLOCKS: Final = 3
D_STALLED: Final = 4
NUM_COUNTERS: Final = 5


@jit
def decode(
    arrival, context, tokens, blocks, max_running, num_blocks, roofline, clock, admitted, finish,
    counters, component_s, gaps,
):  # fmt: skip
    """Fill when each request is admitted and finished.

    Args:
        arrival: (n,) int64 ns, rising.
        context: (n,) int64 cached tokens on arrival.
        tokens: (n,) int64 tokens to make, at least 1.
        blocks: (n,) int64 blocks held from admission to the end.
        max_running: seats.
        num_blocks: blocks there are.
        roofline: whether attention is max(memory, compute).
        clock: `clock.Clock`.
        admitted: (n,) int64 ns, out.
        finish: (n,) int64 ns, out.
        counters: (NUM_COUNTERS,) int64, out.
        component_s: (5,) float64, out.
        gaps: int64 by bin, out.
    """
    n = len(arrival)
    ring = 1
    while ring <= tokens.max():
        ring *= 2
    first = np.full(ring, -1, np.int64)
    after = np.full(n, -1, np.int64)
    grid = clock.context
    top = len(grid) - 2
    segment = 0
    now = np.int64(0)
    free = num_blocks
    batch = 0
    cached = np.int64(0)
    step = 0
    i = 0
    while i < n or batch > 0:
        if batch == 0 and i < n and arrival[i] > now:
            now = arrival[i]
        while i < n and arrival[i] <= now and batch < max_running and blocks[i] <= free:
            admitted[i] = now
            free -= blocks[i]
            cached += context[i]
            batch += 1
            slot = (step + tokens[i] - 1) & (ring - 1)
            after[i] = first[slot]
            first[slot] = i
            i += 1
        if batch == 0:
            counters[D_STALLED] = 1
            return
        counters[D_PEAK_BATCH] = max(counters[D_PEAK_BATCH], batch)
        counters[D_PEAK_BLOCKS] = max(counters[D_PEAK_BLOCKS], num_blocks - free)
        cached += batch
        tokens_s = clock.decode_token_s[batch]
        attention_s = 0.0
        if roofline:
            tokens_s += roofline_s(
                clock.sweep_s[batch], batch, cached, cached, clock.scalars[KV_READ],
                clock.scalars[KV_WRITE], clock.scalars[LINEAR], clock.scalars[PAIR],
            )  # fmt: skip
        else:
            x = max(cached / batch, grid[0])
            while segment < top and grid[segment + 1] <= x:
                segment += 1
            while segment > 0 and grid[segment] > x:
                segment -= 1
            slope = clock.decode_slope[batch, segment]
            attention_s = clock.decode_s[batch, segment] + (x - grid[segment]) * slope
        head_s = clock.head_s[batch]
        host_s = clock.scalars[HOST_DECODE]
        component_s[0] += tokens_s
        component_s[1] += head_s
        component_s[2] += attention_s
        component_s[4] += host_s
        gap = whole_ns(tokens_s + head_s + attention_s + host_s)
        gaps[gap_bin(clock.gap_edges, gap)] += batch
        now += gap
        counters[D_STEPS] += 1
        counters[D_REQUEST_STEPS] += batch
        slot = step & (ring - 1)
        r = first[slot]
        first[slot] = -1
        while r >= 0:
            finish[r] = now
            free += blocks[r]
            cached -= context[r] + tokens[r]
            batch -= 1
            r = after[r]
        step += 1
