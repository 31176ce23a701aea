"""From the shared blocks of a trace to the block keys of an engine, compiled."""

from __future__ import annotations

import numpy as np

from sieve.sim._kernels import jit


@jit
def expand_keys(chain, chain_start, shared, block_tokens, block_size, per_chain):
    """Return the keys of the engine's blocks that lie in shared blocks of the trace.

    A block of the engine is told by the trace's block that holds its last token, and by its place
    among those that end there.

    Args:
        chain: int64 numbers of the trace's blocks.
        chain_start: (n,) int64 offset of a request's blocks in `chain`.
        shared: (n,) int64 leading blocks of the engine that get keys.
        block_tokens: tokens in a block of the trace.
        block_size: tokens in a block of the engine.
        per_chain: most blocks of the engine that end in one of the trace.

    Returns:
        int32 keys, request after request.
    """
    total = 0
    for r in range(len(shared)):
        total += shared[r]
    keys = np.empty(total, np.int32)
    k = 0
    for r in range(len(shared)):
        b = 0  # block of the trace
        first = 0  # first of the engine's blocks that ends in it
        for i in range(shared[r]):
            end = (i + 1) * block_size
            while end > (b + 1) * block_tokens:
                b += 1
                first = i
            keys[k] = chain[chain_start[r] + b] * per_chain + (i - first)
            k += 1
    return keys
