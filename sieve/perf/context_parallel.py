"""What decode context parallelism adds to a layer: ranks exchange queries and partial results.

Each rank holds the tokens of 1/dcp of a sequence. The queries of `dcp` ranks are gathered, every
rank attends to its own tokens with all of them, and the results are weighted by their softmax sums
and scattered back. The tokens of the step itself are attended to apart and merged. Source: vLLM
`v1/attention/backends/flash_attn.py` and `v1/attention/ops/common.py`.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from sieve.arrays import FloatArray
from sieve.perf.base import EXTRAPOLATED, ROOFLINE, ServingShape, Timing
from sieve.perf.collectives import collective_timing
from sieve.perf.roofline import ATTENTION_FLOOR_S

MERGE_KERNELS: Final = 2
"""Weighting by softmax sums, and merging with the step's own tokens."""
_SUM_NUMBERS: Final = 2  # one float32 softmax sum counts as two 16-bit numbers


def exchange_timing(shape: ServingShape, m: FloatArray, small_kernel_s: float) -> Timing:
    """Return what one layer's attention takes beyond the kernels over cached tokens, (points,).

    Args:
        shape: the replica.
        m: (points,) tokens of the step, prompts and decodes alike.
        small_kernel_s: of an element-wise kernel.
    """
    if shape.dcp == 1:
        return Timing.zeros(len(m))
    heads = shape.heads_per_gpu * shape.dcp
    values = m * heads * shape.model.head_dim
    time = collective_timing(shape, "all_gather", shape.dcp, values)
    time += collective_timing(shape, "all_gather", shape.dcp, m * heads * _SUM_NUMBERS)
    time += collective_timing(shape, "reduce_scatter", shape.dcp, values)
    time += Timing.of(np.full(len(m), ATTENTION_FLOOR_S), ROOFLINE)
    return time + Timing.of(np.full(len(m), MERGE_KERNELS * small_kernel_s), EXTRAPOLATED)


def note(shape: ServingShape) -> str:
    """Return what the step times assume of context parallelism."""
    return (
        f"decode context parallel {shape.dcp}: a rank attends to 1/{shape.dcp} of the cached "
        f"tokens with the queries of {shape.dcp} ranks and exchanges them in three collectives a "
        "layer; composed from measured parts where there are any, never held against a measured run"
    )
