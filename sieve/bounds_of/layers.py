"""Cache and attention of a model layer by layer, never more than the hardware must handle.

Where a kind of layer reads or computes an amount that varies (local chunks, sparse selection), the
part that it cannot avoid counts, so that the result stays a lower limit of cost.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

from sieve.catalog.architecture import LayerKind, ModelArchitecture, StateFacts

_CONV_BYTES: Final = 2  # one number of the short convolution's state


@dataclass
class Growth:
    """A sum over layers: per cached token, per token within a window, and once."""

    per_token: float = 0.0
    windows: dict[int, float] = field(default_factory=dict)
    state: float = 0.0

    def add(self, rate: float, window: int = 0) -> None:
        """Add a rate for every token, or for those within a window."""
        if window <= 0:
            self.per_token += rate
        else:
            self.windows[window] = self.windows.get(window, 0.0) + rate

    def inputs(self) -> dict[str, Any]:
        """Return the `{global, local, state}` of the bounds functions."""
        local = [[rate, window] for window, rate in sorted(self.windows.items()) if rate > 0]
        return {"global": self.per_token, "local": local, "state": self.state}


@dataclass(frozen=True)
class LayerCosts:
    """What the layers of a model keep, read, write and compute.

    Attributes:
        reserved: bytes that a session holds by its length.
        read: bytes that a decode step reads of a session by its length.
        written: bytes that one new token adds.
        attention: FLOP of one query token by attended positions.
    """

    reserved: Growth
    read: Growth
    written: float
    attention: Growth


def layer_costs(model: ModelArchitecture, kv_bytes: float) -> LayerCosts:
    """Return the sums over all layers of a model whose cache has `kv_bytes` an element."""
    costs = _Sum(kv_bytes)
    places = Counter(model.layer_kinds)
    for place, count in places.items():
        if place >= 0:
            costs.add(model.kinds[place], count)
    return LayerCosts(costs.reserved, costs.read, costs.written, costs.attention)


class _Sum:
    """Adds up layers."""

    def __init__(self, kv_bytes: float) -> None:
        self.kv_bytes = kv_bytes
        self.reserved, self.read, self.attention = Growth(), Growth(), Growth()
        self.written = 0.0

    def add(self, kind: LayerKind, count: int) -> None:
        """Add `count` layers of a kind."""
        if kind.state is not None:
            held = count * _state_bytes(kind.state)
            self.reserved.state += held
            self.read.state += held
            return
        entry = count * self.kv_bytes * _entry_elements(kind)
        index = count * self.kv_bytes * kind.index_dim
        heads = count * 2.0 * kind.num_attention_heads
        window = kind.window_tokens
        keep = float(kind.stores_kv)  # a layer that reads an earlier one's cache holds none
        if kind.kind == "compressed":
            ratio = max(1, kind.compress_ratio)
            self.reserved.add(keep * (index + entry * (kind.compress_ratio > 0)) / ratio)
            if window:
                self.reserved.add(keep * entry, window)
            return
        self.written += keep * (entry + index)
        self.reserved.add(keep * entry, window)
        self.reserved.add(keep * index)
        if kind.index_dim:
            self.read.add(index)
        elif kind.kind != "chunk":  # a chunk gives from nothing to all of itself, by position
            if window != 1:
                # A window holds the current token too, so one old position less is read.
                self.read.add(entry, max(window - 1, 0))
            self.attention.add(heads * _pair_elements(kind), window)


def _entry_elements(kind: LayerKind) -> float:
    """Return the elements of one cached token of one layer."""
    if kind.kind in {"latent", "compressed"}:
        return float(kind.num_key_value_heads * kind.head_dim)
    return float(kind.num_key_value_heads * (kind.head_dim + kind.v_head_dim))


def _pair_elements(kind: LayerKind) -> float:
    """Return the products of one head for one (query, key) pair."""
    if kind.kind == "latent":
        return float(kind.qk_nope_head_dim + kind.qk_rope_head_dim + kind.v_head_dim)
    return float(kind.head_dim + kind.v_head_dim)


def _state_bytes(state: StateFacts) -> float:
    recurrent = state.num_heads * state.head_values * state.state_bytes
    return float(recurrent + state.conv_channels * (state.conv_kernel - 1) * _CONV_BYTES)
