"""Reading Vidur profiles: `attention.csv` and `mlp.csv` of a model, `all_reduce.csv` of a network.

Read are the medians (`time_stats.<operation>.median`, milliseconds); the sizes of matrices follow
from the model's widths beside them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import polars as pl

from sieve.catalog.architecture import Gpu
from sieve.errors import TableError
from sieve.perf.table_check import check_for_gpu, check_latency, check_types
from sieve.perf.table_import import Imported, choose
from sieve.perf.table_schema import MAX_BYTES, MAX_FILES, MAX_ROWS, OPERATIONS

_FILES: Final = ("attention.csv", "mlp.csv", "all_reduce.csv")
_MS_US: Final = 1000.0
_BYTES_PER_ELEMENT: Final = 2
_TP: Final = "num_tensor_parallel_workers"
_MLP: Final = (
    "n_head", "n_kv_head", "n_embd", "n_expanded_embd", "use_gated_mlp", "num_tokens", _TP,
)  # fmt: skip
_ATTENTION: Final = (
    "n_embd", "n_q_head", "n_kv_head", _TP, "batch_size", "prefill_chunk_size", "kv_cache_size",
    "is_prefill",
)  # fmt: skip
_NETWORK: Final = ("num_workers", "size", "devices_per_node")
_NOTES: Final = (
    "Vidur profiles 16-bit floats (float16) outside CUDA graphs; the tables name them bfloat16",
    "prefill against cached tokens is left out: the tables have no column for it",
)


def is_vidur(path: Path) -> bool:
    """Whether a folder holds profiles in Vidur's layout, and no other tables."""
    return bool(_found(path)) and not next(path.rglob("*_perf.*"), None)


def import_vidur(path: Path, gpu: Gpu) -> Imported:
    """Return the tables of a folder of Vidur profiles of one device.

    Args:
        path: a model's folder, the folder of a device with several models, or one that also has
            the profile of one network.
        gpu: accelerator that was profiled.

    Raises:
        TableError: profiles of several devices or networks, a missing column, a bad value.
    """
    files = _found(path)
    _require_one([_below(file, "compute") for file in files], path, "device")
    _require_one([_below(file, "network") for file in files], path, "network")
    frames: dict[str, list[pl.DataFrame]] = {}
    skipped: list[tuple[str, str]] = []
    for file in files:
        for op, frame in _read(file, skipped).items():
            if frame.height:
                check_types(file, frame, OPERATIONS[op].columns)
                check_latency(file, frame["latency_us"].to_numpy())
                check_for_gpu(file, frame, op, gpu)
                frames.setdefault(op, []).append(frame)
    if not frames:
        raise TableError(f"{path}: the Vidur profiles hold no row that a table can take")
    tables, findings = choose(frames, gpu)
    return Imported("Vidur profiles", tables, findings, skipped, files, list(_NOTES))


def _found(path: Path) -> list[Path]:
    if not path.is_dir():
        return []
    files = [f for name in _FILES for f in sorted(path.resolve().rglob(name)) if f.is_file()]
    if len(files) > MAX_FILES:
        raise TableError(f"{path}: over {MAX_FILES:,} profiles; give a folder further down")
    return files


def _below(file: Path, folder: str) -> str:
    """Return the folder of a file's path that comes right below `folder`, "" if none does."""
    parts = file.parts[:-1]
    return parts[parts.index(folder) + 1] if folder in parts[:-1] else ""


def _require_one(names: Sequence[str], path: Path, what: str) -> None:
    several = sorted(set(names) - {""})
    if len(several) > 1:
        raise TableError(f"{path}: profiles of the {what}s {', '.join(several)}; give one's folder")


def _read(file: Path, skipped: list[tuple[str, str]]) -> dict[str, pl.DataFrame]:
    if file.stat().st_size > MAX_BYTES:
        raise TableError(f"{file}: {file.stat().st_size:,} bytes, at most {MAX_BYTES:,} are read")
    try:
        frame = pl.read_csv(file, infer_schema_length=None)
    except (pl.exceptions.PolarsError, ValueError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0][:120]
        raise TableError(f"{file}: cannot be read as CSV ({first})") from None
    if frame.height > MAX_ROWS:
        raise TableError(f"{file}: {frame.height:,} rows, at most {MAX_ROWS:,} are read")
    frame = frame.with_row_index("row")
    if file.name == "mlp.csv":
        return {"gemm": _products(file, frame)}
    if file.name == "attention.csv":
        return _attention(file, frame, skipped)
    return {"nccl": _all_reduce(file, frame, skipped)}


def _products(file: Path, frame: pl.DataFrame) -> pl.DataFrame:
    """Return the four matrix products of a layer as rows of a `gemm` table."""
    frame = _numbers(file, frame, _MLP)
    tp, hidden = pl.col(_TP), pl.col("n_embd")
    head_dim = hidden // pl.col("n_head")
    query = pl.col("n_head") // tp * head_dim
    inner = pl.col("n_expanded_embd") // tp
    up = inner * pl.when(pl.col("use_gated_mlp") > 0).then(2).otherwise(1)
    kv = pl.max_horizontal(pl.col("n_kv_head") // tp, pl.lit(1)) * head_dim
    parts = []
    for name, n, k in (
        ("attn_pre_proj", query + 2 * kv, hidden), ("attn_post_proj", hidden, query),
        ("mlp_up_proj", up, hidden), ("mlp_down_proj", hidden, inner),
    ):  # fmt: skip
        column = f"time_stats.{name}.median"
        if column in frame.columns:
            parts.append(
                frame.select(
                    gemm_dtype=pl.lit("bfloat16"), n=n, k=k, m=pl.col("num_tokens"),
                    latency_us=_latency(file, frame, column),
                    source=pl.lit("vidur"), kernel_source=pl.lit(name),
                )
            )  # fmt: skip
    if not parts:
        raise TableError(f"{file}: no column time_stats.<product>.median (mlp_up_proj, ...)")
    joined = pl.concat(parts)
    # Different matrices of one shape are repeats of one product.
    return joined.with_columns(kernel_source=pl.lit("")).cast({"n": pl.Int64, "k": pl.Int64})


def _attention(
    file: Path, frame: pl.DataFrame, skipped: list[tuple[str, str]]
) -> dict[str, pl.DataFrame]:
    """Return the rows of both attention tables."""
    frame = _numbers(file, frame, _ATTENTION)
    heads = {
        "attn_dtype": pl.lit("bfloat16"), "kv_cache_dtype": pl.lit("bfloat16"),
        "head_dim": pl.col("n_embd") // pl.col("n_q_head"), "window_size": pl.lit(0, pl.Int64),
        "num_heads": pl.col("n_q_head") // pl.col(_TP),
        "num_key_value_heads": pl.max_horizontal(pl.col("n_kv_head") // pl.col(_TP), pl.lit(1)),
        "batch_size": pl.col("batch_size"),
    }  # fmt: skip
    origin = {"source": pl.lit("vidur"), "kernel_source": pl.lit("")}
    prefill = frame.filter(pl.col("is_prefill") > 0)
    against_cache = prefill.filter(pl.col("kv_cache_size") > 0).height
    if against_cache:
        skipped.append((str(file), f"{against_cache:,} rows of prefill against cached tokens"))
    prefill = prefill.filter(pl.col("kv_cache_size") == 0)
    decode = frame.filter((pl.col("is_prefill") == 0) & (pl.col("kv_cache_size") > 0))
    out = {}
    for op, part, axis, column in (
        ("context_attention", prefill, {"isl": pl.col("prefill_chunk_size")}, "attn_prefill"),
        ("generation_attention", decode, {"step": pl.col("kv_cache_size")}, "attn_decode"),
    ):
        if part.height:
            time = _latency(file, part, f"time_stats.{column}.median")
            out[op] = part.select(**heads, **axis, latency_us=time, **origin)
    return out


def _all_reduce(file: Path, frame: pl.DataFrame, skipped: list[tuple[str, str]]) -> pl.DataFrame:
    """Return the all-reduces within one host as rows of an `nccl` table."""
    frame = _numbers(file, frame, _NETWORK)
    inside = frame.filter(pl.col("devices_per_node") == pl.col("num_workers"))
    if inside.height < frame.height:
        skipped.append((str(file), f"{frame.height - inside.height:,} rows across hosts"))
    return inside.select(
        op_name=pl.lit("all_reduce"), nccl_dtype=pl.lit("half"), num_gpus=pl.col("num_workers"),
        message_size=pl.col("size") // _BYTES_PER_ELEMENT,
        latency_us=_latency(file, inside, "time_stats.all_reduce.median"),
        source=pl.lit("vidur"), kernel_source=pl.lit("NCCL"),
    )  # fmt: skip


def _latency(file: Path, frame: pl.DataFrame, column: str) -> pl.Expr:
    """Return a column of milliseconds as microseconds."""
    if column not in frame.columns:
        raise TableError(f"{file}: column {column} is missing")
    if not frame[column].dtype.is_numeric():
        raise TableError(f"{file}: column {column} is {frame[column].dtype}, must be a number")
    bad = frame.filter(~(pl.col(column).is_finite() & (pl.col(column) > 0)).fill_null(value=False))
    if bad.height:
        row = bad.row(0, named=True)
        raise TableError(
            f"{file}, row {row['row']}: {column} is {row[column]}, must be finite and above 0"
        )
    return pl.col(column).cast(pl.Float64) * _MS_US


def _numbers(file: Path, frame: pl.DataFrame, columns: Sequence[str]) -> pl.DataFrame:
    """Return the frame with these columns as whole numbers, the number of GPUs at least 1."""
    if missing := [c for c in columns if c not in frame.columns]:
        raise TableError(f"{file}: columns {', '.join(missing)} are missing from the profile")
    for name in columns:
        column = frame[name]
        whole = column.cast(pl.Float64, strict=False) if column.dtype != pl.Boolean else column
        value = whole.cast(pl.Float64).fill_null(-1.0)
        bad = (value < 0) | (value != value.floor())
        if name in {"n_head", "n_q_head", _TP, "num_workers"}:
            bad |= value < 1
        if bad.any():
            row = int(bad.arg_max() or 0)
            raise TableError(f"{file}, row {row}: {name} is {column[row]}, must be a whole number")
    return frame.with_columns([pl.col(c).cast(pl.Float64).cast(pl.Int64) for c in columns])
