"""Every architecture family of the catalogue, described layer by layer."""

from __future__ import annotations

from collections import Counter

import pytest

from sieve.catalog.hf_config import architecture_from_config
from sieve.catalog.matrices import counted_params, layer_plans, padded_vocabulary
from sieve.catalog.models import list_models, load_model, require_step_time
from sieve.errors import CatalogError, NotYetError

# Published totals that are rounded, or count parts that an engine does not load.
ROUNDED = {
    "Qwen/Qwen3-32B": 0.025,
    "google/gemma-4-26B-A4B": 0.03,
    "google/gemma-4-E4B-it": 0.061,  # with its audio and vision parts
    "moonshotai/Kimi-K2-Instruct": 0.027,
    "moonshotai/Kimi-K2.5": 0.027,
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": 0.053,
    "openai/gpt-oss-120b": 0.027,
}


@pytest.mark.parametrize("name", [entry.name for entry in list_models() if not entry.handled])
def test_described_models_have_the_published_size(name: str) -> None:
    published = {entry.name: entry.params for entry in list_models()}[name]
    model = load_model(name, any_family=True)
    total, active = counted_params(model)
    assert total == model.params
    assert total == pytest.approx(published, rel=ROUNDED.get(name, 0.02))
    assert active <= total
    assert len(layer_plans(model)) == model.num_hidden_layers


@pytest.mark.parametrize("name", [entry.name for entry in list_models() if entry.handled])
def test_matrices_sum_to_the_parameters_of_plain_models(name: str) -> None:
    model = load_model(name)
    total, active = counted_params(model)
    padding = (padded_vocabulary(model) - (model.vocab_size or 0)) * model.hidden_size
    padding *= 1 if model.tie_word_embeddings else 2
    assert total == pytest.approx(model.params + padding, rel=1e-4)
    assert active == pytest.approx(model.active_params + padding, rel=1e-4)


def test_step_times_are_asked_for() -> None:
    name = "nvidia/Qwen3.6-35B-A3B-NVFP4"
    model = load_model(name, any_family=True)
    with pytest.raises(NotYetError, match="no single weight precision"):
        require_step_time(model)
    with pytest.raises(NotYetError):
        load_model(name)
    latent_experts = load_model("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-FP8")
    assert latent_experts.unmodelled_step_time == ()
    assert load_model("deepseek-ai/DeepSeek-R1-0528").unmodelled_step_time == ()
    require_step_time(load_model("Qwen/Qwen3-32B"))
    mixed = load_model("nvidia/Qwen3.6-27B-NVFP4", any_family=True)
    assert mixed.checkpoint_dtype == "nvfp4"
    assert "no single weight precision" in mixed.unmodelled_step_time[-1]


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("google/gemma-2-9b-it", {"window": 21, "full": 21}),
        ("google/gemma-3-4b-it", {"window": 29, "full": 5}),
        ("google/gemma-4-31B-it", {"window": 50, "full": 10}),
        ("openai/gpt-oss-20b", {"window": 12, "full": 12}),
        ("allenai/Olmo-3-32B", {"window": 48, "full": 16}),
        ("mistralai/Mistral-7B-v0.1", {"window": 32}),
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", {"chunk": 36, "full": 12}),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", {"state": 36, "full": 12}),
        ("moonshotai/Kimi-K3", {"state": 69, "latent": 24}),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", {"state": 23, "full": 6, "": 23}),
        ("deepseek-ai/DeepSeek-V4-Flash", {"compressed": 43}),
        ("MiniMaxAI/MiniMax-M3", {"full": 60}),
        ("zai-org/GLM-5.2", {"latent": 78}),
    ],
)
def test_kinds_of_layers(name: str, kinds: dict[str, int]) -> None:
    plans = layer_plans(load_model(name, any_family=True))
    assert Counter(plan.kind.kind if plan.kind else "" for plan in plans) == kinds


def test_indexers_are_where_the_config_has_them() -> None:
    plans = layer_plans(load_model("zai-org/GLM-5.2", any_family=True))
    assert sum(1 for plan in plans if plan.kind and plan.kind.index_dim) == 21
    sparse = layer_plans(load_model("MiniMaxAI/MiniMax-M3", any_family=True))
    assert [bool(plan.kind and plan.kind.index_dim) for plan in sparse[:4]] == [False] * 3 + [True]


def test_interleaved_experts() -> None:
    plans = layer_plans(
        load_model("meta-llama/Llama-4-Maverick-17B-128E-Instruct", any_family=True)
    )
    assert [plan.ffn for plan in plans[:4]] == ["dense", "moe", "dense", "moe"]
    beside = layer_plans(load_model("google/gemma-4-26B-A4B", any_family=True))
    assert {plan.ffn for plan in beside} == {"dense+moe"}


def test_gemma_3_is_not_stretched_twice() -> None:
    model = load_model("google/gemma-3-27b-it", any_family=True)
    assert model.max_position_embeddings == 131_072
    assert any("model card" in note for note in model.assumed)


def test_vision_parts_are_counted_apart() -> None:
    model = load_model("google/gemma-3-4b-it", any_family=True)
    assert model.multimodal
    assert model.vision_params == 420_000_000
    assert not load_model("google/gemma-2-9b-it", any_family=True).multimodal


def test_lists_that_do_not_fit_are_refused() -> None:
    config = {
        "architectures": ["MistralForCausalLM"], "hidden_size": 512, "intermediate_size": 1024,
        "num_attention_heads": 8, "num_hidden_layers": 4, "vocab_size": 1000,
        "max_position_embeddings": 8192, "torch_dtype": "bfloat16", "sliding_window": 1024,
        "layer_types": ["full_attention", "sliding_attention"],
    }  # fmt: skip
    with pytest.raises(CatalogError, match="layer_types has 2 entries"):
        architecture_from_config(config, name="m", source="t", any_family=True)
    config["layer_types"] = ["full_attention", "new_attention"] * 2
    with pytest.raises(NotYetError, match=r"not described|not known"):
        architecture_from_config(config, name="m", source="t", any_family=True)
    config["layer_types"] = ["full_attention", "sliding_attention"] * 2
    model = architecture_from_config(config, name="m", source="t", any_family=True)
    assert [kind.kind for kind in model.kinds] == ["full", "window"]


@pytest.mark.parametrize(
    "label", ["JambaForCausalLM", "MambaForCausalLM", "MllamaForConditionalGeneration"]
)
def test_classes_that_are_not_described_stay_refused(label: str) -> None:
    config = {
        "architectures": [label], "hidden_size": 512, "intermediate_size": 1024,
        "num_attention_heads": 8, "num_hidden_layers": 4, "vocab_size": 1000,
        "max_position_embeddings": 8192, "torch_dtype": "bfloat16",
    }  # fmt: skip
    with pytest.raises(NotYetError):
        architecture_from_config(config, name="m", source="t", any_family=True)
