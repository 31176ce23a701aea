"""Traces with shared prefixes: units, sessions, chains of blocks, and faults with their line."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import numpy as np
import pytest

from sieve.arrays import chain_starts
from sieve.errors import TraceError
from sieve.spec import TrafficSpec
from sieve.traces import load_traffic
from sieve.traces.chains import chain_ids


def load(tmp_path, lines, form="mooncake_trace", **keys):
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    (tmp_path / "t.jsonl").write_text(text + "\n")
    return load_traffic(
        TrafficSpec(trace="t.jsonl", format=form, **keys), seed=0, base_dir=tmp_path
    )


def request(time, tokens=100, answer=5, **more):
    return {"timestamp": time, "input_length": tokens, "output_length": answer, **more}


def test_times_are_milliseconds_or_seconds_by_format(tmp_path):
    lines = [request(1000), request(1500), request(4000)]
    assert load(tmp_path, lines).arrival_s.tolist() == [0.0, 0.5, 3.0]
    assert load(tmp_path, lines, form="timed_trace").arrival_s.tolist() == [0.0, 500.0, 3000.0]


def test_lines_come_in_order_of_arrival_and_failed_ones_are_counted(tmp_path):
    got = load(tmp_path, [request(9, 30), request(3, 10), request(5, 20, answer=0)])
    assert got.input_tokens.tolist() == [10, 30]
    assert "1 requests with output_length 0 left out" in got.notes
    assert "lines were not in order of arrival; sorted" in got.notes


def test_equal_beginnings_have_equal_chains(tmp_path):
    lines = [
        request(0, 1024, hash_ids=[7, 8]),
        request(1, 1100, hash_ids=[7, 8, 9]),
        request(2, 600, hash_ids=[8, 9]),
        request(3, 10),
    ]
    prefix = load(tmp_path, lines).prefix
    assert prefix.block_tokens == 512
    assert prefix.start.tolist() == [0, 2, 5, 7, 7]
    a, b, c = prefix.ids[0:2], prefix.ids[2:5], prefix.ids[5:7]
    assert a.tolist() == b[:2].tolist()
    # Block 8 after block 7 is not block 8 at the start.
    assert c[0] not in a
    assert c[1] not in b


def test_chains_by_hand():
    start = np.array([0, 2, 4, 7, 7])
    ids = np.array([5, 6, 5, 6, 6, 5, 6])
    first, second, third = np.split(chain_ids(start, ids), start[1:3])
    assert first.tolist() == second.tolist()
    assert len({*first, *third}) == 5


def test_turns_wait_for_the_answer_before(tmp_path):
    lines = [
        request(0, session_id="a"),
        request(2000, 50),
        {"delay": 300, "input_length": 200, "output_length": 7, "session_id": "a"},
        request(5000, 60, session_id="a"),
    ]
    got = load(tmp_path, lines)
    # In order of arrival: the first turn, its follow-up at the session's time, then the others.
    assert got.input_tokens.tolist() == [100, 200, 50, 60]
    assert got.previous.tolist() == [-1, 0, -1, -1]
    assert got.delay_s.tolist() == [0.0, 0.3, 0.0, 0.0]
    assert got.arrival_s.tolist() == [0.0, 0.0, 2.0, 5.0]


def test_a_turn_that_failed_is_skipped_by_the_next(tmp_path):
    turn = {"delay": 100, "input_length": 200, "session_id": "a"}
    lines = [
        request(0, session_id="a"),
        turn | {"output_length": 0},
        turn | {"output_length": 9},
    ]
    got = load(tmp_path, lines)
    assert got.output_tokens.tolist() == [5, 9]
    assert got.previous.tolist() == [-1, 0]


def test_the_first_requests_keep_their_sessions(tmp_path):
    lines = [request(0, session_id="a", hash_ids=[1]), request(1, hash_ids=[1])]
    lines += [{"delay": 1, "input_length": 9, "output_length": 1, "session_id": "a"}]
    got = load(tmp_path, lines, requests=2)
    assert got.previous.tolist() == [-1, 0]
    assert got.prefix.start.tolist() == [0, 1, 1]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{nope", "line 2: no JSON"),
        ("[1]", "line 2: expected a JSON object"),
        (request(1, -4), "line 2: input_length is -4; expected 1 to"),
        (request(1, 2.5), "line 2: input_length is 2.5; expected a whole number"),
        (request(1, True), "line 2: input_length is true"),
        (request(1, 10**9), "line 2: input_length is 1000000000; expected 1 to 10,000,000"),
        (request("soon"), 'line 2: timestamp is "soon"; expected a number'),
        ({"timestamp": 1, "text_input": "hi", "output_length": 1}, "line 2: text_input holds text"),
        ({"input_length": 1, "output_length": 1}, "line 2: the request has no timestamp"),
        (request(1, 600, hash_ids=[1]), "line 2: 1 hash_ids for input_length 600; expected 2"),
        (request(1, 600, hash_ids=[1, "x"]), "line 2: hash_ids is no list of whole numbers"),
        (request(1e300), "line 2: the request has a time out of range"),
        (
            {"timestamp": 1, "delay": 1, "input_length": 1, "output_length": 1, "session_id": "s"},
            "line 2: the request has a timestamp and a delay",
        ),
        (
            {"input_length": 1, "output_length": 1, "session_id": "s"},
            "line 2: the request has neither timestamp nor delay",
        ),
        (
            {"delay": -1, "input_length": 1, "output_length": 1, "session_id": "s"},
            "line 2: the request has a negative delay",
        ),
    ],
)
def test_faults_name_their_line(tmp_path, line, message):
    with pytest.raises(TraceError) as error:
        load(tmp_path, [request(0, session_id="s"), line])
    assert f"t.jsonl, {message}" in str(error.value)


def test_arrivals_cannot_be_replaced_in_sessions(tmp_path):
    lines = [request(0, session_id="a")]
    lines += [{"delay": 1, "input_length": 9, "output_length": 1, "session_id": "a"}]
    with pytest.raises(TraceError, match="has sessions"):
        load(tmp_path, lines, arrival={"closed_loop": 4})


@pytest.mark.skipif("SIEVE_DATA" not in os.environ, reason="SIEVE_DATA is not set")
def test_the_public_conversation_trace():
    folder = Path(os.environ["SIEVE_DATA"]) / "traces/mooncake_conversation"
    spec = TrafficSpec(trace="conversation_trace.jsonl.gz", format="mooncake_trace")
    got = load_traffic(spec, seed=0, base_dir=folder)
    with gzip.open(folder / "conversation_trace.jsonl.gz", "rt") as file:
        rows = [json.loads(line) for line in file]
    rows.sort(key=lambda row: row["timestamp"])
    assert got.input_tokens.tolist() == [row["input_length"] for row in rows]
    first = rows[0]["timestamp"]
    assert got.arrival_s == pytest.approx([(r["timestamp"] - first) / 1e3 for r in rows])
    assert len(np.unique(got.prefix.ids)) == len({i for row in rows for i in row["hash_ids"]})


def test_compact_json_and_a_byte_order_mark_are_read(tmp_path):
    line = json.dumps(request(0, 1024, hash_ids=[7, 8]), separators=(",", ":"))
    assert load(tmp_path, ["\ufeff" + line, line]).input_tokens.tolist() == [1024, 1024]


def test_chains_of_turns_are_followed_to_their_start():
    rng = np.random.default_rng(3)
    for n in range(1, 40):
        previous = np.array([-1, *(rng.integers(-1, i) for i in range(1, n))], np.int64)
        starts = []
        for turn in range(n):
            place = turn
            while previous[place] >= 0:
                place = previous[place]
            starts.append(place)
        assert chain_starts(previous).tolist() == starts


def test_waits_of_a_session_add_up_to_what_can_be_replayed(tmp_path):
    turn = {"delay": 6e11, "input_length": 200, "output_length": 2, "session_id": "a"}
    with pytest.raises(TraceError, match="line 3: the request waits too long"):
        load(tmp_path, [request(0, session_id="a"), turn, turn])


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ('{"timestamp":NaN,"input_length":10,"output_length":2}', "line 2: no JSON .NaN"),
        ('{"timestamp":1,"input_length":10,"output_length":2,"hash_ids":[null]}', "line 2: hash"),
        ('{"timestamp":1,"delay":5,"input_length":10,"output_length":2}', "line 2: .* session_id"),
    ],
    ids=["not_a_number", "null_block", "delay_alone"],
)
def test_faults_of_a_line_name_it(tmp_path, line, part):
    with pytest.raises(TraceError, match=part):
        load(tmp_path, [request(0, 10, hash_ids=[1]), line])


def test_keys_that_look_misspelt_are_told(tmp_path):
    got = load(tmp_path, [request(0, 10, hash_id=[1])])
    assert got.prefix is None
    assert "key 'hash_id' is not read; did you mean hash_ids?" in got.notes


def test_later_turns_with_times_of_their_own_are_told(tmp_path):
    got = load(tmp_path, [request(0, session_id="a"), request(9, session_id="a")])
    assert got.previous is None
    assert any(note.startswith("1 later turns have a timestamp") for note in got.notes)
