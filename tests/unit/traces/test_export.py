"""What is written is read back as the same traffic, and as the other tools' rules want it."""

from __future__ import annotations

import json

import numpy as np
import pytest

from sieve.arrays import PrefixBlocks, Requests
from sieve.errors import InvalidInput, TraceError
from sieve.spec import TrafficSpec
from sieve.traces import load_traffic
from sieve.traces.commands import summary_of
from sieve.traces.draw import draw
from sieve.traces.export import resized, write
from sieve.traces.reuse import hit_curve, stack_distances


def back(path, form):
    keys = {} if form == "sieve_table" else {"format": form}
    return load_traffic(TrafficSpec(trace=path.name, **keys), seed=0, base_dir=path.parent)


def conversation():
    """Two sessions of 512-token blocks; the second turn of each goes on from the first."""
    prompt = np.array([700, 1300, 500, 1024])
    return Requests(
        arrival_s=np.array([0.0, 0.0, 1.25, 1.25]),
        input_tokens=prompt,
        output_tokens=np.array([5, 6, 7, 8]),
        source="x",
        prefix=PrefixBlocks(512, np.array([0, 2, 5, 6, 8]), np.array([0, 1, 0, 2, 3, 4, 4, 5]),
                            prompt),
        previous=np.array([-1, 0, -1, 2]),
        delay_s=np.array([0.0, 0.5, 0.0, 2.0]),
        session=np.array([0, 0, 1, 1]),
        line=np.arange(4) + 1,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "form"),
    [("t.jsonl", "mooncake_trace"), ("t.parquet", "sieve_table"), ("t.csv", "sieve_table")],
)
def test_sessions_and_prefixes_come_back(tmp_path, name, form):
    before = conversation()
    written = write(before, tmp_path / name)
    assert written["format"] == form
    after = back(tmp_path / name, form)
    for field in ("arrival_s", "input_tokens", "output_tokens", "previous", "delay_s"):
        assert getattr(after, field).tolist() == getattr(before, field).tolist(), field
    assert after.prefix.ids.tolist() == before.prefix.ids.tolist()
    assert after.prefix.start.tolist() == before.prefix.start.tolist()


def test_aiperf_lines_hold_what_its_loader_asks(tmp_path):
    write(conversation(), tmp_path / "t.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()]
    assert rows[0] == {"timestamp": 0.0, "session_id": "0", "input_length": 700,
                       "output_length": 5, "hash_ids": [0, 1]}  # fmt: skip
    assert rows[1] == {"session_id": "0", "delay": 500.0, "input_length": 1300,
                       "output_length": 6, "hash_ids": [0, 2, 3]}  # fmt: skip
    for row in rows:
        assert 512 * (len(row["hash_ids"]) - 1) < row["input_length"] <= 512 * len(row["hash_ids"])


def test_timed_trace_is_seconds_in_blocks_of_16(tmp_path):
    before = conversation()
    with pytest.raises(TraceError, match="2 turns wait"):
        write(before, tmp_path / "t.jsonl", "timed_trace")
    free = Requests(before.arrival_s, before.input_tokens, before.output_tokens, source="x",
                    prefix=before.prefix)  # fmt: skip
    write(free, tmp_path / "t.jsonl", "timed_trace")
    after = back(tmp_path / "t.jsonl", "timed_trace")
    assert after.arrival_s.tolist() == [0.0, 0.0, 1.25, 1.25]
    assert np.diff(after.prefix.start).tolist() == [44, 82, 32, 64]
    # 512 shared tokens of the first pair; 500 tokens, 31 whole blocks of 16, of the second.
    a, b, c, d = np.split(after.prefix.ids, after.prefix.start[1:-1])
    assert (a[:32] == b[:32]).all()
    assert a[32] != b[32]
    assert (c[:31] == d[:31]).all()


def test_blocks_change_their_size():
    prompt = np.array([100, 100])
    prefix = PrefixBlocks(
        16, np.array([0, 7, 14]), np.array([*range(7), 0, 1, 2, 3, 7, 8, 9]), prompt
    )
    start, ids = resized(prefix, 32)
    assert start.tolist() == [0, 4, 8]
    first, second = np.split(ids, 2)
    assert (first[:2] == second[:2]).all()
    assert first[2] != second[2]
    with pytest.raises(TraceError, match="blocks of 16"):
        resized(prefix, 24)
    # Blocks that are not told get numbers that nobody else has.
    beginning = PrefixBlocks(16, np.array([0, 2, 4]), np.array([0, 1, 0, 1]), prompt)
    start, ids = resized(beginning, 16)
    assert np.diff(start).tolist() == [7, 7]
    assert len(np.unique(ids)) == 2 + 5 + 5


def test_a_closed_loop_has_nothing_to_write(tmp_path):
    loop = Requests(np.zeros(2), np.ones(2, int), np.ones(2, int), closed_loop_users=3, source="x")
    with pytest.raises(TraceError, match="closed loop"):
        write(loop, tmp_path / "t.jsonl")
    with pytest.raises(InvalidInput, match="expected mooncake_trace"):
        write(conversation(), tmp_path / "t.txt")
    with pytest.raises(InvalidInput, match="cannot be written"):
        write(conversation(), tmp_path / "none" / "t.jsonl")


def naive_distances(ids):
    stack, found = [], []
    for block in ids:
        found.append(stack.index(block) if block in stack else -1)
        if block in stack:
            stack.remove(block)
        stack.insert(0, block)
    return found


def test_stack_distances_are_those_of_a_list():
    rng = np.random.default_rng(0)
    for n in (1, 2, 7, 64, 300):
        for kinds in (1, 3, 50):
            ids = rng.integers(0, kinds, n)
            assert stack_distances(ids).tolist() == naive_distances(ids.tolist())


def test_the_hit_curve_is_that_of_an_lru_cache():
    # Blocks 0 1 | 0 2 | 1 3 | 0 1 of 10 tokens each, prompts of 20 tokens: 80 tokens in all.
    prefix = PrefixBlocks(10, np.array([0, 2, 4, 6, 8]), np.array([0, 1, 0, 2, 1, 3, 0, 1]),
                          np.full(4, 20))  # fmt: skip
    curve = hit_curve(prefix)
    ratio = dict(zip(curve.cache_tokens.tolist(), curve.hit_ratio.tolist(), strict=True))
    # An LRU list of 2 blocks keeps the first 0 for the second request: 1 hit of 8 uses. With 4
    # blocks all repeats hit: 0, 1, 0, 1.
    assert ratio[20.0] == pytest.approx(1 / 8)
    assert ratio[40.0] == pytest.approx(4 / 8)
    assert curve.sampled == 1.0


def test_a_summary_keeps_the_reuse_of_prefixes():
    """Of 3,000 prompts of 4 blocks every second goes on from one 10 requests ago."""
    rng = np.random.default_rng(1)
    n, chains = 3000, []
    fresh = iter(range(10**6))
    for i in range(n):
        head = chains[i - 10][:3] if i >= 10 and i % 2 else []
        chains.append([*head, *(next(fresh) for _ in range(4 - len(head)))])
    prompt = np.full(n, 64)
    requests = Requests(
        np.cumsum(rng.exponential(0.1, n)), prompt, np.full(n, 9), source="x",
        prefix=PrefixBlocks(16, np.arange(n + 1) * 4, np.concatenate(chains), prompt),
    )  # fmt: skip
    summary = summary_of(requests)
    again = draw(summary, n, None, 0)
    # 3 of 4 blocks in half of the requests.
    for traffic in (requests, again):
        assert hit_curve(traffic.prefix).unlimited == pytest.approx(0.375, abs=0.02)
    near = hit_curve(again.prefix)
    small = np.interp(16 * 16, near.cache_tokens, near.hit_ratio)
    large = np.interp(128 * 16, near.cache_tokens, near.hit_ratio)
    assert small < 0.1
    assert large > 0.3
    text = summary.to_json()
    assert type(summary).from_json(text, "x").to_json() == text
    assert len(text) < 8000


def test_a_summary_keeps_sessions():
    rng = np.random.default_rng(2)
    sessions, turns = 300, 5
    n = sessions * turns
    place = np.tile(np.arange(turns), sessions)
    start = np.repeat(np.cumsum(rng.exponential(10.0, sessions)), turns)
    requests = Requests(
        start, 1000 + 200 * place, np.full(n, 50), source="x",
        previous=np.where(place > 0, np.arange(n) - 1, -1), delay_s=np.where(place > 0, 4.0, 0.0),
    )  # fmt: skip
    again = draw(summary_of(requests), n, None, 3)
    # Every session has five turns and the prompt grows by 200, so only starts are free.
    assert again.input_tokens.tolist() == requests.input_tokens[: len(again)].tolist()
    assert (again.previous >= 0).mean() == pytest.approx(0.8, abs=0.01)
    assert set(again.delay_s[again.previous >= 0].tolist()) == {4.0}


def test_arrivals_in_steps_stay_in_steps():
    rng = np.random.default_rng(3)
    arrival_s = np.sort(np.repeat(np.arange(400) * 3.0, rng.poisson(10, 400)))
    n = len(arrival_s)
    summary = summary_of(Requests(arrival_s, np.full(n, 100), np.full(n, 10), source="x"))
    assert summary.step_s == 3.0
    again = draw(summary, n, None, 0).arrival_s
    assert (np.abs(again / 3.0 - np.rint(again / 3.0)) < 1e-9).all()
    counts = [np.unique(t, return_counts=True)[1].var() for t in (arrival_s, again)]
    assert counts[1] == pytest.approx(counts[0], rel=0.3)
