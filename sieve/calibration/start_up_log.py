"""Read what an engine printed while it started: versions, arguments, memory figures.

The lines of each release stand in `catalog/data/start_up_lines.yaml`. Figures are taken as printed,
in bytes and counts, each with its line; what a log does not say stays unknown.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sieve.calibration.start_up_lines import Line, grammar, release_number, stated_arguments
from sieve.errors import ResultError
from sieve.units import GIB, MIB

MOST_BYTES: Final = 50_000_000
"""Largest log that is read."""
_LONGEST_LINE: Final = 200_000
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
_WORKER: Final = re.compile(r"\((\w*[Ww]orker\w*(?: rank=\d+)?(?: pid=\d+)?(?:, ip=[\d.]+)?)\)")
_STAGE: Final = re.compile(r"_PP(\d+)")
_ISO_DATE: Final = re.compile(r"(?<!\d)(\d{4}-\d{2}-\d{2})[T ]\d{2}:\d{2}")
_SHORT_DATE: Final = re.compile(r"(?:DEBUG|INFO|WARNING|ERROR) (\d{2}-\d{2}) \d{2}:\d{2}:\d{2}")
_VERSION: Final = re.compile(r"v?(\d{1,4}\.\d{1,4}(?:\.\d{1,4})?)")
_GIB_LIMIT: Final = 4096.0
_HINTS: Final = (
    " took ", "KV cache", "oncurrency", "blocks", "total_gpu_memory", "weights take", "on startup",
    "memory utilization", "Actual usage", "CUDA graph", "max model len", "max seq len", "emory for",
    "OutOfMemory", "out of memory", "maximum model length",
)  # fmt: skip
"""One of these stands in every line that carries a figure; saves the search in all others."""
_ARGUMENT_HINTS: Final = ("args: ", "with config: ", "Chunked prefill")
_SMALLER_WINS: Final = frozenset({"kv_bytes", "kv_tokens", "concurrency", "num_gpu_blocks"})
_MAY_BE_NEGATIVE: Final = frozenset({"kv_bytes", "non_torch_bytes", "graph_bytes"})
_LIMITS: Final[Mapping[str, float]] = {
    "kv_tokens": 1e12, "num_gpu_blocks": 1e11, "concurrency": 1e10, "max_model_len": 1e9,
    "utilisation": 1.0, "longest_len": 1e9,
}  # fmt: skip


@dataclass(frozen=True)
class Reading:
    """A figure of a log: bytes, a count or a share, and the line it stands on."""

    value: float
    line: int


@dataclass(frozen=True)
class StartUpLog:
    """What a log says.

    Attributes:
        path: the file.
        sha256: of the file.
        version: as the banner has it, "" without a banner.
        covers: first and last release that print lines of this form.
        lines: names of the lines that were found.
        date: the first date in the log, "" if none; often without a year.
        arguments: engine options as text, "None" where the engine was told so.
        states_arguments: a line lists the options that differ from the defaults.
        figures: by name (`weight_bytes`, `kv_tokens` ...), of the worker that decides.
        stage: pipeline stage of that worker, None if the log does not say.
        num_workers: workers that printed figures under their own name.
        failure: why the engine did not start, "" if no such line was found.
        notes: what is worth knowing.
    """

    path: Path
    sha256: str
    version: str
    covers: tuple[str, str]
    lines: tuple[str, ...]
    date: str
    arguments: Mapping[str, str]
    states_arguments: bool
    figures: Mapping[str, Reading]
    stage: int | None
    num_workers: int
    failure: str
    notes: tuple[str, ...]

    def value(self, name: str) -> float | None:
        """Return a figure, None if the log does not state it."""
        found = self.figures.get(name)
        return None if found is None else found.value

    def where(self, name: str) -> str:
        """Return file and line of a figure for messages."""
        return f"{self.path}:{self.figures[name].line}"


def read_start_up_log(path: Path) -> StartUpLog:
    """Return what a vLLM start-up log says.

    Raises:
        ResultError: no log of this engine, too large, binary, or a figure that cannot be.
    """
    stored = _stored(path)
    text = stored.decode("utf-8", errors="replace")
    reader = _Reader(path)
    for number, line in enumerate(text.splitlines(), start=1):
        if len(line) <= _LONGEST_LINE:
            reader.take(number, _COLOUR.sub("", line))
    return reader.log(hashlib.sha256(stored).hexdigest())


def _stored(path: Path) -> bytes:
    try:
        if not path.is_file():
            raise ResultError(f"{path}: no such file; give the engine's start-up log")
        size = path.stat().st_size
        if size > MOST_BYTES:
            raise ResultError(
                f"{path}: {size:,} bytes; a start-up log has at most {MOST_BYTES:,}. Keep the "
                "lines up to the one that says the server is running"
            )
        stored = path.read_bytes()[: MOST_BYTES + 1]
    except OSError as error:
        raise ResultError(f"{path}: cannot be read: {error.strerror}") from error
    if not stored.strip():
        raise ResultError(f"{path}: the file is empty; give the engine's start-up log")
    if stored[:2] == b"\x1f\x8b":
        raise ResultError(f"{path}: the file is compressed; unpack it first")
    if b"\0" in stored:
        line = stored[: stored.index(b"\0")].count(b"\n") + 1
        raise ResultError(f"{path}:{line}: a binary file; give the log as text (UTF-8)")
    return stored


class _Reader:
    """Collects what the lines of one log say."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.grammar = grammar()
        self.workers: dict[str, dict[str, Reading]] = {}
        self.arguments: dict[str, dict[str, str]] = {"arguments": {}, "config": {}}
        self.found: dict[str, Line] = {}
        self.version = ""
        self.banner_rank = len(self.grammar.banner)
        self.banners: dict[int, str] = {}
        self.date = ""
        self.year_known = False
        self.failure = ""
        self.other = ("", 0)
        self.num_lines = 0

    def take(self, number: int, line: str) -> None:
        """Read one line."""
        self.num_lines = number
        self._take_date(line)
        self._take_banner(number, line)
        if not self.other[0] and not self.version:
            for name, pattern in self.grammar.others.items():
                if pattern.search(line):
                    self.other = (name, number)
        told = any(word in line for word in _ARGUMENT_HINTS)
        for pattern, source in self.grammar.arguments if told else ():
            if match := pattern.search(line):
                self.arguments[source].update(stated_arguments(match["arguments"]))
        if not any(word in line for word in _HINTS):
            return
        worker = _WORKER.findall(line)
        label = worker[-1] if worker else ""
        for kind in self.grammar.lines:
            if match := kind.pattern.search(line):
                self.found.setdefault(kind.name, kind)
                self._take_figures(number, label, match)
        for kind in self.grammar.failures:
            if match := kind.pattern.search(line):
                self.failure = self.failure or kind.name
                self._take_figures(number, label, match)
        if match := self.grammar.longest.search(line):
            self._take_figures(number, label, match)

    def _take_date(self, line: str) -> None:
        if self.year_known:
            return
        if match := _ISO_DATE.search(line[:80]):
            self.date, self.year_known = match[1], True
        elif not self.date and (match := _SHORT_DATE.search(line)):
            self.date = match[1]

    def _take_banner(self, number: int, line: str) -> None:
        if "version" not in line and "LLM engine" not in line:
            return
        for rank, pattern in enumerate(self.grammar.banner):
            match = pattern.search(line)
            if match is None:
                continue
            if rank in self.banners and self.workers and rank == 1:
                raise ResultError(
                    f"{self.path}:{number}: a second start-up begins here; give each start-up a "
                    "file of its own"
                )
            self.banners[rank] = match["version"]
            if rank <= self.banner_rank:
                self.banner_rank, self.version = rank, match["version"]

    def _take_figures(self, number: int, label: str, match: re.Match[str]) -> None:
        figures = self.workers.setdefault(label, {})
        for group, text in match.groupdict().items():
            if text is None:
                continue
            name, value = self._figure(number, group, text)
            known = figures.get(name)
            if known is not None:
                smaller = value < known.value
                if smaller != (name in _SMALLER_WINS) or value == known.value:
                    continue
            figures[name] = Reading(value, number)

    def _figure(self, number: int, group: str, text: str) -> tuple[str, float]:
        try:
            value = float(text.replace(",", ""))
        except ValueError:
            raise ResultError(
                f"{self.path}:{number}: {text!r} is no number; the log is damaged"
            ) from None
        name = group
        limit = _LIMITS.get(group, _GIB_LIMIT)
        least = 0.0
        for suffix, size in (("_gib", GIB), ("_mib", MIB)):
            if group.endswith(suffix):
                name = group.removesuffix(suffix) + "_bytes"
                limit, value = limit * size, value * size
        if name in _MAY_BE_NEGATIVE:
            least = -limit
        if not math.isfinite(value) or not least <= value <= limit:
            raise ResultError(
                f"{self.path}:{number}: {group.rsplit('_', 1)[0].replace('_', ' ')} of {text} "
                "cannot be; the log is damaged"
            )
        return name, value

    def log(self, sha256: str) -> StartUpLog:
        """Return what was collected.

        Raises:
            ResultError: the log is not vLLM's or says nothing about memory.
        """
        if not self.workers:
            name, number = self.other
            if name:
                raise ResultError(
                    f"{self.path}:{number}: a log of {name}; only vLLM's start-up logs can be read"
                )
            what = "a vLLM log without" if self.version else "no vLLM start-up log:"
            raise ResultError(
                f"{self.path}:{self.num_lines}: {what} memory figures up to the last line; "
                "expected lines such as `Available KV cache memory: 40.61 GiB`"
            )
        figures, label = self._deciding()
        total, weights = figures.get("total_bytes"), figures.get("weight_bytes")
        if total and weights and weights.value > total.value:
            raise ResultError(
                f"{self.path}:{weights.line}: weights of {weights.value / GIB:.2f} GiB on a card "
                f"of {total.value / GIB:.2f} GiB cannot be; the log is damaged"
            )
        version = _VERSION.match(self.version)
        if self.version and version is None:
            raise ResultError(
                f"{self.path}: engine version {self.version!r} cannot be read; expected one "
                "such as 0.19.1"
            )
        stage = _STAGE.search(label)
        config = {k: v for k, v in self.arguments["config"].items() if v != "auto"}
        return StartUpLog(
            path=self.path,
            sha256=sha256,
            version=version[1] if version else "",
            covers=self._covers(),
            lines=tuple(self.found),
            date=self.date,
            arguments=self.arguments["arguments"] | config,
            states_arguments=bool(self.arguments["arguments"]),
            figures=figures,
            stage=int(stage[1]) if stage else None,
            num_workers=sum(1 for name in self.workers if name),
            failure=self.failure,
            notes=self._notes(version[1] if version else ""),
        )

    def _deciding(self) -> tuple[dict[str, Reading], str]:
        """Return the figures of the worker with the least cache, completed by what others say."""
        named = {name: found for name, found in self.workers.items() if name}
        label = ""
        if with_cache := [name for name, found in named.items() if "kv_bytes" in found]:
            label = min(with_cache, key=lambda name: named[name]["kv_bytes"].value)
        elif with_weights := [name for name, found in named.items() if "weight_bytes" in found]:
            label = max(with_weights, key=lambda name: named[name]["weight_bytes"].value)
        out: dict[str, Reading] = dict(self.workers.get(label, {}))
        rest = [self.workers.get("", {}), *(named[name] for name in sorted(named))]
        for found in rest:
            for name, reading in found.items():
                out.setdefault(name, reading)
        return out, label

    def _covers(self) -> tuple[str, str]:
        """Return the releases that print all lines of a telling form, ("", "") if none does."""
        telling = [kind.covers for kind in self.found.values() if kind.form]
        if not telling:
            return ("", "")
        first = max((covers[0] for covers in telling), key=release_number)
        last = min((covers[1] for covers in telling), key=release_number)
        return (first, last) if release_number(first) <= release_number(last) else ("", "")

    def _notes(self, version: str) -> tuple[str, ...]:
        if not version:
            return ()
        place = release_number(version)
        odd = [
            kind.name
            for kind in self.found.values()
            if not release_number(kind.covers[0]) <= place <= release_number(kind.covers[1])
        ]
        if not odd:
            return ()
        return (
            f"lines that release {version} is not known to print were read all the same: "
            f"{', '.join(odd)}",
        )
