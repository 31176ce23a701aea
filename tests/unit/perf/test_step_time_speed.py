"""How long step times take: the first in a process, tables read included, and those after."""

import subprocess
import sys
import time
from dataclasses import replace

import pytest

from sieve.catalog.accelerators import load_gpu
from sieve.catalog.models import load_model
from sieve.perf.base import ServingShape
from sieve.perf.compose import build_step_table

COLD = """
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


def test_the_first_step_times_of_a_process_take_at_most_1_5_s():
    """The largest tables, with experts. The best of three: other work must not decide."""
    command = [sys.executable, "-c", COLD]
    took = [float(subprocess.check_output(command, text=True, timeout=600)) for _ in range(3)]
    assert min(took) < 1.5


def test_further_step_times_take_at_most_20_ms(make_shape):
    """Each of a deployment that was not asked for before."""
    best = []
    for tp in (1, 2, 4, 8):
        for kv in ("auto", "fp8"):
            took = []
            for _ in range(3):
                start = time.perf_counter()
                build_step_table(make_shape(tp=tp, kv_cache_dtype=kv))
                took.append(time.perf_counter() - start)
            best.append(min(took))
    assert max(best) < 20e-3


@pytest.mark.parametrize(
    "name",
    ["deepseek-ai/DeepSeek-V3", "deepseek-ai/DeepSeek-V3.2", "zai-org/GLM-5.2",
     "Qwen/Qwen3.5-397B-A17B", "moonshotai/Kimi-K3"],
)  # fmt: skip
def test_layers_of_every_kind_take_at_most_20_ms(name):
    """Latent, sparse and recurrent layers, with experts; the time of this process alone."""
    shape = ServingShape(
        load_model(name), load_gpu("H200-SXM-141GB"), tp=8, pp=1, ep=1, weight_dtype="bf16",
        kv_cache_dtype="auto", max_num_batched_tokens=8192, max_num_seqs=256, max_context=32768,
        weight_bytes_per_param=2.0,
    )  # fmt: skip
    build_step_table(shape)
    took = []
    for seqs in range(250, 255):
        start = time.process_time()
        build_step_table(replace(shape, max_num_seqs=seqs))
        took.append(time.process_time() - start)
    assert min(took) < 20e-3
