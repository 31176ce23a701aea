"""Assembles the ceilings of a model on GPUs into one document.

N GPUs count as one memory with N times the capacity, bandwidth and arithmetic: weights and cache
split evenly, links cost nothing. That is a limit of every way to use them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sieve.bounds_of.facts import (
    KV_BYTES,
    arithmetic_mode,
    is_moe,
    look_up,
    model_inputs,
    weight_bytes_of,
)
from sieve.bounds_of.sections import (
    Case,
    Speculation,
    decode_section,
    prefill_section,
    speculative_section,
)
from sieve.catalog.architecture import Gpu, ModelArchitecture
from sieve.errors import InvalidInput
from sieve.formulas.bounds.inputs import not_negative, positive, whole
from sieve.units import GB, gfloor

# Defaults as the sizing specification advises (6).
OVERHEAD_BYTES: Final = 8 * GB
FLOOR_TOKENS_PER_S: Final = 20.0
CONTEXT_TOKENS: Final = 100_000
READ_CONTEXT_TOKENS: Final = 32_000
PROMPT_TOKENS: Final = 2_048

EXPERT_TRAFFIC: Final = ("floor", "expected")


def bound(
    model: ModelArchitecture,
    gpu: Gpu,
    *,
    num_gpus: int = 1,
    weight_dtype: str | None = None,
    kv_cache_dtype: str = "auto",
    context_tokens: int | None = None,
    read_context_tokens: int | None = None,
    overhead_bytes: float = OVERHEAD_BYTES,
    floor_tokens_per_s: float = FLOOR_TOKENS_PER_S,
    prompt_tokens: int | None = None,
    chunk_tokens: int | None = None,
    ttft_s: float | None = None,
    expert_traffic: str = "floor",
    batches: Sequence[int] = (),
    speculation: Speculation | None = None,
) -> dict[str, Any]:
    """Return the decode and prefill ceilings of a model, with their kinds and assumptions.

    Args:
        model: what is served.
        gpu: what serves it.
        num_gpus: GPUs that hold the model together.
        weight_dtype: precision of all weights; the checkpoint's by default.
        kv_cache_dtype: precision of the cache; `auto` is 16 bits.
        context_tokens: tokens reserved for a session; 100,000 by default, or the model's limit.
        read_context_tokens: cached tokens that a decode step reads of a session.
        overhead_bytes: memory of one GPU that is neither weights nor cache.
        floor_tokens_per_s: what every session must get.
        prompt_tokens: length of a prompt.
        chunk_tokens: new tokens of a prompt in one iteration; None takes it whole.
        ttft_s: longest wait for the end of prefill.
        expert_traffic: `floor` (top_k experts an iteration: a bound) or `expected`.
        batches: batches whose decode ceiling is shown whether they fit or not.
        speculation: also show the ceilings with drafted tokens.

    Raises:
        InvalidInput: a value outside its range, or a GPU without memory or bandwidth.
    """
    _check(
        counts={
            "num_gpus": num_gpus, "context": context_tokens, "read context": read_context_tokens,
            "prompt": prompt_tokens, "chunk": chunk_tokens,
        },
        amounts={"floor": floor_tokens_per_s, "ttft": ttft_s},
    )  # fmt: skip
    not_negative({"overhead": overhead_bytes}, "overhead")
    if expert_traffic not in EXPERT_TRAFFIC:
        raise InvalidInput(
            f"expert_traffic is {expert_traffic!r}; allowed: {', '.join(EXPERT_TRAFFIC)}"
        )
    for what, amount in (
        ("memory", gpu.memory_bytes), ("memory bandwidth", gpu.mem_bw_bytes_per_s),
    ):  # fmt: skip
        if not amount > 0:
            raise InvalidInput(
                f"{gpu.name}: its {what} is not known, so it has no ceiling; choose another of "
                "`sieve gpus`"
            )
    dtype, weight_bytes = weight_bytes_of(model, weight_dtype)
    kv_bytes = look_up(KV_BYTES, kv_cache_dtype, "kv_cache_dtype")
    reserved, read = _contexts(model, context_tokens, read_context_tokens)
    modes = {
        "linear": arithmetic_mode(gpu, dtype),
        "attention": arithmetic_mode(gpu, "fp8" if kv_bytes < 2 else "bf16"),
    }
    case = Case(
        hardware={
            "C": num_gpus * gpu.memory_bytes,
            "R": num_gpus * gpu.mem_bw_bytes_per_s,
            "O": num_gpus * overhead_bytes,
        },
        model=model_inputs(model, weight_bytes, kv_bytes, expert_traffic),
        context={"L_alloc": reserved, "L_read": read},
        floor=floor_tokens_per_s,
        rates={
            f"F_{part}": num_gpus * gpu.flops_per_s[mode]
            for part, mode in modes.items()
            if mode is not None
        },
        costs_are_limits=model.is_detailed,
        expected=expert_traffic == "expected" and is_moe(model),
    )
    prompt = min(PROMPT_TOKENS, reserved) if prompt_tokens is None else prompt_tokens
    decoding = decode_section(case, batches)
    result = {
        "model": model.name,
        "gpu": gpu.name,
        "num_gpus": num_gpus,
        "decode": decoding,
        "prefill": prefill_section(case, prompt, chunk_tokens, ttft_s),
    }
    if speculation is not None:
        sizes = list(batches) or sorted({1, decoding.get("b_star") or 1})
        result["speculative"] = speculative_section(case, speculation, sizes)
    result["assumptions"] = {
        "overhead_bytes_per_gpu": overhead_bytes,
        "context_tokens": reserved,
        "read_context_tokens": read,
        "rho": 1.0,
        "floor_tokens_per_s": floor_tokens_per_s,
        "weight_dtype": dtype,
        "weight_bytes_per_param": weight_bytes,
        "kv_cache_dtype": kv_cache_dtype,
        "kv_bytes_per_token": case.model["kv_write_per_token"],
        "kv_adapter": case.model["kv_alloc"]["kind"],
        "bandwidth_bytes_per_s": case.hardware["R"],
        "rate_source": "hardware limit of the catalogue",
        "expert_traffic": expert_traffic if is_moe(model) else "no experts",
        "prompt_tokens": prompt,
        "chunk_tokens": chunk_tokens if chunk_tokens is not None else "one-shot",
        "linear_mode": modes["linear"] or "unavailable",
        "linear_flops_per_s": case.rates.get("F_linear"),
        "attention_mode": modes["attention"] or "unavailable",
        "attention_flops_per_s": case.rates.get("F_attention"),
        "workspace_bytes": 0.0,
        "kv_gate": "reserve: K_a(context) of every session is held from the start",
        "notes": _notes(model, gpu, num_gpus, reserved),
    }
    return result


def _check(counts: dict[str, int | None], amounts: dict[str, float | None]) -> None:
    """Refuse what is given and not above 0."""
    for name, count in counts.items():
        if count is not None:
            whole(counts, name)
    for name, amount in amounts.items():
        if amount is not None:
            positive(amounts, name)


def _contexts(model: ModelArchitecture, reserved: int | None, read: int | None) -> tuple[int, int]:
    """Return the tokens that a session reserves and those that a step reads of it."""
    limit = model.max_position_embeddings
    if reserved is None:
        reserved = CONTEXT_TOKENS if limit is None else min(CONTEXT_TOKENS, limit)
        if read is not None:
            reserved = max(reserved, read)
        elif reserved == CONTEXT_TOKENS:
            read = READ_CONTEXT_TOKENS
    if read is None:
        read = max(1, gfloor(0.9 * reserved), reserved - READ_CONTEXT_TOKENS)
    if read > reserved:
        raise InvalidInput(
            f"the read context is {read} tokens; it must be at most the context, {reserved}"
        )
    return reserved, read


def _notes(model: ModelArchitecture, gpu: Gpu, num_gpus: int, reserved: int) -> list[str]:
    notes = ["every byte is read from memory once a step; nothing stays on the chip"]
    notes.append("sessions share no cached prefix")
    if num_gpus > 1:
        notes.append("weights and cache split evenly over the GPUs and links cost nothing")
    if model.kinds:
        notes.append(
            "of local chunks, sparse selection and compressed layers only the reads and products "
            "that cannot be avoided count; recurrent layers count their state"
        )
    if model.expert_dtype:
        notes.append("all weights count at the smallest precision of the checkpoint")
    if not model.is_detailed:
        notes.append(
            "embedding and head are not known apart: they count as swept and multiplied, so these "
            "are estimates and no bounds"
        )
    limit = model.max_position_embeddings
    if limit is not None and reserved > limit:
        notes.append(f"the context of {reserved} tokens exceeds the model's limit of {limit}")
    notes += [f"{model.name}: {text}" for text in model.assumed]
    return notes + [f"{gpu.name}: {text}" for text in gpu.assumed]
