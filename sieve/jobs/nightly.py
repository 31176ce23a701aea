"""`sieve.nightly`: the search repeated on a new day, against the nights before.

The incumbent (what the last night recommended) and its tie set are replayed on the new day. The
grid is searched in full only on the first night, after a change of spec or version, when the day
has drifted, or when the incumbent's verdict or its place in the tie set has changed.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import file_digest, sha256
from json import dumps
from pathlib import Path
from typing import Any, Final

import polars as pl

from sieve.api import prepare, result_of
from sieve.calibration.serving_file import read_calibration
from sieve.context import RunContext
from sieve.errors import InvalidInput, ResultError, TraceError
from sieve.grid import Grid
from sieve.jobs.batch import job_key
from sieve.jobs.days import drift, profile
from sieve.jobs.history import PAGE, open_history
from sieve.jobs.over_nights import LOOK_BACK, MET, capacity_of, over_nights
from sieve.jobs.stress import absent, standing, stress
from sieve.parallel import make_executor
from sieve.pipeline import EXIT_CODES, Outcome, answer_of, run_stages
from sieve.report.nightly import history_page
from sieve.results import write_atomically
from sieve.spec import ResolvedSpec, load_spec
from sieve.spec.models import TrafficSpec
from sieve.traces import load_traffic
from sieve.version import __version__

RECORD_VERSION: Final = "1.0"
ANOTHER: Final = 6
NONE_LEFT: Final = 4
_OVERRULED: Final = ("window_s", "requests", "rate_per_s", "arrival")
_STATUS: Final = {"clears": "answer", "point_only": "weak_evidence"}


@dataclass(frozen=True, eq=False)
class _Tonight:
    """What a night is decided from.

    Attributes:
        grid: every candidate.
        context: of the day.
        day: its profile.
        last: the last night's record, None on the first.
        searched: the last record of a full search, None on the first night.
    """

    grid: Grid
    context: RunContext
    day: dict[str, Any]
    last: dict[str, Any] | None
    searched: dict[str, Any] | None

    @property
    def incumbent(self) -> str | None:
        """What the last night recommended."""
        found = self.last and self.last["recommended"]
        return found["candidate_id"] if found else None


def nightly(
    spec: str | Path,
    *,
    traffic: str | Path,
    history: str | Path,
    form: str | None = None,
    day: str | None = None,
    overrides: Sequence[str] = (),
    calibration: str | Path | None = None,
    executor: str = "auto",
    ray_address: str | None = None,
) -> dict[str, Any]:
    """Return the night's record; it is added to the history, once for the same inputs.

    Args:
        spec: path of the run spec; its traffic is replaced by the file, its other traffic keys
            hold.
        traffic: the new day, a file in any format that a spec's `traffic.trace` takes.
        history: folder of `history.sqlite`, the page and the run folders of full searches.
        form: format of the file; detected when not given.
        day: what the day is called in the history; default: the file's name.
        overrides: `dotted.key=value` texts.
        calibration: file of `sieve calibrate`; predictions are corrected by its measured points.
        executor: `auto`, `local` or `ray`.
        ray_address: address of a Ray cluster.

    Raises:
        SieveError: any fault of the input; nothing is recorded then.
    """
    started = time.perf_counter()
    path, folder = Path(traffic), Path(history)
    if not path.is_file():
        raise TraceError(f"--traffic {path}: no such file; give one file with the day's requests")
    fan_out = make_executor(executor, ray_address)
    resolved = _resolved(Path(spec), path, form, overrides)
    learned_file = None if calibration is None else Path(calibration)
    learned = None if learned_file is None else read_calibration(learned_file)
    with open_history(folder) as nights:
        key = _inputs_key(resolved, learned_file, with_trace=True)
        known = nights.by_inputs(key)
        if known is not None:
            return known | {"repeated": True}
        last = next(iter(nights.records(1)), None)
        if last is not None and last["name"] != resolved.run.name:
            raise ResultError(
                f"{folder}: the history of {last['name']!r}, and this spec is "
                f"{resolved.run.name!r}; choose a folder of its own for each service"
            )
        context, grid = prepare(resolved, fan_out, calibration=learned)
        own = load_traffic(_as_it_is(resolved), seed=context.seed, base_dir=resolved.base_dir)
        tonight = _Tonight(grid, context, profile(own), last, nights.last_search())
        record = _decided(tonight, _inputs_key(resolved, learned_file, with_trace=False))
        number = 1 if last is None else last["night"] + 1
        record = {
            "schema_version": RECORD_VERSION,
            "sieve_version": __version__,
            "night": number,
            "day": day or path.name,
            "recorded_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "name": resolved.run.name,
            "inputs": {
                "sha256": key,
                "traffic_sha256": context.requests.sha256,
                "calibration_sha256": None if learned is None else learned.sha256,
            },
            **record,
            "notes": _notes(resolved),
        }
        record |= over_nights(record, nights.records(LOOK_BACK), context)
        outcome = record.pop("_outcome")
        if record["searched"]:
            record["run"] = f"runs/night-{number:05d}"
            result_of(grid, context, outcome).save(folder / record["run"])
        record["elapsed_s"] = time.perf_counter() - started
        nights.add(_row(record, key), record)
        write_atomically(folder / PAGE, history_page(nights.rows()))
    return record | {"repeated": False}


def _resolved(spec: Path, path: Path, form: str | None, overrides: Sequence[str]) -> ResolvedSpec:
    """Return the spec with the day in place of its traffic."""
    chosen = [f"traffic.trace={dumps(str(path.resolve()))}", "traffic.synthetic=null"]
    if form is not None:
        chosen.append(f"traffic.format={dumps(form)}")
    for text in overrides:
        key = text.partition("=")[0].strip()
        if key in {"name", "traffic.trace", "traffic.synthetic", "traffic.format"}:
            raise InvalidInput(f"--set {key}: the day is --traffic, its format --format")
    return load_spec(spec, overrides=[*chosen, *overrides])


def _as_it_is(spec: ResolvedSpec) -> TrafficSpec:
    """Return the day's traffic without the spec's window, count and rate."""
    gone = dict.fromkeys(("window_s", "requests", "rate_per_s"))
    return spec.run.traffic.model_copy(update=gone)


def _inputs_key(spec: ResolvedSpec, calibration: Path | None, *, with_trace: bool) -> str:
    """Return the digest of a night's inputs, or of all but the day; the file's name is neither."""
    unnamed = spec.run.traffic.model_copy(update={"trace": "", "format": None})
    bare = replace(spec, run=spec.run.model_copy(update={"traffic": unnamed}))
    key = job_key(bare, calibration)
    if with_trace:
        with (spec.base_dir / str(spec.run.traffic.trace)).open("rb") as file:
            form = spec.run.traffic.format
            key += f" {form} {file_digest(file, 'sha256').hexdigest()}"
    return sha256(key.encode()).hexdigest()


def _notes(spec: ResolvedSpec) -> list[str]:
    stated = [name for name in _OVERRULED if getattr(spec.run.traffic, name) is not None]
    return [
        f"traffic.{name} of the spec holds for every day: the replay follows it, drift and peak "
        "are of the day as it is"
        for name in stated
    ]


def _decided(tonight: _Tonight, spec_sha256: str) -> dict[str, Any]:
    """Return the night's decision, with its outcome under `_outcome`."""
    last, context = tonight.last, tonight.context
    why = _why_at_once(tonight, spec_sha256)
    watched = [] if last is None else list(last["watched"])
    if tonight.incumbent is not None and tonight.incumbent not in watched:
        watched.insert(0, tonight.incumbent)
    outcome = Outcome()
    if not why:
        outcome = run_stages(
            tonight.grid.candidates.filter(pl.col("candidate_id").is_in(watched)),
            replace(context, exhaustive=True),
        )
        why = _why_after_replay(tonight, outcome)
    searched = bool(why)
    if searched:
        outcome = run_stages(tonight.grid.candidates, replace(context, always=tuple(watched)))
    group = answer_of(outcome, context)["tie_group"]
    chosen = _recommended(tonight, group)
    stands = {row["candidate_id"]: row for row in outcome.ranked.iter_rows(named=True)}
    recommended = None if chosen is None else _facts(stands[chosen], context)
    return {
        **_verdict(tonight, outcome, chosen, recommended),
        "searched": searched,
        "why": why,
        "recommended": recommended,
        "incumbent": _incumbent_facts(tonight, outcome, stands),
        "tie_group": group,
        "watched": group if searched else watched,
        "replayed": [standing(row, context) for row in outcome.ranked.iter_rows(named=True)],
        "drift": _drift(tonight, tonight.last),
        "drift_since_search": _drift(tonight, tonight.searched),
        "traffic": tonight.day,
        "spec_sha256": spec_sha256,
        "stress": stress(tonight.grid.candidates, context, _first(chosen, group)),
        "capacity": capacity_of(outcome, chosen, context),
        "_outcome": outcome,
    }


def _first(chosen: str | None, group: Sequence[str]) -> list[str]:
    return [] if chosen is None else [chosen, *(name for name in group if name != chosen)]


def _drift(tonight: _Tonight, other: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if other is None:
        return None
    found = drift(other["traffic"], tonight.day)
    return {"against": {"night": other["night"], "day": other["day"]}, **found}


def _why_at_once(tonight: _Tonight, spec_sha256: str) -> list[str]:
    """Return the reasons for a full search that are known before any replay."""
    last = tonight.last
    if last is None:
        return ["first night"]
    why = []
    if last["spec_sha256"] != spec_sha256:
        why.append("the spec, the grid, the calibration or the version of sieve has changed")
    if tonight.incumbent is None:
        why.append("the last night had no recommendation")
    elif tonight.incumbent not in set(tonight.grid.candidates["candidate_id"]):
        why.append(f"the incumbent {tonight.incumbent} is not in the grid")
    others = [("", last), (" since the last search", tonight.searched)]
    if tonight.searched is not None and tonight.searched["night"] == last["night"]:
        others.pop()
    for words, other in others:
        found = _drift(tonight, other)
        if found is not None and found["level"] == "drift":
            large = [n for n in found["moved"] if found["features"][n]["level"] == "drift"]
            why.append(f"the traffic has drifted{words}: {', '.join(large)}")
    return why


def _why_after_replay(tonight: _Tonight, outcome: Outcome) -> list[str]:
    """Return the reasons that the replay of the incumbent and its tie set gives."""
    assert tonight.last is not None, "there is an incumbent"
    rows = outcome.ranked.filter(pl.col("candidate_id") == tonight.incumbent)
    before = tonight.last["recommended"]["verdict"]
    now = "misses" if rows.is_empty() else rows["verdict"][0]
    if now != before:
        return [f"the incumbent's verdict has changed from {before} to {now}"]
    if rows["tie_group"][0] != 1:
        return ["the incumbent has left the tie group of those replayed"]
    return []


def _recommended(tonight: _Tonight, group: Sequence[str]) -> str | None:
    """Return who is recommended: the incumbent while it ties with the best, for peace's sake.

    If it does not, a member of the last night's tie group that does; else the best.
    """
    if not group:
        return None
    if tonight.incumbent in group:
        return tonight.incumbent
    before = set() if tonight.last is None else set(tonight.last["tie_group"])
    return next((name for name in group if name in before), group[0])


def _verdict(
    tonight: _Tonight, outcome: Outcome, chosen: str | None, facts: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return `status`, `exit_code` and what changed."""
    status = answer_of(outcome, tonight.context)["status"]
    changed = tonight.last is not None and chosen != tonight.incumbent
    if tonight.last is None:
        return {"status": status, "exit_code": EXIT_CODES[status], "changed": False}
    if chosen is None or facts is None:
        return {"status": status, "exit_code": NONE_LEFT, "changed": changed}
    outside = changed and chosen not in tonight.last["tie_group"]
    status = _STATUS[facts["verdict"]]
    return {
        "status": status,
        "exit_code": ANOTHER if outside else EXIT_CODES[status],
        "changed": changed,
    }


def _facts(row: Mapping[str, Any], context: RunContext) -> dict[str, Any]:
    """Return what a record says of a ranked candidate; `margin` is the room to its limit."""
    found = standing(row, context)
    price = context.gpus[row["gpu"]].usd_per_gpu_hour
    used = found["used"]
    return {
        "candidate_id": row["candidate_id"],
        "gpu": row["gpu"],
        "num_gpus": row["num_gpus"],
        "replicas": row["replicas"],
        "verdict": row["verdict"],
        "evidence": row["evidence"],
        "margin": None if used is None else 1.0 - used,
        "nearest": found["nearest"],
        "usd_per_mtok": {
            "low": row["usd_per_mtok_low"],
            "mid": row["usd_per_mtok"],
            "high": row["usd_per_mtok_high"],
        },
        "usd_per_hour": None if price is None else price * row["num_gpus"],
        "objective": found["objective"],
    }


def _incumbent_facts(
    tonight: _Tonight, outcome: Outcome, stands: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return where the incumbent stands today; `breaks_slo` is None where that is not known."""
    name = tonight.incumbent
    if name is None:
        return None
    if name in stands:
        facts = _facts(stands[name], tonight.context)
        return facts | {"breaks_slo": facts["verdict"] not in MET, "reason": None}
    lost = outcome.rejected.filter(pl.col("candidate_id") == name)
    if lost.is_empty():
        return {"candidate_id": name, "verdict": None, "breaks_slo": None, "reason": "not_in_grid"}
    row = lost.row(0, named=True)
    return absent(name, row["num_gpus"], row["reason"]) | {"breaks_slo": True, "margin": None}


def _row(record: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return the columns of a night."""
    best, old, traffic = record["recommended"] or {}, record["incumbent"] or {}, record["traffic"]
    breaks = old.get("breaks_slo")
    return {
        **{k: record[k] for k in ("night", "recorded_at", "day", "name", "status", "exit_code")},
        "inputs_sha256": key,
        "searched": int(record["searched"]),
        "incumbent": old.get("candidate_id"),
        "incumbent_breaks_slo": None if breaks is None else int(breaks),
        "recommended": best.get("candidate_id"),
        **{name: best.get(name) for name in ("verdict", "num_gpus", "margin", "usd_per_hour")},
        "usd_per_mtok": best.get("usd_per_mtok", {}).get("mid"),
        "drift": (record["drift"] or {}).get("level"),
        "rate_per_s": traffic["rate_per_s"],
        "peak_rate_per_s": traffic["peak_rate_per_s"],
        "input_p50_tokens": traffic["input_tokens"]["p50"],
        "output_p50_tokens": traffic["output_tokens"]["p50"],
    }
