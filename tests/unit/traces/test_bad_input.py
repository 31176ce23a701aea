"""Files as they come: torn, mixed, wrong. File, line and field are named, nothing is lost."""

from __future__ import annotations

import gzip
import json
import resource

import numpy as np
import pytest

from sieve.errors import TraceError
from sieve.spec import TrafficSpec
from sieve.traces import load_traffic, unpack
from sieve.traces.faults import Faults

HEAD = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def azure(*rows):
    return HEAD + "".join(f"2023-11-16 18:00:{i:02d},{a},{b}\n" for i, (a, b) in enumerate(rows))


def moon(*rows):
    return "".join(
        json.dumps({"timestamp": i * 1000, "input_length": a, "output_length": b}) + "\n"
        for i, (a, b) in enumerate(rows)
    )


def load(folder, name, content, faults=None, **keys):
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    spec = TrafficSpec(trace=name, **keys)
    return load_traffic(spec, seed=0, base_dir=folder, faults=faults)


BAD = [(10, 1), (-5, 1), (20, 2), (0, 3), (30, "nan"), (40, 0), (50, 4)]


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_skip_leaves_out_and_tells(tmp_path, form):
    text, keys = (azure(*BAD), {}) if form == "csv" else (
        moon(*BAD).replace('"nan"', "NaN"), {"format": "mooncake_trace"})  # fmt: skip
    with pytest.raises(TraceError, match=r"line [2356]: "):
        load(tmp_path, f"t.{form}", text, **keys)
    got = load(tmp_path, f"t.{form}", text, on_error="skip", **keys)
    assert got.input_tokens.tolist() == [10, 20, 50]
    first = 2 if form == "csv" else 1
    assert got.line.tolist() == [first, first + 2, first + 6]
    assert got.num_failed == 1
    told = " ".join(got.notes)
    assert "rows left out (skip)" in told
    for line in (first + 1, first + 3, first + 4):
        assert str(line) in told


def test_count_reads_on_and_then_refuses(tmp_path):
    with pytest.raises(TraceError) as error:
        load(tmp_path, "t.csv", azure(*BAD), on_error="count")
    message = str(error.value)
    assert "3 rows cannot be read" in message
    assert "line 3: ContextTokens is '-5'" in message
    faults = Faults("count", tolerate=True)
    got = load(tmp_path, "t.csv", azure(*BAD), faults=faults, on_error="count")
    assert len(got) == 3
    report = faults.report()
    assert report["rows"] == 3
    assert sum(kind["count"] for kind in report["kinds"].values()) == 3


def test_lines_that_are_no_requests_are_skipped_by_name(tmp_path):
    good = moon((10, 1), (20, 2))
    wrong = 'not json\n[1]\n{"timestamp": 9, "input_length": "x", "output_length": 2}\n'
    text = good + wrong + moon((30, 3))
    keys = {"format": "mooncake_trace"}
    with pytest.raises(TraceError, match="line 3: no JSON"):
        load(tmp_path, "t.jsonl", text, **keys)
    faults = Faults("skip")
    got = load(tmp_path, "t.jsonl", text, faults=faults, **keys)
    assert sorted(got.input_tokens.tolist()) == [10, 20, 30]
    assert sorted(line for kind in faults.kinds.values() for line in kind.lines) == [3, 4, 5]


def test_torn_lines_of_a_table(tmp_path):
    text = azure((10, 1), (20, 2)).encode() + b"2023-11-16 18:00:09,1,2,3\n\xff\xfe,1,2\n"
    with pytest.raises(TraceError, match=r"line 4: 4 fields where the header has 3"):
        load(tmp_path, "t.csv", text)
    got = load(tmp_path, "t.csv", text, on_error="skip")
    assert len(got) == 2
    assert any("not UTF-8; lines 5" in note for note in got.notes)


def test_truncated_gzip_names_the_place(tmp_path):
    whole = gzip.compress(azure(*[(10, 1)] * 50).encode())
    with pytest.raises(TraceError, match="damaged gzip file after"):
        load(tmp_path, "t.csv.gz", whole[:-20])


def test_mixed_line_endings_and_a_mark(tmp_path):
    rows = azure((10, 1), (20, 2), (30, 3)).split("\n")
    text = "\ufeff" + rows[0] + "\r\n" + rows[1] + "\n" + rows[2] + "\r" + rows[3] + "\r\n"
    got = load(tmp_path, "t.csv", text)
    assert got.input_tokens.tolist() == [10, 20, 30]
    assert got.line.tolist() == [2, 3, 4]
    assert "line endings of several kinds are mixed; all read" in got.notes


def test_a_clock_that_goes_back_is_told(tmp_path):
    text = HEAD + "2023-11-16 18:00:05,10,1\n2023-11-16 18:00:01,20,2\n"
    got = load(tmp_path, "t.csv", text)
    assert got.input_tokens.tolist() == [20, 10]
    assert got.line.tolist() == [3, 2]
    assert any("not in order of arrival" in note for note in got.notes)


def test_milliseconds_since_1970_read_as_seconds_are_recognised(tmp_path):
    text = "when,i,o\n0,10,1\n1700000000000,10,1\n"
    columns = {"ts": "when", "in": "i", "out": "o"}
    with pytest.raises(TraceError, match="looks like ms since 1970, read as s"):
        load(tmp_path, "t.csv", text, columns=columns, time_unit="s")


def test_formats_mixed_in_one_file(tmp_path):
    mixed = azure((10, 1)) + moon((20, 2))
    with pytest.raises(TraceError, match="line 3"):
        load(tmp_path, "t.csv", mixed)
    with pytest.raises(TraceError, match="line 2: "):
        load(tmp_path, "t.jsonl", moon((10, 1)) + azure((20, 2)), format="mooncake_trace")


def test_a_line_without_end_is_refused_early(tmp_path, monkeypatch):
    monkeypatch.setattr(unpack, "MAX_LINE_BYTES", 1_000_000)
    text = azure((10, 1)).encode() + b"9" * 9_000_000
    with pytest.raises(TraceError, match="line 3: longer than 1 MB"):
        load(tmp_path, "t.csv", text)


def test_ten_gigabytes_in_a_line_do_not_fill_the_memory(tmp_path):
    """A sparse file of 10 GB after the header; it is refused after a few pieces."""
    path = tmp_path / "t.csv"
    with path.open("wb") as file:
        file.write(HEAD.encode() + b"x")
        file.truncate(10 * 10**9)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(TraceError, match=r"line 2: longer than 16 MB|more than 2 GB"):
        load_traffic(TrafficSpec(trace="t.csv"), seed=0, base_dir=tmp_path)
    grown_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown_kb < 200_000


def test_a_compression_bomb_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(unpack, "RATIO_FROM_BYTES", 5_000_000)
    bomb = gzip.compress(azure((10, 1)).encode() + b"\n" * 50_000_000)
    with pytest.raises(TraceError, match="compression bomb"):
        load(tmp_path, "t.csv.gz", bomb)


def test_blocks_that_do_not_fit_the_prompt(tmp_path):
    line = {"timestamp": 0, "input_length": 600, "output_length": 2, "hash_ids": [1, 2]}
    text = json.dumps(line) + "\n" + json.dumps(line | {"hash_ids": [1]}) + "\n"
    keys = {"format": "mooncake_trace"}
    with pytest.raises(TraceError, match="line 2: 1 hash_ids for input_length 600"):
        load(tmp_path, "t.jsonl", text, **keys)
    got = load(tmp_path, "t.jsonl", text, on_error="skip", **keys)
    assert len(got) == 1
    assert np.diff(got.prefix.start).tolist() == [2]


def test_json_lines_below_a_table_are_named_and_left_out(tmp_path):
    mixed = azure((10, 1)) + moon((20, 2))
    with pytest.raises(TraceError, match="line 3: GeneratedTokens is"):
        load(tmp_path, "t.csv", mixed)
    wide = azure((10, 1)) + '{"a": 1, "b": 2, "c": 3, "d": 4}\n'
    with pytest.raises(TraceError, match="line 3: 4 fields where the header has 3"):
        load(tmp_path, "t.csv", wide)
    assert load(tmp_path, "t.csv", wide, on_error="skip").line.tolist() == [2]


@pytest.mark.parametrize(
    ("seconds", "unit"), [(1_700_000_000_000, "ms"), (1_700_000_000_000_000, "us")]
)
def test_dates_in_a_smaller_unit_are_recognised_in_every_row(tmp_path, seconds, unit):
    """All rows alike, so that the span alone would not show it."""
    head = "Timestamp,Model,Request tokens,Response tokens\n"
    text = head + "".join(f"{seconds + i},GPT-4,100,5\n" for i in range(3))
    with pytest.raises(TraceError, match=f"line 2: Timestamp looks like {unit} since 1970"):
        load(tmp_path, "t.csv", text)
    own = "arrival_s,input_tokens,output_tokens\n" + "".join(f"{seconds},9,9\n" for _ in range(3))
    with pytest.raises(TraceError, match="read as s"):
        load(tmp_path, "own.csv", own)
    dates = head + "".join(f"{1_700_000_000 + i},GPT-4,100,5\n" for i in range(3))
    assert load(tmp_path, "t.csv", dates).arrival_s.tolist() == [0, 1, 2]


def test_a_row_left_out_does_not_set_the_clock_back(tmp_path):
    got = load(tmp_path, "t.csv", azure((10, 1), (20, 2), (-5, 2), (30, 3)), on_error="skip")
    assert got.arrival_s.tolist() == [0, 1, 3]
    assert not any("not in order" in note for note in got.notes)


def test_where_every_row_has_a_fault_the_faults_are_told(tmp_path):
    with pytest.raises(
        TraceError, match=r"no request with a time is left\n  2 × t.csv, line 2: Context"
    ):
        load(tmp_path, "t.csv", azure((-10, 1), (-20, 2)), on_error="skip")


def test_nan_is_no_number_of_a_session_or_dialogue(tmp_path):
    turns = '[{"t": 0, "in": 9, "out": 9}, {"t": NaN, "in": 9, "out": 9}]'
    session = f'{{"id": "a", "requests": {turns}}}'
    keys = {"format": "weka_trace", "arrival": {"poisson_per_s": 1.0}}
    for text in (session, f"{session}\n{session}\n", f"[{session}]"):
        with pytest.raises(TraceError, match=r"line 1: no JSON \(NaN"):
            load(tmp_path, "t.json", text, **keys)
