"""Ranks among resampled values, compiled: which value of a trace has a given rank in each resample.

A resample draws pieces of a trace several times or not at all, so every value counts as often as
its piece was drawn. The weight of the first values is kept for every 64th only; between two of
those the values are walked.
"""

from __future__ import annotations

import numpy as np

from sieve.sim._kernels import jit

CHUNK = 64


@jit
def places(piece, weight, count, rank, last):
    """Return the places of the values of ranks `rank` and `rank + 1`, (2, ranks, resamples).

    Args:
        piece: (n,) piece of the trace of each value, the values in rising order.
        weight: (n,) how often each value counts, whole numbers.
        count: (resamples, pieces) how often each piece was drawn.
        rank: (ranks, resamples) whole ranks from 0, rising by the first axis or not.
        last: (resamples,) largest rank.
    """
    size, pieces = len(piece), count.shape[1]
    chunks = size // CHUNK
    before = np.zeros((chunks + 1, pieces))
    for chunk in range(chunks):
        before[chunk + 1] = before[chunk]
        for i in range(chunk * CHUNK, (chunk + 1) * CHUNK):
            before[chunk + 1, piece[i]] += weight[i]
    out = np.empty((2, rank.shape[0], rank.shape[1]), np.int64)
    for r in range(rank.shape[1]):
        drawn = count[r]
        for k in range(rank.shape[0]):
            wanted = rank[k, r]
            low, high = 0, chunks
            while low < high:
                middle = (low + high + 1) // 2
                total = 0.0
                for j in range(pieces):
                    total += before[middle, j] * drawn[j]
                if total <= wanted:
                    low = middle
                else:
                    high = middle - 1
            total = 0.0
            for j in range(pieces):
                total += before[low, j] * drawn[j]
            i = low * CHUNK
            for step in range(2):
                if step == 1:
                    wanted = min(wanted + 1, last[r])
                while i < size:
                    more = total + weight[i] * drawn[piece[i]]
                    if more > wanted:
                        break
                    total = more
                    i += 1
                out[step, k, r] = min(i, size - 1)
    return out
