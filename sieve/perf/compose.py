"""The step-time table of a deployment, composed from its kernels.

A layer is QKV, O, feed-forward or experts, two all-reduces, element-wise traffic and a fixed
cost; the LM head runs over the sequences that yield a token; attention comes on top. Kernels come
from measured tables where the accelerator has them and from rooflines elsewhere. The constants
were fitted on 231 closed-loop vLLM runs (Llama-3.1-70B FP8 and gpt-oss-120b on H100, H200 and
B200, 1-8 GPUs).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from sieve.arrays import FloatArray, IntArray, StepTable
from sieve.perf import context_parallel
from sieve.perf.attention import Heads, decode_grid, decode_timing, nearest_site, prefill_curve
from sieve.perf.base import EXTRAPOLATED, ROOFLINE, ServingShape, Timing, split, total
from sieve.perf.collectives import (
    allreduce_note,
    allreduce_timing,
    in_fast_domain,
    link_rate,
    network_rate,
)
from sieve.perf.gemm import BF16, Precision, gemm_timing, linear_precision
from sieve.perf.kernel_table import KernelTable, load
from sieve.perf.moe import experts_of, moe_timing, nearest_experts
from sieve.perf.parametric import parametric_tokens
from sieve.perf.roofline import ACTIVATION_BYTES, arithmetic_mode, elementwise_s

# About five small kernels a layer: norms, rotary embedding, KV write, activation, quantisation.
LAYER_FIXED_S: Final = 14e-6
"""Fitted; 10-16 us over folds."""
SMALL_KERNELS: Final = 5
"""That `LAYER_FIXED_S` stands for."""
ELEMENTWISE_SHARE_DENSE: Final = 0.35
"""Of all activation reads and writes; fitted 0.2-0.5, the rest is fused or stays in cache."""
ELEMENTWISE_SHARE_MOE: Final = 2.4
"""Pads, quantisation, top-k sort and combine are not fused; fitted 2.0-2.8."""
HOST_DECODE_S: Final = 0.2e-3
"""Fitted; 0.09-0.35 ms over folds."""
HOST_MIXED_S: Final = 1.2e-3
"""Fitted; 0.1-1.9 ms over folds."""
PP_MESSAGE_TOKENS: Final = 512
PP_LATENCY_S: Final = 10e-6

_REPRESENTATIVE_DECODES: Final = 64
_REPRESENTATIVE_CONTEXT: Final = 1500
_REPRESENTATIVE_PROMPT: Final = 1024
_WINDOW_TOKENS: Final = 1024
_SMALL_STEPS: Final = np.arange(1, 33, dtype=np.float64)

TokenWork = Callable[[FloatArray], Timing]


@dataclass(frozen=True, eq=False)
class _Kernels:
    """Tables of the accelerator, None where it has none."""

    gemm: KernelTable | None
    moe: KernelTable | None
    prefill: KernelTable | None
    decode: KernelTable | None

    @classmethod
    def of(cls, shape: ServingShape) -> _Kernels:
        if not shape.model.is_detailed:
            return cls(None, None, None, None)
        system = shape.gpu.kernel_system
        return cls(
            load(system, "gemm"), load(system, "moe") if shape.model.moe else None,
            load(system, "context_attention"), load(system, "generation_attention"),
        )  # fmt: skip


def build_step_table(
    shape: ServingShape, *, cudagraph_sizes: Sequence[int] | None = None
) -> StepTable:
    """Return the step times of one replica.

    Args:
        shape: model, accelerator, split and limits.
        cudagraph_sizes: batch sizes with a captured graph; None for the engine's usual ones, empty
            to run decode steps unpadded.

    Raises:
        TableError: a kernel table is broken.
        CoverageError: the accelerator's FLOP rate or the rate of a link needed is not known.
        InvalidInput: `ep` does not divide `tp`.
    """
    kernels = _Kernels.of(shape)
    work = _token_work(shape, kernels)
    head = _head_work(shape, kernels)
    padded = padded_sizes(shape.max_num_seqs, cudagraph_sizes)
    token_s = _dense(work, shape, max(shape.max_num_batched_tokens, int(padded[-1])))
    batch, context, decode = _decode_attention(shape, kernels)
    length, prefill, floor = _prefill_attention(shape, kernels)
    return StepTable(
        token_s=token_s[: shape.max_num_batched_tokens + 1],
        decode_token_s=token_s[padded],
        head_s=np.append(0.0, head(np.arange(1.0, shape.max_num_seqs + 1)).total_s),
        decode_batch=batch,
        decode_context=context,
        decode_attention_s=decode,
        prefill_length=length,
        prefill_attention_s=np.maximum.accumulate(prefill.total_s),
        prefill_floor_s=float(floor.total_s[0]),
        host_decode_s=HOST_DECODE_S * shape.pp,
        host_mixed_s=HOST_MIXED_S * shape.pp,
        pp=shape.pp,
        pp_transfer_s=_pp_transfer_s(shape),
        component_evidence=_evidence(shape, kernels, work, head),
        notes=_notes(shape, kernels),
    )


def default_cudagraph_sizes() -> list[int]:
    """Return the captured batch sizes: 1, 2, 4, by 8 below 256, by 16 to 512.

    Source: vLLM's default capture sizes (`cudagraph_capture_sizes` of its compilation config).
    """
    return [1, 2, 4, *range(8, 256, 8), *range(256, 513, 16)]


def padded_sizes(max_num_seqs: int, cudagraph_sizes: Sequence[int] | None) -> IntArray:
    """Return (max_num_seqs + 1,) batch sizes that decode steps run at; 0 stays 0."""
    sizes = default_cudagraph_sizes() if cudagraph_sizes is None else sorted(cudagraph_sizes)
    batch = np.arange(max_num_seqs + 1)
    graphs = np.asarray([*sizes, 0], np.int64)
    i = np.searchsorted(graphs[:-1], batch)
    padded = np.where(i < len(sizes), graphs[i], batch)
    padded[0] = 0
    return padded.astype(np.int64)


def _dense(work: TokenWork, shape: ServingShape, largest: int) -> FloatArray:
    """Return (largest + 1,) seconds by number of tokens, from the points where curves bend."""
    grid = _bends(shape, largest)
    time = np.append(0.0, work(grid).total_s)
    return np.asarray(np.interp(np.arange(largest + 1.0), np.append(0.0, grid), time), np.float64)


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


def _token_work(shape: ServingShape, kernels: _Kernels) -> TokenWork:
    """Return the function from (n,) numbers of tokens to the time of all layers."""
    if not shape.model.is_detailed:
        return lambda m: parametric_tokens(shape, m) + _overheads(shape, m)
    return lambda m: _layers(shape, kernels, m) + _overheads(shape, m)


def _layers(shape: ServingShape, kernels: _Kernels, m: FloatArray) -> Timing:
    """Return the matrix products and experts of all layers."""
    parts = [
        gemm_timing(shape.gpu, kernels.gemm, n, k, precision, m).scaled(count)
        for count, n, k, precision in _matrices(shape)
    ]
    if moe := shape.model.moe:
        experts = moe_timing(shape, kernels.moe, m)
        parts.append(experts.scaled(shape.model.num_hidden_layers - moe.num_dense_layers))
    return total(parts, len(m))


def _matrices(shape: ServingShape) -> list[tuple[int, int, int, Precision]]:
    """Return (count, n, k, precision) of the dense matrices on one GPU."""
    model, moe, hidden = shape.model, shape.model.moe, shape.model.hidden_size
    precision = linear_precision(shape)
    # Published MXFP4 checkpoints with experts keep everything but the experts in 16 bits.
    attention = BF16 if moe and shape.weight_dtype == "mxfp4" else precision
    query = shape.heads_per_gpu * model.head_dim
    qkv = query + 2 * shape.kv_heads_per_gpu * model.head_dim
    layers = model.num_hidden_layers
    matrices = [(layers, qkv, hidden, attention), (layers, hidden, query, attention)]
    dense = moe.num_dense_layers if moe else layers
    blocks = [(dense, model.intermediate_size or 0)]
    if moe:
        blocks.append((layers - dense, moe.shared_intermediate_size))
        matrices.append((layers - dense, moe.num_experts, hidden, BF16))
    for count, width in blocks:
        inner = split(width, shape.tp)
        if count and width:
            matrices.append((count, (model.ffn_projections - 1) * inner, hidden, precision))
            matrices.append((count, hidden, inner, precision))
    return matrices


def _overheads(shape: ServingShape, m: FloatArray) -> Timing:
    """Return all-reduces, element-wise traffic and fixed cost of all layers."""
    model, layers = shape.model, shape.model.num_hidden_layers
    heads = shape.heads_per_gpu + 2 * shape.kv_heads_per_gpu
    elements = 8 * model.hidden_size + 2 * heads * model.head_dim
    inner = model.intermediate_size or 0
    if moe := model.moe:
        inner = moe.num_experts_per_tok * moe.moe_intermediate_size + moe.shared_intermediate_size
    elements += 3 * split(inner, shape.tp)
    share = ELEMENTWISE_SHARE_MOE if moe else ELEMENTWISE_SHARE_DENSE
    traffic = share * ACTIVATION_BYTES * elements * m
    time = Timing.of(elementwise_s(shape.gpu, traffic), ROOFLINE)
    time += Timing.of(np.full(len(m), LAYER_FIXED_S), EXTRAPOLATED)
    if shape.tp > 1:
        time += allreduce_timing(shape, m).scaled(2)
    time += context_parallel.exchange_timing(shape, m, LAYER_FIXED_S / SMALL_KERNELS)
    return time.scaled(layers)


def _head_work(shape: ServingShape, kernels: _Kernels) -> TokenWork:
    """Return the function from (n,) numbers of sampled sequences to the LM head's time."""
    model = shape.model
    if model.vocab_size is None:
        return lambda m: Timing.zeros(len(m))
    columns = split(model.vocab_size, shape.tp)
    return lambda m: gemm_timing(shape.gpu, kernels.gemm, columns, model.hidden_size, BF16, m)


def _decode_attention(
    shape: ServingShape, kernels: _Kernels
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return batches (nb,), contexts (nc,) and seconds (nb, nc), rising along both.

    Contexts are whole sequences; with context parallelism a rank attends to its share of them.
    """
    heads = _decode_heads(shape)
    longest = -(-shape.max_context // shape.dcp)
    batch, share = decode_grid(kernels.decode, heads, shape.max_num_seqs, longest)
    context = share * shape.dcp
    time = _decode_layers(shape, kernels, batch, context).total_s.reshape(len(batch), len(context))
    # Repeats of one kernel differ by a few per cent; more work is never taken to be quicker.
    rising = np.maximum.accumulate(np.maximum.accumulate(time, axis=1), axis=0)
    return batch, context, rising


def _decode_heads(shape: ServingShape) -> Heads:
    """Return the decode attention of one GPU, with the queries of the ranks that share tokens."""
    heads = Heads.of(shape)
    return replace(heads, heads=heads.heads * shape.dcp)


def _decode_layers(
    shape: ServingShape, kernels: _Kernels, batch: FloatArray, context: FloatArray
) -> Timing:
    """Return the decode attention of all layers on the grid, flattened to (nb * nc,)."""
    heads, model = _decode_heads(shape), shape.model
    args = (shape.gpu, kernels.decode, heads, batch)
    share = context / shape.dcp
    time = decode_timing(*args, share).scaled(model.num_kv_layers)
    others = model.num_hidden_layers - model.num_kv_layers
    if others > 0:
        time += decode_timing(*args, np.minimum(share, _WINDOW_TOKENS)).scaled(others)
    return time


def _prefill_attention(shape: ServingShape, kernels: _Kernels) -> tuple[FloatArray, Timing, Timing]:
    """Return lengths (np,), the prefill attention of all layers there, and its floor."""
    model = shape.model
    length, layer, floor = prefill_curve(
        shape.gpu, kernels.prefill, Heads.of(shape), shape.max_context
    )
    time = layer.scaled(model.num_kv_layers)
    others = model.num_hidden_layers - model.num_kv_layers
    if others > 0:
        per_token = np.interp(_WINDOW_TOKENS, length, layer.total_s) / _WINDOW_TOKENS
        time += Timing.of(per_token * length * others, EXTRAPOLATED)
    return length, time, floor.scaled(model.num_hidden_layers)


def _pp_transfer_s(shape: ServingShape) -> float:
    """Return the mean seconds of one send between stages, 0 with a single stage.

    Sends within a host go over its link, those between hosts over the network.
    """
    if shape.pp == 1:
        return 0.0
    message = PP_MESSAGE_TOKENS * shape.model.hidden_size * ACTIVATION_BYTES
    crossing = _crossing_sends(shape)
    total_s = (shape.pp - 1) * PP_LATENCY_S
    if crossing < shape.pp - 1:
        link = link_rate(shape, shape.gpus_on_node)
        total_s += (shape.pp - 1 - crossing) * message / link
    if crossing:
        total_s += crossing * message / network_rate(shape)
    return total_s / (shape.pp - 1)


def _crossing_sends(shape: ServingShape) -> int:
    """Return how many of the sends between neighbouring stages leave a host."""
    if shape.nodes == 1:
        return 0
    stages_on_node = max(1, shape.gpus_on_node // shape.tp)
    return -(-shape.pp // stages_on_node) - 1


def _evidence(
    shape: ServingShape, kernels: _Kernels, work: TokenWork, head: TokenWork
) -> dict[str, dict[str, float]]:
    """Return the share of each evidence class in each component of a usual step."""
    decodes = float(min(_REPRESENTATIVE_DECODES, shape.max_num_seqs))
    prompt = float(min(_REPRESENTATIVE_PROMPT, shape.max_num_batched_tokens))
    context = float(min(_REPRESENTATIVE_CONTEXT, shape.max_context))
    length, prefill, floor = _prefill_attention(shape, kernels)
    near = int(np.argmin(np.abs(length - prompt)))
    decode = _decode_layers(shape, kernels, np.array([decodes]), np.array([context]))
    return {
        "tokens": work(np.array([decodes, prompt])).shares(),
        "head": head(np.array([decodes])).shares(),
        "decode_attention": decode.shares(),
        "prefill_attention": (Timing(prefill.by_class[:, near : near + 1]) + floor).shares(),
        "host": {"extrapolated": 1.0},
    }


def _notes(shape: ServingShape, kernels: _Kernels) -> tuple[str, ...]:
    """Return what was assumed, in words."""
    model, gpu = shape.model, shape.gpu
    notes = []
    if not model.is_detailed:
        notes.append(
            "the model's matrices are not known: step times come from its parameters and the "
            "roofline, the LM head among the layers"
        )
    elif kernels.gemm is None:
        notes.append(f"no measured kernels for {gpu.name}: all kernels come from the roofline")
    else:
        notes += _substitutions(shape, kernels)
    if shape.weight_dtype == "fp8" and arithmetic_mode(gpu, "fp8") != "fp8":
        notes.append(f"{gpu.name} has no FP8 arithmetic: FP8 weights are multiplied in 16 bits")
    if shape.hosts_of(shape.tp) > 1:
        notes.append(
            f"tp {shape.tp} spans {shape.hosts_of(shape.tp)} nodes: all-reduce over the network, a "
            "ring at the assumed share of the rate given, no measurement behind it"
        )
    elif shape.tp > 1 and not in_fast_domain(shape, shape.tp):
        notes.append(f"tp {shape.tp} leaves the fast link of {gpu.name}: all-reduce over PCIe")
    if note := allreduce_note(shape):
        notes.append(note)
    if crossing := _crossing_sends(shape):
        notes.append(
            f"pp {shape.pp} spans {shape.nodes} nodes: {crossing} of its {shape.pp - 1} sends go "
            "over the network, each whole over the port of one GPU"
        )
    if shape.dcp > 1:
        notes.append(context_parallel.note(shape))
    if rest := model.num_hidden_layers % shape.pp:
        most, mean = -(-model.num_hidden_layers // shape.pp), model.num_hidden_layers / shape.pp
        notes.append(
            f"pp {shape.pp} leaves {rest} of {model.num_hidden_layers} layers over: memory is "
            f"judged stage by stage, step times as if stages were equal; the fullest holds {most} "
            f"layers, {most / mean - 1:.0%} above the mean"
        )
    others = model.num_hidden_layers - model.num_kv_layers
    if others > 0:
        notes.append(
            f"{others} layers without a growing KV cache are charged as attention over at most "
            f"{_WINDOW_TOKENS} tokens"
        )
    return tuple(notes)


def _substitutions(shape: ServingShape, kernels: _Kernels) -> list[str]:
    """Return which kernels stand in for those that were not measured."""
    notes = []
    if any(not precision.table_dtype for *_, precision in _matrices(shape)):
        notes.append(
            f"no measured {shape.weight_dtype} matrix products on {shape.gpu.name}: roofline with "
            f"{shape.weight_bytes_per_param:g} bytes a weight and 16-bit arithmetic"
        )
    if shape.model.moe:
        site = nearest_experts(kernels.moe, shape)
        size = "no like experts" if site is None else " ".join(str(part) for part in site)
        exact = site is not None and site[1:7] == experts_of(shape).size
        if not exact:
            notes.append(f"experts of this size and split were not measured; used: {size}")
        elif shape.weight_dtype == "fp8" and site is not None and site[0] == "fp8_block":
            notes.append("FP8 experts are timed with block scales")
    heads = _decode_heads(shape)
    site = None if kernels.decode is None else nearest_site(kernels.decode, heads)
    if site is not None and not heads.is_site(site):
        notes.append(
            "attention with these heads and KV cache precision was not measured; used: "
            f"KV {site[1]}, head size {site[2]}, {site[4]} query and {site[5]} KV heads on a GPU"
        )
    return notes
