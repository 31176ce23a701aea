"""Stage 5: one replay for candidates that run alike, and what it says of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import polars as pl
import pytest

import sieve
from sieve.sim import alike

Make = Callable[..., dict[str, Any]]


@pytest.fixture
def seats(make_spec: Make) -> dict[str, Any]:
    """Candidates whose limits lie below, at and far above what this light traffic reaches."""
    return make_spec(
        {
            "grid.axes.tp": [1, 2],
            "grid.axes.max_num_seqs": [1, 4, 64, 256],
            "grid.axes.max_num_batched_tokens": [512, 2048, 8192],
            "shortlist": {"exhaustive_below": 1000},
        }
    )


def test_a_shared_replay_gives_the_rows_of_separate_ones(seats, monkeypatch):
    shared = sieve.run(seats).simulations
    monkeypatch.setattr(alike, "runs_alike", lambda ran, _result, other, *_rest: ran == other)
    alone = sieve.run(seats).simulations
    assert shared.drop("replay_of").equals(alone.drop("replay_of"))
    assert (alone["replay_of"] == alone["candidate_id"]).all()
    assert shared["replay_of"].n_unique() < alone["replay_of"].n_unique() / 2


def test_a_replay_is_of_a_candidate_that_was_replayed_itself(seats):
    result = sieve.run(seats)
    rows = result.simulations
    own = rows.filter(pl.col("replay_of") == pl.col("candidate_id")).select("level", "replay_of")
    assert rows.join(own, on=["level", "replay_of"], how="anti").is_empty()
    # One seat always binds: it never stands for more seats, nor they for it.
    ids = rows.filter(pl.col("candidate_id").str.contains(".s1.", literal=True))["replay_of"]
    assert ids.str.contains(".s1.", literal=True).all()
    entries = {e["candidate_id"]: e["replay_of"] for e in result.data["ranking"]}
    at_one = rows.filter(level=1.0).select("candidate_id", "replay_of")
    assert all(entries[one] == of for one, of in at_one.rows() if one in entries)


def test_progress_counts_every_candidate(seats):
    seen = []
    result = sieve.run(seats, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (len(result.simulations), len(result.simulations))
    assert sorted(seen) == seen


def test_events_tell_how_far_the_replays_are(seats, tmp_path):
    result = sieve.run(seats, out=tmp_path / "run")
    lines = (tmp_path / "run" / "events.jsonl").read_text().splitlines()
    notes = [e for e in map(json.loads, lines) if e["event"] == "progress"]
    total = len(result.simulations)
    last = {key: notes[-1][key] for key in ("stage", "done", "total", "left_s")}
    assert last == {"stage": 5, "done": total, "total": total, "left_s": 0.0}
    assert notes[-1]["per_s"] > 0
    # At most one a second, and the last.
    assert len(notes) <= 2 + result.data["elapsed_s"]
