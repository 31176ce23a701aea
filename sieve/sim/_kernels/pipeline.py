"""One engine with pipeline stages, without a loop over its requests, compiled.

The same decisions as `engine.replay` where it preempts nobody, without prefix cache, for first
come, first served with one full-attention group. A request that decodes takes part in every
`period`-th call: the last token must have left the pipeline. So the decoding requests fall into
`period` cohorts that never mix, each kept as three numbers (how many, their computed tokens, how
many need a block at which call), and their ends stand in a ring over call numbers. Whatever else
happens (a request that must be preempted, a queue that nothing can serve) ends the replay with
STATUS_CLASH, and the other kernel has to decide.
"""

from __future__ import annotations

import numpy as np

from sieve.sim._kernels import jit
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
    ARRIVAL,
    ASYNC,
    BLOCK_SIZE,
    CACHED,
    CHUNKED,
    CLOCK,
    CLOCK_TABLE,
    END_NS,
    FILLED_STEPS,
    FINISH_NS,
    FIRST_TOKEN_NS,
    IN_FLIGHT,
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
    PEAK_RUNNING,
    PEAK_TOKENS,
    PIPELINE,
    PREEMPTIONS,
    REJECTED,
    REQUEST_STEPS,
    RESERVE_FULL_ISL,
    ROOFLINE,
    SAMPLES,
    SCHEDULED_NS,
    SHORT_OF_BLOCKS,
    STATUS,
    STATUS_CLASH,
    STEP_BASE_NS,
    STEP_CONTEXT_NS,
    STEP_TOKEN_NS,
    STEPS,
    TOKEN_BUDGET,
    TOKENS,
    USERS,
    WATERMARK_BLOCKS,
)
from sieve.sim._kernels.queues import expect, pop_expected


@jit
def replay(settings, arrival, prompt, output, child_start, child, delay, clock):
    """Replay one pipelined engine; every call in constant time but for what begins and ends.

    Args:
        settings: (NUM_SETTINGS,) int64; timed, first come, first served, no cache.
        arrival: (n,) int64 ns; -1: arrives after another request's end.
        prompt: (n,) int64 tokens.
        output: (n,) int64 most tokens to generate.
        child_start: (n + 1,) int64, as `engine.replay`.
        child: int64.
        delay: (n,) int64.
        clock: `clock.Clock`.

    Returns:
        results (n, NUM_RESULTS) int64, counters (NUM_COUNTERS,) int64, component_s (5,) float64,
        gaps (GAP_BINS,) int64, samples (k, 4) int64; as `engine.replay`, but for the numbers of
        steps. Nothing of it holds if counters[STATUS] is STATUS_CLASH.
    """
    n = len(arrival)
    size = settings[BLOCK_SIZE]
    limit = settings[MAX_RUNNING]
    token_budget = settings[TOKEN_BUDGET]
    max_model_len = settings[MAX_MODEL_LEN]
    chunked = settings[CHUNKED] != 0
    stages = settings[PIPELINE]
    depth = settings[IN_FLIGHT]
    ahead = settings[ASYNC] != 0
    period = stages if ahead else depth
    table_clock = settings[CLOCK] == CLOCK_TABLE
    roofline = settings[ROOFLINE] != 0
    users = settings[USERS]
    max_wait = settings[MAX_WAIT_NS]
    usable = settings[NUM_BLOCKS] - 1
    free = usable

    results = np.full((n, NUM_RESULTS), -1, np.int64)
    counters = np.zeros(NUM_COUNTERS, np.int64)
    due_at = np.zeros(n + 1, np.int64)
    due = np.zeros(n + 1, np.int64)
    num_due = 0
    total = np.zeros(n, np.int64)
    longest = np.int64(0)
    for r in range(n):
        total[r] = min(prompt[r] + output[r], max_model_len)
        longest = max(longest, total[r] - prompt[r])
        results[r, PREEMPTIONS] = 0
        if users > 0:
            if r < users:
                expect(due_at, due, num_due, 0, r)
                num_due += 1
        elif arrival[r] >= 0:
            expect(due_at, due, num_due, arrival[r], r)
            num_due += 1
    next_unsent = users

    # Requests whose last token is scheduled in a call: the first of each, then one after another.
    ring = 1
    while ring < period * (longest + 1) + depth + 1:
        ring *= 2
    ends = np.full(ring, -1, np.int64)
    after = np.full(n, -1, np.int64)
    span = size * period
    edge_count = np.zeros(span, np.int64)  # decoding requests that need a block, by call
    edge = np.zeros(n, np.int64)
    decodes = np.zeros(period, np.int64)
    context = np.zeros(period, np.int64)
    last_end = np.zeros(period, np.int64)

    queue = np.zeros(n + 1, np.int64)
    first = 0
    last = 0
    num_running = 0
    mid = -1  # the request whose prompt is unfinished
    computed = np.int64(0)  # its tokens
    joining = np.zeros(limit + 1, np.int64)
    admitted = np.zeros(limit + 1, np.int64)

    batch = np.zeros((depth, 3), np.int64)  # call, end, whether it holds anything
    oldest = 0
    in_flight = 0
    busy = 0
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
    segment = 0
    near = 0
    samples = np.zeros((SAMPLES, NUM_SAMPLE_COLUMNS), np.int64)
    num_samples = 0
    sample_every = 1

    unfinished = 0
    untold = 0
    call = np.int64(0)
    cohort = 0
    slot = 0
    now = np.int64(0)
    last_progress = np.int64(0)

    while True:
        added = 0
        while num_due > 0 and due_at[0] <= now:
            r = due[0]
            results[r, ARRIVAL] = due_at[0]
            pop_expected(due_at, due, num_due)
            num_due -= 1
            if prompt[r] < 1 or prompt[r] >= max_model_len:
                results[r, REJECTED] = 1
                continue
            queue[last] = r
            last += 1
            unfinished += 1
            added += 1

        to_tell = unfinished > 0 or (depth > 1 and untold > 0)
        if not to_tell and in_flight == 0:
            if num_due == 0:
                break
            now = max(now, due_at[0])
            continue
        if max_wait > 0 and first < last and now - results[queue[first], ARRIVAL] > max_wait:
            counters[STATUS] = STATUS_CLASH
            break

        called = to_tell
        count = 0
        if called:
            # ---- Decoding requests of this cohort, each one token.
            untold = 0
            num_decodes = decodes[cohort]
            if edge_count[slot] > free:
                counters[STATUS] = STATUS_CLASH
                break
            free -= edge_count[slot]
            context[cohort] += num_decodes
            budget = token_budget - num_decodes
            count = num_decodes
            yields = num_decodes
            prefill_tokens = np.int64(0)
            prefill_s = 0.0
            prefill_past = np.int64(0)
            prefill_pairs = 0.0
            all_context = context[cohort]
            num_joining = 0
            num_admitted = 0

            # ---- The unfinished prompt, then admissions.
            r = mid
            while budget > 0:
                if r >= 0:
                    want = min(prompt[r] - computed, budget)
                    need = (computed + want + size - 1) // size - (computed + size - 1) // size
                    if need > free:
                        counters[STATUS] = STATUS_CLASH
                        break
                    free -= need
                else:
                    if first == last or num_running >= limit:
                        break
                    r = queue[first]
                    want = prompt[r]
                    if not chunked and want > budget:
                        break
                    want = min(want, budget)
                    reserve = settings[WATERMARK_BLOCKS] if num_running > 0 else 0
                    need = (want + size - 1) // size
                    whole = (min(prompt[r], max_model_len) + size - 1) // size
                    if settings[RESERVE_FULL_ISL] != 0 and whole + reserve > free:
                        counters[SHORT_OF_BLOCKS] = 1
                        break
                    if need + reserve > free:
                        counters[SHORT_OF_BLOCKS] = 1
                        break
                    first += 1
                    free -= need
                    num_running += 1
                    counters[PEAK_RUNNING] = max(counters[PEAK_RUNNING], num_running)
                    results[r, CACHED] = 0
                    admitted[num_admitted] = r
                    num_admitted += 1
                    computed = np.int64(0)
                past = computed
                computed = past + want
                budget -= want
                count += 1
                prefill_tokens += want
                prefill_past += past
                prefill_pairs += want * (past + (want + 1) / 2)
                all_context += computed
                if table_clock and not roofline:
                    prefill_s += prompt_s[computed] - prompt_s[past]
                if computed == prompt[r]:
                    yields += 1
                    joining[num_joining] = r
                    num_joining += 1
                    mid = -1
                else:
                    mid = r
                r = -1
            if counters[STATUS] == STATUS_CLASH:
                break

            counters[STEPS] += 1
            counters[REQUEST_STEPS] += count
            counters[TOKENS] += token_budget - budget
            counters[PEAK_BLOCKS] = max(counters[PEAK_BLOCKS], usable - free)

            start = max(now, stage_free[0])
            if ahead and table_clock and num_decodes > 0:
                # The next token of a request needs its last one, back from the last stage.
                start = max(start, last_end[cohort])
            end = start
            if count > 0:
                busy += 1
                counters[FILLED_STEPS] += 1
                counters[PEAK_BATCH] = max(counters[PEAK_BATCH], count)
                counters[PEAK_TOKENS] = max(counters[PEAK_TOKENS], token_budget - budget)
                if table_clock:
                    if prefill_tokens > 0:
                        tokens_part = token_s[prefill_tokens + num_decodes]
                        prefill_part = prefill_s + prefill_floor
                        host_part = host_mixed
                    else:
                        tokens_part = decode_token_s[num_decodes]
                        prefill_part = 0.0
                        host_part = host_decode
                    head_part = head_s[yields]
                    decode_part = 0.0
                    if roofline:
                        tokens = prefill_tokens + num_decodes
                        tokens_part += roofline_s(
                            sweep_s[tokens], tokens, context[cohort] + prefill_past,
                            context[cohort] + prefill_pairs, kv_read, kv_write, linear_s, pair_s,
                        )  # fmt: skip
                    elif num_decodes > 0:
                        x = max(context[cohort] * (1.0 / num_decodes), grid_first)
                        while segment < grid_top and grid[segment + 1] <= x:
                            segment += 1
                        while segment > 0 and grid[segment] > x:
                            segment -= 1
                        decode_part = (
                            decode_s[num_decodes, segment]
                            + (x - grid[segment]) * decode_slope[num_decodes, segment]
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
                        + settings[STEP_CONTEXT_NS] * all_context
                    )
                    stage_free[0] = end
                for i in range(num_admitted):
                    results[admitted[i], SCHEDULED_NS] = start
                if num_decodes > 0:
                    gap = end - last_end[cohort]
                    if not bins[near] <= gap < bins[near + 1]:
                        near = gap_bin(bins, gap)
                    gaps[near] += num_decodes
                if yields > 0:
                    last_progress = call

            # ---- Who has the last token scheduled leaves, who finished its prompt joins.
            r = ends[call & (ring - 1)]
            while r >= 0:
                decodes[cohort] -= 1
                context[cohort] -= total[r] - 1
                edge_count[edge[r]] -= 1
                r = after[r]
            for i in range(num_joining):
                r = joining[i]
                known = prompt[r]
                results[r, FIRST_TOKEN_NS] = end
                left = total[r] - 1 - known
                final = (call + period * left) & (ring - 1)
                after[r] = ends[final]
                ends[final] = r
                if left == 0:
                    continue
                decodes[cohort] += 1
                context[cohort] += known
                crossing = 1 + (size - known % size) % size
                edge[r] = (slot + period * crossing) % span
                edge_count[edge[r]] += 1
            if count > 0:
                last_end[cohort] = end
            i = (oldest + in_flight) % depth
            batch[i, 0] = call
            batch[i, 1] = end
            batch[i, 2] = count > 0
            in_flight += 1
            call += 1
            cohort = cohort + 1 if cohort + 1 < period else 0
            slot = slot + 1 if slot + 1 < span else 0

        read = 0
        to_tell = unfinished > 0 or untold > 0
        if in_flight > 0 and not (called and in_flight < depth and (count > 0 or to_tell)):
            # ---- Read the oldest result.
            now = max(now, batch[oldest, 1])
            if batch[oldest, 2] != 0:
                busy -= 1
                read = 1
                i = batch[oldest, 0] & (ring - 1)
                r = ends[i]
                ends[i] = -1
                while r >= 0:
                    free += (total[r] - 1 + size - 1) // size
                    num_running -= 1
                    results[r, FINISH_NS] = now
                    unfinished -= 1
                    untold += 1
                    for c in range(child_start[r], child_start[r + 1]):
                        expect(due_at, due, num_due, now + delay[child[c]], child[c])
                        num_due += 1
                    if users > 0 and next_unsent < n:
                        expect(due_at, due, num_due, now, next_unsent)
                        num_due += 1
                        next_unsent += 1
                    r = after[r]
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
                samples[num_samples, 1] = num_running
                samples[num_samples, 2] = last - first
                samples[num_samples, 3] = usable - free
                num_samples += 1

        if called and count == 0 and added == 0 and read == 0 and busy == 0 and unfinished > 0:
            # Nothing runs and nothing changed: only a new request can change anything.
            if num_due == 0:
                counters[STATUS] = STATUS_CLASH
                break
            now = max(now, due_at[0])
        if call - last_progress > settings[PATIENCE]:
            counters[STATUS] = STATUS_CLASH
            break

    counters[END_NS] = now
    counters[NUM_SAMPLES] = num_samples
    for r in range(n):
        results[r, OUT] = total[r] - prompt[r] if results[r, FINISH_NS] >= 0 else 0
    return results, counters, component_s, gaps, samples
