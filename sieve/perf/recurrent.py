"""Recurrent token mixing of one layer (gated delta nets and their kin), from measured kernels.

A decode step is the short convolution and the recurrence over a batch, whatever the context; a
prompt is both over its tokens. Tables: `gdn` and `kda`, whose kernels depend on the heads of a GPU
and not on the width of the model. KDA's convolutions were timed one of three at a time, or with
their launches: they stay with the element-wise traffic of the layer. State spaces (`mamba2`) were
not measured and have a roofline.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np

from sieve.arrays import FloatArray
from sieve.catalog.architecture import Gpu, LayerKind, StateFacts
from sieve.perf.base import EXTRAPOLATED, MEASURED, Part, ServingShape, Timing, split, total
from sieve.perf.interpolate import grid_evidence, linear, prompt_curve
from sieve.perf.kernel_table import KernelTable, Key, load
from sieve.perf.roofline import GEMM_FLOOR_S, flops_per_s

CONVOLUTION: Final = "causal_conv1d"
_KERNELS: Final = {
    ("gdn", "generation"): (
        ("causal_conv1d_update",),
        ("fused_recurrent_gated_delta_rule_packed_decode",),
    ),
    ("gdn", "context"): (
        ("causal_conv1d_fn",),
        ("chunk_gated_delta_rule_flashinfer", "chunk_gated_delta_rule_triton"),
    ),
    ("kda", "generation"): (
        ("fused_recurrent_kda_packed_decode", "fused_recurrent_kda", "fused_kda_decode"),
    ),
    ("kda", "context"): (("flashkda_fwd", "chunk_kda_with_fused_gate"),),
}
"""Flavour and phase -> the kernels of a layer, each with its names, the engine's own first."""
_STATE_BYTES: Final = 4
"""Of one number of the recurrent state in the tables."""
_FLOPS_PER_VALUE: Final = 6.0
"""Decay, correction and read-out: three multiply-adds for each number of the state and token."""


@dataclass(frozen=True)
class State:
    """Recurrent mixing of one layer on one GPU.

    Attributes:
        key_heads, value_heads: heads of keys and of values (and of the state).
        key_dim, value_dim: their widths.
        conv_kernel: width of the short convolution.
        state_bytes: bytes of one number of the state.
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_kernel: int
    state_bytes: int = _STATE_BYTES

    @classmethod
    def of(cls, state: StateFacts, tp: int) -> State:
        """Return the share of a rank."""
        return cls(
            split(state.num_key_heads, tp), split(state.num_heads, tp), state.key_dim,
            state.value_dim, state.conv_kernel, state.state_bytes,
        )  # fmt: skip

    @classmethod
    def of_site(cls, key: Key) -> State:
        """Return the sizes of a site of a table."""
        conv, key_heads, key_dim, value_heads, value_dim = (int(part) for part in key[3:8])
        return cls(key_heads, value_heads, key_dim, value_dim, conv)

    @property
    def channels(self) -> int:
        """Channels of the convolution: queries, keys and values."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    def decode_bytes(self, kernel: str) -> float:
        """Return what one sequence's step reads and writes of its state at least."""
        if kernel.startswith(CONVOLUTION):
            return 2.0 * 2.0 * self.channels
        return 2.0 * self.value_heads * self.key_dim * self.value_dim * self.state_bytes

    def token_s(self, gpu: Gpu, kernel: str) -> float:
        """Return the seconds that one token of a prompt takes at least."""
        moved = 2.0 * 2.0 * self.channels / gpu.mem_bw_bytes_per_s
        if kernel.startswith(CONVOLUTION):
            return moved
        values = self.value_heads * self.key_dim * self.value_dim
        # Keys and values are read, results written; the recurrence itself stays on chip.
        return max(moved / 2, _FLOPS_PER_VALUE * values / flops_per_s(gpu, "bf16"))


def is_measured(shape: ServingShape, kind: LayerKind) -> bool:
    """Whether a kind of layers comes from the accelerator's tables."""
    return kind.state is not None and all(
        sites(shape, kind, phase) for phase in ("generation", "context")
    )


def sites(shape: ServingShape, kind: LayerKind, phase: str) -> list[Key]:
    """Return the kernels of a layer most like a kind's; empty if one of them was not measured.

    Args:
        shape: the replica.
        kind: of the layers, with a state.
        phase: `generation` or `context`.
    """
    if kind.state is None:
        return []
    table = load(shape.gpu.kernel_system, kind.state.flavour) if _has_table(kind) else None
    if table is None:
        return []
    own = State.of(kind.state, shape.tp)
    found = [_nearest(table, phase, names, own) for names in _KERNELS[kind.state.flavour, phase]]
    return [key for key in found if key] if all(found) else []


def decode_axes(shape: ServingShape, kind: LayerKind) -> tuple[FloatArray, FloatArray]:
    """Return the measured batches, and no contexts: none matters."""
    table = _table(shape, kind)
    batches = [table.surface(key)[0] for key in sites(shape, kind, "generation")]
    return np.unique(np.concatenate(batches)), np.empty(0)


def prefill_axis(shape: ServingShape, kind: LayerKind) -> FloatArray:
    """Return the measured lengths of prompts."""
    table = _table(shape, kind)
    return np.unique(
        np.concatenate([_prompts(table, key)[0] for key in sites(shape, kind, "context")])
    )


def decode_parts(
    shape: ServingShape, kind: LayerKind, batch: FloatArray, context: FloatArray, count: float
) -> list[Part]:
    """Return `count` layers on the grid batch x context, flattened to (nb * nc,), as measured."""
    table, own = _table(shape, kind), State.of(_facts(kind), shape.tp)
    parts = []
    for key in sites(shape, kind, "generation"):
        grid, _, surface = table.surface(key)
        latency = np.maximum.accumulate(surface[:, 0])
        kernel, site = str(key[0]), State.of_site(key)
        rate = shape.gpu.mem_bw_bytes_per_s
        quality = MEASURED
        if site != own:
            target = GEMM_FLOOR_S + grid * own.decode_bytes(kernel) / rate
            latency = latency * target / (GEMM_FLOOR_S + grid * site.decode_bytes(kernel) / rate)
            quality = EXTRAPOLATED
        evidence = np.maximum(grid_evidence(batch, grid), quality)
        timing = Timing.of(linear(batch, grid, latency), evidence)
        limit = batch * own.decode_bytes(kernel) / rate
        every = Timing(np.repeat(timing.by_class, len(context), axis=1))
        parts.append(Part(every, np.repeat(limit, len(context)), count=count))
    return parts


def prefill_parts(
    shape: ServingShape, kind: LayerKind, length: FloatArray, count: float
) -> tuple[list[Part], Timing]:
    """Return `count` layers over prompts of `length` (np,), 0 at 0, and one layer's floor."""
    table, own = _table(shape, kind), State.of(_facts(kind), shape.tp)
    parts, floors = [], []
    for key in sites(shape, kind, "context"):
        kernel, site = str(key[0]), State.of_site(key)
        grid, latency = _prompts(table, key)
        token_s, quality = own.token_s(shape.gpu, kernel), MEASURED
        if _without_state(site) != _without_state(own):
            measured = GEMM_FLOOR_S + grid * site.token_s(shape.gpu, kernel)
            latency = latency * (GEMM_FLOOR_S + grid * token_s) / measured
            quality = EXTRAPOLATED
        timing, floor = prompt_curve(length, grid, grid, latency, length / grid[-1], quality)
        parts.append(Part(timing, length * token_s, count=count))
        floors.append(floor)
    return parts, total(floors, 1)


def notes(shape: ServingShape, kind: LayerKind) -> list[str]:
    """Return what stands in for heads or a state that were not measured."""
    own = State.of(_facts(kind), shape.tp)
    found = [*sites(shape, kind, "generation"), *sites(shape, kind, "context")]
    measured = dict.fromkeys(State.of_site(key) for key in found)
    if list(measured) == [own]:
        return []
    used = ", ".join(f"{s.key_heads} key and {s.value_heads} value heads" for s in measured)
    state = "" if own.state_bytes == _STATE_BYTES else f" and a state of {own.state_bytes} bytes"
    return [
        f"{_facts(kind).flavour} token mixing with {own.key_heads} key and {own.value_heads} value "
        f"heads{state} on a GPU was not measured; used, scaled by the roofline: {used}, state of "
        f"{_STATE_BYTES} bytes a number"
    ]


def _has_table(kind: LayerKind) -> bool:
    return kind.state is not None and (kind.state.flavour, "context") in _KERNELS


def _facts(kind: LayerKind) -> StateFacts:
    assert kind.state is not None  # asked only where `is_measured`
    return kind.state


def _table(shape: ServingShape, kind: LayerKind) -> KernelTable:
    table = load(shape.gpu.kernel_system, _facts(kind).flavour)
    assert table is not None  # asked only where `is_measured`
    return table


def _without_state(state: State) -> tuple[int, ...]:
    """Return the sizes that a prompt's time depends on: its state stays on chip."""
    return (
        state.key_heads, state.value_heads, state.key_dim, state.value_dim, state.conv_kernel,
    )  # fmt: skip


@lru_cache(maxsize=1024)
def _nearest(table: KernelTable, phase: str, names: Iterable[str], own: State) -> Key | None:
    """Return the site of a kernel with the nearest heads and widths, the engine's own first."""
    order = {name: place for place, name in enumerate(names)}
    keys = [key for key in table.sites if key[0] in order and key[1] == phase]
    keys = [key for key in keys if phase == "generation" or len(_prompts(table, key)[0]) > 1]
    if not keys:
        return None
    sizes = np.asarray([_without_state(State.of_site(key)) for key in keys], np.float64)
    distance = np.abs(np.log(sizes) - np.log(_without_state(own))).sum(axis=1)
    nearest = np.flatnonzero(distance <= distance.min() + 1e-12)
    return keys[min(nearest.tolist(), key=lambda i: (order[str(keys[i][0])], i))]


@lru_cache(maxsize=1024)
def _prompts(table: KernelTable, key: Key) -> tuple[FloatArray, FloatArray]:
    """Return measured lengths and rising seconds of one prompt; empty without any."""
    batch, grid, surface = table.surface(key)
    known = np.isfinite(surface[0]) & (batch[0] == 1)
    return grid[known], np.maximum.accumulate(surface[0][known])
