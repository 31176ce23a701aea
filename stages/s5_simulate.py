"""Stage 5: replay the engine's scheduler for every shortlisted candidate at every load level.

Requests go to replicas as `fleet.routing` says, every candidate sees the same traffic. Rejected is
only what cannot be served, judged at level 1.0; its numbers are kept. Metrics get their interval
here: the model's error and the noise of a finite trace, apart and together. Candidates that differ
only in limits that never bind have one replay: `replay_of` names the candidate it was made for.
Whose queue grows without bound at level 1.0 is not replayed above it: its rows there have the
status `unstable_at_lower_level` and no numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import polars as pl
import polars.selectors as cs

from sieve.arrays import EVIDENCE_CLASSES, Requests, SimResult, StepTable
from sieve.calibration.apply import COLUMNS as CORRECTIONS
from sieve.calibration.apply import Deployment, Local, load_of
from sieve.context import RunContext
from sieve.formulas.sizing import cost_per_mtok
from sieve.frames import (
    INTERVAL_ENDS,
    METRICS,
    RESAMPLES,
    UNSTABLE_BELOW,
    bound_column,
    resample_column,
)
from sieve.memory.cache import cache_groups, cache_layouts
from sieve.memory.corrections import release
from sieve.memory.ledger import has_one_kind
from sieve.perf.cache import FAMILY
from sieve.ranking.ends import WHOLE_RUN, Replayed, metric_ends, resampled
from sieve.ranking.intervals import ModelError, evidence_shares, weakest_class
from sieve.ranking.noise import draw, log_ratio
from sieve.ranking.objective import metrics_of, sampled_metrics, statistics_of
from sieve.sim.fleet import Routing
from sieve.sim.jobs import Job, Jobs, Stored, replay_job
from sieve.sim.metrics import BASE_STATISTICS, meets, metrics, per_request, queue_growth
from sieve.sim.replay import REQUEST_EXCEEDS_CACHE, ReplaySettings
from sieve.sim.traffic_input import CacheGroup
from sieve.spec import LatencyLimits
from sieve.spec.slo import latency_column
from sieve.spec.slo_classes import RequestClass
from sieve.stage import Stage, StageResult, split
from sieve.traces import at_level

STAGE: Final = Stage(
    number=5,
    name="simulate",
    purpose="replay the scheduler iteration by iteration at every load level",
    reasons={"queue_grows_without_bound": "misses_slo", REQUEST_EXCEEDS_CACHE: "infeasible"},
    adds=(
        "evidence",
        "replay_of",
        *METRICS,
        *(bound_column(m, e) for m in METRICS for e in ("low", "high")),
    ),
)
_OPPOSITE: Final = {
    end: end.replace("low", "high") if "low" in end else end.replace("high", "low")
    for end in INTERVAL_ENDS
}
BASES: Final = ("ttft", "ttft_tail", "tpot", "tpot_tail", "e2e", "e2e_tail")
"""Errors whose basis a calibrated run states, `basis_ttft` ...; null: the uncalibrated default."""
MAX_GROWTH: Final = 0.02
"""Seconds of wait gained per second of trace above which a queue counts as unbounded."""


Found = tuple[int, float, dict[str, Any]]
"""Row of the candidate, level, metrics."""


@dataclass(frozen=True, eq=False)
class Shared:
    """What all jobs read: traffic by level, step tables by family, limits, what to report.

    `compared` are the metrics whose resamples are kept for ties, at level 1.0.
    """

    requests: Mapping[float, Requests]
    tables: Mapping[tuple[Any, ...], StepTable]
    limits: LatencyLimits
    goodput_limits: LatencyLimits
    statistics: Sequence[tuple[str, str]]
    confidence: float
    seed: int
    compared: Sequence[str] = ()
    routing: Routing = "round_robin"
    keeps: bool = False
    """Whether fresh replays are returned for a checkpoint."""
    classes: tuple[RequestClass, ...] = ()
    """Classes of requests with objectives of their own."""
    local: Mapping[tuple[Any, ...], Local] = field(default_factory=dict)
    """Calibration by family and replicas; empty without one."""


def run(candidates: pl.DataFrame, context: RunContext, *, brief: bool = False) -> StageResult:
    """Return candidates with their metrics at level 1.0; `simulations` holds every level.

    In brief only the latencies that objectives and the order of a ranking ask for.
    """
    levels = context.spec.run.traffic.levels
    shared = shared_of(candidates, context, brief=brief)
    found = _replayed(_jobs(candidates, context), candidates, shared, context)
    simulations = with_money(_simulation_frame(candidates, found, shared), candidates, context)
    at_one = simulations.filter(pl.col("level") == 1.0).drop("level")
    frame = candidates.join(at_one, on="candidate_id", how="left", maintain_order="left")
    growth = frame["queue_growth"]
    exceeds = frame["status"] == REQUEST_EXCEEDS_CACHE
    parts = split(
        frame.drop("status"),
        exceeds | (growth > MAX_GROWTH),
        kind=_pick(exceeds, "infeasible", "misses_slo"),
        reason=_pick(exceeds, REQUEST_EXCEEDS_CACHE, "queue_grows_without_bound"),
        observed=_pick(exceeds, float(context.workload.longest), growth),
        limit=_pick(exceeds, frame["kv_tokens"].cast(pl.Float64), MAX_GROWTH),
        unit=_pick(exceeds, "tokens of the longest request, cache", "s of wait gained per s"),
    )
    assert len(simulations) == len(candidates) * len(levels), "a replay is missing"
    kept = simulations.drop(cs.starts_with(RESAMPLES))
    rejected = parts.rejected.drop(cs.starts_with(RESAMPLES))
    return StageResult(parts.admitted, rejected, {"simulations": kept})


def _replayed(
    jobs: Sequence[Job], candidates: pl.DataFrame, shared: Shared, context: RunContext
) -> list[Found]:
    """Return the metrics of every candidate and level, those up to level 1.0 first."""
    total, done = sum(len(job.rows) for job in jobs), 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        if context.progress is not None and count:
            context.progress(done, total)

    def made(part: Sequence[Job]) -> list[Found]:
        own = Jobs(part, shared.requests, shared.tables, context.store)
        labels = [f"{candidates['candidate_id'][j.rows[0]]} at level {j.level:g}" for j in part]

        def on_done(number: int, result: tuple[list[dict[str, Any]], Stored]) -> list[Found]:
            rows, stored = result
            own.put(number, stored)
            advance(len(rows))
            job = part[number]
            return [(i, job.level, row) for i, row in zip(job.rows, rows, strict=True)]

        parts = context.executor.map_ordered(simulate_job, shared, own, labels, on_done)
        return [row for rows in parts for row in rows]

    found = made([job for job in jobs if job.level <= 1.0])
    unstable = {i for i, level, row in found if level == 1.0 and row["queue_growth"] > MAX_GROWTH}
    later: list[Job] = []
    for job in jobs:
        if job.level > 1.0:
            pairs = list(zip(job.rows, job.variants, strict=True))
            kept = [(i, settings) for i, settings in pairs if i not in unstable]
            skipped = [i for i, _ in pairs if i in unstable]
            found += [(i, job.level, {"status": UNSTABLE_BELOW, "replay_row": i}) for i in skipped]
            advance(len(skipped))
            if kept:
                rows, variants = zip(*kept, strict=True)
                later.append(replace(job, rows=rows, variants=variants))
    return [*found, *made(later)]


def _pick(mask: pl.Series, yes: object, no: object) -> pl.Series:
    """Return `yes` where the mask holds, else `no`; either may be a series or a constant."""

    def expr(value: object) -> pl.Expr | pl.Series:
        return value if isinstance(value, pl.Series) else pl.lit(value)

    return pl.select(pl.when(mask).then(expr(yes)).otherwise(expr(no))).to_series()


def shared_of(candidates: pl.DataFrame, context: RunContext, *, brief: bool = False) -> Shared:
    """Return what the replays of these candidates read; in brief as for `run`."""
    wanted = [(s.series, s.statistic) for s in context.slos.limits if s.statistic]
    objective = metrics_of(context.spec.run.rank.objective, context.spec.source)
    families = candidates.select(*FAMILY).unique(maintain_order=True).rows()
    return Shared(
        requests={v: at_level(context.requests, v) for v in context.spec.run.traffic.levels},
        tables={family: context.tables.get(family) for family in families},
        limits=context.slos.attainment_limits(),
        goodput_limits=context.slos.request_limits(),
        statistics=tuple(
            dict.fromkeys(
                [*(() if brief else BASE_STATISTICS), *wanted, *statistics_of(list(objective))]
            )
        ),
        confidence=context.spec.run.rank.confidence,
        seed=context.seed,
        compared=() if brief else sampled_metrics(objective),
        routing=context.spec.fleet.routing or "round_robin",
        keeps=context.store is not None,
        classes=context.slos.classes,
        local=_local(candidates, context),
    )


def _local(candidates: pl.DataFrame, context: RunContext) -> dict[tuple[Any, ...], Local]:
    """Return the calibration of each family and number of replicas; {} without one."""
    if context.calibration is None:
        return {}
    confidence = context.spec.run.rank.confidence
    out = {}
    for family in candidates.select(*FAMILY, "replicas").unique(maintain_order=True).rows():
        row = dict(zip((*FAMILY, "replicas"), family, strict=True))
        out[family] = Local(context.calibration, deployment_of(row, context), confidence)
    return out


def deployment_of(row: Mapping[str, Any], context: RunContext) -> Deployment:
    """Return what a calibration needs to know of a candidate."""
    return Deployment(
        engine=context.engine.name,
        release=release(context.engine.version),
        gpu=row["gpu"],
        model=context.model.name,
        family=context.model.architecture,
        weight_dtype=row["weight_dtype"],
        kv_cache_dtype=row["kv_cache_dtype"],
        tp=row["tp"],
        pp=row["pp"],
        replicas=row["replicas"],
    )


def settings_of(row: Mapping[str, Any], context: RunContext) -> ReplaySettings:
    """Return limits and switches of a candidate's engines."""
    in_flight = context.engine.replay["batches_in_flight"]
    return ReplaySettings(
        max_num_seqs=row["max_num_seqs"],
        max_num_batched_tokens=row["max_num_batched_tokens"],
        num_gpu_blocks=row["num_gpu_blocks"],
        block_size=row["block_size"],
        groups=groups_of(row, context),
        full_reservation=bool(context.engine.replay["full_reservation"]),
        reserve_full_isl=bool(context.engine.replay["reserve_full_isl"]),
        chunked_prefill=row["enable_chunked_prefill"],
        # The plain rules keep one batch in flight, so its stages run in sequence.
        pipeline_stages=row["pp"] if in_flight == "pp" else 1,
        async_scheduling=row["async_scheduling"],
        prefix_caching=row["enable_prefix_caching"],
        long_prefill_token_threshold=row["long_prefill_token_threshold"],
        watermark=float(context.engine.defaults.get("watermark", 0.0)),
    )


def groups_of(row: Mapping[str, Any], context: RunContext) -> tuple[CacheGroup, ...]:
    """Return the kinds of cache of a candidate's engine, () where there is one for every token."""
    if context.is_reference or has_one_kind(context.model):
        return ()
    shared = row["decode_context_parallel_size"]
    layouts = cache_layouts(
        context.model,
        tp=row["tp"],
        pp=row["pp"],
        kv_bytes=row["kv_bytes_per_element"],
        block_size=row["block_size"] // shared,
        kv_dtype="",
        rules=tuple(sorted(context.engine.cache.items())),
        dcp=shared,
    )
    return cache_groups(max(layouts, key=lambda layout: layout.num_groups))


def _jobs(candidates: pl.DataFrame, context: RunContext) -> list[Job]:
    groups: dict[Any, tuple[list[int], list[ReplaySettings]]] = {}
    for i, row in enumerate(candidates.iter_rows(named=True)):
        settings = settings_of(row, context)
        family = tuple(row[name] for name in FAMILY)
        rest = replace(settings, max_num_seqs=1, max_num_batched_tokens=1, num_gpu_blocks=1)
        rows, variants = groups.setdefault((family, row["replicas"], rest), ([], []))
        rows.append(i)
        variants.append(settings)
    return [
        Job(
            tuple(rows),
            level,
            family,
            replicas,
            tuple(variants),
            routing=context.spec.fleet.routing or "round_robin",
            seed=context.seed,
        )
        for (family, replicas, _), (rows, variants) in groups.items()
        for level in context.spec.run.traffic.levels
    ]


def simulate_job(shared: Shared, job: Job) -> tuple[list[dict[str, Any]], Stored]:
    """Return the metrics of each candidate of a job as flat rows, and what a checkpoint keeps.

    `replay_row` is the row of the candidate whose replay it is: limits that never bind change
    nothing, so one replay may stand for several candidates.
    """
    requests, table = shared.requests[job.level], shared.tables[job.family]
    if job.level != 1.0:
        shared = replace(shared, compared=())
    replays, fresh = replay_job(requests, table, job, keeps=shared.keeps)
    rows = {
        first: row_of(
            requests, table, job.variants[first], result, shared,
            shared.local.get((*job.family, job.replicas)),
        )
        for first, result in dict(replays).items()
    }  # fmt: skip
    full = [
        rows[first]
        | {
            "replay_row": job.rows[first],
            "peak_kv_usage": result.peak_blocks / settings.num_gpu_blocks,
        }
        for (first, result), settings in zip(replays, job.variants, strict=True)
    ]
    return full, fresh


def row_of(
    requests: Requests,
    table: StepTable,
    settings: ReplaySettings,
    result: SimResult,
    shared: Shared,
    local: Local | None = None,
) -> dict[str, Any]:
    """Return the metrics of a replay, each with low and high, as a flat row.

    With a calibration they are those of the corrected replay.
    """
    shares = evidence_shares(result.component_s, table.component_evidence)
    evidence = weakest_class(shares)
    load = load_of(requests, result) or {}
    error: ModelError | None = None
    corrections: dict[str, Any] = {}
    if local is not None:
        result, error, corrections = local.corrected(requests, result, evidence)
    row: dict[str, Any] = {
        "status": result.status,
        "queue_growth": queue_growth(requests, result),
        "evidence": evidence,
        **{f"evidence_share_{name}": shares[name] for name in EVIDENCE_CLASSES},
        "num_preemptions": int(result.num_preemptions.sum()),
        "peak_batch": result.peak_batch,
        "peak_batched_tokens": result.peak_tokens,
        "peak_kv_usage": result.peak_blocks / settings.num_gpu_blocks,
        "mean_batch": result.num_request_steps / max(result.num_steps, 1),
        "num_steps": result.num_steps,
        "makespan_s": result.makespan_s,
        "load_band": load.get("band"),
        "mean_input_tokens": load.get("input_tokens"),
        "mean_output_tokens": load.get("output_tokens"),
        **corrections,
    }
    if error is not None:
        row |= {f"basis_{name}": error.basis.get(name) for name in BASES}
    values = metrics(
        requests,
        result,
        limits=shared.limits,
        goodput_limits=shared.goodput_limits,
        statistics=shared.statistics,
        classes=shared.classes,
    )
    latencies = per_request(requests, result, shared.classes)
    replayed = Replayed(
        requests, result, latencies, values, shared.statistics, evidence,
        lambda times: (meets(times, shared.limits), meets(times, shared.goodput_limits)),
        error,
    )  # fmt: skip
    draws = draw(len(requests), shared.seed)
    resamples = resampled(replayed, draws)
    row |= values | metric_ends(replayed, draws, resamples, shared.confidence)
    row |= {
        resample_column(name): log_ratio(resamples[name], values[name])
        for name in shared.compared
        if name in resamples
    }
    row["trajectory"] = _trajectory(result)
    return row


def _trajectory(result: SimResult) -> str:
    """Return a digest of when each request was answered: equal for equal schedules."""
    times = np.concatenate([result.first_token_s, result.finish_s])
    return hashlib.sha256(times.tobytes()).hexdigest()[:16]


def _simulation_frame(candidates: pl.DataFrame, found: list[Found], shared: Shared) -> pl.DataFrame:
    """Return one row a candidate and level, in the order of the candidates."""
    place = {level: i for i, level in enumerate(shared.requests)}
    found.sort(key=lambda entry: (entry[0], place[entry[1]]))
    ids = candidates["candidate_id"].to_list()
    columns: dict[str, Any] = {
        "candidate_id": pl.Series([ids[i] for i, _, _ in found], dtype=pl.String),
        "level": pl.Series([level for _, level, _ in found], dtype=pl.Float64),
        "replay_of": pl.Series([ids[row["replay_row"]] for _, _, row in found], dtype=pl.String),
    }
    for name, dtype in _row_schema(shared).items():
        columns[name] = pl.Series([row.get(name) for _, _, row in found], dtype=dtype)
    for name in map(resample_column, shared.compared):
        drawn = [row[name].tolist() if name in row else None for _, _, row in found]
        columns[name] = pl.Series(drawn, dtype=pl.List(pl.Float64))
    return pl.DataFrame(columns)


def _row_schema(shared: Shared) -> dict[str, pl.DataType]:
    """Return the columns of a simulation row, also for an empty shortlist."""
    text, number, count = pl.String(), pl.Float64(), pl.Int64()
    schema: dict[str, pl.DataType] = {"status": text, "queue_growth": number, "evidence": text}
    schema |= {f"evidence_share_{name}": number for name in EVIDENCE_CLASSES}
    schema |= {"num_preemptions": count, "peak_batch": count, "peak_batched_tokens": count}
    schema |= {"peak_kv_usage": number, "mean_batch": number, "num_steps": count}
    schema |= {"makespan_s": number, "trajectory": text, "load_band": text}
    schema |= {"mean_input_tokens": number, "mean_output_tokens": number}
    if shared.local:
        schema |= dict.fromkeys(CORRECTIONS, number) | {CORRECTIONS[-1]: count}
        schema |= {f"basis_{name}": text for name in BASES}
    names = [latency_column(m, s) for m, s in shared.statistics]
    for name in (*names, *WHOLE_RUN):
        schema |= {name: number, **{bound_column(name, end): number for end in INTERVAL_ENDS}}
    return schema


def with_money(
    simulations: pl.DataFrame, candidates: pl.DataFrame, context: RunContext
) -> pl.DataFrame:
    """Return the simulations with throughput per GPU and cost, each with low and high."""
    prices = {name: gpu.usd_per_gpu_hour for name, gpu in context.gpus.items()}
    frame = simulations.join(
        candidates.select(
            "candidate_id",
            "num_gpus",
            pl.col("gpu").replace_strict(prices, return_dtype=pl.Float64).alias("price"),
        ),
        on="candidate_id",
        how="left",
        maintain_order="left",
    )
    gpus, price = frame["num_gpus"].to_numpy(), frame["price"].fill_null(np.nan).to_numpy()
    node = context.spec.fleet.gpus_per_node or 8
    paid = node if context.spec.fleet.billing == "node" else None
    added = []
    for end in ("", *INTERVAL_ENDS):
        rate = frame[_at_end("output_tokens_per_s", end)].to_numpy()
        known = frame[_at_end("output_tokens_per_s", end)].is_not_null()
        added.append(
            _where(known, pl.Series(_at_end("output_tokens_per_s_per_gpu", end), rate / gpus))
        )
        usd = cost_per_mtok(
            usd_per_gpu_hour=price, gpus=gpus, tokens_per_s=rate, gpus_per_node=paid
        )
        added.append(
            _where(known, pl.Series(_at_end("usd_per_mtok", _OPPOSITE.get(end, end)), usd))
        )
    return frame.drop("num_gpus", "price").with_columns(added)


def _where(known: pl.Series, values: pl.Series) -> pl.Series:
    """Return the values, null where nothing is known."""
    return pl.select(pl.when(known).then(values).alias(values.name)).to_series()


def _at_end(metric: str, end: str) -> str:
    return bound_column(metric, end) if end else metric
