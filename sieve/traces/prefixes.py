"""Shared beginnings of drawn prompts."""

from __future__ import annotations

from typing import Final

import numpy as np

from sieve.arrays import IntArray, PrefixBlocks

BLOCK_TOKENS: Final = 16


def shared_beginnings(
    prompt: IntArray, tokens: IntArray, group: IntArray, block_tokens: int = BLOCK_TOKENS
) -> PrefixBlocks:
    """Return the blocks of prompts that begin with one of several texts.

    Only whole shared blocks are told; what follows is each prompt's own.

    Args:
        prompt: (n,) tokens of the prompts.
        tokens: (n,) tokens of the shared text in front, the same within a group.
        group: (n,) which text.
        block_tokens: tokens of a block.
    """
    count = np.minimum(tokens, prompt) // block_tokens
    start = np.concatenate(([0], np.cumsum(count))).astype(np.int64)
    most = int(count.max(initial=0))
    inside = np.arange(int(start[-1])) - np.repeat(start[:-1], count)
    ids = np.repeat(group, count) * most + inside
    dense = np.unique(ids, return_inverse=True)[1].astype(np.int64)
    return PrefixBlocks(block_tokens, start, dense, prompt)
