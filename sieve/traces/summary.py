"""The statistics of a trace in a few kB, from which `draw` makes traffic like it.

Arrivals: windows with rate, coefficient of variation (CV) of the gaps, and index of dispersion.
Lengths: a sparse joint histogram of input and output length on logarithmic bins, and for each bin
of each axis the quantiles of the lengths within, because real lengths cluster inside a bin.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from sieve.arrays import FloatArray, IntArray, Requests
from sieve.errors import TraceError
from sieve.traces.reuse_summary import (
    PrefixSummary,
    ReuseBin,
    SessionSummary,
    TurnBin,
    summarise_prefix,
    summarise_sessions,
)
from sieve.version import schema_fault

SCHEMA_VERSION: Final = 1
_REMAKE: Final = "make it anew with `sieve trace inspect FILE --summary OUT`, or reinstall sieve"
BINS_PER_OCTAVE: Final = 4
QUANTILES_PER_BIN: Final = 9
MAX_WINDOWS: Final = 200
REQUESTS_A_WINDOW: Final = 500
RATE_CHANGES: Final = 4.0
"""Dispersion of counts over that of a renewal process from which on windows are shortened."""
_MIN_GAPS_FOR_CV: Final = 30  # a CV from fewer gaps is mostly noise


@dataclass(frozen=True)
class Origin:
    """Where a summarised trace comes from.

    Attributes:
        name: title of the data set and, where the licence asks for it, the attribution.
        licence: SPDX name.
        reference: the version that was read.
        sha256: hash of the original file.
        date: day of the summary, ISO.
        arrivals: `measured`, or the statement that stands in for a measurement.
    """

    name: str
    licence: str
    reference: str
    sha256: str
    date: str
    arrivals: str = "measured"


@dataclass(frozen=True)
class Window:
    """Arrivals in one stretch of time.

    Attributes:
        length_s: how long it is; windows follow each other without a gap.
        num_requests: arrivals in it.
        rate_per_s: num_requests / length_s.
        gap_cv: CV of the gaps, or None if there are too few.
        dispersion: variance over mean of the arrivals per second, or None as above.
    """

    length_s: float
    num_requests: int
    rate_per_s: float
    gap_cv: float | None
    dispersion: float | None


@dataclass(frozen=True)
class LengthStats:
    """Mean, percentiles and limits of one length, in tokens."""

    mean: float
    p50: float
    p95: float
    p99: float
    min: int
    max: int


@dataclass(frozen=True, eq=False)
class Summary:
    """The statistics of a trace.

    Attributes:
        name: short name by which a spec asks for the traffic.
        about: one sentence for listings.
        origin: source and licence.
        num_requests: requests of the trace.
        span_s: first arrival to last.
        rate_per_s: mean rate, (num_requests - 1) / span_s.
        gap_cv: CV of all gaps.
        dispersion: variance over mean of the arrivals per second, or None if stated.
        windows: consecutive stretches that cover the span.
        input_tokens: statistics of the input lengths.
        output_tokens: statistics of the output lengths.
        log_correlation: Pearson correlation of ln input and ln output length.
        input_quantiles: (ni, 9) evenly spaced quantiles, lowest to highest, per occupied input bin.
        output_quantiles: (no, 9) the same for output bins.
        cells: (ni, no) requests by input and output bin.
        step_s: arrivals stand on a grid of this width; the CVs of the windows are then those of
            the counts on it. None: they do not.
        prefix: prefixes that requests share; None: none are known.
        sessions: chains of turns; windows and rates are then those of their starts.
    """

    name: str
    about: str
    origin: Origin
    num_requests: int
    span_s: float
    rate_per_s: float
    gap_cv: float
    dispersion: float | None
    windows: tuple[Window, ...]
    input_tokens: LengthStats
    output_tokens: LengthStats
    log_correlation: float
    input_quantiles: IntArray
    output_quantiles: IntArray
    cells: IntArray
    step_s: float | None = None
    prefix: PrefixSummary | None = None
    sessions: SessionSummary | None = None

    def to_json(self) -> str:
        """Return the summary as a JSON document, one entry of a list a line."""
        plain = _plain(self)
        for name in ("step_s", "prefix", "sessions"):
            if plain[name] is None:
                del plain[name]
        pairs: dict[str, Any] = {"schema_version": SCHEMA_VERSION, **plain}
        return "{\n" + ",\n".join(_entry(key, value) for key, value in pairs.items()) + "\n}\n"

    @classmethod
    def from_json(cls, text: str, label: str) -> Summary:
        """Return the summary in a JSON document called `label` in messages.

        Raises:
            TraceError: not a summary of this version.
        """
        try:
            data = json.loads(text)
            if fault := schema_fault(data.pop("schema_version"), SCHEMA_VERSION, _REMAKE):
                raise TraceError(f"{label}: a traffic summary of {fault}")
            return _from_plain(data)
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            raise TraceError(f"{label}: damaged traffic summary ({error}); {_REMAKE}") from None


def summarise(
    requests: Requests, *, name: str, about: str, origin: Origin, window_s: float
) -> Summary:
    """Return the statistics of open-loop `requests` with windows of about `window_s` seconds.

    Raises:
        TraceError: fewer than two requests, a closed loop, or all arrivals at one moment.
    """
    arrival_s = requests.arrival_s
    if requests.previous is not None:
        arrival_s = np.sort(arrival_s[requests.previous < 0])
    if requests.closed_loop_users is not None or len(arrival_s) < 2 or arrival_s[-1] <= 0:
        raise TraceError(f"{requests.source}: a summary needs two requests that arrive in time")
    window_s = max(window_s, float(arrival_s[-1]) / MAX_WINDOWS)
    step_s = arrival_step(arrival_s)
    sessions = None if requests.previous is None else summarise_sessions(requests)
    shared = requests.prefix if sessions is None else None
    input_bin, input_quantiles = _bins(requests.input_tokens)
    output_bin, output_quantiles = _bins(requests.output_tokens)
    cells = np.zeros((len(input_quantiles), len(output_quantiles)), np.int64)
    np.add.at(cells, (input_bin, output_bin), 1)
    return Summary(
        name=name,
        about=about,
        origin=origin,
        num_requests=len(requests),
        span_s=_tidy(arrival_s[-1]),
        rate_per_s=_tidy((len(arrival_s) - 1) / arrival_s[-1]),
        gap_cv=_tidy(gap_cv(arrival_s)),
        dispersion=_tidy(dispersion(arrival_s, 0.0, float(arrival_s[-1]))),
        windows=_windows(arrival_s, window_s, step_s),
        input_tokens=length_stats(requests.input_tokens),
        output_tokens=length_stats(requests.output_tokens),
        log_correlation=_tidy(log_correlation(requests)),
        input_quantiles=input_quantiles,
        output_quantiles=output_quantiles,
        cells=cells,
        step_s=None if step_s is None else _tidy(step_s),
        prefix=None if shared is None else summarise_prefix(shared),
        sessions=sessions,
    )


def window_length(arrival_s: FloatArray, most_s: float) -> float:
    """Return the length of windows that follow the rate, at most `most_s`.

    Inside a window the rate is taken as constant. Where counts vary more than gaps alone explain (a
    renewal process has an index of dispersion of its CV squared), the rate changes inside, and
    windows become as short as their count of requests allows: 500 tell a rate to 4 %.

    Args:
        arrival_s: (n,) rising times, the first at 0.
        most_s: longest window.
    """
    span_s = float(arrival_s[-1])
    short_s = max(REQUESTS_A_WINDOW * span_s / len(arrival_s), span_s / MAX_WINDOWS)
    if short_s >= most_s or len(arrival_s) < 2 * REQUESTS_A_WINDOW:
        return most_s
    counts = np.histogram(arrival_s, bins=max(int(span_s / short_s), 1))[0]
    explained = max(gap_cv(arrival_s), 1.0) ** 2
    return short_s if counts.var() > RATE_CHANGES * explained * counts.mean() else most_s


def arrival_step(arrival_s: FloatArray) -> float | None:
    """Return the width of the grid that sorted arrivals stand on, or None if they do not.

    Traces that were collected in steps have many requests at one moment; a grid is seen where most
    requests share their moment with another and most moments follow each other at one distance.
    """
    moments = np.unique(arrival_s)
    if len(arrival_s) < 100 or len(moments) < 10 or len(arrival_s) < 2 * len(moments):
        return None
    gap = np.diff(moments)
    step = float(np.median(gap))
    off = np.abs(gap / step - np.rint(gap / step))
    return step if (off < 0.02).mean() > 0.9 else None


def length_stats(tokens: IntArray) -> LengthStats:
    """Return mean, percentiles (linear between ranks) and limits of (n,) token counts."""
    p50, p95, p99 = (_tidy(v) for v in np.percentile(tokens, [50, 95, 99]))
    return LengthStats(_tidy(tokens.mean()), p50, p95, p99, int(tokens.min()), int(tokens.max()))


def gap_cv(arrival_s: FloatArray) -> float:
    """Return standard deviation over mean of the gaps between arrivals, (n,) seconds."""
    gap_s = np.diff(arrival_s)
    return float(gap_s.std() / gap_s.mean())


def log_correlation(requests: Requests) -> float:
    """Return the Pearson correlation of ln input and ln output length; 0 if one is constant."""
    x, y = np.log(requests.input_tokens), np.log(requests.output_tokens)
    if x.std() == 0 or y.std() == 0:
        return 0.0
    return float(np.corrcoef(x, y)[0, 1])


def dispersion(arrival_s: FloatArray, start_s: float, end_s: float) -> float:
    """Return variance over mean of the arrivals in each whole second of [start, end)."""
    seconds = max(int(end_s - start_s), 1)
    counts = np.histogram(arrival_s, bins=seconds, range=(start_s, start_s + seconds))[0]
    return float(counts.var() / counts.mean()) if counts.any() else float("nan")


def _step_cv(arrival_s: FloatArray, start_s: float, end_s: float, step_s: float) -> float:
    """Return the CV of a renewal process whose counts vary as those on the grid do."""
    steps = max(round((end_s - start_s) / step_s), 1)
    # The grid's moments lie in the middle of the bins, so that rounding moves none.
    begin = start_s - step_s / 2
    counts = np.histogram(arrival_s, bins=steps, range=(begin, begin + steps * step_s))[0]
    return float(np.sqrt(counts.var() / counts.mean())) if counts.any() else 1.0


def _windows(
    arrival_s: FloatArray, window_s: float, step_s: float | None = None
) -> tuple[Window, ...]:
    """Return consecutive windows; a last one below half the length joins the one before."""
    end_s = float(arrival_s[-1])
    starts = np.arange(0.0, max(end_s - window_s / 2, window_s / 2), window_s)
    edges = np.append(starts, end_s)
    index = np.searchsorted(arrival_s, edges)
    index[-1] = len(arrival_s)
    windows = []
    for i, (start, end) in enumerate(itertools.pairwise(edges.tolist())):
        inside = arrival_s[index[i] : index[i + 1]]
        enough = len(inside) > _MIN_GAPS_FOR_CV and inside[-1] > inside[0]
        cv = _tidy(gap_cv(inside)) if enough else None
        if step_s is not None:
            few = end - start < _MIN_GAPS_FOR_CV * step_s
            cv = _tidy(_step_cv(arrival_s, 0.0 if few else start, end_s if few else end, step_s))
        windows.append(
            Window(
                length_s=_tidy(end - start),
                num_requests=len(inside),
                rate_per_s=_tidy(len(inside) / (end - start)),
                gap_cv=cv,
                dispersion=_tidy(dispersion(inside, start, end)) if enough else None,
            )
        )
    return tuple(windows)


def _bins(tokens: IntArray) -> tuple[IntArray, IntArray]:
    """Return (n,) each length's bin among the occupied ones, and (bins, 9) quantiles within."""
    bin_of = np.floor(np.log2(tokens) * BINS_PER_OCTAVE).astype(np.int64)
    occupied, dense = np.unique(bin_of, return_inverse=True)
    steps = np.linspace(0.0, 1.0, QUANTILES_PER_BIN)
    quantiles = [np.quantile(tokens[dense == i], steps) for i in range(len(occupied))]
    return dense.astype(np.int64), np.rint(np.array(quantiles)).astype(np.int64)


def _tidy(value: float | np.floating[Any]) -> float:
    """Return six significant digits: enough for any use, and short in the file."""
    return float(f"{value:.6g}")


def _plain(summary: Summary) -> dict[str, Any]:
    plain = {
        key: asdict(value) if hasattr(value, "__dataclass_fields__") else value
        for key, value in vars(summary).items()
    }
    plain["windows"] = [list(asdict(window).values()) for window in summary.windows]
    plain["input_quantiles"] = summary.input_quantiles.tolist()
    plain["output_quantiles"] = summary.output_quantiles.tolist()
    plain["cells"] = [_sparse(row) for row in summary.cells]
    return plain


def _sparse(row: npt.NDArray[np.int64]) -> list[list[int]]:
    columns = np.flatnonzero(row)
    return [[int(column), int(row[column])] for column in columns]


def _entry(key: str, value: object) -> str:
    """Return one top-level entry; a list of lists gets a line an element."""
    if isinstance(value, list):
        lines = ",\n".join("    " + json.dumps(item, separators=(",", ":")) for item in value)
        return f'  "{key}": [\n{lines}\n  ]'
    return f'  "{key}": {json.dumps(value)}'


def _from_plain(data: Mapping[str, Any]) -> Summary:
    input_quantiles = np.array(data["input_quantiles"], np.int64)
    output_quantiles = np.array(data["output_quantiles"], np.int64)
    cells = np.zeros((len(input_quantiles), len(output_quantiles)), np.int64)
    for i, row in enumerate(data["cells"]):
        columns, counts = np.array(row, np.int64).T
        cells[i, columns] = counts
    prefix, sessions = data.get("prefix"), data.get("sessions")
    return Summary(
        **{
            **data,
            "origin": Origin(**data["origin"]),
            "windows": tuple(Window(*window) for window in data["windows"]),
            "input_tokens": LengthStats(**data["input_tokens"]),
            "output_tokens": LengthStats(**data["output_tokens"]),
            "input_quantiles": input_quantiles,
            "output_quantiles": output_quantiles,
            "cells": cells,
            "prefix": None if prefix is None else _prefix_of(prefix),
            "sessions": None if sessions is None else _sessions_of(sessions),
        }
    )


def _prefix_of(data: Mapping[str, Any]) -> PrefixSummary:
    bins = tuple(ReuseBin(**{**b, "reused_share": tuple(b["reused_share"])}) for b in data["bins"])
    return PrefixSummary(**{**data, "distance": tuple(data["distance"]), "bins": bins})


def _sessions_of(data: Mapping[str, Any]) -> SessionSummary:
    lists = ("turns", "first_input_tokens", "output_tokens", "pause_s")
    bins = tuple(
        TurnBin(**{**b, **{k: tuple(b[k]) for k in ("kept_share", "added_tokens")}})
        for b in data["bins"]
    )
    return SessionSummary(**{**data, **{k: tuple(data[k]) for k in lists}, "bins": bins})
