"""The data-parallel ranks of a deployment in lock step, compiled.

Every rank has a scheduler, a queue and a cache of its own; a step begins when all have scheduled
and ends when the slowest is done, and a rank without work runs one token along. Sources: vLLM
0.33.0 `v1/engine/core.py` (`DPEngineCoreProc`, `step_with_batch_queue`),
`v1/engine/core_client.py` (`DPLBAsyncMPClient`), `v1/worker/dp_utils.py`.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from sieve.sim._kernels import jit
from sieve.sim._kernels.clock import (
    GAP_BINS,
    HOST_DECODE,
    HOST_MIXED,
    PREFILL_FLOOR,
    whole_ns,
)
from sieve.sim._kernels.layout import (
    ARRIVAL,
    ASYNC,
    B_NUM_COLUMNS,
    B_REQUEST,
    END_NS,
    FILLED_STEPS,
    IS_FINISHED,
    IS_NEW,
    K_KEY,
    K_NEXT,
    K_PREV,
    MAX_MODEL_LEN,
    MAX_RUNNING,
    MAX_WAIT_NS,
    NUM_BLOCKS,
    NUM_COUNTERS,
    NUM_RESULTS,
    NUM_SAMPLE_COLUMNS,
    NUM_SAMPLES,
    OUT,
    PATIENCE,
    PEAK_BATCH,
    PEAK_BLOCKS,
    PEAK_TOKENS,
    PREEMPTED,
    PREEMPTIONS,
    R_GROUPS,
    R_KEYS,
    R_KNOWN,
    R_LAST_NS,
    R_PROMPT,
    R_ROW,
    R_STATE,
    R_TOTAL,
    REJECTED,
    REQUEST_STEPS,
    S_FREE,
    S_RUNNING,
    S_WAITING,
    SAMPLES,
    SCHEDULED_NS,
    STATUS,
    STATUS_LIVE_LOCK,
    STATUS_OVERLOADED,
    STATUS_STALLED,
    STEPS,
    TABLE_WIDTH,
    TOKENS,
    USERS,
)
from sieve.sim._kernels.queues import expect, head, pop_expected
from sieve.sim._kernels.ranks import (
    NUM_STATE,
    NUM_WORK,
    S_FREE_ROWS,
    S_UNFINISHED,
    S_UNTOLD,
    W_CONTEXT,
    W_DECODES,
    W_PREFILL_TOKENS,
    W_YIELDS,
    account,
    join,
    schedule,
    settle_batch,
)

_WAITING_WEIGHT: Final = 6.0
_USAGE_FROM: Final = 0.5
_IDLE_TOKENS: Final = 1  # of the batch that a rank without work runs


@jit
def least_loaded(all_state, first, num_blocks, pool):
    """Return the rank that gets the next request; ties go to the first of the scan from `first`."""
    ranks = len(all_state)
    best = -1
    best_load = 0.0
    for j in range(ranks):
        k = (first + j) % ranks
        load = float(all_state[k, S_UNFINISHED])
        waiting = all_state[k, S_WAITING]
        if waiting > 0:
            used = num_blocks - 1 - all_state[k, S_FREE]
            usage = 1.0 - (pool - used) / pool
            load += waiting * _WAITING_WEIGHT * max(usage - _USAGE_FROM, 0.0)
        if best < 0 or load < best_load:
            best = k
            best_load = load
    return best


@jit
def arrivals(
    settings, before, due_at, due, num_due, prompt, state, req, links, heap, results, lane, first,
    pool,
):  # fmt: skip
    """Route the requests that arrive before a time.

    Returns:
        How many are still to come, where the next scan begins, how many have joined a rank.
    """
    joined = 0
    while num_due > 0 and due_at[0] < before:
        r = due[0]
        results[r, ARRIVAL] = due_at[0]
        pop_expected(due_at, due, num_due)
        num_due -= 1
        if prompt[r] < 1 or prompt[r] >= settings[MAX_MODEL_LEN]:
            results[r, REJECTED] = 1
            req[r, R_STATE] = IS_FINISHED
            continue
        k = least_loaded(state, first, settings[NUM_BLOCKS], pool)
        first = (first + 1) % len(state)
        lane[r] = k
        join(settings, state[k], req, links[k], heap, r)
        joined += 1
    return num_due, first, joined


@jit
def _decode_s(clock, decodes, context):
    """Return the attention of a decoding batch, as `engine.replay` reads the grid."""
    grid = clock.context
    x = max(context * (1.0 / decodes), grid[0])
    low, high = 0, len(grid) - 2
    while low < high:
        middle = (low + high + 1) // 2
        if grid[middle] <= x:
            low = middle
        else:
            high = middle - 1
    return clock.decode_s[decodes, low] + (x - grid[low]) * clock.decode_slope[decodes, low]


@jit
def step_s(clock, local_s, shared_s, graph_size, launch_s, work, prefill_s, parts):
    """Return the seconds of a step of all ranks; `parts` gets those of the slowest by component.

    Args:
        clock: `clock.Clock` of one rank.
        local_s: (n,) float64, and the two after it, as `sieve.arrays.LockStep`.
        shared_s: (ranks * (n - 1) + 1,) float64.
        graph_size: (g + 1,) int64.
        launch_s: seconds at least with prompt tokens.
        work: (ranks, NUM_WORK) int64, a row of zeros for a rank without work.
        prefill_s: (ranks,) attention over prompts.
        parts: (5,) float64.
    """
    ranks = len(work)
    most = 0
    total = 0
    mixed = False
    for k in range(ranks):
        tokens = max(work[k, W_DECODES] + work[k, W_PREFILL_TOKENS], _IDLE_TOKENS)
        most = max(most, tokens)
        total += tokens
        mixed = mixed or work[k, W_PREFILL_TOKENS] > 0
    captured = most < len(graph_size)
    if captured:
        total = ranks * graph_size[most]
    slowest = -1.0
    for k in range(ranks):
        tokens = max(work[k, W_DECODES] + work[k, W_PREFILL_TOKENS], _IDLE_TOKENS)
        if captured:
            tokens = graph_size[most]
        tokens_part = local_s[tokens] + shared_s[total]
        if mixed:
            tokens_part = max(tokens_part, launch_s)
        prefill_part = 0.0
        host_part = clock.scalars[HOST_DECODE]
        if work[k, W_PREFILL_TOKENS] > 0:
            prefill_part = prefill_s[k] + clock.scalars[PREFILL_FLOOR]
            host_part = clock.scalars[HOST_MIXED]
        head_part = clock.head_s[work[k, W_YIELDS]]
        decode_part = 0.0
        if work[k, W_DECODES] > 0:
            decode_part = _decode_s(clock, work[k, W_DECODES], work[k, W_CONTEXT])
        seconds = tokens_part + head_part + decode_part + prefill_part + host_part
        if seconds > slowest:
            slowest = seconds
            parts[0] = tokens_part
            parts[1] = head_part
            parts[2] = decode_part
            parts[3] = prefill_part
            parts[4] = host_part
    return slowest


@jit
def replay(  # noqa: D417 - the rest: `engine.replay`
    settings, window, kind, span, fixed, arrival, prompt, output, child_start, child, delay,
    key_start, keys, num_keys, clock, local_s, shared_s, graph_size, launch_s, ranks, pool,
    sync_steps,
):  # fmt: skip
    """Replay open-loop or closed-loop requests on the ranks of one deployment.

    Args:
        settings: of one rank; timed by a table, first come, first served, no pipeline, no drafts.
        local_s: float64, and the three after it, as `sieve.arrays.LockStep`.
        ranks: how many there are.
        pool: KV blocks of a rank, of which the settings may have fewer, as many as can be used.
        sync_steps: the ranks look every so many steps whether all are without work; until then they
            step on. 0: they stop at once.

    A request goes, when it arrives, to the rank with the fewest in flight, those that wait weighing
    more where more than half of the cache is in use.

    Returns:
        results (n, NUM_RESULTS) int64; counters (NUM_COUNTERS,); left, the requests that never
        ended, first how many of them wait; component_s (5,) of the slowest ranks; gaps; samples of
        all ranks together, their blocks in the mean; lane (n,), the rank of each request; idle,
        steps of ranks without work.
    """
    n = len(arrival)
    num_groups = len(window)
    limit = settings[MAX_RUNNING]
    depth = 2 if settings[ASYNC] != 0 else 1
    max_model_len = settings[MAX_MODEL_LEN]
    max_wait = settings[MAX_WAIT_NS]
    users = settings[USERS]
    num_blocks = settings[NUM_BLOCKS]
    width = settings[TABLE_WIDTH]
    rows = min(limit, n)

    results = np.full((n, NUM_RESULTS), -1, np.int64)
    counters = np.zeros(NUM_COUNTERS, np.int64)
    req = np.zeros((n, R_GROUPS + num_groups), np.int64)
    lane = np.full(n, -1, np.int64)
    due_at = np.zeros(n + 1, np.int64)
    due = np.zeros(n + 1, np.int64)
    num_due = 0
    for r in range(n):
        results[r, PREEMPTIONS] = 0
        req[r, R_KNOWN] = prompt[r]
        req[r, R_PROMPT] = prompt[r]
        req[r, R_TOTAL] = min(prompt[r] + output[r], max_model_len)
        req[r, R_ROW] = -1
        req[r, R_KEYS] = key_start[r]
        req[r, R_LAST_NS] = -1
        if users > 0:
            if r < users:
                expect(due_at, due, num_due, 0, r)
                num_due += 1
        elif arrival[r] >= 0:
            expect(due_at, due, num_due, arrival[r], r)
            num_due += 1
    next_unsent = users

    state = np.zeros((ranks, NUM_STATE), np.int64)
    blk = np.zeros((ranks, num_blocks, 6), np.int32)
    reg = np.zeros((ranks, max(num_keys * num_groups, 1)), np.int32)
    table = np.zeros((ranks, rows, num_groups * width), np.int32)
    free_rows = np.zeros((ranks, rows), np.int64)
    links = np.zeros((ranks, n + 1, 2), np.int64)
    for k in range(ranks):
        for b in range(num_blocks):
            blk[k, b, K_NEXT] = b + 1 if b + 1 < num_blocks else 0
            blk[k, b, K_PREV] = b - 1 if b > 0 else num_blocks - 1
            blk[k, b, K_KEY] = -1
        for j in range(rows):
            free_rows[k, j] = j
        links[k, n, 0] = n
        links[k, n, 1] = n
        state[k, S_FREE] = num_blocks - 1
        state[k, S_FREE_ROWS] = rows
    hits = np.zeros((num_groups, width + 1), np.int32)
    running = np.zeros((ranks, limit + 1), np.int64)
    heap = np.zeros(1, np.int64)
    stale = np.zeros(n + 1, np.int64)
    ended = np.zeros(limit + 1, np.int64)
    batch = np.zeros((ranks, depth, limit + 1, B_NUM_COLUMNS), np.int64)
    batch_count = np.zeros((ranks, depth), np.int64)
    batch_end = np.zeros(depth, np.int64)
    work = np.zeros((ranks, NUM_WORK), np.int64)
    no_work = np.zeros((ranks, NUM_WORK), np.int64)
    prefill_s = np.zeros(ranks, np.float64)
    parts = np.zeros(5, np.float64)
    component_s = np.zeros(5, np.float64)
    idle_ns = whole_ns(
        step_s(clock, local_s, shared_s, graph_size, launch_s, no_work, prefill_s, parts)
    )
    gaps = np.zeros(GAP_BINS, np.int64)
    samples = np.zeros((SAMPLES, NUM_SAMPLE_COLUMNS), np.int64)
    num_samples = 0
    sample_every = 1

    first = 0  # where the router's next scan begins
    wave = 0  # steps since all ranks last began together
    idle = np.int64(0)
    oldest = 0
    in_flight = 0
    busy = 0  # batches in flight in which some rank has work
    device_free = np.int64(0)
    now = np.int64(0)
    call = np.int64(0)
    last_progress = np.int64(0)

    while True:
        # ---- Requests that have arrived, each to a rank.
        num_due, first, added = arrivals(
            settings, now + 1, due_at, due, num_due, prompt, state, req, links, heap, results, lane,
            first, pool,
        )  # fmt: skip

        to_tell = False
        for k in range(ranks):
            told = state[k, S_UNTOLD] == 0 or depth == 1
            to_tell = to_tell or state[k, S_UNFINISHED] > 0 or not told
        if not to_tell and in_flight == 0:
            if num_due == 0:
                break
            # All step on until they look together whether any has work.
            while sync_steps > 0 and wave > 1 and wave % sync_steps != 0 and now < due_at[0]:
                now = max(now, device_free) + idle_ns
                device_free = now
                wave += 1
                idle += ranks
            if now < due_at[0]:
                wave = 0
                now = due_at[0]
            continue

        if max_wait > 0:
            for k in range(ranks):
                if state[k, S_WAITING] > 0:
                    r = head(settings, links[k], heap)
                    if req[r, R_STATE] == IS_NEW and now - results[r, ARRIVAL] > max_wait:
                        counters[STATUS] = STATUS_OVERLOADED
            if counters[STATUS] != 0:
                break

        # ---- Every rank schedules.
        called = to_tell
        count = 0
        num_victims = 0
        if called:
            slot = (oldest + in_flight) % depth
            call += 1
            counters[STEPS] += 1
            for k in range(ranks):
                for j in range(NUM_WORK):
                    work[k, j] = 0
                prefill_s[k] = 0.0
                batch_count[k, slot] = 0
                told = state[k, S_UNTOLD] == 0 or depth == 1
                if state[k, S_UNFINISHED] == 0 and told:
                    continue
                state[k, S_UNTOLD] = 0
                mine, lost = schedule(
                    settings, state[k], req, blk[k], reg[k], table[k], keys, window, kind, span,
                    fixed, hits, num_keys, links[k], heap, running[k], free_rows[k],
                    batch[k, slot], stale, results, counters,
                )  # fmt: skip
                prefill_s[k] = account(settings, req, batch[k, slot], mine, clock.prompt_s, work[k])
                batch_count[k, slot] = mine
                count += mine
                num_victims += lost
                tokens = work[k, W_DECODES] + work[k, W_PREFILL_TOKENS]
                counters[TOKENS] += tokens
                counters[FILLED_STEPS] += mine > 0
                counters[PEAK_BATCH] = max(counters[PEAK_BATCH], mine)
                counters[PEAK_TOKENS] = max(counters[PEAK_TOKENS], tokens)
                used = num_blocks - 1 - state[k, S_FREE]
                counters[PEAK_BLOCKS] = max(counters[PEAK_BLOCKS], used)
            counters[REQUEST_STEPS] += count
            counters[PREEMPTED] += num_victims
            start = max(now, device_free)
            batch_end[slot] = start
            if count > 0:
                busy += 1
                wave += 1
                seconds = step_s(
                    clock, local_s, shared_s, graph_size, launch_s, work, prefill_s, parts
                )
                for j in range(5):
                    component_s[j] += parts[j]
                device_free = start + whole_ns(seconds)
                batch_end[slot] = device_free
                for k in range(ranks):
                    idle += batch_count[k, slot] == 0
                    for j in range(batch_count[k, slot]):
                        r = batch[k, slot, j, B_REQUEST]
                        if results[r, SCHEDULED_NS] < 0:
                            results[r, SCHEDULED_NS] = start
            in_flight += 1

        # ---- The oldest result, unless another batch is scheduled first.
        to_tell = False
        for k in range(ranks):
            to_tell = to_tell or state[k, S_UNFINISHED] > 0 or state[k, S_UNTOLD] > 0
        read = 0
        if in_flight > 0 and not (called and in_flight < depth and (count > 0 or to_tell)):
            # Who arrives before it is routed by what the ranks did before.
            now = max(now, batch_end[oldest])
            num_due, first, _ = arrivals(
                settings, now, due_at, due, num_due, prompt, state, req, links, heap, results, lane,
                first, pool,
            )  # fmt: skip
            for k in range(ranks):
                read += batch_count[k, oldest]
            busy -= read > 0
            for k in range(ranks):
                num_ended, progress = settle_batch(
                    settings, state[k], req, blk[k], reg[k], table[k], keys, window, num_keys,
                    links[k], heap, running[k], free_rows[k], batch[k, oldest],
                    batch_count[k, oldest], now, ended, results, gaps, clock.gap_edges,
                )  # fmt: skip
                if progress:
                    last_progress = call
                for j in range(num_ended):
                    r = ended[j]
                    for c in range(child_start[r], child_start[r + 1]):
                        expect(due_at, due, num_due, now + delay[child[c]], child[c])
                        num_due += 1
                    if users > 0 and next_unsent < n:
                        expect(due_at, due, num_due, now, next_unsent)
                        num_due += 1
                        next_unsent += 1
            oldest = (oldest + 1) % depth
            in_flight -= 1
            if counters[STEPS] % sample_every == 0:
                if num_samples == SAMPLES:
                    for j in range(SAMPLES // 2):
                        for i in range(NUM_SAMPLE_COLUMNS):
                            samples[j, i] = samples[2 * j, i]
                    num_samples = SAMPLES // 2
                    sample_every *= 2
                samples[num_samples, 0] = now
                for i in range(1, NUM_SAMPLE_COLUMNS):
                    samples[num_samples, i] = 0
                for k in range(ranks):
                    samples[num_samples, 1] += state[k, S_RUNNING]
                    samples[num_samples, 2] += state[k, S_WAITING]
                    samples[num_samples, 3] += num_blocks - 1 - state[k, S_FREE]
                samples[num_samples, 3] //= ranks
                num_samples += 1

        waits = False
        for k in range(ranks):
            waits = waits or state[k, S_UNFINISHED] > 0
        quiet = called and count == 0 and num_victims == 0 and added == 0 and read == 0
        if quiet and busy == 0 and waits:
            # Nothing runs and nothing changed: only a new request can change anything.
            if num_due == 0:
                counters[STATUS] = STATUS_STALLED
                break
            now = max(now, due_at[0])
        if call - last_progress > settings[PATIENCE]:
            counters[STATUS] = STATUS_LIVE_LOCK
            break

    counters[END_NS] = now
    counters[NUM_SAMPLES] = num_samples
    left = np.zeros(n + 1, np.int64)
    num_left = 0
    for r in range(n):
        results[r, OUT] = req[r, R_KNOWN] - prompt[r]
        if lane[r] >= 0 and req[r, R_STATE] != IS_FINISHED:
            num_left += 1
            left[num_left] = r
    left[0] = num_left
    return (
        results, counters, left[: num_left + 1], component_s, gaps, samples[:num_samples], lane,
        idle,
    )  # fmt: skip
