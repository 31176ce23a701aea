"""The memory ledger of deployments: columns for it, and what its figures mean together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final

import numpy as np

from sieve.fit_of.configuration import Configuration
from sieve.memory.cache import CacheLayout, cache_layouts
from sieve.memory.formats import kv_bytes
from sieve.memory.ledger import Ledger, LedgerInput, ledger, stage_ledgers

_SAMPLER_COPY_BYTES: Final = 4  # one float32 copy of the logits when the sampler warms up


@dataclass(frozen=True)
class StageBook:
    """The ledger of one pipeline stage on one rank, bytes."""

    stage: int
    weight_bytes: float
    activation_bytes: float
    non_torch_bytes: float
    graph_bytes: float
    kv_bytes: float
    block_bytes: float
    num_blocks: int


def longest_len(configuration: Configuration) -> int:
    """Return the longest `max_model_len` that fits the cache, 0 if none; at most the model's.

    Where the model states no limit, at most the length asked for.
    """
    most = configuration.model.max_position_embeddings or configuration.max_model_len
    low, high = 0, most
    while low < high:  # 32 lengths at a time, the ledger takes columns
        tried = sorted({*np.linspace(low + 1, high, 32).round().astype(int).tolist()})
        book = ledger_of([replace(configuration, max_model_len=size) for size in tried])
        good = [size for size, slack in zip(tried, book.slack_bytes, strict=True) if slack >= 0]
        bad = [size for size, slack in zip(tried, book.slack_bytes, strict=True) if slack < 0]
        low = max(good, default=low)
        high = min(bad) - 1 if bad else low
    return low


def _columns(configurations: Sequence[Configuration]) -> LedgerInput:
    def column(name: str) -> Any:
        return np.array([getattr(c, name) for c in configurations], np.int64)

    linear = np.array([c.weights.linear_bytes for c in configurations], np.float64)
    return LedgerInput(
        memory_bytes=np.array([c.gpu.memory_bytes for c in configurations], np.float64),
        tp=column("tp"),
        pp=column("pp"),
        ep=column("ep"),
        weight_bytes_per_param=linear,
        load_bytes_per_param=linear,
        expert_bytes_per_param=np.array(
            [c.weights.expert_bytes for c in configurations], np.float64
        ),
        kv_bytes_per_element=np.array(
            [kv_bytes(c.kv_cache_dtype) for c in configurations], np.float64
        ),
        max_num_seqs=column("max_num_seqs"),
        max_num_batched_tokens=column("max_num_batched_tokens"),
        max_model_len=column("max_model_len"),
        block_size=column("block_size"),
        utilisation=np.array([c.gpu_memory_utilization for c in configurations], np.float64),
        enforce_eager=np.array([c.enforce_eager for c in configurations], np.bool_),
        kv_dtype=configurations[0].kv_cache_dtype,
        dcp=column("dcp"),
        dp=column("dp"),
        partition=configurations[0].pp_layer_partition,
        extra_bytes=_extra(configurations),
    )


def _extra(configurations: Sequence[Configuration]) -> dict[str, Any]:
    """Return what start-up logs showed beyond the prediction, by term of the ledger.

    What a log does not take apart is added to non-torch.
    """
    if not any(c.corrections for c in configurations):
        return {}
    found = [c.correction for c in configurations]
    terms = [correction.terms if correction else {} for correction in found]
    out = {
        name: np.array([part.get(name, 0.0) for part in terms], np.float64)
        for name in ("activation_bytes", "non_torch_bytes", "graph_bytes")
    }
    out["non_torch_bytes"] += [part.get("unsplit_bytes", 0.0) for part in terms]
    return out


def ledger_of(configurations: Sequence[Configuration]) -> Ledger:
    """Return the ledger of several deployments of one model and engine."""
    first = configurations[0]
    return ledger(first.model, first.engine, _columns(configurations))


def stages_of(configuration: Configuration) -> tuple[StageBook, ...]:
    """Return the ledger of each stage of one deployment."""
    if configuration.engine.name == "reference":
        books = [ledger_of([configuration])]
    else:
        given = _columns([configuration])
        books = list(stage_ledgers(configuration.model, configuration.engine, given))
    names = [field.name for field in fields(StageBook)]
    return tuple(
        StageBook(**{name: getattr(book, name)[0].item() for name in names}) for book in books
    )


def layouts_of(configuration: Configuration) -> tuple[CacheLayout, ...]:
    """Return how the cache of each stage is cut."""
    c = configuration
    return cache_layouts(
        c.model, tp=c.tp, pp=c.pp, kv_bytes=kv_bytes(c.kv_cache_dtype), block_size=c.block_size,
        kv_dtype=c.kv_cache_dtype, rules=tuple(sorted(c.engine.cache.items())), dcp=c.dcp,
        partition=c.pp_layer_partition if len(c.pp_layer_partition) == c.pp else (),
    )  # fmt: skip


def printed_tokens(
    configuration: Configuration, layout: CacheLayout, blocks: int, concurrency: float
) -> int:
    """Return the cache in tokens as this version's log prints it."""
    kinds = {(group.kind, group.block_tokens) for group in layout.groups}
    printed = configuration.engine.cache.get("printed_tokens", "blocks_over_groups")
    if len(kinds) > 1 and printed == "concurrency":
        return int(concurrency * configuration.max_model_len)
    return blocks // layout.num_groups * layout.block_tokens


def outside_bytes(configuration: Configuration, book: Ledger) -> float:
    """Return what is left outside the budget once the sampler warms up; negative: missing."""
    constants = configuration.engine.ledger
    outside = configuration.gpu.memory_bytes - float(book.budget_bytes[0])
    if not constants.get("graphs_inside_budget", 1):
        outside -= float(book.graph_bytes[0])
    logits = configuration.max_num_seqs * float(configuration.model.vocab_size or 0)
    return outside - constants.get("context_bytes", 0.0) - _SAMPLER_COPY_BYTES * logits
