"""A run spec's traffic as `Requests`: find the source, then window, count and rate, in that order.

`window_s` is on the source's own time axis, `requests` keeps the first ones inside, and
`rate_per_s` scales what is left. A name of shipped traffic wins over a file of the same name; write
`./chat` for the file.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import math
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from sieve.arrays import Requests
from sieve.errors import InvalidInput, TraceError
from sieve.resources import package_data
from sieve.spec.models import ArrivalSpec, TrafficSpec
from sieve.traces import azure_csv, lengths, mooncake
from sieve.traces.draw import draw_arrivals as draw_trace_arrivals
from sieve.traces.draw import draw_window, with_lengths
from sieve.traces.files import TraceFile, listing, read_file
from sieve.traces.limits import MAX_SPAN_S, check_rate, generator
from sieve.traces.summary import Summary
from sieve.traces.synthetic import draw_arrivals, draw_synthetic

DEFAULT_REQUESTS: Final = 2000
"""How many requests of shipped traffic are drawn when the spec does not say."""

_FORMATS: Final = (
    "azure_csv (CSV with TIMESTAMP, ContextTokens, GeneratedTokens); "
    "lengths (CSV or Parquet with input_length, output_length "
    "or num_prefill_tokens, num_decode_tokens); "
    "mooncake_trace or timed_trace (JSON lines with input_length, output_length)"
)


def load_traffic(spec: TrafficSpec, *, seed: int, base_dir: Path) -> Requests:
    """Return the traffic of a run spec at load level 1.

    Args:
        spec: the spec's `traffic`.
        seed: of everything that is drawn.
        base_dir: folder that a relative path starts from, usually the spec's own.

    Raises:
        TraceError: unknown name, unreadable file, or filters that leave nothing.
        NotYetError: a key whose machinery is not in this version.
    """
    if spec.synthetic is not None:
        seed = seed if spec.synthetic.seed is None else spec.synthetic.seed
        requests = draw_synthetic(spec.synthetic, seed=seed)
        requests = replace(requests, sha256=_definition_hash(spec, seed, ""))
        requests = _cut(requests, spec)
    elif spec.trace in _shipped():
        requests = _load_shipped(spec, seed)
    else:
        requests = _load_file(spec, seed, base_dir)
    return _check_span(_scale(_rebase(requests), spec.rate_per_s))


def at_level(requests: Requests, level: float) -> Requests:
    """Return the requests at `level` times the load: arrivals `level` times as fast.

    A closed loop gets `level` times the users, rounded, at least one.

    Raises:
        InvalidInput: a level that is not positive and finite.
    """
    if not (math.isfinite(level) and level > 0):
        raise InvalidInput(f"the load level (--level) is {level!r}; expected a positive number")
    if requests.closed_loop_users is not None:
        users = max(1, math.floor(requests.closed_loop_users * level + 0.5))
        return replace(requests, closed_loop_users=users)
    return replace(requests, arrival_s=requests.arrival_s / level)


def available_traffic() -> dict[str, str]:
    """Return the names of shipped traffic with a sentence about each."""
    return {name: _summary(name)[0].about for name in _shipped()}


@lru_cache(maxsize=1)
def _shipped() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in package_data("traces", "data").glob("*.json")))


@lru_cache(maxsize=8)
def _summary(name: str) -> tuple[Summary, str]:
    """Return a shipped summary and its text."""
    text = package_data("traces", "data", f"{name}.json").read_text(encoding="utf-8")
    return Summary.from_json(text, f"traffic {name}"), text


def _load_shipped(spec: TrafficSpec, seed: int) -> Requests:
    if spec.format is not None:
        raise TraceError(f"traffic.format: {spec.trace} is shipped traffic; remove the key")
    summary, text = _summary(str(spec.trace))
    wanted = spec.requests or DEFAULT_REQUESTS
    if spec.window_s is None:
        arrival_s = draw_trace_arrivals(summary, wanted, seed)
    else:
        arrival_s = draw_window(summary, wanted, spec.window_s, seed)
        if not len(arrival_s):
            raise _empty_window(spec.window_s, "the drawn traffic has a pause there")
    requests = with_lengths(summary, arrival_s, seed)
    resolved = spec.model_copy(update={"requests": wanted})
    requests = replace(
        requests,
        notes=(*requests.notes, *_shipped_notes(spec, requests, summary)),
        sha256=_definition_hash(resolved, seed, text),
    )
    return _replace_arrivals(requests, spec.arrival, seed)


def _shipped_notes(spec: TrafficSpec, requests: Requests, summary: Summary) -> list[str]:
    """Return what a user may not expect of count and rate."""
    n, notes = len(requests), []
    if spec.requests is not None and n < spec.requests:
        notes.append(f"the window holds {n} of the {spec.requests} requests asked for")
    if spec.requests is None and spec.window_s is not None and n == DEFAULT_REQUESTS:
        notes.append(f"the first {n} requests of the window; set traffic.requests for more")
    if spec.rate_per_s is None and spec.arrival is None and n > 1:
        notes.append(
            f"mean rate {requests.rate_per_s:.3g}/s in this part of the traffic, "
            f"{summary.rate_per_s:.3g}/s over all of it; set traffic.rate_per_s to choose"
        )
    return notes


def _load_file(spec: TrafficSpec, seed: int, base_dir: Path) -> Requests:
    label = str(spec.trace)
    file = _find_file(label, base_dir)
    form = spec.format or _detect(file)
    if form in mooncake.FORMS:
        requests = _cut(mooncake.read(file, mooncake.FORMS[form]), spec)
        if spec.arrival is not None and requests.previous is not None:
            raise TraceError("traffic.arrival: the trace has sessions, which arrive by themselves")
        return _replace_arrivals(requests, spec.arrival, seed)
    if form == "lengths":
        return _inside_window(_draw_from_table(file, spec, seed), spec)
    return _replace_arrivals(_cut(azure_csv.read(file), spec), spec.arrival, seed)


def _find_file(label: str, base_dir: Path) -> TraceFile:
    path = base_dir / label
    try:
        missing = not path.exists()
    except OSError:  # a name too long for the file system
        missing = True
    if not missing:
        return read_file(path, label)
    names = _shipped()
    near = difflib.get_close_matches(label.lower(), names, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    raise TraceError(
        f"traffic.trace: {label[:200]!r} is neither shipped traffic nor a file. {hint}"
        f"Shipped: {', '.join(names)}; relative paths start at the spec's folder"
    )


def _detect(file: TraceFile) -> str:
    if set(azure_csv.COLUMNS) <= set(file.columns):
        return "azure_csv"
    if lengths.column_pair(file.columns) is None:
        is_json = not file.columns
        if is_json and b'"input_length"' in file.content[: 1 << 16]:
            raise TraceError(
                f"{file.label}: lines of JSON do not state the unit of their times, and none is "
                "guessed; set traffic.format: mooncake_trace (ms, prefix blocks of 512 tokens) or "
                "timed_trace (s, blocks of 16)"
            )
        found = "JSON" if is_json else f"columns found: {listing(file.columns)}"
        raise TraceError(f"{file.label}: format not recognised; {found}; known formats: {_FORMATS}")
    times = [name for name in file.columns if name.lower() in lengths.TIME_COLUMNS]
    if times:
        raise TraceError(
            f"{file.label}: column {times[0]} does not state its unit, and none is guessed; "
            "set traffic.format: lengths to use the lengths alone"
        )
    return "lengths"


def _draw_from_table(file: TraceFile, spec: TrafficSpec, seed: int) -> Requests:
    """Return rows of a table of lengths in a drawn order, arriving as the spec says."""
    if spec.arrival is None:
        raise TraceError(
            f"{file.label}: a table of lengths states no arrivals; add for example "
            "traffic.arrival: {poisson_per_s: 4} or traffic.arrival: {closed_loop: 64}"
        )
    table = lengths.read(file)
    num_rows = len(table.input_tokens)
    n = spec.requests or num_rows
    notes = [*table.notes, "rows of the table drawn in random order"]
    if n > num_rows:
        notes.append(f"the table has {num_rows} rows; they repeat for {n} requests")
    rows = lengths.draw_rows(num_rows, n, generator(seed, "lengths.rows"))
    arrival_s, users = draw_arrivals(spec.arrival, n, generator(seed, "traffic.arrival"))
    return Requests(
        arrival_s=arrival_s,
        input_tokens=table.input_tokens[rows],
        output_tokens=table.output_tokens[rows],
        closed_loop_users=users,
        source=file.name,
        sha256=file.sha256,
        notes=tuple(notes),
    )


def _cut(requests: Requests, spec: TrafficSpec) -> Requests:
    """Return the requests inside the window, and of them the first `spec.requests`."""
    requests = _inside_window(requests, spec)
    wanted = spec.requests
    if wanted is None or wanted == len(requests):
        return requests
    if wanted > len(requests):
        note = f"{wanted} requests asked for, {len(requests)} are there; all taken"
        return replace(requests, notes=(*requests.notes, note))
    return _take(requests, slice(wanted))


def _inside_window(requests: Requests, spec: TrafficSpec) -> Requests:
    """Return the requests inside the window."""
    if spec.window_s is None:
        return requests
    if requests.closed_loop_users is not None:
        raise TraceError("traffic.window_s: a closed loop has no arrival times; use requests")
    first, last = np.searchsorted(requests.arrival_s, spec.window_s)
    if first == last:
        raise _empty_window(
            spec.window_s, f"arrivals run from 0 to {float(requests.arrival_s[-1]):.6g} s"
        )
    return _take(requests, slice(int(first), int(last)))


def _empty_window(window_s: tuple[float, float], why: str) -> TraceError:
    start, end = window_s
    return TraceError(f"traffic.window_s [{start:g}, {end:g}) keeps no request: {why}")


def _take(requests: Requests, part: slice) -> Requests:
    return requests.take(np.arange(len(requests))[part])


def _replace_arrivals(requests: Requests, arrival: ArrivalSpec | None, seed: int) -> Requests:
    """Return the same lengths in the same order with the spec's arrivals, if it states any."""
    if arrival is None:
        return requests
    rng = generator(seed, "traffic.arrival")
    arrival_s, users = draw_arrivals(arrival, len(requests), rng)
    note = "the source's own arrivals are replaced by traffic.arrival"
    return replace(
        requests, arrival_s=arrival_s, closed_loop_users=users, notes=(*requests.notes, note)
    )


def _rebase(requests: Requests) -> Requests:
    return replace(requests, arrival_s=requests.arrival_s - requests.arrival_s[0])


def _scale(requests: Requests, rate_per_s: float | None) -> Requests:
    """Return the requests with a mean rate of `rate_per_s`; one request alone has no rate."""
    if rate_per_s is None or (len(requests) == 1 and requests.closed_loop_users is None):
        return requests
    if requests.closed_loop_users is not None:
        raise TraceError("traffic.rate_per_s: a closed loop has users, not a rate; remove the key")
    check_rate(rate_per_s, "traffic.rate_per_s")
    old_per_s = requests.rate_per_s
    if not math.isfinite(old_per_s):
        raise TraceError("traffic.rate_per_s: all requests arrive at once, so no rate can be set")
    note = f"arrivals scaled from {old_per_s:.6g}/s to {rate_per_s:.6g}/s"
    arrival_s = requests.arrival_s * (old_per_s / rate_per_s)
    return replace(requests, arrival_s=arrival_s, notes=(*requests.notes, note))


def _check_span(requests: Requests) -> Requests:
    span_s = float(requests.arrival_s[-1])
    if not span_s <= MAX_SPAN_S:
        raise TraceError(f"the traffic spans {span_s:.3g} s; at most {MAX_SPAN_S:g} s are replayed")
    return requests


def _definition_hash(spec: TrafficSpec, seed: int, summary: str) -> str:
    """Return the hash of what drawn traffic follows from; load levels are not part of it."""
    definition: dict[str, Any] = {
        "traffic": spec.model_dump(mode="json", exclude={"levels"}),
        "seed": seed,
        "summary": hashlib.sha256(summary.encode()).hexdigest() if summary else None,
    }
    text = json.dumps(definition, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()
