"""Two runs side by side: their answers, their leaders, and where their specs differ."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from sieve.frames import METRICS
from sieve.report.format import UNKNOWN, deployment, interval, metric_name, number
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
    metrics = [(metric_name(m), *(_metric(row, m) for row in leaders)) for m in METRICS]
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


def _flat(value: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:
    """Yield (dotted key, value as JSON) of every leaf of a spec."""
    if isinstance(value, Mapping) and value and depth < 8:
        for key, item in value.items():
            yield from _flat(item, f"{path}.{key}" if path else str(key), depth + 1)
    else:
        yield path, json.dumps(value, ensure_ascii=False, default=str)[:2_000]
