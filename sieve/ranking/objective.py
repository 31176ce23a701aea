"""What is best: one metric, a list of metrics in order, or weights on metrics."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import numpy as np

from sieve.arrays import FloatArray
from sieve.errors import Fault, SpecError

Objective = str | list[str] | dict[str, float]

FIXED: Final = {
    "usd_per_mtok": True, "output_tokens_per_s_per_gpu": False, "output_tokens_per_s": False,
    "num_gpus": True, "goodput_per_s": False, "slo_attainment": False,
}  # fmt: skip
"""Metrics that are not latencies; True where smaller is better."""

_LATENCY: Final = re.compile(r"^(ttft|tpot|itl|e2e)_(mean|p\d{1,2}(?:[._]\d{1,2})?)_s$")


def metrics_of(objective: Objective, source: str) -> dict[str, float]:
    """Return metric -> weight of an objective, in order; weights of a list are 1.

    Raises:
        SpecError: a metric that does not exist, or an empty objective.
    """
    weights = (
        {objective: 1.0} if isinstance(objective, str)
        else dict(objective) if isinstance(objective, dict)
        else dict.fromkeys(objective, 1.0)
    )  # fmt: skip
    faults = []
    for name, weight in weights.items():
        if name not in FIXED and not _LATENCY.match(name):
            known = [*FIXED, "ttft_p99_s", "tpot_p99_s", "e2e_p99_s"]
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"metrics are: {', '.join(known)}"
            faults.append(Fault("rank.objective", f"unknown metric {name!r}; {hint}"))
        if not (np.isfinite(weight) and weight > 0):
            faults.append(Fault(f"rank.objective.{name}", f"weight {weight} must be above 0"))
    if not weights:
        faults.append(Fault("rank.objective", "is empty; name a metric such as usd_per_mtok"))
    if faults:
        raise SpecError(source, faults)
    return weights


def smaller_is_better(metric: str) -> bool:
    """Return the direction of a metric."""
    return FIXED.get(metric, True)


def statistics_of(metrics: Sequence[str]) -> list[tuple[str, str]]:
    """Return the (metric, statistic) pairs of the latencies in an objective."""
    found = [_LATENCY.match(name) for name in metrics]
    return [(m[1], m[2].replace("_", ".")) for m in found if m]


def sampled_metrics(metrics: Iterable[str]) -> tuple[str, ...]:
    """Return the replay's metrics that the noise of an objective's metrics comes from."""
    return tuple(dict.fromkeys(_source(name) for name in metrics if name != "num_gpus"))


def source_of(metric: str) -> tuple[str, float]:
    """Return the replay's metric behind a metric, and the sign between their logarithms."""
    return _source(metric), -1.0 if metric == "usd_per_mtok" else 1.0


def _source(metric: str) -> str:
    derived = {"usd_per_mtok", "output_tokens_per_s_per_gpu"}
    return "output_tokens_per_s" if metric in derived else metric


def needs_price(metrics: Sequence[str]) -> bool:
    """Tell whether an objective counts money."""
    return "usd_per_mtok" in metrics


def indifference(metric: str) -> float:
    """Return the relative difference that does not matter: 5 % on a latency, 3 % on the rest."""
    if metric == "num_gpus":
        return 0.0
    return 0.03 if metric in FIXED else 0.05


def log_keys(objective: Objective, source: str) -> list[dict[str, float]]:
    """Return the keys to compare by as signed weights on the metrics' logarithms.

    Smaller is better. A list gives one key a metric, weights give one key.
    """
    weights = metrics_of(objective, source)
    signed = {m: w if smaller_is_better(m) else -w for m, w in weights.items()}
    return [signed] if isinstance(objective, dict) else [{m: w} for m, w in signed.items()]


def sort_keys(
    objective: Objective, value_of: Callable[[str], FloatArray], source: str
) -> list[FloatArray]:
    """Return the keys to sort by, most important first, smaller is better.

    A list gives one key a metric. Weights give one key: the weighted sum of the logarithms, each
    signed so that smaller is better; it does not depend on units.

    Args:
        objective: as in the spec.
        value_of: returns the values of a metric, (n,).
        source: named in errors.
    """
    weights = metrics_of(objective, source)
    keys = []
    for name in weights:
        values = np.asarray(value_of(name), np.float64)
        keys.append(values if smaller_is_better(name) else -values)
    if not isinstance(objective, dict):
        return keys
    total: FloatArray = np.zeros(len(keys[0]))
    for (name, weight), key in zip(weights.items(), keys, strict=True):
        sign = 1.0 if smaller_is_better(name) else -1.0
        with np.errstate(divide="ignore", invalid="ignore"):
            total += sign * weight * np.log(np.abs(key))
    return [total]
