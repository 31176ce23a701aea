"""Static and continuous batching of a request list at an affine iteration cost (11.2, 11.3).

These are the plain rules, one iteration after another, in a form that can be checked by hand. The
replay of an engine over a whole trace is `sieve.sim`.

Numbers in parentheses name the section of the sizing specification that a rule follows.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sieve.errors import InvalidInput
from sieve.formulas.fields import Fields, Outputs, at_least, formula

MAX_WORK: Final = 10_000_000
"""Most request-iterations of one call, some tens of seconds."""


@dataclass(frozen=True)
class Cost:
    """Seconds of one iteration: base, per decoder, per prompt token, per context token read."""

    base: float
    per_decode: float
    per_prefill_token: float
    per_context_token: float

    def of(self, decoders: int, prefill_tokens: int, context_tokens: int) -> float:
        """Return the seconds of one iteration."""
        return (
            self.base
            + self.per_decode * decoders
            + self.per_prefill_token * prefill_tokens
            + self.per_context_token * context_tokens
        )


@dataclass(eq=False)
class Request:
    """A request and how far it has come.

    Attributes:
        id: position in the list.
        arrival: seconds.
        prompt: tokens.
        output: tokens it asks for.
        priority: smaller goes first.
        blocks: KV blocks that its whole length needs.
        holds_blocks: it has them (kept only where seats can be lost).
        prefilled: prompt tokens processed.
        generated: output tokens so far.
        first_s: when the first token came.
        finish_s: when the last token came.
    """

    id: int
    arrival: float
    prompt: int
    output: int
    priority: float = 0.0
    blocks: int = 0
    holds_blocks: bool = False
    prefilled: int = 0
    generated: int = 0
    first_s: float = math.nan
    finish_s: float = math.nan


def read_cost(given: Fields) -> Cost:
    """Return the four coefficients of an iteration's cost, none negative."""
    names = ("base", "per_decode", "per_prefill_token", "per_context_token")
    cost = given.record("cost", *names)
    return Cost(*(cost.number(name, low=0) for name in names))


def read_requests(given: Fields) -> list[Request]:
    """Return the requests in list order; an empty list is refused, as it has no latency."""
    rows = given.records("requests", "arrival", "prompt", "output", least=1, priority=0)
    return [
        Request(i, row.number("arrival"), row.whole("prompt"), row.whole("output"),
                row.number("priority"))
        for i, row in enumerate(rows)
    ]  # fmt: skip


def latency_summary(requests: Sequence[Request]) -> Outputs:
    """Return makespan, finish, ttft, e2e, mean_e2e, p99_e2e and output_tok_s in seconds (11.2).

    An infinite rate, where nothing costs time, is null.
    """
    finish = [r.finish_s for r in requests]
    e2e = [r.finish_s - r.arrival for r in requests]
    makespan = max(finish) - min(r.arrival for r in requests)
    tokens = sum(r.output for r in requests)
    return {
        "makespan": makespan,
        "finish": finish,
        "ttft": [r.first_s - r.arrival for r in requests],
        "e2e": e2e,
        "mean_e2e": math.fsum(e2e) / len(e2e),
        "p99_e2e": _quantile(e2e, 0.99),
        "output_tok_s": tokens / makespan if makespan > 0 else None,
    }


def _quantile(values: Sequence[float], share: float) -> float:
    """Return the linear interpolation at share * (n - 1) of the sorted values."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


@formula("requests", "max_batch", "cost", bucket=None)
def static(given: Fields) -> Outputs:
    """Return batches, padding and latencies of whole batches run one after another (11.2)."""
    requests, cost = read_requests(given), read_cost(given)
    max_batch = given.whole("max_batch")
    bucket = given.whole("bucket") if given.has("bucket") else None
    for request in requests:
        if request.arrival != 0:
            raise InvalidInput(
                f"requests[{request.id}].arrival: found {request.arrival:g}; static batching has "
                "all requests present at 0, use sched.continuous for arrivals over time"
            )
    groups: dict[int, list[Request]] = {}
    for request in requests:
        group = 0 if bucket is None else (request.prompt - 1) // bucket
        groups.setdefault(group, []).append(request)
    batches = [
        groups[group][start : start + max_batch]
        for group in sorted(groups)
        for start in range(0, len(groups[group]), max_batch)
    ]
    now, steps, padded, slots = 0.0, 0, 0, 0
    for batch in batches:
        n = len(batch)
        longest, decodes = max(r.prompt for r in batch), max(r.output for r in batch) - 1
        first = now + cost.of(0, n * longest, 0)
        # Decode step k reads n (P + k) tokens, k = 1..O-1: in the mean n (P + O/2).
        context = n * (2 * longest + decodes + 1) / 2
        decode = cost.base + cost.per_decode * n + cost.per_context_token * context
        now = first + decodes * decode
        for request in batch:
            request.first_s, request.finish_s = first, now
        steps += decodes + 1
        padded += n * longest
        slots += n * (decodes + 1)
    prompts = sum(r.prompt for r in requests)
    return {
        "batches": [[r.id for r in batch] for batch in batches],
        "steps": steps,
        "padding_tokens": padded - prompts,
        "padding_fraction": (padded - prompts) / padded,
        "slot_utilisation": sum(r.output for r in requests) / slots,
        **latency_summary(requests),
    }


@formula(
    "requests", "max_num_seqs", "token_budget", "cost",
    policy="fcfs", chunked=True, blocks=None, page_tokens=16, preemptive=False,
)  # fmt: skip
def continuous(given: Fields) -> Outputs:
    """Return latencies, steps and mean running requests of iteration-level batching (11.3)."""
    scheduler = _Scheduler(given)
    steps, request_steps = scheduler.run()
    return {
        **latency_summary(scheduler.requests),
        "steps": steps,
        "mean_running": request_steps / steps,
    }


class _Scheduler:
    """Requests that wait and run, and the cache blocks that are free."""

    def __init__(self, given: Fields) -> None:
        self.requests = read_requests(given)
        self.cost = read_cost(given)
        self.seats = given.whole("max_num_seqs")
        self.budget = given.whole("token_budget")
        self.policy = given.text("policy", ("fcfs", "srtf", "priority"))
        self.chunked = given.flag("chunked")
        self.preemptive = given.flag("preemptive")
        page = given.whole("page_tokens")
        blocks = given.whole("blocks") if given.has("blocks") else None
        if self.preemptive and (self.policy != "srtf" or not self.chunked):
            raise InvalidInput("preemptive: needs policy 'srtf' and chunked prompts")
        for request in self.requests:
            request.blocks = -(-(request.prompt + request.output) // page)
            if blocks is not None and request.blocks > blocks:
                raise InvalidInput(
                    f"requests[{request.id}]: needs {request.blocks} blocks of {page} tokens, the "
                    f"cache has {blocks}; it can never run: give more blocks"
                )
            if not self.chunked and request.prompt > self.budget:
                raise InvalidInput(
                    f"requests[{request.id}].prompt: {request.prompt} tokens exceed the token "
                    f"budget of {self.budget}; raise it or chunk prompts"
                )
        self.free_blocks: float = math.inf if blocks is None else blocks
        self.waiting: list[Request] = []
        self.running: list[Request] = []

    def run(self) -> tuple[int, int]:
        """Serve every request; return the iterations and the sum of running requests over them."""
        coming = sorted(self.requests, key=lambda r: (r.arrival, r.id), reverse=True)
        start = now = coming[-1].arrival
        steps = request_steps = work = 0
        while coming or self.waiting or self.running:
            if not self.waiting and not self.running:
                now = max(now, coming[-1].arrival)
            while coming and at_least(now - start, coming[-1].arrival - start):
                bisect.insort(self.waiting, coming.pop(), key=self._order)
            work += len(self.running) + (len(self.waiting) if self.preemptive else 1)
            if work > MAX_WORK:
                raise InvalidInput(
                    f"requests: they need more than {MAX_WORK:,} request-iterations; give fewer "
                    "or shorter ones, or replay the trace with `sieve run`"
                )
            shares = self._seat() if self.preemptive else self._admit()
            request_steps += len(self.running)
            steps += 1
            now = self._advance(shares, now)
        return steps, request_steps

    def _order(self, request: Request) -> tuple[float, float, int]:
        first = {"fcfs": 0.0, "srtf": request.output, "priority": request.priority}[self.policy]
        return (first, request.arrival, request.id)

    def _admit(self) -> list[tuple[Request, int]]:
        """Return the tokens of each request in the next iteration: running first, then admitted.

        Admission stops at the first that lacks blocks or, unchunked, whose prompt is too long.
        """
        shares, budget = self._share()
        while self.waiting and len(self.running) < self.seats and budget > 0:
            request = self.waiting[0]
            if request.blocks > self.free_blocks or not (self.chunked or request.prompt <= budget):
                break
            self.running.append(self.waiting.pop(0))
            self.free_blocks -= request.blocks
            tokens = min(request.prompt, budget)
            shares.append((request, tokens))
            budget -= tokens
        return shares

    def _seat(self) -> list[tuple[Request, int]]:
        """Return the same where all present compete anew, shortest remaining output first.

        One without blocks that finds too few is passed over; one that loses its seat keeps its
        blocks and its progress.
        """
        present = sorted(
            self.running + self.waiting, key=lambda r: (r.output - r.generated, r.arrival, r.id)
        )
        self.running, self.waiting = [], []
        for request in present:
            needed = 0 if request.holds_blocks else request.blocks
            if len(self.running) < self.seats and needed <= self.free_blocks:
                self.free_blocks -= needed
                request.holds_blocks = True
                self.running.append(request)
            else:
                self.waiting.append(request)
        return self._share()[0]

    def _share(self) -> tuple[list[tuple[Request, int]], int]:
        """Return the tokens of running requests, decoders before prompts, and the budget left."""
        budget = self.budget
        shares: list[tuple[Request, int]] = []
        for decoding in (True, False):
            for request in self.running:
                rest = request.prompt - request.prefilled
                if decoding == (rest == 0) and budget > 0:
                    tokens = 1 if decoding else min(rest, budget)
                    shares.append((request, tokens))
                    budget -= tokens
        return shares, budget

    def _advance(self, shares: list[tuple[Request, int]], now: float) -> float:
        """Run one iteration and return when it ends."""
        decoders = prefill_tokens = context_tokens = 0
        for request, tokens in shares:
            if request.prefilled == request.prompt:
                decoders += 1
                context_tokens += request.prompt + request.generated
            else:
                prefill_tokens += tokens
                request.prefilled += tokens
        now += self.cost.of(decoders, prefill_tokens, context_tokens)
        finished = False
        for request, _ in shares:
            if request.prefilled < request.prompt:
                continue
            request.generated += 1
            if request.generated == 1:
                request.first_s = now
            if request.generated == request.output:
                request.finish_s = now
                self.free_blocks += request.blocks
                finished = True
        if finished:
            self.running = [r for r in self.running if r.generated < r.output]
        return now
