"""The precision of a checkpoint's weights, read from its `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sieve.catalog.hf_fields import lookup, text_config

# How the name of a module ends that stands for a whole part of a layer.
_PART_SIGNS: Final[Mapping[str, tuple[str, ...]]] = {
    "attention": ("self_attn", "attention", "q_proj", "qkv_proj"),
    "shared": ("shared_expert", "shared_experts", "shared_experts.gate_up_proj"),
    "dense": (".mlp", "mlp.gate_up_proj", "mlp.up_proj"),
    "state": ("linear_attn", "mixer", "linear_attn.in_proj_qkvz"),
}
_OTHER_PARTS: Final = ("vision", "visual", "mtp", "audio")
_MANY: Final = 8


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


@dataclass(frozen=True)
class QuantisationFacts:
    """Which weights a quantised checkpoint keeps how; fields as in `ModelArchitecture`."""

    expert_dtype: str = ""
    unquantised: tuple[str, ...] = ()
    block: int = 0
    group: int = 0


def quantisation_facts(
    config: Mapping[str, Any], dtype: str, label: str, assumed: list[str]
) -> QuantisationFacts:
    """Return block and group sizes, and the parts that stay in 16 bits.

    Lists of modules that are left alone are read where the config has them; otherwise what is known
    of the class stands in, with a note.
    """
    text = text_config(config)
    found = config.get("quantization_config") or text.get("quantization_config")
    quantization: Mapping[str, Any] = found if isinstance(found, Mapping) else {}
    block = quantization.get("weight_block_size")
    edge = int(block[0]) if isinstance(block, list) and block else 0
    group = quantization.get("group_size")
    size = group if isinstance(group, int) and group > 0 else 0
    expert = {"fp4": "mxfp4", "fp8": "fp8"}.get(str(text.get("expert_dtype") or ""), "")
    unquantised = _ignored_parts(quantization)
    if dtype == "mixed":
        assumed.append("of a mixed precision the attention is taken as left in 16 bits")
        return QuantisationFacts(unquantised=("attention", "state"))
    if dtype in {"bf16", "fp16"}:
        return QuantisationFacts()
    if not unquantised and label.startswith(("GptOss", "KimiK25", "KimiK3", "KimiLinear")):
        unquantised = ("attention", "dense", "shared", "state")
        assumed.append(
            f"only the routed experts are {dtype}, as the makers describe the checkpoint"
        )
        size = size or (32 if dtype == "int4" else 0)
    if expert and expert != dtype:
        assumed.append(
            f"routed experts are {expert}, the rest {dtype}, by the config's expert_dtype"
        )
    return QuantisationFacts(expert, unquantised, edge, size)


def _ignored_parts(quantization: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the parts that a list of modules left alone covers in every layer."""
    listed: list[str] = []
    for field in ("ignore", "ignored_layers", "modules_to_not_convert", "exclude_modules"):
        value = quantization.get(field)
        if isinstance(value, list):
            listed += [str(entry) for entry in value]
    names = [entry.lower().replace("\\", "").rstrip("*$.") for entry in listed]
    # Routers and gates are never quantised; parts for images and for drafting are not these layers.
    ours = [
        (name, is_pattern)
        for name, is_pattern in zip(names, map(_is_pattern, listed), strict=True)
        if not name.endswith("gate") and not any(word in name for word in _OTHER_PARTS)
    ]
    found = []
    for part, signs in _PART_SIGNS.items():
        hits = [(name, star) for name, star in ours if name.endswith(signs)]
        # A pattern, or so many entries that they must stand for all layers.
        if any(star for _, star in hits) or len(hits) > _MANY:
            found.append(part)
    return tuple(found)


def _is_pattern(entry: str) -> bool:
    return entry.startswith("re:") or "*" in entry
