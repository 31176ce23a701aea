"""What a run assumed, in words: `assumptions` of `result.json`."""

from __future__ import annotations

from typing import Final

from sieve.blocks import FIRST, KEPT
from sieve.calibration.notes import calibration_notes
from sieve.catalog.matrices import layer_plans
from sieve.context import Assumption, RunContext
from sieve.perf.table_folder import used_tables
from sieve.pipeline import Outcome

SHORT_TRACE: Final = 5
"""A trace shorter than this many slow answers says little about steady throughput."""


def stated(context: RunContext, outcome: Outcome, *, leads: bool = True) -> list[Assumption]:
    """Return everything that was assumed, in the order of reports.

    Args:
        context: of the run.
        outcome: of its stages.
        leads: whether the first of the ranking leads; not so where another model's does.
    """
    learned = []
    if context.calibration is not None:
        texts = calibration_notes(context.calibration, outcome.ranked)
        learned = [Assumption("calibration", text) for text in texts]
    return [
        *_kept(outcome),
        *_assumptions(context),
        *learned,
        *_warnings(context, outcome, leads=leads),
    ]


def _kept(outcome: Outcome) -> list[Assumption]:
    """Return which candidates of a large grid the run folder holds."""
    if not outcome.is_partial:
        return []
    kept = len(outcome.ranked) + len(outcome.rejected)
    text = (
        f"candidates.parquet holds {kept:,} of {outcome.stages[0]['num_in']:,}: those admitted to "
        f"stage 4 (at most {KEPT:,}, the best by score), the first {FIRST:,} of each reason for "
        "rejection and the nearest misses; counts are of all, and `sieve explain` computes any "
        "other anew"
    )
    return [Assumption("candidates", text)]


def _assumptions(context: RunContext) -> list[Assumption]:
    out = [Assumption("traffic", note) for note in context.requests.notes]
    out += [Assumption(f"model {context.model.name}", text) for text in context.model.assumed]
    if not context.model.verified:
        source = context.model.source
        out.append(Assumption(f"model {context.model.name}", "facts not verified", source))
    for name, gpu in context.gpus.items():
        out += [Assumption(f"GPU {name}", text) for text in gpu.assumed]
        if tables := used_tables(gpu):
            out.append(Assumption(f"GPU {name}", tables))
        if gpu.price_note:
            price = f"{gpu.usd_per_gpu_hour:g} USD per GPU-hour: {gpu.price_note}"
            out.append(Assumption(f"GPU {name}", price))
    out += [Assumption(f"engine {context.engine.requested}", text) for text in context.engine.notes]
    out += [Assumption("step time", text) for text in context.tables.notes()]
    outside_s = context.requests.front_end_s
    if outside_s is not None:
        words = f"{outside_s.mean() * 1e3:.0f} ms a request outside the engine (HTTP, tokenising, "
        words += "the chat endpoint) are part of TTFT and E2E"
        out.append(Assumption("latency", words))
    out += [Assumption("replay", text) for text in _replay_notes(context)]
    confidence = context.spec.run.rank.confidence
    words = (
        "uncalibrated defaults: the spread of public closed-loop measurements around the "
        "predictions, by metric and evidence class"
    )
    if context.calibration is not None:
        words = f"where they do not rest on local points, {words}"
    noise = "with the noise of a finite trace from 500 resamples in blocks of consecutive requests"
    out.append(Assumption("intervals", f"{words}; one-sided confidence {confidence:g}; {noise}"))
    if context.spec.run.batch_sizing == "slim":
        text = "the saturation line of the batch advisor is laid through this tool's own step times"
        out.append(Assumption("batch sizing", text))
    charged = context.spec.run.load_bytes
    out.append(Assumption("memory", f"stage 2 charges weights at their {charged} bytes"))
    offered = context.workload.offered_tokens_per_s
    if offered is not None:
        text = f"the traffic asks for {offered:,.0f} output tokens/s at level 1.0"
        limits = [s.limit for s in context.slos.limits if s.metric == "output_tokens_per_s"]
        if limits and offered < max(limits):
            text += f", so no deployment can reach the objective of {max(limits):,.0f}"
        out.append(Assumption("traffic", text))
    return out


def _replay_notes(context: RunContext) -> list[str]:
    """Return what the replay leaves out for this model and traffic."""
    kinds = {plan.kind.kind for plan in layer_plans(context.model) if plan.kind is not None}
    notes = []
    if "state" in kinds or "compressed" in kinds:
        notes.append("prefix caching is not replayed for layers with recurrent or compressed state")
    if "chunk" in kinds:
        notes.append("chunked attention holds its cache as a window of the chunk's length")
    if context.requests.previous is not None and context.requests.prefix is None:
        notes.append("turns of a session share no prefix: the trace does not say what they repeat")
    return [] if context.is_reference else notes


def _warnings(context: RunContext, outcome: Outcome, *, leads: bool) -> list[Assumption]:
    """Return what makes the figures of this run weaker than they look."""
    span = context.workload.span_s
    if int(context.requests.output_tokens.max()) == 1:
        text = "every answer has one token, so there is no TPOT and a limit on it never holds"
        return [Assumption("traffic", text)]
    ranked = leads and outcome.is_complete and not outcome.ranked.is_empty()
    if not ranked or context.workload.users is not None:
        return []
    longest = outcome.ranked["e2e_p99_s"][0]
    if span > 0 and longest is not None and longest > span / SHORT_TRACE:
        text = (
            f"the trace lasts {span:,.0f} s and the leader's slow answers {longest:,.0f} s: "
            "throughput and cost are set by the drain at its end; take more requests"
        )
        return [Assumption("traffic", text)]
    return []
