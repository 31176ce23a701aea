"""What one replica can carry, in closed form from its step table; the cheap side of the replay.

At batch m per pipeline stage a request occupies the device for
`output tokens x step(m)/m + prefill`, so a replica serves `pp` divided by that many per second.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from sieve.arrays import FloatArray, IntArray, Requests, StepTable


@dataclass(frozen=True)
class Workload:
    """Means of the traffic at load level 1.0.

    Attributes:
        mean_input, mean_output: tokens.
        decode_context: mean context of a decoding step, tokens (weighted by output length).
        rate_per_s: offered requests per second, None for a closed loop.
        users: closed-loop users, None for open-loop traffic.
        span_s: first to last arrival.
        longest: longest prompt + answer, tokens.
    """

    mean_input: float
    mean_output: float
    decode_context: float
    rate_per_s: float | None
    users: int | None
    span_s: float
    longest: int

    @property
    def mean_tokens(self) -> int:
        """Tokens that one mean request holds when it ends, rounded up."""
        return int(np.ceil(self.mean_input + self.mean_output))

    @property
    def offered_tokens_per_s(self) -> float | None:
        """Output tokens per second that the traffic asks for; None for a closed loop or burst."""
        if self.rate_per_s is None or not np.isfinite(self.rate_per_s):
            return None
        return self.rate_per_s * self.mean_output


def workload_of(requests: Requests) -> Workload:
    """Return the means of a trace."""
    isl = requests.input_tokens.astype(np.float64)
    osl = requests.output_tokens.astype(np.float64)
    users = requests.closed_loop_users
    return Workload(
        mean_input=float(isl.mean()),
        mean_output=float(osl.mean()),
        decode_context=float((osl * (isl + osl / 2)).sum() / osl.sum()),
        rate_per_s=None if users is not None else requests.rate_per_s,
        users=users,
        span_s=float(requests.arrival_s[-1] - requests.arrival_s[0]),
        longest=int((requests.input_tokens + requests.output_tokens).max()),
    )


def unshared(table: StepTable) -> StepTable:
    """Return a rank's table with the other data-parallel ranks idle, another table as it is.

    No step of the rank can be quicker: the others run at least one token along.
    """
    step = table.lock_step
    if step is None:
        return table
    largest = len(step.local_s) - 1
    tokens = np.arange(largest + 1)
    held = np.minimum(tokens, len(step.graph_size) - 1)
    runs = np.where(tokens < len(step.graph_size), step.graph_size[held], tokens)
    together = np.where(tokens < len(step.graph_size), step.ranks * runs, tokens + step.ranks - 1)
    alone = step.local_s[runs] + step.shared_s[np.minimum(together, len(step.shared_s) - 1)]
    alone[0] = 0.0
    mixed = np.maximum(alone, step.launch_s)
    mixed[0] = 0.0
    return replace(
        table, token_s=mixed[: len(table.token_s)],
        decode_token_s=alone[: len(table.decode_token_s)],
    )  # fmt: skip


def decode_curve_s(table: StepTable, context: float, max_num_seqs: int) -> FloatArray:
    """Return the decode step time by batch, (max_num_seqs,), entry i for batch i + 1."""
    batch = np.arange(1, max_num_seqs + 1)
    if table.roofline is not None:
        cost = table.roofline
        memory = (
            cost.sweep_s[batch] + batch * (context * cost.kv_read_s_per_token)
            + batch * cost.kv_write_s_per_token
        )  # fmt: skip
        compute = batch * (cost.linear_s_per_token + context * cost.attention_s_per_pair)
        return np.asarray(np.maximum(memory, compute) + table.decode_token_s[batch])
    return table.decode_step_s(batch, context)


def prefill_cost_s(
    table: StepTable, workload: Workload, batch: IntArray, budget: int
) -> FloatArray:
    """Return the device time that one mean prompt adds, by the batch it is mixed into, (n,).

    Prompt tokens fill the budget left by the decodes; the step's fixed parts are shared.
    """
    isl = workload.mean_input
    full = min(budget, len(table.token_s) - 1)
    decodes = np.minimum(batch, full - 1)
    slope = (table.token_s[full] - table.decode_token_s[decodes]) / (full - decodes)
    fixed = table.prefill_floor_s + max(table.host_mixed_s - table.host_decode_s, 0.0)
    attention = float(table.prefill_attention(isl))
    return np.asarray(np.maximum(slope, 0.0) * isl + attention + fixed * isl / full)


def prompt_s(table: StepTable, tokens: float, budget: int) -> float:
    """Return the time of one prompt of `tokens` alone on an idle replica in seconds."""
    full = min(budget, len(table.token_s) - 1)
    chunks = max(1, int(np.ceil(tokens / full)))
    per_chunk = table.token_s[int(min(np.ceil(tokens / chunks), full))]
    host = table.host_mixed_s + table.prefill_floor_s + float(table.head_s[1]) / chunks
    return float(chunks * (per_chunk + host) + float(table.prefill_attention(tokens)))
