"""Objectives against numbers: does a deployment meet them, and up to which load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sieve.frames import bound_column
from sieve.ranking.verdicts import Limit, limits_of
from sieve.report.format import limit_text, number, quantity
from sieve.spec.slo import parse_slos


@dataclass(frozen=True)
class Check:
    """One objective and what one deployment reaches, as texts.

    Attributes:
        text: the objective as the user wrote it.
        limit: its limit with unit.
        worst: the pessimistic end.
        mid: the middle.
        verdict: `clears`, `point_only`, `misses` or `unknown`.
    """

    text: str
    limit: str
    worst: str
    mid: str
    verdict: str


@dataclass(frozen=True)
class Break:
    """The load up to which an objective holds at the pessimistic end, as a sentence."""

    text: str
    sentence: str


def limits(texts: Sequence[Any]) -> list[tuple[str, Limit | None]]:
    """Return each objective's text with its test, None where it cannot be read."""
    out: list[tuple[str, Limit | None]] = []
    for text in texts:
        slos, faults = parse_slos([str(text)])
        found = [] if faults else limits_of(slos)
        out.append((str(text), found[0] if found else None))
    return out


def limit_on(column: str, texts: Sequence[Any]) -> float | None:
    """Return the limit on a metric's column, or None."""
    found = [lim.limit for _, lim in limits(texts) if lim is not None and lim.column == column]
    return found[0] if found else None


def ends(row: Mapping[str, Any], limit: Limit) -> tuple[float | None, float | None]:
    """Return the pessimistic end and the middle of an objective's metric.

    `row` is flat as in the frames, or nested as in a ranking.
    """
    value = row.get(limit.column)
    end = "high" if limit.at_most else "low"
    if isinstance(value, Mapping):
        return number(value.get(end)), number(value.get("mid"))
    return number(row.get(bound_column(limit.column, end))), number(value)


def check(text: str, limit: Limit | None, row: Mapping[str, Any]) -> Check:
    """Return whether a deployment meets an objective, with its numbers."""
    if limit is None:
        return Check(text, "unknown", "unknown", "unknown", "unknown")
    worst, mid = ends(row, limit)
    verdict = "unknown"
    if worst is not None and mid is not None:
        verdict = "misses"
        if bool(limit.holds(mid)):
            verdict = "clears" if bool(limit.holds(worst)) else "point_only"
    unit = limit.unit
    return Check(
        text, limit_text(limit.limit, unit), quantity(worst, unit), quantity(mid, unit), verdict
    )


def break_point(text: str, limit: Limit | None, rows: Sequence[Mapping[str, Any]]) -> Break:
    """Return where an objective breaks at the pessimistic end; `rows` by rising level."""
    if limit is None or not rows:
        return Break(text, "not known")
    if not limit.at_most and limit.unit:
        return Break(text, _reached(limit, rows))
    held: float | None = None
    for row in rows:
        worst, mid = ends(row, limit)
        if worst is None:
            return Break(text, "not known: a number is missing")
        if not bool(limit.holds(worst)):
            numbers = (
                f"{quantity(worst, limit.unit)} at the pessimistic end, "
                f"{quantity(mid, limit.unit)} in the middle"
            )
            if held is None:
                return Break(
                    text, f"misses at the lowest load simulated, {row['level']:g}: {numbers}"
                )
            return Break(
                text, f"holds up to load {held:g} and breaks at load {row['level']:g}: {numbers}"
            )
        held = row["level"]
    return Break(text, f"holds at every load simulated, up to {held:g}")


def break_level(
    column: str, texts: Sequence[Any], rows: Sequence[Mapping[str, Any]]
) -> float | None:
    """Return the lowest level at which an objective on a column misses, at the pessimistic end."""
    for _, limit in limits(texts):
        if limit is None or limit.column != column or (not limit.at_most and limit.unit):
            continue
        for row in rows:
            worst, _ = ends(row, limit)
            if worst is not None and not bool(limit.holds(worst)):
                return float(row["level"])
    return None


def _reached(limit: Limit, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return where a rate is reached: below some load there are too few requests to reach it."""
    at = [f"{row['level']:g}" for row in rows if bool(limit.holds(ends(row, limit)[0] or 0.0))]
    if at:
        return f"reached at the pessimistic end at load {', '.join(at)}"
    known = [(worst, row["level"]) for row in rows if (worst := ends(row, limit)[0]) is not None]
    if not known:
        return "not known: a number is missing"
    most, level = max(known)
    return (
        f"reached at no load simulated; the most at the pessimistic end is "
        f"{quantity(most, limit.unit)}, at load {level:g}"
    )
