"""`sieve trace`: what a trace is like, in another format, or drawn anew."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sieve.cli.completing import complete_traffic
from sieve.cli.following import next_command, set_flags
from sieve.cli.output import JsonFlag, print_json
from sieve.errors import InvalidInput

if TYPE_CHECKING:
    from sieve.spec.models import TrafficSpec

app = typer.Typer(
    name="trace",
    help="Traffic: statistics, conversion, synthesis.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

FileArg = Annotated[
    str,
    typer.Argument(
        help="Trace file, folder, or shipped traffic.",
        metavar="FILE",
        autocompletion=complete_traffic,
    ),
]
FormatOpt = Annotated[str | None, typer.Option("--format", help="Format; detected when not given.")]
UnitOpt = Annotated[
    str | None, typer.Option("--time-unit", help="Unit of plain times: s, ms, us, ns.")
]
ColumnOpt = Annotated[
    list[str] | None,
    typer.Option("--column", help="Column of an access log: ts=when, in=prompt, out=answer.",
                 metavar="ROLE=NAME"),
]  # fmt: skip
ErrorOpt = Annotated[
    str,
    typer.Option("--on-error", help="Rows that cannot be read: stop, skip (told), or count."),
]
ArrivalOpt = Annotated[
    str | None,
    typer.Option("--arrival", help="Arrivals where the file has none: poisson_per_s=4.",
                 metavar="K=V"),
]  # fmt: skip
WindowOpt = Annotated[
    str | None, typer.Option("--window", help="Only these seconds: 0:1800.", metavar="A:B")
]
RequestsOpt = Annotated[int | None, typer.Option("--requests", help="How many requests.", min=1)]
RateOpt = Annotated[
    float | None, typer.Option("--rate", help="Scale to this mean rate per second.")
]
SetOpt = Annotated[
    list[str] | None,
    typer.Option("--set", help="Any other key of a spec's traffic: osl=200.", metavar="K=V"),
]
SeedOpt = Annotated[int, typer.Option(help="Seed of what is drawn.", min=0)]


@app.callback()
def root() -> None:
    """Traffic: statistics, conversion, synthesis."""


@app.command("inspect")
def inspect(
    file: FileArg,
    form: FormatOpt = None,
    time_unit: UnitOpt = None,
    column: ColumnOpt = None,
    on_error: ErrorOpt = "stop",
    arrival: ArrivalOpt = None,
    window: WindowOpt = None,
    requests: RequestsOpt = None,
    rate: RateOpt = None,
    overrides: SetOpt = None,
    model: Annotated[str | None, typer.Option(help="Model whose context limit is checked.")] = None,
    tpot: Annotated[str, typer.Option(help="Assumed time per output token.")] = "50 ms",
    ttft: Annotated[str, typer.Option(help="Assumed time to the first token.")] = "1 s",
    summary: Annotated[
        Path | None,
        typer.Option(help="Write the statistics to share, a few kB (.json).", metavar="FILE"),
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write the picture (.html).", metavar="FILE")
    ] = None,
    seed: SeedOpt = 0,
    as_json: JsonFlag = False,
) -> None:
    """Statistics and preconditions of a trace.

    Example: `sieve trace inspect requests.csv --summary requests.summary.json`
    """
    from sieve.traces.commands import inspect_traffic
    from sieve.units import parse_quantity

    spec = traffic_spec(file, form, time_unit, column, on_error, arrival, window, requests, rate,
                        overrides)  # fmt: skip
    data = inspect_traffic(
        spec, seed=seed, model=model, tpot_s=parse_quantity(tpot, "s"),
        ttft_s=parse_quantity(ttft, "s"), summary=summary,
    )  # fmt: skip
    if html is not None:
        from sieve.report.trace_page import trace_page
        from sieve.traces.export import replace_file

        text = trace_page(data)
        replace_file(html, lambda path: path.write_text(text, encoding="utf-8", newline="\n"))
    if as_json:
        print_json(data)
    else:
        from sieve.report.trace import print_trace

        print_trace(data, summary=summary, html=html)
        read = {"format": form, "rate_per_s": rate, "requests": requests}
        keys = [f"traffic.{key}={value}" for key, value in read.items() if value is not None]
        flags = set_flags([f"traffic.trace={file}", *keys])
        next_command("run", "chat", *flags, "--dry-run")


@app.command("convert")
def convert(
    file: FileArg,
    out: Annotated[Path, typer.Option(help="File to write.", metavar="FILE")],
    to: Annotated[
        str | None,
        typer.Option(help="mooncake_trace (AIPerf), timed_trace (vLLM) or sieve_table."),
    ] = None,
    form: FormatOpt = None,
    time_unit: UnitOpt = None,
    column: ColumnOpt = None,
    on_error: ErrorOpt = "stop",
    arrival: ArrivalOpt = None,
    window: WindowOpt = None,
    requests: RequestsOpt = None,
    rate: RateOpt = None,
    overrides: SetOpt = None,
    seed: SeedOpt = 0,
    as_json: JsonFlag = False,
) -> None:
    """Write a trace in a format that benchmarks replay.

    Example: `sieve trace convert requests.csv --out requests.jsonl` (AIPerf's form)
    """
    from sieve.traces import load_traffic
    from sieve.traces.export import target_of, write

    target_of(out, to)
    spec = traffic_spec(file, form, time_unit, column, on_error, arrival, window, requests, rate,
                        overrides)  # fmt: skip
    traffic = load_traffic(spec, seed=seed, base_dir=Path())
    written = write(traffic, out, to) | {"notes": list(traffic.notes)}
    _print_written(written, out, as_json=as_json)


@app.command("synth")
def synth(
    file: Annotated[
        str,
        typer.Argument(
            help="A summary, a run spec, a client model (ServeGen), shipped traffic, or a trace.",
            metavar="FILE",
        ),
    ],
    out: Annotated[Path, typer.Option(help="File to write.", metavar="FILE")],
    to: Annotated[
        str | None,
        typer.Option(help="mooncake_trace (AIPerf), timed_trace (vLLM) or sieve_table."),
    ] = None,
    form: FormatOpt = None,
    arrival: ArrivalOpt = None,
    window: WindowOpt = None,
    requests: RequestsOpt = None,
    rate: RateOpt = None,
    overrides: SetOpt = None,
    seed: SeedOpt = 0,
    as_json: JsonFlag = False,
) -> None:
    """Draw traffic anew from statistics and write it.

    Example: `sieve trace synth requests.summary.json --requests 5000 --out drawn.jsonl`
    """
    from sieve.traces.commands import draw_traffic
    from sieve.traces.export import target_of, write

    target_of(out, to)
    spec = traffic_spec(file, form, None, None, "stop", arrival, window, requests, rate, overrides)
    traffic = draw_traffic(spec, seed=seed)
    written = write(traffic, out, to) | {"notes": list(traffic.notes)}
    _print_written(written, out, as_json=as_json)


def _print_written(written: dict[str, Any], out: Path, *, as_json: bool) -> None:
    if as_json:
        print_json(written)
        return
    from sieve.report.trace import print_written

    print_written(written, out)
    next_command("trace", "inspect", out)


def traffic_spec(
    file: str,
    form: str | None,
    time_unit: str | None,
    column: list[str] | None,
    on_error: str,
    arrival: str | None,
    window: str | None,
    requests: int | None,
    rate: float | None,
    overrides: list[str] | None,
) -> TrafficSpec:
    """Return the options of the command line as a spec's `traffic`.

    Raises:
        InvalidInput: an option that cannot be read.
        SpecError: values that a spec would not take.
    """
    from sieve.spec import parse_yaml
    from sieve.spec.traffic import parse_traffic

    keys: dict[str, Any] = {
        "trace": file, "format": form, "time_unit": time_unit, "requests": requests,
        "rate_per_s": rate,
    }  # fmt: skip
    if on_error != "stop":
        keys["on_error"] = on_error
    if column:
        keys["columns"] = dict(_pair(text, "--column") for text in column)
    if window is not None:
        ends = window.split(":")
        if len(ends) != 2:
            raise InvalidInput(f"--window {window}: expected two times, as in 0:1800")
        keys["window_s"] = ends
    if arrival is not None:
        name, value = _pair(arrival, "--arrival")
        keys["arrival"] = {name: parse_yaml(value, "--arrival")}
    for text in overrides or []:
        name, value = _pair(text, "--set")
        keys[name.removeprefix("traffic.")] = parse_yaml(value, f"--set {name}")
    return parse_traffic(keys)


def _pair(text: str, option: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name or not value:
        raise InvalidInput(f"{option} {text[:60]}: expected NAME=VALUE")
    return name, value
