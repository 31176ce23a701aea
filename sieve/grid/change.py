"""Candidates that differ from one of a grid in a few axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from sieve.catalog.precisions import STORED_WEIGHT_BYTES
from sieve.frames import columns_after, num_gpus
from sieve.grid.axes import KV_BYTES, PRECISIONS
from sieve.grid.expand import candidate_id


def changed(
    candidate: pl.DataFrame, changes: Mapping[str, Any], options: Sequence[str]
) -> pl.DataFrame:
    """Return a candidate with other axis values, as the grid would have made it: one row.

    Args:
        candidate: one row with at least the grid's columns.
        changes: new values of axis columns; precisions are names of the catalogue.
        options: option axes that appear in the candidate id.
    """
    frame = candidate.select(c for c in columns_after(0) if c in candidate.columns)
    types = dict(frame.schema)
    frame = frame.with_columns(pl.lit(v, types[name]).alias(name) for name, v in changes.items())
    if "weight_dtype" in changes:
        size, load = PRECISIONS[changes["weight_dtype"]]
        stored = STORED_WEIGHT_BYTES.get(changes["weight_dtype"]) if size < 1 else None
        frame = frame.with_columns(
            pl.lit(stored or size).alias("weight_bytes_per_param"),
            pl.lit(stored or load).alias("load_bytes_per_param"),
        )
    if "kv_cache_dtype" in changes:
        size = KV_BYTES[changes["kv_cache_dtype"]]
        frame = frame.with_columns(pl.lit(size, pl.Float64).alias("kv_bytes_per_element"))
    frame = frame.with_columns(num_gpus())
    # The id names the block of one rank, the column that of all ranks.
    own = pl.col("block_size") // pl.col("decode_context_parallel_size")
    named = frame.with_columns(own.alias("block_size"))
    return frame.with_columns(named.select(candidate_id(named, options)).to_series())
