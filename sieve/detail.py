"""One replay in detail: `sieve replay`."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import polars as pl

from sieve.api import prepare
from sieve.arrays import COMPONENTS, Requests, SimResult, StepTable
from sieve.calibration.serving import Calibration
from sieve.catalog.names import nearest_names
from sieve.context import RunContext
from sieve.errors import InvalidInput, ResultError
from sieve.frames import AXES, OPTIONS
from sieve.parallel import LocalExecutor
from sieve.perf.cache import FAMILY
from sieve.report.format import reason_sentence
from sieve.report.rejection import remedy
from sieve.results import SCHEMA_KEY, SCHEMA_VERSION, write_atomically
from sieve.sim.metrics import after_warm_up, metrics, queue_growth, statistic_of
from sieve.sim.replay import ReplaySettings, simulate
from sieve.sim.static_batching import simulate_static
from sieve.sim.tables import WINDOW_S, requests_table, steps_table, windows_table
from sieve.spec import load_spec
from sieve.stage import Stage
from sieve.traces import at_level
from stages import s1_validity, s2_memory_fit, s3_batch_sizing, s5_simulate

Discipline = Literal["fcfs", "shortest_first", "buckets"]
DISCIPLINES: Final[tuple[Discipline, ...]] = ("fcfs", "shortest_first", "buckets")
STATISTICS: Final = ("mean", "p50", "p90", "p95", "p99")
MAX_WAIT_S: Final = 1e9
MAX_STEPS: Final = 20_000_000
"""Most iterations that are kept (2.4 GB); a longer replay names the limit."""


@dataclass(frozen=True, eq=False)
class ReplayReport:
    """One candidate's replay.

    Attributes:
        data: facts, metrics and windows, as `sieve replay --json` prints them.
        requests: one row a request.
        windows: one row a window.
        steps: one row an iteration; None if it was not asked for.
        exit_code: 0: replayed; 3: the candidate cannot run.
    """

    data: dict[str, Any]
    requests: pl.DataFrame
    windows: pl.DataFrame
    steps: pl.DataFrame | None
    exit_code: int = 0


def replay(
    spec: str | Path | Mapping[str, Any],
    candidate: str,
    *,
    overrides: Sequence[str] = (),
    level: float = 1.0,
    discipline: Discipline = "fcfs",
    warm_up_s: float = 0.0,
    max_wait_s: float | None = None,
    window_s: float = WINDOW_S,
    record_steps: bool = False,
    compare: bool = False,
    calibration: Calibration | None = None,
) -> ReplayReport:
    """Return the replay of one candidate of a spec's grid.

    Args:
        spec: path of a run spec, or the spec as a mapping.
        candidate: candidate id, or `axis=value` pairs joined by commas that fit one candidate.
        overrides: `dotted.key=value` texts.
        level: multiple of the traffic's rate (users of a closed loop).
        discipline: the order in which waiting requests are admitted.
        warm_up_s: requests that arrive before are replayed and not counted.
        max_wait_s: stop when a request waits longer for its first iteration.
        window_s: of the series.
        record_steps: keep every iteration.
        compare: also replay the other disciplines, and static batching.
        calibration: corrects the metrics; the tables by request, window and iteration stay raw.

    Raises:
        SieveError: any fault of the input, a candidate that is not in the grid, or one that cannot
            run (`InvalidInput`, with the rule).
    """
    if not (np.isfinite(window_s) and window_s > 0):
        raise InvalidInput(f"the window is {window_s!r} s; expected a positive number")
    if not (np.isfinite(warm_up_s) and warm_up_s >= 0):
        raise InvalidInput(f"the warm-up is {warm_up_s!r} s; expected 0 or more")
    if max_wait_s is not None and not 1e-9 <= max_wait_s <= MAX_WAIT_S:
        raise InvalidInput(f"the longest wait is {max_wait_s!r} s; expected 1e-9 to {MAX_WAIT_S:g}")
    resolved = load_spec(spec, overrides=overrides)
    context, grid = prepare(resolved, LocalExecutor(), calibration=calibration)
    frame = sized(choose(grid.candidates, candidate), context)
    row = frame.row(0, named=True)
    requests = at_level(context.requests, level)
    shared = s5_simulate.shared_of(frame, context)
    table = shared.tables[tuple(row[name] for name in FAMILY)]
    settings = replace(
        s5_simulate.settings_of(row, context), discipline=discipline, max_wait_s=max_wait_s
    )
    if table.lock_step is not None and (record_steps or compare or discipline != "fcfs"):
        raise InvalidInput(
            f"{row['candidate_id']} has data-parallel ranks: they are replayed first come, first "
            "served, and their iterations are not recorded; leave out --steps, --discipline and "
            "--compare"
        )
    if record_steps:
        _check_steps(requests, table, settings, row["replicas"], shared)
    result = simulate(
        requests, table, settings, row["replicas"], routing=shared.routing, seed=shared.seed,
        record_steps=record_steps,
    )  # fmt: skip
    counted, kept = after_warm_up(requests, result, warm_up_s)
    extra = [(m, s) for m in ("ttft", "tpot", "itl", "e2e") for s in STATISTICS]
    wide = replace(
        shared, statistics=tuple(dict.fromkeys([*shared.statistics, *extra])), compared=()
    )
    local = shared.local.get(tuple(row[name] for name in (*FAMILY, "replicas")))
    facts = s5_simulate.row_of(counted, table, settings, kept, wide, local)
    facts["status"] = facts["status"] or _growth(requests, result)
    windows = windows_table(requests, result, shared.limits, window_s, shared.classes)
    prompt = int(counted.input_tokens.sum())
    data: dict[str, Any] = {
        "candidate_id": row["candidate_id"],
        "level": level,
        "discipline": discipline,
        "traffic": {"source": requests.source, "num_requests": len(requests)},
        "num_counted": len(counted),
        "warm_up_s": warm_up_s,
        "engine": _engine_facts(settings, row, result),
        "metrics": facts | {"cached_share": float(kept.cached_tokens.sum()) / prompt},
        "components_s": dict(zip(COMPONENTS, result.component_s.tolist(), strict=True)),
        "windows": windows.to_dicts(),
    }
    if compare:
        data["disciplines"] = _comparison(
            requests, table, settings, row["replicas"], shared, warm_up_s
        )
    return ReplayReport(
        data,
        requests_table(requests, result),
        windows,
        steps_table(result) if record_steps and result.steps is not None else None,
    )


def _growth(requests: Requests, result: SimResult) -> str:
    growing = queue_growth(requests, result) > s5_simulate.MAX_GROWTH
    return "queue_grows_without_bound" if growing else ""


def _engine_facts(
    settings: ReplaySettings, row: Mapping[str, Any], result: SimResult
) -> dict[str, Any]:
    ranks = row["data_parallel_size"]
    shared = {"data_parallel_size": ranks, "num_idle_steps": result.num_idle_steps}
    return {
        "replicas": row["replicas"],
        **(shared if ranks > 1 else {}),
        "max_num_seqs": settings.max_num_seqs,
        "max_num_batched_tokens": settings.max_num_batched_tokens,
        "num_gpu_blocks": settings.num_gpu_blocks,
        "block_size": settings.block_size,
        "groups": [
            {"window": window, "block_tokens": span, "fixed_blocks": fixed}
            for window, span, fixed in settings.groups or ((0, settings.block_size, 0),)
        ],
        "batches_in_flight": settings.batches_in_flight,
        "enable_prefix_caching": settings.prefix_caching,
        "enable_chunked_prefill": settings.chunked_prefill,
        "async_scheduling": settings.async_scheduling,
    }


def choose(candidates: pl.DataFrame, text: str) -> pl.DataFrame:
    """Return the one candidate that `text` names."""
    if "=" not in text:
        found = candidates.filter(pl.col("candidate_id") == text)
        if found.is_empty():
            near = nearest_names(text, candidates["candidate_id"].head(200_000).to_list())
            raise InvalidInput(
                f"no candidate {text!r} in this grid; nearest: {', '.join(near)}; "
                "or give axes, as in tp=2,replicas=4"
            )
        return found
    known = [name for name in (*AXES, *OPTIONS) if name in candidates.columns]
    found = candidates
    for pair in text.split(","):
        name, _, value = pair.partition("=")
        if name not in known:
            near = nearest_names(name, known)
            raise InvalidInput(f"{pair!r}: unknown axis; nearest: {', '.join(near)}")
        before, found = found, found.filter(_spelled(found, name) == value.strip().lower())
        if found.is_empty():
            values = before[name].unique(maintain_order=True).head(20).to_list()
            raise InvalidInput(
                f"{pair!r}: no candidate of the grid has it; there: {', '.join(map(str, values))}"
            )
    if len(found) > 1:
        open_ = [n for n in known if n not in text and found[n].n_unique() > 1]
        raise InvalidInput(
            f"{text!r} fits {len(found):,} candidates; add one of {', '.join(open_)}, "
            f"as in {open_[0]}={found[open_[0]][0]}"
        )
    return found


def _spelled(frame: pl.DataFrame, name: str) -> pl.Series:
    return frame[name].cast(pl.String).str.to_lowercase()


def sized(frame: pl.DataFrame, context: RunContext) -> pl.DataFrame:
    """Return the candidate after validity, memory and batch sizing."""
    for module in (s1_validity, s2_memory_fit, s3_batch_sizing):
        stage: Stage = module.STAGE
        result = module.run(frame, context)
        if len(result.rejected):
            row = result.rejected.row(0, named=True)
            fix = remedy(row)
            raise InvalidInput(
                f"{row['candidate_id']} does not reach the replay: stage {stage.number} "
                f"{stage.name}: {reason_sentence(row['reason'])}" + (f" Try {fix}." if fix else "")
            )
        frame = result.admitted
    return frame


def _check_steps(
    requests: Requests,
    table: StepTable,
    settings: ReplaySettings,
    replicas: int,
    shared: s5_simulate.Shared,
) -> None:
    """Refuse to keep more iterations than fit in memory: the count is known from a replay."""
    steps = simulate(
        requests, table, settings, replicas, routing=shared.routing, seed=shared.seed
    ).num_steps
    if steps > MAX_STEPS:
        raise InvalidInput(
            f"the replay has {steps:,} iterations; at most {MAX_STEPS:,} are kept. "
            "Shorten the traffic (traffic.requests or traffic.window_s)"
        )


def _comparison(
    requests: Requests,
    table: StepTable,
    settings: ReplaySettings,
    replicas: int,
    shared: s5_simulate.Shared,
    warm_up_s: float,
) -> list[dict[str, Any]]:
    """Return one row a discipline: throughput and tails of the same traffic and engines."""
    statistics = [
        ("ttft", "mean"),
        ("ttft", "p99"),
        ("tpot", "p99"),
        ("e2e", "mean"),
        ("e2e", "p99"),
    ]
    rows = []
    for name in DISCIPLINES:
        result = simulate(
            requests, table, replace(settings, discipline=name), replicas,
            routing=shared.routing, seed=shared.seed,
        )  # fmt: skip
        counted, kept = after_warm_up(requests, result, warm_up_s)
        values = metrics(
            counted, kept, limits=shared.limits, statistics=statistics, classes=shared.classes
        )
        rows.append({"discipline": name, "status": result.status, **values})
    open_loop = requests.closed_loop_users is None and requests.previous is None
    if open_loop and table.roofline is None and not warm_up_s:
        rows.append(_static_row(requests, table, settings, replicas, statistics))
    return rows


def _static_row(
    requests: Requests,
    table: StepTable,
    settings: ReplaySettings,
    replicas: int,
    statistics: Sequence[tuple[str, str]],
) -> dict[str, Any]:
    static = simulate_static(requests, table, settings, replicas)
    makespan_s = float(static.finish_s.max() - requests.arrival_s[0])
    outside_s = 0.0 if requests.front_end_s is None else requests.front_end_s
    e2e = static.finish_s - requests.arrival_s + outside_s
    # All answers of a batch come with its last step.
    latencies = {"ttft": e2e, "tpot": np.zeros(0), "e2e": e2e}
    return {
        "discipline": "static",
        "status": "",
        **{f"{m}_{s}_s": statistic_of(latencies[m], s) for m, s in statistics},
        "output_tokens_per_s": float(requests.output_tokens.sum()) / makespan_s,
        "requests_per_s": len(requests) / makespan_s,
        "padding_share": static.padding_share,
        "slot_share": static.slot_share,
    }


def check_table_path(path: Path) -> None:
    """Refuse a path that no table can be written to.

    Raises:
        ResultError: another ending than .parquet or .csv, or no folder to write in.
    """
    if path.suffix not in {".parquet", ".csv"}:
        raise ResultError(f"{path}: expected a name that ends in .parquet or .csv")
    if not path.parent.is_dir():
        raise ResultError(f"{path}: no folder {path.parent}; create it first")
    if path.exists() and not path.is_file():
        raise ResultError(f"{path}: stands in the way and is no regular file")


def write_table(frame: pl.DataFrame, path: Path) -> None:
    """Write a table as Parquet or CSV, by the ending of `path`, atomically.

    Raises:
        ResultError: another ending, or the file cannot be written.
    """
    check_table_path(path)
    content = io.BytesIO()
    if path.suffix == ".csv":
        frame.write_csv(content)
    else:
        frame.write_parquet(content, metadata={SCHEMA_KEY: SCHEMA_VERSION})
    write_atomically(path, content.getbuffer())
