"""Ceilings of decode, speculative decoding and prefill (sections 5 to 8).

`BOUNDS` maps the names of the evaluation interface to functions of named inputs. They accept any
one unit, as long as every size, and every rate per second, uses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sieve.formulas.bounds import decode, prefill
from sieve.formulas.bounds.inputs import Formula

__all__ = ["BOUNDS"]

BOUNDS: Final[Mapping[str, Formula]] = {
    "bounds.feasible": decode.feasible,
    "bounds.streamed_volume": decode.streamed_volume,
    "bounds.simple": decode.simple,
    "bounds.decode": decode.decode,
    "bounds.forced": decode.forced,
    "bounds.moe_split": decode.moe_split,
    "bounds.expected_experts": decode.expected_experts,
    "bounds.weight_sweep": decode.weight_sweep,
    "bounds.kv_cache": decode.kv_cache,
    "bounds.rho": decode.rho,
    "bounds.speculative": decode.speculative,
    "bounds.attention_flops": prefill.attention_flops,
    "bounds.prefill": prefill.prefill,
    "bounds.prefill_best": prefill.prefill_best,
    "bounds.prefill_range": prefill.prefill_range,
    "bounds.crossover": prefill.crossover,
    "bounds.prefill_chain": prefill.prefill_chain,
}
"""Every function of the module by its name in the evaluation interface."""
