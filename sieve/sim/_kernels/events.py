"""One engine's scheduler without a loop over its requests, compiled.

The same decisions as `engine.replay`, for first come, first served with one full-attention group,
no drafts, no thresholds and no pipeline, synchronous or one step ahead. Then every decoding request
gets one token in every call or is preempted, at most one prompt is unfinished and it stands last,
and requests begin to decode in the order of the running list. So the decoding requests are kept as
three numbers (how many, their computed tokens, how many need a block at which call), their ends in
a ring over call numbers, and a call costs the same for ten requests as for a thousand. Runs of
calls in which nothing begins, ends or is short of a block are advanced in a loop of their own.

Prefix cache: keys that only one request has cannot be found by others. The free blocks of one
request with such keys are one node of the free list, with a length. Keys of several requests have
nodes of their own. Free blocks without a key stand in front of all others and are a number.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from sieve.sim._kernels import inlined, jit
from sieve.sim._kernels.clock import (
    HOST_DECODE,
    HOST_MIXED,
    KV_READ,
    KV_WRITE,
    LINEAR,
    PAIR,
    PREFILL_FLOOR,
    gap_bin,
    roofline_s,
    whole_ns,
)
from sieve.sim._kernels.layout import (
    ARRIVAL,
    ASYNC,
    BLOCK_SIZE,
    CACHED,
    CACHING,
    CHUNKED,
    CLOCK,
    CLOCK_LINEAR,
    FILLED_STEPS,
    FINISH_NS,
    FIRST_TOKEN_NS,
    FULL_RESERVATION,
    MACRO,
    MAX_MODEL_LEN,
    MAX_RUNNING,
    MAX_WAIT_NS,
    NUM_BLOCKS,
    NUM_SAMPLE_COLUMNS,
    PATIENCE,
    PEAK_BATCH,
    PEAK_BLOCKS,
    PEAK_RUNNING,
    PEAK_TOKENS,
    PREEMPTED,
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
    STATUS_LIVE_LOCK,
    STATUS_OVERLOADED,
    STATUS_STALLED,
    STEP_BASE_NS,
    STEP_CONTEXT_NS,
    STEP_TOKEN_NS,
    STEPS,
    TIGHT_STEPS,
    TOKEN_BUDGET,
    TOKENS,
    USERS,
    WATERMARK_BLOCKS,
)
from sieve.sim._kernels.queues import expect, pop_expected

# Columns of `req`.
OFFSET: Final = 0  # computed tokens of a decoding request = number of the call - OFFSET
KNOWN: Final = 1
COMPUTED: Final = 2  # of the unfinished prompt
TOTAL: Final = 3
PHASE: Final = 4
POSITION: Final = 5  # in the running list
JOINED: Final = 6  # call that finished its prompt
SETTLED: Final = 7  # leading shared positions that have a node
END_NEXT: Final = 8  # ring of ends
END_PREV: Final = 9
EDGE_NEXT: Final = 10  # requests that need a block at the same calls
EDGE_PREV: Final = 11
LAST_NS: Final = 12
NUM_COLUMNS: Final = 13

NEW: Final = 0
MID_PREFILL: Final = 1
DECODING: Final = 2
LAST_SCHEDULED: Final = 3  # its last token is scheduled, its result is not read
PREEMPTED_: Final = 4
FINISHED: Final = 5

# Columns of `node`; node 0 is the sentinel, 1 .. n are requests, then blocks with shared keys.
NEXT: Final = 0
PREV: Final = 1
REFS: Final = 2
LENGTH: Final = 2  # of a request's node
KEY: Final = 3
NEWER: Final = 4
OLDER: Final = 5
WATCH: Final = 6

# Cache scalars.
FREE: Final = 0
BARE: Final = 1  # free blocks without a key
TOP: Final = 2  # of the stack of unused nodes
SERIAL: Final = 3  # number of the last lookup
STALE: Final = 4  # whether that lookup must be repeated
MISSING: Final = 5  # first key that it did not find
LOOKED_UP: Final = 6  # its request
NUM_CACHE: Final = 7


# Scalars of a replica between two visits.
V_NOW: Final = 0
V_CALL: Final = 1
V_SLOT: Final = 2
V_DEVICE_FREE: Final = 3
V_LAST_END: Final = 4
V_OLDEST: Final = 5
V_IN_FLIGHT: Final = 6
V_BUSY: Final = 7
V_UNFINISHED: Final = 8
V_UNTOLD: Final = 9
V_NEAR: Final = 10
V_SEGMENT: Final = 11
V_LAST_PROGRESS: Final = 12
V_READ_CALL: Final = 13
V_BLOCKED: Final = 14
V_HIT: Final = 15
V_IDLE: Final = 16
V_RUN_END: Final = 17
V_NUM_RUNNING: Final = 18
V_FIRST: Final = 19
V_LAST: Final = 20
V_NUM_WAITING: Final = 21
V_STATIC: Final = 22
V_NUM_DUE: Final = 23
V_NEXT_UNSENT: Final = 24
V_DECODES: Final = 25
V_CONTEXT: Final = 26
V_MID: Final = 27
V_NUM_SAMPLES: Final = 28
V_SAMPLE_EVERY: Final = 29
V_STUCK: Final = 30
NUM_VALUES: Final = 31

NEVER: Final = 2**62
ROOM: Final = 4  # of the running list, in multiples of the most that run


@inlined
def _unlink(node, x):
    before = node[x, PREV]
    after = node[x, NEXT]
    node[before, NEXT] = after
    node[after, PREV] = before


@inlined
def _append(node, x):
    """Put node x at the back of the free list."""
    last = node[0, PREV]
    node[x, PREV] = last
    node[x, NEXT] = 0
    node[last, NEXT] = x
    node[0, PREV] = x


@inlined
def _take(cache, node, reg, stack, n, count):
    """Take `count` blocks from the front of the free list; the caller has checked the room."""
    cache[FREE] -= count
    bare = min(cache[BARE], count)
    cache[BARE] -= bare
    count -= bare
    while count > 0:
        x = node[0, NEXT]
        if x <= n:
            taken = min(node[x, LENGTH], count)
            node[x, LENGTH] -= taken
            count -= taken
            if node[x, LENGTH] == 0:
                _unlink(node, x)
            if x - 1 == cache[LOOKED_UP]:
                cache[STALE] = 1
            continue
        _unlink(node, x)
        key = node[x, KEY]
        newer = node[x, NEWER]
        if newer == x:
            reg[key] = 0
        else:
            older = node[x, OLDER]
            node[older, NEWER] = newer
            node[newer, OLDER] = older
            if reg[key] == x:
                reg[key] = newer
        if node[x, WATCH] == cache[SERIAL]:
            cache[STALE] = 1
        stack[cache[TOP]] = x
        cache[TOP] += 1
        count -= 1


@inlined
def _settle(cache, req, node, reg, stack, keys, table, start, r, goal):
    """Make the shared positions of request r findable up to position `goal`."""
    for j in range(req[r, SETTLED], goal):
        cache[TOP] -= 1
        x = stack[cache[TOP]]
        key = keys[start + j]
        table[start + j] = x
        node[x, REFS] = 1
        node[x, KEY] = key
        node[x, WATCH] = 0
        oldest = reg[key]
        if oldest == 0:
            reg[key] = x
            node[x, NEWER] = x
            node[x, OLDER] = x
            if key == cache[MISSING]:
                cache[STALE] = 1
        else:
            newest = node[oldest, OLDER]
            node[newest, NEWER] = x
            node[x, OLDER] = newest
            node[x, NEWER] = oldest
            node[oldest, OLDER] = x
    req[r, SETTLED] = max(req[r, SETTLED], goal)


@inlined
def _give_back(cache, req, node, reg, stack, keys, table, start, shared, r, held, registered):
    """Release the `held` blocks of request r, of which the first `registered` have keys."""
    cache[FREE] += held - registered
    cache[BARE] += held - registered
    common = min(shared, registered)
    _settle(cache, req, node, reg, stack, keys, table, start, r, common)
    if registered > common:
        node[r + 1, LENGTH] = registered - common
        _append(node, r + 1)
        cache[FREE] += registered - common
    for j in range(common - 1, -1, -1):
        x = table[start + j]
        node[x, REFS] -= 1
        if node[x, REFS] == 0:
            _append(node, x)
            cache[FREE] += 1
            if node[x, WATCH] == cache[SERIAL]:
                cache[STALE] = 1
    req[r, SETTLED] = 0


@inlined
def _look_up(cache, node, reg, keys, table, start, shared, r, limit):
    """Return the shared blocks of request r that are found, and how many of them nobody holds."""
    cache[SERIAL] += 1
    cache[STALE] = 0
    cache[MISSING] = -1
    cache[LOOKED_UP] = r
    idle = 0
    last = min(shared, limit)
    for j in range(last):
        key = keys[start + j]
        x = reg[key]
        if x == 0:
            cache[MISSING] = key
            return j, idle
        table[start + j] = x
        node[x, WATCH] = cache[SERIAL]
        if node[x, REFS] == 0:
            idle += 1
    return last, idle


@inlined
def _hold(cache, req, node, table, start, r, hit):
    """Hold the shared blocks that the last lookup of request r found."""
    for j in range(hit):
        x = table[start + j]
        if node[x, REFS] == 0:
            _unlink(node, x)
            cache[FREE] -= 1
        node[x, REFS] += 1
    req[r, SETTLED] = hit


@inlined
def _chain(req, ends, slot, r, next_, prev):
    """Append request r to the list of `slot`; `ends` has first and last of each, -1: empty."""
    last = ends[slot, 1]
    req[r, prev] = last
    req[r, next_] = -1
    if last < 0:
        ends[slot, 0] = r
    else:
        req[last, next_] = r
    ends[slot, 1] = r


@inlined
def _unchain(req, ends, slot, r, next_, prev):
    before = req[r, prev]
    after = req[r, next_]
    if before < 0:
        ends[slot, 0] = after
    else:
        req[before, next_] = after
    if after < 0:
        ends[slot, 1] = before
    else:
        req[after, prev] = before


@inlined
def _sample(samples, num_samples, every, now, running, waiting, used):
    """Add a row to the thinned series; return how many there are and the steps between them."""
    if num_samples == SAMPLES:
        for j in range(SAMPLES // 2):
            for k in range(NUM_SAMPLE_COLUMNS):
                samples[j, k] = samples[2 * j, k]
        num_samples = SAMPLES // 2
        every *= 2
    samples[num_samples, 0] = now
    samples[num_samples, 1] = running
    samples[num_samples, 2] = waiting
    samples[num_samples, 3] = used
    return num_samples + 1, every


@jit
def advance(  # noqa: D417 - the rest: `sieve.sim.events_state`
    k, until, settings, arrival, prompt, order, order_count, child_start, child, delay,
    key_start, shared, keys, clock, values, results, all_counters, all_component_s, all_gaps,
    all_samples, req, all_ends, all_edges, all_edge_count, all_cache, all_node, all_stack, all_reg,
    table, all_running, all_queue, all_due_at, all_due, all_batch,
):  # fmt: skip
    """Replay replica k until a call would be made at `until` or later; most calls in constant time.

    Args:
        k: replica; the first index of every array whose name begins with `all`, and of `order`,
            `order_count` and `values`.
        until: ns; NEVER: to the end.
        settings: (NUM_SETTINGS,) int64; timed, first come, first served, one full group.
        arrival: (n,) int64 ns.
        prompt: (n,) int64 tokens.
        order: (replicas, n) int64, the requests that come to each replica, by arrival.
        order_count: (replicas,) int64 how many are known so far.
        child_start: (n + 1,) int64, as `engine.replay`.
        child: int64.
        delay: (n,) int64.
        key_start: (n,) int64 offset of a request's shared block keys.
        shared: (n,) int64 how many leading blocks have keys that another request has too.
        keys: int32 keys of these blocks.
        clock: `clock.Clock`.
        values: (replicas, NUM_VALUES) int64, the state between visits; the arrays after it are what
            `sieve.sim.events_state` makes.
    """
    n = len(arrival)
    size = settings[BLOCK_SIZE]
    limit = settings[MAX_RUNNING]
    token_budget = settings[TOKEN_BUDGET]
    max_model_len = settings[MAX_MODEL_LEN]
    chunked = settings[CHUNKED] != 0
    caching = settings[CACHING] != 0
    ahead = settings[ASYNC] != 0
    depth = 2 if ahead else 1
    linear = settings[CLOCK] == CLOCK_LINEAR
    roofline = settings[ROOFLINE] != 0
    whole = settings[FULL_RESERVATION] != 0
    users = settings[USERS]
    max_wait = settings[MAX_WAIT_NS]
    macro = settings[MACRO] != 0
    usable = settings[NUM_BLOCKS] - 1

    value = values[k]
    counters = all_counters[k]
    component_s = all_component_s[k]
    gaps = all_gaps[k]
    samples = all_samples[k]
    ends = all_ends[k]
    edges = all_edges[k]
    edge_count = all_edge_count[k]
    cache = all_cache[k]
    node = all_node[k]
    stack = all_stack[k]
    reg = all_reg[k]
    running = all_running[k]
    queue = all_queue[k]
    due_at = all_due_at[k]
    due = all_due[k]
    batch = all_batch[k]
    room = ROOM * limit + 16
    joining = running[room:]
    ring = len(ends)
    queue_size = len(queue)
    num_static = order_count[k]

    now = value[V_NOW]
    call = value[V_CALL]
    slot = value[V_SLOT]
    device_free = value[V_DEVICE_FREE]
    last_end = value[V_LAST_END]
    oldest = value[V_OLDEST]
    in_flight = value[V_IN_FLIGHT]
    busy = value[V_BUSY]
    unfinished = value[V_UNFINISHED]
    untold = value[V_UNTOLD]
    near = value[V_NEAR]
    segment = value[V_SEGMENT]
    last_progress = value[V_LAST_PROGRESS]
    read_call = value[V_READ_CALL]
    blocked = value[V_BLOCKED] != 0
    hit = value[V_HIT]
    idle = value[V_IDLE]
    run_end = value[V_RUN_END]
    num_running = value[V_NUM_RUNNING]
    first = value[V_FIRST]
    last = value[V_LAST]
    num_waiting = value[V_NUM_WAITING]
    static = value[V_STATIC]
    num_due = value[V_NUM_DUE]
    next_unsent = value[V_NEXT_UNSENT]
    decodes = value[V_DECODES]
    context = value[V_CONTEXT]
    mid = value[V_MID]
    num_samples = value[V_NUM_SAMPLES]
    sample_every = value[V_SAMPLE_EVERY]
    stuck = value[V_STUCK] != 0
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
    kv_read = clock.scalars[KV_READ]
    kv_write = clock.scalars[KV_WRITE]
    linear_s = clock.scalars[LINEAR]
    pair_s = clock.scalars[PAIR]
    next_due = NEVER
    if num_due > 0:
        next_due = due_at[0]
    if static < num_static:
        next_due = min(next_due, arrival[order[k, static]])

    while now < until:
        if stuck:
            # Only a new request can change anything.
            if next_due >= until:
                break
            now = max(now, next_due)
            stuck = False
        added = 0
        while next_due <= now:
            at = next_due
            r = -1
            if static < num_static and arrival[order[k, static]] == at:
                r = order[k, static]
            if num_due > 0 and due_at[0] == at and (r < 0 or due[0] < r):
                r = due[0]
                pop_expected(due_at, due, num_due)
                num_due -= 1
            else:
                static += 1
            next_due = due_at[0] if num_due > 0 else NEVER
            if static < num_static:
                next_due = min(next_due, arrival[order[k, static]])
            results[r, ARRIVAL] = at
            if prompt[r] < 1 or prompt[r] >= max_model_len:
                results[r, REJECTED] = 1
                req[r, PHASE] = FINISHED
                continue
            queue[last] = r
            last = (last + 1) & (queue_size - 1)
            num_waiting += 1
            unfinished += 1
            added += 1

        to_tell = unfinished > 0 or (depth > 1 and untold > 0)
        if not to_tell and in_flight == 0:
            if next_due >= until:
                break
            now = max(now, next_due)
            continue

        if num_waiting > 0:
            while req[queue[first], PHASE] == FINISHED:
                first = (first + 1) & (queue_size - 1)
            if max_wait > 0:
                r = queue[first]
                if req[r, PHASE] == NEW and now - results[r, ARRIVAL] > max_wait:
                    counters[STATUS] = STATUS_OVERLOADED
                    break

        # ---- Calls in which nothing begins, ends or runs short.
        if (
            macro
            and decodes > 0
            and mid < 0
            and in_flight == depth - 1
            and (num_waiting == 0 or num_running >= limit or blocked or decodes >= token_budget)
            and (not ahead or ends[call & (ring - 1), 0] < 0)
            and num_running == decodes
        ):
            stop_at = min(next_due, until)
            if max_wait > 0 and num_waiting > 0 and req[queue[first], PHASE] == NEW:
                stop_at = min(stop_at, results[queue[first], ARRIVAL] + max_wait + 1)
            tokens_part = head_part = 0.0
            if not linear:
                tokens_part = decode_token_s[decodes]
                head_part = head_s[decodes]
            share = 1.0 / decodes
            tight = 0
            steps = counters[STEPS]
            sum_tokens = component_s[0]
            sum_head = component_s[1]
            sum_decode = component_s[2]
            sum_host = component_s[4]
            end = last_end
            free_at = device_free
            while now < stop_at:
                step_call = call + 1
                next_slot = slot + 1
                if next_slot == size:
                    next_slot = 0
                need = edge_count[next_slot]
                if need > cache[FREE] or ends[step_call & (ring - 1), 0] >= 0:
                    break
                slot = next_slot
                if need > 0:
                    if caching:
                        _take(cache, node, reg, stack, n, need)
                    else:
                        cache[FREE] -= need
                call = step_call
                context += decodes
                start = max(now, free_at)
                if linear:
                    free_at = (
                        start
                        + settings[STEP_BASE_NS]
                        + settings[STEP_TOKEN_NS] * decodes
                        + settings[STEP_CONTEXT_NS] * context
                    )
                else:
                    decode_part = 0.0
                    step_part = tokens_part
                    if roofline:
                        step_part += roofline_s(
                            sweep_s[decodes], decodes, context, context, kv_read, kv_write,
                            linear_s, pair_s,
                        )  # fmt: skip
                    else:
                        x = max(context * share, grid_first)
                        while segment < grid_top and grid[segment + 1] <= x:
                            segment += 1
                        while segment > 0 and grid[segment] > x:
                            segment -= 1
                        decode_part = (
                            decode_s[decodes, segment]
                            + (x - grid[segment]) * decode_slope[decodes, segment]
                        )
                    sum_tokens += step_part
                    sum_head += head_part
                    sum_decode += decode_part
                    sum_host += host_decode
                    seconds = step_part + head_part + decode_part + 0.0 + host_decode
                    free_at = start + whole_ns(seconds)
                gap = free_at - end
                if not bins[near] <= gap < bins[near + 1]:
                    near = gap_bin(bins, gap)
                gaps[near] += decodes
                now = end if ahead else free_at
                end = free_at
                tight += 1
                steps += 1
                if steps % sample_every == 0:
                    num_samples, sample_every = _sample(
                        samples, num_samples, sample_every, now, num_running, num_waiting,
                        usable - cache[FREE],
                    )  # fmt: skip
            component_s[0] = sum_tokens
            component_s[1] = sum_head
            component_s[2] = sum_decode
            component_s[4] = sum_host
            device_free = free_at
            if tight > 0:
                last_end = end
                read_call = call - 1 if ahead else call
                untold = 0
                counters[STEPS] = steps
                counters[FILLED_STEPS] += tight
                counters[TIGHT_STEPS] += tight
                counters[REQUEST_STEPS] += tight * decodes
                counters[TOKENS] += tight * decodes
                counters[PEAK_BLOCKS] = max(counters[PEAK_BLOCKS], usable - cache[FREE])
                counters[PEAK_BATCH] = max(counters[PEAK_BATCH], decodes)
                counters[PEAK_TOKENS] = max(counters[PEAK_TOKENS], decodes)
                last_progress = call
                if ahead:
                    batch[0, oldest] = call
                    batch[1, oldest] = end
                    batch[2, oldest] = 1
                continue

        called = to_tell
        count = 0
        victims = 0
        if called:
            untold = 0
            call += 1
            blocked = False
            num_joining = 0

            # ---- Decoding requests.
            slot += 1
            if slot == size:
                slot = 0
            need = edge_count[slot]
            if need <= cache[FREE]:
                if caching:
                    _take(cache, node, reg, stack, n, need)
                else:
                    cache[FREE] -= need
                r = -1
            else:
                r = edges[slot, 0]
            # One request after another that may be short of a block, the unfinished prompt last.
            budget = token_budget
            want = 0
            while r >= 0 or mid >= 0:
                need = 1
                if r < 0:
                    r = mid
                    want = min(req[r, KNOWN] - req[r, COMPUTED], token_budget - decodes)
                    if whole:
                        need = 0
                    else:
                        held = (req[r, COMPUTED] + size - 1) // size
                        need = (req[r, COMPUTED] + want + size - 1) // size - held
                lost = False
                while need > cache[FREE]:
                    # Preempt the last of the running list, possibly this request itself.
                    run_end -= 1
                    while req[running[run_end], POSITION] != run_end:
                        run_end -= 1
                    v = running[run_end]
                    num_running -= 1
                    victims += 1
                    phase = req[v, PHASE]
                    if phase == MID_PREFILL:
                        computed = req[v, COMPUTED]
                        mid = -1
                    elif phase == DECODING:
                        computed = call - 1 - req[v, OFFSET]
                        req[v, KNOWN] = computed + 1
                        req[v, LAST_NS] = last_end
                        decodes -= 1
                        context -= computed
                        final = req[v, OFFSET] + req[v, TOTAL] - 1
                        _unchain(req, ends, final & (ring - 1), v, END_NEXT, END_PREV)
                        edge = (req[v, OFFSET] + 1) % size
                        _unchain(req, edges, edge, v, EDGE_NEXT, EDGE_PREV)
                        edge_count[edge] -= 1
                    else:
                        computed = req[v, TOTAL] - 1
                    held = (computed + size - 1) // size
                    if caching:
                        registered = computed
                        if ahead and phase != MID_PREFILL and req[v, JOINED] != call - 1:
                            registered -= 1
                        _give_back(
                            cache, req, node, reg, stack, keys, table, key_start[v], shared[v], v,
                            held, registered // size,
                        )  # fmt: skip
                    else:
                        cache[FREE] += held
                    req[v, PHASE] = PREEMPTED_
                    req[v, POSITION] = -1
                    results[v, PREEMPTIONS] += 1
                    first = (first - 1) & (queue_size - 1)
                    queue[first] = v
                    num_waiting += 1
                    if v == r:
                        lost = True
                        break
                if lost:
                    break
                if caching:
                    _take(cache, node, reg, stack, n, need)
                else:
                    cache[FREE] -= need
                if r == mid:
                    break
                r = req[r, EDGE_NEXT]
            budget -= decodes
            context += decodes
            count = decodes
            prefills = 0
            prefill_tokens = np.int64(0)
            prefill_s = 0.0
            prefill_past = np.int64(0)
            prefill_pairs = 0.0
            all_context = context
            yields = decodes

            # ---- The unfinished prompt, then admissions.
            r = mid
            num_new = 0
            new_from = run_end
            while True:
                if r < 0:
                    # ---- Admission of the first that waits.
                    if victims > 0 or num_waiting == 0 or budget <= 0 or num_running >= limit:
                        break
                    while req[queue[first], PHASE] == FINISHED:
                        first = (first + 1) & (queue_size - 1)
                    r = queue[first]
                    known = req[r, KNOWN]
                    own = 0
                    if caching:
                        most = (known - 1) // size
                        if cache[STALE] != 0 or cache[LOOKED_UP] != r:
                            hit, idle = _look_up(
                                cache, node, reg, keys, table, key_start[r], shared[r], r, most
                            )
                        own = min(node[r + 1, LENGTH], most - hit) if hit == shared[r] else 0
                    else:
                        hit = 0
                    found = (hit + own) * size
                    want = known - found
                    if not chunked and want > budget:
                        break
                    want = min(want, budget)
                    tokens = req[r, TOTAL] if whole else found + want
                    reserve = settings[WATERMARK_BLOCKS] if num_running > 0 else 0
                    taken = idle + own if caching else 0
                    if settings[RESERVE_FULL_ISL] != 0:
                        need = (min(known, max_model_len) + size - 1) // size - hit - own + taken
                        if need + reserve > cache[FREE]:
                            counters[SHORT_OF_BLOCKS] = 1
                            blocked = True
                            break
                    need = (tokens + size - 1) // size - hit - own
                    if need + taken + reserve > cache[FREE]:
                        counters[SHORT_OF_BLOCKS] = 1
                        blocked = True
                        break
                    first = (first + 1) & (queue_size - 1)
                    num_waiting -= 1
                    if caching:
                        if node[r + 1, LENGTH] != own:
                            counters[STATUS] = STATUS_CLASH
                            break
                        _hold(cache, req, node, table, key_start[r], r, hit)
                        if own > 0:
                            _unlink(node, r + 1)
                            node[r + 1, LENGTH] = 0
                            cache[FREE] -= own
                        cache[LOOKED_UP] = -1
                        cache[MISSING] = -1
                        _take(cache, node, reg, stack, n, need)
                    else:
                        cache[FREE] -= need
                    if run_end == room:
                        kept = 0
                        for i in range(run_end):
                            v = running[i]
                            if req[v, POSITION] == i:
                                running[kept] = v
                                req[v, POSITION] = kept
                                kept += 1
                        run_end = kept
                        new_from = run_end - num_new
                    running[run_end] = r
                    req[r, POSITION] = run_end
                    run_end += 1
                    num_running += 1
                    counters[PEAK_RUNNING] = max(counters[PEAK_RUNNING], num_running)
                    num_new += 1
                    req[r, COMPUTED] = found
                    if results[r, CACHED] < 0:
                        results[r, CACHED] = found

                # ---- A chunk of request r.
                past = req[r, COMPUTED]
                computed = past + want
                req[r, COMPUTED] = computed
                if caching:
                    goal = min(shared[r], computed // size)
                    if goal > req[r, SETTLED]:
                        _settle(cache, req, node, reg, stack, keys, table, key_start[r], r, goal)
                budget -= want
                count += 1
                prefills += 1
                prefill_tokens += want
                prefill_past += past
                prefill_pairs += want * (past + (want + 1) / 2)
                all_context += computed
                if not linear and not roofline:
                    prefill_s += prompt_s[computed] - prompt_s[past]
                if computed == req[r, KNOWN]:
                    yields += 1
                    mid = -1
                    joining[num_joining] = r
                    num_joining += 1
                else:
                    mid = r
                    req[r, PHASE] = MID_PREFILL
                r = -1
            if counters[STATUS] == STATUS_CLASH:
                break

            counters[STEPS] += 1
            counters[REQUEST_STEPS] += count
            counters[TOKENS] += token_budget - budget
            counters[PREEMPTED] += victims
            counters[PEAK_BLOCKS] = max(counters[PEAK_BLOCKS], usable - cache[FREE])

            start = max(now, device_free)
            end = start
            if count > 0:
                busy += 1
                counters[FILLED_STEPS] += 1
                counters[PEAK_BATCH] = max(counters[PEAK_BATCH], count)
                counters[PEAK_TOKENS] = max(counters[PEAK_TOKENS], token_budget - budget)
                if linear:
                    end += (
                        settings[STEP_BASE_NS]
                        + settings[STEP_TOKEN_NS] * (token_budget - budget)
                        + settings[STEP_CONTEXT_NS] * all_context
                    )
                else:
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
                            sweep_s[tokens], tokens, context + prefill_past,
                            context + prefill_pairs, kv_read, kv_write, linear_s, pair_s,
                        )  # fmt: skip
                    elif decodes > 0:
                        x = max(context * (1.0 / decodes), grid_first)
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
                    end = start + whole_ns(seconds)
                device_free = end
                for i in range(new_from, run_end):
                    r = running[i]
                    if results[r, SCHEDULED_NS] < 0:
                        results[r, SCHEDULED_NS] = start
                if decodes > 0:
                    gap = end - last_end
                    if not bins[near] <= gap < bins[near + 1]:
                        near = gap_bin(bins, gap)
                    gaps[near] += decodes
            if yields > 0:
                last_progress = call

            # ---- Who has the last token scheduled leaves, who finished its prompt joins.
            r = ends[call & (ring - 1), 0]
            while r >= 0:
                decodes -= 1
                context -= req[r, TOTAL] - 1
                if not whole:
                    edge = (req[r, OFFSET] + 1) % size
                    _unchain(req, edges, edge, r, EDGE_NEXT, EDGE_PREV)
                    edge_count[edge] -= 1
                req[r, PHASE] = LAST_SCHEDULED
                r = req[r, END_NEXT]
            for i in range(num_joining):
                r = joining[i]
                known = req[r, KNOWN]
                if results[r, FIRST_TOKEN_NS] < 0:
                    results[r, FIRST_TOKEN_NS] = end
                else:
                    gaps[gap_bin(bins, end - req[r, LAST_NS])] += 1
                req[r, JOINED] = call
                final = call + req[r, TOTAL] - 1 - known
                _chain(req, ends, final & (ring - 1), r, END_NEXT, END_PREV)
                if final == call:
                    req[r, PHASE] = LAST_SCHEDULED
                    continue
                req[r, PHASE] = DECODING
                req[r, OFFSET] = call - known
                decodes += 1
                context += known
                if not whole:
                    edge = (req[r, OFFSET] + 1) % size
                    _chain(req, edges, edge, r, EDGE_NEXT, EDGE_PREV)
                    edge_count[edge] += 1
            if num_joining > 0:
                blocked = False
            if count > 0:
                last_end = end
            i = (oldest + in_flight) % depth
            batch[0, i] = call
            batch[1, i] = end
            batch[2, i] = count > 0
            in_flight += 1

        ended = 0
        read = 0
        to_tell = unfinished > 0 or untold > 0
        if in_flight > 0 and not (called and in_flight < depth and (count > 0 or to_tell)):
            # ---- Read the oldest result.
            now = max(now, batch[1, oldest])
            if batch[2, oldest] != 0:
                busy -= 1
                read = 1
            i = batch[0, oldest] & (ring - 1)
            r = ends[i, 0] if batch[2, oldest] != 0 else -1
            while r >= 0:
                after = req[r, END_NEXT]
                if req[r, POSITION] >= 0 and req[r, PHASE] == LAST_SCHEDULED:
                    computed = req[r, TOTAL] - 1
                    held = (computed + size - 1) // size
                    if whole:
                        held = (req[r, TOTAL] + size - 1) // size
                    if caching:
                        _give_back(
                            cache, req, node, reg, stack, keys, table, key_start[r], shared[r], r,
                            held, computed // size,
                        )  # fmt: skip
                    else:
                        cache[FREE] += held
                    req[r, POSITION] = -1
                    num_running -= 1
                else:
                    num_waiting -= 1
                req[r, PHASE] = FINISHED
                req[r, KNOWN] = req[r, TOTAL]
                results[r, FINISH_NS] = now
                unfinished -= 1
                untold += 1
                ended += 1
                for c in range(child_start[r], child_start[r + 1]):
                    expect(due_at, due, num_due, now + delay[child[c]], child[c])
                    num_due += 1
                if users > 0 and next_unsent < n:
                    expect(due_at, due, num_due, now, next_unsent)
                    num_due += 1
                    next_unsent += 1
                r = after
            if ended > 0:
                ends[i, 0] = -1
                ends[i, 1] = -1
                blocked = False
                if num_due > 0:
                    next_due = min(next_due, due_at[0])
            read_call = batch[0, oldest]
            oldest = (oldest + 1) % depth
            in_flight -= 1
            if counters[STEPS] % sample_every == 0:
                num_samples, sample_every = _sample(
                    samples, num_samples, sample_every, now, num_running, num_waiting,
                    usable - cache[FREE],
                )  # fmt: skip

        if (
            called
            and count == 0
            and victims == 0
            and added == 0
            and read == 0
            and busy == 0
            and unfinished > 0
        ):
            # Nothing runs and nothing changed: only a new request can change anything.
            stuck = True
            if next_due == NEVER and until == NEVER:
                counters[STATUS] = STATUS_STALLED
                break
        if call - last_progress > settings[PATIENCE]:
            counters[STATUS] = STATUS_LIVE_LOCK
            break

    value[V_NOW] = now
    value[V_CALL] = call
    value[V_SLOT] = slot
    value[V_DEVICE_FREE] = device_free
    value[V_LAST_END] = last_end
    value[V_OLDEST] = oldest
    value[V_IN_FLIGHT] = in_flight
    value[V_BUSY] = busy
    value[V_UNFINISHED] = unfinished
    value[V_UNTOLD] = untold
    value[V_NEAR] = near
    value[V_SEGMENT] = segment
    value[V_LAST_PROGRESS] = last_progress
    value[V_READ_CALL] = read_call
    value[V_BLOCKED] = blocked
    value[V_HIT] = hit
    value[V_IDLE] = idle
    value[V_RUN_END] = run_end
    value[V_NUM_RUNNING] = num_running
    value[V_FIRST] = first
    value[V_LAST] = last
    value[V_NUM_WAITING] = num_waiting
    value[V_STATIC] = static
    value[V_NUM_DUE] = num_due
    value[V_NEXT_UNSENT] = next_unsent
    value[V_DECODES] = decodes
    value[V_CONTEXT] = context
    value[V_MID] = mid
    value[V_NUM_SAMPLES] = num_samples
    value[V_SAMPLE_EVERY] = sample_every
    value[V_STUCK] = stuck
