"""Whether two pools split by prompt length could beat one: a hypothesis to simulate."""

from __future__ import annotations

from typing import Final

import numpy as np

from sieve.advice.deployment import Deployment, serving
from sieve.advice.service import Waits
from sieve.advice.words import Advice, Figure, Objectives, change, ms
from sieve.arrays import FloatArray, IntArray

LONG_SHARE: Final = 0.1
"""Share of the prompts, the longest, whose share of the work is told; it decides nothing."""


def pools(base: Deployment, objectives: Objectives) -> Advice:
    """Return whether a split by prompt length promises anything, with what a split would cost."""
    order = np.argsort(base.lengths.prompts, kind="stable")
    prompts = base.lengths.prompts[order]
    alone = base.prompts_s(prompts)
    waits = Waits(base, objectives.ttft_s)
    figures = [*waits.figures(), *_long_share(base, alone)]
    words = [
        f"The longest tenth of the prompts takes {_percent(figures[-1].value)} of the prefill "
        f"work; a prompt of the 99th percentile, {waits.tokens[1]:,} tokens, takes "
        f"{ms(waits.times_s[1])}."
    ]

    def advice(*more: str) -> Advice:
        text = " ".join((*words, *more))
        return Advice("pools", text, tuple(figures), "hypothesis", base.table.notes)

    size = _short_pool(base, prompts, order, alone, waits)
    if size is None:
        return advice(
            "Two pools do not help: no split keeps the first token of short prompts within the "
            "objective."
            if waits.conflict
            else "One pool: all prompts are of one length."
        )
    parts = [base.lengths.part(order[:size]), base.lengths.part(order[size:])]
    short, long = serving(base, parts)
    limit, share = int(prompts[size - 1]), size / len(prompts)
    figures += [
        Figure("prompts of the short pool, at most", limit, "tokens", _rule(waits)),
        Figure("requests of the short pool", share, "share", "the lengths given"),
    ]
    batches = [d.usable(objectives) for d in (base, short, long)]
    if min(batches) < 1:
        return advice(
            f"Split at {limit:,} tokens, a pool would have no batch that fits its cache and keeps "
            "the objectives: one pool."
        )
    one, short_s, long_s = (d.work_s(b) for d, b in zip((base, short, long), batches, strict=True))
    two = share * short_s + (1 - share) * long_s
    work = share * short_s / two
    busy = float(alone[size:].sum()) / len(alone) / one
    figures += [
        Figure(
            "time with a longer prompt in prefill", min(busy, 1.0), "share",
            f"step table, {base.name}, one pool under full load",
        ),
        Figure("GPUs of the short pool", work, "share", "device time of its requests"),
        Figure("batch of the short pool", batches[1], "requests", _batch_rule(short)),
        Figure("batch of the long pool", batches[2], "requests", _batch_rule(long)),
        Figure(
            "device time, two pools to one", two / one, "ratio",
            f"step table, {base.name}, each at its own batch and mean context",
        ),
    ]  # fmt: skip
    return advice(
        f"Split at {limit:,} tokens, {_percent(share)} of the requests would go to a short pool "
        f"with {_percent(work)} of the GPUs, at {batches[1]:,} requests a replica for "
        f"{batches[2]:,} in the long one; together {change(two, one)} of device time.",
        _verdict(waits, short, busy, two / one),
        "Not counted: two pools cannot lend each other GPUs, and replicas come in whole numbers. "
        "Simulate both before you choose.",
    )


def _verdict(waits: Waits, short: Deployment, busy: float, ratio: float) -> str:
    if waits.conflict and waits.ttft_s is not None:
        apart = sum(Waits(short, waits.ttft_s).times_s)
        return (
            "Two pools could beat one: a median prompt behind a p99 one has its first token after "
            f"{ms(apart)} in the short pool, after {ms(sum(waits.times_s))} in one pool "
            f"({ms(waits.ttft_s)} allowed), where a prompt of the long pool is in prefill "
            f"{_percent(min(busy, 1.0))} of the time under full load."
        )
    if waits.tight:
        return "Two pools do not help: a median prompt misses TTFT even behind one like it."
    if waits.ttft_s is not None:
        return (
            "No objective asks for two pools: even behind a p99 prompt a median one has its first "
            f"token after {ms(sum(waits.times_s))} of {ms(waits.ttft_s)}."
        )
    if ratio < 1:
        return "Two pools could beat one by that device time; no objective asks for them."
    return "Nothing speaks for two pools: they need no less device time."


def _rule(waits: Waits) -> str:
    if waits.conflict:
        return "the most prompts of which a median one behind a p99 one keeps TTFT"
    return "half of the device time on either side, as near as the lengths allow"


def _batch_rule(deployment: Deployment) -> str:
    tokens = deployment.lengths.mean_request
    return f"memory ledger, {tokens:,} tokens each, and the objectives"


def _short_pool(
    base: Deployment, prompts: IntArray, order: IntArray, alone: FloatArray, waits: Waits
) -> int | None:
    """Return how many of the shortest prompts form the short pool; None if no split is one.

    Where a median prompt misses TTFT behind a long one: as many as keep it; else half of the
    device time. Equal prompts stay together.
    """
    sizes = np.flatnonzero(np.diff(prompts) > 0) + 1
    if not len(sizes):
        return None
    if not waits.conflict or waits.ttft_s is None:
        step = float(base.decode_s[base.most - 1]) / base.most
        work = np.cumsum(alone + base.lengths.answers[order] * step)
        return int(sizes[np.argmin(np.abs(work[sizes - 1] - work[-1] / 2))])
    # Times rise with the length, so percentiles of a part are those of its prompts.
    median = alone[np.ceil(0.5 * (sizes - 1)).astype(np.int64)]
    tail = alone[np.ceil(0.99 * (sizes - 1)).astype(np.int64)]
    good = np.flatnonzero(median + tail <= waits.ttft_s)
    return int(sizes[good[-1]]) if len(good) else None


def _long_share(base: Deployment, alone: FloatArray) -> list[Figure]:
    count = max(1, round(LONG_SHARE * len(alone)))
    return [
        Figure("the longest prompts", count / len(alone), "share", "the lengths given"),
        Figure(
            "prefill work of the longest prompts", float(alone[-count:].sum() / alone.sum()),
            "share", f"step table, {base.name}, every prompt alone",
        ),
    ]  # fmt: skip


def _percent(value: float | None) -> str:
    return f"{100 * (value or 0):.0f} %"
