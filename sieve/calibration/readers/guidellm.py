"""Reports of GuideLLM 0.8 (JSON): one result for each benchmark of the report.

`inter_token_latency_ms` is that of a request, (E2E - TTFT)/(tokens - 1), which is TPOT here.
GuideLLM's own `time_per_output_token_ms` divides the whole latency by the tokens, the first one
included: it is another figure and is not read as TPOT. Of each metric the `successful` part counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sieve.calibration.readers.result import (
    Result,
    agrees,
    metadata_of,
    optional,
    rising,
    shown,
    text,
)
from sieve.errors import ResultError

_TIMES: Final = {
    "time_to_first_token_ms": ("ttft", 1e-3), "inter_token_latency_ms": ("tpot", 1e-3),
    "request_latency": ("e2e", 1.0),
}  # fmt: skip
_RATES: Final = {
    "output_tokens_per_second": "output_tokens_per_s", "tokens_per_second": "total_tokens_per_s",
    "requests_per_second": "requests_per_s",
}  # fmt: skip
_PERCENTILES: Final = ("p001", "p01", "p05", "p10", "p25", "p50", "p75", "p90", "p95", "p99",
                       "p999")  # fmt: skip
_NOTE: Final = (
    "inter_token_latency_ms is read as TPOT; time_per_output_token_ms, which counts the first "
    "token, is not"
)
_MOST: Final = 1e15
_MAX_BENCHMARKS: Final = 10_000


def is_guidellm(data: Any) -> bool:
    """Return whether this is a report of GuideLLM."""
    return isinstance(data, dict) and isinstance(data.get("benchmarks"), list)


def read_guidellm(data: Mapping[str, Any], file: str, sha256: str) -> list[Result]:
    """Return a result for each benchmark of a report.

    Raises:
        ResultError: none, an empty one, or figures that contradict each other.
    """
    benchmarks = data["benchmarks"]
    if not benchmarks or len(benchmarks) > _MAX_BENCHMARKS:
        raise ResultError(
            f"{file}: {len(benchmarks)} benchmarks; expected 1 to {_MAX_BENCHMARKS:,}: an empty "
            "report says nothing"
        )
    return [
        _result(data, entry, file, f"benchmarks[{i}]", sha256) for i, entry in enumerate(benchmarks)
    ]


def _result(report: Mapping[str, Any], entry: Any, file: str, where: str, sha256: str) -> Result:
    label = f"{file}, {where}"
    metrics = entry.get("metrics") if isinstance(entry, dict) else None
    if not isinstance(metrics, dict):
        raise ResultError(f"{label}: metrics is missing or no object; is this the whole report?")
    measured: dict[str, float] = {}
    for name, (metric, scale) in _TIMES.items():
        for statistic, value in _summary(label, metrics, name).items():
            ending = {"mean": "", "median": "_p50", "p99": "_p99"}.get(statistic)
            if ending is not None and value:
                measured[f"{metric}{ending}"] = value * scale
    for name, metric in _RATES.items():
        rate = _summary(label, metrics, name).get("mean")
        if rate:
            measured[metric] = rate
    lengths = {
        kind: _summary(label, metrics, f"{kind}_token_count") for kind in ("prompt", "output")
    }
    answered = _summary(label, metrics, "time_to_first_token_ms").get("count") or _summary(
        label, metrics, "request_latency"
    ).get("count")
    if not answered or not any(name.startswith("ttft") for name in measured):
        raise ResultError(
            f"{label}: no successful request with a first token: an empty result says nothing"
        )
    config = entry.get("config") if isinstance(entry.get("config"), dict) else {}
    users, rate = _load(config)
    metadata = report.get("metadata") if isinstance(report.get("metadata"), dict) else {}
    return Result(
        file=file,
        where=where,
        sha256=sha256,
        source_format="guidellm",
        source_version=text(metadata or {}, "guidellm_version") or text(metadata or {}, "version"),
        date=text(metadata or {}, "date") or text(entry, "start_time"),
        model=_model(config, report.get("config"), report.get("args"), metadata),
        metadata=metadata_of(
            metadata, config, entry.get("extras"), report.get("config"), report.get("args"), report
        ),
        users=users,
        rate_per_s=rate,
        num_requests=int(answered),
        input_tokens=lengths["prompt"].get("mean") or None,
        output_tokens=lengths["output"].get("mean") or None,
        duration_s=optional(label, entry, "duration") or None,
        measured=measured,
        notes=(_NOTE,),
    )


def _summary(label: str, metrics: Mapping[str, Any], name: str) -> dict[str, float | None]:
    """Return the statistics of the successful part of a metric, {} if there is none."""
    found = metrics.get(name)
    if found is None:
        return {}
    part = found.get("successful") if isinstance(found, dict) else None
    if not isinstance(part, dict):
        raise ResultError(
            f"{label}: metrics.{name}.successful: found {shown(part)}; expected an object with "
            "mean, median, percentiles"
        )
    where = f"{label}: metrics.{name}"
    values = {n: optional(where, part, n, most=_MOST)
              for n in ("mean", "median", "min", "max", "count", "total_sum")}  # fmt: skip
    percentiles = part.get("percentiles")
    if isinstance(percentiles, dict):
        values |= {n: optional(where, percentiles, n, most=_MOST) for n in _PERCENTILES}
    if values.get("p50") is not None and values["median"] is not None:
        agrees(where, "median", values["median"], "the percentiles", values["p50"])
    order = ("min", *_PERCENTILES, "max")
    rising(where, [(n, values.get(n)) for n in order])
    rising(where, [("min", values["min"]), ("mean", values["mean"]), ("max", values["max"])])
    count, mean, is_rate = values["count"], values["mean"], name.endswith("_per_second")
    if count and mean is not None and not is_rate:
        agrees(where, "total_sum", values["total_sum"], "mean and count", mean * count)
    values["median"] = values["median"] if values["median"] is not None else values.get("p50")
    return values


def _load(config: Mapping[str, Any] | None) -> tuple[int | None, float | None]:
    """Return users of a closed loop and requests per second, None where not stated."""
    strategy = (config or {}).get("strategy")
    strategy = strategy if isinstance(strategy, dict) else {}
    kind = str(strategy.get("type_") or strategy.get("type") or "")
    streams, rate = strategy.get("streams"), strategy.get("rate")
    if kind == "synchronous":
        return 1, None
    if isinstance(streams, int) and not isinstance(streams, bool) and streams > 0:
        return streams, None
    if isinstance(rate, int | float) and not isinstance(rate, bool) and 0 < rate < 1e9:
        return None, float(rate)
    return (None, float("inf")) if kind == "throughput" else (None, None)


def _model(*sources: Any) -> str:
    """Return the first model named in the given objects or one level below them."""
    for source in sources:
        if not isinstance(source, dict):
            continue
        for part in (source, *(v for v in source.values() if isinstance(v, dict))):
            value = part.get("model")
            if isinstance(value, str) and value:
                return value[:500]
    return ""
