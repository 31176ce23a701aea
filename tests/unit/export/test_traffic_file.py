"""The traffic that is written is the traffic that was replayed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sieve.arrays import PrefixBlocks, Requests
from sieve.errors import TraceError
from sieve.export.traffic import file_of, lines_of, replica_share
from sieve.sim.replay import ReplaySettings, simulate
from sieve.spec.models import TrafficSpec
from sieve.traces import load_traffic, stored

RNG = np.random.default_rng(7)
COUNT = 300


def plain() -> Requests:
    arrival = np.sort(RNG.uniform(0, 100, COUNT))
    arrival -= arrival[0]
    return Requests(
        arrival_s=arrival,
        input_tokens=RNG.integers(1, 5000, COUNT),
        output_tokens=RNG.integers(1, 800, COUNT),
    )


def with_prefixes(block_tokens: int) -> Requests:
    """Half of each prompt's blocks are those of one of ten documents."""
    requests = plain()
    count = -(-requests.input_tokens // block_tokens)
    start = np.concatenate(([0], np.cumsum(count)))
    ids = np.arange(start[-1]) + 100_000
    for i in range(COUNT):
        shared = count[i] // 2
        ids[start[i] : start[i] + shared] = 1000 * (i % 10) + np.arange(shared)
    known = np.unique(ids, return_inverse=True)[1].astype(np.int64)
    blocks = PrefixBlocks(block_tokens, start.astype(np.int64), known, requests.input_tokens)
    return replace(requests, prefix=blocks)


def with_sessions() -> Requests:
    requests = plain()
    previous = np.full(COUNT, -1)
    previous[1::3] = np.arange(0, COUNT - 1, 3)
    previous[2::3] = np.arange(1, COUNT, 3)
    arrival = requests.arrival_s.copy()
    arrival[1::3] = arrival[0::3]
    arrival[2::3] = arrival[0::3]
    delay = np.where(previous >= 0, RNG.uniform(0, 30, COUNT), 0.0)
    return replace(requests, arrival_s=arrival, previous=previous, delay_s=delay)


TRAFFIC: dict[str, Requests] = {
    "plain": plain(),
    "prefixes of 512": with_prefixes(512),
    "prefixes of 16": with_prefixes(16),
    "sessions": with_sessions(),
}


def read_back(folder: Path, requests: Requests, **spec: Any) -> Requests:
    file = file_of(requests)
    (folder / file.name).write_text(lines_of(requests, file), encoding="utf-8")
    wanted = TrafficSpec(trace=file.name, format=file.format, **spec)
    return load_traffic(wanted, seed=0, base_dir=folder)


def nanoseconds(values: Any) -> Any:
    return np.rint(values * 1e9).astype(np.int64)


@pytest.mark.parametrize("kind", TRAFFIC)
def test_our_reader_reads_back_the_same_requests(kind: str, tmp_path: Path) -> None:
    wanted, found = TRAFFIC[kind], read_back(tmp_path, TRAFFIC[kind])
    assert np.array_equal(found.input_tokens, wanted.input_tokens)
    assert np.array_equal(found.output_tokens, wanted.output_tokens)
    # The replay's clock counts nanoseconds.
    assert np.array_equal(nanoseconds(found.arrival_s), nanoseconds(wanted.arrival_s))
    if wanted.previous is None:
        assert found.previous is None
    else:
        assert found.previous is not None
        assert found.delay_s is not None
        assert np.array_equal(found.previous, wanted.previous)
        assert np.array_equal(nanoseconds(found.delay_s), nanoseconds(wanted.delay_s))
    if wanted.prefix is None:
        assert found.prefix is None
    else:
        assert found.prefix is not None
        assert found.prefix.block_tokens == wanted.prefix.block_tokens
        assert np.array_equal(found.prefix.start, wanted.prefix.start)
        assert np.array_equal(found.prefix.ids, wanted.prefix.ids)


@pytest.mark.parametrize("kind", TRAFFIC)
def test_the_replay_of_the_file_is_the_replay_of_the_run(
    kind: str, tmp_path: Path, tables: Any
) -> None:
    table = tables.affine(base=0.004, per_token=2e-6, per_decode=1e-4, max_tokens=9000)
    settings = ReplaySettings(
        max_num_seqs=16, max_num_batched_tokens=2048, num_gpu_blocks=1200, block_size=16,
        chunked_prefill=True, prefix_caching=True,
    )  # fmt: skip
    one = simulate(TRAFFIC[kind], table, settings)
    other = simulate(read_back(tmp_path, TRAFFIC[kind]), table, settings)
    assert one.num_preemptions.sum() == other.num_preemptions.sum()
    assert np.array_equal(one.first_token_s, other.first_token_s)
    assert np.array_equal(one.finish_s, other.finish_s)


def test_a_closed_loop_is_read_back_with_its_users(tmp_path: Path) -> None:
    wanted = replace(plain(), arrival_s=np.zeros(COUNT), closed_loop_users=12)
    found = read_back(tmp_path, wanted, arrival={"closed_loop": 12})
    assert found.closed_loop_users == 12
    assert np.array_equal(found.input_tokens, wanted.input_tokens)
    assert np.array_equal(found.arrival_s, wanted.arrival_s)


def test_each_line_is_what_the_benchmarks_read() -> None:
    """512 (n - 1) < input_length <= 512 n; no prompt shares a block where none is known."""
    requests = TRAFFIC["plain"]
    file = file_of(requests)
    lines = [json.loads(line) for line in lines_of(requests, file).splitlines()]
    assert len(lines) == COUNT
    seen: set[int] = set()
    for line, prompt, output in zip(
        lines, requests.input_tokens, requests.output_tokens, strict=True
    ):
        assert (line["input_length"], line["output_length"]) == (prompt, output)
        blocks = line[file.blocks]
        assert 512 * (len(blocks) - 1) < prompt <= 512 * len(blocks)
        assert not seen & set(blocks)
        seen |= set(blocks)
        assert "hash_ids" not in line
    assert lines[5]["timestamp"] == pytest.approx(requests.arrival_s[5] * 1e3, abs=1e-6)


def test_turns_wait_by_delay_and_not_by_timestamp() -> None:
    requests = TRAFFIC["sessions"]
    lines = [json.loads(line) for line in lines_of(requests, file_of(requests)).splitlines()]
    assert requests.previous is not None
    for i, line in enumerate(lines):
        waits = requests.previous[i] >= 0
        assert (line["timestamp"] is None) is bool(waits)
        assert (line["delay"] is None) is not bool(waits)
    assert lines[0]["session_id"] == lines[1]["session_id"] != lines[3]["session_id"]


def test_a_replicas_share_is_every_so_manyth_request() -> None:
    requests = TRAFFIC["plain"]
    share = replica_share(requests, 3)
    assert share is not None
    assert np.array_equal(share.input_tokens, requests.input_tokens[[*range(0, COUNT, 3)]])
    assert np.array_equal(share.arrival_s, requests.arrival_s[0::3])
    assert replica_share(TRAFFIC["sessions"], 3) is None


@pytest.mark.parametrize("kind", TRAFFIC)
def test_a_run_folder_keeps_the_same_requests(kind: str) -> None:
    wanted = TRAFFIC[kind]
    block = None if wanted.prefix is None else wanted.prefix.block_tokens
    found = stored.from_frame(
        stored.to_frame(wanted), users=None, block_tokens=block, label="traffic"
    )
    assert stored.digest(found) == stored.digest(wanted)
    assert np.array_equal(found.arrival_s, wanted.arrival_s)
    later = replace(wanted, output_tokens=wanted.output_tokens + 1)
    assert stored.digest(later) != stored.digest(wanted)


@pytest.mark.parametrize("column", ["arrival_s", "input_tokens"])
def test_a_kept_table_without_a_column_is_refused(column: str) -> None:
    frame = stored.to_frame(TRAFFIC["plain"]).drop(column)
    with pytest.raises(TraceError, match=column):
        stored.from_frame(frame, users=None, block_tokens=None, label="traffic")
