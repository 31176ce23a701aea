"""The precision of a checkpoint's weights, read from its `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sieve.catalog.hf_fields import lookup, text_config


def checkpoint_dtype(config: Mapping[str, Any]) -> tuple[str, str]:
    """Return the precision of the published weights and what was assumed about it.

    The first part is "mixed" or "" where the weights have no single known precision; the second
    part then says why.
    """
    text = text_config(config)
    for part in (config, text):
        quantization = part.get("quantization_config")
        if isinstance(quantization, Mapping) and quantization:
            return _quantized_dtype(quantization)
    raw = lookup(text, "torch_dtype") or lookup(config, "torch_dtype")
    if raw is None:
        return "bf16", "weight precision not given in the config, taken as bf16"
    plain = str(raw).removeprefix("torch.")
    names = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float8_e4m3fn": "fp8"}
    if plain in names:
        return names[plain], ""
    if plain == "float32":
        return "bf16", "float32 checkpoint, taken as loaded in bf16"
    return "", f"unknown torch_dtype {raw!r}; known: {', '.join([*names, 'float32'])}"


def _quantized_dtype(quantization: Mapping[str, Any]) -> tuple[str, str]:
    method = str(quantization.get("quant_method", "")).lower()
    if method in {"fp8", "fbgemm_fp8"}:
        return "fp8", ""
    if method in {"mxfp4", "nvfp4"}:
        return method, ""
    if method.startswith(("gptq", "awq", "auto-round", "auto_round")):
        return _integer_dtype(quantization.get("bits", quantization.get("w_bit")), method)
    if method == "bitsandbytes":
        if quantization.get("load_in_8bit"):
            return "int8", ""
        return "int4", "4-bit bitsandbytes weights, taken as int4"
    if method == "modelopt" or method.startswith("modelopt_"):
        algorithm = str(quantization.get("quant_algo") or method.removeprefix("modelopt_")).upper()
        names = {"FP8": "fp8", "NVFP4": "nvfp4", "FP4": "nvfp4", "W4A16_AWQ": "int4"}
        if algorithm in names:
            return names[algorithm], ""
        return "mixed", f"quantisation {method} {algorithm} has no single weight precision"
    if method == "compressed-tensors":
        return _compressed_dtype(quantization)
    return "", f"unknown quantisation method {quantization.get('quant_method')!r}"


def _compressed_dtype(quantization: Mapping[str, Any]) -> tuple[str, str]:
    layout = str(quantization.get("format", ""))
    names = {
        "float-quantized": "fp8",
        "naive-quantized": "fp8",
        "int-quantized": "int8",
        "nvfp4-pack-quantized": "nvfp4",
        "mxfp4-pack-quantized": "mxfp4",
    }
    if layout in names:
        return names[layout], ""
    if layout == "pack-quantized":
        groups = quantization.get("config_groups")
        first = next(iter(groups.values())) if isinstance(groups, Mapping) and groups else None
        weights = first.get("weights") if isinstance(first, Mapping) else None
        bits = weights.get("num_bits") if isinstance(weights, Mapping) else None
        return _integer_dtype(bits, "compressed-tensors pack-quantized")
    return "mixed", f"quantisation format {layout!r} has no single weight precision"


def _integer_dtype(bits: object, method: str) -> tuple[str, str]:
    if bits is None:
        return "int4", f"bits of the {method} weights are not given, taken as 4"
    if isinstance(bits, int) and bits in {4, 8}:
        return f"int{bits}", ""
    return "", f"{method} weights of {bits!r} bits; known: 4 and 8"
