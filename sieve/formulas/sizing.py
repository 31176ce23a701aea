"""Sizing arithmetic: KV pages, batch limits, collectives, shortlist, money.

Every function takes scalars or arrays that broadcast and returns arrays. Numbers in parentheses
name the section of the sizing specification that a formula follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sieve.arrays import FloatArray, IntArray
from sieve.errors import InvalidInput

Numbers = npt.ArrayLike


def gfloor_array(x: Numbers) -> IntArray:
    """Return the guarded floor (1.3): the nearest integer when within 1e-9 relative, else floor."""
    values = np.asarray(x, np.float64)
    nearest = np.rint(values)
    close = np.abs(values - nearest) <= 1e-9 * np.maximum(1.0, np.abs(values))
    return np.asarray(np.where(close, nearest, np.floor(values)), np.int64)


def ceil_div(a: Numbers, b: Numbers) -> IntArray:
    """Return the whole-number quotient of a and b rounded up."""
    return np.asarray(-(-np.asarray(a, np.int64) // np.asarray(b, np.int64)), np.int64)


@dataclass(frozen=True, eq=False)
class KvPages:
    """Pages of the KV cache on one GPU; arrays of one shape, bytes and counts.

    Attributes:
        budget_bytes: share of the card the engine may use.
        shard_bytes: weights on the fullest rank.
        page_bytes: one page.
        pages: pages that fit beside the weights.
        reserved: pages held back.
        usable: pages minus reserved; also the page count of a replica.
        weights_overflow: the weights alone exceed the budget.
    """

    budget_bytes: FloatArray
    shard_bytes: FloatArray
    page_bytes: FloatArray
    pages: IntArray
    reserved: IntArray
    usable: IntArray
    weights_overflow: npt.NDArray[np.bool_]

    @property
    def fits(self) -> npt.NDArray[np.bool_]:
        """At least one usable page beside the weights."""
        return np.asarray(~self.weights_overflow & (self.usable >= 1), np.bool_)


def page_bytes(
    *, kv_layers: Numbers, kv_heads: Numbers, head_dim: Numbers, kv_bytes_per_element: Numbers,
    tp: Numbers, pp: Numbers, page_tokens: Numbers,
) -> FloatArray:  # fmt: skip
    """Return the bytes of one page on one rank (9.2): the fullest stage, whole KV heads."""
    layers = ceil_div(kv_layers, pp)
    heads = np.maximum(1, ceil_div(kv_heads, tp))
    elements = 2 * np.asarray(page_tokens, np.int64) * layers * heads * np.asarray(head_dim)
    return np.asarray(elements * np.asarray(kv_bytes_per_element, np.float64), np.float64)


def kv_pages(
    *, card_bytes: Numbers, weight_bytes: Numbers, kv_layers: Numbers, kv_heads: Numbers,
    head_dim: Numbers, kv_bytes_per_element: Numbers, tp: Numbers = 1, pp: Numbers = 1,
    utilisation: Numbers = 0.9, page_tokens: Numbers = 16, reserve: Numbers = 0.01,
) -> KvPages:  # fmt: skip
    """Return how many KV pages fit beside the weights of one model shard (9.2).

    Raises:
        InvalidInput: a size, count or share that is not positive.
    """
    for name, value in (
        ("card_bytes", card_bytes), ("kv_layers", kv_layers), ("kv_heads", kv_heads),
        ("head_dim", head_dim), ("tp", tp), ("pp", pp), ("utilisation", utilisation),
        ("kv_bytes_per_element", kv_bytes_per_element), ("page_tokens", page_tokens),
    ):  # fmt: skip
        _require_positive(name, value)
    weights = np.asarray(weight_bytes, np.float64)
    if not bool(np.all(weights >= 0)):
        raise InvalidInput(f"weight_bytes is {weights.min():g}; it must be 0 or more")
    budget = np.asarray(utilisation, np.float64) * np.asarray(card_bytes, np.float64)
    ranks = np.asarray(tp, np.int64) * np.asarray(pp, np.int64)
    shard = np.asarray(weight_bytes, np.float64) / ranks
    page = page_bytes(
        kv_layers=kv_layers, kv_heads=kv_heads, head_dim=head_dim, tp=tp, pp=pp,
        kv_bytes_per_element=kv_bytes_per_element, page_tokens=page_tokens,
    )  # fmt: skip
    overflow = shard > budget
    pages = np.where(overflow, 0, gfloor_array((budget - shard) / page))
    reserved = -gfloor_array(-np.asarray(reserve, np.float64) * pages)
    usable = pages - reserved
    shape = np.broadcast_shapes(budget.shape, shard.shape, page.shape)
    return KvPages(
        budget_bytes=np.broadcast_to(budget, shape),
        shard_bytes=np.broadcast_to(shard, shape),
        page_bytes=np.broadcast_to(page, shape),
        pages=np.broadcast_to(pages, shape),
        reserved=np.broadcast_to(reserved, shape),
        usable=np.broadcast_to(usable, shape),
        weights_overflow=np.broadcast_to(overflow, shape),
    )


@dataclass(frozen=True, eq=False)
class BatchLimits:
    """The largest batch by each limit; arrays of one shape.

    Attributes:
        by_pages: requests whose whole length fits the pages.
        by_tpot: requests that one iteration may read within the TPOT target; a large number
            where there is no target.
        by_max_num_seqs: the sequence limit.
        by_slim: the saturation model's recommendation, None where it was not asked.
    """

    by_pages: IntArray
    by_tpot: IntArray
    by_max_num_seqs: IntArray
    by_slim: IntArray | None = None

    @property
    def batch(self) -> IntArray:
        """The smallest of the limits."""
        plain = np.minimum(np.minimum(self.by_pages, self.by_tpot), self.by_max_num_seqs)
        return plain if self.by_slim is None else np.minimum(plain, self.by_slim)

    @property
    def binding(self) -> npt.NDArray[np.str_]:
        """The first of pages, tpot, max_num_seqs, slim that attains the batch."""
        return np.asarray(np.array(LIMITS)[self.place], np.str_)

    @property
    def place(self) -> npt.NDArray[np.int8]:
        """The place of `binding` among `LIMITS`."""
        batch = self.batch
        found = np.where(self.by_max_num_seqs == batch, np.int8(2), np.int8(3))
        found = np.where(self.by_tpot == batch, np.int8(1), found)
        return np.where(self.by_pages == batch, np.int8(0), found)


LIMITS = ("pages", "tpot", "max_num_seqs", "slim")
"""What may bind a batch, the first that attains it counts."""
NO_LIMIT = 2**62
"""Stands for 'no target' in `BatchLimits.by_tpot`."""


def max_batch(
    *, usable_pages: Numbers, tokens_per_seq: Numbers, max_num_seqs: Numbers,
    weight_bytes: Numbers, kv_read_bytes_per_seq: Numbers, bandwidth: Numbers,
    overhead_s: Numbers, tpot_slo_s: Numbers | None, page_tokens: Numbers = 16,
) -> BatchLimits:  # fmt: skip
    """Return the batch limits of stage 3 (9.5): TPOT(b) = overhead + (weights + b kv)/bandwidth."""
    _require_positive("tokens_per_seq", tokens_per_seq)
    _require_positive("kv_read_bytes_per_seq", kv_read_bytes_per_seq)
    _require_positive("bandwidth", bandwidth)
    by_pages = np.asarray(usable_pages, np.int64) // ceil_div(tokens_per_seq, page_tokens)
    seqs = np.asarray(max_num_seqs, np.int64)
    if tpot_slo_s is None:
        by_tpot: IntArray = np.asarray(NO_LIMIT, np.int64)
    else:
        room = np.asarray(bandwidth, np.float64) * (
            np.asarray(tpot_slo_s, np.float64) - np.asarray(overhead_s, np.float64)
        )
        by_tpot = np.maximum(
            0, gfloor_array((room - np.asarray(weight_bytes)) / np.asarray(kv_read_bytes_per_seq))
        )
    by_pages, by_tpot, seqs = np.broadcast_arrays(by_pages, by_tpot, seqs)
    return BatchLimits(by_pages, by_tpot, seqs)


def decode_step_s(
    *, batch: Numbers, weight_bytes: Numbers, kv_read_bytes_per_seq: Numbers, bandwidth: Numbers,
    overhead_s: Numbers,
) -> FloatArray:  # fmt: skip
    """Return the memory-bound time of one decode iteration in seconds (9.5)."""
    traffic = np.asarray(weight_bytes, np.float64) + np.asarray(batch) * np.asarray(
        kv_read_bytes_per_seq, np.float64
    )
    return np.asarray(np.asarray(overhead_s, np.float64) + traffic / np.asarray(bandwidth))


def shortlist(
    scores: Numbers,
    ids: npt.ArrayLike,
    families: npt.ArrayLike,
    *,
    size: int,
    per_family: int,
    preferred: Sequence[npt.ArrayLike] = (),
) -> IntArray:
    """Return the positions of the shortlisted candidates in the order taken (9.6).

    Sorted by falling score, then id; a candidate is taken while its family has fewer than
    `per_family` members, until `size` are taken. With `preferred` such lists take turns: all
    candidates, and each subset of preferred ones.

    Args:
        scores: (n,) larger is better.
        ids: (n,) decide between equal scores, smaller first.
        families: (n,) labels of equal family.
        size: how many to take.
        per_family: most of one family.
        preferred: subsets as (n,) booleans.
    """
    order = np.lexsort((np.asarray(ids), -np.asarray(scores, np.float64)))
    _, family = np.unique(np.asarray(families), return_inverse=True)
    orders = [order, *(order[np.asarray(subset, np.bool_)[order]] for subset in preferred)]
    return by_turns(orders, family, size=size, per_family=per_family)


def by_turns(
    orders: Sequence[IntArray], family: IntArray, *, size: int, per_family: int
) -> IntArray:
    """Return the positions taken by turns from several lists, in the order taken.

    Each list gives its first candidate that is not taken and whose family has fewer than
    `per_family` members, until `size` are taken.

    Args:
        orders: positions of candidates, the best first; lists may overlap.
        family: (n,) numbers of equal family, by position.
        size: how many to take.
        per_family: most of one family.
    """
    queues = [iter(capped(order, family, per_family, len(orders) * size)) for order in orders]
    taken: dict[int, None] = {}
    members: dict[int, int] = {}
    while queues and len(taken) < size:
        for queue in list(queues):
            if len(taken) == size:
                break
            # What a list passes over now, taken or with a full family, it never takes later.
            open_ = (i for i in queue if i not in taken and members.get(family[i], 0) < per_family)
            chosen = next(open_, None)
            if chosen is None:
                queues.remove(queue)
                continue
            taken[chosen] = None
            members[family[chosen]] = members.get(family[chosen], 0) + 1
    return np.array(list(taken), np.int64)


def capped(order: IntArray, family: IntArray, per_family: int, count: int) -> list[int]:
    """Return the first `count` of an order with at most `per_family` of one family."""
    ranked = family[order]
    by_family = np.argsort(ranked, kind="stable")
    sorted_family = ranked[by_family]
    starts = np.r_[0, np.flatnonzero(np.diff(sorted_family)) + 1]
    lengths = np.diff(np.r_[starts, len(order)])
    rank = np.empty(len(order), np.int64)
    rank[by_family] = np.arange(len(order)) - np.repeat(starts, lengths)
    kept: list[int] = order[rank < per_family][:count].tolist()
    return kept


def cost_per_mtok(
    *, usd_per_gpu_hour: Numbers, gpus: Numbers, tokens_per_s: Numbers,
    gpus_per_node: int | None = None,
) -> FloatArray:  # fmt: skip
    """Return USD per million output tokens (9.1); whole nodes are paid if `gpus_per_node` is given.

    Zero throughput has no cost: the result is nan there.
    """
    paid = np.asarray(gpus, np.int64)
    if gpus_per_node is not None:
        paid = ceil_div(paid, gpus_per_node) * gpus_per_node
    rate = np.asarray(tokens_per_s, np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        cost = np.asarray(usd_per_gpu_hour, np.float64) * paid * 1e6 / (3600.0 * rate)
    return np.asarray(np.where(rate > 0, cost, np.nan), np.float64)


def allreduce_s(
    *, tp: Numbers, message_bytes: Numbers, link_bandwidth: Numbers, step_latency_s: Numbers
) -> FloatArray:
    """Return the time of one ring all-reduce in seconds (9.6): sent/link + steps x latency."""
    ranks = np.asarray(tp, np.float64)
    sent = 2 * (ranks - 1) / ranks * np.asarray(message_bytes, np.float64)
    steps = 2 * (ranks - 1)
    return np.asarray(sent / np.asarray(link_bandwidth) + steps * np.asarray(step_latency_s))


def _require_positive(name: str, value: Numbers) -> None:
    values = np.asarray(value, np.float64)
    if not bool(np.all(np.isfinite(values) & (values > 0))):
        bad = values[~(np.isfinite(values) & (values > 0))].flat[0]
        raise InvalidInput(f"{name} is {bad:g}; it must be above 0")
