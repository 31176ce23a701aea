"""One benchmark result in sieve's terms, and the checks that all readers share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from sieve.arrays import FloatArray, IntArray
from sieve.errors import ResultError

TOLERANCE: Final = 0.02
"""Relative difference that rounding and the edges of a run may leave between two totals."""
MOST_SECONDS: Final = 1e7
MOST_RATE: Final = 1e9
KNOBS: Final = (
    "tensor_parallel_size", "pipeline_parallel_size", "max_num_seqs", "max_num_batched_tokens",
    "kv_cache_dtype", "gpu_memory_utilization", "max_model_len", "quantization",
)  # fmt: skip
"""Engine options that results carry as overrides or metadata."""


@dataclass(frozen=True, eq=False)
class Series:
    """Requests of a run one by one, times in seconds since the first was sent.

    Attributes:
        start_s, first_s, end_s: (n,) sent, first token, last token.
        input_tokens, output_tokens: (n,).
        gaps_s: (n,) lists of gaps between chunks, empty where they were not kept.
    """

    start_s: FloatArray
    first_s: FloatArray
    end_s: FloatArray
    input_tokens: IntArray
    output_tokens: IntArray
    gaps_s: tuple[Sequence[float], ...] = ()


@dataclass(frozen=True, eq=False)
class Result:
    """One result of one benchmark run.

    Attributes:
        file, where: name of the file, place in it ("" if it holds one result).
        sha256: of the file.
        source_format: `vllm_bench`, `vllm_sweep`, `aiperf`, `genai_perf`, `guidellm`.
        source_version, date: as far as the file says, else "".
        model: as served, "" if the file does not say.
        metadata: `candidate_id`, `run`, `level` and engine options, as far as they are there.
        users: of a closed loop, None if the load was none.
        rate_per_s: requests per second offered, inf: all at once, None: not stated.
        num_requests: answered.
        input_tokens, output_tokens: means of a request, None if not stated.
        duration_s: of the run, None if not stated.
        measured: by metric of `sieve.calibration.points.METRICS`.
        notes: what was read in a way that should be known.
        series: requests one by one, if the file has them.
    """

    file: str
    where: str
    sha256: str
    source_format: str
    source_version: str
    date: str
    model: str
    metadata: Mapping[str, Any]
    users: int | None
    rate_per_s: float | None
    num_requests: int
    input_tokens: float | None
    output_tokens: float | None
    duration_s: float | None
    measured: Mapping[str, float]
    notes: tuple[str, ...] = field(default=())
    series: Series | None = None

    @property
    def label(self) -> str:
        """File and place, for messages."""
        return f"{self.file}, {self.where}" if self.where else self.file

    @property
    def load(self) -> str:
        """What was offered, in words."""
        if self.users is not None and not (self.rate_per_s and math.isfinite(self.rate_per_s)):
            return f"{self.users} users"
        if self.rate_per_s is None:
            return "load not stated"
        rate = "all at once" if math.isinf(self.rate_per_s) else f"{self.rate_per_s:g} requests/s"
        return rate if self.users is None else f"{rate}, at most {self.users} at once"


def number(where: str, data: Mapping[str, Any], name: str, *, most: float = MOST_RATE) -> float:
    """Return a finite number above 0 of a result.

    Raises:
        ResultError: missing, or something else.
    """
    value = optional(where, data, name, most=most)
    if value is None:
        raise ResultError(f"{where}: {name} is missing; is this the whole result?")
    if value == 0:
        raise ResultError(f"{where}: {name} is 0; allowed is a number above 0")
    return value


def optional(
    where: str, data: Mapping[str, Any], name: str, *, most: float = MOST_RATE
) -> float | None:
    """Return a finite number from 0 on, None where the key is missing or null.

    Raises:
        ResultError: something else.
    """
    value = data.get(name)
    if value is None or value == "":
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ResultError(f"{where}: {name}: found {shown(value)}; allowed is a finite number")
    if not 0 <= value <= most:
        raise ResultError(f"{where}: {name}: found {value:g}; allowed is 0 to {most:g}")
    return float(value)


def count(where: str, data: Mapping[str, Any], name: str) -> int | None:
    """Return a whole number, None where the key is missing or null."""
    value = optional(where, data, name)
    if value is not None and value != int(value):
        raise ResultError(f"{where}: {name}: found {value!r}; allowed is a whole number")
    return None if value is None else int(value)


def text(data: Mapping[str, Any], name: str) -> str:
    """Return a text of a result, "" if it is missing or no text."""
    value = data.get(name)
    return value[:500] if isinstance(value, str) else ""


def shown(value: Any) -> str:
    """Return a value for a message, cut short, without control characters."""
    words = repr(value)
    return words if len(words) <= 60 else f"{words[:57]}..."


def agrees(
    where: str, name: str, stated: float | None, other: str, follows: float | None,
    tolerance: float = TOLERANCE,
) -> None:  # fmt: skip
    """Refuse two figures of one result that cannot both be true; either may be unknown.

    Raises:
        ResultError: they differ by more than the tolerance.
    """
    if stated is None or follows is None:
        return
    if abs(stated - follows) > tolerance * max(abs(stated), abs(follows)):
        raise ResultError(
            f"{where}: {name} is {stated:.6g}, but {other} make it {follows:.6g}: the totals do "
            "not agree, so the file was edited or cut; give the file as the tool wrote it"
        )


def rising(where: str, values: Sequence[tuple[str, float | None]]) -> None:
    """Refuse statistics out of order: each (name, value) at least the one before; None: unknown.

    Raises:
        ResultError: one is smaller than one before it.
    """
    known = [(name, value) for name, value in values if value is not None]
    for (a, low), (b, high) in pairwise(known):
        if high < low * (1 - 1e-6):
            raise ResultError(
                f"{where}: {b} is {high:.6g} and {a} is {low:.6g}: statistics are out of order, so "
                "the file was edited; give the file as the tool wrote it"
            )


NAMES: Final = ("candidate_id", "replica_of", "run", "level", "scope")
"""What the plan's benchmarks say of a result: `scope` is `fleet`, or `replica` for one's share,
which names its candidate as `replica_of`."""


def metadata_of(*sources: Any) -> dict[str, Any]:
    """Return what results say of their candidate: `NAMES` and engine options.

    They stand as keys, or as `key=value` texts under `metadata`, `label` or `labels`. The first of
    the sources that has one counts.
    """
    found: dict[str, Any] = {}
    for source in sources:
        if not isinstance(source, Mapping):
            continue
        for name in ("metadata", "label", "labels"):
            for key, value in _pairs(source.get(name)).items():
                if key in NAMES:
                    found.setdefault(key, value)
        for name in (*NAMES, *KNOBS):
            value = source.get(name, source.get(name.replace("_", "-")))
            known = isinstance(value, str | int | float) and not isinstance(value, bool)
            if known and value not in {"", "unset"}:
                found.setdefault(name, value)
    if "replica_of" in found:
        found |= {"candidate_id": found.pop("replica_of"), "scope": "replica"}
    return found


def _pairs(value: Any) -> dict[str, Any]:
    """Return `key=value` texts, one or a list, as a mapping; a mapping stays one."""
    if isinstance(value, Mapping):
        return {str(k): v for k, v in value.items() if isinstance(v, str | int | float)}
    texts = value if isinstance(value, list) else [value]
    words = [word for text in texts if isinstance(text, str) for word in text[:2000].split()]
    return dict(word.split("=", 1) for word in words if "=" in word)
