"""One candidate's life, also of those that the folder of a large grid does not hold."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl

from sieve.api import prepare
from sieve.context import RunContext
from sieve.errors import ResultError
from sieve.frames import REJECTION_COLUMNS
from sieve.grid import Grid, find
from sieve.inputs import inputs_of
from sieve.model_folders import MODELS, folder_of, own_id
from sieve.parallel import LocalExecutor
from sieve.results import CHECKPOINT, SPEC, find_candidate, life_of, lives, read_frame, read_result
from sieve.spec import load_spec
from stages import s1_validity, s2_memory_fit, s3_batch_sizing, s4_shortlist

_MODULES: Final = (s1_validity, s2_memory_fit, s3_batch_sizing)
_MOST_BYTES: Final = 10_000_000


def explain(run: Path, candidate_id: str) -> dict[str, Any]:
    """Return what happened to one candidate of a finished run, as `results.life_of` does.

    A candidate of a large grid that `candidates.parquet` does not hold is computed anew from the
    run's spec; its inputs must still be those of the run.

    Raises:
        ResultError: no such run or candidate, or the inputs are gone or have changed.
    """
    result = read_result(run)
    if result.get("models"):
        return _among_several(run, result, candidate_id)
    path = run / CHECKPOINT / SPEC
    if not path.is_file():
        return life_of(run, candidate_id)
    kept = read_frame(run, "candidates.parquet", ("candidate_id",))
    if (kept["candidate_id"] == candidate_id).any():
        return life_of(run, candidate_id)
    context, grid = _prepared(path)
    if inputs_of(context) != result.get("inputs"):
        raise ResultError(
            f"{run}: {candidate_id} is not in candidates.parquet, and the run's inputs have "
            "changed since; run `sieve run` again"
        )
    number = find(grid, candidate_id)
    if number is None:
        find_candidate(kept, candidate_id)  # names the nearest ones
        raise AssertionError("a candidate is in the table and not in the grid")
    row = _row(grid, number, context, kept)
    return lives(result, row, [])


def _among_several(run: Path, result: Mapping[str, Any], candidate_id: str) -> dict[str, Any]:
    """Return the life of a candidate of a run over several models; see `explain`."""
    kept = read_frame(run, "candidates.parquet", ("candidate_id",))
    own, label = own_id(candidate_id)
    names = [m["name"] for m in result["models"] if m["folder"] == f"{MODELS}/{label}"]
    if (kept["candidate_id"] == candidate_id).any() or not names:
        return life_of(run, candidate_id)
    life = explain(folder_of(run, result, names[0]), own)
    life["candidate"] |= {"candidate_id": candidate_id, "model": names[0]}
    return life


def first_of(run: Path) -> str:
    """Return the id of the candidate that a run ranks first.

    Of a run that ranks none it is the nearest miss, else the one that came furthest: the last
    stage, there the least of what was found over the limit.

    Raises:
        ResultError: no such run, or it has no candidate.
    """
    result = read_result(run)
    for key in ("ranking", "nearest_misses"):
        rows = result.get(key)
        first = rows[0] if isinstance(rows, list) and rows else None
        if isinstance(first, dict) and isinstance(first.get("candidate_id"), str):
            return str(first["candidate_id"])
    kept = read_frame(run, "candidates.parquet", ("candidate_id", "stage", "observed", "limit"))
    if kept.is_empty():
        raise ResultError(f"{run}: candidates.parquet has no row, so there is none to explain")
    try:
        kept = kept.with_columns(pl.col("stage", "observed", "limit").cast(pl.Float64))
    except pl.exceptions.PolarsError:
        raise ResultError(
            f"{run / 'candidates.parquet'}: stage, observed and limit are not numbers: the file "
            "was edited; run `sieve run` again"
        ) from None
    over = (pl.col("observed") / pl.col("limit")).fill_null(float("inf"))
    far = kept.sort("stage", over, "candidate_id", descending=[True, False, False])  # None first
    return str(far["candidate_id"][0])


def _prepared(path: Path) -> tuple[RunContext, Grid]:
    if path.stat().st_size > _MOST_BYTES:
        raise ResultError(f"{path}: larger than {_MOST_BYTES:,} bytes")
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        spec, folder = dict(data["spec"]), Path(str(data["folder"]))
    except (ValueError, RecursionError, KeyError, TypeError) as error:
        raise ResultError(f"{path}: not what a run writes there: {error}") from None
    return prepare(load_spec(spec, base_dir=folder), LocalExecutor())


def _row(grid: Grid, number: int, context: RunContext, kept: pl.DataFrame) -> dict[str, Any]:
    """Return the row that `candidates.parquet` would hold."""
    frame = grid.rows(np.array([number], np.int64))
    for module in _MODULES:
        result = module.run(frame, context)
        if len(result.rejected):
            return _complete(result.rejected, module.STAGE.number)
        frame = result.admitted
    hopeful, missing, _ = s4_shortlist.bounded(frame, context)
    if len(missing):
        return _complete(missing, s4_shortlist.STAGE.number)
    others = kept.filter(pl.col("reason") == "not_selected")
    if others.is_empty():
        return _complete(hopeful.with_columns(kind=None, reason=None), None)
    lowest = pl.DataFrame({"score": [float(others["limit"][0])]})
    return _complete(s4_shortlist.turned_down(hopeful, lowest), s4_shortlist.STAGE.number)


def _complete(frame: pl.DataFrame, stage: int | None) -> dict[str, Any]:
    row = {**dict.fromkeys(REJECTION_COLUMNS), **frame.row(0, named=True)}
    return row | {"stage": stage}
