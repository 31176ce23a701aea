"""Reading and writing a run folder, and the life of one candidate.

Files are written to a temporary name in the same folder and renamed; `result.json` comes last, so a
folder without it is an unfinished run.
"""

from __future__ import annotations

import difflib
import errno
import fcntl
import io
import json
import math
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Final

import polars as pl

from sieve.errors import ResultError
from sieve.model_folders import MODELS, check_models
from sieve.version import schema_fault

SCHEMA_VERSION: Final = "1.0"
SCHEMA_KEY: Final = "sieve_schema_version"
"""Of the metadata of a run folder's Parquet files."""
CHECKPOINT: Final = "checkpoint"
REPLAYS: Final = "replays.ledger"
SPEC: Final = "spec.json"
"""What `sieve explain` computes a candidate from that the folder does not hold."""
TRAFFIC: Final = "traffic.parquet"
LOCK: Final = "lock"
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
PROGRESS_EVERY_S: Final = 1.0
MAX_RESULT_BYTES: Final = 200_000_000
_CANDIDATE_COLUMNS: Final = (
    "candidate_id", "gpu", "tp", "pp", "ep", "replicas", "num_gpus", "weight_dtype",
    "kv_cache_dtype", "stage", "kind", "reason", "observed", "limit", "unit",
)  # fmt: skip
_LEVEL_COLUMNS: Final = (
    "candidate_id", "level", "ttft_p99_s", "tpot_p99_s", "e2e_p99_s", "output_tokens_per_s",
    "slo_attainment", "mean_batch", "peak_kv_usage",
)  # fmt: skip


def clean(value: Any) -> Any:
    """Return JSON data with nan and infinities as null, and NumPy scalars as plain numbers."""
    if isinstance(value, Mapping):
        return {str(k): clean(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [clean(v) for v in value]
    if hasattr(value, "item") and not isinstance(value, str | bytes):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def to_json(value: Any) -> str:
    """Return strict JSON text (no NaN), keys in their given order."""
    return json.dumps(clean(value), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


@contextmanager
def written(path: Path) -> Iterator[None]:
    """Turn what the system says of a failed write into one clear error.

    Raises:
        ResultError: names the file and the system's reason.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        advice = "make room, then go on with --resume" if error.errno in _FULL else "check the path"
        raise ResultError(f"{path}: cannot be written: {reason}; {advice}") from None


class RunFolder:
    """A run folder that is being written."""

    def __init__(self, path: Path, *, resume: bool = False) -> None:
        """Prepare the folder: created, or an earlier run's that will be overwritten.

        Args:
            path: the folder.
            resume: keep the replays of the earlier run, `checkpoint/`, and its events.

        Raises:
            ResultError: the path is a file, or a folder with other content, or not writable, or
                another run is writing to it.
        """
        self.path = path
        if path.exists() and not path.is_dir():
            raise ResultError(f"{path}: is a file; --out names a folder")
        if path.is_dir() and any(path.iterdir()) and not _is_run_folder(path):
            raise ResultError(
                f"{path}: holds other files; choose an empty folder or one of an earlier run"
            )
        try:
            (path / CHECKPOINT).mkdir(parents=True, exist_ok=True)
            self._lock = _lock(path)
            _remove_earlier(path, keep_replays=resume)
            mode = "ab" if resume else "wb"
            self._events = (path / "events.jsonl").open(mode, buffering=0)
        except OSError as error:
            raise ResultError(f"{path}: cannot be written: {error.strerror}") from None

    def below(self, name: str) -> Path:
        """Return the place of a folder below this one.

        Raises:
            ResultError: it is reached through a link, and may lie elsewhere.
        """
        target = self.path / name
        if target.resolve() != self.path.resolve() / name:
            raise ResultError(
                f"{target}: is reached through a link; remove it, or choose another --out"
            )
        return target

    def keep_models(self, labels: Sequence[str]) -> None:
        """Remove the run folders of models that an earlier run had and this one has not."""
        for folder in _model_folders(self.path):
            if folder.name not in labels:
                shutil.rmtree(folder)

    def event(self, kind: str, **fields: Any) -> None:
        """Append one event for machines.

        Raises:
            ResultError: it cannot be written, for example because the disk is full.
        """
        line = {"time_s": round(time.time(), 3), "event": kind, **clean(fields)}
        text = json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n"
        with written(self.path / "events.jsonl"):
            self._events.write(text.encode())

    def progress(
        self, then: Callable[[int, int], None] | None = None, *, stage: int = 5
    ) -> Callable[[int, int], None]:
        """Return a callback that notes (done, total), at most once a second and at the end.

        Args:
            then: called too, every time.
            stage: 5: replays; 1: combinations of a search in blocks, through stages 1 to 4.
        """
        last, started = 0.0, time.monotonic()

        def note(done: int, total: int) -> None:
            nonlocal last
            now = time.monotonic()
            if now - last >= PROGRESS_EVERY_S or done == total:
                last = now
                rate = done / max(now - started, 1e-9)
                self.event(
                    "progress",
                    stage=stage,
                    done=done,
                    total=total,
                    per_s=round(rate, 3),
                    left_s=round((total - done) / rate, 1) if rate > 0 else None,
                )
            if then is not None:
                then(done, total)

        return note

    def write_text(self, name: str, text: str) -> None:
        """Write a text file atomically; `name` is relative and stays inside the folder.

        Raises:
            ResultError: it would leave the folder, or cannot be written.
        """
        self._replace(name, text.encode())

    def write_frame(self, name: str, frame: pl.DataFrame) -> None:
        """Write a Parquet file atomically.

        Raises:
            ResultError: as `write_text`.
        """
        content = io.BytesIO()
        frame.write_parquet(content, metadata={SCHEMA_KEY: SCHEMA_VERSION})
        self._replace(name, content.getbuffer())

    def _replace(self, name: str, content: bytes | memoryview) -> None:
        _write_inside(self.path, name, content)

    def close(self) -> None:
        """Close the event log and let other runs in."""
        self._events.close()
        self._lock.close()


def _write_inside(folder: Path, name: str, content: bytes | memoryview) -> None:
    """Write a file of a folder, atomically.

    Raises:
        ResultError: the file would lie outside the folder, or cannot be written.
    """
    target = folder / name
    if not target.resolve().is_relative_to(folder.resolve()):
        raise ResultError(f"{name}: would leave the run folder")
    write_atomically(target, content)


def write_atomically(path: Path, content: str | bytes | memoryview) -> None:
    """Write a file in full or not at all; an earlier one is replaced.

    Raises:
        ResultError: it cannot be written, for example because the disk is full.
    """
    data = content.encode() if isinstance(content, str) else content
    with written(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=".part-", dir=path.parent)
        os.close(handle)
        try:
            Path(temporary).write_bytes(data)
            Path(temporary).chmod(0o644)
            Path(temporary).replace(path)
        finally:
            Path(temporary).unlink(missing_ok=True)


def write_plan(run: Path, files: Mapping[str, str]) -> None:
    """Write the files of a plan into a finished run, each atomically, the last one last.

    What is there already stays, an earlier plan file of the same name is replaced. The last file
    says what the plan holds: it is removed first, so that it never stands over half a plan.

    Args:
        run: the run folder.
        files: text by path below it.

    Raises:
        ResultError: the folder cannot be written, or another run is writing to it.
    """
    try:
        (run / CHECKPOINT).mkdir(exist_ok=True)
        with _lock(run):
            (run / list(files)[-1]).unlink(missing_ok=True)
            for name, text in files.items():
                _write_inside(run, name, text.encode())
    except OSError as error:
        raise ResultError(f"{run}: the plan cannot be written: {error.strerror}") from None


def _lock(path: Path) -> IO[bytes]:
    """Return the open lock file of a run folder; the system lets go of it when the process ends.

    Raises:
        ResultError: another run holds it.
    """
    lock = (path / CHECKPOINT / LOCK).open("ab")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise ResultError(
            f"{path}: another run is writing to this folder; wait for it, or choose another --out"
        ) from None
    return lock


def _remove_earlier(path: Path, *, keep_replays: bool) -> None:
    """Remove an earlier run's files, the result first, so that no two runs mix."""
    tables = ("candidates.parquet", "simulations.parquet", "timeline.parquet", TRAFFIC)
    for name in ("result.json", "report.html", *tables):
        (path / name).unlink(missing_ok=True)
    if not keep_replays:
        (path / CHECKPOINT / REPLAYS).unlink(missing_ok=True)
    (path / CHECKPOINT / SPEC).unlink(missing_ok=True)
    for folder in _model_folders(path) if not keep_replays else ():
        shutil.rmtree(folder)
    plan = path / "plan"
    if plan.is_dir() and not plan.is_symlink():
        shutil.rmtree(plan)


def _model_folders(path: Path) -> list[Path]:
    """Return the run folders of models below a run, those reached through links left out."""
    models = path / MODELS
    if not models.is_dir() or models.is_symlink():
        return []
    return [p for p in sorted(models.iterdir()) if not p.is_symlink() and _is_run_folder(p)]


def _is_run_folder(path: Path) -> bool:
    known = ("result.json", "events.jsonl", f"{CHECKPOINT}/{LOCK}")
    return any((path / name).is_file() for name in known)


def default_folder(name: str) -> Path:
    """Return `reports/runs/<name>-<utc time>` below the current folder, one that does not exist."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    folder = Path("reports") / "runs" / f"{name}-{stamp}"
    number = 1
    while folder.exists():
        number += 1
        folder = folder.with_name(f"{name}-{stamp}-{number}")
    return folder


def read_result(run: Path) -> dict[str, Any]:
    """Return `result.json` of a run folder.

    Raises:
        ResultError: no finished run there, or not a result of this schema.
    """
    path = run / "result.json"
    if not path.is_file():
        raise ResultError(
            f"{run}: no finished run here (result.json is missing); give the folder that "
            "`sieve run` wrote"
        )
    if path.stat().st_size > MAX_RESULT_BYTES:
        raise ResultError(f"{path}: larger than {MAX_RESULT_BYTES:,} bytes")
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ResultError(f"{path}: not JSON: {error}") from None
    if not isinstance(data, dict) or not isinstance(data.get("schema_version"), str):
        raise ResultError(f"{path}: not a sieve result: it names no schema_version")
    check_schema(path, data["schema_version"], SCHEMA_VERSION, "sieve run SPEC --out FOLDER")
    check_models(path, data)
    return data


def check_schema(path: Path, found: str, known: str, remake: str) -> None:
    """Refuse a file whose schema has another major version than this release reads.

    Args:
        path: of the file.
        found: its schema version, such as `2.1`.
        known: the version this release writes.
        remake: the command that writes the file anew.

    Raises:
        ResultError: with what to do about it.
    """
    if fault := schema_fault(found, known, f"make it anew with `{remake}`"):
        raise ResultError(f"{path}: {fault}")


def read_frame(run: Path, name: str, columns: Sequence[str] = ()) -> pl.DataFrame:
    """Return a Parquet table of a run folder that has at least `columns`.

    Raises:
        ResultError: missing, unreadable, or without a column.
    """
    path = run / name
    if not path.is_file():
        raise ResultError(f"{run}: {name} is missing; run `sieve run` again")
    try:
        written = pl.read_parquet_metadata(path).get(SCHEMA_KEY, SCHEMA_VERSION)
        check_schema(path, written, SCHEMA_VERSION, "sieve run SPEC --out FOLDER")
        frame = pl.read_parquet(path)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise ResultError(f"{path}: not a readable Parquet file: {error}") from None
    _require_columns(path, frame, columns)
    return frame


def _require_columns(path: Path, frame: pl.DataFrame, columns: Sequence[str]) -> None:
    missing = [name for name in columns if name not in frame.columns]
    if missing:
        raise ResultError(f"{path}: not this table: column {missing[0]!r} is missing")


def _require_keys(path: Path, data: Mapping[str, Any], kinds: Mapping[str, type]) -> None:
    for key, kind in kinds.items():
        if not isinstance(data.get(key), kind):
            raise ResultError(f"{path}: {key!r} is missing or not a {kind.__name__}")
    for stage in data["stages"]:
        if not isinstance(stage, dict) or not {"number", "name"} <= stage.keys():
            raise ResultError(f"{path}: an entry of 'stages' has no number and name")
    for entry in data["ranking"]:
        if not isinstance(entry, dict) or "candidate_id" not in entry:
            raise ResultError(f"{path}: an entry of 'ranking' has no candidate_id")
    if not isinstance(data["spec"].get("slo"), list):
        raise ResultError(f"{path}: 'spec.slo' is missing or not a list")


def find_candidate(candidates: pl.DataFrame, candidate_id: str) -> dict[str, Any]:
    """Return the row of one candidate.

    Raises:
        ResultError: no such id; the nearest ones are named.
    """
    found = candidates.filter(pl.col("candidate_id") == candidate_id)
    if not found.is_empty():
        return found.row(0, named=True)
    ids = candidates["candidate_id"].head(50_000).to_list()
    near = difflib.get_close_matches(candidate_id, ids, n=3, cutoff=0.3)
    raise ResultError(
        f"no candidate {candidate_id!r} in this run; nearest: {', '.join(near or ids[:3])}"
    )


def life_of(run: Path, candidate_id: str) -> dict[str, Any]:
    """Return what happened to one candidate of a finished run.

    Keys: `candidate` (its row), `objectives` (texts), `stages` (each with `outcome`: passed,
    rejected or not reached),
    `ranking` (its entry or null), `simulations` (rows by level).

    Raises:
        ResultError: no such run or candidate.
    """
    result = read_result(run)
    _require_keys(run / "result.json", result, {"stages": list, "ranking": list, "spec": dict})
    row = find_candidate(read_frame(run, "candidates.parquet", _CANDIDATE_COLUMNS), candidate_id)
    simulations = read_frame(run, "simulations.parquet")
    if simulations.columns:
        _require_columns(run / "simulations.parquet", simulations, _LEVEL_COLUMNS)
        simulations = simulations.filter(pl.col("candidate_id") == candidate_id)
    return lives(result, row, simulations.to_dicts())


def lives(
    result: Mapping[str, Any], row: Mapping[str, Any], simulations: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the life of a candidate from its row; see `life_of`."""
    last = row["stage"]
    stages = []
    for stage in result["stages"]:
        number = stage["number"]
        outcome = "passed" if last is None or number < last else "not reached"
        if number == last:
            outcome = "rejected"
        stages.append({"number": number, "name": stage["name"], "outcome": outcome})
    entries = [e for e in result["ranking"] if e["candidate_id"] == row["candidate_id"]]
    return {
        "candidate": dict(row),
        "objectives": result["spec"]["slo"],
        "stages": stages,
        "ranking": entries[0] if entries else None,
        "simulations": list(simulations),
    }
