"""How one rank's KV cache is cut into blocks: kinds of layers, groups, pages.

Layers of one kind form groups of equal size; all groups draw blocks from one pool, a block is one
block of one group, and its pages (a layer's share) must be of one size. Source: vLLM
`v1/core/kv_cache_utils.py`, and its start-up logs of hybrid models: a state page padded by 1.49 %,
blocks of 544 tokens and 14.77 requests of full length come out of these rules exactly.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

import numpy as np

from sieve.arrays import FloatArray, IntArray
from sieve.catalog.architecture import LayerKind, ModelArchitecture, StateFacts
from sieve.catalog.matrices import layer_plans
from sieve.memory.formats import LATENT_FP8_BYTES, SCALE_BYTES_PER_HEAD
from sieve.memory.weights import stage_layers

BLOCK_STEP: Final = 16
"""Enlarged blocks are a multiple of this many tokens."""
_CONV_BYTES: Final = 2
_INDEX_SCALE_BYTES: Final = 4
_NARROW: Final = 1.5  # groups take the larger count while it is below this multiple of the smaller
_COMPRESSED_BLOCK: Final = 256


@dataclass(frozen=True)
class Group:
    """Groups of one kind of layers.

    Attributes:
        kind: `full`, `window`, `chunk` or `state`.
        groups: how many; a request holds blocks in each.
        block_tokens: tokens of one block.
        window_tokens: what the layers see, 0: everything.
        state_blocks: blocks that a request holds whatever its length, 0 for attention.
    """

    kind: str
    groups: int
    block_tokens: int
    window_tokens: int = 0
    state_blocks: int = 0


@dataclass(frozen=True)
class CacheLayout:
    """The cache of one stage on one rank.

    Attributes:
        block_bytes: one block.
        groups: by kind.
        padding: share of a state page that is padding.
        token_bytes: what one more token of a long context costs.
    """

    block_bytes: float
    groups: tuple[Group, ...]
    padding: float = 0.0

    @property
    def block_tokens(self) -> int:
        """Tokens of a block of the groups that grow, else of the first."""
        return self.groups[0].block_tokens

    @property
    def num_groups(self) -> int:
        """All groups."""
        return sum(group.groups for group in self.groups)

    @property
    def token_bytes(self) -> float:
        """Bytes that one more token costs once every window is full."""
        growing = [g for g in self.groups if not g.window_tokens and not g.state_blocks]
        return sum(g.groups * self.block_bytes / g.block_tokens for g in growing)


def cache_groups(layout: CacheLayout) -> tuple[tuple[int, int, int], ...]:
    """Return (window, tokens in a block, blocks whatever the length) of every group of a stage.

    Chunked local attention is taken as a window of the chunk's length, which holds at most as much.
    """
    return tuple(
        (group.window_tokens, group.block_tokens, group.state_blocks)
        for group in layout.groups
        for _ in range(group.groups)
    )


def blocks_per_request(
    layout: CacheLayout, tokens: IntArray, in_flight_tokens: IntArray
) -> IntArray:
    """Return the blocks that one request of `tokens` needs at most, (n,).

    Args:
        layout: of the stage.
        tokens: (n,) prompt and answer.
        in_flight_tokens: (n,) tokens that may be scheduled before a window gives blocks back.
    """
    total = np.zeros(len(tokens), np.int64)
    for group in layout.groups:
        if group.state_blocks:
            total += group.groups * group.state_blocks
            continue
        seen = tokens
        if group.window_tokens:
            reach = group.window_tokens - (group.kind == "window")
            seen = np.minimum(reach + in_flight_tokens, tokens)
        held = -(-seen // group.block_tokens) + (group.kind == "window")
        total += group.groups * held
    return total


@lru_cache(maxsize=4096)
def cache_layouts(
    model: ModelArchitecture,
    *,
    tp: int,
    pp: int,
    kv_bytes: float,
    block_size: int,
    kv_dtype: str,
    rules: tuple[tuple[str, Any], ...],
    dcp: int = 1,
    partition: tuple[int, ...] = (),
) -> tuple[CacheLayout, ...]:
    """Return the cache layout of each stage, (pp,).

    Args:
        model: architecture.
        tp: tensor parallel size.
        pp: pipeline parallel size.
        kv_bytes: bytes of a cached number.
        block_size: tokens of a block before kinds are made alike.
        kv_dtype: format, for the scales that some keep for each token; "" if not known.
        rules: the `cache` part of an engine profile as sorted pairs.
        dcp: ranks that share out the tokens of a sequence: a block then holds that many times its
            tokens, of which each rank stores its share. States are not shared out.
        partition: layers of each stage; empty: as the engine divides them.
    """
    plans = layer_plans(model)
    switches = dict(rules)
    out = []
    for layers in stage_layers(model.num_hidden_layers, pp, partition):
        counts: Counter[LayerKind] = Counter()
        for layer in layers:
            kind = plans[layer].kind
            if kind is not None and (kind.stores_kv or not switches.get("shared_layers", 1)):
                counts[kind] += 1
        layout = _layout(counts, tp, kv_bytes, block_size, kv_dtype, switches)
        out.append(_shared_out(layout, dcp))
    return tuple(out)


def _shared_out(layout: CacheLayout, dcp: int) -> CacheLayout:
    """Return a layout whose blocks hold the tokens of `dcp` ranks.

    Source: vLLM `v1/core/single_type_kv_cache_manager.py`: block size x ranks, where sharded.
    """
    if dcp == 1:
        return layout
    groups = [
        group if group.state_blocks else replace(group, block_tokens=group.block_tokens * dcp)
        for group in layout.groups
    ]
    return replace(layout, groups=tuple(groups))


def token_bytes(kind: LayerKind, tp: int, kv_bytes: float, kv_dtype: str, *, latent: bool) -> float:
    """Return what one token takes in one layer on one rank; 0 for a recurrent state."""
    if kind.state is not None:
        return 0.0
    index = (kind.index_dim + _INDEX_SCALE_BYTES) if kind.index_dim else 0
    if kind.kind == "compressed":
        ratio = max(1, kind.compress_ratio)
        return (kind.head_dim * kv_bytes + index) / ratio if kind.compress_ratio else 0.0
    if kind.kind == "latent":
        if latent:  # whole on every rank, whatever TP
            whole = LATENT_FP8_BYTES if kv_dtype == "fp8_ds_mla" else kind.head_dim * kv_bytes
            return whole + index
        heads = -(-kind.num_attention_heads // tp)
        return heads * 2 * (kind.qk_nope_head_dim + kind.qk_rope_head_dim) * kv_bytes
    heads = max(1, -(-kind.num_key_value_heads // tp))
    scales = 2 * SCALE_BYTES_PER_HEAD if kv_dtype.endswith("per_token_head") else 0.0
    return heads * ((kind.head_dim + kind.v_head_dim) * kv_bytes + scales) + index


def state_bytes(state: StateFacts, tp: int) -> float:
    """Return the state of one request in one layer on one rank."""
    heads = -(-state.num_heads // tp)
    if state.flavour == "mamba2":
        inner = heads * state.value_dim
        groups = max(1, -(-state.num_key_heads // tp))
        channels = inner + 2 * groups * state.key_dim
    else:
        channels = -(-state.conv_channels // tp)
    conv = channels * (state.conv_kernel - 1) * _CONV_BYTES
    return float(conv + heads * state.head_values * state.state_bytes)


def _layout(
    counts: Counter[LayerKind],
    tp: int,
    kv_bytes: float,
    block_size: int,
    kv_dtype: str,
    switches: Mapping[str, Any],
) -> CacheLayout:
    latent = bool(switches.get("latent", 1))
    merged: Counter[tuple[str, float, int]] = Counter()  # kind, bytes of a token, window
    state = 0.0
    num_states = 0
    for kind, count in counts.items():
        if kind.kind == "compressed":
            return _compressed_layout(counts, tp, kv_bytes, kv_dtype)
        if kind.state is not None:
            state = max(state, state_bytes(kind.state, tp))
            num_states += count
            continue
        name = kind.kind if kind.kind in {"window", "chunk"} else "full"
        each = token_bytes(kind, tp, kv_bytes, kv_dtype, latent=latent)
        merged[name, each, kind.window_tokens] += count
    if not merged and not num_states:
        return CacheLayout(1.0, (Group("full", 1, block_size),))
    grouped = _are_grouped(merged, switches)
    if not grouped or not (num_states or len(merged) > 1):
        return _one_pool(merged, num_states, state, block_size, switches, grouped=grouped)
    tokens = block_size
    widest = max((each for _, each, _ in merged), default=0.0)
    if num_states and widest and state > widest * tokens:
        tokens = math.ceil(state / widest / BLOCK_STEP) * BLOCK_STEP
    page = max(widest * tokens, state)
    sizes = [*merged.values(), *([num_states] if num_states else [])]
    small, large = min(sizes), max(sizes)
    size = large if large < _NARROW * small else small
    groups = []
    for (name, each, window), count in sorted(merged.items(), key=lambda item: item[0][2]):
        # Narrower layers get longer blocks, so that their pages are as large.
        stretch = int(page // (each * tokens)) if each else 1
        groups.append(Group(name, -(-count // size), tokens * max(1, stretch), window))
    if num_states:
        held = int(switches.get("state_blocks", 1))
        groups.append(Group("state", -(-num_states // size), tokens, state_blocks=held))
    padding = (page - state) / state if state else 0.0
    return CacheLayout(size * page, tuple(groups), padding)


def _are_grouped(merged: Counter[tuple[str, float, int]], switches: Mapping[str, Any]) -> bool:
    """Return whether this version tells kinds of layers apart when it cuts the cache."""
    windows = switches.get("windows", "any")
    if windows == "uniform":
        return len({each for _, each, _ in merged}) <= 1
    return bool(windows != "none")


def _one_pool(
    merged: Counter[tuple[str, float, int]],
    num_states: int,
    state: float,
    block_size: int,
    switches: Mapping[str, Any],
    *,
    grouped: bool,
) -> CacheLayout:
    """Return a cache of one group: layers of one kind, or of kinds that are not told apart."""
    if not merged:
        held = int(switches.get("state_blocks", 1))
        group = Group("state", 1, block_size, state_blocks=held)
        return CacheLayout(num_states * state, (group,))
    names = list(merged)
    each = sum(size * count for (_, size, _), count in merged.items())
    if len(names) == 1 and grouped:
        group = Group(names[0][0], 1, block_size, names[0][2])
    else:
        group = Group("full", 1, block_size)
    return CacheLayout(each * block_size, (group,))


def _compressed_layout(
    counts: Counter[LayerKind], tp: int, kv_bytes: float, kv_dtype: str
) -> CacheLayout:
    """Return the cache of compressed attention: packed entries, and a window in every layer.

    Assumed: pages of different sizes are packed without loss.
    """
    growing = sum(
        n * token_bytes(k, tp, kv_bytes, kv_dtype, latent=True) for k, n in counts.items()
    )
    block = max(1.0, growing * _COMPRESSED_BLOCK)
    window = max(kind.window_tokens for kind in counts)
    held = sum(n * k.head_dim * kv_bytes * k.window_tokens for k, n in counts.items())
    groups = [Group("full", 1, _COMPRESSED_BLOCK)]
    if held and window:
        groups.append(Group("state", 1, _COMPRESSED_BLOCK, state_blocks=math.ceil(held / block)))
    return CacheLayout(block, tuple(groups))


def growing_tokens(layout: CacheLayout, blocks: FloatArray) -> FloatArray:
    """Return the tokens that older logs print: blocks over groups, times the block."""
    return np.asarray(np.floor(blocks / layout.num_groups) * layout.block_tokens, np.float64)
