"""What start-up lines look like, and the engine options that they list."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import yaml

from sieve.resources import package_data

ARGUMENTS: Final = (
    "model", "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size",
    "decode_context_parallel_size", "enable_expert_parallel", "max_model_len", "max_num_seqs",
    "max_num_batched_tokens", "gpu_memory_utilization", "kv_cache_dtype", "quantization",
    "enforce_eager", "block_size", "speculative_config", "enable_lora", "cpu_offload_gb",
    "kv_cache_memory_bytes", "num_gpu_blocks_override",
)  # fmt: skip
"""Engine options that are read; all others are none of the ledger's business."""
_SAME: Final = {"model_tag": "model", "max_seq_len": "max_model_len", "tp": "tensor_parallel_size"}


@dataclass(frozen=True)
class Line:
    """A line of the engine: its name, what it looks like, the releases that print it."""

    name: str
    pattern: re.Pattern[str]
    covers: tuple[str, str]
    form: str


@dataclass(frozen=True)
class Grammar:
    """All lines that are read."""

    banner: tuple[re.Pattern[str], ...]
    arguments: tuple[tuple[re.Pattern[str], str], ...]
    lines: tuple[Line, ...]
    failures: tuple[Line, ...]
    longest: re.Pattern[str]
    others: Mapping[str, re.Pattern[str]]


@lru_cache(maxsize=1)
def grammar() -> Grammar:
    """Return the lines of `catalog/data/start_up_lines.yaml`."""
    path = package_data("catalog", "data", "start_up_lines.yaml")
    data: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return Grammar(
        banner=tuple(re.compile(text) for text in data["banner"]),
        arguments=tuple((re.compile(e["pattern"]), e["source"]) for e in data["arguments"]),
        lines=tuple(
            Line(e["name"], re.compile(e["pattern"]), tuple(e["covers"]), e.get("form", ""))
            for e in data["lines"]
        ),
        failures=tuple(
            Line(e["name"], re.compile(e["pattern"]), ("", ""), "") for e in data["failures"]
        ),
        longest=re.compile(data["longest"]["pattern"]),
        others={name: re.compile(text) for name, text in data["others"].items()},
    )


def release_number(version: str) -> int:
    """Return a number that orders releases; patch releases are alike."""
    major, minor, *_ = (*(int(part) for part in version.split(".")), 0)
    return 10_000 * major + minor


def stated_arguments(text: str) -> dict[str, str]:
    """Return the known options in a printed mapping or list of keywords, outermost level only."""
    out: dict[str, str] = {}
    for part in _outermost(text.strip().removeprefix("{")):
        match = re.match(r"\s*['\"]?(\w{1,60})['\"]?\s*[=:]\s*(.{0,1000})", part)
        if match is None:
            continue
        name = _SAME.get(match[1], match[1])
        value = match[2].strip().strip("'\"")
        if name in ARGUMENTS and name not in out:
            out[name] = value
    return out


def _outermost(text: str) -> Iterator[str]:
    """Yield what stands between commas that are outside brackets and quotes."""
    depth, quote, start = 0, "", 0
    for place, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter in "([{":
            depth += 1
        elif letter in ")]}":
            if depth == 0:
                yield text[start:place]
                return
            depth -= 1
        elif letter == "," and depth == 0:
            yield text[start:place]
            start = place + 1
    yield text[start:]
