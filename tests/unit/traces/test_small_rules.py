"""Rules of the readers at their edges: places of refused lines, largest counts, what notes show."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from sieve.arrays import Requests
from sieve.errors import TraceError
from sieve.traces.export import frame_of
from sieve.traces.faults import SHOWN, Faults
from sieve.traces.jsonl import _refused, _repaired, check_counts

SCHEMA = {"a": pl.Int64()}


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8])
def test_lines_that_the_parser_refuses_are_found(count: int) -> None:
    for bad in ([], [0], [count - 1], [0, count // 2], list(range(count))):
        lines = [b'{"a": 1}'] * count
        for i in bad:
            lines[i] = b'{"a": '
        assert list(_refused(lines, SCHEMA, ["a"])) == sorted(set(bad))


def test_a_refused_line_is_named_by_its_place_in_the_file() -> None:
    file = SimpleNamespace(label="x", faults=Faults("count"), first_row=1)
    lines = [b'{"a": 4}', b'{"a": ', b'{"a": 6}']
    frame, places = _repaired(lines, SCHEMA, ["a"], file, 11)
    assert frame["a"].to_list() == [4, 6]
    assert places.tolist() == [0, 2]
    assert file.faults.report()["kinds"]["no JSON"]["lines"] == [12]
    assert "x, line 12: no JSON" in file.faults.report()["kinds"]["no JSON"]["first"]


@pytest.mark.parametrize("value", [2**63, -(2**63), 10**30, True, 1.0, "1", None])
def test_a_count_fits_64_bits(value: object) -> None:
    check_counts({"in": 2**63 - 1}, "x", ("in",))
    with pytest.raises(TraceError) as caught:
        check_counts({"in": value}, "x", ("in",))
    assert f"x: in is {json.dumps(value)[:40]}; expected a whole number" in str(caught.value)


@pytest.mark.parametrize("extra", [0, 1])
def test_a_note_ends_in_dots_where_more_lines_are_left_out_than_it_lists(extra: int) -> None:
    faults = Faults("count")
    for line in range(SHOWN + extra):
        faults.add(line, "bad", f"line {line}", 0)
    (note,) = faults.notes()
    assert note.startswith(f"{SHOWN + extra} rows left out (count): bad; lines 0, 1, 2, 3, 4")
    assert note.endswith(" ...") == bool(extra)


def test_the_first_session_is_a_session() -> None:
    requests = Requests(
        np.arange(3.0), np.full(3, 5), np.full(3, 2), session=np.array([0, -1, 1]), source="x"
    )
    assert frame_of(requests, "sieve_table")["session_id"].to_list() == ["0", None, "1"]
