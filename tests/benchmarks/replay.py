"""Rates of the replay, as tables: `python tests/benchmarks/replay.py`.

Step times are given; times are CPU seconds of this process, best of several, compiled code warm.
One line compares with a plain Python loop of the same rules in the same run. The public
conversation trace is replayed where `SIEVE_DATA` names the folder of data sets.
"""
# ruff: noqa: E402 - a script that prints, run from the repository

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import plain_replay
from conftest import Tables

from sieve.arrays import Requests, StepTable
from sieve.sim._kernels import engine, layout
from sieve.sim.engine import run_events, step_arguments
from sieve.sim.engine_input import EngineInput
from sieve.sim.replay import ReplaySettings, simulate
from sieve.sim.traffic_input import (
    clock_of,
    prefix_keys,
    request_input,
    settings_array,
)
from sieve.spec import TrafficSpec
from sieve.traces import load_traffic

FIRST_CALL = """
import time; started = time.perf_counter()
import numpy as np
from sieve.arrays import Requests
from sieve.sim.replay import ReplaySettings, simulate
import sys; sys.path.insert(0, "tests")
from conftest import Tables
table = Tables.affine(base=1e-3)
simulate(Requests(np.zeros(2), np.full(2, 9), np.full(2, 5)), table, ReplaySettings(8, 64, 99, 16))
print(time.perf_counter() - started)
"""


def best_of(function: Callable[..., Any], repeats: int, *arguments: Any) -> tuple[float, Any]:
    """Return the least CPU time of `repeats` calls in seconds, and the last result."""
    least, result = np.inf, None
    for _ in range(repeats):
        started = time.process_time()
        result = function(*arguments)
        least = min(least, time.process_time() - started)
    return float(least), result


def chat(rate_per_s: float, num_requests: int = 20_000) -> Requests:
    """Return the shipped chat traffic, 1,155 tokens in and 211 out on average."""
    spec = TrafficSpec(trace="chat", requests=num_requests, rate_per_s=rate_per_s)
    return load_traffic(spec, seed=0, base_dir=ROOT)


def table_of() -> StepTable:
    """Return steps of 6 ms, 18 us a token and 15 ns a token of context."""
    return Tables.affine(
        base=6e-3, per_token=18e-6, per_context=15e-9, max_tokens=8192, max_seqs=256
    )


def arrays(requests: Requests, table: StepTable, limits: ReplaySettings) -> EngineInput:
    """Return what the kernels take."""
    longest = int((requests.input_tokens + requests.output_tokens).max())
    shared = None
    if requests.prefix is not None and limits.prefix_caching:
        shared = prefix_keys(requests.prefix, limits.block_size)
    return request_input(
        settings_array(limits, table, 0, longest),
        np.rint(requests.arrival_s * 1e9).astype(np.int64),
        requests.input_tokens,
        requests.output_tokens,
        clock=clock_of(table, limits.max_num_seqs, longest),
        shared=shared,
    )


def chat_rates() -> None:
    """Print the rates on chat traffic by load, cache and scheduling."""
    print("chat, 20,000 requests, 256 seats, budget 8,192: million request-iterations/s")
    columns = "".join(f"{name:>8}" for name in ("batch", "plain", "ahead", "cache", "both"))
    print(f"{'load, blocks':<19}{columns}{'preempt':>9}")
    table = table_of()
    for rate, blocks in ((5, 100_000), (15, 100_000), (25, 100_000), (40, 100_000), (40, 14_000)):
        requests, cells = chat(rate), []
        for cache, ahead in ((False, False), (False, True), (True, False), (True, True)):
            limits = ReplaySettings(
                256, 8192, blocks, 16, async_scheduling=ahead, prefix_caching=cache
            )
            data = arrays(requests, table, limits)
            seconds, out = best_of(run_events, 7, data)
            counts = out.counters
            cells.append(f"{counts[layout.REQUEST_STEPS] / seconds / 1e6:8.0f}")
        batch = counts[layout.REQUEST_STEPS] / counts[layout.FILLED_STEPS]
        name = f"{rate}/s, {blocks:,}"
        print(f"{name:<20}{batch:7.0f}{''.join(cells)}{counts[layout.PREEMPTED]:9,}")
    print("the step-by-step kernel, which serves every option:")
    requests = chat(15)
    for cache in (False, True):
        limits = ReplaySettings(256, 8192, 100_000, 16, prefix_caching=cache)
        arguments = step_arguments(arrays(requests, table, limits))
        seconds, out = best_of(engine.replay, 3, *arguments)
        print(f"  cache {cache!s:<6}{out[1][layout.REQUEST_STEPS] / seconds / 1e6:8.1f}")


def conversation_rates() -> None:
    """Print the time on the public conversation trace with its shared prefixes."""
    if "SIEVE_DATA" not in os.environ:
        print("conversation trace: left out, SIEVE_DATA is not set")
        return
    folder = Path(os.environ["SIEVE_DATA"]) / "traces/mooncake_conversation"
    spec = TrafficSpec(trace="conversation_trace.jsonl.gz", format="mooncake_trace")
    requests = load_traffic(spec, seed=0, base_dir=folder)
    print(f"conversation trace, {len(requests):,} requests, blocks of 16: ms per 1,000 requests")
    for per_token in (4e-6, 25e-6):
        table = Tables.affine(base=1e-4, per_token=per_token, max_tokens=8192, max_seqs=256)
        for blocks in (60_000, 400_000):
            limits = ReplaySettings(256, 8192, blocks, 16, prefix_caching=True)
            started = time.process_time()
            data = arrays(requests, table, limits)
            prepared = time.process_time() - started
            seconds, out = best_of(run_events, 5, data)
            hit = out.results[:, layout.CACHED].clip(0).sum() / requests.input_tokens.sum()
            print(
                f"  {per_token * 1e6:3.0f} us/token, {blocks:>7,} blocks: "
                f"{seconds * 1e6 / len(requests):5.1f} (hits {hit:.2f}; keys, once a trace and "
                f"block size: {prepared * 1e3:.0f} ms in all)"
            )


def plain_ratio() -> None:
    """Print how much faster the kernel is than a plain Python loop with the same results."""
    requests, table = chat(15, 2000), table_of()
    limits = ReplaySettings(256, 8192, 100_000, 16)
    seconds, plain = best_of(plain_replay.replay, 1, requests, table, limits)
    data = arrays(requests, table, limits)
    quick, out = best_of(run_events, 7, data)
    assert plain.request_steps == out.counters[layout.REQUEST_STEPS]
    print(
        f"chat, 2,000 requests: plain Python {seconds:.2f} s, kernel {quick * 1e3:.2f} ms: "
        f"{seconds / quick:,.0f} times"
    )


def first_call() -> None:
    """Print the time of the first replay in a new process, compiled code cold and warm."""
    with tempfile.TemporaryDirectory() as cache:
        for name in ("cold", "warm", "warm"):
            done = subprocess.run(
                [sys.executable, "-c", FIRST_CALL], capture_output=True, check=True, text=True,
                cwd=ROOT, env={**os.environ, "NUMBA_CACHE_DIR": cache},
            )  # fmt: skip
            print(f"first call in a new process, compile cache {name}: {float(done.stdout):.1f} s")


def memory() -> None:
    """Print the peak memory of 100,000 requests with the prefix cache on."""
    requests = chat(15, 100_000)
    limits = ReplaySettings(256, 8192, 100_000, 16, prefix_caching=True, async_scheduling=True)
    simulate(requests, table_of(), limits)
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"100,000 requests, prefix cache on: {peak_mb:.0f} MB at most so far, start included")


def main() -> None:
    """Print all figures."""
    print(f"{os.cpu_count()} cores, Python {sys.version.split()[0]}")
    simulate(chat(15, 10), table_of(), ReplaySettings(256, 8192, 100_000, 16))
    memory()
    chat_rates()
    conversation_rates()
    plain_ratio()
    first_call()


if __name__ == "__main__":
    main()
