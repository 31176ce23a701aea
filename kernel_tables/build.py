"""Write the packaged kernel tables from the compact source set.

    python kernel_tables/build.py COMPACT_FOLDER [SYSTEM ...]

COMPACT_FOLDER holds `<system>/<op>.parquet` with one row a key and `latency_us`. The result is
`<system>/<op>.parquet` beside this script (keys sorted, the axes of a curve last, latency in
microseconds as float32, zstd) and `<system>/provenance.yaml`. Left out: the all-reduce timed
outside a CUDA graph (it holds host launches), the NCCL byte-wise rows and the steepest expert
imbalance (no better than the milder one).
"""

from __future__ import annotations

import hashlib
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
import yaml

HERE = Path(__file__).parent
SYSTEMS = ("h100_sxm", "h200_sxm", "a100_sxm", "l40s", "b200_sxm")
SOURCE = {
    "packages": [
        {"name": "aiconfigurator-core", "version": "0.12.0"},
        {"name": "aisimulate", "version": "0.13.0.dev202610270000000085"},
    ],
    "upstream": [
        "https://github.com/ai-dynamo/aiconfigurator",
        "https://github.com/ai-dynamo/aisimulate",
    ],
    "taken": "2026-11-29",
    "licence": "Apache-2.0",
    "copyright": "Copyright NVIDIA CORPORATION & AFFILIATES",
    "changes": "best version of each key chosen, milliseconds turned into microseconds, columns "
    "and rows that sieve does not read left out; no latency was altered",
}
UNITS = {
    "latency_us": "microseconds per call on one GPU, mean of repeated runs",
    "message_size": "elements, not bytes",
    "num_heads": "query heads on one GPU",
    "num_key_value_heads": "KV heads on one GPU",
    "m": "tokens; y[m, n] = x[m, k] w[n, k]",
    "step": "KV tokens already there; the new token comes on top in generation_attention",
    "window_size": "tokens, 0 for full attention",
}


@dataclass(frozen=True)
class Operation:
    """Key columns of a table in sort order, and the values of a column that are kept."""

    keys: tuple[str, ...]
    keep: dict[str, tuple[str, ...]] = field(default_factory=dict)


_ATTENTION = (
    "attn_dtype", "kv_cache_dtype", "head_dim", "window_size", "num_heads", "num_key_value_heads",
)  # fmt: skip
OPERATIONS = {
    "gemm": Operation(("gemm_dtype", "n", "k", "m")),
    "context_attention": Operation((*_ATTENTION, "batch_size", "isl")),
    "generation_attention": Operation((*_ATTENTION, "batch_size", "step")),
    "custom_allreduce": Operation(
        ("allreduce_dtype", "backend", "num_gpus", "message_size"), {"backend": ("vllm_graph",)}
    ),
    "nccl": Operation(
        ("op_name", "nccl_dtype", "num_gpus", "message_size"), {"nccl_dtype": ("half",)}
    ),
    "moe": Operation(
        (
            "moe_dtype", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size",
            "moe_ep_size", "distribution", "num_tokens",
        ),
        {"distribution": ("balanced", "power_law_1.01")},
    ),
}  # fmt: skip


def convert(source: Path, target: Path, op: Operation) -> dict[str, Any]:
    """Write one table and return its entry of `provenance.yaml`."""
    frame = pl.read_parquet(source)
    if "window_size" in op.keys and "window_size" not in frame.columns:
        frame = frame.with_columns(window_size=pl.lit(0, pl.Int16))
    for column, values in op.keep.items():
        frame = frame.filter(pl.col(column).is_in(values))
    check(frame, source, op)
    frame = frame.sort(op.keys)
    table = frame.select(*op.keys, pl.col("latency_us").cast(pl.Float32))
    table.write_parquet(target, compression="zstd", compression_level=19, statistics=False)
    columns = [*op.keys, "latency_us"]
    return {
        "rows": table.height,
        "keys": list(op.keys),
        "units": {name: UNITS[name] for name in columns if name in UNITS},
        "source_versions": counts(frame, "source"),
        "kernels": counts(frame, "kernel_source"),
        "kept": {column: list(values) for column, values in op.keep.items()},
        "sha256": hashlib.sha256(target.read_bytes()).hexdigest(),
    }


def check(frame: pl.DataFrame, source: Path, op: Operation) -> None:
    """Stop on doubled keys and on latencies that are not finite and positive."""
    doubled = frame.height - frame.select(op.keys).n_unique()
    bad = frame.filter(~(pl.col("latency_us").is_finite() & (pl.col("latency_us") > 0))).height
    if doubled or bad:
        raise SystemExit(f"{source}: {doubled} doubled keys, {bad} bad latencies; nothing written")


def counts(frame: pl.DataFrame, column: str) -> dict[str, int]:
    """Return {value: rows} of a text column, by name."""
    return dict(frame[column].value_counts().sort(column).rows())


def build(compact: Path, system: str) -> None:
    """Write all tables of one system and its provenance."""
    folder = HERE / system
    folder.mkdir(exist_ok=True)
    operations = {}
    for name, op in OPERATIONS.items():
        source = compact / system / f"{name}.parquet"
        if source.exists():
            operations[name] = convert(source, folder / source.name, op)
            size = (folder / source.name).stat().st_size
            print(f"{system}/{name}: {operations[name]['rows']} rows, {size} bytes")
    text = yaml.safe_dump(
        {"system": system, "source": SOURCE, "operations": operations}, sort_keys=False, width=100
    )
    (folder / "provenance.yaml").write_text(text, encoding="utf-8")


def main(arguments: list[str]) -> None:
    """Build the systems named on the command line, by default all."""
    if not arguments:
        raise SystemExit(__doc__)
    compact = Path(arguments[0])
    for system in arguments[1:] or SYSTEMS:
        build(compact, system)


if __name__ == "__main__":
    main(sys.argv[1:])
