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

from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Final

import numpy as np
import polars as pl

from sieve.arrays import Requests
from sieve.errors import TraceError
from sieve.traces.chains import block_lists
from sieve.traces.documents import documents, fault
from sieve.traces.files import TraceFile, read_columns, token_counts
from sieve.traces.jsonl import check_counts, check_types
from sieve.traces.records import Records, check_range, to_requests

BLOCK_TOKENS: Final = 64
TABLE: Final = ("session_id", "agent_id", "t", "parent_t", "in", "out", "think_time", "hash_ids")
_TYPES: Final = {"t": pl.Float64(), "think_time": pl.Float64(), "api_time": pl.Float64(),
                 "hash_ids": pl.List(pl.Int64())}  # fmt: skip
_TURN: Final = {
    "session_id": pl.String(), "agent_id": pl.String(), "t": pl.Float64(),
    "parent_t": pl.Float64(), "in": pl.Int64(), "out": pl.Int64(), "think_time": pl.Float64(),
    "api_time": pl.Float64(), "hash_ids": pl.List(pl.Int64()), "line": pl.Int64(),
}  # fmt: skip
_GIVEN: Final = ("t", "in", "out", "think_time", "api_time", "hash_ids")
_WIDE: Final = 2**63
_MAX_DEPTH: Final = 8
_TURNS_AT_A_TIME: Final = 50_000


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
    frame, block_tokens = _from_json(file)
    return _requests(file, frame, frame["line"].to_numpy() - file.first_row, block_tokens)


def _from_json(file: TraceFile) -> tuple[pl.DataFrame, int]:
    """Return a row a turn, and the tokens of a block; a session with a fault is left out whole."""
    frames = []
    found: dict[str, list[Any]] = {name: [] for name in _TURN}
    sizes = set()
    for session, where, number in documents(file):
        begin = len(found["t"])
        try:
            size = _block_size(session, where)
            name = str(session.get("id", f"session {number}"))
            _add_turns(found, session.get("requests"), _Place(name, "", 0.0, where, number))
            sizes.add(size)
        except TraceError as error:
            fault(file, number, where, str(error))
            for values in found.values():
                del values[begin:]
        if len(found["t"]) > _TURNS_AT_A_TIME:
            frames.append(pl.DataFrame(found, schema=_TURN))
            found = {name: [] for name in _TURN}
    frame = pl.concat([*frames, pl.DataFrame(found, schema=_TURN)], rechunk=False)
    if not len(frame):
        file.faults.conclude(file.label)
        raise TraceError(f"{file.label}: no session has requests")
    if len(sizes) != 1:
        raise TraceError(
            f"{file.label}: block_size differs between sessions: {sorted(sizes)[:5]}; "
            "give sessions of one size a file of their own"
        )
    return frame, sizes.pop()


def _requests(file: TraceFile, frame: pl.DataFrame, rows: Any, block_tokens: int) -> Requests:
    n = len(frame)
    for name in ("session_id", "agent_id"):
        frame = frame.with_columns(pl.col(name).cast(pl.String).fill_null(""))
    numbers = frame.with_columns(
        *(pl.col(c).cast(pl.Float64, strict=False) for c in ("t", "parent_t", "think_time"))
    ).select(
        "t", "think_time", "session_id",
        parent_t=pl.col("parent_t").fill_null(0.0),
        chain=pl.struct("session_id", "agent_id").rank("dense").cast(pl.Int64),
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
        width = int(blocks.ids.max(initial=0)) - int(blocks.ids.min(initial=0)) + 1
        blocks = replace(blocks, ids=owner * width + blocks.ids)
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
    number, session = (numbers[name].to_numpy() for name in ("chain", "session"))
    of_chain = np.zeros(int(number.max()) + 1, np.int64)
    of_chain[number] = session
    assert requests.session is not None
    return replace(requests, session=of_chain[requests.session])


def _block_size(session: dict[str, Any], where: str) -> int:
    size = session.get("block_size", BLOCK_TOKENS)
    if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= 1 << 20:
        raise TraceError(f"{where}: block_size is {size!r}; expected a number of tokens")
    return size


@dataclass(frozen=True)
class _Place:
    """Whose turns these are, and where they stand.

    Attributes:
        session: its name.
        agent: the sub-agent's name, empty for the session itself.
        parent_t: seconds from the session's start to the agent's.
        where: file and line, for messages.
        number: of the line or entry.
        depth: sub-agents above.
    """

    session: str
    agent: str
    parent_t: float
    where: str
    number: int
    depth: int = 0


def _add_turns(found: dict[str, list[Any]], requests: Any, of: _Place) -> None:
    """Add the turns of an agent and of the sub-agents below it to the columns.

    Raises:
        TraceError: a turn that cannot be read.
    """
    if of.depth > _MAX_DEPTH:
        raise TraceError(f"{of.where}: sub-agents nested deeper than {_MAX_DEPTH}")
    if not isinstance(requests, list):
        whose = of.agent or "the session"
        raise TraceError(f"{of.where}: no session: `requests` of {whose} is missing or no list")
    columns = _columns(requests)
    if columns is not None:
        _add(found, columns, of)
        return
    own: list[dict[str, Any]] = []
    for i, turn in enumerate(requests):
        below = _checked(turn, i, of)
        if below is None:
            own.append(turn)
            continue
        _add(found, {name: [turn.get(name) for turn in own] for name in _GIVEN}, of)
        own = []
        _add_turns(found, turn["requests"], below)
    _add(found, {name: [turn.get(name) for turn in own] for name in _GIVEN}, of)


def _add(found: dict[str, list[Any]], columns: dict[str, list[Any]], of: _Place) -> None:
    for name, values in columns.items():
        found[name] += values
    for name, value in (
        ("session_id", of.session), ("agent_id", of.agent), ("parent_t", of.parent_t),
        ("line", of.number),
    ):  # fmt: skip
        found[name] += [value] * len(columns["t"])


def _columns(requests: list[Any]) -> dict[str, list[Any]] | None:
    """Return what turns state; None if one is a sub-agent or has a fault, which `_checked` tells.

    Types are compared a column at a time, because a test for each value takes most of the time.
    """
    if not {dict}.issuperset(map(type, requests)) or any("requests" in turn for turn in requests):
        return None
    columns = {name: [turn.get(name) for turn in requests] for name in _GIVEN}
    for name in ("in", "out"):
        values = columns[name]
        if not {int}.issuperset(map(type, values)) or max(map(abs, values), default=0) >= _WIDE:
            return None
    if not {int, float}.issuperset(map(type, columns["t"])):
        return None
    for name in ("think_time", "api_time"):
        if not {int, float, type(None)}.issuperset(map(type, columns[name])):
            return None
    known = [v for name in ("t", "think_time", "api_time") for v in columns[name] if v is not None]
    if max(map(abs, known), default=0) >= _WIDE:
        return None
    lists = [ids for ids in columns["hash_ids"] if ids is not None]
    if not {list}.issuperset(map(type, lists)):
        return None
    if not {int}.issuperset(map(type, chain.from_iterable(lists))):
        return None
    wide = any(max(ids) >= _WIDE or min(ids) < -_WIDE for ids in lists if ids)
    return None if wide else columns


def _checked(turn: Any, i: int, of: _Place) -> _Place | None:
    """Return the place of a sub-agent, None for a turn.

    Raises:
        TraceError: what is wrong with a turn.
    """
    place = f"{of.where}, request {i + 1}" + (f" of {of.agent}" if of.agent else "")
    if not isinstance(turn, dict):
        raise TraceError(f"{place}: expected a JSON object")
    check_types(turn, place, _TYPES)
    start = turn.get("t")
    if "requests" in turn:
        name = f"{of.agent}/{turn.get('agent_id', i)}"
        begin = of.parent_t + float(start or 0.0)
        return _Place(of.session, name, begin, of.where, of.number, of.depth + 1)
    check_counts(turn, place, ("in", "out"))
    if start is None:
        raise TraceError(f"{place}: t is missing; expected seconds from the session's start")
    return None
