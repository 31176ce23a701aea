"""Step tables by family, built once per (GPU, TP, PP, EP, precisions, context parallelism)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

import numpy as np

from sieve.arrays import StepTable
from sieve.catalog.architecture import EngineProfile, Gpu, ModelArchitecture
from sieve.perf.base import ServingShape
from sieve.perf.compose import build_step_table
from sieve.perf.reference import reference_step_table
from sieve.validity.nodes import replica_nodes

FAMILY = (
    "gpu", "tp", "pp", "ep", "weight_dtype", "weight_bytes_per_param", "kv_cache_dtype",
    "kv_bytes_per_element", "decode_context_parallel_size", "data_parallel_size",
    "async_scheduling",
)  # fmt: skip
"""Candidate columns that a step table depends on."""


class TableStore(Protocol):
    """Where step tables are kept for other runs, by the digest of all that they depend on."""

    def get(self, key: str) -> StepTable | None:
        """Return what was put under a key, or None."""
        ...

    def put(self, key: str, table: StepTable, num_bytes: int) -> None:
        """Keep a table under a key."""
        ...


@dataclass(eq=False)
class StepTables:
    """Builds and keeps step tables.

    Attributes:
        model, engine, gpus: what the run is about.
        max_num_batched_tokens, max_num_seqs, max_context: sizes that cover every candidate.
        gpus_per_node: of the fleet.
        nodes_per_replica: of the fleet: nodes that one replica may span.
        tp_across_nodes: of the fleet: its tensor ranks may span nodes too.
        scale_out_bytes_per_s: of the fleet: network of one GPU, one direction; 0: not known.
        store: tables of other runs; None: every table is built here.
    """

    model: ModelArchitecture
    engine: EngineProfile
    gpus: dict[str, Gpu]
    max_num_batched_tokens: int
    max_num_seqs: int
    max_context: int
    gpus_per_node: int
    nodes_per_replica: int = 1
    tp_across_nodes: bool = False
    scale_out_bytes_per_s: float = 0.0
    store: TableStore | None = None
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

    def nodes(self, tp: int, pp: int, dp: int = 1) -> int:
        """Return the nodes that a replica takes; stage 1 lets none pass that has no place."""
        if self.nodes_per_replica == 1 or dp > 1:
            return 1
        found = replica_nodes(
            np.array([tp]), np.array([pp]), gpus_per_node=self.gpus_per_node,
            most_nodes=self.nodes_per_replica, tp_across=self.tp_across_nodes,
        )  # fmt: skip
        return max(1, int(found[0]))

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
            nodes=self.nodes(family["tp"], family["pp"], family["data_parallel_size"]),
            scale_out_bytes_per_s=self.scale_out_bytes_per_s,
            dcp=family["decode_context_parallel_size"],
            dp=family["data_parallel_size"],
        )
        if self.store is None:
            return self._made(shape, family)
        facts = (shape, self.engine.name, family["kv_bytes_per_element"])
        text = repr((facts, family["async_scheduling"]))
        key = hashlib.sha256(text.encode()).hexdigest()
        table = self.store.get(key)
        if table is None:
            table = self._made(shape, family)
            self.store.put(key, table, num_bytes(table))
        return table

    def _made(self, shape: ServingShape, family: dict[str, Any]) -> StepTable:
        if self.engine.name == "reference":
            return reference_step_table(shape, family["kv_bytes_per_element"])
        return build_step_table(shape, asynchronous=family["async_scheduling"])


def num_bytes(table: StepTable) -> int:
    """Return the size of a table's arrays in bytes."""
    arrays = (getattr(table, column.name) for column in fields(table))
    return sum(array.nbytes for array in arrays if isinstance(array, np.ndarray))
