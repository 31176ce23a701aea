"""Prompts that are not cut: one of exactly the token budget is read in one iteration."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sieve.arrays import LockStep, Requests
from sieve.sim.replay import ReplaySettings, simulate

LIMITS = ReplaySettings(
    max_num_seqs=8,
    max_num_batched_tokens=16,
    num_gpu_blocks=60,
    block_size=4,
    chunked_prefill=False,
)


def ranks(tables: Any) -> Any:
    """Two data-parallel ranks whose iterations take a second."""
    table = tables.affine(base=1.0)
    tokens = len(table.token_s)
    step = LockStep(2, np.zeros(tokens), np.zeros(2 * tokens), np.arange(9), 0.0)
    return replace(table, lock_step=step)


@pytest.mark.parametrize("kind", ["events", "steps", "pipeline", "ranks"])
def test_a_prompt_of_the_whole_budget_is_read_at_once(tables: Any, kind: str) -> None:
    table = ranks(tables) if kind == "ranks" else tables.affine(base=1.0)
    limits = replace(
        LIMITS, macro_steps=kind != "steps", pipeline_stages=2 if kind == "pipeline" else 1
    )
    requests = Requests(np.array([0.0, 10.0, 20.0]), np.array([15, 16, 16]), np.array([2, 2, 2]))
    found = simulate(requests, table, limits)
    assert (found.first_token_s - found.arrival_s).tolist() == [1.0, 1.0, 1.0]
    assert (found.finish_s - found.arrival_s).tolist() == [2.0, 2.0, 2.0]


@pytest.mark.parametrize("kind", ["events", "steps", "ranks"])
def test_of_two_that_exceed_the_budget_together_one_waits(tables: Any, kind: str) -> None:
    table = ranks(tables) if kind == "ranks" else tables.affine(base=1.0)
    limits = replace(LIMITS, macro_steps=kind != "steps")
    n = 4 if kind == "ranks" else 2  # each rank gets every other request
    requests = Requests(np.zeros(n), np.full(n, 9), np.full(n, 1))
    found = simulate(requests, table, limits)
    assert sorted(found.first_token_s.tolist()) == [1.0] * (n // 2) + [2.0] * (n // 2)
