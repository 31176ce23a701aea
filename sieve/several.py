"""Several models in one run: each is searched by itself, then all finalists are ranked together.

A model brings its own rules, memory, step times and default precision, so the stages run once a
model, and each gets a shortlist of its own. What they replay is the same traffic, resampled alike,
so their candidates are ordered and tied by stage 6 as those of one grid are. Ids end in the model:
`h100-sxm-80gb.tp4.[...].b8192.model-qwen3-32b`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import polars as pl

from sieve.assumptions import stated
from sieve.catalog.architecture import ModelArchitecture
from sieve.context import RunContext
from sieve.errors import Fault, SpecError
from sieve.model_folders import MODELS, joint_id
from sieve.pipeline import Outcome, answer_of, levels_of, ranking_rows
from sieve.ranking.answer import MAX_MISSES
from sieve.results import clean
from sieve.run_result import RunResult
from sieve.spec import ResolvedSpec
from sieve.stage import verify
from stages import s6_rank

MAX_LABEL: Final = 60
_NEARNESS: Final = ("pessimistic_end", "middle", "bound")
_SUMMED: Final = ("num_in", "num_admitted", "num_rejected", "elapsed_s")


@dataclass(frozen=True, eq=False)
class Part:
    """One model's share of a run."""

    context: RunContext
    outcome: Outcome
    result: RunResult


def model_labels(models: Sequence[ModelArchitecture], spec: ResolvedSpec) -> list[str]:
    """Return a short label for each model, made of `a-z 0-9 . -`; all differ.

    Raises:
        SpecError: a model is named twice, or two cannot be told apart by their names or labels.
    """
    names = [model.name for model in models]
    short = [_slug(name.rsplit("/", 1)[-1]) for name in names]
    labels = short if len(set(short)) == len(short) else [_slug(name) for name in names]
    faults = []
    for name in dict.fromkeys(name for name in names if names.count(name) > 1):
        same = [replace(model, source="") for model in models if model.name == name]
        text = f"{name} is named twice (aliases count); leave one out"
        if any(model != same[0] for model in same):
            text = f"different models are called {name}; give one another name, or its folder"
        faults.append(Fault("model", text))
    for label in dict.fromkeys(labels) if not faults else ():
        of_it = [name for name, own in zip(names, labels, strict=True) if own == label]
        if not label or len(label) > MAX_LABEL:
            text = f"needs a letter a-z or a digit, and {MAX_LABEL} of them at most, for its folder"
            faults.append(Fault("model", f"the name {of_it[0]!r:.60} {text}; rename the model"))
        elif len(of_it) > 1:
            text = f"{' and '.join(of_it)} would both be labelled {label!r}; rename one"
            faults.append(Fault("model", text))
    if faults:
        raise SpecError(spec.source, faults)
    return labels


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-.")


def joined(parts: Mapping[str, Part]) -> RunResult:
    """Return the result over all models, by label; candidates of different models are ranked alike.

    `models` names each with its own run folder below this one, from which it is planned,
    explained and calibrated.
    """
    context = next(iter(parts.values())).context
    simulations = _tables(parts, lambda part: part.result.simulations)
    outcome = _joint_outcome(parts, context, simulations)
    results = [part.result for part in parts.values()]
    options = tuple(dict.fromkeys(name for p in parts.values() for name in p.context.options))
    answer = answer_of(outcome, context)
    leader = _leader(outcome, parts)
    data = results[0].data | {
        "spec": context.spec.to_json() | {"model": [r.data["spec"]["model"] for r in results]},
        "model": None,
        "models": [_entry(label, part) for label, part in parts.items()],
        "inputs": _distinct(r.data["inputs"] for r in results),
        "serving": None,
        "assumptions": _assumptions(list(parts.values()), leader),
        "stages": outcome.stages,
        "answer": answer,
        "ranking": ranking_rows(outcome, options, context.slos),
        "nearest_misses": [] if answer["status"] == "answer" else _nearest(parts),
        "levels": levels_of(outcome, context),
        "advice": [] if leader is None else leader.result.data["advice"],
        "audit": None,
    }
    return RunResult(
        data=clean(data),
        candidates=_tables(parts, lambda part: part.result.candidates),
        simulations=simulations,
        files={
            _joint_path(name, label): text
            for label, part in parts.items()
            for name, text in part.result.files.items()
            if name.startswith("plan/")
        },
        timeline=_timeline(leader, outcome),
        exhaustive=summed_cost([r.exhaustive for r in results]),
        requests=results[0].requests,
        parts={label: part.result for label, part in parts.items()},
    )


def _joint_outcome(
    parts: Mapping[str, Part], context: RunContext, simulations: pl.DataFrame
) -> Outcome:
    complete = all(part.outcome.is_complete for part in parts.values())
    if complete:
        frame = _tables(parts, lambda part: part.outcome.simulated)
        found = s6_rank.run(frame, context)
        verify(s6_rank.STAGE, frame, found)
        ranked = found.admitted
    else:
        ranked = _tables(parts, lambda part: part.outcome.ranked)
    records = [part.outcome.stages for part in parts.values()]
    return Outcome(
        stages=[summed_record(same) for same in zip(*records, strict=True)],
        ranked=ranked,
        rejected=_tables(parts, lambda part: part.outcome.rejected),
        simulations=simulations,
    )


def summed_record(same: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the record of a stage over all models."""
    reasons: Counter[str] = Counter()
    for record in same:
        reasons.update(record["reasons"])
    sums = {name: sum(record[name] for record in same) for name in _SUMMED}
    return {**same[0], **sums, "reasons": dict(reasons)}


def _tables(parts: Mapping[str, Part], table: Callable[[Part], pl.DataFrame]) -> pl.DataFrame:
    """Return a table of every part below each other, with the model and with the joint ids."""
    frames = []
    for label, part in parts.items():
        frame = table(part)
        if not frame.columns:
            continue
        ids = [name for name in ("candidate_id", "replay_of") if name in frame.columns]
        at = frame.columns.index("candidate_id") + 1
        joint = [(pl.col(name) + joint_id("", label)).alias(name) for name in ids]
        model = pl.Series("model", [part.context.model.name], pl.String)
        model = model.new_from_index(0, len(frame))
        frames.append(frame.with_columns(joint).insert_column(at, model))
    return pl.concat(frames, how="diagonal_relaxed") if frames else pl.DataFrame()


def _joint_path(name: str, label: str) -> str:
    """Return the place of a candidate's file of the plan: `plan/ID/serve.sh`, with the joint id."""
    folder, candidate, *rest = name.split("/")
    return "/".join([folder, joint_id(candidate, label), *rest])


def _entry(label: str, part: Part) -> dict[str, Any]:
    return {
        **part.result.data["model"],
        "folder": f"{MODELS}/{label}",
        "num_candidates": part.outcome.stages[0]["num_in"],
        "status": part.result.answer["status"],
    }


def _distinct(lists: Iterable[Sequence[Any]]) -> list[Any]:
    """Return the entries of some lists in order, equal ones once."""
    out: list[Any] = []
    for entries in lists:
        out += [entry for entry in entries if entry not in out]
    return out


def _assumptions(parts: Sequence[Part], leader: Part | None) -> list[dict[str, Any]]:
    """Return what was assumed, once what all models share; the rest names its model."""
    lists = [
        [asdict(a) for a in stated(part.context, part.outcome, leads=part is leader)]
        for part in parts
    ]
    out = [note for note in lists[0] if all(note in notes for notes in lists)]
    for part, notes in zip(parts, lists, strict=True):
        model = part.context.model.name
        for note in notes:
            if note not in out:
                own = note["about"] if model in note["about"] else f"{note['about']}, {model}"
                out.append({**note, "about": own})
    return out


def _leader(outcome: Outcome, parts: Mapping[str, Part]) -> Part | None:
    """Return the part of the model that the first of the ranking serves."""
    if not outcome.is_complete or outcome.ranked.is_empty():
        return None
    model = outcome.ranked["model"][0]
    return next(p for p in parts.values() if p.context.model.name == model)


def _timeline(leader: Part | None, outcome: Outcome) -> pl.DataFrame:
    if leader is None or not leader.result.timeline.columns:
        return pl.DataFrame()
    first = pl.lit(outcome.ranked["candidate_id"][0]).alias("candidate_id")
    return leader.result.timeline.with_columns(first)


def _nearest(parts: Mapping[str, Part]) -> list[dict[str, Any]]:
    """Return the nearest misses of all models, the nearest first."""
    found = []
    for label, part in parts.items():
        for miss in part.result.data["nearest_misses"]:
            fixes = [_renamed(fix, label) for fix in miss.get("fixes", [])]
            found.append(_renamed(miss, label) | {"fixes": fixes})
    return sorted(found, key=_distance)[:MAX_MISSES]


def _renamed(entry: Mapping[str, Any], label: str) -> dict[str, Any]:
    return {**entry, "candidate_id": joint_id(entry["candidate_id"], label)}


def _distance(miss: Mapping[str, Any]) -> tuple[Any, ...]:
    off = miss["off_by_frac"]
    return _NEARNESS.index(miss["at"]), float("inf") if off is None else off, miss["candidate_id"]


def summed_cost(costs: Sequence[Mapping[str, Any] | None]) -> dict[str, Any]:
    """Return what replaying every survivor of every model would take; {} if one is not known."""
    known = [cost for cost in costs if cost]
    if len(known) < len(costs):
        return {}
    return {name: sum(cost[name] for cost in known) for name in known[0]}
