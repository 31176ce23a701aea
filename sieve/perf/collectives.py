"""Collectives among the GPUs of a replica: all-reduce, all-gather, reduce-scatter."""

from __future__ import annotations

from typing import Final

import numpy as np

from sieve.arrays import FloatArray
from sieve.errors import CoverageError
from sieve.perf.base import EXTRAPOLATED, ROOFLINE, Part, ServingShape, Timing
from sieve.perf.constants import step_constants
from sieve.perf.interpolate import grid_evidence, hold_utilisation
from sieve.perf.kernel_table import KernelTable, Key, load
from sieve.perf.roofline import (
    ACTIVATION_BYTES,
    LINK_SHARE,
    PCIE_SHARE,
    allreduce_limit_s,
    ring_roofline_s,
)

_PASSES: Final = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}


def in_fast_domain(shape: ServingShape, num_gpus: int) -> bool:
    """Whether that many GPUs share the fast link and a host."""
    on_a_host = shape.hosts_of(num_gpus) == 1
    return on_a_host and num_gpus <= min(shape.gpu.scale_up_gpus, shape.gpus_per_node)


def link_rate(shape: ServingShape, num_gpus: int) -> float:
    """Return the rate in bytes/s, one direction, of the link that joins that many GPUs of a host.

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


def network_rate(shape: ServingShape) -> float:
    """Return the rate in bytes/s of the network port of one GPU, one direction.

    Raises:
        CoverageError: it is not known.
    """
    if shape.scale_out_bytes_per_s <= 0:
        raise CoverageError(
            f"{shape.nodes} nodes hold this replica and the network between them has no known "
            "rate; give fleet.scale_out_gbs_unidirectional"
        )
    return shape.scale_out_bytes_per_s


def crossing_sends(shape: ServingShape) -> int:
    """Return how many of the sends between neighbouring stages leave a host."""
    if shape.nodes == 1:
        return 0
    stages_on_node = max(1, shape.gpus_on_node // shape.tp)
    return -(-shape.pp // stages_on_node) - 1


def allreduce_timing(shape: ServingShape, m: FloatArray) -> Timing:
    """Return the times of one all-reduce of (points,) m tokens' hidden states.

    The quicker of the engine's own kernel inside a graph (among GPUs with a fast link, or a pair)
    and NCCL where they were measured on this number of GPUs. Otherwise, without a fast link, the
    largest smaller group that was measured, slowed by the further steps of the ring; failing that a
    ring over the fast link or, beyond its domain, over PCIe; among several hosts over the network.
    """
    return allreduce_part(shape, m).at(step_constants().allreduce_factor)


def allreduce_part(
    shape: ServingShape, m: FloatArray, count: float = 1.0, width: float | None = None
) -> Part:
    """Return `count` all-reduces of (points,) m tokens' hidden states, as measured.

    `width` is the number of elements of a token where it is not the model's width.
    """
    elements = m * (width or shape.model.hidden_size)
    return collective_part(shape, "all_reduce", shape.tp, elements, count)


def collective_timing(
    shape: ServingShape, operation: str, num_gpus: int, elements: FloatArray
) -> Timing:
    """Return the times of one collective, (points,); arguments as `collective_part`."""
    part = collective_part(shape, operation, num_gpus, elements)
    return part.at(step_constants().allreduce_factor)


def collective_part(
    shape: ServingShape, operation: str, num_gpus: int, elements: FloatArray, count: float = 1.0
) -> Part:
    """Return `count` collectives among neighbouring ranks of a stage, (points,), as measured.

    Args:
        shape: the replica.
        operation: `all_reduce`, `all_gather` or `reduce_scatter`.
        num_gpus: ranks that take part.
        elements: (points,) 16-bit numbers of the whole buffer.
        count: how many there are.
    """
    if shape.hosts_of(num_gpus) > 1:
        across = _across_hosts(shape, operation, num_gpus, elements)
        return Part(across, 0.0, "allreduce_factor", count)
    passes = _PASSES[operation]
    fast = in_fast_domain(shape, num_gpus)
    link = link_rate(shape, num_gpus)
    rate = link * (LINK_SHARE if fast else PCIE_SHARE)
    roofline = ring_roofline_s(elements * ACTIVATION_BYTES, num_gpus, rate, passes=passes)
    measured_here = fast or (shape.gpu.scale_up_gpus == 1 and num_gpus <= shape.gpus_per_node)
    sources: list[tuple[str, Key]] = [("nccl", (operation, "half", num_gpus))]
    if operation == "all_reduce" and (fast or num_gpus == 2):
        sources.append(("custom_allreduce", ("bfloat16", "vllm_graph", num_gpus)))
    times = [
        _from_table(table, key, elements, rate, roofline, passes)
        for op, key in sources
        if measured_here
        and (table := load(shape.gpu.kernel_system, op)) is not None
        and key in table.sites
    ]
    if not times and not fast and measured_here:
        times = _from_smaller_group(shape, operation, num_gpus, elements, rate, passes)
    best = times[0] if times else Timing.of(roofline, ROOFLINE)
    for other in times[1:]:
        best = Timing(np.where(other.total_s < best.total_s, other.by_class, best.by_class))
    limit = allreduce_limit_s(elements * ACTIVATION_BYTES, num_gpus, link)
    return Part(best, limit if fast else 0.0, "allreduce_factor", count)


def _across_hosts(
    shape: ServingShape, operation: str, num_gpus: int, elements: FloatArray
) -> Timing:
    """Return the times of a collective among ranks of several hosts, (points,).

    Every GPU has a network port and rings run through all of them at once, so a ring carries what
    the slower of a GPU's own link and the ports of a whole host together do: NCCL's bus bandwidth
    (nccl-tests, `doc/PERFORMANCE.md`). The network reaches the share of its rate that the fast
    link does, which is assumed. Never quicker than the same collective within one of the hosts.
    """
    inside = shape.gpus_on_node
    rate = LINK_SHARE * inside * network_rate(shape)
    if inside > 1:
        share = LINK_SHARE if in_fast_domain(shape, inside) else PCIE_SHARE
        rate = min(rate, share * link_rate(shape, inside))
    size = elements * ACTIVATION_BYTES
    time = ring_roofline_s(
        size, num_gpus, rate, passes=_PASSES[operation], hosts=shape.hosts_of(num_gpus)
    )
    found = Timing.of(time, ROOFLINE)
    if inside > 1:
        within = collective_part(shape, operation, inside, elements)
        found = found.at_least(within.at(1.0).total_s)
    return found


def allreduce_note(shape: ServingShape) -> str:
    """Return what stands in for an all-reduce that no usable row covers, "" if nothing does."""
    if (
        shape.tp == 1
        or shape.hosts_of(shape.tp) > 1
        or in_fast_domain(shape, shape.tp)
        or shape.tp > shape.gpus_per_node
    ):
        return ""
    found = _smaller_group(shape, "all_reduce", shape.tp) if shape.gpu.scale_up_gpus == 1 else None
    table = load(shape.gpu.kernel_system, "nccl")
    if found is None or (table is not None and ("all_reduce", "half", shape.tp) in table.sites):
        return ""
    return (
        f"no usable all-reduce of {shape.tp} {shape.gpu.name} was measured (the audit condemns the "
        f"rows, or there are none); used: {found[1]} GPUs, times "
        f"{_further_steps(shape.tp, found[1]):.3g}"
    )


def _from_smaller_group(
    shape: ServingShape,
    operation: str,
    num_gpus: int,
    elements: FloatArray,
    rate_bytes_per_s: float,
    passes: int,
) -> list[Timing]:
    """Return the NCCL times of the largest smaller group, slowed; none if none was measured.

    GPUs behind one path share it, so each further step of the ring adds its whole time.
    """
    found = _smaller_group(shape, operation, num_gpus)
    if found is None:
        return []
    table, gpus = found
    size = elements * ACTIVATION_BYTES
    roofline = ring_roofline_s(size, gpus, rate_bytes_per_s, passes=passes)
    timing = _from_table(
        table, (operation, "half", gpus), elements, rate_bytes_per_s, roofline, passes
    ).scaled(_further_steps(num_gpus, gpus))
    return [Timing.of(timing.total_s, EXTRAPOLATED)]


def _smaller_group(
    shape: ServingShape, operation: str, num_gpus: int
) -> tuple[KernelTable, int] | None:
    """Return the NCCL table and its largest group of fewer than `num_gpus`."""
    table = load(shape.gpu.kernel_system, "nccl")
    if table is None:
        return None
    groups = [int(k[2]) for k in table.sites if k[:2] == (operation, "half")]
    smaller = [n for n in groups if n < num_gpus]
    return (table, max(smaller)) if smaller else None


def _further_steps(num_gpus: int, gpus: int) -> float:
    return (num_gpus - 1) / (gpus - 1)


def _from_table(
    table: KernelTable,
    key: Key,
    elements: FloatArray,
    bytes_per_s: float,
    roofline: FloatArray,
    passes: int,
) -> Timing:
    """Return (points,) times from one measured curve over buffer sizes in elements."""
    grid, latency = table.curve(key)
    end = ring_roofline_s(grid[-1:] * ACTIVATION_BYTES, int(key[2]), bytes_per_s, passes=passes)
    time = hold_utilisation(elements, grid, latency, roofline, float(end[0]))
    return Timing.of(time, grid_evidence(elements, grid))
