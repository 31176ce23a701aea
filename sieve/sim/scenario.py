"""Recorded schedules of a real engine: the format, read strictly.

One JSON object a line: a `header` with the scenario, `step` records, and a `summary`; plain or
gzip. Nothing is guessed: an unknown key, a value out of range or a setting that the replay does
not follow is refused with file and line.
"""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from sieve.errors import TraceError

SCHEMA: Final = "vllm-scheduler-trace/1"

MAX_FILE_BYTES: Final = 1_000_000_000
"""Largest recording, uncompressed; a guard against compression bombs."""

MAX_LINE_BYTES: Final = 100_000_000
"""Longest line; a header names every request of the scenario."""

MAX_REQUESTS: Final = 1_000_000
MAX_TOKENS: Final = 10_000_000
MAX_TIME_NS: Final = 10**15
"""Latest arrival and longest delay, in ns or steps: 64 bits hold every sum of them."""

MAX_TABLE_BLOCKS: Final = 200_000_000
"""Largest sum of block table entries over all requests that can run at once."""

_GZIP_MAGIC: Final = b"\x1f\x8b"

Tokens = Annotated[int, Field(ge=0, le=MAX_TOKENS)]
Size = Annotated[int, Field(ge=1, le=MAX_TOKENS)]
Time = Annotated[int, Field(ge=0, le=MAX_TIME_NS)]
Name = Annotated[str, Field(min_length=1, max_length=1000)]


class _Model(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True
    )


class Group(_Model):
    """Layers that share a block table."""

    type: Literal["full", "sliding"]
    window: Size | None = None
    """Tokens that a layer sees, for `sliding`."""


class Speculative(_Model):
    """Draft tokens."""

    method: Literal["ngram", "eagle"]
    k: Annotated[int, Field(ge=1, le=1000)]
    """Drafts per step."""
    accept: Annotated[list[Annotated[int, Field(ge=0, le=1000)]], Field(min_length=1)]
    """Drafts accepted by a request's verifications, in turn, from the start again."""


class Config(_Model):
    """Settings of the engine, in its own spelling."""

    block_size: Size
    num_gpu_blocks: Annotated[int, Field(ge=2, le=50_000_000)]
    """Blocks including block 0, which is never handed out."""
    max_num_seqs: Annotated[int, Field(ge=1, le=100_000)]
    max_num_active_seqs: Annotated[int, Field(ge=1, le=100_000)] | None
    max_num_batched_tokens: Size
    max_model_len: Size
    enable_chunked_prefill: bool
    enable_prefix_caching: bool
    long_prefill_token_threshold: Tokens
    long_prefill_token_threshold_adaptive: bool
    policy: Literal["fcfs", "priority"]
    watermark: Annotated[float, Field(ge=0, le=1, strict=False)]
    reserve_full_isl: bool
    prefill_schedule_interval: Size
    async_scheduling: bool
    pipeline_parallel_size: Annotated[int, Field(ge=1, le=64)]
    speculative: Speculative | None
    groups: Annotated[list[Group], Field(min_length=1, max_length=64)]

    @property
    def running_limit(self) -> int:
        """Most requests in the running list."""
        return self.max_num_active_seqs or self.max_num_seqs

    @property
    def batches_in_flight(self) -> int:
        """Batches scheduled before the oldest result is read.

        vLLM 0.33.0, `v1/engine/core.py` and `v1/executor/abstract.py`, `max_concurrent_batches`.
        """
        return self.pipeline_parallel_size + self.async_scheduling


class TimeModel(_Model):
    """Duration of a step: a + b x tokens + c x context tokens, ns."""

    a: Time
    b: Time
    c: Time


def _piece(value: object) -> object:
    """Return [content, length] or [content, start, length] as (content, start, length)."""
    match value:
        case [content, length]:
            return (content, 0, length)
        case [content, start, length]:
            return (content, start, length)
    raise ValueError("a piece is [content, length] or [content, start, length]")


Piece = Annotated[tuple[Name, Tokens, Tokens], BeforeValidator(_piece)]


class ScenarioRequest(_Model):
    """One request of a scenario."""

    id: Name
    arrival_step: Time | None = None
    arrival_time: Time | None = None
    after: Name | None = None
    """The request whose end it waits for, instead of an arrival."""
    delay_steps: Time | None = None
    delay_time: Time | None = None
    prompt_len: Tokens | None = None
    prompt: list[Piece] | None = None
    output_len: Size
    priority: Annotated[int, Field(ge=-(2**31), lt=2**31)] = 0

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt."""
        if self.prompt is None:
            return self.prompt_len or 0
        return sum(length for _, _, length in self.prompt)

    @property
    def pieces(self) -> list[tuple[str, int, int]]:
        """The prompt as (content, start, length)."""
        if self.prompt is None:
            return [(f"in:{self.id}", 0, self.prompt_len or 0)]
        return list(self.prompt)


class Scenario(_Model):
    """The input of a recorded schedule."""

    name: str
    note: str = ""
    detail: Literal["normal", "full"] = "normal"
    config: Config
    time_model: TimeModel | None = None
    requests: Annotated[list[ScenarioRequest], Field(max_length=MAX_REQUESTS)]

    @property
    def timed(self) -> bool:
        """Whether arrivals are in nanoseconds; otherwise in steps."""
        return self.time_model is not None


@dataclass(frozen=True, eq=False)
class Recording:
    """A scenario and what the engine did with it.

    Attributes:
        label: the file as the user named it, for messages.
        scenario: the input.
        vllm_version: the engine's version.
        in_flight_batches: batches scheduled before the oldest result is read.
        steps: the `step` records in order.
        summary: the `summary` record.
    """

    label: str
    scenario: Scenario
    vllm_version: str
    in_flight_batches: int
    steps: tuple[dict[str, Any], ...]
    summary: dict[str, Any]


def read_recording(path: Path, label: str | None = None) -> Recording:
    """Return the recorded schedule in the file at `path`.

    Raises:
        TraceError: no readable recording of this schema; the message names the line.
    """
    label = label or str(path)
    header: dict[str, Any] | None = None
    scenario: Scenario | None = None
    steps: list[dict[str, Any]] = []
    summary: dict[str, Any] | None = None
    number = 0
    for number, record in _records(path, label):
        where = f"{label}, line {number}"
        kind = record.pop("type", None)
        if header is None:
            if kind != "header":
                raise TraceError(
                    f"{where}: the first record has type {_shown(kind)}; expected the `header` of "
                    "a recorded schedule"
                )
            header = record
            scenario = _read_header(record, where)
        elif summary is not None:
            raise TraceError(f"{where}: a record after the summary; expected the end of the file")
        elif kind == "step":
            if not isinstance(record.get("step"), int):
                raise TraceError(
                    f"{where}: step is {_shown(record.get('step'))}; expected a number"
                )
            steps.append(record)
        elif kind == "summary":
            if not isinstance(record.get("requests"), dict):
                raise TraceError(f"{where}: the summary has no mapping `requests`")
            summary = record
        else:
            raise TraceError(f"{where}: type is {_shown(kind)}; expected step or summary")
    if header is None or scenario is None:
        raise TraceError(f"{label}: the file is empty; expected a recorded schedule")
    if summary is None:
        raise TraceError(f"{label}, line {number}: the file ends without a `summary` record")
    return Recording(
        label, scenario, header["vllm_version"], header["in_flight_batches"], tuple(steps), summary
    )


def _shown(value: object) -> str:
    text = json.dumps(value, default=repr)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _lines(path: Path, label: str) -> Iterator[bytes]:
    total = 0
    with path.open("rb") as stored:
        packed = stored.read(2) == _GZIP_MAGIC
        stored.seek(0)
        lines: gzip.GzipFile | io.BufferedReader = (
            gzip.GzipFile(fileobj=stored) if packed else stored
        )
        while line := lines.readline(MAX_LINE_BYTES + 1):
            total += len(line)
            if len(line) > MAX_LINE_BYTES or total > MAX_FILE_BYTES:
                raise TraceError(
                    f"{label}: the file is too large; at most {MAX_FILE_BYTES:,} bytes "
                    f"uncompressed and {MAX_LINE_BYTES:,} a line are read"
                )
            yield line


def _records(path: Path, label: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the line number and the object of each line that is not blank."""
    number = 0
    try:
        if not path.is_file():
            raise TraceError(
                f"{label}: {'not a regular file' if path.exists() else 'no such file'}"
            )
        for number, line in enumerate(_lines(path, label), 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise TraceError(f"{label}, line {number}: no JSON: {error}") from None
            if not isinstance(record, dict):
                raise TraceError(f"{label}, line {number}: expected a JSON object")
            yield number, record
    except (OSError, EOFError, zlib.error) as error:
        raise TraceError(f"{label}, after line {number}: cannot be read: {error}") from None


def _read_header(record: dict[str, Any], where: str) -> Scenario:
    schema = record.get("schema")
    if schema != SCHEMA:
        raise TraceError(f"{where}: schema is {_shown(schema)}; this version reads {SCHEMA}")
    if not isinstance(record.get("vllm_version"), str):
        raise TraceError(f"{where}: vllm_version is missing")
    try:
        scenario = Scenario.model_validate(record.get("scenario"))
    except ValidationError as error:
        raise TraceError(f"{where}: {_faults(error)}") from None
    expected = scenario.config.batches_in_flight
    if record.get("in_flight_batches") != expected:
        raise TraceError(
            f"{where}: in_flight_batches is {_shown(record.get('in_flight_batches'))}; the replay "
            f"follows an engine that has {expected} with this pipeline_parallel_size and "
            "async_scheduling"
        )
    check_scenario(scenario, where)
    return scenario


def _faults(error: ValidationError) -> str:
    """Return the first faults of a scenario in one line."""
    shown = 5
    parts = []
    for fault in error.errors(include_url=False)[:shown]:
        path = ".".join(str(part) for part in ("scenario", *fault["loc"]))
        if fault["type"] == "extra_forbidden":
            parts.append(f"{path} is not a key that the replay follows")
        else:
            parts.append(f"{path} is {_shown(fault['input'])}: {fault['msg']}")
    more = error.error_count() - len(parts)
    if more > 0:
        parts.append(f"and {more} more")
    return "; ".join(parts)


def check_scenario(scenario: Scenario, where: str = "scenario") -> None:
    """Refuse a scenario whose parts contradict each other or that is too large to replay.

    Raises:
        TraceError: with the request or the key that is wrong; `where` stands first.
    """
    ids = {request.id for request in scenario.requests}
    if len(ids) < len(scenario.requests):
        seen: set[str] = set()
        for request in scenario.requests:
            if request.id in seen:
                raise TraceError(f"{where}: two requests have the id {_shown(request.id)}")
            seen.add(request.id)
    for request in scenario.requests:
        fault = _request_fault(request, ids, scenario.timed)
        if fault:
            raise TraceError(f"{where}: request {_shown(request.id)}: {fault}")
    for i, group in enumerate(scenario.config.groups):
        if (group.type == "sliding") != (group.window is not None):
            raise TraceError(
                f"{where}: scenario.config.groups.{i}: a window is given for the type `sliding` "
                "and for no other"
            )
    config = scenario.config
    if config.speculative and config.pipeline_parallel_size > 1 and not config.async_scheduling:
        raise TraceError(
            f"{where}: scenario.config.speculative with pipeline_parallel_size "
            f"{config.pipeline_parallel_size} is replayed only with async_scheduling (otherwise "
            "drafts made from an unfinished prompt are up to the model runner)"
        )
    entries = min(scenario.config.running_limit, len(scenario.requests)) * table_width(scenario)
    if entries * len(scenario.config.groups) > MAX_TABLE_BLOCKS:
        raise TraceError(
            f"{where}: the block tables would need {entries:,} entries a group; at most "
            f"{MAX_TABLE_BLOCKS:,} in all are replayed (lower max_num_seqs or raise block_size)"
        )


def _request_fault(request: ScenarioRequest, ids: set[str], timed: bool) -> str:  # noqa: FBT001 - a fact
    if (request.prompt is None) == (request.prompt_len is None):
        return "expected either prompt_len or prompt"
    if request.prompt_tokens > MAX_TOKENS:
        return f"the prompt has {request.prompt_tokens} tokens; at most {MAX_TOKENS} are read"
    arrival = request.arrival_time if timed else request.arrival_step
    unused = request.arrival_step if timed else request.arrival_time
    unit = "time" if timed else "step"
    if unused is not None:
        return f"the arrival must be `arrival_{unit}` here"
    if (request.after is None) == (arrival is None):
        return f"expected either arrival_{unit} or after"
    delay = request.delay_time if timed else request.delay_steps
    unused_delay = request.delay_steps if timed else request.delay_time
    if unused_delay is not None or (delay is not None and request.after is None):
        return f"only delay_{'time' if timed else 'steps'} is read here, and only with `after`"
    if request.after is not None and (request.after not in ids or request.after == request.id):
        return f"after is {_shown(request.after)}; expected the id of another request"
    return ""


def table_width(scenario: Scenario) -> int:
    """Return the most blocks that a request can hold in one group."""
    config = scenario.config
    drafts = config.speculative.k if config.speculative else 0
    longest = max((r.prompt_tokens + r.output_len for r in scenario.requests), default=1)
    # Drafts and their slots reach past the last token.
    tokens = min(longest + 3 * drafts + 2, config.max_model_len)
    return max(-(-tokens // config.block_size), 1)
