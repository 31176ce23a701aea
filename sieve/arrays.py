"""The array tables that the simulator works on: requests, step times, results.

All are frozen dataclasses of NumPy arrays; times are float seconds outside the compiled loop and
integer nanoseconds inside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

EVIDENCE_CLASSES = ("measured", "interpolated", "extrapolated", "roofline")
"""Evidence classes, strongest first."""

COMPONENTS = ("tokens", "head", "decode_attention", "prefill_attention", "host")
"""Parts of an iteration's time, in the order of `StepTable` and `SimResult.component_s`."""


_ROWS = 1 << 16
"""Requests whose blocks are worked on at a time, so that few copies of all are made."""


@dataclass(frozen=True, eq=False)
class PrefixBlocks:
    """What the prompts of a trace have in common, as chains of blocks.

    Attributes:
        block_tokens: tokens in a block; the last block of a prompt may hold fewer.
        start: (n + 1,) the blocks of request i are ids[start[i]:start[i + 1]].
        ids: (m,) numbers from 0; two are equal exactly if the blocks and all before them are.
        prompt: (n,) tokens of the prompts.
    """

    block_tokens: int
    start: IntArray
    ids: IntArray
    prompt: IntArray

    def fewest_computed(self) -> IntArray:
        """Return the prompt tokens that even an endless cache leaves to compute, (n,), at least 1.

        A block counts as cached if an earlier request of the list has it.
        """
        first = np.full(int(self.ids.max(initial=-1)) + 1, len(self.prompt), np.int32)
        seen = np.zeros(len(self.prompt), np.int64)
        for low in range(0, len(self.prompt), _ROWS):
            rows = np.arange(low, min(low + _ROWS, len(self.prompt)))
            ids = self.ids[self.start[low] : self.start[rows[-1] + 1]]
            owner = np.repeat(rows, np.diff(self.start[low : rows[-1] + 2])).astype(np.int32)
            new = ids[::-1]  # assigned backwards, so that the first owner stays
            first[new] = np.minimum(first[new], owner[::-1])
            seen[rows] = np.bincount(owner[first[ids] < owner] - low, minlength=len(rows))
        return np.asarray(np.maximum(self.prompt - seen * self.block_tokens, 1), np.int64)

    def take(self, rows: IntArray) -> PrefixBlocks:
        """Return the blocks of the requests with the indices `rows`."""
        if np.array_equal(rows, np.arange(len(self.prompt))):
            return self
        count = np.diff(self.start)[rows]
        start = np.concatenate(([0], np.cumsum(count))).astype(np.int64)
        ids = np.empty(int(start[-1]), np.int64)
        for low in range(0, len(rows), _ROWS):
            end = min(low + _ROWS, len(rows))
            part = np.arange(start[low], start[end])
            part += np.repeat(self.start[rows[low:end]] - start[low:end], count[low:end])
            ids[start[low] : start[end]] = self.ids[part]
        return PrefixBlocks(self.block_tokens, start, ids, self.prompt[rows])


def chain_starts(previous: IntArray) -> IntArray:
    """Return the start of each chain's links, (n,): itself where `previous` is -1.

    Each round doubles the steps taken, so a chain of n links takes log2 n rounds.

    Args:
        previous: (n,) index of the link before, -1 where there is none; without cycles.
    """
    place = np.where(previous >= 0, previous, np.arange(len(previous)))
    while (place[place] != place).any():
        place = place[place]
    return np.asarray(place, np.int64)


@dataclass(frozen=True, eq=False)
class Requests:
    """Traffic, one entry a request, sorted by arrival.

    Attributes:
        arrival_s: (n,) seconds since the first request; all 0 for a closed loop.
        input_tokens: (n,) prompt lengths, at least 1.
        output_tokens: (n,) answer lengths, at least 1; answers end exactly there.
        closed_loop_users: number of users who each keep one request in flight, or None for
            open-loop traffic.
        source: where the traffic comes from, for reports.
        sha256: hash of the file or of the drawn traffic's definition.
        notes: what was assumed or left out while reading.
        prefix: which prompts begin alike; None: nothing is known to be shared.
        previous: (n,) index of the turn of the same session before, -1 where there is none. Such a
            request arrives `delay_s` after that turn's answer; its `arrival_s` is the session's.
        delay_s: (n,) seconds, read where there is a previous turn.
        front_end_s: (n,) seconds that a request spends outside the engine before its first token;
            they add to TTFT and E2E. None: nothing is added.
        priority: (n,) the smaller is the more urgent; None: the traffic does not say. Classes and
            pools are told apart by it; engines replay first come, first served.
        session: (n,) number of the conversation that a request belongs to, -1 for none; None: the
            source knows no sessions.
        line: (n,) line or row of the source file that a request was read from.
        num_failed: requests of the source without an answer; they are left out.
        source_format: format of the source file; empty for what is drawn.
    """

    arrival_s: FloatArray
    input_tokens: IntArray
    output_tokens: IntArray
    closed_loop_users: int | None = None
    source: str = ""
    sha256: str = ""
    notes: tuple[str, ...] = ()
    prefix: PrefixBlocks | None = None
    previous: IntArray | None = None
    delay_s: FloatArray | None = None
    front_end_s: FloatArray | None = None
    priority: IntArray | None = None
    session: IntArray | None = None
    line: IntArray | None = None
    num_failed: int = 0
    source_format: str = ""

    def __len__(self) -> int:
        return len(self.arrival_s)

    def take(self, rows: IntArray) -> Requests:
        """Return the requests with the rising indices `rows`.

        A turn whose previous turn is not among them begins a session.
        """
        previous = self.previous
        if previous is not None:
            place = np.full(len(self) + 1, -1, np.int64)
            place[rows] = np.arange(len(rows))
            previous = place[previous[rows]]
        return replace(
            self,
            arrival_s=self.arrival_s[rows],
            input_tokens=self.input_tokens[rows],
            output_tokens=self.output_tokens[rows],
            prefix=None if self.prefix is None else self.prefix.take(rows),
            previous=previous,
            delay_s=None if self.delay_s is None else self.delay_s[rows],
            front_end_s=None if self.front_end_s is None else self.front_end_s[rows],
            priority=None if self.priority is None else self.priority[rows],
            session=None if self.session is None else self.session[rows],
            line=None if self.line is None else self.line[rows],
        )

    @property
    def rate_per_s(self) -> float:
        """Mean arrival rate in requests per second; inf for a burst, nan for a closed loop."""
        if self.closed_loop_users is not None:
            return float("nan")
        span = float(self.arrival_s[-1] - self.arrival_s[0])
        return (len(self) - 1) / span if span > 0 else float("inf")


@dataclass(frozen=True, eq=False)
class RooflineCost:
    """The plain iteration time of the sizing specification 9.7: max(memory, compute).

    memory = sweep_s[n] + read tokens x kv_read + n x kv_write
    compute = n x linear + attended pairs x attention

    with n batched tokens, the cached tokens that decoders and continued prompts read, and the
    (query, key) pairs attended.

    Attributes:
        sweep_s: (max_num_batched_tokens + 1,) time to read the weights that n tokens visit.
        kv_read_s_per_token: time to read one cached token.
        kv_write_s_per_token: time to write one cached token.
        linear_s_per_token: matrix work of one token.
        attention_s_per_pair: attention work of one (query, key) pair.
    """

    sweep_s: FloatArray
    kv_read_s_per_token: float
    kv_write_s_per_token: float
    linear_s_per_token: float
    attention_s_per_pair: float


@dataclass(frozen=True, eq=False)
class LockStep:
    """What a step of one data-parallel rank shares with those of the other ranks of its group.

    With every token count within the captured sizes all ranks run the size of the largest; else
    each runs its own. A rank without work runs one token.

    Attributes:
        ranks: data parallel size, at least 2.
        local_s: (n,) work on a rank's own tokens, by the tokens that it runs; entry 0 is 0.
        shared_s: (ranks * (n - 1) + 1,) experts and their exchange, by the tokens of all ranks.
        graph_size: (g + 1,) int64, the captured size that holds a number of tokens, up to g.
        launch_s: least time of a step with prompt tokens without attention, head and host.
    """

    ranks: int
    local_s: FloatArray
    shared_s: FloatArray
    graph_size: IntArray
    launch_s: float


@dataclass(frozen=True, eq=False)
class StepTable:
    """The time of one iteration of one replica, as arrays, for all its pipeline stages together.

    An iteration with P prompt tokens and D decoding requests costs

        tokens(P + D) + head(sampled) + decode_attention(D, mean context of the decoders)
        + sum over prompts [prefill_attention(past + chunk) - prefill_attention(past)] + host

    where `tokens` is `decode_token_s[D]` when P = 0 (padded to the graph size) and
    `token_s[P + D]` otherwise, and host is `host_decode_s` or `host_mixed_s`.

    Attributes:
        token_s: (max_num_batched_tokens + 1,) token-wise work: GEMMs, experts, element-wise,
            collectives, fixed cost per layer; entry 0 is 0.
        decode_token_s: (max_num_seqs + 1,) the same for a decode-only step.
        head_s: (max_num_seqs + 1,) LM head and sampling by sequences that yield a token.
        decode_batch: (nb,) rising batch sizes of `decode_attention_s`, first 1.
        decode_context: (nc,) rising mean context lengths of `decode_attention_s`.
        decode_attention_s: (nb, nc) attention of a whole decoding batch; bilinear between,
            the last segment continued above, scaled by batch below 1.
        prefill_length: (np,) rising lengths, first 0.
        prefill_attention_s: (np,) attention over a prompt of that length at batch 1, 0 at 0;
            linear between, the last segment continued above.
        prefill_floor_s: added once to a step that carries any prompt token.
        host_decode_s: host time of a decode-only step.
        host_mixed_s: host time of a step with prompt tokens.
        pp: pipeline stages; a stage takes 1/pp of the step.
        pp_transfer_s: time of one send between stages.
        roofline: when given, max(memory, compute) takes the place of all attention terms and of
            the GEMM part; `token_s` and `decode_token_s` then hold collectives only.
        lock_step: when given, the table is that of one of several data-parallel ranks; token-wise
            work is then that of a step in which all ranks have equally many tokens.
        component_evidence: {component of COMPONENTS: {evidence class: share}}, shares sum to 1.
        notes: assumptions made while building, for the report.
    """

    token_s: FloatArray
    decode_token_s: FloatArray
    head_s: FloatArray
    decode_batch: FloatArray
    decode_context: FloatArray
    decode_attention_s: FloatArray
    prefill_length: FloatArray
    prefill_attention_s: FloatArray
    prefill_floor_s: float
    host_decode_s: float
    host_mixed_s: float
    pp: int = 1
    pp_transfer_s: float = 0.0
    roofline: RooflineCost | None = None
    lock_step: LockStep | None = None
    component_evidence: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def decode_attention(self, batch: npt.ArrayLike, context: npt.ArrayLike) -> FloatArray:
        """Return the decode attention in seconds for batches and mean contexts (broadcast)."""
        batch_, context_ = np.broadcast_arrays(
            np.asarray(batch, np.float64), np.asarray(context, np.float64)
        )
        i = _segment(self.decode_batch, batch_)
        j = _segment(self.decode_context, context_)
        u = _fraction(self.decode_batch, i, batch_)
        v = np.maximum(_fraction(self.decode_context, j, context_), 0.0)
        i2 = np.minimum(i + 1, len(self.decode_batch) - 1)
        j2 = np.minimum(j + 1, len(self.decode_context) - 1)
        table = self.decode_attention_s
        low = table[i, j] * (1 - v) + table[i, j2] * v
        high = table[i2, j] * (1 - v) + table[i2, j2] * v
        return np.asarray(low * (1 - u) + high * u, np.float64)

    def prefill_attention(self, length: npt.ArrayLike) -> FloatArray:
        """Return the attention in seconds over prompts of `length` tokens, one prompt each."""
        x = np.asarray(length, np.float64)
        i = _segment(self.prefill_length, x)
        i2 = np.minimum(i + 1, len(self.prefill_length) - 1)
        u = _fraction(self.prefill_length, i, x)
        y = self.prefill_attention_s
        return np.asarray(y[i] * (1 - u) + y[i2] * u, np.float64)

    def decode_step_s(self, batch: npt.ArrayLike, context: npt.ArrayLike) -> FloatArray:
        """Return the time of decode-only steps in seconds (`batch` whole, within max_num_seqs)."""
        b = np.asarray(batch, np.int64)
        return np.asarray(
            self.decode_token_s[b] + self.head_s[b] + self.decode_attention(b, context)
            + self.host_decode_s,
            np.float64,
        )  # fmt: skip


def _segment(grid: FloatArray, x: FloatArray) -> IntArray:
    """Return the index of the grid segment that holds or, outside, is nearest to each x."""
    last = max(len(grid) - 2, 0)
    return np.clip(np.searchsorted(grid, x, side="right") - 1, 0, last).astype(np.int64)


def _fraction(grid: FloatArray, i: IntArray, x: FloatArray) -> FloatArray:
    """Return the position of x in segment i, above 1 beyond the grid's end."""
    if len(grid) == 1:
        return np.zeros_like(x)
    return np.asarray((x - grid[i]) / (grid[i + 1] - grid[i]), np.float64)


@dataclass(frozen=True, eq=False)
class SimResult:
    """What one replay returns; per-request arrays in the order of its `Requests`.

    Attributes:
        status: "" when every request was answered, else why not (`request_exceeds_cache`).
        arrival_s: (n,) when the request entered the system (closed loop: when its user sent it).
        scheduled_s: (n,) start of the first iteration that worked on the request; nan if never.
        first_token_s: (n,) nan if never.
        finish_s: (n,) nan if never.
        num_preemptions: (n,).
        cached_tokens: (n,) prompt tokens found in the prefix cache at the first admission.
        num_steps: iterations that scheduled something, all replicas together.
        num_request_steps: scheduled requests summed over iterations.
        component_s: (5,) time by component of COMPONENTS, summed over iterations.
        peak_blocks: most KV blocks in use at once in any replica.
        peak_batch: most requests scheduled in one iteration.
        peak_tokens: most tokens scheduled in one iteration.
        peak_running: most requests that held a seat of one replica at once.
        short_of_blocks: whether a waiting request was ever refused for want of blocks.
        makespan_s: first arrival to last finish.
        gaps: (GAP_BINS,) gaps between tokens, counted in the log-spaced bins of the kernel.
        samples: (k, 4) a thinned series of the first replica: seconds, requests running, requests
            waiting, KV blocks in use (of data-parallel ranks: all together, blocks in the mean).
        num_idle_steps: steps that data-parallel ranks without work ran along with the others.
        steps: every iteration, the columns of `sieve.sim.steps.COLUMNS`; None if not asked for.
    """

    status: str
    arrival_s: FloatArray
    scheduled_s: FloatArray
    first_token_s: FloatArray
    finish_s: FloatArray
    num_preemptions: IntArray
    cached_tokens: IntArray
    num_steps: int
    num_request_steps: int
    component_s: FloatArray
    peak_blocks: int
    peak_batch: int
    peak_tokens: int
    peak_running: int
    short_of_blocks: bool
    makespan_s: float
    gaps: IntArray
    samples: FloatArray
    steps: IntArray | None = None
    num_idle_steps: int = 0
