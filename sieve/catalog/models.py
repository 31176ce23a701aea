"""Look up a model by catalogue name, alias or config file; `inline_model` reads inline facts."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import yaml

from sieve.catalog.architecture import ModelArchitecture
from sieve.catalog.hf_config import architecture_from_config, no_step_time
from sieve.catalog.hf_features import roofline_features
from sieve.catalog.hf_fields import architecture_name
from sieve.catalog.hf_precision import checkpoint_dtype
from sieve.catalog.inline_models import inline_model
from sieve.catalog.model_names import (
    CONTEXT_NOTE,
    alias_note,
    distance,
    same_maker,
    taken_apart,
)
from sieve.catalog.model_twins import TWINS, Twin
from sieve.catalog.names import listed, nearest_names
from sieve.catalog.safetensors import read_stored_weights
from sieve.errors import CatalogError, NotYetError
from sieve.resources import package_data

__all__ = ["ModelEntry", "inline_model", "list_models", "load_model", "require_step_time"]


_YAML_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MAX_CONFIG_BYTES: Final = 10_000_000
_MAX_NAME: Final = 200  # shorter than what any file system refuses
# Published totals are often rounded to a whole billion; a difference up to this stays unmentioned.
_ROUNDING_SHARE: Final = 0.02
_ALIAS_SIGN: Final = "is read as the catalogue's"
# Publishers whose FP8 checkpoints have one scale for each block of 128 by 128 weights.
_BLOCK_FP8_MAKERS: Final = frozenset({"qwen", "deepseek-ai", "zai-org", "minimaxai", "xiaomimimo"})


@dataclass(frozen=True)
class ModelEntry:
    """One line of the catalogue.

    Attributes:
        name: catalogue name.
        architecture: Hugging Face class, "" if the config names none.
        params: all parameters: counted from the shapes, or as published for unhandled models.
        active_params: parameters that one token visits; None when not published.
        checkpoint_dtype: precision of the published weights, "mixed" if there are several.
        max_position_embeddings: context limit in tokens, None when unknown.
        verified: the shapes were read from a config of this model.
        handled: this version can size the model.
        reason: why it cannot; if it can, which of its layers have step times by roofline only.
    """

    name: str
    architecture: str
    params: float
    active_params: float | None
    checkpoint_dtype: str
    max_position_embeddings: int | None
    verified: bool
    handled: bool
    reason: str = ""


def load_model(
    name: str, *, base_dir: Path | None = None, any_family: bool = False
) -> ModelArchitecture:
    """Return the architecture of a catalogue name, an alias, or a path to a `config.json`.

    Args:
        name: `org/name`, a shorter or longer spelling of it, or a path of a config or its folder.
        base_dir: where relative paths start; the working folder by default.
        any_family: also return models whose step time is not modelled.

    Raises:
        CatalogError: no such model (with the nearest names), or an unreadable config.
        NotYetError: the model is known but its step time is not modelled (see
            `require_step_time`), or its layers are not described.
    """
    model = _load(name, base_dir)
    if not any_family:
        require_step_time(model)
    return model


def require_step_time(model: ModelArchitecture) -> None:
    """Refuse a model whose step time is not modelled.

    Raises:
        NotYetError: with the features that are missing.
    """
    if model.unmodelled_step_time:
        message = no_step_time(model.name, model.architecture, model.unmodelled_step_time)
        alias = [note for note in model.assumed if _ALIAS_SIGN in note]
        raise NotYetError(f"{message} ({alias[0]})" if alias else message)


def _load(name: str, base_dir: Path | None) -> ModelArchitecture:
    if not name.strip():
        raise CatalogError(
            "the model name is empty; give a catalogue name or a path to config.json"
        )
    if name in _catalogue():
        return _from_catalogue(name)
    path = config_file(name, base_dir=base_dir)
    return _from_alias(name) if path is None else _from_file(name, path)


def with_stored_weights(
    model: ModelArchitecture, name: str, *, base_dir: Path | None = None
) -> ModelArchitecture:
    """Return a model with the exact size of its checkpoint, if its folder holds safetensors files.

    Args:
        model: as `load_model` returned it.
        name: that it was loaded by.
        base_dir: where relative paths start.

    Raises:
        CatalogError: a damaged file.
    """
    path = config_file(name, base_dir=base_dir)
    if path is None:
        return model
    found = read_stored_weights(
        path.parent,
        num_layers=model.num_hidden_layers,
        tied=model.tie_word_embeddings,
        in_16_bits=model.checkpoint_dtype in {"bf16", "fp16"} and not model.expert_dtype,
    )
    if found is None:
        return model
    return replace(
        model,
        stored_bytes=found.num_bytes,
        stored_source=found.source,
        assumed=(*model.assumed, *found.notes),
    )


def config_file(name: str, *, base_dir: Path | None = None) -> Path | None:
    """Return the config file that a model name stands for, None for names of the catalogue.

    The file need not exist; `load_model` then says so.
    """
    return None if name in _catalogue() else _config_path(name, base_dir)


def model_names() -> list[str]:
    """Return the names of the catalogue, without reading its entries."""
    return list(_catalogue())


def list_models() -> list[ModelEntry]:
    """Return every model of the catalogue, in order of its name, handled or not."""
    return [_entry(name) for name in _catalogue()]


def _entry(name: str) -> ModelEntry:
    document = _document(name)
    config = document["config"]
    arch = _from_catalogue(name)
    if arch.unmodelled_step_time:
        text = config.get("text_config") or config
        dtype = taken_apart(name).dtype or checkpoint_dtype(config)[0]
        return ModelEntry(
            name=name,
            architecture=architecture_name(config),
            params=float(document["params_total"]),
            active_params=_optional_float(document["params_active"]),
            checkpoint_dtype=dtype,
            max_position_embeddings=text.get("max_position_embeddings"),
            verified=document["verified"],
            handled=False,
            reason=", ".join(arch.unmodelled_step_time),
        )
    return ModelEntry(
        name=name,
        architecture=arch.architecture,
        params=arch.params,
        active_params=arch.active_params,
        checkpoint_dtype=arch.checkpoint_dtype,
        max_position_embeddings=arch.max_position_embeddings,
        verified=arch.verified,
        handled=True,
        reason=", ".join(roofline_features(config)),
    )


def _optional_float(value: float | None) -> float | None:
    return None if value is None else float(value)


@lru_cache(maxsize=1)
def _catalogue() -> dict[str, Path]:
    """Return catalogue name -> file; the names are the files' own."""
    folder = package_data("catalog", "data", "models")
    files = sorted(folder.glob("*.yaml"), key=lambda path: path.name.lower())
    return {path.stem.replace("__", "/", 1): path for path in files}


def _document(name: str) -> dict[str, Any]:
    path = _catalogue()[name]
    document: dict[str, Any] = yaml.load(path.read_text(encoding="utf-8"), Loader=_YAML_LOADER)
    return document


@lru_cache(maxsize=256)
def _from_catalogue(name: str) -> ModelArchitecture:
    """Return a model of the catalogue; its parameters are counted from the shapes."""
    document = _document(name)
    arch = architecture_from_config(
        document["config"],
        name=name,
        source=document["source"],
        verified=document["verified"],
        any_family=True,
    )
    notes = list(arch.assumed)
    if not arch.verified:
        notes.append(
            f"the shapes of {name!r} are not read from a file of this model: {arch.source}"
        )
    if "corrected" in document:
        notes.append(document["corrected"])
    published = float(document["params_total"])
    if abs(arch.params - published) > _ROUNDING_SHARE * published:
        notes.append(
            f"parameters counted from the shapes ({arch.params / 1e9:.2f} billion) instead of the "
            f"rounded total ({published / 1e9:.2f} billion)"
        )
    dtype = taken_apart(name).dtype
    if dtype and dtype != arch.checkpoint_dtype:
        notes.append(f"the name says {dtype} weights, the config names no quantisation")
        arch = replace(arch, checkpoint_dtype=dtype)
    return replace(arch, assumed=tuple(notes))


def _config_path(name: str, base_dir: Path | None) -> Path | None:
    """Return the config file that `name` points at, None if it is no path."""
    if len(name) > _MAX_NAME or "\0" in name:
        return None
    path = Path(name).expanduser() if name.startswith("~/") else Path(name)
    if base_dir is not None:
        path = base_dir / path
    if path.is_dir():
        return path / "config.json"
    if name.endswith(".json") or path.is_file():
        return path
    return None


def _from_file(name: str, path: Path) -> ModelArchitecture:
    if not path.is_file():
        raise CatalogError(f"{path}: no such file; give a config.json or the folder that holds one")
    try:
        size = path.stat().st_size
        if size > _MAX_CONFIG_BYTES:
            raise CatalogError(
                f"{path}: {size} bytes; a model config has at most {_MAX_CONFIG_BYTES} bytes"
            )
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CatalogError(f"{path}: the model config cannot be read: {error}") from error
    try:
        config = json.loads(text, object_pairs_hook=_strict_object, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise CatalogError(f"{path}: not a JSON object: {error}") from error
    if not isinstance(config, dict):
        raise CatalogError(f"{path}: found a JSON {type(config).__name__}, expected an object")
    return architecture_from_config(config, name=name, source=str(path), any_family=True)


def _strict_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = sorted({key for key in keys if keys.count(key) > 1})
        raise ValueError(f"{listed('key', twice)} given twice")
    return out


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is not a number")


def _from_twin(name: str, dtype: str, twin: Twin) -> ModelArchitecture:
    """Return the entry of another model with the same layers, with the reason."""
    arch = _from_catalogue(twin.entry)
    notes = (
        *arch.assumed,
        f"{name!r} {_ALIAS_SIGN} {twin.entry!r}: {twin.reason}; {CONTEXT_NOTE}",
    )
    if dtype and dtype != arch.checkpoint_dtype:
        notes += (f"checkpoint precision {dtype}, from the name {name!r}",)
        arch = replace(arch, checkpoint_dtype=dtype, expert_dtype="", quant_block=0, quant_group=0)
    return replace(arch, assumed=notes, context_limit_sure=False)


def _from_alias(name: str) -> ModelArchitecture:
    wanted = taken_apart(name)
    candidates = [
        (entry, known)
        for entry in _catalogue()
        if (known := taken_apart(entry)).key == wanted.key and same_maker(wanted.org, known.org)
    ]
    twin = TWINS.get(wanted.key)
    if not candidates and twin is not None and same_maker(wanted.org, twin.org):
        return _from_twin(name, wanted.dtype, twin)
    if not candidates:
        nearest = ", ".join(nearest_names(name, _catalogue()))
        raise CatalogError(
            f"unknown model {name!r}; nearest: {nearest}. Give a catalogue name (`sieve models`), "
            "a path to a config.json, or inline facts"
        )
    entry, known = min(candidates, key=lambda pair: distance(wanted, *pair))
    note = alias_note(name, entry, wanted, known)
    arch = _from_catalogue(entry)
    notes = arch.assumed + ((note,) if note else ())
    if note and CONTEXT_NOTE in note:
        arch = replace(arch, context_limit_sure=False)
    dtype = wanted.dtype
    if dtype and dtype != arch.checkpoint_dtype:
        notes += (f"checkpoint precision {dtype}, from the name {name!r}",)
        arch = replace(arch, checkpoint_dtype=dtype, expert_dtype="", quant_block=0, quant_group=0)
        if dtype == "fp8" and wanted.org in _BLOCK_FP8_MAKERS:
            notes += ("FP8 scales by blocks of 128, as this publisher has them",)
            arch = replace(arch, quant_block=128)
        elif dtype == "fp8" and wanted.org == "meta-llama":
            notes += ("attention, first and last layer left in 16 bits, as this publisher has it",)
            ends = (0, arch.num_hidden_layers - 1)
            arch = replace(arch, unquantised=("attention",), plain_layers=ends)
    return replace(arch, assumed=notes)
