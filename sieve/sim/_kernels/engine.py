"""One engine's scheduler, decision by decision, compiled.

Follows vLLM 0.33.0, `v1/core/sched/scheduler.py` (`Scheduler.schedule`, `update_from_output`),
`async_scheduler.py`, `v1/core/kv_cache_manager.py`, `kv_cache_coordinator.py`, `block_pool.py` and
`v1/engine/core.py` (`step_with_batch_queue`). Everything the loop calls stands in this file:
numba's disk cache notices edits of the kernel's own file only.

Data. A request is a row of `req` (columns below, then blocks held per group); a
KV block is a row of `blk`; `reg` maps a block key of a group to the oldest block that carries it;
`table` holds one row of block ids for each running request, groups side by side. The free list is
a ring through block 0, which is never handed out.
"""

from __future__ import annotations

from typing import Any, Final

import numba as nb
import numpy as np

from sieve.sim._kernels import CAN_CACHE

# Positions in the settings array.
BLOCK_SIZE: Final = 0
NUM_BLOCKS: Final = 1  # including block 0
MAX_RUNNING: Final = 2
TOKEN_BUDGET: Final = 3
MAX_MODEL_LEN: Final = 4
CHUNKED: Final = 5
CACHING: Final = 6
THRESHOLD: Final = 7
ADAPTIVE: Final = 8
PRIORITY: Final = 9
WATERMARK_BLOCKS: Final = 10
RESERVE_FULL_ISL: Final = 11
PREFILL_INTERVAL: Final = 12
ASYNC: Final = 13
PIPELINE: Final = 14
DRAFTS_K: Final = 15
LOOKAHEAD: Final = 16
KEY_AHEAD: Final = 17  # tokens past a block's end that its key covers
IN_FLIGHT: Final = 18
TIMED: Final = 19
STEP_BASE_NS: Final = 20
STEP_TOKEN_NS: Final = 21
STEP_CONTEXT_NS: Final = 22
RECORD: Final = 23  # 0: counts only, 1: steps, 2: steps with tables and lists
TABLE_WIDTH: Final = 24
PATIENCE: Final = 25  # steps without a token before the run counts as live-locked
NUM_SETTINGS: Final = 26

# State scalars.
_FREE: Final = 0
_RUNNING: Final = 1
_WAITING: Final = 2
_NUM_DEFERRED: Final = 3
_NUM_STATE: Final = 4

# Columns of `req`; those of every step come first.
_KNOWN: Final = 0
_COMPUTED: Final = 1
_PENDING: Final = 2  # placeholders of tokens not yet delivered (asynchronous scheduling)
_DRAFTS: Final = 3
_TOTAL: Final = 4  # prompt + output, at most max_model_len
_ROW: Final = 5
_IN_FLIGHT: Final = 6  # scheduled tokens whose result is not read
_MID_PREFILL: Final = 7
_STATE: Final = 8
_JUNCTION: Final = 9  # blocks that some kind matched in the last lookup, if not all did
_NEXT_CALL: Final = 10  # no decode before this call (asynchronous pipeline)
_PROMPT: Final = 11
_KEYS: Final = 12  # offset into `keys`
_CHECKS: Final = 13  # verifications of drafts so far
_HEAP: Final = 14  # position in the priority heap
_ARRIVAL: Final = 15
_LEVEL: Final = 16  # priority
_NAME: Final = 17  # rank of the id as text
_SETTLED: Final = 18  # blocks that are findable, or passed over for good
_DEFERRED: Final = 19  # passed over while waiting, for its result in flight
_GROUPS: Final = 20

_NEW: Final = 0
_IS_RUNNING: Final = 1
_PREEMPTED: Final = 2
_FINISHED: Final = 3

# Ends of the waiting queue.
_FRONT: Final = 0
_BACK: Final = 1

# Columns of `blk`.
_NEXT: Final = 0
_PREV: Final = 1
_REFS: Final = 2
_KEY: Final = 3
_NEWER: Final = 4  # ring of blocks with equal key, oldest first
_OLDER: Final = 5

# Columns of a batch.
_B_REQUEST: Final = 0
_B_TOKENS: Final = 1
_B_DRAFTS: Final = 2
_B_YIELDS: Final = 3
_B_PADDED: Final = 4

# Columns of the result per request, -1 where it never happened.
OUT: Final = 0
PREEMPTIONS: Final = 1
ARRIVAL: Final = 2
ADDED_STEP: Final = 3
FIRST_STEP: Final = 4
CACHED: Final = 5
FIRST_TOKEN_STEP: Final = 6
FINISH_STEP: Final = 7
FIRST_TOKEN_NS: Final = 8
FINISH_NS: Final = 9
REJECTED: Final = 10
NUM_RESULTS: Final = 11

# Positions in the counters array.
STEPS: Final = 0
REQUEST_STEPS: Final = 1
TOKENS: Final = 2
STATUS: Final = 3
PREEMPTED: Final = 4
PEAK_BLOCKS: Final = 5
END_NS: Final = 6
NUM_COUNTERS: Final = 7

STATUS_DONE: Final = 0
STATUS_STALLED: Final = 1
STATUS_LIVE_LOCK: Final = 2

# Bits of the first number of a recorded turn.
TURN_CALL: Final = 1
TURN_RESULT: Final = 2
TURN_IDLE: Final = 4

jit: Any = nb.njit(cache=CAN_CACHE, nogil=True, error_model="numpy")


# ---- Blocks: block_pool.py


@jit
def _unlink(blk, b):  # type: ignore[no-untyped-def]
    """Take block b out of the free list."""
    before = blk[b, _PREV]
    after = blk[b, _NEXT]
    blk[before, _NEXT] = after
    blk[after, _PREV] = before


@jit
def _link(blk, b, before):  # type: ignore[no-untyped-def]
    """Put block b into the free list, behind block `before`."""
    after = blk[before, _NEXT]
    blk[b, _PREV] = before
    blk[b, _NEXT] = after
    blk[before, _NEXT] = b
    blk[after, _PREV] = b


@jit
def _forget(blk, reg, b):  # type: ignore[no-untyped-def]
    """Drop the key of block b: it can no longer be found."""
    key = blk[b, _KEY]
    newer = blk[b, _NEWER]
    if newer == b:
        reg[key] = 0
    else:
        older = blk[b, _OLDER]
        blk[older, _NEWER] = newer
        blk[newer, _OLDER] = older
        if reg[key] == b:
            reg[key] = newer
    blk[b, _KEY] = -1


@jit
def _register(blk, reg, b, key):  # type: ignore[no-untyped-def]
    """Make block b findable under `key`, as the newest of its duplicates."""
    blk[b, _KEY] = key
    oldest = reg[key]
    if oldest == 0:
        reg[key] = b
        blk[b, _NEWER] = b
        blk[b, _OLDER] = b
    else:
        newest = blk[oldest, _OLDER]
        blk[newest, _NEWER] = b
        blk[b, _OLDER] = newest
        blk[b, _NEWER] = oldest
        blk[oldest, _OLDER] = b


@jit
def _take(blk, reg):  # type: ignore[no-untyped-def]
    """Return the block in front of the free list, taken out and forgotten."""
    b = blk[0, _NEXT]
    after = blk[b, _NEXT]
    blk[0, _NEXT] = after
    blk[after, _PREV] = 0
    if blk[b, _KEY] >= 0:
        _forget(blk, reg, b)
    blk[b, _REFS] = 1
    return b


@jit
def _give_back(state, blk, table, row, first, stop):  # type: ignore[no-untyped-def]
    """Release table[row, first:stop] from the last block to the first (`free_blocks`).

    Registered blocks go to the back of the free list, the others as one piece to its front.
    """
    front = 0
    for i in range(stop - 1, first - 1, -1):
        b = table[row, i]
        if b == 0:
            continue
        blk[b, _REFS] -= 1
        if blk[b, _REFS] == 0:
            state[_FREE] += 1
            if blk[b, _KEY] >= 0:
                _link(blk, b, blk[0, _PREV])
            else:
                _link(blk, b, front)
                front = b


@jit
def _release(settings, state, req, blk, table, num_groups, r):  # type: ignore[no-untyped-def]
    """Give back all blocks of request r, group by group."""
    row = req[r, _ROW]
    width = settings[TABLE_WIDTH]
    for g in range(num_groups):
        held = req[r, _GROUPS + g]
        _give_back(state, blk, table, row, g * width, g * width + held)
        req[r, _GROUPS + g] = 0
    req[r, _SETTLED] = 0


# ---- Block tables: kv_cache_manager.py, single_type_kv_cache_manager.py


@jit
def _drop_skipped(settings, state, req, blk, table, window, r, processed):  # type: ignore[no-untyped-def]
    """Replace blocks wholly before each window by null entries (`remove_skipped_blocks`)."""
    width = settings[TABLE_WIDTH]
    row = req[r, _ROW]
    for g in range(len(window)):
        if window[g] == 0:
            continue
        skipped = max(processed - window[g] + 1, 0) // settings[BLOCK_SIZE]
        skipped = min(skipped, req[r, _GROUPS + g])
        first = skipped
        while first > 0 and table[row, g * width + first - 1] != 0:
            first -= 1
        if first < skipped:
            _give_back(state, blk, table, row, g * width + first, g * width + skipped)
            for i in range(first, skipped):
                table[row, g * width + i] = 0


@jit
def _extend(settings, state, req, blk, reg, table, num_groups, r, tokens):  # type: ignore[no-untyped-def]
    """Give request r blocks for `tokens` tokens in every group; the caller has checked the room."""
    width = settings[TABLE_WIDTH]
    size = settings[BLOCK_SIZE]
    row = req[r, _ROW]
    goal = (tokens + size - 1) // size
    for g in range(num_groups):
        held = req[r, _GROUPS + g]
        if goal > held:
            for i in range(held, goal):
                table[row, g * width + i] = _take(blk, reg)
            state[_FREE] -= goal - held
            req[r, _GROUPS + g] = goal


@jit
def _can_settle(settings, req, r, tokens):  # type: ignore[no-untyped-def]
    """Return whether `tokens` computed tokens fill a block of request r that is not yet settled."""
    known = req[r, _KNOWN] - settings[KEY_AHEAD]
    return min(tokens, known) >= (req[r, _SETTLED] + 1) * settings[BLOCK_SIZE]


@jit
def _settle(settings, req, blk, reg, table, keys, window, num_keys, r, tokens):  # type: ignore[no-untyped-def]
    """Make the blocks of request r findable up to `tokens` tokens (`cache_blocks`).

    A window group registers only the blocks that a hit at the end of the prompt, or at the
    junction of the request's last lookup, would need (`prefix_cache_retention_interval` 0).
    """
    size = settings[BLOCK_SIZE]
    goal = min(tokens, req[r, _KNOWN] - settings[KEY_AHEAD]) // size
    done = req[r, _SETTLED]
    req[r, _SETTLED] = goal
    width = settings[TABLE_WIDTH]
    row = req[r, _ROW]
    offset = req[r, _KEYS]
    tail = (req[r, _PROMPT] - 1) // size
    junction = req[r, _JUNCTION]
    for g in range(len(window)):
        reach = (window[g] - 1 + size - 1) // size
        for j in range(done, goal):
            b = table[row, g * width + j]
            if b == 0:
                continue
            if window[g] > 0 and not (tail - reach <= j < tail or junction - reach <= j < junction):
                continue
            _register(blk, reg, b, g * num_keys + keys[offset + j])


@jit
def _find_full(reg, keys, kind, hits, num_keys, offset, limit):  # type: ignore[no-untyped-def]
    """Return how many blocks from the first are found in every full-attention group."""
    for j in range(limit):
        for g in range(len(kind)):
            if kind[g] == 0:
                b = reg[g * num_keys + keys[offset + j]]
                if b == 0:
                    return j
                hits[g, j] = b
    return limit


@jit
def _find_window(reg, keys, kind, hits, num_keys, offset, limit, k, reach):  # type: ignore[no-untyped-def]
    """Return the blocks that all groups of window kind k can take over, null before the window."""
    run = 0
    for g in range(len(kind)):
        if kind[g] == k:
            for j in range(limit):
                hits[g, j] = 0
    for j in range(limit - 1, -1, -1):
        found = True
        for g in range(len(kind)):
            if kind[g] == k and reg[g * num_keys + keys[offset + j]] == 0:
                found = False
                break
        if not found:
            run = 0
            continue
        for g in range(len(kind)):
            if kind[g] == k:
                hits[g, j] = reg[g * num_keys + keys[offset + j]]
        run += 1
        if run >= reach:
            return j + run
    return run


@jit
def _lookup(settings, req, reg, keys, window, kind, hits, num_keys, r):  # type: ignore[no-untyped-def]
    """Return the blocks of request r found in the cache; `hits` gets their ids by group.

    `HybridKVCacheCoordinator.find_longest_cache_hit`: kinds shorten the hit in turn, until none
    does. Where one matched further than all together is kept as a junction.
    """
    size = settings[BLOCK_SIZE]
    offset = req[r, _KEYS]
    limit = (req[r, _KNOWN] - 1) // size
    num_kinds = 0
    for g in range(len(kind)):
        num_kinds = max(num_kinds, kind[g] + 1)
    has_full = False
    for g in range(len(kind)):
        if kind[g] == 0:
            has_full = has_full or window[g] == 0
    if has_full and num_kinds == 1:
        return _find_full(reg, keys, kind, hits, num_keys, offset, limit)
    full = -1
    longest = 0
    hit = limit
    while True:
        current = hit
        for k in range(num_kinds):
            if k == 0 and has_full:
                if full < 0:
                    full = _find_full(reg, keys, kind, hits, num_keys, offset, current)
                current = min(current, full)
            else:
                reach = 0
                for g in range(len(kind)):
                    if kind[g] == k:
                        reach = (window[g] - 1 + size - 1) // size
                current = _find_window(reg, keys, kind, hits, num_keys, offset, current, k, reach)
            longest = max(longest, current)
        if current >= hit:
            break
        hit = current
        if num_kinds == 1 or (has_full and num_kinds == 2):
            break
    if len(kind) > 1:
        req[r, _JUNCTION] = longest if longest > hit else 0
    return hit


@jit
def _admission_need(settings, blk, window, hits, hit, tokens, capped):  # type: ignore[no-untyped-def]
    """Return the free blocks that an admission takes: new ones and hits that nobody holds."""
    size = settings[BLOCK_SIZE]
    need = 0
    for g in range(len(window)):
        required = (tokens + size - 1) // size
        skipped = 0
        if window[g] > 0:
            skipped = max(hit * size - window[g] + 1, 0) // size
            if capped != 0:
                reach = window[g] - 1 + settings[IN_FLIGHT] * settings[TOKEN_BUDGET]
                reach = min(reach, settings[MAX_MODEL_LEN])
                required = min(required, (reach + size - 1) // size + 1)
        need += max(required - max(skipped, hit), 0)
        for j in range(skipped, hit):
            b = hits[g, j]
            if b != 0 and blk[b, _REFS] == 0:
                need += 1
    return need


@jit
def _hold_hits(settings, state, req, blk, table, window, hits, hit, r):  # type: ignore[no-untyped-def]
    """Put the hit blocks into the table of request r (`allocate_new_computed_blocks`)."""
    width = settings[TABLE_WIDTH]
    row = req[r, _ROW]
    for g in range(len(window)):
        skipped = 0
        if window[g] > 0:
            skipped = max(hit * settings[BLOCK_SIZE] - window[g] + 1, 0) // settings[BLOCK_SIZE]
        for j in range(hit):
            b = hits[g, j] if j >= skipped else 0
            table[row, g * width + j] = b
            if b != 0:
                if blk[b, _REFS] == 0:
                    _unlink(blk, b)
                    state[_FREE] -= 1
                blk[b, _REFS] += 1
        req[r, _GROUPS + g] = hit
    req[r, _SETTLED] = hit


# ---- Waiting queue: request_queue.py. First come first served: a ring through `links` with the
# sentinel last. Priority: a binary heap.


@jit
def _before(req, a, b):  # type: ignore[no-untyped-def]
    """Return whether request a goes before b under the priority policy."""
    if req[a, _LEVEL] != req[b, _LEVEL]:
        return req[a, _LEVEL] < req[b, _LEVEL]
    if req[a, _ARRIVAL] != req[b, _ARRIVAL]:
        return req[a, _ARRIVAL] < req[b, _ARRIVAL]
    return req[a, _NAME] < req[b, _NAME]


@jit
def _sift(req, heap, size, i):  # type: ignore[no-untyped-def]
    """Restore the heap order after entry i changed."""
    r = heap[i]
    while i > 0 and _before(req, r, heap[(i - 1) // 2]):
        parent = (i - 1) // 2
        heap[i] = heap[parent]
        req[heap[i], _HEAP] = i
        i = parent
    while True:
        child = 2 * i + 1
        if child >= size:
            break
        if child + 1 < size and _before(req, heap[child + 1], heap[child]):
            child += 1
        if not _before(req, heap[child], r):
            break
        heap[i] = heap[child]
        req[heap[i], _HEAP] = i
        i = child
    heap[i] = r
    req[r, _HEAP] = i


@jit
def _enqueue(settings, state, req, links, heap, r, side):  # type: ignore[no-untyped-def]
    """Put request r into the waiting queue, in front or at the back."""
    if settings[PRIORITY] != 0:
        size = state[_WAITING]
        heap[size] = r
        req[r, _HEAP] = size
        _sift(req, heap, size + 1, size)
    else:
        end = len(links) - 1
        before = end if side == _FRONT else links[end, 1]
        after = links[before, 0]
        links[r, 0] = after
        links[r, 1] = before
        links[before, 0] = r
        links[after, 1] = r
    state[_WAITING] += 1


@jit
def _dequeue(settings, state, req, links, heap, r):  # type: ignore[no-untyped-def]
    """Take request r out of the waiting queue, wherever it stands."""
    state[_WAITING] -= 1
    if settings[PRIORITY] != 0:
        size = state[_WAITING]
        i = req[r, _HEAP]
        last = heap[size]
        if last != r:
            heap[i] = last
            req[last, _HEAP] = i
            _sift(req, heap, size, i)
    else:
        after = links[r, 0]
        before = links[r, 1]
        links[before, 0] = after
        links[after, 1] = before


@jit
def _head(settings, links, heap):  # type: ignore[no-untyped-def]
    """Return the request that is tried first."""
    if settings[PRIORITY] != 0:
        return heap[0]
    return links[len(links) - 1, 0]


# ---- Requests still to come: a heap by (arrival, order of the list).


@jit
def _expect(due_at, due, size, at, r):  # type: ignore[no-untyped-def]
    """Add request r, arriving at `at`, to the heap of `size` entries."""
    i = size
    while i > 0:
        parent = (i - 1) // 2
        if due_at[parent] < at or (due_at[parent] == at and due[parent] < r):
            break
        due_at[i] = due_at[parent]
        due[i] = due[parent]
        i = parent
    due_at[i] = at
    due[i] = r


@jit
def _pop_expected(due_at, due, size):  # type: ignore[no-untyped-def]
    """Remove the first of the heap of `size` entries."""
    at = due_at[size - 1]
    r = due[size - 1]
    size -= 1
    i = 0
    while True:
        child = 2 * i + 1
        if child >= size:
            break
        if child + 1 < size and (
            due_at[child + 1] < due_at[child]
            or (due_at[child + 1] == due_at[child] and due[child + 1] < due[child])
        ):
            child += 1
        if at < due_at[child] or (at == due_at[child] and r < due[child]):
            break
        due_at[i] = due_at[child]
        due[i] = due[child]
        i = child
    due_at[i] = at
    due[i] = r


@jit
def _grown(log, need):  # type: ignore[no-untyped-def]
    """Return the log with room for `need` numbers."""
    size = len(log)
    while size < need:
        size *= 2
    bigger = np.empty(size, np.int64)
    bigger[: len(log)] = log
    return bigger


@jit
def _victim_of(settings, state, req, running):  # type: ignore[no-untyped-def]
    """Return the position in the running list of the request to preempt."""
    last = state[_RUNNING] - 1
    if settings[PRIORITY] == 0:
        return last
    worst = 0
    for i in range(1, last + 1):
        a = running[i]
        b = running[worst]
        if req[a, _LEVEL] > req[b, _LEVEL] or (
            req[a, _LEVEL] == req[b, _LEVEL] and req[a, _ARRIVAL] > req[b, _ARRIVAL]
        ):
            worst = i
    return worst


@jit
def replay(  # type: ignore[no-untyped-def]
    settings,
    accept,
    window,
    kind,
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
):
    """Replay one engine over its requests.

    Args:
        settings: (NUM_SETTINGS,) int64.
        accept: (a,) int64, drafts accepted by a request's verifications, in turn.
        window: (g,) int64, sliding window of each group of layers, 0: full attention.
        kind: (g,) int64, groups with equal numbers are looked up together; 0: full attention.
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

    Returns:
        results (n, NUM_RESULTS) int64; counters (NUM_COUNTERS,) int64; log int64, the recorded
        turns; left int64, the number of requests left waiting, these in order, those left running.
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
    timed = settings[TIMED] != 0
    record = settings[RECORD]
    width = settings[TABLE_WIDTH]
    throttled = is_async and stages > 1
    late_settling = caching and (is_async or num_drafts > 0)
    windowed = False
    for g in range(num_groups):
        windowed = windowed or window[g] > 0

    results = np.full((n, NUM_RESULTS), -1, np.int64)
    counters = np.zeros(NUM_COUNTERS, np.int64)
    state = np.zeros(_NUM_STATE, np.int64)
    req = np.zeros((n, _GROUPS + num_groups), np.int64)
    due_at = np.zeros(n + 1, np.int64)
    due = np.zeros(n + 1, np.int64)
    num_due = 0
    for r in range(n):
        req[r, _KNOWN] = prompt[r]
        req[r, _PROMPT] = prompt[r]
        req[r, _TOTAL] = min(prompt[r] + output[r], max_model_len)
        req[r, _ROW] = -1
        req[r, _KEYS] = key_start[r]
        req[r, _LEVEL] = level[r]
        req[r, _NAME] = name_rank[r]
        results[r, OUT] = 0
        results[r, PREEMPTIONS] = 0
        if arrival[r] >= 0:
            _expect(due_at, due, num_due, arrival[r], r)
            num_due += 1

    num_blocks = settings[NUM_BLOCKS]
    blk = np.zeros((num_blocks, 6), np.int32)
    for b in range(num_blocks):
        blk[b, _NEXT] = b + 1 if b + 1 < num_blocks else 0
        blk[b, _PREV] = b - 1 if b > 0 else num_blocks - 1
        blk[b, _KEY] = -1
    state[_FREE] = num_blocks - 1
    reg = np.zeros(max(num_keys * num_groups, 1), np.int32)
    hits = np.zeros((num_groups, width + 1), np.int32)
    rows = min(limit, n)
    table = np.zeros((rows, num_groups * width), np.int32)
    free_rows = np.arange(rows)
    num_free_rows = rows

    running = np.zeros(limit + 1, np.int64)
    links = np.zeros((n + 1, 2), np.int64)
    links[n, 0] = n
    links[n, 1] = n
    heap = np.zeros(n + 1, np.int64)
    stale = np.zeros(n + 1, np.int64)
    victims = np.zeros(limit + 1, np.int64)
    admitted = np.zeros((limit + 1, 3), np.int64)

    batch = np.zeros((depth, limit + 1, 5), np.int64)
    batch_count = np.zeros(depth, np.int64)
    batch_step = np.zeros(depth, np.int64)
    batch_end = np.zeros(depth, np.int64)
    oldest = 0
    in_flight = 0
    busy = 0  # batches in flight that are not empty
    device_free = np.int64(0)

    log = np.zeros(1024 if record > 0 else 1, np.int64)
    pos = 0
    turn_room = 64 + 2 * n + 16 * limit
    if record == 2:
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
        clock = now if timed else step
        added = 0
        rejected = 0
        turn = pos
        if record > 0:
            if pos + turn_room > len(log):
                log = _grown(log, pos + turn_room)
            log[turn] = 0
            log[turn + 1] = step
            log[turn + 2] = now
            pos = turn + 4
        while num_due > 0 and due_at[0] <= clock:
            r = due[0]
            at = due_at[0]
            _pop_expected(due_at, due, num_due)
            num_due -= 1
            req[r, _ARRIVAL] = at
            results[r, ARRIVAL] = at
            results[r, ADDED_STEP] = step
            refused = prompt[r] < 1 or prompt[r] >= max_model_len
            if refused:
                results[r, REJECTED] = 1
                req[r, _STATE] = _FINISHED
                rejected += 1
            else:
                _enqueue(settings, state, req, links, heap, r, _BACK)
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

        called = to_tell
        count = 0
        num_victims = 0
        if called:
            # ---- Scheduler.schedule
            untold = 0
            slot = (oldest + in_flight) % depth
            entries = batch[slot]
            budget = token_budget
            threshold = settings[THRESHOLD]
            present = state[_RUNNING] + state[_WAITING]
            if threshold > 0:
                if present <= 1:
                    threshold = 0
                elif settings[ADAPTIVE] != 0:
                    threshold = max(threshold, token_budget // present)
            holding = False
            if interval > 1 and not saturated and filled_calls + 1 - last_prefill < interval:
                for i in range(state[_RUNNING]):
                    if req[running[i], _MID_PREFILL] == 0:
                        holding = True
                        break
            carries_prefill = False
            num_admitted = 0

            i = 0
            while i < state[_RUNNING] and budget > 0:
                r = running[i]
                computed = req[r, _COMPUTED]
                pending = req[r, _PENDING]
                if is_async:
                    if pending > 0 and computed + 2 - pending >= req[r, _TOTAL]:
                        i += 1
                        continue
                    if throttled and req[r, _NEXT_CALL] > call:
                        i += 1
                        continue
                mid_prefill = req[r, _MID_PREFILL] != 0
                if holding and mid_prefill:
                    i += 1
                    continue
                want = req[r, _KNOWN] + req[r, _DRAFTS] + pending - computed
                if 0 < threshold < want:
                    want = threshold
                want = min(want, budget, max_model_len - computed - 1)
                if want <= 0:
                    i += 1
                    continue
                tokens = min(computed + want + lookahead, max_model_len)
                if windowed:
                    _drop_skipped(
                        settings, state, req, blk, table, window, r, computed - req[r, _IN_FLIGHT]
                    )
                fits = True
                if num_groups > 1 or tokens > req[r, _GROUPS] * size:
                    goal = (tokens + size - 1) // size
                    while True:
                        need = 0
                        for g in range(num_groups):
                            need += max(goal - req[r, _GROUPS + g], 0)
                        if need <= state[_FREE]:
                            break
                        p = _victim_of(settings, state, req, running)
                        victim = running[p]
                        for j in range(p, state[_RUNNING] - 1):
                            running[j] = running[j + 1]
                        state[_RUNNING] -= 1
                        if p < i:
                            i -= 1
                        if by_priority:
                            for j in range(count):
                                if entries[j, _B_REQUEST] == victim:
                                    budget += entries[j, _B_TOKENS]
                                    for k in range(j, count - 1):
                                        entries[k] = entries[k + 1]
                                    count -= 1
                                    break
                        _release(settings, state, req, blk, table, num_groups, victim)
                        free_rows[num_free_rows] = req[victim, _ROW]
                        num_free_rows += 1
                        req[victim, _ROW] = -1
                        req[victim, _COMPUTED] = 0
                        req[victim, _PENDING] = 0
                        req[victim, _DRAFTS] = 0
                        req[victim, _STATE] = _PREEMPTED
                        _enqueue(settings, state, req, links, heap, victim, _FRONT)
                        victims[num_victims] = victim
                        num_victims += 1
                        if victim == r:
                            fits = False
                            break
                    if not fits:
                        continue
                    _extend(settings, state, req, blk, reg, table, num_groups, r, tokens)
                if caching and _can_settle(settings, req, r, computed + want):
                    _settle(
                        settings, req, blk, reg, table, keys, window, num_keys, r,
                        computed + want,
                    )  # fmt: skip
                drafts = 0
                if req[r, _DRAFTS] > 0:
                    drafts = want + computed - req[r, _KNOWN] - pending
                    drafts = min(max(drafts, 0), req[r, _DRAFTS])
                    req[r, _DRAFTS] = 0
                entries[count, _B_REQUEST] = r
                entries[count, _B_TOKENS] = want
                entries[count, _B_DRAFTS] = drafts
                entries[count, _B_PADDED] = 0
                count += 1
                budget -= want
                carries_prefill = carries_prefill or mid_prefill
                i += 1

            num_stale = 0
            if num_victims == 0:
                from_running = count
                prefill_running = carries_prefill
                while state[_WAITING] > 0 and budget > 0 and state[_RUNNING] < limit:
                    r = _head(settings, links, heap)
                    if req[r, _IN_FLIGHT] > 0:
                        _dequeue(settings, state, req, links, heap, r)
                        state[_NUM_DEFERRED] += 1 - req[r, _DEFERRED]
                        req[r, _DEFERRED] = 1
                        stale[num_stale] = r
                        num_stale += 1
                        continue
                    known = req[r, _KNOWN]
                    hit = 0
                    if caching:
                        hit = _lookup(settings, req, reg, keys, window, kind, hits, num_keys, r)
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
                    reserve = settings[WATERMARK_BLOCKS] if state[_RUNNING] > 0 else 0
                    if settings[RESERVE_FULL_ISL] != 0:
                        need = _admission_need(
                            settings, blk, window, hits, hit, min(known, max_model_len), 1
                        )
                        if need + reserve > state[_FREE]:
                            break
                    tokens = min(found + want + lookahead, max_model_len)
                    need = _admission_need(settings, blk, window, hits, hit, tokens, 0)
                    if need + reserve > state[_FREE]:
                        break
                    _dequeue(settings, state, req, links, heap, r)
                    state[_NUM_DEFERRED] -= req[r, _DEFERRED]
                    req[r, _DEFERRED] = 0
                    num_free_rows -= 1
                    req[r, _ROW] = free_rows[num_free_rows]
                    if hit > 0:
                        _hold_hits(settings, state, req, blk, table, window, hits, hit, r)
                    _extend(settings, state, req, blk, reg, table, num_groups, r, tokens)
                    req[r, _COMPUTED] = found
                    if caching and _can_settle(settings, req, r, found + want):
                        _settle(
                            settings, req, blk, reg, table, keys, window, num_keys, r,
                            found + want,
                        )  # fmt: skip
                    running[state[_RUNNING]] = r
                    state[_RUNNING] += 1
                    admitted[num_admitted, 0] = r
                    admitted[num_admitted, 1] = found
                    admitted[num_admitted, 2] = req[r, _STATE] == _PREEMPTED
                    num_admitted += 1
                    req[r, _STATE] = _IS_RUNNING
                    if results[r, FIRST_STEP] < 0:
                        results[r, FIRST_STEP] = step
                        results[r, CACHED] = found
                    entries[count, _B_REQUEST] = r
                    entries[count, _B_TOKENS] = want
                    entries[count, _B_DRAFTS] = drafts
                    entries[count, _B_PADDED] = drafts > 0
                    count += 1
                    budget -= want
                    carries_prefill = carries_prefill or found < known - 1
                for j in range(num_stale - 1, -1, -1):
                    _enqueue(settings, state, req, links, heap, stale[j], _FRONT)
                if not holding:
                    saturated = state[_WAITING] > state[_NUM_DEFERRED]
            if count > 0:
                filled_calls += 1
            if carries_prefill:
                last_prefill = filled_calls

            # ---- Scheduler._update_after_schedule
            context = np.int64(0)
            for j in range(count):
                r = entries[j, _B_REQUEST]
                want = entries[j, _B_TOKENS]
                computed = req[r, _COMPUTED] + want
                req[r, _COMPUTED] = computed
                req[r, _IN_FLIGHT] += want
                context += computed
                if computed < req[r, _KNOWN] + req[r, _PENDING]:
                    req[r, _MID_PREFILL] = 1
                    entries[j, _B_YIELDS] = 0
                else:
                    req[r, _MID_PREFILL] = 0
                    entries[j, _B_YIELDS] = 1
                    if is_async:
                        req[r, _PENDING] += 1 + entries[j, _B_DRAFTS]
                        req[r, _DRAFTS] = num_drafts
                        req[r, _NEXT_CALL] = call + stages

            call += 1
            counters[STEPS] += 1
            counters[REQUEST_STEPS] += count
            counters[TOKENS] += token_budget - budget
            counters[PREEMPTED] += num_victims
            counters[PEAK_BLOCKS] = max(counters[PEAK_BLOCKS], num_blocks - 1 - state[_FREE])
            for j in range(num_victims):
                results[victims[j], PREEMPTIONS] += 1

            start = max(now, device_free)
            end = start
            if count > 0:
                end += (
                    settings[STEP_BASE_NS]
                    + settings[STEP_TOKEN_NS] * (token_budget - budget)
                    + settings[STEP_CONTEXT_NS] * context
                )
                busy += 1
            device_free = end
            batch_count[slot] = count
            batch_step[slot] = step
            batch_end[slot] = end
            in_flight += 1

            if record > 0:
                log[turn] += TURN_CALL
                log[pos] = count
                pos += 1
                for j in range(count):
                    log[pos] = entries[j, _B_REQUEST]
                    log[pos + 1] = entries[j, _B_TOKENS]
                    log[pos + 2] = entries[j, _B_DRAFTS]
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
                log[pos] = state[_FREE]
                log[pos + 1] = start
                log[pos + 2] = end
                pos += 3
                if record == 2:
                    for j in range(count):
                        r = entries[j, _B_REQUEST]
                        for g in range(num_groups):
                            held = req[r, _GROUPS + g]
                            log[pos] = held
                            pos += 1
                            for k in range(held):
                                log[pos] = table[req[r, _ROW], g * width + k]
                                pos += 1
                    log[pos] = state[_RUNNING]
                    pos += 1
                    for j in range(state[_RUNNING]):
                        log[pos] = running[j]
                        log[pos + 1] = req[running[j], _COMPUTED]
                        pos += 2
                    log[pos] = state[_WAITING]
                    pos += 1
                    # A heap is emptied into its order and filled again.
                    total = state[_WAITING]
                    for j in range(total):
                        r = _head(settings, links, heap)
                        _dequeue(settings, state, req, links, heap, r)
                        log[pos + j] = r
                    for j in range(total):
                        _enqueue(settings, state, req, links, heap, log[pos + j], _BACK)
                    pos += total

        ended = 0
        read = 0
        to_tell = unfinished > 0 or untold > 0
        reads = in_flight > 0 and not (called and in_flight < depth and (count > 0 or to_tell))
        if reads:
            # ---- Scheduler.update_from_output
            entries = batch[oldest]
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
                r = entries[j, _B_REQUEST]
                drafts = entries[j, _B_DRAFTS]
                yields = entries[j, _B_YIELDS] != 0
                accepted = np.int64(-1)
                finishes = 0
                if req[r, _STATE] != _FINISHED:
                    req[r, _IN_FLIGHT] -= entries[j, _B_TOKENS]
                    if yields:
                        # What was in flight at a preemption still brings its tokens.
                        is_running = req[r, _STATE] == _IS_RUNNING
                        got = np.int64(1)
                        if drafts > 0 and entries[j, _B_PADDED] == 0:
                            accepted = min(accept[req[r, _CHECKS] % len(accept)], drafts)
                            req[r, _CHECKS] += 1
                            got += accepted
                        kept = min(got, req[r, _TOTAL] - req[r, _KNOWN])
                        req[r, _KNOWN] += kept
                        results[r, OUT] += kept
                        last_progress = call
                        if results[r, FIRST_TOKEN_STEP] < 0:
                            results[r, FIRST_TOKEN_STEP] = made_in
                            results[r, FIRST_TOKEN_NS] = now
                        if is_running:
                            # All but `kept` of the 1 + drafts tokens are taken back.
                            req[r, _COMPUTED] -= 1 + drafts - kept
                            if is_async:
                                req[r, _PENDING] -= 1 + drafts
                            done = req[r, _COMPUTED] - req[r, _IN_FLIGHT]
                            if late_settling and _can_settle(settings, req, r, done):
                                _settle(
                                    settings, req, blk, reg, table, keys, window, num_keys, r, done
                                )
                        if req[r, _KNOWN] >= req[r, _TOTAL]:
                            finishes = 1
                            ended += 1
                            if is_running:
                                _release(settings, state, req, blk, table, num_groups, r)
                                free_rows[num_free_rows] = req[r, _ROW]
                                num_free_rows += 1
                                req[r, _ROW] = -1
                            else:
                                _dequeue(settings, state, req, links, heap, r)
                                state[_NUM_DEFERRED] -= req[r, _DEFERRED]
                            req[r, _STATE] = _FINISHED
                            results[r, FINISH_STEP] = made_in
                            results[r, FINISH_NS] = now
                            unfinished -= 1
                            untold += 1
                            for c in range(child_start[r], child_start[r + 1]):
                                at = (now if timed else step + 1) + delay[child[c]]
                                _expect(due_at, due, num_due, at, child[c])
                                num_due += 1
                        elif num_drafts > 0 and not is_async and req[r, _MID_PREFILL] == 0:
                            req[r, _DRAFTS] = num_drafts
                if record > 0:
                    log[pos] = r
                    log[pos + 1] = yields
                    log[pos + 2] = accepted
                    log[pos + 3] = finishes
                    pos += 4
            if ended > 0:
                still = 0
                for j in range(state[_RUNNING]):
                    if req[running[j], _STATE] == _IS_RUNNING:
                        running[still] = running[j]
                        still += 1
                state[_RUNNING] = still
            oldest = (oldest + 1) % depth
            in_flight -= 1

        if record > 0:
            log[pos] = state[_FREE]
            log[pos + 1] = state[_RUNNING]
            log[pos + 2] = state[_WAITING]
            pos += 3
            if record == 2:
                b = blk[0, _NEXT]
                while b != 0:
                    log[pos] = b
                    pos += 1
                    b = blk[b, _NEXT]

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
    left = np.zeros(1 + state[_WAITING] + state[_RUNNING], np.int64)
    left[0] = state[_WAITING]
    for j in range(left[0]):
        r = _head(settings, links, heap)
        _dequeue(settings, state, req, links, heap, r)
        left[1 + j] = r
    for j in range(state[_RUNNING]):
        left[1 + left[0] + j] = running[j]
    return results, counters, log[:pos].copy(), left
