"""Rules of decode context parallelism: ranks that hold copies of a cache share out its tokens.

Sources: vLLM 0.19, 0.26 and 0.33 `config/parallel.py`, `config/model.py`
(`verify_with_parallel_config`) and `v1/core/kv_cache_coordinator.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sieve.catalog.architecture import ModelArchitecture

RULE: Final = "decode_context_parallel"
_LATENT: Final = frozenset({"latent", "compressed"})


@dataclass(frozen=True)
class ContextParallelFault:
    """A rule that is broken: the numbers compared, what they are, and what would pass."""

    observed: float
    limit: float
    unit: str
    legal: str


def context_parallel_fault(
    model: ModelArchitecture, *, tp: int, dcp: int, kinds: str
) -> ContextParallelFault | None:
    """Return the first rule that a decode context parallel size breaks, None if it is legal.

    Args:
        model: architecture.
        tp: tensor parallel size.
        dcp: decode context parallel size.
        kinds: layers that this engine can serve so: `attention_and_state`, `attention`, `none`.
    """
    if dcp == 1:
        return None
    if kinds == "none":
        return ContextParallelFault(
            dcp, 1, "decode context parallel size, not in this engine version",
            "decode_context_parallel_size 1",
        )  # fmt: skip
    other = _unserved(model, kinds)
    if other:
        return ContextParallelFault(
            dcp, 1, f"decode context parallel size, the model has {other} layers",
            "decode_context_parallel_size 1",
        )  # fmt: skip
    legal = _legal(model, tp)
    if tp % dcp:
        return ContextParallelFault(tp, dcp, "tensor ranks, divisible by dcp", legal)
    if _is_latent(model):
        return None
    heads, kv = model.num_attention_heads, model.num_key_value_heads
    if tp <= kv:
        return ContextParallelFault(
            tp, kv, "tensor ranks, more than KV heads", f"{legal}; or {_least_tp(kv, dcp)}"
        )
    if dcp > tp // kv:
        return ContextParallelFault(
            dcp, tp // kv,
            "decode context parallel size, at most the copies of each KV head (tp over KV heads)",
            f"{legal}; or {_least_tp(kv, dcp)}",
        )  # fmt: skip
    if heads // kv % dcp:
        return ContextParallelFault(
            heads // kv, dcp, "query heads of a KV head, divisible by dcp", legal
        )
    return None


def legal_context_parallel(model: ModelArchitecture, tp: int) -> list[int]:
    """Return the decode context parallel sizes that are legal at a tensor parallel size."""
    if _is_latent(model):
        return [size for size in range(1, tp + 1) if tp % size == 0]
    heads, kv = model.num_attention_heads, model.num_key_value_heads
    most = tp // kv if tp > kv else 1
    return [size for size in range(1, most + 1) if tp % size == 0 and heads // kv % size == 0]


def _legal(model: ModelArchitecture, tp: int) -> str:
    sizes = ", ".join(str(size) for size in legal_context_parallel(model, tp)) or "1"
    return f"decode_context_parallel_size {sizes} at tp {tp}"


def _least_tp(kv_heads: int, dcp: int) -> str:
    return f"tp {kv_heads * dcp} for decode_context_parallel_size {dcp}"


def _is_latent(model: ModelArchitecture) -> bool:
    stored = [kind for kind in model.kinds if kind.state is None and kind.stores_kv]
    return bool(stored) and all(kind.kind in _LATENT for kind in stored)


def _unserved(model: ModelArchitecture, kinds: str) -> str:
    """Return a kind of layer that cannot be served so, "" if all can."""
    for kind in model.kinds:
        if kind.state is not None:
            if kinds != "attention_and_state":
                return "state"
        elif kind.kind not in {"full", "latent"}:
            return kind.kind
    return ""
