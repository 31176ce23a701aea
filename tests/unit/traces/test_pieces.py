"""Large files are read piece by piece: what comes out does not depend on where they are cut."""

from __future__ import annotations

import gzip
import json
from itertools import pairwise

import numpy as np
import polars as pl
import pytest

from sieve.errors import TraceError
from sieve.spec import TrafficSpec
from sieve.traces import chains, files, load_traffic, unpack, weka

MOON = {"format": "mooncake_trace"}


def load(folder, name, content, **keys):
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return load_traffic(TrafficSpec(trace=name, **keys), seed=0, base_dir=folder)


def small(monkeypatch, piece=64):
    """Keep nothing in memory and cut after a few lines."""
    monkeypatch.setattr(files, "KEPT_BYTES", 0)
    monkeypatch.setattr(files, "PIECE_BYTES", piece)
    monkeypatch.setattr(unpack, "HEAD_BYTES", 100)
    monkeypatch.setattr(unpack, "_PIECE_BYTES", 50)


def lines(n):
    rows = [
        {
            "timestamp": i * 10,
            "input_length": 600,
            "output_length": i + 1,
            "hash_ids": [i % 3, 7 + i],
        }
        for i in range(n)
    ]
    return [json.dumps(row) for row in rows]


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("piece", [1, 64, 700, 10_000])
def test_pieces_change_nothing(tmp_path, monkeypatch, ending, packed, piece):
    text = lines(40)
    text.insert(11, "")
    text.insert(30, "  ")
    content = ("\ufeff" + ending.join(text) + ending).encode()
    content = gzip.compress(content) if packed else content
    small(monkeypatch, piece)
    got = load(tmp_path, "t.jsonl", content, **MOON)
    assert got.output_tokens.tolist() == list(range(1, 41))
    numbers = [i + 1 for i, line in enumerate(text) if line.strip()]
    assert got.line.tolist() == numbers
    # Prompt i has the chain (i % 3, 7 + i): three beginnings, and an end of its own.
    first, second = got.prefix.ids[::2], got.prefix.ids[1::2]
    assert len(set(first.tolist())) == 3
    assert (first == first[np.arange(40) % 3]).all()
    assert len(set(second.tolist())) == 40


@pytest.mark.parametrize("number", [1, 7, 23, 40])
def test_a_fault_in_any_piece_names_its_line(tmp_path, monkeypatch, number):
    text = lines(40)
    text[number - 1] = text[number - 1].replace("600", '"x"')
    small(monkeypatch)
    with pytest.raises(TraceError, match=rf't.jsonl, line {number}: input_length is "x"'):
        load(tmp_path, "t.jsonl", "\n".join(text), **MOON)
    got = load(tmp_path, "t.jsonl", "\n".join(text), on_error="skip", **MOON)
    assert got.line.tolist() == [i for i in range(1, 41) if i != number]
    assert any(f"lines {number}" in note for note in got.notes)


def test_a_number_that_only_the_parser_refuses_is_found(tmp_path):
    """1e999 is infinite to Python's reader, which checks the lines, and no number to the other."""
    text = lines(9)
    text[4] = text[4].replace('"timestamp": 40', '"timestamp": 1e999')
    with pytest.raises(TraceError, match=r"line 5: timestamp is Infinity; expected a number"):
        load(tmp_path, "t.jsonl", "\n".join(text), **MOON)
    got = load(tmp_path, "t.jsonl", "\n".join(text), on_error="skip", **MOON)
    assert got.line.tolist() == [1, 2, 3, 4, 6, 7, 8, 9]


def test_chains_are_numbered_by_all_that_precedes(monkeypatch):
    """Held against a dictionary of the beginnings themselves."""
    rng = np.random.default_rng(1)
    for _ in range(200):
        monkeypatch.setattr(chains, "_PART", int(rng.integers(1, 8)))
        count = rng.integers(0, 6, int(rng.integers(0, 30)))
        start = np.concatenate(([0], np.cumsum(count))).astype(np.int64)
        ids = rng.integers(-2, 4, int(start[-1]))
        got = chains.chain_ids(start, ids)
        number = {}
        for low, high in pairwise(start.tolist()):
            for end in range(low, high):
                assert number.setdefault(tuple(ids[low : end + 1]), got[end]) == got[end]
        assert sorted(number.values()) == list(range(len(number)))


def test_holes_in_lists_of_blocks_are_found_in_any_part(tmp_path, monkeypatch):
    monkeypatch.setattr(chains, "_ROWS", 4)
    text = lines(10)
    text[6] = text[6].replace("[0, 13]", "[0, null]")
    with pytest.raises(TraceError, match=r"line 7: hash_ids (holds null|is no list)"):
        load(tmp_path, "t.jsonl", "\n".join(text), **MOON)


def session(name, turns, **keys):
    requests = [{"t": t, "in": 100, "out": out, "think_time": 1.0} for t, out in turns]
    return {"id": name, "block_size": 64, "requests": requests} | keys


def test_a_session_with_a_fault_is_left_out_whole_and_told(tmp_path, monkeypatch):
    monkeypatch.setattr(weka, "_TURNS_AT_A_TIME", 1)
    text = [json.dumps(session(name, [(0, 5), (9, 6)])) for name in "abc"]
    text[1] = text[1].replace('"out": 6', '"out": 6.5')
    text.insert(2, "no json")
    keys = {"format": "weka_trace", "arrival": {"poisson_per_s": 1.0}}
    with pytest.raises(TraceError, match=r"line 2, request 2: out is 6.5"):
        load(tmp_path, "t.jsonl", "\n".join(text), **keys)
    got = load(tmp_path, "t.jsonl", "\n".join(text), on_error="skip", **keys)
    assert sorted(got.line.tolist()) == [1, 1, 4, 4]
    assert sum("1 rows left out (skip)" in note for note in got.notes) == 2


def test_dialogues_with_faults_are_counted_or_left_out(tmp_path):
    good = {"conversations": [{"value": "abcd"}, {"value": "efgh"}]}
    entries = [good, {"conversations": [{"value": 1}, {"value": "x"}]}, [], good]
    keys = {"arrival": {"poisson_per_s": 1.0}, "characters_per_token": 4.0, "format": "sharegpt"}
    with pytest.raises(TraceError, match=r"entry 2: conversations\[0\].value"):
        load(tmp_path, "t.json", json.dumps(entries), **keys)
    got = load(tmp_path, "t.json", json.dumps(entries), on_error="skip", **keys)
    assert got.input_tokens.tolist() == [1, 1]
    assert sum("left out (skip)" in note for note in got.notes) == 2
    with pytest.raises(TraceError, match="2 rows cannot be read"):
        load(tmp_path, "t.json", json.dumps(entries), on_error="count", **keys)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('[{"prompt": "a", "output_tokens": 1},\n{"prompt": }]', 2),
        ('[{"prompt": "a", "output_tokens": 1}\n{"prompt": "b"}]', 2),
        ('[{"prompt": "a", "output_tokens": 1},\n]', 2),
        ('[{"prompt": "a", "output_tokens": 1}]\nmore', 2),
        ('{"conversations":\n [1,\n 2', 3),
    ],
    ids=["entry", "comma", "end", "behind", "document"],
)
def test_a_torn_document_names_the_line(tmp_path, text, line):
    with pytest.raises(TraceError, match=rf"t.json, line {line}: no JSON"):
        load(
            tmp_path, "t.json", text, format="custom", characters_per_token=1.0,
            arrival={"poisson_per_s": 1.0},
        )  # fmt: skip


def test_a_table_in_place_of_json_is_told(tmp_path):
    pl.DataFrame({"a": [1]}).write_parquet(tmp_path / "t.parquet")
    with pytest.raises(TraceError, match=r"a table, and this format is JSON"):
        load_traffic(TrafficSpec(trace="t.parquet", format="sharegpt"), seed=0, base_dir=tmp_path)
