"""Stage 4: score every survivor in closed form and take the shortlist.

The score is the ranking objective at its optimistic end, so that a good candidate is not lost to
the model's error. A candidate whose optimistic end already misses an objective is rejected with
`bound_misses_slo`. Of the rest `size` are taken, at most `per_family` of one (GPU, TP, PP,
DP, replicas), by turns from five lists: the best score of all (a stretch, perhaps too small for its
load), and the best scores of those that hold at the middle, at one and two thirds of the way to the
pessimistic end, and there (safe). A closed form errs, so the sizes between are tried too, and
those places are raced for: `preview` candidates, two of a shape (family, EP and precisions) at the
two ends of its limits, are replayed over a short trace, then as many of the shapes in the lead,
those that just miss included; the shortlist follows their order (`sieve.preview`).
Candidates that differ only in a `max_num_seqs` far above their load run alike; the smallest stands
for them. Of equal scores the one furthest from its objectives at the pessimistic end goes first.

Under `reference` the score is output tokens per second per GPU at the stage-3 batch, there is one
list, and no bound rejects anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp
from typing import Final

import numpy as np
import polars as pl

from sieve.arrays import BoolArray, FloatArray, IntArray, Requests
from sieve.context import RunContext
from sieve.formulas.race import DEPTH, race
from sieve.formulas.sizing import by_turns, capped, cost_per_mtok, decode_step_s
from sieve.frames import AXES, num_engines
from sieve.perf.estimate import Ends, Estimates, Groups, busy_rate_per_s, groups_of
from sieve.ranking.intervals import End, log_error
from sieve.ranking.objective import sort_keys
from sieve.spec.slo import LATENCY_METRICS, USER_RATE, Slo
from sieve.spec.slo_classes import RequestClass
from sieve.stage import Stage, StageResult, reject, split

STAGE: Final = Stage(
    number=4,
    name="shortlist",
    purpose="score at the optimistic end; the best go on, diversity capped by family",
    reasons={"bound_misses_slo": "misses_slo", "not_selected": "not_selected"},
    adds=("score", "bound_output_tokens_per_s", "bound_ttft_s", "bound_tpot_s"),
)
SAFETY: Final = (0.0, -1 / 3, -2 / 3, -1.0)
"""How far towards the pessimistic end a list of the shortlist asks its candidates to hold."""
NEAR: Final = 0.1
"""Step of the logarithm within which two distances from the objectives count as equal."""
_GROUP: Final = ("data_parallel_size", "gpu", "tp", "pp", "replicas")
_SHAPE: Final = (*_GROUP, "ep", "weight_dtype", "kv_cache_dtype")


@dataclass(frozen=True, eq=False)
class Scored:
    """Candidates whose bounds let them through, and the order in which they are taken.

    Attributes:
        hopeful: with the columns that the stage adds.
        missing: those that miss an objective at the optimistic end, with the bound.
        lists: (lists, n) which of the hopeful each list holds.
        keys: (keys, n) keys of the objective at the optimistic end, the most important first,
            smaller is better.
        margins: (k, n) what decides between equal keys, smaller first; k = 0: the id alone.
    """

    hopeful: pl.DataFrame
    missing: pl.DataFrame
    lists: BoolArray
    keys: FloatArray
    margins: FloatArray


def run(candidates: pl.DataFrame, context: RunContext) -> StageResult:
    """Return the shortlist, and the rest with the bound they miss or as not selected."""
    if candidates.is_empty():
        return StageResult(_with_empty_bounds(candidates), _no_rows(candidates))
    return choose(score(candidates, context), context)


def score(candidates: pl.DataFrame, context: RunContext) -> Scored:
    """Return the candidates scored; each row by itself but for twins along `max_num_seqs`."""
    hopeful, missing, keys = bounded(candidates, context)
    if context.is_reference or hopeful.is_empty():
        alone = np.ones((1 if context.is_reference else 1 + len(SAFETY), len(hopeful)), np.bool_)
        return Scored(hopeful, missing, alone, keys, np.zeros((0, len(hopeful))))
    rows = groups_of(hopeful)
    ends = [_estimates(hopeful, context, sign=sign, rows=rows) for sign in SAFETY]
    worst = [_shortfalls(end, context, implied=False).max(axis=0, initial=0.0) for end in ends]
    single = ~_twins(hopeful, worst[-1], ends[-1], context)
    return Scored(
        hopeful,
        missing,
        np.stack([single, *(single & (values <= 1.0) for values in worst)]),
        keys,
        np.stack([worst[-1], -hopeful["bound_output_tokens_per_s"].to_numpy()]),
    )


def bounded(
    candidates: pl.DataFrame, context: RunContext
) -> tuple[pl.DataFrame, pl.DataFrame, FloatArray]:
    """Return those whose bounds let them through, the rest, and the keys of the first."""
    if context.is_reference or candidates.is_empty():
        scored, keys = _plain_scores(candidates, context)
        return scored, _no_rows(candidates), keys
    best = _estimates(candidates, context, sign=1)
    scored, keys = _scores(candidates, best, context)
    parts, passes = _cut_on_bounds(scored, best, context)
    return parts.admitted, parts.rejected, keys[:, passes]


def leading(scored: Scored, context: RunContext) -> IntArray:
    """Return the rows from which the shortlist may be chosen, rising.

    In each list the best of each family and of each shape, of the families that lead it. Of a part
    of the candidates they hold all that would be chosen of the whole: further candidates move
    nobody forward in a list.
    """
    limits, hopeful = context.spec.run.shortlist, scored.hopeful
    races = not context.is_reference and limits.preview > 0
    size = max(limits.preview, limits.size) if races else limits.size
    family, shape = _numbered(hopeful, _GROUP), _numbered(hopeful, _SHAPE)
    rows: list[int] = []
    for order in _orders(scored):
        _, first = np.unique(family[order], return_index=True)
        front = family[order][np.sort(first)[:size]]
        members = order[np.isin(family[order], front)]
        rows += capped(members, family, limits.per_family, len(members))
        if races:
            rows += capped(members, shape, DEPTH, len(members))
    if races:
        rows += _other_ends(hopeful, shape).tolist()
    rows += _always(hopeful, context).tolist()
    return np.array(sorted(set(rows)), np.int64)


def takes_all(hopeful: int, context: RunContext) -> bool:
    """Return whether all of so many hopeful candidates go on."""
    return context.exhaustive or hopeful <= context.spec.run.shortlist.exhaustive_below


def choose(scored: Scored, context: RunContext, *, everyone: bool | None = None) -> StageResult:
    """Return the shortlist in the order taken, and the rest with their reason.

    Args:
        scored: candidates.
        context: of the run.
        everyone: whether all of them are taken; default: as `takes_all` says.
    """
    hopeful = scored.hopeful
    if hopeful.is_empty():
        rest = _no_rows(hopeful.drop(STAGE.adds))
        return StageResult(hopeful, pl.concat([scored.missing, rest]))
    if everyone if everyone is not None else takes_all(len(hopeful), context):
        whole = np.ones((1, len(hopeful)), np.bool_)
        taken = _orders(replace(scored, lists=whole))[0]
    else:
        taken = _take(scored, context)
    wanted = _always(hopeful, context)
    taken = np.concatenate([taken, wanted[~np.isin(wanted, taken)]])
    chosen = hopeful[taken]
    left = np.ones(len(hopeful), np.bool_)
    left[taken] = False
    return StageResult(
        chosen, pl.concat([scored.missing, turned_down(hopeful.filter(left), chosen)])
    )


def turned_down(left: pl.DataFrame, chosen: pl.DataFrame) -> pl.DataFrame:
    """Return candidates that were not chosen with their reason."""
    lowest = float(chosen["score"].to_numpy().min())
    return reject(
        left,
        kind="not_selected",
        reason="not_selected",
        observed=pl.col("score"),
        limit=lowest,
        unit=pl.when(pl.col("score") < lowest)
        .then(pl.lit("score, the lowest one taken"))
        .otherwise(pl.lit("score, the lowest one taken; its family, its turn or a short replay")),
    )


def _always(hopeful: pl.DataFrame, context: RunContext) -> IntArray:
    """Return the rows of candidates that the caller wants replayed."""
    if not context.always:
        return np.zeros(0, np.int64)
    return np.flatnonzero(hopeful["candidate_id"].is_in(context.always).to_numpy())


def _take(scored: Scored, context: RunContext) -> IntArray:
    """Return the rows of the shortlist in the order taken."""
    limits, hopeful = context.spec.run.shortlist, scored.hopeful
    family, orders = _numbered(hopeful, _GROUP), _orders(scored)
    if context.preview is None:
        return by_turns(orders, family, size=limits.size, per_family=limits.per_family)
    ask, shape = context.preview, _numbered(hopeful, _SHAPE)
    first = race(
        orders,
        family,
        shape,
        _other_ends(hopeful, shape),
        lambda rows, slack: rows[ask(hopeful[rows], slack)],
        lambda rows: ask.cleared(hopeful[rows]),
        scored.keys[0],
        entries=max(limits.preview, limits.size),
    )
    rest = [np.concatenate([first, order[~np.isin(order, first)]]) for order in orders]
    return by_turns(rest, family, size=limits.size, per_family=limits.per_family)


def _other_ends(candidates: pl.DataFrame, shape: IntArray) -> IntArray:
    """Return of each shape the row with the most seats and, of those, the smallest budget.

    The lists begin a shape with few seats, which spares TPOT, and a large budget, which spares
    TTFT. Where that just misses, the other end may hold.
    """
    limits = candidates.select(
        pl.Series("shape", shape), -pl.col("max_num_seqs"), "max_num_batched_tokens", "candidate_id"
    )
    rows = limits.with_row_index("row").sort(limits.columns)
    return rows.group_by("shape", maintain_order=True).first()["row"].to_numpy().astype(np.int64)


def _with_empty_bounds(candidates: pl.DataFrame) -> pl.DataFrame:
    return candidates.with_columns(pl.lit(None, pl.Float64).alias(name) for name in STAGE.adds)


def _no_rows(candidates: pl.DataFrame) -> pl.DataFrame:
    return reject(
        _with_empty_bounds(candidates.clear()),
        kind="", reason="", observed=0.0, limit=0.0, unit="",
    )  # fmt: skip


def _numbered(candidates: pl.DataFrame, columns: Sequence[str]) -> IntArray:
    """Return a number of each candidate's values in some columns, (n,)."""
    keys = candidates.select(pl.struct(columns).rank("dense")).to_series()
    return keys.to_numpy().astype(np.int64)


def _orders(scored: Scored) -> list[IntArray]:
    """Return the rows of each list, the best first.

    Where the traffic sets the throughput, all that carry it with as many GPUs cost the same: the
    one furthest from its objectives at the pessimistic end goes first, then the one with more
    capacity, then the id. The plain rules have the id alone.
    """
    hopeful = scored.hopeful
    place = np.empty(len(hopeful), np.int64)
    place[hopeful["candidate_id"].arg_sort().to_numpy()] = np.arange(len(hopeful))
    orders = []
    for members in scored.lists:
        rows = np.flatnonzero(members)
        keys = scored.keys[::-1, rows]
        if not len(scored.margins):
            orders.append(rows[np.lexsort((place[rows], *keys))])
            continue
        # Token budgets matter least: one of each before a second, or they fill the family's places.
        margins = (place[rows], *scored.margins[::-1, rows])
        position = np.empty(len(rows), np.int64)
        position[np.lexsort(margins)] = np.arange(len(rows))
        alike = hopeful.select(*_SHAPE, "max_num_seqs")[rows]
        alike = alike.with_columns(pl.Series(f"key{i}", key) for i, key in enumerate(keys))
        placed = alike.with_columns(pl.Series("position", position))
        turn = placed.select(pl.col("position").rank("ordinal").over(alike.columns)).to_series()
        orders.append(rows[np.lexsort((position, turn.to_numpy(), *keys))])
    return orders


def _twins(
    candidates: pl.DataFrame, worst: FloatArray, slow: Estimates, context: RunContext
) -> BoolArray:
    """Return which candidates run like one with a smaller `max_num_seqs`, (n,).

    Both limits lie above twice the concurrency expected in the busiest minutes (Little's law at
    the pessimistic end, `slow`), every other axis is equal, and so is, within a tenth, how near
    they come to their objectives there (`worst`): bursts may fill seats that the mean leaves empty.
    """
    users = context.workload.users
    rate = users or busy_rate_per_s(context.requests, "p99") or 0.0
    held_s = np.ones(len(candidates)) if users else slow.e2e_s("mean")
    expected = 2 * rate * held_s / candidates.select(num_engines()).to_series().to_numpy()
    free = candidates["max_num_seqs"].to_numpy() > expected
    others = [name for name in (*AXES, *context.options) if name != "max_num_seqs"]
    near = np.floor(np.log(np.maximum(worst, 1e-9)) / NEAR)
    keyed = candidates.select(*others, "max_num_seqs").with_columns(
        pl.Series("free", free), pl.Series("near", near)
    )
    first = pl.col("max_num_seqs").min().over(*others, "free", "near")
    return keyed.select(pl.col("free") & (pl.col("max_num_seqs") > first)).to_series().to_numpy()


def _plain_scores(candidates: pl.DataFrame, context: RunContext) -> tuple[pl.DataFrame, FloatArray]:
    """Return the score of the sizing specification 9.6: tokens/s per GPU from the bounds of 9.5."""
    bandwidth = {name: gpu.mem_bw_bytes_per_s for name, gpu in context.gpus.items()}
    tp, pp = candidates["tp"].to_numpy(), candidates["pp"].to_numpy()
    per_token = (
        candidates["kv_block_bytes_per_gpu"].to_numpy() / candidates["block_size"].to_numpy()
    )
    batch = candidates["batch"].to_numpy()
    tpot = decode_step_s(
        batch=batch,
        weight_bytes=context.model.params * candidates["weight_bytes_per_param"].to_numpy() / tp,
        kv_read_bytes_per_seq=per_token * pp * context.workload.decode_context,
        bandwidth=candidates["gpu"].replace_strict(bandwidth, return_dtype=pl.Float64).to_numpy(),
        overhead_s=0.0,
    )
    tokens = batch / tpot
    scores = tokens / (tp * pp)
    scored = candidates.with_columns(
        pl.Series("score", scores),
        pl.Series("bound_output_tokens_per_s", tokens * candidates["replicas"].to_numpy()),
        pl.lit(None, pl.Float64).alias("bound_ttft_s"),
        pl.Series("bound_tpot_s", tpot),
    )
    return scored, -scores[None, :]


def _estimates(
    candidates: pl.DataFrame, context: RunContext, *, sign: float, rows: Groups = ()
) -> Estimates:
    """Return the closed-form metrics between the pessimistic (-1) and the optimistic (1) end."""
    confidence = context.spec.run.rank.confidence
    # The class is known after the replay only: weak for what a bound must not lose, plain else.
    evidence = "extrapolated" if sign > 0 else "interpolated"
    end: End = "low" if sign > 0 else "high"
    ends = Ends(
        step=exp(sign * log_error("tpot", evidence, confidence, end)),
        prompt=exp(sign * log_error("ttft", evidence, confidence, end)),
    )
    requests, workload = context.requests, context.workload
    if sign > 0 and requests.prefix is not None and candidates["enable_prefix_caching"].any():
        # A bound must not count what the prefix cache may spare.
        computed = requests.prefix.fewest_computed()
        requests = replace(requests, input_tokens=computed)
        workload = replace(workload, mean_input=float(computed.mean()))
    return Estimates(candidates, context.tables, requests, workload, ends, rows)


def _scores(
    candidates: pl.DataFrame, best: Estimates, context: RunContext
) -> tuple[pl.DataFrame, FloatArray]:
    """Return the candidates with score and bounds, and the objective's keys, (keys, n).

    The score is the first key; further ones decide between equal scores.
    """
    tokens = best.capacity_per_s() * context.workload.mean_output
    offered = context.workload.offered_tokens_per_s
    served = tokens if offered is None else np.minimum(tokens, offered)

    def metric(name: str) -> FloatArray:
        return _metric(name, candidates, served, best, context)

    keys = sort_keys(context.spec.run.rank.objective, metric, context.spec.source)
    scored = candidates.with_columns(
        pl.Series("score", -keys[0], pl.Float64),
        pl.Series("bound_output_tokens_per_s", tokens),
        pl.Series("bound_ttft_s", best.ttft_s("p50")),
        pl.Series("bound_tpot_s", best.tpot_s("mean")),
    )
    return scored, np.stack(keys)


def _metric(
    name: str,
    candidates: pl.DataFrame,
    served: FloatArray,
    best: Estimates,
    context: RunContext,
) -> FloatArray:
    """Return the optimistic end of an objective's metric, (n,)."""
    gpus = candidates["num_gpus"].to_numpy()
    if name == "usd_per_mtok":
        prices = {gpu: facts.usd_per_gpu_hour for gpu, facts in context.gpus.items()}
        node = context.spec.fleet.gpus_per_node
        return cost_per_mtok(
            usd_per_gpu_hour=candidates["gpu"]
            .replace_strict(prices, return_dtype=pl.Float64)
            .to_numpy(),
            gpus=gpus,
            tokens_per_s=served,
            gpus_per_node=node if context.spec.fleet.billing == "node" else None,
        )
    if name == "output_tokens_per_s_per_gpu":
        return np.asarray(served / gpus)
    if name == "num_gpus":
        return gpus.astype(np.float64)
    if name in {"output_tokens_per_s", "goodput_per_s", "slo_attainment"}:
        return served
    metric, stat = name.removesuffix("_s").split("_", 1)
    return _latency(best, metric, stat.replace("_", "."))


def _latency(ends: Estimates, metric: str, stat: str) -> FloatArray:
    if metric == "ttft":
        return ends.ttft_s(stat)
    if metric == "e2e":
        return ends.e2e_s(stat)
    return ends.tpot_s("p50" if metric == "itl" else stat)


def _limits(context: RunContext, *, implied: bool) -> list[tuple[str, str, float, str]]:
    """Return (metric, statistic, limit, text) of every necessary condition of the objectives.

    An attainment share is a percentile of each of its limits: all at once implies each. What holds
    for a share of a class holds for that share of the class's share of all requests.

    Args:
        context: of the run.
        implied: limits of a class as what they imply for all requests, which is safe to reject by;
            otherwise as if they held for all, which tells who probably meets them.
    """
    slos = context.slos
    found = [(s.metric, s.statistic, s.limit, s.text) for s in slos.limits if s.group is None]
    for slo in slos.limits:
        if slo.group is not None and not implied:
            found.append((slo.metric, slo.statistic, slo.limit, slo.text))
        elif slo.group is not None and slo.statistic != "mean":
            stat = _of_all(slo, slo.group, context.requests)
            found.append((slo.metric, stat, slo.limit, slo.text))
    if slos.attainment:
        share, inner = slos.attainment
        stat = f"p{min(share * 100, 99.99):g}"
        for metric in ("ttft", "tpot", "e2e"):
            limit = getattr(inner, f"{metric}_s")
            if limit is not None:
                found.append((metric, stat, limit, f"attainment: {metric} {stat}"))
    if slos.goodput:
        found.append(("requests_per_s", "", slos.goodput[0], "goodput: requests/s"))
    return found


def _of_all(slo: Slo, group: RequestClass, requests: Requests) -> str:
    """Return the percentile of all requests that a percentile of a class implies."""
    counted = np.ones(len(requests), np.bool_)
    if slo.metric in {"tpot", USER_RATE}:
        counted = requests.output_tokens > 1  # one-token answers have none
    share = float(group.members(requests)[counted].mean()) if counted.any() else 0.0
    percent = float(slo.statistic[1:])
    percent = share * percent if slo.at_most else 100.0 - share * (100.0 - percent)
    return f"p{min(max(percent, 0.01), 99.99):g}"


def _values(ends: Estimates, metric: str, stat: str) -> FloatArray:
    """Return a metric; throughput is what the candidate could serve, whatever the traffic asks."""
    if metric.startswith("output_tokens_per_s") and metric != USER_RATE:
        tokens = ends.capacity_per_s() * ends.workload.mean_output
        gpus = ends.candidates["num_gpus"].to_numpy() if metric.endswith("_per_gpu") else 1.0
        return np.asarray(tokens / gpus)
    if metric == "requests_per_s":
        return ends.capacity_per_s()
    if metric == USER_RATE:
        return np.asarray(1.0 / ends.tpot_s(_mirrored(stat)))
    return _latency(ends, metric, stat)


def _mirrored(stat: str) -> str:
    """Return the statistic of TPOT whose inverse is this one of the rate, at most."""
    return "p0.01" if stat == "mean" else f"p{100 - float(stat[1:]):g}"


def _shortfalls(ends: Estimates, context: RunContext, *, implied: bool) -> FloatArray:
    """Return by what factor each objective is missed, (objectives, n); at most 1 holds."""
    rows = []
    for metric, stat, limit, _ in _limits(context, implied=implied):
        values = _values(ends, metric, stat)
        rows.append(values / limit if metric in LATENCY_METRICS else limit / values)
    return np.array(rows).reshape(len(rows), ends.size)


def _cut_on_bounds(
    candidates: pl.DataFrame, best: Estimates, context: RunContext
) -> tuple[StageResult, BoolArray]:
    """Return candidates whose optimistic end may meet every objective and the rest, and which."""
    limits = _limits(context, implied=True)
    ratios = _shortfalls(best, context, implied=True)
    if not limits:
        everyone = np.ones(len(candidates), np.bool_)
        return StageResult(candidates, _no_rows(candidates.drop(STAGE.adds))), everyone
    worst = ratios.argmax(axis=0)
    values = np.stack([_values(best, metric, stat) for metric, stat, _, _ in limits])
    fails = ratios.max(axis=0) > 1.0
    parts = split(
        candidates,
        pl.Series(fails),
        kind="misses_slo",
        reason="bound_misses_slo",
        observed=pl.Series(values[worst, np.arange(len(worst))]),
        limit=pl.Series(np.array([limit for _, _, limit, _ in limits])[worst]),
        unit=pl.Series(np.array([text for _, _, _, text in limits])[worst]),
    )
    return parts, ~fails
