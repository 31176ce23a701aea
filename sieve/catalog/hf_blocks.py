"""Feed-forward parts, rotary tables and vision parts of a model, read from its `config.json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sieve.catalog.architecture import MoeFacts, RotaryTable
from sieve.catalog.hf_fields import LARGEST_STRETCH, ConfigReader, Family, lookup
from sieve.catalog.layouts import Layout
from sieve.errors import CatalogError

# Parameters of vision and audio parts: Gemma 3 from its published layout (SigLIP So400m), the rest
# as model cards give them, rounded.
_VISION: Final[tuple[tuple[str, int, bool], ...]] = (
    ("Gemma3ForConditionalGeneration", 420_000_000, True),
    ("Gemma4ForConditionalGeneration", 550_000_000, False),
    ("Llama4ForConditionalGeneration", 870_000_000, False),
    ("Qwen3_5", 450_000_000, False),
    ("KimiK25", 440_000_000, False),
    ("KimiK3", 440_000_000, False),
)


def ffn_layers(read: ConfigReader, label: str, layers: int) -> tuple[str, ...]:
    """Return `dense`, `moe`, `dense+moe` or "" for each layer."""
    text = read.text
    pattern = text.get("hybrid_override_pattern")
    if isinstance(pattern, str):
        return tuple({"E": "moe", "-": "dense"}.get(mark, "") for mark in pattern)
    if (read.optional("num_experts", least=0) or 0) <= 1:
        return ("dense",) * layers
    if label.startswith("Gemma4"):  # experts stand beside the dense block
        return ("dense+moe" if text.get("enable_moe_block") else "dense",) * layers
    dense = _dense_layers(read, layers)
    return tuple("dense" if layer in dense else "moe" for layer in range(layers))


def moe_facts(
    read: ConfigReader, family: Family, label: str, ffns: Sequence[str]
) -> MoeFacts | None:
    """Return the expert facts, None for dense models."""
    experts = read.optional("num_experts", least=0)
    if not experts or experts == 1 or not any("moe" in ffn for ffn in ffns):
        return None
    per_token = read.count("num_experts_per_tok")
    if per_token > experts:
        raise CatalogError(
            f"{read.name}: num_experts_per_tok is {per_token}; "
            f"allowed is up to num_experts ({experts})"
        )
    width = read.count(family.expert_width)
    shared = width if label.startswith("Llama4") else _shared_width(read, width)
    return MoeFacts(
        num_experts=experts,
        num_experts_per_tok=per_token,
        moe_intermediate_size=width,
        shared_intermediate_size=shared,
        num_dense_layers=sum(1 for ffn in ffns if ffn == "dense"),
    )


def dense_width(read: ConfigReader, label: str, moe: MoeFacts | None, ffns: Sequence[str]) -> int:
    """Return the width of the dense feed-forward block, the experts' own where there is none."""
    if moe is None:
        return read.count("intermediate_size")
    named = "intermediate_size_mlp" if label.startswith("Llama4") else "dense_intermediate_size"
    width = read.optional(named) or read.optional("intermediate_size")
    # Without dense layers nothing has this width; the experts' own keeps the record complete.
    if width is None and any("dense" in ffn for ffn in ffns):
        return read.count("intermediate_size")
    return width or moe.moe_intermediate_size


def rotary_tables(
    read: ConfigReader,
    label: str,
    family: Family,
    layout: Layout,
    head_dim: int,
    limit: int | None,
) -> tuple[RotaryTable, ...]:
    """Return the tables of rotary angles that every rank holds.

    The engine makes one table for each kind of rotary embedding, a row for each position of the
    stretched context. Source: vLLM `layers/rotary_embedding`.
    """
    if family.learned_positions is not None or limit is None:
        return ()
    text = read.text
    if any(kind.state and kind.state.flavour == "mamba2" for kind in layout.kinds):
        return ()
    if text.get("linear_attn_config"):
        return ()  # positions come from the recurrent layers
    if text.get("kv_lora_rank") or label.startswith("DeepseekV4"):
        return (RotaryTable(limit, read.count("qk_rope_head_dim")),)
    nested = text.get("rope_parameters")
    nested_share = 1.0
    if isinstance(nested, Mapping):
        nested_share = ConfigReader(nested, read.name).share("partial_rotary_factor")
    share = read.share("partial_rotary_factor", default=nested_share)
    if label.startswith("Qwen3Next"):
        share = 0.25 if share == 1.0 else share
    scaling = text.get("rope_scaling")
    rows = limit
    if label.startswith("Gemma3") and isinstance(scaling, Mapping):
        # Linear stretching multiplies the rows; the layers with a window have a table of their own.
        factor = ConfigReader(scaling, read.name).share("factor", most=LARGEST_STRETCH)
        stretched = round(limit * factor)
        return (RotaryTable(stretched, head_dim), RotaryTable(limit, head_dim))
    tables = [RotaryTable(rows, int(head_dim * share))]
    kinds = {kind.kind for kind in layout.kinds}
    if {"window", "full"} <= kinds and label.startswith(("Gemma4", "Olmo3", "MiMo")):
        widths = {kind.head_dim for kind in layout.kinds if kind.kind == "full"}
        tables.append(RotaryTable(rows, max(widths)))
    return tuple(tables)


def vision_params(config: Mapping[str, Any], label: str, assumed: list[str]) -> int:
    """Return the parameters of vision and audio parts, 0 for text models."""
    for prefix, params, known in _VISION:
        if label.startswith(prefix):
            if not known:
                assumed.append(f"vision parts of {params / 1e9:.2g} billion parameters")
            return params
    vision = config.get("vision_config")
    if not isinstance(vision, Mapping):
        return 0
    width, layers = lookup(vision, "hidden_size"), lookup(vision, "num_hidden_layers")
    inner = lookup(vision, "intermediate_size")
    if isinstance(width, int) and isinstance(layers, int):
        feed = 2 * width * (inner if isinstance(inner, int) else 4 * width)
        assumed.append("vision parts counted as plain transformer layers")
        return layers * (4 * width * width + feed)
    assumed.append("vision parts of unknown size, taken as 0.5 billion parameters")
    return 500_000_000


def _shared_width(read: ConfigReader, expert_width: int) -> int:
    for field in (
        "shared_expert_intermediate_size",
        "moe_shared_expert_intermediate_size",
        "shared_intermediate_size",
    ):
        width = read.optional(field, least=0)
        if width is not None:
            return width
    shared = read.optional("n_shared_experts", least=0)
    return (shared or 0) * expert_width


def _dense_layers(read: ConfigReader, layers: int) -> frozenset[int]:
    """Return the layers that have an ordinary feed-forward block instead of experts."""
    text = read.text
    first = read.optional("first_k_dense_replace", least=0) or 0
    only = text.get("mlp_only_layers")
    named = {layer for layer in only if isinstance(layer, int)} if isinstance(only, list) else set()
    frequency = text.get("moe_layer_freq")
    step = read.optional("decoder_sparse_step") or read.optional("interleave_moe_layer_step") or 1
    if isinstance(frequency, list):
        if len(frequency) != layers:
            raise CatalogError(
                f"{read.name}: moe_layer_freq has {len(frequency)} entries; "
                f"allowed is one for each of the {layers} layers"
            )
        return frozenset(layer for layer, entry in enumerate(frequency) if not entry)
    if isinstance(frequency, int) and frequency > 1:
        step = frequency
    return frozenset(
        layer
        for layer in range(layers)
        if layer < first or layer in named or (layer + 1) % step != 0
    )
