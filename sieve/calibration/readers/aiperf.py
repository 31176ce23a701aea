"""Results of AIPerf (JSON, schema 1.x) and of GenAI-Perf: the same shape without a version.

A metric is an object with `unit` and statistics. The file `profile_export.jsonl` holds requests one
by one and is read for tracking.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from sieve.calibration.readers.result import (
    MOST_SECONDS,
    Result,
    Series,
    agrees,
    metadata_of,
    optional,
    rising,
    shown,
    text,
)
from sieve.errors import ResultError

MARK: Final = "time_to_first_token"
_SECONDS: Final = {
    "s": 1.0, "sec": 1.0, "seconds": 1.0, "ms": 1e-3, "milliseconds": 1e-3, "us": 1e-6,
    "ns": 1e-9, "nanoseconds": 1e-9,
}  # fmt: skip
_TIMES: Final = {
    "time_to_first_token": "ttft", "inter_token_latency": "tpot", "request_latency": "e2e",
}  # fmt: skip
"""`inter_token_latency` is (E2E - TTFT)/(tokens - 1) of a request: what sieve calls TPOT."""
_RATES: Final = {
    "output_token_throughput": "output_tokens_per_s", "request_throughput": "requests_per_s",
}  # fmt: skip
_ORDER: Final = ("min", "p1", "p5", "p10", "p25", "p50", "p75", "p90", "p95", "p99", "max")
_RATE_TOLERANCE: Final = 0.05
"""Between rates over the whole run and those of the answered requests."""


def is_aiperf(data: Any) -> bool:
    """Return whether this is a result of AIPerf or GenAI-Perf."""
    return isinstance(data, dict) and (isinstance(data.get(MARK), dict) or "aiperf_version" in data)


def read_aiperf(data: Mapping[str, Any], file: str, sha256: str) -> Result:
    """Return the result in a JSON export.

    Raises:
        ResultError: another schema, no answers, or figures that contradict each other.
    """
    schema = text(data, "schema_version")
    is_new = bool(schema or "aiperf_version" in data)
    if schema and schema.split(".")[0] != "1":
        raise ResultError(
            f"{file}: schema_version {shown(schema)}: this reader knows 1.x and GenAI-Perf's form"
        )
    measured: dict[str, float] = {}
    for tag, metric in _TIMES.items():
        for statistic, value in _statistics(file, data, tag).items():
            name = {"avg": metric, "p50": f"{metric}_p50", "p99": f"{metric}_p99"}.get(statistic)
            if name and value:
                measured[name] = value * _scale(file, data[tag], tag)
    for tag, metric in _RATES.items():
        rate = _statistics(file, data, tag).get("avg")
        if rate:
            measured[metric] = rate
    if "ttft" not in measured:
        raise ResultError(f"{file}: {MARK}: no average above 0: an empty result says nothing")
    answered = _answered(file, data)
    duration = _duration(file, data)
    lengths = {
        name: _statistics(file, data, f"{name}_sequence_length").get("avg") or None
        for name in ("input", "output")
    }
    rate, tokens = measured.get("requests_per_s"), measured.get("output_tokens_per_s")
    if duration is not None:
        agrees(file, "request_throughput.avg", rate, "request_count and the timestamps",
               answered / duration, _RATE_TOLERANCE)  # fmt: skip
    if rate is not None and lengths["output"] is not None:
        agrees(file, "output_token_throughput.avg", tokens,
               "request_throughput and output_sequence_length", rate * lengths["output"],
               _RATE_TOLERANCE)  # fmt: skip
    settings = _settings(data)
    return Result(
        file=file,
        where="",
        sha256=sha256,
        source_format="aiperf" if is_new else "genai_perf",
        source_version=text(data, "aiperf_version") or schema,
        date=text(data, "start_time") or text(data, "date"),
        model=_model(settings, data),
        metadata=metadata_of(settings, data),
        users=_whole(settings, "concurrency"),
        rate_per_s=_positive(settings, "request_rate"),
        num_requests=answered,
        input_tokens=lengths["input"],
        output_tokens=lengths["output"],
        duration_s=duration,
        measured=measured,
        notes=("inter_token_latency is that of a request, which is TPOT here",),
    )


def _statistics(file: str, data: Mapping[str, Any], tag: str) -> dict[str, float | None]:
    """Return the statistics of a metric, {} if the file lacks it."""
    found = data.get(tag)
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise ResultError(f"{file}: {tag}: found {shown(found)}; expected an object with unit, avg")
    where = f"{file}: {tag}"
    values = {n: optional(where, found, n, most=1e21) for n in ("avg", *_ORDER, "count", "sum")}
    rising(where, [(name, values[name]) for name in _ORDER])
    rising(where, [("min", values["min"]), ("avg", values["avg"]), ("max", values["max"])])
    count, average = values["count"], values["avg"]
    if count and average is not None:
        agrees(where, "sum", values["sum"], "avg and count", average * count)
    return values


def _scale(file: str, metric: Mapping[str, Any], tag: str) -> float:
    unit = metric.get("unit")
    if not isinstance(unit, str) or unit.lower() not in _SECONDS:
        allowed = ", ".join(_SECONDS)
        raise ResultError(f"{file}: {tag}.unit: found {shown(unit)}; allowed: {allowed}")
    scale = _SECONDS[unit.lower()]
    if (metric.get("avg") or 0.0) * scale > MOST_SECONDS:
        raise ResultError(f"{file}: {tag}: {metric['avg']:g} {unit} is beyond any run")
    return scale


def _answered(file: str, data: Mapping[str, Any]) -> int:
    for tag, name in (("request_count", "avg"), ("time_to_first_token", "count"),
                      ("request_latency", "count")):  # fmt: skip
        value = _statistics(file, data, tag).get(name)
        if value:
            return int(value)
        if value == 0:
            raise ResultError(f"{file}: {tag} is 0: an empty result says nothing")
    raise ResultError(f"{file}: request_count is missing, and time_to_first_token.count too")


def _duration(file: str, data: Mapping[str, Any]) -> float | None:
    """Return the span of the run in seconds, None if the file does not say."""
    whole = data.get("benchmark_duration")
    if isinstance(whole, dict):
        return (_statistics(file, data, "benchmark_duration")["avg"] or 0.0) * _scale(
            file, whole, "benchmark_duration"
        ) or None
    ends = [data.get(tag) for tag in ("min_request_timestamp", "max_response_timestamp")]
    if not all(isinstance(e, dict) and e.get("unit") in _SECONDS for e in ends):
        return None
    first, last = (
        (_statistics(file, data, tag)["avg"] or 0.0) * _SECONDS[data[tag]["unit"]]
        for tag in ("min_request_timestamp", "max_response_timestamp")
    )
    if last <= first:
        raise ResultError(
            f"{file}: max_response_timestamp, {last:.6f} s, is not after min_request_timestamp, "
            f"{first:.6f} s: the file was edited or cut"
        )
    return last - first


def _settings(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the run as one flat object."""
    out: dict[str, Any] = {}
    config = data.get("input_config")
    if isinstance(config, dict):
        for name, value in config.items():
            out |= value if isinstance(value, dict) else {name: value}
    return out


def _model(settings: Mapping[str, Any], data: Mapping[str, Any]) -> str:
    for source in (settings, data):
        for name in ("model_names", "model", "model_name"):
            value = source.get(name)
            value = value[0] if isinstance(value, list) and value else value
            if isinstance(value, str):
                return value[:500]
    return ""


def _positive(settings: Mapping[str, Any], name: str) -> float | None:
    value = settings.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 < value < 1e9 else None


def _whole(settings: Mapping[str, Any], name: str) -> int | None:
    value = _positive(settings, name)
    return int(value) if value is not None and value == int(value) else None


def is_request_record(data: Any) -> bool:
    """Return whether this is a line of `profile_export.jsonl`."""
    return isinstance(data, dict) and "metrics" in data and "metadata" in data


def read_requests(records: Sequence[Any], file: str, sha256: str) -> Result:
    """Return the requests of `profile_export.jsonl`, one a line; failed ones are left out.

    Raises:
        ResultError: a line lacks a time, or none was answered.
    """
    rows, failed, model = [], 0, ""
    for i, record in enumerate(records):
        where = f"{file}, line {i + 1}"
        if not is_request_record(record):
            raise ResultError(
                f"{where}: found {shown(record)}, expected an object with metadata and metrics"
            )
        metadata, metrics = record["metadata"], record["metrics"]
        if record.get("error") or not metrics:
            failed += 1
            continue
        if metadata.get("benchmark_phase", "profiling") != "profiling":
            continue
        model = model or text(metadata, "model_name")
        start = optional(where, metadata, "request_start_ns", most=1e21)
        values = {tag: _value(where, metrics, tag) for tag in (MARK, "request_latency")}
        lengths = [_value(where, metrics, f"{n}_sequence_length") for n in ("input", "output")]
        if start is None or None in values.values() or lengths[1] is None:
            raise ResultError(
                f"{where}: request_start_ns, {MARK}, request_latency, output_sequence_length "
                "are needed; is this the whole line?"
            )
        rows.append((start * 1e-9, values[MARK], values["request_latency"], lengths[0] or 1.0,
                     lengths[1]))  # fmt: skip
    if not rows:
        raise ResultError(f"{file}: no request was answered: an empty result says nothing")
    table = np.array(rows, np.float64)
    table = table[np.argsort(table[:, 0], kind="stable")]
    start, ttft, latency = table[:, 0] - table[0, 0], table[:, 1], table[:, 2]
    end = np.maximum(start + latency, start + ttft)
    series = Series(start, start + ttft, end, np.maximum(table[:, 3], 1).astype(np.int64),
                    np.maximum(table[:, 4], 1).astype(np.int64))  # fmt: skip
    gaps = table[:, 4] > 1
    measured = {
        "ttft": float(ttft.mean()),
        "ttft_p50": float(np.percentile(ttft, 50)),
        "ttft_p99": float(np.percentile(ttft, 99)),
        "e2e": float(latency.mean()),
        "output_tokens_per_s": float(table[:, 4].sum() / max(float(end.max()), 1e-9)),
    }
    if gaps.any():
        tpot = (latency - ttft)[gaps] / (table[gaps, 4] - 1)
        measured |= {"tpot": float(tpot.mean()), "tpot_p50": float(np.percentile(tpot, 50)),
                     "tpot_p99": float(np.percentile(tpot, 99))}  # fmt: skip
    notes = (f"{failed} requests failed and were left out",) if failed else ()
    return Result(
        file=file, where="", sha256=sha256, source_format="aiperf_requests", source_version="",
        date="", model=model, metadata={}, users=None, rate_per_s=None, num_requests=len(rows),
        input_tokens=float(table[:, 3].mean()), output_tokens=float(table[:, 4].mean()),
        duration_s=float(end.max()), measured={k: v for k, v in measured.items() if v > 0},
        notes=notes, series=series,
    )  # fmt: skip


def _value(where: str, metrics: Mapping[str, Any], tag: str) -> float | None:
    """Return one metric of a request, times in seconds."""
    found = metrics.get(tag)
    if not isinstance(found, dict):
        return None
    value = optional(f"{where}: {tag}", found, "value", most=1e15)
    if value is None or tag.endswith("_length"):
        return value
    unit = str(found.get("unit", "")).lower()
    if unit not in _SECONDS:
        raise ResultError(
            f"{where}: {tag}.unit: found {shown(found.get('unit'))}; allowed: {', '.join(_SECONDS)}"
        )
    return value * _SECONDS[unit]
