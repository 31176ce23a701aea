"""`sieve slim`: calibrate the saturation model, predict from it, recommend a batch cap."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from sieve.cli.completing import complete_gpu, complete_model
from sieve.cli.following import next_command, options
from sieve.cli.output import JsonFlag, print_json
from sieve.errors import InvalidInput, ResultError

if TYPE_CHECKING:
    from sieve.calibration.saturation import Calibration
    from sieve.report.slim_page import Curve

NO_BATCH: Final = 4
"""Exit code when no batch keeps the limits."""

EXAMPLE_MODEL = "llama-2-7b"
app = typer.Typer(
    name="slim",
    help="Saturation model: throughput and latency of one GPU against the batch.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Params = Annotated[
    Path, typer.Option("--params", help="Parameters that `sieve slim fit --out` wrote.")
]
Model = Annotated[
    str,
    typer.Argument(
        help="Catalogue name, alias, or a path to config.json.",
        metavar="MODEL",
        autocompletion=complete_model,
    ),
]
GpuChoice = Annotated[
    str | None,
    typer.Option("--gpu", help="GPU; by default the one of the fit.", autocompletion=complete_gpu),
]
Isl = Annotated[float, typer.Option("--isl", help="Input tokens of a request.")]
Osl = Annotated[float, typer.Option("--osl", help="Output tokens of a request.")]
KvDtype = Annotated[str, typer.Option("--kv-cache-dtype", help="`fp8` halves the cache traffic.")]
Plot = Annotated[
    Path | None, typer.Option("--plot", help="Write the curves as an HTML page.", metavar="FILE")
]


@app.command("fit")
def fit(
    files: Annotated[
        list[Path],
        typer.Argument(help="CSV tables or `vllm bench serve` results.", metavar="FILE..."),
    ],
    gpu: Annotated[
        str | None,
        typer.Option(
            "--gpu",
            help="Whose points; needed if the files name several.",
            autocompletion=complete_gpu,
        ),
    ] = None,
    engine: Annotated[
        str, typer.Option("--engine", help="Use only points of this engine: vllm, trtllm ...")
    ] = "",
    variant: Annotated[
        str, typer.Option("--variant", help="Form of the decode term: printed or dense_offset.")
    ] = "printed",
    holdout: Annotated[
        str,
        typer.Option(
            "--holdout",
            help="Points to judge by instead of fitting: same_curve, model=NAME, isl=N, osl=N, "
            "batch=N (N or LOW..HIGH), or a transfer scenario.",
        ),
    ] = "",
    out: Annotated[
        Path | None, typer.Option("--out", help="Write the parameters as JSON.", metavar="FILE")
    ] = None,
    plot: Plot = None,
    as_json: JsonFlag = False,
) -> None:
    """Fit the six parameters to measured points of one GPU.

    Example: `sieve slim fit sweep.csv --gpu h100-sxm --holdout same_curve --out params.json`
    """
    from sieve.calibration.observations import read_observations
    from sieve.calibration.saturation import calibrate
    from sieve.formulas.slim_model import read_variant
    from sieve.report.slim import print_fit
    from sieve.report.slim_page import curve_page
    from sieve.results import to_json

    found = calibrate(
        read_observations(files),
        gpu=gpu,
        engine=engine,
        variant=read_variant(variant),
        holdout=holdout,
    )
    document = found.document
    if out is not None:
        _write(out, to_json(document))
    if plot is not None:
        title = f"Saturation model on {document['hardware']['gpu']}, {document['variant']} form"
        note = f"Dots are measured, lines fitted; mean error {document['mape_percent']:.1f} %."
        _write(plot, curve_page(title, [note, *document["warnings"]], _fitted_curves(found)))
    if as_json:
        print_json(document)
        return
    print_fit(document)
    _print_written(out, plot)
    if out is not None:
        next_command("slim", "advise", EXAMPLE_MODEL, "--params", out, "--isl", 512, "--osl", 256)
    else:
        kept = options(gpu=gpu, engine=engine, variant=variant, holdout=holdout)
        next_command("slim", "fit", *files, *kept, "--out", "params.json")


@app.command("predict")
def predict(
    model: Model,
    params: Params,
    isl: Isl,
    osl: Osl,
    batch: Annotated[str, typer.Option("--batch", help="One batch, or several: 1,8,32.")],
    gpu: GpuChoice = None,
    kv_cache_dtype: KvDtype = "",
    as_json: JsonFlag = False,
) -> None:
    """Predict latency and throughput at some batches.

    Example: `sieve slim predict llama-2-7b --params params.json --isl 512 --osl 256 --batch 1,8,32`
    """
    from sieve.calibration import advice
    from sieve.calibration.saturation import read_document
    from sieve.report.slim import print_predictions

    result = advice.predict(
        read_document(params), model, gpu=gpu, isl=isl, osl=osl, batches=_batches(batch),
        kv_dtype=kv_cache_dtype,
    )  # fmt: skip
    if as_json:
        print_json(result)
    else:
        print_predictions(result)
        kept = options(isl=isl, osl=osl, gpu=gpu, kv_cache_dtype=kv_cache_dtype)
        next_command("slim", "advise", model, "--params", params, *kept)


@app.command("advise")
def advise(
    model: Model,
    params: Params,
    isl: Isl,
    osl: Osl,
    gpu: GpuChoice = None,
    slo: Annotated[
        str | None, typer.Option("--slo", help="Latency limit of a batch: 10, `10 s`, `800 ms`.")
    ] = None,
    slo_factor: Annotated[
        float | None,
        typer.Option("--slo-factor", help="Limit as a multiple of a reference batch: 2 or 4."),
    ] = None,
    epsilon: Annotated[
        float, typer.Option("--epsilon", help="Least efficiency T(B)/(B T(1)).")
    ] = 0.1,
    b_max: Annotated[int, typer.Option("--b-max", help="Largest batch to consider.")] = 512,
    kv_cache_dtype: KvDtype = "",
    plot: Plot = None,
    as_json: JsonFlag = False,
) -> None:
    """Recommend the batch cap: most throughput within a latency and an efficiency limit.

    Without --slo and --slo-factor the limit is twice the latency of the reference batch.

    Example: `sieve slim advise llama-2-7b --params params.json --isl 512 --osl 256 --slo "20 s"`
    """
    from sieve.calibration import advice
    from sieve.calibration.saturation import read_document
    from sieve.report.slim import print_advice
    from sieve.units import parse_quantity

    if slo is not None and slo_factor is not None:
        raise InvalidInput("--slo and --slo-factor are both given; keep one of them")
    if b_max < 1:
        raise InvalidInput(f"--b-max is {b_max}; it must be at least 1")
    result = advice.advise(
        read_document(params), model, gpu=gpu, isl=isl, osl=osl, epsilon=epsilon, b_max=b_max,
        slo_s=None if slo is None else parse_quantity(slo, "s"),
        slo_factor=2.0 if slo_factor is None else slo_factor, kv_dtype=kv_cache_dtype,
    )  # fmt: skip
    if plot is not None:
        _write(plot, _advice_page(result))
    if as_json:
        print_json(result)
    else:
        print_advice(result)
        _print_written(None, plot)
        kept = options(isl=isl, osl=osl, gpu=gpu, kv_cache_dtype=kv_cache_dtype)
        cap = result["answer"]["B_cap"]
        if cap is not None:
            next_command("slim", "predict", model, "--params", params, *kept, "--batch", cap)
        else:  # without limits of one's own there is always a batch
            next_command("slim", "advise", model, "--params", params, *kept)
    if result["answer"]["B_cap"] is None:
        raise typer.Exit(NO_BATCH)


def _batches(text: str) -> list[float]:
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError as error:
        raise InvalidInput(f"--batch {text!r}: expected numbers such as 1,8,32") from error
    return sorted(set(values))


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ResultError(f"{path}: cannot be written: {error.strerror or error}") from error


def _print_written(out: Path | None, plot: Path | None) -> None:
    for name, path in (("Params", out), ("Plot", plot)):
        if path is not None:
            print(f"{name:<7} {path}")


def _fitted_curves(found: Calibration) -> list[Curve]:
    """Return one curve for each model and pair of lengths, those with most points first."""
    from sieve.formulas.slim_scenarios import knee_index
    from sieve.report.slim_page import Curve

    groups: dict[tuple[str, float, float], dict[float, tuple[float, float]]] = {}
    for row, fitted in zip(found.rows, found.predicted, strict=True):
        points = groups.setdefault((row.model, row.isl, row.osl), {})
        points.setdefault(row.batch, (row.tokens_per_s, fitted))
    curves = []
    for (model, isl, osl), points in sorted(groups.items(), key=lambda item: -len(item[1])):
        batches = sorted(points)
        tokens = isl + osl
        rates = [points[b][0] for b in batches]
        fitted_rates = [points[b][1] for b in batches]
        times = [b * tokens / t for b, t in zip(batches, fitted_rates, strict=True)]
        knee = None
        if len(batches) > 1 and rates[0] != rates[-1]:
            knee = batches[knee_index(batches, rates)]
        curves.append(
            Curve(
                label=f"{model}, {isl:g} tokens in, {osl:g} out",
                batches=batches,
                throughput=[(t, t, t) for t in fitted_rates],
                latency_s=[(t, t, t) for t in times],
                measured=[(b, t, b * tokens / t) for b, t in zip(batches, rates, strict=True)],
                knee=knee,
            )
        )
    return curves


def _advice_page(result: dict[str, Any]) -> str:
    from sieve.report.slim_page import Curve, curve_page

    rows, answer = result["curve"], result["answer"]
    curve = Curve(
        label=f"{result['isl']:g} tokens in, {result['osl']:g} out",
        batches=[row["batch"] for row in rows],
        throughput=[
            tuple(row[f"throughput{end}"] for end in ("_low", "", "_high")) for row in rows
        ],
        latency_s=[tuple(row[f"e2e{end}"] for end in ("_low", "", "_high")) for row in rows],
        knee=result["knee_B"],
        cap=answer["B_cap"],
        slo_s=answer["slo_s"],
    )
    cap = "none" if answer["B_cap"] is None else answer["B_cap"]
    notes = [f"B_cap {cap}: {result['reason']}.", *result["warnings"]]
    foot = [f"{entry['about']}: {entry['text']}" for entry in result["assumptions"]]
    return curve_page(f"{result['model']} on {result['gpu']} (estimate)", notes, [curve], foot)
