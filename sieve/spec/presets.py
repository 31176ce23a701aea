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


def _instead(path: Path) -> str:
    """Return what may have been meant by a path that is not there."""
    if path.stem in preset_names():
        return f"the shipped one is the preset {path.stem}"
    beside = [other.name for other in path.parent.glob("*.yaml")] if exists(path.parent) else []
    near = nearest_names(path.name, beside)
    return f"beside it: {', '.join(near)}" if near else "check the path"


def find_spec(source: str | Path) -> Path:
    """Return the path of a spec: the file itself, or the preset of that name where there is none.

    Raises:
        SpecError: neither; the nearest presets are named.
    """
    path, name = Path(source), str(source)
    if exists(path):
        return path
    if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
        raise SpecError(name, [Fault("", f"no such run spec; {_instead(path)}")])
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
