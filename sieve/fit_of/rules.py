"""Every validity rule of an engine held against one deployment."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from sieve.fit_of.configuration import Configuration
from sieve.memory.weights import stage_layers
from sieve.validity.blocks import block_faults
from sieve.validity.capability import (
    LEAST_CAPABILITY,
    NATIVE_CAPABILITY,
    least_capability,
    weight_capability,
)
from sieve.validity.context_parallel import RULE as CONTEXT_PARALLEL
from sieve.validity.context_parallel import context_parallel_fault
from sieve.validity.data_parallel import RULE as DATA_PARALLEL
from sieve.validity.data_parallel import legal_data_parallel
from sieve.validity.nodes import nodes_needed, replica_nodes
from sieve.validity.rules import Candidates
from sieve.validity.rules import check as check_rules

_OWN_LIMITS: Final = frozenset({"rates_known", "model_len", "gpu_budget"})
"""Rules about what sieve can time, about traffic or about a fleet: no matter of one deployment."""
_MOST_RANKS: Final = 128
_USUAL_GROUP: Final = 128
_MOST_LISTED: Final = 8


@dataclass(frozen=True)
class RuleResult:
    """One rule, the numbers it compared and what would pass.

    Attributes:
        rule: its name.
        ok: the deployment obeys it.
        observed, limit: the numbers compared, None where it is obeyed.
        unit: what they are; names the tensor where one is at fault.
        legal: values of the knob that would pass this rule, as text; "" where obeyed.
    """

    rule: str
    ok: bool
    observed: float | None
    limit: float | None
    unit: str
    legal: str


@dataclass(frozen=True)
class Check:
    """Every rule of the engine held against one deployment."""

    configuration: Configuration
    rules: tuple[RuleResult, ...]
    notes: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """No rule is broken."""
        return all(rule.ok for rule in self.rules)


def check(configuration: Configuration) -> Check:
    """Return every rule of the engine with its numbers and what would pass."""
    out = []
    for rule in rules_of(configuration):
        found = check_rules(_candidates([configuration]), [rule])
        ok = found.reason[0] == ""
        out.append(
            RuleResult(
                rule=rule,
                ok=ok,
                observed=None if ok else float(found.observed[0]),
                limit=None if ok else float(found.limit[0]),
                unit="" if ok else str(found.unit[0]),
                legal="" if ok else _legal(configuration, rule),
            )
        )
    return Check(configuration, tuple(out), _validity_notes(configuration))


def rules_of(configuration: Configuration) -> list[str]:
    """Return the rules of the engine that concern one deployment, in order."""
    named = [rule for rule in configuration.engine.rules if rule not in _OWN_LIMITS]
    if not configuration.gpus_per_node:
        named = [rule for rule in named if rule != "node"]
    named = [rule for rule in named if rule != CONTEXT_PARALLEL]
    if configuration.dp == 1:
        named = [rule for rule in named if rule != DATA_PARALLEL]
    return [*named, CONTEXT_PARALLEL] if configuration.dcp > 1 else named


def _candidates(configurations: Sequence[Configuration]) -> Candidates:
    first = configurations[0]

    def column(name: str) -> Any:
        return np.array([getattr(c, name) for c in configurations], np.int64)

    n = len(configurations)
    capability = first.gpu.compute_capability
    return Candidates(
        model=first.model,
        tp=column("tp"),
        pp=column("pp"),
        ep=column("ep"),
        replicas=np.ones(n, np.int64),
        max_num_seqs=column("max_num_seqs"),
        max_num_batched_tokens=column("max_num_batched_tokens"),
        max_model_len=column("max_model_len"),
        rates_known=np.ones(n, np.bool_),
        compute_capability=np.full(n, math.nan if capability is None else capability),
        needs_capability=np.array(
            [
                least_capability(c.weights.name, c.kv_cache_dtype, c.engine.capability)
                for c in configurations
            ]
        ),
        gpus_per_node=first.gpus_per_node or 2**31,
        nodes_per_replica=first.nodes,
        tp_across_nodes=first.tp_across_nodes,
        dcp=column("dcp"),
        context_parallel=_context_kinds(first),
        dp=column("dp"),
        data_parallel=_shared_by_ranks(first),
        max_gpus=2**31,
        longest_request=0,
        expert_block_floor=first.engine.expert_block_floor,
        has_blocks=np.array([c.weights.name == c.model.checkpoint_dtype for c in configurations]),
        chunked_prefill=first.chunked_prefill,
    )


def _context_kinds(c: Configuration) -> str:
    """Return the layers that this engine can serve with context parallelism."""
    return str(c.engine.cache.get("context_parallel", "none"))


def _shared_by_ranks(c: Configuration) -> str:
    """Return what data-parallel ranks share in this engine."""
    return str(c.engine.cache.get("data_parallel", "none"))


def _legal_on_nodes(c: Configuration) -> str:
    if c.dp > 1:
        most = c.gpus_per_node // (c.tp * c.pp)
        return f"dp up to {most}, its ranks in one node" if most else f"tp up to {c.gpus_per_node}"
    if c.nodes == 1:
        needed = int(nodes_needed(np.array([c.tp]), np.array([c.pp]), c.gpus_per_node)[0])
        further = f"; or nodes {needed}" if c.tp <= c.gpus_per_node else ""
        return f"tp x pp up to {c.gpus_per_node}{further}"
    if c.tp > c.gpus_per_node and not c.tp_across_nodes:
        return f"tp up to {c.gpus_per_node}, or tensor ranks across nodes, which is slow"
    depths = _listed(legal_sizes(c, ["node"], "pp"))
    return f"pp {depths} at tp {c.tp} on up to {c.nodes} nodes of {c.gpus_per_node}"


def _legal_formats(c: Configuration, have: float) -> str:
    """Return the formats that the card can serve, of the weights, the cache or both at fault."""
    out = []
    if weight_capability(c.weights.name, c.engine.capability) > have:
        fine = [
            name
            for name in LEAST_CAPABILITY["weights"]
            if weight_capability(name, c.engine.capability) <= have
        ]
        out.append(f"weights in {', '.join(fine) or 'no known format'}")
    if LEAST_CAPABILITY["cache"].get(c.kv_cache_dtype, 0.0) > have:
        fine = [name for name, least in LEAST_CAPABILITY["cache"].items() if least <= have]
        out.append(f"a cache in {', '.join(['auto', *fine])}")
    return ", ".join(out)


def _legal(configuration: Configuration, rule: str) -> str:
    """Return the values of the knob at fault that this rule lets pass."""
    c = configuration
    if rule in {"tokens_cover_seqs", "tokens_cover_len"}:
        least = c.max_num_seqs if rule == "tokens_cover_seqs" else c.max_model_len
        return f"max_num_batched_tokens of {least} or more"
    if rule == "context_limit":
        return f"max_model_len up to {c.model.max_position_embeddings}"
    if rule == "pp_layers":
        return f"pp up to {c.model.num_hidden_layers}"
    if rule == "node":
        return _legal_on_nodes(c)
    if rule == CONTEXT_PARALLEL:
        fault = context_parallel_fault(c.model, tp=c.tp, dcp=c.dcp, kinds=_context_kinds(c))
        return "" if fault is None else fault.legal
    if rule == DATA_PARALLEL:
        return legal_data_parallel(c.model, pp=c.pp, shared=_shared_by_ranks(c))
    if rule == "ep_size" and c.dp > 1:
        return f"ep {c.tp * c.dp}" if c.model.moe else "dp 1"
    if rule == "ep_size":
        return f"ep 1 or {c.tp}" if c.model.moe else "ep 1"
    if rule == "dtype_supported":
        return _legal_formats(c, c.gpu.compute_capability or 0.0)
    knob = "pp" if rule == "pp_divides" else "ep" if rule == "ep_divides_experts" else "tp"
    alone = legal_sizes(c, [rule], knob)
    if knob != "tp":
        return f"{knob} {_listed(alone)}"
    text = f"tp {_listed(alone)} by this rule"
    together = legal_sizes(c, rules_of(c), knob)
    text += f"; by all rules {_listed(together)}"
    if rule == "quant_blocks" and c.model.moe is not None and c.ep == 1:
        spread = replace(c, ep=c.tp)
        if not check_rules(_candidates([spread]), [rule]).reason[0]:
            text += f"; or tp {c.tp} with ep {c.tp}, which does not slice experts"
    return text


def _node_notes(c: Configuration) -> list[str]:
    """Return on how many nodes the instance stands, where it may span several."""
    if c.nodes == 1 or c.dp > 1:
        return []
    found = replica_nodes(
        np.array([c.tp]), np.array([c.pp]), gpus_per_node=c.gpus_per_node, most_nodes=c.nodes,
        tp_across=c.tp_across_nodes,
    )  # fmt: skip
    nodes = int(found[0])
    if nodes < 2:
        return []
    out = [
        f"one instance spans {nodes} nodes, {c.tp * c.pp // nodes} GPUs on each; communication "
        "buffers are taken as within a node"
    ]
    if c.tp > c.gpus_per_node:
        out.append(f"tp {c.tp} spans nodes: every layer's all-reduce goes over the network")
    return out


def legal_sizes(configuration: Configuration, rules: Sequence[str], knob: str) -> list[int]:
    """Return the values of `tp`, `pp` or `ep` up to 128 that break none of the rules."""
    tried = list(range(1, _MOST_RANKS + 1))
    changed = []
    for size in tried:
        change: dict[str, Any] = {knob: size}
        if knob == "tp" and configuration.ep > 1:
            change["ep"] = size * configuration.dp
        changed.append(replace(configuration, **change))
    found = check_rules(_candidates(changed), list(rules))
    return [size for size, reason in zip(tried, found.reason, strict=True) if not reason]


def _listed(values: Sequence[int]) -> str:
    return ", ".join(str(value) for value in values) or "none"


def _validity_notes(configuration: Configuration) -> tuple[str, ...]:
    c = configuration
    out = []
    kinds = [kind for kind in c.model.kinds if kind.stores_kv]
    if any(kind.kind in {"latent", "compressed"} for kind in kinds):
        if c.dcp == 1:
            out.append(
                "the latent KV cache is whole on every tensor rank: it does not shrink with tp"
            )
    elif c.tp > c.model.num_key_value_heads and c.tp % c.model.num_key_value_heads == 0:
        copies = c.tp // c.model.num_key_value_heads // c.dcp
        if copies > 1:
            out.append(
                f"{c.model.num_key_value_heads} KV heads on {c.tp} ranks: each is copied {copies} "
                "times, so the cache per GPU does not shrink further"
            )
    if c.weights.name == "int4" and not c.model.quant_group:
        grouped = replace(c.model, quant_block=0, quant_group=_USUAL_GROUP)
        out += [
            f"the size of the int4 groups is not known; groups of {_USUAL_GROUP}, the usual size, "
            f"would not divide {fault.tensor}: {fault.width} / {fault.ranks} = {fault.shard}"
            for fault in block_faults(grouped, tp=c.tp, ep=max(1, c.ep))[:1]
        ]
    native = NATIVE_CAPABILITY.get(c.weights.name)
    have = c.gpu.compute_capability
    if native is not None and have is not None and have < native:
        out.append(
            f"{c.weights.name} arithmetic needs compute capability {native:g}, this GPU has "
            f"{have:g}: weights are unpacked, activations stay in 16 bits"
        )
    sizes = stage_layers(c.model.num_hidden_layers, c.pp, c.pp_layer_partition)
    counts = [len(part) for part in sizes]
    if len(set(counts)) > 1 and min(counts) > 0:
        shown = ", ".join(str(size) for size in counts)
        if len(counts) > _MOST_LISTED:
            shown = f"{min(counts)} to {max(counts)}"
        out.append(f"stages hold {shown} layers and differ in memory; each is judged on its own")
    out += _node_notes(c)
    return tuple(out)
