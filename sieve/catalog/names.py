"""Names in messages: the nearest known ones, and lists of them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest_names(name: str, known: Iterable[str], count: int = 3) -> list[str]:
    """Return the `count` known names most like `name`, letter case and organisation aside."""
    wanted = name.lower()
    short = wanted.rsplit("/", 1)[-1]

    def likeness(candidate: str) -> float:
        lower = candidate.lower()
        pairs = ((wanted, lower), (short, lower.rsplit("/", 1)[-1]))
        return max(difflib.SequenceMatcher(None, *pair).ratio() for pair in pairs)

    return sorted(known, key=lambda candidate: (-likeness(candidate), candidate))[:count]


def listed(word: str, names: list[str]) -> str:
    """Return `key a` or `keys a, b`."""
    return f"{word}{'s' if len(names) != 1 else ''} {', '.join(names)}"
