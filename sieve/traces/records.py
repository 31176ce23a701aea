"""From the columns that a file states to `Requests`: times, sessions, prefix blocks, order.

Every reader of files ends here, so that failed requests, order and chains are treated alike.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import polars as pl

from sieve.arrays import (
    BoolArray,
    FloatArray,
    IntArray,
    PrefixBlocks,
    Requests,
    chain_starts,
)
from sieve.errors import TraceError
from sieve.traces.chains import Blocks, chain_ids
from sieve.traces.files import TraceFile
from sieve.traces.limits import MAX_SPAN_S, MAX_TOKENS, whole_ns
from sieve.traces.times import since_1970


@dataclass(frozen=True, eq=False)
class Records:
    """What a file states of n requests, in file order.

    Attributes:
        file: where they come from.
        rows: (n,) index of each in the file.
        input_tokens: (n,) prompt lengths.
        output_tokens: (n,) answer lengths; 0: the request failed.
        time_s: (n,) arrival in seconds on any axis, nan where none is stated.
        delay_s: (n,) seconds after the previous turn's answer, nan where none is stated.
        session: (n,) session numbers, -1 where there is none.
        blocks: prefix blocks of the prompts.
        priority: (n,) the smaller is the more urgent.
        unit: of the file's times, for messages.
        names: what the file calls `time`, `output` and `blocks`, for messages.
        notes: what the reader has to say.
    """

    file: TraceFile
    rows: IntArray
    input_tokens: IntArray
    output_tokens: IntArray
    time_s: FloatArray | None = None
    delay_s: FloatArray | None = None
    session: IntArray | None = None
    blocks: Blocks | None = None
    priority: IntArray | None = None
    unit: str = "s"
    names: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def name(self, role: str) -> str:
        """Return what the file calls a column."""
        return self.names.get(
            role, {"time": "timestamp", "output": "output_length"}.get(role, role)
        )


def to_requests(records: Records) -> Requests:
    """Return the requests sorted by arrival; turns of a session wait for the answer before.

    Rows with 0 output tokens failed: they are left out and counted in the notes.

    Raises:
        TraceError: a time, delay or block list that cannot be; file and line are named.
    """
    file, notes = records.file, [*records.file.notes, *records.notes]
    previous, arrival_s, delay_s = _times(records)
    prefix = None if records.blocks is None else _prefix(records, records.blocks)
    answered = records.output_tokens > 0
    if not answered.any():
        raise TraceError(
            f"{file.label}: every request has {records.name('output')} 0; nothing to serve"
        )
    if not answered.all():
        failed = int((~answered).sum())
        notes.append(f"{failed} requests with {records.name('output')} 0 left out")
    good = file.faults.good(records.rows)
    kept = answered & good
    if not kept.any():
        raise _nothing_left(file, "no request is left: every row has a fault")
    notes += file.faults.notes()
    turns = int((previous[kept] >= 0).sum())
    requests = Requests(
        arrival_s=arrival_s,
        input_tokens=records.input_tokens,
        output_tokens=np.maximum(records.output_tokens, 1),
        source=file.name,
        sha256=file.sha256,
        prefix=prefix,
        previous=previous if turns else None,
        delay_s=delay_s if turns else None,
        session=records.session,
        priority=records.priority,
        line=records.rows + file.first_row,
        num_failed=int((~answered).sum()),
    )
    notes += _session_notes(records, kept, turns)
    if prefix is not None:
        notes.append(f"prompts share prefixes in blocks of {prefix.block_tokens} tokens")
    order = np.argsort(arrival_s, kind="stable")
    if (np.diff(arrival_s[kept]) < 0).any():
        notes.append("lines were not in order of arrival; sorted")
    ranked = _in_order(requests, order[kept[order]])
    arrival_s = whole_ns(ranked.arrival_s - ranked.arrival_s[0])
    return replace(ranked, notes=tuple(notes), arrival_s=arrival_s)


def _nothing_left(file: TraceFile, what: str) -> TraceError:
    """Return the error of a file of which nothing is left, with the faults by kind."""
    told = "".join(f"\n  {kind.count} × {kind.first}" for kind in file.faults.kinds.values())
    return TraceError(f"{file.label}: {what}{told}")


def _session_notes(records: Records, kept: BoolArray, turns: int) -> list[str]:
    notes = []
    if turns:
        notes.append(f"{turns} turns arrive after the previous answer of their session")
    if records.session is not None:
        inside = records.session[kept & (records.session >= 0)]
        timed = int((np.diff(np.sort(inside)) == 0).sum()) - turns
        if timed > 0:
            notes.append(
                f"{timed} later turns have a timestamp of their own: they arrive then, and a "
                "router sees each as a request of its own"
            )
    return notes


def whole_numbers(series: pl.Series, rows: IntArray, file: TraceFile) -> IntArray | None:
    """Return a column of whole numbers, (n,); None if no row has one.

    Raises:
        TraceError: some rows have one and others none.
    """
    if series.is_null().all():
        return None
    name = series.name
    file.faults.check(
        series.is_null().to_numpy(),
        rows,
        f"{name}: missing",
        lambda i: f"{file.where(int(rows[i]))}: no {name}; expected one on every line or on none",
        file.first_row,
    )
    return np.asarray(series.fill_null(0).to_numpy(), np.int64)


def session_codes(names: pl.Series) -> IntArray | None:
    """Return a number for each name, -1 for null, (n,); None if every name is null."""
    if names.is_null().all():
        return None
    codes = names.rank("dense").cast(pl.Int64) - 1
    return np.asarray(codes.fill_null(-1).to_numpy(), np.int64)


def _previous(session: IntArray | None, n: int) -> IntArray:
    """Return the row of the same session before each, -1 where there is none, (n,)."""
    if session is None:
        return np.full(n, -1, np.int64)
    order = np.argsort(session, kind="stable")
    same = np.concatenate(([False], np.diff(session[order]) == 0)) & (session[order] >= 0)
    before = np.concatenate(([-1], order[:-1]))
    previous = np.full(n, -1, np.int64)
    previous[order] = np.where(same, before, -1)
    return previous


def _times(records: Records) -> tuple[IntArray, FloatArray, FloatArray]:
    """Return the previous turn of each request, its arrival and its delay in seconds, (n,) each."""
    n = len(records.rows)
    nothing = np.full(n, np.nan)
    stamp = nothing if records.time_s is None else records.time_s
    delay = nothing if records.delay_s is None else records.delay_s
    last = _previous(records.session, n)
    follows = last >= 0
    waits = follows & np.isnan(stamp)
    single = np.ones(n, np.bool_) if records.session is None else records.session < 0
    time, unit = records.name("time"), records.unit
    refuse = _refusing(records)
    refuse(single & ~np.isnan(delay), "has a delay and no session_id", "a session_id")
    refuse(follows & ~np.isnan(stamp) & ~np.isnan(delay), f"has a {time} and a delay", "one")
    refuse(waits & np.isnan(delay), f"has neither {time} nor delay", "one of them")
    refuse(~follows & np.isnan(stamp), f"has no {time}", f"its arrival in {unit}")
    used = np.where(waits, delay, stamp)
    far = ~(np.abs(used) <= MAX_SPAN_S)
    refuse(far & ~np.isnan(used), _out_of_range(used, time), f"<= {MAX_SPAN_S:g} s")
    refuse(waits & (used < 0), "has a negative delay", f"{unit} from 0 on")
    good = records.file.faults.good(records.rows)
    if not (good & ~waits).any():
        raise _nothing_left(records.file, "no request with a time is left")
    previous = np.where(waits, last, -1).astype(np.int64)
    used = np.where(good & np.isfinite(used), used, 0.0)
    arrival_s = np.where(waits, 0.0, used)
    arrival_s -= arrival_s[~waits & good].min()
    delay_s = np.where(waits, np.maximum(used, 0.0), 0.0)
    # A turn that waits stands at the arrival of its session's last timed turn.
    arrival_s = arrival_s[chain_starts(previous)]
    late = arrival_s + _summed_along(previous, delay_s)
    refuse(late > MAX_SPAN_S, "waits too long after all", f"<= {MAX_SPAN_S:g} s in all")
    return previous, arrival_s, delay_s


def _out_of_range(used: FloatArray, time: str) -> str:
    """Return what is wrong with a time out of range; a date in other units is recognised."""
    looks = since_1970(float(np.nanmax(np.abs(used))), 1.0)
    return "has a time out of range" + (f": {time} {looks}" if looks else "")


def _refusing(records: Records) -> Callable[[BoolArray, str, str], None]:
    file = records.file

    def refuse(bad: BoolArray, what: str, allowed: str) -> None:
        file.faults.check(
            bad & file.faults.good(records.rows),
            records.rows,
            f"the request {what}",
            lambda i: f"{file.where(int(records.rows[i]))}: the request {what}; expected {allowed}",
            file.first_row,
        )

    return refuse


def _summed_along(previous: IntArray, values: FloatArray) -> FloatArray:
    """Return the sum of values from each chain's start to each link, (n,); a start's is 0."""
    place = np.where(previous >= 0, previous, np.arange(len(previous)))
    total = np.where(previous >= 0, values, 0.0)
    while (place[place] != place).any():
        total = total + total[place]
        place = place[place]
    return np.asarray(total, np.float64)


def _prefix(records: Records, blocks: Blocks) -> PrefixBlocks:
    """Return the prompts as chains of blocks."""
    file, prompt = records.file, records.input_tokens
    count, size = np.diff(blocks.start), blocks.block_tokens
    fits = (count == 0) | ((size * (count - 1) < prompt) & (prompt <= size * count))
    if blocks.whole_only:
        fits |= (size * count <= prompt) & (prompt < size * (count + 1))
    name = records.name("blocks")
    file.faults.check(
        ~fits,
        records.rows,
        f"{name}: not as many as the prompt has",
        lambda i: (
            f"{file.where(int(records.rows[i]))}: {count[i]} {name} for input_length {prompt[i]}; "
            f"expected {-(-int(prompt[i]) // size)} blocks of {size} tokens"
        ),
        file.first_row,
    )
    return PrefixBlocks(size, blocks.start, chain_ids(blocks.start, blocks.ids), prompt)


def _in_order(requests: Requests, order: IntArray) -> Requests:
    """Return the requests with the indices `order`, each turn behind the one before it.

    A turn left out is skipped by the turns after it.
    """
    if requests.previous is None:
        return requests.take(order)
    left_out = np.ones(len(requests), np.bool_)
    left_out[order] = False
    # The last turn that is kept before one left out; a turn at the start of its session has none.
    stands_for = chain_starts(np.where(left_out, requests.previous, -1))
    stands_for = np.where(left_out[stands_for], -1, stands_for)
    previous = np.where(requests.previous >= 0, stands_for[requests.previous], -1)
    return replace(requests, previous=previous).take(order)


def check_range(
    records_file: TraceFile, rows: IntArray, values: IntArray, name: str, *, least: int
) -> IntArray:
    """Return whole token counts with those outside the limits noted as faults.

    Raises:
        TraceError: a count outside the limits, when faults stop.
    """
    bad = (values < least) | (values > MAX_TOKENS)
    records_file.faults.check(
        bad,
        rows,
        f"{name}: outside {least} to {MAX_TOKENS}",
        lambda i: (
            f"{records_file.where(int(rows[i]))}: {name} is {values[i]}; "
            f"expected {least} to {MAX_TOKENS:,} tokens"
        ),
        records_file.first_row,
    )
    return np.where(bad, max(least, 1), values)
