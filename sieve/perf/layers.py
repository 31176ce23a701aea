"""What the layers of a deployment compute: matrices of every kind of layer, and who mixes tokens.

Read from the catalogue's own list of matrices, so that dense, expert, latent, windowed and
recurrent layers all come from one description: shared experts, first dense layers and the
parts that a checkpoint leaves in 16 bits included.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from sieve.catalog.architecture import LayerKind, ModelArchitecture
from sieve.catalog.matrices import (
    LayerPlan,
    Matrix,
    layer_matrices,
    layer_plans,
    plain_kinds,
    shares_tokens,
)
from sieve.perf.base import ServingShape, split
from sieve.perf.gemm import BF16, Precision, linear_precision
from sieve.perf.moe import expert_dtype

_MULTIPLIED: Final = frozenset({"attention", "dense", "shared", "state", "router", "other"})
_SMALL: Final = frozenset({"conv1d", "mixer.conv1d"})  # moved with the element-wise traffic
_BLOCK_FP8: Final = "fp8_block"
_FP32_ROUTERS: Final = "MiniMaxM2"


@dataclass(frozen=True)
class Product:
    """`count` products y[m / parts, n] = x[m / parts, k] w[n, k] on one GPU for m tokens."""

    count: int
    n: int
    k: int
    precision: Precision
    parts: int = 1


@dataclass(frozen=True)
class Mixer:
    """`count` layers of one kind; `kind` None: inline facts say only that no cache grows."""

    count: int
    kind: LayerKind | None


def products(shape: ServingShape) -> list[Product]:
    """Return the dense matrix products of all layers on one GPU, equal ones together."""
    found: Counter[tuple[int, int, Precision, int]] = Counter()
    whole = shares_tokens(shape.model, tp=shape.tp, dp=shape.dp)
    for (plan, plain), count in _plans(shape).items():
        for matrix in layer_matrices(shape.model, plan):
            if matrix.part not in _MULTIPLIED or matrix.name in _SMALL:
                continue
            parts = shape.tp if whole and matrix.part == "shared" else 1
            copies, rows, cols = matrix.shape(shape.tp // parts)
            if matrix.part == "router" and shape.model.architecture.startswith(_FP32_ROUTERS):
                continue
            precision = BF16 if plain else precision_of(shape, matrix)
            found[rows, cols, precision, parts] += count * copies
    return [Product(count, *size) for size, count in found.items()]


def mixers(shape: ServingShape) -> list[Mixer]:
    """Return the kinds of token mixing; layers without any are left out."""
    model = shape.model
    kinds: Counter[LayerKind | None] = Counter()
    for (plan, _), count in _plans(shape).items():
        kinds[plan.kind] += count
    if model.kinds:
        kinds.pop(None, None)
    return [Mixer(count, kind) for kind, count in kinds.items()]


def num_fp32_routers(shape: ServingShape) -> int:
    """Return the layers whose router multiplies in 32 bits, as the model's code has it."""
    wide = shape.model.architecture.startswith(_FP32_ROUTERS)
    return num_expert_layers(shape) if wide else 0


def num_routed_layers(shape: ServingShape) -> int:
    """Return the expert layers whose kernel does not choose the experts itself.

    The kernel of MXFP4 experts (gpt-oss) takes the router's output and does both.
    """
    return 0 if expert_dtype(shape) == "mxfp4" else num_expert_layers(shape)


def num_block_products(found: list[Product]) -> int:
    """Return the products whose inputs are quantised in blocks of their own."""
    return sum(p.count for p in found if p.precision.table_dtype == _BLOCK_FP8)


def norms_over_all_heads(shape: ServingShape) -> bool:
    """Whether query and key norms span all heads, so that ranks must share their sums."""
    return shape.model.qk_norm_params > 2 * shape.model.head_dim


def num_blocks(shape: ServingShape) -> int:
    """Return the blocks of all layers: token mixing and feed-forward, each with one all-reduce.

    Two a layer, but for hybrids whose layers are either (Nemotron-H).
    """
    return sum(count * _blocks(shape.model, plan) for (plan, _), count in _plans(shape).items())


def _blocks(model: ModelArchitecture, plan: LayerPlan) -> int:
    mixes = plan.kind is not None or not model.kinds
    return int(mixes) + int(bool(plan.ffn))


def num_expert_layers(shape: ServingShape) -> int:
    """Return the layers with routed experts."""
    if shape.model.moe is None:
        return 0
    return sum(count for (plan, _), count in _plans(shape).items() if "moe" in plan.ffn)


def moved_elements(shape: ServingShape) -> tuple[float, float]:
    """Return numbers of one token that all layers read and write between kernels.

    First those of layers without routed experts, then of layers with them: four times the width a
    block, twice queries, keys and values, three times the inner width of the feed-forward part;
    with experts each token's results of those it visits here are written and read to be summed.
    """
    dense = experts = 0.0
    for (plan, _), count in _plans(shape).items():
        width = 4.0 * _blocks(shape.model, plan) * shape.model.hidden_size
        elements = width + 2.0 * _mixed_width(shape, plan)
        moe = shape.model.moe if "moe" in plan.ffn else None
        inner = shape.model.intermediate_size or 0 if "dense" in plan.ffn else 0
        if moe:
            inner += moe.num_experts_per_tok * moe.moe_intermediate_size
            inner += moe.shared_intermediate_size
            outer = shape.model.expert_input_size or shape.model.hidden_size
            # Of data-parallel ranks each visits here what its share of all their tokens does.
            elements += 2.0 * moe.num_experts_per_tok * shape.dp / shape.ep * outer
        elements += 3.0 * split(inner, shape.tp)
        if moe:
            experts += count * elements
        else:
            dense += count * elements
    return dense, experts


def _plans(shape: ServingShape) -> dict[tuple[LayerPlan, bool], int]:
    """Return how many layers have each plan, apart where they are left in 16 bits."""
    model = shape.model
    return _counted(model, own=shape.weight_dtype == model.checkpoint_dtype)


@lru_cache(maxsize=256)
def _counted(model: ModelArchitecture, *, own: bool) -> dict[tuple[LayerPlan, bool], int]:
    """Return the counts for a model in its own precision or another; not to be changed."""
    plain = set(model.plain_layers) if own else set()
    return dict(Counter((plan, i in plain) for i, plan in enumerate(layer_plans(model))))


def precision_of(shape: ServingShape, matrix: Matrix) -> Precision:
    """Return how a matrix of a layer that is not left in 16 bits is stored and multiplied."""
    model = shape.model
    if matrix.part in {"router", "other"} or matrix.bytes_per_weight:
        return BF16
    if shape.weight_dtype == model.checkpoint_dtype and matrix.part in model.unquantised:
        return BF16
    # Published MXFP4 checkpoints with experts keep everything but the experts in 16 bits.
    if model.moe and shape.weight_dtype == "mxfp4":
        return BF16
    precision = linear_precision(shape)
    blocks = model.quant_block and shape.weight_dtype == model.checkpoint_dtype == "fp8"
    if blocks and precision.table_dtype == "fp8":
        return Precision(_BLOCK_FP8, precision.weight_bytes, precision.mode)
    return precision


def _mixed_width(shape: ServingShape, plan: LayerPlan) -> float:
    """Return numbers of queries, keys and values (or of a state's inputs) on one GPU."""
    kind = plan.kind or (None if shape.model.kinds else plain_kinds(shape.model)[-1])
    if kind is None:
        heads = shape.heads_per_gpu + 2 * shape.kv_heads_per_gpu
        return 0.0 if shape.model.kinds else float(heads * shape.model.head_dim)
    if kind.state is not None:
        heads = split(kind.state.num_heads, shape.tp)
        return kind.state.conv_channels * heads / kind.state.num_heads
    queries = split(kind.num_attention_heads, shape.tp) * kind.head_dim
    keys = split(kind.num_key_value_heads, shape.tp) * (kind.head_dim + kind.v_head_dim)
    return float(queries + keys)
