"""From a recorded scenario to the arrays of the replay.

Content is known before the run, so block keys are numbered beforehand and the compiled loop never
compares tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from sieve.arrays import IntArray
from sieve.errors import TraceError
from sieve.sim._kernels import layout
from sieve.sim.engine import (
    EngineResult,
    children_of,
    idle_clock,
    kinds_of,
    patience,
    run_engine,
    shared_keys,
)
from sieve.sim.engine_input import EngineInput, KeyArray
from sieve.sim.scenario import Config, Scenario, check_scenario, table_width


def engine_settings(config: Config) -> IntArray:
    """Return the settings array of an engine whose arrivals are in steps, recording nothing."""
    speculative = config.speculative
    eagle = speculative is not None and speculative.method == "eagle"
    values = np.zeros(layout.NUM_SETTINGS, np.int64)
    values[layout.BLOCK_SIZE] = config.block_size
    values[layout.NUM_BLOCKS] = config.num_gpu_blocks
    values[layout.MAX_RUNNING] = config.running_limit
    values[layout.TOKEN_BUDGET] = config.max_num_batched_tokens
    values[layout.MAX_MODEL_LEN] = config.max_model_len
    values[layout.CHUNKED] = config.enable_chunked_prefill
    values[layout.CACHING] = config.enable_prefix_caching
    values[layout.THRESHOLD] = config.long_prefill_token_threshold
    values[layout.ADAPTIVE] = config.long_prefill_token_threshold_adaptive
    values[layout.PRIORITY] = config.policy == "priority"
    values[layout.WATERMARK_BLOCKS] = int(config.watermark * config.num_gpu_blocks)
    values[layout.RESERVE_FULL_ISL] = config.reserve_full_isl
    values[layout.PREFILL_INTERVAL] = config.prefill_schedule_interval
    values[layout.ASYNC] = config.async_scheduling
    values[layout.PIPELINE] = config.pipeline_parallel_size
    values[layout.DRAFTS_K] = speculative.k if speculative else 0
    values[layout.LOOKAHEAD] = speculative.k if speculative and eagle else 0
    values[layout.KEY_AHEAD] = eagle
    values[layout.IN_FLIGHT] = config.batches_in_flight
    values[layout.MACRO] = 1
    return values


def engine_input(scenario: Scenario, record: int = layout.RECORD_NOTHING) -> EngineInput:
    """Return the arrays of `scenario`.

    Raises:
        TraceError: the scenario contradicts itself or is too large.
    """
    check_scenario(scenario)
    config, rows = scenario.config, scenario.requests
    settings = engine_settings(config)
    settings[layout.RECORD] = record
    settings[layout.TABLE_WIDTH] = table_width(scenario)
    if scenario.time_model is not None:
        settings[layout.CLOCK] = layout.CLOCK_LINEAR
        settings[layout.STEP_BASE_NS] = scenario.time_model.a
        settings[layout.STEP_TOKEN_NS] = scenario.time_model.b
        settings[layout.STEP_CONTEXT_NS] = scenario.time_model.c
    prompt = np.array([row.prompt_tokens for row in rows], np.int64)
    output = np.array([row.output_len for row in rows], np.int64)
    total = np.minimum(prompt + output, config.max_model_len)
    settings[layout.PATIENCE] = patience(total)
    arrivals = [row.arrival_time if scenario.timed else row.arrival_step for row in rows]
    delays = [row.delay_time if scenario.timed else row.delay_steps for row in rows]
    position = {row.id: i for i, row in enumerate(rows)}
    parent = [-1 if row.after is None else position[row.after] for row in rows]
    child_start, child = children_of(np.array(parent, np.int64))
    rank = np.zeros(len(rows), np.int64)
    rank[sorted(range(len(rows)), key=lambda i: rows[i].id)] = np.arange(len(rows))
    windows = [group.window or 0 for group in config.groups]
    if config.enable_prefix_caching:
        ahead = int(settings[layout.KEY_AHEAD])
        key_start, keys, num_keys = _shared_keys(scenario, total, ahead)
    else:
        key_start, keys, num_keys = np.zeros(len(rows), np.int64), np.zeros(1, np.int32), 0
    if num_keys * len(windows) >= 2**31:
        raise TraceError(f"{num_keys} block keys in {len(windows)} groups; too many to replay")
    count = np.maximum(total - settings[layout.KEY_AHEAD], 0) // config.block_size
    if not config.enable_prefix_caching:
        count = np.zeros(len(rows), np.int64)
    speculative = config.speculative
    return EngineInput(
        settings=settings,
        accept=np.array(speculative.accept if speculative else [0], np.int64),
        window=np.array(windows, np.int64),
        kind=kinds_of(windows),
        span=np.full(len(windows), config.block_size, np.int64),
        fixed=np.zeros(len(windows), np.int64),
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
        clock=idle_clock(),
        bucket=np.zeros(0, np.int64),
        quota=np.zeros(0, np.int64),
        shared=shared_keys(count, keys, num_keys, early_output=_uses_early_output(scenario)),
    )


def replay_scenario(scenario: Scenario, record: int = layout.RECORD_NOTHING) -> EngineResult:
    """Return the replay of `scenario`.

    Raises:
        TraceError: as `engine_input` and `run_engine`.
    """
    return run_engine(engine_input(scenario, record))


# ---- Scenario to arrays


def _uses_early_output(scenario: Scenario) -> bool:
    """Return whether a prompt contains what a request generates that need not have ended."""
    rows = {row.id: row for row in scenario.requests}
    for row in scenario.requests:
        sources = {content[4:] for content, _, _ in row.pieces if content.startswith("out:")}
        sources &= rows.keys()
        ended, seen = row.after, set()
        while sources and ended is not None and ended not in seen:
            sources.discard(ended)
            seen.add(ended)
            ended = rows[ended].after
        if sources:
            return True
    return False


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
