"""What a step table assumes, in words."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from sieve.perf import context_parallel, expert_exchange
from sieve.perf.attention import Heads, nearest_site
from sieve.perf.base import ServingShape
from sieve.perf.collectives import allreduce_note, crossing_sends, in_fast_domain
from sieve.perf.kernel_table import load
from sieve.perf.layers import mixers, num_expert_layers, products
from sieve.perf.mixers import SPARSE_TOP_TOKENS, is_sparse
from sieve.perf.mixing import MEASURED_KINDS, WINDOW_TOKENS, source_of
from sieve.perf.moe import (
    dequantises,
    expert_dtype,
    experts_of,
    moe_timing,
    nearest_experts,
    stands_in_for_mxfp8,
)
from sieve.perf.roofline import arithmetic_mode

SLOW_EXPERTS: Final = 3.0
"""Times of the roofline from which a run says that experts were measured slow."""
_USUAL_TOKENS: Final = 64


def table_notes(shape: ServingShape) -> tuple[str, ...]:
    """Return what was assumed, in words."""
    model, gpu = shape.model, shape.gpu
    notes = []
    if not model.is_detailed:
        notes.append(
            "the model's matrices are not known: step times come from its parameters and the "
            "roofline, the LM head among the layers"
        )
    elif load(gpu.kernel_system, "gemm") is None:
        notes.append(f"no measured kernels for {gpu.name}: all kernels come from the roofline")
    else:
        notes += [*_products(shape), *_experts(shape), *_attention(shape)]
    if shape.weight_dtype == "fp8" and arithmetic_mode(gpu, "fp8") != "fp8":
        notes.append(f"{gpu.name} has no FP8 arithmetic: FP8 weights are multiplied in 16 bits")
    return (*notes, *_links(shape), *_stages(shape), *_mixing(shape))


def _links(shape: ServingShape) -> list[str]:
    """Return which links carry collectives and sends beyond the fast one."""
    notes = []
    if shape.hosts_of(shape.tp) > 1:
        notes.append(
            f"tp {shape.tp} spans {shape.hosts_of(shape.tp)} nodes: all-reduce over the network, a "
            "ring at the assumed share of the rate given, no measurement behind it"
        )
    elif shape.tp > 1 and not in_fast_domain(shape, shape.tp):
        notes.append(
            f"tp {shape.tp} leaves the fast link of {shape.gpu.name}: all-reduce over PCIe"
        )
    if note := allreduce_note(shape):
        notes.append(note)
    if crossing := crossing_sends(shape):
        notes.append(
            f"pp {shape.pp} spans {shape.nodes} nodes: {crossing} of its {shape.pp - 1} sends go "
            "over the network, each whole over the port of one GPU"
        )
    if shape.dcp > 1:
        notes.append(context_parallel.note(shape))
    if shape.dp > 1:
        notes.append(expert_exchange.note(shape))
    return notes


def _stages(shape: ServingShape) -> list[str]:
    """Return how far pipeline stages are from equal."""
    layers = shape.model.num_hidden_layers
    if not (rest := layers % shape.pp):
        return []
    most, mean = -(-layers // shape.pp), layers / shape.pp
    return [
        f"pp {shape.pp} leaves {rest} of {layers} layers over: memory is judged stage by stage, "
        f"step times as if stages were equal; the fullest holds {most} layers, "
        f"{most / mean - 1:.0%} above the mean"
    ]


def _products(shape: ServingShape) -> list[str]:
    names = {product.precision.table_dtype for product in products(shape)}
    if other := names & {"int4_wo", "int8_wo"}:
        return [
            f"{shape.weight_dtype} matrix products ({', '.join(sorted(other))}) were measured in "
            "another engine: unpacked and multiplied in 16 bits as here, by another kernel"
        ]
    if all(names):
        return []
    return [
        f"no measured {shape.weight_dtype} matrix products on {shape.gpu.name}: roofline with "
        f"{shape.weight_bytes_per_param:g} bytes a weight and 16-bit arithmetic"
    ]


def _experts(shape: ServingShape) -> list[str]:
    """Return which experts stand in for those that were not measured."""
    if not num_expert_layers(shape):
        return []
    notes = []
    if outer := shape.model.expert_input_size:
        notes.append(
            f"experts read {outer} of {shape.model.hidden_size} numbers of a token: the products "
            "into and out of that width are taken as left in 16 bits, whole on every GPU"
        )
    site = nearest_experts(load(shape.gpu.kernel_system, "moe"), shape)
    size = "no like experts" if site is None else " ".join(str(part) for part in site)
    if site is None or site[1:7] != experts_of(shape).size:
        notes.append(f"experts of this size and split were not measured; used: {size}")
    elif expert_dtype(shape) == "fp8" and site[0] == "fp8_block":
        notes.append("FP8 experts are timed with block scales")
    if site is not None and (slow := _against_roofline(shape)) > SLOW_EXPERTS:
        notes.append(
            f"experts were measured at {slow:.1f} times the roofline with {_USUAL_TOKENS} tokens: "
            "the engine may have run a kernel without a tuned configuration"
        )
    if site is not None and stands_in_for_mxfp8(shape, site):
        notes.append(
            "MXFP4 experts were measured with 16-bit activations: shortened as another engine's "
            "kernels are with MXFP8 ones"
        )
    if site is not None and dequantises(shape):
        notes.append(
            "4-bit experts over prompts: the engine's kernel on this card was not measured, the "
            "table's time carries a fitted factor"
        )
    return notes


def _against_roofline(shape: ServingShape) -> float:
    """Return the measured time of the experts at a usual batch over their roofline."""
    tokens = np.array([float(_USUAL_TOKENS)])
    timing = moe_timing(shape, load(shape.gpu.kernel_system, "moe"), tokens)
    mode = arithmetic_mode(shape.gpu, expert_dtype(shape))
    return float(timing.total_s[0] / experts_of(shape).roofline_s(shape.gpu, tokens, mode)[0])


def _attention(shape: ServingShape) -> list[str]:
    """Return which attention stands in for what was not measured."""
    table = load(shape.gpu.kernel_system, "generation_attention")
    kinds = [m.kind for m in mixers(shape) if m.kind and source_of(shape, m.kind) == "attention"]
    notes = []
    for plain in dict.fromkeys(Heads.of_kind(kind, shape) for kind in kinds):
        heads = replace(plain, heads=plain.heads * shape.dcp)
        site = None if table is None else nearest_site(table, heads)
        if site is not None and not heads.is_site(site):
            seen = f", window {site[3]}" if site[3] else ""
            notes.append(
                "attention with these heads and KV cache precision was not measured; used: KV "
                f"{site[1]}, head size {site[2]}, {site[4]} query and {site[5]} KV heads on a "
                f"GPU{seen}"
            )
    return notes


def _mixing(shape: ServingShape) -> list[str]:
    """Return which layers are timed by a roofline or a window."""
    notes = []
    for mixer in mixers(shape):
        if mixer.kind is None:
            notes.append(
                f"{mixer.count} layers without a growing KV cache are charged as attention over at "
                f"most {WINDOW_TOKENS} tokens"
            )
        elif part := MEASURED_KINDS.get(source := source_of(shape, mixer.kind)):
            notes += part.notes(shape, mixer.kind)
        elif source == "roofline":
            name = mixer.kind.state.flavour if mixer.kind.state else mixer.kind.kind
            sparse = f" over at most {SPARSE_TOP_TOKENS} chosen tokens"
            notes.append(
                f"{mixer.count} layers of {name} token mixing come from the roofline"
                + (sparse if is_sparse(shape, mixer.kind) else "")
            )
    return notes
