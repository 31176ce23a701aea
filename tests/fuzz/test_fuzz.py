"""A sample of the fuzzing campaign: each reader refuses with a `SieveError` or reads."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from fuzz.campaign import feed, inputs_of
from fuzz.targets import CORPUS, TARGETS, Target

BY_NAME = {target.name: target for target in TARGETS}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)  # fmt: skip


def crashed(target: Target, data: bytes) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        return feed(target, [data], Path(folder)).crashes


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_a_reader_takes_its_own_seeds(target: Target, tmp_path: Path) -> None:
    assert target.seeds()
    for number, data in enumerate(target.seeds()):
        path = tmp_path / f"{number}{target.suffix}"
        path.write_bytes(data)
        target.read(path)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_mutated_input_is_read_or_refused(target: Target, tmp_path: Path) -> None:
    counts = feed(target, inputs_of(target, 120, seed=11), tmp_path)
    assert counts.crashes == {}
    assert counts.read > 0
    assert counts.refused > 0


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted(BY_NAME))
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.binary(max_size=200) | JSON.map(lambda v: json.dumps(v).encode()))
@example(data=b"")
def test_arbitrary_input_is_read_or_refused(name: str, data: bytes) -> None:
    assert crashed(BY_NAME[name], data) == {}


FOUND = sorted((CORPUS / "crashes").glob("*/*"))


@pytest.mark.parametrize("path", FOUND, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_what_once_crashed_does_not(path: Path) -> None:
    assert crashed(BY_NAME[path.parent.name], path.read_bytes()) == {}
