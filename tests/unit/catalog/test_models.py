"""The shipped models, their aliases, config files and inline facts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from sieve.catalog.models import inline_model, list_models, load_model
from sieve.errors import CatalogError, NotYetError
from sieve.resources import package_data

MODELS = package_data("catalog", "data", "models")
# Published totals that are rounded by more than 2 %; the shapes are exact.
# Published as a round figure only: 120B for 116.8B, 1T for 1.03T, 30B for 31.6B.
ROUNDED = {
    "Qwen/Qwen3-32B", "facebook/opt-125m", "moonshotai/Kimi-K2-Instruct", "moonshotai/Kimi-K2.5",
    "google/gemma-4-E4B-it", "google/gemma-4-26B-A4B", "openai/gpt-oss-120b",
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
}  # fmt: skip


def published(name: str) -> dict[str, Any]:
    path = MODELS / f"{name.replace('/', '__')}.yaml"
    document: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return document


def test_every_model_loads_or_is_refused_by_name() -> None:
    entries = list_models()
    assert len(entries) == 84
    for entry in entries:
        if entry.handled:
            arch = load_model(entry.name)
            assert arch.params == entry.params
        else:
            assert entry.reason
            with pytest.raises(NotYetError, match=entry.name.split("/")[1]):
                load_model(entry.name)


def test_counted_totals_agree_with_the_published_ones() -> None:
    deviations = {}
    for entry in list_models():
        if entry.handled and entry.verified:
            total = published(entry.name)["params_total"]
            deviations[entry.name] = entry.params / total - 1
    print({name: f"{share:+.2%}" for name, share in deviations.items()})  # noqa: T201
    too_far = {name for name, share in deviations.items() if abs(share) > 0.02}
    assert too_far == ROUNDED
    assert len(deviations) >= 35


@pytest.mark.parametrize(
    ("name", "total", "active"),
    [
        ("Qwen/Qwen3-32B", 32.76e9, 32.76e9),
        ("meta-llama/Llama-3.1-8B-Instruct", 8.03e9, 8.03e9),
        ("meta-llama/Llama-3.1-70B-Instruct", 70.55e9, 70.55e9),
        ("mistralai/Mixtral-8x7B-v0.1", 46.7e9, 12.9e9),
        ("Qwen/Qwen3-235B-A22B", 235.1e9, 22.2e9),
        ("zai-org/GLM-4.5-Air", 106.85e9, 13.4e9),
        ("facebook/opt-13b", 12.85e9, 12.85e9),
    ],
)
def test_known_totals(name: str, total: float, active: float) -> None:
    arch = load_model(name)
    assert arch.params == pytest.approx(total, rel=0.002)
    assert arch.active_params == pytest.approx(active, rel=0.005)


def test_unhandled_are_what_they_should_be() -> None:
    reasons = {entry.name: entry.reason for entry in list_models() if not entry.handled}
    assert reasons.keys() == {
        "nvidia/Qwen3.6-27B-NVFP4",
        "nvidia/Qwen3.6-35B-A3B-NVFP4",
    }
    assert "no single weight precision" in reasons["nvidia/Qwen3.6-27B-NVFP4"]


def test_layers_timed_by_roofline_are_named() -> None:
    reasons = {entry.name: entry.reason for entry in list_models() if entry.handled}
    for name in ("google/gemma-3-27b-it", "openai/gpt-oss-120b", "Qwen/Qwen3-32B"):
        assert reasons[name] == ""
    for name, words in {
        "deepseek-ai/DeepSeek-R1": "MLA",
        "Qwen/Qwen3-Next-80B-A3B-Instruct": "linear attention",
        "Qwen/Qwen3.6-27B": "linear attention",
        "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": "state-space",
        "moonshotai/Kimi-K3": "linear attention",
        "MiniMaxAI/MiniMax-M3": "sparse attention",
        "deepseek-ai/DeepSeek-V4-Pro": "compressed attention",
        "zai-org/GLM-5": "sparse attention",
    }.items():
        assert words in reasons[name]


@pytest.mark.parametrize(
    ("alias", "name", "dtype"),
    [
        ("qwen3-32b", "Qwen/Qwen3-32B", "bf16"),
        ("QWEN/QWEN3-32B", "Qwen/Qwen3-32B", "bf16"),
        ("Qwen/Qwen3-32B@9216db5", "Qwen/Qwen3-32B", "bf16"),
        ("Qwen/Qwen3-32B-FP8", "Qwen/Qwen3-32B-FP8", "fp8"),
        ("Qwen/Qwen3-8B-FP8", "Qwen/Qwen3-8B", "fp8"),
        ("nvidia/Qwen3-32B-NVFP4", "Qwen/Qwen3-32B", "nvfp4"),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", "Qwen/Qwen3-30B-A3B", "bf16"),
        ("Qwen/Qwen3-235B-A22B-Instruct-2507-FP8", "Qwen/Qwen3-235B-A22B-FP8", "fp8"),
        ("Qwen/Qwen2.5-7B-Instruct-AWQ", "Qwen/Qwen2.5-7B-Instruct", "int4"),
        ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4", "Qwen/Qwen2.5-7B-Instruct", "int4"),
        ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int8", "Qwen/Qwen2.5-7B-Instruct", "int8"),
        ("meta-llama/Llama-3.1-70B", "meta-llama/Llama-3.1-70B-Instruct", "bf16"),
        ("meta-llama/Meta-Llama-3.1-8B", "meta-llama/Llama-3.1-8B-Instruct", "bf16"),
        ("meta-llama/Llama-2-70b-chat-hf", "meta-llama/Llama-2-70b-hf", "fp16"),
        ("meta-llama/Llama-3.1-405B-FP8", "meta-llama/Llama-3.1-405B-Instruct", "fp8"),
        ("mistralai/Mixtral-8x22B-Instruct-v0.1", "mistralai/Mixtral-8x22B-v0.1", "bf16"),
        (
            "RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w8a8",
            "meta-llama/Llama-3.1-8B-Instruct",
            "int8",
        ),
        ("RedHatAI/Qwen3-14B-FP8-dynamic", "Qwen/Qwen3-14B", "fp8"),
        ("nvidia/Llama-3.1-70B-Instruct-FP8", "nvidia/Llama-3.1-70B-Instruct-FP8", "fp8"),
    ],
)
def test_aliases(alias: str, name: str, dtype: str) -> None:
    arch = load_model(alias)
    assert arch.name == name
    assert arch.checkpoint_dtype == dtype


def test_alias_says_why() -> None:
    notes = load_model("Qwen/Qwen3-30B-A3B-Thinking-2507").assumed
    assert any(
        "'Qwen/Qwen3-30B-A3B-Thinking-2507' is read as the catalogue's 'Qwen/Qwen3-30B-A3B': "
        "same architecture, suffixes '-Thinking', '-2507' dropped" in note
        for note in notes
    )
    assert load_model("QWEN/qwen3-8b").assumed == load_model("Qwen/Qwen3-8B").assumed


def test_unverified_shapes_are_assumed() -> None:
    arch = load_model("meta-llama/Llama-2-13b-hf")
    assert not arch.verified
    assert any("not read from a file of this model" in note for note in arch.assumed)


def test_unhandled_alias_names_both() -> None:
    name = "nvidia/Qwen3.6-27B-FP4"
    with pytest.raises(NotYetError, match=r"Qwen3.6-27B.*is read as"):
        load_model(name)


@pytest.mark.parametrize(
    "name", ["Qwen3-33B", "someone/Qwen3-32B", "gpt-5", "Qwen3-32B-GGUF", "FP8", "x" * 5000, "a\0b"]
)
def test_unknown_names_get_the_nearest_three(name: str) -> None:
    with pytest.raises(CatalogError, match=r"nearest: [^,]+, [^,]+, [^,]+\."):
        load_model(name)


def test_nearest_ignores_organisation_and_case() -> None:
    with pytest.raises(CatalogError, match="nearest: Qwen/Qwen3-32B"):
        load_model("qwen3-32x")
    with pytest.raises(CatalogError, match="empty"):
        load_model(" ")


def test_config_paths(tmp_path: Path) -> None:
    config = published("Qwen/Qwen3-32B")["config"]
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    by_file = load_model("config.json", base_dir=tmp_path)
    by_folder = load_model(str(tmp_path))
    assert by_file.params == by_folder.params == load_model("Qwen/Qwen3-32B").params
    assert by_file.source == str(tmp_path / "config.json")
    with pytest.raises(CatalogError, match="no such file"):
        load_model("missing.json", base_dir=tmp_path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[1]", "found a JSON list"),
        ("{", "not a JSON object"),
        ('{"hidden_size": NaN}', "not a JSON object"),
        ('{"a": 1, "a": 2}', "key a given twice"),
        ("[" * 100_000, "not a JSON object"),
        ("{}", "num_hidden_layers|hidden_size"),
    ],
)
def test_bad_config_files(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(CatalogError, match=words):
        load_model(str(tmp_path))


def test_config_file_is_limited_in_size(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(" " * 10_000_001, encoding="utf-8")
    with pytest.raises(CatalogError, match="at most 10000000 bytes"):
        load_model(str(path))
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(CatalogError, match="cannot be read"):
        load_model(str(path))


INLINE = {
    "name": "Qwen3.6-27B",
    "params": "27.0e9",  # YAML 1.1 reads this as text
    "width": 5120,
    "layers": 64,
    "heads": 24,
    "kv_layers": 16,
    "kv_heads": 4,
    "head_dim": 256,
}


def test_inline_facts() -> None:
    arch = inline_model(INLINE)
    assert arch.params == arch.active_params == 27e9
    assert (arch.num_hidden_layers, arch.num_kv_layers, arch.head_dim) == (64, 16, 256)
    assert arch.assumed == ()
    assert not arch.is_detailed


def test_inline_defaults_are_assumed() -> None:
    arch = inline_model({"params": 7e9, "width": 4096, "layers": 32, "heads": 32})
    assert (arch.num_kv_layers, arch.num_key_value_heads, arch.head_dim) == (32, 32, 128)
    assert len(arch.assumed) == 3


def test_inline_experts() -> None:
    facts = {"params": 46.7e9, "width": 4096, "layers": 32, "heads": 32, "kv_heads": 8}
    arch = inline_model({**facts, "experts": 8, "experts_per_token": 2, "intermediate_size": 14336})
    assert arch.active_params == pytest.approx(12.88e9, rel=0.002)
    with pytest.raises(CatalogError, match="missing keys experts_per_token, intermediate_size"):
        inline_model({**facts, "experts": 8})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"colour": 1}, "unknown key colour"),
        ({"params": None, "heads": None}, "missing keys params, heads"),
        ({"layers": 0}, "layers is 0"),
        ({"layers": 2.5}, "layers is 2.5"),
        ({"params": float("inf")}, "params is inf"),
        ({"params": -1}, "params is -1"),
        ({"kv_heads": 5}, "kv_heads is 5"),
        ({"kv_layers": 65}, "kv_layers is 65"),
        ({"head_dim": None}, "width is 5120"),
        ({"ffn_projections": 4}, "ffn_projections is 4"),
        ({"active_params": 28e9}, "active_params"),
        ({"width": True}, "width is True"),
    ],
)
def test_bad_inline_facts(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(CatalogError, match=words):
        inline_model({**INLINE, **changes})
