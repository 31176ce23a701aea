"""A result outside any run, and rows of a table: the deployment as stated, replayed here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from sieve.calibration.points import Point
from sieve.calibration.readers import Result
from sieve.catalog.accelerators import load_gpu
from sieve.catalog.engines import load_engine
from sieve.catalog.models import load_model
from sieve.errors import ResultError
from sieve.matching.stated import ID, Stated, check_model, point_of
from sieve.verify.measured import place_of
from sieve.verify.measured_replay import Replays, finite
from sieve.verify.measured_rows import MeasuredRow
from sieve.verify.measured_setup import setup_of


def by_facts(result: Result, stated: Stated, replays: Replays) -> Point:
    """Return the point of a result outside any run: the deployment that it and the user state."""
    said = stated.candidate or result.metadata.get("candidate_id")
    axes = ID.fullmatch(str(said)) if said is not None else None
    if said is not None and axes is None:
        raise ResultError(f"candidate id {said!r} does not spell out its axes; give --run")
    found: dict[str, Any] = axes.groupdict() if axes else {}
    if rest := found.get("rest"):
        raise ResultError(
            f"its candidate id has further options ({rest}), which only a run knows; give --run"
        )
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
    alone = knobs.get("scope") == "replica"
    replicas = 1 if alone else int(found.get("replicas", 1))
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
    return replayed(row, result.sha256, result.where, facts, str(said or ""), replays, result)


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


def replayed(
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
    return point_of(
        stated, place, finite(predicted), how, candidate, offered + limits
    )  # fmt: skip
