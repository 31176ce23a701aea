"""Models that another entry of the catalogue describes."""

from __future__ import annotations

import pytest

from sieve.catalog.model_twins import TWINS
from sieve.catalog.models import list_models, load_model
from sieve.errors import CatalogError


def test_every_twin_is_an_entry_and_none_hides_one() -> None:
    entries = {entry.name for entry in list_models()}
    assert {twin.entry for twin in TWINS.values()} <= entries


@pytest.mark.parametrize(
    ("name", "entry", "layers", "hidden", "inner"),
    [  # layers, width and feed-forward width as in the models' own config.json
        ("meta-llama/Meta-Llama-3-70B", "meta-llama/Llama-3.1-70B-Instruct", 80, 8192, 28672),
        ("Qwen/Qwen2-7B-Instruct", "Qwen/Qwen2.5-7B-Instruct", 28, 3584, 18944),
        ("Qwen/Qwen2-72B", "Qwen/Qwen2.5-72B-Instruct", 80, 8192, 29568),
        ("huggyllama/llama-7b", "meta-llama/Llama-2-7b-hf", 32, 4096, 11008),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-32B", "Qwen/Qwen2.5-32B-Instruct", 64, 5120, 27648),
    ],
)
def test_a_twin_has_the_layers_of_the_model(
    name: str, entry: str, layers: int, hidden: int, inner: int
) -> None:
    model = load_model(name, any_family=True)
    assert model.name == entry
    assert (model.num_hidden_layers, model.hidden_size) == (layers, hidden)
    assert model.intermediate_size == inner
    assert not model.context_limit_sure
    assert any("is read as the catalogue's" in note for note in model.assumed)


def test_a_requantised_twin_keeps_its_precision() -> None:
    model = load_model("nvidia/DeepSeek-V3.1-NVFP4", any_family=True)
    assert (model.name, model.checkpoint_dtype) == ("deepseek-ai/DeepSeek-V3", "nvfp4")


def test_the_name_of_another_maker_is_no_twin() -> None:
    with pytest.raises(CatalogError, match="unknown model"):
        load_model("someone-else/Qwen2-7B", any_family=True)
