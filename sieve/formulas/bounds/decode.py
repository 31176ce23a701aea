"""Decode ceilings: what memory and bandwidth allow, with and without speculation (5 to 7).

One iteration reads the weights that its tokens visit and the cache of every session. Capacity
limits how many sessions there are, bandwidth how often they advance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from sieve.errors import InvalidInput
from sieve.formulas.bounds.inputs import (
    SLACK,
    at_least,
    formula,
    items,
    not_negative,
    number,
    part,
    positive,
    whole,
    whole_number,
)
from sieve.formulas.bounds.model import (
    Model,
    distinct_experts,
    read_cache,
    read_model,
    read_routing,
    read_weights,
    split_experts,
)
from sieve.units import gfloor


@formula
def feasible(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return whether a held size h and a read rate r fit capacity C and bandwidth R."""
    capacity, bandwidth = positive(inputs, "C"), positive(inputs, "R")
    held, read = not_negative(inputs, "h"), not_negative(inputs, "r")
    failures = [] if held <= capacity else ["capacity"]
    if not at_least(bandwidth, read):
        failures.append("flux")
    return {
        "memory_power": capacity * bandwidth,
        "feasible": not failures,
        "failures": failures,
    }


@formula
def streamed_volume(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return what can be touched in dt: the memory once, and all that is read (repeats count)."""
    capacity, bandwidth = positive(inputs, "C"), positive(inputs, "R")
    return {"volume": capacity + bandwidth * not_negative(inputs, "dt")}


@formula
def simple(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the bound that reads the weights once a step and no cache."""
    capacity, bandwidth = positive(inputs, "C"), positive(inputs, "R")
    weights, session = positive(inputs, "W"), positive(inputs, "K")
    margin = capacity - not_negative(inputs, "O", 0.0) - weights
    sessions = gfloor(margin / session)
    state = "does_not_fit" if margin < 0 else "fits" if sessions else "resident_only"
    return {
        "state": state,
        "sessions": sessions,
        "step_rate": bandwidth / weights,
        "memory_power_bound": bandwidth * margin / (session * weights),
        "large_memory_limit": capacity * bandwidth / (session * weights),
    }


@formula
def moe_split(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of one expert and of what every token visits."""
    p_expert, p_fixed = split_experts(inputs)
    return {"p_expert": p_expert, "p_fixed": p_fixed}


@formula
def expected_experts(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the expected number of distinct experts of a layer that n tokens visit."""
    experts, top_k = read_routing(inputs)
    return {"m": distinct_experts(not_negative(inputs, "n"), experts, top_k)}


@formula
def weight_sweep(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return W(n) for each n."""
    weights = read_weights(part(inputs, "weights"))
    return {"bytes": [weights.sweep(whole_number(n, "n", 0)) for n in items(inputs, "n")]}


@formula
def kv_cache(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the cache of a session for each length L."""
    layout = read_cache(part(inputs, "kv"))
    lengths = [number(length, "L") for length in items(inputs, "L")]
    if any(length < 0 for length in lengths):
        raise InvalidInput(f"L holds {min(lengths):g}; lengths must be 0 or more")
    return {"bytes": [layout.at(length) for length in lengths]}


@formula
def decode(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ceilings of ordinary decoding and the gate that stops them (6).

    The gates are never confused: `does_not_fit` (weights), `resident_only` (no session beside
    them), `no_floor` (fits, but no batch meets the floor), `floor_fit`.
    """
    bandwidth, floor = positive(inputs, "R"), positive(inputs, "r_star")
    model = read_model(inputs)
    session, read = _session_sizes(inputs, model)
    margin = memory_margin(inputs, model)
    if margin < 0:
        return {"state": "does_not_fit", "margin": margin}
    weights = model.weights
    num_fit = gfloor(margin / session)
    first = weights.sweep(1)
    result: dict[str, Any] = {
        "state": "resident_only",
        "margin": margin,
        "b_mem": num_fit,
        "single": bandwidth / (first + read),
        "memory_power": bandwidth * margin / (session * first),
    }
    if num_fit == 0:
        return result
    num_fast = _sessions_by_rate(bandwidth / floor - first, read)
    result |= {
        "b_rate": num_fast,
        "b_usable": num_fit if num_fast is None else min(num_fit, num_fast),
    }

    def meets_floor(batch: int) -> bool:
        return at_least(bandwidth / (weights.sweep(batch) + batch * read), floor)

    # W(b)/b falls and W(b) + b K_r rises with b, so the largest batch that meets the floor has the
    # greatest throughput.
    best = largest(meets_floor, num_fit)
    if best == 0:
        return result | {"state": "no_floor"}
    aggregate = throughput(model, bandwidth, best, read)
    return result | {
        "state": "floor_fit",
        "b_star": best,
        "aggregate": aggregate,
        "per_session": aggregate / best,
    }


@formula
def forced(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the throughput of given batches, whether they fit and meet a floor or not."""
    bandwidth, model = positive(inputs, "R"), read_model(inputs)
    read = model.read_layout().at(positive(inputs, "L_read"))
    rows = []
    for item in items(inputs, "batches"):
        batch = whole_number(item, "batches", 1)
        aggregate = throughput(model, bandwidth, batch, read)
        rows.append({"batch": batch, "aggregate": aggregate, "per_session": aggregate / batch})
    return {"rows": rows}


@formula
def rho(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the mean tokens per verification pass at a constant acceptance probability."""
    return {"rho": accepted(_acceptance(inputs), whole(inputs, "gamma", 0))}


@formula
def speculative(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ceiling of decoding with a sequential draft of gamma tokens (7).

    All gamma + 1 candidates route through the experts; the cache is read once a pass.
    """
    bandwidth, model = positive(inputs, "R"), read_model(inputs)
    batch, gamma = whole(inputs, "b"), whole(inputs, "gamma", 0)
    per_pass = _tokens_per_pass(inputs, gamma)
    session, read = _session_sizes(inputs, model, draft=not_negative(inputs, "k_draft_alloc", 0.0))
    draft_resident = not_negative(inputs, "w_draft_resident", 0.0)
    draft_sweep = gamma * not_negative(inputs, "w_draft", 0.0)
    draft_read = gamma * not_negative(inputs, "k_draft_read", 0.0)
    margin = memory_margin(inputs, model, also=draft_resident)
    swept = model.weights.sweep(batch * (gamma + 1)) + draft_sweep
    per_token = swept / (batch * per_pass) + (read + draft_read) / per_pass
    num_fit = max(0, gfloor(margin / session))
    aggregate = bandwidth / per_token
    return {
        "state": "does_not_fit"
        if margin < 0
        else "fits"
        if batch <= num_fit
        else "batch_too_large",
        "rho": per_pass,
        "b_mem": num_fit,
        "bytes_per_token": per_token,
        "aggregate": aggregate,
        "per_session": aggregate / batch,
    }


def throughput(model: Model, bandwidth: float, batch: int, read: float) -> float:
    """Return T(b), the tokens per second of a batch that reads `read` of cache a session."""
    return bandwidth / (model.weights.sweep(batch) / batch + read)


def memory_margin(inputs: Mapping[str, Any], model: Model, also: float = 0.0) -> float:
    """Return the memory beside the weights and the overhead; negative where they do not fit."""
    capacity = positive(inputs, "C")
    margin = capacity - model.weights.resident - also - not_negative(inputs, "O", 0.0)
    return 0.0 if -SLACK * capacity <= margin < 0 else margin


def largest(keep: Callable[[int], bool], high: int) -> int:
    """Return the largest of 1 ... high that is kept, 0 if none; what is kept comes first."""
    low, beyond = 0, high + 1
    while beyond - low > 1:
        middle = (low + beyond) // 2
        low, beyond = (middle, beyond) if keep(middle) else (low, middle)
    return low


def accepted(alpha: float, gamma: int) -> float:
    """Return the mean tokens of a pass, (1 - alpha^(gamma + 1))/(1 - alpha)."""
    if alpha == 1:
        return float(gamma + 1)
    if alpha == 0:
        return 1.0
    # log1p keeps the digits of alpha near 1.
    log_alpha = math.log1p(alpha - 1) if alpha > 0.5 else math.log(alpha)
    return -math.expm1((gamma + 1) * log_alpha) / (1 - alpha)


def _session_sizes(
    inputs: Mapping[str, Any], model: Model, draft: float = 0.0
) -> tuple[float, float]:
    """Return what a session reserves and what a step reads of it."""
    reserved, read = positive(inputs, "L_alloc"), positive(inputs, "L_read")
    if read > reserved:
        raise InvalidInput(f"L_read is {read:g}; it must be at most L_alloc, {reserved:g}")
    return model.reserved_at(reserved) + draft, model.read_layout().at(read)


def _sessions_by_rate(room: float, read: float) -> int | None:
    """Return the sessions whose cache the rest of a step can read; None: any number."""
    if read == 0 or not math.isfinite(room / read):
        return None
    return max(0, gfloor(room / read))


def _acceptance(inputs: Mapping[str, Any]) -> float:
    alpha = not_negative(inputs, "alpha")
    if alpha > 1:
        raise InvalidInput(f"alpha is {alpha:g}; a probability is at most 1")
    return alpha


def _tokens_per_pass(inputs: Mapping[str, Any], gamma: int) -> float:
    """Return rho as given, else from alpha."""
    from_alpha = None if inputs.get("alpha") is None else accepted(_acceptance(inputs), gamma)
    if inputs.get("rho") is None:
        if from_alpha is None:
            raise InvalidInput("alpha or rho is missing; give one of them")
        return from_alpha
    given = positive(inputs, "rho")
    if not (at_least(given, 1.0) and at_least(gamma + 1.0, given)):
        raise InvalidInput(f"rho is {given:g}; with gamma {gamma} it lies within 1 and {gamma + 1}")
    return given
