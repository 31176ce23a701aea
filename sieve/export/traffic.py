"""The run's traffic as JSON lines that the benchmarks replay, and that is read back as it was.

AIPerf's `mooncake_trace` (milliseconds, prefix blocks of 512 tokens); where the run's own blocks
have 16 tokens, vLLM's `timed_trace` (seconds). Times are whole nanoseconds, as in a replay.

`vllm bench serve` builds a prompt from its blocks alone: without any it would send empty prompts.
So each prompt of traffic that shares none has numbered blocks of its own under another key.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import polars as pl

from sieve.arrays import FloatArray, Requests, chain_starts
from sieve.units import NS_PER_S

FILE: Final = "traffic.jsonl"
OWN_BLOCKS: Final = "prompt_blocks"
SHARED_BLOCKS: Final = "hash_ids"
MOONCAKE_TOKENS: Final = 512


@dataclass(frozen=True)
class TrafficFile:
    """What a benchmark must be told of the traffic.

    Attributes:
        name: of the file.
        format: `mooncake_trace` or `timed_trace`, as `traffic.format` of a spec.
        unit_s: seconds of one unit of its times.
        block_tokens: tokens in a block.
        blocks: key of the blocks.
        num_requests: lines.
        users: of a closed loop, else None; then times mean nothing.
        has_sessions: turns wait for the answer before.
    """

    name: str
    format: str
    unit_s: float
    block_tokens: int
    blocks: str
    num_requests: int
    users: int | None
    has_sessions: bool

    def to_json(self) -> dict[str, Any]:
        """Return the facts for a plan."""
        return {
            "file": self.name,
            "format": self.format,
            "num_requests": self.num_requests,
            "closed_loop_users": self.users,
            "has_sessions": self.has_sessions,
            "blocks_key": self.blocks,
            "block_tokens": self.block_tokens,
        }


def file_of(requests: Requests, name: str = FILE) -> TrafficFile:
    """Return how these requests are written."""
    prefix = requests.prefix
    mooncake = prefix is None or prefix.block_tokens == MOONCAKE_TOKENS
    return TrafficFile(
        name=name,
        format="mooncake_trace" if mooncake else "timed_trace",
        unit_s=1e-3 if mooncake else 1.0,
        block_tokens=MOONCAKE_TOKENS if prefix is None else prefix.block_tokens,
        blocks=OWN_BLOCKS if prefix is None else SHARED_BLOCKS,
        num_requests=len(requests),
        users=requests.closed_loop_users,
        has_sessions=requests.previous is not None,
    )


def lines_of(requests: Requests, file: TrafficFile, *, unit_s: float | None = None) -> str:
    """Return the traffic as JSON lines.

    Args:
        requests: the traffic.
        file: of `file_of`.
        unit_s: another unit of times than the file's.
    """
    unit_s = unit_s or file.unit_s
    times = pl.Series("timestamp", _units(requests.arrival_s, unit_s))
    columns: dict[str, Any] = {"timestamp": times}
    if requests.previous is not None and requests.delay_s is not None:
        waits = pl.Series(requests.previous >= 0)
        delays = pl.Series("delay", _units(requests.delay_s, unit_s))
        starts = pl.Series(chain_starts(requests.previous))
        columns["timestamp"] = times.to_frame().select(
            pl.when(~waits).then(pl.col("timestamp")).otherwise(None)
        )["timestamp"]
        columns["delay"] = delays.to_frame().select(
            pl.when(waits).then(pl.col("delay")).otherwise(None)
        )["delay"]
        columns["session_id"] = "session-" + starts.cast(pl.String)
    columns["input_length"] = pl.Series(requests.input_tokens)
    columns["output_length"] = pl.Series(requests.output_tokens)
    columns[file.blocks] = _blocks(requests, file)
    out = io.BytesIO()
    pl.DataFrame(columns).write_ndjson(out)
    return out.getvalue().decode()


def _units(seconds: FloatArray, unit_s: float) -> FloatArray:
    """Return times in a unit, rounded to whole nanoseconds."""
    whole = np.rint(seconds * NS_PER_S)
    return np.asarray(whole / (NS_PER_S * unit_s), np.float64)


def _blocks(requests: Requests, file: TrafficFile) -> pl.Series:
    """Return the blocks of each prompt, a list a request."""
    if requests.prefix is not None:
        start, ids = requests.prefix.start, requests.prefix.ids
    else:
        count = -(-requests.input_tokens // file.block_tokens)
        start = np.concatenate(([0], np.cumsum(count))).astype(np.int64)
        ids = np.arange(int(start[-1]))
    lists = np.split(ids, start[1:-1])
    return pl.Series([part.tolist() for part in lists], dtype=pl.List(pl.Int64))


def replica_share(requests: Requests, replicas: int) -> Requests | None:
    """Return what the first of several replicas gets in turn; None where turns cannot be split."""
    if requests.previous is not None or requests.closed_loop_users is not None:
        return None
    return requests.take(np.arange(0, len(requests), replicas))
