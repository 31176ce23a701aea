"""Two runs side by side: their answers, their leaders, and where their specs differ."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from sieve.frames import METRICS
from sieve.report.format import UNKNOWN, deployment, interval, metric_name, number, share
from sieve.serve.folders import answer_of, status_of

MAX_ROWS: Final = 200
_MISSING: Final = "not set"


def compare(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the page of two results shows, as plain texts."""
    sides = [first, second]
    leaders = [_leader(side) for side in sides]
    rows = [("answer", *(answer_of(side) for side in sides))]
    rows.append(("status", *(status_of(side) for side in sides)))
    rows.append(("leader", *(deployment(row) if row else UNKNOWN for row in leaders)))
    rows.append(("candidate", *(str(row.get("candidate_id", UNKNOWN)) for row in leaders)))
    rows.append(("sieve", *(str(side.get("sieve_version", UNKNOWN)) for side in sides)))
    metrics = [
        (metric_name(m), *(_metric(row, m) for row in leaders), _change(leaders, m))
        for m in METRICS
    ]
    specs = [dict(_flat(side.get("spec") or {})) for side in sides]
    keys = sorted({key for spec in specs for key in spec})
    changed = [
        (key, *(spec.get(key, _MISSING) for spec in specs))
        for key in keys
        if specs[0].get(key, _MISSING) != specs[1].get(key, _MISSING)
    ]
    return {"rows": rows, "metrics": metrics, "spec": changed[:MAX_ROWS], "num_spec": len(changed)}


def _leader(result: Mapping[str, Any]) -> Mapping[str, Any]:
    ranking = result.get("ranking")
    row = ranking[0] if isinstance(ranking, list) and ranking else None
    return row if isinstance(row, Mapping) else {}


def _metric(row: Mapping[str, Any], metric: str) -> str:
    value = row.get(metric)
    ends = value if isinstance(value, Mapping) else {}
    middle, around = interval(metric, *(number(ends.get(end)) for end in ("low", "mid", "high")))
    return f"{middle} ({around})" if around else middle


def _change(leaders: Sequence[Mapping[str, Any]], metric: str) -> str:
    """Return by how much the second middle differs, and whether the intervals overlap."""
    ends = [row.get(metric) for row in leaders]
    (low_a, a, high_a), (low_b, b, high_b) = (
        [number(e.get(k)) if isinstance(e, Mapping) else None for k in ("low", "mid", "high")]
        for e in ends
    )
    if a is None or b is None or not a > 0 or not math.isfinite(b):
        return UNKNOWN
    sign = "+" if b > a else "\N{MINUS SIGN}"
    words = "no change" if a == b else f"{sign}{share(abs(b / a - 1))}"
    if a == b or low_a is None or high_a is None or low_b is None or high_b is None:
        return words
    return f"{words}, intervals {'overlap' if low_a <= high_b and low_b <= high_a else 'part'}"


def _flat(value: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:
    """Yield (dotted key, value as JSON) of every leaf of a spec."""
    if isinstance(value, Mapping) and value and depth < 8:
        for key, item in value.items():
            yield from _flat(item, f"{path}.{key}" if path else str(key), depth + 1)
    else:
        yield path, json.dumps(value, ensure_ascii=False, default=str)[:2_000]
