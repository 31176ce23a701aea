"""Which candidates to measure, at which loads, in which order, and what each run decides.

Runs split the tie set, test the cheapest stretch candidate, give each recommended GPU three to five
points over the load, and measure the incumbent twice: the difference of its two runs is the rig's
own spread. Until it is known 15 % is assumed, and a result inside it decides nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil, inf
from typing import Any, Final

import polars as pl

from sieve.plan.record import Entry
from sieve.plan.run_facts import RunFacts
from sieve.ranking.answer import MAX_TIED
from sieve.units import SECONDS_PER_HOUR

RIG_SPREAD: Final = 0.15
"""By how much reruns on real hardware may differ."""

MOST_POINTS: Final = 5
MAX_GROWTH: Final = 0.02
"""Seconds of wait gained per second above which a load is beyond the deployment."""


@dataclass
class Run:
    """One benchmark.

    Attributes:
        candidate_id, level: what is measured.
        num_runs: how often, one after another.
        reasons: why: `kind` and what it `decides`.
    """

    candidate_id: str
    level: float
    num_runs: int = 1
    reasons: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Choice:
    """Candidates by role, and runs in order."""

    roles: dict[str, list[str]]
    runs: list[Run]
    notes: list[str]


def choose(facts: RunFacts, top: int) -> Choice:
    """Return what to measure of a run whose ranking is not empty.

    Args:
        facts: of the run.
        top: at least the first so many of the ranking get their files and a run.
    """
    incumbent, answer = facts.ranking[0], facts.record.answer
    roles: dict[str, list[str]] = {incumbent.candidate_id: ["incumbent"]}

    def add(candidate: str, role: str) -> None:
        found = roles.setdefault(candidate, [])
        if role not in found:
            found.append(role)

    plan = _Runs()
    plan.add(incumbent, 1.0, _rig("first"))
    notes = _notes(facts)
    if answer.settle is not None:
        pair = [facts.entry(key) for key in answer.settle.candidate_ids]
        add(pair[1].candidate_id, "settles the tie")
        repeats = ceil(answer.settle.num_requests / facts.record.serving.traffic.num_requests)
        plan.add(pair[0], 1.0, _settle(facts, pair), repeats)
        other = f"the other side of the comparison with {pair[0].candidate_id}"
        plan.add(pair[1], 1.0, {"kind": "settle", "decides": other}, repeats)
    stretch = _cheapest_stretch(facts)
    if stretch is not None:
        add(stretch.candidate_id, "cheapest stretch")
        plan.add(stretch, 1.0, _stretch(facts, stretch))
    for entry in _per_gpu(facts):
        add(entry.candidate_id, f"recommended on {entry.gpu}")
        points = load_points(facts.simulations, entry.candidate_id)
        if len(points) < 3:
            notes.append(
                f"{entry.candidate_id}: {len(points)} of the replayed loads can be served; three "
                "points calibrate, so add levels (traffic.levels)"
            )
        for level, place in points:
            plan.add(entry, level, _load(entry, place))
    for entry in facts.ranking[:top]:
        add(entry.candidate_id, f"rank {entry.rank}")
        twin = _exact_tie(facts, entry, plan.runs)
        if twin is None:
            plan.add(entry, 1.0, _confirm(entry))
        elif twin != entry.candidate_id:
            add(entry.candidate_id, f"exact tie of {twin}: one run stands for both")
    for key in _finalists(facts):
        add(key, "finalist")
    again = Run(incumbent.candidate_id, 1.0, 1, [_rig("again")])
    return Choice(roles, [*plan.runs, again], notes)


class _Runs:
    """Runs in order, one per candidate and load."""

    def __init__(self) -> None:
        self.runs: list[Run] = []

    def add(
        self,
        entry: Entry,
        level: float,
        reason: dict[str, Any],
        num_runs: int = 1,
    ) -> None:
        key = (entry.candidate_id, level)
        run = next((r for r in self.runs if (r.candidate_id, r.level) == key), None)
        if run is None:
            run = Run(*key)
            self.runs.append(run)
        run.num_runs = max(run.num_runs, num_runs)
        run.reasons.append(reason)


def load_points(simulations: pl.DataFrame, candidate: str) -> list[tuple[float, str]]:
    """Return up to five loads that a candidate can serve: `low`, `knee`, `near saturation`."""
    served = (pl.col("status") == "") & (pl.col("queue_growth") <= MAX_GROWTH)
    found = simulations.filter((pl.col("candidate_id") == candidate) & served)
    levels = sorted(found["level"].to_list())
    if len(levels) > MOST_POINTS:
        last = len(levels) - 1
        picked = {levels[round(i * last / (MOST_POINTS - 1))] for i in range(MOST_POINTS)}
        levels = sorted(picked | ({1.0} & set(levels)))[-MOST_POINTS:]
    places = {0: "low", len(levels) - 1: "near saturation"}
    return [(level, places.get(i, "knee")) for i, level in enumerate(levels)]


def _finalists(facts: RunFacts) -> list[str]:
    """Return the candidates whose `serve.sh` the run wrote."""
    answer = facts.record.answer
    winners = (answer.fewest_gpus, answer.best_per_gpu, answer.cheapest)
    return [*answer.tie_group[:MAX_TIED], *(key for key in winners if key is not None)]


def _exact_tie(facts: RunFacts, entry: Entry, runs: Sequence[Run]) -> str | None:
    """Return a measured candidate with the same replay, itself or another; None: there is none."""
    replay = facts.rows[entry.candidate_id].get("replay_of")
    for run in runs:
        same = replay is not None and facts.rows[run.candidate_id].get("replay_of") == replay
        if run.candidate_id == entry.candidate_id or same:
            return run.candidate_id
    return None


def _cheapest_stretch(facts: RunFacts) -> Entry | None:
    """Return the cheapest candidate that holds in the middle only, other than the incumbent."""
    found = [e for e in facts.ranking[1:] if e.verdict == "point_only"]
    return min(found, key=_cost, default=None)


def _cost(entry: Entry) -> tuple[float, int, str]:
    cost = entry.usd_per_mtok.mid
    return (inf if cost is None else cost, entry.num_gpus, entry.candidate_id)


def _per_gpu(facts: RunFacts) -> list[Entry]:
    """Return the first ranked candidate of each GPU that is recommended by any yardstick."""
    answer = facts.record.answer
    wanted = {answer.fewest_gpus, answer.best_per_gpu, answer.cheapest, *answer.tie_group}
    wanted.add(facts.ranking[0].candidate_id)
    first: dict[str, Entry] = {}
    for entry in facts.ranking:
        if entry.candidate_id in wanted:
            first.setdefault(entry.gpu, entry)
    return list(first.values())


def _rig(which: str) -> dict[str, Any]:
    decides = (
        "the rig's own spread, together with the last run"
        if which == "first"
        else "the rig's own spread, against the first run; restart the engine in between"
    )
    return {"kind": "rig", "decides": decides, "assumed_spread": RIG_SPREAD}


def _settle(facts: RunFacts, pair: Sequence[Entry]) -> dict[str, Any]:
    settle = facts.record.answer.settle
    assert settle is not None
    second = pair[1]
    at_one = facts.simulations.filter(pl.col("level") == 1.0)
    values = [
        at_one.filter(pl.col("candidate_id") == e.candidate_id)[settle.metric][0] for e in pair
    ]
    apart = abs(values[1] / values[0] - 1.0) if values[0] else None
    inside = apart is None or apart < RIG_SPREAD
    decides = f"whether {second.candidate_id} is better than this one by "
    decides += f"{settle.metric}; the two predictions part at {settle.decides_at:.4g}"
    if inside and apart is not None:
        decides += (
            f". Predicted {apart:.1%} apart, inside a spread of {RIG_SPREAD:.0%}: only runs back "
            "to back on one machine, or a smaller spread of the incumbent's two runs, decide it"
        )
    return {
        "kind": "settle",
        "decides": decides,
        "metric": settle.metric,
        "decides_at": settle.decides_at,
        "predicted_apart": apart,
        "inside_rig_spread": inside,
    }


def _stretch(facts: RunFacts, entry: Entry) -> dict[str, Any]:
    cost, now = entry.usd_per_mtok.mid, facts.ranking[0].usd_per_mtok.mid
    money = ""
    if cost is not None and now is not None:
        money = f" ({cost:.3g} instead of {now:.3g} USD per million output tokens)"
    decides = "whether it meets every objective: it does in the middle of its intervals only"
    return {"kind": "stretch", "decides": decides + money}


def _load(entry: Entry, place: str) -> dict[str, Any]:
    return {
        "kind": "load",
        "place": place,
        "decides": f"how far predictions for {entry.gpu} are off at this load ({place})",
    }


def _confirm(entry: Entry) -> dict[str, Any]:
    decides = f"whether rank {entry.rank} behaves as predicted; nothing between candidates"
    return {"kind": "confirm", "decides": decides}


def _notes(facts: RunFacts) -> list[str]:
    status = facts.record.answer.status
    if status == "weak_evidence":
        return [
            "Nothing clears every objective at the pessimistic end: these are stretch candidates, "
            "which do in the middle only. Measure before you buy."
        ]
    if status == "no_slo":
        return [
            "No candidate meets the objectives even in the middle of its intervals. The plan "
            "measures the nearest of the ranking: only if it beats its accept band is the answer "
            "wrong. `nearest_misses` of result.json say what would fix it."
        ]
    return []


def gpu_hours(duration_s: float, num_gpus: int) -> float:
    """Return what a run of this length takes."""
    return duration_s * num_gpus / SECONDS_PER_HOUR
