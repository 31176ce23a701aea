"""Measured operating points beside their predictions: what calibration learns from.

A point keeps the prediction it was held against, so that a correction can be computed again from
the calibration file alone; it expires when the engine profile or the step-time model behind that
prediction changes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from sieve.errors import ResultError

SECTION: Final = "serving"
"""Key of the calibration file under which points stand."""
MAX_POINTS: Final = 4000
METRICS: Final = (
    "ttft", "ttft_p50", "ttft_p99", "tpot", "tpot_p50", "tpot_p99", "itl", "itl_p50",
    "itl_p99", "e2e", "e2e_p50", "e2e_p99", "output_tokens_per_s", "total_tokens_per_s",
    "requests_per_s",
)  # fmt: skip
"""Metrics of a point, in seconds or per second; without a statistic: the mean."""
BANDS: Final = ("low", "knee", "saturated")
LOW_BATCH: Final = 16.0
"""Mean requests in an iteration below which a load counts as low: weights set the step time."""
WAITING: Final = 0.1
"""Share of a request's time spent waiting for a seat from which a load counts as saturated."""
HEAVY_PREFILL: Final = 4.0
"""Prompt tokens for each output token from which prompts press."""
SPREAD: Final[Mapping[str, float]] = {"tpot": 0.30, "ttft": 0.60, "rate": 0.30}
"""Twice the spread of reruns on real hardware (15 % and more; of TTFT about twice that), as a log
ratio: results of one point that lie further apart contradict each other."""


@dataclass(frozen=True)
class Place:
    """The deployment and the load of a point, or of a candidate at a load level.

    Attributes:
        engine: as in `vllm`; `release` as in 0.33.
        gpu, model, family, weight_dtype, kv_cache_dtype: family is the architecture.
        tp, pp, replicas: split.
        batch: mean requests in one iteration of one replica, by the replay.
        input_tokens, output_tokens: means of a request.
        band: of `BANDS`.
    """

    engine: str
    release: str
    gpu: str
    model: str
    family: str
    weight_dtype: str
    kv_cache_dtype: str
    tp: int
    pp: int
    replicas: int
    batch: float
    input_tokens: float
    output_tokens: float
    band: str

    @property
    def pair(self) -> tuple[str, str, str]:
        """GPU, model and precision: what a correction belongs to."""
        return self.gpu, self.model, self.weight_dtype

    @property
    def cell(self) -> tuple[str, str, str, str]:
        """Regime: model family, GPU, load band and prefill pressure."""
        return self.family, self.gpu, self.band, self.pressure

    @property
    def pressure(self) -> str:
        """`heavy` where prompts press, else `light`."""
        heavy = self.input_tokens >= HEAVY_PREFILL * self.output_tokens
        return "heavy" if heavy else "light"


@dataclass(frozen=True)
class Point:
    """One measured result and its prediction.

    Attributes:
        id: checksum of the file and the place in it; the same result twice is one point.
        file, where: name of the file, place in it.
        sha256: of the file.
        source_format, source_version, date: as far as the file says.
        matched_by: how the candidate was found.
        candidate_id: "" where it is none of a run.
        load: what was offered, in words: equal for results of one point.
        num_requests: answered.
        basis: digest of the engine profile and step-time model behind the prediction.
        place: deployment and load.
        measured, predicted: by metric of `METRICS`; the prediction without any correction.
    """

    id: str
    file: str
    where: str
    sha256: str
    source_format: str
    source_version: str
    date: str
    matched_by: str
    candidate_id: str
    load: str
    num_requests: int
    basis: str
    place: Place
    measured: Mapping[str, float]
    predicted: Mapping[str, float]

    @property
    def label(self) -> str:
        """File and place, for messages."""
        return f"{self.file}, {self.where}" if self.where else self.file

    def log_error(self, metric: str) -> float | None:
        """Return log(measured/predicted); None where either is missing."""
        pair = self.measured.get(metric), self.predicted.get(metric)
        if pair[0] is None or pair[1] is None:
            return None
        return math.log(pair[0] / pair[1])

    def middle(self, kind: str) -> str | None:
        """Return the metric that stands for `ttft` or `tpot`: the mean, p50, or ITL for TPOT."""
        names = (kind, f"{kind}_p50", *(("itl",) if kind == "tpot" else ()))
        return next((n for n in names if n in self.measured and n in self.predicted), None)


def band_of(batch: float, waiting: float) -> str:
    """Return the load band of a replay.

    Args:
        batch: mean requests in an iteration.
        waiting: share of the requests' time that passes before their first iteration.
    """
    if waiting >= WAITING:
        return "saturated"
    return "low" if batch < LOW_BATCH else "knee"


@dataclass(frozen=True)
class Contradiction:
    """Two results of one point that disagree, and how, in words."""

    first: Point
    second: Point
    reason: str


def contradiction(points: Sequence[Point]) -> Contradiction | None:
    """Return the first two results of one point that disagree by more than reruns do."""
    seen: dict[tuple[Any, ...], list[Point]] = {}
    for point in points:
        p = point.place
        split = (p.tp, p.pp, p.replicas, round(p.input_tokens), round(p.output_tokens))
        names = (p.engine, p.release, *p.pair, p.kv_cache_dtype, point.candidate_id, point.load)
        key = (*names, *split)
        for other in seen.setdefault(key, []):
            if other.id != point.id and (why := _apart(other, point)):
                return Contradiction(other, point, why)
        seen[key].append(point)
    return None


def _apart(first: Point, second: Point) -> str | None:
    for metric in METRICS:
        if metric not in first.measured or metric not in second.measured:
            continue
        kind = "ttft" if metric.startswith("ttft") else "rate"
        kind = "tpot" if metric.startswith(("tpot", "itl", "e2e")) else kind
        a, b = first.measured[metric], second.measured[metric]
        if not metric.endswith("_p99") and abs(math.log(a / b)) > SPREAD[kind]:
            return (
                f"{first.label} and {second.label} measure one point "
                f"({first.candidate_id or ' '.join(first.place.pair)}, {first.load}) and disagree: "
                f"{metric} is {a:.4g} and {b:.4g}; allowed is a factor of "
                f"{math.exp(SPREAD[kind]):.2f}, twice what reruns differ by. Leave one out"
            )
    return None


def to_entry(point: Point) -> dict[str, Any]:
    """Return a point as JSON data; `from_entry` reads it."""
    return asdict(point)


def from_entry(entry: Any, where: str) -> Point:
    """Return a point of a calibration file.

    Raises:
        ResultError: a field is missing or damaged.
    """
    data = _checked(entry, Point, where, skip=("place", "measured", "predicted"))
    place = Place(**_checked(entry.get("place"), Place, f"{where}.place"))
    if place.band not in BANDS:
        raise ResultError(f"{where}.place.band: found {place.band!r}, allowed: {', '.join(BANDS)}")
    for name in ("batch", "input_tokens", "output_tokens", "tp", "pp", "replicas"):
        if not 0 < getattr(place, name) < 1e9:
            raise ResultError(
                f"{where}.place.{name}: found {getattr(place, name)!r}, expected above 0, below 1e9"
            )
    values: dict[str, Any] = {}
    for name in ("measured", "predicted"):
        found = entry.get(name)
        if not isinstance(found, dict) or not found:
            raise ResultError(
                f"{where}.{name}: found {repr(found)[:40]}, expected an object with metrics"
            )
        for metric, value in found.items():
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if metric not in METRICS or not number or not 0 < value < 1e12:
                raise ResultError(f"{where}.{name}.{metric}: found {value!r}; expected above 0")
        values[name] = {metric: float(value) for metric, value in found.items()}
    return Point(**data, place=place, **values)


def _checked(entry: Any, kind: Any, where: str, skip: Sequence[str] = ()) -> dict[str, Any]:
    if not isinstance(entry, dict):
        raise ResultError(f"{where}: found {repr(entry)[:40]}, expected an object")
    out: dict[str, Any] = {}
    for field in fields(kind):
        if field.name in skip:
            continue
        value = entry.get(field.name)
        wanted: Any = {"int": int, "float": (int, float), "str": str}[str(field.type)]
        if not isinstance(value, wanted) or isinstance(value, bool):
            raise ResultError(f"{where}.{field.name}: found {value!r}, expected {field.type}")
        out[field.name] = float(value) if field.type == "float" else value
    return out
