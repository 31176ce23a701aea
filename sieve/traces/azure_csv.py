"""Azure LLM inference traces: a date-time, context tokens and generated tokens a request.

The columns are those of the 2023 and 2024 releases; the latter write a time zone. A row with 0
generated tokens is a request that failed: it is left out and counted in the notes. A row with 0
context tokens cannot be a request, so it is an error.
"""

from __future__ import annotations

from typing import Final

from sieve.arrays import Requests
from sieve.errors import TraceError
from sieve.traces import columns
from sieve.traces.files import TraceFile
from sieve.traces.records import to_requests

COLUMNS: Final = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
LAYOUT: Final = columns.Layout(dict(zip(("time", "input", "output"), COLUMNS, strict=True)))


def read(file: TraceFile) -> Requests:
    """Return the requests of a trace, sorted by arrival (rows of equal time keep their order).

    Raises:
        TraceError: a column is missing, or a cell cannot be read; file and line are named.
    """
    if file.is_parquet:
        raise TraceError(f"{file.label}: azure_csv is a CSV format, but this is a Parquet file")
    return to_requests(columns.read(file, LAYOUT))
