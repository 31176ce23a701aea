"""Times of the routed experts of one layer on one GPU."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np

from sieve.arrays import FloatArray
from sieve.catalog.architecture import Gpu
from sieve.catalog.precisions import STORED_WEIGHT_BYTES
from sieve.errors import InvalidInput
from sieve.perf.base import EXTRAPOLATED, MEASURED, ROOFLINE, Part, ServingShape, Timing, total
from sieve.perf.constants import step_constants
from sieve.perf.interpolate import grid_evidence, hold_utilisation
from sieve.perf.kernel_table import KernelTable, Key
from sieve.perf.roofline import (
    BANDWIDTH_SHARE,
    MOE_FLOOR_S,
    MOE_FLOPS_SHARE,
    arithmetic_mode,
    flops_per_s,
)

_TABLE_DTYPES: Final = {
    "bf16": ("bfloat16",),
    "fp16": ("bfloat16",),
    # Published FP8 experts have block scales; the per-tensor kernel in the H100 and H200 tables
    # is 2-3 times slower than 16-bit experts, so it stands back.
    "fp8": ("fp8_block", "fp8"),
    "int4": ("int4_wo",),
    "mxfp4": ("w4a16_mxfp4", "w4a8_mxfp4_mxfp8"),
    "nvfp4": ("nvfp4",),
}
"""Weight precision -> names in the expert table, best first."""
_DISTRIBUTIONS: Final = ("power_law_1.01", "balanced")
# Beyond a factor of e in one dimension of the experts another kernel shape is likely chosen.
_MAX_LOG_DISTANCE: Final = 1.0
_BLACKWELL: Final = 10.0
_PLAIN_BYTES: Final = 2.0
# gpt-oss-120b's experts on one B200: TensorRT-LLM's table with MXFP8 activations against vLLM's
# with 16-bit ones. The engine takes MXFP8 there; vLLM's table of that kernel lacks these experts.
_MXFP8_TOKENS: Final = np.array([1.0, 4.0, 16.0, 256.0, 1024.0, 4096.0, 8192.0])
_MXFP8_SHARES: Final = np.array([0.86, 0.74, 0.72, 0.49, 0.45, 0.38, 0.32])
_MARLIN_FROM: Final = 128.0
_MARLIN_OCTAVES: Final = 3.0


@dataclass(frozen=True)
class Experts:
    """Sizes of an expert layer and its share of one GPU, as in the columns of the table.

    Attributes:
        hidden_size: width of the model.
        inter_size: width of one expert, before splitting.
        topk: experts that each token visits.
        num_experts: all of them.
        tp: GPUs that share each expert.
        ep: GPUs among which experts are dealt out.
        projections: matrices of an expert.
        weight_bytes: bytes of one weight.
    """

    hidden_size: int
    inter_size: int
    topk: int
    num_experts: int
    tp: int
    ep: int
    projections: int
    weight_bytes: float

    @property
    def size(self) -> tuple[int, ...]:
        """Columns of the table from `hidden_size` to `moe_ep_size`."""
        return (
            self.hidden_size, self.inter_size, self.topk, self.num_experts, self.tp, self.ep,
        )  # fmt: skip

    @property
    def expert_params(self) -> float:
        """Parameters of one expert on one GPU."""
        return self.projections * self.hidden_size * self.inter_size / self.tp

    def limit_s(self, gpu: Gpu, m: FloatArray, mode: str) -> FloatArray:
        """Return (len(m),) seconds at least: one token's experts read, all tokens multiplied."""
        read = self.topk / self.ep * self.expert_params * self.weight_bytes
        return np.maximum(read / gpu.mem_bw_bytes_per_s, self._flops(m) / flops_per_s(gpu, mode))

    def roofline_s(self, gpu: Gpu, m: FloatArray, mode: str) -> FloatArray:
        """Return (len(m),) seconds at usual efficiency with experts drawn evenly."""
        untouched = (1 - self.topk / self.num_experts) ** m
        touched = self.num_experts / self.ep * (1 - untouched)
        memory = touched * self.expert_params * self.weight_bytes
        return np.asarray(
            MOE_FLOOR_S
            + np.maximum(
                memory / (BANDWIDTH_SHARE * gpu.mem_bw_bytes_per_s),
                self._flops(m) / (MOE_FLOPS_SHARE * flops_per_s(gpu, mode)),
            ),
            np.float64,
        )

    def _flops(self, m: FloatArray) -> FloatArray:
        return 2.0 * self.expert_params * self.topk / self.ep * m


def experts_of(shape: ServingShape) -> Experts:
    """Return the expert layer of a deployment.

    Raises:
        InvalidInput: the model has no experts, or `ep` does not divide `tp x dp`.
    """
    moe = shape.model.moe
    if moe is None:
        raise InvalidInput(f"{shape.model.name} has no experts")
    ranks = shape.tp * shape.dp
    if ranks % shape.ep:
        raise InvalidInput(f"ep {shape.ep} does not divide tp x dp = {ranks}; choose a divisor")
    dtype = expert_dtype(shape)
    own = dtype != shape.weight_dtype
    nominal = STORED_WEIGHT_BYTES[dtype] if own else shape.weight_bytes_per_param
    nominal = {"bf16": 2.0, "fp16": 2.0}.get(dtype, nominal)
    return Experts(
        shape.model.expert_input_size or shape.model.hidden_size, moe.moe_intermediate_size,
        moe.num_experts_per_tok, moe.num_experts, ranks // shape.ep, shape.ep,
        shape.model.ffn_projections, nominal,
    )  # fmt: skip


def expert_dtype(shape: ServingShape) -> str:
    """Return the precision of the routed experts, which a checkpoint may hold apart."""
    model = shape.model
    own = model.expert_dtype and shape.weight_dtype == model.checkpoint_dtype
    return model.expert_dtype if own else shape.weight_dtype


def dequantises(shape: ServingShape) -> bool:
    """Whether experts are unpacked and multiplied in 16 bits by the Marlin kernel.

    vLLM takes it for 4-bit experts on cards before Blackwell, and for FP8 ones on cards without
    FP8 arithmetic; the tables of those cards hold another kernel.
    """
    dtype, before = expert_dtype(shape), (shape.gpu.compute_capability or 0.0) < _BLACKWELL
    four_bits = dtype in {"mxfp4", "nvfp4", "int4"} and before
    return four_bits or (dtype == "fp8" and arithmetic_mode(shape.gpu, dtype) != "fp8")


def moe_timing(shape: ServingShape, table: KernelTable | None, m: FloatArray) -> Timing:
    """Return the times of the routed experts of one layer for (points,) m tokens."""
    constants = step_constants()
    parts = expert_parts(shape, table, m)
    return total((part.at(getattr(constants, part.constant, 1.0)) for part in parts), len(m))


def expert_parts(
    shape: ServingShape, table: KernelTable | None, m: FloatArray, count: float = 1.0
) -> list[Part]:
    """Return the routed experts of `count` layers for (points,) m tokens, as measured.

    Sizes that were not measured take the utilisation of the nearest ones that were, and far from
    all of them the roofline. Above the largest number of tokens utilisation is held. Where Marlin
    runs, its share of the work grows from none at 128 tokens to all at 1,024.
    """
    experts = experts_of(shape)
    mode = arithmetic_mode(shape.gpu, expert_dtype(shape))
    roofline = experts.roofline_s(shape.gpu, m, mode)
    limit = experts.limit_s(shape.gpu, m, mode)
    key = nearest_experts(table, shape)
    if table is None or key is None:
        return [Part(Timing.of(roofline, ROOFLINE), limit, "", count)]
    hidden, inter, topk, num, tp, ep = (int(value) for value in key[1:7])
    own_bytes = key[0] in _TABLE_DTYPES.get(expert_dtype(shape), ())
    site_bytes = experts.weight_bytes if own_bytes else _PLAIN_BYTES
    site = Experts(hidden, inter, topk, num, tp, ep, experts.projections, site_bytes)
    grid, latency = table.curve(key)
    yardstick = site.roofline_s(shape.gpu, grid, mode)
    scaled = latency * (experts.roofline_s(shape.gpu, grid, mode) / yardstick)
    end = float(experts.roofline_s(shape.gpu, grid[-1:], mode)[0])
    time = hold_utilisation(m, grid, scaled, roofline, end)
    quality = MEASURED if site == experts else EXTRAPOLATED
    if stands_in_for_mxfp8(shape, key):
        time, quality = time * _mxfp8_share(m / experts.tp), EXTRAPOLATED
    evidence = np.maximum(grid_evidence(m, grid), quality)
    if not dequantises(shape):
        return [Part(Timing.of(time, evidence), limit, "experts_factor", count)]
    ramp = np.clip(np.log2(np.maximum(m, 1.0) / _MARLIN_FROM) / _MARLIN_OCTAVES, 0.0, 1.0)
    own, marlin = time * (1 - ramp), time * ramp
    return [
        Part(Timing.of(own, evidence), limit * (1 - ramp), "experts_factor", count),
        Part(Timing.of(marlin, EXTRAPOLATED), limit * ramp, "marlin_prefill_factor", count),
    ]


def stands_in_for_mxfp8(shape: ServingShape, key: Key) -> bool:
    """Whether a site with 16-bit activations stands for MXFP4 experts that get MXFP8 ones."""
    blackwell = (shape.gpu.compute_capability or 0.0) >= _BLACKWELL
    return blackwell and expert_dtype(shape) == "mxfp4" and key[0] == "w4a16_mxfp4"


def _mxfp8_share(tokens: FloatArray) -> FloatArray:
    """Return the time of MXFP4 experts with MXFP8 activations against 16-bit ones, (n,)."""
    points = np.log2(np.maximum(tokens, 1.0))
    return np.asarray(np.interp(points, np.log2(_MXFP8_TOKENS), _MXFP8_SHARES), np.float64)


def _table_dtypes(shape: ServingShape) -> tuple[str, ...]:
    """Return the names of the experts' precision in the table, best first."""
    dtype = expert_dtype(shape)
    names = _TABLE_DTYPES.get(dtype, ())
    # Blackwell multiplies MXFP4 weights with MXFP8 activations by default.
    blackwell = (shape.gpu.compute_capability or 0.0) >= _BLACKWELL
    names = names[::-1] if dtype == "mxfp4" and blackwell else names
    # Unpacked weights are multiplied like 16-bit ones: those stand in where nothing nearer is.
    return (*names, "bfloat16") if dequantises(shape) else names


def nearest_experts(table: KernelTable | None, shape: ServingShape) -> Key | None:
    """Return the measured site that is most like the experts, None if none is near.

    By precision the same experts, split as here or else otherwise; then the nearest experts.
    """
    if table is None:
        return None
    size = experts_of(shape).size
    nearest: list[tuple[float, Key]] = []
    for dtype in _table_dtypes(shape):
        for distribution in _DISTRIBUTIONS:
            if (key := (dtype, *size, distribution)) in table.sites:
                return key
        keys, sizes = _sites(table, dtype)
        if not keys:
            continue
        distance = np.abs(np.log(sizes) - np.log(size))
        unlike = distance[:, :4].max(axis=1)
        # Another split of the same experts is nearer than other experts.
        score = 10 * distance[:, :4].sum(axis=1) + distance[:, 4:].sum(axis=1)
        score[unlike > _MAX_LOG_DISTANCE] = np.inf
        best = int(np.argmin(score))
        if unlike[best] == 0:
            return keys[best]
        nearest.append((float(score[best]), keys[best]))
    score_, key_ = min(nearest, default=(np.inf, ()))
    return key_ if np.isfinite(score_) else None


@lru_cache(maxsize=256)
def _sites(table: KernelTable, dtype: str) -> tuple[list[Key], FloatArray]:
    """Return the sites of a precision, one distribution each, and their sizes (sites, 6)."""
    sites = {key[:-1]: key for key in table.sites if key[0] == dtype and key[-1] == "balanced"}
    sites |= {
        key[:-1]: key for key in table.sites if key[0] == dtype and key[-1] == _DISTRIBUTIONS[0]
    }
    keys = list(sites.values())
    return keys, np.asarray([key[1:7] for key in keys], np.float64).reshape(-1, 6)
