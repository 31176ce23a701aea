"""A table of percentiles: input and output tokens, with a rate or a concurrency.

YAML or JSON:

    input_tokens: {p50: 1000, p90: 4000, p99: 9000}
    output_tokens: {p50: 200, p95: 900}
    rate_per_s: 4            # or concurrency: 64
    cv: 1.5                  # of the gaps, default 1 (Poisson)

or CSV with a row for each of them: `metric,p50,p90,p99`. Lengths follow the stated percentiles
exactly; between and beyond them the logarithm of the length is linear in the normal quantile, that
is, lognormal by pieces. Percentiles of two lengths say nothing of how they go together, so both are
drawn independently.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from sieve.arrays import FloatArray, IntArray, Requests
from sieve.errors import TraceError
from sieve.json_text import parse_json
from sieve.spec import parse_yaml
from sieve.spec.models import ArrivalSpec, GammaArrivals
from sieve.traces.files import TraceFile
from sieve.traces.limits import MAX_TOKENS, generator
from sieve.traces.synthetic import draw_arrivals

DEFAULT_REQUESTS: Final = 2000
KEYS: Final = ("input_tokens", "output_tokens", "rate_per_s", "concurrency", "cv")
_PERCENTILE: Final = re.compile(r"^p(\d{1,2}(?:\.\d{1,3})?)$")
_ALIASES: Final = {"isl": "input_tokens", "osl": "output_tokens", "input": "input_tokens",
                   "output": "output_tokens", "prompt_tokens": "input_tokens",
                   "completion_tokens": "output_tokens", "rate": "rate_per_s"}  # fmt: skip


def read(file: TraceFile, requests: int | None, arrival: ArrivalSpec | None, seed: int) -> Requests:
    """Return drawn requests whose lengths have the stated percentiles.

    Raises:
        TraceError: a key that is not known, percentiles that do not rise, or no arrivals.
    """
    table = parse(file)
    n = requests or DEFAULT_REQUESTS
    arrival = arrival or _arrival(table, file.label)
    arrival_s, users = draw_arrivals(arrival, n, generator(seed, "traffic.arrival"))
    lengths = {
        name: draw(quantiles(table[name], f"{file.label}, {name}"), n, generator(seed, name))
        for name in KEYS[:2]
    }
    return Requests(
        arrival_s=arrival_s,
        input_tokens=lengths["input_tokens"],
        output_tokens=lengths["output_tokens"],
        closed_loop_users=users,
        source=file.name,
        sha256=file.sha256,
        notes=(
            "drawn from percentiles: lognormal by pieces, input and output independent, because "
            "percentiles do not tell how they go together",
        ),
    )


def parse(file: TraceFile) -> dict[str, Any]:
    """Return the table by key.

    Raises:
        TraceError: no mapping, an unknown key or a missing length.
    """
    text = file.content.decode("utf-8", errors="replace")
    if file.columns:
        data = _from_csv(text, file.label)
    else:
        try:
            data = (
                parse_json(text) if text.lstrip().startswith("{") else parse_yaml(text, file.label)
            )
        except ValueError as error:
            raise TraceError(f"{file.label}: no YAML or JSON: {str(error)[:120]}") from None
    if not isinstance(data, Mapping):
        raise TraceError(f"{file.label}: expected keys {', '.join(KEYS)}")
    table = {_ALIASES.get(str(key), str(key)): value for key, value in data.items()}
    unknown = [key for key in table if key not in KEYS]
    if unknown:
        raise TraceError(
            f"{file.label}: {unknown[0][:40]!r} is not known; expected {', '.join(KEYS)}"
        )
    for key in KEYS[:2]:
        if not isinstance(table.get(key), Mapping):
            raise TraceError(f"{file.label}: {key} is missing; expected {{p50: .., p90: .., ..}}")
    return table


def _from_csv(text: str, label: str) -> dict[str, Any]:
    try:
        rows = list(csv.reader(io.StringIO(text, newline="")))
    except csv.Error as error:
        raise TraceError(
            f"{label}: no CSV: {error}; expected a header and a row a metric"
        ) from None
    head = [cell.strip() for cell in rows[0]]
    table: dict[str, Any] = {}
    for number, row in enumerate(rows[1:], 2):
        if not any(cell.strip() for cell in row):
            continue
        if len(row) > len(head):
            raise TraceError(
                f"{label}, line {number}: {len(row)} fields; the header has {len(head)}"
            )
        cells: dict[str, float] = {}
        for name, cell in zip(head[1:], row[1:], strict=False):
            if not cell.strip():
                continue
            try:
                cells[name] = float(cell)
            except ValueError:
                raise TraceError(
                    f"{label}, line {number}: {name} is {cell[:40]!r}; expected a number"
                ) from None
        key = _ALIASES.get(row[0].strip(), row[0].strip())
        if key in table:
            raise TraceError(f"{label}, line {number}: {key} is there twice")
        table[key] = cells if key in KEYS[:2] else next(iter(cells.values()), None)
    return table


def quantiles(table: Mapping[str, Any], where: str) -> tuple[FloatArray, FloatArray, float]:
    """Return normal quantiles, ln lengths at them, (k,) each, and the largest length.

    Raises:
        TraceError: fewer than two percentiles, or lengths that fall.
    """
    found: dict[float, float] = {}
    largest = float(MAX_TOKENS)
    for key, value in table.items():
        match = _PERCENTILE.match(str(key).strip().lower())
        number = not isinstance(value, bool) and isinstance(value, int | float)
        if (match is None and key != "max") or not number or not 1 <= value <= MAX_TOKENS:
            raise TraceError(
                f"{where}.{key} is {value!r:.40}; expected percentiles such as p50 or p99 "
                f"(and max) from 1 to {MAX_TOKENS:,} tokens"
            )
        if match is None:
            largest = float(value)
        elif float(match[1]) > 0:
            found[float(match[1])] = float(value)
    p = np.array(sorted(found))
    value = np.array([found[x] for x in p])
    if len(p) < 2:
        raise TraceError(f"{where}: {len(p)} percentile; two or more tell a spread")
    if (np.diff(value) < 0).any():
        raise TraceError(f"{where}: lengths fall with rising percentile: {value.tolist()}")
    if value[-1] > largest:
        raise TraceError(f"{where}: max {largest:g} is below the highest percentile")
    return _normal_quantile(p / 100), np.log(value), largest


def draw(curve: tuple[FloatArray, FloatArray, float], n: int, rng: np.random.Generator) -> IntArray:
    """Return (n,) lengths on the curve, each n-th part of the distribution once."""
    z, log_length, largest = curve
    place = _normal_quantile((rng.permutation(n) + rng.random(n)) / n)
    i = np.clip(np.searchsorted(z, place) - 1, 0, len(z) - 2)
    slope = (log_length[i + 1] - log_length[i]) / (z[i + 1] - z[i])
    value = np.exp(np.minimum(log_length[i] + (place - z[i]) * slope, math.log(largest)))
    return np.asarray(np.clip(np.rint(value), 1, largest), np.int64)


def _normal_quantile(share: FloatArray) -> FloatArray:
    from scipy.special import ndtri  # late: slow to import

    return np.asarray(ndtri(share), np.float64)


def _arrival(table: Mapping[str, Any], label: str) -> ArrivalSpec:
    rate, users, cv = (table.get(key) for key in ("rate_per_s", "concurrency", "cv"))
    for key, value in (("rate_per_s", rate), ("concurrency", users), ("cv", cv)):
        if value is not None and (
            isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1e9
        ):
            raise TraceError(f"{label}: {key} is {value!r:.40}; expected a positive number")
    if (rate is None) == (users is None):
        raise TraceError(
            f"{label}: give one of rate_per_s and concurrency, or traffic.arrival in the spec"
        )
    if rate is None:
        assert users is not None
        if cv is not None or users != int(users):
            raise TraceError(f"{label}: concurrency is a whole number of users, without cv")
        return ArrivalSpec(closed_loop=int(users))
    if cv is None:
        return ArrivalSpec(poisson_per_s=float(rate))
    return ArrivalSpec(gamma=GammaArrivals(rate_per_s=float(rate), cv=float(cv)))
