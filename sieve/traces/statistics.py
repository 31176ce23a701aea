"""What a trace is like: rates, burstiness, lengths, sessions, prefix reuse, and preconditions."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

import numpy as np

from sieve.arrays import FloatArray, Requests, chain_starts
from sieve.traces.reuse import hit_curve
from sieve.traces.summary import arrival_step, dispersion, gap_cv, length_stats, log_correlation

PERCENTILES: Final = (1, 5, 10, 25, 50, 75, 90, 95, 99, 99.9)
MAX_ROWS: Final = 60
GAP_FACTOR: Final = 50.0
"""A pause of so many mean gaps, and of a minute at least, is told."""


def describe(requests: Requests, *, tpot_s: float, ttft_s: float) -> dict[str, Any]:
    """Return the statistics of traffic as JSON data.

    Args:
        requests: the traffic.
        tpot_s: assumed time per output token, for the concurrency.
        ttft_s: assumed time to the first token, for the concurrency.
    """
    starts = _starts(requests)
    timed = requests.closed_loop_users is None and len(starts) > 1 and starts[-1] > 0
    data: dict[str, Any] = {
        "source": requests.source,
        "source_format": requests.source_format or None,
        "sha256": requests.sha256,
        "num_requests": len(requests),
        "num_failed": requests.num_failed,
        "pinned": _pinned(requests),
        "rates": _rates(requests, starts) if timed else None,
        "burstiness": _burstiness(starts) if timed else None,
        "lengths": _lengths(requests),
        "concurrency": _concurrency(requests, tpot_s, ttft_s),
        "sessions": _sessions(requests),
        "prefix": _prefix(requests),
        "notes": list(requests.notes),
    }
    return data


def _starts(requests: Requests) -> FloatArray:
    """Return the arrivals that the trace states: those of sessions where turns wait."""
    if requests.previous is None:
        return requests.arrival_s
    return np.sort(requests.arrival_s[requests.previous < 0])


def _pinned(requests: Requests) -> dict[str, bool]:
    """Return what the trace fixes for each request."""
    return {
        "input_length": True,
        "output_length": True,
        "arrival": requests.closed_loop_users is None,
        "session": requests.session is not None or requests.previous is not None,
        "prefix_blocks": requests.prefix is not None,
        "source_line": requests.line is not None,
    }


def _rates(requests: Requests, starts: FloatArray) -> dict[str, Any]:
    span_s = float(starts[-1])
    width = next(
        (w for w in (1.0, 10.0, 60.0, 300.0, 900.0, 3600.0, 86400.0) if span_s / w <= MAX_ROWS),
        span_s / MAX_ROWS,
    )
    bins = max(int(np.ceil(span_s / width)), 1)
    counts = np.histogram(starts, bins=bins, range=(0, bins * width))[0]
    minute = np.unique(starts // 60, return_counts=True)[1]
    return {
        "unit": "requests/s" if requests.previous is None else "session starts/s",
        "span_s": span_s,
        "mean_per_s": (len(starts) - 1) / span_s,
        "peak_minute_per_s": float(minute.max()) / min(60.0, span_s),
        "window_s": width,
        "windows_per_s": (counts / width).tolist(),
        "input_tokens_per_s": float(requests.input_tokens.sum() / span_s),
        "output_tokens_per_s": float(requests.output_tokens.sum() / span_s),
    }


def _burstiness(starts: FloatArray) -> dict[str, Any]:
    gaps = np.diff(starts)
    return {
        "gap_cv": gap_cv(starts),
        "dispersion_per_s": dispersion(starts, 0.0, float(starts[-1])),
        "longest_gap_s": float(gaps.max()),
        "arrival_step_s": arrival_step(starts),
        "share_at_same_moment": float((gaps == 0).mean()),
    }


def _lengths(requests: Requests) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in ("input_tokens", "output_tokens"):
        tokens = getattr(requests, name)
        values = np.percentile(tokens, PERCENTILES)
        found[name] = asdict(length_stats(tokens)) | {
            "percentiles": {f"p{p:g}": float(v) for p, v in zip(PERCENTILES, values, strict=True)}
        }
    if len(requests) > 1:
        found["log_correlation"] = log_correlation(requests)
    octave = [np.floor(np.log2(t)).astype(np.int64)
              for t in (requests.input_tokens, requests.output_tokens)]  # fmt: skip
    low = [int(o.min()) for o in octave]
    table = np.zeros((int(octave[0].max()) - low[0] + 1, int(octave[1].max()) - low[1] + 1), int)
    np.add.at(table, (octave[0] - low[0], octave[1] - low[1]), 1)
    found["joint"] = {
        "input_tokens_from": [2 ** (low[0] + i) for i in range(table.shape[0])],
        "output_tokens_from": [2 ** (low[1] + i) for i in range(table.shape[1])],
        "requests": table.tolist(),
    }
    return found


def _concurrency(requests: Requests, tpot_s: float, ttft_s: float) -> dict[str, Any]:
    """Return the requests in flight by Little's law, with the service time it assumes."""
    service_s = ttft_s + tpot_s * (requests.output_tokens - 1)
    assumption = (
        f"Little's law: rate x mean time in system, with TTFT {ttft_s:g} s and TPOT {tpot_s:g} s "
        "assumed; a replay tells the true figure"
    )
    if requests.closed_loop_users is not None:
        return {"mean": float(requests.closed_loop_users), "assumption": "users of a closed loop"}
    span_s = float(requests.arrival_s[-1])
    if requests.previous is not None:
        return {"mean": None, "assumption": "turns wait for answers: replay it (`sieve replay`)",
                "mean_service_s": float(service_s.mean())}  # fmt: skip
    if span_s <= 0:
        return {"mean": float(len(requests)), "assumption": "all requests arrive at once"}
    ends = np.sort(requests.arrival_s + service_s)
    running = np.arange(1, len(ends) + 1) - np.searchsorted(ends, requests.arrival_s, "right")
    return {
        "mean": float(service_s.sum() / span_s),
        "peak": int(running.max()),
        "mean_service_s": float(service_s.mean()),
        "assumption": assumption,
    }


def _sessions(requests: Requests) -> dict[str, Any] | None:
    if requests.previous is not None:
        roots = chain_starts(requests.previous)
    elif requests.session is not None:
        roots = requests.session[requests.session >= 0]
    else:
        return None
    turns = np.unique(roots, return_counts=True)[1]
    p50, p95, most = np.percentile(turns, [50, 95, 100])
    found = {"num_sessions": len(turns), "mean_turns": float(turns.mean()), "p50_turns": float(p50),
             "p95_turns": float(p95), "max_turns": int(most)}  # fmt: skip
    if requests.previous is not None and requests.delay_s is not None:
        pause = requests.delay_s[requests.previous >= 0]
        found |= {f"p{p}_pause_s": float(np.percentile(pause, p)) for p in (50, 90, 99)}
    return found


def _prefix(requests: Requests) -> dict[str, Any] | None:
    if requests.prefix is None or not len(requests.prefix.ids):
        return None
    curve = hit_curve(requests.prefix)
    order = (
        "blocks in the order of arrival"
        if requests.previous is None
        else "sessions one after the other, not interleaved: an upper bound"
    )
    return {
        "block_tokens": curve.block_tokens,
        "distinct_blocks": int(requests.prefix.ids.max()) + 1,
        "unlimited_hit_ratio": curve.unlimited,
        "cache_tokens": curve.cache_tokens.tolist(),
        "hit_ratio": curve.hit_ratio.tolist(),
        "sampled_share": curve.sampled,
        "method": f"LRU stack distances, {order}",
    }


def preconditions(
    requests: Requests, *, scaled: bool, max_model_len: int | None, model: str | None
) -> list[dict[str, Any]]:
    """Return what must hold for a replay or a benchmark to see the recorded traffic.

    Args:
        requests: the traffic as read.
        scaled: a rate, window or count was chosen.
        max_model_len: longest context of the model, None if no model was given.
        model: its name.
    """
    notes = " ".join(requests.notes)
    longest = int((requests.input_tokens + requests.output_tokens).max())
    rows = [
        _row("scale_factors", not scaled, "arrivals and lengths as recorded, all factors 1.0"
             if not scaled else "the traffic was cut, scaled or given other arrivals"),
        _row("order", "not in order" not in notes, "rows in order of arrival"
             if "not in order" not in notes else "the clock goes back in the file; rows sorted"),
        _row("failed_requests", requests.num_failed == 0,
             f"{requests.num_failed} requests without an answer left out"),
        _row("faulty_rows", "left out (skip)" not in notes and "left out (count)" not in notes,
             "every row was read" if "left out (" not in notes else "rows left out, see notes"),
    ]  # fmt: skip
    starts = _starts(requests)
    if len(starts) > 2 and starts[-1] > 0 and requests.closed_loop_users is None:
        gap_s = float(np.diff(starts).max())
        most = max(60.0, GAP_FACTOR * float(starts[-1]) / (len(starts) - 1))
        rows.append(_row("gaps", gap_s <= most, f"longest pause {gap_s:.4g} s, expected up to "
                         f"{most:.4g} s"))  # fmt: skip
        step = arrival_step(starts)
        at = "at moments of their own" if step is None else f"on a grid of {step:g} s"
        rows.append(_row("time_resolution", step is None, f"arrivals stand {at}"))
    detail = f"longest request {longest:,} tokens"
    fits = None
    if max_model_len is not None:
        fits = longest <= max_model_len
        detail += f", {model} takes {max_model_len:,}"
    else:
        detail += "; give --model to hold it against a context limit"
    rows.append({"name": "context_limit", "ok": fits, "detail": detail})
    return rows


def _row(name: str, ok: bool, detail: str) -> dict[str, Any]:  # noqa: FBT001 - the row's verdict
    return {"name": name, "ok": bool(ok), "detail": detail}
