"""The candidates that no other beats on everything at once."""

from __future__ import annotations

import numpy as np

from sieve.arrays import BoolArray, FloatArray


def pareto_front(keys: FloatArray) -> BoolArray:
    """Return which of n candidates are on the front, (n,); equals share their place.

    A candidate is beaten by one that is at least as good on every key and better on one; one with
    an unknown key is not on the front and beats nobody.

    Args:
        keys: (k, n), smaller is better.
    """
    known: BoolArray = np.asarray(~np.isnan(keys).any(axis=0), np.bool_)
    front = known.copy()
    for i in np.flatnonzero(known):
        if front[i]:
            own = keys[:, i : i + 1]
            front &= ~((keys >= own).all(axis=0) & (keys > own).any(axis=0))
    return front
