"""From axes to the candidate frame: one row for every combination, in a fixed order."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import polars as pl

from sieve.arrays import IntArray
from sieve.catalog.accelerators import gpu_slug, inline_gpu, load_gpu
from sieve.catalog.architecture import EngineProfile, Gpu, ModelArchitecture
from sieve.catalog.engines import default_for_gpu
from sieve.errors import CatalogError, Fault, NotYetError, SieveError, SpecError
from sieve.frames import AXES, OPTIONS
from sieve.spec import ResolvedSpec
from sieve.spec.models import AxisSpec, FleetSpec

MAX_CANDIDATES: Final = 5_000_000
MAX_AXIS_VALUES: Final = 10_000

PRECISIONS: Final[dict[str, tuple[float, float]]] = {
    # name: (resident bytes per weight, peak bytes per weight while loading)
    "bf16": (2.0, 2.0),
    "fp16": (2.0, 2.0),
    "fp8": (1.0, 1.0),
    "int8": (1.0, 2.0),  # quantised on load from two bytes per weight
    "int4": (0.5, 0.5),
    "mxfp4": (0.53125, 0.53125),  # 4 bits and one 8-bit scale per 32 weights
    "nvfp4": (0.5625, 0.5625),  # 4 bits and one 8-bit scale per 16 weights
}
KV_BYTES: Final = {
    "auto": 2.0, "bfloat16": 2.0, "float16": 2.0, "fp8": 1.0, "fp8_e4m3": 1.0, "fp8_e5m2": 1.0,
}  # fmt: skip
_PRECISION_NAME: Final = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_-]{0,39}$")
_KV_LATER: Final = (
    "fp8_ds_mla", "nvfp4", "int8_per_token_head", "fp8_per_token_head", "int4_per_token_head",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Grid:
    """The candidate frame and the GPUs it names.

    Attributes:
        candidates: one row each, columns of `frames.columns_after(0)`, sorted as enumerated.
        gpus: GPU facts by the name in the `gpu` column.
        options: option axes that appear in the candidate id.
    """

    candidates: pl.DataFrame
    gpus: dict[str, Gpu]
    options: tuple[str, ...]


def expand(spec: ResolvedSpec, model: ModelArchitecture, engine: EngineProfile) -> Grid:
    """Return every candidate of the spec's grid.

    Raises:
        SpecError: unknown axes, values or conditions, all at once; an empty or too large grid.
        CatalogError: an unknown GPU.
        NotYetError: an axis of the contract that this version does not model.
    """
    faults: list[Fault] = []
    gpus = _resolve_gpus(spec, faults)
    axes = _resolve_axes(spec, model, faults)
    if faults:
        raise SpecError(spec.source, faults)
    if not gpus:
        raise SpecError(spec.source, [Fault("fleet.gpus", "is empty; name at least one GPU")])
    columns: dict[str, list[Any]] = {"gpu": list(gpus), **{k: v.values for k, v in axes.items()}}
    codes = _enumerate(columns, axes, model, spec.source)
    frame = _frame_of(columns, codes, axes, gpus, model, engine)
    options = tuple(k for k in columns if k in OPTIONS)
    return Grid(frame.with_columns(_candidate_id(frame, options)), gpus, options)


@dataclass(frozen=True)
class _Axis:
    values: list[Any]
    when: Mapping[str, Any] | None = None
    otherwise: Any = None


def _resolve_gpus(spec: ResolvedSpec, faults: list[Fault]) -> dict[str, Gpu]:
    axis = spec.grid.axes.get("gpu")
    named: Sequence[Any] = spec.fleet.gpus or (axis.values if axis and axis.values else [])
    gpus: dict[str, Gpu] = {}
    for item in named:
        if not isinstance(item, str | dict):
            faults.append(Fault("grid.axes.gpu", f"found {item!r}, expected a name or facts"))
            continue
        gpu = load_gpu(item) if isinstance(item, str) else inline_gpu(item)
        if gpu.name in gpus:
            faults.append(Fault("fleet.gpus", f"{gpu.name} is named twice"))
        gpus[gpu.name] = gpu
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


def _catalogue_name(name: str) -> str:
    try:
        return load_gpu(name).name
    except CatalogError:
        return name


def _resolve_axes(
    spec: ResolvedSpec, model: ModelArchitecture, faults: list[Fault]
) -> dict[str, _Axis]:
    given = {name: axis for name, axis in spec.grid.axes.items() if name != "gpu"}
    known = [*AXES[1:], *OPTIONS]
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"axes are: gpu, {', '.join(known)}"
            faults.append(Fault(f"grid.axes.{name}", f"unknown axis; {hint}"))
    defaults: dict[str, list[Any]] = {
        "tp": [1], "pp": [1], "ep": [1], "replicas": [1],
        "weight_dtype": [model.checkpoint_dtype], "kv_cache_dtype": ["auto"],
        "max_num_seqs": [None], "max_num_batched_tokens": [None],
    }  # fmt: skip
    axes: dict[str, _Axis] = {}
    for name in (*AXES[1:], *sorted(OPTIONS)):
        if name in given:
            axes[name] = _read_axis(name, given[name], spec, faults)
        elif name in defaults:
            axes[name] = _Axis(defaults[name])
    for name, axis in axes.items():
        for key in axis.when or {}:
            if key not in {"model.moe", "gpu", *axes}:
                path = f"grid.axes.{name}.when.{key}"
                faults.append(Fault(path, "conditions are on another axis or on model.moe"))
    return axes


def _read_axis(name: str, axis: AxisSpec, spec: ResolvedSpec, faults: list[Fault]) -> _Axis:
    path = f"grid.axes.{name}"
    values = list(axis.values) if axis.values is not None else _read_range(axis, spec, path, faults)
    if len(values) > MAX_AXIS_VALUES:
        faults.append(Fault(path, f"has {len(values):,} values; at most {MAX_AXIS_VALUES:,}"))
        return _Axis(values[:1])
    read: list[Any] = []
    for value in values:
        item = _read_value(name, value, path, faults)
        if item is not None:
            if item in read:
                faults.append(Fault(path, f"holds {value!r} twice"))
            read.append(item)
    otherwise = axis.otherwise if axis.otherwise is not None else (values[0] if values else None)
    if axis.when is not None:
        otherwise = _read_value(name, otherwise, path, faults)
    return _Axis(read, axis.when, otherwise)


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
    if not 1 <= ends[0] <= ends[1] or ends[1] - ends[0] >= MAX_AXIS_VALUES:
        faults.append(Fault(path, f"range {ends} must rise from at least 1"))
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
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 2**31:
        faults.append(Fault(path, f"found {value!r}, expected a whole number of at least 1"))
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
        if isinstance(name, str) and _PRECISION_NAME.match(name) and all(
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


def _enumerate(
    columns: dict[str, list[Any]],
    axes: Mapping[str, _Axis],
    model: ModelArchitecture,
    source: str,
) -> dict[str, IntArray]:
    """Return for each axis the value index of every candidate; -1 stands for `otherwise`."""
    sizes = [len(values) for values in columns.values()]
    total = math.prod(sizes)
    if total == 0:
        empty = [name for name, values in columns.items() if not values]
        raise SpecError(source, [Fault(f"grid.axes.{empty[0]}", "has no values")])
    if total > MAX_CANDIDATES:
        raise NotYetError(
            f"{source}: the grid has {total:,} candidates; this version searches at most "
            f"{MAX_CANDIDATES:,}. Shorten an axis"
        )
    index = np.arange(total)
    codes: dict[str, IntArray] = {}
    for name, size in zip(reversed(columns), reversed(sizes), strict=True):
        codes[name] = (index % size).astype(np.int64)
        index //= size
    keep = np.ones(total, np.bool_)
    for name, axis in axes.items():
        if axis.when is None:
            continue
        holds = np.ones(total, np.bool_)
        for key, wanted in axis.when.items():
            allowed = wanted if isinstance(wanted, list) else [wanted]
            if key == "model.moe":
                holds &= (model.moe is not None) in allowed
            else:
                hits = [_plain(value) in allowed for value in columns[key]]
                holds &= np.array(hits)[np.maximum(codes[key], 0)]
        keep &= holds | (codes[name] == 0)
        codes[name] = np.where(holds, codes[name], -1)
    return {name: codes[name][keep] for name in columns}


def _plain(value: Any) -> Any:
    return value[0] if isinstance(value, tuple) else value


def _frame_of(
    columns: Mapping[str, list[Any]],
    codes: Mapping[str, IntArray],
    axes: Mapping[str, _Axis],
    gpus: Mapping[str, Gpu],
    model: ModelArchitecture,
    engine: EngineProfile,
) -> pl.DataFrame:
    def gather(name: str, part: int | None = None) -> pl.Series:
        table = list(columns[name])
        if name in axes and axes[name].when is not None:
            table.append(axes[name].otherwise)
        values = [v[part] if part is not None else v for v in table]
        return pl.Series(name, values)[np.where(codes[name] < 0, len(table) - 1, codes[name])]

    frame = pl.DataFrame(
        {name: gather(name) for name in columns if name not in {"weight_dtype"}}
        | {
            "weight_dtype": gather("weight_dtype", 0),
            "weight_bytes_per_param": gather("weight_dtype", 1),
            "load_bytes_per_param": gather("weight_dtype", 2),
        }
    )
    for name in ("max_num_seqs", "max_num_batched_tokens"):
        if frame[name].dtype == pl.Null:
            by_gpu = {g: int(default_for_gpu(engine, name, gpus[g])) for g in gpus}
            frame = frame.with_columns(
                pl.col("gpu").replace_strict(by_gpu, return_dtype=pl.Int64).alias(name)
            )
    fill: dict[str, Any] = {
        "block_size": int(engine.defaults["block_size"]),
        "gpu_memory_utilization": float(engine.defaults["gpu_memory_utilization"]),
        "max_model_len": model.max_position_embeddings,
    }
    missing = [
        pl.lit(value, pl.Float64 if name == "gpu_memory_utilization" else pl.Int64).alias(name)
        for name, value in fill.items()
        if name not in frame.columns
    ]
    return frame.with_columns(
        *missing,
        pl.col("kv_cache_dtype")
        .replace_strict(KV_BYTES, return_dtype=pl.Float64)
        .alias("kv_bytes_per_element"),
        (pl.col("tp") * pl.col("pp") * pl.col("replicas")).alias("num_gpus"),
    )


def _candidate_id(frame: pl.DataFrame, options: Sequence[str]) -> pl.Expr:
    slugs = {name: gpu_slug(name) for name in frame["gpu"].unique().to_list()}
    parts: list[pl.Expr] = [pl.col("gpu").replace_strict(slugs, return_dtype=pl.String)]
    prefixes = {
        "tp": "tp", "pp": "pp", "ep": "ep", "replicas": "r", "weight_dtype": "",
        "kv_cache_dtype": "kv-", "max_num_seqs": "s", "max_num_batched_tokens": "b",
    }  # fmt: skip
    for name, prefix in prefixes.items():
        parts.append(pl.concat_str([pl.lit(prefix), pl.col(name).cast(pl.String)]))
    parts += [pl.concat_str([pl.lit(f"{name}-"), pl.col(name).cast(pl.String)]) for name in options]
    return pl.concat_str(parts, separator=".").alias("candidate_id")


def require_prices(gpus: Mapping[str, Gpu]) -> None:
    """Refuse GPUs without a price, by name.

    Raises:
        SieveError: the objective needs a price that is not known.
    """
    unpriced = [name for name, gpu in gpus.items() if gpu.usd_per_gpu_hour is None]
    if unpriced:
        raise SieveError(
            f"no price is known for {', '.join(unpriced)}; give fleet.usd_per_gpu_hour."
            f"{unpriced[0]} or choose an objective without money (rank.objective: num_gpus)"
        )
