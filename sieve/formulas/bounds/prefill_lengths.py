"""The prefill ceiling over all prompt lengths at once."""

from __future__ import annotations

from typing import Final

import numpy as np

from sieve.arrays import FloatArray
from sieve.errors import InvalidInput
from sieve.formulas.bounds.arrays import attended_array, layout_array, sweep_array
from sieve.formulas.bounds.inputs import SLACK
from sieve.formulas.bounds.model import Model
from sieve.formulas.bounds.prefill import Rates
from sieve.formulas.sizing import gfloor_array

_BLOCK: Final = 1 << 18  # lengths evaluated at once, so that memory stays small for any L_max


def extremes(
    model: Model, rates: Rates, *, margin: float, max_length: int, batch: int | None
) -> tuple[tuple[int, float], tuple[int, float]] | None:
    """Return (length, rate) of the lowest and of the highest one-shot ceiling; None if none fits.

    Args:
        model: what a prompt costs.
        rates: all known.
        margin: memory beside weights and overhead.
        max_length: longest prompt.
        batch: prompts at once; None takes as many as fit at each length.
    """
    low: tuple[int, float] | None = None
    high: tuple[int, float] | None = None
    for start in range(1, max_length + 1, _BLOCK):
        lengths = np.arange(start, min(start + _BLOCK, max_length + 1), dtype=np.float64)
        kept, rate = _rates(model, rates, lengths, margin, batch)
        if not len(kept):
            break  # a longer prompt never takes less memory
        for i in _records(-rate):
            if low is None or rate[i] < low[1] * (1 - SLACK):
                low = int(kept[i]), float(rate[i])
        for i in _records(rate):
            if high is None or rate[i] > high[1] * (1 + SLACK):
                high = int(kept[i]), float(rate[i])
    return None if low is None or high is None else (low, high)


def _rates(
    model: Model, rates: Rates, lengths: FloatArray, margin: float, batch: int | None
) -> tuple[FloatArray, FloatArray]:
    """Return the lengths that fit and their ceilings."""
    if model.reserved is None:
        raise InvalidInput("model.kv_alloc is missing; give the cache that a token takes")
    if rates.linear is None or rates.attention is None:
        raise InvalidInput("F_linear or F_attention is missing; give both rates")
    session = layout_array(model.reserved, lengths)
    if batch is None:
        if session[0] <= 0:
            raise InvalidInput(
                f"model.kv_alloc takes {session[0]:g} bytes, so the batch would be unbounded; "
                "give more"
            )
        batches = gfloor_array(margin / session).astype(np.float64)
        fits = batches >= 1
    else:
        batches = np.full(lengths.shape, float(batch))
        fits = batch * session <= margin * (1 + SLACK)
    lengths, batches = lengths[fits], batches[fits]
    tokens = batches * lengths
    traffic = sweep_array(model.weights, tokens) + tokens * model.write_per_token
    linear = 2.0 * tokens * model.multiplied()
    attention = batches * attended_array(model.attention, lengths)
    # Times beyond double precision become infinite and their rate 0, which is right.
    with np.errstate(over="ignore"):
        compute_s = linear / rates.linear + attention / rates.attention
        return lengths, tokens / np.maximum(traffic / rates.bandwidth, compute_s)


def _records(values: FloatArray) -> list[int]:
    """Return where a value exceeds all before it."""
    before = np.concatenate(([-np.inf], np.maximum.accumulate(values)[:-1]))
    return [int(i) for i in np.flatnonzero(values > before)]
