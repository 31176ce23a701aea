"""Sizes of checkpoints from the headers of their files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sieve.catalog.models import load_model, with_stored_weights
from sieve.catalog.safetensors import INDEX_NAME, StoredWeights, read_stored_weights
from sieve.errors import CatalogError
from sieve.fit_of import Fit, configure, fit
from sieve.memory.formats import weight_format
from sieve.memory.weights import checkpoint_bytes

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 1024,
    "intermediate_size": 4096, "num_attention_heads": 16, "num_key_value_heads": 8,
    "num_hidden_layers": 4, "vocab_size": 32_000, "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip


def write(path: Path, tensors: dict[str, tuple[str, list[int], int]], **extra: Any) -> None:
    """Write a file with a header and no tensors."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}, **extra}
    place = 0
    for name, (dtype, shape, size) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [place, place + size]}
        place += size
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text)


def tensors(dtype: str = "BF16", size: int = 2) -> dict[str, tuple[str, list[int], int]]:
    """Return the tensors of CONFIG."""
    shapes: dict[str, list[int]] = {
        "model.embed_tokens.weight": [32_000, 1024],
        "lm_head.weight": [32_000, 1024],
        "model.norm.weight": [1024],
    }
    for layer in range(4):
        at = f"model.layers.{layer}."
        shapes |= {
            f"{at}self_attn.q_proj.weight": [1024, 1024],
            f"{at}self_attn.k_proj.weight": [512, 1024],
            f"{at}self_attn.v_proj.weight": [512, 1024],
            f"{at}self_attn.o_proj.weight": [1024, 1024],
            f"{at}mlp.gate_proj.weight": [4096, 1024],
            f"{at}mlp.up_proj.weight": [4096, 1024],
            f"{at}mlp.down_proj.weight": [1024, 4096],
            f"{at}input_layernorm.weight": [1024],
            f"{at}post_attention_layernorm.weight": [1024],
        }
    out = {}
    for name, shape in shapes.items():
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        out[name] = (dtype, shape, count * size)
    return out


def read(folder: Path, **changes: Any) -> StoredWeights | None:
    given = {"num_layers": 4, "tied": False, "in_16_bits": True} | changes
    return read_stored_weights(folder, **given)


def total(found: dict[str, tuple[str, list[int], int]]) -> int:
    return sum(size for _, _, size in found.values())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    return tmp_path


def judged(folder: Path, **options: Any) -> Fit:
    return fit(configure(str(folder), "L4-24GB", max_model_len=1024, **options))


def test_one_file(folder: Path) -> None:
    assert read(folder) is None
    write(folder / "model.safetensors", tensors())
    found = read(folder)
    assert found == StoredWeights(
        "headers of 1 file", total(tensors()), (("BF16", total(tensors())),), 39, 0
    )
    model = load_model(str(folder), any_family=True)
    own = weight_format(model, "auto")
    assert checkpoint_bytes(model, own.linear_bytes, own.expert_bytes) == total(tensors())
    assert model.stored_bytes == 0  # runs do not look at the files
    assert with_stored_weights(model, str(folder)).stored_bytes == total(tensors())


def test_the_ledger_is_scaled(folder: Path) -> None:
    plain = judged(folder).stages[0].weight_bytes
    write(folder / "model.safetensors", tensors())
    exact = judged(folder)
    assert exact.stages[0].weight_bytes == pytest.approx(plain)
    assert not any("config may be" in note for note in exact.notes)
    more = tensors() | {"model.extra.weight": ("BF16", [10_000, 1024], 20_480_000)}
    write(folder / "model.safetensors", more)
    larger = judged(folder)
    share = total(more) / total(tensors())
    assert larger.stages[0].weight_bytes == pytest.approx(plain * share, rel=1e-3)
    assert any("+8.0% away" in note for note in larger.notes)
    halves = judged(folder, tp=2)
    assert halves.stages[0].weight_bytes < 0.6 * larger.stages[0].weight_bytes
    other = judged(folder, weight_dtype="fp8")
    assert any("served in another format" in note for note in other.notes)


def test_files_and_their_index(folder: Path) -> None:
    every = list(tensors().items())
    write(folder / "a.safetensors", dict(every[:20]))
    write(folder / "b.safetensors", dict(every[20:]))
    places = {name: "a.safetensors" for name, _ in every[:20]}
    places |= {name: "b.safetensors" for name, _ in every[20:]}
    index = {"metadata": {"total_size": total(tensors())}, "weight_map": places}
    (folder / INDEX_NAME).write_text(json.dumps(index), encoding="utf-8")
    found = read(folder)
    assert found is not None
    assert (found.num_bytes, found.source) == (total(tensors()), "headers of 2 files")
    (folder / "b.safetensors").unlink()
    found = read(folder)
    assert found is not None
    assert (found.num_bytes, found.source) == (total(tensors()), "total of the index")
    # The total counts what is not loaded, and the index does not say how large that is.
    assert read(folder, num_layers=3) is None


def test_what_the_engine_does_not_load(folder: Path) -> None:
    more = tensors() | {
        "model.layers.4.mlp.gate_proj.weight": ("BF16", [8, 8], 128),
        "mtp.layers.0.weight": ("BF16", [8, 8], 128),
        "model.layers.0.self_attn.rotary_emb.inv_freq": ("F32", [64], 256),
        "vision_tower.layers.20.weight": ("BF16", [8, 8], 128),
    }
    write(folder / "model.safetensors", more)
    found = read(folder)
    assert found is not None
    assert (found.num_bytes, found.num_skipped) == (total(tensors()) + 128, 3)
    tied = read(folder, tied=True)
    assert tied is not None
    assert tied.num_bytes == found.num_bytes - 32_000 * 1024 * 2


def test_wide_tensors_are_cut(folder: Path) -> None:
    write(folder / "model.safetensors", tensors("F32", 4))
    found = read(folder)
    assert found is not None
    assert found.num_bytes == total(tensors())
    assert "wider than 16 bits" in found.notes[0]
    kept = read(folder, in_16_bits=False)
    assert kept is not None
    assert kept.num_bytes == 2 * total(tensors())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "a header of 0 bytes"),
        (b"\xff" * 100, "allowed are"),
        ((2**40).to_bytes(8, "little") + b"{}", "allowed are"),
        ((2).to_bytes(8, "little") + b"[]", "no JSON object"),
        ((2).to_bytes(8, "little") + b"{x", "not JSON"),
    ],
)
def test_damaged_headers(folder: Path, content: bytes, message: str) -> None:
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(CatalogError, match=message):
        read(folder)


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        ({"dtype": "BF16", "shape": [2, 2], "data_offsets": [0, 9]}, "takes 9 bytes: damaged"),
        ({"dtype": "BF16", "shape": [-2, 2], "data_offsets": [0, 8]}, "impossible"),
        ({"dtype": "BF16", "shape": [2], "data_offsets": [8, 4]}, "impossible"),
        ({"dtype": "BF16"}, "has no dtype"),
        (7, "has no dtype"),
    ],
)
def test_damaged_tensors(folder: Path, tensor: Any, message: str) -> None:
    write(folder / "model.safetensors", {}, bad=tensor)
    with pytest.raises(CatalogError, match=message):
        read(folder)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ("[]", "not a JSON object"),
        ("{}", "weight_map is missing"),
        ('{"weight_map": {"a": "../../etc/passwd"}}', "no file beside the index"),
        ('{"weight_map": {"a": 3}}', "no file beside the index"),
        ('{"metadata": {"total_size": -4}, "weight_map": {"a": "b"}}', "expected a number"),
        ('{"metadata": {"total_size": NaN}, "weight_map": {"a": "b"}}', "not a JSON object"),
    ],
)
def test_damaged_indices(folder: Path, index: str, message: str) -> None:
    (folder / INDEX_NAME).write_text(index, encoding="utf-8")
    with pytest.raises(CatalogError, match=message):
        read(folder)
