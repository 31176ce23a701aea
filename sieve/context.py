"""What a run knows: resolved facts that every stage may read and none may change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import polars as pl

from sieve.arrays import FloatArray, Requests
from sieve.calibration.serving import Calibration
from sieve.catalog.architecture import EngineProfile, Gpu, ModelArchitecture
from sieve.checkpoint import Ledger
from sieve.perf.cache import StepTables
from sieve.perf.capacity import Workload
from sieve.reuse import Replays
from sieve.sim.jobs import Store
from sieve.spec import ResolvedSpec, SloSet


class Executor(Protocol):
    """Runs one function over many items, results in the order of the items."""

    def map_ordered(
        self,
        function: Callable[[Any, Any], Any],
        shared: Any,
        items: Sequence[Any],
        labels: Sequence[str],
        on_done: Callable[[int, Any], Any],
    ) -> list[Any]:
        """Return `[function(shared, item) for item in items]`, computed anywhere.

        `on_done` is called here with (number, result) once an item, in the order in which they
        are ready; the list holds what it returns.
        """
        ...


class Previewer(Protocol):
    """Replays candidates over a short trace."""

    def __call__(self, candidates: pl.DataFrame, slack: float) -> Sequence[int]:
        """Return the rows in ranking order, with limits eased by a factor."""
        ...

    def cleared(self, candidates: pl.DataFrame) -> FloatArray:
        """Return what each reaches of the objective, (n,), smaller is better; inf if it misses."""
        ...


@dataclass(frozen=True)
class Assumption:
    """One thing that was assumed: about what, what, and why or from where."""

    about: str
    text: str
    source: str = ""


@dataclass(frozen=True, eq=False)
class RunContext:
    """Facts of one run.

    Attributes:
        spec: the resolved spec.
        model, engine, gpus: looked-up facts.
        requests: the traffic at level 1.0.
        workload: its means.
        slos: objectives.
        tables: step tables by family.
        executor: fan-out of stage 5.
        options: option axes that appear in the candidate id.
        exhaustive: replay every survivor.
        always: candidate ids that stage 4 takes beside its own choice.
        progress: called with (done, total) while stage 5 runs.
        preview: short replays of hopeful candidates;
            None: stage 4 goes by its closed forms alone.
        calibration: corrections and intervals from measured points; None: defaults.
        ledger: finished replays are taken from it and put into it; None: nothing is kept.
        replays: those that runs of this process share, used where there is no ledger.
    """

    spec: ResolvedSpec
    model: ModelArchitecture
    engine: EngineProfile
    gpus: dict[str, Gpu]
    requests: Requests
    workload: Workload
    slos: SloSet
    tables: StepTables
    executor: Executor
    options: tuple[str, ...] = ()
    exhaustive: bool = False
    always: tuple[str, ...] = ()
    progress: Callable[[int, int], None] | None = None
    ledger: Ledger | None = None
    preview: Previewer | None = None
    calibration: Calibration | None = None
    replays: Replays | None = None

    @property
    def store(self) -> Store | None:
        """Where finished replays are looked up and kept, if anywhere."""
        return self.replays if self.ledger is None else self.ledger

    @property
    def is_reference(self) -> bool:
        """Whether the plain rules are followed to the letter."""
        return self.engine.name == "reference"

    @property
    def seed(self) -> int:
        """Seed of everything that is drawn."""
        return self.spec.run.seed
