"""How long step times, the ledger of a million candidates and small things take.

python tests/benchmarks/step_times.py
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parents[2]))

from sieve.catalog.accelerators import load_gpu
from sieve.catalog.models import load_model
from sieve.perf.base import ServingShape
from sieve.perf.compose import build_step_table

COLD: Final = """
import time
start = time.perf_counter()
from sieve.catalog.accelerators import load_gpu
from sieve.catalog.models import load_model
from sieve.perf.base import ServingShape
from sieve.perf.compose import build_step_table
build_step_table(ServingShape(
    load_model("Qwen/Qwen3-30B-A3B"), load_gpu("B200-SXM-180GB"), tp=4, pp=1, ep=1,
    weight_dtype="bf16", kv_cache_dtype="auto", max_num_batched_tokens=8192, max_num_seqs=256,
    max_context=32768, weight_bytes_per_param=2.0))
print(time.perf_counter() - start)
"""
MODELS: Final = (
    "Qwen/Qwen3-8B", "Qwen/Qwen3-30B-A3B", "deepseek-ai/DeepSeek-V3", "deepseek-ai/DeepSeek-V3.2",
    "zai-org/GLM-5.2", "Qwen/Qwen3.5-397B-A17B", "moonshotai/Kimi-K3",
)  # fmt: skip


def best_ms(work: Callable[[int], object], times: int = 5) -> float:
    """Return the least processor time of `work`, ms."""
    took = []
    for i in range(times):
        start = time.process_time()
        work(i)
        took.append(time.process_time() - start)
    return 1e3 * min(took)


def main() -> None:
    """Print the table."""
    command = [sys.executable, "-c", COLD]
    cold = min(float(subprocess.check_output(command, text=True)) for _ in range(3))
    print(f"first step times of a process, largest tables   {cold:8.2f} s")
    for name in MODELS:
        shape = ServingShape(
            load_model(name), load_gpu("H200-SXM-141GB"), tp=8, pp=1, ep=1, weight_dtype="bf16",
            kv_cache_dtype="auto", max_num_batched_tokens=8192, max_num_seqs=256,
            max_context=32768, weight_bytes_per_param=2.0,
        )  # fmt: skip
        build_step_table(shape)
        took = best_ms(
            lambda i, shape=shape: build_step_table(replace(shape, max_num_seqs=250 + i))
        )
        print(f"further step times, {name:<28}{took:8.1f} ms")


if __name__ == "__main__":
    main()
