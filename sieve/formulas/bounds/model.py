"""What a model costs: bytes held, bytes swept by n tokens, cache by length, attention by position.

Section 5 of the sizing specification. Sizes are in any one unit, as long as it is always the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from sieve.errors import InvalidInput
from sieve.formulas.bounds.inputs import (
    choice,
    items,
    not_negative,
    number,
    part,
    positive,
)

ROUTINGS: Final = ("expected", "floor")
_ROUNDING: Final = 1e-9  # a share of the active parameters below this is rounding, not a size


@dataclass(frozen=True)
class Weights:
    """Weights of a model; W(n) = fixed + expert m(n).

    Attributes:
        resident: what the memory holds.
        fixed: swept in every iteration.
        expert: one routed expert of every layer; 0 for models without.
        experts: routed experts per layer.
        top_k: experts that one token visits.
        expected: m(n) is the expected number of distinct experts; else the floor, `top_k`.
    """

    resident: float
    fixed: float
    expert: float = 0.0
    experts: float = 1.0
    top_k: float = 1.0
    expected: bool = False

    def sweep(self, n: float) -> float:
        """Return W(n), what an iteration of n tokens reads of the weights."""
        if not self.expert:
            return self.fixed
        return self.fixed + self.expert * self.visited(n)

    def visited(self, n: float) -> float:
        """Return m(n), the experts per layer that n tokens visit."""
        return distinct_experts(n, self.experts, self.top_k) if self.expected else self.top_k

    @property
    def sweep_all(self) -> float:
        """W(n) for n without end."""
        return self.fixed + self.expert * (self.experts if self.expected else self.top_k)


@dataclass(frozen=True)
class Layout:
    """A quantity that grows with the number of positions: cache bytes, or attention FLOP.

    Attributes:
        per_token: for every position.
        windows: (rate, window): the rate for each of the last `window` positions.
        state: once.
    """

    per_token: float = 0.0
    windows: tuple[tuple[float, float], ...] = ()
    state: float = 0.0

    def at(self, length: float) -> float:
        """Return the quantity for `length` positions."""
        capped = math.fsum(rate * min(length, width) for rate, width in self.windows)
        return self.per_token * length + capped + self.state

    def over_prefixes(self, chunk: int, num_chunks: int) -> float:
        """Return the sum of `at` over the prefixes chunk, 2 chunk, ... before all but the first."""
        last = num_chunks - 1
        total = self.per_token * chunk * (last * num_chunks // 2) + self.state * last
        for rate, width in self.windows:
            short = min(last, math.floor(width / chunk))  # prefixes that the window covers
            total += rate * (chunk * (short * (short + 1) // 2) + (last - short) * width)
        return total

    def attended(self, chunk: int, prefix: int) -> float:
        """Return the sum of `at` over the positions prefix + 1 ... prefix + chunk.

        Each position is capped by the window before the sum, never the mean.
        """
        pairs = prefix * chunk + chunk * (chunk + 1) // 2
        total = self.per_token * pairs + self.state * chunk
        for rate, width in self.windows:
            total += rate * (_capped_sum(prefix + chunk, width) - _capped_sum(prefix, width))
        return total


def _capped_sum(last: int, width: float) -> float:
    """Return the sum of min(j, width) over j = 1 ... last."""
    short = min(last, math.floor(width))
    return short * (short + 1) // 2 + (last - short) * width


@dataclass(frozen=True)
class Model:
    """A model as the bounds see it.

    Attributes:
        weights: sizes and sweep.
        reserved: cache that a session reserves by length, None if not given.
        read: cache that a step reads by length, None if not given.
        write_per_token: cache written for one new token.
        p_lin_active: parameters multiplied per prompt token, None if not given.
        attention: FLOP of one query token by attended positions.
    """

    weights: Weights
    reserved: Layout | None
    read: Layout | None
    write_per_token: float
    p_lin_active: float | None
    attention: Layout

    def reserved_at(self, length: float) -> float:
        """Return K_a, the memory of one session of this length; never 0."""
        if self.reserved is None:
            raise InvalidInput("model.kv_alloc is missing; give the cache that a token takes")
        size = self.reserved.at(length)
        if size <= 0:
            raise InvalidInput(
                f"model.kv_alloc takes {size:g} bytes, so the batch would be unbounded; give more"
            )
        return size

    def read_layout(self) -> Layout:
        """Return the cache that a step reads."""
        if self.read is None:
            raise InvalidInput("model.kv_read is missing; give the cache that a step reads")
        return self.read

    def multiplied(self) -> float:
        """Return the parameters multiplied per prompt token."""
        if self.p_lin_active is None:
            raise InvalidInput("model.p_lin_active is missing; prefill needs it")
        return self.p_lin_active

    def with_strict_windows(self) -> Model:
        """Return the model with w - 1 old positions per window: the current token is the w-th."""
        read = self.read_layout()
        windows = tuple((rate, max(width - 1, 0.0)) for rate, width in read.windows)
        return replace(self, read=replace(read, windows=windows))


def read_model(inputs: Mapping[str, Any]) -> Model:
    """Return the `model` of the inputs."""
    given = part(inputs, "model")
    weights = read_weights(part(given, "weights"))
    if given.get("w_resident") is not None:
        weights = replace(weights, resident=positive(given, "w_resident"))
    optional = {
        key: read_cache(part(given, key)) if given.get(key) is not None else None
        for key in ("kv_alloc", "kv_read")
    }
    multiplied = given.get("p_lin_active")
    attention = given.get("attention")
    return Model(
        weights=weights,
        reserved=optional["kv_alloc"],
        read=optional["kv_read"],
        write_per_token=not_negative(given, "kv_write_per_token", 0.0),
        p_lin_active=None if multiplied is None else positive(given, "p_lin_active"),
        attention=Layout() if attention is None else read_layout(part(given, "attention")),
    )


def read_weights(given: Mapping[str, Any]) -> Weights:
    """Return the weights of a `weights` object: dense, moe or explicit."""
    kind = choice(given, "kind", ("dense", "moe", "explicit"), "")
    if kind == "explicit":
        return Weights(positive(given, "w_resident"), positive(given, "w_sweep"))
    p_total, e_w = positive(given, "p_total"), positive(given, "e_w")
    p_embed = not_negative(given, "p_embed", 0.0)
    if kind == "dense":
        if p_embed >= p_total:
            raise InvalidInput(f"p_embed is {p_embed:g}; it must be below p_total, {p_total:g}")
        return Weights(p_total * e_w, (p_total - p_embed) * e_w)
    routing = choice(given, "routing", ROUTINGS, "expected")
    p_expert, p_fixed = split_experts(given)
    if p_fixed < p_embed:
        raise InvalidInput(
            f"p_embed is {p_embed:g}; the part of the model that every token visits has only "
            f"{p_fixed:g} parameters"
        )
    return Weights(
        resident=p_total * e_w,
        fixed=e_w * (p_fixed - p_embed),
        expert=e_w * p_expert,
        experts=positive(given, "experts"),
        top_k=positive(given, "top_k"),
        expected=routing == "expected",
    )


def split_experts(given: Mapping[str, Any]) -> tuple[float, float]:
    """Return (parameters of one expert of every layer, parameters that every token visits)."""
    p_total, p_active = positive(given, "p_total"), positive(given, "p_active")
    experts, top_k = read_routing(given)
    if p_active > p_total:
        raise InvalidInput(f"p_active is {p_active:g}; it must be at most p_total, {p_total:g}")
    p_expert = (p_total - p_active) / (experts - top_k)
    p_fixed = p_active - top_k * p_expert
    if abs(p_fixed) <= _ROUNDING * p_active:
        p_fixed = 0.0
    if p_fixed < 0:
        raise InvalidInput(
            f"p_active is {p_active:g}; {top_k:g} experts alone have {top_k * p_expert:g}, which "
            "leaves a negative part for all tokens"
        )
    return p_expert, p_fixed


def read_routing(given: Mapping[str, Any]) -> tuple[float, float]:
    """Return (routed experts, experts per token)."""
    experts, top_k = positive(given, "experts"), positive(given, "top_k")
    if top_k >= experts:
        raise InvalidInput(f"top_k is {top_k:g}; it must be below experts, {experts:g}")
    return experts, top_k


def distinct_experts(n: float, experts: float, top_k: float) -> float:
    """Return the expected number of distinct experts that n tokens visit, E (1 - (1 - k/E)^n)."""
    return -experts * math.expm1(n * math.log1p(-top_k / experts))


def read_cache(given: Mapping[str, Any]) -> Layout:
    """Return the layout of a cache object: fixed, linear or hybrid."""
    kind = choice(given, "kind", ("fixed", "linear", "hybrid"), "")
    if kind == "fixed":
        return Layout(state=not_negative(given, "bytes"))
    if kind == "hybrid":
        return read_layout(given)
    elements = 2 * positive(given, "layers") * positive(given, "kv_heads")
    per_element = positive(given, "bytes_per_element")
    return Layout(per_token=elements * positive(given, "head_dim") * per_element)


def read_layout(given: Mapping[str, Any]) -> Layout:
    """Return `{global, local: [[rate, window], ...], state}` as a layout."""
    windows = []
    for item in items(given, "local", ()):
        if not isinstance(item, list | tuple) or len(item) != 2:
            raise InvalidInput(f"local holds {item!r}; expected pairs of a rate and a window")
        rate, width = number(item[0], "local rate"), number(item[1], "local window")
        if rate < 0 or width <= 0:
            raise InvalidInput(f"local holds {item!r}; expected a rate from 0 and a window above 0")
        windows.append((rate, width))
    return Layout(
        per_token=not_negative(given, "global", 0.0),
        windows=tuple(windows),
        state=not_negative(given, "state", 0.0),
    )
