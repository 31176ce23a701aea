"""A replay as tables: a row a request, a row an iteration, a row a window of time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import polars as pl

from sieve.arrays import FloatArray, Requests, SimResult
from sieve.sim._kernels import layout
from sieve.sim.metrics import meets, per_request
from sieve.spec import LatencyLimits
from sieve.spec.slo_classes import RequestClass
from sieve.units import NS_PER_S

WINDOW_S: Final = 120.0
"""Two minutes, the window in which the field's percentiles are usually watched."""

_STEP_COLUMNS: Final = (
    ("call_s", layout.STEP_CALL_NS),
    ("start_s", layout.STEP_START_NS),
    ("end_s", layout.STEP_END_NS),
    ("num_prefills", layout.STEP_PREFILLS),
    ("prefill_tokens", layout.STEP_PREFILL_TOKENS),
    ("prefill_context_tokens", layout.STEP_PREFILL_CONTEXT),
    ("decode_seqs", layout.STEP_DECODES),
    ("decode_tokens", layout.STEP_DECODE_TOKENS),
    ("decode_context_tokens", layout.STEP_DECODE_CONTEXT),
    ("num_admitted", layout.STEP_ADMITTED),
    ("num_preempted", layout.STEP_PREEMPTED),
    ("num_running", layout.STEP_RUNNING),
    ("num_waiting", layout.STEP_WAITING),
    ("used_blocks", layout.STEP_USED_BLOCKS),
)


def requests_table(requests: Requests, result: SimResult) -> pl.DataFrame:
    """Return one row a request, in the order of the traffic; times in seconds, null if never."""
    latencies = per_request(requests, result)
    return pl.DataFrame(
        {
            "request": np.arange(len(requests)),
            "arrival_s": result.arrival_s,
            "scheduled_s": result.scheduled_s,
            "first_token_s": result.first_token_s,
            "finish_s": result.finish_s,
            "input_tokens": requests.input_tokens,
            "output_tokens": requests.output_tokens,
            "cached_tokens": result.cached_tokens,
            "num_preemptions": result.num_preemptions,
            "ttft_s": latencies["ttft"],
            "tpot_s": latencies["tpot"],
            "e2e_s": latencies["e2e"],
        }
    ).with_columns(pl.col(pl.Float64).fill_nan(None))


def steps_table(result: SimResult) -> pl.DataFrame:
    """Return one row an iteration that scheduled something, replica after replica.

    `call_s` is when the scheduler decided, `start_s` and `end_s` when the device ran the batch.
    `prefill_context_tokens` are computed before the chunks, `decode_context_tokens` are cached
    after the step; both are sums over requests. `num_running`, `num_waiting` and `used_blocks` are
    those right after the decision.
    """
    assert result.steps is not None, "the replay did not record its iterations"
    columns: dict[str, FloatArray | np.ndarray[tuple[int], np.dtype[np.int64]]] = {
        "replica": result.steps[:, 0]
    }
    for name, column in _STEP_COLUMNS:
        values = result.steps[:, 1 + column]
        columns[name] = values / NS_PER_S if name.endswith("_s") else values
    return pl.DataFrame(columns)


def windows_table(
    requests: Requests,
    result: SimResult,
    limits: LatencyLimits,
    window_s: float = WINDOW_S,
    classes: Sequence[RequestClass] = (),
) -> pl.DataFrame:
    """Return one row a window of arrival times: load, latencies, attainment, and what came out.

    Latencies are of the requests that arrive in the window; `output_tokens_per_s` counts the
    answers that finish in it; the means of queue, batch and cache are of the first replica.
    """
    latencies = per_request(requests, result, classes)
    rows = pl.DataFrame(
        {
            "window": np.floor(result.arrival_s / window_s),
            "done": np.floor(result.finish_s / window_s),
            "tokens": requests.output_tokens,
            "met": meets(latencies, limits),
            **{f"{name}_s": values for name, values in latencies.items()},
        }
    ).with_columns(pl.col(pl.Float64).fill_nan(None))
    came = (
        rows.drop_nulls("window")
        .group_by("window")
        .agg(
            pl.len().alias("num_requests"),
            *(
                pl.col(f"{m}_s").quantile(q / 100, interpolation="linear").alias(f"{m}_p{q}_s")
                for m in ("ttft", "tpot", "e2e")
                for q in (50, 99)
            ),
            pl.col("met").mean().alias("slo_attainment"),
        )
    )
    done = (
        rows.drop_nulls("done")
        .group_by(pl.col("done").alias("window"))
        .agg((pl.col("tokens").sum() / window_s).alias("output_tokens_per_s"))
    )
    seen = (
        pl.DataFrame(
            result.samples, schema=["time_s", "mean_running", "mean_waiting", "mean_blocks"]
        )
        .with_columns((pl.col("time_s") / window_s).floor().alias("window"))
        .group_by("window")
        .agg(pl.col("mean_running", "mean_waiting", "mean_blocks").mean())
    )
    table = came.join(done, on="window", how="full", coalesce=True)
    table = table.join(seen, on="window", how="left").sort("window")
    return table.select(
        (pl.col("window") * window_s).alias("start_s"),
        pl.col("num_requests").fill_null(0),
        (pl.col("num_requests").fill_null(0) / window_s).alias("requests_per_s"),
        pl.col("output_tokens_per_s").fill_null(0.0),
        *(f"{m}_p{q}_s" for m in ("ttft", "tpot", "e2e") for q in (50, 99)),
        "slo_attainment",
        "mean_running",
        "mean_waiting",
        "mean_blocks",
    )
