"""Activations, graphs and buffers by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sieve.catalog.engines import load_engine
from sieve.catalog.models import load_model
from sieve.memory import reserves

GIB = 2**30
CONSTANTS = load_engine("vllm==0.19").ledger


@pytest.mark.parametrize(
    ("largest", "sizes"),
    [(1, 1), (2, 2), (4, 3), (8, 4), (128, 19), (248, 34), (256, 35), (272, 36), (512, 51)],
)
def test_sizes_of_graphs(largest: int, sizes: int) -> None:
    budget = np.array([largest])
    assert reserves.graph_sizes(np.array([1024]), budget).tolist() == [sizes]


def test_graphs_follow_the_sequences() -> None:
    found = reserves.graph_bytes(
        CONSTANTS, layers=np.full(3, 32.0), max_num_seqs=np.array([4, 1024, 1024]),
        max_num_batched_tokens=np.full(3, 8192), enforce_eager=np.array([False, False, True]),
    )  # fmt: skip
    assert found / GIB == pytest.approx([4 * 32 * 597688 / GIB, 0.91, 0.0], abs=0.01)


def sampler(name: str, seqs: int = 1024, tokens: int = 8192) -> float:
    model = load_model(name, any_family=True)
    found = reserves.sampler_bytes(
        model, CONSTANTS, max_num_seqs=np.array([seqs]), max_num_batched_tokens=np.array([tokens])
    )
    return float(found[0]) / GIB


@pytest.mark.parametrize(
    ("name", "logged"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", 1.89),
        ("Qwen/Qwen2.5-7B-Instruct", 2.21),
        ("Qwen/Qwen3-8B", 2.21),
        ("Qwen/Qwen2.5-72B-Instruct", 2.29),
        ("google/gemma-2-9b-it", 3.65),
        ("google/gemma-3-4b-it", 3.89),
        ("google/gemma-3-12b-it", 3.94),
        ("google/gemma-3-27b-it", 3.99),
    ],
)
def test_sampler_peaks_as_logged(name: str, logged: float) -> None:
    assert sampler(name) == pytest.approx(logged, abs=0.07)


def test_a_small_vocabulary_leaves_the_forward_pass() -> None:
    llama_7b = load_model("meta-llama/Llama-2-7b-hf")
    tokens, one = np.array([8192]), np.array([1])
    forward = reserves.forward_bytes(
        llama_7b, CONSTANTS, max_num_batched_tokens=tokens, tp=one, ep=one
    )
    # A model of this shape and a vocabulary of 32,016: 0.77 GiB in one log
    assert forward[0] / GIB == pytest.approx(0.77, abs=0.03)
    assert forward[0] / GIB > sampler("meta-llama/Llama-2-7b-hf")


def test_a_smaller_shard_has_smaller_activations() -> None:
    model = replace(load_model("mistralai/Mixtral-8x7B-v0.1"))
    tokens = np.full(3, 8192)
    sliced = reserves.forward_bytes(
        model, CONSTANTS, max_num_batched_tokens=tokens, tp=np.array([1, 8, 8]),
        ep=np.array([1, 1, 8]),
    )  # fmt: skip
    assert sliced[1] < sliced[0]
    assert sliced[2] == sliced[0]  # whole experts
