"""The leader over the time of the traffic: its queue, its batch and its cache, window by window."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import polars as pl

from sieve.context import RunContext
from sieve.perf.cache import FAMILY
from sieve.pipeline import Outcome
from sieve.sim.replay import simulate
from sieve.sim.tables import windows_table
from sieve.traces import at_level
from stages.s5_simulate import settings_of, shared_of

NUM_WINDOWS: Final = 100
"""Windows from the first arrival to the last answer."""


def timeline_of(outcome: Outcome, context: RunContext) -> pl.DataFrame:
    """Return one row a window of the first of the ranking at level 1.0, replayed once more.

    Columns are those of `windows_table`, with `candidate_id`, `kv_usage` (share of the replica's
    blocks), `window_s` and `max_num_seqs`; queue, batch and cache are of the first replica. Empty
    where nothing was ranked or nothing took time.
    """
    if not outcome.is_complete or outcome.ranked.is_empty():
        return pl.DataFrame()
    frame = outcome.ranked.head(1)
    row = frame.row(0, named=True)
    shared = shared_of(frame, replace(context, ledger=None))
    requests = at_level(context.requests, 1.0)
    result = simulate(
        requests,
        shared.tables[tuple(row[name] for name in FAMILY)],
        settings_of(row, context),
        row["replicas"],
        routing=shared.routing,
        seed=shared.seed,
    )
    span_s = float(row["makespan_s"] or 0.0)
    if not span_s > 0.0:
        return pl.DataFrame()
    windows = windows_table(requests, result, shared.limits, span_s / NUM_WINDOWS, shared.classes)
    return windows.with_columns(
        pl.lit(span_s / NUM_WINDOWS).alias("window_s"),
        pl.lit(row["candidate_id"]).alias("candidate_id"),
        (pl.col("mean_blocks") / row["num_gpu_blocks"]).alias("kv_usage"),
        pl.lit(row["max_num_seqs"]).alias("max_num_seqs"),
    )
