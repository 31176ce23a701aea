"""The replay of a deployment's data-parallel ranks, which step together."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from sieve.arrays import IntArray, LockStep
from sieve.errors import InvalidInput, TraceError
from sieve.sim._kernels import layout
from sieve.sim._kernels import lockstep as kernel
from sieve.sim.engine import EngineResult, step_arguments
from sieve.sim.engine_input import EngineInput

SYNC_STEPS: Final = 16
"""Steps between two looks whether all ranks are without work (vLLM 0.33 `dp_sync_interval`)."""
MAX_BYTES: Final = 4_000_000_000
_ARGUMENTS: Final = (
    "settings", "window", "kind", "span", "fixed", "arrival", "prompt", "output", "child_start",
    "child", "delay", "key_start", "keys", "num_keys", "clock",
)  # fmt: skip


def run_ranks(
    data: EngineInput, shape: LockStep, pool: int, *, sync_steps: int = SYNC_STEPS
) -> tuple[EngineResult, IntArray, int]:
    """Return the replay of one deployment's ranks, the rank of each request, and idle steps.

    Args:
        data: requests of the whole deployment; limits and clock of one rank.
        shape: what a step shares with the other ranks'.
        pool: KV blocks of a rank.
        sync_steps: as `SYNC_STEPS`; 0: ranks stop as soon as none has work.

    Returns:
        The result, its counters and peaks over all ranks; (n,) ranks; the steps that a rank without
        work ran along, each counted for itself.

    Raises:
        InvalidInput: what this replay does not follow, or more memory than it may take.
        TraceError: requests preempt themselves for ever.
    """
    _check(data)
    values = data.settings
    if values[layout.CACHING] and data.shared.num_keys == 0:
        # As in `engine`: no two prompts begin alike, so only who was preempted could hit.
        plain = values.copy()
        plain[layout.CACHING] = 0
        found = _run(replace(data, settings=plain), shape, pool, sync_steps)
        if found[0].counters[layout.PREEMPTED] == 0:
            return found
    return _run(data, shape, pool, sync_steps)


def _run(
    data: EngineInput, shape: LockStep, pool: int, sync_steps: int
) -> tuple[EngineResult, IntArray, int]:
    names = [name for name in EngineInput.__dataclass_fields__ if name != "shared"]
    given = dict(zip(names, step_arguments(data), strict=True))
    _check_size(given["settings"], given["num_keys"] * len(data.window), shape.ranks)
    results, counters, left, component_s, gaps, samples, lane, idle = kernel.replay(
        *(given[name] for name in _ARGUMENTS),
        np.array(shape.local_s, np.float64), np.array(shape.shared_s, np.float64),
        np.array(shape.graph_size, np.int64), float(shape.launch_s), shape.ranks, max(pool, 1),
        sync_steps,
    )  # fmt: skip
    if counters[layout.STATUS] == layout.STATUS_LIVE_LOCK:
        raise TraceError(
            f"the replay made no progress for {data.settings[layout.PATIENCE]:,} steps: requests "
            "are preempted before they are computed, again and again; the cache is too small"
        )
    if counters[layout.STATUS] == layout.STATUS_OVERLOADED:
        gaps[:] = 0
    result = EngineResult(
        results, counters, np.zeros(0, np.int64), left[1:], left[:0], component_s, gaps, samples
    )
    return result, lane, int(idle)


def _check(data: EngineInput) -> None:
    values = data.settings
    refused = (
        (values[layout.PIPELINE] != 1, "pipelines (pp=1)"),
        (values[layout.PRIORITY] != 0 or len(data.quota), "another discipline than fcfs"),
        (values[layout.FULL_RESERVATION] != 0, "reservation of whole answers"),
        (values[layout.ROOFLINE] != 0, "the plain rules' step times"),
    )
    for fails, what in refused:
        if fails:
            raise InvalidInput(f"data-parallel ranks are replayed without {what}")


def _check_size(values: IntArray, keys: int, ranks: int) -> None:
    needed = ranks * (24 * int(values[layout.NUM_BLOCKS]) + 4 * keys)
    if needed > MAX_BYTES:
        raise InvalidInput(
            f"{ranks} data-parallel ranks with {values[layout.NUM_BLOCKS]:,} blocks would take "
            f"{needed / 1e9:.1f} GB; shorten the traffic"
        )
