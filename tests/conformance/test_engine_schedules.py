"""The replay against every recorded schedule of the real engine, decision by decision."""

from __future__ import annotations

from pathlib import Path

import pytest

from sieve.sim.scenario import read_recording
from sieve.verify.scheduler import FEATURES, check_recording, feature_of

FOLDER = Path(__file__).parent / "data" / "vllm_scheduler"
FILES = sorted(FOLDER.glob("*.jsonl.gz"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name.split(".")[0])
def test_replay_is_exact(path):
    outcome = check_recording(read_recording(path))
    assert outcome.failure is None
    assert outcome.steps > 0


def test_the_recordings_cover_every_feature_and_exercise_it():
    recordings = [read_recording(path) for path in FILES]
    assert {feature_of(r.scenario) for r in recordings} == set(FEATURES)
    steps = [step for r in recordings for step in r.steps]
    assert sum(len(step.get("preempted", ())) for step in steps) > 1000
    assert sum(map(bool, (hit for step in steps for hit in step.get("new", {}).values()))) > 500
    assert sum("drafts" in step for step in steps) > 500
    assert sum("free_queue" in step for step in steps) > 5000
