"""Stages 1 to 4 over a grid of any size: block by block, then merged.

A block holds whole rows of the grid along `max_num_seqs`, the one axis along which stage 4 compares
candidates. It returns counts by reason, the numbers of the candidates that a run folder keeps, and
the candidates from which the shortlist may be chosen; the rest is forgotten. What is kept is made
again from its numbers in the end, so the result is that of one block over everything.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import polars as pl

from sieve.arrays import BoolArray, FloatArray, IntArray
from sieve.context import RunContext
from sieve.errors import InvalidInput
from sieve.grid import Grid
from sieve.parallel import LocalExecutor
from sieve.perf.cache import FAMILY
from sieve.stage import Stage, StageResult, verify_counts
from stages import STAGES, s1_validity, s2_memory_fit, s3_batch_sizing, s4_shortlist

BLOCK: Final = 400_000
"""Combinations of a block: some 300 MB while it is worked on."""
KEPT: Final = 1_000_000
"""Most candidates admitted to stage 4 that are kept, the best by score."""
FIRST: Final = 1_000
"""Rejected candidates kept of each reason, the first of the grid."""
LEADING: Final = 150_000
"""Candidates of several blocks among which the shortlist may be, before they are looked through."""
NEAREST: Final = 64
"""Families of which the nearest miss is kept."""
_MODULES: Final = (s1_validity, s2_memory_fit, s3_batch_sizing)
_AT_ONCE: Final = 100_000
"""Candidates that are made again at a time."""
_FAMILY: Final = ("gpu", "tp", "pp", "data_parallel_size", "replicas")


@dataclass(frozen=True, eq=False)
class Part:
    """What remains of a block, candidates by their number.

    Attributes:
        num_in: candidates that reach stage 1, 2, 3, 4, and those that its bounds let through.
        reasons: (stage, reason) -> rejected candidates.
        seconds: time of enumeration and of each stage, (5,).
        first: (stage, reason) -> the first rejected ones.
        numbers, scores: of those admitted to stage 4, the best `KEPT`.
        leading: from which the shortlist may be chosen.
        lists: (lists, leading) which of stage 4's lists each is on.
        hopeful: all that the bounds let through, where all of them may be replayed.
        nearest: the nearest misses: `number`, `ratio`, `candidate_id` and family.
        families: families whose step times were needed, with their first number.
    """

    num_in: tuple[int, ...]
    reasons: Counter[tuple[int, str]]
    seconds: FloatArray
    first: dict[tuple[int, str], IntArray]
    numbers: IntArray
    scores: FloatArray
    leading: IntArray
    lists: BoolArray
    hopeful: IntArray
    nearest: pl.DataFrame
    families: pl.DataFrame


@dataclass(frozen=True, eq=False)
class Search:
    """What all blocks read."""

    grid: Grid
    context: RunContext
    keep_hopeful: int
    """Candidates of a block that may all be replayed."""


def search_block(search: Search, block: tuple[int, int]) -> Part:
    """Return what remains of the candidates in a range of the grid's rows."""
    grid, context = search.grid, search.context
    clock = [time.perf_counter()]
    codes = grid.index.block_codes(*block)
    frame = grid.bare(codes).with_columns(pl.Series("number", grid.index.number(codes), pl.Int64))
    clock.append(time.perf_counter())
    counts, rejected = [len(frame)], []
    families = _no_families(frame)
    for module in _MODULES:
        stage: Stage = module.STAGE
        if stage.number == _first_with_steps(context):
            families = _families(frame)
        result: StageResult = module.run(frame, context)
        verify_counts(stage, frame, result)
        frame = result.admitted
        if stage.number == s2_memory_fit.STAGE.number:
            frame = grid.named(frame)
        rejected.append((stage.number, _slim(result.rejected)))
        counts.append(len(frame))
        clock.append(time.perf_counter())
    if _first_with_steps(context) == s4_shortlist.STAGE.number:
        families = _families(frame)
    scored = s4_shortlist.score(frame, context)
    rejected.append((4, _slim(scored.missing)))
    hopeful = scored.hopeful
    numbers = pl.concat([hopeful["number"], scored.missing["number"]]).to_numpy()
    scores = pl.concat([hopeful["score"], scored.missing["score"]]).to_numpy()
    leading = s4_shortlist.leading(scored, context)
    everyone = hopeful["number"].to_numpy()
    clock.append(time.perf_counter())
    best = _best(numbers, scores)
    return Part(
        num_in=(*counts, len(hopeful)),
        reasons=_counted(rejected),
        seconds=np.diff(clock),
        first=_first(rejected),
        numbers=numbers[best],
        scores=scores[best],
        leading=everyone[leading],
        lists=scored.lists[:, leading],
        hopeful=everyone if len(everyone) <= search.keep_hopeful else everyone[:0],
        nearest=_nearest(pl.concat([part for _, part in rejected], how="diagonal")),
        families=families,
    )


def _first_with_steps(context: RunContext) -> int:
    """Return the first stage that asks for the step times of its candidates; 0: none does."""
    if context.spec.run.batch_sizing == "slim":
        return 3
    if context.is_reference:
        return 0
    return 4 if s3_batch_sizing.tpot_limit_s(context) is None else 3


def _no_families(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.select(*FAMILY, "number").clear()


def _families(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.group_by(*FAMILY).agg(pl.col("number").min())


def _slim(rejected: pl.DataFrame) -> pl.DataFrame:
    """Return the columns of rejected candidates that merging needs."""
    names = ("number", "candidate_id", *_FAMILY, "kind", "reason", "observed", "limit")
    return rejected.select(name for name in names if name in rejected.columns)


def _counted(rejected: Sequence[tuple[int, pl.DataFrame]]) -> Counter[tuple[int, str]]:
    counts: Counter[tuple[int, str]] = Counter()
    for stage, rows in rejected:
        for reason, number in rows.group_by("reason").len().iter_rows():
            counts[stage, reason] += number
    return counts


def _first(rejected: Sequence[tuple[int, pl.DataFrame]]) -> dict[tuple[int, str], IntArray]:
    return {
        (stage, reason): np.array(numbers, np.int64)
        for stage, rows in rejected
        for reason, numbers in rows.group_by("reason")
        .agg(pl.col("number").bottom_k(FIRST))
        .iter_rows()
    }


def _nearest(rejected: pl.DataFrame) -> pl.DataFrame:
    """Return the nearest miss of the `NEAREST` families that come nearest."""
    observed, limit = pl.col("observed"), pl.col("limit")
    near = rejected.filter(kind="misses_slo").select(
        "number",
        *_FAMILY,
        pl.col("candidate_id").cast(pl.String),
        pl.max_horizontal(observed / limit, limit / observed).alias("ratio"),
    )
    return _nearest_of(near)


def _nearest_of(near: pl.DataFrame) -> pl.DataFrame:
    ordered = near.sort("ratio", "candidate_id", nulls_last=True)
    return ordered.unique(_FAMILY, keep="first", maintain_order=True).head(NEAREST)


def _best(numbers: IntArray, scores: FloatArray) -> IntArray:
    """Return the rows of the best `KEPT` by score, of equal ones the first of the grid."""
    if len(numbers) <= KEPT:
        return np.arange(len(numbers), dtype=np.int64)
    lowest = -np.partition(-scores, KEPT - 1)[KEPT - 1]  # nan, if so many have no score
    if np.isnan(lowest):
        return np.sort(np.lexsort((numbers, -scores))[:KEPT])
    above = scores > lowest
    equal = np.flatnonzero(scores == lowest)
    equal = equal[np.argsort(numbers[equal], kind="stable")][: KEPT - int(above.sum())]
    return np.sort(np.concatenate([np.flatnonzero(above), equal]))


@dataclass(eq=False)
class Merged:
    """Parts of blocks put together, in any order.

    Attributes:
        most_hopeful: candidates that may all be replayed.
        parts: what is known so far; `numbers` may hold up to twice `KEPT`.
    """

    most_hopeful: int
    num_in: IntArray = field(default_factory=lambda: np.zeros(5, np.int64))
    reasons: Counter[tuple[int, str]] = field(default_factory=Counter)
    seconds: FloatArray = field(default_factory=lambda: np.zeros(5))
    first: dict[tuple[int, str], IntArray] = field(default_factory=dict)
    numbers: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))
    scores: FloatArray = field(default_factory=lambda: np.zeros(0))
    leading: list[IntArray] = field(default_factory=list)
    lists: list[BoolArray] = field(default_factory=list)
    hopeful: list[IntArray] = field(default_factory=list)
    nearest: list[pl.DataFrame] = field(default_factory=list)
    families: list[pl.DataFrame] = field(default_factory=list)

    def add(self, part: Part) -> None:
        """Take over the part of one block."""
        self.num_in += np.array(part.num_in)
        self.reasons.update(part.reasons)
        self.seconds += part.seconds
        for key, numbers in part.first.items():
            both = np.concatenate([self.first.get(key, numbers[:0]), numbers])
            self.first[key] = np.sort(both)[:FIRST]
        self.numbers = np.concatenate([self.numbers, part.numbers])
        self.scores = np.concatenate([self.scores, part.scores])
        if len(self.numbers) > 2 * KEPT:
            self._prune()
        self.leading.append(part.leading)
        self.lists.append(part.lists)
        if self.num_in[4] <= self.most_hopeful:
            self.hopeful.append(part.hopeful)
        else:
            self.hopeful.clear()
        self.nearest = [_nearest_of(pl.concat([*self.nearest, part.nearest]))]
        rows = pl.concat([*self.families, part.families])
        self.families = [rows.group_by(*FAMILY).agg(pl.col("number").min())]

    def _prune(self) -> None:
        best = _best(self.numbers, self.scores)
        self.numbers, self.scores = self.numbers[best], self.scores[best]

    def kept(self) -> IntArray:
        """Return the numbers of all candidates that are kept, rising."""
        self._prune()
        near = [part["number"].to_numpy() for part in self.nearest]
        return np.unique(np.concatenate([self.numbers, *self.first.values(), *self.hopeful, *near]))


@dataclass(frozen=True, eq=False)
class Searched:
    """Stages 1 to 4 over a grid.

    Attributes:
        stages: their records.
        chosen: the shortlist.
        rejected: the rest of the candidates that are kept, with the stage.
        num_hopeful: candidates that the bounds let through.
    """

    stages: list[dict[str, Any]]
    chosen: pl.DataFrame
    rejected: pl.DataFrame
    num_hopeful: int


def search(
    grid: Grid,
    context: RunContext,
    *,
    block: int = BLOCK,
    on_block: Callable[[int, int], None] | None = None,
) -> Searched:
    """Return stages 1 to 4 over every candidate of a grid, in memory that does not grow with it.

    Args:
        grid: of any size.
        context: of the run.
        block: combinations of a block.
        on_block: called with (done, total) combinations.

    Raises:
        InvalidInput: every survivor is to be replayed, and there are too many.
    """
    started = time.perf_counter()
    merged = merge(grid, context, list(grid.index.blocks(block)), on_block)
    elapsed_s = time.perf_counter() - started
    hopeful = int(merged.num_in[4])
    if context.exhaustive and hopeful > KEPT:
        raise InvalidInput(
            f"--exhaustive: {hopeful:,} candidates are left for the replay; at most {KEPT:,} are "
            "replayed at once. Shorten an axis, or leave the option out"
        )
    return _finish(grid, context, merged, elapsed_s)


def merge(
    grid: Grid,
    context: RunContext,
    blocks: Sequence[tuple[int, int]],
    on_block: Callable[[int, int], None] | None = None,
) -> Merged:
    """Return the parts of some blocks, made by the run's executor."""
    most = KEPT if context.exhaustive else context.spec.run.shortlist.exhaustive_below
    merged = Merged(most)
    # What belongs to this process does not travel.
    plain = replace(context, executor=LocalExecutor(1), progress=None, ledger=None, preview=None)
    row, most_leading = grid.index.row_size, LEADING
    done, total = 0, sum(last - first for first, last in blocks) * row

    def on_done(number: int, part: Part) -> None:
        nonlocal done, most_leading
        merged.add(part)
        if sum(map(len, merged.leading)) > most_leading:
            _narrow(grid, merged, context)
            most_leading = max(LEADING, 2 * len(merged.leading[0]))
        first, last = blocks[number]
        done += (last - first) * row
        if on_block is not None:
            on_block(done, total)

    labels = [f"rows {first:,} to {last:,} of the grid" for first, last in blocks]
    context.executor.map_ordered(search_block, Search(grid, plain, most), blocks, labels, on_done)
    return merged


def _finish(grid: Grid, context: RunContext, merged: Merged, elapsed_s: float) -> Searched:
    for family in pl.concat(merged.families).sort("number").select(*FAMILY).iter_rows():
        context.tables.get(family)  # in the order of the grid, for what they assume
    num_hopeful = int(merged.num_in[4])
    everyone = s4_shortlist.takes_all(num_hopeful, context)
    chosen = _chosen(grid, merged, context, everyone=everyone)
    numbers = np.setdiff1d(merged.kept(), chosen["number"].to_numpy())
    parts = [
        _rejected(grid, numbers[first : first + _AT_ONCE], chosen, context)
        for first in range(0, len(numbers), _AT_ONCE)
    ]
    none = [_rejected(grid, numbers[:0], chosen, context)]
    return Searched(
        stages=_records(merged, len(chosen), elapsed_s),
        chosen=chosen.drop("number"),
        rejected=pl.concat(parts or none, how="diagonal"),
        num_hopeful=num_hopeful,
    )


def _rejected(
    grid: Grid, numbers: IntArray, chosen: pl.DataFrame, context: RunContext
) -> pl.DataFrame:
    """Return candidates that did not reach stage 5 with their reason, in the order of the grid."""
    frame = grid.rows(numbers).with_columns(pl.Series("number", numbers, pl.Int64))
    survivors, rejected = _sized(frame, context)
    hopeful, missing, _ = s4_shortlist.bounded(survivors, context)
    left = s4_shortlist.turned_down(hopeful, chosen) if len(hopeful) else missing.clear()
    rejected += [_at_stage(part, s4_shortlist.STAGE.number) for part in (missing, left)]
    return pl.concat(rejected, how="diagonal").sort("number").drop("number")


def _sized(frame: pl.DataFrame, context: RunContext) -> tuple[pl.DataFrame, list[pl.DataFrame]]:
    """Return the candidates that pass stages 1 to 3, and the others by stage."""
    rejected = []
    for module in _MODULES:
        result = module.run(frame, context)
        frame = result.admitted
        rejected.append(_at_stage(result.rejected, module.STAGE.number))
    return frame, rejected


def _at_stage(rejected: pl.DataFrame, number: int) -> pl.DataFrame:
    return rejected.with_columns(pl.lit(number, pl.Int64).alias("stage"))


def _chosen(grid: Grid, merged: Merged, context: RunContext, *, everyone: bool) -> pl.DataFrame:
    """Return the shortlist of the whole grid."""
    if everyone:
        scored = _scored(grid, np.sort(np.concatenate(merged.hopeful)), context)
    else:
        scored = _leading(grid, merged, context)
    return s4_shortlist.choose(scored, context, everyone=everyone).admitted


def _scored(grid: Grid, numbers: IntArray, context: RunContext) -> s4_shortlist.Scored:
    frame = grid.rows(numbers).with_columns(pl.Series("number", numbers))
    return s4_shortlist.score(_sized(frame, context)[0], context)


def _leading(grid: Grid, merged: Merged, context: RunContext) -> s4_shortlist.Scored:
    """Return the candidates from which the shortlist may be chosen."""
    numbers = np.concatenate(merged.leading)
    order = np.argsort(numbers)
    # Twins are known to the blocks alone, which saw them side by side.
    lists = np.concatenate(merged.lists, axis=1)[:, order]
    return replace(_scored(grid, numbers[order], context), lists=lists)


def _narrow(grid: Grid, merged: Merged, context: RunContext) -> None:
    """Drop from `leading` what the blocks so far have left behind."""
    scored = _leading(grid, merged, context)
    kept = s4_shortlist.leading(scored, context)
    merged.leading = [scored.hopeful["number"].to_numpy()[kept]]
    merged.lists = [scored.lists[:, kept]]


def _records(merged: Merged, num_chosen: int, elapsed_s: float) -> list[dict[str, Any]]:
    """Return the records of stages 1 to 4; enumeration counts as part of the first."""
    seconds = merged.seconds[1:].copy()
    seconds[0] += merged.seconds[0]
    share = seconds / max(float(seconds.sum()), 1e-9)
    reasons = dict(merged.reasons)
    if left := int(merged.num_in[4]) - num_chosen:
        reasons[4, "not_selected"] = left
    records = []
    for i, module in enumerate(STAGES[:4]):
        stage: Stage = module.STAGE
        admitted = num_chosen if i == 3 else int(merged.num_in[i + 1])
        records.append(
            {
                "number": stage.number,
                "name": stage.name,
                "num_in": int(merged.num_in[i]),
                "num_admitted": admitted,
                "num_rejected": int(merged.num_in[i]) - admitted,
                "reasons": {
                    name: reasons[stage.number, name]
                    for name in stage.reasons
                    if (stage.number, name) in reasons
                },
                "elapsed_s": elapsed_s * float(share[i]),
            }
        )
    return records
