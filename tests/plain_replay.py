"""The scheduler as a plain Python loop, written from the rules alone: an oracle and a yardstick.

First come, first served, one batch at a time, no prefix cache: `vllm_scheduler_semantics`, sections
2 to 4. It keeps lists and visits every request in every step.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sieve.arrays import Requests, StepTable
from sieve.sim.replay import ReplaySettings


@dataclass
class Plain:
    """What a replay leaves behind, times in nanoseconds."""

    scheduled: list[int]
    first: list[int]
    finish: list[int]
    preemptions: list[int]
    steps: int = 0
    request_steps: int = 0
    peak_blocks: int = 0
    waiting: Any = field(default_factory=deque)


def replay(requests: Requests, table: StepTable, limits: ReplaySettings) -> Plain:
    """Return the replay of open-loop requests on one engine."""
    arrival = np.rint(requests.arrival_s * 1e9).astype(np.int64).tolist()
    prompt, output = requests.input_tokens.tolist(), requests.output_tokens.tolist()
    n, size = len(arrival), limits.block_size
    known, computed = list(prompt), [0] * n
    out = Plain([-1] * n, [-1] * n, [-1] * n, [0] * n)
    running: list[int] = []
    waiting: deque[int] = deque()
    held, free = [0] * n, limits.num_gpu_blocks
    unfinished = [False] * n  # its prompt, or what a preempted one recomputes
    now = coming = 0
    while True:
        while coming < n and arrival[coming] <= now:
            waiting.append(coming)
            coming += 1
        if not running and not waiting:
            if coming == n:
                return out
            now = arrival[coming]
            continue
        budget, batch, preempted = limits.max_num_batched_tokens, [], False
        i = 0
        while i < len(running) and budget > 0:
            r = running[i]
            want = min(known[r] - computed[r], budget)
            need = -(-(computed[r] + want) // size) - held[r]
            while need > free:
                victim = running.pop()
                preempted = True
                free += held[victim]
                held[victim] = computed[victim] = 0
                out.preemptions[victim] += 1
                waiting.appendleft(victim)
                if victim == r:
                    break
            if i == len(running):
                break
            held[r] += need
            free -= need
            budget -= want
            batch.append((r, want, not unfinished[r]))
            i += 1
        while not preempted and waiting and budget > 0 and len(running) < limits.max_num_seqs:
            r = waiting[0]
            if not limits.chunked_prefill and known[r] > budget:
                break
            want = min(known[r], budget)
            if limits.reserve_full_isl and -(-known[r] // size) > free:
                break
            need = -(-want // size)
            if need > free:
                break
            waiting.popleft()
            running.append(r)
            held[r] = need
            free -= need
            budget -= want
            batch.append((r, want, False))
        out.peak_blocks = max(out.peak_blocks, limits.num_gpu_blocks - free)
        if not batch:
            if coming == n:
                return out
            now = max(now, arrival[coming])
            continue
        out.steps += 1
        out.request_steps += len(batch)
        for r, want, _ in batch:
            computed[r] += want
            if out.scheduled[r] < 0:
                out.scheduled[r] = now
        now += round(_seconds(table, batch, computed, known) * 1e9)
        ended = False
        for r, _, _ in batch:
            unfinished[r] = computed[r] < known[r]
            if unfinished[r]:
                continue
            known[r] += 1
            if out.first[r] < 0:
                out.first[r] = now
            if known[r] == prompt[r] + output[r]:
                out.finish[r] = now
                free += held[r]
                ended = True
        if ended:
            running = [r for r in running if out.finish[r] < 0]


def _seconds(
    table: StepTable, batch: list[tuple[int, int, bool]], computed: list[int], known: list[int]
) -> float:
    decodes = [r for r, _, is_decode in batch if is_decode]
    prefills = [(r, want) for r, want, is_decode in batch if not is_decode]
    yields = sum(computed[r] >= known[r] for r, _, _ in batch)
    tokens = len(decodes) + sum(want for _, want in prefills)
    cost = float(table.head_s[yields])
    if decodes:
        mean = sum(computed[r] for r in decodes) / len(decodes)
        cost += _interpolated(table, len(decodes), mean)
    if not prefills:
        return cost + float(table.decode_token_s[tokens]) + table.host_decode_s
    grid, values = table.prefill_length, table.prefill_attention_s
    slope = (values[1] - values[0]) / (grid[1] - grid[0])
    attention = sum(slope * want for _, want in prefills)
    cost += float(table.token_s[tokens]) + attention + table.prefill_floor_s
    return cost + table.host_mixed_s


def _interpolated(table: StepTable, batch: int, context: float) -> float:
    """Return the decode attention of a table that is linear in context and in batch."""
    low, high = table.decode_attention_s[0]
    grid = table.decode_context
    one = low + (high - low) / (grid[1] - grid[0]) * (context - grid[0])
    return float(batch * one)
