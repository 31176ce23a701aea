"""`sieve models`, `sieve gpus`, `sieve engines`: what the catalogues hold."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Final

import typer

from sieve.cli.completing import complete_engine, complete_gpu, complete_model
from sieve.cli.following import next_command
from sieve.cli.output import JsonFlag, print_json

EXAMPLE_MODEL, EXAMPLE_GPU = "Qwen/Qwen3-32B", "H100-SXM-80GB"

_ONE: Final = "Show one entry; aliases are accepted."
ModelName = Annotated[str | None, typer.Argument(help=_ONE, autocompletion=complete_model)]
GpuName = Annotated[str | None, typer.Argument(help=_ONE, autocompletion=complete_gpu)]
EngineName = Annotated[str | None, typer.Argument(help=_ONE, autocompletion=complete_engine)]


def models(name: ModelName = None, as_json: JsonFlag = False) -> None:
    """List the models of the catalogue, or show the facts of one.

    Examples: `sieve models` | `sieve models qwen3-32b-fp8`
    """
    from sieve.catalog.models import list_models, load_model
    from sieve.report.catalogue import print_models

    if name is not None:
        found = load_model(name)
        _show(found, as_json)
        if not as_json:
            next_command("fit", found.name, "--gpu", EXAMPLE_GPU)
        return
    entries = list_models()
    if as_json:
        print_json([asdict(entry) for entry in entries])
        return
    print_models(entries)
    next_command("fit", EXAMPLE_MODEL, "--gpu", EXAMPLE_GPU)


def gpus(name: GpuName = None, as_json: JsonFlag = False) -> None:
    """List the GPUs of the catalogue, or show the facts of one.

    Examples: `sieve gpus` | `sieve gpus h100_sxm`
    """
    from sieve.catalog.accelerators import list_gpus, load_gpu
    from sieve.report.catalogue import print_gpus

    if name is not None:
        gpu = load_gpu(name)
        _show(gpu, as_json)
        if not as_json:
            next_command("fit", EXAMPLE_MODEL, "--gpu", gpu.name)
        return
    entries = list_gpus()
    if as_json:
        print_json([asdict(entry) for entry in entries])
        return
    print_gpus(entries)
    next_command("gpus", EXAMPLE_GPU)


def engines(name: EngineName = None, as_json: JsonFlag = False) -> None:
    """List the engine profiles, or show one.

    Examples: `sieve engines` | `sieve engines vllm==0.19`
    """
    from sieve.catalog.engines import list_engines, load_engine
    from sieve.report.catalogue import print_engines

    if name is not None:
        _show(load_engine(name), as_json)
        if not as_json:
            next_command("fit", EXAMPLE_MODEL, "--gpu", EXAMPLE_GPU, "--engine", name)
        return
    entries = list_engines()
    if as_json:
        print_json([asdict(entry) for entry in entries])
        return
    print_engines(entries)
    next_command("fit", EXAMPLE_MODEL, "--gpu", EXAMPLE_GPU, "--engine", "vllm==0.19")


def _show(entry: Any, as_json: bool) -> None:
    from sieve.report.catalogue import print_facts

    facts = asdict(entry)
    if as_json:
        print_json(facts)
    else:
        print_facts(facts)
