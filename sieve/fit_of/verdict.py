"""Whether a deployment fits, by how much, what it then holds and what would make it fit."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final

from sieve.errors import InvalidInput
from sieve.fit_of.books import (
    StageBook,
    layouts_of,
    ledger_of,
    longest_len,
    outside_bytes,
    printed_tokens,
    stages_of,
)
from sieve.fit_of.configuration import Configuration
from sieve.fit_of.rules import Check, RuleResult, check, legal_sizes, rules_of
from sieve.fit_of.traffic import TrafficFit, traffic_fit
from sieve.memory.cache import CacheLayout
from sieve.memory.corrections import KNOBS, to_entries
from sieve.memory.formats import weight_format
from sieve.memory.weights import checkpoint_bytes
from sieve.units import GIB, MIB

_MOST_UTILISATION: Final = 0.97
_STORED_TOLERANCE: Final = 0.03
_TESTED_CARDS: Final = ("H100", "H200", "GH200")


@dataclass(frozen=True)
class Fit:
    """Whether a deployment starts, by how much, and what it then holds.

    Attributes:
        configuration: what was judged.
        check: the validity rules.
        total_bytes, budget_bytes: the card, and the share that the engine may use.
        stages: by pipeline stage; stages that are alike come once.
        decides: place in `stages` of the one with the fewest blocks.
        fits: one request of `max_model_len` fits beside everything else and no rule is broken.
        reason: "" or `invalid`, `weights_overflow`, `no_page`, `max_model_len`.
        margin_bytes: what is left beyond that request; negative: what is missing.
        outside_bytes: what is left of the share outside the budget after context, graphs that are
            not counted inside, and the sampler's warm-up; negative: start-up may fail all the same.
        graphs_inside: graphs are subtracted before the cache.
        num_blocks: blocks of the cache.
        block_tokens: tokens of a block of the layers that grow.
        kv_tokens: as the engine's log prints them.
        token_bytes: what a further token costs.
        blocks_per_request: of one request of full length.
        concurrency_engine: requests of full length, as the engine prints it.
        concurrency_by_division: tokens of the pool over length, wrong where kinds of layers differ.
        concurrency_scheduler: `max_num_seqs`.
        longest_len: longest `max_model_len` that fits, 0 if none.
        traffic: what it holds of given traffic, None where none is given.
        remedies: what to change, in words; empty where it fits.
        notes: what is assumed or worth knowing.
    """

    configuration: Configuration
    check: Check
    total_bytes: float
    budget_bytes: float
    stages: tuple[StageBook, ...]
    decides: int
    fits: bool
    reason: str
    margin_bytes: float
    outside_bytes: float
    graphs_inside: bool
    num_blocks: int
    block_tokens: int
    kv_tokens: int
    token_bytes: float
    blocks_per_request: int
    concurrency_engine: float
    concurrency_by_division: float
    concurrency_scheduler: int
    longest_len: int
    remedies: tuple[str, ...]
    notes: tuple[str, ...]
    traffic: TrafficFit | None = None


_TERM_WORDS: Final = {
    "activation_bytes": "activation",
    "non_torch_bytes": "non-torch",
    "graph_bytes": "graphs",
    "unsplit_bytes": "non-torch (not taken apart in the log)",
}


def fit(configuration: Configuration, *, isl: float | None = None, osl: float | None = None) -> Fit:
    """Return the memory ledger of a deployment and whether it fits.

    Args:
        configuration: the deployment.
        isl: mean tokens of a prompt, for the concurrency on such traffic.
        osl: mean tokens of an answer; with `isl` or not at all.

    Raises:
        InvalidInput: one length without the other, or lengths outside their range.
    """
    if (isl is None) != (osl is None):
        raise InvalidInput("traffic has two mean lengths: give isl and osl together")
    rules = check(configuration)
    book = ledger_of([configuration])
    layouts = layouts_of(configuration)
    stages = stages_of(configuration)
    stage = int(book.stage[0])
    decides = next((i for i, part in enumerate(stages) if part.stage == stage), 0)
    layout = layouts[min(stage, len(layouts) - 1)]
    needed, blocks = int(book.blocks_per_request[0]), max(0, stages[decides].num_blocks)
    margin = float(book.slack_bytes[0])
    reason = ""
    if not rules.ok:
        reason = "invalid"
    elif book.weights_overflow[0]:
        reason = "weights_overflow"
    elif book.num_blocks[0] < 1:
        reason = "no_page"
    elif margin < 0:
        reason = "max_model_len"
    engine, length = float(book.concurrency[0]), configuration.max_model_len
    tokens = printed_tokens(configuration, layout, blocks, engine)
    outside = outside_bytes(configuration, book)
    longest = 0 if reason in {"weights_overflow", "no_page"} else longest_len(configuration)
    result = Fit(
        configuration=configuration,
        check=rules,
        total_bytes=configuration.gpu.memory_bytes,
        budget_bytes=float(book.budget_bytes[0]),
        stages=stages,
        decides=decides,
        fits=not reason,
        reason=reason,
        margin_bytes=margin,
        outside_bytes=outside,
        graphs_inside=bool(configuration.engine.ledger.get("graphs_inside_budget", 0)),
        num_blocks=blocks,
        block_tokens=layout.block_tokens,
        kv_tokens=tokens,
        token_bytes=layout.token_bytes,
        blocks_per_request=needed,
        concurrency_engine=engine,
        concurrency_by_division=blocks // layout.num_groups * layout.block_tokens / length,
        concurrency_scheduler=configuration.max_num_seqs,
        longest_len=longest,
        remedies=(),
        notes=(),
        traffic=(
            None
            if isl is None or osl is None
            else traffic_fit(configuration, layout, blocks, isl=isl, osl=osl)
        ),
    )
    return replace(result, remedies=_remedies(result), notes=_notes(result, layout))


def _remedies(result: Fit) -> tuple[str, ...]:
    """Return what to change, cheapest first; each is tried on the ledger."""
    c = result.configuration
    if result.fits or result.reason == "invalid":
        return ()
    out = []
    if result.reason == "max_model_len" and result.longest_len:
        out.append(f"max_model_len {result.longest_len} or less")
    missing = -result.margin_bytes
    raised = c.gpu_memory_utilization + missing / c.gpu.memory_bytes
    raised = math.ceil(raised * 1000) / 1000
    if raised <= _MOST_UTILISATION:
        out.append(f"gpu_memory_utilization {raised:g} or more")
    changes: list[tuple[str, dict[str, Any]]] = []
    if c.kv_cache_dtype == "auto":
        changes.append(("kv_cache_dtype fp8", {"kv_cache_dtype": "fp8"}))
    if c.weights.linear_bytes > 1:
        changes.append(("weight_dtype fp8", {"weights": weight_format(c.model, "fp8")}))
    if c.max_num_seqs > 64:
        changes.append(("max_num_seqs 64", {"max_num_seqs": 64}))
    for size in legal_sizes(c, rules_of(c), "tp"):
        if c.tp < size <= 64:
            ep = size if c.ep > 1 else 1
            changes.append((f"tp {size}", {"tp": size, "ep": ep}))
    deeper = legal_sizes(c, rules_of(c), "pp")
    depths = [size for size in (2, 4, 8, 16) if c.pp < size and size in deeper]
    changes += [(f"pp {size}", {"pp": size}) for size in depths]
    seen: set[str] = set()
    for words, change in changes:
        knob = words.split()[0]
        if knob in seen:
            continue
        changed = replace(c, **change)
        book = ledger_of([changed])
        if book.weights_overflow[0]:
            continue
        if book.slack_bytes[0] >= 0:
            seen.add(knob)
            out.append(words)
        elif knob == "weight_dtype" and (length := longest_len(changed)):
            out.append(f"{words} and max_model_len {length} or less")
    return tuple(out)


def _notes(result: Fit, layout: CacheLayout) -> tuple[str, ...]:
    c = result.configuration
    out = [*result.check.notes]
    if result.fits and result.outside_bytes < 0:
        out.append(
            f"starting is not serving: outside the budget {-result.outside_bytes / MIB:,.0f} MiB "
            "are missing for context, graphs and the sampler's warm-up; lower "
            "gpu_memory_utilization"
        )
    spare = result.concurrency_engine / c.max_num_seqs
    if result.fits and spare >= 2:
        out.append(
            f"the cache holds {spare:.1f} times the requests of full length that max_num_seqs "
            "lets run"
        )
    out += _correction_notes(c) + _stored_notes(c)
    if c.dcp > 1:
        out.append(
            f"{c.dcp} ranks share out the tokens of a sequence: a block of {c.block_size} tokens "
            f"on a rank stands for {c.block_size * c.dcp}"
        )
    if c.dp > 1:
        out.append(
            f"every figure is of one of {c.dp} data-parallel ranks: attention weights and cache of "
            f"its own, experts dealt out over {c.ep} GPUs; that the trial run gathers the tokens "
            "of all ranks is read in the source, no start-up log shows it"
        )
    if layout.padding:
        out.append(f"state pages are padded by {layout.padding:.2%}")
    if layout.num_groups > 1:
        out.append(
            f"{layout.num_groups} groups of layers share the pool: tokens divided by length is not "
            "the concurrency"
        )
    if c.engine.name != "reference" and not any(w in c.gpu.name for w in _TESTED_CARDS):
        out.append("communication buffers and activations are assumed to be as on H100 cards")
    out += [f"assumed: {note}" for note in (*c.model.assumed, *c.gpu.assumed)]
    out += c.engine.notes[:1] if c.engine.substituted else ()
    return tuple(out)


def _stored_notes(c: Configuration) -> list[str]:
    """Return what the checkpoint's files say about the weights, and where the shapes disagree."""
    if not c.model.stored_bytes:
        return []
    own = weight_format(c.model, "auto")
    stored = c.model.stored_bytes
    counted = checkpoint_bytes(c.model, own.linear_bytes, own.expert_bytes)
    text = f"the checkpoint's files hold {stored / GIB:.2f} GiB ({c.model.stored_source})"
    if (c.weights.linear_bytes, c.weights.expert_bytes) != (own.linear_bytes, own.expert_bytes):
        return [f"{text}; served in another format, weights follow from the shapes"]
    out = [f"{text}; weights are scaled to that"]
    if abs(stored / counted - 1) > _STORED_TOLERANCE:
        out.append(
            f"the shapes of the config give {counted / GIB:.2f} GiB, {stored / counted - 1:+.1%} "
            "away: the config may be of another checkpoint, or leave parts out"
        )
    return out


def _correction_notes(c: Configuration) -> list[str]:
    """Return what was corrected from start-up logs, and where the logs had other options."""
    if not c.corrections:
        return []
    key, found = c.correction_key, c.correction
    place = f"{key.engine} {key.version}, {key.model} on {key.gpu}, tp {key.tp}"
    place += f", pp {key.pp}" if key.pp > 1 else ""
    place += f", ep {key.ep}" if key.ep > 1 else ""
    if found is None:
        return [f"the calibration has no correction for {place}; nothing was corrected"]
    dates = sorted({log.date for log in found.logs if log.date})
    terms = ", ".join(
        f"{_TERM_WORDS[name]} {value / GIB:+.2f} GiB" for name, value in found.terms.items()
    )
    logs = f"{len(found.logs)} start-up log{'s' if len(found.logs) > 1 else ''}"
    dated = f" of {dates[-1]}" if dates else ""
    out = [f"corrected from {logs}{dated} ({place}): {terms or 'nothing'}"]
    for knob in KNOBS:
        measured = sorted({log.knobs[knob] for log in found.logs if knob in log.knobs})
        if measured and getattr(c, knob) not in measured:
            shown = ", ".join(str(value) for value in measured)
            out.append(f"the correction was measured at {knob} {shown}, not {getattr(c, knob)}")
    return out


def document(result: Fit | Check) -> dict[str, Any]:
    """Return a result as a JSON-ready mapping."""
    c = result.configuration
    rules = result.check.rules if isinstance(result, Fit) else result.rules
    out: dict[str, Any] = {
        "model": c.model.name,
        "gpu": c.gpu.name,
        "engine": c.engine.requested,
        "configuration": {
            "tp": c.tp, "pp": c.pp, "ep": c.ep, "weight_dtype": c.weights.name,
            "kv_cache_dtype": c.kv_cache_dtype, "max_model_len": c.max_model_len,
            "max_num_seqs": c.max_num_seqs, "max_num_batched_tokens": c.max_num_batched_tokens,
            "gpu_memory_utilization": c.gpu_memory_utilization, "block_size": c.block_size,
            "enforce_eager": c.enforce_eager, "decode_context_parallel_size": c.dcp,
            "data_parallel_size": c.dp,
            "pp_layer_partition": list(c.pp_layer_partition), "gpus_per_node": c.gpus_per_node,
            "nodes": c.nodes, "tp_across_nodes": c.tp_across_nodes,
        },
        "defaulted": list(c.defaulted),
        "valid": all(rule.ok for rule in rules),
        "rules": [
            {field.name: getattr(rule, field.name) for field in fields(RuleResult)}
            for rule in rules
        ],
    }  # fmt: skip
    if isinstance(result, Check):
        return out | {"notes": list(result.notes)}
    stages = [
        {field.name: getattr(stage, field.name) for field in fields(StageBook)}
        for stage in result.stages
    ]
    return out | {
        "fits": result.fits,
        "reason": result.reason,
        "margin_mib": result.margin_bytes / MIB,
        "outside_margin_mib": result.outside_bytes / MIB,
        "per_gpu": {
            "total_gib": result.total_bytes / GIB,
            "budget_gib": result.budget_bytes / GIB,
            "weights_gib": result.stages[result.decides].weight_bytes / GIB,
            "activation_gib": result.stages[result.decides].activation_bytes / GIB,
            "non_torch_gib": result.stages[result.decides].non_torch_bytes / GIB,
            "cuda_graph_gib": result.stages[result.decides].graph_bytes / GIB,
            "graphs_inside_budget": result.graphs_inside,
            "available_kv_gib": result.stages[result.decides].kv_bytes / GIB,
        },
        "stages": stages,
        "deciding_stage": result.stages[result.decides].stage,
        "num_gpu_blocks": result.num_blocks,
        "block_tokens": result.block_tokens,
        "kv_tokens": result.kv_tokens,
        "kv_bytes_per_token": result.token_bytes,
        "concurrency": {
            "by_engine": result.concurrency_engine,
            "by_division": result.concurrency_by_division,
            "by_scheduler": result.concurrency_scheduler,
            "on_traffic": None if result.traffic is None else result.traffic.expected,
        },
        "traffic": None if result.traffic is None else asdict(result.traffic),
        "correction": None if c.correction is None else to_entries([c.correction])[0],
        "longest_max_model_len": result.longest_len,
        "remedies": list(result.remedies),
        "notes": list(result.notes),
    }
