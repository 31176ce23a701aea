"""Puts a plan together: everything in memory first, written only when all of it is sound."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from sieve.errors import ExportError, InvalidInput
from sieve.export.bench import level_text
from sieve.export.deployment import Deployment
from sieve.export.placeholders import found_in, variables_in
from sieve.export.vllm_serve import WRITTEN_FOR, needs_checkpoint
from sieve.export.yaml_text import write_json
from sieve.plan.choose import Choice, Run, choose
from sieve.plan.expected import at_level, expected
from sieve.plan.files import bench_of, candidate_files, sweep_files, traffic_files
from sieve.plan.page import page
from sieve.plan.run_facts import RunFacts, read_run
from sieve.results import clean, write_plan
from sieve.validity.nodes import replica_nodes
from sieve.version import __version__

DEFAULT_TOP: Final = 3
MOST: Final = 100
EXIT_CODES: Final = {"answer": 0, "no_fit": 3, "no_slo": 4, "weak_evidence": 5}
_FOLDER: Final = "plan"


@dataclass(frozen=True)
class Plan:
    """A confirmation plan.

    Attributes:
        data: the content of `plan/plan.json`.
        files: text by path below the run folder, `plan/plan.json` last; empty where nothing is
            ranked.
    """

    data: dict[str, Any]
    files: dict[str, str] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        """The command line's exit code, as that of the run."""
        return EXIT_CODES[self.data["status"]]

    def save(self, run: Path) -> None:
        """Write the files into the run folder."""
        if self.files:
            write_plan(run, self.files)


def make_plan(run: Path, *, top: int = DEFAULT_TOP, model: str | None = None) -> Plan:
    """Return the confirmation plan of a finished run; nothing is written.

    Args:
        run: the run folder.
        top: at least the first so many of the ranking are exported and measured.
        model: hub name or path that the engines load instead of the run's own.

    Raises:
        ResultError: no finished run there, or its files do not belong together.
        InvalidInput: `top` or `model` cannot be used.
        ExportError: a candidate that a target cannot express as evaluated.
    """
    if not 1 <= top <= MOST:
        raise InvalidInput(f"found --top {top}; expected 1 to {MOST}")
    if model is not None and (not model.strip() or model.startswith("-") or "\0" in model):
        raise InvalidInput(f"found --model {model[:80]!r}; expected a hub name or a path")
    facts = read_run(Path(run))
    if not facts.ranking or facts.requests is None:
        return Plan(_nothing(facts))
    choice = choose(facts, top)
    fleet = facts.record.spec.fleet
    deployments = {key: _deployment(facts, key, model) for key in choice.roles}
    _check_model(deployments, facts, model)
    replicas = [d.replicas for d in deployments.values() if d.data_parallel == 1]
    traffic = traffic_files(facts.requests, replicas, fleet.routing)
    benches = {key: bench_of(facts, d, traffic) for key, d in deployments.items()}
    files = {f"{_FOLDER}/{name}": text for name, text in traffic.texts.items()}
    expectations, left_out = {}, {}
    for key, bench in benches.items():
        expectations[key] = clean(expected(facts, deployments[key]))
        made, left_out[key] = candidate_files(bench, expectations[key], fleet.gpus_per_node)
        files |= {f"{_FOLDER}/{key}/{name}": text for name, text in made.items()}
    files |= {f"{_FOLDER}/{name}": t for name, t in sweep_files(list(benches.values())).items()}
    runs = [
        _run(i, run, expectations[run.candidate_id], files) for i, run in enumerate(choice.runs, 1)
    ]
    data: dict[str, Any] = {
        **_head(facts),
        "notes": [*choice.notes, *_notes(facts, choice)],
        "candidates": [_candidate(facts, choice, key, left_out[key]) for key in choice.roles],
        "runs": runs,
        "totals": _totals(runs),
        "traffic": traffic.whole.to_json(),
        "placeholders": found_in(files.values()),
        "files": sorted([*files, f"{_FOLDER}/plan.md", f"{_FOLDER}/plan.json"]),
    }
    data = clean(data)
    files[f"{_FOLDER}/plan.md"] = page(data)
    files[f"{_FOLDER}/plan.json"] = write_json(data)
    return Plan(data, files)


def _head(facts: RunFacts) -> dict[str, Any]:
    return {
        "schema_version": "1.0",
        "sieve_version": __version__,
        "run": facts.record.spec.name,
        "status": facts.record.answer.status,
        "written_for": WRITTEN_FOR,
    }


def _nothing(facts: RunFacts) -> dict[str, Any]:
    """Return the plan of a run that ranked nothing: why, stage by stage."""
    went = [
        f"stage {stage.number} {stage.name}: "
        + ", ".join(f"{reason} {count:,}" for reason, count in stage.reasons.items())
        for stage in facts.record.stages
        if stage.reasons
    ]
    why = (
        "Nothing fits, so there is nothing to measure."
        if facts.record.answer.status == "no_fit"
        else "No candidate reached the ranking, so there is nothing to measure."
    )
    return {
        **_head(facts),
        "notes": [f"{why} Rejected: {'; '.join(went)}."],
        "candidates": [],
        "runs": [],
        "totals": _totals([]),
    }


def _deployment(facts: RunFacts, key: str, model: str | None) -> Deployment:
    row, serving = facts.rows[key], facts.record.serving
    fleet = facts.record.spec.fleet
    nodes = 1
    if fleet.nodes_per_replica > 1 and row.get("data_parallel_size", 1) == 1:
        found = replica_nodes(
            np.array([row["tp"]]), np.array([row["pp"]]), gpus_per_node=fleet.gpus_per_node,
            most_nodes=fleet.nodes_per_replica, tp_across=fleet.tp_across_nodes,
        )  # fmt: skip
        nodes = max(1, int(found[0]))
    published = serving.checkpoint_dtype
    if model is not None and needs_checkpoint(row["weight_dtype"], published):
        published = row["weight_dtype"]  # the user names a checkpoint that has it
    return Deployment(
        row=row,
        model=model if model is not None else serving.model,
        checkpoint_dtype=published,
        engine=serving.engine,
        engine_version=serving.engine_version,
        nodes=nodes,
        run=facts.record.spec.name,
    )


def _check_model(deployments: Mapping[str, Deployment], facts: RunFacts, model: str | None) -> None:
    """Refuse one checkpoint for candidates that need several."""
    needed = {d.checkpoint_dtype for d in deployments.values()}
    if model is not None and len(needed) > 1:
        raise ExportError(
            f"--model names one checkpoint, but the plan's candidates need {len(needed)}: weights "
            f"in {', '.join(sorted(needed))} (published: {facts.record.serving.checkpoint_dtype}); "
            "leave --model out and set CHECKPOINT for each"
        )


def _candidate(
    facts: RunFacts, choice: Choice, key: str, left_out: Mapping[str, str]
) -> dict[str, Any]:
    entry = facts.entry(key)
    return {
        "candidate_id": key,
        "roles": choice.roles[key],
        "rank": entry.rank,
        "verdict": entry.verdict,
        "gpu": entry.gpu,
        "num_gpus": entry.num_gpus,
        "replicas": entry.replicas,
        "folder": f"{_FOLDER}/{key}",
        "left_out": dict(left_out),
    }


def _run(
    number: int, run: Run, expectation: Mapping[str, Any], files: Mapping[str, str]
) -> dict[str, Any]:
    at = at_level(expectation, run.level)

    def times(value: float | None) -> float | None:
        return None if value is None else value * run.num_runs

    serve = f"{_FOLDER}/{run.candidate_id}/serve.sh"
    return {
        "number": number,
        "candidate_id": run.candidate_id,
        "level": run.level,
        "scope": "fleet",
        "num_runs": run.num_runs,
        "num_requests": at["num_requests"] * run.num_runs,
        "duration_s": times(at["duration_s"]),
        "gpu_hours": times(at["gpu_hours"]),
        "usd": times(at["usd"]),
        "reasons": run.reasons,
        "serve": serve,
        "serve_needs": variables_in(files[serve]),
        "bench": ["bash", f"{_FOLDER}/{run.candidate_id}/bench.sh", level_text(run.level)],
    }


def _totals(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return sums; None where a part is not known."""
    out: dict[str, Any] = {"num_runs": sum(run["num_runs"] for run in runs)}
    for name in ("duration_s", "gpu_hours", "usd"):
        values = [run[name] for run in runs]
        out[name] = None if any(value is None for value in values) else float(sum(values))
    return out


def _notes(facts: RunFacts, choice: Choice) -> list[str]:
    serving, routing = facts.record.serving, facts.record.spec.fleet.routing
    notes = []
    if serving.engine == "reference":
        notes.append(
            "The run followed the plain rules of engine reference, not a real engine's: "
            "expect larger differences."
        )
    elif serving.engine_version and not WRITTEN_FOR.endswith(f"{serving.engine_version}.0"):
        notes.append(
            f"The run's engine is {serving.engine} {serving.engine_version}, the options are "
            f"spelled as {WRITTEN_FOR} knows them: an older release may refuse some."
        )
    if any(facts.entry(key).replicas > 1 for key in choice.roles):
        notes.append(
            f"Candidates with several replicas were evaluated behind a router ({routing}): run "
            "their benchmarks against one, or one replica alone with SCOPE=replica."
        )
    notes.append(
        "Durations, GPU-hours and costs hold the benchmarks alone, without starting engines and "
        "loading weights; keep an engine up for all runs of its candidate."
    )
    return notes
