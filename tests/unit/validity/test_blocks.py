"""Shards of quantised matrices."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sieve.catalog.models import load_model
from sieve.fit_of import check, configure
from sieve.validity.blocks import block_faults
from sieve.validity.capability import least_capability


def names(model: str, tp: int, ep: int = 1) -> dict[str, int]:
    found = block_faults(load_model(model, any_family=True), tp=tp, ep=ep)
    return {fault.tensor: fault.shard for fault in found}


def test_every_matrix_at_fault_is_named() -> None:
    found = names("Qwen/Qwen3-30B-A3B-FP8", 8)
    assert found == {"mlp.experts.w13_weight": 96, "mlp.experts.w2_weight": 96}
    assert names("Qwen/Qwen3-30B-A3B-FP8", 8, ep=8) == {}
    assert names("Qwen/Qwen3-30B-A3B", 8) == {}


def test_the_last_of_merged_outputs_may_be_ragged() -> None:
    # Query and key-value down-projection in one: 1,536 and 576
    assert names("deepseek-ai/DeepSeek-V3", 1) == {}
    assert names("deepseek-ai/DeepSeek-V3", 8) == {}


def test_parts_left_in_16_bits_have_no_blocks() -> None:
    model = load_model("Qwen/Qwen3-235B-A22B-FP8")
    assert block_faults(model, tp=8)
    plain = replace(model, unquantised=("experts",))
    assert not block_faults(plain, tp=8)


def test_groups_of_integer_formats() -> None:
    model = replace(load_model("Qwen/Qwen2.5-72B-Instruct-AWQ"), quant_group=128)
    assert {f.tensor: f.shard for f in block_faults(model, tp=8)} == {"mlp.down_proj": 3696}
    assert not block_faults(model, tp=1)
    found = check(configure("Qwen/Qwen2.5-72B-Instruct-AWQ", "H100-SXM-80GB", tp=8))
    assert found.ok  # the size of the groups is not stated
    assert any("29568 / 8 = 3696" in note for note in found.notes)


@pytest.mark.parametrize(
    ("weights", "cache", "least"),
    [
        ("bf16", "auto", 8.0), ("fp16", "auto", 7.0), ("int4", "fp8_e4m3", 8.9),
        ("nvfp4", "nvfp4", 10.0), ("unheard-of", "auto", 0.0),
    ],
)  # fmt: skip
def test_least_capability(weights: str, cache: str, least: float) -> None:
    assert least_capability(weights, cache) == least
