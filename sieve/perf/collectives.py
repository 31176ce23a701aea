"""All-reduce among the GPUs of a replica's tensor-parallel group."""

from __future__ import annotations

import numpy as np

from sieve.arrays import FloatArray
from sieve.errors import CoverageError
from sieve.perf.base import ROOFLINE, Part, ServingShape, Timing
from sieve.perf.constants import step_constants
from sieve.perf.interpolate import grid_evidence, hold_utilisation
from sieve.perf.kernel_table import KernelTable, Key, load
from sieve.perf.roofline import (
    ACTIVATION_BYTES,
    LINK_SHARE,
    PCIE_SHARE,
    allreduce_limit_s,
    allreduce_roofline_s,
)


def in_fast_domain(shape: ServingShape, num_gpus: int) -> bool:
    """Whether that many GPUs share the fast link and a host."""
    return num_gpus <= min(shape.gpu.scale_up_gpus, shape.gpus_per_node)


def link_rate(shape: ServingShape, num_gpus: int) -> float:
    """Return the rate in bytes/s, one direction, of the link that joins that many GPUs.

    Raises:
        CoverageError: it is not known.
    """
    fast = in_fast_domain(shape, num_gpus)
    rate = shape.gpu.link_bytes_per_s if fast else shape.gpu.pcie_bytes_per_s
    if rate <= 0:
        name = "link_bytes_per_s" if fast else "pcie_bytes_per_s"
        raise CoverageError(
            f"{shape.gpu.name}: the link among {num_gpus} GPUs has no known rate; give {name}"
        )
    return rate


def allreduce_timing(shape: ServingShape, m: FloatArray) -> Timing:
    """Return the times of one all-reduce of (points,) m tokens' hidden states."""
    return allreduce_part(shape, m).at(step_constants().allreduce_factor)


def allreduce_part(
    shape: ServingShape, m: FloatArray, count: float = 1.0, width: float | None = None
) -> Part:
    """Return `count` all-reduces of (points,) m tokens' hidden states, as measured.

    `width` is the number of elements of a token where it is not the model's width.

    The quicker of the engine's own kernel inside a graph (among GPUs with a fast link, or a pair)
    and NCCL where they were measured on this number of GPUs, otherwise a ring over the fast link
    or, beyond its domain, over PCIe.
    """
    fast = in_fast_domain(shape, shape.tp)
    link = link_rate(shape, shape.tp)
    share = LINK_SHARE if fast else PCIE_SHARE
    elements = m * (width or shape.model.hidden_size)
    roofline = allreduce_roofline_s(elements * ACTIVATION_BYTES, shape.tp, link, share)
    limit = allreduce_limit_s(elements * ACTIVATION_BYTES, shape.tp, link)
    measured_here = fast or (shape.gpu.scale_up_gpus == 1 and shape.tp <= shape.gpus_per_node)
    sources: list[tuple[str, Key]] = [("nccl", ("all_reduce", "half", shape.tp))]
    if fast or shape.tp == 2:
        sources.append(("custom_allreduce", ("bfloat16", "vllm_graph", shape.tp)))
    times = [
        _from_table(table, key, elements, link * share, roofline)
        for op, key in sources
        if measured_here
        and (table := load(shape.gpu.kernel_system, op)) is not None
        and key in table.sites
    ]
    best = times[0] if times else Timing.of(roofline, ROOFLINE)
    for other in times[1:]:
        best = Timing(np.where(other.total_s < best.total_s, other.by_class, best.by_class))
    return Part(best, limit if fast else 0.0, "allreduce_factor", count)


def _from_table(
    table: KernelTable,
    key: Key,
    elements: FloatArray,
    rate_bytes_per_s: float,
    roofline: FloatArray,
) -> Timing:
    """Return (points,) times from one measured curve over message sizes in elements."""
    grid, latency = table.curve(key)
    end = allreduce_roofline_s(grid[-1:] * ACTIVATION_BYTES, int(key[2]), rate_bytes_per_s, 1.0)
    time = hold_utilisation(elements, grid, latency, roofline, float(end[0]))
    return Timing.of(time, grid_evidence(elements, grid))
