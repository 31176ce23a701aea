"""The scheduler of one data-parallel rank, a call at a time, compiled.

The decisions of `engine.replay` without priorities, quotas, drafts and pipelines: `schedule` fills
a batch, `account` notes what it computes, `settle_batch` reads its result. The arrays are one
rank's own, but `req`, `results` and what describes the requests. Source: vLLM 0.33.0
`v1/core/sched/scheduler.py`.
"""

from __future__ import annotations

from typing import Final

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
from sieve.sim._kernels.clock import gap_bin
from sieve.sim._kernels.layout import (
    ADAPTIVE,
    ASYNC,
    B_IS_DECODE,
    B_REQUEST,
    B_TOKENS,
    B_YIELDS,
    BACK,
    BLOCK_SIZE,
    CACHED,
    CACHING,
    CHUNKED,
    FINISH_NS,
    FIRST_TOKEN_NS,
    FRONT,
    IS_FINISHED,
    IS_PREEMPTED,
    IS_RUNNING,
    MAX_MODEL_LEN,
    MAX_RUNNING,
    PEAK_RUNNING,
    PREEMPTIONS,
    R_COMPUTED,
    R_GROUPS,
    R_IN_FLIGHT,
    R_KNOWN,
    R_LAST_NS,
    R_MID_PREFILL,
    R_PENDING,
    R_ROW,
    R_STATE,
    R_TOTAL,
    RESERVE_FULL_ISL,
    S_FREE,
    S_NUM_STATE,
    S_RUNNING,
    S_WAITING,
    SHORT_OF_BLOCKS,
    THRESHOLD,
    TOKEN_BUDGET,
    WATERMARK_BLOCKS,
)
from sieve.sim._kernels.queues import dequeue, enqueue, head

# Further scalars of a rank's state.
S_FREE_ROWS: Final = S_NUM_STATE  # rows of its block table that no request has
S_UNFINISHED: Final = S_NUM_STATE + 1
S_UNTOLD: Final = S_NUM_STATE + 2  # endings that the scheduler has not reported in a call
NUM_STATE: Final = S_NUM_STATE + 3

# What a batch computes.
W_DECODES: Final = 0
W_CONTEXT: Final = 1  # tokens with cache after the step, summed over decoding requests
W_PREFILL_TOKENS: Final = 2
W_YIELDS: Final = 3
NUM_WORK: Final = 4


@jit
def _preempt(settings, state, req, blk, table, links, heap, free_rows, num_groups, victim):
    """Take the blocks of a running request away and put it in front of the queue."""
    release(settings, state, req, blk, table, num_groups, victim)
    free_rows[state[S_FREE_ROWS]] = req[victim, R_ROW]
    state[S_FREE_ROWS] += 1
    req[victim, R_ROW] = -1
    req[victim, R_COMPUTED] = 0
    req[victim, R_PENDING] = 0
    req[victim, R_STATE] = IS_PREEMPTED
    enqueue(settings, state, req, links, heap, victim, FRONT)


@jit
def schedule(
    settings, state, req, blk, reg, table, keys, window, kind, span, fixed, hits, num_keys, links,
    heap, running, free_rows, batch, stale, results, counters,
):  # fmt: skip
    """Fill `batch` as `Scheduler.schedule`; return (requests in it, requests preempted)."""
    num_groups = len(window)
    size = settings[BLOCK_SIZE]
    limit = settings[MAX_RUNNING]
    token_budget = settings[TOKEN_BUDGET]
    max_model_len = settings[MAX_MODEL_LEN]
    chunked = settings[CHUNKED] != 0
    caching = settings[CACHING] != 0
    is_async = settings[ASYNC] != 0
    windowed = False
    for g in range(num_groups):
        windowed = windowed or window[g] > 0
    threshold = settings[THRESHOLD]
    present = state[S_RUNNING] + state[S_WAITING]
    if threshold > 0:
        if present <= 1:
            threshold = 0
        elif settings[ADAPTIVE] != 0:
            threshold = max(threshold, token_budget // present)
    budget = token_budget
    count = 0
    num_victims = 0

    # ---- Running requests, in order.
    i = 0
    while i < state[S_RUNNING] and budget > 0:
        r = running[i]
        computed = req[r, R_COMPUTED]
        pending = req[r, R_PENDING]
        if is_async and pending > 0 and computed + 2 - pending >= req[r, R_TOTAL]:
            i += 1
            continue
        want = req[r, R_KNOWN] + pending - computed
        if 0 < threshold < want:
            want = threshold
        want = min(want, budget, max_model_len - computed - 1)
        if want <= 0:
            i += 1
            continue
        tokens = min(computed + want, max_model_len)
        if windowed:
            drop_skipped(
                settings, state, req, blk, table, window, span, r, computed - req[r, R_IN_FLIGHT]
            )
        fits = True
        while True:
            need = 0
            for g in range(num_groups):
                need += max(blocks_for(span, fixed, g, tokens) - req[r, R_GROUPS + g], 0)
            if need <= state[S_FREE]:
                break
            state[S_RUNNING] -= 1
            victim = running[state[S_RUNNING]]
            _preempt(settings, state, req, blk, table, links, heap, free_rows, num_groups, victim)
            results[victim, PREEMPTIONS] += 1
            num_victims += 1
            if victim == r:
                fits = False
                break
        if not fits:
            continue
        extend(settings, state, req, blk, reg, table, span, fixed, r, tokens)
        if caching and can_settle(settings, req, r, computed + want):
            settle(settings, req, blk, reg, table, keys, window, num_keys, r, computed + want)
        batch[count, B_REQUEST] = r
        batch[count, B_TOKENS] = want
        batch[count, B_IS_DECODE] = req[r, R_MID_PREFILL] == 0
        count += 1
        budget -= want
        i += 1

    # ---- Waiting requests, if nobody was preempted.
    num_stale = 0
    while num_victims == 0 and budget > 0 and state[S_RUNNING] < limit and state[S_WAITING] > 0:
        r = head(settings, links, heap)
        if req[r, R_IN_FLIGHT] > 0:
            dequeue(settings, state, req, links, heap, r)
            stale[num_stale] = r
            num_stale += 1
            continue
        known = req[r, R_KNOWN]
        hit = 0
        if caching:
            hit = lookup(settings, req, reg, keys, window, kind, hits, num_keys, r)
        found = hit * size
        want = known - found
        if 0 < threshold < want:
            want = threshold
        if not chunked and want > budget:
            break
        want = min(want, budget)
        reserve = settings[WATERMARK_BLOCKS] if state[S_RUNNING] > 0 else 0
        tokens = min(found + want, max_model_len)
        need = 0
        if settings[RESERVE_FULL_ISL] != 0:
            need = admission_need(
                settings, blk, window, span, fixed, hits, hit, min(known, max_model_len), 1
            )
        need = max(need, admission_need(settings, blk, window, span, fixed, hits, hit, tokens, 0))
        if need + reserve > state[S_FREE]:
            counters[SHORT_OF_BLOCKS] = 1
            break
        dequeue(settings, state, req, links, heap, r)
        state[S_FREE_ROWS] -= 1
        req[r, R_ROW] = free_rows[state[S_FREE_ROWS]]
        if hit > 0:
            hold_hits(settings, state, req, blk, table, window, hits, hit, r)
        extend(settings, state, req, blk, reg, table, span, fixed, r, tokens)
        req[r, R_COMPUTED] = found
        if caching and can_settle(settings, req, r, found + want):
            settle(settings, req, blk, reg, table, keys, window, num_keys, r, found + want)
        running[state[S_RUNNING]] = r
        state[S_RUNNING] += 1
        counters[PEAK_RUNNING] = max(counters[PEAK_RUNNING], state[S_RUNNING])
        req[r, R_STATE] = IS_RUNNING
        if results[r, CACHED] < 0:
            results[r, CACHED] = found
        batch[count, B_REQUEST] = r
        batch[count, B_TOKENS] = want
        batch[count, B_IS_DECODE] = 0
        count += 1
        budget -= want
    for j in range(num_stale - 1, -1, -1):
        enqueue(settings, state, req, links, heap, stale[j], FRONT)
    return count, num_victims


@jit
def account(settings, req, batch, count, prompt_s, work):
    """Count the batch's tokens as computed; return the seconds of attention over its prompts.

    `work` gets its decodes, their context, its prompt tokens and its results.
    """
    is_async = settings[ASYNC] != 0
    prefill_s = 0.0
    for j in range(NUM_WORK):
        work[j] = 0
    for j in range(count):
        r = batch[j, B_REQUEST]
        want = batch[j, B_TOKENS]
        computed = req[r, R_COMPUTED] + want
        req[r, R_COMPUTED] = computed
        req[r, R_IN_FLIGHT] += want
        if batch[j, B_IS_DECODE] != 0:
            work[W_DECODES] += 1
            work[W_CONTEXT] += computed
        else:
            work[W_PREFILL_TOKENS] += want
            prefill_s += prompt_s[computed] - prompt_s[computed - want]
        if computed < req[r, R_KNOWN] + req[r, R_PENDING]:
            req[r, R_MID_PREFILL] = 1
            batch[j, B_YIELDS] = 0
        else:
            req[r, R_MID_PREFILL] = 0
            batch[j, B_YIELDS] = 1
            work[W_YIELDS] += 1
            if is_async:
                req[r, R_PENDING] += 1
    return prefill_s


@jit
def settle_batch(
    settings, state, req, blk, reg, table, keys, window, num_keys, links, heap, running, free_rows,
    batch, count, now, ended, results, gaps, bins,
):  # fmt: skip
    """Read a batch's result, ready at `now`; return (requests that ended, whether any progressed).

    `ended` gets the requests. As `Scheduler.update_from_output`.
    """
    num_groups = len(window)
    is_async = settings[ASYNC] != 0
    caching = settings[CACHING] != 0
    num_ended = 0
    progress = False
    for j in range(count):
        r = batch[j, B_REQUEST]
        if req[r, R_STATE] == IS_FINISHED:
            continue
        req[r, R_IN_FLIGHT] -= batch[j, B_TOKENS]
        if batch[j, B_YIELDS] == 0:
            continue
        progress = True
        # What was in flight at a preemption still brings its token.
        is_running = req[r, R_STATE] == IS_RUNNING
        req[r, R_KNOWN] += min(1, req[r, R_TOTAL] - req[r, R_KNOWN])
        if req[r, R_LAST_NS] < 0:
            results[r, FIRST_TOKEN_NS] = now
        else:
            gaps[gap_bin(bins, now - req[r, R_LAST_NS])] += 1
        req[r, R_LAST_NS] = now
        if is_running and is_async:
            req[r, R_PENDING] -= 1
            done = req[r, R_COMPUTED] - req[r, R_IN_FLIGHT]
            if caching and can_settle(settings, req, r, done):
                settle(settings, req, blk, reg, table, keys, window, num_keys, r, done)
        if req[r, R_KNOWN] < req[r, R_TOTAL]:
            continue
        if is_running:
            release(settings, state, req, blk, table, num_groups, r)
            free_rows[state[S_FREE_ROWS]] = req[r, R_ROW]
            state[S_FREE_ROWS] += 1
            req[r, R_ROW] = -1
        else:
            dequeue(settings, state, req, links, heap, r)
        req[r, R_STATE] = IS_FINISHED
        results[r, FINISH_NS] = now
        state[S_UNFINISHED] -= 1
        state[S_UNTOLD] += 1
        ended[num_ended] = r
        num_ended += 1
    if num_ended > 0:
        still = 0
        for j in range(state[S_RUNNING]):
            if req[running[j], R_STATE] == IS_RUNNING:
                running[still] = running[j]
                still += 1
        state[S_RUNNING] = still
    return num_ended, progress


@jit
def join(settings, state, req, links, heap, r):
    """Put a new request at the end of the rank's queue."""
    enqueue(settings, state, req, links, heap, r, BACK)
    state[S_UNFINISHED] += 1
