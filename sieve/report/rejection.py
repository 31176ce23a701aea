"""What would change a rejection: the legal values of a rule, and where to turn otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sieve.report.format import count, number

_MOST_RANKS: Final = 128
_TEXTS: Final = {
    "quant_blocks": "a tp whose shards are whole blocks, ep equal to tp, or another weight_dtype",
    "data_parallel": "data_parallel_size 1, with replicas instead; with experts, pp 1",
    "decode_context_parallel": "lower decode_context_parallel_size, or raise tp above the KV heads",
    "rates_known": "a GPU whose rates are in the catalogue, or inline facts with them",
    "dtype_supported": "a newer GPU, or another weight_dtype or kv_cache_dtype",
    "weights_overflow": "raise tp or pp, or take a smaller weight_dtype",
    "no_page": "raise tp or pp, take a smaller weight_dtype, or lower max_num_seqs",
    "max_model_len": "lower max_model_len, or take kv_cache_dtype fp8",
    "pages": "raise tp or pp, or take kv_cache_dtype fp8",
    "tpot": "raise tp, take a smaller weight_dtype, or relax the TPOT objective",
    "bound_misses_slo": "more replicas, more tp, or a slower objective",
    "not_selected": "raise shortlist.size or shortlist.per_family, or use --exhaustive",
    "queue_grows_without_bound": "more replicas, or a lower traffic.rate_per_s",
    "request_exceeds_cache": "raise tp or pp, or take kv_cache_dtype fp8",
    "model_len": "a longer max_model_len, or traffic without its longest requests",
}
_DIVISORS: Final = {
    "tp_divides": "tp", "tp_divides_heads": "tp", "tp_divides_width": "tp", "vocab_tp": "tp",
    "ep_divides_experts": "ep", "pp_divides": "pp",
}  # fmt: skip
_UP_TO: Final = {"pp_layers": "pp", "context_limit": "max_model_len"}
_AT_LEAST: Final = frozenset({"tokens_cover_seqs", "tokens_cover_len"})


def remedy(row: Mapping[str, Any]) -> str:
    """Return what would change the rejection of a candidate, "" where nothing is known.

    Args:
        row: of the candidate table, with `reason`, `observed`, `limit` and `unit`.
    """
    rule, unit = row["reason"], row["unit"] or ""
    observed, limit = number(row["observed"]), number(row["limit"])
    if rule == "node":
        return _nodes(unit, limit)
    if rule == "gpu_budget":
        most = "" if limit is None else f" (up to {count(limit)} GPUs now)"
        return f"fewer replicas, or raise fleet.max_gpus{most}"
    if rule == "ep_size":
        if limit in {None, 1}:
            return "ep 1"
        return f"ep {count(limit)}" if "dp" in unit else f"ep 1 or {count(limit)}"
    if rule in _DIVISORS and observed is not None:
        sizes = [n for n in range(1, _MOST_RANKS + 1) if observed % n == 0]
        return f"{_DIVISORS[rule]} {_listed(sizes)} by this rule"
    if rule == "kv_heads_tp" and observed:
        sizes = [n for n in range(1, _MOST_RANKS + 1) if observed % n == 0 or n % observed == 0]
        return f"tp {_listed(sizes)} by this rule"
    if rule in _UP_TO and limit is not None:
        return f"{_UP_TO[rule]} up to {count(limit)}"
    if rule in _AT_LEAST and limit is not None:
        return f"max_num_batched_tokens of {count(limit)} or more"
    return _TEXTS.get(rule, "")


def _nodes(unit: str, limit: float | None) -> str:
    most = "" if limit is None else f" up to {count(limit)}"
    if unit.startswith("tensor ranks"):
        return f"tp{most}, or fleet.tp_across_nodes (slow)"
    if unit.startswith("nodes"):
        return "lower tp or pp, or raise fleet.nodes_per_replica"
    return f"tp x pp{most}, or raise fleet.gpus_per_node or fleet.nodes_per_replica"


def _listed(sizes: list[int]) -> str:
    return ", ".join(str(size) for size in sizes)
