"""Formats that are only a naming of columns; each states its unit of time.

| format | from |
|---|---|
| `burstgpt_csv` | BurstGPT: seconds, a response of 0 tokens is a failed request |
| `guidellm_csv` | GuideLLM `trace_synthetic` as CSV: seconds |
| `llmservingsim` | LLMServingSim: nanoseconds |
| `sieve_table` | sieve's own table (docs/traffic.md): Parquet or CSV, units in the names |
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from sieve.arrays import Requests
from sieve.catalog.names import nearest_names
from sieve.errors import TraceError
from sieve.traces import columns
from sieve.traces.files import TraceFile, listing
from sieve.traces.records import to_requests

BURSTGPT: Final = columns.Layout(
    {
        "time": "Timestamp",
        "input": "Request tokens",
        "output": "Response tokens",
        "session": "Session ID",
    },
    seconds=1.0,
    unit="s",
)
GUIDELLM: Final = columns.Layout(
    {
        "time": "timestamp",
        "input": "input_length",
        "output": "output_length",
        "session": "conversation_id",
    },
    seconds=1.0,
    unit="s",
)
LLMSERVINGSIM: Final = columns.Layout(
    {"time": "arrival_time_ns", "input": "input_toks", "output": "output_toks"},
    seconds=1e-9,
    unit="ns",
)
OWN: Final = columns.Layout(
    {
        "time": "arrival_s",
        "input": "input_tokens",
        "output": "output_tokens",
        "session": "session_id",
        "delay": "delay_s",
        "blocks": "prefix_block_ids",
        "id": "request_id",
    },
    seconds=1.0,
    unit="s",
)
_OWN_OTHERS: Final = ("prefix_block_tokens", "source_line")


def read_burstgpt(file: TraceFile) -> Requests:
    """Return the requests of a BurstGPT file, GPT-4 and ChatGPT rows alike.

    Raises:
        TraceError: a column is missing, or a cell cannot be read; file and line are named.
    """
    return to_requests(columns.read(file, BURSTGPT))


def read_guidellm(file: TraceFile) -> Requests:
    """Return the requests of a GuideLLM trace in CSV.

    Raises:
        TraceError: a column is missing, or a cell cannot be read; file and line are named.
    """
    return to_requests(columns.read(file, GUIDELLM))


def read_llmservingsim(file: TraceFile) -> Requests:
    """Return the requests of an LLMServingSim file.

    Raises:
        TraceError: a key is missing, or a value cannot be read; file and line are named.
    """
    return to_requests(columns.read(file, LLMSERVINGSIM))


def read_own(file: TraceFile) -> Requests:
    """Return the requests of a table of sieve's own columns; every column must be known.

    Raises:
        TraceError: an unknown or missing column, or a cell that cannot be read.
    """
    known = [*OWN.columns.values(), *_OWN_OTHERS]
    for name in file.columns:
        if name not in known:
            near = nearest_names(name, known)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise TraceError(
                f"{file.label}: column {name[:40]} is not known{hint} Known: {listing(known)}; "
                "map other tables with format access_log and columns"
            )
    layout = replace(OWN, block_tokens=_block_tokens(file))
    return to_requests(columns.read(file, layout))


def _block_tokens(file: TraceFile) -> int:
    """Return the tokens of a prefix block, the same in every row; 512 where no blocks are told."""
    if "prefix_block_tokens" not in file.columns:
        if "prefix_block_ids" in file.columns:
            raise TraceError(
                f"{file.label}: prefix_block_ids without prefix_block_tokens; "
                "add the column with the tokens of a block"
            )
        return 512
    from sieve.traces.files import read_columns, token_counts

    frame, rows = read_columns(file, ("prefix_block_tokens",))
    sizes = set(token_counts(file, frame, rows, "prefix_block_tokens", least=1).tolist())
    if len(sizes) != 1:
        raise TraceError(
            f"{file.label}: prefix_block_tokens holds {len(sizes)} sizes; expected one"
        )
    return int(sizes.pop())
