"""`sieve calibrate`: measured start-ups and benchmark results, and corrections from them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sieve.cli.completing import (
    complete_engine,
    complete_gpu,
    complete_kv_dtype,
    complete_model,
    complete_weight_dtype,
)
from sieve.cli.following import next_command, options
from sieve.cli.output import JsonFlag, print_json

if TYPE_CHECKING:
    from sieve.calibration.points import Point
    from sieve.calibration.start_up_log import StartUpLog
    from sieve.fit_of.start_up import StartUpComparison

Results = Annotated[
    list[Path],
    typer.Argument(
        help="Results of vllm bench, AIPerf, GuideLLM; tables of runs; start-up logs of vLLM.",
        metavar="RESULTS...",
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        help="Catalogue name or path, where the log's is a local path.",
        autocompletion=complete_model,
    ),
]
GpuName = Annotated[
    str | None,
    typer.Option(
        "--gpu", help="GPU of the catalogue; logs do not name it.", autocompletion=complete_gpu
    ),
]
Engine = Annotated[
    str | None,
    typer.Option(
        "--engine",
        help="vllm==VERSION, where the log has no banner.",
        autocompletion=complete_engine,
    ),
]
Tp = Annotated[int | None, typer.Option("--tp", help="Tensor parallel size; default: the log's.")]
Pp = Annotated[int | None, typer.Option("--pp", help="Pipeline parallel size; the log's.")]
Ep = Annotated[int | None, typer.Option("--ep", help="Expert parallel size; the log's.")]
WeightDtype = Annotated[
    str | None,
    typer.Option(
        "--weight-dtype",
        help="Default: the checkpoint's, or the log's fp8.",
        autocompletion=complete_weight_dtype,
    ),
]
KvDtype = Annotated[
    str | None,
    typer.Option("--kv-cache-dtype", help="Default: the log's.", autocompletion=complete_kv_dtype),
]
ModelLen = Annotated[int | None, typer.Option("--max-model-len", help="Default: the log's.")]
Seqs = Annotated[int | None, typer.Option("--max-num-seqs", help="Default: the log's.")]
Tokens = Annotated[int | None, typer.Option("--max-num-batched-tokens", help="The log's.")]
Share = Annotated[float | None, typer.Option("--gpu-memory-utilization", help="The log's.")]
Into = Annotated[
    Path | None,
    typer.Option("--into", help="Calibration file to merge the corrections into (JSON)."),
]
RunOption = Annotated[
    Path | None, typer.Option("--run", help="Run folder whose candidates were measured.")
]
Candidate = Annotated[
    str | None,
    typer.Option("--candidate", help="Its id, where results do not carry it.", metavar="ID"),
]
Level = Annotated[
    float | None, typer.Option("--level", help="Load level, where results do not carry it.")
]
LeaveOut = Annotated[
    bool, typer.Option("--leave-out", help="Go on without results that are refused.")
]


def calibrate(
    results: Results,
    model: Model = None,
    gpu: GpuName = None,
    engine: Engine = None,
    tp: Tp = None,
    pp: Pp = None,
    ep: Ep = None,
    weight_dtype: WeightDtype = None,
    kv_cache_dtype: KvDtype = None,
    max_model_len: ModelLen = None,
    max_num_seqs: Seqs = None,
    max_num_batched_tokens: Tokens = None,
    gpu_memory_utilization: Share = None,
    into: Into = None,
    run: RunOption = None,
    candidate: Candidate = None,
    level: Level = None,
    leave_out: LeaveOut = False,
    as_json: JsonFlag = False,
) -> None:
    """Hold predictions against what was measured, and keep what they missed.

    Benchmark results find their candidate by `candidate_id` in their metadata or by --candidate, in
    the folder of --run; else by model, --gpu, split and precision. `sieve run --calibration` uses
    the file. Of start-up logs the memory ledger learns; `sieve fit --calibration` uses it.

    Examples: `sieve calibrate bench.json --run reports/runs/chat --into calibration.json` |
    `sieve calibrate vllm.log --gpu h100-sxm --into calibration.json`
    """
    from sieve.learning import learn, sort_inputs
    from sieve.matching import Stated

    logs, measured = sort_inputs(results)
    report: dict[str, Any] | None = None
    points: list[Point] = []
    if measured:
        stated = Stated(
            run=run, candidate=candidate, level=level, model=model, gpu=gpu, engine=engine, tp=tp,
            pp=pp, ep=ep, weight_dtype=weight_dtype, kv_cache_dtype=kv_cache_dtype,
            max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens,
        )  # fmt: skip
        report, points = learn(measured, stated, into, leave_out=leave_out)
    pairs = [
        _start_up(
            path, model=model, gpu=gpu, engine=engine, tp=tp, pp=pp, ep=ep,
            weight_dtype=weight_dtype, kv_cache_dtype=kv_cache_dtype, max_model_len=max_model_len,
            max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens,
            gpu_memory_utilization=gpu_memory_utilization,
        )
        for path in logs
    ]  # fmt: skip
    num_logs = _keep(pairs, into)
    if into is not None and points:
        from sieve.calibration.serving_file import add_points

        add_points(into, points)
    if as_json:
        documents = [_document(log, found) for log, found in pairs]
        target = None if into is None else str(into)
        print_json({"logs": documents, **(report or {}), "into": target})
        return
    from sieve.report.calibration import print_learned
    from sieve.report.fit import print_start_up

    if report is not None:
        print_learned(report, into=None if into is None else str(into))
    for (log, found), count in zip(pairs, num_logs, strict=True):
        print_start_up(_document(log, found), into=str(into) if count else "", num_logs=count)
    if into is None:
        kept = options(
            run=run, candidate=candidate, level=level, model=model, gpu=gpu, engine=engine, tp=tp,
            pp=pp, ep=ep, weight_dtype=weight_dtype, kv_cache_dtype=kv_cache_dtype,
            max_model_len=max_model_len, max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            gpu_memory_utilization=gpu_memory_utilization, leave_out=leave_out,
        )  # fmt: skip
        next_command("calibrate", *results, *kept, "--into", "calibration.json")
    elif points:
        next_command("run", "chat", "--calibration", into)
    elif pairs:
        learned = [found for (_, found), n in zip(pairs, num_logs, strict=True) if n]
        shape = (learned or [pairs[0][1]])[0].predicted.configuration
        kept = options(tp=shape.tp, calibration=into if learned else None)
        next_command("fit", shape.model.name, "--gpu", shape.gpu.name, *kept)
    else:  # every result was left out
        next_command("calibrate", "--help")


def _start_up(path: Path, **stated: Any) -> tuple[StartUpLog, StartUpComparison]:
    """Return a log beside its ledger."""
    from sieve.calibration.start_up_log import read_start_up_log
    from sieve.fit_of.start_up import compare, stated_configuration

    log = read_start_up_log(path)
    facts = _facts(log)
    return log, compare(facts, stated_configuration(facts, **stated))


def _keep(pairs: list[tuple[StartUpLog, StartUpComparison]], into: Path | None) -> list[int]:
    """Merge the corrections of logs into the file; return how many logs each entry then has."""
    from sieve.calibration.corrections import add_correction
    from sieve.memory.corrections import LogCorrection

    num_logs: list[int] = []
    for log, found in pairs:
        if into is None or not found.corrections:
            num_logs.append(0)
            continue
        entry = LogCorrection(log.sha256, log.date, found.corrections, found.knobs)
        known = add_correction(into, found.predicted.configuration.correction_key, entry)
        num_logs.append(len(known.logs))
    return num_logs


def _facts(log: StartUpLog) -> Any:
    from sieve.fit_of.start_up import StartUpFacts

    return StartUpFacts(
        where=str(log.path),
        version=log.version,
        covers=log.covers,
        arguments=log.arguments,
        states_arguments=log.states_arguments,
        figures={name: reading.value for name, reading in log.figures.items()},
        stage=log.stage,
        failure=log.failure,
    )


def _document(log: StartUpLog, found: StartUpComparison) -> dict[str, Any]:
    from sieve.fit_of import document

    predicted = document(found.predicted)
    lines = {name: reading.line for name, reading in log.figures.items()}
    return {
        "file": str(log.path),
        "sha256": log.sha256,
        "date": log.date,
        "engine": found.predicted.configuration.engine.requested,
        "version": log.version,
        "profile": f"vllm {found.predicted.configuration.engine.version}",
        "lines_of": list(log.covers),
        "lines": list(log.lines),
        "model": predicted["model"],
        "gpu": predicted["gpu"],
        "configuration": predicted["configuration"],
        "defaulted": predicted["defaulted"],
        "outcome": found.outcome,
        "predicted_outcome": "boots" if found.predicted.fits else "fails",
        "terms": [
            {
                "term": term.name,
                "measured": term.measured,
                "predicted": term.predicted,
                "difference": None if term.measured is None else term.measured - term.predicted,
                "line": lines.get(term.name),
            }
            for term in found.terms
        ],
        "corrections": dict(found.corrections),
        "notes": [*log.notes, *found.notes],
    }
