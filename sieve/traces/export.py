"""Traffic written as files that other tools replay, so that simulator and benchmark see the same.

| format | written for |
|---|---|
| `mooncake_trace` | AIPerf 0.13.0 (`--custom-dataset-type mooncake_trace`): ms, blocks of 512 |
| `timed_trace` | vLLM 0.33.0 (`vllm bench serve --dataset-name timed_trace`): s, blocks of 16 |
| `sieve_table` | sieve's own table, Parquet or CSV |
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl

from sieve.arrays import FloatArray, IntArray, PrefixBlocks, Requests, chain_starts
from sieve.errors import InvalidInput, TraceError

TARGETS: Final = {
    "mooncake_trace": "AIPerf 0.13.0",
    "timed_trace": "vLLM 0.33.0",
    "sieve_table": "sieve",
}
_BLOCK: Final = {"mooncake_trace": 512, "timed_trace": 16}
_SUFFIXES: Final = {
    ".jsonl": "mooncake_trace", ".json": "mooncake_trace", ".parquet": "sieve_table",
    ".csv": "sieve_table",
}  # fmt: skip


def target_of(path: Path, target: str | None) -> str:
    """Return the format to write, from its name or the file's ending.

    Raises:
        InvalidInput: an unknown format or ending, or two that do not go together.
    """
    by_name = _SUFFIXES.get(path.suffix.lower())
    wanted = target or by_name
    if wanted not in TARGETS:
        raise InvalidInput(
            f"--to {target or path.name}: expected {', '.join(TARGETS)}, or a file that ends in "
            f"{', '.join(_SUFFIXES)}"
        )
    fits = {".parquet", ".csv"} if wanted == "sieve_table" else {".jsonl", ".json"}
    if path.suffix.lower() not in fits:
        raise InvalidInput(f"{path.name}: {wanted} is written to a file ending in "
                           f"{' or '.join(sorted(fits))}")  # fmt: skip
    return wanted


def frame_of(requests: Requests, target: str) -> pl.DataFrame:
    """Return the table of a target format, one row a request in order of arrival.

    Raises:
        TraceError: traffic that the format cannot hold.
    """
    if requests.closed_loop_users is not None:
        raise TraceError(
            f"{requests.source}: a closed loop has no arrivals to write; its "
            f"{requests.closed_loop_users} users are an option of the benchmark (concurrency)"
        )
    waits = np.zeros(len(requests), np.bool_)
    if requests.previous is not None:
        waits = requests.previous >= 0
    if target == "timed_trace" and waits.any():
        raise TraceError(
            f"{requests.source}: {int(waits.sum())} turns wait for the answer before, which "
            "timed_trace cannot say; write mooncake_trace or sieve_table"
        )
    if target == "sieve_table":
        return _own(requests, waits)
    scale = 1e3 if target == "mooncake_trace" else 1.0
    time = np.round(requests.arrival_s * scale, 6 if scale > 1 else 9)
    columns: dict[str, pl.Series] = {"timestamp": _where(~waits, time)}
    session = _sessions(requests)
    if session is not None:
        columns["session_id"] = session
    if waits.any() and requests.delay_s is not None:
        columns["delay"] = _where(waits, np.round(requests.delay_s * scale, 6))
    columns["input_length"] = pl.Series(requests.input_tokens)
    columns["output_length"] = pl.Series(requests.output_tokens)
    if requests.prefix is not None:
        start, ids = resized(requests.prefix, _BLOCK[target])
        columns["hash_ids"] = _lists(start, ids)
    return pl.DataFrame(columns)


def _own(requests: Requests, waits: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> pl.DataFrame:
    columns: dict[str, pl.Series] = {
        "arrival_s": _where(~waits, requests.arrival_s),
        "input_tokens": pl.Series(requests.input_tokens),
        "output_tokens": pl.Series(requests.output_tokens),
    }
    session = _sessions(requests)
    if session is not None:
        columns["session_id"] = session
    if waits.any() and requests.delay_s is not None:
        columns["delay_s"] = _where(waits, requests.delay_s)
    if requests.prefix is not None:
        size = requests.prefix.block_tokens
        start, ids = resized(requests.prefix, size)
        columns["prefix_block_ids"] = _lists(start, ids)
        columns["prefix_block_tokens"] = pl.Series(np.full(len(requests), size))
    if requests.line is not None:
        columns["source_line"] = pl.Series(requests.line)
    return pl.DataFrame(columns)


def _where(
    mask: np.ndarray[tuple[int], np.dtype[np.bool_]], values: FloatArray | IntArray
) -> pl.Series:
    series = pl.Series(values)
    return series if mask.all() else pl.select(pl.when(pl.Series(mask)).then(series)).to_series()


def _sessions(requests: Requests) -> pl.Series | None:
    """Return the session of each request as text, null for none; chains of turns are kept apart."""
    if requests.previous is not None:
        return pl.Series(chain_starts(requests.previous)).cast(pl.String)
    if requests.session is None:
        return None
    return _where(requests.session >= 0, requests.session).cast(pl.String)


def _lists(start: IntArray, ids: IntArray) -> pl.Series:
    owner = np.repeat(np.arange(len(start) - 1), np.diff(start))
    frame = pl.DataFrame({"owner": owner, "ids": ids}).group_by("owner", maintain_order=True)
    found = frame.agg("ids")
    empty = pl.Series([[]] * (len(start) - 1), dtype=pl.List(pl.Int64))
    if len(found) == len(empty):
        return found["ids"]
    rows = pl.DataFrame({"owner": np.arange(len(start) - 1)}).join(found, on="owner", how="left")
    return rows.select(pl.col("ids").fill_null(pl.lit([], dtype=pl.List(pl.Int64)))).to_series()


def resized(prefix: PrefixBlocks, size: int) -> tuple[IntArray, IntArray]:
    """Return offsets, (n + 1,), and numbers of blocks of `size` tokens that cover every prompt.

    A block has the same number in two prompts exactly if all up to its end was shared; what the
    trace does not tell to be shared gets numbers of its own.

    Raises:
        TraceError: neither size is a multiple of the other.
    """
    old, prompt = prefix.block_tokens, prefix.prompt
    if size % old and old % size:
        raise TraceError(
            f"prefix blocks of {old} tokens cannot be told in blocks of {size}; write sieve_table"
        )
    have = np.diff(prefix.start)
    count = -(-prompt // size)
    start = np.concatenate(([0], np.cumsum(count))).astype(np.int64)
    owner = np.repeat(np.arange(len(prompt)), count)
    place = np.arange(int(start[-1])) - start[:-1][owner]
    end = np.minimum((place + 1) * size, prompt[owner])
    known = have[owner] * old >= end
    source = prefix.start[:-1][owner] + (end - 1) // old
    parts = max(old // size, 1)
    ids = np.full(len(owner), -1, np.int64)
    ids[known] = prefix.ids[source[known]] * parts + (place[known] % parts)
    used = int(ids.max(initial=-1)) + 1
    ids[~known] = np.arange(used, used + int((~known).sum()))
    return start, ids


def write(requests: Requests, path: Path, target: str | None = None) -> dict[str, object]:
    """Write traffic to `path` and return what was written; a file there is replaced whole.

    Raises:
        TraceError: traffic that the format cannot hold.
        InvalidInput: an unknown format, or a path that cannot be written.
    """
    wanted = target_of(path, target)
    frame = frame_of(requests, wanted)
    if path.suffix.lower() == ".csv" and "prefix_block_ids" in frame.columns:
        texts = pl.col("prefix_block_ids").cast(pl.List(pl.String)).list.join(" ")
        frame = frame.with_columns(texts)

    def save(to: Path) -> None:
        if path.suffix.lower() == ".parquet":
            frame.write_parquet(to)
        elif path.suffix.lower() == ".csv":
            frame.write_csv(to)
        else:
            text = frame.write_ndjson().encode()
            for name in ("timestamp", "delay", "session_id"):
                text = text.replace(f'"{name}":null,'.encode(), b"")
            to.write_bytes(text)

    replace_file(path, save)
    return {
        "file": path.name, "format": wanted, "written_for": TARGETS[wanted],
        "num_requests": len(requests), "columns": frame.columns,
        "block_tokens": (
            None if requests.prefix is None
            else _BLOCK.get(wanted, requests.prefix.block_tokens)
        ),
    }  # fmt: skip


def replace_file(path: Path, save: Callable[[Path], object]) -> None:
    """Write a file beside `path` and put it in its place, so that no half file is ever there.

    Raises:
        InvalidInput: the folder cannot be written.
    """
    if path.is_dir():
        raise InvalidInput(f"{path}: a folder; name a file")
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        os.close(handle)
    except OSError as error:
        raise InvalidInput(f"{path}: cannot be written: {error.strerror}") from None
    try:
        save(Path(name))
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
