"""Stages 1 to 4 over a large grid: `python tests/benchmarks/blocks.py [COMBINATIONS [BLOCKS]]`.

Prints wall and CPU time, peak memory and time a combination. With BLOCKS only so many blocks,
evenly spaced, are searched and the time of all is extrapolated. The grid is Qwen3-32B on six GPU
types; the number of combinations sets how many values `gpu_memory_utilization` has.
"""

from __future__ import annotations

import resource
import sys
import time
from typing import Any

from sieve.api import prepare
from sieve.blocks import BLOCK, merge, search
from sieve.parallel import LocalExecutor
from sieve.spec import load_spec

GPUS = [
    "H100-SXM-80GB", "A100-SXM-80GB", "L40S-48GB", "H200-SXM-141GB", "B200-SXM-180GB", "L4-24GB",
]  # fmt: skip
BASE = 6 * 4 * 4 * 64 * 3 * 2 * 32 * 16


def spec(combinations: int) -> dict[str, Any]:
    """Return a run spec whose grid has at least so many combinations, if there are that many."""
    shares = max(1, min(-(-combinations // BASE), 200))
    return {
        "name": "large",
        "model": "Qwen/Qwen3-32B",
        "traffic": {"trace": "chat", "rate_per_s": 40, "levels": [1.0]},
        "slo": {"ttft_p99": "2 s", "tpot_p99": "50 ms"},
        "fleet": {"gpus": GPUS, "max_gpus": 64},
        "grid": {
            "axes": {
                "tp": [1, 2, 4, 8],
                "pp": [1, 2, 4, 8],
                "replicas": {"range": [1, 64]},
                "weight_dtype": ["bf16", "fp8", "int4"],
                "kv_cache_dtype": ["auto", "fp8"],
                "max_num_seqs": [8 * i for i in range(1, 33)],
                "max_num_batched_tokens": [1024 * i for i in range(1, 17)],
                "gpu_memory_utilization": [round(0.95 - 0.002 * i, 3) for i in range(shares)],
            }
        },
    }


def cpu_s() -> float:
    """Return the CPU time of this process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Print the figures."""
    combinations = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000_000
    context, grid = prepare(load_spec(spec(combinations)), LocalExecutor())
    size = grid.index.size
    started, cpu = time.perf_counter(), cpu_s()
    if len(sys.argv) > 2:
        blocks = list(grid.index.blocks(BLOCK))
        chosen = blocks[:: max(1, len(blocks) // int(sys.argv[2]))]
        merge(grid, context, chosen)
        searched = sum(last - first for first, last in chosen) * grid.index.row_size
    else:
        found = search(grid, context)
        searched = size
        for stage in found.stages:
            print(f"{stage['name']:<14} {stage['num_in']:>15,} {stage['num_admitted']:>15,}")
    wall, cpu = time.perf_counter() - started, cpu_s() - cpu
    peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    each = cpu / searched
    print(f"{searched:,} of {size:,} combinations: {wall:.0f} s, {cpu:.0f} CPU-s, {peak_gb:.2f} GB")
    print(f"{each * 1e6:.2f} us of CPU each; all of them {each * size:.0f} CPU-s")


if __name__ == "__main__":
    main()
