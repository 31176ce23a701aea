"""Rows that cannot be read: stop at the first, leave them out, or count them all.

Nothing is left out silently: what was skipped is in the notes of the traffic, by kind, with lines.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np

from sieve.arrays import BoolArray, IntArray
from sieve.errors import TraceError

OnError = Literal["stop", "skip", "count"]
ON_ERROR: Final = ("stop", "skip", "count")
SHOWN: Final = 5
"""Lines that are named of each kind of fault."""


@dataclass(eq=False)
class Kind:
    """One kind of fault: how many rows have it, the first message, the first lines."""

    count: int = 0
    first: str = ""
    lines: list[int] = field(default_factory=list)


@dataclass(eq=False)
class Faults:
    """The faults of one file.

    Attributes:
        mode: `stop` raises at the first; `skip` leaves such rows out; `count` reads on and
            `conclude` then refuses the file with all counts.
        kinds: faults by field and kind.
        rows: indices in the file of rows that have a fault.
        tolerate: counted faults do not refuse the file; the caller reports them.
    """

    mode: OnError = "stop"
    kinds: dict[str, Kind] = field(default_factory=dict)
    rows: set[int] = field(default_factory=set)
    tolerate: bool = False

    def check(
        self,
        bad: BoolArray,
        rows: IntArray,
        kind: str,
        message: Callable[[int], str],
        first_line: int = 1,
    ) -> None:
        """Note the rows where `bad` holds.

        Args:
            bad: (n,) which rows have the fault.
            rows: (n,) their indices in the file.
            kind: field and kind of fault, such as `output_length: negative`.
            message: from the index in `bad` to what is wrong, with file, line and field.
            first_line: line of the row with index 0.

        Raises:
            TraceError: some row is bad and the mode is `stop`.
        """
        if not bad.any():
            return
        places = np.flatnonzero(bad)
        text = message(int(places[0]))
        if self.mode == "stop":
            raise TraceError(text)
        found = self.kinds.setdefault(kind, Kind())
        found.count += len(places)
        found.first = found.first or text
        room = SHOWN - len(found.lines)
        found.lines += (rows[places[: max(room, 0)]] + first_line).tolist()
        self.rows.update(rows[places].tolist())

    def add(self, row: int, kind: str, message: str, first_line: int = 1) -> None:
        """Note one row, as `check` does.

        Raises:
            TraceError: the mode is `stop`.
        """
        bad, rows = np.ones(1, np.bool_), np.array([row], np.int64)
        self.check(bad, rows, kind, lambda _: message, first_line)

    def good(self, rows: IntArray) -> BoolArray:
        """Return which of the rows with these indices have no fault so far, (n,)."""
        if not self.rows:
            return np.ones(len(rows), np.bool_)
        return ~np.isin(rows, np.fromiter(self.rows, np.int64, len(self.rows)))

    def report(self) -> dict[str, Any]:
        """Return the counts as JSON data."""
        return {
            "mode": self.mode,
            "rows": len(self.rows),
            "kinds": {
                name: {"count": kind.count, "lines": kind.lines, "first": kind.first}
                for name, kind in self.kinds.items()
            },
        }

    def notes(self) -> list[str]:
        """Return a sentence a kind for the traffic's notes."""
        return [
            f"{kind.count} rows left out ({self.mode}): {name}; "
            f"lines {', '.join(map(str, kind.lines))}{' ...' if kind.count > SHOWN else ''}"
            for name, kind in self.kinds.items()
        ]

    def conclude(self, label: str) -> None:
        """Refuse the file if faults were to be counted and there are any.

        Raises:
            TraceError: lists every kind with its count.
        """
        if self.mode == "count" and self.rows and not self.tolerate:
            lines = "\n".join(f"  {kind.count} × {kind.first}" for kind in self.kinds.values())
            raise TraceError(
                f"{label}: {len(self.rows)} rows cannot be read; correct them, "
                f"or leave them out with --on-error skip (on_error: skip)\n{lines}"
            )
