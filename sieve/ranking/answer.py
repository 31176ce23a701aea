"""The answer of a run: who wins by which yardstick, what separates the leaders, who came near."""

from __future__ import annotations

from math import ceil, hypot, sqrt
from statistics import NormalDist
from typing import Any, Final

import numpy as np
import polars as pl

from sieve.ranking.verdicts import Limit
from sieve.units import SECONDS_PER_HOUR

SIMULATED: Final = 5
"""Number of the stage that replays."""


COINCIDE: Final = 0.01
"""Relative difference below which no benchmark can tell two predictions apart."""

_FAMILY: Final = ("gpu", "tp", "pp", "data_parallel_size", "replicas")

MAX_MISSES: Final = 5
MAX_TIED: Final = 5
"""Most candidates of the leader's tie group that are written down."""

LONGEST: Final = 20
"""A benchmark takes at most this many times the requests of the run's own trace."""


def status_of(ranked: pl.DataFrame, rejected: pl.DataFrame) -> str:
    """Return `answer`, `weak_evidence`, `no_slo` or `no_fit`.

    Args:
        ranked: candidates with a verdict.
        rejected: all rejected candidates with their kind.
    """
    verdicts = set(ranked["verdict"])
    if "clears" in verdicts:
        return "answer"
    if "point_only" in verdicts:
        return "weak_evidence"
    fits = len(ranked) > 0 or bool((rejected["kind"] != "infeasible").any())
    return "no_slo" if fits else "no_fit"


def winners(ranked: pl.DataFrame) -> dict[str, str | None]:
    """Return the ids of `fewest_gpus`, `best_per_gpu`, `cheapest` among the best verdict present.

    Null where nothing clears even at the middle; `cheapest` is null without prices.
    """
    for verdict in ("clears", "point_only"):
        best = ranked.filter(pl.col("verdict") == verdict)
        if not best.is_empty():
            return {
                "fewest_gpus": _first(best, "num_gpus", descending=False),
                "best_per_gpu": _first(best, "output_tokens_per_s_per_gpu", descending=True),
                "cheapest": _first(best, "usd_per_mtok", descending=False),
            }
    return dict.fromkeys(("fewest_gpus", "best_per_gpu", "cheapest"))


def _first(frame: pl.DataFrame, column: str, *, descending: bool) -> str | None:
    known = frame.with_row_index("row").filter(
        pl.col(column).is_not_null() & ~pl.col(column).cast(pl.Float64).is_nan()
    )
    if known.is_empty():
        return None
    ordered = known.sort([column, "row"], descending=[descending, False])
    return str(ordered["candidate_id"][0])


def settle(
    ranked: pl.DataFrame, metric: str, num_requests: int, confidence: float = 0.9
) -> dict[str, Any] | None:
    """Return the benchmark of the leader and one tied candidate that is worth most.

    Worth is the chance that it tells the two apart for each GPU-hour that it takes: their true
    difference is spread around the predicted one by the model's error, and a benchmark resolves
    what the noise of its traffic leaves. It runs long enough for that noise to be half of the
    difference to expect, at least the run's own trace and at most twenty times as long. The value
    that decides is the middle between the two predictions.

    Null when nothing ties or all predictions coincide to a hundredth.

    Args:
        ranked: ranking, with the differences of each tie.
        metric: the objective's first metric.
        num_requests: of the run's traffic.
        confidence: of the model's ends.
    """
    tied = ranked.filter(pl.col("tie_group") == 1)
    if len(tied) < 2 or tied["verdict"][0] == "misses":
        return None
    first = tied.row(0, named=True)
    differs = (pl.col(metric) / first[metric] - 1.0).abs() > COINCIDE
    options = [
        _benchmark(first, row, num_requests, confidence)
        for row in tied.tail(-1).filter(differs).iter_rows(named=True)
    ]
    if not options:
        return None
    second, plan = max(options, key=lambda option: option[1]["chance"] / option[1]["gpu_hours"])
    return {
        "candidate_ids": [first["candidate_id"], second["candidate_id"]],
        "level": 1.0,
        "metric": metric,
        "decides_at": (first[metric] + second[metric]) / 2,
        **plan,
    }


def _benchmark(
    first: dict[str, Any], row: dict[str, Any], num_requests: int, confidence: float
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a tied candidate, and how long to measure it beside the leader, with what chance."""
    difference, noise, model = (
        row.get(f"tie_{name}") or 0.0 for name in ("difference", "noise", "model")
    )
    expected = max(hypot(difference, model), COINCIDE)
    longer = min(max((2 * noise / expected) ** 2, 1.0), LONGEST)
    requests = ceil(num_requests * longer)
    resolved = noise / sqrt(longer)
    spread = model / NormalDist().inv_cdf(confidence)
    chance = float(abs(difference) > resolved)
    if spread > 0:
        true = NormalDist(difference, spread)
        chance = 1.0 - true.cdf(resolved) + true.cdf(-resolved)
    slowest = min(first.get("requests_per_s") or 1.0, row.get("requests_per_s") or 1.0)
    duration_s = requests / slowest
    plan = {
        "num_requests": requests,
        "duration_s": duration_s,
        "gpu_hours": duration_s * (first["num_gpus"] + row["num_gpus"]) / SECONDS_PER_HOUR,
        "chance": chance,
    }
    return row, plan


def nearest_misses(
    simulated: pl.DataFrame, rejected: pl.DataFrame, limits: list[Limit], count: int = MAX_MISSES
) -> list[dict[str, Any]]:
    """Return the candidates that came nearest, each with the limit it misses by most.

    The nearest of each (GPU, TP, PP, DP, replicas) family. Candidates that meet every limit in the
    middle come first and are held to the limits at the pessimistic end; then simulated ones, by the
    worst ratio over all limits; then those that a stage threw out, by the ratio of the two numbers
    it compared. `at` says what was observed: `pessimistic_end`, `middle` or `bound`.

    Args:
        simulated: candidates that do not clear at level 1.0, with their metrics and verdicts.
        rejected: candidates rejected as `misses_slo`.
        limits: the objectives.
        count: how many at most.
    """
    found: list[dict[str, Any]] = []
    stretch = pl.col("verdict") == "point_only"
    for frame, end in ((simulated.filter(stretch), True), (simulated.filter(~stretch), False)):
        found += _by_limits(frame, limits, pessimistic=end)
    found += [_thrown_out(row) for row in _by_ratio(rejected)]
    nearest: dict[tuple[Any, ...], dict[str, Any]] = {}
    for miss in found:
        nearest.setdefault(miss.pop("family"), miss)
    return list(nearest.values())[:count]


def _by_limits(
    frame: pl.DataFrame, limits: list[Limit], *, pessimistic: bool
) -> list[dict[str, Any]]:
    """Return the entries of simulated candidates, the nearest first."""
    if frame.is_empty():
        return []
    columns = [lim.worst_column if pessimistic else lim.column for lim in limits]
    pairs = list(zip(limits, columns, strict=True))
    ratios = np.stack([lim.shortfall(frame[column].to_numpy()) for lim, column in pairs])
    order = np.lexsort((frame["candidate_id"].to_numpy().astype(str), ratios.max(axis=0)))
    found = []
    for i in order:
        (lim, column), row = pairs[int(ratios[:, i].argmax())], frame.row(int(i), named=True)
        at = "pessimistic_end" if pessimistic else "middle"
        found.append(_miss(row, 5, lim.text, row[column], lim.limit, lim.unit, at))
    return found


def _thrown_out(row: dict[str, Any]) -> dict[str, Any]:
    """Return the entry of a rejected candidate; a bound names the objective it misses."""
    numbers = row["observed"], row["limit"]
    if row["reason"] == "bound_misses_slo":
        return _miss(row, row["stage"], row["unit"], *numbers, row["unit"])
    at = "middle" if row["stage"] == SIMULATED else "bound"
    return _miss(row, row["stage"], row["reason"], *numbers, row["unit"], at)


def _by_ratio(rejected: pl.DataFrame) -> list[dict[str, Any]]:
    observed, limit = pl.col("observed"), pl.col("limit")
    ratio = pl.max_horizontal(observed / limit, limit / observed)
    ordered = rejected.sort(ratio, "candidate_id", nulls_last=True)
    return ordered.unique(_FAMILY, keep="first", maintain_order=True).to_dicts()


def _miss(
    row: dict[str, Any],
    stage: int,
    text: str,
    observed: float | None,
    limit: float,
    unit: str,
    at: str = "bound",
) -> dict[str, Any]:
    """Return one entry; `off_by_frac` is the larger of the two numbers over the other, less 1."""
    off = None
    if observed and limit:
        off = max(observed / limit, limit / observed) - 1.0
    return {
        "family": tuple(row[name] for name in _FAMILY),
        "candidate_id": row["candidate_id"],
        "num_gpus": row["num_gpus"],
        "stage": stage,
        "misses": text,
        "at": at,
        "observed": observed,
        "limit": limit,
        "unit": unit,
        "off_by_frac": off,
    }
