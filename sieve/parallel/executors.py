"""Executors: threads (the compiled replay releases the interpreter lock) and Ray."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, Final, Self

from sieve.errors import SieveError

Work = Callable[[Any, Any], Any]
OnDone = Callable[[int, Any], Any]
"""Called with (number of the item, its result) once an item; what it returns is kept."""

IN_FLIGHT_PER_CORE: Final = 3
CONNECT_TIMEOUT_S: Final = 5.0
TASK_LIMIT_S: Final = 1800.0
ATTEMPTS: Final = 3


def keep(_number: int, result: Any) -> Any:
    """Return the result: nothing is done when an item is ready."""
    return result


class LocalExecutor:
    """Threads in this process; a bounded number of items is in flight."""

    def __init__(self, workers: int | None = None) -> None:
        self.workers: int = workers or os.cpu_count() or 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        """Do nothing: threads end with their map."""

    def map_ordered(
        self,
        function: Work,
        shared: Any,
        items: Sequence[Any],
        labels: Sequence[str],
        on_done: OnDone = keep,
    ) -> list[Any]:
        """Return `[function(shared, item) for item in items]`, each as `on_done` returns it."""
        results: list[Any] = [None] * len(items)
        waiting = iter(range(len(items)))
        pending: dict[Future[Any], int] = {}
        with ThreadPoolExecutor(self.workers) as pool:
            try:
                while True:
                    while len(pending) < IN_FLIGHT_PER_CORE * self.workers:
                        i = next(waiting, None)
                        if i is None:
                            break
                        work = pool.submit(_labelled, function, shared, items[i], labels[i])
                        pending[work] = i
                    if not pending:
                        return results
                    for future in wait(pending, return_when=FIRST_COMPLETED).done:
                        i = pending.pop(future)
                        results[i] = on_done(i, future.result())
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise


def _labelled(function: Work, shared: Any, item: Any, label: str) -> Any:
    try:
        return function(shared, item)
    except Exception as error:  # of any kind: raised on, with the candidate's name
        error.add_note(f"while working on {label}")
        raise


def _limited(function: Work, shared: Any, item: Any, label: str, limit_s: float) -> Any:
    """Call the function in a worker process that ends itself when the call takes too long.

    Compiled code cannot be interrupted, so the process is what ends.
    """
    watch = threading.Timer(limit_s, os._exit, args=(1,))
    watch.daemon = True
    watch.start()
    try:
        return _labelled(function, shared, item, label)
    finally:
        watch.cancel()


class RayExecutor:
    """Tasks on a local Ray or on a cluster; a bounded number is in flight.

    A task whose worker is lost (killed, out of memory, its node gone, or past the time limit) is
    tried again, three times in all. Each result is taken over once.

    Attributes:
        address: of a cluster; None: a Ray of its own on this machine.
        workers: cores of that Ray; None: all.
        task_limit_s: longest time of one task in a worker.
    """

    def __init__(
        self,
        address: str | None = None,
        workers: int | None = None,
        task_limit_s: float = TASK_LIMIT_S,
    ) -> None:
        self.address = address
        self.workers = workers
        self.task_limit_s = task_limit_s
        self._stays = self._started = False

    def __enter__(self) -> Self:
        """Let a Ray that is started from here on run until the end of the block."""
        self._stays = True
        return self

    def __exit__(self, *_error: object) -> None:
        self._stays = False
        if self._started:
            self._started = False
            _import_ray().shutdown()

    def map_ordered(
        self,
        function: Work,
        shared: Any,
        items: Sequence[Any],
        labels: Sequence[str],
        on_done: OnDone = keep,
    ) -> list[Any]:
        """Return `[function(shared, item) for item in items]`; `shared` travels once.

        Raises:
            SieveError: Ray is missing or does not answer; a task was lost three times.
        """
        ray = _import_ray()
        started = not ray.is_initialized()
        if started:
            self._connect(ray)
            self._started = True
        try:
            return self._run(ray, function, shared, items, labels, on_done)
        finally:
            if started and not self._stays:
                self._started = False
                ray.shutdown()

    def _connect(self, ray: Any) -> None:
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        if self.address is None:
            # "local": a Ray of this run's own, also where another one runs on this machine.
            options |= {"address": "local", "num_cpus": self.workers or os.cpu_count()}
            options |= {"include_dashboard": False}
        else:
            _require_answer(self.address)
            options["address"] = self.address
        try:
            ray.init(**options)
        except ConnectionError as error:
            raise SieveError(_no_answer(self.address, error)) from None
        except RuntimeError as error:  # its processes did not come up in Ray's own time
            ray.shutdown()
            raise SieveError(
                f"Ray did not start: {str(error).splitlines()[0][:200]}; see the logs below "
                "/tmp/ray/session_latest/logs, or use --executor local"
            ) from None

    def _run(
        self,
        ray: Any,
        function: Work,
        shared: Any,
        items: Sequence[Any],
        labels: Sequence[str],
        on_done: OnDone,
    ) -> list[Any]:
        # Retries are made here: Ray's own would not tell a lost worker from a slow task.
        task = ray.remote(num_cpus=1, max_retries=0)(_limited)
        shared_ref = ray.put(shared)
        window = IN_FLIGHT_PER_CORE * max(1, int(ray.cluster_resources().get("CPU", 1)))
        results: list[Any] = [None] * len(items)
        attempts = [0] * len(items)
        pending: dict[Any, int] = {}
        again: list[int] = []
        waiting = iter(range(len(items)))
        while True:
            while len(pending) < window:
                i = again.pop() if again else next(waiting, None)
                if i is None:
                    break
                attempts[i] += 1
                ref = task.remote(function, shared_ref, items[i], labels[i], self.task_limit_s)
                pending[ref] = i
            if not pending:
                return results
            ready, _ = ray.wait(list(pending), num_returns=1)
            for ref in ready:
                i = pending.pop(ref)
                try:
                    result = ray.get(ref)
                except ray.exceptions.RayTaskError as error:
                    cause = error.as_instanceof_cause()
                    cause.add_note(f"while working on {labels[i]}")
                    raise cause from None
                except ray.exceptions.RayError as error:
                    if attempts[i] == ATTEMPTS:
                        raise SieveError(
                            f"{labels[i]}: its worker was lost {ATTEMPTS} times "
                            f"({type(error).__name__}); it ended, ran out of memory, or a task "
                            f"took longer than {self.task_limit_s:g} s. Run again with --resume, "
                            "or with --executor local"
                        ) from None
                    again.append(i)
                    continue
                results[i] = on_done(i, result)


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
        raise SieveError(_no_answer(address, error)) from None


def _no_answer(address: str | None, error: Exception) -> str:
    return (
        f"no Ray cluster answers at {address!r}: {error}; start one with `ray start --head` and "
        "give its host:port, or leave --ray-address out to work on this machine"
    )


def _import_ray() -> Any:
    try:
        import ray
    except ImportError:
        raise SieveError(
            "Ray is not installed; run `pip install 'sieve-sizing[ray]'` (in a checkout: '.[ray]') "
            "or use --executor local"
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
