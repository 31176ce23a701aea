"""The memory ledger of one rank: what the engine takes, what is left for KV blocks.

Two ledgers: `reference` follows the sizing specification 9.2 (a share of the card, weights, pages
with a reserve); real engines subtract activations, communication buffers and graphs as their
start-up does, stage by stage, and the stage with the fewest blocks decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sieve.arrays import BoolArray, FloatArray, IntArray
from sieve.catalog.architecture import EngineProfile, ModelArchitecture
from sieve.catalog.matrices import layer_plans
from sieve.formulas.repeats import condensed, distinct
from sieve.formulas.sizing import gfloor_array, kv_pages
from sieve.memory import reserves
from sieve.memory.cache import CacheLayout, blocks_per_request, cache_layouts
from sieve.memory.weights import stage_layers, stage_weight_bytes


@dataclass(frozen=True, eq=False)
class LedgerInput:
    """Columns of n candidates: sizes in bytes, counts, shares; (n,).

    What is None takes its plain value: `expert_bytes_per_param` that of all weights, `ep` 1,
    `max_num_batched_tokens` the engine's smallest default, `max_model_len` the model's limit,
    `enforce_eager` False, `dcp` (ranks that share a sequence's cache) 1, `dp` (data-parallel ranks
    that share the experts, `ep` being `tp * dp`; every figure is of one of them) 1. `extra_bytes`
    is added to the terms that it names: `activation_bytes`, `non_torch_bytes`, `graph_bytes`.
    `partition` holds the layers of each stage where `pp` is its length; elsewhere the engine
    divides them.
    """

    memory_bytes: FloatArray
    tp: IntArray
    pp: IntArray
    weight_bytes_per_param: FloatArray
    load_bytes_per_param: FloatArray
    kv_bytes_per_element: FloatArray
    max_num_seqs: IntArray
    block_size: IntArray
    utilisation: FloatArray
    ep: IntArray | None = None
    expert_bytes_per_param: FloatArray | None = None
    max_num_batched_tokens: IntArray | None = None
    max_model_len: IntArray | None = None
    enforce_eager: BoolArray | None = None
    kv_dtype: str = ""
    dcp: IntArray | None = None
    dp: IntArray | None = None
    extra_bytes: Mapping[str, FloatArray] | None = None
    partition: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class Ledger:
    """The ledger of n candidates; bytes per GPU on the stage that decides, all (n,).

    Attributes:
        budget_bytes: share of the card the engine may use.
        weight_bytes: weights on that rank.
        load_bytes: their peak while loading.
        reserved_bytes: activations, communication, graphs within the budget.
        kv_bytes: what is left for the cache, may be negative.
        block_bytes: one KV block.
        num_blocks: blocks that requests can use, 0 if none.
        weights_overflow: weights alone (at their loading peak) exceed the budget on some stage.
        activation_bytes, non_torch_bytes, graph_bytes: parts of `reserved_bytes`; graphs are named
            also where they lie outside the budget.
        stage: which pipeline stage decides.
        blocks_per_request: blocks that one request of `max_model_len` needs.
        slack_bytes: bytes for the cache beyond what one such request needs; negative: missing.
        concurrency: requests of `max_model_len` that the cache holds, as the engine prints it.
    """

    budget_bytes: FloatArray
    weight_bytes: FloatArray
    load_bytes: FloatArray
    reserved_bytes: FloatArray
    kv_bytes: FloatArray
    block_bytes: FloatArray
    num_blocks: IntArray
    weights_overflow: npt.NDArray[np.bool_]
    activation_bytes: FloatArray
    non_torch_bytes: FloatArray
    graph_bytes: FloatArray
    stage: IntArray
    blocks_per_request: IntArray
    slack_bytes: FloatArray
    concurrency: FloatArray


def ledger(model: ModelArchitecture, engine: EngineProfile, given: LedgerInput) -> Ledger:
    """Return the memory ledger of every candidate."""
    if engine.name == "reference":
        return _reference(model, engine, given)
    return _engine(model, engine, given)


def _reference(model: ModelArchitecture, engine: EngineProfile, given: LedgerInput) -> Ledger:
    weights = model.params * given.load_bytes_per_param
    pages = kv_pages(
        card_bytes=given.memory_bytes, weight_bytes=weights, kv_layers=model.num_kv_layers,
        kv_heads=model.num_key_value_heads, head_dim=model.head_dim, tp=given.tp, pp=given.pp,
        kv_bytes_per_element=given.kv_bytes_per_element, utilisation=given.utilisation,
        page_tokens=given.block_size, reserve=engine.ledger["reserve_frac"],
    )  # fmt: skip
    nothing = np.zeros(len(given.tp))
    needed = -(-_length(model, given) // given.block_size)
    return Ledger(
        budget_bytes=pages.budget_bytes,
        weight_bytes=pages.shard_bytes,
        load_bytes=pages.shard_bytes,
        reserved_bytes=pages.reserved * pages.page_bytes,
        kv_bytes=pages.budget_bytes - pages.shard_bytes - pages.reserved * pages.page_bytes,
        block_bytes=pages.page_bytes,
        num_blocks=pages.usable,
        weights_overflow=pages.weights_overflow,
        activation_bytes=nothing,
        non_torch_bytes=nothing,
        graph_bytes=nothing,
        stage=np.zeros(len(given.tp), np.int64),
        blocks_per_request=needed,
        slack_bytes=np.asarray((pages.usable - needed) * pages.page_bytes, np.float64),
        concurrency=np.asarray(pages.usable / np.maximum(1, needed), np.float64),
    )


def _engine(model: ModelArchitecture, engine: EngineProfile, given: LedgerInput) -> Ledger:
    if len(given.tp) == 0:
        return _empty()
    columns: dict[str, Any] = {k: v for k, v in given.__dict__.items() if isinstance(v, np.ndarray)}
    fewer = None if given.extra_bytes else condensed(columns)
    if fewer is None:
        return _each(model, engine, given)
    rows, place = fewer
    book = _each(model, engine, replace(given, **rows))
    return Ledger(**{field.name: getattr(book, field.name)[place] for field in fields(Ledger)})


def _each(model: ModelArchitecture, engine: EngineProfile, given: LedgerInput) -> Ledger:
    """Return the ledger of every row: of its stage with the fewest blocks."""
    best: Ledger | None = None
    overflow = np.zeros(len(given.tp), np.bool_)
    for found in stage_ledgers(model, engine, given):
        overflow |= found.weights_overflow
        best = found if best is None else _worse(best, found)
    assert best is not None
    return _closed(best, overflow)


def request_blocks(
    model: ModelArchitecture, engine: EngineProfile, given: LedgerInput, tokens: IntArray
) -> IntArray:
    """Return the blocks that one request of `tokens` holds on the stage where it needs most, (n,).

    Args:
        model: architecture.
        engine: profile.
        given: the candidates.
        tokens: (n,) prompt and answer.
    """
    n = len(given.tp)
    if n == 0 or engine.name == "reference" or has_one_kind(model):
        return np.asarray(-(-tokens // (given.block_size * _or(given.dcp, n, 1))), np.int64)
    in_flight = _or(given.max_num_batched_tokens, n, _least_budget(engine)) * int(
        engine.cache.get("batches_in_flight", 1)
    )
    shapes, place = _shapes(given)
    tables = _StageTables(model, engine, shapes, given.kv_dtype, given.partition)
    stages = [tables.needed(i, place, tokens, in_flight) for i in range(tables.depth)]
    return np.asarray(np.maximum.reduce(stages), np.int64)


def longest_request(
    model: ModelArchitecture,
    engine: EngineProfile,
    given: LedgerInput,
    num_blocks: IntArray,
    limit: IntArray,
) -> IntArray:
    """Return the most tokens, up to `limit`, of a request that `num_blocks` hold, (n,)."""
    low, high = np.zeros(len(limit), np.int64), np.array(limit, np.int64)
    while (open_ := low < high).any():
        middle = (low + high + 1) // 2
        fits = request_blocks(model, engine, given, middle) <= num_blocks
        low = np.where(open_ & fits, middle, low)
        high = np.where(open_ & ~fits, middle - 1, high)
    return low


def has_one_kind(model: ModelArchitecture) -> bool:
    """Return whether all layers with a cache keep every token, in one kind of block."""
    kinds = {plan.kind for plan in layer_plans(model) if plan.kind is not None}
    return len(kinds) == 1 and next(iter(kinds)).kind in {"full", "latent"}


def _shapes(given: LedgerInput) -> tuple[list[tuple[float, ...]], IntArray]:
    n = len(given.tp)
    expert = given.weight_bytes_per_param
    if given.expert_bytes_per_param is not None:
        expert = given.expert_bytes_per_param
    return _distinct(
        given.tp, given.pp, _or(given.ep, n, 1), given.weight_bytes_per_param,
        given.load_bytes_per_param, expert, given.kv_bytes_per_element, given.block_size,
        _or(given.dcp, n, 1),
    )  # fmt: skip


def stage_ledgers(
    model: ModelArchitecture, engine: EngineProfile, given: LedgerInput
) -> Iterator[Ledger]:
    """Yield the ledger of each pipeline stage of a real engine; stages that are alike come once.

    Block counts and concurrencies may be negative here: so much is missing.
    """
    n = len(given.tp)
    constants = engine.ledger
    ep, dp = _or(given.ep, n, 1), _or(given.dp, n, 1)
    tokens = _or(given.max_num_batched_tokens, n, _least_budget(engine))
    eager = np.zeros(n, np.bool_) if given.enforce_eager is None else given.enforce_eager
    lengths = _length(model, given)
    in_flight = tokens * int(engine.cache.get("batches_in_flight", 1))
    budget = np.asarray(given.utilisation * given.memory_bytes, np.float64)
    sampler = reserves.sampler_bytes(
        model, constants, max_num_seqs=given.max_num_seqs, max_num_batched_tokens=tokens
    )
    forward = reserves.forward_bytes(
        model, constants, max_num_batched_tokens=tokens, tp=given.tp, ep=ep, dp=dp
    )
    extra = given.extra_bytes or {}
    non_torch = _corrected(
        reserves.non_torch_bytes(constants, given.tp * given.pp * dp), extra, "non_torch_bytes"
    )
    shapes, place = _shapes(given)
    tables = _StageTables(model, engine, shapes, given.kv_dtype, given.partition)
    for stage in range(tables.depth):
        weights, load = tables.weights[stage][place], tables.load[stage][place]
        layers = tables.layers[stage][place]
        activations = np.where(tables.is_last[stage][place], np.maximum(sampler, forward), forward)
        activations = _corrected(activations, extra, "activation_bytes")
        graphs = reserves.graph_bytes(
            constants, layers=layers, max_num_seqs=given.max_num_seqs,
            max_num_batched_tokens=tokens, enforce_eager=eager,
        )  # fmt: skip
        graphs = np.where(eager, graphs, _corrected(graphs, extra, "graph_bytes"))
        reserved = activations + non_torch + graphs * constants["graphs_inside_budget"]
        left = budget - weights - reserved
        block = tables.block_bytes[stage][place]
        raw = gfloor_array(left / block)
        needed = tables.needed(stage, place, lengths, in_flight)
        yield Ledger(
            budget_bytes=budget,
            weight_bytes=weights,
            load_bytes=load,
            reserved_bytes=reserved,
            kv_bytes=left,
            block_bytes=block,
            num_blocks=raw - 1,  # one block is the engine's null block and never handed out
            weights_overflow=np.maximum(weights, load) > budget,
            activation_bytes=activations,
            non_torch_bytes=non_torch,
            graph_bytes=graphs,
            stage=tables.number[stage][place],
            blocks_per_request=needed,
            slack_bytes=left - (needed + 1) * block,
            concurrency=raw / np.maximum(1, needed),
        )


def _corrected(predicted: FloatArray, extra: Mapping[str, FloatArray], name: str) -> FloatArray:
    """Return a term with what was measured beyond it, (n,); never below nothing."""
    if name not in extra:
        return predicted
    changed = np.maximum(predicted + extra[name], 0.0)
    return np.asarray(np.where(extra[name] == 0, predicted, changed), np.float64)


def _empty() -> Ledger:
    none, count = np.zeros(0), np.zeros(0, np.int64)
    return Ledger(
        none, none, none, none, none, none, count, np.zeros(0, np.bool_), none, none, none, count,
        count, none, none,
    )  # fmt: skip


def _worse(one: Ledger, other: Ledger) -> Ledger:
    """Return, row by row, the stage that has the fewer blocks."""
    fewer = other.num_blocks < one.num_blocks
    if not fewer.any():
        return one
    if fewer.all():
        return other
    rows = np.flatnonzero(fewer)
    worse = {}
    for field in fields(Ledger):
        value, new = getattr(one, field.name), getattr(other, field.name)
        if new is not value:  # what is the same on all stages is one array
            value = value.copy()
            value[rows] = new[rows]
        worse[field.name] = value
    return Ledger(**worse)


def _closed(book: Ledger, overflow: BoolArray) -> Ledger:
    values = {field.name: getattr(book, field.name) for field in fields(Ledger)}
    values["num_blocks"] = np.maximum(book.num_blocks, 0)
    values["concurrency"] = np.maximum(book.concurrency, 0.0)
    values["weights_overflow"] = overflow
    return Ledger(**values)


class _StageTables:
    """Weights and cache layouts of each stage for each distinct shape; (depth,) lists of (u,).

    Stages of a pipeline that are alike stand once: the first, the last, and what is between.
    """

    def __init__(
        self, model: ModelArchitecture, engine: EngineProfile, shapes: Sequence[tuple[float, ...]],
        kv_dtype: str, partition: tuple[int, ...],
    ) -> None:  # fmt: skip
        rules = tuple(sorted(engine.cache.items()))
        rows = []
        for tp, pp, ep, size, loading, expert, kv, block_size, dcp in shapes:
            parts = partition if len(partition) == pp else ()
            shape: dict[str, Any] = {
                "tp": int(tp), "pp": int(pp), "ep": int(ep), "partition": parts
            }  # fmt: skip
            layouts = cache_layouts(
                model, tp=int(tp), pp=int(pp), kv_bytes=kv, block_size=int(block_size),
                kv_dtype=kv_dtype, rules=rules, dcp=int(dcp), partition=parts,
            )  # fmt: skip
            weights = stage_weight_bytes(model, linear=size, expert=expert, **shape)
            load = stage_weight_bytes(
                model, linear=loading, expert=max(expert, loading) if loading > size else expert,
                **shape,
            )  # fmt: skip
            layers = [len(part) for part in stage_layers(model.num_hidden_layers, int(pp), parts)]
            seen: dict[object, tuple[int, int, float, float, CacheLayout, bool]] = {}
            for stage, count in enumerate(layers):
                last = stage == int(pp) - 1
                key = (count, weights[stage], layouts[stage], last)
                seen.setdefault(
                    key, (stage, count, weights[stage], load[stage], layouts[stage], last)
                )
            rows.append(list(seen.values()))
        self.depth = max(len(row) for row in rows)
        padded = [[row[min(i, len(row) - 1)] for row in rows] for i in range(self.depth)]
        self.number = [np.array([r[0] for r in row], np.int64) for row in padded]
        self.layers = [np.array([r[1] for r in row], np.float64) for row in padded]
        self.weights = [np.array([r[2] for r in row], np.float64) for row in padded]
        self.load = [np.array([r[3] for r in row], np.float64) for row in padded]
        self.layouts = [[r[4] for r in row] for row in padded]
        self.is_last = [np.array([r[5] for r in row], np.bool_) for row in padded]
        self.block_bytes = [
            np.array([layout.block_bytes for layout in row], np.float64) for row in self.layouts
        ]

    def needed(
        self, stage: int, place: IntArray, tokens: IntArray, in_flight: IntArray
    ) -> IntArray:
        """Return the blocks of one request on this stage, (n,)."""
        layouts = self.layouts[stage]
        kinds = {layout.groups: i for i, layout in enumerate(layouts)}
        if len(kinds) == 1:
            return blocks_per_request(layouts[0], tokens, in_flight)
        out = np.zeros(len(place), np.int64)
        codes = np.array([list(kinds).index(layout.groups) for layout in layouts])[place]
        for code, first in enumerate(kinds.values()):
            rows = np.flatnonzero(codes == code)
            out[rows] = blocks_per_request(layouts[first], tokens[rows], in_flight[rows])
        return out


def _distinct(*columns: npt.NDArray[np.generic]) -> tuple[list[tuple[float, ...]], IntArray]:
    """Return the distinct rows of some columns and, for each row, the place of its own."""
    code = np.zeros(len(columns[0]), np.int64)
    tables = []
    for column in columns:
        values, where = distinct(column)
        tables.append(values)
        if len(values) > 1:
            code = code * len(values) + where
    codes, place = distinct(code)
    rest, parts = codes, []
    for values in reversed(tables):
        parts.append(values[rest % len(values)])
        rest = rest // len(values)
    rows = zip(*(part.tolist() for part in reversed(parts)), strict=True)
    return [tuple(float(value) for value in row) for row in rows], place


def _or(column: IntArray | None, n: int, value: int) -> IntArray:
    return np.full(n, value, np.int64) if column is None else column


def _least_budget(engine: EngineProfile) -> int:
    value = engine.defaults.get("max_num_batched_tokens", 2048)
    return min(tier["value"] for tier in value) if isinstance(value, list) else int(value)


def _length(model: ModelArchitecture, given: LedgerInput) -> IntArray:
    """Return the length of the longest request; the model's limit, else one block."""
    limit = model.max_position_embeddings or 1
    if given.max_model_len is None:
        return np.full(len(given.tp), limit, np.int64)
    return np.where(given.max_model_len > 0, given.max_model_len, limit)
