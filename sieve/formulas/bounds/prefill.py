"""Prefill ceilings: the same traffic, and the arithmetic of the prompt (8).

One iteration processes c new tokens of each of b prompts over what they have cached already.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sieve.errors import InvalidInput
from sieve.formulas.bounds.decode import largest, memory_margin
from sieve.formulas.bounds.inputs import (
    SLACK,
    at_least,
    choice,
    formula,
    optional_positive,
    part,
    positive,
    whole,
)
from sieve.formulas.bounds.model import Model, Weights, read_layout, read_model
from sieve.units import gfloor

KV_GATES: Final = ("reserve", "store")
"""A session reserves its whole context, or holds what its prompt has stored."""


@dataclass(frozen=True)
class Rates:
    """Bandwidth and arithmetic of the hardware; an unknown rate is None."""

    bandwidth: float
    linear: float | None
    attention: float | None

    @property
    def known(self) -> bool:
        """Both arithmetic rates are given."""
        return self.linear is not None and self.attention is not None


def read_rates(inputs: Mapping[str, Any]) -> Rates:
    """Return the rates among the inputs."""
    linear = optional_positive(inputs, "F_linear")
    return Rates(positive(inputs, "R"), linear, optional_positive(inputs, "F_attention"))


def read_prefill_model(inputs: Mapping[str, Any]) -> Model:
    """Return the model; `strict_windows` reads w - 1 old positions of a window instead of w."""
    model = read_model(inputs)
    model.multiplied()
    return model.with_strict_windows() if inputs.get("strict_windows") is True else model


@formula
def attention_flops(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attention FLOP per token of a chunk over a cached prefix."""
    layout = read_layout(part(inputs, "attention"))
    chunk, prefix = whole(inputs, "c"), whole(inputs, "prefix", 0)
    return {"flops_per_token": layout.attended(chunk, prefix) / chunk}


@formula
def prefill(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return traffic, arithmetic and ceilings of b prompts of length L in chunks of c.

    The maximum of memory and compute time is taken over the totals.
    """
    model, rates = read_prefill_model(inputs), read_rates(inputs)
    length, chunk = whole(inputs, "L"), whole(inputs, "c")
    return timed(model, rates, length, chunk, whole(inputs, "b", default=1))


def timed(model: Model, rates: Rates, length: int, chunk: int, batch: int) -> dict[str, Any]:
    """Return the totals of a prefill and, where all rates are known, its ceilings."""
    chunk = min(chunk, length)
    full, rest = divmod(length, chunk)
    num_chunks = full + (rest > 0)
    sweep = model.weights.sweep
    traffic = full * sweep(batch * chunk) + (sweep(batch * rest) if rest else 0.0)
    if num_chunks > 1:
        traffic += batch * model.read_layout().over_prefixes(chunk, num_chunks)
    tokens = batch * length
    traffic += tokens * model.write_per_token
    linear = 2.0 * tokens * model.multiplied()
    attention = batch * model.attention.attended(length, 0)
    memory_s = traffic / rates.bandwidth
    result = {
        "Q": traffic,
        "A_lin": linear,
        "A_att": attention,
        "n_chunks": num_chunks,
        "a_pf": (linear + attention) / tokens,
        "t_mem": memory_s,
        "mem_rate": tokens / memory_s,
    }
    if rates.linear is None or rates.attention is None:
        return result | {"limit": "unavailable"}
    compute_s = linear / rates.linear + attention / rates.attention
    time_s = max(memory_s, compute_s)
    return result | {
        "t_comp": compute_s,
        "t": time_s,
        "comp_rate": tokens / compute_s,
        "rate": tokens / time_s,
        "limit": "memory" if memory_s > compute_s else "compute",
    }


@formula
def prefill_best(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the one-shot batch of the greatest rate that fits and answers within tau."""
    model, rates = read_prefill_model(inputs), read_rates(inputs)
    length = whole(inputs, "L")
    reserved = positive(inputs, "L_alloc", length)
    if reserved < length:
        raise InvalidInput(f"L is {length}; it must be at most L_alloc, {reserved:g}")
    tau = optional_positive(inputs, "tau")
    gate = choice(inputs, "kv_gate", KV_GATES, "reserve")
    session = model.reserved_at(reserved) if gate == "reserve" else _stored(model, length)
    margin = memory_margin(inputs, model)
    if margin < 0:
        return {"state": "does_not_fit", "b": None, "kv_gate": gate}
    num_fit = gfloor(margin / session)
    if num_fit == 0:
        return {"state": "resident_only", "b": None, "kv_gate": gate}
    if not rates.known:
        return {"state": "unavailable", "b": None, "kv_gate": gate, "limit": "unavailable"}

    def at(batch: int) -> dict[str, Any]:
        return timed(model, rates, length, length, batch)

    # Time and rate both rise with the batch, the rate until arithmetic limits it.
    most = num_fit if tau is None else largest(lambda b: at_least(tau, at(b)["t"]), num_fit)
    if most == 0:
        return {"state": "no_batch", "b": None, "kv_gate": gate}
    top = at(most)["rate"]
    best = most - largest(lambda fewer: at(most - fewer)["rate"] * (1 + SLACK) >= top, most - 1)
    found = at(best)
    kept = ("rate", "t", "mem_rate", "comp_rate", "limit")
    head = {"state": "ok", "b": best, "c": length, "kv_gate": gate}
    return head | {key: found[key] for key in kept}


def _stored(model: Model, length: int) -> float:
    size = model.write_per_token * length
    if size <= 0:
        raise InvalidInput(
            "kv_gate is 'store' and kv_write_per_token 0: no memory per session; give more, or "
            "another kv_gate"
        )
    return size


@formula
def prefill_range(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the lowest and the highest ceiling over all prompt lengths that fit.

    `lo` is a ceiling at its length, never a guarantee.
    """
    # Only this formula needs NumPy, which takes longer to load than all others to answer.
    from sieve.formulas.bounds.prefill_lengths import extremes

    model, rates = read_prefill_model(inputs), read_rates(inputs)
    batch = None if inputs.get("batch") is None else whole(inputs, "batch")
    length = whole(inputs, "L_max")
    margin = memory_margin(inputs, model)
    if not rates.known:
        return {"state": "unavailable", "limit": "unavailable", "lo": None, "hi": None}
    if margin < 0:
        return {"state": "does_not_fit", "lo": None, "hi": None}
    found = extremes(model, rates, margin=margin, max_length=length, batch=batch)
    if found is None:
        return {"state": "resident_only", "lo": None, "hi": None}
    (low, low_rate), (high, high_rate) = found
    return {
        "state": "ok",
        "lo": {"L": low, "rate": low_rate},
        "hi": {"L": high, "rate": high_rate},
    }


@formula
def crossover(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tokens per iteration below which prefill is memory-bound, attention omitted."""
    model = read_model(inputs)
    scale = positive(inputs, "F") / (2 * model.multiplied() * positive(inputs, "R"))
    return {"S_star": _crossing(model.weights, scale)}


def _crossing(weights: Weights, scale: float) -> float:
    """Return the solution of S = scale W(S); W(S)/S falls, so there is one at most.

    It is 0 where nothing is swept by every token and even single tokens are compute-bound.
    """
    low, high = 0.0, scale * weights.sweep_all
    if not (weights.expert and weights.expected):
        return high
    while True:
        middle = (low + high) / 2
        if not low < middle < high:
            return middle
        if scale * weights.sweep(middle) > middle:
            low = middle
        else:
            high = middle


@formula
def prefill_chain(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ceilings of a one-shot prefill from the tightest to the loosest.

    min <= memory <= memory_power, where the batch fits, and min <= compute <= linear_only.
    """
    model = read_prefill_model(inputs)
    rate = optional_positive(inputs, "F")
    rates = Rates(positive(inputs, "R"), rate, rate)
    length, batch = whole(inputs, "L"), whole(inputs, "b")
    reserved = positive(inputs, "L_alloc")
    if reserved < length:
        raise InvalidInput(f"L is {length}; it must be at most L_alloc, {reserved:g}")
    session, margin = model.reserved_at(reserved), memory_margin(inputs, model)
    if margin < 0:
        return {"state": "does_not_fit", "margin": margin}
    found = timed(model, rates, length, length, batch)
    fits = batch <= gfloor(margin / session)
    result = {
        "state": "ok" if fits else "batch_too_large",
        "memory": found["mem_rate"],
        "memory_power": length * rates.bandwidth * margin / (session * model.weights.sweep(1)),
    }
    if rate is None:
        return result | {"state": "unavailable" if fits else "batch_too_large"}
    return result | {
        "min": found["rate"],
        "compute": found["comp_rate"],
        "linear_only": rate / (2 * model.multiplied()),
    }
