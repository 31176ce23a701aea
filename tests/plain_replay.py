"""The scheduler as a plain Python loop, written from the rules alone: an oracle and a yardstick.

First come, first served, one batch at a time, no prefix cache: `vllm_scheduler_semantics`, sections
2 to 4. It keeps lists and visits every request in every step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sieve.arrays import Requests, RooflineCost, StepTable
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
    context = sum(computed[r] for r in decodes)
    cost = float(table.head_s[yields])
    if table.roofline is not None:
        cost += _roofline(table.roofline, tokens, context, [(computed[r], w) for r, w in prefills])
    elif decodes:
        cost += _decode(table, len(decodes), context / len(decodes))
    if not prefills:
        return cost + float(table.decode_token_s[tokens]) + table.host_decode_s
    if table.roofline is None:
        for r, want in prefills:
            ends = (computed[r], computed[r] - want)
            after, before = (
                _line(table.prefill_length, table.prefill_attention_s, x) for x in ends
            )
            cost += after - before
    return cost + float(table.token_s[tokens]) + table.prefill_floor_s + table.host_mixed_s


def _roofline(
    cost: RooflineCost, tokens: int, context: int, prompts: list[tuple[int, int]]
) -> float:
    """Return max(memory, compute); prompts as (computed with the chunk, chunk)."""
    read = context + sum(computed - want for computed, want in prompts)
    pairs = context + sum(
        computed - want + i for computed, want in prompts for i in range(1, want + 1)
    )
    memory = cost.sweep_s[tokens] + read * cost.kv_read_s_per_token
    memory += tokens * cost.kv_write_s_per_token
    compute = tokens * cost.linear_s_per_token + pairs * cost.attention_s_per_pair
    return float(max(memory, compute))


def _decode(table: StepTable, batch: int, context: float) -> float:
    """Return the decode attention, linear in context and then in batch."""
    rows = [_line(table.decode_context, row, context) for row in table.decode_attention_s]
    return _line(table.decode_batch, rows, batch)


def _line(xs: Sequence[float], ys: Sequence[float], x: float) -> float:
    """Return the value at x: linear between, the last segment goes on, the first value before."""
    x = max(x, xs[0])
    i = 0
    while i < len(xs) - 2 and xs[i + 1] <= x:
        i += 1
    return float(ys[i] + (ys[i + 1] - ys[i]) / (xs[i + 1] - xs[i]) * (x - xs[i]))
