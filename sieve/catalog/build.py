"""Write the shipped catalogue from a folder of model facts and a table of accelerators.

Run by hand as `python -m sieve.catalog.build MODELS_FOLDER GPUS_CSV`; its output is part of the
package. Only facts are copied: shapes, sizes, rates, prices, and where each was read.
"""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from sieve.resources import package_data

_CONFIG_FIELDS: Final = frozenset(
    (
        "architectures", "model_type", "is_encoder_decoder", "num_hidden_layers",
        "num_layers", "hidden_size", "hidden_dim", "num_attention_heads", "n_head",
        "num_key_value_heads", "head_dim", "v_head_dim", "intermediate_size", "ffn_dim",
        "ffn_embed_dim", "dense_intermediate_size", "intermediate_size_mlp", "hidden_act",
        "hidden_activation", "mlp_hidden_act", "activation_function", "vocab_size",
        "tie_word_embeddings", "max_position_embeddings", "max_seq_len", "rope_scaling",
        "attention_bias", "qkv_bias", "mlp_bias", "use_qk_norm", "qk_norm_type",
        "torch_dtype", "dtype", "quantization_config", "num_experts", "num_local_experts",
        "n_routed_experts", "num_experts_per_tok", "moe_intermediate_size",
        "n_shared_experts", "shared_expert_intermediate_size", "shared_intermediate_size",
        "moe_shared_expert_intermediate_size", "moe_latent_size", "first_k_dense_replace",
        "mlp_only_layers", "decoder_sparse_step", "moe_layer_freq",
        "interleave_moe_layer_step", "mlp_layer_types", "enable_moe_block",
        "expert_intermediate_size", "top_k_experts", "sliding_window",
        "sliding_window_size", "use_sliding_window", "max_window_layers", "layer_types",
        "attention_chunk_size", "hybrid_layer_pattern", "no_rope_layers", "kv_lora_rank",
        "q_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "index_topk",
        "index_n_heads", "index_head_dim", "compress_ratios", "sparse_attention_config",
        "full_attention_interval", "linear_attn_config", "hybrid_override_pattern",
        "attn_type_list", "linear_conv_kernel_dim", "linear_key_head_dim",
        "linear_num_key_heads", "linear_num_value_heads", "linear_value_head_dim",
        "mamba_num_heads", "mamba_head_dim", "ssm_state_size", "conv_kernel",
        "num_kv_shared_layers", "num_global_key_value_heads", "global_head_dim",
        "attention_k_eq_v", "attn_output_gate", "attention_output_gate",
        "hidden_size_per_layer_input", "num_nextn_predict_layers", "num_mtp_modules",
        "mtp_transformer_layers", "mtp_num_hidden_layers", "sliding_window_pattern",
        "swa_num_attention_heads", "swa_num_key_value_heads", "swa_head_dim", "swa_v_head_dim",
        "vocab_size_per_layer_input", "use_double_wide_mlp", "n_groups", "expand",
        "mamba_ssm_dtype", "mamba_ssm_cache_dtype", "indexer_types", "expert_dtype", "o_groups",
        "o_lora_rank", "hc_mult", "routed_expert_hidden_size", "num_experts_per_token",
        "num_shared_experts", "mla_use_output_gate", "partial_rotary_factor", "rope_parameters",
    )
)  # fmt: skip
_SCALAR_FIELDS: Final = (
    "vendor", "architecture", "form_factor", "memory_type", "nvidia_smi_total_mib",
    "cuda_visible_total_gib", "mem_bw_gbs", "bf16_dense_tflops", "fp8_dense_tflops",
    "fp4_dense_tflops", "int8_dense_tops", "scale_up_link", "scale_up_gbs_unidirectional",
    "scale_up_domain_gpus", "pcie", "pcie_gbs_unidirectional", "usd_per_gpu_hour_low",
    "usd_per_gpu_hour_high", "usd_hyperscaler", "price_sources_and_dates",
)  # fmt: skip
_TEXT_FIELDS: Final = frozenset(
    {
        "vendor",
        "architecture",
        "form_factor",
        "memory_type",
        "cuda_visible_total_gib",
        "scale_up_link",
        "pcie",
        "usd_hyperscaler",
        "price_sources_and_dates",
    }
)
_FACT_SOURCES: Final = {
    "H1": "ai-dynamo/aiconfigurator @ 095f58a5, system description files (Apache-2.0)",
    "H2": "SemiAnalysisAI/InferenceX-app @ 77ca49a, GPU specification table (Apache-2.0)",
    "H3": "stas00/ml-engineering @ 744d01e, accelerator chapter (CC-BY-SA-4.0)",
    "H4": "cli99/llm-analysis, GPU configuration files (Apache-2.0)",
    "H5": "Google Cloud TPU documentation (v5e, v5p, v6e, tpu7x)",
    "H6": "public nvidia-smi outputs and CUDA out-of-memory messages, several per card",
    "H7": "Hugging Face hardware catalogue and two public GPU catalogues",
    "H8": "secondary web pages; two or more agree unless the field is listed as unverified",
    "H9": "start-up logs of an engine on this card (its memory only)",
}


# Fields that the source states otherwise than the model card, with the reason.
_GEMMA3_LIMIT: Final = {
    "max_position_embeddings": (131072, "the model card states a context of 128K tokens"),
}
_CORRECTIONS: Final[dict[str, dict[str, tuple[int, str]]]] = {
    f"google/gemma-3-{size}-it": _GEMMA3_LIMIT for size in ("4b", "12b", "27b")
}


def _kept(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a config that the reader looks at, in their own order."""
    out = {key: value for key, value in config.items() if key in _CONFIG_FIELDS}
    if isinstance(config.get("text_config"), Mapping):
        out["text_config"] = _kept(config["text_config"])
    return out


def _plain_source(text: str) -> str:
    """Return a source line without words about how the copy came about."""
    text = re.sub(r"config\.json page in [^:]*:", "config.json:", text)
    text = re.sub(r", written from [^;]*$", "", text)
    text = re.sub(r"^as given in [^:]*: ", "", text)
    return text.replace("computed here from the config", "counted from the config")


def model_document(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the YAML document of one model; parameter counts become plain numbers."""
    active = facts.get("params_active_b")
    source = str(facts["source"])
    unread = "written from" in source
    document: dict[str, Any] = {
        "model_id": facts["model_id"],
        "verified": bool(facts["verified"]),
        "source": _plain_source(source) + (" (not read from a file)" if unread else ""),
        "params_total": round(float(facts["params_total_b"]) * 1e9),
        "params_active": None if active is None else round(float(active) * 1e9),
        "params_source": _plain_source(str(facts["params_source"])),
    }
    config = document["config"] = _kept(facts["config"])
    text = config.get("text_config", config)
    for key, (value, reason) in _CORRECTIONS.get(document["model_id"], {}).items():
        document["corrected"] = f"{key} {value} instead of {text[key]}: {reason}"
        text[key] = value
    return document


def _number(text: str) -> int | float:
    value = float(text)
    return int(value) if value.is_integer() else value


def gpu_document(row: Mapping[str, str]) -> dict[str, Any]:
    """Return the YAML entry of one accelerator; empty cells are left out."""
    entry: dict[str, Any] = {"name": row["gpu"]}
    if row["compute_capability"]:
        entry["compute_capability"] = float(row["compute_capability"])
    if row["memory_gb_nominal"]:
        entry["memory_gb_nominal"] = _number(row["memory_gb_nominal"])
    for field in _SCALAR_FIELDS:
        text = row[field].strip()
        if not text:
            continue
        if field in _TEXT_FIELDS:
            entry[field] = text
        elif field == "pcie_gbs_unidirectional":
            entry[field] = _number(text.split()[0])
        else:
            entry[field] = _number(text)
    for field in ("fact_sources", "unverified_fields"):
        entry[field] = [part for part in row[field].split(";") if part]
    entry["fact_sources"] = [key if key in _FACT_SOURCES else "H9" for key in entry["fact_sources"]]
    return entry


def write_models(models: Path, folder: Path) -> int:
    """Write one YAML file per model and return how many."""
    folder.mkdir(parents=True, exist_ok=True)
    count = 0
    for path in sorted(models.glob("*.json")):
        document = model_document(json.loads(path.read_text(encoding="utf-8")))
        name = document["model_id"].replace("/", "__")
        _dump(folder / f"{name}.yaml", document)
        count += 1
    return count


def write_gpus(table: Path, path: Path) -> int:
    """Write all accelerators into one YAML file and return how many."""
    with table.open(encoding="utf-8", newline="") as handle:
        entries = [gpu_document(row) for row in csv.DictReader(handle)]
    used = {key for entry in entries for key in entry["fact_sources"]}
    sources = {key: text for key, text in _FACT_SOURCES.items() if key in used}
    _dump(path, {"fact_sources": sources, "gpus": entries})
    return len(entries)


def _dump(path: Path, document: Mapping[str, Any]) -> None:
    text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=100)
    path.write_text(text, encoding="utf-8")


def main(arguments: list[str]) -> int:
    """Write the catalogue's data files; return the exit code."""
    if len(arguments) != 2:
        sys.stderr.write("usage: python -m sieve.catalog.build MODELS_FOLDER GPUS_CSV\n")
        return 2
    data = package_data("catalog", "data")
    models = write_models(Path(arguments[0]), data / "models")
    gpus = write_gpus(Path(arguments[1]), data / "gpus.yaml")
    sys.stdout.write(f"{models} models, {gpus} accelerators\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
