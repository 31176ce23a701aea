"""What a run would do, and how long it would take here."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from sieve.api import prepare
from sieve.blocks import BLOCK, Merged, merge
from sieve.context import RunContext
from sieve.grid import Grid
from sieve.parallel import LocalExecutor
from sieve.pipeline import exhaustive_cost, run_grid
from sieve.several import summed_cost, summed_record
from sieve.spec import ResolvedSpec, load_specs
from stages import STAGES

SAMPLED_ABOVE: Final = 20_000_000
"""Of a grid of more combinations some blocks are searched and stand for all."""
SAMPLES: Final = 64
SAMPLED_BLOCK: Final = BLOCK // 8


def dry_run(
    spec: str | Path | Mapping[str, Any],
    *,
    overrides: Sequence[str] = (),
    exhaustive: bool = False,
) -> dict[str, Any]:
    """Return what a run would do: stage counts, replays, and a rough time on this machine.

    Of a grid of more than `SAMPLED_ABOVE` combinations a sample is searched: counts are estimates
    then, `sampled` says of how many, and `search_s` how long stages 1 to 4 over all would take.

    Raises:
        SieveError: any fault of the input.
    """
    specs = load_specs(spec, overrides=overrides)
    return _added([_of_model(one, exhaustive=exhaustive) for one in specs])


def _of_model(resolved: ResolvedSpec, *, exhaustive: bool) -> dict[str, Any]:
    fan_out = LocalExecutor()
    context, grid = prepare(resolved, fan_out, exhaustive=exhaustive)
    if grid.index.size > SAMPLED_ABOVE:
        return _sampled(grid, context)
    outcome = run_grid(grid, context, stop_after=4, preview=False)
    cost = exhaustive_cost(outcome, context, chosen=True)
    return {
        "num_candidates": grid.index.num_candidates,
        "stages": outcome.stages,
        "num_replays": cost.num_replays,
        "estimated_s": cost.elapsed_s(fan_out.workers),
        "exhaustive": exhaustive_cost(outcome, context).to_json(fan_out.workers),
    }


def _added(counts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return what a run over several models would do; a time that one does not know is None."""
    if len(counts) == 1:
        return counts[0]
    names = ("num_candidates", "num_replays", "estimated_s", "sampled", "search_s")
    out: dict[str, Any] = {}
    for name in names:
        values = [one[name] for one in counts if name in one]
        if values:
            out[name] = None if None in values else sum(values)
    costs = [one["exhaustive"] for one in counts]
    records = zip(*(one["stages"] for one in counts), strict=True)
    out["stages"] = [summed_record(same) for same in records]
    out["exhaustive"] = summed_cost(costs)
    return out


def _sampled(grid: Grid, context: RunContext) -> dict[str, Any]:
    blocks = list(grid.index.blocks(SAMPLED_BLOCK))
    chosen = blocks[:: max(1, len(blocks) // SAMPLES)]
    started = time.perf_counter()
    merged = merge(grid, context, chosen)
    elapsed_s = time.perf_counter() - started
    searched = sum(last - first for first, last in chosen) * grid.index.row_size
    factor = grid.index.size / searched
    run = context.spec.run
    chosen_few = min(run.shortlist.size, int(merged.num_in[4]))
    return {
        "num_candidates": grid.index.num_candidates,
        "sampled": searched,
        "stages": _estimated(merged, factor, chosen_few),
        "num_replays": chosen_few * len(run.traffic.levels),
        "search_s": elapsed_s * factor,
        "estimated_s": None,
        "exhaustive": None,
    }


def _estimated(merged: Merged, factor: float, num_chosen: int) -> list[dict[str, Any]]:
    """Return the records of stages 1 to 4, counts scaled to the whole grid."""
    counts = [round(n * factor) for n in merged.num_in.tolist()]
    counts[4] = num_chosen
    return [
        {
            "number": module.STAGE.number,
            "name": module.STAGE.name,
            "num_in": counts[i],
            "num_admitted": counts[i + 1],
            "num_rejected": counts[i] - counts[i + 1],
            "reasons": {
                reason: round(n * factor)
                for (stage, reason), n in sorted(merged.reasons.items())
                if stage == module.STAGE.number
            },
            "elapsed_s": float(merged.seconds[i + 1]) * factor,
        }
        for i, module in enumerate(STAGES[:4])
    ]
