"""The formats of traffic files: their names, what they hold, and how a file is recognised.

A format is recognised only by names that no other format uses. Times without a unit are never
guessed at: JSON lines with `timestamp` alone are refused until the format is said.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from sieve.arrays import Requests
from sieve.errors import TraceError
from sieve.spec.models import TrafficSpec
from sieve.traces import (
    access_log,
    azure_csv,
    bailian,
    dialogues,
    guidellm,
    lengths,
    mooncake,
    percentiles,
    prometheus,
    tables,
    weka,
)
from sieve.traces.files import TraceFile, listing
from sieve.traces.jsonl import first_records
from sieve.traces.lengths import LengthTable

Kind = Literal["requests", "lengths", "sessions", "drawn"]


@dataclass(frozen=True)
class Format:
    """One format.

    Attributes:
        name: as in `format:`.
        about: what a file of it holds.
        kind: `requests` have arrivals, `lengths` have none, `sessions` have them inside a session
            only, `drawn` are statistics from which requests are drawn.
        read: file, spec and seed to requests or lengths.
        aliases: other tools' names.
    """

    name: str
    about: str
    kind: Kind
    read: Callable[[TraceFile, TrafficSpec, int], Requests | LengthTable]
    aliases: tuple[str, ...] = ()


def _json_lines(name: str) -> Callable[[TraceFile, TrafficSpec, int], Requests]:
    return lambda file, _spec, _seed: mooncake.read(file, mooncake.FORMS[name])


def _guidellm(file: TraceFile, spec: TrafficSpec, seed: int) -> Requests:
    text = file.content.decode("utf-8", errors="replace")
    return guidellm.read(text, file.name, file.sha256, spec.requests, spec.arrival, seed)


def _guidellm_trace(file: TraceFile, spec: TrafficSpec, seed: int) -> Requests:
    if file.columns:
        return tables.read_guidellm(file)
    return _json_lines("guidellm_trace")(file, spec, seed)


FORMATS: Final = {
    entry.name: entry
    for entry in (
        Format(
            "mooncake_trace",
            "AIPerf's and Mooncake's JSON lines: ms, blocks of 512 tokens, sessions with delays",
            "requests", _json_lines("mooncake_trace"), ("mooncake", "aiperf"),
        ),
        Format(
            "timed_trace", "vLLM's JSON lines: s, blocks of 16 tokens", "requests",
            _json_lines("timed_trace"), ("vllm_timed_trace",),
        ),
        Format(
            "guidellm_trace", "GuideLLM's trace_synthetic, JSON lines or CSV: s", "requests",
            _guidellm_trace, ("trace_synthetic",),
        ),
        Format(
            "guidellm_mooncake", "GuideLLM's mooncake, JSON lines: s, blocks of 512 tokens",
            "requests", _json_lines("guidellm_mooncake"),
        ),
        Format(
            "azure_csv", "CSV with TIMESTAMP, ContextTokens, GeneratedTokens", "requests",
            lambda file, _spec, _seed: azure_csv.read(file), ("azure",),
        ),
        Format(
            "burstgpt_csv", "CSV with Timestamp (s), Request tokens, Response tokens", "requests",
            lambda file, _spec, _seed: tables.read_burstgpt(file), ("burstgpt", "burst_gpt_trace"),
        ),
        Format(
            "bailian_trace", "JSON lines with chat_id, parent_chat_id: s, blocks of 16 tokens",
            "requests", lambda file, _spec, _seed: bailian.read(file), ("bailian",),
        ),
        Format(
            "weka_trace", "agent sessions of kv-cache-tester, JSON or a table: s, blocks of 64",
            "sessions", lambda file, _spec, _seed: weka.read(file), ("weka", "kv_cache_tester"),
        ),
        Format(
            "llmservingsim", "JSON lines with input_toks, output_toks, arrival_time_ns", "requests",
            lambda file, _spec, _seed: tables.read_llmservingsim(file),
        ),
        Format(
            "sieve_table", "sieve's own columns: arrival_s, input_tokens, output_tokens, ...",
            "requests", lambda file, _spec, _seed: tables.read_own(file),
        ),
        Format(
            "access_log", "any table or JSON lines; `columns` say what is what", "requests",
            lambda file, spec, _seed: access_log.read(
                file, spec.columns or {}, spec.time_unit, spec.block_tokens
            ),
        ),
        Format(
            "lengths", "input_length, output_length or num_prefill_tokens, num_decode_tokens",
            "lengths", lambda file, spec, seed: lengths.read(file, spec.osl, seed),
        ),
        Format(
            "sharegpt", "JSON list of conversations with recorded lengths", "lengths",
            lambda file, spec, _seed: dialogues.read(
                file, spec.characters_per_token, spec.osl.value if spec.osl else None
            ),
        ),
        Format(
            "custom", "vLLM's JSON lines with prompt and output_tokens", "lengths",
            lambda file, spec, _seed: dialogues.read(
                file, spec.characters_per_token, spec.osl.value if spec.osl else None
            ),
        ),
        Format(
            "guidellm_synthetic", "prompt_tokens=..,output_tokens=.., also as JSON or YAML",
            "drawn", _guidellm, ("synthetic_text",),
        ),
        Format(
            "percentiles", "percentiles of input and output tokens with a rate, YAML, JSON or CSV",
            "drawn",
            lambda file, spec, seed: percentiles.read(file, spec.requests, spec.arrival, seed),
        ),
        Format(
            "prometheus", "JSON of range queries of vLLM's histograms", "drawn",
            lambda file, _spec, seed: prometheus.read(file, seed),
        ),
    )
}  # fmt: skip

BY_FOLDER: Final = {
    "servegen": "client model in ServeGen's form: a folder with client_windows and "
    "client_length_pdfs",
    "summary": "a summary written by `sieve trace inspect --summary`",
}
"""Formats that are not read through `FORMATS`: a folder, and sieve's own summary."""

_ALIASES: Final = {alias: entry.name for entry in FORMATS.values() for alias in entry.aliases}


def canonical(name: str) -> str:
    """Return a format's own name."""
    return _ALIASES.get(name, name)


def detect(file: TraceFile, spec: TrafficSpec) -> str:
    """Return the format of a file.

    Raises:
        TraceError: not recognised, or recognised but for the unit of its times.
    """
    if spec.columns:
        return "access_log"
    return _of_columns(file) if file.columns else _of_document(file)


def _of_columns(file: TraceFile) -> str:
    names = set(file.columns)
    if set(azure_csv.COLUMNS) <= names:
        return "azure_csv"
    if {"Timestamp", "Request tokens", "Response tokens"} <= names:
        return "burstgpt_csv"
    if {"session_id", "parent_t", "think_time", "in", "out"} <= names:
        return "weka_trace"
    if {"input_tokens", "output_tokens"} <= names and names & {"arrival_s", "delay_s"}:
        return "sieve_table"
    if file.columns[0] in {"metric", "name"} and any(n.startswith("p5") for n in names):
        return "percentiles"
    if lengths.column_pair(file.columns) is None:
        text = file.head[:2000].decode("utf-8", errors="replace")
        if guidellm.looks_like(text) and "=" in text.split("\n")[0]:
            return "guidellm_synthetic"
        if "input_length" in names:
            return "lengths"
        raise _unknown(file, f"columns found: {listing(file.columns)}")
    times = [name for name in file.columns if name.lower() in lengths.TIME_COLUMNS]
    if times:
        raise TraceError(
            f"{file.label}: column {times[0]} does not state its unit, and none is guessed; "
            "set traffic.format (--format): guidellm_trace (s), access_log with columns and "
            "time_unit, or lengths to use the lengths alone"
        )
    return "lengths"


def _of_document(file: TraceFile) -> str:
    head = file.head[: 1 << 16]
    stripped = head.lstrip()
    if not stripped.startswith((b"{", b"[")):
        text = head.decode("utf-8", errors="replace")
        return "guidellm_synthetic" if guidellm.looks_like(text) and (
            "p50" not in text and "p95" not in text) else "percentiles"  # fmt: skip
    if b'"resultType"' in head:
        return "prometheus"
    if b'"conversations"' in head or b'"conversation"' in head:
        return "sharegpt"
    keys = {key for record in first_records(head, 5) for key in record}
    if {"chat_id", "parent_chat_id"} <= keys:
        return "bailian_trace"
    if "arrival_time_ns" in keys:
        return "llmservingsim"
    if "requests" in keys or (b'"requests"' in head and b'"block_size"' in head):
        return "weka_trace"
    if "prompt" in keys:
        return "custom"
    if b'"input_length"' in head:
        raise TraceError(
            f"{file.label}: lines of JSON do not state the unit of their times, and none is "
            "guessed; set traffic.format (--format): mooncake_trace (ms, prefix blocks of 512 "
            "tokens; also AIPerf), timed_trace (s, blocks of 16), guidellm_trace or "
            "guidellm_mooncake (s, blocks of 512)"
        )
    if b'"prompt_tokens"' in head and b'"p50"' not in head and len(head) < 4000:
        return "guidellm_synthetic"
    if b'"p50"' in head or b'"p90"' in head:
        return "percentiles"
    raise _unknown(file, "JSON")


def _unknown(file: TraceFile, found: str) -> TraceError:
    known = "; ".join(f"{entry.name} ({entry.about})" for entry in FORMATS.values())
    return TraceError(
        f"{file.label}: format not recognised; {found}; known formats: {known}. Other tables: set "
        "format access_log and say with columns which is which"
    )
