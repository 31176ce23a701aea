"""Reads a run folder for a plan, and holds its files to each other.

A plan spends money on real GPUs, so nothing of it may come from a folder that was edited, cut short
or put together from two runs: ids must follow from their axes, tables must repeat what the result
says, and the traffic must have the result's checksum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import polars as pl
from pydantic import ValidationError

from sieve.arrays import Requests
from sieve.errors import ResultError, TraceError
from sieve.frames import OPTIONS
from sieve.grid.expand import candidate_id
from sieve.model_folders import require_one_model
from sieve.plan.record import Entry, Record
from sieve.results import TRAFFIC, read_frame, read_result
from sieve.spec import SloSet
from sieve.spec.slo import parse_slos
from sieve.traces import stored

MAX_TABLE_BYTES: Final = 4_000_000_000
_AXES: Final = (
    "gpu", "tp", "pp", "ep", "replicas", "num_gpus", "weight_dtype", "kv_cache_dtype",
    "max_num_seqs", "max_num_batched_tokens", "verdict", "rank",
)  # fmt: skip
_SIMULATED: Final = (
    "candidate_id", "level", "status", "queue_growth", "makespan_s", "output_tokens_per_s",
    "usd_per_mtok", "evidence",
)  # fmt: skip
_EDITED: Final = "the run folder was changed after the run, or mixes two; run `sieve run` again"


@dataclass(frozen=True, eq=False)
class RunFacts:
    """What a plan knows of a run.

    Attributes:
        folder: the run folder.
        record: its result.
        rows: the candidate table's row of each ranked candidate, by id.
        simulations: one row per candidate and level.
        requests: the traffic at level 1.0; None where nothing is ranked.
        slos: the objectives.
    """

    folder: Path
    record: Record
    rows: dict[str, dict[str, Any]]
    simulations: pl.DataFrame
    requests: Requests | None
    slos: SloSet

    @property
    def ranking(self) -> list[Entry]:
        """The ranking, best first."""
        return self.record.ranking

    def entry(self, candidate: str) -> Entry:
        """Return the ranking's line of a candidate."""
        return next(e for e in self.ranking if e.candidate_id == candidate)


def read_run(folder: Path) -> RunFacts:
    """Return the facts of a finished run.

    Raises:
        ResultError: no finished run of this version, or its files do not belong together.
    """
    if not folder.is_dir():
        raise ResultError(f"{folder}: no such folder; give the folder of a finished run")
    data = read_result(folder)
    require_one_model(folder, data)
    path = folder / "result.json"
    if "serving" not in data:
        raise ResultError(f"{path}: 'serving' is missing: written by an earlier version; run again")
    try:
        record = Record.model_validate(data)
    except ValidationError as error:
        raise ResultError(f"{path}: {_first_fault(error)}") from None
    slos, faults = parse_slos(list(record.spec.slo))
    if faults:
        raise ResultError(f"{path}: spec.{faults[0]}")
    if record.answer.status is None:
        raise ResultError(
            f"{folder}: the run was stopped after stage {len(record.stages)}, nothing is ranked; "
            "run it again without --stop-after"
        )
    if not record.ranking:
        return RunFacts(folder, record, {}, pl.DataFrame(), None, slos)
    return RunFacts(
        folder, record, _rows(folder, record), _simulations(folder, record),
        _traffic(folder, record), slos,
    )  # fmt: skip


def _first_fault(error: ValidationError) -> str:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"not a result of `sieve run`: {where}: {first['msg']}"


def _rows(folder: Path, record: Record) -> dict[str, dict[str, Any]]:
    """Return the rows of the ranked candidates, held to the ranking."""
    path = folder / "candidates.parquet"
    ids = [entry.candidate_id for entry in record.ranking]
    named = {record.answer.fewest_gpus, record.answer.best_per_gpu, record.answer.cheapest}
    named |= set(record.answer.tie_group)
    if record.answer.settle is not None:
        named |= set(record.answer.settle.candidate_ids)
    if len(set(ids)) != len(ids) or not (named - {None}) <= set(ids):
        raise ResultError(f"{folder / 'result.json'}: answer and ranking disagree: {_EDITED}")
    needed = ("candidate_id", *(n for n in _AXES if n != "rank"), "max_model_len", "block_size")
    frame = read_frame(folder, "candidates.parquet", needed)
    if path.stat().st_size > MAX_TABLE_BYTES:
        raise ResultError(f"{path}: larger than {MAX_TABLE_BYTES:,} bytes")
    options = list(record.ranking[0].options)
    missing = [name for name in options if name not in OPTIONS or name not in frame.columns]
    if missing:
        raise ResultError(f"{path}: option {missing[0]!r} is not known: {_EDITED}")
    found = frame.filter(pl.col("candidate_id").is_in(ids))
    rows = {row["candidate_id"]: row for row in found.iter_rows(named=True)}
    if len(found) != len(ids) or set(rows) != set(ids):
        raise ResultError(f"{path}: its candidates are not those of the ranking: {_EDITED}")
    for row, key in zip(found.iter_rows(named=True), _ids(found, options), strict=True):
        if row["candidate_id"] != key:
            raise ResultError(f"{path}: {row['candidate_id']}: its axes make {key}: {_EDITED}")
    for entry in record.ranking:
        row = rows[entry.candidate_id]
        for name in _AXES:
            if row.get(name) != getattr(entry, name):
                raise ResultError(
                    f"{path}: {entry.candidate_id}: {name} is {row.get(name)!r}, the ranking says "
                    f"{getattr(entry, name)!r}: {_EDITED}"
                )
    return rows


def _ids(frame: pl.DataFrame, options: list[str]) -> list[str]:
    """Return the ids that follow from the axes; a block is the engine's own."""
    shown = frame
    if "block_size" in options and "decode_context_parallel_size" in frame.columns:
        per_rank = pl.col("block_size") // pl.col("decode_context_parallel_size")
        shown = frame.with_columns(per_rank.alias("block_size"))
    return shown.select(candidate_id(shown, options)).to_series().to_list()


def _simulations(folder: Path, record: Record) -> pl.DataFrame:
    """Return the replays of the ranked candidates, held to the ranking at level 1.0."""
    path = folder / "simulations.parquet"
    frame = read_frame(folder, "simulations.parquet", _SIMULATED)
    ids = [entry.candidate_id for entry in record.ranking]
    frame = frame.filter(pl.col("candidate_id").is_in(ids))
    at_one = {row["candidate_id"]: row for row in frame.filter(pl.col("level") == 1.0).to_dicts()}
    for entry in record.ranking:
        row = at_one.get(entry.candidate_id)
        if row is None:
            raise ResultError(f"{path}: {entry.candidate_id} has no replay at level 1.0: {_EDITED}")
        for name in ("output_tokens_per_s", "usd_per_mtok"):
            if not _equal(row[name], getattr(entry, name).mid):
                raise ResultError(
                    f"{path}: {entry.candidate_id}: {name} is {row[name]!r}, the ranking says "
                    f"{getattr(entry, name).mid!r}: {_EDITED}"
                )
    return frame


def _equal(one: float | None, other: float | None) -> bool:
    if one is None or other is None or math.isnan(one):
        return other is None and (one is None or math.isnan(one))
    return math.isclose(one, other, rel_tol=1e-9)


def _traffic(folder: Path, record: Record) -> Requests:
    path, facts = folder / TRAFFIC, record.serving.traffic
    frame = read_frame(folder, TRAFFIC, stored.COLUMNS)
    try:
        requests = stored.from_frame(
            frame, users=facts.users, block_tokens=facts.block_tokens, label=str(path)
        )
    except TraceError as error:
        raise ResultError(f"{error}: {_EDITED}") from None
    if stored.digest(requests) != facts.sha256 or len(requests) != facts.num_requests:
        raise ResultError(f"{path}: not the traffic of this run: {_EDITED}")
    return requests
