"""Replays as bytes, for a checkpoint, and the key by which one is found again.

A stored replay comes back bit for bit (without its thinned series and its recorded iterations), so
metrics, intervals and objectives can be computed anew from it.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from sieve.arrays import COMPONENTS, FloatArray, IntArray, Requests, SimResult, StepTable
from sieve.sim._kernels import source_hash
from sieve.sim._kernels.clock import GAP_BINS
from sieve.sim.traffic_input import ReplaySettings
from sieve.units import NS_PER_S

_TIMES: Final = ("arrival_s", "scheduled_s", "first_token_s", "finish_s")
_PER_REQUEST: Final = ("num_preemptions", "cached_tokens")
_COUNTS: Final = (
    "num_steps", "num_request_steps", "peak_blocks", "peak_batch", "peak_tokens", "peak_running",
    "short_of_blocks", "num_idle_steps",
)  # fmt: skip
_NOT_REPLAYED: Final = (
    "source", "sha256", "notes", "front_end_s", "component_evidence", "priority",
)  # fmt: skip
"""Fields of requests and step tables that no replay reads."""


def can_store(result: SimResult) -> bool:
    """Return whether every request was answered: other ends are quickly found again."""
    return result.status == ""


def encode(result: SimResult) -> bytes:
    """Return a replay for which `can_store` holds as bytes."""
    nanoseconds = [np.rint(getattr(result, name) * NS_PER_S).astype(np.int64) for name in _TIMES]
    # Differences are small numbers, and small numbers compress.
    columns = [np.diff(nanoseconds[0], prepend=0), *np.diff(nanoseconds, axis=0)]
    floats = np.append(result.component_s, result.makespan_s).astype(np.float64)
    parts: list[IntArray] = [
        np.array([len(result.arrival_s)], np.int64),
        np.array([int(getattr(result, name)) for name in _COUNTS], np.int64),
        floats.view(np.int64),
        result.gaps.astype(np.int64),
        *columns,
        *(getattr(result, name).astype(np.int64) for name in _PER_REQUEST),
    ]
    values = np.concatenate(parts)
    planes = np.ascontiguousarray(values.view(np.uint8).reshape(-1, 8).T)
    return zlib.compress(planes.tobytes(), 1)


def decode(data: bytes) -> SimResult:
    """Return the replay that `encode` wrote.

    Raises:
        ValueError: not such bytes.
    """
    try:
        planes = np.frombuffer(zlib.decompress(data), np.uint8).reshape(8, -1)
    except zlib.error as error:
        raise ValueError(f"not a stored replay: {error}") from None
    values = np.ascontiguousarray(planes.T).view(np.int64).ravel()
    n = int(values[0])
    sizes = [1, len(_COUNTS), len(COMPONENTS) + 1, GAP_BINS] + [n] * 6
    if len(values) != sum(sizes):
        raise ValueError(f"not a stored replay: {len(values)} numbers for {n} requests")
    _, counts, floats, gaps, *columns = np.split(values, np.cumsum(sizes)[:-1])
    numbers = floats.view(np.float64)
    times = np.cumsum([np.cumsum(columns[0]), *columns[1:4]], axis=0)
    known: dict[str, Any] = dict(zip(_COUNTS, counts.tolist(), strict=True))
    known |= {name: _seconds(row) for name, row in zip(_TIMES, times, strict=True)}
    known |= dict(zip(_PER_REQUEST, columns[4:], strict=True))
    known["short_of_blocks"] = bool(known["short_of_blocks"])
    return SimResult(
        status="", component_s=numbers[:-1], makespan_s=float(numbers[-1]), gaps=gaps,
        samples=np.zeros((0, 4)), **known,
    )  # fmt: skip


def _seconds(values_ns: IntArray) -> FloatArray:
    return np.asarray(values_ns / NS_PER_S)


def digest(facts: Requests | StepTable) -> str:
    """Return a hash of what a replay reads of requests or of a step table."""
    state = hashlib.sha256()
    _feed(state, facts)
    return state.hexdigest()


def replay_key(
    requests: str, table: str, settings: ReplaySettings, replicas: int, code: str
) -> str:
    """Return the name of a replay: a hash of all that it depends on, the code included."""
    text = "\n".join((code, requests, table, repr(settings), str(replicas)))
    return hashlib.sha256(text.encode()).hexdigest()


def code_version() -> str:
    """Return a name for the code that makes replays."""
    return f"{source_hash()}-{source_hash(Path(__file__).parent)}"


def _feed(state: Any, value: Any) -> None:
    if is_dataclass(value):
        for field in fields(value):
            if field.name not in _NOT_REPLAYED:
                state.update(field.name.encode() + b"=")
                _feed(state, getattr(value, field.name))
    elif isinstance(value, np.ndarray):
        state.update(f"{value.dtype}{value.shape}".encode())
        state.update(np.ascontiguousarray(value).tobytes())
    else:
        assert not isinstance(value, Mapping), "a mapping has no fixed order"
        state.update(repr(value).encode())
    state.update(b"\0")
