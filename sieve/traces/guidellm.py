"""GuideLLM's synthetic specification: `prompt_tokens=256,output_tokens=128`, JSON or YAML.

Lengths are drawn as GuideLLM does: with `_stdev` normal, rounded and clipped to `_min` and `_max`
(five deviations where not given); with limits alone uniform; else constant. `prefix_tokens` or
`prefix_buckets` put a shared beginning before each prompt. The specification states no arrivals.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from sieve.arrays import IntArray, Requests
from sieve.errors import TraceError
from sieve.json_text import parse_json
from sieve.spec import parse_yaml
from sieve.spec.models import ArrivalSpec
from sieve.traces.limits import MAX_TOKENS, generator
from sieve.traces.prefixes import shared_beginnings
from sieve.traces.synthetic import draw_arrivals

DEFAULT_REQUESTS: Final = 1000
"""GuideLLM's own default of `samples`."""
KEYS: Final = (
    "prompt_tokens", "prompt_tokens_stdev", "prompt_tokens_min", "prompt_tokens_max",
    "output_tokens", "output_tokens_stdev", "output_tokens_min", "output_tokens_max",
    "turns", "prefix_tokens", "prefix_buckets", "samples", "source", "kind",
)  # fmt: skip


def looks_like(text: str) -> bool:
    """Tell whether a text is such a specification."""
    return "prompt_tokens" in text and ("=" in text or ":" in text) and "\n\n" not in text[:200]


def parse(text: str, label: str) -> dict[str, Any]:
    """Return the keys of a specification.

    Raises:
        TraceError: neither pairs, JSON nor YAML; an unknown key; a value that is no number.
    """
    stripped = text.strip()
    if stripped.startswith("{") or "=" not in stripped:
        try:
            data = parse_json(stripped) if stripped.startswith("{") else parse_yaml(stripped, label)
        except ValueError as error:
            raise TraceError(f"{label}: no JSON or YAML: {str(error)[:120]}") from None
    else:
        data = {}
        for pair in stripped.split(","):
            key, equals, value = pair.partition("=")
            if not equals or key.strip() in data:
                raise TraceError(f"{label}: {pair[:40]!r}; expected key=value, each key once")
            data[key.strip()] = value.strip()
    if not isinstance(data, Mapping):
        raise TraceError(f"{label}: expected prompt_tokens=..,output_tokens=..")
    out: dict[str, Any] = {}
    for key, value in data.items():
        if key not in KEYS:
            raise TraceError(f"{label}: {str(key)[:40]!r} is not known; expected {', '.join(KEYS)}")
        out[key] = (
            value if key in {"source", "kind", "prefix_buckets"} else _whole(value, key, label)
        )
    for key in ("prompt_tokens", "output_tokens"):
        if out.get(key, 0) < 1:
            raise TraceError(f"{label}: {key} is missing or 0; expected a mean from 1 token on")
    if out.get("turns", 1) != 1:
        raise TraceError(f"{label}: turns={out['turns']}; conversations of GuideLLM are not drawn, "
                         "use a trace with sessions or the shipped traffic `coding`")  # fmt: skip
    return out


def _whole(value: Any, key: str, label: str) -> int:
    try:
        number = float(value) if not isinstance(value, bool) else float("nan")
    except (TypeError, ValueError):
        number = float("nan")
    if not (0 <= number <= MAX_TOKENS and number == int(number)):
        raise TraceError(f"{label}: {key} is {value!r:.40}; expected a whole number")
    return int(number)


def read(
    text: str, label: str, sha256: str, requests: int | None, arrival: ArrivalSpec | None, seed: int
) -> Requests:
    """Return drawn requests.

    Raises:
        TraceError: a fault of the specification, or no arrivals.
    """
    keys = parse(text, label)
    if arrival is None:
        raise TraceError(
            f"{label}: a GuideLLM specification states no arrivals; add for example "
            "traffic.arrival: {poisson_per_s: 4} or traffic.arrival: {closed_loop: 64}"
        )
    n = requests or keys.get("samples") or DEFAULT_REQUESTS
    arrival_s, users = draw_arrivals(arrival, n, generator(seed, "traffic.arrival"))
    prompt, output = (
        _lengths(keys, name, n, generator(seed, f"guidellm.{name}"), label)
        for name in ("prompt_tokens", "output_tokens")
    )
    tokens, group = _prefixes(keys, n, generator(seed, "guidellm.prefix"), label)
    prompt = prompt + tokens
    return Requests(
        arrival_s=arrival_s,
        input_tokens=prompt,
        output_tokens=output,
        closed_loop_users=users,
        source=label,
        sha256=sha256,
        prefix=shared_beginnings(prompt, tokens, group) if tokens.any() else None,
        notes=("drawn from a GuideLLM specification, lengths independent",),
    )


def _lengths(
    keys: Mapping[str, Any], name: str, n: int, rng: np.random.Generator, label: str
) -> IntArray:
    mean, stdev = keys[name], keys.get(f"{name}_stdev", 0)
    low = keys.get(f"{name}_min", max(1, mean - 5 * stdev))
    high = keys.get(f"{name}_max", mean + 5 * stdev)
    if low > high:
        raise TraceError(f"{label}: {name} has its least {low} above its most {high}")
    if stdev:
        return np.clip(np.rint(rng.normal(mean, stdev, n)), max(low, 1), high).astype(np.int64)
    return rng.integers(max(low, 1), high, n, dtype=np.int64, endpoint=True)


def _prefixes(
    keys: Mapping[str, Any], n: int, rng: np.random.Generator, label: str
) -> tuple[IntArray, IntArray]:
    """Return tokens of the shared beginning and its number, (n,) each."""
    buckets = keys.get("prefix_buckets")
    if buckets is None:
        return np.full(n, keys.get("prefix_tokens", 0), np.int64), np.zeros(n, np.int64)
    if not isinstance(buckets, list) or not all(isinstance(b, Mapping) for b in buckets):
        raise TraceError(f"{label}: prefix_buckets is no list of mappings")
    weight, count, tokens = (
        np.array([_whole(b.get(key, default), f"prefix_buckets.{key}", label) for b in buckets])
        for key, default in (("bucket_weight", 100), ("prefix_count", 1), ("prefix_tokens", 0))
    )
    if not weight.sum() or not count.all():
        raise TraceError(f"{label}: prefix_buckets need a weight and a count above 0")
    bucket = rng.choice(len(buckets), n, p=weight / weight.sum())
    first = np.concatenate(([0], np.cumsum(count)[:-1]))
    return tokens[bucket], first[bucket] + rng.integers(0, count[bucket])
