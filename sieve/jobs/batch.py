"""`sieve.batch`: the sizing jobs of a file, side by side, one run folder each and one summary."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, Final

from sieve.api import RunResult
from sieve.api import run as run_spec
from sieve.calibration.serving_file import read_calibration
from sieve.catalog.models import config_file
from sieve.errors import InvalidInput, ResultError, SieveError
from sieve.jobs.job_file import JobFile, read_jobs
from sieve.jobs.merge import Named, calibration_of, job_spec, named
from sieve.jobs.summary import error_row, result_row, to_csv, to_document
from sieve.parallel import LocalExecutor, make_executor
from sieve.results import CHECKPOINT, read_result, to_json, write_atomically
from sieve.reuse import Reuse
from sieve.sim.stored import code_version
from sieve.spec import ResolvedSpec
from sieve.version import __version__

LOCK: Final = ".batch.lock"
MARK: Final = "job.json"
"""In a run folder's checkpoint: which job it answers, and the checksum of its result."""
_CHUNK_BYTES: Final = 1 << 20


@dataclass(frozen=True)
class _Shared:
    """What every job reads.

    `folder` is None where the caller writes the run folders; `workers` run one job's replays;
    `calibration` holds for jobs that name none.
    """

    jobs: JobFile
    folder: Path | None
    out: Path
    resume: bool
    workers: int
    calibration: Path | None


Done = tuple[dict[str, Any], RunResult | None, str]
"""A row of the summary, a result that is still to be written, and the job's key."""


def batch(
    jobs: str | Path,
    *,
    out: str | Path,
    resume: bool = False,
    executor: str = "auto",
    ray_address: str | None = None,
    workers: int | None = None,
    calibration: str | Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Run every job of a file and return the summary, which is written to `out` too.

    Args:
        jobs: path of the jobs file.
        out: folder for one run folder a job, `summary.json` and `summary.csv`.
        resume: take over jobs whose run folder holds the answer to the same spec, the same files
            and the same version, and go on with the replays of the others.
        executor: `auto` (threads), `local` or `ray`.
        ray_address: address of a Ray cluster.
        workers: jobs at a time on threads; default: one a core.
        calibration: file of `sieve calibrate` for the jobs that name none.
        progress: called with (done, total) jobs.

    Raises:
        SieveError: a jobs file or a folder that cannot be used; faults of a job are in its row.
    """
    started = time.perf_counter()
    fan_out = make_executor(executor, ray_address)
    is_local = isinstance(fan_out, LocalExecutor)
    if workers is not None and not is_local:
        raise InvalidInput("--workers counts threads; leave it out with Ray")
    if workers is not None and workers < 1:
        raise InvalidInput(f"found --workers {workers}; expected at least 1")
    file = read_jobs(Path(jobs))
    items = named(file)
    if calibration is not None:
        read_calibration(Path(calibration))  # its faults are not a job's
    folder = Path(out)
    lock = _open(folder, resume=resume)
    try:
        if is_local:
            fan_out = LocalExecutor(workers)
        cores = fan_out.workers or os.cpu_count() or 1
        shared = _Shared(
            jobs=replace(file, base_dir=file.base_dir.resolve(), jobs=[]),
            folder=folder if is_local else None,
            out=folder.resolve(),
            resume=resume,
            workers=max(1, cores // len(items)) if is_local else 1,
            calibration=None if calibration is None else Path(calibration).resolve(),
        )
        done = 0

        def on_done(number: int, made: Done) -> dict[str, Any]:
            nonlocal done
            done += 1
            row = _written(folder, items[number], made)
            if progress is not None:
                progress(done, len(items))
            return row

        labels = [item.name or f"job {item.job.number}" for item in items]
        found = fan_out.map_ordered(run_job, shared, items, labels, on_done)
        summary = to_document(found, time.perf_counter() - started)
        write_atomically(folder / "summary.csv", to_csv(found))
        write_atomically(folder / "summary.json", to_json(summary))
    finally:
        lock.close()
    return summary


def check_jobs(jobs: str | Path) -> dict[str, Any]:
    """Return what a batch would run: each job's name and what is wrong with it, if anything.

    Specs are read and checked; models, GPUs and traffic are looked up when a job runs.

    Raises:
        SieveError: a jobs file that cannot be used.
    """
    file = read_jobs(Path(jobs))
    rows = []
    for item in named(file):
        message = None
        try:
            job_spec(item, file)
        except SieveError as error:
            message = str(error)
        rows.append({"number": item.job.number, "name": item.name, "error": message})
    num_bad = sum(row["error"] is not None for row in rows)
    return {"num_jobs": len(rows), "num_bad": num_bad, "jobs": rows}


def run_job(shared: _Shared, item: Named) -> Done:
    """Return one job's row; its run folder is written here where the folder is this machine's."""
    started = time.perf_counter()
    key = ""
    try:
        spec = job_spec(item, shared.jobs)
        calibration = calibration_of(item, shared.jobs, shared.calibration)
        key = job_key(spec, calibration)
        if shared.resume and (known := finished(shared.out / spec.run.name, key)) is not None:
            row = result_row(item.job.number, known, reused=True)
            return row | {"elapsed_s": time.perf_counter() - started}, None, key
        result = run_spec(
            spec,
            out=None if shared.folder is None else shared.folder / spec.run.name,
            executor=LocalExecutor(shared.workers),
            resume=shared.resume and shared.folder is not None,
            calibration=calibration,
            reuse=_reuse(),
        )
    except (SieveError, OSError) as error:
        row = error_row(item, 2, error)
        return row | {"elapsed_s": time.perf_counter() - started}, None, key
    except Exception as error:  # noqa: BLE001 - a bug in one job must not stop the others
        row = error_row(item, 1, error) | {"traceback": traceback.format_exc()}
        return row | {"elapsed_s": time.perf_counter() - started}, None, key
    row = result_row(item.job.number, result.data)
    if shared.folder is not None:
        mark(shared.folder / spec.run.name, key)
    unwritten = result if shared.folder is None else None
    return row | {"elapsed_s": time.perf_counter() - started}, unwritten, key


@lru_cache(maxsize=1)
def _reuse() -> Reuse:
    """Return the stores of this process; their content depends on nothing but its keys."""
    return Reuse()


def _written(folder: Path, item: Named, made: Done) -> dict[str, Any]:
    """Return a job's row after writing the run folder that a worker elsewhere could not write."""
    row, result, key = made
    if result is None:
        return row
    try:
        mark(result.save(folder / str(item.name)), key)
    except (SieveError, OSError) as error:
        return error_row(item, 2, error) | {"elapsed_s": row["elapsed_s"]}
    return row


def _open(folder: Path, *, resume: bool) -> IO[bytes]:
    """Return the lock of a batch's folder, which is created if need be.

    Raises:
        ResultError: a file, a folder of something else, not writable, or in use by another batch.
    """
    if folder.exists() and not folder.is_dir():
        raise ResultError(f"{folder}: is a file; --out names a folder")
    if resume and not folder.is_dir():
        raise ResultError(f"{folder}: no such folder; --resume goes on with an earlier batch there")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / LOCK).is_file():
        raise ResultError(
            f"{folder}: holds other files; choose an empty folder or one of an earlier batch"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / LOCK).open("ab")
    except OSError as error:
        raise ResultError(f"{folder}: cannot be written: {error.strerror}") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise ResultError(
            f"{folder}: another batch is writing to this folder; wait for it, or choose another"
        ) from None
    for name in ("summary.json", "summary.csv"):
        (folder / name).unlink(missing_ok=True)
    return lock


def job_key(spec: ResolvedSpec, calibration: Path | None = None) -> str:
    """Return the digest of all that a job's answer depends on: spec, files read, version."""
    files = {}
    if calibration is not None:
        files["calibration"] = _digest(calibration)
    run = spec.run
    if run.traffic.trace is not None:
        files["trace"] = _digest(spec.base_dir / run.traffic.trace)
    if isinstance(spec.model, str):
        config = config_file(spec.model, base_dir=spec.base_dir)
        for path in [] if config is None else sorted(config.parent.glob("*.json")):
            files[f"model:{path.name}"] = _digest(path)
    if run.kernel_tables is not None:
        for path in sorted((spec.base_dir / run.kernel_tables).rglob("provenance.yaml")):
            name = path.relative_to(spec.base_dir / run.kernel_tables).as_posix()
            files[f"kernel_tables:{name}"] = _digest(path)
    facts = {
        "version": __version__,
        "code": code_version(),
        "spec": spec.to_json(),
        "files": files,
    }
    text = json.dumps(facts, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _digest(path: Path) -> str | None:
    """Return the checksum of a file, None where there is none: shipped traffic has no file."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, ValueError):
        return None


def mark(folder: Path, key: str) -> None:
    """Note which job a finished run folder answers."""
    facts = {"key": key, "result": _digest(folder / "result.json")}
    write_atomically(folder / CHECKPOINT / MARK, to_json(facts))


def finished(folder: Path, key: str) -> dict[str, Any] | None:
    """Return the result in a run folder if it is whole and answers the job with this key."""
    try:
        noted = json.loads((folder / CHECKPOINT / MARK).read_text(encoding="utf-8"))
        if noted != {"key": key, "result": _digest(folder / "result.json")}:
            return None
        return read_result(folder)
    except (OSError, ValueError, ResultError):
        return None
