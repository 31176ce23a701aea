"""Pipeline stages that differ: embedding, head and a rest of layers, by hand on a small model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sieve.catalog.accelerators import load_gpu
from sieve.catalog.architecture import ModelArchitecture
from sieve.catalog.engines import load_engine
from sieve.errors import InvalidInput
from sieve.fit_of import configure, fit
from sieve.memory.cache import cache_layouts
from sieve.memory.ledger import LedgerInput, ledger
from sieve.memory.weights import stage_weight_bytes

# Every matrix is below 10 MiB, so the allocator adds nothing.
SMALL = ModelArchitecture(
    name="small", architecture="LlamaForCausalLM", num_hidden_layers=7, num_kv_layers=7,
    hidden_size=512, num_attention_heads=8, num_key_value_heads=4, head_dim=64,
    intermediate_size=1024, ffn_projections=3, vocab_size=4096, tie_word_embeddings=False,
    max_position_embeddings=2048, moe=None, params=20.7e6, active_params=20.7e6,
)  # fmt: skip
# QKV (8 + 4 + 4 heads of 64), output, gate, up, down, two norms; 2 bytes each.
LAYER = 2 * (512 * 16 * 64 + 512 * 512 + 3 * 512 * 1024 + 2 * 512)
TABLE = 2 * 4096 * 512  # the embedding, and the head
NORM = 2 * 512
KV_BLOCK = 16 * 2 * 4 * 64 * 2  # of one layer: 16 tokens, K and V, 4 heads, 64 numbers, 2 bytes


def weights(pp: int, partition: tuple[int, ...] = (), tp: int = 1) -> tuple[float, ...]:
    return stage_weight_bytes(SMALL, tp=tp, pp=pp, linear=2.0, expert=2.0, partition=partition)


def test_the_embedding_is_on_the_first_stage_and_the_head_on_the_last() -> None:
    # 7 layers on 3 stages: 2, 3, 2.
    assert weights(3) == (2 * LAYER + TABLE, 3 * LAYER, 2 * LAYER + TABLE + NORM)
    assert weights(1) == (7 * LAYER + 2 * TABLE + NORM,)
    assert weights(2) == (4 * LAYER + TABLE, 3 * LAYER + TABLE + NORM)


def test_tensor_ranks_split_each_stage() -> None:
    half = LAYER / 2 + NORM  # the two norms of a layer stay whole
    assert weights(3, tp=2) == (
        2 * half + TABLE / 2,
        3 * half,
        2 * half + TABLE / 2 + NORM,
    )


def test_layers_by_hand() -> None:
    assert weights(3, (1, 1, 5)) == (LAYER + TABLE, LAYER, 5 * LAYER + TABLE + NORM)
    layouts = cache_layouts(
        SMALL, tp=1, pp=3, kv_bytes=2.0, block_size=16, kv_dtype="auto", rules=(),
        partition=(1, 1, 5),
    )  # fmt: skip
    assert [layout.block_bytes for layout in layouts] == [KV_BLOCK, KV_BLOCK, 5 * KV_BLOCK]


def book(**changes: Any) -> Any:
    values: dict[str, Any] = {
        "memory_bytes": 8e9, "tp": 1, "pp": 3, "weight_bytes_per_param": 2.0,
        "load_bytes_per_param": 2.0, "kv_bytes_per_element": 2.0, "max_num_seqs": 64,
        "block_size": 16, "utilisation": 0.9, "max_num_batched_tokens": 2048,
    }  # fmt: skip
    given = {k: v if k == "partition" else np.array([v]) for k, v in (values | changes).items()}
    return ledger(SMALL, load_engine("vllm"), LedgerInput(**given))


def test_the_stage_with_the_most_layers_has_the_fewest_blocks() -> None:
    found = book()
    assert found.stage[0] == 1
    assert found.weight_bytes[0] == 3 * LAYER
    assert found.block_bytes[0] == 3 * KV_BLOCK
    # What is left of 7.2 GB beside three layers and the reserves, in blocks; one is the engine's.
    left = 0.9 * 8e9 - 3 * LAYER - found.reserved_bytes[0]
    assert found.num_blocks[0] == left // (3 * KV_BLOCK) - 1


def test_a_wide_sampler_can_make_the_last_stage_the_tightest() -> None:
    # 8,192 sequences x 4,096 tokens of vocabulary x 14 bytes are 470 MB, on the last stage alone.
    found = book(max_num_seqs=8192, max_num_batched_tokens=8192, memory_bytes=4e9)
    assert found.stage[0] == 2
    assert found.weight_bytes[0] == 2 * LAYER + TABLE + NORM
    assert found.block_bytes[0] == 2 * KV_BLOCK


def test_weights_that_overflow_on_any_stage_are_told() -> None:
    # 13.6 MB on the first stage, 14.2 MB on the second; the budget lies between.
    found = book(memory_bytes=(3 * LAYER - 1) / 0.9)
    assert found.weights_overflow[0]
    assert not book(memory_bytes=(3 * LAYER + 1) / 0.9).weights_overflow[0]


def test_a_partition_holds_only_where_it_has_as_many_parts() -> None:
    uneven, even = book(partition=(1, 1, 5)), book(partition=(2, 5))
    assert (uneven.stage[0], uneven.block_bytes[0]) == (2, 5 * KV_BLOCK)
    assert even.block_bytes[0] == 3 * KV_BLOCK


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"pp": 2, "pp_layer_partition": (1, 1, 5)}, "has 3 parts for pp 2"),
        ({"pp": 3, "pp_layer_partition": (1, 1, 4)}, "holds 6 layers; small has 7"),
        ({"pp": 3, "pp_layer_partition": (0, 2, 5)}, "at least one on each stage"),
        ({"pp": 3, "pp_layer_partition": (1, 1, 5), "engine": "reference"}, "divide layers evenly"),
    ],
)
def test_partitions_that_the_engine_refuses(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        configure(SMALL, "h100-sxm", **options)


def test_fit_judges_each_stage_of_a_partition() -> None:
    # Qwen3-Coder-30B-A3B has 48 layers; 16 and 32 of them hold blocks of one to two.
    found = fit(
        configure(
            "Qwen/Qwen3-30B-A3B", "h100-sxm", pp=2, pp_layer_partition=(16, 32), max_model_len=8192
        )
    )
    first, last = found.stages
    assert last.block_bytes == 2 * first.block_bytes == 32 * 16 * 2 * 4 * 128 * 2
    assert found.stages[found.decides].stage == 1
    assert found.num_blocks == last.num_blocks < first.num_blocks
    assert any("stages hold 16, 32 layers" in note for note in found.notes)
    assert found.budget_bytes == 0.92 * load_gpu("h100-sxm").memory_bytes
