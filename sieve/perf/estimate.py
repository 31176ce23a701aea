"""Closed-form ends of the metrics of many candidates, from their step tables and the traffic.

One replica at batch m per pipeline stage: a request occupies it for `output x step(m)/m + prefill`.
The batch at which this just carries the offered rate is where the replica works, and a token then
takes `step(m)/(1 - prefill share)`. Statistics above the median are taken at the rate of the
busiest minutes that hold enough requests to set them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import polars as pl

from sieve.arrays import FloatArray, IntArray, Requests
from sieve.frames import num_engines
from sieve.perf.cache import FAMILY, StepTables
from sieve.perf.capacity import Workload, decode_curve_s, prefill_cost_s, prompt_s, unshared

BUSY_WINDOW_S: Final = 30.0
MAX_PREFILL_SHARE: Final = 0.95


@dataclass(frozen=True)
class Ends:
    """Which end of the intervals: factors on speed, above 1 optimistic, below 1 pessimistic."""

    step: float
    prompt: float

    @property
    def is_optimistic(self) -> bool:
        """Whether queues that a closed form cannot exclude are left out."""
        return self.step > 1.0


@dataclass(eq=False)
class Estimates:
    """Metrics of n candidates at one end of their intervals.

    Attributes:
        candidates: rows with the family columns, `batch`, `replicas`, `max_num_batched_tokens`.
            Data-parallel ranks count as engines of their own whose steps all ranks share evenly,
            or, at the optimistic end, that have the others' GPUs to themselves.
        tables: step tables.
        requests: traffic at level 1.0.
        workload: its means.
        ends: which end.
    """

    candidates: pl.DataFrame
    tables: StepTables
    requests: Requests
    workload: Workload
    ends: Ends
    _groups: list[_Group] = field(default_factory=list)
    _points: dict[float, tuple[FloatArray, FloatArray]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        keys = (*FAMILY, "max_num_batched_tokens")
        engines = num_engines().alias("engines")
        rows = self.candidates.select(*keys, "batch", engines).with_row_index("row")
        curves: dict[tuple[Any, ...], FloatArray] = {}
        for key, part in rows.group_by(*keys, maintain_order=True):
            family, budget = key[:-1], int(key[-1])
            table = self.tables.get(family)
            if self.ends.is_optimistic:
                table = unshared(table)
            if family not in curves:
                curves[family] = decode_curve_s(
                    table, self.workload.decode_context, self.tables.max_num_seqs
                )
            batch = np.arange(1, len(curves[family]) + 1)
            decode = curves[family] / self.ends.step
            prefill = prefill_cost_s(table, self.workload, batch, budget) / self.ends.step
            busy = self.workload.mean_output * decode / batch + prefill
            most = -(-part["batch"].to_numpy() // table.pp)
            self._groups.append(
                _Group(
                    rows=part["row"].to_numpy(),
                    engines=part["engines"].to_numpy(),
                    most=np.clip(most, 1, len(batch)),
                    pp=table.pp,
                    decode_s=decode,
                    prefill_s=prefill,
                    served_per_s=np.maximum.accumulate(table.pp / busy),
                    prompt_s=self._prompts(table, budget),
                )
            )

    def _prompts(self, table: Any, budget: int) -> dict[str, float]:
        return {
            stat: prompt_s(table, statistic(self.requests.input_tokens, stat), budget)
            / self.ends.prompt
            for stat in ("mean", "p50", "p90", "p95", "p99")
        }

    @property
    def size(self) -> int:
        """Number of candidates."""
        return len(self.candidates)

    def capacity_per_s(self) -> FloatArray:
        """Return the requests per second that all replicas can serve, (n,)."""
        out = np.empty(self.size)
        for g in self._groups:
            out[g.rows] = g.served_per_s[g.most - 1] * g.engines
        return out

    def tpot_s(self, stat: str) -> FloatArray:
        """Return the time per output token, (n,); the median without prefill stalls."""
        tpot, _ = self._operating_point(stat)
        if stat == "p50" and self.ends.is_optimistic:
            out = np.empty(self.size)
            for g in self._groups:
                out[g.rows] = g.decode_s[0]
            return np.minimum(tpot, np.maximum(out, tpot / 2))
        return tpot

    def ttft_s(self, stat: str) -> FloatArray:
        """Return the time to first token, (n,): prompt, backlog, and queues if pessimistic."""
        tpot, load = self._operating_point(stat)
        out = np.empty(self.size)
        for g in self._groups:
            out[g.rows] = _at(g.prompt_s, stat)
        if not self.ends.is_optimistic:
            out = (out + tpot) / np.maximum(1.0 - load, 0.02)
        return np.asarray(out + self.backlog_s(stat))

    def e2e_s(self, stat: str) -> FloatArray:
        """Return the end-to-end time, (n,)."""
        tokens = statistic(self.requests.output_tokens, stat) - 1
        wait = self.backlog_s(stat) if self.ends.is_optimistic else self.ttft_s(stat)
        return np.asarray(tokens * self.tpot_s("mean") + wait)

    def backlog_s(self, stat: str) -> FloatArray:
        """Return the wait that builds up where capacity is exceeded, (n,).

        At utilisation u above 1 a request that arrives at time t waits at least t (u - 1).
        """
        rate = self.workload.rate_per_s
        if rate is None or not np.isfinite(rate):
            return np.zeros(self.size)
        share = 0.5 if stat == "mean" else float(stat[1:]) / 100
        excess = np.maximum(rate / self.capacity_per_s() - 1.0, 0.0)
        return np.asarray(share * self.workload.span_s * excess)

    def _operating_point(self, stat: str) -> tuple[FloatArray, FloatArray]:
        """Return (time per token, utilisation), (n,) each, at the rate that sets a statistic."""
        rate = busy_rate_per_s(self.requests, stat)
        key = -1.0 if rate is None else rate
        if key not in self._points:
            tpot, load = np.empty(self.size), np.empty(self.size)
            for g in self._groups:
                tpot[g.rows], load[g.rows] = g.operate(rate, self.workload)
            self._points[key] = tpot, load
        return self._points[key]


@dataclass(frozen=True, eq=False)
class _Group:
    """Candidates of one family and token budget; curves by batch per stage from 1."""

    rows: IntArray
    engines: IntArray
    most: IntArray
    pp: int
    decode_s: FloatArray
    prefill_s: FloatArray
    served_per_s: FloatArray
    prompt_s: dict[str, float]

    def operate(self, rate: float | None, load: Workload) -> tuple[FloatArray, FloatArray]:
        """Return (time per token, utilisation) where the offered rate, or the users, are served."""
        limit = self.served_per_s[self.most - 1]
        if rate is None:
            batch = np.clip(-(-(load.users or 1) // (self.engines * self.pp)), 1, self.most)
            wanted = self.served_per_s[batch - 1]
        else:
            wanted = np.minimum(rate / self.engines, limit)
            batch = np.minimum(np.searchsorted(self.served_per_s, wanted) + 1, self.most)
        share = wanted * self.prefill_s[batch - 1] / self.pp
        tpot = self.decode_s[batch - 1] / (1.0 - np.minimum(share, MAX_PREFILL_SHARE))
        return tpot, wanted / limit


def _at(values: dict[str, float], stat: str) -> float:
    """Return the value of the nearest statistic that is not above `stat`."""
    if stat in values:
        return values[stat]
    wanted = float(stat[1:])
    below = [name for name in ("p50", "p90", "p95", "p99") if float(name[1:]) <= wanted]
    return values[below[-1]] if below else 0.0


def statistic(values: IntArray, stat: str) -> float:
    """Return the mean or a percentile of whole numbers."""
    if stat == "mean":
        return float(values.mean())
    return float(np.percentile(values, float(stat[1:])))


def busy_rate_per_s(requests: Requests, stat: str) -> float | None:
    """Return the arrival rate that sets a latency statistic; None for a closed loop.

    For a percentile above the median: the rate of the least busy of the busiest half-minutes that
    together hold twice the requests above the percentile; otherwise the mean rate.
    """
    if requests.closed_loop_users is not None:
        return None
    n, mean = len(requests), float(requests.rate_per_s)
    if not np.isfinite(mean):
        return mean
    if stat == "mean" or float(stat[1:]) <= 50:
        return mean
    span = float(requests.arrival_s[-1])
    windows = max(1, int(span // BUSY_WINDOW_S))
    edges = np.linspace(requests.arrival_s[0], span, windows + 1)
    counts = np.sort(np.histogram(requests.arrival_s, edges)[0])[::-1]
    needed = 2 * (1 - float(stat[1:]) / 100) * n
    last = int(np.searchsorted(np.cumsum(counts), needed))
    rate = counts[min(last, windows - 1)] * windows / (span - requests.arrival_s[0])
    return float(max(rate, mean))
