"""Data-parallel ranks in lock step as a plain Python loop, written from the rules alone.

One batch at a time, first come first served, no prefix cache: sections 2 to 4, 12 and 13 of
`vllm_scheduler_semantics`. A rank is an object with lists; every request is visited in every step.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sieve.arrays import Requests, StepTable
from sieve.sim.replay import ReplaySettings

SYNC_STEPS = 16


@dataclass
class Rank:
    """One engine: its queue, its running list and its free blocks."""

    free: int
    waiting: Any = field(default_factory=deque)
    running: list[int] = field(default_factory=list)

    @property
    def in_flight(self) -> int:
        return len(self.waiting) + len(self.running)


class Plain:
    """The replay; times in nanoseconds."""

    def __init__(
        self, requests: Requests, table: StepTable, limits: ReplaySettings, ranks: int
    ) -> None:
        self.table, self.limits = table, limits
        self.arrival = np.rint(requests.arrival_s * 1e9).astype(np.int64).tolist()
        self.prompt = requests.input_tokens.tolist()
        self.output = requests.output_tokens.tolist()
        n = len(self.arrival)
        self.ranks = [Rank(limits.num_gpu_blocks) for _ in range(ranks)]
        self.lane, self.finish, self.first, self.scheduled = [-1] * n, [-1] * n, [-1] * n, [-1] * n
        self.preemptions, self.known, self.computed = [0] * n, list(self.prompt), [0] * n
        self.held, self.mid = [0] * n, [False] * n
        self.coming = self.scan = self.idle = self.steps = 0
        self._run()

    def _run(self) -> None:
        now = wave = 0
        n = len(self.arrival)
        while True:
            self._arrive(now + 1)
            if not any(rank.in_flight for rank in self.ranks):
                if self.coming == n:
                    return
                if wave <= 1 or wave % SYNC_STEPS == 0:
                    wave, now = 0, max(now, self.arrival[self.coming])
                elif self.arrival[self.coming] > now:
                    now += self._cost([[] for _ in self.ranks])
                    wave += 1
                    self.idle += len(self.ranks)
                continue
            batches = [self._schedule(rank) for rank in self.ranks]
            assert any(batches), "the oracle is given caches that hold the longest request"
            wave += 1
            self.idle += sum(not batch for batch in batches)
            self.steps += sum(bool(batch) for batch in batches)
            for r, want, _ in (entry for batch in batches for entry in batch):
                self.computed[r] += want
                self.scheduled[r] = now if self.scheduled[r] < 0 else self.scheduled[r]
            now += self._cost(batches)
            self._arrive(now)
            for rank, batch in zip(self.ranks, batches, strict=True):
                self._finish(rank, batch, now)

    def _arrive(self, before: int) -> None:
        """Route requests that arrive before a time: least load first, ties by a moving scan."""
        while self.coming < len(self.arrival) and self.arrival[self.coming] < before:
            order = [(self.scan + j) % len(self.ranks) for j in range(len(self.ranks))]
            best = min(order, key=lambda k: self._load(self.ranks[k]))  # the first of equal ones
            self.scan += 1
            self.ranks[best].waiting.append(self.coming)
            self.lane[self.coming] = best
            self.coming += 1

    def _load(self, rank: Rank) -> float:
        usage = 1 - rank.free / self.limits.num_gpu_blocks
        return rank.in_flight + 6 * len(rank.waiting) * max(0.0, usage - 0.5)

    def _schedule(self, rank: Rank) -> list[tuple[int, int, bool]]:
        size, budget = self.limits.block_size, self.limits.max_num_batched_tokens
        batch: list[tuple[int, int, bool]] = []
        preempted = False
        for r in list(rank.running):
            if r not in rank.running or budget == 0:
                continue
            want = min(self.known[r] - self.computed[r], budget)
            need = -(-(self.computed[r] + want) // size) - self.held[r]
            while need > rank.free and r in rank.running:
                victim = rank.running.pop()
                preempted = True
                rank.free += self.held[victim]
                self.held[victim] = self.computed[victim] = 0
                self.preemptions[victim] += 1
                rank.waiting.appendleft(victim)
            if r in rank.running:
                rank.free -= need
                self.held[r] += need
                budget -= want
                batch.append((r, want, not self.mid[r]))
        while (
            not preempted and rank.waiting and budget
            and len(rank.running) < self.limits.max_num_seqs
        ):  # fmt: skip
            r = rank.waiting[0]
            want = min(self.known[r], budget)
            whole = self.known[r] if self.limits.reserve_full_isl else want
            if -(-whole // size) > rank.free:
                break
            rank.running.append(rank.waiting.popleft())
            self.held[r] = -(-want // size)
            rank.free -= self.held[r]
            budget -= want
            batch.append((r, want, False))
        return batch

    def _finish(self, rank: Rank, batch: list[tuple[int, int, bool]], now: int) -> None:
        for r, _, _ in batch:
            self.mid[r] = self.computed[r] < self.known[r]
            if self.mid[r]:
                continue
            self.known[r] += 1
            self.first[r] = now if self.first[r] < 0 else self.first[r]
            if self.known[r] == self.prompt[r] + self.output[r]:
                self.finish[r] = now
                rank.free += self.held[r]
                rank.running.remove(r)

    def _cost(self, batches: list[list[tuple[int, int, bool]]]) -> int:
        """Return the nanoseconds of a step: the slowest rank, and what all do together."""
        step, table = self.table.lock_step, self.table
        assert step is not None
        tokens = [sum(want for _, want, _ in batch) or 1 for batch in batches]
        if max(tokens) < len(step.graph_size):
            tokens = [int(step.graph_size[max(tokens)])] * len(tokens)
        shared = float(step.shared_s[sum(tokens)])
        mixed = any(not is_decode for batch in batches for _, _, is_decode in batch)
        slowest = 0.0
        for batch, own in zip(batches, tokens, strict=True):
            decodes = sum(is_decode for _, _, is_decode in batch)
            prefill = sum(want for _, want, is_decode in batch if not is_decode)
            cost = float(step.local_s[own]) + shared
            cost = max(cost, step.launch_s) if mixed else cost
            cost += decodes * float(table.decode_attention_s[0, 0])
            cost += prefill * float(table.prefill_attention_s[1])
            cost += table.host_mixed_s if prefill else table.host_decode_s
            slowest = max(slowest, cost)
        return int(np.floor(slowest * 1e9 + 0.5))
