"""Latency first, throughput first, or both: which limit stops the batch decides."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sieve.advice.deployment import Deployment
from sieve.advice.words import Advice, Figure, Objectives, ms, requests


@dataclass(frozen=True, eq=False)
class Waits:
    """First tokens of a median prompt: alone, behind its like, behind a 99th percentile.

    Attributes:
        deployment: what serves.
        ttft_s: objective, None if there is none.
    """

    deployment: Deployment
    ttft_s: float | None

    @cached_property
    def tokens(self) -> tuple[int, int]:
        """Median and 99th percentile of the prompts."""
        p50, p99 = np.percentile(self.deployment.lengths.prompts, (50, 99))
        return int(np.ceil(p50)), int(np.ceil(p99))

    @cached_property
    def times_s(self) -> tuple[float, float]:
        """Time of the median prompt and of that of the 99th percentile, each alone."""
        alone = self.deployment.prompts_s(np.asarray(self.tokens, np.int64))
        return float(alone[0]), float(alone[1])

    @property
    def tight(self) -> bool:
        """Whether a median prompt misses the objective even behind no more than its like."""
        return self.ttft_s is not None and 2 * self.times_s[0] > self.ttft_s

    @property
    def conflict(self) -> bool:
        """Whether a median prompt meets the objective behind its like but not behind a long one."""
        return self.ttft_s is not None and 2 * self.times_s[0] <= self.ttft_s < sum(self.times_s)

    def figures(self) -> tuple[Figure, ...]:
        """Return the two times."""
        name = self.deployment.name
        return tuple(
            Figure(f"{which} prompt alone", time, "s", f"step table, {name}, {tokens:,} tokens")
            for which, time, tokens in zip(("p50", "p99"), self.times_s, self.tokens, strict=True)
        )


def service(base: Deployment, objectives: Objectives) -> Advice:
    """Return which of latency and throughput comes first in this case, and the settings for it."""
    allowed = base.batch_within(objectives)
    full_s = float(base.tpot_s[base.most - 1])
    waits = Waits(base, objectives.ttft_s)
    figures = [
        Figure(
            "batch of cache and max_num_seqs", base.most, "requests",
            f"memory ledger, {base.name}, {base.lengths.mean_request:,} tokens each",
        ),
        Figure(
            "batch within TPOT and E2E", allowed, "requests",
            f"step table, {base.name}, under full load, prefill included, without waiting",
        ),
        Figure(
            "time per token at the full batch", full_s, "s",
            f"step table, {base.name}, batch {base.most:,}, under full load, prefill included",
        ),
        *waits.figures(),
    ]  # fmt: skip
    limited = allowed < base.most
    words = []
    if waits.conflict:
        head = "Mixed"
        words.append(_mixed_words(waits))
    elif limited or waits.tight:
        head = "Latency first"
    else:
        head = "Throughput first"
        words.append(_free_words(base, full_s, objectives, waits))
    if limited:
        words.append(_limit_words(base, allowed, full_s, objectives))
    if waits.tight:
        words.append(_tight_words(waits))
    words.append(_settings(base, min(allowed, base.most), objectives.tpot_s, figures))
    text = f"{head}. {' '.join(words)}"
    return Advice("service", text, tuple(figures), "estimate", base.table.notes)


def _mixed_words(waits: Waits) -> str:
    p50, p99 = waits.tokens
    return (
        f"A median prompt of {p50:,} tokens has its first token after "
        f"{ms(2 * waits.times_s[0])} behind its like, but after {ms(sum(waits.times_s))} behind "
        f"one of {p99:,} tokens (p99), over the {ms(waits.ttft_s or 0)} allowed. Short requests "
        "need latency, long ones throughput."
    )


def _tight_words(waits: Waits) -> str:
    alone, limit = waits.times_s[0], waits.ttft_s or 0
    words = f"A median prompt of {waits.tokens[0]:,} tokens takes {ms(alone)} on an idle replica"
    if alone > limit:
        return (
            f"{words}, over the {ms(limit)} allowed: only more GPUs a replica or faster ones mend "
            "that."
        )
    return f"{words} of {ms(limit)} allowed, so it misses TTFT behind a single one like it."


def _free_words(base: Deployment, full_s: float, objectives: Objectives, waits: Waits) -> str:
    held = requests(base.most)
    if objectives == Objectives():
        return f"No objective stops the batch; the replica holds {held}."
    words = f"The {held} that the replica holds keep every objective"
    if objectives.tpot_s is not None:
        words += f": {ms(full_s)} a token of {ms(objectives.tpot_s)} allowed"
    if waits.ttft_s is not None:
        words += (
            f"; a median prompt behind a p99 one has its first token after "
            f"{ms(sum(waits.times_s))} of {ms(waits.ttft_s)}"
        )
    return f"{words}."


def _limit_words(base: Deployment, allowed: int, full_s: float, objectives: Objectives) -> str:
    limits = [
        f"{name} {ms(value)}"
        for name, value in (("TPOT", objectives.tpot_s), ("E2E", objectives.e2e_s))
        if value is not None
    ]
    keep = f"only {allowed:,} keep" if allowed else "not even one keeps"
    return (
        f"The replica holds {requests(base.most)}, but {keep} {' and '.join(limits)} under full "
        f"load: with {base.most:,} a token takes {ms(full_s)}, prefill included."
    )


def _settings(base: Deployment, batch: int, tpot_s: float | None, figures: list[Figure]) -> str:
    if batch < 1:
        return "No setting of this replica meets the objectives: change GPU, TP or precision."
    text = f"Start at max_num_seqs {batch:,}"
    if tpot_s is None:
        return f"{text} and the engine's token budget."
    budget = largest_budget(base, batch, tpot_s)
    figures.append(
        Figure(
            "token budget within TPOT", budget, "tokens",
            f"step table, {base.name}: {batch:,} decodes and the last chunk of a p99 prompt",
        )
    )  # fmt: skip
    if budget is None:
        return f"{text}; any step with a prompt chunk exceeds {ms(tpot_s)}."
    if budget >= base.replica.max_num_batched_tokens:
        return f"{text}; steps with a full token budget of {budget:,} stay within TPOT too."
    return (
        f"{text}; a token budget up to {budget:,} keeps steps with a prompt chunk within "
        f"{ms(tpot_s)} too, a larger one stalls answers but reads prompts faster."
    )


def largest_budget(base: Deployment, batch: int, tpot_s: float) -> int | None:
    """Return the largest `max_num_batched_tokens` whose fullest step takes at most `tpot_s`.

    The step holds `batch` decodes and the last chunk of a prompt of the 99th percentile; None if
    even one prompt token is too many.
    """
    table, limit = base.table, base.replica.max_num_batched_tokens
    longest = int(np.ceil(np.percentile(base.lengths.prompts, 99)))
    chunk = np.arange(1, min(limit - batch, longest) + 1)
    if not len(chunk):
        return None
    attention = table.prefill_attention(longest) - table.prefill_attention(longest - chunk)
    fixed = (
        table.head_s[min(batch + 1, len(table.head_s) - 1)] + table.prefill_floor_s
        + float(table.decode_attention(batch, base.lengths.decode_context)) + table.host_mixed_s
    )  # fmt: skip
    good = table.token_s[batch + chunk] + attention + fixed <= tpot_s
    if good.all():
        return limit
    kept = int(np.argmin(good))
    return batch + kept if kept else None
