"""The constants of the step-time model that no kernel table holds, and where they come from.

`data/step_time.yaml` is written by `tests/accuracy/step_time_fit.py`: values, what each means, the
hash of the data behind them and the errors with and without the group that is predicted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, Final

import yaml

from sieve.errors import TableError
from sieve.resources import package_data

_YAML_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class StepConstants:
    """Factors on kernel times, and costs that are not kernels of a table.

    Attributes:
        layer_fixed_s: small kernels of one layer: norms, rotary embedding, KV write, activation.
        elementwise_dense, elementwise_moe: share of all activation reads and writes of a layer that
            reach memory; above 1 where sorting, pads and quantisation come on top.
        allreduce_factor: ranks do not arrive together.
        decode_attention_factor: tables have equal lengths in a batch.
        prefill_attention_factor: on the table's prefill attention.
        experts_factor: on the table's expert times.
        routing_s: choosing and sorting the experts of one layer, where that is not part of the
            expert kernel.
        marlin_prefill_factor: 4-bit experts multiplied in 16 bits by a kernel that dequantises each
            tile anew, against the table's kernel, when compute decides.
        host_decode_s, host_mixed_s: time of a step outside the GPU under asynchronous scheduling.
        sync_step_s: time of a step outside the GPU that synchronous scheduling adds.
        sync_sequence_s: the same for each sequence that yields a token.
        block_quant_s: quantising the input of one matrix product with FP8 block scales.
        layer_launch_s: the host's launching of one layer's kernels in a step with prompts, which
            has no whole graph; such a step takes no less than that for all layers.
        old_host_factor: on both synchronous terms before vLLM's V1 engine (0.8).
        blackwell_mixed_s: planning the attention of a step with prompts, on the host, as the
            kernels for Blackwell need it.
        chat_s: latency that a chat endpoint and its client add to the first token; it does not
            queue.
        request_s: work of the front end for one request: HTTP, streaming.
        request_token_s: tokenising and hashing of one prompt token.
    """

    layer_fixed_s: float
    elementwise_dense: float
    elementwise_moe: float
    allreduce_factor: float
    decode_attention_factor: float
    prefill_attention_factor: float
    experts_factor: float
    routing_s: float
    marlin_prefill_factor: float
    host_decode_s: float
    host_mixed_s: float
    sync_step_s: float
    sync_sequence_s: float
    block_quant_s: float
    layer_launch_s: float
    old_host_factor: float
    blackwell_mixed_s: float
    chat_s: float
    request_s: float
    request_token_s: float

    def changed(self, values: Mapping[str, float]) -> StepConstants:
        """Return the constants with some replaced."""
        return replace(self, **values)


def constant_names() -> tuple[str, ...]:
    """Return the names of all constants in order."""
    return tuple(field.name for field in fields(StepConstants))


@lru_cache(maxsize=1)
def document() -> Mapping[str, Any]:
    """Return the file of the constants: values, meaning, data hash, errors."""
    path = package_data("perf", "data", "step_time.yaml")
    loaded: Mapping[str, Any] = yaml.load(path.read_text(encoding="utf-8"), Loader=_YAML_LOADER)
    return loaded


@lru_cache(maxsize=1)
def step_constants() -> StepConstants:
    """Return the shipped constants.

    Raises:
        TableError: the file lacks one, or has one that is negative.
    """
    values = document()["values"]
    missing = [name for name in constant_names() if name not in values]
    if missing:
        raise TableError(f"step_time.yaml: {', '.join(missing)} missing; run the fit anew")
    negative = [name for name in constant_names() if not float(values[name]) >= 0]
    if negative:
        raise TableError(f"step_time.yaml: {', '.join(negative)} must be at least 0")
    return StepConstants(**{name: float(values[name]) for name in constant_names()})
