"""Batching and scheduling rules: cache sizes, pages, buckets, routing, latency estimates.

Each function takes a JSON object and returns one. Numbers in parentheses name the section of the
sizing specification that a rule follows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Final

from sieve.errors import InvalidInput
from sieve.formulas.fields import Fields, Formula, Outputs, formula, identity, whole
from sieve.formulas.sched_batching import continuous, static
from sieve.units import gfloor

BUCKETS: Final = (("short", 512, 0.5), ("medium", 2048, 0.3), ("long", 8192, 0.2))
"""Name, longest prompt + output in tokens, and share of the batch's tokens (11.4)."""
SHORT_OUTPUT_TOKENS: Final = 512
LONG_REQUEST_TOKENS: Final = 4096
BUSY_LOAD: Final = 0.7


@formula("layers", "kv_heads", "head_dim", "tokens", bytes_per_element=2, batch=1)
def kv_bytes(given: Fields) -> Outputs:
    """Return the bytes of the KV cache of `batch` sequences of `tokens` (11.1)."""
    # The one factor 2 is key and value.
    elements = 2 * given.whole("layers") * given.whole("kv_heads") * given.whole("head_dim")
    elements *= given.whole("tokens", low=0) * given.whole("batch", low=0)
    exact = elements * Fraction(given.number("bytes_per_element", above=0))
    return {"bytes": exact.numerator if exact.denominator == 1 else float(exact)}


@formula("card_bytes", "utilisation", "weight_bytes", "kv_bytes_per_token")
def kv_token_capacity(given: Fields) -> Outputs:
    """Return the tokens whose cache fits beside the weights; 0 if the weights do not fit (11.1)."""
    budget = given.number("utilisation", above=0, high=1) * given.number("card_bytes", above=0)
    room = budget - given.number("weight_bytes", low=0)
    return {"tokens": max(0, gfloor(room / given.number("kv_bytes_per_token", above=0)))}


@formula("blocks", "ops", page_tokens=16)
def paged(given: Fields) -> Outputs:
    """Return the block tables after a sequence of alloc, append and free (11.1).

    An operation that lacks blocks fails as a whole and changes nothing; so does one on an id whose
    alloc failed. An id that never was allocated, or is allocated twice, is invalid.
    """
    free, page = given.whole("blocks"), given.whole("page_tokens")
    tokens: dict[str, int] = {}
    refused: set[str] = set()
    failed: list[int] = []
    for index, (path, entry) in enumerate(given.items("ops")):
        verb, name, count = _paged_op(entry, path)
        if verb == "alloc":
            if name in tokens:
                raise InvalidInput(f"{path}: {name!r} is allocated already; free it first")
            held = 0
        elif name not in tokens:
            if name not in refused:
                raise InvalidInput(f"{path}: {name!r} is not allocated; allocate it first")
            failed.append(index)
            continue
        else:
            held = tokens[name]
        total = 0 if verb == "free" else held + count
        needed = -(-total // page) - -(-held // page)
        if needed > free:
            failed.append(index)
            if verb == "alloc":
                refused.add(name)
            continue
        free -= needed
        if verb == "free":
            del tokens[name]
        else:
            tokens[name] = total
    tables = {name: -(-total // page) for name, total in tokens.items()}
    return {
        "free_blocks": free,
        "tables": tables,
        "waste_tokens": sum(tables.values()) * page - sum(tokens.values()),
        "failed_ops": failed,
    }


def _paged_op(entry: object, path: str) -> tuple[str, str, int]:
    sizes = {"alloc": 3, "append": 3, "free": 2}
    if (
        not isinstance(entry, list | tuple)
        or not entry
        or not isinstance(entry[0], str)
        or sizes.get(entry[0]) != len(entry)
    ):
        raise InvalidInput(
            f"{path}: found {repr(entry)[:60]}, expected "
            '["alloc", id, tokens], ["append", id, tokens] or ["free", id]'
        )
    count = whole(entry[2], f"{path}[2]", low=0) if len(entry) == 3 else 0
    return entry[0], str(identity(entry[1], f"{path}[1]")), count


@formula("queue", "max_batch_tokens", spill=False)
def bucket_admit(given: Fields) -> Outputs:
    """Return the ids admitted from three length buckets, each first come, first served (11.4).

    Without `spill` unused quota is lost, and a head longer than its bucket's quota never enters.
    """
    max_tokens = given.whole("max_batch_tokens")
    queues: dict[str, list[tuple[str | int, int]]] = {name: [] for name, _, _ in BUCKETS}
    for path, (item, length) in given.tuples("queue", 2):
        tokens = whole(length, f"{path}[1]")
        bucket = next((name for name, longest, _ in BUCKETS if tokens <= longest), None)
        if bucket is None:
            raise InvalidInput(
                f"{path}: {tokens} tokens exceed the longest bucket, {BUCKETS[-1][1]} tokens; "
                "leave it out"
            )
        queues[bucket].append((identity(item, f"{path}[0]"), tokens))
    admitted: list[str | int] = []
    used = 0

    def take(bucket: str, room: int) -> int:
        queue, taken = queues[bucket], 0
        while queue and queue[0][1] <= room - taken:
            item, tokens = queue.pop(0)
            admitted.append(item)
            taken += tokens
        return taken

    for name, _, share in BUCKETS:
        used += take(name, gfloor(share * max_tokens))
    if given.flag("spill"):
        for name, _, _ in BUCKETS:
            used += take(name, max_tokens - used)
    return {"admitted": admitted}


@formula("max_tokens", "priority", "estimated_tokens", "latency_load")
def route(given: Fields) -> Outputs:
    """Return which of two replica groups, latency or throughput, serves a request (11.4)."""
    urgent = given.text("priority") == "high"
    short = given.whole("max_tokens", low=0) <= SHORT_OUTPUT_TOKENS
    long = given.whole("estimated_tokens", low=0) > LONG_REQUEST_TOKENS
    busy = given.number("latency_load", low=0) >= BUSY_LOAD
    fast = (short and urgent) or not (long or busy)
    return {"replica": "latency" if fast else "throughput"}


@formula(
    "queue_time", "prefill_time", "gen_len", "batch", "base", "per_seq", "leave_rate",
)  # fmt: skip
def latency_estimate(given: Fields) -> Outputs:
    """Return the expected seconds of a request whose batch drains at random, unfilled (11.4).

    A step costs base + per_seq * b; b starts at `batch` and becomes max(1, b (1 - leave_rate)).
    """
    steps, batch = given.whole("gen_len", low=0), given.number("batch", low=1)
    leave = given.number("leave_rate", low=0, high=1)
    if leave == 0:
        sequences = steps * batch
    elif leave == 1:
        sequences = min(steps, 1) * batch + max(0, steps - 1)
    else:
        # A geometric sum while b is above 1, then ones.
        shrink = math.log1p(-leave)
        until_one = math.log(batch) / -shrink
        draining = steps if until_one >= steps else math.ceil(until_one)
        sequences = batch * -math.expm1(draining * shrink) / leave + (steps - draining)
    wait = given.number("queue_time", low=0) + given.number("prefill_time", low=0)
    decode = steps * given.number("base", low=0) + given.number("per_seq", low=0) * sequences
    return {"latency_s": wait + decode}


@formula("batch_ratio", "latency_ratio")
def little(given: Fields) -> Outputs:
    """Return the throughput ratio that a batch and a latency ratio allow (11.4).

    Concurrency is throughput x latency: three times the latency and four times the throughput
    need twelve times the concurrency.
    """
    ratio = given.number("batch_ratio", above=0) / given.number("latency_ratio", above=0)
    return {"throughput_ratio": ratio}


SCHED: Final[Mapping[str, Formula]] = {
    f"sched.{function.__name__}": function
    for function in (
        kv_bytes, kv_token_capacity, paged, static, continuous, bucket_admit, route,
        latency_estimate, little,
    )
}  # fmt: skip
"""Every function of the module by the name that `sieve eval` takes."""
