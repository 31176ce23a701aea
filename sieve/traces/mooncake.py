"""Traces with shared prefixes: one JSON object a line.

`mooncake_trace` is AIPerf's name for the form of the Mooncake traces: times in milliseconds,
prompts told as blocks of 512 tokens by number, turns of a session after one another.
`timed_trace` is the form of vLLM's benchmark: the same names, seconds, blocks of 16 tokens.
`guidellm_mooncake` and `guidellm_trace` are GuideLLM's: seconds, blocks of 512 tokens.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import polars as pl

from sieve.arrays import FloatArray, Requests
from sieve.errors import TraceError
from sieve.traces import jsonl
from sieve.traces.chains import block_lists
from sieve.traces.files import TraceFile
from sieve.traces.records import (
    Records,
    check_range,
    session_codes,
    to_requests,
    whole_numbers,
)


@dataclass(frozen=True)
class Form:
    """How one of these formats counts.

    Attributes:
        name: the format.
        seconds: of one unit of time.
        unit: its name, for messages.
        block_tokens: tokens in a prefix block.
    """

    name: str
    seconds: float
    unit: str
    block_tokens: int


FORMS: Final = {
    form.name: form
    for form in (
        Form("mooncake_trace", 1e-3, "ms", 512),
        Form("timed_trace", 1.0, "s", 16),
        Form("guidellm_mooncake", 1.0, "s", 512),
        Form("guidellm_trace", 1.0, "s", 512),
    )
}
_COUNTS: Final = ("input_length", "output_length")
_SCHEMA: Final[Mapping[str, pl.DataType]] = {
    "timestamp": jsonl.NUMBER,
    "delay": jsonl.NUMBER,
    "session_id": jsonl.TEXT,
    "input_length": jsonl.COUNT,
    "output_length": jsonl.COUNT,
    "hash_ids": jsonl.IDS,
    "priority": jsonl.COUNT,
}
_LITERAL: Final = ("text_input", "messages", "payload")


def read(file: TraceFile, form: Form) -> Requests:
    """Return the requests of a trace; turns of a session wait for the answer before.

    A turn with a `delay` arrives that long after the previous turn's answer; one with a `timestamp`
    arrives then. `input_length` is the whole prompt, with all that the session said before.

    Raises:
        TraceError: a line that is no such request; file and line are named.
    """
    return to_requests(_records(file, form))


def _records(file: TraceFile, form: Form) -> Records:
    """Return what the lines say; the frame that they were read into ends here."""
    frame, rows, notes = jsonl.read_lines(file, _SCHEMA, _COUNTS, _check_record)
    return Records(
        file=file,
        rows=rows,
        input_tokens=check_range(
            file, rows, frame["input_length"].to_numpy(), "input_length", least=1
        ),
        output_tokens=check_range(
            file, rows, frame["output_length"].to_numpy(), "output_length", least=0
        ),
        time_s=_seconds(frame["timestamp"], form),
        delay_s=_seconds(frame["delay"], form),
        session=session_codes(frame["session_id"]),
        blocks=block_lists(frame["hash_ids"], rows, form.block_tokens, file),
        priority=whole_numbers(frame["priority"], rows, file),
        unit=form.unit,
        names={"blocks": "hash_ids"},
        notes=tuple(notes),
    )


def _seconds(series: pl.Series, form: Form) -> FloatArray:
    return np.asarray(series.to_numpy().astype(np.float64) * form.seconds, np.float64)


def _check_record(record: dict[str, Any], where: str) -> None:
    for key in _LITERAL:
        if key in record and "input_length" not in record:
            raise TraceError(
                f"{where}: {key} holds text, and its tokens are not known here; "
                "convert it to input_length with the model's tokenizer"
            )
    jsonl.check_counts(record, where, _COUNTS)
    session = record.get("session_id")
    if session is not None and not isinstance(session, str | int):
        raise TraceError(f"{where}: session_id is {json.dumps(session)[:40]}; expected text")
    jsonl.check_types(record, where, _SCHEMA)
