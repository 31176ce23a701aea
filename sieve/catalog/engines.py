"""Engine profiles: defaults, validity rules, memory ledger and replay switches of a version."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

import yaml

from sieve.catalog.architecture import EngineProfile, Gpu
from sieve.catalog.names import nearest_names
from sieve.errors import CatalogError
from sieve.resources import package_data
from sieve.units import GIB

_YAML_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_REQUEST: Final = re.compile(r"\s*([A-Za-z][\w-]*)\s*(?:==\s*(\S+))?\s*")
_VERSION: Final = re.compile(r"\d{1,4}(\.\d{1,4}){0,3}")


def load_engine(text: str) -> EngineProfile:
    """Return the profile of `reference`, `vllm` or `vllm==<version>`.

    A version without a profile gets the nearest one, marked `substituted` and with a note.

    Raises:
        CatalogError: unknown engine, or a version that cannot be read.
    """
    request = _REQUEST.fullmatch(text)
    if request is None:
        raise CatalogError(f"engine {text!r} is not `name` or `name==version`; {_available()}")
    name, wanted = request[1].lower(), request[2]
    profiles = [entry for entry in list_engines() if entry.name == name]
    if not profiles:
        nearest = ", ".join(nearest_names(name, {entry.name for entry in list_engines()}))
        raise CatalogError(f"unknown engine {name!r}; nearest: {nearest}; {_available()}")
    if wanted is None:
        latest = max(profiles, key=lambda entry: _numbers(entry.version))
        return replace(latest, requested=text.strip())
    if _VERSION.fullmatch(wanted) is None:
        raise CatalogError(
            f"engine {text!r}: version {wanted!r} is not numbers joined by dots, as in 0.33.0"
        )
    if not profiles[0].version:
        raise CatalogError(f"engine {text!r}: {name} has no versions; write `engine: {name}`")
    nearest_profile = min(profiles, key=lambda entry: _gap(wanted, entry.version))
    profile = replace(nearest_profile, requested=text.strip())
    if _release(wanted) == _release(profile.version):
        return profile
    return _substituted(profile, wanted)


def list_engines() -> list[EngineProfile]:
    """Return every profile that ships, `requested` by its own name."""
    folder = package_data("catalog", "data", "engines")
    return [_profile(path.name) for path in sorted(folder.glob("*.yaml"))]


def default_for_gpu(profile: EngineProfile, option: str, gpu: Gpu) -> Any:
    """Return the default of an engine option on this accelerator.

    Options that depend on the memory take the first line whose least memory the device reports and
    whose exceptions do not name it.

    Raises:
        CatalogError: the profile has no default for this option.
    """
    if option not in profile.defaults:
        nearest = ", ".join(nearest_names(option, profile.defaults))
        raise CatalogError(
            f"{profile.name} {profile.version}: no default for {option!r}; nearest: {nearest}"
        )
    value = profile.defaults[option]
    if not isinstance(value, list):
        return value
    words = set(re.split(r"[^A-Z0-9]+", f"{gpu.name} {gpu.like}".upper()))
    for tier in value:
        excluded = words & set(tier.get("except", ()))
        if gpu.memory_bytes >= tier["min_memory_gib"] * GIB and not excluded:
            return tier["value"]
    raise CatalogError(f"{profile.name} {profile.version}: no default of {option} fits {gpu.name}")


@lru_cache(maxsize=16)
def _document(file_name: str) -> Mapping[str, Any]:
    path = package_data("catalog", "data", "engines", file_name)
    document: Mapping[str, Any] = yaml.load(path.read_text(encoding="utf-8"), Loader=_YAML_LOADER)
    return document


def _profile(file_name: str) -> EngineProfile:
    document = _document(file_name)
    name, version = document["name"], document["version"]
    return EngineProfile(
        name=name,
        version=version,
        requested=f"{name}=={version}" if version else name,
        substituted=False,
        defaults=document["defaults"],
        rules=tuple(document["rules"]),
        ledger={key: float(value) for key, value in document["ledger"].items()},
        replay=document["replay"],
        notes=tuple(document["notes"]),
    )


def _substituted(profile: EngineProfile, wanted: str) -> EngineProfile:
    """Return the profile as a stand-in for a version that has none."""
    notes = [
        f"no profile of {profile.name} {wanted}: the one of {profile.version} stands in; defaults "
        "and rules of that version may differ"
    ]
    ledger = dict(profile.ledger)
    since = _document(f"{profile.name}-{profile.version}.yaml").get("graphs_inside_budget_from")
    if since is not None and _numbers(wanted) < _numbers(since):
        ledger["graph_bytes"] = 0.0
        notes.append(f"before {since} the memory of CUDA graphs lies outside the budget: 0 here")
    return replace(profile, substituted=True, ledger=ledger, notes=(*notes, *profile.notes))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part)


def _release(version: str) -> tuple[int, int]:
    """Return major and minor version; patch releases share a profile."""
    numbers = (*_numbers(version), 0, 0)
    return numbers[0], numbers[1]


def _gap(wanted: str, version: str) -> tuple[int, int]:
    asked, have = _release(wanted), _release(version)
    return abs(asked[0] - have[0]), abs(asked[1] - have[1])


def _available() -> str:
    return "available: " + ", ".join(entry.requested for entry in list_engines())
