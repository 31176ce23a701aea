"""A run spec's traffic as `Requests`: find the source, then window, count and rate, in that order.

`window_s` is on the source's own time axis, `requests` keeps the first ones inside, and
`rate_per_s` scales what is left. A name of shipped traffic wins over a file of the same name; write
`./chat` for the file.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from sieve.arrays import Requests
from sieve.errors import InvalidInput, TraceError
from sieve.resources import package_data
from sieve.spec.models import TrafficSpec
from sieve.traces import source
from sieve.traces.draw import draw_arrivals, draw_window, num_sessions, with_lengths
from sieve.traces.faults import Faults
from sieve.traces.limits import MAX_SPAN_S, check_rate
from sieve.traces.source import empty_window
from sieve.traces.summary import Summary
from sieve.traces.synthetic import draw_synthetic

DEFAULT_REQUESTS: Final = 2000
"""How many requests of shipped traffic are drawn when the spec does not say."""


def load_traffic(
    spec: TrafficSpec, *, seed: int, base_dir: Path, faults: Faults | None = None
) -> Requests:
    """Return the traffic of a run spec at load level 1.

    Args:
        spec: the spec's `traffic`.
        seed: of everything that is drawn.
        base_dir: folder that a relative path starts from, usually the spec's own.
        faults: takes the faults of a file, for a report; default: as `on_error` says.

    Raises:
        TraceError: unknown name, unreadable file, or filters that leave nothing.
        NotYetError: a key whose machinery is not in this version.
    """
    if spec.synthetic is not None:
        seed = seed if spec.synthetic.seed is None else spec.synthetic.seed
        requests = draw_synthetic(spec.synthetic, seed=seed)
        requests = replace(requests, sha256=_definition_hash(spec, seed, ""))
        requests = source.cut(requests, spec)
    elif spec.trace in _shipped():
        requests = _load_shipped(spec, seed)
    else:
        requests = source.load_file(spec, seed, base_dir, _shipped(), faults)
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
        starts = wanted if summary.sessions is None else num_sessions(summary, wanted)
        arrival_s = draw_arrivals(summary, starts, seed)
    else:
        arrival_s = draw_window(summary, wanted, spec.window_s, seed)
        if not len(arrival_s):
            raise empty_window(spec.window_s, "the drawn traffic has a pause there")
    requests = with_lengths(summary, arrival_s, seed, wanted)
    resolved = spec.model_copy(update={"requests": wanted})
    requests = replace(
        requests,
        notes=(*requests.notes, *_shipped_notes(spec, requests, summary)),
        sha256=_definition_hash(resolved, seed, text),
    )
    return source.replace_arrivals(requests, spec.arrival, seed)


def _shipped_notes(spec: TrafficSpec, requests: Requests, summary: Summary) -> list[str]:
    """Return what a user may not expect of count and rate."""
    n, notes = len(requests), []
    if spec.requests is not None and n < spec.requests:
        notes.append(f"the window holds {n} of the {spec.requests} requests asked for")
    if spec.requests is None and spec.window_s is not None and n == DEFAULT_REQUESTS:
        notes.append(f"the first {n} requests of the window; set traffic.requests for more")
    if spec.rate_per_s is None and spec.arrival is None and n > 1 and summary.sessions is None:
        notes.append(
            f"mean rate {requests.rate_per_s:.3g}/s in this part of the traffic, "
            f"{summary.rate_per_s:.3g}/s over all of it; set traffic.rate_per_s to choose"
        )
    return notes


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
