"""From axes to the candidate frame: one row for every combination, in a fixed order."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import polars as pl

from sieve.arrays import IntArray
from sieve.catalog.accelerators import gpu_slug
from sieve.catalog.architecture import EngineProfile, Gpu, ModelArchitecture
from sieve.catalog.engines import chunks_prompts, default_block_size, default_for_gpu
from sieve.catalog.precisions import STORED_WEIGHT_BYTES
from sieve.errors import Fault, NotYetError, SieveError, SpecError
from sieve.frames import OPTIONS, num_gpus
from sieve.grid.axes import KV_BYTES, Axis, resolve_axes, resolve_gpus
from sieve.spec import ResolvedSpec

MAX_CANDIDATES: Final = 5_000_000
_TYPES: Final = {int: pl.Int64, float: pl.Float64, bool: pl.Boolean, type(None): pl.Int64}
_NOT_PLAIN: Final = ("data_parallel_size", "decode_context_parallel_size")


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
    if engine.name == "reference":
        text = "the plain rules of engine reference have no such option; leave the axis out"
        given = [name for name in _NOT_PLAIN if name in spec.grid.axes]
        faults += [Fault(f"grid.axes.{name}", text) for name in given]
    gpus = resolve_gpus(spec, faults)
    axes = resolve_axes(spec, model, faults)
    if faults:
        raise SpecError(spec.source, faults)
    if not gpus:
        raise SpecError(spec.source, [Fault("fleet.gpus", "is empty; name at least one GPU")])
    columns: dict[str, list[Any]] = {"gpu": list(gpus), **{k: v.values for k, v in axes.items()}}
    codes = _enumerate(columns, axes, model, spec.source)
    frame = _frame_of(columns, codes, axes, gpus, model, engine)
    options = tuple(k for k in columns if k in OPTIONS)
    if engine.name != "reference":
        frame = _as_stored(frame)
    frame = frame.with_columns(candidate_id(frame, options))
    # From here on a block is what requests draw: its tokens on all ranks that share it out.
    shared = pl.col("block_size") * pl.col("decode_context_parallel_size")
    return Grid(frame.with_columns(shared.alias("block_size")), gpus, options)


def _as_stored(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the frame with the scales of INT4 groups, which a real engine stores too."""
    is_int4 = pl.col("weight_dtype") == "int4"
    return frame.with_columns(
        pl.when(is_int4).then(STORED_WEIGHT_BYTES["int4"]).otherwise(pl.col(name)).alias(name)
        for name in ("weight_bytes_per_param", "load_bytes_per_param")
    )


def _enumerate(
    columns: dict[str, list[Any]],
    axes: Mapping[str, Axis],
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
    for name in _conditional(axes, source):
        holds = np.ones(total, np.bool_)
        for key, allowed in (axes[name].when or {}).items():
            if key == "model.moe":
                holds &= (model.moe is not None) in allowed
            else:
                # The last entry stands for code -1: the other axis' own `otherwise`.
                values = [*columns[key], axes[key].otherwise if key in axes else None]
                holds &= np.array([_plain(value) in allowed for value in values])[codes[key]]
        keep &= holds | (codes[name] == 0)
        codes[name] = np.where(holds, codes[name], -1)
    return {name: codes[name][keep] for name in columns}


def _conditional(axes: Mapping[str, Axis], source: str) -> list[str]:
    """Return the conditional axes, each after those that its condition is on."""
    waiting = {name: set(axis.when) for name, axis in axes.items() if axis.when is not None}
    order: list[str] = []
    while waiting:
        ready = [name for name, keys in waiting.items() if not keys & waiting.keys()]
        if not ready:
            path = f"grid.axes.{next(iter(waiting))}.when"
            raise SpecError(source, [Fault(path, "the conditions of these axes form a circle")])
        order += ready
        for name in ready:
            del waiting[name]
    return order


def _plain(value: Any) -> Any:
    return value[0] if isinstance(value, tuple) else value


def _frame_of(
    columns: Mapping[str, list[Any]],
    codes: Mapping[str, IntArray],
    axes: Mapping[str, Axis],
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
    defaulted = [
        name for name in ("max_num_seqs", "max_num_batched_tokens") if frame[name].dtype == pl.Null
    ]
    for name in defaulted:
        by_gpu = {g: int(default_for_gpu(engine, name, gpus[g])) for g in gpus}
        frame = frame.with_columns(
            pl.col("gpu").replace_strict(by_gpu, return_dtype=pl.Int64).alias(name)
        )
    fill: dict[str, Any] = {
        "data_parallel_size": 1,
        "decode_context_parallel_size": 1,
        "enable_chunked_prefill": chunks_prompts(engine, model),
        "enable_prefix_caching": bool(engine.defaults["enable_prefix_caching"]),
        "async_scheduling": bool(engine.defaults.get("async_scheduling", False)),
        "long_prefill_token_threshold": int(engine.defaults.get("long_prefill_token_threshold", 0)),
        "gpu_memory_utilization": float(engine.defaults["gpu_memory_utilization"]),
        "max_model_len": model.max_position_embeddings,
    }
    missing = [
        pl.lit(value, _TYPES[type(value)]).alias(name)
        for name, value in fill.items()
        if name not in frame.columns
    ]
    frame = frame.with_columns(missing)
    if "block_size" not in frame.columns:
        sizes = {name: default_block_size(engine, model, gpu) for name, gpu in gpus.items()}
        frame = frame.with_columns(
            pl.col("gpu").replace_strict(sizes, return_dtype=pl.Int64).alias("block_size")
        )
    if "max_num_batched_tokens" in defaulted:
        # Whole prompts have to fit the budget, and the engine raises its default for them.
        whole = ~pl.col("enable_chunked_prefill")
        budget = pl.col("max_num_batched_tokens")
        longest = pl.col("max_model_len").fill_null(0)
        frame = frame.with_columns(
            pl.when(whole).then(pl.max_horizontal(budget, longest)).otherwise(budget)
        )
    return frame.with_columns(
        pl.col("kv_cache_dtype")
        .replace_strict(KV_BYTES, return_dtype=pl.Float64)
        .alias("kv_bytes_per_element"),
        num_gpus(),
    )


def candidate_id(frame: pl.DataFrame, options: Sequence[str]) -> pl.Expr:
    """Return the key of each candidate: its axis values in fixed order, the options last."""
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
