"""What changed between two runs: spec, inputs, winner, verdicts, metrics, ranks, tie groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from sieve.errors import ResultError
from sieve.frames import METRICS
from sieve.model_folders import require_one_model
from sieve.results import read_result

_ENTRY_KEYS: Final = ("candidate_id", "verdict", "rank", "tie_group")
WINNERS: Final = ("fewest_gpus", "best_per_gpu", "cheapest")


def compare_runs(first: Path, second: Path) -> dict[str, Any]:
    """Return what changed from the first run to the second.

    Keys: `runs` (name and folder of each), `same` (whether nothing below changed), `spec` (keys
    whose value differs, by dotted path), `inputs` (checksums that differ, by name), `assumptions`
    (texts that only one has), `answer` (status, recommendation, winners, tie group), `stages`
    (counts that differ), `candidates` (one entry for each that either run ranks: verdicts, ranks,
    tie groups and, where both rank it, every metric with the relative change of its middle and
    whether the intervals still overlap), `only_first`, `only_second` (ids).

    Raises:
        ResultError: a folder holds no finished run, or a damaged one.
    """
    a, b = (_checked(path) for path in (first, second))
    _same_kind((first, second), (a, b))
    report: dict[str, Any] = {
        "runs": [_run(path, data) for path, data in ((first, a), (second, b))],
        "same": False,
        "spec": _differences(_flat(a["spec"]), _flat(b["spec"])),
        "inputs": _inputs(a, b),
        "assumptions": _assumptions(a, b),
        "answer": _answer(a, b),
        "stages": _stages(a, b),
        "candidates": _candidates(a, b),
    }
    ids = [{entry["candidate_id"] for entry in data["ranking"]} for data in (a, b)]
    for name, own, other in (("only_first", 0, 1), ("only_second", 1, 0)):
        report[name] = sorted(ids[own] - ids[other])
    changed = any(report[k] for k in ("spec", "inputs", "assumptions", "answer", "stages"))
    moved = any(entry["moved"] for entry in report["candidates"])
    report["same"] = not (changed or moved or report["only_first"] or report["only_second"])
    return report


def _checked(path: Path) -> dict[str, Any]:
    data = read_result(path)
    kinds = {"spec": dict, "inputs": list, "answer": dict, "ranking": list, "stages": list,
             "assumptions": list}  # fmt: skip
    for key, kind in kinds.items():
        if not isinstance(data.get(key), kind):
            raise ResultError(f"{path}/result.json: {key!r} is missing or not a {kind.__name__}")
    rows = [("ranking", _ENTRY_KEYS), ("stages", ("name", "num_in", "num_admitted")),
            ("inputs", ("name", "sha256")), ("assumptions", ("about", "text"))]  # fmt: skip
    for key, needed in rows:
        for i, entry in enumerate(data[key]):
            missing = [n for n in needed if not isinstance(entry, dict) or n not in entry]
            if missing:
                raise ResultError(f"{path}/result.json: {key}[{i}]: {missing[0]!r} is missing")
    return data


def _same_kind(paths: Sequence[Path], runs: Sequence[Mapping[str, Any]]) -> None:
    """Refuse a run over several models beside one of one: their candidates have other ids.

    Raises:
        ResultError: names the run folder of each model.
    """
    if len({bool(data.get("models")) for data in runs}) == 2:
        for path, data in zip(paths, runs, strict=True):
            require_one_model(path, data)


def _run(path: Path, data: Mapping[str, Any]) -> dict[str, Any]:
    ranking = data["ranking"]
    return {
        "folder": str(path),
        "name": data["spec"].get("name"),
        "sieve_version": data.get("sieve_version"),
        "num_ranked": len(ranking),
        "recommended": ranking[0]["candidate_id"] if ranking else None,
    }


def _flat(value: Any, path: str = "") -> dict[str, Any]:
    """Return the leaves of a spec by dotted path; lists are leaves."""
    if not isinstance(value, dict) or not value:
        return {path: value}
    out: dict[str, Any] = {}
    for key, item in value.items():
        out |= _flat(item, f"{path}.{key}" if path else str(key))
    return out


def _differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {"key": key, "first": a.get(key), "second": b.get(key)}
        for key in sorted({*a, *b})
        if a.get(key) != b.get(key)
    ]


def _inputs(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[dict[str, Any]]:
    known: list[dict[str, Any]] = [
        {entry["name"]: entry["sha256"] for entry in data["inputs"]} for data in (a, b)
    ]
    return _differences(*known)


def _assumptions(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[dict[str, str]]:
    first, second = (
        dict.fromkeys((str(e["about"]), str(e["text"])) for e in data["assumptions"])
        for data in (a, b)
    )
    return [
        {"about": about, "text": text, "only": name}
        for name, own, other in (("first", first, second), ("second", second, first))
        for about, text in own
        if (about, text) not in other
    ]


def _answer(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what of the answer changed; ids of a tie group count as a set."""
    facts = []
    for data in (a, b):
        answer, ranking = data["answer"], data["ranking"]
        fact: dict[str, Any] = {"status": answer.get("status")}
        fact["recommended"] = ranking[0]["candidate_id"] if ranking else None
        fact |= {name: answer.get(name) for name in WINNERS}
        fact["tie_group"] = sorted(answer.get("tie_group") or [])
        facts.append(fact)
    rows = _differences(*facts)
    for row in rows:
        if row["key"] == "recommended":
            row["within_tie_group"] = row["second"] in facts[0]["tie_group"]
    return rows


def _stages(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[dict[str, Any]]:
    counts = [
        {f"{s['name']}.{key}": s[key] for s in data["stages"] for key in ("num_in", "num_admitted")}
        for data in (a, b)
    ]
    return _differences(*counts)


def _candidates(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return an entry for each candidate in the order of the second run, then of the first."""
    first, second = ({e["candidate_id"]: e for e in data["ranking"]} for data in (a, b))
    out = []
    for candidate in dict.fromkeys([*second, *first]):
        pair = first.get(candidate), second.get(candidate)
        entry: dict[str, Any] = {"candidate_id": candidate}
        for key in ("verdict", "rank", "tie_group"):
            entry[key] = [None if e is None else e[key] for e in pair]
        metrics = {}
        if pair[0] is not None and pair[1] is not None:
            metrics = {m: _metric(pair[0].get(m), pair[1].get(m)) for m in METRICS}
        entry["metrics"] = {m: cell for m, cell in metrics.items() if cell is not None}
        entry["moved"] = any(entry[k][0] != entry[k][1] for k in ("verdict", "rank", "tie_group"))
        entry["moved"] |= any(c["first"] != c["second"] for c in entry["metrics"].values())
        out.append(entry)
    return out


def _metric(first: Any, second: Any) -> dict[str, Any] | None:
    """Return both triples of a metric, the relative change of the middle, and the overlap."""
    if not isinstance(first, dict) or not isinstance(second, dict):
        return None
    cell: dict[str, Any] = {"first": first, "second": second, "change": None, "overlap": None}
    before, after = first.get("mid"), second.get("mid")
    if before and after is not None:
        cell["change"] = after / before - 1.0
    low, high, other_low, other_high = (
        triple.get(end) for triple in (first, second) for end in ("low", "high")
    )
    if low is not None and high is not None and other_low is not None and other_high is not None:
        cell["overlap"] = low <= other_high and other_low <= high
    return cell
