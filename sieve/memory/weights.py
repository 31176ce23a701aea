"""Weight bytes on the ranks of a deployment, matrix by matrix as the engine allocates them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from itertools import pairwise
from typing import Final

import numpy as np

from sieve.arrays import FloatArray, IntArray
from sieve.catalog.architecture import ModelArchitecture
from sieve.catalog.matrices import (
    PARTS,
    LayerPlan,
    Matrix,
    first_matrices,
    last_matrices,
    layer_matrices,
    layer_plans,
    shares_tokens,
)
from sieve.catalog.precisions import STORED_WEIGHT_BYTES
from sieve.memory.formats import PLAIN_BYTES, weight_format
from sieve.units import MIB

_IN_16_BITS: Final = dict.fromkeys(PARTS, PLAIN_BYTES)
_LARGE_BYTES: Final = 10 * MIB  # the caching allocator gives such a tensor a segment of its own
_SEGMENT_BYTES: Final = 2 * MIB  # in multiples of this
_KEPT_BYTES: Final = MIB  # and keeps a rest up to this size with the tensor


def weight_bytes_per_gpu(
    model: ModelArchitecture, *, tp: IntArray, pp: IntArray, bytes_per_param: FloatArray
) -> FloatArray:
    """Return the weights on the fullest rank in bytes, (n,).

    Linear layers are split over TP ranks (KV projections only as far as there are KV heads, then
    replicated) and over stages by whole layers; embeddings stay on the first stage, the head on
    the last. Without the matrix shapes (inline facts) all parameters are split evenly.

    Args:
        model: architecture.
        tp: (n,) tensor parallel sizes.
        pp: (n,) pipeline parallel sizes.
        bytes_per_param: (n,) bytes of one quantised weight.
    """
    keys = zip(tp.tolist(), pp.tolist(), bytes_per_param.tolist(), strict=True)
    return np.array(
        [max(stage_weight_bytes(model, tp=t, pp=p, linear=b, expert=b)) for t, p, b in keys],
        np.float64,
    )


def stage_layers(num_layers: int, pp: int, partition: tuple[int, ...] = ()) -> list[range]:
    """Return the layers of each pipeline stage.

    What does not divide goes to the stages before the last, one each, so that the stage with the
    head is not the fullest; `partition`, where it has `pp` parts, says it instead
    (`VLLM_PP_LAYER_PARTITION`). Source: vLLM `distributed/utils.py`, `get_pp_indices`.
    """
    if len(partition) == pp:
        edges = np.cumsum([0, *partition]).tolist()
        return [range(a, b) for a, b in pairwise(edges)]
    sizes = [num_layers // pp] * pp
    for place in range(num_layers % pp):
        sizes[-(place + 2)] += 1
    ends = np.cumsum([0, *sizes]).tolist()
    return [range(a, b) for a, b in pairwise(ends)]


@lru_cache(maxsize=4096)
def stage_weight_bytes(
    model: ModelArchitecture, *, tp: int, pp: int, linear: float, expert: float, ep: int = 1,
    partition: tuple[int, ...] = (),
) -> tuple[float, ...]:  # fmt: skip
    """Return the bytes that the weights of each stage take on one rank, (pp,).

    Args:
        model: architecture.
        tp: tensor parallel size.
        pp: pipeline parallel size.
        linear: bytes of a quantised weight outside the routed experts.
        expert: bytes of a weight of the routed experts.
        ep: expert parallel size: 1, `tp`, or with data-parallel ranks `tp` times their number.
        partition: layers of each stage; empty: as the engine divides them.
    """
    if not model.is_detailed:
        return (float(model.params * linear / (tp * pp)),) * pp
    sizes = _part_bytes(model, linear, expert)
    scale = stored_scale(model, linear, expert)
    plans = layer_plans(model)
    by_plan = {plan: _layer_bytes(model, plan, sizes, tp, ep) for plan in dict.fromkeys(plans)}
    tables = sum(table.rows * table.width * PLAIN_BYTES for table in model.rotary)
    out = []
    for place, layers in enumerate(stage_layers(model.num_hidden_layers, pp, partition)):
        total = sum(by_plan[p] * n for p, n in Counter(plans[i] for i in layers).items())
        for layer in model.plain_layers:
            if layer in layers:
                whole = _layer_bytes(model, plans[layer], _IN_16_BITS, tp, ep)
                total += whole - by_plan[plans[layer]]
        if place == 0:
            total += sum(_matrix_bytes(m, sizes, tp, ep) for m in first_matrices(model))
        if place == pp - 1:
            for matrix in last_matrices(model):
                if matrix.part != "head" or pp > 1 or not model.tie_word_embeddings:
                    total += _matrix_bytes(matrix, sizes, tp, ep)
        out.append(float(total * scale + tables))
    return tuple(out)


def stored_scale(model: ModelArchitecture, linear: float, expert: float) -> float:
    """Return the bytes of the checkpoint's files over those of its shapes, 1 where not known.

    It holds for the checkpoint's own format only: another one is not what the files hold.
    """
    own = weight_format(model, "auto")
    if not model.stored_bytes or (linear, expert) != (own.linear_bytes, own.expert_bytes):
        return 1.0
    counted = checkpoint_bytes(model, linear, expert)
    return model.stored_bytes / counted if counted else 1.0


def checkpoint_bytes(model: ModelArchitecture, linear: float, expert: float) -> float:
    """Return the bytes of all matrices as a checkpoint stores them, by their shapes."""
    sizes = _part_bytes(model, linear, expert)
    total = 0.0
    for layer, plan in enumerate(layer_plans(model)):
        parts = _IN_16_BITS if layer in model.plain_layers else sizes
        total += sum(m.params * parts.get(m.part, PLAIN_BYTES) for m in layer_matrices(model, plan))
    for matrix in first_matrices(model) + last_matrices(model):
        if matrix.part != "head" or not model.tie_word_embeddings:
            total += matrix.params * sizes.get(matrix.part, PLAIN_BYTES)
    return total


def _part_bytes(model: ModelArchitecture, linear: float, expert: float) -> Mapping[str, float]:
    """Return the bytes of a weight for each part that a format may quantise."""
    sizes = dict.fromkeys(PARTS, linear) | {"experts": expert}
    return sizes | dict.fromkeys(model.unquantised, PLAIN_BYTES)


def _layer_bytes(
    model: ModelArchitecture, plan: LayerPlan, sizes: Mapping[str, float], tp: int, ep: int
) -> float:
    whole = shares_tokens(model, tp=tp, dp=ep // tp)
    total = sum(
        _matrix_bytes(matrix, sizes, 1 if whole and matrix.part == "shared" else tp, ep)
        for matrix in layer_matrices(model, plan)
    )
    if plan.kind is not None and plan.kind.kind == "latent":
        # The engine keeps the up-projection of the latent a second time, unquantised, so that
        # decodes can work in the latent (vLLM `v1/attention/backends/mla`).
        heads = -(-plan.kind.num_attention_heads // tp)
        width = plan.kind.qk_nope_head_dim + plan.kind.v_head_dim
        total += _allocated(heads * width * plan.kind.kv_lora_rank * PLAIN_BYTES)
    return total


def _matrix_bytes(matrix: Matrix, sizes: Mapping[str, float], tp: int, ep: int) -> float:
    copies, rows, cols = matrix.shape(tp, ep)
    size = sizes.get(matrix.part, PLAIN_BYTES)
    if matrix.part == "experts" and size == STORED_WEIGHT_BYTES["mxfp4"]:
        # The kernels take widths in steps: the experts' own in 128, the model's in 256.
        # Source: vLLM `quantization/mxfp4.py`, Marlin layout.
        inner_is_cols = matrix.cols.units > 0
        rows = _stepped(rows, 256 if inner_is_cols else 128 * len(matrix.rows))
        cols = _stepped(cols, 128 if inner_is_cols else 256)
    return _allocated(copies * rows * cols * size)


def _stepped(width: int, step: int) -> int:
    return -(-width // step) * step


def _allocated(size: float) -> float:
    """Return what the caching allocator counts for a tensor.

    Source: PyTorch `CUDACachingAllocator`: large tensors get segments in steps of 2 MiB, of which a
    rest of up to 1 MiB stays with the tensor.
    """
    if size < _LARGE_BYTES:
        return size
    rest = -size % _SEGMENT_BYTES
    return size + rest if rest <= _KEPT_BYTES else size
