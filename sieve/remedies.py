"""What would turn a near miss into an answer: small changes of it, each checked by a replay."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import isnan
from typing import Any, Final

import polars as pl

from sieve.context import RunContext
from sieve.grid import changed
from sieve.ranking.verdicts import Limit, limits_of, verdicts
from stages import s1_validity, s2_memory_fit, s3_batch_sizing, s5_simulate

MAX_MISSES: Final = 3
"""Near misses that changes are tried on."""
MAX_SHOWN: Final = 3
_ORDER: Final = {"clears": 0, "point_only": 1, "misses": 2}
Change = tuple[str, dict[str, Any]]


def with_remedies(
    misses: Sequence[Mapping[str, Any]], known: pl.DataFrame, context: RunContext
) -> list[dict[str, Any]]:
    """Return near misses with `fixes`, the changes that help, best first, and `num_tried`.

    A change that reaches a verdict comes before one that does not, then fewer GPUs and lower cost.
    Where none helps, the change that comes nearest is shown, with its verdict.
    Changes may exceed the fleet; `exceeds_fleet` says so.

    Args:
        misses: entries of `nearest_misses`.
        known: candidates of the run with the grid's columns.
        context: of the run.
    """
    tried: list[tuple[int, str, pl.DataFrame]] = []
    for i, miss in enumerate(misses[:MAX_MISSES]):
        row = known.filter(pl.col("candidate_id") == miss["candidate_id"]).head(1)
        for words, values in changes_of(row.row(0, named=True), context):
            tried.append((i, words, changed(row, values, context.options)))
    found = _replayed([frame for _, _, frame in tried], context)
    limits = limits_of(context.slos)
    out = []
    for i, miss in enumerate(misses):
        entries = [
            _entry(words, frame["candidate_id"][0], found, limits, context)
            for k, words, frame in tried
            if k == i
        ]
        entries.sort(key=_rank)
        # Who meets everything in the middle needs a change that clears.
        enough = {"clears"} if miss["at"] == "pessimistic_end" else {"clears", "point_only"}
        fixes = [e for e in entries if e["verdict"] in enough] or entries[:1]
        shown = [{k: v for k, v in e.items() if k != "shortfall"} for e in fixes[:MAX_SHOWN]]
        out.append({**miss, "fixes": shown, "num_tried": len(entries)})
    return out


def changes_of(row: Mapping[str, Any], context: RunContext) -> Iterator[Change]:
    """Yield (words, new axis values) of the changes worth trying on a candidate."""
    replicas, seqs, budget = (
        row[name] for name in ("replicas", "max_num_seqs", "max_num_batched_tokens")
    )
    yield "one more replica", {"replicas": replicas + 1}
    if replicas > 1:
        yield "twice the replicas", {"replicas": 2 * replicas}
    wider = {"tp": 2 * row["tp"]}
    if row["ep"] > 1:  # on all ranks, as before
        wider["ep"] = 2 * row["ep"]
    yield f"tensor parallel {2 * row['tp']}", wider
    if row["kv_cache_dtype"] == "auto" and not context.is_reference:
        yield "FP8 KV cache", {"kv_cache_dtype": "fp8"}
    if row["weight_dtype"] in {"bf16", "fp16"}:
        yield "FP8 weights", {"weight_dtype": "fp8"}
    if seqs > 1:
        yield f"max_num_seqs {seqs // 2}", {"max_num_seqs": seqs // 2}
    yield f"max_num_seqs {2 * seqs}", {"max_num_seqs": 2 * seqs}
    if budget // 2 >= seqs:
        words = f"max_num_batched_tokens {budget // 2}"
        yield words, {"max_num_batched_tokens": budget // 2}
    yield f"max_num_batched_tokens {2 * budget}", {"max_num_batched_tokens": 2 * budget}


def _replayed(frames: Sequence[pl.DataFrame], context: RunContext) -> pl.DataFrame:
    """Return the candidates that can run, with their metrics at level 1.0; rejected ones absent."""
    if not frames:
        return pl.DataFrame({"candidate_id": []}, schema={"candidate_id": pl.String})
    frame = pl.concat(frames).unique("candidate_id", maintain_order=True)
    wider = _wider(frame, context)
    for module in (s1_validity, s2_memory_fit, s3_batch_sizing):
        frame = module.run(frame, wider).admitted
    return s5_simulate.run(frame, wider).admitted


def _wider(frame: pl.DataFrame, context: RunContext) -> RunContext:
    """Return the context with room for the changed candidates, at level 1.0 only."""
    tables = context.tables
    budget, seqs, gpus = (
        max(int(frame[name].to_numpy().max()), least)
        for name, least in (
            ("max_num_batched_tokens", tables.max_num_batched_tokens),
            ("max_num_seqs", tables.max_num_seqs),
            ("num_gpus", context.spec.fleet.max_gpus or 0),
        )
    )
    run = context.spec.run
    traffic = run.traffic.model_copy(update={"levels": [1.0]})
    spec = replace(
        context.spec,
        run=run.model_copy(update={"traffic": traffic}),
        fleet=context.spec.fleet.model_copy(update={"max_gpus": gpus}),
    )
    if (budget, seqs) != (tables.max_num_batched_tokens, tables.max_num_seqs):
        tables = replace(tables, max_num_batched_tokens=budget, max_num_seqs=seqs, _tables={})
    return replace(context, spec=spec, tables=tables, progress=None)


def _entry(
    words: str, candidate: str, found: pl.DataFrame, limits: Sequence[Limit], context: RunContext
) -> dict[str, Any]:
    """Return one change and what its replay says; `observed` is of the limit it is worst at."""
    rows = found.filter(pl.col("candidate_id") == candidate)
    entry: dict[str, Any] = {
        "change": words, "candidate_id": candidate, "verdict": "misses", "num_gpus": None,
        "exceeds_fleet": False, "usd_per_mtok": None, "limit_text": None, "observed": None,
        "limit": None, "unit": None, "shortfall": float("inf"),
    }  # fmt: skip
    if rows.is_empty():  # cannot run, or its queue grows
        return entry
    row = rows.row(0, named=True)
    worst = max(limits, key=lambda lim: float(lim.shortfall([row[lim.column]])[0]))
    return entry | {
        "verdict": verdicts(rows, list(limits))[0],
        "num_gpus": row["num_gpus"],
        "exceeds_fleet": row["num_gpus"] > (context.spec.fleet.max_gpus or row["num_gpus"]),
        "usd_per_mtok": row["usd_per_mtok"],
        "limit_text": worst.text,
        "observed": row[worst.column],
        "limit": worst.limit,
        "unit": worst.unit,
        "shortfall": float(worst.shortfall([row[worst.column]])[0]),
    }


def _rank(entry: Mapping[str, Any]) -> tuple[Any, ...]:
    meets = entry["verdict"] != "misses"
    usd = entry["usd_per_mtok"]
    cost = float("inf") if usd is None or isnan(usd) else usd
    size = (entry["exceeds_fleet"], entry["num_gpus"] or 0, cost) if meets else ()
    key = size if meets else (entry["shortfall"],)
    return (_ORDER[entry["verdict"]], *key, entry["candidate_id"])
