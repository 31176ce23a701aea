"""The log of a replay in the form of the recorded schedules."""

from __future__ import annotations

from typing import Any, Final

from sieve.arrays import IntArray
from sieve.sim._kernels import layout
from sieve.sim.engine import EngineResult
from sieve.sim.scenario import Scenario


class _Log:
    """Reads the numbers of a log in order."""

    def __init__(self, log: IntArray) -> None:
        self.values: list[int] = log.tolist()
        self.at = 0

    def __bool__(self) -> bool:
        return self.at < len(self.values)

    def one(self) -> int:
        self.at += 1
        return self.values[self.at - 1]

    def many(self, count: int) -> list[int]:
        self.at += count
        return self.values[self.at - count : self.at]

    def rows(self, width: int) -> list[list[int]]:
        flat = self.many(self.one() * width)
        return [flat[i : i + width] for i in range(0, len(flat), width)]


def step_records(scenario: Scenario, result: EngineResult) -> list[dict[str, Any]]:
    """Return the recorded turns in the form of the recordings' `step` records."""
    full = scenario.detail == "full"
    names = [row.id for row in scenario.requests]
    log = _Log(result.log)
    tables: dict[int, Any] = {}
    records = []
    while log:
        records.append(_turn(scenario, log, names, tables, full=full))
    return records


def _turn(
    scenario: Scenario, log: _Log, names: list[str], tables: dict[int, Any], *, full: bool
) -> dict[str, Any]:
    turn, step, now, count = log.many(4)
    record: dict[str, Any] = {"step": step}
    if scenario.timed:
        record["t"] = now
    arrived = log.many(count)
    _put(record, "added", [names[r] for r in arrived if r >= 0])
    _put(record, "rejected", [names[-r - 1] for r in arrived if r < 0])
    if turn & layout.TURN_IDLE:
        record["idle"] = True
        return record
    if turn & layout.TURN_CALL:
        _call(scenario, log, names, tables, record, full=full)
    if turn & layout.TURN_RESULT:
        _result(scenario, log, names, record)
    record["free_end"], record["n_running"], record["n_waiting"] = log.many(3)
    if full:
        record["free_queue"] = log.many(record["free_end"])
    return record


def _put(record: dict[str, Any], key: str, value: dict[str, Any] | list[Any]) -> None:
    if value:
        record[key] = value


def _call(
    scenario: Scenario, log: _Log, names: list[str], tables: dict[int, Any],
    record: dict[str, Any], *, full: bool,
) -> None:  # fmt: skip
    scheduled = log.rows(3)
    record["scheduled"] = {names[r]: tokens for r, tokens, _ in scheduled}
    admitted = log.rows(3)
    _put(record, "new", {names[r]: hit for r, hit, resumed in admitted if not resumed})
    _put(record, "resumed", {names[r]: hit for r, hit, resumed in admitted if resumed})
    preempted = log.many(log.one())
    _put(record, "preempted", [names[r] for r in preempted])
    for r in preempted:
        tables.pop(r, None)
    _put(record, "drafts", {names[r]: drafts for r, _, drafts in scheduled if drafts})
    record["free"], start, end = log.many(3)
    if scenario.timed:
        record["start"], record["end"] = start, end
    if full:
        changed = {}
        for r, _, _ in scheduled:
            lists = [log.many(log.one()) for _ in scenario.config.groups]
            table = lists if len(lists) > 1 else lists[0]
            if tables.get(r) != table:
                tables[r] = table
                changed[names[r]] = table
        _put(record, "tables", changed)
        running = log.rows(2)
        record["running"] = [names[r] for r, _ in running]
        record["waiting"] = [names[r] for r in log.many(log.one())]
        record["computed"] = {names[r]: computed for r, computed in running}


def _result(scenario: Scenario, log: _Log, names: list[str], record: dict[str, Any]) -> None:
    made_in = log.one()
    entries = log.rows(4)
    if scenario.config.batches_in_flight > 1:
        record["output_of"] = made_in
        record["sampled"] = sorted(names[r] for r, yields, _, _ in entries if yields)
    _put(record, "accepted", {names[r]: taken for r, _, taken, _ in entries if taken >= 0})
    _put(record, "finished", {names[r]: "length" for r, _, _, ends in entries if ends})


_OPTIONAL: Final = (
    ("arrival", layout.ARRIVAL),
    ("added_step", layout.ADDED_STEP),
    ("first_step", layout.FIRST_STEP),
    ("cached", layout.CACHED),
    ("first_token_step", layout.FIRST_TOKEN_STEP),
    ("finish_step", layout.FINISH_STEP),
)
_OPTIONAL_TIMES: Final = (
    ("first_token_time", layout.FIRST_TOKEN_NS),
    ("finish_time", layout.FINISH_NS),
)


def summary_record(scenario: Scenario, result: EngineResult) -> dict[str, Any]:
    """Return the result in the form of the recordings' `summary` record."""
    names = [row.id for row in scenario.requests]
    columns = _OPTIONAL + (_OPTIONAL_TIMES if scenario.timed else ())
    requests = {}
    for row, values in zip(scenario.requests, result.results.tolist(), strict=True):
        one: dict[str, Any] = {
            "prompt": row.prompt_tokens,
            "out": values[layout.OUT],
            "preemptions": values[layout.PREEMPTIONS],
        }
        one |= {name: values[column] for name, column in columns if values[column] >= 0}
        if values[layout.REJECTED] > 0:
            one["finish_reason"] = "rejected"
        elif values[layout.FINISH_STEP] >= 0:
            one["finish_reason"] = "length"
        requests[row.id] = one
    summary: dict[str, Any] = {
        "steps": int(result.counters[layout.STEPS]),
        "request_steps": int(result.counters[layout.REQUEST_STEPS]),
        "tokens": int(result.counters[layout.TOKENS]),
        "stalled": result.stalled,
        "requests": requests,
    }
    if result.stalled:
        summary["left_waiting"] = [names[r] for r in result.left_waiting.tolist()]
        summary["left_running"] = [names[r] for r in result.left_running.tolist()]
    return summary
