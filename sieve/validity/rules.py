"""Validity rules, each a function over columns that returns where it fails and two numbers.

An engine profile names the rules it applies, in order; the first that fails is the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from sieve.arrays import BoolArray, FloatArray, IntArray
from sieve.catalog.architecture import ModelArchitecture
from sieve.catalog.matrices import padded_vocabulary
from sieve.errors import InvalidInput
from sieve.formulas.repeats import condensed, distinct
from sieve.validity.blocks import block_faults
from sieve.validity.context_parallel import context_parallel_fault
from sieve.validity.data_parallel import data_parallel_faults
from sieve.validity.nodes import nodes_needed


@dataclass(frozen=True, eq=False)
class Candidates:
    """Columns of n candidates and the facts that rules compare them with.

    Attributes:
        model: architecture.
        tp, pp, ep, replicas, max_num_seqs, max_num_batched_tokens: (n,).
        max_model_len: (n,) 0 where the model states no limit.
        rates_known: (n,) the GPU's arithmetic rate, and its link rate where ranks talk, are known.
        compute_capability: (n,) of the GPU, nan where it has none.
        needs_capability: (n,) least capability for the precisions chosen, 0 if any will do.
        gpus_per_node, max_gpus: limits of the fleet.
        nodes_per_replica: nodes that one replica may take.
        tp_across_nodes: the tensor ranks of a stage may stand on several nodes.
        longest_request: longest prompt + answer of the traffic, tokens.
        has_blocks: (n,) weights are served in the checkpoint's own block-quantised form; None: yes.
        expert_block_floor: of the engine profile.
        chunked_prefill: long prompts are cut to the token budget; (n,) or for all.
        dcp: (n,) decode context parallel sizes; None: 1.
        context_parallel: layers that the engine can serve so, as in its profile.
        dp: (n,) data-parallel ranks of a replica; None: 1.
        data_parallel: what such ranks share, as in the engine's profile: `experts` or `none`.
    """

    model: ModelArchitecture
    tp: IntArray
    pp: IntArray
    ep: IntArray
    replicas: IntArray
    max_num_seqs: IntArray
    max_num_batched_tokens: IntArray
    max_model_len: IntArray
    rates_known: BoolArray
    compute_capability: FloatArray
    needs_capability: FloatArray
    gpus_per_node: int
    max_gpus: int
    longest_request: int
    has_blocks: BoolArray | None = None
    expert_block_floor: int = 0
    chunked_prefill: BoolArray | bool = True
    nodes_per_replica: int = 1
    tp_across_nodes: bool = False
    dcp: IntArray | None = None
    context_parallel: str = "none"
    dp: IntArray | None = None
    data_parallel: str = "none"

    @property
    def ranks(self) -> IntArray:
        """GPUs that share out the experts, or each layer: tp x dp."""
        return self.tp if self.dp is None else self.tp * self.dp


@dataclass(frozen=True, eq=False)
class Finding:
    """Where a rule fails, the two numbers it compared and what they are; (n,) or scalars."""

    fails: BoolArray
    observed: npt.ArrayLike
    limit: npt.ArrayLike
    unit: str | npt.NDArray[np.object_]


def _tp_divides(c: Candidates) -> Finding:
    """TP must divide query heads and width; observed is the first that it does not divide."""
    heads, width = c.model.num_attention_heads, c.model.hidden_size
    by_heads = heads % c.tp != 0
    return Finding(
        by_heads | (width % c.tp != 0), np.where(by_heads, heads, width), c.tp, "divisible by tp"
    )


def _tp_divides_heads(c: Candidates) -> Finding:
    """TP must divide the query heads, and the heads of recurrent states."""
    return _each_width(
        c, query_heads(c.model), lambda heads: heads % c.tp != 0, "query heads, divisible by tp"
    )


def _kv_heads_tp(c: Candidates) -> Finding:
    """KV heads are split evenly, or replicated evenly once TP exceeds their number.

    A latent (MLA) is whole on every rank and has no such rule.
    """

    def fails(heads: int) -> BoolArray:
        return np.asarray(np.where(c.tp <= heads, heads % c.tp != 0, c.tp % heads != 0), np.bool_)

    return _each_width(c, kv_heads(c.model), fails, "KV heads, tp divides them or is a multiple")


def query_heads(model: ModelArchitecture) -> list[int]:
    """Return the distinct numbers of query heads, and of heads of recurrent states."""
    heads = {kind.num_attention_heads for kind in model.kinds if kind.state is None}
    heads |= {kind.state.num_heads for kind in model.kinds if kind.state is not None}
    return sorted(heads) or [model.num_attention_heads]


def kv_heads(model: ModelArchitecture) -> list[int]:
    """Return the distinct numbers of KV heads of layers that split them."""
    if not model.kinds:
        return [model.num_key_value_heads]
    split = {kind.num_key_value_heads for kind in model.kinds if kind.state is None
             and kind.kind not in {"latent", "compressed"}}  # fmt: skip
    return sorted(split)


def _each_width(
    c: Candidates, numbers: Sequence[int], fails: Callable[[int], BoolArray], unit: str
) -> Finding:
    """Return where any of several numbers of the model fails; observed is the first that does."""
    observed = np.full(len(c.tp), numbers[0] if numbers else 0)
    bad = np.zeros(len(c.tp), np.bool_)
    for number in numbers:
        new = ~bad & np.asarray(fails(number), np.bool_)
        observed[new] = number
        bad |= new
    return Finding(bad, observed, c.tp, unit)


def _vocab_tp(c: Candidates) -> Finding:
    """TP must divide the vocabulary as the engine pads it (to a multiple of 64)."""
    vocab = padded_vocabulary(c.model)
    return Finding(
        vocab % c.tp != 0, vocab, c.tp, "rows of embed_tokens, padded vocabulary, divisible by tp"
    )


def _quant_blocks(c: Candidates) -> Finding:
    """Shards of block-quantised matrices must be whole blocks."""
    n = len(c.tp)
    fails = np.zeros(n, np.bool_)
    observed, limit = np.zeros(n), np.zeros(n)
    unit = np.full(n, "", object)
    if not (c.model.quant_block or c.model.quant_group):
        return Finding(fails, observed, limit, unit)
    applies = np.ones(n, np.bool_) if c.has_blocks is None else c.has_blocks
    pairs, place = distinct(c.tp.astype(np.int64) * 2**31 + c.ep)
    for number, pair in enumerate(pairs.tolist()):
        faults = block_faults(
            c.model,
            tp=pair // 2**31,
            ep=max(1, pair % 2**31),
            expert_floor=c.expert_block_floor,
        )
        if not faults:
            continue
        rows = applies & (place == number)
        first = faults[0]
        fails |= rows
        observed[rows], limit[rows] = first.shard, first.block
        unit[rows] = f"elements of {first.tensor} on a rank, whole blocks"
    return Finding(fails, observed, limit, unit)


def _tp_divides_width(c: Candidates) -> Finding:
    """TP must divide the width and every feed-forward width that it splits."""
    moe = c.model.moe
    widths = [("hidden_size", c.model.hidden_size, c.tp)]
    if c.model.intermediate_size and (moe is None or moe.num_dense_layers):
        widths.append(("mlp, intermediate_size", c.model.intermediate_size, c.tp))
    if moe and moe.shared_intermediate_size:
        widths.append(("mlp.shared_expert, width", moe.shared_intermediate_size, c.tp))
    if moe:
        slices = (c.tp // np.maximum(c.ep, 1)).clip(min=1)
        widths.append(("mlp.experts, moe_intermediate_size", moe.moe_intermediate_size, slices))
    place = np.zeros(len(c.tp), np.int8)  # of the first width that is at fault, from 1
    for number, (_, width, ranks) in enumerate(widths, start=1):
        place[(place == 0) & (width % ranks != 0)] = number
    observed = np.array([widths[0][1], *(width for _, width, _ in widths)])
    units = np.array(["", *(f"{name}, divisible by tp" for name, _, _ in widths)], object)
    return Finding(place > 0, observed[place], c.tp, units[place])


def _ep_size(c: Candidates) -> Finding:
    """Experts are spread over all ranks or over none; with data-parallel ranks over all."""
    several = (c.ranks != c.tp) & (c.model.moe is not None)
    legal = ((c.ep == 1) & ~several) | ((c.ep == c.ranks) & (c.model.moe is not None))
    units = np.array(["ep is 1 or tp, experts only", "ep is tp x dp where ranks share experts"])
    unit = units.astype(object)[several.astype(np.int8)]
    return Finding(~legal, c.ep, c.ranks if c.model.moe else 1, unit)


def _data_parallel(c: Candidates) -> Finding:
    """Data-parallel ranks share experts, and step together."""
    n = len(c.tp)
    if c.dp is None:
        return Finding(np.zeros(n, np.bool_), 1, 1, "")
    fails, observed, unit = data_parallel_faults(c.model, c.dp, c.pp, c.data_parallel)
    return Finding(fails, observed, 1, unit)


def _ep_divides_experts(c: Candidates) -> Finding:
    experts = c.model.moe.num_experts if c.model.moe else 0  # no experts: a matter of `ep_size`
    return Finding((c.ep > 1) & (experts % c.ep != 0), experts, c.ep, "experts, divisible by ep")


def _pp_divides(c: Candidates) -> Finding:
    layers = c.model.num_hidden_layers
    return Finding(layers % c.pp != 0, layers, c.pp, "layers, divisible by pp")


def _pp_layers(c: Candidates) -> Finding:
    return Finding(c.pp > c.model.num_hidden_layers, c.pp, c.model.num_hidden_layers, "stages")


def _node(c: Candidates) -> Finding:
    """A replica stands in one node, or in as many as the fleet allows, its stages whole."""
    ranks = c.ranks * c.pp
    if c.nodes_per_replica == 1:
        return Finding(ranks > c.gpus_per_node, ranks, c.gpus_per_node, "GPUs in a node")
    needed = nodes_needed(c.tp, c.pp, c.gpus_per_node)
    wide = (c.tp > c.gpus_per_node) & (not c.tp_across_nodes)
    spread = (c.ranks != c.tp) & (ranks > c.gpus_per_node)
    units = np.array(
        [
            "nodes for one replica, its stages whole", "tensor ranks in a node",
            "GPUs in a node; data-parallel ranks over several nodes are not modelled",
        ],
        object,
    )  # fmt: skip
    which = np.where(spread, 2, wide)
    return Finding(
        (which > 0) | (needed > c.nodes_per_replica),
        np.choose(which, [needed, c.tp, ranks]),
        np.where(which > 0, c.gpus_per_node, c.nodes_per_replica),
        units[which],
    )


def _decode_context_parallel(c: Candidates) -> Finding:
    """Ranks that hold copies of a cache may share out its tokens."""
    n = len(c.tp)
    fails, unit = np.zeros(n, np.bool_), np.full(n, "", object)
    observed, limit = np.zeros(n), np.zeros(n)
    if c.dcp is None:
        return Finding(fails, observed, limit, unit)
    pairs, place = distinct(c.tp.astype(np.int64) * 2**31 + c.dcp)
    for number, pair in enumerate(pairs.tolist()):
        tp, dcp = divmod(pair, 2**31)
        fault = context_parallel_fault(c.model, tp=tp, dcp=dcp, kinds=c.context_parallel)
        if fault is None:
            continue
        rows = np.flatnonzero(place == number)
        fails[rows], unit[rows] = True, fault.unit
        observed[rows], limit[rows] = fault.observed, fault.limit
    return Finding(fails, observed, limit, unit)


def _gpu_budget(c: Candidates) -> Finding:
    gpus = c.ranks * c.pp * c.replicas
    return Finding(gpus > c.max_gpus, gpus, c.max_gpus, "GPUs")


def _tokens_cover_seqs(c: Candidates) -> Finding:
    """The engine refuses a token budget below the sequence limit."""
    return Finding(
        c.max_num_batched_tokens < c.max_num_seqs,
        c.max_num_batched_tokens,
        c.max_num_seqs,
        "tokens, at least max_num_seqs",
    )


def _tokens_cover_len(c: Candidates) -> Finding:
    """Without chunked prefill a prompt has to fit the token budget whole."""
    short = (c.max_model_len > 0) & (c.max_num_batched_tokens < c.max_model_len)
    return Finding(
        short & np.logical_not(c.chunked_prefill),
        c.max_num_batched_tokens,
        c.max_model_len,
        "tokens, at least max_model_len",
    )


def _context_limit(c: Candidates) -> Finding:
    """The engine refuses a max_model_len beyond the model's own limit."""
    limit = c.model.max_position_embeddings
    known = limit is not None and c.model.context_limit_sure
    return Finding(
        (c.max_model_len > (limit or 0)) & known, c.max_model_len, limit or 0, "tokens of context"
    )


def _rates_known(c: Candidates) -> Finding:
    """Without an arithmetic or link rate there is no step time, and none is invented."""
    return Finding(~c.rates_known, 0.0, 1.0, "known arithmetic and link rates of the GPU")


def _dtype_supported(c: Candidates) -> Finding:
    known = ~np.isnan(c.compute_capability)
    return Finding(
        known & (c.compute_capability < c.needs_capability),
        c.compute_capability,
        c.needs_capability,
        "compute capability",
    )


def _model_len(c: Candidates) -> Finding:
    limited = c.max_model_len > 0
    return Finding(
        limited & (c.longest_request > c.max_model_len),
        c.longest_request,
        c.max_model_len,
        "tokens",
    )


RULES: Final[Mapping[str, Callable[[Candidates], Finding]]] = {
    "tp_divides": _tp_divides,
    "tp_divides_heads": _tp_divides_heads,
    "kv_heads_tp": _kv_heads_tp,
    "tp_divides_width": _tp_divides_width,
    "vocab_tp": _vocab_tp,
    "quant_blocks": _quant_blocks,
    "data_parallel": _data_parallel,
    "ep_size": _ep_size,
    "ep_divides_experts": _ep_divides_experts,
    "pp_divides": _pp_divides,
    "pp_layers": _pp_layers,
    "decode_context_parallel": _decode_context_parallel,
    "node": _node,
    "gpu_budget": _gpu_budget,
    "tokens_cover_seqs": _tokens_cover_seqs,
    "tokens_cover_len": _tokens_cover_len,
    "context_limit": _context_limit,
    "rates_known": _rates_known,
    "dtype_supported": _dtype_supported,
    "model_len": _model_len,
}


@dataclass(frozen=True, eq=False)
class Verdicts:
    """The first failing rule of every candidate.

    Attributes:
        reason: (n,) rule name, "" where the candidate is valid.
        observed, limit: (n,) the numbers compared, nan where valid.
        unit: (n,) what the numbers are.
    """

    reason: npt.NDArray[np.object_]
    observed: FloatArray
    limit: FloatArray
    unit: npt.NDArray[np.object_]


def check(candidates: Candidates, rules: Sequence[str]) -> Verdicts:
    """Return the first rule that each candidate breaks.

    Raises:
        InvalidInput: an engine profile names a rule that does not exist.
    """
    columns = {k: v for k, v in candidates.__dict__.items() if isinstance(v, np.ndarray)}
    fewer = condensed(columns)
    if fewer is None:
        return _check(candidates, rules)
    rows, place = fewer
    found = _check(replace(candidates, **rows), rules)
    return Verdicts(**{field.name: getattr(found, field.name)[place] for field in fields(Verdicts)})


def _check(candidates: Candidates, rules: Sequence[str]) -> Verdicts:
    n = len(candidates.tp)
    first = np.zeros(n, np.int16)  # place of the rule that fails, from 1
    observed, limit = np.full(n, np.nan), np.full(n, np.nan)
    units = [""]
    by_row = []
    for place, name in enumerate(rules, start=1):
        if name not in RULES:
            raise InvalidInput(f"unknown validity rule {name!r}; rules are: {', '.join(RULES)}")
        found = RULES[name](candidates)
        new = np.flatnonzero(np.asarray(found.fails, np.bool_) & (first == 0))
        units.append(found.unit if isinstance(found.unit, str) else "")
        if not len(new):
            continue
        first[new] = place
        if not isinstance(found.unit, str):
            by_row.append((new, found.unit[new]))
        observed[new] = np.broadcast_to(np.asarray(found.observed, np.float64), n)[new]
        limit[new] = np.broadcast_to(np.asarray(found.limit, np.float64), n)[new]
    unit = np.array(units, object)[first]
    for rows, texts in by_row:
        unit[rows] = texts
    return Verdicts(np.array(["", *rules], object)[first], observed, limit, unit)
