"""Entry point: the commands, and how errors become messages and exit codes.

Nothing heavy is imported here: `sieve --help` must answer at once, so each command imports what it
needs when it runs.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated, Final

import typer

from sieve.cli import catalogue, explain, run, schema
from sieve.cli.output import fail
from sieve.errors import NotYetError, SieveError

INTERRUPTED: Final = 130
NOT_YET: Final = (
    "batch", "nightly", "compare", "plan", "calibrate", "replay", "fit", "check", "bound", "slim",
    "trace", "tables", "verify", "eval", "report", "serve",
)  # fmt: skip
"""Commands of the contract whose machinery comes later."""

app = typer.Typer(
    name="sieve",
    help="Find the language-model deployment that meets your service levels, without a GPU.",
    epilog="Start with: sieve run examples/chat.yaml",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help pages: the decorated ones take three times as long
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run")(run.run)
app.command("explain")(explain.explain)
app.command("models")(catalogue.models)
app.command("gpus")(catalogue.gpus)
app.command("engines")(catalogue.engines)
app.command("schema")(schema.schema)


def _version(show: bool) -> None:
    if show:
        from sieve import __version__

        typer.echo(f"sieve {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Find the language-model deployment that meets your service levels, without a GPU."""


def _add_later(name: str) -> None:
    @app.command(
        name,
        hidden=True,
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )
    def later() -> None:
        raise NotYetError(
            f"`sieve {name}` is not yet in this version; available are run, explain, models, gpus, "
            "engines and schema"
        )


for _name in NOT_YET:
    _add_later(_name)


def main() -> None:
    """Run the command line and exit with the code of the contract."""
    try:
        app()
    except SieveError as error:
        fail(error, as_json="--json" in sys.argv[1:])
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        # The reader went away; keep the interpreter from complaining at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
