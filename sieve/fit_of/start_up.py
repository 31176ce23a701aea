"""The ledger held against one start-up: the deployment that a log states, and each term of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from sieve.catalog.accelerators import load_gpu
from sieve.catalog.models import load_model, with_stored_weights
from sieve.errors import ResultError
from sieve.fit_of.configuration import Configuration, configure
from sieve.fit_of.verdict import Fit, fit
from sieve.memory.corrections import KNOBS, release
from sieve.units import GIB

_NONE: Final = frozenset({"", "None", "none", "null"})
_PLAIN_WEIGHTS: Final = frozenset({"bf16", "fp16"})
_NOT_DESCRIBED: Final = (
    ("speculative_config", "speculative decoding"), ("enable_lora", "LoRA"),
    ("cpu_offload_gb", "weights offloaded to the CPU"),
    ("kv_cache_memory_bytes", "a cache of fixed size"),
    ("num_gpu_blocks_override", "a fixed number of blocks"),
)  # fmt: skip
_CARD_TOLERANCE: Final = 0.05
_CLOSES_BYTES: Final = 0.05 * GIB  # five figures rounded to 0.01 GiB, and what start-up leaves out


@dataclass(frozen=True)
class StartUpFacts:
    """What a log states, freed of its lines.

    Attributes:
        where: the file, for messages.
        version: release in full, "" if the log has no banner.
        covers: first and last release that print such lines, "" if unknown.
        arguments: engine options as text.
        states_arguments: options that are not listed were left to their defaults.
        figures: bytes and counts by name.
        stage: pipeline stage of the worker that they are about, None if unknown.
        failure: why the engine did not start, "" if not stated.
    """

    where: str
    version: str
    covers: tuple[str, str]
    arguments: Mapping[str, str]
    states_arguments: bool
    figures: Mapping[str, float]
    stage: int | None
    failure: str


@dataclass(frozen=True)
class Term:
    """One line of the ledger; bytes, or a count where `is_count`."""

    name: str
    measured: float | None
    predicted: float
    is_count: bool = False


@dataclass(frozen=True)
class StartUpComparison:
    """A start-up beside its prediction.

    Attributes:
        predicted: the ledger, without earlier corrections.
        outcome: `boots`, `fails` or `unknown`, as the log has it.
        terms: of the ledger, in order.
        corrections: measured minus predicted of what may be corrected, bytes.
        knobs: options that the corrections depend on.
        notes: what is worth knowing.
    """

    predicted: Fit
    outcome: str
    terms: tuple[Term, ...]
    corrections: Mapping[str, float]
    knobs: Mapping[str, Any]
    notes: tuple[str, ...]


def stated_configuration(
    facts: StartUpFacts,
    *,
    model: str | None = None,
    gpu: str | None = None,
    engine: str | None = None,
    base_dir: Path | None = None,
    **given: Any,
) -> Configuration:
    """Return the deployment that a log states, completed by what the user gives.

    Args:
        facts: of the log.
        model: where the log's name is a local path or missing.
        gpu: the log does not name it.
        engine: where the log has no banner.
        base_dir: where relative paths of the model start.
        given: options of `configure`; None: as the log has them.

    Raises:
        ResultError: something is not known, or the user and the log contradict each other.
        SieveError: an unknown model, card or engine, or an option outside its range.
    """
    where = facts.where
    name = model or _text(facts, "model")
    if not name:
        raise ResultError(f"{where}: the log does not name the model; give --model")
    if not gpu:
        raise ResultError(f"{where}: a start-up log does not name the GPU; give --gpu")
    options: dict[str, Any] = {}
    for option, argument, read in (
        ("tp", "tensor_parallel_size", _count), ("pp", "pipeline_parallel_size", _count),
        ("dcp", "decode_context_parallel_size", _count), ("max_num_seqs", "max_num_seqs", _count),
        ("max_num_batched_tokens", "max_num_batched_tokens", _count),
        ("block_size", "block_size", _count), ("max_model_len", "max_model_len", _length),
        ("gpu_memory_utilization", "gpu_memory_utilization", _share),
        ("kv_cache_dtype", "kv_cache_dtype", _text), ("enforce_eager", "enforce_eager", _switch),
    ):  # fmt: skip
        options[option] = _agreed(facts, option, given.pop(option, None), read(facts, argument))
    experts = given.pop("ep", None)
    dealt = bool(_switch(facts, "enable_expert_parallel"))
    weight_dtype = given.pop("weight_dtype", None)
    assert not given, f"options {sorted(given)} are none of a start-up"
    facts_of_model = load_model(name, base_dir=base_dir, any_family=True)
    facts_of_model = with_stored_weights(facts_of_model, name, base_dir=base_dir)
    if weight_dtype is None and _text(facts, "quantization") == "fp8":
        weight_dtype = "fp8" if facts_of_model.checkpoint_dtype in _PLAIN_WEIGHTS else None
    # Without experts, or with sliced ones, each rank is judged as an engine of its own.
    ranks = _count(facts, "data_parallel_size") or 1
    ranks = ranks if dealt and facts_of_model.moe is not None else 1
    if experts is None and dealt:
        experts = (options["tp"] or 1) * ranks
    card = load_gpu(gpu)
    total = facts.figures.get("total_bytes")
    if total is not None:
        if abs(total / card.memory_bytes - 1) > _CARD_TOLERANCE:
            raise ResultError(
                f"{where}: the card reports {total / GIB:.2f} GiB, {card.name} "
                f"{card.memory_bytes / GIB:.2f} GiB: another card?"
            )
        card = replace(card, memory_bytes=total)
    return configure(
        facts_of_model,
        card,
        engine=_engine(facts, engine),
        tp=options.pop("tp") or 1,
        pp=options.pop("pp") or 1,
        dcp=options.pop("dcp") or 1,
        dp=ranks,
        ep=experts or 1,
        weight_dtype=weight_dtype or "auto",
        kv_cache_dtype=options.pop("kv_cache_dtype") or "auto",
        enforce_eager=bool(options.pop("enforce_eager")),
        max_model_len=options["max_model_len"],
        max_num_seqs=options["max_num_seqs"],
        max_num_batched_tokens=options["max_num_batched_tokens"],
        block_size=options["block_size"],
        gpu_memory_utilization=options["gpu_memory_utilization"],
    )


def compare(facts: StartUpFacts, configuration: Configuration) -> StartUpComparison:
    """Return each term of the ledger beside what the log states, and what to correct."""
    result = fit(replace(configuration, corrections=()))
    book = next((s for s in result.stages if s.stage == facts.stage), result.stages[result.decides])
    measured, notes = _measured(facts, result)
    inside = book.graph_bytes if result.graphs_inside else 0.0
    reserved = book.activation_bytes + book.non_torch_bytes + inside
    terms = (
        Term("budget_bytes", measured.get("budget_bytes"), result.budget_bytes),
        Term("weight_bytes", facts.figures.get("weight_bytes"), book.weight_bytes),
        Term("activation_bytes", measured.get("activation_bytes"), book.activation_bytes),
        Term("non_torch_bytes", measured.get("non_torch_bytes"), book.non_torch_bytes),
        Term("graph_bytes", measured.get("graph_bytes"), book.graph_bytes),
        Term("reserved_bytes", measured.get("reserved_bytes"), reserved),
        Term("kv_bytes", facts.figures.get("kv_bytes"), book.kv_bytes),
        Term("kv_tokens", facts.figures.get("kv_tokens"), float(result.kv_tokens), is_count=True),
        Term(
            "concurrency", facts.figures.get("concurrency"), result.concurrency_engine,
            is_count=True,
        ),
    )  # fmt: skip
    corrections = {
        term.name: term.measured - term.predicted
        for term in terms
        if term.name in {"activation_bytes", "non_torch_bytes", "graph_bytes"}
        and term.measured is not None
    }
    whole = measured.get("reserved_bytes")
    if whole is not None and not {"activation_bytes", "non_torch_bytes"} <= set(corrections):
        known = reserved + sum(
            value
            for name, value in corrections.items()
            if name != "graph_bytes" or result.graphs_inside
        )
        corrections["unsplit_bytes"] = whole - known
    missing = [words for name, words in _NOT_DESCRIBED if _is_on(facts, name)]
    several = (_count(facts, "data_parallel_size") or 1) > 1
    if several and configuration.model.moe is not None and configuration.dp == 1:
        missing.append("experts sliced over data-parallel ranks")
    if missing:
        notes.append(f"the ledger does not describe {', '.join(missing)}: nothing is corrected")
        corrections = {}
    if facts.failure:
        notes.append(f"the engine did not start: {facts.failure}")
    if not facts.states_arguments:
        notes.append(
            "the log lists no arguments: options that were not given are taken as the engine's "
            "defaults"
        )
    if facts.stage is None and configuration.pp > 1:
        notes.append("the log does not name the pipeline stage: compared with the one that decides")
    return StartUpComparison(
        predicted=result,
        outcome=_outcome(facts),
        terms=terms,
        corrections=corrections,
        knobs={name: getattr(configuration, name) for name in KNOBS},
        notes=tuple(notes),
    )


def _measured(facts: StartUpFacts, result: Fit) -> tuple[dict[str, float], list[str]]:
    """Return the terms as the log has them, by subtraction where it prints sums, and notes."""
    figures, notes = facts.figures, []
    out = {n: figures[n] for n in ("activation_bytes", "non_torch_bytes") if n in figures}
    weights, cache = figures.get("weight_bytes"), figures.get("kv_bytes")
    eager = result.configuration.enforce_eager
    if "non_torch_bytes" not in out and weights is not None and "consumed_bytes" in figures:
        out["non_torch_bytes"] = figures["consumed_bytes"] - weights
    estimate = figures.get("graph_estimate_bytes")
    peak = figures.get("peak_bytes")
    if "activation_bytes" not in out and peak is not None:
        # This form counts the estimate of the graphs among the activations.
        if estimate is not None or eager:
            out["activation_bytes"] = peak - (0.0 if eager or estimate is None else estimate)
        else:
            notes.append(
                "activations are logged with graphs in one figure, without an estimate of graphs"
            )
    captured = figures.get("graph_bytes")
    if not eager:
        if result.graphs_inside and estimate is not None:
            out["graph_bytes"] = estimate
        elif captured is not None:
            out["graph_bytes"] = captured
            if result.graphs_inside:
                notes.append("no estimate of graphs is logged: the captured ones stand in")
    budget = figures.get("requested_bytes")
    if budget is None and "utilisation" in figures and "total_bytes" in figures:
        budget = figures["utilisation"] * figures["total_bytes"]
    if budget is None and (facts.states_arguments or "gpu_memory_utilization" in facts.arguments):
        budget = result.budget_bytes
    if budget is None or weights is None or cache is None:
        return out, notes
    out["budget_bytes"] = budget
    out["reserved_bytes"] = budget - weights - cache
    parts = [out.get("activation_bytes"), out.get("non_torch_bytes")]
    if result.graphs_inside and not eager:
        parts.append(estimate)
    if all(part is not None for part in parts):
        rest = out["reserved_bytes"] - sum(part for part in parts if part is not None)
        if abs(rest) > _CLOSES_BYTES:
            notes.append(
                f"the log's own ledger leaves {rest / GIB:+.2f} GiB unexplained: another process "
                "on the card, or memory that is not in its terms"
            )
    return out, notes


def _outcome(facts: StartUpFacts) -> str:
    if facts.failure:
        return "fails"
    started = {"kv_tokens", "num_gpu_blocks", "concurrency"} & set(facts.figures)
    return "boots" if started else "unknown"


def _engine(facts: StartUpFacts, engine: str | None) -> str:
    if facts.version and engine:
        given = engine.partition("==")[2]
        if given and release(given) != release(facts.version):
            raise ResultError(
                f"{facts.where}: the log is of vllm {facts.version}; --engine {engine} contradicts "
                "it"
            )
    if facts.version:
        return f"vllm=={facts.version}"
    if engine and "==" in engine:
        return engine
    first, last = facts.covers
    seen = f"; its lines are those of {first} to {last}" if first else ""
    raise ResultError(f"{facts.where}: the log states no version{seen}; give --engine vllm==...")


def _agreed(facts: StartUpFacts, option: str, given: Any, stated: Any) -> Any:
    if given is not None and stated is not None and given != stated:
        flag = option.replace("_", "-")
        raise ResultError(
            f"{facts.where}: the log was started with {option} {stated}; --{flag} {given} "
            "contradicts it"
        )
    return stated if given is None else given


def _text(facts: StartUpFacts, name: str) -> str | None:
    text = facts.arguments.get(name, "")
    return None if text in _NONE else text


def _count(facts: StartUpFacts, name: str) -> int | None:
    text = _text(facts, name)
    if text is None or text == "auto":
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 12:
        flag = name.replace("_", "-")
        raise ResultError(f"{facts.where}: {name} is {text!r}, no whole number; give --{flag}")
    return int(text)


def _length(facts: StartUpFacts, name: str) -> int | None:
    """Return the length that the engine settled on, which it prints with the concurrency."""
    settled = facts.figures.get("max_model_len")
    if settled is not None:
        return int(settled)
    return None if _text(facts, name) in {"-1", "auto"} else _count(facts, name)


def _share(facts: StartUpFacts, name: str) -> float | None:
    text = _text(facts, name)
    if text is None:
        return facts.figures.get("utilisation")
    try:
        return float(text)
    except ValueError:
        raise ResultError(f"{facts.where}: {name} is {text!r}, no number") from None


def _switch(facts: StartUpFacts, name: str) -> bool | None:
    text = _text(facts, name)
    return None if text is None else text == "True"


def _is_on(facts: StartUpFacts, name: str) -> bool:
    text = _text(facts, name)
    return text is not None and text not in {"False", "0", "0.0", "{}"}
