"""What runs of one process have in common: traffic, step tables, replays, by their content.

Everything is kept under all that it depends on, so that a run with it gives the same result as a
run alone. The least recently used goes when a store is full.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Generic, TypeVar

from sieve.arrays import Requests, StepTable
from sieve.spec import TrafficSpec
from sieve.traces import load_traffic

T = TypeVar("T")
TABLE_BYTES: Final = 400_000_000
REPLAY_BYTES: Final = 200_000_000
TRAFFIC_BYTES: Final = 200_000_000


class Store(Generic[T]):
    """Values by key, at most so many bytes of them; used from several threads."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self._lock = threading.Lock()
        self._values: OrderedDict[str, tuple[T, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: str) -> T | None:
        """Return what was put under a key and is still kept, or None."""
        with self._lock:
            found = self._values.get(key)
            if found is None:
                return None
            self._values.move_to_end(key)
            return found[0]

    def put(self, key: str, value: T, num_bytes: int) -> None:
        """Keep a value of this size; one larger than the store is not kept."""
        with self._lock:
            if num_bytes > self.max_bytes or key in self._values:
                return
            self._values[key] = value, num_bytes
            self.num_bytes += num_bytes
            while self.num_bytes > self.max_bytes:
                _, (_, size) = self._values.popitem(last=False)
                self.num_bytes -= size


class Replays(Store[bytes]):
    """Finished replays by key, as `sieve.sim.stored` writes them."""

    def put(self, key: str, value: bytes, num_bytes: int | None = None) -> None:
        """Keep a replay; its size is its length."""
        super().put(key, value, len(value) if num_bytes is None else num_bytes)


@dataclass(eq=False)
class Reuse:
    """Stores that several runs share."""

    tables: Store[StepTable] = field(default_factory=lambda: Store(TABLE_BYTES))
    replays: Replays = field(default_factory=lambda: Replays(REPLAY_BYTES))
    requests: Store[Requests] = field(default_factory=lambda: Store(TRAFFIC_BYTES))

    def traffic(self, spec: TrafficSpec, *, seed: int, base_dir: Path) -> Requests:
        """Return the traffic of a spec as `load_traffic` does; a file is read once.

        A file that has changed since (its time or its size) is read again.
        """
        key = spec.model_dump_json(exclude={"levels"}) + f" {seed} {_stamp(spec, base_dir)}"
        requests = self.requests.get(key)
        if requests is None:
            requests = load_traffic(spec, seed=seed, base_dir=base_dir)
            # Three numbers a request, blocks of prompts on top.
            size = 24 * len(requests)
            if requests.prefix is not None:
                size += requests.prefix.ids.nbytes
            self.requests.put(key, requests, size)
        return requests


def _stamp(spec: TrafficSpec, base_dir: Path) -> str:
    """Return which file a traffic is read from and its state, "" where there is none."""
    if spec.trace is None:
        return ""
    path = base_dir / spec.trace
    try:
        stat = path.stat()
    except (OSError, ValueError):  # no file: shipped traffic, or a name that no file can have
        return str(base_dir)
    return f"{path.resolve()} {stat.st_mtime_ns} {stat.st_size}"
