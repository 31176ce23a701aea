"""An access log or any other table: the user says which column holds what, and in which unit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sieve.arrays import Requests
from sieve.catalog.names import nearest_names
from sieve.errors import TraceError
from sieve.traces import columns
from sieve.traces.files import TraceFile, listing
from sieve.traces.jsonl import first_records
from sieve.traces.records import to_requests
from sieve.traces.times import SECONDS

SHORT: Final = {
    "ts": "time", "time": "time", "timestamp": "time", "arrival": "time",
    "in": "input", "input": "input", "isl": "input",
    "out": "output", "output": "output", "osl": "output",
    "session": "session", "delay": "delay", "blocks": "blocks", "hash_ids": "blocks",
    "id": "id",
}  # fmt: skip
"""Names of the roles in `columns`, long and short."""


def read(
    file: TraceFile, mapping: Mapping[str, str], time_unit: str | None, block_tokens: int | None
) -> Requests:
    """Return the requests of a CSV, Parquet or JSON-lines file.

    Args:
        file: the log.
        mapping: `{ts, in, out, session, delay, blocks, id}` -> the file's column.
        time_unit: of plain numbers in `ts` and `delay`; date-times need none.
        block_tokens: tokens of a prefix block, needed with `blocks`.

    Raises:
        TraceError: an unknown role, a column that is not there, or a cell that cannot be read.
    """
    roles: dict[str, str] = {}
    for word, name in mapping.items():
        role = SHORT.get(word.lower())
        if role is None:
            raise TraceError(f"columns: {word!r} is no role; expected ts, in, out, session, delay, "
                             "blocks or id")  # fmt: skip
        if role in roles:
            raise TraceError(f"columns: {word!r} names {role} twice ({roles[role]}, {name})")
        roles[role] = name
    missing = [word for word in ("time", "input", "output") if word not in roles]
    if missing:
        example = "--column ts=when --column in=prompt_tokens --column out=completion_tokens"
        raise TraceError(f"{file.label}: an access log needs columns for {', '.join(missing)}, "
                         f"as in {example}")  # fmt: skip
    have = file.columns or tuple(dict.fromkeys(n for r in first_records(file.head) for n in r))
    for word, name in roles.items():
        if name not in have:
            near = nearest_names(name, have)
            hint = f"did you mean {near[0]}? " if near else ""
            raise TraceError(
                f"{file.label}: column {name[:40]} for {word} is not there. {hint}"
                f"Columns found: {listing(have)}"
            )
    if "blocks" in roles and block_tokens is None:
        raise TraceError(f"{file.label}: prefix blocks need their size; set block_tokens")
    layout = columns.Layout(
        roles,
        needed=("time", "input", "output") if "delay" not in roles else ("input", "output"),
        seconds=None if time_unit is None else SECONDS[time_unit],
        unit=time_unit or "date-times",
        block_tokens=block_tokens or 512,
    )
    if "delay" in roles and time_unit is None:
        raise TraceError(f"{file.label}: delays need a unit; set time_unit (--time-unit)")
    return to_requests(columns.read(file, layout))
