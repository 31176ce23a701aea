"""Step times of a model of which only its parameters and widths are known."""

from __future__ import annotations

from typing import Final

import numpy as np

from sieve.arrays import FloatArray
from sieve.perf.base import ROOFLINE, ServingShape, Timing
from sieve.perf.roofline import (
    BANDWIDTH_SHARE,
    FLOPS_SHARE,
    GEMM_FLOOR_S,
    arithmetic_mode,
    flops_per_s,
)

_MATRICES_PER_LAYER: Final = 4


def parametric_tokens(shape: ServingShape, m: FloatArray) -> Timing:
    """Return the times of all matrix products for (points,) m tokens.

    Each stage reads its share of the weights that its tokens touch and multiplies the active
    parameters; all stages together do so for the whole model. With experts the part of the
    weights that one token leaves untouched shrinks geometrically with the tokens.
    """
    model, gpu = shape.model, shape.gpu
    active = min(model.active_params, model.params)
    touched = model.params * (1 - (1 - active / model.params) ** m)
    memory = touched / shape.tp * shape.weight_bytes_per_param / gpu.mem_bw_bytes_per_s
    peak = flops_per_s(gpu, arithmetic_mode(gpu, shape.weight_dtype))
    compute = 2.0 * active * m / shape.tp / peak
    floors = GEMM_FLOOR_S * _MATRICES_PER_LAYER * model.num_hidden_layers
    return Timing.of(floors + np.maximum(memory / BANDWIDTH_SHARE, compute / FLOPS_SHARE), ROOFLINE)
