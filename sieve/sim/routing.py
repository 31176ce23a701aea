"""Whether a router can be replayed for the candidates and the traffic of a run."""

from __future__ import annotations

import polars as pl

from sieve.arrays import Requests
from sieve.catalog.architecture import ModelArchitecture
from sieve.errors import InvalidInput
from sieve.memory.ledger import has_one_kind
from sieve.sim.fleet import STATIC
from sieve.spec import ResolvedSpec


def check_routing(
    spec: ResolvedSpec, frame: pl.DataFrame, model: ModelArchitecture, requests: Requests
) -> None:
    """Refuse a router that the traffic or an engine of the grid does not allow.

    Raises:
        InvalidInput: names the key and what stands against it.
    """
    routing = spec.fleet.routing
    where = f"{spec.source}: fleet.routing: {routing}"
    if routing == "session" and requests.previous is None:
        raise InvalidInput(f"{where} needs sessions, which the traffic lacks; use round_robin")
    if routing == "prefix_affinity" and requests.prefix is None:
        raise InvalidInput(
            f"{where} needs to know which prompts begin alike; use a trace with hash_ids, or "
            "least_loaded"
        )
    if routing in STATIC:
        return
    if requests.closed_loop_users is not None:
        raise InvalidInput(f"{where} takes open-loop traffic; use round_robin for a closed loop")
    if (frame["pp"] > 1).any() or (frame["long_prefill_token_threshold"] > 0).any():
        raise InvalidInput(
            f"{where} is replayed without pipelines and prefill thresholds; set grid.axes.pp to [1]"
        )
    if (frame["data_parallel_size"] > 1).any():
        raise InvalidInput(
            f"{where} takes replicas of one engine each; data-parallel ranks are routed within a "
            "replica: use round_robin between replicas"
        )
    if not has_one_kind(model):
        raise InvalidInput(
            f"{where} is not replayed for {model.name}, whose layers keep several kinds of cache; "
            "use round_robin"
        )
