"""The replay of one engine's scheduler, exact to the decision.

A scenario becomes arrays, the compiled loop replays them, and its log becomes step records in the
form of the recordings. Content is known before the run, so block keys are numbered beforehand and
the loop never compares tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from sieve.arrays import IntArray
from sieve.errors import TraceError
from sieve.sim._kernels import engine as kernel
from sieve.sim.scenario import Config, Scenario, check_scenario, table_width

RECORD_NOTHING: Final = 0
RECORD_STEPS: Final = 1
RECORD_TABLES: Final = 2

KeyArray = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class EngineInput:
    """A scenario as the compiled loop takes it; the arrays are described there."""

    settings: IntArray
    accept: IntArray
    window: IntArray
    kind: IntArray
    arrival: IntArray
    prompt: IntArray
    output: IntArray
    level: IntArray
    name_rank: IntArray
    child_start: IntArray
    child: IntArray
    delay: IntArray
    key_start: IntArray
    keys: KeyArray
    num_keys: int


@dataclass(frozen=True, eq=False)
class EngineResult:
    """What the compiled loop returns.

    Attributes:
        results: (n, NUM_RESULTS) per request, -1 where it never happened.
        counters: (NUM_COUNTERS,).
        log: recorded turns, packed; empty if nothing was recorded.
        left_waiting: indices of requests that were never scheduled to their end, in queue order.
        left_running: the same for the running list.
    """

    results: IntArray
    counters: IntArray
    log: IntArray
    left_waiting: IntArray
    left_running: IntArray

    @property
    def stalled(self) -> bool:
        """Whether requests are left that can never be scheduled."""
        return bool(self.counters[kernel.STATUS] == kernel.STATUS_STALLED)


def engine_settings(config: Config) -> IntArray:
    """Return the settings array of an engine whose arrivals are in steps, recording nothing."""
    speculative = config.speculative
    eagle = speculative is not None and speculative.method == "eagle"
    values = np.zeros(kernel.NUM_SETTINGS, np.int64)
    values[kernel.BLOCK_SIZE] = config.block_size
    values[kernel.NUM_BLOCKS] = config.num_gpu_blocks
    values[kernel.MAX_RUNNING] = config.running_limit
    values[kernel.TOKEN_BUDGET] = config.max_num_batched_tokens
    values[kernel.MAX_MODEL_LEN] = config.max_model_len
    values[kernel.CHUNKED] = config.enable_chunked_prefill
    values[kernel.CACHING] = config.enable_prefix_caching
    values[kernel.THRESHOLD] = config.long_prefill_token_threshold
    values[kernel.ADAPTIVE] = config.long_prefill_token_threshold_adaptive
    values[kernel.PRIORITY] = config.policy == "priority"
    values[kernel.WATERMARK_BLOCKS] = int(config.watermark * config.num_gpu_blocks)
    values[kernel.RESERVE_FULL_ISL] = config.reserve_full_isl
    values[kernel.PREFILL_INTERVAL] = config.prefill_schedule_interval
    values[kernel.ASYNC] = config.async_scheduling
    values[kernel.PIPELINE] = config.pipeline_parallel_size
    values[kernel.DRAFTS_K] = speculative.k if speculative else 0
    values[kernel.LOOKAHEAD] = speculative.k if speculative and eagle else 0
    values[kernel.KEY_AHEAD] = eagle
    values[kernel.IN_FLIGHT] = config.batches_in_flight
    return values


def engine_input(scenario: Scenario, record: int = RECORD_NOTHING) -> EngineInput:
    """Return the arrays of `scenario`.

    Raises:
        TraceError: the scenario contradicts itself or is too large.
    """
    check_scenario(scenario)
    config, rows = scenario.config, scenario.requests
    settings = engine_settings(config)
    settings[kernel.RECORD] = record
    settings[kernel.TABLE_WIDTH] = table_width(scenario)
    if scenario.time_model is not None:
        settings[kernel.TIMED] = 1
        settings[kernel.STEP_BASE_NS] = scenario.time_model.a
        settings[kernel.STEP_TOKEN_NS] = scenario.time_model.b
        settings[kernel.STEP_CONTEXT_NS] = scenario.time_model.c
    prompt = np.array([row.prompt_tokens for row in rows], np.int64)
    output = np.array([row.output_len for row in rows], np.int64)
    total = np.minimum(prompt + output, config.max_model_len)
    settings[kernel.PATIENCE] = patience(total)
    arrivals = [row.arrival_time if scenario.timed else row.arrival_step for row in rows]
    delays = [row.delay_time if scenario.timed else row.delay_steps for row in rows]
    position = {row.id: i for i, row in enumerate(rows)}
    parent = [-1 if row.after is None else position[row.after] for row in rows]
    child_start, child = _children(np.array(parent, np.int64))
    rank = np.zeros(len(rows), np.int64)
    rank[sorted(range(len(rows)), key=lambda i: rows[i].id)] = np.arange(len(rows))
    windows = [group.window or 0 for group in config.groups]
    if config.enable_prefix_caching:
        ahead = int(settings[kernel.KEY_AHEAD])
        key_start, keys, num_keys = _shared_keys(scenario, total, ahead)
    else:
        key_start, keys, num_keys = np.zeros(len(rows), np.int64), np.zeros(1, np.int32), 0
    if num_keys * len(windows) >= 2**31:
        raise TraceError(f"{num_keys} block keys in {len(windows)} groups; too many to replay")
    speculative = config.speculative
    return EngineInput(
        settings=settings,
        accept=np.array(speculative.accept if speculative else [0], np.int64),
        window=np.array(windows, np.int64),
        kind=_kinds(windows),
        arrival=np.array([-1 if a is None else a for a in arrivals], np.int64),
        prompt=prompt,
        output=output,
        level=np.array([row.priority for row in rows], np.int64),
        name_rank=rank,
        child_start=child_start,
        child=child,
        delay=np.array([delay or 0 for delay in delays], np.int64),
        key_start=key_start,
        keys=keys,
        num_keys=num_keys,
    )


def private_input(
    settings: IntArray, arrival: IntArray, prompt: IntArray, output: IntArray
) -> EngineInput:
    """Return the arrays of requests that share no content, under one full-attention group.

    Args:
        settings: as `engine_settings`; the table width and the patience are filled in here.
        arrival: (n,) steps, or nanoseconds if the settings are timed.
        prompt: (n,) tokens.
        output: (n,) tokens.
    """
    values = settings.copy()
    n = len(arrival)
    total = np.minimum(prompt + output, values[kernel.MAX_MODEL_LEN])
    block_size = int(values[kernel.BLOCK_SIZE])
    longest = int(total.max(initial=1))
    values[kernel.TABLE_WIDTH] = -(-longest // block_size)
    values[kernel.PATIENCE] = patience(total)
    key_start, keys, num_keys = np.zeros(n, np.int64), np.zeros(1, np.int32), 0
    if values[kernel.CACHING]:
        blocks = total // block_size
        num_keys = int(blocks.sum())
        key_start = np.cumsum(blocks) - blocks
        keys = np.arange(max(num_keys, 1), dtype=np.int32)
    zeros = np.zeros(n, np.int64)
    return EngineInput(
        settings=values, accept=np.zeros(1, np.int64), window=np.zeros(1, np.int64),
        kind=np.zeros(1, np.int64), arrival=np.array(arrival, np.int64),
        prompt=np.array(prompt, np.int64), output=np.array(output, np.int64), level=zeros,
        name_rank=np.arange(n), child_start=np.zeros(n + 1, np.int64),
        child=np.zeros(0, np.int64), delay=zeros, key_start=key_start, keys=keys,
        num_keys=num_keys,
    )  # fmt: skip


def patience(total: IntArray) -> int:
    """Return the steps without a token after which a run counts as live-locked.

    Every prompt may be computed in steps of one token, and twice over after preemptions.
    """
    return 1000 + 4 * int(total.sum())


def run_engine(data: EngineInput) -> EngineResult:
    """Return the replay of `data`.

    Raises:
        TraceError: requests preempt themselves for ever (no room for any of them).
    """
    results, counters, log, left = kernel.replay(
        data.settings, data.accept, data.window, data.kind, data.arrival, data.prompt,
        data.output, data.level, data.name_rank, data.child_start, data.child, data.delay,
        data.key_start, data.keys, data.num_keys,
    )  # fmt: skip
    if counters[kernel.STATUS] == kernel.STATUS_LIVE_LOCK:
        raise TraceError(
            f"the replay made no progress for {data.settings[kernel.PATIENCE]:,} steps: requests "
            "are preempted before they are computed, again and again; the cache is too small"
        )
    waiting = int(left[0])
    return EngineResult(results, counters, log, left[1 : 1 + waiting], left[1 + waiting :])


def replay_scenario(scenario: Scenario, record: int = RECORD_NOTHING) -> EngineResult:
    """Return the replay of `scenario`.

    Raises:
        TraceError: as `engine_input` and `run_engine`.
    """
    return run_engine(engine_input(scenario, record))


# ---- Scenario to arrays


def _children(parent: IntArray) -> tuple[IntArray, IntArray]:
    """Return the requests that wait for each request's end, in file order, as start and list."""
    n = len(parent)
    waiting = np.flatnonzero(parent >= 0)
    child = waiting[np.argsort(parent[waiting], kind="stable")]
    counts = np.bincount(parent[waiting], minlength=n) if n else np.zeros(0, np.int64)
    return np.concatenate(([0], np.cumsum(counts))).astype(np.int64), child.astype(np.int64)


def _kinds(windows: list[int]) -> IntArray:
    """Return the kind of each group: full attention first, then windows as they appear."""
    order = [w for w in dict.fromkeys(windows) if w == 0] + [
        w for w in dict.fromkeys(windows) if w != 0
    ]
    return np.array([order.index(w) for w in windows], np.int64)


def _shared_keys(scenario: Scenario, total: IntArray, ahead: int) -> tuple[IntArray, KeyArray, int]:
    """Return offset per request, the keys of its blocks, and the number of keys.

    Blocks have equal keys exactly if all their tokens and all tokens before them are equal. From
    the first token that only one request has, its keys are its own.
    """
    block_size = scenario.config.block_size
    rows = scenario.requests
    users = Counter(
        content
        for row in rows
        for content in {f"out:{row.id}", *(content for content, _, _ in row.pieces)}
    )
    numbered: dict[tuple[int, tuple[tuple[str, int, int], ...]], int] = {}
    num_keys = 0
    starts = np.zeros(len(rows), np.int64)
    parts: list[KeyArray] = []
    offset = 0
    for i, row in enumerate(rows):
        starts[i] = offset
        count = max((int(total[i]) - ahead) // block_size, 0)
        offset += count
        pieces = [*row.pieces, (f"out:{row.id}", 0, row.output_len)]
        own = np.empty(count, np.int32)
        parent = -1
        j = 0
        for block in _blocks(pieces, block_size, ahead, count):
            if any(users[content] == 1 for content, _, _ in block):
                break
            key = numbered.get((parent, block))
            if key is None:
                key = numbered[parent, block] = num_keys
                num_keys += 1
            own[j] = parent = key
            j += 1
        own[j:] = np.arange(num_keys, num_keys + count - j)
        num_keys += count - j
        parts.append(own)
    keys = np.concatenate(parts) if offset else np.zeros(1, np.int32)
    return starts, keys, num_keys


def _blocks(
    pieces: list[tuple[str, int, int]], block_size: int, ahead: int, count: int
) -> Iterator[tuple[tuple[str, int, int], ...]]:
    """Yield the first `count` blocks as (content, start, length), adjoining pieces joined."""
    joined: list[tuple[str, int, int]] = []
    for content, start, length in pieces:
        if length == 0:
            continue
        if joined and joined[-1][0] == content and joined[-1][1] + joined[-1][2] == start:
            joined[-1] = (content, joined[-1][1], joined[-1][2] + length)
        else:
            joined.append((content, start, length))
    index = 0
    used = 0  # tokens of joined[index] before the block
    for _ in range(count):
        block = []
        missing = block_size + ahead
        i, past = index, used
        while missing > 0:
            content, start, length = joined[i]
            taken = min(length - past, missing)
            block.append((content, start + past, taken))
            missing -= taken
            past += taken
            if past == length:
                i, past = i + 1, 0
        yield tuple(block)
        used += block_size
        while index < len(joined) and used >= joined[index][2]:
            used -= joined[index][2]
            index += 1


# ---- Log to records


class _Log:
    """Reads the numbers of a log in order."""

    def __init__(self, log: IntArray) -> None:
        self.values: list[int] = log.tolist()
        self.at = 0

    def __bool__(self) -> bool:
        return self.at < len(self.values)

    def one(self) -> int:
        self.at += 1
        return self.values[self.at - 1]

    def many(self, count: int) -> list[int]:
        self.at += count
        return self.values[self.at - count : self.at]

    def rows(self, width: int) -> list[list[int]]:
        flat = self.many(self.one() * width)
        return [flat[i : i + width] for i in range(0, len(flat), width)]


def step_records(scenario: Scenario, result: EngineResult) -> list[dict[str, Any]]:
    """Return the recorded turns in the form of the recordings' `step` records."""
    full = scenario.detail == "full"
    names = [row.id for row in scenario.requests]
    log = _Log(result.log)
    tables: dict[int, Any] = {}
    records = []
    while log:
        records.append(_turn(scenario, log, names, tables, full=full))
    return records


def _turn(
    scenario: Scenario, log: _Log, names: list[str], tables: dict[int, Any], *, full: bool
) -> dict[str, Any]:
    turn, step, now, count = log.many(4)
    record: dict[str, Any] = {"step": step}
    if scenario.timed:
        record["t"] = now
    arrived = log.many(count)
    _put(record, "added", [names[r] for r in arrived if r >= 0])
    _put(record, "rejected", [names[-r - 1] for r in arrived if r < 0])
    if turn & kernel.TURN_IDLE:
        record["idle"] = True
        return record
    if turn & kernel.TURN_CALL:
        _call(scenario, log, names, tables, record, full=full)
    if turn & kernel.TURN_RESULT:
        _result(scenario, log, names, record)
    record["free_end"], record["n_running"], record["n_waiting"] = log.many(3)
    if full:
        record["free_queue"] = log.many(record["free_end"])
    return record


def _put(record: dict[str, Any], key: str, value: dict[str, Any] | list[Any]) -> None:
    if value:
        record[key] = value


def _call(
    scenario: Scenario, log: _Log, names: list[str], tables: dict[int, Any],
    record: dict[str, Any], *, full: bool,
) -> None:  # fmt: skip
    scheduled = log.rows(3)
    record["scheduled"] = {names[r]: tokens for r, tokens, _ in scheduled}
    admitted = log.rows(3)
    _put(record, "new", {names[r]: hit for r, hit, resumed in admitted if not resumed})
    _put(record, "resumed", {names[r]: hit for r, hit, resumed in admitted if resumed})
    preempted = log.many(log.one())
    _put(record, "preempted", [names[r] for r in preempted])
    for r in preempted:
        tables.pop(r, None)
    _put(record, "drafts", {names[r]: drafts for r, _, drafts in scheduled if drafts})
    record["free"], start, end = log.many(3)
    if scenario.timed:
        record["start"], record["end"] = start, end
    if full:
        changed = {}
        for r, _, _ in scheduled:
            lists = [log.many(log.one()) for _ in scenario.config.groups]
            table = lists if len(lists) > 1 else lists[0]
            if tables.get(r) != table:
                tables[r] = table
                changed[names[r]] = table
        _put(record, "tables", changed)
        running = log.rows(2)
        record["running"] = [names[r] for r, _ in running]
        record["waiting"] = [names[r] for r in log.many(log.one())]
        record["computed"] = {names[r]: computed for r, computed in running}


def _result(scenario: Scenario, log: _Log, names: list[str], record: dict[str, Any]) -> None:
    made_in = log.one()
    entries = log.rows(4)
    if scenario.config.batches_in_flight > 1:
        record["output_of"] = made_in
        record["sampled"] = sorted(names[r] for r, yields, _, _ in entries if yields)
    _put(record, "accepted", {names[r]: taken for r, _, taken, _ in entries if taken >= 0})
    _put(record, "finished", {names[r]: "length" for r, _, _, ends in entries if ends})


_OPTIONAL: Final = (
    ("arrival", kernel.ARRIVAL),
    ("added_step", kernel.ADDED_STEP),
    ("first_step", kernel.FIRST_STEP),
    ("cached", kernel.CACHED),
    ("first_token_step", kernel.FIRST_TOKEN_STEP),
    ("finish_step", kernel.FINISH_STEP),
)
_OPTIONAL_TIMES: Final = (
    ("first_token_time", kernel.FIRST_TOKEN_NS),
    ("finish_time", kernel.FINISH_NS),
)


def summary_record(scenario: Scenario, result: EngineResult) -> dict[str, Any]:
    """Return the result in the form of the recordings' `summary` record."""
    names = [row.id for row in scenario.requests]
    columns = _OPTIONAL + (_OPTIONAL_TIMES if scenario.timed else ())
    requests = {}
    for row, values in zip(scenario.requests, result.results.tolist(), strict=True):
        one: dict[str, Any] = {
            "prompt": row.prompt_tokens,
            "out": values[kernel.OUT],
            "preemptions": values[kernel.PREEMPTIONS],
        }
        one |= {name: values[column] for name, column in columns if values[column] >= 0}
        if values[kernel.REJECTED] > 0:
            one["finish_reason"] = "rejected"
        elif values[kernel.FINISH_STEP] >= 0:
            one["finish_reason"] = "length"
        requests[row.id] = one
    summary: dict[str, Any] = {
        "steps": int(result.counters[kernel.STEPS]),
        "request_steps": int(result.counters[kernel.REQUEST_STEPS]),
        "tokens": int(result.counters[kernel.TOKENS]),
        "stalled": result.stalled,
        "requests": requests,
    }
    if result.stalled:
        summary["left_waiting"] = [names[r] for r in result.left_waiting.tolist()]
        summary["left_running"] = [names[r] for r in result.left_running.tolist()]
    return summary
