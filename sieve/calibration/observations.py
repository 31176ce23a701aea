"""Measured operating points from CSV tables and from result files of `vllm bench serve`.

A point needs a model, fixed or mean lengths, the number of requests in flight and a throughput.
The batch is, in this order: the mean of running requests if the notes of a row state it
(`mean running=31.4`), the concurrency, `max_num_seqs`. A row that does not describe one plain
engine on one GPU is skipped, with its reason.
"""

from __future__ import annotations

import csv
import hashlib
import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sieve.catalog.accelerators import load_gpu
from sieve.errors import CatalogError, ResultError
from sieve.json_text import parse_json

COLUMNS: Final = ("model", "isl_mean", "osl_mean")
_MAX_BYTES: Final = 200_000_000
_RUNNING: Final = re.compile(r"\bmean running=(\d+(?:\.\d+)?)")
_REFUSED: Final = (
    (re.compile(r"profiler attached"), "a profiler was attached"),
    (re.compile(r"replicas_on_one_gpu=(?!1\b)\d+"), "several replicas share one GPU"),
    (re.compile(r"(?<!no )speculative|\bmtp\b", re.IGNORECASE), "speculative decoding"),
)  # fmt: skip


@dataclass(frozen=True)
class Observation:
    """One measured operating point of one engine on one GPU.

    Attributes:
        model: as written in the file.
        gpu: catalogue name, or as written; "" if the file does not say.
        isl: input tokens of a request, mean.
        osl: output tokens of a request, mean.
        batch: requests in flight.
        tokens_per_s: prompt and output tokens per second.
        engine: name of the serving engine, "" if unknown.
        weight_dtype: precision of the weights, "" if unknown.
        kv_dtype: precision of the cache, "" if unknown.
        tpot_s: mean time per output token in seconds, None if not reported.
        max_num_seqs: limit of running requests, None if not reported.
        max_num_batched_tokens: token budget of a step, None if not reported.
        batch_from: `running`, `concurrency`, `max_num_seqs` or `littles_law`.
        throughput_from: `total`, `output` (scaled by the lengths) or `latency`.
        place: file and line.
        notes: free text of the row.
    """

    model: str
    gpu: str
    isl: float
    osl: float
    batch: float
    tokens_per_s: float
    engine: str = ""
    weight_dtype: str = ""
    kv_dtype: str = ""
    tpot_s: float | None = None
    max_num_seqs: float | None = None
    max_num_batched_tokens: float | None = None
    batch_from: str = ""
    throughput_from: str = ""
    place: str = ""
    notes: str = ""


@dataclass(frozen=True)
class Skipped:
    """A row that is no usable point, and why."""

    place: str
    reason: str


@dataclass(frozen=True)
class Observations:
    """What some files hold.

    Attributes:
        rows: usable points in the order of the files.
        skipped: the others.
        inputs: name and SHA-256 of every file.
    """

    rows: tuple[Observation, ...]
    skipped: tuple[Skipped, ...]
    inputs: tuple[Mapping[str, str], ...]


class _Unusable(Exception):
    """A row cannot become an observation; the message is the reason."""


def read_observations(paths: Sequence[Path]) -> Observations:
    """Return the points of CSV and vLLM result files.

    Raises:
        ResultError: no file, a file that cannot be read, or one of another format.
    """
    if not paths:
        raise ResultError("give at least one file of measurements")
    rows: list[Observation] = []
    skipped: list[Skipped] = []
    inputs = []
    for path in paths:
        content = _read(path)
        inputs.append({"name": path.name, "sha256": hashlib.sha256(content).hexdigest()})
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise ResultError(f"{path}: not a text file: {error}; give CSV or JSON") from error
        is_json = path.suffix.lower() in {".json", ".jsonl"} or text.lstrip()[:1] in {"{", "["}
        for place, found in _json(path, text) if is_json else _csv(path, text):
            if isinstance(found, Observation):
                rows.append(found)
            else:
                skipped.append(Skipped(place, found))
    return Observations(tuple(rows), tuple(skipped), tuple(inputs))


def _read(path: Path) -> bytes:
    try:
        size = path.stat().st_size
        if size > _MAX_BYTES:
            raise ResultError(f"{path}: {size} bytes; at most {_MAX_BYTES} are read")
        return path.read_bytes()
    except OSError as error:
        raise ResultError(f"{path}: cannot be read: {error.strerror or error}") from error


def _csv(path: Path, text: str) -> Iterator[tuple[str, Observation | str]]:
    reader = csv.DictReader(io.StringIO(text, newline=""))
    try:
        header = reader.fieldnames or []
    except csv.Error as error:
        raise ResultError(f"{path}: line 1: no header of a CSV: {error}") from None
    missing = [name for name in COLUMNS if name not in header]
    if missing:
        raise ResultError(
            f"{path}: line 1: no column {', '.join(missing)}; needed are {', '.join(COLUMNS)}, a "
            "batch (concurrency or max_num_seqs) and a rate (total_tok_s, output_tok_s_total, "
            "e2e_mean_s, or TTFT and TPOT)"
        )
    try:
        for row in reader:
            place = f"{path.name}:{reader.line_num}"
            try:
                yield place, _from_row(row, place)
            except _Unusable as reason:
                yield place, str(reason)
    except csv.Error as error:
        raise ResultError(f"{path}: line {reader.line_num}: {error}") from error


def _from_row(row: Mapping[str, str | None], place: str) -> Observation:
    notes = (row.get("notes") or "").strip()
    for pattern, reason in _REFUSED:
        if pattern.search(notes):
            raise _Unusable(reason)
    for name in ("num_gpus", "tp", "pp", "dp"):
        count = _number(row, name)
        if count is not None and count != 1:
            raise _Unusable(f"{name} is {count:g}; the saturation model describes one GPU")
    if (_number(row, "prefix_hit_rate") or 0) > 0:
        raise _Unusable("prompts were partly cached")
    model = (row.get("model") or "").strip()
    if not model:
        raise _Unusable("model is missing")
    isl, osl = _needed(row, "isl_mean"), _needed(row, "osl_mean")
    batch, batch_from = _batch(row, notes)
    rate, rate_from = _rate(row, isl, osl, batch)
    tpot_ms = _number(row, "tpot_mean_ms")
    return Observation(
        model=model,
        gpu=_gpu_name((row.get("gpu") or "").strip()),
        isl=isl,
        osl=osl,
        batch=batch,
        tokens_per_s=rate,
        engine=(row.get("engine") or "").strip().lower(),
        weight_dtype=(row.get("weight_precision") or "").strip(),
        kv_dtype=(row.get("kv_precision") or "").strip(),
        tpot_s=None if tpot_ms is None else tpot_ms / 1e3,
        max_num_seqs=_number(row, "max_num_seqs"),
        max_num_batched_tokens=_number(row, "max_num_batched_tokens"),
        batch_from=batch_from,
        throughput_from=rate_from,
        place=place,
        notes=notes,
    )


def _batch(row: Mapping[str, str | None], notes: str) -> tuple[float, str]:
    running = _RUNNING.search(notes)
    if running and float(running[1]) > 0:
        return float(running[1]), "running"
    for name in ("concurrency", "max_num_seqs"):
        value = _number(row, name)
        if value is not None and value > 0:
            return value, name
    raise _Unusable("no batch: concurrency and max_num_seqs are missing")


def _rate(row: Mapping[str, str | None], isl: float, osl: float, batch: float) -> tuple[float, str]:
    total, output = _number(row, "total_tok_s"), _number(row, "output_tok_s_total")
    if total is not None and total > 0:
        return total, "total"
    if output is not None and output > 0:
        return output * (isl + osl) / osl, "output"
    latency = _number(row, "e2e_mean_s")
    if latency is None:
        ttft, tpot = _statistic(row, "ttft"), _statistic(row, "tpot")
        if ttft is not None and tpot is not None:
            latency = (ttft + tpot * (osl - 1)) / 1e3
    if latency is not None and latency > 0:
        return batch * (isl + osl) / latency, "latency"
    raise _Unusable("no rate: neither a throughput nor latencies")


def _statistic(row: Mapping[str, str | None], metric: str) -> float | None:
    """Return the mean of a latency in milliseconds, else its median."""
    mean = _number(row, f"{metric}_mean_ms")
    return _number(row, f"{metric}_p50_ms") if mean is None else mean


def _number(row: Mapping[str, Any], name: str) -> float | None:
    """Return a cell as a number; None if it is empty or a word (`inf`, `burst`)."""
    value = row.get(name)
    if value is None or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def _needed(row: Mapping[str, Any], name: str) -> float:
    value = _number(row, name)
    if value is None or value <= 0:
        raise _Unusable(f"{name} is {str(row.get(name))[:20]!r}; expected a number above 0")
    return value


def _gpu_name(name: str) -> str:
    """Return the catalogue's name of a GPU, or the name itself where the catalogue has none."""
    try:
        return load_gpu(name).name if name else ""
    except CatalogError:
        return name


def _json(path: Path, text: str) -> Iterator[tuple[str, Observation | str]]:
    """Read one result, a list of results, or a result a line (`--append-result`)."""
    try:
        content = parse_json(text)
        documents = content if isinstance(content, list) else [content]
    except ValueError as error:
        try:
            documents = [parse_json(line) for line in text.splitlines() if line.strip()]
        except ValueError:
            raise ResultError(f"{path}: neither JSON nor a result a line: {error}") from error
    for i, document in enumerate(documents):
        place = f"{path.name}[{i}]"
        if not isinstance(document, dict) or "total_output_tokens" not in document:
            raise ResultError(
                f"{place}: not a result of `vllm bench serve`: it has no total_output_tokens"
            )
        try:
            yield place, _from_bench(document, place)
        except _Unusable as reason:
            yield place, str(reason)


def _from_bench(result: Mapping[str, Any], place: str) -> Observation:
    for name in ("tensor_parallel_size", "tp", "num_gpus", "data_parallel_size", "dp"):
        count = _number(result, name)
        if count is not None and count != 1:
            raise _Unusable(f"{name} is {count:g}; the saturation model describes one GPU")
    if _number(result, "spec_decode_num_drafts"):
        raise _Unusable("speculative decoding")
    model = result.get("model_id") or result.get("model")
    if not isinstance(model, str) or not model:
        raise _Unusable("model_id is missing")
    completed, duration = _needed(result, "completed"), _needed(result, "duration")
    isl = _needed(result, "total_input_tokens") / completed
    osl = _needed(result, "total_output_tokens") / completed
    tpot_ms = _number(result, "mean_tpot_ms")
    users = _number(result, "max_concurrency")
    if users is not None and users > 0:
        # A closed loop of more users than requests never has that many in flight.
        batch, batch_from = min(users, completed), "concurrency"
    else:
        batch, batch_from = _in_flight(result, osl) * completed / duration, "littles_law"
    gpu = result.get("gpu")
    rate = _number(result, "total_token_throughput")
    return Observation(
        model=model,
        gpu=_gpu_name(gpu if isinstance(gpu, str) else ""),
        isl=isl,
        osl=osl,
        batch=batch,
        tokens_per_s=rate if rate else (isl + osl) * completed / duration,
        engine="vllm",
        weight_dtype=str(result.get("weight_dtype") or ""),
        kv_dtype=str(result.get("kv_cache_dtype") or ""),
        tpot_s=None if tpot_ms is None else tpot_ms / 1e3,
        max_num_seqs=_number(result, "max_num_seqs"),
        max_num_batched_tokens=_number(result, "max_num_batched_tokens"),
        batch_from=batch_from,
        throughput_from="total",
        place=place,
    )


def _in_flight(result: Mapping[str, Any], osl: float) -> float:
    """Return the mean time of a request in the system in seconds."""
    latency = _number(result, "mean_e2el_ms")
    if latency is None:
        ttft, tpot = _number(result, "mean_ttft_ms"), _number(result, "mean_tpot_ms")
        if ttft is None or tpot is None:
            raise _Unusable("no batch: max_concurrency and the latencies are missing")
        latency = ttft + tpot * (osl - 1)
    if latency <= 0:
        raise _Unusable("no batch: the latency is not above 0")
    return latency / 1e3
