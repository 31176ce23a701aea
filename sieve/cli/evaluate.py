"""`sieve eval`: one formula, or the cases of a file, JSON in and JSON out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from sieve.cli.following import next_command
from sieve.cli.output import JsonFlag, print_json
from sieve.errors import InvalidInput


def evaluate(
    function: Annotated[
        str | None,
        typer.Argument(help="Formula, as in `sizing.kv_pages`.", metavar="FUNCTION"),
    ] = None,
    input_file: Annotated[
        str | None,
        typer.Option("--input", help="JSON of the inputs; stdin by default.", metavar="FILE|-"),
    ] = None,
    cases: Annotated[
        Path | None,
        typer.Option("--cases", help="JSON file of many cases {id, function, inputs}."),
    ] = None,
    list_all: Annotated[
        bool, typer.Option("--list", help="List the formulas; FUNCTION then filters by its start.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Compute one formula, or every case of a file; the answer is always JSON.

    Examples: `echo '{"isl": 8000, "osl": 300}' | sieve eval sizing.prefill_share` |
    `sieve eval --cases cases.json` | `sieve eval --list sizing`
    """
    from sieve.evaluate import answer, evaluate_cases, refusal

    if list_all:
        _list(function or "", as_json=as_json)
        return
    if (function is None) == (cases is None):
        raise InvalidInput(
            "give either FUNCTION or --cases FILE, as in `sieve eval sizing.scaling --input "
            "inputs.json`; `sieve eval --list` lists the functions"
        )
    if function is None or cases is not None:
        if input_file is not None:
            raise InvalidInput("--input belongs to one FUNCTION; --cases carries its own inputs")
        print_json(evaluate_cases(cases or ""))
        return
    try:
        output = answer(function, _inputs(function, input_file))
    except InvalidInput as error:
        output = refusal(error)
    print_json(output)
    if "error" in output:
        print(f"error: {output['message']}", file=sys.stderr)
        raise typer.Exit(2)
    if sys.stdout.isatty() and not as_json:
        next_command("eval", "--list", file=sys.stderr)


def _list(begin: str, *, as_json: bool) -> None:
    """Print the names of the formulas that begin so.

    Raises:
        InvalidInput: none does.
    """
    from sieve.evaluate import FUNCTIONS, unknown_function

    names = [name for name in FUNCTIONS if name.startswith(begin)]
    if not names:
        raise InvalidInput(unknown_function(begin))
    if as_json:
        print_json(names)
        return
    print("\n".join(names))
    print("docs/formulas.md says what each takes and returns.")
    next_command("eval", names[0], "--input", "inputs.json")


def _inputs(function: str, source: str | None) -> Any:
    """Return the inputs from a file or stdin; nothing is read for an unknown function."""
    from sieve.evaluate import FUNCTIONS, read_input, read_json

    if function not in FUNCTIONS:
        return None
    if source not in {None, "-"}:
        return read_input(source or "")
    if sys.stdin.isatty():
        raise InvalidInput("no inputs; give --input FILE or pipe a JSON object to stdin")
    return read_json(sys.stdin.buffer, "stdin")
