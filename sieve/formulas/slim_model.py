"""The saturation model itself: latency and throughput of one batch on one GPU (S 3).

All requests of a batch share their lengths and end together, so the latency is affine in the
batch B: e2e = s B + i. Throughput B (IL + OL)/e2e then rises with B towards (IL + OL)/s.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sieve.errors import InvalidInput
from sieve.formulas import slim_inputs as checked

PRINTED: Final = "printed"
DENSE_OFFSET: Final = "dense_offset"
VARIANTS: Final = (PRINTED, DENSE_OFFSET)
PARAMETERS: Final = ("eta_c", "eta_m", "alpha", "gamma", "B0", "t_fixed")


@dataclass(frozen=True)
class Model:
    """What the saturation model knows of a transformer.

    Attributes:
        layers: L.
        width: D.
        query_heads: Hq.
        kv_heads: Hkv.
        head_dim: per head; D/Hq unless the architecture sets its own.
        ffn_ratio: r_ff, width of the feed-forward block over D.
        kv_element_bytes: b_kv.
        ffn_projections: 2 plain, 3 gated.
    """

    layers: int
    width: int
    query_heads: int
    kv_heads: int
    head_dim: int
    ffn_ratio: float = 4
    kv_element_bytes: float = 2
    ffn_projections: float = 2

    @property
    def kv_width(self) -> int:
        """D_kv, elements of the keys of one token and layer."""
        return self.kv_heads * self.head_dim

    @property
    def query_width(self) -> int:
        """Elements of the queries of one token and layer; D unless head_dim is the model's own."""
        return self.query_heads * self.head_dim


@dataclass(frozen=True)
class Hardware:
    """Rate limits of one GPU: FLOP/s and bytes/s."""

    flops_per_s: float
    bytes_per_s: float


@dataclass(frozen=True)
class Params:
    """The six fitted parameters and the form of the decode term.

    Attributes:
        eta_c: share of the arithmetic rate that prefill attains.
        eta_m: share of the bandwidth that decode attains.
        alpha: seconds of one step that depend on nothing.
        gamma: seconds of one step, layer and (D/1024)^2.
        offset: B0, requests' worth of work that a step does whatever the batch.
        fixed_s: t_fixed, seconds of a whole batch.
        variant: `printed` applies B0 to dense work and cache traffic, `dense_offset` to the first.
    """

    eta_c: float
    eta_m: float
    alpha: float
    gamma: float
    offset: float
    fixed_s: float
    variant: str = PRINTED


@dataclass(frozen=True)
class Prediction:
    """One prediction; seconds, FLOP, bytes, and prompt plus output tokens per second."""

    flops: float
    t_prefill: float
    t_dense: float
    kv_bytes_per_request: float
    t_decode: float
    e2e: float
    throughput: float


def head_dim(width: int, query_heads: int) -> int:
    """Return D/Hq (eq. 4).

    Raises:
        InvalidInput: D is not a multiple of Hq.
    """
    if width % query_heads:
        raise InvalidInput(f"D is {width}; it must be a multiple of Hq, here {query_heads}")
    return width // query_heads


def context_sum(isl: float, osl: float) -> float:
    """Return the tokens read by all decode steps of one request (eq. 12)."""
    return osl * (isl + 1) + osl * (osl - 1) / 2


def prefill_flops(model: Model, isl: float, batch: float) -> float:
    """Return the arithmetic of the prompts (eq. 7); attention is charged as a full square."""
    width, query, kv = model.width, model.query_width, model.kv_width
    linear: float = 4 * width * query + 4 * width * kv
    linear += 2 * model.ffn_projections * model.ffn_ratio * width * width
    return model.layers * (batch * isl * linear + 4 * batch * isl * isl * query)


def dense_s(model: Model, params: Params, osl: float) -> float:
    """Return the dense part of decoding in seconds, before eta_m (eq. 9)."""
    scale = model.width / 1024
    return params.alpha * osl + params.gamma * model.layers * (scale * scale) * osl


def kv_bytes_per_request(model: Model, isl: float, osl: float) -> float:
    """Return the cache that all decode steps of one request read (eq. 10)."""
    element_bytes = model.kv_element_bytes
    return 2 * model.layers * model.kv_width * element_bytes * context_sum(isl, osl)


def predict(
    model: Model, hardware: Hardware, params: Params, isl: float, osl: float, batch: float
) -> Prediction:
    """Return latency and throughput of one batch (eq. 5 to 11).

    Raises:
        InvalidInput: a result beyond double precision.
    """
    flops = prefill_flops(model, isl, batch)
    t_prefill = flops / (params.eta_c * hardware.flops_per_s)
    t_dense = dense_s(model, params, osl)
    kv_bytes = kv_bytes_per_request(model, isl, osl)
    t_cache = kv_bytes / hardware.bytes_per_s
    if params.variant == DENSE_OFFSET:
        t_decode = ((batch + params.offset) * t_dense + batch * t_cache) / params.eta_m
    else:
        t_decode = (batch + params.offset) / params.eta_m * (t_dense + t_cache)
    e2e = t_prefill + t_decode + params.fixed_s
    throughput = batch * (isl + osl) / e2e if e2e > 0 else math.inf
    result = Prediction(flops, t_prefill, t_dense, kv_bytes, t_decode, e2e, throughput)
    checked.ensure_finite(vars(result))
    return result


def line(
    model: Model, hardware: Hardware, params: Params, isl: float, osl: float
) -> tuple[float, float]:
    """Return slope and intercept of e2e over the batch in seconds: e2e = s B + i."""
    one = predict(model, hardware, params, isl, osl, 1)
    t_cache = one.kv_bytes_per_request / hardware.bytes_per_s
    slope = one.t_prefill + (one.t_dense + t_cache) / params.eta_m
    offset = one.t_dense if params.variant == DENSE_OFFSET else one.t_dense + t_cache
    return slope, params.offset * offset / params.eta_m + params.fixed_s


def read_model(facts: Mapping[str, Any]) -> Model:
    """Return a model from its facts; `head_dim` may be given where it is not D/Hq.

    Raises:
        InvalidInput: a fact that is missing or not positive, or D not a multiple of Hq.
    """
    width, heads = checked.whole(facts, "D"), checked.whole(facts, "Hq")
    own = facts.get("head_dim")
    return Model(
        layers=checked.whole(facts, "L"),
        width=width,
        query_heads=heads,
        kv_heads=checked.whole(facts, "Hkv"),
        head_dim=head_dim(width, heads) if own is None else checked.whole(facts, "head_dim"),
        ffn_ratio=checked.positive(facts, "r_ff", default=4),
        kv_element_bytes=checked.positive(facts, "b_kv", default=2),
        ffn_projections=checked.positive(facts, "ffn_projections", default=2),
    )


def read_hardware(facts: Mapping[str, Any]) -> Hardware:
    """Return a GPU's rate limits.

    Raises:
        InvalidInput: a rate that is missing or not positive.
    """
    return Hardware(checked.positive(facts, "F_max"), checked.positive(facts, "BW_max"))


def read_variant(value: object) -> str:
    """Return the name of a variant.

    Raises:
        InvalidInput: an unknown name.
    """
    if value not in VARIANTS:
        raise InvalidInput(f"variant is {str(value)[:40]!r}; it is one of: {', '.join(VARIANTS)}")
    return str(value)


def read_params(facts: Mapping[str, Any]) -> Params:
    """Return fitted parameters.

    Raises:
        InvalidInput: an efficiency that is not positive, another parameter below 0, or an unknown
            variant.
    """
    return Params(
        eta_c=checked.positive(facts, "eta_c"),
        eta_m=checked.positive(facts, "eta_m"),
        alpha=checked.not_negative(facts, "alpha"),
        gamma=checked.not_negative(facts, "gamma"),
        offset=checked.not_negative(facts, "B0"),
        fixed_s=checked.not_negative(facts, "t_fixed"),
        variant=read_variant(facts.get("variant", PRINTED)),
    )


def batch_limit(slope: float, intercept: float, slo_s: float, epsilon: float) -> float:
    """Return the closed form of eq. 13: the batch, not rounded, at which the first limit is met.

    Args:
        slope: seconds that one more request adds.
        intercept: seconds of an empty batch.
        slo_s: latency limit.
        epsilon: efficiency limit, 0 for none.
    """
    by_slo = (slo_s - intercept) / slope
    if epsilon == 0:
        return by_slo
    return min(by_slo, ((slope + intercept) / epsilon - intercept) / slope)
