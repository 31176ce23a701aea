"""What data-parallel ranks share in a step: experts over the tokens of all, and their exchange.

The engine's default way: every rank gathers the tokens of all ranks before the experts and the
results are reduced and scattered after them. Sources: vLLM 0.33 `config/parallel.py`
(`all2all_backend`, `use_sequence_parallel_moe`), `device_communicators/all2all.py`
(`AgRsAll2AllManager`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from sieve.arrays import FloatArray
from sieve.perf.base import EXTRAPOLATED, INTERPOLATED, MEASURED, Part, ServingShape, Timing
from sieve.perf.collectives import collective_part
from sieve.perf.kernel_table import KernelTable
from sieve.perf.layers import num_expert_layers
from sieve.perf.moe import expert_parts

_ROUTING_NUMBERS: Final = 4  # a weight of 4 bytes and a name of 4 an expert, in 16-bit numbers


def shared_parts(shape: ServingShape, table: KernelTable | None, m: FloatArray) -> list[Part]:
    """Return the parts of all expert layers for (points,) m tokens of all ranks together."""
    layers = num_expert_layers(shape)
    width = shape.model.expert_input_size or shape.model.hidden_size
    topk = shape.model.moe.num_experts_per_tok if shape.model.moe else 0
    ranks = shape.tp * shape.dp
    gathered = m * (width + _ROUTING_NUMBERS * topk)
    return [
        *expert_parts(shape, table, m, layers),
        _carried_over(collective_part(shape, "all_gather", ranks, gathered, layers)),
        _carried_over(collective_part(shape, "reduce_scatter", ranks, m * width, layers)),
    ]


def _carried_over(part: Part) -> Part:
    """Return a part whose measurements count as extrapolated: of another call than is made here.

    The engine's calls take parts of unequal length, and stand between the experts of a step.
    """
    times = part.timing.by_class.copy()
    times[EXTRAPOLATED] += times[MEASURED] + times[INTERPOLATED]
    times[[MEASURED, INTERPOLATED]] = 0.0
    return replace(part, timing=Timing(times))


def note(shape: ServingShape) -> str:
    """Return what the step times assume of data-parallel ranks."""
    return (
        f"{shape.dp} data-parallel ranks share experts over {shape.tp * shape.dp} GPUs: each layer "
        "of experts gathers the tokens of all ranks in 16 bits and scatters the results, as "
        "NCCL collectives of equal parts; experts are loaded as where they were measured, else "
        "evenly; the ranks' agreement on sizes before a step is not charged; composed from "
        "parts, never held against a measured run of this engine"
    )
