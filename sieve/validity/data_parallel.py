"""Rules of data-parallel ranks: engines of one deployment that share its experts.

Each rank schedules on its own, with a cache and attention weights of its own; the experts are dealt
out over the GPUs of all ranks, so these step together. Sources: vLLM 0.33 `v1/engine/core.py`
(`DPEngineCoreProc`), `config/parallel.py`, `fused_moe/config.py`.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from sieve.arrays import BoolArray, IntArray
from sieve.catalog.architecture import ModelArchitecture

RULE: Final = "data_parallel"
_DENSE: Final = "data-parallel ranks; without experts they share nothing: use replicas"
_SHAPES: Final = (
    "data-parallel ranks; the model's matrices are not known, so experts not told apart"
)
_VERSION: Final = "data-parallel ranks that share experts, not in this engine version"
_STAGES: Final = "pipeline stages of data-parallel ranks, more are not replayed"


def data_parallel_faults(
    model: ModelArchitecture, dp: IntArray, pp: IntArray, shared: str
) -> tuple[BoolArray, IntArray, npt.NDArray[np.object_]]:
    """Return where data-parallel ranks are refused, the number found and what it is, (n,) each.

    The number may be at most 1 everywhere.

    Args:
        model: architecture.
        dp: (n,) data-parallel ranks of a replica.
        pp: (n,) pipeline stages.
        shared: what the ranks of this engine version share: `experts` or `none`.
    """
    several = dp > 1
    if model.moe is None or not model.is_detailed or shared != "experts":
        unit = _DENSE if model.moe is None else _VERSION if shared != "experts" else _SHAPES
        return several, dp, np.full(len(dp), unit, object)
    return several & (pp > 1), pp, np.full(len(dp), _STAGES, object)


def legal_data_parallel(model: ModelArchitecture, *, pp: int, shared: str) -> str:
    """Return what a deployment at fault may have instead, as text."""
    if model.moe is None:
        return "dp 1, and as many replicas"
    return "pp 1, or dp 1" if pp > 1 and shared == "experts" and model.is_detailed else "dp 1"
