"""What `sieve trace` does, as functions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from sieve.arrays import Requests
from sieve.catalog.models import load_model
from sieve.errors import TraceError
from sieve.spec import load_mapping, load_specs
from sieve.spec.models import TrafficSpec
from sieve.spec.traffic import parse_traffic
from sieve.traces.draw import draw
from sieve.traces.export import replace_file
from sieve.traces.faults import Faults
from sieve.traces.load import available_traffic, load_traffic
from sieve.traces.statistics import describe, preconditions
from sieve.traces.summary import Origin, Summary, summarise, window_length

WINDOW_S: Final = 300.0
"""Windows of a summary: 5 minutes; longer above 17 hours, shorter where the rate changes inside."""


def inspect_traffic(
    spec: TrafficSpec,
    *,
    seed: int,
    model: str | None = None,
    tpot_s: float = 0.05,
    ttft_s: float = 1.0,
    summary: Path | None = None,
) -> dict[str, Any]:
    """Return statistics, preconditions and faults of traffic, and write its summary.

    Raises:
        TraceError: traffic that cannot be read.
        CatalogError: an unknown model.
    """
    limit = None if model is None else load_model(model).max_position_embeddings
    faults = Faults(spec.on_error or "stop", tolerate=True)
    requests = load_traffic(spec, seed=seed, base_dir=Path(), faults=faults)
    data = describe(requests, tpot_s=tpot_s, ttft_s=ttft_s)
    scaled = any(
        value is not None
        for value in (spec.requests, spec.rate_per_s, spec.window_s, spec.arrival)
    ) or spec.trace in available_traffic()  # fmt: skip
    data["preconditions"] = preconditions(requests, scaled=scaled, max_model_len=limit, model=model)
    data["errors"] = faults.report()
    if summary is not None:
        text = summary_of(requests).to_json()
        replace_file(summary, lambda path: path.write_text(text, encoding="utf-8", newline="\n"))
        data["summary"] = {"file": summary.name, "num_bytes": len(text.encode())}
    return data


def summary_of(requests: Requests) -> Summary:
    """Return the statistics of traffic that regenerate it; no request and no text is in them.

    Raises:
        TraceError: fewer than two requests that arrive in time, or a closed loop.
    """
    arrival_s = requests.arrival_s
    if requests.previous is None and requests.closed_loop_users is None and len(arrival_s) > 1:
        window_s = window_length(arrival_s, WINDOW_S)
    else:  # sessions begin too rarely for windows of their own
        window_s = WINDOW_S
    return summarise(
        requests,
        name=Path(requests.source).name.split(".")[0] or "traffic",
        about=f"Statistics of {requests.source}.",
        origin=Origin(
            name=requests.source,
            licence="not stated",
            reference="read by sieve",
            sha256=requests.sha256,
            date="",
        ),
        window_s=window_s,
    )


def draw_traffic(spec: TrafficSpec, *, seed: int) -> Requests:
    """Return traffic drawn from a summary, a run spec, a client model, shipped traffic or a trace.

    A trace is summarised first; a specification is drawn with `seed` in place of its own.

    Raises:
        SieveError: the source cannot be read, or states no arrivals.
    """
    path = Path(str(spec.trace))
    if path.suffix.lower() in {".yaml", ".yml"} and path.is_file():
        found = _from_yaml(path, spec)
        if found is not None:
            return load_traffic(found, seed=seed, base_dir=path.parent)
    whole = spec.model_copy(update={"requests": None, "rate_per_s": None, "window_s": None})
    drawn = spec.trace in available_traffic() or path.is_dir() or path.name.startswith("client_")
    requests = load_traffic(spec if drawn else whole, seed=seed, base_dir=Path())
    if any("drawn from" in note for note in requests.notes):
        return requests if drawn else load_traffic(spec, seed=seed, base_dir=Path())
    if requests.closed_loop_users is not None:
        raise TraceError(f"{requests.source}: a closed loop has no arrivals to draw anew")
    summary = summary_of(requests)
    again = draw(summary, spec.requests or len(requests), spec.rate_per_s, seed)
    return replace(again, sha256=requests.sha256)


def _from_yaml(path: Path, spec: TrafficSpec) -> TrafficSpec | None:
    """Return the traffic of a run spec, or of a file with a spec's `traffic` keys; else None."""
    data = load_mapping(path, "run spec or traffic")
    keys: dict[str, Any]
    if "traffic" in data:
        keys = load_specs(path)[0].run.traffic.model_dump(exclude_none=True)
    elif {"isl", "osl"} <= data.keys():
        keys = {"synthetic": data}
    elif "synthetic" in data or "trace" in data:
        keys = data
    else:
        return None
    for name in ("requests", "rate_per_s", "window_s", "arrival"):
        value = getattr(spec, name)
        if value is None:
            continue
        if "synthetic" in keys and name in {"requests", "arrival"}:
            value = value if name == "requests" else value.model_dump(exclude_none=True)
            keys = {**keys, "synthetic": {**keys["synthetic"], name: value}}
        else:
            keys = {**keys, name: value}
    return parse_traffic(keys, str(path))
