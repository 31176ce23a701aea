"""From axes to the candidate frame: one row for every combination, in a fixed order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import polars as pl

from sieve.arrays import IntArray
from sieve.catalog.accelerators import gpu_slug
from sieve.catalog.architecture import EngineProfile, Gpu, ModelArchitecture
from sieve.catalog.engines import chunks_prompts, default_block_size, default_for_gpu
from sieve.catalog.precisions import STORED_WEIGHT_BYTES
from sieve.errors import Fault, InvalidInput, SieveError, SpecError
from sieve.frames import OPTIONS, num_gpus
from sieve.grid.axes import KV_BYTES, resolve_axes, resolve_gpus
from sieve.grid.index import GridIndex, make_index
from sieve.spec import ResolvedSpec

MAX_FRAME: Final = 5_000_000
_TYPES: Final = {int: pl.Int64, float: pl.Float64, bool: pl.Boolean, type(None): pl.Int64}
ID_PREFIXES: Final = {
    "tp": "tp", "pp": "pp", "ep": "ep", "replicas": "r", "weight_dtype": "",
    "kv_cache_dtype": "kv-", "max_num_seqs": "s", "max_num_batched_tokens": "b",
}  # fmt: skip
"""What stands before each axis' value in an id; before an option stands its name."""
_NOT_PLAIN: Final = ("data_parallel_size", "decode_context_parallel_size")


def expand(spec: ResolvedSpec, model: ModelArchitecture, engine: EngineProfile) -> Grid:
    """Return the spec's grid; nothing is enumerated yet.

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
    index = make_index(columns, axes, moe=model.moe is not None, source=spec.source)
    return Grid(index, gpus, model, engine)


@dataclass(frozen=True, eq=False)
class Grid:
    """A grid of candidates: rows are made when they are asked for.

    Attributes:
        index: candidates as numbers.
        gpus: GPU facts by the name in the `gpu` column.
        model, engine: what the rows are about.
    """

    index: GridIndex
    gpus: dict[str, Gpu]
    model: ModelArchitecture
    engine: EngineProfile

    @property
    def options(self) -> tuple[str, ...]:
        """Option axes that appear in the candidate id."""
        return tuple(name for name in self.index.columns if name in OPTIONS)

    @cached_property
    def candidates(self) -> pl.DataFrame:
        """Every candidate: columns of `frames.columns_after(0)`, sorted as enumerated.

        Raises:
            InvalidInput: too many to be held at once.
        """
        if self.index.size > MAX_FRAME:
            raise InvalidInput(
                f"the grid has {self.index.size:,} combinations; this command lists at most "
                f"{MAX_FRAME:,}. Shorten an axis, or search it with `sieve run`"
            )
        return self.rows(np.arange(self.index.size, dtype=np.int64))

    def rows(self, numbers: IntArray) -> pl.DataFrame:
        """Return the candidates of these index numbers; numbers that are none are left out."""
        return self.frame(self.index.codes(numbers))

    def frame(self, codes: Mapping[str, IntArray]) -> pl.DataFrame:
        """Return the candidates of these codes, with their ids."""
        return self.named(self.bare(codes))

    def bare(self, codes: Mapping[str, IntArray]) -> pl.DataFrame:
        """Return the candidates of these codes without ids."""
        frame = _frame_of(codes, self)
        if self.engine.name != "reference":
            frame = _as_stored(frame)
        # From here on a block is what requests draw: its tokens on all ranks that share it out.
        shared = pl.col("block_size") * pl.col("decode_context_parallel_size")
        return frame.with_columns(shared.alias("block_size"))

    def named(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Return the frame with each candidate's id."""
        own = pl.col("block_size") // pl.col("decode_context_parallel_size")
        ids = frame.with_columns(own.alias("block_size"))
        return frame.with_columns(
            ids.select(candidate_id(ids, self.options)).to_series().alias("candidate_id")
        )

    @cached_property
    def cover(self) -> pl.DataFrame:
        """Candidates, real or not, among which every column takes each value that it can take."""
        return self.bare(self.index.cover(("gpu", "enable_chunked_prefill", "max_model_len")))


def _as_stored(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the frame with the scales of INT4 groups, which a real engine stores too."""
    is_int4 = pl.col("weight_dtype") == "int4"
    return frame.with_columns(
        pl.when(is_int4).then(STORED_WEIGHT_BYTES["int4"]).otherwise(pl.col(name)).alias(name)
        for name in ("weight_bytes_per_param", "load_bytes_per_param")
    )


def _frame_of(codes: Mapping[str, IntArray], grid: Grid) -> pl.DataFrame:
    gpus, model, engine = grid.gpus, grid.model, grid.engine
    columns = grid.index.columns

    def gather(name: str, part: int | None = None) -> pl.Series:
        table = grid.index.values(name)
        values = [v[part] if part is not None else v for v in table]
        chosen = np.where(codes[name] < 0, len(table) - 1, codes[name])
        return (
            pl.Series(name, values)[chosen]
            if len(values) > 1
            else pl.Series(name, values).new_from_index(0, len(chosen))
        )

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
    for name, prefix in ID_PREFIXES.items():
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
