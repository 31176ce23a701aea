"""One replica in several precisions: what its ledger holds and how long its steps take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sieve.advice.words import Objectives
from sieve.arrays import FloatArray, IntArray, StepTable
from sieve.catalog.architecture import EngineProfile, Gpu, ModelArchitecture
from sieve.memory.formats import kv_bytes, weight_format
from sieve.memory.ledger import Ledger, LedgerInput, ledger
from sieve.perf.base import ServingShape
from sieve.perf.compose import build_step_table

Format = tuple[str, str]
"""Weight format and cache format."""


@dataclass(frozen=True, eq=False)
class Lengths:
    """Prompt and answer lengths of n requests, (n,) each."""

    prompts: IntArray
    answers: IntArray

    def __len__(self) -> int:
        return len(self.prompts)

    def part(self, chosen: IntArray) -> Lengths:
        """Return some of the requests."""
        return Lengths(self.prompts[chosen], self.answers[chosen])

    @cached_property
    def mean_answer(self) -> float:
        """Mean answer in tokens."""
        return float(self.answers.mean())

    @cached_property
    def mean_request(self) -> int:
        """Tokens that a request of mean prompt and answer holds when it ends."""
        return int(np.ceil(self.prompts.mean() + self.answers.mean()))

    @cached_property
    def longest(self) -> int:
        """Tokens of the longest request."""
        return int((self.prompts + self.answers).max())

    @cached_property
    def decode_context(self) -> float:
        """Mean context of a decoding step: requests weigh by the tokens they write."""
        seen = self.prompts + self.answers / 2
        return float((self.answers * seen).sum() / self.answers.sum())


@dataclass(frozen=True, eq=False)
class Replica:
    """What all precisions share.

    Attributes:
        model, gpu, engine: what serves.
        tp: GPUs of the replica.
        max_num_seqs, max_num_batched_tokens: limits of a step.
        utilisation: share of the memory that the engine may use.
        lengths: of the requests.
    """

    model: ModelArchitecture
    gpu: Gpu
    engine: EngineProfile
    tp: int
    max_num_seqs: int
    max_num_batched_tokens: int
    utilisation: float
    lengths: Lengths

    def books(self, formats: Sequence[Format], tokens: Sequence[int]) -> list[Ledger]:
        """Return, for each format, the ledger with requests of these many tokens, (k,) each."""
        return [self._book(*names, np.asarray(tokens, np.int64)) for names in formats]

    def _book(self, weight_dtype: str, kv_cache_dtype: str, tokens: IntArray) -> Ledger:
        size, kv = weight_format(self.model, weight_dtype), kv_bytes(kv_cache_dtype)
        k = len(tokens)

        def count(value: int) -> IntArray:
            return np.full(k, value, np.int64)

        return ledger(
            self.model,
            self.engine,
            LedgerInput(
                memory_bytes=np.full(k, self.gpu.memory_bytes),
                tp=count(self.tp),
                pp=count(1),
                weight_bytes_per_param=np.full(k, size.linear_bytes),
                load_bytes_per_param=np.full(k, size.linear_bytes),
                expert_bytes_per_param=np.full(k, size.expert_bytes),
                kv_bytes_per_element=np.full(k, kv),
                max_num_seqs=count(self.max_num_seqs),
                max_num_batched_tokens=count(self.max_num_batched_tokens),
                block_size=count(int(self.engine.defaults.get("block_size", 16))),
                utilisation=np.full(k, self.utilisation),
                max_model_len=tokens,
                kv_dtype=kv_cache_dtype,
            ),
        )

    def steps(self, weight_dtype: str, kv_cache_dtype: str) -> StepTable:
        """Return the step times in one precision."""
        size = weight_format(self.model, weight_dtype)
        return build_step_table(
            ServingShape(
                model=self.model,
                gpu=self.gpu,
                tp=self.tp,
                pp=1,
                ep=1,
                weight_dtype=size.name,
                kv_cache_dtype=kv_cache_dtype,
                max_num_batched_tokens=max(self.max_num_batched_tokens, self.max_num_seqs),
                max_num_seqs=self.max_num_seqs,
                max_context=self.lengths.longest,
                weight_bytes_per_param=size.linear_bytes,
            )
        )


@dataclass(frozen=True, eq=False)
class Deployment:
    """A replica in one precision, working on some requests.

    Attributes:
        replica: what all precisions share.
        lengths: of the requests that it serves.
        weight_dtype, kv_cache_dtype: the precision.
        kv_tokens: tokens that the cache holds, in requests of the longest length.
        held: requests of mean length that the cache holds.
        table: step times.
    """

    replica: Replica
    lengths: Lengths
    weight_dtype: str
    kv_cache_dtype: str
    kv_tokens: int
    held: int
    table: StepTable

    @property
    def name(self) -> str:
        """The precision in short, as in `fp8/auto`."""
        return f"{self.weight_dtype}/{self.kv_cache_dtype}"

    @property
    def most(self) -> int:
        """Requests at once: those that the cache holds, and `max_num_seqs` at most."""
        return min(self.held, self.replica.max_num_seqs)

    @cached_property
    def decode_s(self) -> FloatArray:
        """Time of a decode step by batch, (max_num_seqs,), entry i for batch i + 1."""
        batch = np.arange(1, self.replica.max_num_seqs + 1)
        return self.table.decode_step_s(batch, self.lengths.decode_context)

    @cached_property
    def prefill_s(self) -> FloatArray:
        """Device time that one prompt adds on average, by the batch it is mixed into."""
        return prefill_work_s(
            self.table,
            self.lengths.prompts,
            len(self.decode_s),
            self.replica.max_num_batched_tokens,
        )

    @cached_property
    def tpot_s(self) -> FloatArray:
        """Time per output token by batch while prompts keep arriving, (max_num_seqs,).

        A request occupies the device for answer x step/batch and its prefill; the share of the
        prefill stretches the steps of all others.
        """
        batch = np.arange(1, len(self.decode_s) + 1)
        return self.decode_s + batch * self.prefill_s / self.lengths.mean_answer

    def usable(self, objectives: Objectives) -> int:
        """Return the batch that cache, `max_num_seqs` and the objectives allow, 0 if none."""
        return min(self.most, self.batch_within(objectives))

    def rate(self, batch: int) -> float:
        """Return the output tokens/s of the replica at a batch, prefill included; 0 for none."""
        return batch / float(self.tpot_s[batch - 1]) if batch else 0.0

    def work_s(self, batch: int) -> float:
        """Return the device time of a mean request at a batch."""
        return self.lengths.mean_answer * float(self.tpot_s[batch - 1]) / batch

    def prompts_s(self, tokens: IntArray) -> FloatArray:
        """Return the time of prompts of these lengths, each alone on an idle replica."""
        return prompt_times_s(self.table, tokens, self.replica.max_num_batched_tokens)

    def batch_within(self, objectives: Objectives) -> int:
        """Return the largest batch that keeps TPOT and E2E on the mean, `max_num_seqs` at most.

        Waiting is left out, so the batch is the most that may be hoped for.
        """
        good = np.ones(len(self.tpot_s), np.bool_)
        if objectives.tpot_s is not None:
            good &= self.tpot_s <= objectives.tpot_s
        if objectives.e2e_s is not None:
            first = float(self.prompts_s(self.lengths.prompts).mean())
            good &= first + (self.lengths.mean_answer - 1) * self.tpot_s <= objectives.e2e_s
        return len(good) if good.all() else int(np.argmin(good))


def deployments(replica: Replica, formats: Sequence[Format]) -> list[Deployment]:
    """Return the replica in each precision, serving all requests."""
    lengths = replica.lengths
    books = replica.books(formats, (lengths.mean_request, lengths.longest))
    return [
        Deployment(
            replica,
            lengths,
            weight_dtype,
            kv_cache_dtype,
            kv_tokens=int(book.concurrency[1] * lengths.longest),
            held=int(book.num_blocks[0] // book.blocks_per_request[0]),
            table=replica.steps(weight_dtype, kv_cache_dtype),
        )
        for (weight_dtype, kv_cache_dtype), book in zip(formats, books, strict=True)
    ]


def serving(deployment: Deployment, parts: Sequence[Lengths]) -> list[Deployment]:
    """Return the deployment as it would serve each part of the requests alone."""
    names = (deployment.weight_dtype, deployment.kv_cache_dtype)
    (book,) = deployment.replica.books([names], [part.mean_request for part in parts])
    held = book.num_blocks // book.blocks_per_request
    return [
        Deployment(
            deployment.replica, part, *names, deployment.kv_tokens, int(h), deployment.table
        )
        for part, h in zip(parts, held, strict=True)
    ]  # fmt: skip


def prefill_work_s(table: StepTable, prompts: IntArray, most: int, budget: int) -> FloatArray:
    """Return the mean device time that prompts add to batches 1 to `most`, (most,).

    As `sieve.perf.capacity.prefill_cost_s`, over all prompts instead of the mean one: attention
    grows faster than the length.
    """
    full = min(budget, len(table.token_s) - 1)
    decodes = np.minimum(np.arange(1, most + 1), full - 1)
    slope = (table.token_s[full] - table.decode_token_s[decodes]) / (full - decodes)
    fixed = table.prefill_floor_s + max(table.host_mixed_s - table.host_decode_s, 0.0)
    mean, attention = float(prompts.mean()), float(table.prefill_attention(prompts).mean())
    return np.asarray(np.maximum(slope, 0.0) * mean + attention + fixed * mean / full)


def prompt_times_s(table: StepTable, tokens: IntArray, budget: int) -> FloatArray:
    """Return the time of each prompt alone, (n,); as `sieve.perf.capacity.prompt_s`."""
    full = min(budget, len(table.token_s) - 1)
    chunks = np.maximum(1, -(-tokens // full))
    per_chunk = table.token_s[np.minimum(-(-tokens // chunks), full)]
    fixed = table.host_mixed_s + table.prefill_floor_s + float(table.head_s[1]) / chunks
    return np.asarray(chunks * (per_chunk + fixed) + table.prefill_attention(tokens), np.float64)
