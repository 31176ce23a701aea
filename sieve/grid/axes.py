"""The axes of a grid in canonical form: values read, defaults filled, every fault noted."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from sieve.catalog.accelerators import gpu_slug, inline_gpu, list_gpus, load_gpu
from sieve.catalog.architecture import Gpu, ModelArchitecture
from sieve.catalog.precisions import KV_BYTES as _ALL_KV_BYTES
from sieve.catalog.precisions import NOMINAL_WEIGHT_BYTES, PEAK_WEIGHT_BYTES
from sieve.errors import CatalogError, Fault, NotYetError
from sieve.frames import AXES, OPTIONS
from sieve.spec import ResolvedSpec
from sieve.spec.models import AxisSpec, FleetSpec

MAX_AXIS_VALUES: Final = 10_000

PRECISIONS: Final[dict[str, tuple[float, float]]] = {
    name: (size, PEAK_WEIGHT_BYTES.get(name, size)) for name, size in NOMINAL_WEIGHT_BYTES.items()
}
"""Name -> (resident bytes per weight, peak bytes per weight while loading)."""
_PRECISION_NAME: Final = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_-]{0,39}$")
_KV_LATER: Final = (
    "fp8_ds_mla", "nvfp4", "int8_per_token_head", "fp8_per_token_head", "int4_per_token_head",
)  # fmt: skip
KV_BYTES: Final = {k: size for k, size in _ALL_KV_BYTES.items() if k not in _KV_LATER}
"""Bytes of one cached number in the formats that a run models."""


@dataclass(frozen=True)
class Axis:
    """One axis: canonical values, and where it applies.

    Attributes:
        values: in order; precisions are (name, resident bytes, loading bytes).
        when: other axis or `model.moe` -> the canonical values for which the axis applies.
        otherwise: the value where it does not.
    """

    values: list[Any]
    when: Mapping[str, Any] | None = None
    otherwise: Any = None


def resolve_gpus(spec: ResolvedSpec, faults: list[Fault]) -> dict[str, Gpu]:
    """Return GPU facts by name, in order, with the user's prices; faults are appended.

    Raises:
        CatalogError: an unknown GPU, or inline facts that cannot be read.
    """
    axis = spec.grid.axes.get("gpu")
    named: Sequence[Any] = spec.fleet.gpus or (axis.values if axis and axis.values else [])
    gpus: dict[str, Gpu] = {}
    for item in named:
        if not isinstance(item, str | dict):
            faults.append(Fault("grid.axes.gpu", f"found {item!r}, expected a name or facts"))
            continue
        gpu = load_gpu(item) if isinstance(item, str) else inline_gpu(item)
        if isinstance(item, dict) and _is_known(gpu.name):
            text = f"{gpu.name!r} is a GPU of the catalogue; give yours another name"
            faults.append(Fault("grid.axes.gpu", text))
        if gpu.name in gpus:
            faults.append(Fault("fleet.gpus", f"{gpu.name} is named twice"))
        gpus[gpu.name] = gpu
    for slug, times in Counter(gpu_slug(name) for name in gpus).items():
        if times > 1:
            names = " and ".join(repr(name) for name in gpus if gpu_slug(name) == slug)
            faults.append(Fault("fleet.gpus", f"{names} would share the id {slug!r}; rename one"))
    return _priced(gpus, spec.fleet, faults)


def _priced(gpus: dict[str, Gpu], fleet: FleetSpec, faults: list[Fault]) -> dict[str, Gpu]:
    out = dict(gpus)
    for name, price in (fleet.usd_per_gpu_hour or {}).items():
        target = name if name in out else _catalogue_name(name)
        if target in out:
            out[target] = replace(out[target], usd_per_gpu_hour=price, price_note="")
        else:
            known = ", ".join(out)
            path = f"fleet.usd_per_gpu_hour.{name}"
            faults.append(Fault(path, f"not among the GPUs of this run: {known}"))
    return out


def _is_known(name: str) -> bool:
    return name in {gpu.name for gpu in list_gpus()}


def _catalogue_name(name: str) -> str:
    try:
        return load_gpu(name).name
    except CatalogError:
        return name


def resolve_axes(
    spec: ResolvedSpec, model: ModelArchitecture, faults: list[Fault]
) -> dict[str, Axis]:
    """Return every axis but `gpu` in the order of the candidate id; faults are appended.

    Axes that the grid leaves open hold one value: 1 for sizes, the checkpoint's precision, and
    None for limits that the engine sets by GPU.
    """
    given = {name: axis for name, axis in spec.grid.axes.items() if name != "gpu"}
    known = [*AXES[1:], *OPTIONS]
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"axes are: gpu, {', '.join(known)}"
            faults.append(Fault(f"grid.axes.{name}", f"unknown axis; {hint}"))
    defaults: dict[str, list[Any]] = {
        "tp": [1], "pp": [1], "ep": [1], "replicas": [1],
        "weight_dtype": [_checkpoint_precision(model, spec, faults)], "kv_cache_dtype": ["auto"],
        "max_num_seqs": [None], "max_num_batched_tokens": [None],
    }  # fmt: skip
    axes: dict[str, Axis] = {}
    for name in (*AXES[1:], *sorted(OPTIONS)):
        if name in given:
            axes[name] = _read_axis(name, given[name], spec, faults)
        elif name in defaults:
            axes[name] = Axis(defaults[name])
    for name, axis in axes.items():
        if axis.when is not None:
            when = _read_when(name, axis.when, axes, faults)
            axes[name] = replace(axis, when=when)
    return axes


def _checkpoint_precision(
    model: ModelArchitecture, spec: ResolvedSpec, faults: list[Fault]
) -> tuple[str, float, float] | None:
    """Return the precision of the published weights; only asked for when the grid names none."""
    if "weight_dtype" in spec.grid.axes:
        return None
    return _read_precision(model.checkpoint_dtype, "grid.axes.weight_dtype", faults)


def _read_when(
    name: str, when: Mapping[str, Any], axes: Mapping[str, Axis], faults: list[Fault]
) -> dict[str, list[Any]]:
    """Return a condition with its values in the spelling of the axes."""
    read: dict[str, list[Any]] = {}
    for key, wanted in when.items():
        path = f"grid.axes.{name}.when.{key}"
        values = wanted if isinstance(wanted, list) else [wanted]
        if key == "model.moe":
            if not all(isinstance(v, bool) for v in values):
                faults.append(Fault(path, f"found {wanted!r}, expected true or false"))
            read[key] = values
        elif key == "gpu":
            read[key] = [_catalogue_name(v) if isinstance(v, str) else v for v in values]
        elif key in axes and key != name:
            known = {v[0] for v in axes[key].values if isinstance(v, tuple)}
            items = [v if v in known else _read_value(key, v, path, faults) for v in values]
            read[key] = [item[0] if isinstance(item, tuple) else item for item in items]
        else:
            faults.append(Fault(path, "conditions are on another axis or on model.moe"))
    return read


def _read_axis(name: str, axis: AxisSpec, spec: ResolvedSpec, faults: list[Fault]) -> Axis:
    path = f"grid.axes.{name}"
    values = list(axis.values) if axis.values is not None else _read_range(axis, spec, path, faults)
    if len(values) > MAX_AXIS_VALUES:
        faults.append(Fault(path, f"has {len(values):,} values; at most {MAX_AXIS_VALUES:,}"))
        return Axis(values[:1])
    read: list[Any] = []
    for value in values:
        item = _read_value(name, value, path, faults)
        if item is not None:
            label = item[0] if isinstance(item, tuple) else item
            if label in [v[0] if isinstance(v, tuple) else v for v in read]:
                faults.append(Fault(path, f"holds {label!r} twice"))
            read.append(item)
    otherwise = axis.otherwise if axis.otherwise is not None else (values[0] if values else None)
    if axis.when is not None:
        otherwise = _read_value(name, otherwise, path, faults)
    return Axis(read, axis.when, otherwise)


def _read_range(axis: AxisSpec, spec: ResolvedSpec, path: str, faults: list[Fault]) -> list[int]:
    ends: list[int] = []
    for end in axis.range or ():
        if end == "max_gpus":
            ends.append(spec.fleet.max_gpus or 1)
        elif isinstance(end, int):
            ends.append(end)
        else:
            faults.append(Fault(path, f"range end {end!r} is neither a number nor max_gpus"))
            return [1]
    if not 1 <= ends[0] <= ends[1]:
        faults.append(Fault(path, f"range {ends} must rise from at least 1"))
        return [1]
    if ends[1] - ends[0] >= MAX_AXIS_VALUES:
        hint = "; lower fleet.max_gpus" if "max_gpus" in (axis.range or ()) else ""
        size = ends[1] - ends[0] + 1
        faults.append(
            Fault(path, f"range {ends} has {size:,} values; at most {MAX_AXIS_VALUES:,}{hint}")
        )
        return [1]
    return list(range(ends[0], ends[1] + 1))


def _read_value(name: str, value: Any, path: str, faults: list[Fault]) -> Any:
    """Return one axis value in canonical form, or None after noting a fault."""
    if name == "weight_dtype":
        return _read_precision(value, path, faults)
    if name == "kv_cache_dtype":
        text = "bfloat16" if value == "bf16" else value
        if isinstance(text, str) and text in _KV_LATER:
            raise NotYetError(
                f"{path}: KV cache format {text!r} is not yet modelled in this version"
            )
        if not isinstance(text, str) or text not in KV_BYTES:
            faults.append(Fault(path, f"found {value!r}; formats are: {', '.join(KV_BYTES)}"))
            return None
        return text
    if name == "gpu_memory_utilization":
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
            faults.append(Fault(path, f"found {value!r}, expected a share above 0, at most 1"))
            return None
        return float(value)
    if OPTIONS.get(name) == "bool":
        if not isinstance(value, bool):
            faults.append(Fault(path, f"found {value!r}, expected true or false"))
            return None
        return value
    least = 0 if name == "long_prefill_token_threshold" else 1
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= 2**31:
        faults.append(
            Fault(path, f"found {value!r}, expected a whole number from {least} to {2**31}")
        )
        return None
    return value


def _read_precision(value: Any, path: str, faults: list[Fault]) -> tuple[str, float, float] | None:
    if isinstance(value, str) and value in PRECISIONS:
        return (value, *PRECISIONS[value])
    if isinstance(value, dict) and set(value) <= {
        "name",
        "bytes_per_param",
        "load_bytes_per_param",
    }:
        name, size = value.get("name"), value.get("bytes_per_param")
        load = value.get("load_bytes_per_param", size)
        known = isinstance(name, str) and PRECISIONS.get(name)
        if known and known != (size, load):
            faults.append(
                Fault(path, f"{name} is a precision of {known[0]:g} bytes; give yours another name")
            )
            return None
        if isinstance(name, str) and _PRECISION_NAME.fullmatch(name) and all(
            isinstance(x, int | float) and not isinstance(x, bool) and 0 < x <= 16
            for x in (size, load)
        ):  # fmt: skip
            return (name, float(size or 0), float(load or 0))
    near = difflib.get_close_matches(str(value), PRECISIONS, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    faults.append(
        Fault(
            path,
            f"found {value!r}; {hint}precisions are {', '.join(PRECISIONS)} or "
            "{name, bytes_per_param, load_bytes_per_param}",
        )
    )
    return None
