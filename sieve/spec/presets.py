"""Presets: the specs shipped under `examples/`, named without folder and ending."""

from __future__ import annotations

import re
from pathlib import Path

from sieve.catalog.names import nearest_names
from sieve.errors import Fault, SpecError
from sieve.resources import data_folder, exists


def preset_names() -> list[str]:
    """Return the names of the shipped specs, such as `chat`."""
    return sorted(path.stem for path in data_folder("examples").glob("*.yaml"))


def find_spec(source: str | Path) -> Path:
    """Return the path of a spec: the file itself, or the preset of that name where there is none.

    Raises:
        SpecError: neither; the nearest presets are named.
    """
    path, name = Path(source), str(source)
    if exists(path) or not re.fullmatch(r"[A-Za-z0-9_-]+", name):
        return path
    shipped = data_folder("examples") / f"{name}.yaml"
    if shipped.is_file():
        return shipped
    names = preset_names()
    near = nearest_names(name, names)
    raise SpecError(
        name,
        [
            Fault(
                "",
                f"no such file and no preset; nearest preset: {', '.join(near)}. "
                f"Presets are {', '.join(names)}",
            )
        ],
    )
