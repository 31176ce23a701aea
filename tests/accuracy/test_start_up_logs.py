"""The memory ledger against start-up logs of vLLM 0.19 on an H100 (thread llm-d-planner#205).

GiB per GPU as the logs print them: utilisation 0.95, max_num_seqs 1,024, 79.19 GiB reported.
"""

from __future__ import annotations

import numpy as np
import pytest

from sieve.catalog.engines import load_engine
from sieve.catalog.models import load_model
from sieve.memory.ledger import LedgerInput, ledger
from sieve.units import GIB

# model, TP, bytes per weight and cached number, weights, KV memory, KV tokens (0: not stated)
LOGS = [
    ("meta-llama/Llama-3.1-8B-Instruct", 1, 2, 2, 14.99, 58.11, 476_016),
    ("meta-llama/Llama-3.1-8B-Instruct", 2, 2, 2, 7.51, 63.76, 0),
    ("meta-llama/Llama-3.1-8B-Instruct", 4, 2, 2, 3.77, 67.44, 0),
    ("meta-llama/Llama-3.1-8B-Instruct", 1, 1, 2, 8.49, 64.61, 0),
    ("Qwen/Qwen2.5-7B-Instruct", 1, 2, 1, 14.25, 58.53, 2_192_000),
    ("Qwen/Qwen2.5-7B-Instruct", 2, 2, 2, 7.12, 63.84, 0),
    ("Qwen/Qwen2.5-7B-Instruct", 4, 2, 2, 3.55, 67.34, 0),
    ("Qwen/Qwen2.5-72B-Instruct", 4, 2, 2, 33.71, 37.01, 0),
    ("Qwen/Qwen2.5-72B-Instruct", 2, 2, 2, 67.86, 2.99, 0),
]


@pytest.mark.parametrize("log", LOGS, ids=lambda log: f"{log[0].split('/')[1]}-tp{log[1]}-{log[2]}")
def test_ledger_is_the_logs(log):
    name, tp, weight_bytes, kv_bytes, weights_gib, kv_gib, tokens = log
    books = ledger(
        load_model(name),
        load_engine("vllm==0.19"),
        LedgerInput(
            memory_bytes=np.array([79.19 * GIB]),
            tp=np.array([tp]),
            pp=np.array([1]),
            weight_bytes_per_param=np.array([float(weight_bytes)]),
            load_bytes_per_param=np.array([float(weight_bytes)]),
            kv_bytes_per_element=np.array([float(kv_bytes)]),
            max_num_seqs=np.array([1024]),
            block_size=np.array([16]),
            utilisation=np.array([0.95]),
        ),
    )
    assert books.weight_bytes[0] / GIB == pytest.approx(weights_gib, rel=0.01)
    assert books.kv_bytes[0] / GIB == pytest.approx(kv_gib, abs=0.3)
    if tokens:
        assert books.num_blocks[0] * 16 == pytest.approx(tokens, rel=0.02)
