"""Shapes of one replica, and the replay of a fleet of them with its verdict."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import polars as pl

from sieve.api import prepare
from sieve.arrays import Requests, SimResult, StepTable
from sieve.context import RunContext
from sieve.detail import choose
from sieve.errors import InvalidInput
from sieve.formulas.sizing import cost_per_mtok
from sieve.frames import AXES, OPTIONS, bound_column, gpus_per_replica
from sieve.grid import Grid
from sieve.parallel import LocalExecutor
from sieve.perf.cache import FAMILY
from sieve.perf.estimate import Ends, Estimates
from sieve.ranking.verdicts import limits_of, verdicts
from sieve.sim.metrics import queue_growth
from sieve.sim.replay import ReplaySettings, simulate
from sieve.sim.traffic_input import clock_of
from sieve.spec import load_spec
from sieve.stage import Stage
from sieve.traces import at_level
from stages import s1_validity, s2_memory_fit, s3_batch_sizing, s5_simulate

By = Literal["total_tokens", "input_tokens", "output_tokens", "priority"]
"""What tells requests apart."""
MAX_SHAPES: Final = 200
"""Most shapes that one question tries."""
FINEST: Final = 0.01
"""Load levels are searched to this relative width."""
LEVELS: Final = (1 / 256, 256.0)
"""Lowest and highest load level that a search tries."""
METRICS: Final = ("ttft_p99_s", "tpot_p99_s", "e2e_p99_s", "slo_attainment", "output_tokens_per_s")


@dataclass(frozen=True, eq=False)
class Shape:
    """One replica's deployment, ready to be replayed any number of times beside itself.

    Attributes:
        row: its axes, ledger and limits, as a candidate; `replicas` does not count.
        context: of the run.
        table: the time of an iteration.
        settings: limits and switches of an engine.
        shared: what metrics are counted.
    """

    row: Mapping[str, Any]
    context: RunContext
    table: StepTable
    settings: ReplaySettings
    shared: s5_simulate.Shared

    @property
    def gpus(self) -> int:
        """GPUs of one replica."""
        return gpus_per_replica(self.row)

    @property
    def name(self) -> str:
        """The candidate id with `r*` for the replicas."""
        return str(self.row["candidate_id"]).replace(f".r{self.row['replicas']}.", ".r*.")

    def candidate_id(self, replicas: int) -> str:
        """Return the id of the candidate with so many replicas."""
        return self.name.replace(".r*.", f".r{replicas}.")

    def usd_per_hour(self, gpus: int) -> float | None:
        """Return what `gpus` GPUs of the shape's type cost an hour; None without a price."""
        price = self.context.gpus[self.row["gpu"]].usd_per_gpu_hour
        if price is None:
            return None
        fleet = self.context.spec.fleet
        node = fleet.gpus_per_node or 8
        return price * (-(-gpus // node) * node if fleet.billing == "node" else gpus)

    @cached_property
    def clock(self) -> Any:
        """The step times as the compiled loop reads them."""
        requests = self.context.requests
        longest = int((requests.input_tokens + requests.output_tokens).max())
        return clock_of(self.table, self.settings.max_num_seqs, longest)

    def replay(self, requests: Requests, replicas: int) -> SimResult:
        """Return the replay of requests of the run's traffic over so many replicas."""
        shared = self.shared
        return simulate(
            requests, self.table, self.settings, replicas, routing=shared.routing,
            seed=shared.seed, clock=self.clock,
        )  # fmt: skip


def load_shapes(
    spec: str | Path | Mapping[str, Any],
    candidates: Sequence[str] = (),
    *,
    overrides: Sequence[str] = (),
    count: int = 12,
) -> tuple[RunContext, list[Shape], int]:
    """Return the context, the shapes to try, and how many the grid holds.

    Without `candidates` the shapes of the grid that are valid and fit are ordered by the closed
    form of what a GPU serves for its price (without prices: what it serves) within the batch
    limits; each (GPU, TP, PP) takes a turn, so that all kinds are among the first.

    Args:
        spec: path of a run spec, or the spec as a mapping.
        candidates: ids or `axis=value` pairs, as `sieve.replay` takes; their replicas do not count.
        overrides: `dotted.key=value` texts.
        count: how many shapes at most, without `candidates`.

    Raises:
        SieveError: any fault of the input, or no shape that can run.
    """
    if not 1 <= count <= MAX_SHAPES:
        raise InvalidInput(f"shapes to try: found {count}; expected 1 to {MAX_SHAPES}")
    context, grid = prepared(spec, overrides)
    frame = one_replica(grid.candidates)
    if candidates:
        frame = pl.concat([_named(frame, grid.candidates, text) for text in candidates])
    frame = _runs(frame, context)
    total = len(frame)
    if not candidates:
        frame = _best(frame, context, count)
    return context, shapes_of(frame, context), total


def prepared(
    spec: str | Path | Mapping[str, Any], overrides: Sequence[str]
) -> tuple[RunContext, Grid]:
    """Return the context and the grid of a spec."""
    return prepare(load_spec(spec, overrides=overrides), LocalExecutor())


def shapes_of(frame: pl.DataFrame, context: RunContext) -> list[Shape]:
    """Return the shapes of sized candidates."""
    shared = replace(s5_simulate.shared_of(frame, context), keeps=False, compared=())
    return [
        Shape(
            row,
            context,
            shared.tables[tuple(row[name] for name in FAMILY)],
            s5_simulate.settings_of(row, context),
            shared,
        )
        for row in frame.iter_rows(named=True)
    ]


def one_replica(candidates: pl.DataFrame) -> pl.DataFrame:
    """Return one candidate for each shape: that with the fewest replicas."""
    axes = [c for c in (*AXES, *OPTIONS) if c in candidates.columns and c != "replicas"]
    return candidates.sort("replicas", maintain_order=True).unique(
        axes, keep="first", maintain_order=True
    )


def _named(shapes: pl.DataFrame, candidates: pl.DataFrame, text: str) -> pl.DataFrame:
    """Return the shape of the candidate that a text names."""
    if "=" in text and "replicas=" not in text:
        return choose(shapes, text)
    found = choose(candidates, text)
    axes = [c for c in (*AXES, *OPTIONS) if c in candidates.columns and c != "replicas"]
    return shapes.join(found.select(axes), on=axes, how="semi", nulls_equal=True)


def _runs(frame: pl.DataFrame, context: RunContext) -> pl.DataFrame:
    """Return the shapes that pass validity, memory and batch sizing.

    Raises:
        InvalidInput: none does.
    """
    rejected = []
    for module in (s1_validity, s2_memory_fit, s3_batch_sizing):
        stage: Stage = module.STAGE
        result = module.run(frame, context)
        if len(result.rejected):
            reasons = ", ".join(sorted(set(result.rejected["reason"].to_list())))
            rejected.append(f"stage {stage.number} {stage.name}: {reasons}")
        frame = result.admitted
    if frame.is_empty():
        raise InvalidInput(
            f"no shape can run ({'; '.join(rejected)}); `sieve explain` or `sieve check` say why"
        )
    return frame


def _best(frame: pl.DataFrame, context: RunContext, count: int) -> pl.DataFrame:
    """Return the shapes that promise most, one kind after another."""
    estimates = Estimates(
        frame, context.tables, context.requests, context.workload, Ends(step=1.0, prompt=1.0)
    )
    served = estimates.capacity_per_s() / frame["num_gpus"].to_numpy()
    prices = {name: gpu.usd_per_gpu_hour for name, gpu in context.gpus.items()}
    if all(price is not None for price in prices.values()):
        served = served / frame["gpu"].replace_strict(prices, return_dtype=pl.Float64).to_numpy()
    served = np.where(np.isfinite(served), served, 0.0)
    return (
        frame.with_columns(pl.Series("served", served))
        .sort("served", "candidate_id", descending=[True, False])
        .with_columns(turn=pl.int_range(pl.len()).over("gpu", "tp", "pp"))
        .sort("turn", "served", "candidate_id", descending=[False, True, False])
        .head(count)
        .drop("served", "turn")
    )


def judged(requests: Requests, result: SimResult, table: StepTable, shape: Shape) -> dict[str, Any]:
    """Return metrics with their ends and the verdict of a fleet's replay.

    A queue that grows without bound, or a request without an answer, misses.

    Args:
        requests: the traffic.
        result: its replay.
        table: step times, for the evidence.
        shape: whose objectives and limits count.
    """
    facts = s5_simulate.row_of(requests, table, shape.settings, result, shape.shared)
    growing = queue_growth(requests, result) > s5_simulate.MAX_GROWTH
    verdict = "misses"
    if not (growing or result.status):
        (verdict,) = verdicts(pl.DataFrame([facts]), limits_of(shape.context.slos))
    status = result.status or ("queue_grows_without_bound" if growing else "")
    return facts | {"verdict": verdict, "status": status}


def point(shape: Shape, replicas: int, requests: Requests) -> dict[str, Any]:
    """Return what so many replicas of a shape do with the traffic, and whether they clear."""
    result = shape.replay(requests, replicas)
    facts = judged(requests, result, shape.table, shape)
    return fleet_row(
        facts, {shape.candidate_id(replicas): replicas}, replicas * shape.gpus,
        shape.usd_per_hour(replicas * shape.gpus),
    )  # fmt: skip


def fleet_row(
    facts: Mapping[str, Any],
    candidates: Mapping[str, int],
    gpus: int,
    usd_per_hour: float | None,
) -> dict[str, Any]:
    """Return one fleet as a row of an answer: who, cost, verdict and metrics with both ends.

    Args:
        facts: what `judged` returned.
        candidates: replicas by candidate id.
        gpus: all of them.
        usd_per_hour: their price; None where unknown.
    """
    rate = facts["output_tokens_per_s"]
    usd = None
    if usd_per_hour is not None and rate > 0:
        usd = float(
            cost_per_mtok(usd_per_gpu_hour=np.array(usd_per_hour), gpus=1, tokens_per_s=rate)
        )
    row: dict[str, Any] = {
        "candidate_ids": list(candidates),
        "replicas": sum(candidates.values()),
        "num_gpus": gpus,
        "usd_per_hour": usd_per_hour,
        "verdict": facts["verdict"],
        "status": facts["status"],
        "usd_per_mtok": usd,
        "output_tokens_per_s_per_gpu": rate / gpus,
    }
    for name in METRICS:
        row[name] = {
            "low": facts[bound_column(name, "low")],
            "mid": facts[name],
            "high": facts[bound_column(name, "high")],
        }
    return row


def fleet_cost(pools: Sequence[tuple[Shape, int]]) -> float | None:
    """Return USD per hour of several pools (shape, replicas); None if one has no price."""
    costs = [shape.usd_per_hour(replicas * shape.gpus) for shape, replicas in pools]
    known = [cost for cost in costs if cost is not None]
    return float(sum(known)) if len(known) == len(costs) else None


def fewest(clears: Callable[[int], bool], most: int) -> int | None:
    """Return the least count from 1 for which `clears` holds, by doubling and bisection."""
    low, high = 0, 1
    if most < 1:
        return None
    while not clears(high):
        if high == most:
            return None
        low, high = high, min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if clears(middle) else (middle, high)
    return high


def highest_level(clears: Callable[[float], bool], start: float = 1.0) -> float | None:
    """Return the highest load level that clears, to a hundredth; None: not even the lowest does.

    The same requests come at every level, faster or slower. The level is doubled or halved until
    the answer changes and then found by bisection.
    """
    low, high = LEVELS
    level = min(max(start, low), high)
    if clears(level):
        while level < high and clears(min(2 * level, high)):
            level = min(2 * level, high)
        if level == high:
            return level
        low, high = level, min(2 * level, high)
    else:
        while not clears(level / 2):
            level /= 2
            if level <= low:
                return None
        low, high = level / 2, level
    while high / low > 1 + FINEST:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if clears(middle) else (low, middle)
    return low


def open_loop(requests: Requests, what: str) -> None:
    """Refuse traffic whose arrivals depend on the answers.

    Raises:
        InvalidInput: a closed loop or sessions.
    """
    if requests.closed_loop_users is not None or requests.previous is not None:
        raise InvalidInput(
            f"{what} takes open-loop traffic without turns that wait for answers; "
            "this traffic is a closed loop or has sessions: give another trace, or use `sieve run`"
        )


def traffic_at(context: RunContext, level: float) -> Requests:
    """Return the run's traffic at a load level."""
    return at_level(context.requests, level)
