"""What a piece of advice is, and how its sentences write numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

KINDS: Final = ("estimate", "hypothesis", "warning")
"""`estimate` may be off either way, `hypothesis` wants a simulation, `warning` has no number."""


@dataclass(frozen=True)
class Objectives:
    """Service levels in seconds, None where there is none.

    Attributes:
        ttft_s: time to the first token.
        tpot_s: time per token after it.
        e2e_s: time to the last token.
    """

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None


@dataclass(frozen=True)
class Figure:
    """One number behind a piece of advice.

    Attributes:
        name: what it is.
        value: in `unit`; None where it does not exist, such as the batch of what does not fit.
        unit: `tokens`, `requests`, `s`, `tokens/s`, `ratio`, `share`.
        source: what it was computed from.
    """

    name: str
    value: float | None
    unit: str
    source: str


@dataclass(frozen=True)
class Advice:
    """One piece of advice with its reason.

    Attributes:
        topic: `fit`, `quantise`, `service`, `pools` or `quality`.
        text: what to do and why.
        figures: every number that the text rests on.
        kind: one of `KINDS`.
        notes: assumptions of the step times.
    """

    topic: str
    text: str
    figures: tuple[Figure, ...]
    kind: str
    notes: tuple[str, ...] = ()

    def figure(self, name: str) -> float | None:
        """Return the value of a figure.

        Raises:
            KeyError: no such figure.
        """
        for figure in self.figures:
            if figure.name == name:
                return figure.value
        raise KeyError(name)


def ms(time_s: float) -> str:
    """Return a time as `31.2 ms`, or `4.17 s` from a second on."""
    return f"{time_s:,.3g} s" if time_s >= 1 else f"{1e3 * time_s:.3g} ms"


def requests(count: int) -> str:
    """Return a number of mean requests: `1 mean request`, `190 mean requests`."""
    return f"{count:,} mean request{'' if count == 1 else 's'}"


def change(new: float, old: float) -> str:
    """Return a change as `+40 %`, or `no change`."""
    percent = 100 * (new / old - 1)
    return "no change" if abs(percent) < 0.5 else f"{percent:+.0f} %"


def format_name(weight_dtype: str, kv_cache_dtype: str) -> str:
    """Return precisions in words: `fp8 weights, 16-bit cache`."""
    cache = "16-bit" if kv_cache_dtype in {"auto", "bfloat16", "float16"} else kv_cache_dtype
    return f"{weight_dtype} weights, {cache} cache"
