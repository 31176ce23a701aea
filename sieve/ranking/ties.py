"""Tie groups by overlap with the group's leader."""

from __future__ import annotations

from collections.abc import Sequence

from sieve.arrays import FloatArray


def tie_groups(
    verdicts: Sequence[str], best: Sequence[FloatArray], worst: Sequence[FloatArray]
) -> list[int]:
    """Return the tie group of every ranked candidate, numbered from 1.

    The first candidate without a group leads the next one and takes every remaining candidate of
    its verdict whose best end reaches its own worst end on every key. Groups are not transitive:
    members tie with the leader. A candidate whose interval overlaps but that stands behind one
    that does not keeps its place in the order, so a group ends at the first that can be told apart.

    Args:
        verdicts: in ranking order.
        best: keys where smaller is better, at their best ends, (n,) each.
        worst: the same keys at their worst ends.
    """
    groups: list[int] = []
    leader = 0
    for i in range(len(verdicts)):
        tied = verdicts[i] == verdicts[leader] and all(
            b[i] <= w[leader] for b, w in zip(best, worst, strict=True)
        )
        if not groups:
            groups.append(1)
        elif tied:
            groups.append(groups[-1])
        else:
            leader = i
            groups.append(groups[-1] + 1)
    return groups
