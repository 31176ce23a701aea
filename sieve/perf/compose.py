"""The step-time table of a deployment, composed from its kernels.

A step is the matrix products and experts of all layers, two all-reduces a layer, element-wise
traffic and a fixed cost a layer; the LM head runs over the sequences that yield a token; token
mixing of every kind of layer comes on top, and the host's share. Kernels come from measured tables
where the accelerator has them and from rooflines elsewhere; what no table holds are the constants
of `sieve.perf.constants`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from sieve.arrays import FloatArray, IntArray, LockStep, StepTable
from sieve.perf import context_parallel
from sieve.perf.base import EXTRAPOLATED, ROOFLINE, Part, ServingShape, Timing, split, total
from sieve.perf.collectives import allreduce_part, crossing_sends, link_rate, network_rate
from sieve.perf.constants import StepConstants, step_constants
from sieve.perf.expert_exchange import shared_parts
from sieve.perf.gemm import BF16, gemm_timing
from sieve.perf.kernel_table import KernelTable, load
from sieve.perf.layers import (
    moved_elements,
    norms_over_all_heads,
    num_block_products,
    num_blocks,
    num_expert_layers,
    num_fp32_routers,
    num_routed_layers,
    products,
)
from sieve.perf.mixing import decode_axes, decode_parts, prefill_axis, prefill_parts
from sieve.perf.moe import expert_parts
from sieve.perf.notes import table_notes
from sieve.perf.parametric import parametric_tokens
from sieve.perf.roofline import ACTIVATION_BYTES, elementwise_s, fp32_gemm_roofline_s

SMALL_KERNELS: Final = 5
"""That the fixed cost of a layer stands for."""
PP_MESSAGE_TOKENS: Final = 512
PP_LATENCY_S: Final = 10e-6

_REPRESENTATIVE_DECODES: Final = 64
_REPRESENTATIVE_CONTEXT: Final = 1500
_REPRESENTATIVE_PROMPT: Final = 1024
_SMALL_STEPS: Final = np.arange(1, 33, dtype=np.float64)
_BLACKWELL: Final = (10.0, 12.0)
_LARGEST_GRAPH: Final = 512
_NORM_SUMS: Final = 4.0  # two sums of squares of 4 bytes a token, in elements of 2 bytes
_LARGEST_GRAPH_BLACKWELL: Final = 1024


@dataclass(frozen=True, eq=False)
class _Kernels:
    """Tables of the accelerator, None where it has none."""

    gemm: KernelTable | None
    moe: KernelTable | None

    @classmethod
    def of(cls, shape: ServingShape) -> _Kernels:
        if not shape.model.is_detailed:
            return cls(None, None)
        system = shape.gpu.kernel_system
        return cls(load(system, "gemm"), load(system, "moe") if shape.model.moe else None)


@dataclass(frozen=True, eq=False)
class StepParts:
    """The times of a deployment before the constants, on the grids of its step table.

    Attributes:
        shape: the deployment.
        tokens, token_parts: numbers of tokens (nt,) and the work of all layers there.
        padded: (max_num_seqs + 1,) batch sizes at which decode steps run.
        mixed: (max_num_batched_tokens + 1,) sizes at which steps with prompts run.
        head: the LM head by sequences from 1.
        batch, context, decode_parts: grids (nb,), (nc,) and mixing of decoding batches (nb * nc,).
        length, prefill_parts: lengths (np,) from 0 and mixing over prompts.
        floor: fixed part of a step's prefill mixing, all layers.
        evidence_parts: token parts, decode parts at a usual batch, and prefill point, for shares.
        graphs: captured batch sizes.
        shared_tokens, shared_parts: as `tokens` and `token_parts`, of what data-parallel ranks do
            together; empty with one.
    """

    shape: ServingShape
    tokens: FloatArray
    token_parts: list[Part]
    padded: IntArray
    mixed: IntArray
    head: Timing
    batch: FloatArray
    context: FloatArray
    decode_parts: list[Part]
    length: FloatArray
    prefill_parts: list[Part]
    floor: Timing
    evidence_parts: tuple[list[Part], Timing, list[Part], int]
    graphs: tuple[int, ...]
    shared_tokens: FloatArray
    shared_parts: list[Part]


def build_step_table(
    shape: ServingShape,
    *,
    cudagraph_sizes: Sequence[int] | None = None,
    asynchronous: bool = True,
    constants: StepConstants | None = None,
) -> StepTable:
    """Return the step times of one replica.

    Args:
        shape: model, accelerator, split and limits.
        cudagraph_sizes: batch sizes with a captured graph; None for the engine's usual ones, empty
            to run decode steps unpadded.
        asynchronous: the engine schedules while the GPU works; otherwise the host's work of a
            step, by sequence, comes between two steps.
        constants: None for the shipped ones.

    Raises:
        TableError: a kernel table is broken.
        CoverageError: the accelerator's FLOP rate or the rate of a link needed is not known.
        InvalidInput: `ep` does not divide `tp`.
    """
    parts = step_parts(shape, cudagraph_sizes=cudagraph_sizes)
    return assemble(parts, constants or step_constants(), asynchronous=asynchronous)


def step_parts(shape: ServingShape, *, cudagraph_sizes: Sequence[int] | None = None) -> StepParts:
    """Return what a step table is assembled from; arguments and errors as `build_step_table`."""
    kernels = _Kernels.of(shape)
    sizes = _graph_sizes(shape) if cudagraph_sizes is None else sorted(cudagraph_sizes)
    padded = padded_sizes(shape.max_num_seqs, sizes)
    mixed = padded_sizes(shape.max_num_batched_tokens, sizes)
    largest = max(shape.max_num_batched_tokens, int(padded[-1]), int(mixed.max()))
    grid = _bends(shape, max(shape.max_num_batched_tokens, int(padded[-1])))
    together = _bends(shape, shape.dp * largest) if shape.dp > 1 else np.zeros(0)
    batch, context = decode_axes(shape)
    length = prefill_axis(shape)
    prefill, floor = prefill_parts(shape, length)
    tokens = _token_parts(shape, kernels, grid)
    return StepParts(
        shape=shape,
        tokens=grid,
        token_parts=tokens,
        padded=padded,
        mixed=mixed,
        head=_head(shape, kernels, np.arange(1.0, shape.max_num_seqs + 1)),
        batch=batch,
        context=context,
        decode_parts=decode_parts(shape, batch, context),
        length=length,
        prefill_parts=prefill,
        floor=floor,
        evidence_parts=_evidence_parts(shape, kernels, grid, tokens, length),
        graphs=tuple(sizes),
        shared_tokens=together,
        shared_parts=shared_parts(shape, kernels.moe, together) if shape.dp > 1 else [],
    )


def assemble(
    parts: StepParts,
    constants: StepConstants,
    *,
    asynchronous: bool = True,
    before_v1: bool = False,
) -> StepTable:
    """Return the step table of prepared parts with some constants.

    Args:
        parts: of `step_parts`.
        constants: of the model.
        asynchronous: as for `build_step_table`.
        before_v1: the engine is vLLM before 0.8, whose host work was heavier.
    """
    shape, pp = parts.shape, parts.shape.pp
    largest = max(shape.max_num_batched_tokens, int(parts.padded[-1]), int(parts.mixed.max()))
    dense = _by_tokens(parts.tokens, parts.token_parts, constants, largest)
    launched = constants.layer_launch_s * num_blocks(shape) / 2
    lock_step = None
    if shape.dp > 1:
        shared = _by_tokens(parts.shared_tokens, parts.shared_parts, constants, shape.dp * largest)
        lock_step = LockStep(shape.dp, dense, shared, _graph_of(parts.graphs, largest), launched)
        dense = dense + shared[:: shape.dp]
    head = np.append(0.0, parts.head.total_s)
    decode, mixed = constants.host_decode_s, constants.host_mixed_s
    if _is_blackwell(shape):
        mixed += constants.blackwell_mixed_s
    if not asynchronous:
        old = constants.old_host_factor if before_v1 else 1.0
        decode, mixed = decode + old * constants.sync_step_s, mixed + old * constants.sync_step_s
        head = head + old * constants.sync_sequence_s * np.arange(len(head))
    with_prompts = np.maximum(dense[parts.mixed], launched)
    with_prompts[0] = 0.0
    points = len(parts.batch) * len(parts.context)
    attention = _sum(parts.decode_parts, constants, points).total_s
    attention = attention.reshape(len(parts.batch), len(parts.context))
    # Repeats of one kernel differ by a few per cent; more work is never taken to be quicker.
    rising = np.maximum.accumulate(np.maximum.accumulate(attention, axis=1), axis=0)
    prefill = _sum(parts.prefill_parts, constants, len(parts.length)).total_s
    return StepTable(
        token_s=with_prompts,
        decode_token_s=dense[parts.padded],
        head_s=head,
        decode_batch=parts.batch,
        decode_context=parts.context,
        decode_attention_s=rising,
        prefill_length=parts.length,
        prefill_attention_s=np.maximum.accumulate(prefill),
        prefill_floor_s=float(parts.floor.total_s[0]),
        host_decode_s=decode * pp,
        host_mixed_s=mixed * pp,
        pp=pp,
        pp_transfer_s=_pp_transfer_s(shape),
        lock_step=lock_step,
        component_evidence=_evidence(parts, constants),
        notes=table_notes(shape),
    )


def _by_tokens(
    grid: FloatArray, parts: Sequence[Part], constants: StepConstants, largest: int
) -> FloatArray:
    """Return the time of parts by whole numbers of tokens, (largest + 1,), 0 for none."""
    time = np.append(0.0, _sum(parts, constants, len(grid)).total_s)
    dense: FloatArray = np.interp(np.arange(largest + 1.0), np.append(0.0, grid), time)
    return dense


def _graph_of(sizes: Sequence[int], largest: int) -> IntArray:
    """Return the captured size that holds each number of tokens, up to the largest captured."""
    kept = [size for size in sizes if size <= largest]
    return padded_sizes(max(kept, default=0), kept)


def default_cudagraph_sizes(largest: int = _LARGEST_GRAPH) -> list[int]:
    """Return the captured batch sizes: 1, 2, 4, by 8 below 256, by 16 to `largest`.

    Source: vLLM's default capture sizes (`cudagraph_capture_sizes` of its compilation config).
    """
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, largest + 1, 16)]
    return [size for size in sizes if size <= largest]


def _graph_sizes(shape: ServingShape) -> list[int]:
    """Return vLLM's sizes here: up to twice `max_num_seqs`, 512 (Blackwell 1,024), the budget."""
    most = _LARGEST_GRAPH_BLACKWELL if _is_blackwell(shape) else _LARGEST_GRAPH
    return default_cudagraph_sizes(
        max(1, min(2 * shape.max_num_seqs, most, shape.max_num_batched_tokens))
    )


def _is_blackwell(shape: ServingShape) -> bool:
    """Whether this is a data-centre card of that generation."""
    return _BLACKWELL[0] <= (shape.gpu.compute_capability or 0.0) < _BLACKWELL[1]


def padded_sizes(max_num_seqs: int, cudagraph_sizes: Sequence[int] | None) -> IntArray:
    """Return (max_num_seqs + 1,) batch sizes that decode steps run at; 0 stays 0."""
    sizes = default_cudagraph_sizes() if cudagraph_sizes is None else sorted(cudagraph_sizes)
    batch = np.arange(max_num_seqs + 1)
    graphs = np.asarray([*sizes, 0], np.int64)
    i = np.searchsorted(graphs[:-1], batch)
    padded = np.where(i < len(sizes), graphs[i], batch)
    padded[0] = 0
    return padded.astype(np.int64)


def _bends(shape: ServingShape, largest: int) -> FloatArray:
    """Return numbers of tokens up to `largest` where a kernel's curve may bend."""
    system = shape.gpu.kernel_system if shape.model.is_detailed else ""
    points = [_SMALL_STEPS, 2.0 ** np.arange(18), np.array([float(largest)])]
    points += [t.distinct_axis for op in ("gemm", "moe") if (t := load(system, op)) is not None]
    for op in ("custom_allreduce", "nccl"):
        if (table := load(system, op)) is not None:
            tokens = table.distinct_axis / shape.model.hidden_size
            points += [np.floor(tokens), np.ceil(tokens)]
    grid = np.unique(np.concatenate(points))
    return grid[(grid >= 1) & (grid <= largest)]


def _sum(parts: Sequence[Part], constants: StepConstants, n: int) -> Timing:
    """Return the sum of parts with their constants."""
    return total(
        (part.at(getattr(constants, part.constant) if part.constant else 1.0) for part in parts), n
    )


def _token_parts(shape: ServingShape, kernels: _Kernels, m: FloatArray) -> list[Part]:
    """Return the work of all layers for (n,) numbers of tokens."""
    layers, blocks = shape.model.num_hidden_layers, num_blocks(shape)
    parts = [Part(Timing.of(np.ones(len(m)), EXTRAPOLATED), 0.0, "layer_fixed_s", blocks / 2)]
    for name, elements in zip(
        ("elementwise_dense", "elementwise_moe"), moved_elements(shape), strict=True
    ):
        moved = elementwise_s(shape.gpu, ACTIVATION_BYTES * elements * m)
        parts.append(Part(Timing.of(moved, ROOFLINE), 0.0, name))
    if shape.tp > 1:
        parts.append(allreduce_part(shape, m, blocks))
        if norms_over_all_heads(shape):
            parts.append(allreduce_part(shape, m, layers, _NORM_SUMS))
    if shape.dcp > 1:
        small = step_constants().layer_fixed_s / SMALL_KERNELS
        parts.append(Part(context_parallel.exchange_timing(shape, m, small), count=layers))
    if not shape.model.is_detailed:
        return [*parts, Part(parametric_tokens(shape, m))]
    matrices = products(shape)
    for product in matrices:
        tokens = np.ceil(m / product.parts) if product.parts > 1 else m
        time = gemm_timing(shape.gpu, kernels.gemm, product.n, product.k, product.precision, tokens)
        parts.append(Part(time, count=product.count))
    ones = Timing.of(np.ones(len(m)), EXTRAPOLATED)
    for constant, count in (
        ("block_quant_s", num_block_products(matrices)), ("routing_s", num_routed_layers(shape)),
    ):  # fmt: skip
        if count:
            parts.append(Part(ones, 0.0, constant, count))
    if (wide := num_fp32_routers(shape)) and shape.model.moe:
        width = shape.model.moe.num_experts, shape.model.hidden_size
        product_s = fp32_gemm_roofline_s(shape.gpu, m, *width)
        parts.append(Part(Timing.of(product_s, ROOFLINE), count=wide))
    if (expert_layers := num_expert_layers(shape)) and shape.dp == 1:
        parts += expert_parts(shape, kernels.moe, m, expert_layers)
    return parts


def _head(shape: ServingShape, kernels: _Kernels, m: FloatArray) -> Timing:
    """Return the LM head's time for (n,) numbers of sampled sequences."""
    model = shape.model
    if model.vocab_size is None:
        return Timing.zeros(len(m))
    columns = split(model.vocab_size, shape.tp)
    return gemm_timing(shape.gpu, kernels.gemm, columns, model.hidden_size, BF16, m)


def _pp_transfer_s(shape: ServingShape) -> float:
    """Return the mean seconds of one send between stages, 0 with a single stage.

    Sends within a host go over its link, those between hosts over the network.
    """
    if shape.pp == 1:
        return 0.0
    message = PP_MESSAGE_TOKENS * shape.model.hidden_size * ACTIVATION_BYTES
    crossing = crossing_sends(shape)
    total_s = (shape.pp - 1) * PP_LATENCY_S
    if crossing < shape.pp - 1:
        link = link_rate(shape, shape.gpus_on_node)
        total_s += (shape.pp - 1 - crossing) * message / link
    if crossing:
        total_s += crossing * message / network_rate(shape)
    return total_s / (shape.pp - 1)


def _evidence_parts(
    shape: ServingShape,
    kernels: _Kernels,
    grid: FloatArray,
    tokens: list[Part],
    length: FloatArray,
) -> tuple[list[Part], Timing, list[Part], int]:
    """Return tokens, head and decode attention of a usual step, and the place of its prompt."""
    decodes = float(min(_REPRESENTATIVE_DECODES, shape.max_num_seqs))
    prompt = float(min(_REPRESENTATIVE_PROMPT, shape.max_num_batched_tokens))
    context = float(min(_REPRESENTATIVE_CONTEXT, shape.max_context))
    points = np.array([decodes, prompt])
    usual = _some_points(tokens, grid, points) or _token_parts(shape, kernels, points)
    if shape.dp > 1:
        usual = [*usual, *shared_parts(shape, kernels.moe, shape.dp * points)]
    return (
        usual,
        _head(shape, kernels, np.array([decodes])),
        decode_parts(shape, np.array([decodes]), np.array([context])),
        int(np.argmin(np.abs(length - prompt))),
    )


def _some_points(parts: list[Part], grid: FloatArray, points: FloatArray) -> list[Part]:
    """Return parts at some points of their grid (n,), nothing if a point is not on it."""
    places = np.searchsorted(grid, points)
    if not np.array_equal(grid[np.minimum(places, len(grid) - 1)], points):
        return []
    return [
        replace(
            part,
            timing=Timing(part.timing.by_class[:, places]),
            limit_s=np.broadcast_to(part.limit_s, grid.shape)[places],
        )
        for part in parts
    ]


def _evidence(parts: StepParts, constants: StepConstants) -> dict[str, dict[str, float]]:
    """Return the share of each evidence class in each component of a usual step."""
    tokens, head, decode, near = parts.evidence_parts
    prefill = _sum(parts.prefill_parts, constants, len(parts.length))
    return {
        "tokens": _sum(tokens, constants, 2).shares(),
        "head": head.shares(),
        "decode_attention": _sum(decode, constants, 1).shares(),
        "prefill_attention": (Timing(prefill.by_class[:, near : near + 1]) + parts.floor).shares(),
        "host": {"extrapolated": 1.0},
    }
