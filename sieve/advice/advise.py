"""The advice of one case, topic by topic."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt

from sieve.advice.deployment import Lengths, Replica, deployments
from sieve.advice.pools import pools
from sieve.advice.quantising import quality, quantising, smaller_formats
from sieve.advice.service import service
from sieve.advice.words import Advice, Figure, Objectives, format_name
from sieve.arrays import IntArray
from sieve.catalog.architecture import EngineProfile, Gpu, ModelArchitecture
from sieve.catalog.engines import default_for_gpu, load_engine
from sieve.catalog.models import require_step_time
from sieve.errors import InvalidInput
from sieve.memory.formats import weight_format


def advise(
    model: ModelArchitecture,
    gpu: Gpu,
    *,
    input_tokens: npt.ArrayLike,
    output_tokens: npt.ArrayLike,
    tp: int = 1,
    weight_dtype: str = "auto",
    kv_cache_dtype: str = "auto",
    ttft_s: float | None = None,
    tpot_s: float | None = None,
    e2e_s: float | None = None,
    engine: EngineProfile | None = None,
    max_num_seqs: int | None = None,
    max_num_batched_tokens: int | None = None,
    gpu_memory_utilization: float | None = None,
) -> list[Advice]:
    """Return advice for one replica and its traffic, each piece with the numbers behind it.

    Args:
        model: what is served.
        gpu: what serves it.
        input_tokens: (n,) prompt lengths.
        output_tokens: (n,) answer lengths, one for each prompt.
        tp: GPUs of the replica.
        weight_dtype: "auto" is the checkpoint's.
        kv_cache_dtype: "auto" is 16 bits.
        ttft_s: objective for the first token, in seconds; None: there is none.
        tpot_s: objective for each token after it.
        e2e_s: objective for the last token.
        engine: profile; the newest vLLM by default. Options left out take its defaults.
        max_num_seqs: requests of one step at most.
        max_num_batched_tokens: tokens of one step at most.
        gpu_memory_utilization: share of the memory that the engine may use.

    Raises:
        InvalidInput: no lengths, lengths or limits out of range, or the plain reference engine.
        NotYetError: the step time of this model is not modelled.
        CoverageError: the GPU's arithmetic or link rate is not known.
    """
    require_step_time(model)
    profile = load_engine("vllm") if engine is None else engine
    if profile.name == "reference":
        raise InvalidInput("advice needs a real engine, such as vllm, not `reference`")
    limits: dict[str, Any] = {
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max_num_batched_tokens,
        "gpu_memory_utilization": gpu_memory_utilization,
    }
    for name, value in limits.items():
        limits[name] = default_for_gpu(profile, name, gpu) if value is None else value
    objectives = Objectives(ttft_s, tpot_s, e2e_s)
    _check(tp, limits, objectives)
    replica = Replica(
        model,
        gpu,
        profile,
        tp=tp,
        max_num_seqs=limits["max_num_seqs"],
        max_num_batched_tokens=limits["max_num_batched_tokens"],
        utilisation=limits["gpu_memory_utilization"],
        lengths=_lengths(input_tokens, output_tokens),
    )
    weight_dtype = weight_format(model, weight_dtype).name
    formats = smaller_formats(model, weight_dtype, kv_cache_dtype)
    base, *others = deployments(replica, [(weight_dtype, kv_cache_dtype), *formats])
    found = quantising(base, others, objectives)
    if base.most < 1:
        found.insert(0, _no_fit(base.name, weight_dtype, kv_cache_dtype, replica))
    else:
        found.insert(0, service(base, objectives))
        found.insert(1, pools(base, objectives))
    if others:
        found.append(quality(base, others, objectives))
    return found


def _no_fit(name: str, weight_dtype: str, kv_cache_dtype: str, replica: Replica) -> Advice:
    tokens = replica.lengths.mean_request
    text = (
        f"{format_name(weight_dtype, kv_cache_dtype)} on {replica.tp} x {replica.gpu.name}: not "
        f"one mean request of {tokens:,} tokens fits beside the weights. Quantise, raise TP, or "
        "take a larger GPU."
    )
    figure = Figure(
        "mean requests now", 0, "requests",
        f"memory ledger of {replica.engine.name} {replica.engine.version}, {name}",
    )  # fmt: skip
    return Advice("fit", text, (figure,), "estimate")


def _check(tp: int, limits: dict[str, Any], objectives: Objectives) -> None:
    counts = {"tp": tp, **{k: limits[k] for k in ("max_num_seqs", "max_num_batched_tokens")}}
    for name, count in counts.items():
        if count < 1:
            raise InvalidInput(f"{name} is {count}; it must be 1 or more")
    share = limits["gpu_memory_utilization"]
    if not 0 < share <= 1:
        raise InvalidInput(f"gpu_memory_utilization is {share}; it must be above 0 and at most 1")
    if limits["max_num_batched_tokens"] < limits["max_num_seqs"]:
        raise InvalidInput(
            f"max_num_batched_tokens is {limits['max_num_batched_tokens']}, below max_num_seqs, "
            f"{limits['max_num_seqs']}; raise the one or lower the other"
        )
    for name, limit in asdict(objectives).items():
        if limit is not None and not limit > 0:
            raise InvalidInput(f"{name} is {limit}; it must be above 0 seconds")


def _lengths(input_tokens: npt.ArrayLike, output_tokens: npt.ArrayLike) -> Lengths:
    prompts, answers = (_whole(values) for values in (input_tokens, output_tokens))
    if prompts.shape != answers.shape:
        raise InvalidInput(
            f"{prompts.size} input lengths and {answers.size} output lengths; give one each"
        )
    return Lengths(prompts, answers)


def _whole(values: npt.ArrayLike) -> IntArray:
    found = np.atleast_1d(np.asarray(values, np.float64))
    if found.ndim != 1 or not found.size:
        raise InvalidInput("lengths: expected a list of at least one number of tokens")
    if not np.isfinite(found).all() or (found < 1).any() or (found != np.floor(found)).any():
        raise InvalidInput("lengths: found one that is not a whole number of tokens from 1 on")
    return found.astype(np.int64)
