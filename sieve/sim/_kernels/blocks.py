"""KV blocks inside the compiled loop: the free list, block tables, and the prefix cache.

Follows vLLM 0.33.0, `v1/core/block_pool.py`, `kv_cache_manager.py`, `kv_cache_coordinator.py` and
`single_type_kv_cache_manager.py`. A KV block is a row of `blk`; `reg` maps a block key of a group
to the oldest block that carries it; `table` holds one row of block ids for each running request,
groups side by side. The free list is a ring through block 0, which is never handed out.
"""

from __future__ import annotations

from sieve.sim._kernels import jit
from sieve.sim._kernels.layout import (
    BLOCK_SIZE,
    IN_FLIGHT,
    K_KEY,
    K_NEWER,
    K_NEXT,
    K_OLDER,
    K_PREV,
    K_REFS,
    KEY_AHEAD,
    MAX_MODEL_LEN,
    R_GROUPS,
    R_JUNCTION,
    R_KEYS,
    R_KNOWN,
    R_PROMPT,
    R_ROW,
    R_SETTLED,
    S_FREE,
    TABLE_WIDTH,
    TOKEN_BUDGET,
)

# ---- Blocks: block_pool.py


@jit
def unlink(blk, b):
    """Take block b out of the free list."""
    before = blk[b, K_PREV]
    after = blk[b, K_NEXT]
    blk[before, K_NEXT] = after
    blk[after, K_PREV] = before


@jit
def link(blk, b, before):
    """Put block b into the free list, behind block `before`."""
    after = blk[before, K_NEXT]
    blk[b, K_PREV] = before
    blk[b, K_NEXT] = after
    blk[before, K_NEXT] = b
    blk[after, K_PREV] = b


@jit
def forget(blk, reg, b):
    """Drop the key of block b: it can no longer be found."""
    key = blk[b, K_KEY]
    newer = blk[b, K_NEWER]
    if newer == b:
        reg[key] = 0
    else:
        older = blk[b, K_OLDER]
        blk[older, K_NEWER] = newer
        blk[newer, K_OLDER] = older
        if reg[key] == b:
            reg[key] = newer
    blk[b, K_KEY] = -1


@jit
def register(blk, reg, b, key):
    """Make block b findable under `key`, as the newest of its duplicates."""
    blk[b, K_KEY] = key
    oldest = reg[key]
    if oldest == 0:
        reg[key] = b
        blk[b, K_NEWER] = b
        blk[b, K_OLDER] = b
    else:
        newest = blk[oldest, K_OLDER]
        blk[newest, K_NEWER] = b
        blk[b, K_OLDER] = newest
        blk[b, K_NEWER] = oldest
        blk[oldest, K_OLDER] = b


@jit
def take(blk, reg):
    """Return the block in front of the free list, taken out and forgotten."""
    b = blk[0, K_NEXT]
    after = blk[b, K_NEXT]
    blk[0, K_NEXT] = after
    blk[after, K_PREV] = 0
    if blk[b, K_KEY] >= 0:
        forget(blk, reg, b)
    blk[b, K_REFS] = 1
    return b


@jit
def give_back(state, blk, table, row, first, stop):
    """Release table[row, first:stop] from the last block to the first (`free_blocks`).

    Registered blocks go to the back of the free list, the others as one piece to its front.
    """
    front = 0
    for i in range(stop - 1, first - 1, -1):
        b = table[row, i]
        if b == 0:
            continue
        blk[b, K_REFS] -= 1
        if blk[b, K_REFS] == 0:
            state[S_FREE] += 1
            if blk[b, K_KEY] >= 0:
                link(blk, b, blk[0, K_PREV])
            else:
                link(blk, b, front)
                front = b


@jit
def release(settings, state, req, blk, table, num_groups, r):
    """Give back all blocks of request r, group by group."""
    row = req[r, R_ROW]
    width = settings[TABLE_WIDTH]
    for g in range(num_groups):
        held = req[r, R_GROUPS + g]
        give_back(state, blk, table, row, g * width, g * width + held)
        req[r, R_GROUPS + g] = 0
    req[r, R_SETTLED] = 0


# ---- Block tables: kv_cache_manager.py, single_type_kv_cache_manager.py


@jit
def blocks_for(span, fixed, g, tokens):
    """Return the blocks of group g that hold `tokens` tokens."""
    return fixed[g] if fixed[g] > 0 else (tokens + span[g] - 1) // span[g]


@jit
def drop_skipped(settings, state, req, blk, table, window, span, r, processed):
    """Replace blocks wholly before each window by null entries (`remove_skipped_blocks`)."""
    width = settings[TABLE_WIDTH]
    row = req[r, R_ROW]
    for g in range(len(window)):
        if window[g] == 0:
            continue
        skipped = max(processed - window[g] + 1, 0) // span[g]
        skipped = min(skipped, req[r, R_GROUPS + g])
        first = skipped
        while first > 0 and table[row, g * width + first - 1] != 0:
            first -= 1
        if first < skipped:
            give_back(state, blk, table, row, g * width + first, g * width + skipped)
            for i in range(first, skipped):
                table[row, g * width + i] = 0


@jit
def extend(settings, state, req, blk, reg, table, span, fixed, r, tokens):
    """Give request r blocks for `tokens` tokens in every group; the caller has checked the room."""
    width = settings[TABLE_WIDTH]
    row = req[r, R_ROW]
    for g in range(len(span)):
        goal = blocks_for(span, fixed, g, tokens)
        held = req[r, R_GROUPS + g]
        if goal > held:
            for i in range(held, goal):
                table[row, g * width + i] = take(blk, reg)
            state[S_FREE] -= goal - held
            req[r, R_GROUPS + g] = goal


@jit
def can_settle(settings, req, r, tokens):
    """Return whether `tokens` computed tokens fill a block of request r that is not yet settled."""
    known = req[r, R_KNOWN] - settings[KEY_AHEAD]
    return min(tokens, known) >= (req[r, R_SETTLED] + 1) * settings[BLOCK_SIZE]


@jit
def settle(settings, req, blk, reg, table, keys, window, num_keys, r, tokens):
    """Make the blocks of request r findable up to `tokens` tokens (`cache_blocks`).

    A window group registers only the blocks that a hit at the end of the prompt, or at the
    junction of the request's last lookup, would need (`prefix_cache_retention_interval` 0).
    """
    size = settings[BLOCK_SIZE]
    goal = min(tokens, req[r, R_KNOWN] - settings[KEY_AHEAD]) // size
    done = req[r, R_SETTLED]
    req[r, R_SETTLED] = goal
    width = settings[TABLE_WIDTH]
    row = req[r, R_ROW]
    offset = req[r, R_KEYS]
    tail = (req[r, R_PROMPT] - 1) // size
    junction = req[r, R_JUNCTION]
    for g in range(len(window)):
        reach = (window[g] - 1 + size - 1) // size
        for j in range(done, goal):
            b = table[row, g * width + j]
            if b == 0:
                continue
            if window[g] > 0 and not (tail - reach <= j < tail or junction - reach <= j < junction):
                continue
            register(blk, reg, b, g * num_keys + keys[offset + j])


@jit
def find_full(reg, keys, kind, hits, num_keys, offset, limit):
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
def find_window(reg, keys, kind, hits, num_keys, offset, limit, k, reach):
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
def lookup(settings, req, reg, keys, window, kind, hits, num_keys, r):
    """Return the blocks of request r found in the cache; `hits` gets their ids by group.

    `HybridKVCacheCoordinator.find_longest_cache_hit`: kinds shorten the hit in turn, until none
    does. Where one matched further than all together is kept as a junction.
    """
    size = settings[BLOCK_SIZE]
    offset = req[r, R_KEYS]
    limit = (req[r, R_KNOWN] - 1) // size
    num_kinds = 0
    for g in range(len(kind)):
        num_kinds = max(num_kinds, kind[g] + 1)
    has_full = False
    for g in range(len(kind)):
        if kind[g] == 0:
            has_full = has_full or window[g] == 0
    if has_full and num_kinds == 1:
        return find_full(reg, keys, kind, hits, num_keys, offset, limit)
    full = -1
    longest = 0
    hit = limit
    while True:
        current = hit
        for k in range(num_kinds):
            if k == 0 and has_full:
                if full < 0:
                    full = find_full(reg, keys, kind, hits, num_keys, offset, current)
                current = min(current, full)
            else:
                reach = 0
                for g in range(len(kind)):
                    if kind[g] == k:
                        reach = (window[g] - 1 + size - 1) // size
                current = find_window(reg, keys, kind, hits, num_keys, offset, current, k, reach)
            longest = max(longest, current)
        if current >= hit:
            break
        hit = current
        if num_kinds == 1 or (has_full and num_kinds == 2):
            break
    if len(kind) > 1:
        req[r, R_JUNCTION] = longest if longest > hit else 0
    return hit


@jit
def admission_need(settings, blk, window, span, fixed, hits, hit, tokens, capped):
    """Return the free blocks that an admission takes: new ones and hits that nobody holds."""
    need = 0
    for g in range(len(window)):
        size = span[g]
        required = blocks_for(span, fixed, g, tokens)
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
            if b != 0 and blk[b, K_REFS] == 0:
                need += 1
    return need


@jit
def hold_hits(settings, state, req, blk, table, window, hits, hit, r):
    """Put the hit blocks into the table of request r (`allocate_new_computed_blocks`)."""
    width = settings[TABLE_WIDTH]
    row = req[r, R_ROW]
    for g in range(len(window)):
        skipped = 0
        if window[g] > 0:
            skipped = max(hit * settings[BLOCK_SIZE] - window[g] + 1, 0) // settings[BLOCK_SIZE]
        for j in range(hit):
            b = hits[g, j] if j >= skipped else 0
            table[row, g * width + j] = b
            if b != 0:
                if blk[b, K_REFS] == 0:
                    unlink(blk, b)
                    state[S_FREE] -= 1
                blk[b, K_REFS] += 1
        req[r, R_GROUPS + g] = hit
    req[r, R_SETTLED] = hit
