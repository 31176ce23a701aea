"""From catalogue facts to ceilings: what `sieve bound` computes."""

from __future__ import annotations

from sieve.bounds_of.document import EXPERT_TRAFFIC, bound
from sieve.bounds_of.facts import KV_BYTES, WEIGHT_BYTES, model_inputs, multiplied_params
from sieve.bounds_of.sections import Speculation

__all__ = [
    "EXPERT_TRAFFIC",
    "KV_BYTES",
    "WEIGHT_BYTES",
    "Speculation",
    "bound",
    "model_inputs",
    "multiplied_params",
]
