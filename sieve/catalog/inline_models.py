"""Read a model from inline facts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from sieve.catalog.architecture import ModelArchitecture, MoeFacts
from sieve.catalog.names import listed
from sieve.errors import CatalogError

MAX_NAME: Final = 200
_INLINE_REQUIRED: Final = ("params", "width", "layers", "heads")
_INLINE_OPTIONAL: Final = (
    "name", "kv_layers", "kv_heads", "head_dim", "intermediate_size", "vocab_size",
    "max_position_embeddings", "ffn_projections", "active_params", "experts", "experts_per_token",
)  # fmt: skip


def inline_model(facts: Mapping[str, Any]) -> ModelArchitecture:
    """Return the architecture that inline facts describe.

    Needed are `params`, `width`, `layers` and `heads`. `kv_layers` defaults to `layers`, `kv_heads`
    to `heads`, `head_dim` to width / heads.

    Raises:
        CatalogError: unknown or missing keys, or a value outside its range.
    """
    name = str(facts.get("name") or "inline model")
    if len(name) > MAX_NAME or not name.isprintable():
        raise CatalogError(
            f"model {name[:40]!r}: a name has at most {MAX_NAME} characters and no control "
            "characters; give it another"
        )
    known = (*_INLINE_REQUIRED, *_INLINE_OPTIONAL)
    unknown = [str(key) for key in facts if key not in known]
    if unknown:
        raise CatalogError(
            f"model {name}: unknown {listed('key', unknown)}; allowed: {', '.join(known)}"
        )
    missing = [key for key in _INLINE_REQUIRED if facts.get(key) is None]
    if missing:
        raise CatalogError(f"model {name}: missing {listed('key', missing)}; add them")
    count = _counter(facts, name)
    assumed: list[str] = []
    width, layers, heads = count("width", 0), count("layers", 0), count("heads", 0)
    kv_heads = count("kv_heads", heads)
    kv_layers = count("kv_layers", layers)
    _check(name, "kv_heads", kv_heads, f"a divisor of heads ({heads})", ok=heads % kv_heads == 0)
    _check(name, "kv_layers", kv_layers, f"up to layers ({layers})", ok=kv_layers <= layers)
    if facts.get("head_dim") is None:
        _check(name, "width", width, f"a multiple of heads ({heads})", ok=width % heads == 0)
        assumed.append(f"head_dim = width / heads = {width // heads}")
    head_dim = count("head_dim", width // heads or 1)
    for key, value in (("kv_heads", kv_heads), ("kv_layers", kv_layers)):
        if facts.get(key) is None:
            assumed.append(f"{key} = {value}, as many as {key.removeprefix('kv_')}")
    projections = count("ffn_projections", 3)
    _check(name, "ffn_projections", projections, "2 or 3", ok=projections in {2, 3})
    params = _amount(facts, "params", name)
    moe = _inline_moe(facts, count, name)
    active = params
    if facts.get("active_params") is not None:
        active = _amount(facts, "active_params", name)
        _check(name, "active_params", active, f"up to params ({params:.6g})", ok=active <= params)
    elif moe is not None:
        idle = moe.num_experts - moe.num_experts_per_tok
        active = params - layers * idle * projections * width * moe.moe_intermediate_size
        _check(name, "params", params, "more than the idle experts alone", ok=active > 0)
        assumed.append("active_params = params without the experts that a token does not visit")
    if facts.get("ffn_projections") is None and facts.get("intermediate_size") is not None:
        assumed.append("ffn_projections = 3 (gated feed-forward block)")
    return ModelArchitecture(
        name=name,
        architecture="",
        num_hidden_layers=layers,
        num_kv_layers=kv_layers,
        hidden_size=width,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=count("intermediate_size", 0) or None,
        ffn_projections=projections,
        vocab_size=count("vocab_size", 0) or None,
        tie_word_embeddings=False,
        max_position_embeddings=count("max_position_embeddings", 0) or None,
        moe=moe,
        params=params,
        active_params=active,
        verified=False,
        source="inline facts",
        assumed=tuple(assumed),
    )


def _check(name: str, key: str, value: object, allowed: str, *, ok: bool) -> None:
    if not ok:
        raise CatalogError(f"model {name}: {key} is {value!r}; allowed is {allowed}")


def _counter(facts: Mapping[str, Any], name: str) -> Callable[[str, int], int]:
    """Return a reader of whole numbers of at least 1; the default stands for an absent key."""

    def count(key: str, default: int) -> int:
        value = facts.get(key)
        if value is None:
            return default
        number = _number(value)
        allowed = "a whole number from 1 to 1e9"
        _check(name, key, value, allowed, ok=number is not None and 1 <= number <= 1e9)
        _check(name, key, value, allowed, ok=number is not None and number.is_integer())
        return int(number or 0)

    return count


def _number(value: object) -> float | None:
    """Return a number, also one that YAML 1.1 reads as text (`32.8e9`); None if it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _amount(facts: Mapping[str, Any], key: str, name: str) -> float:
    value = facts[key]
    number = _number(value)
    _check(
        name, key, value, "a number from 1 to 1e15", ok=number is not None and 1 <= number < 1e15
    )
    return number or 0.0


def _inline_moe(
    facts: Mapping[str, Any], count: Callable[[str, int], int], name: str
) -> MoeFacts | None:
    given = [key for key in ("experts", "experts_per_token") if facts.get(key) is not None]
    if not given:
        return None
    needed = ("experts", "experts_per_token", "intermediate_size")
    missing = [key for key in needed if facts.get(key) is None]
    if missing:
        raise CatalogError(
            f"model {name}: missing {listed('key', missing)}; a model with experts needs "
            f"{', '.join(needed)} (the width of one expert)"
        )
    experts, per_token = count("experts", 0), count("experts_per_token", 0)
    _check(
        name, "experts_per_token", per_token, f"up to experts ({experts})", ok=per_token <= experts
    )
    return MoeFacts(
        num_experts=experts,
        num_experts_per_tok=per_token,
        moe_intermediate_size=count("intermediate_size", 0),
    )
