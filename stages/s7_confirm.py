"""Stage 7: write down how the finalists are started.

Finalists are the leader's tie group (at most five) and the answers by other yardsticks. The written
command, parsed back, is the evaluated candidate.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from sieve.context import RunContext
from sieve.export.vllm_serve import CHECKPOINT, serve_script
from sieve.ranking.answer import MAX_TIED, winners
from sieve.spec import is_path
from sieve.stage import Stage, StageResult, no_rejections

STAGE: Final = Stage(
    number=7,
    name="confirm",
    purpose="engine command lines of the finalists",
    reasons={},
)


def run(candidates: pl.DataFrame, context: RunContext) -> StageResult:
    """Return all candidates, and `plan/<candidate_id>/serve.sh` of each finalist."""
    hopeful = candidates.filter(pl.col("verdict") != "misses")
    if hopeful.is_empty():
        hopeful = candidates.head(1)
    ids = hopeful.filter(pl.col("tie_group") == 1)["candidate_id"].head(MAX_TIED).to_list()
    ids += [candidate for candidate in winners(hopeful).values() if candidate]
    finalists = candidates.filter(pl.col("candidate_id").is_in(ids))
    model = _served_model(context)
    files = {
        f"plan/{row['candidate_id']}/serve.sh": serve_script(
            row,
            model,
            context.model.checkpoint_dtype,
            context.engine.name,
            nodes=context.tables.nodes(row["tp"], row["pp"]),
        )
        for row in finalists.iter_rows(named=True)
    }
    return StageResult(candidates, no_rejections(candidates), files=files)


def _served_model(context: RunContext) -> str:
    """Return what the engine loads: the hub name, or the folder of a config.json.

    A name without its organisation is completed from the catalogue. Facts given inline name
    nothing that an engine could load.
    """
    model = context.spec.model
    if not isinstance(model, str):
        return CHECKPOINT
    if is_path(model, context.spec.base_dir):
        path = (context.spec.base_dir / model).resolve()
        return str(path.parent if path.is_file() else path)
    return served_name(model, context.model.name)


def served_name(model: str, catalogue_name: str) -> str:
    """Return the hub name of a model that was given by name, completed from the catalogue."""
    return model if "/" in model else catalogue_name
