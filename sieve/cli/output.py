"""Printing for people and for machines."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from sieve.errors import SieveError, SpecError

JsonFlag = Annotated[
    bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else there.")
]


def print_json(value: Any) -> None:
    """Print one JSON document."""
    from sieve.results import to_json

    sys.stdout.write(to_json(value))


def fail(error: SieveError, *, as_json: bool) -> None:
    """Report an error of the input on stderr, and with `--json` as a document on stdout too."""
    if as_json:
        document: dict[str, Any] = {"error": type(error).__name__, "message": str(error)}
        if isinstance(error, SpecError):
            document["faults"] = [
                {"path": fault.path, "line": fault.line, "message": fault.message}
                for fault in error.faults
            ]
        print_json(document)
    print(f"error: {error}", file=sys.stderr)
