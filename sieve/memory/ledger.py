"""The memory ledger of one rank: what the engine takes, what is left for KV blocks.

Two ledgers: `reference` follows the sizing specification 9.2 (a share of the card, weights, pages
with a reserve); real engines subtract activations, communication buffers and graphs as their
start-up does.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sieve.arrays import FloatArray, IntArray
from sieve.catalog.architecture import EngineProfile, ModelArchitecture
from sieve.formulas.sizing import gfloor_array, kv_pages, page_bytes
from sieve.memory.weights import weight_bytes_per_gpu


@dataclass(frozen=True, eq=False)
class LedgerInput:
    """Columns of n candidates: sizes in bytes, counts, shares."""

    memory_bytes: FloatArray
    tp: IntArray
    pp: IntArray
    weight_bytes_per_param: FloatArray
    load_bytes_per_param: FloatArray
    kv_bytes_per_element: FloatArray
    max_num_seqs: IntArray
    block_size: IntArray
    utilisation: FloatArray


@dataclass(frozen=True, eq=False)
class Ledger:
    """The ledger of n candidates; bytes per GPU, all (n,).

    Attributes:
        budget_bytes: share of the card the engine may use.
        weight_bytes: weights on the fullest rank.
        load_bytes: their peak while loading.
        reserved_bytes: activations, communication, graphs.
        kv_bytes: what is left for the cache, may be negative.
        block_bytes: one KV block.
        num_blocks: blocks that requests can use, 0 if none.
        weights_overflow: weights alone (at their loading peak) exceed the budget.
    """

    budget_bytes: FloatArray
    weight_bytes: FloatArray
    load_bytes: FloatArray
    reserved_bytes: FloatArray
    kv_bytes: FloatArray
    block_bytes: FloatArray
    num_blocks: IntArray
    weights_overflow: npt.NDArray[np.bool_]


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
    return Ledger(
        budget_bytes=pages.budget_bytes,
        weight_bytes=pages.shard_bytes,
        load_bytes=pages.shard_bytes,
        reserved_bytes=pages.reserved * pages.page_bytes,
        kv_bytes=pages.budget_bytes - pages.shard_bytes - pages.reserved * pages.page_bytes,
        block_bytes=pages.page_bytes,
        num_blocks=pages.usable,
        weights_overflow=pages.weights_overflow,
    )


def _engine(model: ModelArchitecture, engine: EngineProfile, given: LedgerInput) -> Ledger:
    constants = engine.ledger
    budget = given.utilisation * given.memory_bytes
    weights = weight_bytes_per_gpu(
        model, tp=given.tp, pp=given.pp, bytes_per_param=given.weight_bytes_per_param
    )
    load = weight_bytes_per_gpu(
        model, tp=given.tp, pp=given.pp, bytes_per_param=given.load_bytes_per_param
    )
    logits = given.max_num_seqs * float(model.vocab_size or 0)
    activations = (
        constants["activation_base_bytes"] + constants["activation_bytes_per_logit"] * logits
    )
    non_torch = np.where(
        given.tp * given.pp > 1,
        constants["non_torch_bytes_tp"],
        constants["non_torch_bytes_tp1"],
    )
    reserved = activations + non_torch + constants["graph_bytes"]
    left = budget - weights - reserved
    block = page_bytes(
        kv_layers=model.num_kv_layers, kv_heads=model.num_key_value_heads,
        head_dim=model.head_dim, kv_bytes_per_element=given.kv_bytes_per_element,
        tp=given.tp, pp=given.pp, page_tokens=given.block_size,
    )  # fmt: skip
    # One block is the engine's null block and never handed out.
    blocks = np.maximum(gfloor_array(left / block) - 1, 0)
    return Ledger(
        budget_bytes=np.asarray(budget, np.float64),
        weight_bytes=weights,
        load_bytes=load,
        reserved_bytes=np.asarray(reserved, np.float64),
        kv_bytes=np.asarray(left, np.float64),
        block_bytes=block,
        num_blocks=np.asarray(blocks, np.int64),
        weights_overflow=np.asarray(np.maximum(weights, load) > budget, np.bool_),
    )
