"""The scheduler loop of one replica, compiled.

Times are integer nanoseconds, so that every order of summation gives the same result. Everything
the loop calls stands in this file: numba's disk cache notices edits of the kernel's own file only.

Scheduling follows vLLM's V1 scheduler (first come, first served; one kind of attention; results
read in order; no prefix cache, no drafts, synchronous): running requests first, in admission
order, then the waiting queue while nobody was preempted. With `full_reservation` it follows the
plain rules of the sizing specification 11.3 instead: decodes, then unfinished prompts, then
admission of requests whose whole length fits.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numba as nb
import numpy as np

from sieve.sim._kernels import CAN_CACHE

# Positions in the settings array.
MAX_NUM_SEQS: Final = 0
TOKEN_BUDGET: Final = 1
NUM_BLOCKS: Final = 2
BLOCK_SIZE: Final = 3
FULL_RESERVATION: Final = 4
RESERVE_FULL_ISL: Final = 5
CHUNKED: Final = 6
PIPELINE_STAGES: Final = 7
IN_FLIGHT: Final = 8
CLOSED_LOOP_USERS: Final = 9
ROOFLINE: Final = 10
NUM_SETTINGS: Final = 11

# Positions in the scalars array of the step table, seconds.
PREFILL_FLOOR: Final = 0
HOST_DECODE: Final = 1
HOST_MIXED: Final = 2
STAGE_TRANSFER: Final = 3
KV_READ: Final = 4
KV_WRITE: Final = 5
LINEAR: Final = 6
PAIR: Final = 7
NUM_SCALARS: Final = 8

# Positions in the counters array.
STEPS: Final = 0
REQUEST_STEPS: Final = 1
PEAK_BLOCKS: Final = 2
PEAK_BATCH: Final = 3
PEAK_TOKENS: Final = 4
STATUS: Final = 5
SCHEDULED_TOKENS: Final = 6
NUM_COUNTERS: Final = 7

STATUS_DONE: Final = 0
STATUS_STALLED: Final = 1

# Gaps between tokens are counted in log-spaced bins of 0.5 % from 1 us on.
GAP_BINS: Final = 4608
GAP_FIRST_S: Final = 1e-6
GAP_RATIO: Final = 1.005

_LOG_FIRST: Final = math.log(GAP_FIRST_S)
_LOG_RATIO: Final = math.log(GAP_RATIO)

jit: Any = nb.njit(cache=CAN_CACHE, nogil=True, error_model="numpy")


@jit
def _segment(grid, x):  # type: ignore[no-untyped-def]
    """Return the index of the grid segment that holds, or is nearest to, x."""
    low, high = 0, len(grid) - 1
    while high - low > 1:
        middle = (low + high) // 2
        if grid[middle] <= x:
            low = middle
        else:
            high = middle
    return low


@jit
def _decode_attention_s(batch_grid, context_grid, table, batch, context):  # type: ignore[no-untyped-def]
    """Return decode attention by bilinear interpolation, as `StepTable.decode_attention`."""
    i = _segment(batch_grid, batch)
    j = _segment(context_grid, context)
    u = v = 0.0
    i2, j2 = i, j
    if len(batch_grid) > 1:
        i2 = i + 1
        u = (batch - batch_grid[i]) / (batch_grid[i2] - batch_grid[i])
    if len(context_grid) > 1:
        j2 = j + 1
        v = max((context - context_grid[j]) / (context_grid[j2] - context_grid[j]), 0.0)
    low = table[i, j] * (1 - v) + table[i, j2] * v
    high = table[i2, j] * (1 - v) + table[i2, j2] * v
    return low * (1 - u) + high * u


@jit
def _prefill_attention_s(length_grid, table, length):  # type: ignore[no-untyped-def]
    """Return the attention over one prompt of `length` tokens, as `StepTable.prefill_attention`."""
    if len(length_grid) < 2:
        return table[0]
    i = _segment(length_grid, length)
    u = (length - length_grid[i]) / (length_grid[i + 1] - length_grid[i])
    return table[i] * (1 - u) + table[i + 1] * u


@jit
def _blocks(tokens, block_size):  # type: ignore[no-untyped-def]
    return (tokens + block_size - 1) // block_size


@jit
def replay(  # type: ignore[no-untyped-def]
    arrival_ns,
    prompt,
    output,
    settings,
    token_s,
    decode_token_s,
    head_s,
    decode_batch,
    decode_context,
    decode_attention_s,
    prefill_length,
    prefill_attention_s,
    sweep_s,
    scalars,
):
    """Replay one replica over its requests.

    Args:
        arrival_ns: (n,) int64, rising; ignored for a closed loop.
        prompt: (n,) int64 prompt tokens.
        output: (n,) int64 answer tokens.
        settings: (NUM_SETTINGS,) int64.
        token_s: float64 array of `StepTable`, as the next seven.
        decode_token_s: as `token_s`, decode-only steps.
        head_s: by yielding sequences.
        decode_batch: grid.
        decode_context: grid.
        decode_attention_s: 2-D over the two grids.
        prefill_length: grid.
        prefill_attention_s: over that grid.
        sweep_s: float64 array of `RooflineCost`, length 1 when it is not used.
        scalars: (NUM_SCALARS,) float64.

    Returns:
        sent_ns, scheduled_ns, first_ns, finish_ns (n,) int64, -1 where it never happened;
        preemptions (n,) int64; counters (NUM_COUNTERS,) int64; component_s (5,) float64;
        gaps (GAP_BINS,) int64; samples (k, 4) int64: end of step, running, waiting, blocks in use.
    """
    n = len(arrival_ns)
    max_num_seqs = settings[MAX_NUM_SEQS]
    token_budget = settings[TOKEN_BUDGET]
    num_blocks = settings[NUM_BLOCKS]
    block_size = settings[BLOCK_SIZE]
    full_reservation = settings[FULL_RESERVATION] != 0
    reserve_full_isl = settings[RESERVE_FULL_ISL] != 0
    chunked = settings[CHUNKED] != 0
    stages = settings[PIPELINE_STAGES]
    depth = settings[IN_FLIGHT]
    users = settings[CLOSED_LOOP_USERS]
    roofline = settings[ROOFLINE] != 0

    sent_ns = np.full(n, -1, np.int64)
    scheduled_ns = np.full(n, -1, np.int64)
    first_ns = np.full(n, -1, np.int64)
    finish_ns = np.full(n, -1, np.int64)
    preemptions = np.zeros(n, np.int64)
    counters = np.zeros(NUM_COUNTERS, np.int64)
    component_s = np.zeros(5, np.float64)
    gaps = np.zeros(GAP_BINS, np.int64)

    computed = np.zeros(n, np.int64)
    known = prompt.copy()
    generated = np.zeros(n, np.int64)
    last_token_ns = np.zeros(n, np.int64)
    holds = np.zeros(n, np.int64)  # blocks held
    outstanding = np.zeros(n, np.int64)  # tokens to come from batches in flight
    done = np.zeros(n, np.bool_)
    is_running = np.zeros(n, np.bool_)

    running = np.zeros(max_num_seqs, np.int64)
    num_running = 0
    ring = 1
    while ring < n + 2:
        ring *= 2
    waiting = np.zeros(ring, np.int64)
    head = 0
    num_waiting = 0
    free = num_blocks

    batch_request = np.zeros((depth, max_num_seqs), np.int64)
    batch_yields = np.zeros((depth, max_num_seqs), np.bool_)
    batch_count = np.zeros(depth, np.int64)
    batch_end = np.zeros(depth, np.int64)
    oldest = 0
    in_flight = 0
    stage_free = np.zeros(stages, np.int64)
    want_of = np.zeros(max_num_seqs, np.int64)  # this step's tokens by running position

    max_samples = 1024
    samples = np.zeros((max_samples, 4), np.int64)
    num_samples = 0
    sample_every = 1

    next_arrival = 0
    if users > 0:
        while next_arrival < n and next_arrival < users:
            sent_ns[next_arrival] = 0
            waiting[(head + num_waiting) & (ring - 1)] = next_arrival
            num_waiting += 1
            next_arrival += 1

    now = np.int64(0)
    last_gap = np.int64(-1)
    last_bin = 0
    while True:
        if users == 0:
            while next_arrival < n and arrival_ns[next_arrival] <= now:
                sent_ns[next_arrival] = arrival_ns[next_arrival]
                waiting[(head + num_waiting) & (ring - 1)] = next_arrival
                num_waiting += 1
                next_arrival += 1
        if num_running == 0 and num_waiting == 0 and in_flight == 0:
            if next_arrival >= n:
                break
            now = arrival_ns[next_arrival]
            continue

        # ---- Schedule one step.
        budget = token_budget
        preempted = False
        count = 0  # requests of this step
        decodes = 0
        prefill_tokens = 0
        context_sum = 0
        read_tokens = 0
        pairs = 0.0
        yields = 0
        prefill_s = 0.0
        slot = (oldest + in_flight) % depth
        if in_flight < depth:
            for i in range(num_running):
                want_of[i] = 0
            # The plain rules serve decodes before unfinished prompts; vLLM takes list order.
            passes = 2 if full_reservation else 1
            for turn in range(passes):
                i = 0
                while i < num_running and budget > 0:
                    r = running[i]
                    want = known[r] - computed[r]
                    is_decode = generated[r] > 0 and want == 1
                    if passes == 2 and is_decode != (turn == 0):
                        i += 1
                        continue
                    want = min(want, budget)
                    if want <= 0:
                        i += 1
                        continue
                    if not full_reservation:
                        needed = _blocks(computed[r] + want, block_size) - holds[r]
                        while needed > free:
                            # Preempt the last of the list, possibly this request itself.
                            num_running -= 1
                            victim = running[num_running]
                            preempted = True
                            budget += want_of[num_running]
                            want_of[num_running] = 0
                            free += holds[victim]
                            holds[victim] = 0
                            computed[victim] = 0
                            is_running[victim] = False
                            preemptions[victim] += 1
                            head = (head - 1) & (ring - 1)
                            waiting[head] = victim
                            num_waiting += 1
                            if victim == r:
                                break
                        if not is_running[r]:
                            break
                        if needed > 0:
                            free -= needed
                            holds[r] += needed
                    want_of[i] = want
                    budget -= want
                    i += 1

            if not preempted:
                while num_waiting > 0 and budget > 0 and num_running < max_num_seqs:
                    r = waiting[head]
                    if done[r]:  # ended by a token that was still in flight
                        head = (head + 1) & (ring - 1)
                        num_waiting -= 1
                        continue
                    if outstanding[r] > 0:
                        break
                    want = known[r]
                    if want > budget:
                        if not chunked:
                            break
                        want = budget
                    if full_reservation:
                        needed = _blocks(prompt[r] + output[r], block_size)
                        if needed > free:
                            break
                    else:
                        needed = _blocks(want, block_size)
                        if reserve_full_isl and _blocks(known[r], block_size) > free:
                            break
                        if needed > free:
                            break
                    head = (head + 1) & (ring - 1)
                    num_waiting -= 1
                    free -= needed
                    holds[r] = needed
                    running[num_running] = r
                    want_of[num_running] = want
                    is_running[r] = True
                    num_running += 1
                    budget -= want

            for i in range(num_running):
                want = want_of[i]
                if want == 0:
                    continue
                r = running[i]
                past = computed[r]
                computed[r] = past + want
                if scheduled_ns[r] < 0:
                    scheduled_ns[r] = now
                if generated[r] > 0 and want == 1:
                    decodes += 1
                    context_sum += known[r]
                    read_tokens += known[r]
                    pairs += known[r]
                elif roofline:
                    prefill_tokens += want
                    read_tokens += past
                    pairs += want * (past + (want + 1) / 2)
                else:
                    prefill_tokens += want
                    prefill_s += _prefill_attention_s(
                        prefill_length, prefill_attention_s, float(past + want)
                    ) - _prefill_attention_s(prefill_length, prefill_attention_s, float(past))
                gives = computed[r] >= known[r]
                if gives:
                    yields += 1
                    outstanding[r] += 1
                batch_request[slot, count] = r
                batch_yields[slot, count] = gives
                count += 1

        if count > 0:
            if prefill_tokens > 0:
                tokens_part = token_s[prefill_tokens + decodes]
                host_part = scalars[HOST_MIXED]
                prefill_s += scalars[PREFILL_FLOOR]
            else:
                tokens_part = decode_token_s[decodes]
                host_part = scalars[HOST_DECODE]
            head_part = head_s[yields]
            decode_part = 0.0
            if roofline:
                tokens = prefill_tokens + decodes
                memory = (
                    sweep_s[tokens] + read_tokens * scalars[KV_READ] + tokens * scalars[KV_WRITE]
                )
                tokens_part += max(memory, tokens * scalars[LINEAR] + pairs * scalars[PAIR])
            elif decodes > 0:
                decode_part = _decode_attention_s(
                    decode_batch,
                    decode_context,
                    decode_attention_s,
                    float(decodes),
                    context_sum / decodes,
                )
            component_s[0] += tokens_part
            component_s[1] += head_part
            component_s[2] += decode_part
            component_s[3] += prefill_s
            component_s[4] += host_part
            total_s = tokens_part + head_part + decode_part + prefill_s + host_part
            if stages == 1:
                end = max(now, stage_free[0]) + np.int64(np.round(total_s * 1e9))
                stage_free[0] = end
            else:
                stage_ns = np.int64(np.round(total_s / stages * 1e9))
                hop_ns = np.int64(np.round(scalars[STAGE_TRANSFER] * 1e9))
                end = now
                for s in range(stages):
                    end = max(end, stage_free[s]) + stage_ns
                    stage_free[s] = end
                    if s + 1 < stages:
                        end += hop_ns
            batch_count[slot] = count
            batch_end[slot] = end
            in_flight += 1
            counters[STEPS] += 1
            counters[REQUEST_STEPS] += count
            counters[SCHEDULED_TOKENS] += token_budget - budget
            counters[PEAK_BATCH] = max(counters[PEAK_BATCH], count)
            counters[PEAK_TOKENS] = max(counters[PEAK_TOKENS], token_budget - budget)
            counters[PEAK_BLOCKS] = max(counters[PEAK_BLOCKS], num_blocks - free)
            if in_flight < depth:
                continue

        if in_flight == 0:
            # Nothing runs and the head cannot be admitted: it never will be.
            if next_arrival >= n or users > 0:
                if not preempted:
                    counters[STATUS] = STATUS_STALLED
                    break
                continue
            if preempted:
                continue
            if num_running == 0:
                counters[STATUS] = STATUS_STALLED
                break
            now = arrival_ns[next_arrival]
            continue

        # ---- Read the oldest result.
        now = max(now, batch_end[oldest])
        ended = 0
        for i in range(batch_count[oldest]):
            if not batch_yields[oldest, i]:
                continue
            r = batch_request[oldest, i]
            outstanding[r] -= 1
            generated[r] += 1
            known[r] += 1
            if generated[r] == 1:
                first_ns[r] = now
            else:
                gap = now - last_token_ns[r]
                if gap != last_gap:
                    last_gap = gap
                    seconds = gap * 1e-9
                    if seconds <= GAP_FIRST_S:
                        last_bin = 0
                    else:
                        last_bin = int((math.log(seconds) - _LOG_FIRST) / _LOG_RATIO)
                    last_bin = min(last_bin, GAP_BINS - 1)
                gaps[last_bin] += 1
            last_token_ns[r] = now
            if generated[r] >= output[r]:
                finish_ns[r] = now
                done[r] = True
                free += holds[r]
                holds[r] = 0
                ended += 1
                if users > 0 and next_arrival < n:
                    sent_ns[next_arrival] = now
                    waiting[(head + num_waiting) & (ring - 1)] = next_arrival
                    num_waiting += 1
                    next_arrival += 1
        if ended > 0:
            kept = 0
            for i in range(num_running):
                if not done[running[i]]:
                    running[kept] = running[i]
                    kept += 1
            num_running = kept
        oldest = (oldest + 1) % depth
        in_flight -= 1

        if counters[STEPS] % sample_every == 0:
            if num_samples == max_samples:
                for i in range(max_samples // 2):
                    samples[i] = samples[2 * i]
                num_samples = max_samples // 2
                sample_every *= 2
            samples[num_samples, 0] = now
            samples[num_samples, 1] = num_running
            samples[num_samples, 2] = num_waiting
            samples[num_samples, 3] = num_blocks - free
            num_samples += 1

    return (
        sent_ns,
        scheduled_ns,
        first_ns,
        finish_ns,
        preemptions,
        counters,
        component_s,
        gaps,
        samples[:num_samples].copy(),
    )
