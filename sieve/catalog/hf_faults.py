"""Fields of a `config.json` at odds with each other or with the model's class."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from sieve.catalog.hf_fields import architecture_name, lookup, text_config
from sieve.errors import CatalogError

_LATENT: Final = ("DeepseekV2", "DeepseekV3", "GlmMoeDsa", "KimiK2")
_EXPERTS: Final = ("Mixtral", "GptOss", "MiniMaxM2", "DeepseekV2", "DeepseekV3", "GlmMoeDsa")


def refuse_faults(config: Mapping[str, Any], name: str) -> None:
    """Refuse a config that would otherwise be read as another model than it is.

    Args:
        config: the parsed `config.json`.
        name: how messages call the model.

    Raises:
        CatalogError: every fault found.
    """
    faults = [*_shape_faults(config), *_class_faults(config), *_quantisation_faults(config)]
    if faults:
        raise CatalogError(f"{name}: " + "; ".join(faults))


def _shape_faults(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield fields that are not of the form that they are read in."""
    text = text_config(config)
    classes = config.get("architectures")
    if classes is not None and not (
        isinstance(classes, list) and all(isinstance(entry, str) for entry in classes)
    ):
        yield f"architectures is {classes!r}; allowed is a list of class names"
    for field in ("rope_scaling", "rope_parameters"):
        value = text.get(field)
        if value is not None and not isinstance(value, Mapping):
            yield f"{field} is {value!r}; allowed is an object, or null"
    types, layers = text.get("layer_types"), lookup(text, "num_hidden_layers")
    if types is None:
        return
    if not isinstance(types, list):
        yield f"layer_types is {types!r}; allowed is a list with an entry for each layer"
    elif isinstance(layers, int) and len(types) != layers:
        yield f"layer_types has {len(types)} entries; allowed is one for each of {layers} layers"


def _class_faults(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a class cannot be without."""
    text, label = text_config(config), architecture_name(config)
    if label.startswith(_LATENT) and not text.get("kv_lora_rank"):
        yield (
            f"{label} has latent attention and the config has no kv_lora_rank; add it, with "
            "qk_nope_head_dim, qk_rope_head_dim and v_head_dim"
        )
    experts = lookup(text, "num_experts")
    if (label.startswith(_EXPERTS) or "Moe" in label) and not experts:
        found = "no num_experts" if experts is None else f"num_experts {experts!r}"
        yield f"{label} has experts and the config has {found}; add how many there are"


def _quantisation_faults(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield what cannot be read of how the weights are stored."""
    for part in (config, text_config(config)):
        found = part.get("quantization_config")
        if found is None:
            continue
        if not isinstance(found, Mapping):
            yield (
                f"quantization_config is {found!r}; allowed is an object with quant_method, or "
                "leave it out for plain weights"
            )
            return
        block, group = found.get("weight_block_size"), found.get("group_size")
        if block is not None and not _is_block(block):
            yield f"weight_block_size is {block!r}; allowed is a pair of numbers, as [128, 128]"
        whole = isinstance(group, int) and not isinstance(group, bool)
        if group is not None and not (whole and (group == -1 or group > 0)):
            yield f"group_size is {group!r}; allowed is a whole number from 1, or -1 for whole rows"
        return


def _is_block(value: object) -> bool:
    if not isinstance(value, list) or len(value) != 2:
        return False
    return all(isinstance(edge, int) and not isinstance(edge, bool) and edge > 0 for edge in value)
