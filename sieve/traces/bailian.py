"""Qwen-Bailian traces: JSON lines, seconds, prefix blocks of 16 tokens, turns told by their parent.

Every turn has a timestamp of its own, so it arrives then; the session is kept for routing and
statistics.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import polars as pl

from sieve.arrays import IntArray, Requests, chain_starts
from sieve.errors import TraceError
from sieve.traces import jsonl
from sieve.traces.chains import block_lists
from sieve.traces.columns import check_ids
from sieve.traces.files import TraceFile
from sieve.traces.records import Records, check_range, to_requests

BLOCK_TOKENS: Final = 16
_NEEDED: Final = ("chat_id", "parent_chat_id", "timestamp", "input_length", "output_length")
_SCHEMA: Final[Mapping[str, pl.DataType]] = {
    "chat_id": pl.Int64(),
    "parent_chat_id": pl.Int64(),
    "timestamp": jsonl.NUMBER,
    "input_length": jsonl.COUNT,
    "output_length": jsonl.COUNT,
    "hash_ids": jsonl.IDS,
}


def read(file: TraceFile) -> Requests:
    """Return the requests of a trace.

    Raises:
        TraceError: a line that is no such request; file and line are named.
    """
    return to_requests(_records(file))


def _records(file: TraceFile) -> Records:
    """Return what the lines say; the frame that they were read into ends here."""
    frame, rows, notes = jsonl.read_lines(file, _SCHEMA, _NEEDED, _check)
    check_ids(file, frame["chat_id"], rows)
    chat, parent = (frame[name].to_numpy() for name in ("chat_id", "parent_chat_id"))
    session, unknown = _sessions(chat, parent)
    if unknown:
        notes.append(f"{unknown} turns follow a chat that is not in the file; sessions begin there")
    lengths = {
        name: check_range(file, rows, frame[name].to_numpy(), name, least=least)
        for name, least in (("input_length", 1), ("output_length", 0))
    }
    return Records(
        file=file,
        rows=rows,
        input_tokens=lengths["input_length"],
        output_tokens=lengths["output_length"],
        time_s=frame["timestamp"].to_numpy().astype(np.float64),
        session=session,
        blocks=block_lists(frame["hash_ids"], rows, BLOCK_TOKENS, file),
        names={"blocks": "hash_ids"},
        notes=tuple(notes),
    )


def _sessions(chat: IntArray, parent: IntArray) -> tuple[IntArray, int]:
    """Return the session of each row, (n,), and how many parents are not in the file."""
    order = np.argsort(chat, kind="stable")
    place = np.searchsorted(chat[order], parent).clip(max=len(chat) - 1)
    found = (chat[order][place] == parent) & (parent != chat)
    before = np.where(found, order[place], -1)
    # A parent below its child would make a cycle possible; only rows above count.
    before = np.where(before < np.arange(len(chat)), before, -1)
    unknown = int(((before < 0) & (parent >= 0)).sum())
    root = chain_starts(before)
    return np.unique(root, return_inverse=True)[1].astype(np.int64), unknown


def _check(record: dict[str, Any], where: str) -> None:
    jsonl.check_counts(record, where, ("input_length", "output_length"))
    for name in ("chat_id", "parent_chat_id"):
        value = record.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= 2**63:
            raise TraceError(f"{where}: {name} is {value!r}; expected a whole number")
    if record.get("timestamp") is None:
        raise TraceError(f"{where}: timestamp is missing; expected seconds")
    jsonl.check_types(record, where, _SCHEMA)
