"""Which run folders there are below a folder; no link is followed and nothing outside is read."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any, Final

from sieve.errors import ResultError
from sieve.report.answer import answer_sentence
from sieve.report.format import count
from sieve.results import read_result

HISTORY: Final = "history.html"
"""The page that `sieve nightly` keeps beside its nights."""
MAX_DEPTH: Final = 3
MAX_RUNS: Final = 500
MAX_SEEN: Final = 20_000
"""Most folders that are looked into."""
MAX_LISTED_BYTES: Final = 20_000_000
"""A larger result is listed without its answer."""


@dataclass(frozen=True)
class RunEntry:
    """One run as the list shows it.

    Attributes:
        name: path below the served folder, with `/`.
        written: UTC time of `result.json`.
        status: of the answer, `unreadable` where there is none.
        sentence: the answer, or why there is none.
        model: name of the model.
        candidates: size of the grid.
    """

    name: str
    written: str
    status: str
    sentence: str
    model: str = ""
    candidates: str = ""


def list_runs(root: Path) -> list[RunEntry]:
    """Return the runs below `root`, the latest first, at most 500."""
    runs = [path for path in _folders(root) if path != root and _is_file(path / "result.json")]
    found = sorted(runs, key=lambda path: -(path / "result.json").lstat().st_mtime_ns)
    return [_entry(root, path) for path in found[:MAX_RUNS]]


def list_histories(root: Path) -> list[str]:
    """Return the folders below `root`, itself included, that `sieve nightly` keeps; as names."""
    found = [folder for folder in _folders(root) if _is_file(folder / HISTORY)]
    return sorted(path.relative_to(root).as_posix() for path in found)[:MAX_RUNS]


def find_run(root: Path, name: str) -> Path | None:
    """Return the run folder `name` below `root`, or None where there is none.

    A name that leaves `root`, or goes through a link, names nothing.
    """
    path = _below(root, name)
    return path if path is not None and _is_file(path / "result.json") else None


def find_history(root: Path, name: str) -> Path | None:
    """Return the page of the nights kept in folder `name` below `root`, or None."""
    path = root if name == "." else _below(root, name)
    if path is None or not _is_file(path / HISTORY):
        return None
    return path / HISTORY if (path / HISTORY).stat().st_size <= MAX_LISTED_BYTES else None


def _is_file(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _below(root: Path, name: str) -> Path | None:
    """Return the folder `name` below `root`, reached through no link, or None."""
    parts = PurePosixPath(name).parts
    if not parts or len(parts) > MAX_DEPTH or "\0" in name or "\\" in name:
        return None
    if any(part in {"", ".", "..", "/"} or part.startswith(".") for part in parts):
        return None
    path = root
    for part in parts:
        path = path / part
        if path.is_symlink() or not path.is_dir():
            return None
    return path if path.resolve().is_relative_to(root.resolve()) else None


def has_links(run: Path) -> bool:
    """Return whether a file of the run that a page reads is a link."""
    names = ("candidates.parquet", "simulations.parquet", "timeline.parquet", "plan")
    return any((run / name).is_symlink() for name in names)


def _folders(root: Path) -> Iterator[Path]:
    """Yield `root` and the folders below it, nearest first; links and hidden ones are left out."""
    seen, level = 0, [root]
    for _ in range(MAX_DEPTH + 1):
        below: list[Path] = []
        for folder in level:
            yield folder
            try:
                entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
            except OSError:
                continue  # not ours to read: the list shows what can be read
            for entry in entries:
                if entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
                    seen += 1
                    if seen > MAX_SEEN:
                        return
                    below.append(Path(entry.path))
        level = below


def _entry(root: Path, path: Path) -> RunEntry:
    name = path.relative_to(root).as_posix()
    facts = (path / "result.json").stat()
    written = datetime.fromtimestamp(facts.st_mtime, UTC).strftime("%Y-%m-%d %H:%M")
    if facts.st_size > MAX_LISTED_BYTES:
        words = f"result.json has {count(facts.st_size)} bytes; open the run to read it"
        return RunEntry(name, written, "large", words)
    try:
        result = read_result(path)
    except ResultError as error:
        return RunEntry(name, written, "unreadable", str(error))
    return RunEntry(
        name, written, status_of(result), answer_of(result), model_of(result), _candidates(result)
    )


def status_of(result: Mapping[str, Any]) -> str:
    """Return the status of a run's answer, `unfinished` where it stopped early."""
    answer = result.get("answer")
    status = answer.get("status") if isinstance(answer, Mapping) else None
    known = ("answer", "weak_evidence", "no_slo", "no_fit")
    return str(status) if status in known else "unfinished"


def answer_of(result: Mapping[str, Any]) -> str:
    """Return the answer in one sentence, whatever the file holds."""
    ranking, stages = result.get("ranking"), result.get("stages")
    sound = (
        isinstance(ranking, list)
        and all(isinstance(row, Mapping) for row in ranking)
        and isinstance(stages, list)
        and all(isinstance(row, Mapping) for row in stages)
        and all(isinstance(result.get(key) or {}, Mapping) for key in ("answer", "spec"))
    )
    return answer_sentence(result) if sound else "not a result that can be shown"


def model_of(result: Mapping[str, Any]) -> str:
    """Return the name of a run's model."""
    spec = result.get("spec")
    model = spec.get("model") if isinstance(spec, Mapping) else None
    several = model if isinstance(model, list) else [model]
    names = (m.get("name", "") if isinstance(m, Mapping) else m or "" for m in several)
    return ", ".join(str(name) for name in names)


def _candidates(result: Mapping[str, Any]) -> str:
    stages = result.get("stages")
    first = stages[0] if isinstance(stages, list) and stages else None
    return count(first.get("num_in")) if isinstance(first, Mapping) else ""
