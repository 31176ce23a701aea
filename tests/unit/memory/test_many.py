"""A million candidates are judged at once: columns, never a loop over rows."""

from __future__ import annotations

import numpy as np

from sieve.catalog.engines import load_engine
from sieve.catalog.models import load_model
from sieve.memory.ledger import LedgerInput, ledger
from sieve.validity.rules import Candidates, check

ROWS = 1_000_000


def test_rules_and_ledger_of_a_million_candidates() -> None:
    model = load_model("Qwen/Qwen3-235B-A22B-FP8", any_family=True)
    engine = load_engine("vllm")
    draw = np.random.default_rng(0)

    def column(values: list[float]) -> np.ndarray:
        return draw.choice(values, ROWS)

    tp, pp, dcp = column([1, 2, 4, 8, 16]), column([1, 2, 3, 4]), column([1, 2])
    ep = np.where(draw.random(ROWS) < 0.5, 1, tp)
    seqs, tokens = column([32, 64, 128, 256, 512]), column([2048, 8192, 16384])
    weights, length = column([1.0, 2.0]), np.full(ROWS, 32768)
    book = ledger(
        model,
        engine,
        LedgerInput(
            memory_bytes=column([48e9, 80e9, 141e9]), tp=tp, pp=pp, ep=ep, dcp=dcp,
            weight_bytes_per_param=weights, load_bytes_per_param=weights,
            kv_bytes_per_element=column([1.0, 2.0]), max_num_seqs=seqs,
            block_size=np.full(ROWS, 16), utilisation=np.full(ROWS, 0.9),
            max_num_batched_tokens=tokens, max_model_len=length,
        ),
    )  # fmt: skip
    found = check(
        Candidates(
            model=model, tp=tp, pp=pp, ep=ep, dcp=dcp, replicas=np.ones(ROWS, np.int64),
            max_num_seqs=seqs, max_num_batched_tokens=tokens, max_model_len=length,
            rates_known=np.ones(ROWS, np.bool_), compute_capability=np.full(ROWS, 9.0),
            needs_capability=np.full(ROWS, 8.9), gpus_per_node=8, max_gpus=64,
            nodes_per_replica=4, longest_request=1000, context_parallel="attention_and_state",
        ),
        engine.rules,
    )  # fmt: skip
    assert len(book.num_blocks) == len(found.reason) == ROWS
    assert {"", "node", "decode_context_parallel", "quant_blocks"} <= set(found.reason.tolist())
