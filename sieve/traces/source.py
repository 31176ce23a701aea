"""Traffic from outside the package: files, folders and specifications in other tools' words."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from sieve.arrays import Requests, chain_starts
from sieve.errors import TraceError
from sieve.resources import exists
from sieve.spec.models import ArrivalSpec, TrafficSpec
from sieve.traces import draw, guidellm, lengths, servegen
from sieve.traces.faults import Faults
from sieve.traces.files import TraceFile, read_file
from sieve.traces.formats import BY_FOLDER, FORMATS, canonical, detect
from sieve.traces.limits import MAX_FILE_BYTES, generator
from sieve.traces.summary import Summary
from sieve.traces.synthetic import draw_arrivals
from sieve.traces.unpack import HEAD_BYTES


def load_file(
    spec: TrafficSpec,
    seed: int,
    base_dir: Path,
    shipped: Sequence[str],
    faults: Faults | None = None,
) -> Requests:
    """Return the requests of a file, after window and count.

    Args:
        spec: the spec's `traffic`; `trace` names a path or holds a GuideLLM specification.
        seed: of everything that is drawn.
        base_dir: folder that a relative path starts from.
        shipped: names of shipped traffic, for messages.
        faults: takes the faults; default: as `on_error` says.

    Raises:
        TraceError: no such file, a format that is not recognised, or any fault in it.
    """
    label = str(spec.trace)
    path = find(label, base_dir, shipped)
    if path is None:
        digest = hashlib.sha256(label.encode()).hexdigest()
        name = "guidellm specification"
        requests = guidellm.read(label, name, digest, spec.requests, spec.arrival, seed)
        return cut(requests, spec)
    form = None if spec.format is None else canonical(spec.format)
    folder = servegen.find(path) if form in {None, "servegen"} else None
    if folder is not None:
        model = servegen.load(folder, label)
        requests = servegen.draw(model, spec.window_s, spec.requests, seed)
        return replace_arrivals(requests, spec.arrival, seed)
    if form == "servegen":
        raise TraceError(f"{label}: no client model: {BY_FOLDER['servegen']} is expected")
    file = open_file(path, label, faults or Faults(spec.on_error or "stop"))
    if form == "summary" or (form is None and is_summary(file)):
        return _from_summary(file, spec, seed)
    return _read(file, form or detect(file, spec), spec, seed)


def find(label: str, base_dir: Path, shipped: Sequence[str]) -> Path | None:
    """Return the path that `trace` names, or None for a specification in the text itself.

    Raises:
        TraceError: neither a file nor a specification.
    """
    path = base_dir / label
    if exists(path):
        return path
    if "prompt_tokens" in label and guidellm.looks_like(label):
        return None
    near = difflib.get_close_matches(label.lower(), shipped, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    raise TraceError(
        f"traffic.trace: {label[:200]!r} is neither shipped traffic nor a file. {hint}"
        f"Shipped: {', '.join(shipped)}; relative paths start at the spec's folder"
    )


def open_file(path: Path, label: str, faults: Faults) -> TraceFile:
    """Return a file in memory; the JSON files of a folder become one, a line each.

    Raises:
        TraceError: it cannot be read.
    """
    if not path.is_dir():
        return read_file(path, label, faults)
    parts = sorted(path.glob("*.json"))
    if not parts:
        return read_file(path, label, faults)  # says that it is a folder
    lines, hashes, total = [], [], 0
    for part in parts:
        file = read_file(part, f"{label}/{part.name}", faults)
        total += len(file.content)
        if total > MAX_FILE_BYTES:
            raise TraceError(f"{label}: more than {MAX_FILE_BYTES // 10**9} GB in all")
        lines.append(file.content.replace(b"\n", b" "))
        hashes.append(file.sha256)
    digest = hashlib.sha256("".join(hashes).encode()).hexdigest()
    notes = (f"{len(parts)} JSON files read in order of their names, one a line",)
    content = b"\n".join(lines)
    return TraceFile(label, path.name, content, digest, (), 1, faults, notes, content[:HEAD_BYTES])


def is_summary(file: TraceFile) -> bool:
    """Tell whether a file is a summary of `sieve trace inspect`."""
    head = file.head[:400]
    return not file.columns and b'"schema_version"' in head and b'"origin"' in head


def _read(file: TraceFile, form: str, spec: TrafficSpec, seed: int) -> Requests:
    entry = FORMATS[form]
    found = entry.read(file, spec, seed)
    file.faults.conclude(file.label)
    if not isinstance(found, Requests):
        return inside_window(_from_table(file, found, form, spec, seed), spec)
    found = replace(found, source_format=form)
    if entry.kind == "drawn":
        requests = cut(found, spec)
        own = form in {"percentiles", "guidellm_synthetic"}
        return requests if own else replace_arrivals(requests, spec.arrival, seed)
    if entry.kind == "sessions":
        return cut(place_sessions(found, spec.arrival, seed, file.label), spec)
    requests = cut(found, spec)
    if spec.arrival is not None and requests.previous is not None:
        raise TraceError("traffic.arrival: the trace has sessions, which arrive by themselves")
    return replace_arrivals(requests, spec.arrival, seed)


def _from_summary(file: TraceFile, spec: TrafficSpec, seed: int) -> Requests:
    summary = Summary.from_json(file.content.decode("utf-8", errors="replace"), file.label)
    requests = draw.draw(summary, spec.requests or summary.num_requests, None, seed)
    requests = replace(requests, source=file.name, sha256=file.sha256)
    return replace_arrivals(inside_window(requests, spec), spec.arrival, seed)


def place_sessions(
    requests: Requests, arrival: ArrivalSpec | None, seed: int, label: str
) -> Requests:
    """Return requests whose sessions begin as `arrival` says.

    Raises:
        TraceError: no arrivals are stated, or a closed loop is.
    """
    if arrival is None:
        raise TraceError(
            f"{label}: when sessions begin is not recorded; state session starts, for example "
            "traffic.arrival: {poisson_per_s: 0.05}"
        )
    if arrival.closed_loop is not None:
        raise _no_closed_loop()
    assert requests.session is not None
    number, session = np.unique(requests.session, return_inverse=True)
    rng = generator(seed, "traffic.arrival")
    start_s, _ = draw_arrivals(arrival, len(number), rng)
    arrival_s = requests.arrival_s + start_s[session]
    order = np.argsort(arrival_s, kind="stable")
    placed = replace(requests, arrival_s=arrival_s).take(order)
    note = f"starts of {len(number)} sessions are stated by traffic.arrival, not recorded"
    return replace(placed, notes=(*requests.notes, note))


def _no_closed_loop() -> TraceError:
    return TraceError(
        "traffic.arrival: sessions arrive at a rate, and their turns wait for answers; "
        "a closed loop over sessions is not replayed"
    )


def _from_table(
    file: TraceFile, table: lengths.LengthTable, form: str, spec: TrafficSpec, seed: int
) -> Requests:
    """Return rows of a table of lengths in a drawn order, arriving as the spec says."""
    if spec.arrival is None:
        raise TraceError(
            f"{file.label}: a table of lengths states no arrivals; add for example "
            "traffic.arrival: {poisson_per_s: 4} or traffic.arrival: {closed_loop: 64}"
        )
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
        source_format=form,
    )


def cut(requests: Requests, spec: TrafficSpec) -> Requests:
    """Return the requests inside the window, and of them the first `spec.requests`."""
    requests = inside_window(requests, spec)
    wanted = spec.requests
    if wanted is None or wanted == len(requests):
        return requests
    if wanted > len(requests):
        note = f"{wanted} requests asked for, {len(requests)} are there; all taken"
        return replace(requests, notes=(*requests.notes, note))
    return _take(requests, slice(wanted))


def inside_window(requests: Requests, spec: TrafficSpec) -> Requests:
    """Return the requests inside the window.

    Raises:
        TraceError: a closed loop, or a window without requests.
    """
    if spec.window_s is None:
        return requests
    if requests.closed_loop_users is not None:
        raise TraceError("traffic.window_s: a closed loop has no arrival times; use requests")
    first, last = np.searchsorted(requests.arrival_s, spec.window_s)
    if first == last:
        raise empty_window(
            spec.window_s, f"arrivals run from 0 to {float(requests.arrival_s[-1]):.6g} s"
        )
    return _take(requests, slice(int(first), int(last)))


def empty_window(window_s: tuple[float, float], why: str) -> TraceError:
    """Return the error of a window that keeps nothing."""
    start, end = window_s
    return TraceError(f"traffic.window_s [{start:g}, {end:g}) keeps no request: {why}")


def _take(requests: Requests, part: slice) -> Requests:
    return requests.take(np.arange(len(requests))[part])


def replace_arrivals(requests: Requests, arrival: ArrivalSpec | None, seed: int) -> Requests:
    """Return the same lengths in the same order with the spec's arrivals, if it states any."""
    if arrival is None:
        return requests
    rng = generator(seed, "traffic.arrival")
    if requests.previous is not None:
        if arrival.closed_loop is not None:
            raise _no_closed_loop()
        root, chain = np.unique(chain_starts(requests.previous), return_inverse=True)
        start_s, _ = draw_arrivals(arrival, len(root), rng)
        note = "session starts are replaced by traffic.arrival"
        arrival_s = start_s[chain]
        moved = replace(requests, arrival_s=arrival_s, notes=(*requests.notes, note))
        return moved.take(np.argsort(arrival_s, kind="stable"))
    arrival_s, users = draw_arrivals(arrival, len(requests), rng)
    note = "the source's own arrivals are replaced by traffic.arrival"
    return replace(
        requests, arrival_s=arrival_s, closed_loop_users=users, notes=(*requests.notes, note)
    )
