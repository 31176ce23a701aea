"""Static batching, for comparison: a batch is padded, runs to its longest answer, then the next.

The rules are those of the sizing specification 11.2, with arrivals: a batch takes the requests that
have arrived by its start, first come first served, and waits for one if there is none.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sieve.arrays import FloatArray, IntArray, Requests, StepTable
from sieve.errors import InvalidInput
from sieve.sim.traffic_input import ReplaySettings


@dataclass(frozen=True, eq=False)
class StaticResult:
    """Static batching over one engine.

    Attributes:
        first_token_s: (n,) end of the batch's prefill.
        finish_s: (n,) end of the batch; all its requests finish together.
        num_batches: batches run.
        padding_share: computed prompt tokens that were padding.
        slot_share: answer tokens over the batch's steps in all its slots.
    """

    first_token_s: FloatArray
    finish_s: FloatArray
    num_batches: int
    padding_share: float
    slot_share: float


def simulate_static(
    requests: Requests, table: StepTable, settings: ReplaySettings, replicas: int = 1
) -> StaticResult:
    """Return static batching of open-loop requests, dealt round robin over `replicas` engines.

    Raises:
        InvalidInput: a closed loop, sessions, or the plain roofline clock, which
            `sched.static` of `sieve eval` has.
    """
    if requests.closed_loop_users is not None or requests.previous is not None:
        raise InvalidInput("static batching is compared on open-loop traffic without sessions")
    if table.roofline is not None:
        raise InvalidInput(
            "static batching needs kernel step times; `sieve eval sched.static` has the plain rules"
        )
    n = len(requests)
    first, finish = np.empty(n), np.empty(n)
    batches, padded, slots = 0, 0, 0
    for lane in range(replicas):
        rows = np.arange(lane, n, replicas)
        taken, now = 0, 0.0
        while taken < len(rows):
            now = max(now, float(requests.arrival_s[rows[taken]]))
            batch = rows[taken : taken + _size(requests, rows[taken:], now, settings)]
            prompt = int(requests.input_tokens[batch].max())
            answer = int(requests.output_tokens[batch].max())
            begun = now + _prefill_s(table, len(batch), prompt, settings.max_num_batched_tokens)
            context = prompt + np.arange(1, answer)
            now = begun + float(table.decode_step_s(np.full(answer - 1, len(batch)), context).sum())
            first[batch], finish[batch] = begun, now
            taken += len(batch)
            batches += 1
            padded += len(batch) * prompt
            slots += len(batch) * answer
    return StaticResult(
        first_token_s=first,
        finish_s=finish,
        num_batches=batches,
        padding_share=1.0 - float(requests.input_tokens.sum()) / padded,
        slot_share=float(requests.output_tokens.sum()) / slots,
    )


def _size(requests: Requests, rows: IntArray, now: float, settings: ReplaySettings) -> int:
    """Return how many of the next requests form a batch: arrived, seated, cached when padded."""
    rows = rows[: settings.max_num_seqs]
    arrived = int(np.searchsorted(requests.arrival_s[rows], now, side="right"))
    rows = rows[: max(arrived, 1)]
    longest = np.maximum.accumulate(requests.input_tokens[rows]) + np.maximum.accumulate(
        requests.output_tokens[rows]
    )
    blocks = -(-longest // settings.block_size) * np.arange(1, len(rows) + 1)
    return max(int((blocks <= settings.num_gpu_blocks).sum()), 1)


def _prefill_s(table: StepTable, size: int, prompt: int, budget: int) -> float:
    """Return the time of a padded prefill, in pieces of the token budget."""
    tokens = size * prompt
    whole, rest = divmod(tokens, budget)
    steps = whole + (rest > 0)
    work = whole * table.token_s[budget] + table.token_s[rest]
    attention = size * float(table.prefill_attention(prompt)) + steps * table.prefill_floor_s
    return float(work + attention + table.head_s[size] + steps * table.host_mixed_s)
