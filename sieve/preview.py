"""Short replays that decide who is replayed in full: stage 4 asks, the order of stage 6 answers.

A closed form tells cheap families from dear ones; which of them just meets an objective, and which
member of a family is best, only the schedule tells. So candidates race: few of each shape first,
then more of the shapes in the lead, each over the beginning of the traffic at load level 1.0.
Those that go on to stage 5 are replayed anew, over all of the traffic at every level: nothing of a
preview reaches a table.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import polars as pl
import polars.selectors as cs

from sieve.arrays import FloatArray
from sieve.context import RunContext
from sieve.frames import RESAMPLES
from sieve.parallel import LocalExecutor
from stages import s5_simulate, s6_rank

MOST_REQUESTS: Final = 2_000
"""Requests of a preview; a longer trace is cut."""


@dataclass(eq=False)
class Preview:
    """Replays of a run's candidates over a short trace at level 1.0, each made once.

    Attributes:
        context: of the run.
        seen: candidates with their metrics, or with their reason if they cannot be served.
    """

    context: RunContext
    seen: dict[str, pl.DataFrame] = field(default_factory=dict)

    def __post_init__(self) -> None:
        run = self.context.spec.run
        traffic = run.traffic.model_copy(update={"levels": [1.0]})
        spec = replace(self.context.spec, run=run.model_copy(update={"traffic": traffic}))
        requests = self.context.requests
        if len(requests) > MOST_REQUESTS:
            requests = requests.take(np.arange(MOST_REQUESTS, dtype=np.int64))
        own = self.context.executor
        # Too little for a cluster; jobs side by side keep to their threads.
        local = own if isinstance(own, LocalExecutor) else LocalExecutor()
        self.context = replace(
            self.context,
            spec=spec,
            requests=requests,
            executor=local,
            progress=None,
            preview=None,
        )

    def __call__(self, candidates: pl.DataFrame, slack: float) -> list[int]:
        """Return the rows of the candidates in ranking order; who cannot be served comes last.

        Args:
            candidates: to replay, or replayed before.
            slack: factor by which every limit is eased, 1 as the objectives are.
        """
        place = {name: i for i, name in enumerate(candidates["candidate_id"].to_list())}
        served, rest = self._replayed(candidates)
        ranked = s6_rank.in_order(served, self.context, slack)["candidate_id"].to_list()
        unserved = rest.sort("queue_growth", "candidate_id", nulls_last=True)
        return [place[name] for name in [*ranked, *unserved["candidate_id"]]]

    def cleared(self, candidates: pl.DataFrame) -> FloatArray:
        """Return what candidates reach of the objective's first key, (n,); inf if not cleared."""
        served, _ = self._replayed(candidates)
        ranked = s6_rank.in_order(served, self.context)
        ranked = ranked.filter(pl.col("verdict") == "clears")
        keys = s6_rank.keys(ranked, self.context)[0]
        reached = dict(zip(ranked["candidate_id"].to_list(), keys.tolist(), strict=True))
        return np.array([reached.get(name, np.inf) for name in candidates["candidate_id"]])

    def _replayed(self, candidates: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Return the candidates with their metrics, and those that cannot be served."""
        new = candidates.filter(~pl.col("candidate_id").is_in(list(self.seen)))
        if not new.is_empty():
            result = s5_simulate.run(new, self.context, brief=True)
            for part in (result.admitted, result.rejected):
                rows = part.drop(cs.starts_with(RESAMPLES))
                names = rows["candidate_id"].to_list()
                self.seen |= {name: rows[i] for i, name in enumerate(names)}
        names = candidates["candidate_id"].to_list()
        known = pl.concat([self.seen[name] for name in names], how="diagonal_relaxed")
        if "reason" not in known.columns:
            return known, known.clear()
        lost = pl.col("reason").is_not_null()
        return known.filter(~lost), known.filter(lost)


def with_preview(context: RunContext) -> RunContext:
    """Return the context of a run whose stage 4 may ask for short replays."""
    if context.is_reference or not context.spec.run.shortlist.preview:
        return replace(context, preview=None)
    return replace(context, preview=Preview(context))
