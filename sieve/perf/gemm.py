"""Times of matrix products: from the table, from neighbouring shapes, or from the roofline."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np

from sieve.arrays import FloatArray
from sieve.catalog.architecture import Gpu
from sieve.perf.base import EXTRAPOLATED, INTERPOLATED, ROOFLINE, ServingShape, Timing
from sieve.perf.interpolate import bracket, grid_evidence, hold_utilisation
from sieve.perf.kernel_table import KernelTable, load
from sieve.perf.roofline import arithmetic_mode, flops_per_s, gemm_limit_s, gemm_roofline_s

_NUM_NEIGHBOURS: Final = 4
_TABLE_DTYPES: Final = {
    "bf16": ("bfloat16", 2.0),
    "fp16": ("bfloat16", 2.0),
    "fp8": ("fp8", 1.0),
    "nvfp4": ("nvfp4", 0.5 + 1 / 16),  # a scale of one byte for 16 weights
}
"""Weight precision -> name in the GEMM table, bytes of one weight there."""
_WEIGHT_ONLY: Final = {"int4": "int4_wo", "int8": "int8_wo"}
"""The same for integer weights that are unpacked; their bytes are the deployment's own."""
_NARROW_SHARE: Final = 0.75
_LARGE_WEIGHTS: Final = 60_000_000


@dataclass(frozen=True)
class Precision:
    """How the weights of a matrix are stored and multiplied.

    Attributes:
        table_dtype: name in the GEMM table, "" where no table covers it.
        weight_bytes: bytes of one weight.
        mode: arithmetic mode of the accelerator.
    """

    table_dtype: str
    weight_bytes: float
    mode: str


BF16: Final = Precision("bfloat16", 2.0, "bf16")


def linear_precision(shape: ServingShape) -> Precision:
    """Return the precision of the dense layers of a deployment."""
    mode = arithmetic_mode(shape.gpu, shape.weight_dtype)
    name, weight_bytes = _TABLE_DTYPES.get(shape.weight_dtype, ("", shape.weight_bytes_per_param))
    if shape.weight_dtype in _WEIGHT_ONLY:
        table = load(shape.gpu.kernel_system, "gemm")
        wanted = _WEIGHT_ONLY[shape.weight_dtype]
        name = wanted if table is not None and reads_narrow(table, wanted) else ""
    if shape.weight_dtype in {"fp8", "nvfp4"} and mode == "bf16":
        name, weight_bytes = "", shape.weight_bytes_per_param
    return Precision(name, weight_bytes, mode)


@lru_cache(maxsize=64)
def reads_narrow(table: KernelTable, dtype: str) -> bool:
    """Whether a table's kernel gains by narrow weights: an engine would run no other.

    Asked at the fewest tokens of large shapes also measured in 16 bits, where weights are nearly
    all that is read: half the bytes in the median at three quarters of the time or less. H100's
    INT8 kernel takes 0.84 of the 16-bit time there, and up to eight times it elsewhere.
    """
    shares = [
        table.curve((dtype, n, k))[1][0] / table.curve(("bfloat16", n, k))[1][0]
        for name, n, k in table.sites
        if name == dtype and ("bfloat16", n, k) in table.sites and int(n) * int(k) >= _LARGE_WEIGHTS
    ]
    return bool(shares) and float(np.median(shares)) <= _NARROW_SHARE


def gemm_timing(
    gpu: Gpu, table: KernelTable | None, n: int, k: int, precision: Precision, m: FloatArray
) -> Timing:
    """Return the times of y[m, n] = x[m, k] w[n, k] for (points,) numbers of tokens m.

    Inside the grid of m linear, above it at held utilisation, never faster than the hardware.
    """
    args = (n, k, precision.weight_bytes, precision.mode)
    roofline = gemm_roofline_s(gpu, m, *args)
    limit = gemm_limit_s(gpu, m, *args)
    if table is None or not _shapes(table, precision.table_dtype).size:
        return Timing.of(roofline, ROOFLINE)
    grid, latency, quality = _curve(gpu, table, n, k, precision)
    end = float(gemm_roofline_s(gpu, grid[-1:], *args)[0])
    time = hold_utilisation(m, grid, latency, roofline, end)
    evidence = np.maximum(grid_evidence(m, grid), quality)
    return Timing.of(time, evidence).at_least(limit)


@lru_cache(maxsize=256)
def _shapes(table: KernelTable, dtype: str) -> FloatArray:
    """Return the measured (n, k) of a precision, (sites, 2)."""
    shapes = [key[1:] for key in table.sites if key[0] == dtype]
    return np.asarray(shapes, np.float64).reshape(-1, 2)


def _curve(
    gpu: Gpu, table: KernelTable, n: int, k: int, precision: Precision
) -> tuple[FloatArray, FloatArray, int]:
    """Return the grid of m, the seconds there, and the class of evidence of the shape."""
    dtype = precision.table_dtype
    if (dtype, n, k) in table.sites:
        return *table.curve((dtype, n, k)), 0
    cached = table.curves.get(
        key := (dtype, n, k, gpu.mem_bw_bytes_per_s, flops_per_s(gpu, precision.mode))
    )
    if cached is None:
        cached = table.curves[key] = _mixed_curve(gpu, table, n, k, precision)
    return cached


def _mixed_curve(
    gpu: Gpu, table: KernelTable, n: int, k: int, precision: Precision
) -> tuple[FloatArray, FloatArray, int]:
    """Return the curve of an unmeasured shape from the utilisation of measured ones.

    Bilinear in (log n, log k) where all corners were measured, otherwise the nearest shapes
    weighted by inverse distance.
    """
    sites, weights, inside = _neighbours(_shapes(table, precision.table_dtype), n, k)
    grid = table.curve((precision.table_dtype, *sites[0]))[0]
    utilisation = np.zeros_like(grid)
    for (site_n, site_k), weight in zip(sites, weights, strict=True):
        m, latency = table.curve((precision.table_dtype, site_n, site_k))
        yardstick = gemm_roofline_s(
            gpu, grid, site_n, site_k, precision.weight_bytes, precision.mode
        )
        utilisation += weight * yardstick / np.interp(grid, m, latency)
    target = gemm_roofline_s(gpu, grid, n, k, precision.weight_bytes, precision.mode)
    return grid, target / utilisation, INTERPOLATED if inside else EXTRAPOLATED


def _neighbours(
    shapes: FloatArray, n: int, k: int
) -> tuple[list[tuple[int, int]], list[float], bool]:
    """Return measured shapes near (n, k), their weights (sum 1), and whether it lies among them."""
    corners = [
        (corner_n, corner_k, weight_n * weight_k)
        for corner_n, weight_n in bracket(n, np.unique(shapes[:, 0]))
        for corner_k, weight_k in bracket(k, np.unique(shapes[:, 1]))
    ]
    inside = bool(np.all(shapes.min(axis=0) <= (n, k)) and np.all((n, k) <= shapes.max(axis=0)))
    measured = {(int(a), int(b)) for a, b in shapes}
    if all((int(a), int(b)) in measured for a, b, _ in corners):
        return [(int(a), int(b)) for a, b, _ in corners], [w for _, _, w in corners], inside
    distance = np.linalg.norm(np.log(shapes) - np.log((n, k)), axis=1)
    nearest = np.argsort(distance, kind="stable")[:_NUM_NEIGHBOURS]
    weights = 1.0 / np.maximum(distance[nearest], 1e-9)
    weights /= weights.sum()
    return [(int(a), int(b)) for a, b in shapes[nearest]], weights.tolist(), inside
