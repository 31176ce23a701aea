"""From a measured row to the deployment that ran: engine options, precision, cache, traffic.

What a row leaves open comes from the recipe that its source published, or else from the defaults
of its engine version; either is said in `assumed`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np

from sieve.arrays import FloatArray, IntArray, Requests
from sieve.catalog.accelerators import load_gpu
from sieve.catalog.architecture import Gpu, ModelArchitecture
from sieve.catalog.models import load_model
from sieve.errors import ResultError
from sieve.fit_of import Fit, configure, fit
from sieve.memory.formats import weight_format
from sieve.verify.measured_rows import MeasuredRow

V1_SINCE: Final = (0, 8)
"""First vLLM with the V1 engine, whose scheduler is the one replayed."""
ASYNC_SINCE: Final = (0, 14)
"""First vLLM that schedules asynchronously by default."""
UNKNOWN_VERSION: Final = "0.11"
"""What blank versions of late 2025 and before are taken for."""

_VERSION: Final = re.compile(r"(\d+)\.(\d+)")
_DATE: Final = re.compile(r"measured=(\d{4})-(\d{2})")
# Releases that were newest in a month, for rows that give only a date or a nightly build.
_BY_MONTH: Final = ((2025, 10, "0.11"), (2025, 12, "0.12"), (2026, 1, "0.14"), (2026, 2, "0.15"),
                    (2026, 3, "0.16"), (2026, 4, "0.18"), (2026, 6, "0.20"))  # fmt: skip
_PRECISIONS: Final = {"fp4": "nvfp4"}
_KV: Final = {"": "auto", "bf16": "bfloat16", "fp16": "float16", "fp8_e4m3": "fp8"}
_VARIED: Final = ("sharegpt", "lm-arena", "gpqa", "mlperf")
_LENGTH_SPREAD: Final = 0.9  # deviation of log lengths of recorded conversations, cut at four means
_OUT_OF_STEP: Final = 0.01  # else all users of a closed loop stay in step for good
_OTHER_TRAFFIC: Final = ("shared-prefix", "agentic")
_DEFAULT_REQUESTS: Final = 500
_ROOM_TOKENS: Final = 256
_SEED: Final = 20_26


@dataclass(frozen=True)
class Recipe:
    """Engine options that a source published for its runs; None: the version's default."""

    max_num_batched_tokens: int | None = None
    gpu_memory_utilization: float | None = None
    asynchronous: bool | None = None
    seats_per_user: bool = False
    completions: bool = False
    reason: str = ""


_INFERENCEX: Final = Recipe(
    8192, 0.9, asynchronous=True, seats_per_user=True, completions=True,
    reason="InferenceX recipe: budget 8192, memory 0.9, asynchronous, a seat for every user",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Setup:
    """The deployment of a row.

    Attributes:
        model, gpu: facts.
        tp, pp, ep, replicas: split.
        weight_dtype, weight_bytes, kv_cache_dtype: precisions.
        version: engine release.
        asynchronous: schedules while the GPU works.
        max_num_seqs, max_num_batched_tokens, num_gpu_blocks, block_size: limits of one replica.
        chat: the client spoke to a chat endpoint.
        requests: traffic, one entry a request; a burst arrives at once.
        assumed: what the row does not say, in words.
        dp: data-parallel ranks of a replica, each with the limits above.
    """

    model: ModelArchitecture
    gpu: Gpu
    tp: int
    pp: int
    ep: int
    replicas: int
    weight_dtype: str
    weight_bytes: float
    kv_cache_dtype: str
    version: tuple[int, int]
    asynchronous: bool
    max_num_seqs: int
    max_num_batched_tokens: int
    num_gpu_blocks: int
    block_size: int
    chat: bool
    requests: Requests
    assumed: tuple[str, ...]
    dp: int = 1


def setup_of(row: MeasuredRow) -> Setup:
    """Return the deployment of a row.

    Raises:
        ResultError: a fact that a replay needs is missing, or the run is of a kind that is not
            replayed.
        SieveError: the model, the card or an option is not known.
    """
    _require_replayable(row)
    model, gpu = _model(row.text["model"]), load_gpu(row.text["gpu"])
    tp, pp = row.count("tp") or 1, row.count("pp") or 1
    # Without experts data-parallel engines share nothing: they are replicas.
    dp = (row.count("dp") or 1) if model.moe is not None else 1
    ep = tp * dp if (row.count("ep") or 1) > 1 or dp > 1 else 1
    each = tp * pp * dp
    if (row.count("num_gpus") or each) % each:
        product = "tp x pp x dp" if dp > 1 else "tp x pp"
        raise ResultError(f"num_gpus {row.text['num_gpus']} is no multiple of {product}")
    replicas = (row.count("num_gpus") or each) // each
    recipe = _recipe(row)
    version, why = _version(row)
    kv, kv_why = _kv_cache(row, recipe, model)
    dtype = _PRECISIONS.get(row.text["weight_precision"], row.text["weight_precision"])
    flags = row.text["notes"]
    asynchronous = version >= ASYNC_SINCE if recipe.asynchronous is None else recipe.asynchronous
    asynchronous = asynchronous or "--async-scheduling" in flags
    requests, drawn = _requests(row)
    seats = row.count("max_num_seqs")
    users = requests.closed_loop_users
    if seats is None and recipe.seats_per_user and users:
        seats = max(1, -(-users // (replicas * dp)))
    longest = int((requests.input_tokens + requests.output_tokens).max())
    limit = model.max_position_embeddings or longest + _ROOM_TOKENS
    book = _ledger(
        row.text["model"], row.text["gpu"], f"vllm=={version[0]}.{version[1]}",
        tp, pp, ep, dp, dtype, kv,
        max(longest, min(limit, longest + _ROOM_TOKENS)), seats,
        row.count("max_num_batched_tokens") or recipe.max_num_batched_tokens,
        recipe.gpu_memory_utilization,
    )  # fmt: skip
    config, dealt = book.configuration, ""
    if dp > 1 and (row.count("ep") or 1) == 1:
        dealt = f"experts taken as dealt out over the {ep} GPUs of all data-parallel ranks"
    if ep == 1 and tp > 1 and _cuts_blocks(book):
        ep = tp
        dealt = f"experts dealt out over {tp} GPUs: sliced, their blocks would not be whole"
    blocks = int(book.kv_tokens // config.block_size)
    if blocks * config.block_size < longest:
        raise ResultError(
            f"the memory ledger finds room for {blocks * config.block_size} tokens, the longest "
            f"request has {longest}"
        )
    assumed = [note for note in (*_alias(model), why, kv_why, dealt, recipe.reason, drawn) if note]
    return Setup(
        model=model, gpu=gpu, tp=tp, pp=pp, ep=ep, replicas=replicas, weight_dtype=dtype,
        weight_bytes=_weight_bytes(model, dtype), kv_cache_dtype=kv, version=version,
        asynchronous=asynchronous, max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens, num_gpu_blocks=blocks,
        block_size=config.block_size, chat=not recipe.completions, requests=requests,
        assumed=tuple(assumed), dp=dp,
    )  # fmt: skip


def _require_replayable(row: MeasuredRow) -> None:
    engine = row.text["engine"]
    if engine.lower() != "vllm":
        raise ResultError(f"engine {engine or 'not stated'}: only vLLM is replayed")
    for name in ("tp", "isl_mean", "osl_mean"):
        if row.numbers[name] is None:
            raise ResultError(f"{name} is not stated")
    if not row.text["weight_precision"]:
        raise ResultError("weight_precision is not stated")
    if not row.measured:
        raise ResultError("no latency or throughput is stated")
    if not row.regime:
        raise ResultError(f"request_rate {row.text['request_rate']!r}: the load is not known")
    if (row.numbers["prefix_hit_rate"] or 0.0) > 0.0:
        raise ResultError("prefix cache hits are not replayed")
    if row.text["length_distribution"].startswith(_OTHER_TRAFFIC):
        raise ResultError(f"{row.text['length_distribution']} traffic is not described by a row")
    words = row.text["notes"].lower()
    for sign, reason in (
        ("speculative", "speculative decoding is not replayed"),
        ("multi-step", "multi-step scheduling is not replayed"),
        ("profiler", "the run carried a profiler"), ("mps", "GPUs were shared by several engines"),
    ):  # fmt: skip
        if sign in words and not row.eligible:
            raise ResultError(reason)
    steps = re.search(r"scheduler_steps=(\d+)", words)
    if steps and int(steps[1]) > 1:
        raise ResultError(f"{steps[1]} scheduler steps at once: multi-step is not replayed")
    if "chunked_prefill=false" in words and (_version(row)[0] < V1_SINCE):
        raise ResultError("prompts first, in whole (before vLLM 0.8): not replayed")
    shared = re.search(r"replicas_on_one_gpu=(\d+)", words)
    if shared and int(shared[1]) > 1:
        raise ResultError("GPUs were shared by several engines")


@lru_cache(maxsize=128)
def _model(name: str) -> ModelArchitecture:
    return load_model(name, any_family=True)


def _alias(model: ModelArchitecture) -> list[str]:
    return [note for note in model.assumed if "is read as" in note]


def _recipe(row: MeasuredRow) -> Recipe:
    if row.text["notes"].startswith("InferenceX"):
        return _INFERENCEX
    return Recipe()


def _version(row: MeasuredRow) -> tuple[tuple[int, int], str]:
    """Return the release, and why it was assumed where the row does not give one."""
    found = _VERSION.match(row.text["engine_version"])
    if found:
        return (int(found[1]), int(found[2])), ""
    when = _DATE.search(row.text["notes"]) or re.search(
        r"(\d{4})-(\d{2})", row.text["engine_version"]
    )
    version = UNKNOWN_VERSION
    if when:
        month = (int(when[1]), int(when[2]))
        version = next((v for *at, v in reversed(_BY_MONTH) if tuple(at) <= month), version)
    first, second = version.split(".")
    return (int(first), int(second)), f"engine version not stated, taken as {version}"


def _kv_cache(row: MeasuredRow, recipe: Recipe, model: ModelArchitecture) -> tuple[str, str]:
    """Return the cache precision; public recipes set FP8 for Llama on H200 and on Blackwell."""
    stated = row.text["kv_precision"].lower()
    if stated or recipe is not _INFERENCEX:
        return _KV.get(stated, stated), ""
    gpu = row.text["gpu"]
    fp8 = gpu.startswith("B") or (gpu.startswith("H200") and model.architecture.startswith("Llama"))
    return ("fp8" if fp8 else "auto"), f"KV cache {'FP8' if fp8 else 'in 16 bits'}, by the recipe"


def _weight_bytes(model: ModelArchitecture, dtype: str) -> float:
    return (
        weight_format(model, dtype).expert_bytes
        if model.moe
        else (weight_format(model, dtype).linear_bytes)
    )


def _cuts_blocks(book: Fit) -> bool:
    """Whether the engine refuses this split because it cuts FP8 blocks of experts."""
    return book.configuration.model.moe is not None and any(
        rule.rule == "quant_blocks" and not rule.ok for rule in book.check.rules
    )


@lru_cache(maxsize=512)
def _ledger(
    model: str, gpu: str, engine: str, tp: int, pp: int, ep: int, dp: int, dtype: str,
    kv: str, length: int, seats: int | None, budget: int | None, share: float | None,
) -> Fit:  # fmt: skip
    """Return the memory ledger of a deployment; equal ones are computed once."""
    return fit(
        configure(
            _model(model), gpu, engine=engine, tp=tp, pp=pp, ep=ep, dp=dp, weight_dtype=dtype,
            kv_cache_dtype=kv,
            max_model_len=length, max_num_seqs=seats, max_num_batched_tokens=budget,
            gpu_memory_utilization=share,
        )
    )  # fmt: skip


def _requests(row: MeasuredRow) -> tuple[Requests, str]:
    """Return the traffic of a row, and what was drawn."""
    rng = np.random.default_rng(_SEED)
    regime, users = row.regime, row.count("concurrency")
    n = row.num_prompts
    if n is None:
        n = 10 * users if regime == "closed loop" and users else _DEFAULT_REQUESTS
    if regime == "static batch":
        n = users or n
    prompts, drawn = _lengths(row, "isl_mean", n, rng)
    answers, _ = _lengths(row, "osl_mean", n, rng)
    if regime == "closed loop" and answers.min() == answers.max():
        spread = rng.uniform(1 - _OUT_OF_STEP, 1 + _OUT_OF_STEP, n)
        answers = np.maximum(np.rint(answers * spread), 1).astype(np.int64)
        drawn = f"answers of equal length end within {_OUT_OF_STEP:.0%} of each other"
    arrival: FloatArray = np.zeros(n)
    rate = row.rate_per_s
    if regime == "open loop" and rate:
        arrival = np.append(0.0, np.cumsum(rng.exponential(1.0 / rate, n - 1)))
    closed = users if regime == "closed loop" else None
    return Requests(arrival, prompts, answers, closed_loop_users=closed), drawn


def _lengths(
    row: MeasuredRow, column: str, n: int, rng: np.random.Generator
) -> tuple[IntArray, str]:
    """Return (n,) lengths: uniform over a stated span, log-normal for conversations, else equal."""
    mean = float(row.numbers[column] or 1.0)
    if row.length_span is not None:
        low, high = row.length_span
        nominal = 2 * mean / (low + high)
        return rng.integers(int(low * nominal), int(high * nominal) + 1, n), ""
    if not row.text["length_distribution"].startswith(_VARIED):
        return np.full(n, max(1, round(mean)), np.int64), ""
    drawn = np.minimum(rng.lognormal(0.0, _LENGTH_SPREAD, n), 4.0)
    lengths = np.maximum(np.rint(drawn * mean / drawn.mean()), 1).astype(np.int64)
    return lengths, "lengths of conversations drawn log-normal around the means"
