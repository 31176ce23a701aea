"""How many nodes a replica takes, and why one may not.

Ranks fill nodes in order, the tensor ranks of a stage next to each other, and every node holds
equally many. Source: vLLM `config/parallel.py`: `local_world_size` is the world size over
`nnodes`, and the placement of ranks in `distributed/parallel_state.py`.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from sieve.arrays import IntArray
from sieve.formulas.repeats import distinct

_LARGE: Final = 2**31


def replica_nodes(
    tp: IntArray, pp: IntArray, *, gpus_per_node: int, most_nodes: int = 1, tp_across: bool = False
) -> IntArray:
    """Return the fewest nodes that hold one replica, 0 where no allowed number does, (n,).

    Stages are whole: a node holds equally many of them, or a stage takes several nodes (only with
    `tp_across`, and only where its tensor ranks exceed a node).

    Args:
        tp: (n,) tensor parallel sizes.
        pp: (n,) pipeline parallel sizes.
        gpus_per_node: GPUs of a node.
        most_nodes: that a replica may take.
        tp_across: the tensor ranks of a stage may stand on several nodes.
    """
    needed = nodes_needed(tp, pp, gpus_per_node)
    inside = (tp <= gpus_per_node) | tp_across
    return np.where(inside & (needed <= most_nodes), needed, 0)


def nodes_needed(tp: IntArray, pp: IntArray, gpus_per_node: int) -> IntArray:
    """Return the fewest nodes on which one replica could stand, were all allowed, (n,)."""
    pairs, place = distinct(np.asarray(tp, np.int64) * _LARGE + pp)
    found = [_nodes_needed(pair // _LARGE, pair % _LARGE, gpus_per_node) for pair in pairs.tolist()]
    return np.array(found, np.int64)[place]


def _nodes_needed(tp: int, pp: int, gpus_per_node: int) -> int:
    if tp <= gpus_per_node:
        shares = (n for n in range(1, pp + 1) if pp % n == 0 and tp * pp // n <= gpus_per_node)
        return next(shares)
    parts = next(n for n in range(1, tp + 1) if tp % n == 0 and tp // n <= gpus_per_node)
    return parts * pp
