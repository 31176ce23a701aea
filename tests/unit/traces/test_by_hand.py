"""Sessions, chains, stored tables and dialogues: small cases that can be written down."""

from __future__ import annotations

import json

import numpy as np
import polars as pl
import pytest

from sieve.arrays import PrefixBlocks, Requests
from sieve.errors import InvalidInput, SieveError, TraceError
from sieve.spec import TrafficSpec
from sieve.traces import load_traffic
from sieve.traces.export import frame_of, replace_file, target_of, write
from sieve.traces.records import chain_ids
from sieve.traces.reuse import hit_curve
from sieve.traces.stored import digest, from_frame, to_frame


def load(folder, name, records, **keys):
    (folder / name).write_text("".join(json.dumps(r) + "\n" for r in records))
    return load_traffic(TrafficSpec(trace=name, **keys), seed=0, base_dir=folder)


def traffic(n=4, **more):
    keys = {
        "arrival_s": np.arange(n) * 1.5, "input_tokens": np.arange(n) + 20,
        "output_tokens": np.arange(n) + 1, "source": "x",
    }  # fmt: skip
    return Requests(**(keys | more))


# Chains of blocks


def plain_chains(lists):
    numbers = {}
    return [
        [numbers.setdefault(tuple(ids[: i + 1]), len(numbers)) for i in range(len(ids))]
        for ids in lists
    ]


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("spread", [1, 10**9], ids=["small numbers", "large numbers"])
def test_chains_are_those_of_a_dictionary(seed, spread):
    """Equal numbers exactly where all up to them is equal, and every number from 0 on is there."""
    rng = np.random.default_rng(seed)
    lists = [
        (rng.integers(0, 4, rng.integers(0, 6)) * spread - 2).tolist() for _ in range(1 + seed)
    ]
    start = np.concatenate([[0], np.cumsum([len(x) for x in lists])]).astype(np.int64)
    flat = np.array([i for x in lists for i in x], np.int64)
    found = chain_ids(start, flat)
    expected = np.array([i for x in plain_chains(lists) for i in x], np.int64)
    assert len(set(zip(found.tolist(), expected.tolist(), strict=True))) == len(set(expected))
    assert sorted(set(found.tolist())) == list(range(len(set(expected))))


def test_the_sampled_hit_curve_is_near_the_exact_one(monkeypatch):
    rng = np.random.default_rng(0)
    n, size = 4000, 10
    # Single blocks drawn from 2,000 at random: a list of k blocks holds a share k / 2000.
    ids = np.unique(rng.integers(0, 2000, n), return_inverse=True)[1]
    prefix = PrefixBlocks(size, np.arange(n + 1), ids, np.full(n, size))
    exact = hit_curve(prefix)
    monkeypatch.setattr("sieve.traces.reuse.MAX_USES", 1000)
    sampled = hit_curve(prefix)
    assert sampled.sampled == 0.25
    assert sampled.cache_tokens.tolist() == exact.cache_tokens.tolist()
    assert sampled.hit_ratio == pytest.approx(exact.hit_ratio, abs=0.05)
    # One token of a prompt is computed at the least: 9 of 10 are found in each hit.
    assert sampled.unlimited == exact.unlimited == pytest.approx((1 - (ids.max() + 1) / n) * 0.9)


# Parents of chats


def turn(chat, parent, time):
    return {"chat_id": chat, "parent_chat_id": parent, "timestamp": time, "input_length": 20,
            "output_length": 9}  # fmt: skip


def test_parents_beside_the_file_start_sessions(tmp_path):
    got = load(
        tmp_path, "q.jsonl",
        [turn(5, -1, 0), turn(7, 99, 1), turn(8, 0, 2), turn(9, 9, 3), turn(10, 7, 4),
         turn(12, 13, 5), turn(13, 10, 6)],
        format="bailian",
    )  # fmt: skip
    # 99 and 0 are not there, 9 is its own parent, 13 stands below its child.
    session = got.session.tolist()
    assert session[1] == session[4] == session[6]
    assert len(set(session)) == 5
    assert "4 turns follow a chat that is not in the file; sessions begin there" in got.notes


# Tables of a run folder


def with_everything():
    prompt = np.array([20, 21, 22, 23])
    return traffic(
        prefix=PrefixBlocks(8, np.array([0, 2, 2, 4, 5]), np.array([0, 1, 0, 2, 3]), prompt),
        input_tokens=prompt, previous=np.array([-1, 0, -1, 2]),
        delay_s=np.array([0.0, 2.0, 0.0, 3.0]),
    )  # fmt: skip


def test_a_stored_table_comes_back():
    before = with_everything()
    frame = to_frame(before)
    assert frame.columns == ["arrival_s", "input_tokens", "output_tokens", "previous", "delay_s",
                             "prefix_ids"]  # fmt: skip
    assert frame["prefix_ids"].to_list() == [[0, 1], [], [0, 2], [3]]
    after = from_frame(frame, users=None, block_tokens=8, label="t")
    for name in ("arrival_s", "input_tokens", "output_tokens", "previous", "delay_s"):
        assert getattr(after, name).tolist() == getattr(before, name).tolist(), name
    assert after.prefix.start.tolist() == before.prefix.start.tolist()
    assert after.prefix.ids.tolist() == before.prefix.ids.tolist()
    assert digest(after) == digest(before)
    plain = to_frame(traffic())
    assert plain.columns == ["arrival_s", "input_tokens", "output_tokens"]
    loop = from_frame(plain, users=3, block_tokens=None, label="t")
    assert (loop.closed_loop_users, loop.prefix, loop.previous) == (3, None, None)


@pytest.mark.parametrize(
    ("column", "values", "part"),
    [
        ("arrival_s", [0.0, 3.0, 2.0, 4.0], "out of range or out of order"),
        ("arrival_s", [0.0, 1.0, 2.0, float("nan")], "out of range or out of order"),
        ("arrival_s", [-1.0, 1.0, 2.0, 3.0], "out of range or out of order"),
        ("arrival_s", [0.0, 1.0, 2.0, 1.1e9], "out of range or out of order"),
        ("arrival_s", [0, 1, 2, 3], "'arrival_s' is missing or not Float64"),
        ("input_tokens", [0, 1, 1, 1], "out of range"),
        ("input_tokens", [1, 1, 1, 10_000_001], "out of range"),
        ("input_tokens", [1, None, 1, 1], "'input_tokens' is missing or not Int64"),
        ("output_tokens", [0, 1, 1, 1], "out of range"),
        ("output_tokens", [1, 1, 1, 10_000_001], "out of range"),
        ("previous", [0, -1, -1, -1], "waits for one that is not before it"),
        ("previous", [-1, -1, 3, -1], "waits for one that is not before it"),
        ("previous", [-2, -1, -1, -1], "waits for one that is not before it"),
    ],
)
def test_a_stored_table_is_checked(column, values, part):
    frame = to_frame(with_everything()).with_columns(pl.Series(column, values))
    with pytest.raises(TraceError) as error:
        from_frame(frame, users=None, block_tokens=8, label="t")
    assert part in str(error.value)


def test_limits_of_a_stored_table_are_allowed():
    frame = to_frame(traffic(1)).with_columns(
        arrival_s=pl.Series([1e9]), input_tokens=pl.Series([10_000_000]),
        output_tokens=pl.Series([10_000_000]),
    )  # fmt: skip
    got = from_frame(frame, users=None, block_tokens=None, label="t")
    assert (got.input_tokens[0], got.output_tokens[0]) == (10_000_000, 10_000_000)
    with pytest.raises(TraceError, match="out of range"):
        from_frame(frame.clear(), users=None, block_tokens=None, label="t")


def test_the_checksum_follows_what_a_replay_reads():
    base = with_everything()
    blocks = base.prefix
    others = [
        traffic(),
        traffic(closed_loop_users=2),
        traffic(arrival_s=np.arange(4) * 2.0),
        traffic(previous=base.previous, delay_s=base.delay_s),
        traffic(previous=base.previous, delay_s=base.delay_s * 2),
        traffic(prefix=blocks),
        traffic(prefix=PrefixBlocks(16, blocks.start, blocks.ids, blocks.prompt)),
        traffic(prefix=PrefixBlocks(8, blocks.start, blocks.ids + 1, blocks.prompt)),
    ]
    assert len({digest(r) for r in (base, *others)}) == 9
    assert digest(traffic(source="y", line=np.arange(4))) == digest(traffic())


# Files for other tools


def test_columns_of_a_file_are_those_that_say_something(tmp_path):
    plain = traffic(delay_s=np.zeros(4), previous=np.full(4, -1))
    assert "delay" not in frame_of(plain, "mooncake_trace").columns
    assert "delay_s" not in frame_of(plain, "sieve_table").columns
    names = frame_of(traffic(), "timed_trace").columns
    assert names == ["timestamp", "input_length", "output_length"]
    some = frame_of(traffic(session=np.array([3, -1, 3, 4])), "sieve_table")
    assert some["session_id"].to_list() == ["3", None, "3", "4"]
    lines = frame_of(traffic(line=np.array([2, 3, 4, 6])), "sieve_table")
    assert lines["source_line"].to_list() == [2, 3, 4, 6]
    assert frame_of(traffic(), "mooncake_trace")["timestamp"].to_list() == [0, 1500, 3000, 4500]
    told = write(with_everything(), tmp_path / "t.jsonl")
    assert (told["format"], told["block_tokens"], told["num_requests"]) == (
        "mooncake_trace",
        512,
        4,
    )
    assert write(with_everything(), tmp_path / "t.csv")["block_tokens"] == 8
    assert write(traffic(), tmp_path / "t.csv")["block_tokens"] is None


@pytest.mark.parametrize(
    ("name", "target", "part"),
    [
        ("t.txt", None, "--to t.txt: expected mooncake_trace"),
        ("t.csv", "mooncake_trace", "written to a file ending in .json or .jsonl"),
        ("t.jsonl", "sieve_table", "written to a file ending in .csv or .parquet"),
        ("t.jsonl", "other", "--to other: expected"),
    ],
)
def test_a_format_has_its_endings(tmp_path, name, target, part):
    with pytest.raises(InvalidInput) as error:
        target_of(tmp_path / name, target)
    assert part in str(error.value)
    assert target_of(tmp_path / "T.JSONL", "timed_trace") == "timed_trace"


def test_a_broken_writer_leaves_nothing_behind(tmp_path):
    kept = tmp_path / "t.csv"
    kept.write_text("before")

    def fail(path):
        path.write_text("half")
        raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011 - the one raised above
        replace_file(kept, fail)
    assert [p.name for p in tmp_path.iterdir()] == ["t.csv"]
    assert kept.read_text() == "before"
    with pytest.raises(InvalidInput, match="a folder; name a file"):
        replace_file(tmp_path, fail)
    replace_file(kept, lambda path: path.write_text("after"))
    assert kept.read_text() == "after"
    assert kept.stat().st_mode & 0o777 == 0o644


# Dialogues


BURST = {"arrival": {"burst": True}}


def told(question, answer):
    return {"conversations": [{"value": question}, {"value": answer}]}


def test_lengths_of_texts_are_rounded_and_at_least_one(tmp_path):
    got = load(tmp_path, "s.jsonl", [told("x" * 10, "y" * 6), told("", "z")],
               characters_per_token=4.0, **BURST)  # fmt: skip
    # 10 / 4 = 2.5 is rounded to the even 2, 6 / 4 = 1.5 to 2; 1 / 4 rounds to no answer.
    assert (got.input_tokens.tolist(), got.output_tokens.tolist()) == ([2], [2])
    assert "1 failed requests (0 output tokens) left out" in got.notes


def test_stated_answers_stand_in_for_those_that_lack(tmp_path):
    got = load(tmp_path, "c.jsonl", [{"prompt": "abcd"}, {"prompt": "abcd", "output_len": 9}],
               characters_per_token=1.0, osl=30, **BURST)  # fmt: skip
    assert sorted(zip(got.input_tokens.tolist(), got.output_tokens.tolist(), strict=True)) == [
        (4, 9), (4, 30)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("record", "keys", "part"),
    [
        (told("x" * 11, "y"), {"characters_per_token": 1e-6}, "a length above 10,000,000 tokens"),
        (told("x", ""), {"characters_per_token": 1.0}, "every answer is empty"),
        ({"conversations": [{"value": "x"}]}, {"characters_per_token": 1.0}, "no entry has"),
        ({"conversations": [1, 2]}, {"characters_per_token": 1.0}, "must be texts"),
        ({"prompt_tokens": 5, "completion_tokens": -1}, {}, "completion_tokens is -1"),
        ({"prompt_tokens": 10_000_001, "completion_tokens": 1}, {}, "prompt_tokens is 10000001"),
        ({"prompt_tokens": True, "completion_tokens": 1}, {}, "prompt_tokens is True"),
        ({"prompt": "x", "output_tokens": 10_000_001}, {}, "output_tokens is 10000001"),
        ({"prompt": "x", "output_tokens": True}, {}, "output_tokens is True"),
        ({"prompt": 7}, {}, "neither conversations nor prompt; found prompt"),
    ],
)
def test_faults_of_dialogues(tmp_path, record, keys, part):
    with pytest.raises(SieveError) as error:
        load(tmp_path, "s.jsonl", [record], format="sharegpt", **keys, **BURST)
    assert part in str(error.value)


def test_the_largest_lengths_are_read(tmp_path):
    usage = {"prompt_tokens": 10_000_000, "completion_tokens": 1}
    got = load(tmp_path, "s.jsonl", [{"usage": usage}], format="sharegpt", **BURST)
    assert got.input_tokens.tolist() == [10_000_000]


def test_entries_of_a_list_are_counted_from_one(tmp_path):
    (tmp_path / "s.json").write_text(json.dumps([{"prompt_tokens": 1, "completion_tokens": 1}, 5]))
    spec = TrafficSpec(trace="s.json", format="sharegpt", **BURST)
    with pytest.raises(TraceError, match="entry 2: expected a JSON object, found '5'"):
        load_traffic(spec, seed=0, base_dir=tmp_path)


def test_failed_requests_of_dialogues_are_counted(tmp_path):
    records = [{"prompt_tokens": 5, "completion_tokens": n} for n in (3, 0, 4, 2)]
    got = load(tmp_path, "s.jsonl", records, format="sharegpt", **BURST)
    assert sorted(got.output_tokens.tolist()) == [2, 3, 4]
    assert "1 failed requests (0 output tokens) left out" in got.notes
