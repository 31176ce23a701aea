"""Defects of kernel tables, found from the tables and the hardware's facts alone.

A finding that *condemns* names rows that step times must not use; the others tell how far to trust
what is used. No rule looks at a GPU's or an engine's name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from sieve.arrays import FloatArray, IntArray
from sieve.catalog.architecture import Gpu
from sieve.perf.audit_compare import slower_than_16_bit, sources_disagree
from sieve.perf.audit_finding import ORIGIN, Finding, num_rows, with_origin, words
from sieve.perf.table_schema import DIFFERENCES, OPERATIONS
from sieve.perf.table_work import CACHE_BYTES, limit_us

LAUNCH_FLOOR_US: Final = {
    "gemm": 20.0, "mla_bmm": 20.0, "custom_allreduce": 30.0, "nccl": 60.0,
    "context_attention": 40.0, "generation_attention": 40.0, "encoder_attention": 40.0,
    "context_mla": 60.0, "generation_mla": 60.0, "moe": 150.0,
}  # fmt: skip
"""Operation -> time of the smallest sizes above which launches on the host are in the timing.

Kernels replayed from a graph need 2-9 us (products), 7-16 (attention), 12-62 (experts), 3-26
(collectives); the same timed with their launches 56-290 us (products) and 20-120 (collectives).
"""
SMALL_TOKENS: Final = 32
FASTER_THAN_LIMIT: Final = 0.95
"""Share of the hardware's limit below which a row is impossible; 5 % for clocks above nominal."""
SPIKE: Final = 2.0
USUAL_SHARE: Final = 0.05
DROP: Final = 0.9
PLATEAU_BYTES: Final = 1e6
RING_TOLERANCE: Final = 0.9
_MIN_SMALL: Final = 3


def audit(frame: pl.DataFrame, op: str, gpu: Gpu) -> list[Finding]:
    """Return the findings of all rules on one table, the condemning ones first.

    Args:
        frame: rows with the operation's columns and `latency_us`; `source` and `kernel_source`
            tell versions and kernels apart where they are there. Rows of one site lie in any order.
        op: operation.
        gpu: accelerator on which it was measured.
    """
    rows = with_origin(frame).with_row_index("row")
    found = [
        *faster_than_hardware(rows, op, gpu),
        *launches_in_timing(rows, op, gpu),
        *spikes(rows, op),
        *slow_rings(rows, op),
        *falling_rows(rows, op),
        *holes(rows, op),
        *slower_than_16_bit(rows, op),
        *sources_disagree(rows, op),
    ]
    return sorted(found, key=lambda f: not f.condemns)


def condemned(findings: Sequence[Finding], num_rows: int) -> list[str | None]:
    """Return (num_rows,) the rules that condemn each row, None for rows that may be used."""
    reasons: list[str | None] = [None] * num_rows
    for finding in findings:
        if finding.condemns:
            for row in finding.rows.tolist():
                have = reasons[row]
                if have is None:
                    reasons[row] = finding.rule
                elif finding.rule not in have.split(" "):
                    reasons[row] = f"{have} {finding.rule}"
    return reasons


def faster_than_hardware(rows: pl.DataFrame, op: str, gpu: Gpu) -> Iterator[Finding]:
    """Find rows quicker than the hardware allows with a warm cache; and count cache-warm ones."""
    cold, warm = limit_us(rows, op, gpu), limit_us(rows, op, gpu, cache_bytes=CACHE_BYTES)
    if cold is None or warm is None:
        return
    latency = rows["latency_us"].to_numpy()
    bad = latency < FASTER_THAN_LIMIT * warm
    if bad.any():
        worst = float((warm / latency)[bad].max())
        detail = (
            f"{num_rows(int(bad.sum()))} quicker than {gpu.name} can be, by {worst:.2f} at worst"
        )
        yield Finding("faster_than_hardware", op, "", detail, _rows(rows, bad), condemns=True)
    cached = (latency < FASTER_THAN_LIMIT * cold) & ~bad
    if cached.any():
        worst = float((cold / latency)[cached].max())
        detail = (
            f"{num_rows(int(cached.sum()))} quicker than memory allows, by up to {worst:.1f}: data "
            "of the last repetition still in the cache; step times are held at the memory's limit"
        )
        yield Finding("read_from_cache", op, "", detail, _rows(rows, cached))


def launches_in_timing(rows: pl.DataFrame, op: str, gpu: Gpu) -> Iterator[Finding]:
    """Find kernels whose smallest sizes take as long as launches from the host."""
    floor = LAUNCH_FLOOR_US.get(op)
    if floor is None:
        return
    limit = limit_us(rows, op, gpu)
    least = np.zeros(rows.height) if limit is None else limit
    excess = rows["latency_us"].to_numpy() - least
    rows = rows.with_columns(excess=pl.Series(excess), least=pl.Series(least))
    last = OPERATIONS[op].axes[-1]
    keys = [*OPERATIONS[op].precision, *OPERATIONS[op].stored, *ORIGIN]
    if op == "nccl":
        keys = ["op_name", "num_gpus", *keys]
    for name, part in rows.group_by(keys, maintain_order=True):
        small = part.filter((pl.col(last) <= _small(op)) & (pl.col("least") < floor))
        if small.height < _MIN_SMALL:
            continue
        lowest = float(small["excess"].quantile(0.01, "nearest") or 0.0)
        if lowest > floor:
            detail = (
                f"the shortest of {small.height:,} small rows takes {lowest:.0f} us; a kernel in a "
                f"CUDA graph stays below {floor:.0f}"
            )
            at = part["row"].to_numpy().astype(np.int64)
            yield Finding("launch_in_timing", op, words(name), detail, at, condemns=True)


def _small(op: str) -> int:
    return 4096 if op in {"nccl", "custom_allreduce"} else SMALL_TOKENS


def spikes(rows: pl.DataFrame, op: str) -> Iterator[Finding]:
    """Find rows that take twice as long as their neighbours, of which the next has more work.

    One or two rows in a run. A kernel that does so at the same size in several shapes is slow
    there, not mistimed: such rows are reported and stay.
    """
    if op in DIFFERENCES:
        return
    site, axis, latency, order = _curves(rows, op)
    at = np.flatnonzero(_spiking(site, latency))
    if not len(at):
        return
    usual = _usual_for_kernel(rows, op, order, at)
    for name, picked, condemns in (("spike", at[~usual], True), ("slow_size", at[usual], False)):
        if len(picked):
            high = picked[np.argmax(latency[picked] / _beside(site, latency)[picked])]
            detail = (
                f"{num_rows(len(picked))} above {SPIKE:g} times their neighbours; worst: "
                f"{latency[high]:.4g} us at {OPERATIONS[op].axes[-1]} {axis[high]:.0f}, next to "
                f"{_beside(site, latency)[high]:.4g}"
            )
            if not condemns:
                detail += "; the kernel does so at this size in several shapes, so rows stay"
            yield Finding(name, op, "", detail, _rows(rows, order[picked]), condemns=condemns)


def _spiking(site: IntArray, latency: FloatArray) -> npt.NDArray[np.bool_]:
    """Return (n,) whether a row, or a pair of rows, stands out of its curve."""

    def at(offset: int) -> FloatArray:
        """Return each row's neighbour on its curve, inf after the end and 0 before the start."""
        moved = np.roll(latency, -offset)
        same = np.roll(site, -offset) == site
        index = np.arange(len(site)) + offset
        same &= (index >= 0) & (index < len(site))
        return np.asarray(np.where(same, moved, np.inf if offset > 0 else 0.0), np.float64)

    single = latency > SPIKE * np.maximum(at(-1), at(1))
    first = single & (at(-1) == 0.0)
    single &= ~first | (latency > SPIKE * at(2))
    pair = np.minimum(latency, at(1)) > SPIKE * np.maximum(at(-1), at(2))
    return np.asarray(single | pair | np.roll(pair, 1), np.bool_)


def _beside(site: IntArray, latency: FloatArray) -> FloatArray:
    """Return (n,) the smaller neighbour of each row on its curve, the row itself if alone."""
    after = np.where(np.roll(site, -1) == site, np.roll(latency, -1), np.inf)
    before = np.where(np.roll(site, 1) == site, np.roll(latency, 1), np.inf)
    least = np.minimum(after, before)
    return np.where(np.isfinite(least), least, latency)


def _usual_for_kernel(
    rows: pl.DataFrame, op: str, order: IntArray, at: IntArray
) -> npt.NDArray[np.bool_]:
    """Return (len(at),) whether a kernel spikes at this size in three shapes and 5 % of them."""
    kinds = [*OPERATIONS[op].precision, *OPERATIONS[op].stored, *ORIGIN, OPERATIONS[op].axes[-1]]
    kinds = list(dict.fromkeys(kinds))
    group = rows.select(pl.struct(kinds).rank("dense")).to_series().to_numpy()
    everywhere, hit = np.bincount(group), np.bincount(group[order[at]], minlength=group.max() + 1)
    mine = group[order[at]]
    usual = (hit[mine] >= 3) & (hit[mine] >= USUAL_SHARE * everywhere[mine])
    return np.asarray(usual, np.bool_)


def slow_rings(rows: pl.DataFrame, op: str) -> Iterator[Finding]:
    """Find collectives slower than one path shared by all GPUs explains.

    A ring's rate per GPU does not depend on its length. Where all GPUs share one path it falls with
    their number, and once more by half if each byte crosses that path twice (staged in the host's
    memory): rate(n) >= rate(2) / n. Below nine tenths of that no wiring explains the rate.
    """
    if op not in {"nccl", "custom_allreduce"}:
        return
    rate = pl.col("message_size") * (pl.col("num_gpus") - 1) / pl.col("num_gpus")
    keys = [c for c in OPERATIONS[op].keys if c != "num_gpus"]
    for name, part in rows.group_by([*keys, *ORIGIN], maintain_order=True):
        large = part.filter(pl.col("message_size") >= PLATEAU_BYTES / 2).with_columns(
            rate=rate / pl.col("latency_us")
        )
        rates = dict(large.group_by("num_gpus").agg(pl.col("rate").median()).rows())
        for gpus in sorted(n for n in rates if n > 2 and 2 in rates):
            least = rates[2] / gpus
            if rates[gpus] < RING_TOLERANCE * least:
                at = part.filter(pl.col("num_gpus") == gpus)["row"].to_numpy().astype(np.int64)
                detail = (
                    f"{gpus} GPUs reach {rates[gpus] / rates[2]:.3f} of the rate of 2 above 1 MB; "
                    f"one path shared by all and crossed twice gives {1 / gpus:.3f}"
                )
                where = f"{words(name)} {gpus} GPUs"
                yield Finding("slow_ring", op, where, detail, at, condemns=True)


def falling_rows(rows: pl.DataFrame, op: str) -> Iterator[Finding]:
    """Count rows that are over a tenth quicker than the row before, which has less work."""
    site, _, latency, order = _curves(rows, op)
    if op in DIFFERENCES:
        return
    falls = (site[1:] == site[:-1]) & (latency[1:] < DROP * latency[:-1])
    pairs = int((site[1:] == site[:-1]).sum())
    if falls.any():
        at = np.flatnonzero(falls) + 1
        worst = float((latency[at - 1] / latency[at]).max())
        detail = (
            f"{len(at):,} of {pairs:,} steps to more work ({len(at) / pairs:.1%}) are over a tenth "
            f"quicker, by {worst:.2f} at worst"
        )
        yield Finding("not_monotone", op, "", detail, _rows(rows, order[at]))


def holes(rows: pl.DataFrame, op: str) -> Iterator[Finding]:
    """Count inner grid points that a site lacks though other sites of its precision have them."""
    operation = OPERATIONS[op]
    if len(operation.axes) > 1:
        group, last = [*operation.keys, operation.axes[0]], operation.axes[1]
    else:
        group, last = list(operation.keys), operation.axes[0]
    kinds = list(operation.precision) + list(operation.stored)
    if op == "gdn":
        kinds = ["kernel_source", "phase"]
    missing, sites, total = 0, 0, 0
    for _, part in rows.group_by(kinds or [operation.keys[0]]):
        grid = np.unique(part[last].to_numpy())
        spans = part.group_by(group).agg(
            pl.col(last).min().alias("low"), pl.col(last).max().alias("high"),
            pl.col(last).n_unique().alias("have"),
        )  # fmt: skip
        inside = np.searchsorted(grid, spans["high"].to_numpy(), side="right") - np.searchsorted(
            grid, spans["low"].to_numpy()
        )
        lack = inside - spans["have"].to_numpy()
        missing += int(lack.sum())
        sites += int((lack > 0).sum())
        total += spans.height
    if missing:
        detail = f"{missing:,} inner points of {sites:,} of {total:,} curves were not measured"
        yield Finding("hole", op, "", detail)


def _curves(rows: pl.DataFrame, op: str) -> tuple[IntArray, FloatArray, FloatArray, IntArray]:
    """Return site number, last axis, latency and position of each row, sorted along curves."""
    operation = OPERATIONS[op]
    names = [*operation.keys, *operation.axes[:-1], *[g for g in ORIGIN if g not in operation.keys]]
    # A kernel is chosen by size, so curves go across kernels but not across sources.
    names = [n for n in names if n != "kernel_source" or n in operation.keys]
    last = operation.axes[-1]
    ordered = rows.with_columns(pos=pl.int_range(pl.len())).sort([*names, last])
    site = np.zeros(rows.height, np.int64)
    for name in names:
        site += ordered[name].rle_id().cast(pl.Int64).to_numpy()
    return (
        site, ordered[last].cast(pl.Float64).to_numpy(), ordered["latency_us"].to_numpy(),
        ordered["pos"].cast(pl.Int64).to_numpy(),
    )  # fmt: skip


def _rows(rows: pl.DataFrame, picked: np.ndarray) -> IntArray:
    return np.asarray(rows["row"].to_numpy()[picked], np.int64)
