"""Entry point: the commands, and how errors become messages and exit codes.

Nothing heavy is imported here: `sieve --help` must answer at once, so each command imports what it
needs when it runs.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import Annotated, Any, Final

import typer

from sieve.cli import (
    batch,
    bound,
    calibrate,
    catalogue,
    compare,
    evaluate,
    explain,
    fit,
    fleet,
    nightly,
    plan,
    replay,
    report,
    run,
    schema,
    serve,
    slim,
    tables,
    trace,
    verify,
    verify_measured,
    verify_memory,
    verify_tracking,
)
from sieve.cli.following import add_examples
from sieve.cli.output import fail, print_json
from sieve.errors import SieveError

INTERRUPTED: Final = 130
_UsageError: Any = typer.BadParameter.__bases__[0]

app = typer.Typer(
    name="sieve",
    help="Find the language-model deployment that meets your service levels, without a GPU.",
    epilog="Start with: sieve run chat. Help on a command: sieve run --help",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help pages: the decorated ones take three times as long
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run")(run.run)
app.command("batch")(batch.batch)
app.command("nightly")(nightly.nightly)
app.command("explain")(explain.explain)
app.command("replay")(replay.replay)
app.command("plan")(plan.plan)
app.command("compare")(compare.compare)
app.command("report")(report.report)
app.command("models")(catalogue.models)
app.command("gpus")(catalogue.gpus)
app.command("engines")(catalogue.engines)
app.command("schema")(schema.schema)
app.command("serve")(serve.serve)
app.command("bound")(bound.bound)
app.command("eval")(evaluate.evaluate)
app.command("fit")(fit.fit)
app.command("check")(fit.check)
app.command("calibrate")(calibrate.calibrate)
app.add_typer(fleet.app)
app.add_typer(slim.app)
app.add_typer(tables.app)
app.add_typer(trace.app)
verify.app.command("memory")(verify_memory.memory)
verify.app.command("measured")(verify_measured.measured)
verify.app.command("tracking")(verify_tracking.tracking)
verify.app.command("steps")(verify_measured.steps)
app.add_typer(verify.app)


def _version(show: bool) -> None:
    if show:
        from sieve.version import __version__

        typer.echo(f"sieve {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Find the language-model deployment that meets your service levels, without a GPU."""


add_examples(app)


def main() -> None:
    """Run the command line and exit with the code of the contract."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    as_json = "--json" in sys.argv[1:]
    try:
        code = app(standalone_mode=False)
        sys.stdout.flush()
        sys.exit(code if isinstance(code, int) else 0)
    except _UsageError as error:
        error.show()
        if as_json:
            print_json({"error": "usage", "message": error.format_message()})
        sys.exit(2)
    except typer.Abort:
        print("interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
    except SieveError as error:
        fail(error, as_json=as_json)
        sys.exit(2)
    except MemoryError:
        print(
            "error: out of memory; take fewer requests or a smaller grid, or go on with --resume "
            "on a larger machine",
            file=sys.stderr,
        )
        sys.exit(2)
    except OSError as error:
        if error.filename is not None:
            fail(SieveError(f"{error.filename}: {error.strerror}"), as_json=as_json)
            sys.exit(2)
        if error.errno not in {errno.ENOSPC, errno.EPIPE}:
            raise
        _drop_stdout()
        if error.errno == errno.ENOSPC:
            print(f"error: cannot write the output: {error.strerror}", file=sys.stderr)
            sys.exit(2)
        sys.exit(0)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)


def _drop_stdout() -> None:
    """Send what is left to nowhere, so that the interpreter does not complain at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
