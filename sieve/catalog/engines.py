"""Engine profiles: defaults, validity rules, memory ledger and replay switches of a version."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

import yaml

from sieve.catalog.architecture import EngineProfile, Gpu, ModelArchitecture
from sieve.catalog.names import nearest_names
from sieve.errors import CatalogError
from sieve.resources import package_data
from sieve.units import GIB

_YAML_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_REQUEST: Final = re.compile(r"\s*([A-Za-z][\w-]*)\s*(?:==\s*(\S+))?\s*")
_HOPPER: Final = 9.0
_VERSION: Final = re.compile(r"\d{1,4}(\.\d{1,4}){0,3}")


def load_engine(text: str) -> EngineProfile:
    """Return the profile of `reference`, `vllm` or `vllm==<version>`.

    A profile answers for the releases that it covers. A version outside every range gets the
    nearest profile, marked `substituted` and with a note.

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
    nearest_profile = min(profiles, key=lambda entry: _gap(wanted, entry))
    profile = replace(nearest_profile, requested=text.strip())
    if _gap(wanted, profile) == 0:
        return profile
    return _substituted(profile, wanted)


def list_engines() -> list[EngineProfile]:
    """Return every profile that ships, newest first, `requested` by its own name."""
    folder = package_data("catalog", "data", "engines")
    profiles = [_profile(path.name) for path in folder.glob("*.yaml")]
    profiles.sort(key=lambda entry: _numbers(entry.version), reverse=True)
    return sorted(profiles, key=lambda entry: entry.name)


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


def default_block_size(profile: EngineProfile, model: ModelArchitecture, gpu: Gpu) -> int:
    """Return the tokens of a KV block unless told otherwise.

    Kernels of latent attention on Hopper and later prefer longer blocks.
    """
    latent = any(kind.kind == "latent" for kind in model.kinds)
    modern = (gpu.compute_capability or 0.0) >= _HOPPER
    if latent and modern and profile.cache.get("latent"):
        return int(profile.cache["latent_block_size"])
    return int(profile.defaults["block_size"])


def chunks_prompts(profile: EngineProfile, model: ModelArchitecture) -> bool:
    """Return whether the engine cuts prompts to the token budget unless told otherwise."""
    above = profile.defaults.get("chunked_prefill_above")
    longest = model.max_position_embeddings or 0
    return bool(profile.defaults.get("enable_chunked_prefill", True)) or (
        above is not None and longest > above
    )


@lru_cache(maxsize=16)
def _document(file_name: str) -> Mapping[str, Any]:
    path = package_data("catalog", "data", "engines", file_name)
    document: dict[str, Any] = yaml.load(path.read_text(encoding="utf-8"), Loader=_YAML_LOADER)
    if "extends" not in document:
        return document
    # Mappings are laid over those of the profile that this one extends, key by key.
    merged = dict(_document(document.pop("extends")))
    for key, value in document.items():
        merged[key] = {**merged[key], **value} if isinstance(value, dict) else value
    return merged


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
        covers=tuple(document.get("covers", ("", ""))),
        cache=document.get("cache", {}),
        capability=document.get("capability", {}),
        expert_block_floor=document.get("expert_block_floor", 0),
    )


def _substituted(profile: EngineProfile, wanted: str) -> EngineProfile:
    """Return the profile as a stand-in for a version that has none."""
    notes = [
        f"no profile of {profile.name} {wanted}: the one of {profile.version} stands in; defaults "
        "and rules of that version may differ"
    ]
    return replace(profile, substituted=True, notes=(*notes, *profile.notes))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part)


def _gap(wanted: str, profile: EngineProfile) -> int:
    """Return how many releases a version lies outside those that a profile covers."""
    asked = _place(wanted)
    first, last = (_place(end or profile.version) for end in profile.covers)
    return max(first - asked, asked - last, 0)


def _place(version: str) -> int:
    """Return a number that orders releases; patch releases share a profile."""
    major, minor, *_ = (*_numbers(version), 0, 0)
    return 10_000 * major + minor


def _available() -> str:
    return "available: " + ", ".join(entry.requested for entry in list_engines())
