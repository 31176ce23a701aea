"""What quantising weights or cache buys in this case, and what no figure says about it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sieve.advice.deployment import Deployment, Format
from sieve.advice.words import Advice, Figure, Objectives, change, format_name, ms, requests
from sieve.catalog.architecture import ModelArchitecture
from sieve.memory.formats import kv_bytes, weight_format

SAME: Final = 1e-9
"""Rates nearer than this, relative, are equal."""


def smaller_formats(
    model: ModelArchitecture, weight_dtype: str, kv_cache_dtype: str
) -> list[Format]:
    """Return the formats that take less memory than the given one, cautious ones first."""
    size = weight_format(model, weight_dtype)
    at_16_bits = kv_bytes(kv_cache_dtype) > kv_bytes("fp8")
    weights = [
        name
        for name in ("fp8", "int4")
        if weight_format(model, name).linear_bytes < size.linear_bytes
        and weight_format(model, name).expert_bytes < size.expert_bytes
    ]
    found = [(name, kv_cache_dtype) for name in weights]
    if at_16_bits:
        found.append((weight_dtype, "fp8"))
        found += [(name, "fp8") for name in weights[:1]]
    return found


def quantising(
    base: Deployment, others: Sequence[Deployment], objectives: Objectives
) -> list[Advice]:
    """Return what each other precision buys against the base."""
    return [_one(base, other, objectives) for other in others]


def _one(base: Deployment, other: Deployment, objectives: Objectives) -> Advice:
    name = format_name(other.weight_dtype, other.kv_cache_dtype)
    figures = [*_memory(base, "now"), *_memory(other, "then")]
    notes = other.table.notes
    if other.most < 1:
        text = f"{name}: still does not hold one mean request beside the weights."
        return Advice("quantise", text, tuple(figures), "estimate", notes)
    if base.most < 1:
        step = float(other.decode_s[other.most - 1])
        figures.append(_step("decode step then, own batch", step, other, other.most))
        text = (
            f"{name}: makes it fit: {other.kv_tokens:,} tokens of cache hold "
            f"{requests(other.held)}; a decode step of {other.most:,} takes {ms(step)}."
        )
        return Advice("quantise", text, tuple(figures), "estimate", notes)
    same, new = (float(d.decode_s[base.most - 1]) for d in (base, other))
    own = float(other.decode_s[other.most - 1])
    now, then = (d.usable(objectives) for d in (base, other))
    before, after = base.rate(now), other.rate(then)
    figures += [
        _step("decode step now", same, base, base.most),
        _step("decode step then, same batch", new, other, base.most),
        _step("decode step then, own batch", own, other, other.most),
        _rate("rate now", before, base, now),
        _rate("rate then", after, other, then),
    ]
    text = (
        f"{name}: {other.kv_tokens:,} tokens of cache for {base.kv_tokens:,} "
        f"({change(other.kv_tokens, base.kv_tokens)}); {requests(other.held)} for "
        f"{base.held:,}. A decode step of {base.most:,} takes {ms(new)} for {ms(same)} "
        f"({change(new, same)})"
    )
    if other.most != base.most:
        text += f"; one of {other.most:,}, which then fit, {ms(own)}"
    text += f". {_outcome(now, then, before, after, bound=_stops(other, then))}"
    return Advice("quantise", text, tuple(figures), "estimate", notes)


def _outcome(now: int, then: int, before: float, after: float, *, bound: str) -> str:
    if not now and not then:
        return "No batch keeps the objectives either way."
    if not now:
        return f"A batch of {then:,} keeps the objectives, where none did."
    head = f"A replica writes {after:,.0f} tokens/s for {before:,.0f} ({change(after, before)})"
    if after <= before * (1 + SAME):
        return f"{head}, so it buys nothing here."
    return f"{head} at {then:,} requests for {now:,}{bound}."


def _stops(deployment: Deployment, batch: int) -> str:
    if batch == deployment.held:
        return ""
    limit = deployment.replica.max_num_seqs
    return f" (max_num_seqs {limit:,} stops it)" if batch == limit else " (the objectives stop it)"


def _memory(deployment: Deployment, when: str) -> list[Figure]:
    replica = deployment.replica
    book = f"memory ledger of {replica.engine.name} {replica.engine.version}, {deployment.name}"
    longest, mean = deployment.lengths.longest, deployment.lengths.mean_request
    return [
        Figure(
            f"cache tokens {when}", deployment.kv_tokens, "tokens",
            f"{book}, in requests of {longest:,} tokens",
        ),
        Figure(
            f"mean requests {when}", deployment.held, "requests",
            f"{book}, {mean:,} tokens each",
        ),
    ]  # fmt: skip


def _step(name: str, value: float, deployment: Deployment, batch: int) -> Figure:
    context = deployment.lengths.decode_context
    source = f"step table, {deployment.name}, batch {batch:,}, context {context:,.0f}"
    return Figure(name, value, "s", source)


def _rate(name: str, value: float, deployment: Deployment, batch: int) -> Figure:
    source = f"step table, {deployment.name}, batch {batch:,}, prefill of the prompts included"
    return Figure(name, value, "tokens/s", source)


def quality(base: Deployment, others: Sequence[Deployment], objectives: Objectives) -> Advice:
    """Return the warning that none of the figures is about answers."""
    now = base.usable(objectives)
    before = base.rate(now)
    rates = [(d, d.usable(objectives)) for d in others]
    figures = [_rate("rate now", before, base, now)]
    figures += [_rate(f"rate of {d.name}", d.rate(batch), d, batch) for d, batch in rates]
    idle = [
        format_name(d.weight_dtype, d.kv_cache_dtype)
        for d, batch in rates
        if d.rate(batch) <= before * (1 + SAME)
    ]
    text = (
        "No figure here is about the quality of answers. At equal width a quantised cache costs "
        "more quality than quantised weights, so quantise weights first; of choices that serve "
        "equally, take the higher precision. Compare answers on your own tasks before you switch."
    )
    if idle:
        text += f" Without gain in this case: {'; '.join(idle)}."
    return Advice("quality", text, tuple(figures), "warning")
