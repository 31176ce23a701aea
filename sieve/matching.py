"""Measured results beside their predictions: which candidate was it, and what was predicted?

A result finds its candidate by the id that its metadata carries or that the user gives, in a run
folder or by the axes that the id spells out; else by model, GPU, split, precision and engine
options. What belongs to another model, run or traffic is refused by name.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import polars as pl

from sieve.calibration.apply import Deployment, uncorrected
from sieve.calibration.points import Place, Point
from sieve.calibration.readers import Result, read_results
from sieve.calibration.serving_file import basis_of
from sieve.catalog.accelerators import load_gpu
from sieve.catalog.engines import load_engine
from sieve.catalog.models import load_model
from sieve.errors import CatalogError, ResultError, SieveError
from sieve.results import find_candidate, read_frame, read_result
from sieve.verify.measured import place_of
from sieve.verify.measured_replay import Replays, finite
from sieve.verify.measured_rows import MeasuredRow, read_rows
from sieve.verify.measured_setup import setup_of

LENGTHS: Final = 0.2
"""Relative difference of mean lengths from which a result is of other traffic."""
RATE: Final = 0.1
"""Relative difference of offered rates from which a result is of another load."""
SAME_LEVEL: Final = 0.03
_ID: Final = re.compile(
    r"(?P<gpu>[a-z0-9-]+)\.tp(?P<tp>\d{1,4})\.pp(?P<pp>\d{1,4})\.ep(?P<ep>\d{1,4})"
    r"\.r(?P<replicas>\d{1,6})\.(?P<weight>[a-z0-9_-]+)\.kv-(?P<kv>[a-z0-9_-]+)"
    r"\.s(?P<seqs>\d{1,7})\.b(?P<budget>\d{1,8})(\..*)?"
)
_AXES: Final = {
    "tensor_parallel_size": "tp", "pipeline_parallel_size": "pp", "max_num_seqs": "max_num_seqs",
    "max_num_batched_tokens": "max_num_batched_tokens", "kv_cache_dtype": "kv_cache_dtype",
}  # fmt: skip


@dataclass(frozen=True)
class Stated:
    """What the user says of results beside their files; None: not stated."""

    run: Path | None = None
    candidate: str | None = None
    model: str | None = None
    gpu: str | None = None
    engine: str | None = None
    tp: int | None = None
    pp: int | None = None
    ep: int | None = None
    weight_dtype: str | None = None
    kv_cache_dtype: str | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None


@dataclass(eq=False)
class Matched:
    """Points that were found, and what was not used and why.

    Attributes:
        points: in the order of the files.
        notes: by label of a result: how its figures were read.
        refused: (label, reason) of results that contradict themselves or belong elsewhere.
        skipped: (label, reason) of rows of a table that cannot be replayed.
    """

    points: list[Point] = field(default_factory=list)
    notes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    refused: list[tuple[str, str]] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)


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
    for name in ("model", "engine"):
        if not isinstance(data.get(name), dict):
            raise ResultError(f"{path}: result.json lacks {name!r}; make the run again")
    simulations = read_frame(path, "simulations.parquet", ("candidate_id", "level", "load_band"))
    return Run(path, data, read_frame(path, "candidates.parquet"), simulations)


def match_file(path: Path, stated: Stated, run: Run | None, replays: Replays) -> Matched:
    """Return the points of a result file, of whatever tool.

    Raises:
        ResultError: the file cannot be read.
    """
    out = Matched()
    for result in read_results(path):
        try:
            if run is not None:
                out.points.append(_in_run(result, run, stated))
            else:
                out.points.append(_by_facts(result, stated, replays))
            if result.notes:
                out.notes[result.label] = result.notes
        except SieveError as error:
            message = str(error)
            out.refused.append((result.label, message.removeprefix(f"{result.label}: ")))
    return out


def match_table(path: Path, replays: Replays, *, eligible_only: bool = False) -> Matched:
    """Return the points of a table of measured runs; each row is replayed.

    Args:
        path: CSV file.
        replays: kept step times.
        eligible_only: leave out rows that are not marked eligible.

    Raises:
        ResultError: the file cannot be read or has a cell that cannot be.
    """
    out = Matched()
    rows = read_rows(path)
    if not rows:
        raise ResultError(f"{path}: holds no row: an empty table says nothing")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    for row in rows:
        label = f"{row.file}, row {row.row}"
        if eligible_only and not row.eligible:
            out.skipped.append((label, "not marked eligible"))
            continue
        if why := _inconsistent(row):
            out.refused.append((label, why))
            continue
        try:
            version = row.text["engine_version"]
            facts = ("measured_csv", version, "", "model, GPU, split, precision, load of the row")
            out.points.append(_replayed(row, digest, f"row {row.row}", facts, "", replays))
        except SieveError as error:
            out.skipped.append((label, str(error)))
    return out


def _inconsistent(row: MeasuredRow) -> str | None:
    """Return which two cells of a row cannot both be true, in words."""
    pairs = (("ttft_p50", "ttft_p99"), ("tpot_p50", "tpot_p99"), ("ttft", "e2e"),
             ("output_tokens_per_s", "total_tokens_per_s"))  # fmt: skip
    for low, high in pairs:
        a, b = row.measured.get(low), row.measured.get(high)
        if a is not None and b is not None and a > b * 1.02:
            return f"{low} is {a:.6g} and {high} is {b:.6g}: the row was edited"
    return None


def _in_run(result: Result, run: Run, stated: Stated) -> Point:
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
    level, how_level = _level(result, run, simulated)
    found = simulated.filter(pl.col("level") == level).row(0, named=True)
    if not found["load_band"]:
        raise ResultError(f"{candidate} could not be served at level {level:g} in {run.path}")
    _same_lengths(result, found)
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
    return _point(
        result, place, predicted, f"{how}, {how_level}", candidate, f"level {level:g}"
    )  # fmt: skip


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


def _level(result: Result, run: Run, simulated: pl.DataFrame) -> tuple[float, str]:
    """Return the load level of a result, and how it was found."""
    levels = sorted(simulated["level"].to_list())
    traffic = run.data["spec"].get("traffic") or {}
    rate = traffic.get("rate_per_s") if isinstance(traffic, dict) else None
    offered = result.rate_per_s
    relative = None
    if rate and offered is not None and math.isfinite(offered):
        relative = offered / rate
    said = result.metadata.get("level")
    if said is not None:
        try:
            level = float(said)
        except ValueError:
            raise ResultError(f"level: found {said!r} in its metadata; expected a number") from None
        how = "level in its metadata"
    elif relative is not None:
        level, how = relative, "level by request_rate"
    else:
        level, how = 1.0, "level 1.0 taken, the file does not say"
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


def check_model(result: Result, wanted: str) -> None:
    """Refuse a result of another model; the names of one checkpoint's copies are one model."""
    if not result.model or result.model == wanted:
        return
    if _canonical(result.model) != _canonical(wanted):
        raise ResultError(f"is of model {result.model!r}, not of {wanted!r}")


def _canonical(name: str) -> str:
    try:
        return load_model(name, any_family=True).name.lower()
    except CatalogError:
        return name.rstrip("/").split("/")[-1].lower()


def _by_facts(result: Result, stated: Stated, replays: Replays) -> Point:
    """Return the point of a result outside any run: the deployment that it and the user state."""
    said = stated.candidate or result.metadata.get("candidate_id")
    axes = _ID.fullmatch(str(said)) if said is not None else None
    if said is not None and axes is None:
        raise ResultError(f"candidate id {said!r} does not spell out its axes; give --run")
    found: dict[str, Any] = axes.groupdict() if axes else {}
    _agree(stated, found)
    knobs = result.metadata
    gpu = stated.gpu or found.get("gpu")
    if gpu is None:
        raise ResultError(
            "does not say on which GPU it was measured; give --gpu, or --run and --candidate"
        )
    if stated.model is not None:
        check_model(result, stated.model)
    tp = stated.tp or found.get("tp") or knobs.get("tensor_parallel_size") or 1
    pp = stated.pp or found.get("pp") or knobs.get("pipeline_parallel_size") or 1
    replicas = int(found.get("replicas", 1))
    dtype = stated.weight_dtype or found.get("weight")
    model = stated.model or result.model
    if not model:
        raise ResultError("does not say which model was served; give --model")
    if dtype is None:
        dtype = load_model(model, any_family=True).checkpoint_dtype
    engine = stated.engine or "vllm"
    rate = result.rate_per_s
    closed = result.users is not None and not (rate and math.isfinite(rate))
    if rate is None and result.users is None:
        raise ResultError("does not say the load: neither request_rate nor max_concurrency")
    if result.input_tokens is None or result.output_tokens is None:
        raise ResultError("does not say how many tokens prompts and answers have")
    text = dict.fromkeys(
        ("url_or_repo", "commit", "params", "length_distribution", "prefix_hit_rate", "dp"), ""
    ) | {
        "source": result.source_format, "model": model, "gpu": str(gpu),
        "weight_precision": str(dtype),
        "kv_precision": str(stated.kv_cache_dtype or found.get("kv")
                            or knobs.get("kv_cache_dtype") or "").replace("auto", ""),
        "engine": "vllm", "engine_version": load_engine(engine).version,
        "request_rate": "closed-loop" if closed else ("inf" if rate == math.inf else f"{rate:g}"),
        "notes": f"n={result.num_requests}",
    }  # fmt: skip
    numbers = {
        "num_gpus": float(int(tp) * int(pp) * replicas), "tp": float(tp), "pp": float(pp),
        "dp": float(replicas), "ep": float(stated.ep or found.get("ep") or 1),
        "max_num_seqs": _number(stated.max_num_seqs, found.get("seqs"), knobs.get("max_num_seqs")),
        "max_num_batched_tokens": _number(stated.max_num_batched_tokens, found.get("budget"),
                                          knobs.get("max_num_batched_tokens")),
        "isl_mean": result.input_tokens, "osl_mean": result.output_tokens,
        "concurrency": float(result.users) if closed and result.users else None,
        "prefix_hit_rate": None,
    }  # fmt: skip
    text |= {k: "" if v is None else f"{v:g}" for k, v in numbers.items()}
    row = MeasuredRow(result.file, 0, text, numbers, result.measured)
    how = "axes of its candidate id" if axes else "model, GPU, split, precision and load as stated"
    facts = (result.source_format, result.source_version, result.date, how)
    return _replayed(row, result.sha256, result.where, facts, str(said or ""), replays, result)


def _agree(stated: Stated, axes: Mapping[str, Any]) -> None:
    """Refuse what the user states against the axes that a candidate id spells out."""
    pairs = (("gpu", "gpu"), ("tp", "tp"), ("pp", "pp"), ("weight_dtype", "weight"),
             ("kv_cache_dtype", "kv"), ("max_num_seqs", "seqs"),
             ("max_num_batched_tokens", "budget"))  # fmt: skip
    for option, axis in pairs:
        said, spelled = getattr(stated, option), axes.get(axis)
        if said is None or spelled is None:
            continue
        same = str(said) == str(spelled)
        if option == "gpu":
            same = load_gpu(str(said)).name == load_gpu(str(spelled)).name
        if not same:
            flag = option.replace("_", "-")
            raise ResultError(f"its candidate id says {axis} {spelled}, but --{flag} is {said}")


def _number(*values: Any) -> float | None:
    return next((float(v) for v in values if v is not None), None)


def _replayed(
    row: MeasuredRow, sha256: str, where: str, facts: Sequence[str], candidate: str,
    replays: Replays, result: Result | None = None,
) -> Point:  # fmt: skip
    """Return the point of a row whose deployment is replayed here."""
    setup = setup_of(row)
    predicted, replay, _ = replays.predict(setup)
    place = place_of(setup, replay)
    assert place is not None  # `predict` refuses what is not served
    source_format, source_version, date, how = facts
    stated = result or Result(
        file=row.file, where=where, sha256=sha256, source_format=source_format,
        source_version=source_version, date=date, model=row.text["model"], metadata={}, users=None,
        rate_per_s=None, num_requests=len(setup.requests), input_tokens=None, output_tokens=None,
        duration_s=None, measured=row.measured,
    )  # fmt: skip
    users = setup.requests.closed_loop_users
    offered = f"{users} users" if users else f"{row.text['request_rate']} requests/s"
    limits = f", s{setup.max_num_seqs} b{setup.max_num_batched_tokens}"
    return _point(
        stated, place, finite(predicted), how, candidate, offered + limits
    )  # fmt: skip


def _point(
    result: Result, place: Place, predicted: Mapping[str, float], how: str, candidate: str,
    load: str,
) -> Point:  # fmt: skip
    measured = {k: v for k, v in result.measured.items() if v > 0}
    positive = {k: v for k, v in predicted.items() if k in measured and v > 0}
    point = Point(
        id=hashlib.sha256(f"{result.sha256}\n{result.where}".encode()).hexdigest(),
        file=result.file, where=result.where, sha256=result.sha256,
        source_format=result.source_format, source_version=result.source_version,
        date=result.date, matched_by=how, candidate_id=candidate, load=load,
        num_requests=result.num_requests,
        basis=basis_of(place.engine, place.release, place.gpu), place=place, measured=measured,
        predicted=positive,
    )  # fmt: skip
    if not positive:
        raise ResultError("measures nothing that was predicted: TTFT, TPOT or throughput")
    return point
