"""Work packages of the replay: candidates of one family at one level, and what is known of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, overload

from sieve.arrays import Requests, SimResult, StepTable
from sieve.sim.alike import replay_alike
from sieve.sim.fleet import Routing
from sieve.sim.stored import can_store, code_version, decode, digest, encode, replay_key
from sieve.sim.traffic_input import ReplaySettings

Family = tuple[Any, ...]
Stored = list[tuple[ReplaySettings, bytes]]
"""Fresh replays, as `sieve.sim.stored` writes them."""


class Store(Protocol):
    """Where finished replays are kept by key."""

    def get(self, key: str) -> bytes | None:
        """Return what was put under a key, or None."""
        ...

    def put(self, key: str, data: bytes) -> None:
        """Keep the data under a key."""
        ...


@dataclass(frozen=True)
class Job:
    """Candidates at one level that differ only in limits that may never bind.

    Attributes:
        rows: rows of the candidates.
        level: multiplier of the load.
        family: key of their step table.
        replicas: engines of each.
        variants: settings of each.
        known: replays that are there already, as `sieve.sim.stored` writes them.
        routing: who gets a request.
        seed: of random routing.
    """

    rows: tuple[int, ...]
    level: float
    family: Family
    replicas: int
    variants: tuple[ReplaySettings, ...]
    known: Mapping[ReplaySettings, bytes] = field(default_factory=dict)
    routing: Routing = "round_robin"
    seed: int = 0


class Jobs(Sequence[Job]):
    """Jobs with the replays that a store holds, read when a job is handed out."""

    def __init__(
        self,
        jobs: Sequence[Job],
        requests: Mapping[float, Requests],
        tables: Mapping[Family, StepTable],
        store: Store | None,
    ) -> None:
        self.bare = jobs
        self.store = store
        if store is not None:
            self._code = code_version()
            self._requests = {level: digest(facts) for level, facts in requests.items()}
            self._tables = {family: digest(table) for family, table in tables.items()}

    def __len__(self) -> int:
        return len(self.bare)

    @overload
    def __getitem__(self, number: int) -> Job: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[Job]: ...
    def __getitem__(self, number: int | slice) -> Job | Sequence[Job]:
        if isinstance(number, slice):
            return [self[i] for i in range(*number.indices(len(self)))]
        job = self.bare[number]
        if self.store is None:
            return job
        found = ((v, self.store.get(self._key(job, v))) for v in dict.fromkeys(job.variants))
        return replace(job, known={v: data for v, data in found if data is not None})

    def put(self, number: int, stored: Stored) -> None:
        """Keep the fresh replays of a job."""
        if self.store is not None:
            for variant, data in stored:
                self.store.put(self._key(self.bare[number], variant), data)

    def _key(self, job: Job, variant: ReplaySettings) -> str:
        requests, table = self._requests[job.level], self._tables[job.family]
        code = f"{self._code} {job.routing}"
        if job.routing == "random":
            code += f" {job.seed}"
        return replay_key(requests, table, variant, job.replicas, code)


def replay_job(
    requests: Requests, table: StepTable, job: Job, *, keeps: bool
) -> tuple[list[tuple[int, SimResult]], Stored]:
    """Return the replays of a job as `replay_alike` does, and the fresh ones if they are kept."""
    fresh: Stored = []

    def known(settings: ReplaySettings) -> SimResult | None:
        data = job.known.get(settings)
        return None if data is None else decode(data)

    def keep(settings: ReplaySettings, result: SimResult) -> None:
        if keeps and can_store(result):
            fresh.append((settings, encode(result)))

    replays = replay_alike(
        requests, table, job.variants, job.replicas, routing=job.routing, seed=job.seed,
        known=known, on_replay=keep,
    )  # fmt: skip
    return replays, fresh
