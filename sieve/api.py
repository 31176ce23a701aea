"""`sieve.run`: from a spec to a result, as a function."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from sieve.advice import advise
from sieve.assumptions import stated
from sieve.audit import audit as audit_of
from sieve.calibration.serving import Calibration
from sieve.calibration.serving_file import read_calibration
from sieve.catalog.architecture import ModelArchitecture
from sieve.catalog.engines import load_engine
from sieve.catalog.models import inline_model, load_model
from sieve.checkpoint import Ledger
from sieve.context import Executor, RunContext
from sieve.errors import CatalogError, InvalidInput, SpecError, TableError, TraceError
from sieve.grid import PRECISIONS, Grid, expand, require_prices
from sieve.inputs import inputs_of, serving_of
from sieve.memory.corrections import release
from sieve.model_folders import MODELS
from sieve.parallel import make_executor
from sieve.perf.cache import StepTables
from sieve.perf.capacity import workload_of
from sieve.perf.front_end import chat_latency_s, request_work_s
from sieve.perf.table_folder import with_tables
from sieve.pipeline import (
    WHOLE,
    Outcome,
    answer_of,
    candidates_table,
    exhaustive_cost,
    levels_of,
    misses_of,
    ranking_rows,
    run_grid,
)
from sieve.ranking.objective import metrics_of, needs_price
from sieve.results import (
    CHECKPOINT,
    REPLAYS,
    SCHEMA_VERSION,
    SPEC,
    RunFolder,
    clean,
    default_folder,
    to_json,
)
from sieve.reuse import Reuse
from sieve.run_result import RunResult
from sieve.several import Part, joined, model_labels
from sieve.sim.routing import check_routing
from sieve.spec import ResolvedSpec, is_path, load_specs, path_label
from sieve.spec.slo_traffic import traffic_faults
from sieve.timeline import timeline_of
from sieve.traces import load_traffic
from sieve.units import GB
from sieve.version import __version__
from stages import STAGES

__all__ = ["RunResult", "compiles_first", "default_folder", "prepare", "run"]


def run(
    spec: str | Path | Mapping[str, Any] | ResolvedSpec,
    *,
    out: str | Path | Callable[[str], Path] | None = None,
    overrides: Sequence[str] = (),
    stop_after: int = len(STAGES),
    executor: str | Executor = "auto",
    ray_address: str | None = None,
    exhaustive: bool = False,
    audit: bool = False,
    resume: bool = False,
    calibration: str | Path | None = None,
    reuse: Reuse | None = None,
    on_stage: Callable[[Mapping[str, Any]], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
    on_block: Callable[[int, int], None] | None = None,
) -> RunResult:
    """Run the sieve over a spec and return its result.

    Args:
        spec: path of a run spec, or the spec as a mapping.
        out: run folder to write, or a function from the run's name to it, such as
            `default_folder`; nothing is written when None.
        overrides: `dotted.key=value` texts.
        stop_after: number of the last stage to run.
        executor: `auto`, `local` or `ray`, or an executor.
        ray_address: address of a Ray cluster.
        exhaustive: replay every candidate that survives to stage 4.
        audit: also replay every survivor, and say what the shortlist missed.
        resume: take finished replays from `out`, where an earlier run left them.
        calibration: file of `sieve calibrate`; predictions are corrected by its measured points.
        reuse: what earlier runs of this process made; changes no result.
        on_stage: called with each stage's record.
        progress: called with (done, total) replays.
        on_block: called with (done, total) combinations of a grid that is searched in blocks.

    Raises:
        SieveError: any fault of the input; see `sieve.errors`.
    """
    if not 1 <= stop_after <= len(STAGES):
        raise InvalidInput(f"found --stop-after {stop_after}; stages are 1 to {len(STAGES)}")
    if resume and (out is None or callable(out)):
        raise InvalidInput("--resume needs --out with the folder of the run to go on with")
    if audit and stop_after < 6:
        raise InvalidInput("--audit compares rankings: leave out --stop-after, or give 6 or 7")
    own = make_executor(executor, ray_address) if isinstance(executor, str) else None
    specs = [spec] if isinstance(spec, ResolvedSpec) else load_specs(spec, overrides=overrides)
    asked = _Asked(
        executor=executor if own is None else own,
        started=time.perf_counter(),
        stop_after=stop_after,
        exhaustive=exhaustive,
        audit=audit,
        resume=resume,
        calibration=None if calibration is None else read_calibration(Path(calibration)),
        reuse=reuse,
        on_stage=on_stage,
        progress=progress,
        on_block=on_block,
    )
    if callable(out):
        out = out(specs[0].run.name)
    folder = None if out is None else Path(out)
    if len(specs) == 1:
        context, grid = asked.prepared(specs[0])
        with own or nullcontext():
            return _run_one(context, grid, asked, folder).result
    if audit:
        raise InvalidInput(
            "--audit looks at the shortlist of one model; give one (--set model=NAME)"
        )
    asked = replace(asked, reuse=reuse or Reuse())
    with own or nullcontext():
        return _run_several([asked.prepared(one) for one in specs], asked, folder)


@dataclass(frozen=True, eq=False)
class _Asked:
    """What was asked for beside the spec; see `run`. `started` is a reading of the clock."""

    executor: Any
    started: float
    stop_after: int
    exhaustive: bool
    audit: bool
    resume: bool
    calibration: Calibration | None
    reuse: Reuse | None
    on_stage: Callable[[Mapping[str, Any]], None] | None
    progress: Callable[[int, int], None] | None
    on_block: Callable[[int, int], None] | None

    def prepared(self, spec: ResolvedSpec) -> tuple[RunContext, Grid]:
        """Return context and grid of a spec."""
        return prepare(
            spec,
            self.executor,
            exhaustive=self.exhaustive,
            progress=self.progress,
            calibration=self.calibration,
            reuse=self.reuse,
        )


def _run_one(context: RunContext, grid: Grid, asked: _Asked, folder: Path | None) -> Part:
    """Return the run of one model, written into its folder if there is one."""
    spec, on_block = context.spec, asked.on_block
    target = None if folder is None else RunFolder(folder, resume=asked.resume)
    if target is not None:
        target.keep_models(())
        others = None if asked.reuse is None else asked.reuse.replays
        ledger = Ledger(target.path / CHECKPOINT / REPLAYS, others)
        progress = target.progress(asked.progress)
        context = replace(context, ledger=ledger, progress=progress)
        on_block = target.progress(on_block, stage=1)
        target.event(
            "start",
            schema_version=SCHEMA_VERSION,
            name=spec.run.name,
            num_candidates=grid.index.num_candidates,
        )
    try:
        on_stage = _noting(target, asked.on_stage)
        outcome = run_grid(
            grid, context, stop_after=asked.stop_after, on_stage=on_stage, on_block=on_block
        )
        result = result_of(grid, context, outcome)
        if outcome.is_partial:
            result.files[f"{CHECKPOINT}/{SPEC}"] = to_json(spec.to_rerun())
        if asked.audit:
            result.data["audit"] = clean(audit_of(grid, context, outcome))
        if asked.stop_after >= 4:
            workers = getattr(asked.executor, "workers", None) or os.cpu_count() or 1
            result.exhaustive = exhaustive_cost(outcome, context).to_json(workers)
        result.data["elapsed_s"] = time.perf_counter() - asked.started
        if target is not None:
            result.write(target)
            reused = context.ledger.num_reused if context.ledger else 0
            damaged = context.ledger.num_damaged if context.ledger else 0
            counts = {"num_replays_reused": reused, "num_replays_damaged": damaged}
            target.event("end", status=result.answer["status"], **counts)
    finally:
        if target is not None and context.ledger is not None:
            context.ledger.close()
            target.close()
    return Part(context, outcome, result)


def _run_several(
    prepared: Sequence[tuple[RunContext, Grid]], asked: _Asked, folder: Path | None
) -> RunResult:
    """Return the run of several models: each by itself, then all of them ranked together."""
    labels = model_labels([context.model for context, _ in prepared], prepared[0][0].spec)
    target = None if folder is None else RunFolder(folder, resume=asked.resume)
    try:
        parts = {}
        if target is not None:
            target.keep_models(labels)
        for label, (context, grid) in zip(labels, prepared, strict=True):
            on_stage = _noting(target, asked.on_stage, model=context.model.name)
            below = None if target is None else target.below(f"{MODELS}/{label}")
            own = replace(asked, started=time.perf_counter(), on_stage=on_stage)
            parts[label] = _run_one(context, grid, own, below)
        result = joined(parts)
        result.data["elapsed_s"] = time.perf_counter() - asked.started
        if target is not None:
            result.write(target)
            target.event("end", status=result.answer["status"])
    finally:
        if target is not None:
            target.close()
    return result


def _noting(
    target: RunFolder | None,
    then: Callable[[Mapping[str, Any]], None] | None,
    **facts: str,
) -> Callable[[Mapping[str, Any]], None]:
    """Return a callback that notes a stage's record, with further facts, and passes it on."""

    def note(record: Mapping[str, Any]) -> None:
        if target is not None:
            target.event("stage", **facts, **record)
        if then is not None:
            then({**facts, **record})

    return note


def compiles_first() -> bool:
    """Return whether the next replay has to wait for its code to be compiled, once a version."""
    from sieve.sim._kernels import is_compiled

    return not is_compiled()


def prepare(
    spec: ResolvedSpec,
    fan_out: Any,
    *,
    exhaustive: bool = False,
    progress: Callable[[int, int], None] | None = None,
    calibration: Calibration | None = None,
    reuse: Reuse | None = None,
) -> tuple[RunContext, Grid]:
    """Return the context and the candidates of a resolved spec; all look-ups happen here."""
    objective = metrics_of(spec.run.rank.objective, spec.source)
    with _located(spec, "model"):
        model = _model_of(spec)
    with _located(spec, "engine"):
        engine = load_engine(spec.engine)
    if calibration is not None and engine.name == "reference":
        raise InvalidInput(
            "--calibration corrects predictions of a real engine; the plain rules of "
            "`engine: reference` stay as they are: leave one of the two out"
        )
    with _located(spec, "fleet.gpus"):
        grid = expand(spec, model, engine)
    with _located(spec, "traffic"):
        load = load_traffic if reuse is None else reuse.traffic
        requests = load(spec.run.traffic, seed=spec.run.seed, base_dir=spec.base_dir)
    if faults := traffic_faults(spec.slos, requests):
        raise SpecError(spec.source, faults)
    if spec.run.kernel_tables is not None:
        with _located(spec, "kernel_tables"):
            gpus = with_tables(grid.gpus, spec.base_dir / spec.run.kernel_tables)
        grid = replace(grid, gpus=gpus)
    if engine.name != "reference":
        outside_s = request_work_s(requests.input_tokens) + chat_latency_s()
        requests = replace(requests, front_end_s=outside_s)
    facts = grid.candidates if grid.index.size <= WHOLE else grid.cover
    check_routing(spec, facts, model, requests)
    if needs_price(list(objective)):
        require_prices(grid.gpus)
    workload = workload_of(requests)
    tables = StepTables(
        model=model,
        engine=engine,
        gpus=grid.gpus,
        max_num_batched_tokens=_largest(facts, "max_num_batched_tokens"),
        max_num_seqs=_largest(facts, "max_num_seqs"),
        max_context=workload.longest,
        gpus_per_node=spec.fleet.gpus_per_node or 8,
        nodes_per_replica=spec.fleet.nodes_per_replica or 1,
        tp_across_nodes=bool(spec.fleet.tp_across_nodes),
        scale_out_bytes_per_s=(spec.fleet.scale_out_gbs_unidirectional or 0.0) * GB,
        store=None if reuse is None else reuse.tables,
    )
    context = RunContext(
        spec=spec,
        model=model,
        engine=engine,
        gpus=grid.gpus,
        requests=requests,
        workload=workload,
        slos=spec.slos,
        tables=tables,
        executor=fan_out,
        options=grid.options,
        exhaustive=exhaustive,
        progress=progress,
        calibration=calibration,
        replays=None if reuse is None else reuse.replays,
    )
    return context, grid


@contextmanager
def _located(spec: ResolvedSpec, path: str) -> Iterator[None]:
    """Put the spec's file and the key in front of a look-up's error."""
    try:
        yield
    except (CatalogError, TraceError, TableError) as error:
        raise type(error)(f"{spec.source}: {path}: {error}") from None


def _model_of(spec: ResolvedSpec) -> ModelArchitecture:
    if not isinstance(spec.model, str):
        return inline_model(spec.model)
    model = load_model(spec.model, base_dir=spec.base_dir)
    if is_path(spec.model, spec.base_dir):
        return replace(model, name=path_label(spec.model), source="a config.json of the user")
    return model


def _largest(frame: pl.DataFrame, column: str) -> int:
    return int(np.max(frame[column].to_numpy()))


def result_of(grid: Grid, context: RunContext, outcome: Outcome) -> RunResult:
    """Return the result of a grid's stages."""
    data = {
        "schema_version": SCHEMA_VERSION,
        "sieve_version": __version__,
        "spec": context.spec.to_json(),
        "model": {"name": context.model.name, "architecture": context.model.architecture},
        "engine": {"name": context.engine.name, "release": release(context.engine.version)},
        "inputs": inputs_of(context),
        "serving": serving_of(context),
        "assumptions": [asdict(a) for a in stated(context, outcome)],
        "stages": outcome.stages,
        "answer": answer_of(outcome, context),
        "ranking": ranking_rows(outcome, context.options, context.slos),
        "nearest_misses": misses_of(outcome, context),
        "levels": levels_of(outcome, context),
        "advice": _advice(context, outcome),
        "audit": None,
        "elapsed_s": 0.0,
    }
    simulations = outcome.simulations
    return RunResult(
        data=clean(data),
        candidates=candidates_table(grid, outcome),
        simulations=simulations if simulations is not None else pl.DataFrame(),
        files=dict(outcome.files),
        requests=context.requests,
        timeline=timeline_of(outcome, context),
    )


def _advice(context: RunContext, outcome: Outcome) -> list[dict[str, str]]:
    """Return advice on the first of the ranking: its topic, text and kind.

    Only where the advice's own scope reaches: a real engine, every matrix known, one pipeline
    stage in one node, experts not spread, no context parallelism.
    """
    if not outcome.is_complete or outcome.ranked.is_empty():
        return []
    leader = outcome.ranked.row(0, named=True)
    covered = context.model.is_detailed and leader["weight_dtype"] in PRECISIONS
    split = leader["pp"] * leader["ep"] * leader["decode_context_parallel_size"] > 1
    split = split or context.tables.nodes(leader["tp"], leader["pp"]) > 1
    if context.is_reference or not covered or split:
        text = (
            "None for the first of the ranking: advice covers a real engine, a model of known "
            "shapes, one pipeline stage in one node, experts that are not spread and no context "
            "parallelism."
        )
        return [{"topic": "scope", "text": text, "kind": "note"}]
    tightest = {m: context.slos.limit_on(m) for m in ("ttft", "tpot", "e2e")}
    found = advise(
        context.model,
        context.gpus[leader["gpu"]],
        input_tokens=context.requests.input_tokens,
        output_tokens=context.requests.output_tokens,
        tp=leader["tp"],
        weight_dtype=leader["weight_dtype"],
        kv_cache_dtype=leader["kv_cache_dtype"],
        engine=context.engine,
        max_num_seqs=leader["max_num_seqs"],
        max_num_batched_tokens=leader["max_num_batched_tokens"],
        gpu_memory_utilization=leader["gpu_memory_utilization"],
        **{f"{m}_s": slo.limit if slo else None for m, slo in tightest.items()},
    )
    return [{"topic": a.topic, "text": a.text, "kind": a.kind} for a in found]
