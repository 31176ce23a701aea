"""Agent sessions of kv-cache-tester (AIPerf's and GuideLLM's `weka`): what a coding agent asked.

JSON: one session, a list of sessions, or a session a line, with `id`, `block_size` and `requests`,
each `t`, `in`, `out`, `hash_ids`, `think_time`, `api_time`, sub-agents nested with `requests` of
their own. Or the same as a table with `session_id`, `agent_id`, `t`, `parent_t`, `in`, `out`,
`think_time`, `api_time`, `hash_ids`. Seconds; blocks are numbered inside a session and hold whole
blocks only.

A turn arrives `think_time` after the answer before it. When a session begins is not recorded:
`traffic.arrival` states it. A sub-agent begins where its parent started it, on the parent's clock.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import numpy as np
import polars as pl

from sieve.arrays import Requests
from sieve.errors import TraceError
from sieve.traces.files import TraceFile, read_columns, token_counts
from sieve.traces.jsonl import check_counts, check_types
from sieve.traces.records import Records, block_lists, check_range, to_requests

BLOCK_TOKENS: Final = 64
TABLE: Final = ("session_id", "agent_id", "t", "parent_t", "in", "out", "think_time", "hash_ids")
_TYPES: Final = {"t": pl.Float64(), "think_time": pl.Float64(), "api_time": pl.Float64(),
                 "hash_ids": pl.List(pl.Int64())}  # fmt: skip
_MAX_DEPTH: Final = 8


def read(file: TraceFile) -> Requests:
    """Return the turns; `arrival_s` is the place of a chain's first turn in its session.

    Raises:
        TraceError: a session or turn that cannot be read; file and line, or session and turn, are
            named.
    """
    if file.is_parquet or file.columns:
        optional = [name for name in ("api_time",) if name in file.columns]
        frame, rows = read_columns(file, [*TABLE, *optional])
        return _requests(file, frame, rows, BLOCK_TOKENS)
    found: list[dict[str, Any]] = []
    sizes = set()
    for session, where, line in _sessions(file):
        sizes.add(_block_size(session, where))
        name = str(session.get("id", f"session {line}"))
        found.extend(_turns(session.get("requests"), name, "", 0.0, where, line, 0))
    if len(sizes) != 1:
        raise TraceError(f"{file.label}: block_size differs between sessions: {sorted(sizes)[:5]}")
    if not found:
        raise TraceError(f"{file.label}: no session has requests")
    frame = pl.DataFrame(
        found,
        schema={"session_id": pl.String, "agent_id": pl.String, "t": pl.Float64,
                "parent_t": pl.Float64, "in": pl.Int64, "out": pl.Int64, "think_time": pl.Float64,
                "api_time": pl.Float64, "hash_ids": pl.List(pl.Int64), "line": pl.Int64},
    )  # fmt: skip
    return _requests(file, frame, frame["line"].to_numpy() - file.first_row, sizes.pop())


def _requests(file: TraceFile, frame: pl.DataFrame, rows: Any, block_tokens: int) -> Requests:
    n = len(frame)
    for name in ("session_id", "agent_id"):
        frame = frame.with_columns(pl.col(name).cast(pl.String).fill_null(""))
    chain = pl.struct("session_id", "agent_id").rank("dense").cast(pl.Int64)
    numbers = frame.with_columns(
        *(pl.col(c).cast(pl.Float64, strict=False) for c in ("t", "parent_t", "think_time"))
    ).select(
        "t", "think_time", "session_id",
        parent_t=pl.col("parent_t").fill_null(0.0), chain=chain,
        session=pl.col("session_id").rank("dense").cast(pl.Int64) - 1,
        first=pl.int_range(pl.len()).over("session_id", "agent_id") == 0,
        gap=pl.col("t").diff().over("session_id", "agent_id"),
    )  # fmt: skip
    api = (
        frame.select(
            pl.col("api_time").cast(pl.Float64).shift(1).over("session_id", "agent_id")
        ).to_series()
        if "api_time" in frame.columns
        else pl.Series([None] * n, dtype=pl.Float64)
    )
    think = numbers["think_time"].to_numpy().astype(np.float64)
    first = numbers["first"].to_numpy()
    # A pause that is not recorded is what is left of the gap between the two starts.
    rest = np.maximum(numbers["gap"].to_numpy() - api.fill_null(0.0).to_numpy(), 0.0)
    unknown = ~first & np.isnan(think)
    notes = []
    if unknown.any():
        notes.append(f"{int(unknown.sum())} think times are missing; taken from the turns' starts")
    delay = np.where(first, np.nan, np.where(unknown, rest, think))
    begin = numbers["parent_t"].to_numpy() + numbers["t"].to_numpy()
    names = ("in", "out")
    if frame.schema["in"] == pl.Int64 and not file.columns:
        tokens = [
            check_range(file, rows, frame[name].to_numpy(), name, least=least)
            for name, least in zip(names, (1, 0), strict=True)
        ]
    else:
        tokens = [
            token_counts(file, frame, rows, name, least=least)
            for name, least in zip(names, (1, 0), strict=True)
        ]
    blocks = block_lists(frame["hash_ids"], rows, block_tokens, file, whole_only=True)
    session = numbers["session"].to_numpy().astype(np.int64)
    if blocks is not None:  # the same number in another session is another block
        owner = np.repeat(session, np.diff(blocks.start))
        low = int(blocks.ids.min(initial=0))
        width = int(blocks.ids.max(initial=0)) - low + 1
        blocks = replace(blocks, ids=owner * width + blocks.ids - low)
    requests = to_requests(
        Records(
            file=file,
            rows=rows,
            input_tokens=tokens[0],
            output_tokens=tokens[1],
            time_s=np.where(first, begin, np.nan),
            delay_s=delay,
            session=np.asarray(numbers["chain"].to_numpy(), np.int64),
            blocks=blocks,
            names={"blocks": "hash_ids", "time": "t", "output": "out"},
            notes=tuple(notes),
        )
    )
    return _with_sessions(requests, numbers)


def _with_sessions(requests: Requests, numbers: pl.DataFrame) -> Requests:
    """Return the requests with the session, not the agent, as their conversation."""
    chain, session = (numbers[name].to_numpy() for name in ("chain", "session"))
    of_chain = np.zeros(int(chain.max()) + 1, np.int64)
    of_chain[chain] = session
    assert requests.session is not None
    return replace(requests, session=of_chain[requests.session])


def _sessions(file: TraceFile) -> Iterator[tuple[dict[str, Any], str, int]]:
    """Yield each session with its place and line."""
    for document, where, line in documents(file):
        if isinstance(document.get("requests"), list):
            yield document, where, line
        else:
            raise TraceError(f"{where}: no session: `requests` is missing or no list")


def documents(file: TraceFile) -> Iterator[tuple[dict[str, Any], str, int]]:
    """Yield the objects of a JSON document, a list of them, or one a line, with place and line.

    Raises:
        TraceError: no JSON, or something else than objects.
    """
    try:
        whole = json.loads(file.content)
    except (ValueError, RecursionError):
        whole = None
    if whole is not None:
        for i, item in enumerate(whole if isinstance(whole, list) else [whole]):
            where = f"{file.label}, entry {i + 1}"
            if not isinstance(item, dict):
                raise TraceError(f"{where}: expected a JSON object, found {str(item)[:40]!r}")
            yield item, where, i + 1
        return
    for line, text in enumerate(io.BytesIO(file.content), 1):
        if not text.strip():
            continue
        where = f"{file.label}, line {line}"
        try:
            item = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise TraceError(f"{where}: no JSON ({str(error)[:80]})") from None
        if not isinstance(item, dict):
            raise TraceError(f"{where}: expected a JSON object, found {str(item)[:40]!r}")
        yield item, where, line


def _block_size(session: dict[str, Any], where: str) -> int:
    size = session.get("block_size", BLOCK_TOKENS)
    if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= 1 << 20:
        raise TraceError(f"{where}: block_size is {size!r}; expected a number of tokens")
    return size


def _turns(
    requests: Any, session: str, agent: str, parent_t: float, where: str, line: int, depth: int
) -> Iterator[dict[str, Any]]:
    """Yield the turns of an agent and of the sub-agents below it."""
    if depth > _MAX_DEPTH:
        raise TraceError(f"{where}: sub-agents nested deeper than {_MAX_DEPTH}")
    if not isinstance(requests, list):
        raise TraceError(f"{where}: `requests` of {agent or 'the session'} is no list")
    for i, turn in enumerate(requests):
        place = f"{where}, request {i + 1}" + (f" of {agent}" if agent else "")
        if not isinstance(turn, dict):
            raise TraceError(f"{place}: expected a JSON object")
        check_types(turn, place, _TYPES)
        start = turn.get("t")
        if "requests" in turn:
            name = f"{agent}/{turn.get('agent_id', i)}"
            begin = parent_t + float(start or 0.0)
            yield from _turns(turn["requests"], session, name, begin, where, line, depth + 1)
            continue
        check_counts(turn, place, ("in", "out"))
        if start is None:
            raise TraceError(f"{place}: t is missing; expected seconds from the session's start")
        think, api = (turn.get(name) for name in ("think_time", "api_time"))
        yield {
            "session_id": session, "agent_id": agent, "t": float(start), "parent_t": parent_t,
            "in": turn["in"], "out": turn["out"],
            "think_time": None if think is None else float(think),
            "api_time": None if api is None else float(api),
            "hash_ids": turn.get("hash_ids"), "line": line,
        }  # fmt: skip
