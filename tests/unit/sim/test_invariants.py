"""The laws of a replay: a sound one passes, and each breach is named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sieve.arrays import Requests
from sieve.invariants import checking
from sieve.sim.invariants import check_replay
from sieve.sim.replay import ReplaySettings, simulate

REQUESTS = Requests(
    arrival_s=np.array([0.0, 0.1, 0.2]),
    input_tokens=np.array([100, 50, 20]),
    output_tokens=np.array([5, 1, 9]),
)
SETTINGS = ReplaySettings(
    max_num_seqs=4, max_num_batched_tokens=256, num_gpu_blocks=100, block_size=16
)


@pytest.fixture
def result(tables: Any) -> Any:
    return simulate(REQUESTS, tables.affine(base=0.01, per_token=1e-4), SETTINGS)


def test_a_sound_replay_holds(result: Any) -> None:
    check_replay(REQUESTS, result, SETTINGS, replicas=1)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"finish_s": np.array([1.0, 1.0])}, "2 values of finish_s, 3 requests"),
        ({"finish_s": np.array([1.0, 0.5, np.nan])}, "1 requests of a whole replay"),
        ({"scheduled_s": np.array([-1.0, 0.1, 0.2])}, "1 requests run backwards"),
        ({"peak_blocks": 101}, "101 blocks, at most 100"),
        ({"peak_batch": 5}, "5 requests in an iteration, at most 4"),
        ({"peak_tokens": 257}, "257 tokens in an iteration, at most 256"),
        ({"peak_running": 5}, "5 running requests, at most 4"),
        ({"gaps": np.array([11])}, "11 gaps between tokens, the answers have 12"),
        ({"cached_tokens": np.array([0, 50, 0])}, "without its last token"),
        ({"num_request_steps": 14}, "14 request-iterations for 15 answered tokens"),
        ({"makespan_s": 99.0}, "another makespan"),
        ({"component_s": np.array([9.0, 0.0, 0.0, 0.0, 0.0])}, "9 s of work"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_each_breach_is_named(result: Any, change: dict[str, Any], named: str) -> None:
    with pytest.raises(AssertionError, match=named):
        check_replay(REQUESTS, replace(result, **change), SETTINGS, replicas=1)


def test_an_answer_of_one_token_ends_with_it(result: Any) -> None:
    late = result.finish_s.copy()
    late[1] += 0.5
    with pytest.raises(AssertionError, match="one token ends after"):
        check_replay(REQUESTS, replace(result, finish_s=late), SETTINGS, replicas=1)


def test_the_checks_are_switched_on_by_the_environment(
    tables: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breach(*_: Any) -> None:
        raise AssertionError("called")

    monkeypatch.setattr("sieve.sim.replay.check_replay", breach)
    table = tables.affine(base=0.01)
    for value in ("", "0"):
        monkeypatch.setenv("SIEVE_CHECK", value)
        assert not checking()
        simulate(REQUESTS, table, SETTINGS)
    monkeypatch.setenv("SIEVE_CHECK", "1")
    with pytest.raises(AssertionError, match="called"):
        simulate(REQUESTS, table, SETTINGS)
