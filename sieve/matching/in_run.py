"""A result of one of a run's candidates: which candidate and load level, and what was predicted."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import polars as pl

from sieve.calibration.apply import Deployment, uncorrected
from sieve.calibration.points import Point
from sieve.calibration.readers import Result
from sieve.catalog.accelerators import load_gpu
from sieve.errors import ResultError
from sieve.matching.stated import ID, Stated, check_model, point_of
from sieve.model_folders import require_one_model
from sieve.results import find_candidate, read_frame, read_result

LENGTHS: Final = 0.2
"""Relative difference of mean lengths from which a result is of other traffic."""
RATE: Final = 0.1
"""Relative difference of offered rates from which a result is of another load."""
SAME_LEVEL: Final = 0.03
NEAR_RATE: Final = 1.5
"""Factor between rates of answers up to which the nearest level is taken where none is stated."""
_AXES: Final = {
    "tensor_parallel_size": "tp", "pipeline_parallel_size": "pp", "max_num_seqs": "max_num_seqs",
    "max_num_batched_tokens": "max_num_batched_tokens", "kv_cache_dtype": "kv_cache_dtype",
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Run:
    """A run folder as matching needs it."""

    path: Path
    data: Mapping[str, Any]
    candidates: pl.DataFrame
    simulations: pl.DataFrame

    @property
    def model(self) -> str:
        """Name of the model."""
        return str(self.data["model"]["name"])


def open_run(path: Path) -> Run:
    """Return a finished run.

    Raises:
        ResultError: no finished run, or one by a version that did not keep what is needed.
    """
    data = read_result(path)
    require_one_model(path, data)
    for name in ("model", "engine"):
        if not isinstance(data.get(name), dict):
            raise ResultError(f"{path}: result.json lacks {name!r}; make the run again")
    simulations = read_frame(path, "simulations.parquet", ("candidate_id", "level", "load_band"))
    return Run(path, data, read_frame(path, "candidates.parquet"), simulations)


def in_run(result: Result, run: Run, stated: Stated) -> Point:
    """Return the point of a result of one of a run's candidates."""
    check_model(result, run.model)
    name = str(run.data["spec"].get("name", ""))
    said = result.metadata.get("run")
    if said is not None and str(said) not in {name, run.path.name}:
        raise ResultError(f"belongs to run {said!r}, not to {name!r} in {run.path}")
    candidate, how = _candidate(result, run, stated)
    row = find_candidate(run.candidates, candidate)
    simulated = run.simulations.filter(pl.col("candidate_id") == candidate)
    if simulated.is_empty():
        raise ResultError(
            f"{candidate} was not replayed in {run.path}, so nothing was predicted for it; replay "
            "it by a run with `shortlist.size` larger, or with --exhaustive"
        )
    level, how_level = _level(result, run, simulated, stated)
    found = simulated.filter(pl.col("level") == level).row(0, named=True)
    if not found["load_band"]:
        raise ResultError(f"{candidate} could not be served at level {level:g} in {run.path}")
    _same_lengths(result, found)
    result = _of_all_replicas(result, _replicas(result, simulated))
    predicted = uncorrected(found)
    if not found.get("calibration_points"):
        predicted |= {
            metric: float(found[column])
            for metric, column in (("e2e_p99", "e2e_p99_s"),
                                   ("output_tokens_per_s", "output_tokens_per_s"),
                                   ("requests_per_s", "requests_per_s"))
            if isinstance(found.get(column), float) and math.isfinite(found[column])
        }  # fmt: skip
    engine = run.data["engine"]
    deployment = Deployment(
        engine=engine["name"], release=engine["release"], gpu=row["gpu"], model=run.model,
        family=run.data["model"]["architecture"], weight_dtype=row["weight_dtype"],
        kv_cache_dtype=row["kv_cache_dtype"], tp=row["tp"], pp=row["pp"], replicas=row["replicas"],
    )  # fmt: skip
    place = deployment.place(
        max(found["mean_batch"], 1.0), found["mean_input_tokens"], found["mean_output_tokens"],
        found["load_band"],
    )  # fmt: skip
    return point_of(
        result, place, predicted, f"{how}, {how_level}", candidate, f"level {level:g}"
    )  # fmt: skip


def _of_all_replicas(result: Result, replicas: int) -> Result:
    """Return a result of one replica's share with the rates of the whole deployment."""
    if replicas == 1:
        return result
    rates = {k: v * replicas for k, v in result.measured.items() if k.endswith("_per_s")}
    return replace(result, measured={**result.measured, **rates})


def _candidate(result: Result, run: Run, stated: Stated) -> tuple[str, str]:
    """Return the candidate of a result in a run, and how it was found."""
    said = result.metadata.get("candidate_id")
    if stated.candidate is not None:
        if said is not None and str(said) != stated.candidate:
            raise ResultError(f"says it is of {said}, not of {stated.candidate} (--candidate)")
        return stated.candidate, "--candidate"
    if said is not None:
        return str(said), "candidate_id in its metadata"
    facts = {_AXES[k]: v for k, v in result.metadata.items() if k in _AXES}
    facts |= {
        name: value
        for name in ("gpu", "tp", "pp", "ep", "weight_dtype", "kv_cache_dtype", "max_num_seqs",
                     "max_num_batched_tokens")
        if (value := getattr(stated, name)) is not None
    }  # fmt: skip
    if "gpu" in facts:
        facts["gpu"] = load_gpu(str(facts["gpu"])).name
    replayed = run.candidates.filter(
        pl.col("candidate_id").is_in(run.simulations["candidate_id"].unique().implode())
    )
    for name, value in facts.items():
        wanted = str(int(value)) if isinstance(value, float) and value == int(value) else str(value)
        replayed = replayed.filter(pl.col(name).cast(pl.String) == wanted)
    if len(replayed) != 1:
        seen = ", ".join(f"{k} {v}" for k, v in facts.items()) or "nothing"
        raise ResultError(
            f"names no candidate, and {seen} fits {len(replayed)} replayed candidates of "
            f"{run.path}; give --candidate, or --metadata candidate_id=... to the benchmark"
        )
    return str(replayed["candidate_id"][0]), f"{', '.join(facts) or 'the only candidate'}"


def _level(result: Result, run: Run, simulated: pl.DataFrame, stated: Stated) -> tuple[float, str]:
    """Return the load level of a result, and how it was found."""
    levels = sorted(simulated["level"].to_list())
    traffic = run.data["spec"].get("traffic") or {}
    rate = traffic.get("rate_per_s") if isinstance(traffic, dict) else None
    offered = result.rate_per_s
    relative = None
    if rate and offered is not None and math.isfinite(offered):
        relative = offered / rate * _replicas(result, simulated)
    said = result.metadata.get("level")
    if stated.level is not None:
        level, how = stated.level, "--level"
    elif said is not None:
        try:
            level = float(said)
        except ValueError:
            raise ResultError(f"level: found {said!r} in its metadata; expected a number") from None
        how = "level in its metadata"
    elif relative is not None:
        level, how = relative, "level by request_rate"
    else:
        level, how = _by_throughput(result, simulated)
    near = min(levels, key=lambda v: abs(v - level))
    if abs(near - level) > SAME_LEVEL * level:
        shown = ", ".join(f"{v:g}" for v in levels)
        raise ResultError(f"was measured at level {level:.3g}; {run.path} has levels {shown}")
    if relative is not None and abs(relative / near - 1) > RATE:
        raise ResultError(
            f"request_rate is {offered:g} per s, but level {near:g} of {run.path} is "
            f"{rate * near:g}"
        )
    return float(near), how


def _replicas(result: Result, simulated: pl.DataFrame) -> int:
    """Return by how much the rates of a result grow for the whole deployment."""
    if result.metadata.get("scope") != "replica":
        return 1
    found = ID.fullmatch(str(simulated["candidate_id"][0]))
    return int(found["replicas"]) if found else 1


def _by_throughput(result: Result, simulated: pl.DataFrame) -> tuple[float, str]:
    """Return the level whose rate of answers comes nearest; 1.0 where no rate is known."""
    seen = result.measured.get("requests_per_s")
    known = simulated.filter(pl.col("requests_per_s").is_not_null())
    if seen is None or known.is_empty():
        return 1.0, "level 1.0 taken: the file states neither level nor rate"
    seen *= _replicas(result, simulated)
    ratio = (known["requests_per_s"] / seen).log().abs()
    place = ratio.arg_min()
    if place is None or ratio[place] > math.log(NEAR_RATE):
        raise ResultError(
            f"does not say at which load level it was measured, and its {seen:.3g} requests/s are "
            "those of none; give --level"
        )
    return float(known["level"][place]), "level by its rate of requests"


def _same_lengths(result: Result, row: Mapping[str, Any]) -> None:
    for name, seen, planned in (
        ("prompt", result.input_tokens, row["mean_input_tokens"]),
        ("answer", result.output_tokens, row["mean_output_tokens"]),
    ):
        if seen is not None and abs(seen / planned - 1) > LENGTHS:
            raise ResultError(
                f"is of other traffic: its mean {name} has {seen:.0f} tokens, the run's "
                f"{planned:.0f}; allowed is a difference of {LENGTHS:.0%}"
            )
