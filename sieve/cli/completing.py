"""Values that the shell completes: presets, models, GPUs and engines of the catalogues.

Only small files of the package are read: a shell waits for the answer at every press of the key.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import typer

_MOST_BYTES: Final = 20_000_000
"""Of a result whose candidates are offered."""


def complete_spec(incomplete: str) -> list[str]:
    """Return the presets that begin so; where none does, the shell offers files."""
    from sieve.resources import data_folder

    return _matching(
        incomplete, sorted(path.stem for path in data_folder("examples").glob("*.yaml"))
    )


def complete_model(incomplete: str) -> list[str]:
    """Return the catalogue's models that begin so; the part before the slash may be left out."""
    from sieve.catalog.models import model_names

    return _matching(incomplete, model_names())


def complete_gpu(incomplete: str) -> list[str]:
    """Return the catalogue's GPUs that begin so."""
    from sieve.catalog.accelerators import list_gpus

    return _matching(incomplete, (gpu.name for gpu in list_gpus()))


def complete_engine(incomplete: str) -> list[str]:
    """Return the engines that begin so, each version with a profile of its own."""
    from sieve.catalog.engines import list_engines

    profiles = list_engines()
    names = sorted({profile.name for profile in profiles})
    versions = [f"{p.name}=={p.version}" for p in profiles if p.version]
    return _matching(incomplete, [*names, *versions])


def complete_weight_dtype(incomplete: str) -> list[str]:
    """Return the precisions of weights that begin so."""
    from sieve.catalog.precisions import NOMINAL_WEIGHT_BYTES

    return _matching(incomplete, NOMINAL_WEIGHT_BYTES)


def complete_kv_dtype(incomplete: str) -> list[str]:
    """Return the precisions of the cache that begin so."""
    from sieve.catalog.precisions import KV_BYTES

    return _matching(incomplete, KV_BYTES)


def complete_executor(incomplete: str) -> list[str]:
    """Return the executors that begin so."""
    return _matching(incomplete, ("auto", "local", "ray"))


def complete_traffic(incomplete: str) -> list[str]:
    """Return the shipped traffic that begins so; where none does, the shell offers files."""
    from sieve.resources import package_data

    shipped = package_data("traces", "data").glob("*.json")
    return _matching(incomplete, sorted(path.stem for path in shipped))


def complete_candidate(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the ranked candidates of the run on the line that begin so."""
    path = Path(str(ctx.params.get("run"))) / "result.json"
    try:
        if path.stat().st_size > _MOST_BYTES:
            return []
        ranking = json.loads(path.read_text(encoding="utf-8"))["ranking"]
        names = [str(row["candidate_id"]) for row in ranking]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):  # no run to offer from
        return []
    return _matching(incomplete, names)


def _matching(incomplete: str, names: Iterable[str]) -> list[str]:
    """Return the names in the first spelling that begins so; the catalogues take each of them."""
    whole = list(names)
    short = [name.rpartition("/")[2] for name in whole]
    for spelling in (whole, short, [name.lower() for name in whole], [s.lower() for s in short]):
        found = [name for name in spelling if name.startswith(incomplete)]
        if found:
            return found
    return []
