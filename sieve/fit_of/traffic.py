"""How many requests of some traffic a deployment holds at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sieve.errors import InvalidInput
from sieve.fit_of.configuration import Configuration
from sieve.memory.cache import CacheLayout, blocks_per_request


@dataclass(frozen=True)
class TrafficFit:
    """What the cache holds of requests of mean lengths.

    Attributes:
        isl, osl: mean tokens of prompt and answer.
        mean_tokens: that a running request holds: its prompt, and half of its answer.
        blocks_per_request: blocks of such a request.
        by_cache: requests that the cache holds on average.
        by_cache_at_end: requests that it holds if all stand at their last token.
        expected: the smaller of `by_cache` and `max_num_seqs`.
        limited_by: `cache` or `max_num_seqs`.
    """

    isl: float
    osl: float
    mean_tokens: float
    blocks_per_request: int
    by_cache: float
    by_cache_at_end: float
    expected: float
    limited_by: str


def traffic_fit(
    configuration: Configuration, layout: CacheLayout, blocks: int, *, isl: float, osl: float
) -> TrafficFit:
    """Return the concurrency of a deployment on traffic of mean lengths `isl` and `osl`.

    A request holds its prompt from the start and its answer as it grows, half of it on average.
    Lengths are taken as equal: spread leaves the mean of full attention as it is, and makes windows
    hold less. Nothing is held after the end (no prefix cache).

    Raises:
        InvalidInput: lengths outside their range or beyond `max_model_len`.
    """
    for name, value in (("isl", isl), ("osl", osl)):
        if not 1 <= value <= 1e9:
            raise InvalidInput(f"{name} is {value:g}; allowed is 1 to 1e9 tokens")
    if isl + osl > configuration.max_model_len:
        raise InvalidInput(
            f"isl {isl:g} + osl {osl:g} is {isl + osl:g} tokens; max_model_len "
            f"{configuration.max_model_len} refuses such requests: shorten them or raise it"
        )
    mean = isl + osl / 2
    sizes = np.ceil(np.array([mean, isl + osl])).astype(np.int64)
    flying = configuration.max_num_batched_tokens * int(
        configuration.engine.cache.get("batches_in_flight", 1)
    )
    usual, last = blocks_per_request(layout, sizes, np.full(2, flying, np.int64)).tolist()
    by_cache = blocks / max(1, usual)
    most = configuration.max_num_seqs
    return TrafficFit(
        isl=isl,
        osl=osl,
        mean_tokens=mean,
        blocks_per_request=usual,
        by_cache=by_cache,
        by_cache_at_end=blocks / max(1, last),
        expected=min(by_cache, float(most)),
        limited_by="cache" if by_cache < most else "max_num_seqs",
    )
