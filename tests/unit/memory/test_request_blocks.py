"""Blocks of a request in caches of several kinds of layers, derived from the layer counts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sieve.catalog.engines import load_engine
from sieve.catalog.models import load_model
from sieve.memory.cache import cache_groups, cache_layouts
from sieve.memory.ledger import (
    LedgerInput,
    has_one_kind,
    ledger,
    longest_request,
    request_blocks,
)


def given(n, budget=2048):
    one = np.ones(n, np.int64)
    return LedgerInput(
        memory_bytes=one * 80e9, tp=one, pp=one, weight_bytes_per_param=one * 2.0,
        load_bytes_per_param=one * 2.0, kv_bytes_per_element=one * 2.0, max_num_seqs=one * 64,
        block_size=one * 16, utilisation=one * 0.9, max_num_batched_tokens=one * budget,
    )  # fmt: skip


def family(name):
    return load_model(name, any_family=True), load_engine("vllm==0.33")


def test_one_kind_of_layers_needs_a_block_for_every_sixteen_tokens():
    model, engine = family("Qwen/Qwen3-8B")
    assert has_one_kind(model)
    tokens = np.array([1, 16, 17, 1000])
    assert request_blocks(model, engine, given(4), tokens).tolist() == [1, 1, 2, 63]


def test_half_the_layers_in_a_window():
    """gpt-oss-120b: 18 full layers and 18 with a window of 128 tokens: two groups.

    The full group holds 63 blocks for 1,000 tokens, 625 for 10,000. That of the window holds what
    it sees and two batches of 2,048 tokens in flight, at most all tokens, and one block more.
    """
    model, engine = family("openai/gpt-oss-120b")
    assert not has_one_kind(model)
    windowed = -(-(127 + 2 * 2048) // 16) + 1
    tokens = np.array([1000, 10_000])
    expected = [63 + 63 + 1, 625 + windowed]
    assert request_blocks(model, engine, given(2), tokens).tolist() == expected


def test_the_ledger_asks_the_blocks_of_a_request_of_full_length():
    """As above, through the ledger: the largest length decides, two batches are in flight."""
    model, engine = family("openai/gpt-oss-120b")
    rows = replace(given(1), max_model_len=np.array([10_000]))
    windowed = -(-(127 + 2 * 2048) // 16) + 1
    assert ledger(model, engine, rows).blocks_per_request.tolist() == [625 + windowed]


def test_the_longest_request_is_the_last_that_fits():
    model, engine = family("openai/gpt-oss-120b")
    rows = given(3)
    limit = np.full(3, 131_072)
    blocks = np.array([100, 900, 10**6])
    longest = longest_request(model, engine, rows, blocks, limit)
    assert (request_blocks(model, engine, rows, longest) <= blocks).all()
    more = request_blocks(model, engine, rows, longest + 1) > blocks
    assert more.tolist() == [True, True, False]
    assert longest[2] == 131_072


@pytest.mark.parametrize(
    ("name", "windows", "states"),
    [("openai/gpt-oss-120b", 1, 0), ("google/gemma-3-27b-it", 6, 0)],
)
def test_groups_as_the_replay_takes_them(name, windows, states):
    model, engine = family(name)
    (layout,) = cache_layouts(
        model, tp=1, pp=1, kv_bytes=2.0, block_size=16, kv_dtype="",
        rules=tuple(sorted(engine.cache.items())),
    )  # fmt: skip
    groups = cache_groups(layout)
    assert sum(window > 0 for window, _, _ in groups) == windows
    assert sum(fixed > 0 for _, _, fixed in groups) == states
    assert len(groups) == layout.num_groups
