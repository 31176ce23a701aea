"""A race of candidates for a place on the shortlist, on arrays.

A shape is a family with its EP degree and precisions; its members differ in limits. Short replays
cost, so few of each shape run first, then more of the shapes in the lead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from sieve.arrays import FloatArray, IntArray
from sieve.formulas.sizing import by_turns, capped

BREADTH: Final = (2, 4, 8)
"""Shapes of one family in the first round: two of each before a third of any."""
FRONT: Final = 8
"""Shapes of which the second round takes more, those that lead after the first."""
SLACKS: Final = (1.0, 1.05, 1.1, 1.2)
"""Factors by which limits are eased, by turns, to see who leads: another budget may hold."""
DEPTH: Final = 12
"""Most of one shape in the second round."""
WAVE: Final = 24
"""Shapes that enter the first round at a time."""


def race(
    orders: Sequence[IntArray],
    family: IntArray,
    shape: IntArray,
    others: IntArray,
    ask: Callable[[IntArray, float], IntArray],
    cleared: Callable[[IntArray], FloatArray],
    bound: FloatArray,
    *,
    entries: int,
) -> IntArray:
    """Return the positions of those that raced, the best first.

    The first round takes of each shape the first of the lists and the one at the other end of its
    limits. Once `FRONT` shapes clear, nobody enters whose bound is worse than what all those reach.
    A shape that just misses may hold with limits between them, so the second round takes
    shapes by turns from the order as it is and from those with eased limits.

    Args:
        orders: positions of candidates, the best first; lists may overlap.
        family: (n,) numbers of equal family, by position.
        shape: (n,) numbers of equal shape, by position; a shape lies in one family.
        others: position of the other end of each shape.
        ask: returns positions in the order of their replays, with limits eased by a factor.
        cleared: returns what positions reach of the objective in their replays, smaller is better;
            infinite for those that do not clear.
        bound: (n,) what each candidate reaches of the objective at best.
        entries: most candidates that a round takes.
    """
    firsts = [np.array(capped(o, shape, 1, len(o)), np.int64) for o in orders]
    turns = [by_turns(firsts, family, size=len(family), per_family=most) for most in BREADTH]
    entered = np.array(list(dict.fromkeys(np.concatenate(turns).tolist())))[: entries // 2]
    broad, limit = entered[:0], np.inf
    for start in range(0, len(entered), WAVE):
        wave = entered[start : start + WAVE]
        wave = np.union1d(wave, others[np.isin(shape[others], shape[wave])])
        broad = np.union1d(broad, wave[bound[wave] <= limit])
        limit = _reached(shape[broad], cleared(broad))
    front = shape[by_turns([ask(broad, x) for x in SLACKS], shape, size=FRONT, per_family=1)]
    inside = [order[np.isin(shape[order], front)] for order in orders]
    deep = by_turns(inside, shape, size=entries, per_family=DEPTH)
    return ask(np.union1d(broad, deep[bound[deep] <= limit]), 1.0)


def _reached(shape: IntArray, values: FloatArray) -> float:
    """Return what `FRONT` shapes reach at least; infinite while fewer clear."""
    _, number = np.unique(shape, return_inverse=True)
    best = np.full(int(number.max(initial=0)) + 1, np.inf)
    np.minimum.at(best, number, values)
    return float(np.sort(best)[FRONT - 1]) if len(best) >= FRONT else np.inf
