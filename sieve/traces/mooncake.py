"""Traces with shared prefixes: one JSON object a line.

`mooncake_trace` is AIPerf's name for the form of the Mooncake traces: times in milliseconds,
prompts told as blocks of 512 tokens by number, turns of a session after one another.
`timed_trace` is the form of vLLM's benchmark: the same names, seconds, blocks of 16 tokens.
"""

from __future__ import annotations

import difflib
import io
import json
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import polars as pl

from sieve.arrays import FloatArray, IntArray, PrefixBlocks, Requests, chain_starts
from sieve.errors import TraceError
from sieve.traces.files import TraceFile
from sieve.traces.limits import MAX_SPAN_S, MAX_TOKENS

MAX_BLOCKS: Final = 200_000_000
"""Most prefix blocks of a trace."""


@dataclass(frozen=True)
class Form:
    """How one of these formats counts.

    Attributes:
        name: the format.
        seconds: of one unit of time.
        unit: its name, for messages.
        block_tokens: tokens in a prefix block.
    """

    name: str
    seconds: float
    unit: str
    block_tokens: int


FORMS: Final = {
    form.name: form
    for form in (Form("mooncake_trace", 1e-3, "ms", 512), Form("timed_trace", 1.0, "s", 16))
}

_SCHEMA: Final = {
    "timestamp": pl.Float64(),
    "delay": pl.Float64(),
    "session_id": pl.String(),
    "input_length": pl.Int64(),
    "output_length": pl.Int64(),
    "hash_ids": pl.List(pl.Int64()),
    "priority": pl.Int64(),
}
_LITERAL: Final = ("text_input", "messages", "payload")


def read(file: TraceFile, form: Form) -> Requests:
    """Return the requests of a trace; turns of a session wait for the answer before.

    A turn with a `delay` arrives that long after the previous turn's answer; one with a `timestamp`
    arrives then. `input_length` is the whole prompt, with all that the session said before.

    Raises:
        TraceError: a line that is no such request; file and line are named.
    """
    frame, lines, notes = _frame(file)
    where = _Where(file, lines)
    prompt = _counts(frame["input_length"], where, least=1)
    output = _counts(frame["output_length"], where, least=0)
    previous, arrival_s, delay_s = _times(frame, where, form)
    answered = output > 0
    if not answered.any():
        raise TraceError(f"{file.label}: every request has output_length 0; nothing to serve")
    if not answered.all():
        notes.append(f"{int((~answered).sum())} requests with output_length 0 left out")
    has_turns = bool((previous >= 0).any())
    requests = Requests(
        arrival_s=arrival_s,
        input_tokens=prompt,
        output_tokens=np.maximum(output, 1),
        source=file.name,
        sha256=file.sha256,
        prefix=_prefix(frame["hash_ids"], prompt, where, form),
        previous=previous if has_turns else None,
        delay_s=delay_s if has_turns else None,
        priority=_priorities(frame["priority"], where),
    )
    if has_turns:
        notes.append(
            f"{int((previous >= 0).sum())} turns arrive after the previous answer of their session"
        )
    sessions = frame["session_id"].drop_nulls()
    timed = len(sessions) - sessions.n_unique() - int((previous >= 0).sum())
    if timed:
        notes.append(
            f"{timed} later turns have a timestamp of their own: they arrive then, and a router "
            "sees each as a request of its own"
        )
    if requests.prefix is not None:
        notes.append(f"prompts share prefixes in blocks of {form.block_tokens} tokens")
    order = np.argsort(arrival_s, kind="stable")
    if (np.diff(arrival_s) < 0).any():
        notes.append("lines were not in order of arrival; sorted")
    return _in_order(requests, order[answered[order]], tuple(notes))


@dataclass(frozen=True, eq=False)
class _Where:
    """Names the line of a row."""

    file: TraceFile
    lines: IntArray

    def __call__(self, row: int) -> str:
        return f"{self.file.label}, line {int(self.lines[row])}"


def _frame(file: TraceFile) -> tuple[pl.DataFrame, IntArray, list[str]]:
    """Return the columns of `_SCHEMA`, null where absent, the line of each row, and notes."""
    if file.is_parquet:
        raise TraceError(f"{file.label}: expected JSON lines, but this is a Parquet file")
    starts = [i for i, line in enumerate(file.content.split(b"\n"), 1) if line.strip()]
    try:
        found = pl.read_ndjson(io.BytesIO(file.content), infer_schema_length=None)
        frame = _typed(found) if len(found) == len(starts) else None
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, ValueError):
        frame = None
    needed = ("input_length", "output_length")
    if frame is None or any(frame[column].has_nulls() for column in needed):
        _explain(file)
        raise TraceError(f"{file.label}: not JSON lines with input_length and output_length")
    return frame, np.array(starts, np.int64), _misspelt(found.columns)


def _misspelt(names: list[str]) -> list[str]:
    """Return a note on each key that is not read and looks like one that is."""
    missing = [name for name in _SCHEMA if name not in names]
    near = {
        name: difflib.get_close_matches(name.lower(), missing, n=1, cutoff=0.75)
        for name in names[:1000]
        if name not in _SCHEMA
    }
    return [f"key {name[:40]!r} is not read; did you mean {n[0]}?" for name, n in near.items() if n]


def _typed(found: pl.DataFrame) -> pl.DataFrame | None:
    """Return the known columns in their types, or None where a value is of another kind."""
    columns = []
    for name, dtype in _SCHEMA.items():
        have = found.schema.get(name, pl.Null())
        inner = have.inner if isinstance(have, pl.List) else have
        number = inner.is_integer() if dtype != pl.Float64() else inner.is_numeric()
        fits = {
            "session_id": have == pl.String() or have.is_integer(),
            "hash_ids": isinstance(have, pl.List) and (number or inner == pl.Null()),
        }.get(name, number)
        if not fits and have != pl.Null():
            return None
        column = pl.col(name) if name in found.columns else pl.lit(None)
        columns.append(column.cast(dtype).alias(name))
    return found.select(columns)


def _explain(file: TraceFile) -> None:
    """Raise the fault of the first line that is no request."""
    for number, line in enumerate(file.content.split(b"\n"), 1):
        if not line.strip():
            continue
        where = f"{file.label}, line {number}"
        try:
            record = json.loads(line, parse_constant=_no_number)
        except (ValueError, RecursionError) as error:
            raise TraceError(f"{where}: no JSON ({str(error)[:80]})") from None
        if not isinstance(record, dict):
            raise TraceError(f"{where}: expected a JSON object, found {str(record)[:40]!r}")
        _check_record(record, where)


def _no_number(word: str) -> None:
    """Refuse the words that Python reads beyond JSON."""
    raise ValueError(f"{word} is no number of JSON")


def _check_record(record: dict[str, Any], where: str) -> None:
    for key in _LITERAL:
        if key in record and "input_length" not in record:
            raise TraceError(
                f"{where}: {key} holds text, and its tokens are not known here; "
                "convert it to input_length with the model's tokenizer"
            )
    for key in ("input_length", "output_length"):
        value = record.get(key)
        if isinstance(value, bool) or not isinstance(value, int):
            raise TraceError(
                f"{where}: {key} is {json.dumps(value)[:40]}; expected a whole number of tokens"
            )
    for key in ("timestamp", "delay"):
        value = record.get(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise TraceError(f"{where}: {key} is {json.dumps(value)[:40]}; expected a number")
    session = record.get("session_id")
    if session is not None and not isinstance(session, str | int):
        raise TraceError(f"{where}: session_id is {json.dumps(session)[:40]}; expected text")
    priority = record.get("priority")
    if priority is not None and (type(priority) is not int or not -(2**63) <= priority < 2**63):
        raise TraceError(f"{where}: priority is {json.dumps(priority)[:40]}; expected a number")
    ids = record.get("hash_ids")
    if ids is not None and not (
        isinstance(ids, list) and all(type(i) is int and -(2**63) <= i < 2**63 for i in ids)
    ):
        raise TraceError(f"{where}: hash_ids is no list of whole numbers of 64 bits")


def _counts(series: pl.Series, where: _Where, *, least: int) -> IntArray:
    values = series.to_numpy().astype(np.int64)
    bad = (values < least) | (values > MAX_TOKENS)
    if bad.any():
        i = int(np.argmax(bad))
        raise TraceError(
            f"{where(i)}: {series.name} is {values[i]}; expected {least} to {MAX_TOKENS:,} tokens"
        )
    return values


def _priorities(series: pl.Series, where: _Where) -> IntArray | None:
    """Return the priorities; None if no line has one."""
    if series.is_null().all():
        return None
    _refuse(series.is_null().to_numpy(), where, "has no priority", "one on every line or on none")
    return series.to_numpy().astype(np.int64)


def _times(
    frame: pl.DataFrame, where: _Where, form: Form
) -> tuple[IntArray, FloatArray, FloatArray]:
    """Return the previous turn of each request, its arrival and its delay in seconds, (n,) each."""
    turns = frame.with_row_index("row").select(
        "timestamp",
        "delay",
        previous=pl.when(pl.col("session_id").is_not_null())
        .then(pl.col("row").cast(pl.Int64).shift(1).over("session_id"))
        .fill_null(-1),
    )
    stamp = turns["timestamp"].to_numpy().astype(np.float64)
    delay = turns["delay"].to_numpy().astype(np.float64)
    follows = turns["previous"].to_numpy() >= 0
    waits = follows & np.isnan(stamp)
    single = frame["session_id"].is_null().to_numpy()
    _refuse(single & ~np.isnan(delay), where, "has a delay and no session_id", "a session_id")
    _refuse(
        follows & ~np.isnan(stamp) & ~np.isnan(delay), where, "has a timestamp and a delay", "one"
    )
    _refuse(waits & np.isnan(delay), where, "has neither timestamp nor delay", "one of them")
    _refuse(~follows & np.isnan(stamp), where, "has no timestamp", f"its arrival in {form.unit}")
    used = np.where(waits, delay, stamp) * form.seconds
    _refuse(~(np.abs(used) <= MAX_SPAN_S), where, "has a time out of range", f"<= {MAX_SPAN_S:g} s")
    _refuse(waits & (used < 0), where, "has a negative delay", f"{form.unit} from 0 on")
    previous = np.where(waits, turns["previous"].to_numpy(), -1).astype(np.int64)
    arrival_s = np.where(waits, 0.0, used)
    arrival_s -= arrival_s[~waits].min()
    delay_s = np.where(waits, used, 0.0)
    # A turn that waits stands at the arrival of its session's last timed turn.
    arrival_s = arrival_s[chain_starts(previous)]
    late = arrival_s + _summed_along(previous, delay_s)
    _refuse(late > MAX_SPAN_S, where, "waits too long after all", f"<= {MAX_SPAN_S:g} s in all")
    return previous, arrival_s, delay_s


def _summed_along(previous: IntArray, values: FloatArray) -> FloatArray:
    """Return the sum of values from each chain's start to each link, (n,); a start's is 0."""
    place = np.where(previous >= 0, previous, np.arange(len(previous)))
    total = np.where(previous >= 0, values, 0.0)
    while (place[place] != place).any():
        total = total + total[place]
        place = place[place]
    return np.asarray(total, np.float64)


def _refuse(
    bad: np.ndarray[Any, np.dtype[np.bool_]], where: _Where, what: str, allowed: str
) -> None:
    if bad.any():
        raise TraceError(f"{where(int(np.argmax(bad)))}: the request {what}; expected {allowed}")


def _prefix(series: pl.Series, prompt: IntArray, where: _Where, form: Form) -> PrefixBlocks | None:
    """Return the prompts as chains of blocks; None if no line has them."""
    if series.is_null().all():
        return None
    count = series.list.len().fill_null(0).to_numpy().astype(np.int64)
    if int(count.sum()) > MAX_BLOCKS:
        raise TraceError(f"{where.file.label}: more than {MAX_BLOCKS:,} hash_ids")
    fits = (count == 0) | (
        (form.block_tokens * (count - 1) < prompt) & (prompt <= form.block_tokens * count)
    )
    if not fits.all():
        i = int(np.argmin(fits))
        raise TraceError(
            f"{where(i)}: {count[i]} hash_ids for input_length {prompt[i]}; expected "
            f"{-(-int(prompt[i]) // form.block_tokens)} blocks of {form.block_tokens} tokens"
        )
    flat = series.explode(empty_as_null=False).drop_nulls().to_numpy().astype(np.int64)
    if len(flat) != int(count.sum()):
        _explain(where.file)
        raise TraceError(f"{where.file.label}: hash_ids holds null")
    start = np.concatenate(([0], np.cumsum(count))).astype(np.int64)
    return PrefixBlocks(form.block_tokens, start, chain_ids(start, flat), prompt)


def chain_ids(start: IntArray, ids: IntArray) -> IntArray:
    """Return numbers from 0 that are equal exactly where an id and all ids before it are.

    Args:
        start: (n + 1,) offsets of the lists.
        ids: (m,) their ids.
    """
    number = np.unique(ids, return_inverse=True)[1].astype(np.int64)
    count = np.diff(start)
    place = np.arange(len(ids)) - np.repeat(start[:-1], count)
    before = np.concatenate(([-1], number[:-1]))
    before[place == 0] = -1
    num_ids = int(number.max(initial=-1)) + 1
    first = np.full(num_ids, -1, np.int64)
    first[number[::-1]] = np.arange(len(number))[::-1]
    # Most traces give a block of another beginning another id: then the id tells the chain.
    if (before == before[first[number]]).all() and (place == place[first[number]]).all():
        return number
    chain = np.full(len(ids), -1, np.int64)
    used = 0
    by_depth = np.argsort(place, kind="stable")
    ends = np.cumsum(np.bincount(place)).tolist() if len(place) else []
    for depth, (begin, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
        at = by_depth[begin:end]
        parent = chain[at - 1] if depth else np.zeros(len(at), np.int64)
        pairs = parent * num_ids + number[at]
        distinct, inverse = np.unique(pairs, return_inverse=True)
        chain[at] = used + inverse
        used += len(distinct)
    return chain


def _in_order(requests: Requests, order: IntArray, notes: tuple[str, ...]) -> Requests:
    """Return the requests with the indices `order`, each turn behind the one before it."""
    ranked = requests.take(order) if requests.previous is None else _take_turns(requests, order)
    return Requests(
        arrival_s=ranked.arrival_s,
        input_tokens=ranked.input_tokens,
        output_tokens=ranked.output_tokens,
        source=ranked.source,
        sha256=ranked.sha256,
        notes=notes,
        prefix=ranked.prefix,
        previous=ranked.previous,
        delay_s=ranked.delay_s,
        priority=ranked.priority,
    )


def _take_turns(requests: Requests, order: IntArray) -> Requests:
    """Return the requests in order; a turn left out is skipped by the turns after it."""
    previous = requests.previous
    assert previous is not None
    n = len(requests)
    left_out = np.ones(n, np.bool_)
    left_out[order] = False
    # The last turn that is kept before one left out; a turn at the start of its session has none.
    stands_for = chain_starts(np.where(left_out, previous, -1))
    stands_for = np.where(left_out[stands_for], -1, stands_for)
    previous = np.where(previous >= 0, stands_for[previous], -1)
    return Requests(
        requests.arrival_s, requests.input_tokens, requests.output_tokens,
        source=requests.source, sha256=requests.sha256, prefix=requests.prefix,
        previous=previous, delay_s=requests.delay_s, priority=requests.priority,
    ).take(order)  # fmt: skip
