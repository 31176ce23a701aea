"""Executors: threads (the compiled replay releases the interpreter lock) and Ray."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any, Final

from sieve.errors import SieveError

Work = Callable[[Any, Any], Any]
IN_FLIGHT_PER_CORE: Final = 3
CONNECT_TIMEOUT_S: Final = 5.0


class LocalExecutor:
    """Threads in this process."""

    def __init__(self, workers: int | None = None) -> None:
        self.workers: int = workers or os.cpu_count() or 1

    def map_ordered(
        self,
        function: Work,
        shared: Any,
        items: Sequence[Any],
        labels: Sequence[str],
        on_done: Callable[[], None],
    ) -> list[Any]:
        """Return `[function(shared, item) for item in items]`; `on_done` is called for each."""
        results: list[Any] = [None] * len(items)
        with ThreadPoolExecutor(self.workers) as pool:
            futures = {
                pool.submit(_labelled, function, shared, item, label): i
                for i, (item, label) in enumerate(zip(items, labels, strict=True))
            }
            try:
                for future in as_completed(futures):
                    results[futures[future]] = future.result()
                    on_done()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        return results


def _labelled(function: Work, shared: Any, item: Any, label: str) -> Any:
    try:
        return function(shared, item)
    except Exception as error:
        error.add_note(f"while working on {label}")
        raise


class RayExecutor:
    """Tasks on a local Ray or on a cluster; a bounded number is in flight."""

    def __init__(self, address: str | None = None, workers: int | None = None) -> None:
        self.address = address
        self.workers = workers

    def map_ordered(
        self,
        function: Work,
        shared: Any,
        items: Sequence[Any],
        labels: Sequence[str],
        on_done: Callable[[], None],
    ) -> list[Any]:
        """Return `[function(shared, item) for item in items]`; `shared` travels once."""
        ray = _import_ray()
        started = not ray.is_initialized()
        if started:
            self._connect(ray)
        try:
            return self._run(ray, function, shared, items, labels, on_done)
        finally:
            if started:
                ray.shutdown()

    def _connect(self, ray: Any) -> None:
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        if self.address is None:
            options |= {"include_dashboard": False, "num_cpus": self.workers or os.cpu_count()}
        else:
            _require_answer(self.address)
            options["address"] = self.address
        try:
            ray.init(**options)
        except ConnectionError as error:
            raise SieveError(f"no Ray cluster answers at {self.address!r}: {error}") from None

    def _run(
        self,
        ray: Any,
        function: Work,
        shared: Any,
        items: Sequence[Any],
        labels: Sequence[str],
        on_done: Callable[[], None],
    ) -> list[Any]:
        task = ray.remote(num_cpus=1, max_retries=3)(_labelled)
        shared_ref = ray.put(shared)
        window = IN_FLIGHT_PER_CORE * max(1, int(ray.cluster_resources().get("CPU", 1)))
        results: list[Any] = [None] * len(items)
        pending: dict[Any, int] = {}
        waiting = iter(range(len(items)))
        while True:
            while len(pending) < window and (i := next(waiting, None)) is not None:
                ref = task.remote(function, shared_ref, items[i], labels[i])
                pending[ref] = i
            if not pending:
                return results
            ready, _ = ray.wait(list(pending), num_returns=1)
            for ref in ready:
                i = pending.pop(ref)
                try:
                    results[i] = ray.get(ref)
                except ray.exceptions.RayTaskError as error:
                    cause = error.as_instanceof_cause()
                    cause.add_note(f"while working on {labels[i]}")
                    raise cause from None
                on_done()


def _require_answer(address: str) -> None:
    """Refuse an address where nothing listens, before Ray tries for half a minute.

    Raises:
        SieveError: not `host:port` (or `auto`, or `ray://host:port`), or no answer.
    """
    if address == "auto":
        return
    host, sign, port = address.removeprefix("ray://").rpartition(":")
    if not sign or not host or not port.isdigit():
        raise SieveError(f"found --ray-address {address!r}, expected host:port, ray:// or auto")
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_TIMEOUT_S).close()
    except (OSError, OverflowError) as error:
        raise SieveError(f"no Ray cluster answers at {address!r}: {error}") from None


def _import_ray() -> Any:
    try:
        import ray
    except ImportError:
        raise SieveError(
            "Ray is not installed; run `pip install 'sieve-sizing[ray]'`, or use --executor local"
        ) from None
    return ray


def make_executor(kind: str, address: str | None = None) -> LocalExecutor | RayExecutor:
    """Return the executor of this kind: `auto` is threads unless an address is given.

    Raises:
        SieveError: an unknown kind, or an address for threads.
    """
    if kind not in {"auto", "local", "ray"}:
        raise SieveError(f"found --executor {kind!r}; executors are auto, local and ray")
    if kind == "local" and address is not None:
        raise SieveError("--ray-address needs --executor ray or auto")
    if kind == "ray" or address is not None:
        return RayExecutor(address)
    return LocalExecutor()
