"""Which test reaches which line, and how long each takes: a pytest plugin and its reader.

    coverage run --rcfile RC -m pytest -p mutation.reach tests/unit/traces

Coverage records a context for each test, its fixtures included; the durations go to the file that
`SIEVE_TEST_SECONDS` names.
"""

from __future__ import annotations

import ast
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import coverage
import pytest

SECONDS: Final = "SIEVE_TEST_SECONDS"
_took: dict[str, float] = {}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Attribute what runs to the test, from its set-up to its end."""
    current = coverage.Coverage.current()
    if current is not None:
        current.switch_context(item.nodeid)
    started = time.monotonic()
    result = yield
    _took[item.nodeid] = time.monotonic() - started
    if current is not None:
        current.switch_context("")
    return result


def pytest_sessionfinish() -> None:
    """Write how long each test took."""
    if SECONDS in os.environ:
        Path(os.environ[SECONDS]).write_text(json.dumps(_took))


@dataclass(frozen=True)
class Reach:
    """The tests that reach each line of the measured files.

    Attributes:
        lines: by file, tests by line; the test "" stands for what runs on import.
        seconds: duration of each test.
    """

    lines: dict[str, dict[int, list[str]]]
    seconds: dict[str, float]

    @classmethod
    def load(cls, data: Path, seconds: Path, root: Path) -> Reach:
        """Read what a run left behind; files are named relative to `root`."""
        found = coverage.CoverageData(str(data))
        found.read()
        return cls(
            {
                str(Path(file).relative_to(root)): found.contexts_by_lineno(file)
                for file in found.measured_files()
            },
            json.loads(seconds.read_text()),
        )

    def tests(self, file: str, source: str, line: int) -> tuple[list[str], bool]:
        """Return the tests that reach the statement of a line, the quickest first.

        Lines that run on import are reached by every test that reaches the file; then, and where
        none is known, the second value is False: other tests may notice a change too.
        """
        reached = self.lines.get(file, {})
        first, last = statement(source, line)
        names = {name for at in range(first, last + 1) for name in reached.get(at, ())}
        exact = bool(names) and "" not in names
        if "" in names:
            names = {name for tests in reached.values() for name in tests}
        return sorted(names - {""}, key=lambda n: (self.seconds.get(n, 0.0), n)), exact


def statement(source: str, line: int) -> tuple[int, int]:
    """Return first and last line of the innermost statement, of its head if it has a body."""
    best = (line, line)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            decorators = getattr(node, "decorator_list", [])
            first = min([node.lineno, *(d.lineno for d in decorators)])
            last = max(node.lineno, body[0].lineno - 1) if body else int(node.end_lineno or line)
            if first <= line <= last and (
                best == (line, line) or last - first <= best[1] - best[0]
            ):
                best = (first, last)
    return best
