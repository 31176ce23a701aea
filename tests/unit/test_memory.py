"""Memory ledgers computed by hand, and the reference counts of stages 1 and 2."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from sieve.api import prepare
from sieve.catalog.architecture import ModelArchitecture, MoeFacts
from sieve.catalog.engines import load_engine
from sieve.memory.ledger import Ledger, LedgerInput, ledger
from sieve.memory.weights import weight_bytes_per_gpu
from sieve.parallel import make_executor
from sieve.pipeline import Outcome, run_stages
from sieve.spec import load_spec

LLAMA_8B = ModelArchitecture(
    name="llama-8b", architecture="LlamaForCausalLM", num_hidden_layers=32, num_kv_layers=32,
    hidden_size=4096, num_attention_heads=32, num_key_value_heads=8, head_dim=128,
    intermediate_size=14336, ffn_projections=3, vocab_size=128256, tie_word_embeddings=False,
    max_position_embeddings=131072, moe=None, params=8_030_261_248, active_params=8_030_261_248,
)  # fmt: skip
MIXTRAL = replace(
    LLAMA_8B, name="mixtral", architecture="MixtralForCausalLM", vocab_size=32000,
    moe=MoeFacts(8, 2, 14336), params=46_702_792_704, active_params=12_879_425_536,
)  # fmt: skip
GIB = 2**30
GOLDEN = Path(__file__).parents[1] / "golden" / "seed_values.json"


def weights(model: ModelArchitecture, tp: int, pp: int, size: float) -> float:
    (found,) = weight_bytes_per_gpu(
        model, tp=np.array([tp]), pp=np.array([pp]), bytes_per_param=np.array([size])
    )
    return float(found)


def book(model: ModelArchitecture, engine: str = "vllm==0.33", **changes: Any) -> Ledger:
    values: dict[str, Any] = {
        "memory_bytes": 80.0 * GIB, "tp": 1, "pp": 1, "weight_bytes_per_param": 2.0,
        "load_bytes_per_param": 2.0, "kv_bytes_per_element": 2.0, "max_num_seqs": 256,
        "block_size": 16, "utilisation": 0.9,
    }  # fmt: skip
    values |= changes
    columns = {name: np.array([value]) for name, value in values.items()}
    return ledger(model, load_engine(engine), LedgerInput(**columns))


def test_a_dense_model_on_one_gpu() -> None:
    attention = 2 * 4096 * 4096 + 2 * 4096 * 1024  # Q and O, K and V of 8 heads
    feed_forward = 3 * 4096 * 14336
    layers = 32 * (attention + feed_forward + 2 * 4096)
    assert layers + 2 * 128256 * 4096 + 4096 == 8_030_261_248  # the published parameter count
    assert weights(LLAMA_8B, 1, 1, 2.0) == 2 * 8_030_261_248


def test_a_dense_model_split_over_eight() -> None:
    # One of 4 ranks: a quarter of Q, O and the feed-forward block, two KV heads; norms whole at 2.
    linear = 2 * 4096 * 4096 // 4 + 2 * 4096 * 2 * 128 + 3 * 4096 * 14336 // 4
    embedding = 128256 * 4096 * 2 // 4  # first and last stage hold one matrix each
    # The last stage is the fullest: it has the final norm too.
    assert weights(LLAMA_8B, 4, 2, 1.0) == 16 * (linear * 1 + 8192 * 2) + embedding + 2 * 4096
    assert weights(LLAMA_8B, 4, 2, 1.0) == 1_135_353_856


def test_kv_projections_are_replicated_beyond_the_heads() -> None:
    even = replace(LLAMA_8B, vocab_size=2**17)  # no rests for the allocator to keep
    at_8, at_16 = weights(even, 8, 1, 2.0), weights(even, 16, 1, 2.0)
    kv_head = 2 * 32 * 2 * 4096 * 128  # one KV head of 32 layers stays whole on each rank
    norms = 2 * (32 * 2 + 1) * 4096
    assert at_16 - kv_head - norms == pytest.approx((at_8 - kv_head - norms) / 2)


def test_tied_embeddings_count_once_on_one_stage() -> None:
    tied = replace(LLAMA_8B, tie_word_embeddings=True)
    matrix = 128256 * 4096 * 2
    assert weights(LLAMA_8B, 1, 1, 2.0) - weights(tied, 1, 1, 2.0) == matrix
    assert weights(LLAMA_8B, 1, 2, 2.0) == weights(tied, 1, 2, 2.0)


def test_experts() -> None:
    # TP 2: half of Q and O, four KV heads, half of eight experts; norms and router whole.
    linear = 4096 * 4096 + 2 * 4096 * 512 + 3 * 4096 * 8 * 14336 // 2
    plain = 2 * 4096 + 4096 * 8
    # Half of an embedding has 125 MiB; of its segment of 126 MiB the allocator keeps the rest.
    ends = 2 * 126 * 2**20 + 2 * 4096
    assert weights(MIXTRAL, 2, 1, 2.0) == 32 * 2 * (linear + plain) + ends
    assert weights(MIXTRAL, 2, 1, 2.0) == 46_706_204_672


def test_inline_facts_are_split_evenly() -> None:
    plain = replace(LLAMA_8B, intermediate_size=None, vocab_size=None, params=27e9)
    assert weights(plain, 4, 2, 1.0) == 27e9 / 8


def test_the_engine_ledger_of_a_dense_model() -> None:
    found = book(LLAMA_8B)
    # activations: a base, sorted logits, hidden states of the engine's least token budget
    reserved = 128_849_019 + 14 * 256 * 128_256 + 2048 * 4096 * 2
    reserved += 268_435_456  # one GPU's context
    reserved += 51 * 32 * 597_688  # graphs: 51 sizes up to 512, 32 layers
    assert found.budget_bytes == pytest.approx(0.9 * 80 * GIB)
    assert found.reserved_bytes == reserved == 1_849_158_011
    left = 0.9 * 80 * GIB - 16_060_522_496 - reserved
    assert found.kv_bytes == pytest.approx(left)
    assert found.block_bytes == 16 * 2 * 32 * 8 * 128 * 2 == 2 * 2**20
    # 59,399,730,629 / 2,097,152 = 28,324.0; one block is the engine's own
    assert found.num_blocks == int(left // 2**21) - 1 == 28_322
    assert not found.weights_overflow


def test_the_engine_ledger_of_experts_on_two_gpus() -> None:
    found = book(MIXTRAL, tp=2, kv_bytes_per_element=1.0, max_num_seqs=64)
    # The trial forward pass is larger than the sampler: two experts' gate, up and product.
    forward = 128_849_019 + 2 * 2048 * (2 * 4096 + 2 * 3 * 14336 / 2)
    sampler = 128_849_019 + 14 * 64 * 32_000 + 2 * 2048 * 4096 + 214_748_365
    reserved = max(forward, sampler) + 2_254_857_830
    reserved += 19 * 32 * 597_688  # sizes 1, 2, 4 and the multiples of 8 up to 128
    assert found.reserved_bytes == pytest.approx(reserved)
    left = 0.9 * 80 * GIB - 46_706_204_672 - reserved
    assert found.block_bytes == 16 * 2 * 32 * 4 * 128
    assert found.num_blocks == int(left // (16 * 2 * 32 * 4 * 128)) - 1


def test_weights_alone_may_not_exceed_the_budget() -> None:
    found = book(MIXTRAL)
    assert found.weights_overflow.tolist() == [True]
    assert found.num_blocks.tolist() == [0]
    assert book(LLAMA_8B, memory_bytes=12e9, weight_bytes_per_param=1.0).weights_overflow.all()
    resident = {"weight_bytes_per_param": 1.0, "load_bytes_per_param": 1.0}
    assert not book(LLAMA_8B, memory_bytes=12e9, **resident).weights_overflow.any()


def test_the_plain_ledger_keeps_a_percent_of_pages() -> None:
    plain = replace(
        LLAMA_8B, params=27e9, num_kv_layers=16, num_key_value_heads=4, head_dim=256,
        intermediate_size=None, vocab_size=None,
    )  # fmt: skip
    found = book(
        plain, "reference", memory_bytes=80e9, tp=2, kv_bytes_per_element=1.0,
        load_bytes_per_param=1.0, weight_bytes_per_param=1.0,
    )  # fmt: skip
    # (72e9 - 13.5e9) / 262,144 = 223,159; 2,232 are kept back
    assert found.num_blocks.tolist() == [220_927]
    assert found.block_bytes.tolist() == [262_144]


def reference_outcome(spec: dict[str, Any], *overrides: str) -> tuple[pl.DataFrame, Outcome]:
    context, grid = prepare(load_spec(spec, overrides=overrides), make_executor("local"))
    return grid.candidates, run_stages(grid.candidates, context, stop_after=2)


def test_reference_counts(reference_spec: dict[str, Any]) -> None:
    candidates, outcome = reference_outcome(reference_spec)
    assert len(candidates) == 11_520
    first, second = outcome.stages
    assert first["reasons"] == {"node": 2880, "gpu_budget": 720}
    assert (first["num_in"], first["num_admitted"], first["num_rejected"]) == (11_520, 7_920, 3_600)
    assert second["reasons"] == {"weights_overflow": 80}
    assert (second["num_admitted"], second["num_rejected"]) == (7_840, 80)
    lost = outcome.rejected.filter(pl.col("stage") == 2)
    assert lost.group_by("gpu", "tp", "pp", "weight_dtype").len().sort("weight_dtype").rows() == [
        ("L40S", 1, 1, "bf16", 40),
        ("L40S", 1, 1, "int8", 40),
    ]
    # 2 bytes x 27e9 against 0.9 x 45e9
    assert lost.select("observed", "limit").unique().rows() == [(54e9, 40.5e9)]
    assert set(outcome.rejected["kind"]) == {"infeasible"}


def test_reference_counts_with_resident_bytes(reference_spec: dict[str, Any]) -> None:
    _, outcome = reference_outcome(reference_spec, "load_bytes=resident")
    second = outcome.stages[1]
    assert (second["reasons"], second["num_admitted"]) == ({"weights_overflow": 40}, 7_880)
    lost = outcome.rejected.filter(pl.col("stage") == 2)
    assert lost.select("gpu", "tp", "pp", "weight_dtype").unique().rows() == [
        ("L40S", 1, 1, "bf16")
    ]


GRIDS = [
    case
    for case in json.loads(GOLDEN.read_text(encoding="utf-8"))["cases"]
    if case["function"] == "sizing.grid"
]


@pytest.mark.parametrize("case", GRIDS, ids=[case["id"] for case in GRIDS])
def test_golden_grids(case: dict[str, Any], reference_spec: dict[str, Any]) -> None:
    given, expected = case["inputs"]["grid"], case["expected"]
    axes = given["axes"]
    formats = {1: "fp8", 2: "bfloat16"}
    grid = {
        "engine": "reference",
        "model": {"name": "golden", **given["model"]},
        "fleet": {"max_gpus": given["gpu_budget"], "gpus_per_node": given["node_gpus"]},
        "axes": {
            "gpu": [{**gpu, "like": "H100-SXM-80GB"} for gpu in axes["gpu"]],
            **{name: axes[name] for name in ("tp", "pp", "replicas")},
            "weight_dtype": axes["weight_precision"],
            "kv_cache_dtype": [formats[f["bytes"]] for f in axes["kv_format"]],
            "max_num_batched_tokens": axes["token_budget"],
            "max_num_seqs": axes["max_num_seqs"],
        },
    }
    charged = "peak" if given["use_load_bytes"] else "resident"
    candidates, outcome = reference_outcome({**reference_spec, "grid": grid, "load_bytes": charged})
    first, second = outcome.stages
    lost = outcome.rejected.filter(pl.col("stage") == 2)
    where = lost.group_by(pl.concat_str("gpu", "weight_dtype", separator="/")).len()
    found = {
        "total": len(candidates),
        "stage1_removed": first["num_rejected"],
        "after_stage1": first["num_admitted"],
        "stage1_reasons": first["reasons"],
        "stage2_removed": second["num_rejected"],
        "after_stage2": second["num_admitted"],
        "stage2_reasons": second["reasons"],
        "stage2_where": dict(where.iter_rows()),
    }
    assert found == {key: found[key] for key in found} | expected
