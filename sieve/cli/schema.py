"""`sieve schema`: the JSON schema of the run spec."""

from __future__ import annotations

from sieve.cli.output import JsonFlag, print_json


def schema(as_json: JsonFlag = False) -> None:  # noqa: ARG001 - JSON either way
    """Print the JSON schema of the run spec, for editors and checks.

    Example: `sieve schema`
    """
    from sieve.spec import json_schema

    print_json(json_schema())
