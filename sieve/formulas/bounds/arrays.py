"""Decode ceilings of many candidates at once, and the array forms of what a model costs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sieve.arrays import BoolArray, FloatArray, IntArray
from sieve.errors import InvalidInput
from sieve.formulas.bounds.inputs import SLACK
from sieve.formulas.bounds.model import Layout, Weights
from sieve.formulas.sizing import gfloor_array

Numbers = npt.ArrayLike


@dataclass(frozen=True, eq=False)
class DecodeBounds:
    """Decode ceilings; arrays of one shape.

    Attributes:
        margin: memory beside weights and overhead; negative where the model does not fit.
        b_mem: sessions that fit, 0 where the model does not.
        memory_power: tokens/s that no batch exceeds; nan where the model does not fit.
        aggregate: tokens/s of the batch, whether it fits or not.
        per_session: tokens/s of one of its sessions.
        fits: the batch fits beside the weights.
        meets_floor: every session gets the floor.
    """

    margin: FloatArray
    b_mem: IntArray
    memory_power: FloatArray
    aggregate: FloatArray
    per_session: FloatArray
    fits: BoolArray
    meets_floor: BoolArray


def decode_bound_arrays(
    *, capacity: Numbers, bandwidth: Numbers, overhead: Numbers, w_resident: Numbers,
    w_fixed: Numbers, kv_alloc: Numbers, kv_read: Numbers, batch: Numbers, floor: Numbers,
    w_expert: Numbers = 0.0, experts: Numbers = 2.0, top_k: Numbers = 1.0,
    expected: Numbers = False,
) -> DecodeBounds:  # fmt: skip
    """Return the decode ceilings (6) of (model, GPU, batch) triples; the arguments broadcast.

    Args:
        capacity: memory before overhead.
        bandwidth: of the memory, per second.
        overhead: memory that is neither weights nor cache.
        w_resident: weights held.
        w_fixed: weights swept in every iteration.
        kv_alloc: cache that one session reserves.
        kv_read: cache that one session's step reads.
        batch: sessions.
        floor: tokens/s that every session must get.
        w_expert: one routed expert of every layer, 0 for models without.
        experts: routed experts per layer.
        top_k: experts that one token visits.
        expected: expected routing; else the floor of `top_k` experts a step.

    Raises:
        InvalidInput: a size or rate that is not above 0, or `top_k` not below `experts`.
    """
    limit, rate, taken, resident, fixed, session, read, size, wanted, expert, count, visits = (
        np.asarray(value, np.float64)
        for value in (
            capacity, bandwidth, overhead, w_resident, w_fixed, kv_alloc, kv_read, batch, floor,
            w_expert, experts, top_k,
        )
    )  # fmt: skip
    for name, values in (
        ("capacity", limit), ("bandwidth", rate), ("w_resident", resident), ("kv_alloc", session),
        ("batch", size), ("floor", wanted), ("top_k", visits),
    ):  # fmt: skip
        _require(name, values, values > 0, "above 0")
    for name, values in (
        ("overhead", taken), ("w_fixed", fixed), ("kv_read", read), ("w_expert", expert),
    ):  # fmt: skip
        _require(name, values, values >= 0, "0 or more")
    _require("top_k", visits, np.asarray((visits < count) | (expert == 0)), "below experts")
    first = fixed + expert * visits
    _require("w_fixed", first, first > 0, "above 0 where there are no experts")
    swept = np.asarray(first)
    if np.any(expected):
        share = np.where(expert > 0, visits / count, 0.0)
        distinct = -count * np.expm1(size * np.log1p(-share))
        swept = fixed + expert * np.where(expected, distinct, visits)
    margin = limit - resident - taken
    margin = np.where((margin < 0) & (margin >= -SLACK * limit), 0.0, margin)
    fitting = np.maximum(gfloor_array(margin / session), 0)
    memory_power = np.where(margin < 0, np.nan, rate * margin / (session * first))
    per_session = rate / (swept + size * read)
    results = np.broadcast_arrays(
        margin, fitting, memory_power, size * per_session, per_session, size <= fitting,
        per_session >= wanted * (1 - SLACK),
    )  # fmt: skip
    return DecodeBounds(*results)


def sweep_array(weights: Weights, n: FloatArray) -> FloatArray:
    """Return W(n), as `Weights.sweep`."""
    if not (weights.expert and weights.expected):
        return np.full(n.shape, weights.sweep(1))
    distinct = -weights.experts * np.expm1(n * np.log1p(-weights.top_k / weights.experts))
    return np.asarray(weights.fixed + weights.expert * distinct, np.float64)


def layout_array(layout: Layout, lengths: FloatArray) -> FloatArray:
    """Return `Layout.at` for many lengths."""
    total = layout.per_token * lengths + layout.state
    for rate, width in layout.windows:
        total = total + rate * np.minimum(lengths, width)
    return total


def attended_array(layout: Layout, lengths: FloatArray) -> FloatArray:
    """Return `Layout.attended` of whole prompts of these lengths."""
    total = layout.per_token * (lengths * (lengths + 1) / 2) + layout.state * lengths
    for rate, width in layout.windows:
        short = np.minimum(lengths, np.floor(width))
        total = total + rate * (short * (short + 1) / 2 + (lengths - short) * width)
    return total


def _require(name: str, values: FloatArray, allowed: BoolArray, words: str) -> None:
    good = np.isfinite(values) & allowed
    if not np.all(good):
        bad = np.broadcast_to(values, good.shape)[~good].flat[0]
        raise InvalidInput(f"{name} is {bad:g}; it must be {words}")
