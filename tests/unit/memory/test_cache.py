"""Cache layouts against start-up logs of hybrid models, and by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sieve.catalog.architecture import LayerKind, ModelArchitecture
from sieve.catalog.models import load_model
from sieve.memory.cache import (
    CacheLayout,
    blocks_per_request,
    cache_layouts,
    growing_tokens,
    state_bytes,
)

GIB = 2**30
FULL = LayerKind("full", num_attention_heads=8, num_key_value_heads=2, head_dim=64, v_head_dim=64)
WINDOW = replace(FULL, kind="window", window_tokens=128)


def layouts(name: str | ModelArchitecture, **changes: Any) -> tuple[CacheLayout, ...]:
    model = load_model(name, any_family=True) if isinstance(name, str) else name
    values: dict[str, Any] = {
        "tp": 1, "pp": 1, "kv_bytes": 2.0, "block_size": 16, "kv_dtype": "auto", "rules": {},
    }  # fmt: skip
    values |= changes
    values["rules"] = tuple(sorted(values["rules"].items()))
    return cache_layouts(model, **values)


def needed(layout: CacheLayout, tokens: int, in_flight: int = 8192) -> int:
    return int(blocks_per_request(layout, np.array([tokens]), np.array([in_flight]))[0])


def layered(*kinds: tuple[LayerKind, int]) -> ModelArchitecture:
    order = [place for place, (_, count) in enumerate(kinds) for _ in range(count)]
    base = load_model("openai/gpt-oss-20b", any_family=True)
    return replace(
        base, num_hidden_layers=len(order), kinds=tuple(kind for kind, _ in kinds),
        layer_kinds=tuple(order), layer_ffns=("dense",) * len(order),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("model", "tp", "kv_bytes", "held", "cache_gib", "length", "block", "tokens", "concurrency"),
    [
        # vLLM 0.10.2 on two H200: state page padded 1.49 %, 14.77 requests
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", 2, 2.0, 1, 44.59, 262_144, 544, 973_760, 14.77),
        # vLLM 0.17.0: 2.43 by division, 8.00 by the engine
        ("Qwen/Qwen3.5-35B-A3B", 1, 1.0, 2, 6.08, 65_536, 2_096, 159_296, 8.00),
        ("Qwen/Qwen3.5-35B-A3B", 1, 1.0, 2, 5.69, 32_768, 2_096, 148_816, 12.91),
    ],
)
def test_logs_of_hybrid_models(
    model: str, tp: int, kv_bytes: float, held: int, cache_gib: float, length: int, block: int,
    tokens: int, concurrency: float,
) -> None:  # fmt: skip
    (layout,) = layouts(model, tp=tp, kv_bytes=kv_bytes, rules={"state_blocks": held})
    blocks = cache_gib * GIB // layout.block_bytes
    assert layout.block_tokens == block
    assert growing_tokens(layout, np.array([blocks])).tolist() == [tokens]
    assert blocks / needed(layout, length) == pytest.approx(concurrency, abs=0.005)


def test_the_state_of_qwen3_next_by_hand() -> None:
    model = load_model("Qwen/Qwen3-Next-80B-A3B-Instruct", any_family=True)
    state = next(kind.state for kind in model.kinds if kind.state)
    # TP 2: 4,096 of 8,192 channels times three columns, 16 of 32 heads of 128 x 128, 16 bits
    assert state_bytes(state, 2) == 4096 * 3 * 2 + 16 * 128 * 128 * 2 == 548_864
    (layout,) = layouts(model, tp=2)
    # One KV head of two, 256 wide, K and V: 1,024 bytes a token; 536 tokens, rounded up to 544
    assert layout.block_bytes == 12 * 544 * 1024
    assert layout.padding == pytest.approx(0.0149, abs=1e-4)


def test_windows_of_another_page_size() -> None:
    # Windows: 16 KV heads of 256, 16 KiB a token; full: 4 heads of 512, 8 KiB: blocks twice as long
    (layout,) = layouts("google/gemma-4-31B-it")
    assert [(g.kind, g.groups, g.block_tokens) for g in layout.groups] == [
        ("full", 1, 32),
        ("window", 5, 16),
    ]
    assert layout.block_bytes == 10 * 16 * 16384
    # 262,144 / 32 full; 1,023 + 2,048 tokens are 192 blocks and one more
    assert needed(layout, 262_144, 2048) == 8192 + 5 * 193
    (blind,) = layouts("google/gemma-4-31B-it", rules={"windows": "uniform"})
    assert blind.token_bytes == 50 * 16384 + 10 * 8192
    assert needed(blind, 262_144) == 16_384


@pytest.mark.parametrize(
    ("windows", "full", "size", "groups"),
    [(12, 12, 12, 2), (50, 10, 10, 6), (12, 13, 13, 2), (29, 5, 5, 7), (18, 12, 12, 3)],
)
def test_groups(windows: int, full: int, size: int, groups: int) -> None:
    (layout,) = layouts(layered((WINDOW, windows), (FULL, full)))
    assert layout.num_groups == groups
    assert layout.block_bytes == size * 16 * 2 * 2 * 64 * 2


def test_windows_hold_no_more_than_they_see() -> None:
    (layout,) = layouts(layered((WINDOW, 12), (FULL, 12)))
    # 127 + 512 tokens in flight: 40 blocks and one more
    assert needed(layout, 100_000, 512) == 6250 + 41
    assert needed(layout, 32, 512) == 2 + 3
    chunk = replace(FULL, kind="chunk", window_tokens=8192)
    (local,) = layouts(layered((chunk, 12), (FULL, 12)))
    assert needed(local, 100_000, 512) == 6250 + (8192 + 512) // 16


def test_one_kind_of_windows() -> None:
    (layout,) = layouts("mistralai/Mistral-7B-v0.1")
    assert [(g.kind, g.groups, g.window_tokens) for g in layout.groups] == [("window", 1, 4096)]
    assert needed(layout, 32_768, 2048) == (4095 + 2048 + 15) // 16 + 1
    (blind,) = layouts("mistralai/Mistral-7B-v0.1", rules={"windows": "none"})
    assert needed(blind, 32_768) == 2048


def test_the_latent_is_whole_on_every_rank() -> None:
    (one,) = layouts("deepseek-ai/DeepSeek-V3", block_size=64)
    (eight,) = layouts("deepseek-ai/DeepSeek-V3", block_size=64, tp=8)
    assert one == eight
    assert one.token_bytes == 61 * (512 + 64) * 2
    (scaled,) = layouts("deepseek-ai/DeepSeek-V3.2", kv_dtype="fp8_ds_mla", kv_bytes=1.0)
    assert scaled.token_bytes == 61 * (656 + 132)  # and the indexer's keys
    (before,) = layouts("deepseek-ai/DeepSeek-V3", tp=8, rules={"latent": 0})
    assert before.token_bytes == 61 * 16 * 2 * 192 * 2


def test_kv_heads_are_copied_beyond_their_number() -> None:
    sizes = [layouts("Qwen/Qwen2.5-7B-Instruct", tp=tp)[0].token_bytes for tp in (1, 2, 4, 8)]
    assert sizes == [28 * 4 * 256 * 2, 28 * 2 * 256 * 2, 28 * 256 * 2, 28 * 256 * 2]


def test_formats_with_a_scale_for_each_token() -> None:
    (layout,) = layouts("Qwen/Qwen3-32B", kv_bytes=1.0, kv_dtype="fp8_per_token_head")
    assert layout.token_bytes == 64 * 8 * (2 * 128 + 2 * 4)


def test_layers_that_share_a_cache_store_nothing() -> None:
    model = load_model("google/gemma-4-E4B-it", any_family=True)
    assert model.num_kv_layers == 42 - 18
    (layout,) = layouts(model)
    (before,) = layouts(model, rules={"shared_layers": 0})
    assert needed(before, 131_072) * before.block_bytes > needed(layout, 131_072) * (
        layout.block_bytes
    )


def test_values_may_be_narrower_than_keys() -> None:
    kinds = load_model("XiaomiMiMo/MiMo-V2-Flash", any_family=True).kinds
    assert {(k.kind, k.num_key_value_heads, k.head_dim, k.v_head_dim) for k in kinds} == {
        ("full", 4, 192, 128),
        ("window", 8, 192, 128),
    }
    (layout,) = layouts("XiaomiMiMo/MiMo-V2-Flash")
    # 9 full and 39 window layers: five groups of windows, the full ones with longer blocks
    assert [(g.kind, g.groups, g.block_tokens) for g in layout.groups] == [
        ("full", 1, 32),
        ("window", 5, 16),
    ]


def test_compressed_attention_costs_little_for_a_token() -> None:
    (layout,) = layouts("deepseek-ai/DeepSeek-V4-Flash", kv_bytes=1.0)
    # 21 layers keep an entry of 512 and an index key of 132 for 4 tokens, 20 one entry for 128
    assert layout.token_bytes == pytest.approx(21 * (512 + 132) / 4 + 20 * 512 / 128)


def test_stages_have_their_own_layers() -> None:
    first, second = layouts("Qwen/Qwen3-Next-80B-A3B-Instruct", pp=2)
    assert first == second
    uneven = layouts("Qwen/Qwen3-14B", pp=3)
    assert [layout.block_bytes for layout in uneven] == [
        n * 16 * 8 * 2 * 128 * 2 for n in (13, 14, 13)
    ]
