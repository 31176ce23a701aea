"""Replays of disjoint parts of one traffic, put together as one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from sieve.arrays import COMPONENTS, FloatArray, IntArray, Requests, SimResult, StepTable
from sieve.errors import InvalidInput

_TIMES: Final = ("arrival_s", "scheduled_s", "first_token_s", "finish_s")
_COUNTS: Final = ("num_preemptions", "cached_tokens")
_SUMS: Final = ("num_steps", "num_request_steps", "num_idle_steps")
_PEAKS: Final = ("peak_blocks", "peak_batch", "peak_tokens", "peak_running")


def merge_results(
    requests: Requests, parts: Sequence[SimResult], rows: Sequence[IntArray]
) -> SimResult:
    """Return the replay of all requests from those of its parts; the series is the first part's.

    Args:
        requests: the whole traffic, n requests.
        parts: one replay a part.
        rows: the indices of each part's requests; together each of n exactly once.

    Raises:
        InvalidInput: a request is in no part or in two.
    """
    n = len(requests)
    if sorted(np.concatenate([*rows, np.zeros(0, np.int64)]).tolist()) != list(range(n)):
        raise InvalidInput("pools must serve every request exactly once")

    def gather(name: str, kind: type) -> Any:
        out: Any = np.empty(n, kind)
        for part, at in zip(parts, rows, strict=True):
            out[at] = getattr(part, name)
        return out

    times: dict[str, Any] = {name: gather(name, np.float64) for name in _TIMES}
    status = next((part.status for part in parts if part.status), "")
    end_s = times["finish_s"].max() if status == "" else 0.0
    counts: dict[str, Any] = {name: gather(name, np.int64) for name in _COUNTS}
    counts |= {name: sum(getattr(part, name) for part in parts) for name in _SUMS}
    counts |= {name: max(getattr(part, name) for part in parts) for name in _PEAKS}
    return SimResult(
        status=status,
        **times,
        **counts,
        component_s=np.sum([part.component_s for part in parts], axis=0),
        short_of_blocks=any(part.short_of_blocks for part in parts),
        makespan_s=float(end_s - times["arrival_s"].min()) if status == "" else 0.0,
        gaps=np.sum([part.gaps for part in parts], axis=0),
        samples=parts[0].samples,
    )


def blended(tables: Sequence[StepTable], spent_s: Sequence[FloatArray]) -> StepTable:
    """Return the first table with the evidence of all, weighted by the time spent in each.

    Args:
        tables: one a part.
        spent_s: (5,) seconds by component of each part's replay.
    """
    evidence: dict[str, dict[str, float]] = {}
    for i, name in enumerate(COMPONENTS):
        total = sum(float(spent[i]) for spent in spent_s)
        mixed: dict[str, float] = {}
        for table, spent in zip(tables, spent_s, strict=True):
            weight = float(spent[i]) / total if total > 0 else 1.0 / len(tables)
            for kind, share in table.component_evidence.get(name, {"roofline": 1.0}).items():
                mixed[kind] = mixed.get(kind, 0.0) + weight * share
        evidence[name] = mixed
    return replace(tables[0], component_evidence=evidence)
