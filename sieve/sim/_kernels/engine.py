"""One engine's scheduler, decision by decision, compiled.

Follows vLLM 0.33.0, `v1/core/sched/scheduler.py` (`Scheduler.schedule`, `update_from_output`),
`async_scheduler.py` and `v1/engine/core.py` (`step_with_batch_queue`). A request is a row of `req`,
its columns followed by the blocks held per group.
"""

from __future__ import annotations

import numpy as np

from sieve.sim._kernels import jit
from sieve.sim._kernels.blocks import (
    admission_need,
    blocks_for,
    can_settle,
    drop_skipped,
    extend,
    hold_hits,
    lookup,
    release,
    settle,
)
from sieve.sim._kernels.clock import (
    GAP_BINS,
    HOST_DECODE,
    HOST_MIXED,
    KV_READ,
    KV_WRITE,
    LINEAR,
    PAIR,
    PREFILL_FLOOR,
    STAGE_TRANSFER,
    batch_end_ns,
    gap_bin,
    roofline_s,
    whole_ns,
)
from sieve.sim._kernels.layout import (
    ADAPTIVE,
    ADDED_STEP,
    ARRIVAL,
    ASYNC,
    B_DRAFTS,
    B_IS_DECODE,
    B_NUM_COLUMNS,
    B_PADDED,
    B_REQUEST,
    B_TOKENS,
    B_YIELDS,
    BACK,
    BLOCK_SIZE,
    CACHED,
    CACHING,
    CHUNKED,
    CLOCK,
    CLOCK_STEPS,
    CLOCK_TABLE,
    DRAFTS_K,
    END_NS,
    FILLED_STEPS,
    FINISH_NS,
    FINISH_STEP,
    FIRST_STEP,
    FIRST_TOKEN_NS,
    FIRST_TOKEN_STEP,
    FRONT,
    FULL_RESERVATION,
    IN_FLIGHT,
    IS_FINISHED,
    IS_NEW,
    IS_PREEMPTED,
    IS_RUNNING,
    K_KEY,
    K_NEXT,
    K_PREV,
    LOG_LENGTH,
    LOOKAHEAD,
    MAX_MODEL_LEN,
    MAX_RUNNING,
    MAX_WAIT_NS,
    NUM_BLOCKS,
    NUM_COUNTERS,
    NUM_RESULTS,
    NUM_SAMPLE_COLUMNS,
    NUM_SAMPLES,
    NUM_STEP_COLUMNS,
    OUT,
    PATIENCE,
    PEAK_BATCH,
    PEAK_BLOCKS,
    PEAK_RUNNING,
    PEAK_TOKENS,
    PIPELINE,
    PREEMPTED,
    PREEMPTIONS,
    PREFILL_INTERVAL,
    PRIORITY,
    R_ARRIVAL,
    R_CHECKS,
    R_COMPUTED,
    R_DEFERRED,
    R_DRAFTS,
    R_GROUPS,
    R_IN_FLIGHT,
    R_KEYS,
    R_KNOWN,
    R_LAST_NS,
    R_LEVEL,
    R_MID_PREFILL,
    R_NAME,
    R_NEXT_CALL,
    R_PENDING,
    R_PROMPT,
    R_READY_NS,
    R_ROW,
    R_STATE,
    R_TOTAL,
    RECORD,
    RECORD_NOTHING,
    RECORD_STEPS,
    RECORD_TABLES,
    REJECTED,
    REQUEST_STEPS,
    RESERVE_FULL_ISL,
    ROOFLINE,
    S_FREE,
    S_NUM_DEFERRED,
    S_NUM_STATE,
    S_RUNNING,
    S_WAITING,
    SAMPLES,
    SCHEDULED_NS,
    SHORT_OF_BLOCKS,
    STATUS,
    STATUS_LIVE_LOCK,
    STATUS_OVERLOADED,
    STATUS_STALLED,
    STEP_ADMITTED,
    STEP_BASE_NS,
    STEP_CALL_NS,
    STEP_CONTEXT_NS,
    STEP_DECODE_CONTEXT,
    STEP_DECODE_TOKENS,
    STEP_DECODES,
    STEP_END_NS,
    STEP_PREEMPTED,
    STEP_PREFILL_CONTEXT,
    STEP_PREFILL_TOKENS,
    STEP_PREFILLS,
    STEP_RUNNING,
    STEP_START_NS,
    STEP_TOKEN_NS,
    STEP_USED_BLOCKS,
    STEP_WAITING,
    STEPS,
    TABLE_WIDTH,
    THRESHOLD,
    TOKEN_BUDGET,
    TOKENS,
    TURN_CALL,
    TURN_IDLE,
    TURN_RESULT,
    USERS,
    WATERMARK_BLOCKS,
)
from sieve.sim._kernels.queues import dequeue, enqueue, expect, head, pop_expected


@jit
def grown(log, need):
    """Return the log with room for `need` numbers."""
    size = len(log)
    while size < need:
        size *= 2
    bigger = np.empty(size, np.int64)
    for i in range(len(log)):
        bigger[i] = log[i]
    return bigger


@jit
def victim_of(settings, state, req, running):
    """Return the position in the running list of the request to preempt."""
    last = state[S_RUNNING] - 1
    if settings[PRIORITY] == 0:
        return last
    worst = 0
    for i in range(1, last + 1):
        a = running[i]
        b = running[worst]
        if req[a, R_LEVEL] > req[b, R_LEVEL] or (
            req[a, R_LEVEL] == req[b, R_LEVEL] and req[a, R_ARRIVAL] > req[b, R_ARRIVAL]
        ):
            worst = i
    return worst


@jit
def replay(
    settings,
    accept,
    window,
    kind,
    span,
    fixed,
    arrival,
    prompt,
    output,
    level,
    name_rank,
    child_start,
    child,
    delay,
    key_start,
    keys,
    num_keys,
    clock,
    bucket,
    quota,
):
    """Replay one engine over its requests, every request visited in every step.

    Args:
        settings: (NUM_SETTINGS,) int64.
        accept: (a,) int64, drafts accepted by a request's verifications, in turn.
        window: (g,) int64, sliding window of each group of layers, 0: full attention.
        kind: (g,) int64, groups with equal numbers are looked up together; 0: full attention.
        span: (g,) int64 tokens in a block of each group; the block size where there is a cache.
        fixed: (g,) int64 blocks that a request holds whatever its length, 0: as its tokens need.
        arrival: (n,) int64 step or ns; -1: arrives after another request's end.
        prompt: (n,) int64 tokens.
        output: (n,) int64 most tokens to generate.
        level: (n,) int64 priority, smaller first.
        name_rank: (n,) int64 rank of the id as text.
        child_start: (n + 1,) int64, the requests waiting for the end of r are
            child[child_start[r]:child_start[r + 1]].
        child: int64.
        delay: (n,) int64 between that end and the arrival.
        key_start: (n,) int64 offset of a request's block keys.
        keys: int32 block keys, 0 .. num_keys - 1.
        num_keys: how many keys there are.
        bucket: (n,) int64 class of each request; read where there are quotas.
        quota: (k,) int64 tokens of running requests that a class may have while others wait; empty:
            no quotas.
        clock: `clock.Clock`; read with CLOCK_TABLE only, but for the edges of the gaps.

    Returns:
        results (n, NUM_RESULTS) int64; counters (NUM_COUNTERS,) int64; log int64, the recorded
        turns or steps; left int64, the number of requests left waiting, these in order, those left
        running; component_s (5,) float64; gaps (GAP_BINS,) int64; samples (k, 4) int64.
    """
    n = len(arrival)
    num_groups = len(window)
    size = settings[BLOCK_SIZE]
    limit = settings[MAX_RUNNING]
    token_budget = settings[TOKEN_BUDGET]
    max_model_len = settings[MAX_MODEL_LEN]
    chunked = settings[CHUNKED] != 0
    caching = settings[CACHING] != 0
    by_priority = settings[PRIORITY] != 0
    is_async = settings[ASYNC] != 0
    stages = settings[PIPELINE]
    num_drafts = settings[DRAFTS_K]
    lookahead = settings[LOOKAHEAD]
    interval = settings[PREFILL_INTERVAL]
    depth = settings[IN_FLIGHT]
    timed = settings[CLOCK] != CLOCK_STEPS
    table_clock = settings[CLOCK] == CLOCK_TABLE
    roofline = settings[ROOFLINE] != 0
    full_reservation = settings[FULL_RESERVATION] != 0
    users = settings[USERS]
    max_wait = settings[MAX_WAIT_NS]
    record = settings[RECORD]
    record_steps = record == RECORD_STEPS
    if record_steps:
        record = RECORD_NOTHING
    width = settings[TABLE_WIDTH]
    throttled = is_async and stages > 1
    late_settling = caching and (is_async or num_drafts > 0)
    windowed = False
    for g in range(num_groups):
        windowed = windowed or window[g] > 0

    results = np.zeros((n, NUM_RESULTS), np.int64)
    for r in range(n):
        for k in range(NUM_RESULTS):
            results[r, k] = -1
    counters = np.zeros(NUM_COUNTERS, np.int64)
    state = np.zeros(S_NUM_STATE, np.int64)
    req = np.zeros((n, R_GROUPS + num_groups), np.int64)
    due_at = np.zeros(n + 1, np.int64)
    due = np.zeros(n + 1, np.int64)
    num_due = 0
    for r in range(n):
        req[r, R_KNOWN] = prompt[r]
        req[r, R_PROMPT] = prompt[r]
        req[r, R_TOTAL] = min(prompt[r] + output[r], max_model_len)
        req[r, R_ROW] = -1
        req[r, R_KEYS] = key_start[r]
        req[r, R_LEVEL] = level[r]
        req[r, R_NAME] = name_rank[r]
        results[r, PREEMPTIONS] = 0
        req[r, R_LAST_NS] = -1
        if users > 0:
            if r < users:
                expect(due_at, due, num_due, 0, r)
                num_due += 1
        elif arrival[r] >= 0:
            expect(due_at, due, num_due, arrival[r], r)
            num_due += 1

    num_blocks = settings[NUM_BLOCKS]
    blk = np.zeros((num_blocks, 6), np.int32)
    for b in range(num_blocks):
        blk[b, K_NEXT] = b + 1 if b + 1 < num_blocks else 0
        blk[b, K_PREV] = b - 1 if b > 0 else num_blocks - 1
        blk[b, K_KEY] = -1
    state[S_FREE] = num_blocks - 1
    reg = np.zeros(max(num_keys * num_groups, 1), np.int32)
    hits = np.zeros((num_groups, width + 1), np.int32)
    rows = min(limit, n)
    table = np.zeros((rows, num_groups * width), np.int32)
    free_rows = np.zeros(rows, np.int64)
    for j in range(rows):
        free_rows[j] = j
    num_free_rows = rows

    running = np.zeros(limit + 1, np.int64)
    links = np.zeros((n + 1, 2), np.int64)
    links[n, 0] = n
    links[n, 1] = n
    heap = np.zeros(n + 1, np.int64)
    stale = np.zeros(n + 1, np.int64)
    used = np.zeros(len(quota), np.int64)
    victims = np.zeros(limit + 1, np.int64)
    admitted = np.zeros((limit + 1, 3), np.int64)

    batch = np.zeros((depth, limit + 1, B_NUM_COLUMNS), np.int64)
    batch_count = np.zeros(depth, np.int64)
    batch_step = np.zeros(depth, np.int64)
    batch_end = np.zeros(depth, np.int64)
    oldest = 0
    in_flight = 0
    busy = 0  # batches in flight that are not empty
    stage_free = np.zeros(stages if table_clock else 1, np.int64)
    component_s = np.zeros(5, np.float64)
    gaps = np.zeros(GAP_BINS, np.int64)
    token_s = clock.token_s
    decode_token_s = clock.decode_token_s
    head_s = clock.head_s
    grid = clock.context
    grid_first = grid[0]
    grid_top = len(grid) - 2
    decode_s = clock.decode_s
    decode_slope = clock.decode_slope
    prompt_s = clock.prompt_s
    sweep_s = clock.sweep_s
    bins = clock.gap_edges
    prefill_floor = clock.scalars[PREFILL_FLOOR]
    host_decode = clock.scalars[HOST_DECODE]
    host_mixed = clock.scalars[HOST_MIXED]
    transfer_s = clock.scalars[STAGE_TRANSFER]
    kv_read = clock.scalars[KV_READ]
    kv_write = clock.scalars[KV_WRITE]
    linear_s = clock.scalars[LINEAR]
    pair_s = clock.scalars[PAIR]
    segment = 0  # of the grid of contexts
    near = 0
    samples = np.zeros((SAMPLES, NUM_SAMPLE_COLUMNS), np.int64)
    num_samples = 0
    sample_every = 1
    next_unsent = users

    log = np.zeros(1024 if record > 0 or record_steps else 1, np.int64)
    pos = 0
    turn_room = 64 + 2 * n + 16 * limit
    if record == RECORD_TABLES:
        turn_room += rows * num_groups * (width + 1) + n + num_blocks

    unfinished = 0
    untold = 0  # endings the scheduler has not reported in a call
    call = np.int64(0)
    filled_calls = np.int64(0)  # calls that scheduled something
    last_prefill = -interval
    saturated = False
    step = np.int64(0)
    now = np.int64(0)
    last_progress = np.int64(0)

    while True:
        # ---- Requests that are due.
        time = now if timed else step
        added = 0
        rejected = 0
        turn = pos
        if record > 0:
            if pos + turn_room > len(log):
                log = grown(log, pos + turn_room)
            log[turn] = 0
            log[turn + 1] = step
            log[turn + 2] = now
            pos = turn + 4
        while num_due > 0 and due_at[0] <= time:
            r = due[0]
            at = due_at[0]
            pop_expected(due_at, due, num_due)
            num_due -= 1
            req[r, R_ARRIVAL] = at
            results[r, ARRIVAL] = at
            results[r, ADDED_STEP] = step
            refused = prompt[r] < 1 or prompt[r] >= max_model_len
            if refused:
                results[r, REJECTED] = 1
                req[r, R_STATE] = IS_FINISHED
                rejected += 1
            else:
                enqueue(settings, state, req, links, heap, r, BACK)
                unfinished += 1
                added += 1
            if record > 0:
                log[pos] = -r - 1 if refused else r
                pos += 1
        if record > 0:
            log[turn + 3] = added + rejected

        to_tell = unfinished > 0 or (depth > 1 and untold > 0)
        if not to_tell and in_flight == 0:
            if record > 0:
                if rejected > 0:
                    log[turn] = TURN_IDLE
                else:
                    pos = turn
            if num_due == 0:
                break
            if timed:
                now = max(now, due_at[0])
            else:
                step = max(step, due_at[0])
            continue

        if max_wait > 0 and state[S_WAITING] > 0:
            r = head(settings, links, heap)
            if req[r, R_STATE] == IS_NEW and now - req[r, R_ARRIVAL] > max_wait:
                counters[STATUS] = STATUS_OVERLOADED
                break

        called = to_tell
        count = 0
        num_victims = 0
        if called:
            # ---- Scheduler.schedule
            untold = 0
            slot = (oldest + in_flight) % depth
            budget = token_budget
            threshold = settings[THRESHOLD]
            present = state[S_RUNNING] + state[S_WAITING]
            if threshold > 0:
                if present <= 1:
                    threshold = 0
                elif settings[ADAPTIVE] != 0:
                    threshold = max(threshold, token_budget // present)
            holding = False
            if interval > 1 and not saturated and filled_calls + 1 - last_prefill < interval:
                for i in range(state[S_RUNNING]):
                    if req[running[i], R_MID_PREFILL] == 0:
                        holding = True
                        break
            carries_prefill = False
            num_admitted = 0

            i = 0
            while i < state[S_RUNNING] and budget > 0:
                r = running[i]
                computed = req[r, R_COMPUTED]
                pending = req[r, R_PENDING]
                if is_async:
                    if pending > 0 and computed + 2 - pending >= req[r, R_TOTAL]:
                        i += 1
                        continue
                    if throttled and req[r, R_NEXT_CALL] > call:
                        i += 1
                        continue
                mid_prefill = req[r, R_MID_PREFILL] != 0
                if holding and mid_prefill:
                    i += 1
                    continue
                want = req[r, R_KNOWN] + req[r, R_DRAFTS] + pending - computed
                if 0 < threshold < want:
                    want = threshold
                want = min(want, budget, max_model_len - computed - 1)
                if want <= 0:
                    i += 1
                    continue
                tokens = min(computed + want + lookahead, max_model_len)
                if windowed:
                    drop_skipped(
                        settings, state, req, blk, table, window, span, r,
                        computed - req[r, R_IN_FLIGHT],
                    )  # fmt: skip
                fits = True
                if num_groups > 1 or tokens > req[r, R_GROUPS] * size:
                    while True:
                        need = 0
                        for g in range(num_groups):
                            goal = blocks_for(span, fixed, g, tokens)
                            need += max(goal - req[r, R_GROUPS + g], 0)
                        if need <= state[S_FREE]:
                            break
                        p = victim_of(settings, state, req, running)
                        victim = running[p]
                        for j in range(p, state[S_RUNNING] - 1):
                            running[j] = running[j + 1]
                        state[S_RUNNING] -= 1
                        if p < i:
                            i -= 1
                        if by_priority:
                            for j in range(count):
                                if batch[slot, j, B_REQUEST] == victim:
                                    budget += batch[slot, j, B_TOKENS]
                                    for k in range(j, count - 1):
                                        for c in range(B_NUM_COLUMNS):
                                            batch[slot, k, c] = batch[slot, k + 1, c]
                                    count -= 1
                                    break
                        release(settings, state, req, blk, table, num_groups, victim)
                        free_rows[num_free_rows] = req[victim, R_ROW]
                        num_free_rows += 1
                        req[victim, R_ROW] = -1
                        req[victim, R_COMPUTED] = 0
                        req[victim, R_PENDING] = 0
                        req[victim, R_DRAFTS] = 0
                        req[victim, R_STATE] = IS_PREEMPTED
                        if len(quota) > 0:
                            used[bucket[victim]] -= prompt[victim] + output[victim]
                        enqueue(settings, state, req, links, heap, victim, FRONT)
                        victims[num_victims] = victim
                        num_victims += 1
                        if victim == r:
                            fits = False
                            break
                    if not fits:
                        continue
                    extend(settings, state, req, blk, reg, table, span, fixed, r, tokens)
                if caching and can_settle(settings, req, r, computed + want):
                    settle(
                        settings, req, blk, reg, table, keys, window, num_keys, r,
                        computed + want,
                    )  # fmt: skip
                drafts = 0
                if req[r, R_DRAFTS] > 0:
                    drafts = want + computed - req[r, R_KNOWN] - pending
                    drafts = min(max(drafts, 0), req[r, R_DRAFTS])
                    req[r, R_DRAFTS] = 0
                batch[slot, count, B_REQUEST] = r
                batch[slot, count, B_TOKENS] = want
                batch[slot, count, B_DRAFTS] = drafts
                batch[slot, count, B_PADDED] = 0
                batch[slot, count, B_IS_DECODE] = not mid_prefill
                count += 1
                budget -= want
                carries_prefill = carries_prefill or mid_prefill
                i += 1

            num_stale = 0
            if num_victims == 0:
                from_running = count
                prefill_running = carries_prefill
                within_quota = len(quota) > 0
                while budget > 0 and state[S_RUNNING] < limit:
                    if state[S_WAITING] == 0:
                        if not within_quota or num_stale == 0:
                            break
                        # What no bucket used of its quota goes to whoever waits.
                        within_quota = False
                        for j in range(num_stale - 1, -1, -1):
                            enqueue(settings, state, req, links, heap, stale[j], FRONT)
                        num_stale = 0
                        continue
                    r = head(settings, links, heap)
                    if within_quota and used[bucket[r]] + prompt[r] + output[r] > quota[bucket[r]]:
                        dequeue(settings, state, req, links, heap, r)
                        stale[num_stale] = r
                        num_stale += 1
                        continue
                    if req[r, R_IN_FLIGHT] > 0:
                        dequeue(settings, state, req, links, heap, r)
                        state[S_NUM_DEFERRED] += 1 - req[r, R_DEFERRED]
                        req[r, R_DEFERRED] = 1
                        stale[num_stale] = r
                        num_stale += 1
                        continue
                    known = req[r, R_KNOWN]
                    hit = 0
                    if caching:
                        hit = lookup(settings, req, reg, keys, window, kind, hits, num_keys, r)
                    found = hit * size
                    want = known - found
                    if holding and want > 1:
                        break
                    drafts = 0
                    if (
                        # Padded to the size of a verification; these drafts are all rejected.
                        num_drafts > 0
                        and want == 1
                        and (from_running > 0 or hit > 0)
                        and not prefill_running
                        and found + 1 + num_drafts < max_model_len
                    ):
                        drafts = num_drafts
                        want += drafts
                        if want > budget:
                            break
                    else:
                        if 0 < threshold < want:
                            want = threshold
                        if not chunked and want > budget:
                            break
                        want = min(want, budget)
                    reserve = settings[WATERMARK_BLOCKS] if state[S_RUNNING] > 0 else 0
                    if full_reservation:
                        tokens = req[r, R_TOTAL]
                    else:
                        tokens = min(found + want + lookahead, max_model_len)
                    if settings[RESERVE_FULL_ISL] != 0:
                        need = admission_need(
                            settings,
                            blk,
                            window,
                            span,
                            fixed,
                            hits,
                            hit,
                            min(known, max_model_len),
                            1,
                        )
                        if need + reserve > state[S_FREE]:
                            counters[SHORT_OF_BLOCKS] = 1
                            break
                    need = admission_need(settings, blk, window, span, fixed, hits, hit, tokens, 0)
                    if need + reserve > state[S_FREE]:
                        counters[SHORT_OF_BLOCKS] = 1
                        break
                    dequeue(settings, state, req, links, heap, r)
                    state[S_NUM_DEFERRED] -= req[r, R_DEFERRED]
                    req[r, R_DEFERRED] = 0
                    num_free_rows -= 1
                    req[r, R_ROW] = free_rows[num_free_rows]
                    if hit > 0:
                        hold_hits(settings, state, req, blk, table, window, hits, hit, r)
                    extend(settings, state, req, blk, reg, table, span, fixed, r, tokens)
                    req[r, R_COMPUTED] = found
                    if caching and can_settle(settings, req, r, found + want):
                        settle(
                            settings, req, blk, reg, table, keys, window, num_keys, r,
                            found + want,
                        )  # fmt: skip
                    if len(quota) > 0:
                        used[bucket[r]] += prompt[r] + output[r]
                    running[state[S_RUNNING]] = r
                    state[S_RUNNING] += 1
                    counters[PEAK_RUNNING] = max(counters[PEAK_RUNNING], state[S_RUNNING])
                    admitted[num_admitted, 0] = r
                    admitted[num_admitted, 1] = found
                    admitted[num_admitted, 2] = req[r, R_STATE] == IS_PREEMPTED
                    num_admitted += 1
                    req[r, R_STATE] = IS_RUNNING
                    if results[r, FIRST_STEP] < 0:
                        results[r, FIRST_STEP] = step
                        results[r, CACHED] = found
                    batch[slot, count, B_REQUEST] = r
                    batch[slot, count, B_TOKENS] = want
                    batch[slot, count, B_DRAFTS] = drafts
                    batch[slot, count, B_PADDED] = drafts > 0
                    batch[slot, count, B_IS_DECODE] = 0
                    count += 1
                    budget -= want
                    carries_prefill = carries_prefill or found < known - 1
                for j in range(num_stale - 1, -1, -1):
                    enqueue(settings, state, req, links, heap, stale[j], FRONT)
                if not holding:
                    saturated = state[S_WAITING] > state[S_NUM_DEFERRED]
            if count > 0:
                filled_calls += 1
            if carries_prefill:
                last_prefill = filled_calls

            # ---- Scheduler._update_after_schedule
            context = np.int64(0)
            decodes = 0
            decode_tokens = np.int64(0)
            decode_context = np.int64(0)
            prefills = 0
            prefill_past = np.int64(0)
            prefill_pairs = 0.0
            prefill_s = 0.0
            yields = 0
            ready = np.int64(0)
            for j in range(count):
                r = batch[slot, j, B_REQUEST]
                want = batch[slot, j, B_TOKENS]
                computed = req[r, R_COMPUTED] + want
                req[r, R_COMPUTED] = computed
                req[r, R_IN_FLIGHT] += want
                context += computed
                if batch[slot, j, B_IS_DECODE] != 0:
                    decodes += 1
                    decode_tokens += want
                    decode_context += computed
                    ready = max(ready, req[r, R_READY_NS])
                else:
                    prefills += 1
                    prefill_past += computed - want
                    prefill_pairs += want * (computed - want + (want + 1) / 2)
                    if table_clock and not roofline:
                        prefill_s += prompt_s[computed] - prompt_s[computed - want]
                if computed < req[r, R_KNOWN] + req[r, R_PENDING]:
                    req[r, R_MID_PREFILL] = 1
                    batch[slot, j, B_YIELDS] = 0
                else:
                    req[r, R_MID_PREFILL] = 0
                    batch[slot, j, B_YIELDS] = 1
                    yields += 1
                    if is_async:
                        req[r, R_PENDING] += 1 + batch[slot, j, B_DRAFTS]
                        req[r, R_DRAFTS] = num_drafts
                        req[r, R_NEXT_CALL] = call + stages

            call += 1
            counters[STEPS] += 1
            counters[REQUEST_STEPS] += count
            counters[TOKENS] += token_budget - budget
            counters[PREEMPTED] += num_victims
            counters[PEAK_BLOCKS] = max(counters[PEAK_BLOCKS], num_blocks - 1 - state[S_FREE])
            for j in range(num_victims):
                results[victims[j], PREEMPTIONS] += 1

            start = max(now, stage_free[0])
            if throttled and table_clock:
                # The next token of a request needs its last one, back from the last stage.
                start = max(start, ready)
            end = start
            if count > 0:
                busy += 1
                counters[FILLED_STEPS] += 1
                counters[PEAK_BATCH] = max(counters[PEAK_BATCH], count)
                counters[PEAK_TOKENS] = max(counters[PEAK_TOKENS], token_budget - budget)
                if table_clock:
                    prefill_tokens = token_budget - budget - decode_tokens
                    if prefill_tokens > 0:
                        tokens_part = token_s[prefill_tokens + decodes]
                        prefill_part = prefill_s + prefill_floor
                        host_part = host_mixed
                    else:
                        tokens_part = decode_token_s[decodes]
                        prefill_part = 0.0
                        host_part = host_decode
                    head_part = head_s[yields]
                    decode_part = 0.0
                    if roofline:
                        tokens = prefill_tokens + decodes
                        tokens_part += roofline_s(
                            sweep_s[tokens], tokens, decode_context + prefill_past,
                            decode_context + prefill_pairs, kv_read, kv_write, linear_s, pair_s,
                        )  # fmt: skip
                    elif decodes > 0:
                        x = max(decode_context * (1.0 / decodes), grid_first)
                        while segment < grid_top and grid[segment + 1] <= x:
                            segment += 1
                        while segment > 0 and grid[segment] > x:
                            segment -= 1
                        decode_part = (
                            decode_s[decodes, segment]
                            + (x - grid[segment]) * decode_slope[decodes, segment]
                        )
                    component_s[0] += tokens_part
                    component_s[1] += head_part
                    component_s[2] += decode_part
                    component_s[3] += prefill_part
                    component_s[4] += host_part
                    seconds = tokens_part + head_part + decode_part + prefill_part + host_part
                    if stages == 1:
                        end = start + whole_ns(seconds)
                        stage_free[0] = end
                    else:
                        end = batch_end_ns(stage_free, start, seconds, transfer_s)
                else:
                    end += (
                        settings[STEP_BASE_NS]
                        + settings[STEP_TOKEN_NS] * (token_budget - budget)
                        + settings[STEP_CONTEXT_NS] * context
                    )
                    stage_free[0] = end
                if throttled:
                    for j in range(count):
                        if batch[slot, j, B_YIELDS] != 0:
                            req[batch[slot, j, B_REQUEST], R_READY_NS] = end
                for j in range(num_admitted):
                    r = admitted[j, 0]
                    if results[r, SCHEDULED_NS] < 0:
                        results[r, SCHEDULED_NS] = start
                if record_steps:
                    if pos + NUM_STEP_COLUMNS > len(log):
                        log = grown(log, pos + NUM_STEP_COLUMNS)
                    log[pos + STEP_CALL_NS] = now
                    log[pos + STEP_START_NS] = start
                    log[pos + STEP_END_NS] = end
                    log[pos + STEP_PREFILLS] = prefills
                    log[pos + STEP_PREFILL_TOKENS] = token_budget - budget - decode_tokens
                    log[pos + STEP_PREFILL_CONTEXT] = prefill_past
                    log[pos + STEP_DECODES] = decodes
                    log[pos + STEP_DECODE_TOKENS] = decode_tokens
                    log[pos + STEP_DECODE_CONTEXT] = decode_context
                    log[pos + STEP_ADMITTED] = num_admitted
                    log[pos + STEP_PREEMPTED] = num_victims
                    log[pos + STEP_RUNNING] = state[S_RUNNING]
                    log[pos + STEP_WAITING] = state[S_WAITING]
                    log[pos + STEP_USED_BLOCKS] = num_blocks - 1 - state[S_FREE]
                    pos += NUM_STEP_COLUMNS
            batch_count[slot] = count
            batch_step[slot] = step
            batch_end[slot] = end
            in_flight += 1

            if record > 0:
                log[turn] += TURN_CALL
                log[pos] = count
                pos += 1
                for j in range(count):
                    log[pos] = batch[slot, j, B_REQUEST]
                    log[pos + 1] = batch[slot, j, B_TOKENS]
                    log[pos + 2] = batch[slot, j, B_DRAFTS]
                    pos += 3
                log[pos] = num_admitted
                pos += 1
                for j in range(num_admitted):
                    log[pos] = admitted[j, 0]
                    log[pos + 1] = admitted[j, 1]
                    log[pos + 2] = admitted[j, 2]
                    pos += 3
                log[pos] = num_victims
                pos += 1
                for j in range(num_victims):
                    log[pos] = victims[j]
                    pos += 1
                log[pos] = state[S_FREE]
                log[pos + 1] = start
                log[pos + 2] = end
                pos += 3
                if record == RECORD_TABLES:
                    for j in range(count):
                        r = batch[slot, j, B_REQUEST]
                        for g in range(num_groups):
                            held = req[r, R_GROUPS + g]
                            log[pos] = held
                            pos += 1
                            for k in range(held):
                                log[pos] = table[req[r, R_ROW], g * width + k]
                                pos += 1
                    log[pos] = state[S_RUNNING]
                    pos += 1
                    for j in range(state[S_RUNNING]):
                        log[pos] = running[j]
                        log[pos + 1] = req[running[j], R_COMPUTED]
                        pos += 2
                    log[pos] = state[S_WAITING]
                    pos += 1
                    # A heap is emptied into its order and filled again.
                    total = state[S_WAITING]
                    for j in range(total):
                        r = head(settings, links, heap)
                        dequeue(settings, state, req, links, heap, r)
                        log[pos + j] = r
                    for j in range(total):
                        enqueue(settings, state, req, links, heap, log[pos + j], BACK)
                    pos += total

        ended = 0
        read = 0
        to_tell = unfinished > 0 or untold > 0
        reads = in_flight > 0 and not (called and in_flight < depth and (count > 0 or to_tell))
        if reads:
            # ---- Scheduler.update_from_output
            now = max(now, batch_end[oldest])
            made_in = batch_step[oldest]
            if record > 0:
                log[turn] += TURN_RESULT
                log[pos] = made_in
                log[pos + 1] = batch_count[oldest]
                pos += 2
            read = batch_count[oldest]
            if read > 0:
                busy -= 1
            for j in range(read):
                r = batch[oldest, j, B_REQUEST]
                drafts = batch[oldest, j, B_DRAFTS]
                yields = batch[oldest, j, B_YIELDS] != 0
                accepted = np.int64(-1)
                finishes = 0
                if req[r, R_STATE] != IS_FINISHED:
                    req[r, R_IN_FLIGHT] -= batch[oldest, j, B_TOKENS]
                    if yields:
                        # What was in flight at a preemption still brings its tokens.
                        is_running = req[r, R_STATE] == IS_RUNNING
                        got = np.int64(1)
                        if drafts > 0 and batch[oldest, j, B_PADDED] == 0:
                            accepted = min(accept[req[r, R_CHECKS] % len(accept)], drafts)
                            req[r, R_CHECKS] += 1
                            got += accepted
                        kept = min(got, req[r, R_TOTAL] - req[r, R_KNOWN])
                        req[r, R_KNOWN] += kept
                        last_progress = call
                        if req[r, R_LAST_NS] < 0:
                            results[r, FIRST_TOKEN_STEP] = made_in
                            results[r, FIRST_TOKEN_NS] = now
                        else:
                            gap = now - req[r, R_LAST_NS]
                            if not bins[near] <= gap < bins[near + 1]:
                                near = gap_bin(bins, gap)
                            gaps[near] += 1
                            # Tokens that were verified together come together.
                            gaps[0] += kept - 1
                        req[r, R_LAST_NS] = now
                        if is_running:
                            # All but `kept` of the 1 + drafts tokens are taken back.
                            req[r, R_COMPUTED] -= 1 + drafts - kept
                            if is_async:
                                req[r, R_PENDING] -= 1 + drafts
                            done = req[r, R_COMPUTED] - req[r, R_IN_FLIGHT]
                            if late_settling and can_settle(settings, req, r, done):
                                settle(
                                    settings, req, blk, reg, table, keys, window, num_keys, r, done
                                )
                        if req[r, R_KNOWN] >= req[r, R_TOTAL]:
                            finishes = 1
                            ended += 1
                            if is_running:
                                if len(quota) > 0:
                                    used[bucket[r]] -= prompt[r] + output[r]
                                release(settings, state, req, blk, table, num_groups, r)
                                free_rows[num_free_rows] = req[r, R_ROW]
                                num_free_rows += 1
                                req[r, R_ROW] = -1
                            else:
                                dequeue(settings, state, req, links, heap, r)
                                state[S_NUM_DEFERRED] -= req[r, R_DEFERRED]
                            req[r, R_STATE] = IS_FINISHED
                            results[r, FINISH_STEP] = made_in
                            results[r, FINISH_NS] = now
                            unfinished -= 1
                            untold += 1
                            for c in range(child_start[r], child_start[r + 1]):
                                at = (now if timed else step + 1) + delay[child[c]]
                                expect(due_at, due, num_due, at, child[c])
                                num_due += 1
                            if users > 0 and next_unsent < n:
                                expect(due_at, due, num_due, now, next_unsent)
                                num_due += 1
                                next_unsent += 1
                        elif num_drafts > 0 and not is_async and req[r, R_MID_PREFILL] == 0:
                            req[r, R_DRAFTS] = num_drafts
                if record > 0:
                    log[pos] = r
                    log[pos + 1] = yields
                    log[pos + 2] = accepted
                    log[pos + 3] = finishes
                    pos += 4
            if ended > 0:
                still = 0
                for j in range(state[S_RUNNING]):
                    if req[running[j], R_STATE] == IS_RUNNING:
                        running[still] = running[j]
                        still += 1
                state[S_RUNNING] = still
            oldest = (oldest + 1) % depth
            in_flight -= 1
            if counters[STEPS] % sample_every == 0:
                if num_samples == SAMPLES:
                    for j in range(SAMPLES // 2):
                        for k in range(NUM_SAMPLE_COLUMNS):
                            samples[j, k] = samples[2 * j, k]
                    num_samples = SAMPLES // 2
                    sample_every *= 2
                samples[num_samples, 0] = now
                samples[num_samples, 1] = state[S_RUNNING]
                samples[num_samples, 2] = state[S_WAITING]
                samples[num_samples, 3] = num_blocks - 1 - state[S_FREE]
                num_samples += 1

        if record > 0:
            log[pos] = state[S_FREE]
            log[pos + 1] = state[S_RUNNING]
            log[pos + 2] = state[S_WAITING]
            pos += 3
            if record == RECORD_TABLES:
                b = blk[0, K_NEXT]
                while b != 0:
                    log[pos] = b
                    pos += 1
                    b = blk[b, K_NEXT]

        step += 1
        if (
            called
            and count == 0
            and num_victims == 0
            and added == 0
            and read == 0
            and busy == 0
            and unfinished > 0
        ):
            # Nothing runs and nothing changed: only a new request can change anything.
            if num_due == 0:
                counters[STATUS] = STATUS_STALLED
                break
            if timed:
                now = max(now, due_at[0])
            else:
                step = max(step, due_at[0])
        if call - last_progress > settings[PATIENCE]:
            counters[STATUS] = STATUS_LIVE_LOCK
            break

    counters[END_NS] = now
    counters[NUM_SAMPLES] = num_samples
    counters[LOG_LENGTH] = pos
    if counters[STATUS] == STATUS_OVERLOADED:
        for j in range(GAP_BINS):
            gaps[j] = 0
    for r in range(n):
        results[r, OUT] = req[r, R_KNOWN] - prompt[r]
    left = np.zeros(1 + state[S_WAITING] + state[S_RUNNING], np.int64)
    left[0] = state[S_WAITING]
    for j in range(left[0]):
        r = head(settings, links, heap)
        dequeue(settings, state, req, links, heap, r)
        left[1 + j] = r
    for j in range(state[S_RUNNING]):
        left[1 + left[0] + j] = running[j]
    return (
        results,
        counters,
        log,
        left,
        component_s,
        gaps,
        samples,
    )
