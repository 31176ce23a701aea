"""Counts of a grid after the validity and the memory stage (9.3, 9.4)."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from typing import Final

import numpy as np

from sieve.arrays import FloatArray, IntArray
from sieve.errors import InvalidInput
from sieve.formulas import sizing
from sieve.formulas.fields import MAX_WHOLE, Fields, Outputs, formula
from sieve.units import GB

UTILISATION: Final = 0.9
PAGE_TOKENS: Final = 16
RESERVE: Final = 0.01
MAX_EVALUATED: Final = 2_000_000
"""Most combinations of the axes that decide; inert axes only multiply."""
AXES: Final = ("gpu", "tp", "pp", "replicas", "weight_precision", "kv_format")


def first_fault(
    *, tp: int, pp: int, replicas: int, heads: int, width: int, layers: int, gpu_budget: int,
    node_gpus: int,
) -> str | None:  # fmt: skip
    """Return the first rule of stage 1 that a parallel layout breaks, None if it is valid (9.3)."""
    if heads % tp or width % tp:
        return "tp_divides"
    if layers % pp:
        return "pp_divides"
    if tp * pp > node_gpus:
        return "node"
    if tp * pp * replicas > gpu_budget:
        return "gpu_budget"
    return None


@formula("grid")
def grid(given: Fields) -> Outputs:
    """Return how many configurations stages 1 and 2 remove, by reason and place (9.4).

    Weights are charged at their loading peak if `use_load_bytes`, else at what stays resident.
    Every axis that is not one of the six that decide must be inert; it multiplies the counts.
    """
    spec = given.record(
        "grid", "model", "axes", "gpu_budget", node_gpus=8, use_load_bytes=True, inert_axes=None,
        utilisation=UTILISATION, page_tokens=PAGE_TOKENS, reserve=RESERVE,
    )  # fmt: skip
    for name, fixed in (
        ("utilisation", UTILISATION), ("page_tokens", PAGE_TOKENS), ("reserve", RESERVE),
    ):  # fmt: skip
        if spec.number(name) != fixed:
            raise InvalidInput(
                f"{spec.where(name)}: is fixed at {fixed:g} here; sizing.kv_pages takes others"
            )
    facts = ("params", "width", "layers", "heads", "kv_layers", "kv_heads", "head_dim")
    model = spec.record("model", *facts, name=None)
    counts = {name: model.whole(name) for name in facts[1:]}
    axes = spec.record("axes", *AXES, extra=True)
    inert = math.prod(_inert_sizes(spec, axes))
    splits = [axes.wholes(name, least=0) for name in ("tp", "pp", "replicas")]
    others = math.prod(len(axes.items(name)) for name in ("gpu", "weight_precision", "kv_format"))
    if math.prod(map(len, splits)) * max(1, others) > MAX_EVALUATED:
        raise InvalidInput(f"grid.axes: more than {MAX_EVALUATED:,} combinations; shorten an axis")
    limits = {name: spec.whole(name) for name in ("gpu_budget", "node_gpus")}
    layouts = list(itertools.product(*splits))
    faults = [
        first_fault(
            tp=tp, pp=pp, replicas=replicas, heads=counts["heads"], width=counts["width"],
            layers=counts["layers"], **limits,
        )
        for tp, pp, replicas in layouts
    ]  # fmt: skip
    each = others * inert
    stage1 = {
        reason: count * each
        for reason, count in Counter(fault for fault in faults if fault).items()
        if count * each
    }
    valid = [layout for layout, fault in zip(layouts, faults, strict=True) if fault is None]
    reasons, where = _memory(spec, axes, model, valid)
    total, after_stage1 = len(layouts) * each, len(valid) * each
    removed = sum(reasons.values()) * inert
    return {
        "total": total,
        "stage1_removed": total - after_stage1,
        "after_stage1": after_stage1,
        "stage1_reasons": stage1,
        "stage2_removed": removed,
        "after_stage2": after_stage1 - removed,
        "stage2_reasons": {name: count * inert for name, count in reasons.items() if count * inert},
        "stage2_where": {name: count * inert for name, count in where.items() if count * inert},
    }


def _inert_sizes(spec: Fields, axes: Fields) -> list[int]:
    """Return the lengths of the axes that decide nothing."""
    others = [name for name in axes.names() if name not in AXES]
    if not spec.has("inert_axes"):
        return [len(axes.items(name)) for name in others]
    named = [text for _, text in spec.items("inert_axes")]
    for name in others:
        if name not in named:
            raise InvalidInput(
                f"{axes.where(name)}: decides nothing here; name it in inert_axes or drop it"
            )
    if sorted(map(str, named)) != sorted(others):
        raise InvalidInput(
            f"{spec.where('inert_axes')}: names {named}, the further axes are {others}"
        )
    return [len(axes.items(name)) for name in others]


def _memory(
    spec: Fields, axes: Fields, model: Fields, layouts: list[tuple[int, ...]]
) -> tuple[Counter[str], Counter[str]]:
    """Return what stage 2 removes of the valid layouts, by reason and by gpu/precision."""
    gpus = axes.records("gpu", "name", "memory_gb")
    precisions = axes.records(
        "weight_precision", "name", "bytes_per_param", load_bytes_per_param=None
    )
    formats = axes.records("kv_format", "bytes", name=None)
    loading, params = spec.flag("use_load_bytes"), model.number("params", above=0)
    card_bytes = [row.number("memory_gb", above=0) * GB for row in gpus]
    kv_bytes = [row.number("bytes", above=0) for row in formats]
    weight_bytes = []
    for row in precisions:
        resident = row.number("bytes_per_param", above=0)
        given = row.has("load_bytes_per_param")
        peak = row.number("load_bytes_per_param", above=0) if given else resident
        weight_bytes.append(params * (peak if loading else resident))
    reasons: Counter[str] = Counter()
    where: Counter[str] = Counter()
    if not (gpus and precisions and formats and layouts):
        return reasons, where
    shape = np.array([layout[:2] for layout in layouts], np.int64)
    pages = pages_within_range(
        card_bytes=np.array(card_bytes)[:, None, None, None],
        weight_bytes=np.array(weight_bytes)[:, None, None],
        kv_bytes_per_element=np.array(kv_bytes)[:, None],
        kv_layers=model.whole("kv_layers"),
        kv_heads=model.whole("kv_heads"),
        head_dim=model.whole("head_dim"),
        tp=shape[:, 0],
        pp=shape[:, 1],
        utilisation=UTILISATION,
        page_tokens=PAGE_TOKENS,
        reserve=RESERVE,
    )
    reasons["weights_overflow"] = int(pages.weights_overflow.sum())
    reasons["no_page"] = int((~pages.fits & ~pages.weights_overflow).sum())
    removed = (~pages.fits).sum(axis=(2, 3))
    for i, gpu in enumerate(gpus):
        for j, precision in enumerate(precisions):
            where[f"{gpu.identity('name')}/{precision.identity('name')}"] += int(removed[i, j])
    return reasons, where


def pages_within_range(
    *, kv_layers: int, kv_heads: int, head_dim: int, page_tokens: int, tp: IntArray | int,
    pp: IntArray | int, card_bytes: FloatArray | float, weight_bytes: FloatArray | float,
    kv_bytes_per_element: FloatArray | float, utilisation: float, reserve: float,
) -> sizing.KvPages:  # fmt: skip
    """Return `sizing.kv_pages` after refusing sizes beyond whole numbers of 2**53.

    Raises:
        InvalidInput: a page of too many values, too many pages or ranks.
    """
    if 2 * page_tokens * head_dim * kv_layers * kv_heads > MAX_WHOLE:
        raise InvalidInput(
            "kv_layers, kv_heads, head_dim, page_tokens: a page beyond 2**53 values; give less"
        )
    if float(np.max(tp)) * float(np.max(pp)) > MAX_WHOLE:
        raise InvalidInput("tp, pp: more than 2**53 ranks; give fewer")
    smallest_page = 2 * page_tokens * head_dim * float(np.min(kv_bytes_per_element))
    if float(np.max(card_bytes)) > MAX_WHOLE * smallest_page:
        raise InvalidInput("card_bytes: holds more than 2**53 pages; give less, or larger pages")
    return sizing.kv_pages(
        card_bytes=card_bytes, weight_bytes=weight_bytes, kv_layers=kv_layers, kv_heads=kv_heads,
        head_dim=head_dim, kv_bytes_per_element=kv_bytes_per_element, tp=tp, pp=pp,
        utilisation=utilisation, page_tokens=page_tokens, reserve=reserve,
    )  # fmt: skip
