"""Placing a replica on nodes, against hand-made cases and against trying every number of nodes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sieve.validity.nodes import replica_nodes


def placed(tp: int, pp: int, gpus: int, *, most: int = 64, across: bool = False) -> int:
    found = replica_nodes(
        np.array([tp]), np.array([pp]), gpus_per_node=gpus, most_nodes=most, tp_across=across
    )
    return int(found[0])


@pytest.mark.parametrize(
    ("tp", "pp", "across", "nodes"),
    [
        (8, 1, False, 1),  # a node of 8 is full
        (4, 2, False, 1),
        (8, 2, False, 2),  # a stage on each
        (4, 4, False, 2),  # two stages on each
        (4, 3, False, 3),  # 12 ranks: two nodes would tear the second stage
        (8, 16, False, 16),
        (16, 1, False, 0),  # tensor ranks stay in a node
        (16, 1, True, 2),
        (16, 2, True, 4),
        (12, 1, True, 2),  # 6 and 6
    ],
)
def test_nodes_of_eight(tp: int, pp: int, across: bool, nodes: int) -> None:
    assert placed(tp, pp, 8, across=across) == nodes


def test_more_nodes_than_allowed_is_none() -> None:
    assert placed(8, 4, 8, most=3) == 0
    assert placed(8, 4, 8, most=4) == 4


@given(st.integers(1, 24), st.integers(1, 12), st.integers(1, 9), st.integers(1, 40), st.booleans())
def test_it_is_the_fewest_that_can_hold_it(
    tp: int, pp: int, gpus: int, most: int, across: bool
) -> None:
    def holds(nodes: int) -> bool:
        if tp * pp % nodes or tp * pp // nodes > gpus:
            return False
        ranks = tp * pp // nodes
        if tp <= gpus:
            return ranks % tp == 0  # whole stages
        return across and tp % ranks == 0  # even parts of one stage

    legal = [nodes for nodes in range(1, min(most, tp * pp) + 1) if holds(nodes)]
    assert placed(tp, pp, gpus, most=most, across=across) == (legal[0] if legal else 0)


def test_columns_are_answered_together() -> None:
    tp, pp = np.array([1, 8, 16, 8]), np.array([1, 2, 1, 2])
    found = replica_nodes(tp, pp, gpus_per_node=8, most_nodes=2)
    assert found.tolist() == [1, 2, 0, 2]
