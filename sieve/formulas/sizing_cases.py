"""Sizing arithmetic one case at a time: JSON object in, JSON object out.

The array functions of `sieve.formulas.sizing` compute; this module reads inputs by name and keeps
states apart from errors. Numbers in parentheses name the section of the sizing specification that a
rule follows. The grid of 9.4 is in `sizing_grid`, validation against runs in `sizing_tracking`.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Mapping
from typing import Final

from sieve.errors import InvalidInput
from sieve.formulas import sizing
from sieve.formulas.fields import MAX_WHOLE, Fields, Formula, Outputs, at_least, formula, number
from sieve.formulas.sizing_grid import first_fault, grid, pages_within_range
from sieve.formulas.sizing_tracking import tracking, windows

HOURS_PER_MONTH: Final = 730.0


@formula("node_rate_per_hour", "tokens_per_s", nodes=None, gpus=None, gpus_per_node=8)
def cost_per_mtok(given: Fields) -> Outputs:
    """Return USD per million output tokens; whole nodes are paid (9.1)."""
    if given.has("nodes") and given.has("gpus"):
        raise InvalidInput("nodes, gpus: give one of them")
    if given.has("gpus"):
        nodes = -(-given.whole("gpus") // given.whole("gpus_per_node"))
    else:
        nodes = given.whole("nodes") if given.has("nodes") else 1
    # The unit that is paid is a node, at the rate of a node.
    cost = sizing.cost_per_mtok(
        usd_per_gpu_hour=given.number("node_rate_per_hour", low=0),
        gpus=nodes,
        tokens_per_s=given.number("tokens_per_s", above=0),
    )
    return {"usd_per_mtok": float(cost)}


@formula(
    "runs", "node_rate_per_hour", hours_per_run=0.5, gpus_per_run=8, parallel_nodes=1,
)  # fmt: skip
def campaign(given: Fields) -> Outputs:
    """Return node-hours, GPU-hours, USD and months of a measuring campaign (9.1)."""
    node_hours = given.whole("runs", low=0) * given.number("hours_per_run", above=0)
    return {
        "node_hours": node_hours,
        "gpu_hours": node_hours * given.whole("gpus_per_run"),
        "cost": node_hours * given.number("node_rate_per_hour", low=0),
        "months": node_hours / given.whole("parallel_nodes") / HOURS_PER_MONTH,
    }


@formula("isl", "osl")
def prefill_share(given: Fields) -> Outputs:
    """Return the share of prompt tokens among all tokens (9.1)."""
    isl, osl = given.number("isl", low=0), given.number("osl", low=0)
    if isl + osl <= 0:
        raise InvalidInput("isl, osl: both are 0, so there is no share; one must be above 0")
    # Not isl / (isl + osl): the sum may leave double precision.
    return {"share": 0.0 if isl == 0 else 1.0 / (1.0 + osl / isl)}


@formula("max_num_batched_tokens", "concurrency", "prompt")
def token_budget(given: Fields) -> Outputs:
    """Return the tokens of an iteration per request, and the iterations of a prompt (9.1)."""
    budget, concurrency = given.whole("max_num_batched_tokens"), given.whole("concurrency")
    per_request = budget // concurrency
    if per_request < 1:
        raise InvalidInput(
            f"max_num_batched_tokens: {budget} leave less than one token to each of "
            f"{concurrency} requests; raise it or lower the concurrency"
        )
    return {"per_request": per_request, "chunks": -(-given.whole("prompt") // per_request)}


@formula("t_1", "t_n", "n")
def scaling(given: Fields) -> Outputs:
    """Return speedup and efficiency of n units with throughput t_n against one with t_1 (9.1)."""
    speedup = given.number("t_n", above=0) / given.number("t_1", above=0)
    return {"speedup": speedup, "efficiency": speedup / given.whole("n")}


@formula(
    "card_bytes", "weight_bytes", "kv_layers", "kv_heads", "head_dim", "kv_bytes_per_element",
    tp=1, pp=1, utilisation=0.9, page_tokens=16, reserve=0.01,
)  # fmt: skip
def kv_pages(given: Fields) -> Outputs:
    """Return the KV pages beside the weights of one GPU (9.2)."""
    pages = pages_within_range(
        card_bytes=given.number("card_bytes", above=0),
        weight_bytes=given.number("weight_bytes", low=0),
        kv_layers=given.whole("kv_layers"),
        kv_heads=given.whole("kv_heads"),
        head_dim=given.whole("head_dim"),
        kv_bytes_per_element=given.number("kv_bytes_per_element", above=0),
        tp=given.whole("tp"),
        pp=given.whole("pp"),
        utilisation=given.number("utilisation", above=0, high=1),
        page_tokens=given.whole("page_tokens"),
        reserve=given.number("reserve", low=0, high=1),
    )
    page = float(pages.page_bytes)
    reason = "weights_overflow" if bool(pages.weights_overflow) else "no_page"
    return {
        "budget": float(pages.budget_bytes),
        "shard": float(pages.shard_bytes),
        "page_bytes": int(page) if page.is_integer() else page,
        "pages": int(pages.pages),
        "reserved": int(pages.reserved),
        "usable": int(pages.usable),
        "fits": bool(pages.fits),
        "reason": None if bool(pages.fits) else reason,
    }


@formula("usable_pages", "tokens_per_seq", page_tokens=16)
def concurrency(given: Fields) -> Outputs:
    """Return how many requests of a whole length the pages hold (9.2)."""
    per_request = -(-given.whole("tokens_per_seq") // given.whole("page_tokens"))
    return {"requests": given.whole("usable_pages", low=0) // per_request}


@formula("tp", "pp", "replicas", "heads", "width", "layers", "gpu_budget", node_gpus=8)
def stage1(given: Fields) -> Outputs:
    """Return whether a parallel layout is valid, with the first rule that it breaks (9.3)."""
    names = ("tp", "pp", "replicas", "heads", "width", "layers", "gpu_budget", "node_gpus")
    reason = first_fault(**{name: given.whole(name) for name in names})
    return {"ok": reason is None, "reason": reason}


@formula(
    "usable_pages", "tokens_per_seq", "max_num_seqs", "weight_bytes", "kv_read_bytes_per_seq",
    "bandwidth", "overhead_s", "tpot_slo", page_tokens=16,
)  # fmt: skip
def max_batch(given: Fields) -> Outputs:
    """Return the batch that pages, TPOT and the sequence limit allow, and which binds (9.5).

    A batch of 0 is a state: the configuration drops out for the binding limit.
    """
    bandwidth, kv_read = given.number("bandwidth", above=0), given.number("kv_read_bytes_per_seq")
    weights, overhead = given.number("weight_bytes", low=0), given.number("overhead_s", low=0)
    slo = given.number("tpot_slo", above=0)
    if kv_read <= 0:
        raise InvalidInput(
            f"kv_read_bytes_per_seq: found {kv_read:g}, expected above 0; a cache that takes no "
            "memory bounds no batch"
        )
    if (bandwidth * (slo + overhead) + weights) / kv_read > MAX_WHOLE:
        raise InvalidInput(
            "kv_read_bytes_per_seq: so small that the batch passes 2**53; give bytes"
        )
    limits = sizing.max_batch(
        usable_pages=given.whole("usable_pages", low=0),
        page_tokens=given.whole("page_tokens"),
        tokens_per_seq=given.whole("tokens_per_seq"),
        max_num_seqs=given.whole("max_num_seqs"),
        weight_bytes=weights,
        kv_read_bytes_per_seq=kv_read,
        bandwidth=bandwidth,
        overhead_s=overhead,
        tpot_slo_s=slo,
    )
    return {
        "by_pages": int(limits.by_pages),
        "by_tpot": int(limits.by_tpot),
        "by_max_num_seqs": int(limits.by_max_num_seqs),
        "batch": int(limits.batch),
        "binding": str(limits.binding),
    }


@formula("candidates", size=20, per_family=3)
def shortlist(given: Fields) -> Outputs:
    """Return the ids taken by falling score while their family has room (9.6)."""
    rows = given.records("candidates", "id", "score", "gpu", "tp", "pp", "replicas", extra=True)
    ids = _unique_ids(rows)
    place = {item: i for i, item in enumerate(_sorted_ids(ids))}
    families: dict[tuple[object, ...], int] = {}
    members = [
        families.setdefault(
            (row.identity("gpu"), row.whole("tp"), row.whole("pp"), row.whole("replicas")),
            len(families),
        )
        for row in rows
    ]
    taken = sizing.shortlist(
        [row.number("score") for row in rows],
        [place[item] for item in ids],
        members,
        size=given.whole("size", low=0),
        per_family=given.whole("per_family", low=0),
    )
    return {"ids": [ids[i] for i in taken]}


@formula("x", "y", "z", "at")
def interpolate(given: Fields) -> Outputs:
    """Return the bilinear value of a table and whether it lies above the grid (9.6).

    Below the grid the edge holds; above it the last segment goes on and is flagged.
    """
    x, y, at = given.numbers("x", least=2), given.numbers("y", least=2), given.numbers("at")
    if len(at) != 2:
        raise InvalidInput(f"at: has {len(at)} entries, expected [x, y]")
    rows = [
        [number(value, f"{path}[{j}]") for j, value in enumerate(row)]
        for path, row in given.tuples("z", len(y))
    ]
    if len(rows) != len(x):
        raise InvalidInput(f"z: has {len(rows)} rows, expected one for each of {len(x)} x")
    i, u = _segment(x, at[0], "x")
    j, v = _segment(y, at[1], "y")
    low = rows[i][j] + (rows[i][j + 1] - rows[i][j]) * v
    high = rows[i + 1][j] + (rows[i + 1][j + 1] - rows[i + 1][j]) * v
    return {"value": low + (high - low) * u, "extrapolated": at[0] > x[-1] or at[1] > y[-1]}


def _segment(axis: list[float], at: float, name: str) -> tuple[int, float]:
    """Return the segment that holds `at` and the place in it: 0 at its start, 1 at its end."""
    if any(b <= a for a, b in itertools.pairwise(axis)):
        raise InvalidInput(f"{name}: must rise from entry to entry")
    i = min(max(bisect.bisect_right(axis, at) - 1, 0), len(axis) - 2)
    return i, max(0.0, (at - axis[i]) / (axis[i + 1] - axis[i]))


@formula("tp", "bytes", "link_bandwidth", "step_latency")
def allreduce(given: Fields) -> Outputs:
    """Return bytes sent, steps and seconds of one ring all-reduce (9.6)."""
    ranks, size = given.whole("tp"), given.number("bytes", low=0)
    time = sizing.allreduce_s(
        tp=ranks,
        message_bytes=size,
        link_bandwidth=given.number("link_bandwidth", above=0),
        step_latency_s=given.number("step_latency", low=0),
    )
    return {
        "bytes_sent_per_gpu": 2 * (ranks - 1) / ranks * size,
        "steps": 2 * (ranks - 1),
        "time": float(time),
    }


@formula("requests", "input_scale", "output_scale", "max_model_len")
def trace_check(given: Fields) -> Outputs:
    """Return whether a replayed trace may be compared with a real engine, else why not (9.7)."""
    rows = given.records("requests", "arrival", "prompt", "output", extra=True)
    arrivals = [row.number("arrival") for row in rows]
    lengths = [row.whole("prompt", low=0) + row.whole("output", low=0) for row in rows]
    longest = given.whole("max_model_len")
    checks = {
        "input_scale": given.number("input_scale") == 1,
        "output_scale": given.number("output_scale") == 1,
        "max_length": all(longest > length for length in lengths),
        "arrival_order": all(a <= b for a, b in itertools.pairwise(arrivals)),
    }
    reasons = [name for name, holds in checks.items() if not holds]
    return {"ok": not reasons, "reasons": reasons}


@formula("config", "targets", "e_over", "e_under")
def verdict(given: Fields) -> Outputs:
    """Return clears, point_only or misses: targets at the bad end, at the point, or not (9.8)."""
    targets = given.record("targets", extra=True)
    names = list(given.raw("targets"))
    config = given.record("config", *names, extra=True)
    e_over, e_under = _band(given)
    at_end = at_point = True
    for name in names:
        sense, bound = _target(targets, name)
        point = config.number(name, low=0)
        if sense == "min":
            at_point &= at_least(point, bound)
            at_end &= at_least(point / (1 + e_over), bound)
        else:
            at_point &= at_least(bound, point)
            at_end &= at_least(bound, point / (1 - e_under))
    return {"verdict": "clears" if at_end else "point_only" if at_point else "misses"}


def _target(targets: Fields, name: str) -> tuple[str, float]:
    value, path = targets.raw(name), targets.where(name)
    if not isinstance(value, list | tuple) or len(value) != 2 or value[0] not in ("min", "max"):
        raise InvalidInput(
            f'{path}: found {repr(value)[:60]}, expected ["min", value] or ["max", value]'
        )
    return value[0], number(value[1], f"{path}[1]")


@formula("configs", "metric", "e_over", "e_under")
def rank(given: Fields) -> Outputs:
    """Return groups of configurations that their leader cannot be told from, best first (9.8)."""
    metric = given.text("metric")
    rows = given.records("configs", "id", metric, extra=True)
    ids = _unique_ids(rows)
    e_over, e_under = _band(given)
    value = {item: row.number(metric, low=0) for item, row in zip(ids, rows, strict=True)}
    # Falling value is falling lower end; the sort is stable, so equal values stay sorted by id.
    order = sorted(_sorted_ids(ids), key=lambda item: -value[item])
    groups: list[list[str | int]] = []
    lower = math.inf
    for item in order:
        if groups and at_least(value[item] / (1 - e_under), lower):
            groups[-1].append(item)
        else:
            groups.append([item])
            lower = value[item] / (1 + e_over)
    return {"groups": groups, "separation_ratio": (1 + e_over) / (1 - e_under)}


def _band(given: Fields) -> tuple[float, float]:
    e_over, e_under = given.number("e_over", low=0), given.number("e_under", low=0)
    if e_under >= 1:
        raise InvalidInput(f"e_under: found {e_under:g}, expected below 1")
    return e_over, e_under


def _unique_ids(rows: list[Fields]) -> list[str | int]:
    ids = [row.identity("id") for row in rows]
    seen: set[str | int] = set()
    for row, item in zip(rows, ids, strict=True):
        if item in seen:
            raise InvalidInput(f"{row.where('id')}: {item!r} stands twice; ids must differ")
        seen.add(item)
    return ids


def _sorted_ids(ids: list[str | int]) -> list[str | int]:
    """Return ids in order: whole numbers, then texts."""
    return sorted(ids, key=lambda item: (isinstance(item, str), item))


SIZING: Final[Mapping[str, Formula]] = {
    f"sizing.{function.__name__}": function
    for function in (
        cost_per_mtok, campaign, prefill_share, token_budget, scaling, kv_pages, concurrency,
        stage1, grid, max_batch, shortlist, interpolate, allreduce, trace_check, verdict, rank,
        windows, tracking,
    )
}  # fmt: skip
"""Every function of the module by the name that `sieve eval` takes."""
