"""Step tables by family, built once per (GPU, TP, PP, EP, precisions)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sieve.arrays import StepTable
from sieve.catalog.architecture import EngineProfile, Gpu, ModelArchitecture
from sieve.perf.base import ServingShape
from sieve.perf.compose import build_step_table
from sieve.perf.reference import reference_step_table

FAMILY = (
    "gpu", "tp", "pp", "ep", "weight_dtype", "weight_bytes_per_param", "kv_cache_dtype",
    "kv_bytes_per_element",
)  # fmt: skip
"""Candidate columns that a step table depends on."""


@dataclass(eq=False)
class StepTables:
    """Builds and keeps step tables.

    Attributes:
        model, engine, gpus: what the run is about.
        max_num_batched_tokens, max_num_seqs, max_context: sizes that cover every candidate.
        gpus_per_node: of the fleet.
    """

    model: ModelArchitecture
    engine: EngineProfile
    gpus: dict[str, Gpu]
    max_num_batched_tokens: int
    max_num_seqs: int
    max_context: int
    gpus_per_node: int
    _tables: dict[tuple[Any, ...], StepTable] = field(default_factory=dict)

    def get(self, family: tuple[Any, ...]) -> StepTable:
        """Return the table of a family, a tuple of the `FAMILY` columns' values."""
        table = self._tables.get(family)
        if table is None:
            table = self._tables[family] = self._build(dict(zip(FAMILY, family, strict=True)))
        return table

    def notes(self) -> list[str]:
        """Return what the tables built so far assume, each sentence once, in order."""
        return list(dict.fromkeys(note for t in self._tables.values() for note in t.notes))

    def _build(self, family: dict[str, Any]) -> StepTable:
        shape = ServingShape(
            model=self.model,
            gpu=self.gpus[family["gpu"]],
            tp=family["tp"],
            pp=family["pp"],
            ep=family["ep"],
            weight_dtype=family["weight_dtype"],
            kv_cache_dtype=family["kv_cache_dtype"],
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_num_seqs=self.max_num_seqs,
            max_context=self.max_context,
            weight_bytes_per_param=family["weight_bytes_per_param"],
            gpus_per_node=self.gpus_per_node,
        )
        if self.engine.name == "reference":
            return reference_step_table(shape, family["kv_bytes_per_element"])
        # The costs must be those of the scheduler that is replayed, not of the engine's default.
        asynchronous = bool(self.engine.replay.get("async_scheduling", False))
        return build_step_table(shape, asynchronous=asynchronous)
