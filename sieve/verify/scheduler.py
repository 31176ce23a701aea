"""Recorded schedules of a real engine against the replay, decision by decision."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sieve.errors import TraceError
from sieve.sim._kernels.layout import RECORD_TABLES, RECORD_TURNS
from sieve.sim.recorded import step_records, summary_record
from sieve.sim.scenario import Recording, Scenario, read_recording
from sieve.sim.scenario_input import replay_scenario

SUFFIXES: Final = (".jsonl", ".jsonl.gz")
"""Files of a folder that are read as recordings."""

MISSING: Final = "(absent)"

_IN_ORDER: Final = frozenset({"scheduled", "new", "resumed", "finished"})
"""Mappings whose order is a decision too."""

_UNSTATED_WHEN_IDLE: Final = frozenset({"free_end", "n_running", "n_waiting", "free_queue"})


@dataclass(frozen=True)
class Failure:
    """The first difference of a scenario.

    Attributes:
        scenario: its name.
        step: number of the turn, or None for the summary.
        field: key of the record, with the request's id for the summary's requests.
        expected: what the engine did.
        got: what the replay did.
    """

    scenario: str
    step: int | None
    field: str
    expected: Any
    got: Any

    def as_dict(self) -> dict[str, Any]:
        """Return the failure as a mapping for JSON."""
        return {
            "scenario": self.scenario,
            "step": self.step,
            "field": self.field,
            "expected": self.expected,
            "got": self.got,
        }


@dataclass(frozen=True)
class Outcome:
    """One scenario held against the replay.

    Attributes:
        scenario: its name.
        feature: what it exercises most, one of `FEATURES`.
        vllm_version: the engine that made the recording.
        steps: recorded turns.
        failure: the first difference; None if the replay is exact.
    """

    scenario: str
    feature: str
    vllm_version: str
    steps: int
    failure: Failure | None


@dataclass(frozen=True)
class SchedulerReport:
    """All scenarios of a file or folder, in the order of their names."""

    outcomes: tuple[Outcome, ...]

    @property
    def failures(self) -> tuple[Failure, ...]:
        """The first difference of each scenario that is not exact."""
        return tuple(o.failure for o in self.outcomes if o.failure is not None)

    @property
    def num_exact(self) -> int:
        """Scenarios without any difference."""
        return len(self.outcomes) - len(self.failures)

    @property
    def num_steps(self) -> int:
        """Turns of all recordings."""
        return sum(outcome.steps for outcome in self.outcomes)

    def as_dict(self) -> dict[str, Any]:
        """Return the report as a mapping for JSON."""
        return {
            "scenarios": len(self.outcomes),
            "exact": self.num_exact,
            "steps": self.num_steps,
            "failures": [failure.as_dict() for failure in self.failures],
        }

    def by_feature(self) -> list[tuple[str, int, int, int]]:
        """Return (feature, scenarios, exact, steps) of the features that occur."""
        rows = []
        for feature in FEATURES:
            chosen = [o for o in self.outcomes if o.feature == feature]
            if chosen:
                exact = sum(o.failure is None for o in chosen)
                rows.append((feature, len(chosen), exact, sum(o.steps for o in chosen)))
        return rows


FEATURES: Final = (
    "basic", "prefix caching", "priority", "asynchronous", "pipeline", "speculative", "hybrid",
)  # fmt: skip


def feature_of(scenario: Scenario) -> str:
    """Return what the scenario exercises most, the rarest feature first."""
    config = scenario.config
    if len(config.groups) > 1 or config.groups[0].type != "full":
        return "hybrid"
    if config.speculative is not None:
        return "speculative"
    if config.pipeline_parallel_size > 1:
        return "pipeline"
    if config.async_scheduling:
        return "asynchronous"
    if config.policy == "priority":
        return "priority"
    return "prefix caching" if config.enable_prefix_caching else "basic"


def verify_schedules(path: Path, label: str | None = None) -> SchedulerReport:
    """Return the recordings in the file or folder at `path`, held against the replay.

    Raises:
        TraceError: no recording there, or a file that is none.
    """
    return SchedulerReport(
        tuple(check_recording(read_recording(file, name)) for file, name in _files(path, label))
    )


def _files(path: Path, label: str | None) -> Iterator[tuple[Path, str]]:
    label = label or str(path)
    if not path.is_dir():
        yield path, label
        return
    try:
        files = sorted(f for f in path.iterdir() if f.name.endswith(SUFFIXES))
    except OSError as error:
        raise TraceError(f"{label}: cannot be read: {error.strerror or error}") from None
    if not files:
        raise TraceError(
            f"{label}: no recorded schedules in this folder; expected files named "
            f"{' or '.join('*' + suffix for suffix in SUFFIXES)}"
        )
    for file in files:
        yield file, f"{label.rstrip('/')}/{file.name}"


def check_recording(recording: Recording) -> Outcome:
    """Return the recording held against the replay of its scenario."""
    scenario = recording.scenario
    return Outcome(
        scenario=scenario.name,
        feature=feature_of(scenario),
        vllm_version=recording.vllm_version,
        steps=len(recording.steps),
        failure=_failure(recording),
    )


def _failure(recording: Recording) -> Failure | None:
    scenario = recording.scenario
    record = RECORD_TABLES if scenario.detail == "full" else RECORD_TURNS
    try:
        result = replay_scenario(scenario, record)
    except TraceError as error:
        return Failure(scenario.name, None, "replay", "a schedule", str(error))
    steps = step_records(scenario, result)
    summary = summary_record(scenario, result)
    return first_difference(scenario.name, recording.steps, recording.summary, steps, summary)


def first_difference(
    name: str,
    expected_steps: Sequence[Mapping[str, Any]],
    expected_summary: Mapping[str, Any],
    steps: Sequence[Mapping[str, Any]],
    summary: Mapping[str, Any],
) -> Failure | None:
    """Return the first difference between a recording and a replay, or None."""
    for expected, got in itertools.zip_longest(expected_steps, steps):
        if expected is None or got is None:
            there = got if expected is None else expected
            shown = {k: there[k] for k in ("step", "scheduled") if k in there}
            pair = (MISSING, shown) if expected is None else (shown, MISSING)
            return Failure(name, there["step"], "record", *pair)
        idle = bool(expected.get("idle"))
        for field in _fields(expected, got):
            if idle and field in _UNSTATED_WHEN_IDLE:
                continue
            a, b = expected.get(field, MISSING), got.get(field, MISSING)
            if not _equal(field, a, b):
                return Failure(name, expected["step"], field, a, b)
    return _summary_difference(name, expected_summary, summary)


def _summary_difference(
    name: str, expected: Mapping[str, Any], got: Mapping[str, Any]
) -> Failure | None:
    for field in _fields(expected, got):
        if field == "requests":
            continue
        a, b = expected.get(field, MISSING), got.get(field, MISSING)
        if a != b:
            return Failure(name, None, field, a, b)
    theirs, ours = expected["requests"], got["requests"]
    for request in _fields(theirs, ours):
        a, b = theirs.get(request, MISSING), ours.get(request, MISSING)
        if a == b:
            continue
        if isinstance(a, dict) and isinstance(b, dict):
            for field in _fields(a, b):
                if a.get(field, MISSING) != b.get(field, MISSING):
                    return Failure(
                        name, None, f"requests.{request}.{field}",
                        a.get(field, MISSING), b.get(field, MISSING),
                    )  # fmt: skip
        return Failure(name, None, f"requests.{request}", a, b)
    return None


def _fields(expected: Mapping[str, Any], got: Mapping[str, Any]) -> Iterator[str]:
    yield from expected
    yield from (key for key in got if key not in expected)


def _equal(field: str, a: Any, b: Any) -> bool:
    if a != b:
        return False
    if field in _IN_ORDER and isinstance(a, dict):
        return list(a) == list(b)
    return True
