"""`sieve bound`: from catalogue names to ceilings, and how they are shown."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from sieve.bounds_of import (
    KV_BYTES,
    WEIGHT_BYTES,
    Speculation,
    bound,
    model_inputs,
    multiplied_params,
)
from sieve.catalog.accelerators import inline_gpu, load_gpu
from sieve.catalog.architecture import LayerKind, ModelArchitecture, StateFacts
from sieve.catalog.models import inline_model, load_model
from sieve.cli.bound import bound as command
from sieve.errors import CatalogError, InvalidInput

H100 = "H100-SXM-80GB"
DENSE = load_model("Qwen/Qwen3-32B")
MOE = load_model("Qwen/Qwen3-30B-A3B")
GPU = load_gpu(H100)

app = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None)
app.command("bound")(command)


def run(*args: str) -> str:
    done = CliRunner().invoke(app, list(args), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def document(*args: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(run(*args, "--json"))
    return data


def test_dense_model_by_hand() -> None:
    """Qwen3-32B: 64 layers, 8 KV heads of 128, width 5,120, 151,936 untied tokens."""
    found = bound(DENSE, GPU, context_tokens=4096, read_context_tokens=2048, prompt_tokens=1024)
    decode, prefill = found["decode"], found["prefill"]
    token = 2 * 64 * 8 * 128 * 2
    swept = 2 * (DENSE.params - 151_936 * 5_120)
    margin = GPU.memory_bytes - 8e9 - 2 * DENSE.params
    assert decode["margin_bytes"] == pytest.approx(margin)
    assert decode["b_mem"] == int(margin / (4096 * token))
    rate = GPU.mem_bw_bytes_per_s
    assert decode["single_tokens_per_s"] == pytest.approx(rate / (swept + 2048 * token))
    batch = decode["b_star"]
    assert decode["aggregate_tokens_per_s"] == pytest.approx(
        rate * batch / (swept + batch * 2048 * token)
    )
    assert decode["memory_power_tokens_per_s"] == pytest.approx(
        rate * margin / (4096 * token * swept)
    )
    layer = 5_120 * (64 + 8 + 8 + 64) * 128 + 3 * 5_120 * 25_600
    assert multiplied_params(DENSE) == 64 * layer
    pairs = 1024 * 1025 / 2
    flop = 2 * 1024 * 64 * layer + 4 * 64 * 64 * 128 * pairs
    assert prefill["one_prompt"]["compute_s"] == pytest.approx(flop / GPU.flops_per_s["bf16"])
    assert prefill["one_prompt"]["memory_s"] == pytest.approx((swept + 1024 * token) / rate)


def test_mixture_sweeps_its_active_part_at_least() -> None:
    weights = model_inputs(MOE, 2.0, 2.0, "floor")["weights"]
    embedding = 151_936 * 2_048
    floor = bound(MOE, GPU, batches=[64])
    one = GPU.mem_bw_bytes_per_s / floor["decode"]["single_tokens_per_s"]
    read = floor["assumptions"]["read_context_tokens"] * 2 * 48 * 4 * 128 * 2
    assert one - read == pytest.approx(2 * (MOE.active_params - embedding))
    assert (weights["experts"], weights["top_k"]) == (128, 8)
    expected = bound(MOE, GPU, batches=[64], expert_traffic="expected")
    ends = [d["decode"]["batches"][0]["aggregate_tokens_per_s"] for d in (floor, expected)]
    assert ends[0] > ends[1]
    shared = 48 * 2_048 * (2 * (32 + 4) * 128)
    assert multiplied_params(MOE) == shared + 48 * 3 * 2_048 * 8 * 768


def test_every_number_has_a_kind() -> None:
    for traffic, kind in (("floor", "bound"), ("expected", "estimate")):
        found = bound(MOE, GPU, expert_traffic=traffic, speculation=Speculation(3))
        decode, prefill = found["decode"]["kinds"], found["prefill"]["kinds"]
        assert decode["aggregate_tokens_per_s"] == decode["b_star"] == kind
        assert prefill["rate_tokens_per_s"] == prefill["memory_tokens_per_s"] == kind
        # What does not depend on the visited experts stays a bound.
        assert decode["memory_power_tokens_per_s"] == prefill["compute_tokens_per_s"] == "bound"
        assert decode["b_mem"] == "exact"
        assert found["speculative"]["kinds"]["batches"] == kind
    figures = {k for k, v in found["decode"].items() if isinstance(v, int | float)}
    assert figures <= decode.keys() | {"b_usable"}
    shown = found["prefill"]["one_prompt"].keys() | {"memory_power_tokens_per_s"}
    assert shown <= prefill.keys()
    assert bound(DENSE, GPU, expert_traffic="expected")["decode"]["kinds"]["b_star"] == "bound"


def test_acceptance_below_one_is_an_estimate() -> None:
    draft = load_model("Qwen/Qwen3-0.6B")
    found = bound(DENSE, GPU, num_gpus=2, speculation=Speculation(3, 0.8, draft), batches=[1, 8])
    part = found["speculative"]
    assert (part["draft"], part["kinds"]["batches"]) == (draft.name, "estimate")
    assert part["rho"] == pytest.approx(1 + 0.8 + 0.64 + 0.512)
    assert part["b_mem"] < found["decode"]["b_mem"]
    for row in part["batches"]:
        assert row["aggregate_tokens_per_s"] == min(
            row["memory_tokens_per_s"], row["compute_tokens_per_s"]
        )


def test_gates_in_order() -> None:
    small = inline_gpu({"name": "small", "like": H100, "memory_gb": 60})
    cases = {
        "does_not_fit": (small, {}, [False, None, None]),
        "resident_only": (GPU, {"context_tokens": 500_000}, [True, False, None]),
        "no_floor": (GPU, {"floor_tokens_per_s": 500.0}, [True, True, False]),
        "floor_fit": (GPU, {}, [True, True, True]),
    }
    for state, (gpu, changes, passed) in cases.items():
        found = bound(DENSE, gpu, **{"context_tokens": 8192, **changes})["decode"]
        assert found["state"] == state
        assert [gate["passed"] for gate in found["gates"]] == passed
        assert (found["aggregate_tokens_per_s"] is None) == (state != "floor_fit")
    assert [gate["gate"] for gate in found["gates"]] == ["resident", "session", "floor"]


def test_more_gpus_count_as_one_larger() -> None:
    one, two = (bound(DENSE, GPU, num_gpus=n, context_tokens=4096)["decode"] for n in (1, 2))
    assert two["single_tokens_per_s"] == pytest.approx(2 * one["single_tokens_per_s"])
    lost = 2 * DENSE.params
    assert two["margin_bytes"] + lost == pytest.approx(2 * (one["margin_bytes"] + lost))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, (40_960, 36_864)),
        ({"context_tokens": 8_192}, (8_192, 7_372)),
        ({"context_tokens": 1}, (1, 1)),
        ({"context_tokens": 400_000}, (400_000, 368_000)),
        ({"read_context_tokens": 50_000}, (50_000, 50_000)),
        ({"context_tokens": 9, "read_context_tokens": 7}, (9, 7)),
    ],
)
def test_default_contexts(given: dict[str, int], expected: tuple[int, int]) -> None:
    facts = bound(DENSE, GPU, num_gpus=8, **given)["assumptions"]
    assert (facts["context_tokens"], facts["read_context_tokens"]) == expected


def test_a_long_model_takes_the_advised_contexts() -> None:
    facts = bound(load_model("Llama-3.1-8B"), GPU)["assumptions"]
    assert (facts["context_tokens"], facts["read_context_tokens"]) == (100_000, 32_000)


def test_unknown_arithmetic_is_unavailable() -> None:
    gpu = replace(GPU, flops_per_s={})
    found = bound(DENSE, gpu, speculation=Speculation(2))
    assert found["prefill"]["limit"] == found["prefill"]["best"]["state"] == "unavailable"
    assert found["prefill"]["crossover_tokens"] is None
    assert found["assumptions"]["linear_mode"] == "unavailable"
    assert found["decode"]["state"] == "floor_fit"
    assert found["speculative"]["batches"][0]["compute_tokens_per_s"] is None


def test_gpu_without_data_is_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match=r"H100-SXM-80GB: its memory bandwidth is not known"):
        bound(DENSE, replace(GPU, mem_bw_bytes_per_s=0.0))
    with pytest.raises(CatalogError, match="nearest"):
        run("qwen3-32b", "--gpu", "H300")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_gpus": 0}, "num_gpus is 0"),
        ({"context_tokens": 10, "read_context_tokens": 11}, "at most the context, 10"),
        ({"context_tokens": 10, "prompt_tokens": 11}, "at most the reserved context of 10"),
        ({"overhead_bytes": -1.0}, "overhead is -1"),
        ({"floor_tokens_per_s": 0.0}, "floor is 0"),
        ({"floor_tokens_per_s": float("nan")}, "finite"),
        ({"ttft_s": -0.5}, "ttft is -0.5"),
        ({"batches": [0]}, "at least 1"),
        ({"expert_traffic": "some"}, "allowed: floor, expected"),
        ({"weight_dtype": "fp7"}, "allowed: bf16"),
        ({"kv_cache_dtype": "fp7"}, "allowed: auto"),
        ({"speculation": Speculation(-1)}, "gamma is -1"),
        ({"speculation": Speculation(1, 1.5)}, "alpha is 1.5"),
    ],
)
def test_bad_values_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        bound(DENSE, GPU, **changes)


def test_inline_facts_give_estimates() -> None:
    facts = {
        "name": "mine", "params": 27e9, "width": 5120, "layers": 64, "heads": 24, "kv_layers": 16,
        "kv_heads": 4, "head_dim": 256,
    }  # fmt: skip
    found = bound(inline_model(facts), GPU, weight_dtype="fp8", context_tokens=8192)
    assert found["decode"]["kinds"]["single_tokens_per_s"] == "estimate"
    assert found["assumptions"]["kv_bytes_per_token"] == 65_536
    assert any("estimates and no bounds" in note for note in found["assumptions"]["notes"])


def hybrid() -> ModelArchitecture:
    """Two full layers, three with a window of 100, one recurrent, one that shares a cache."""
    full = LayerKind(
        "full", num_attention_heads=8, num_key_value_heads=2, head_dim=16, v_head_dim=8
    )
    window = replace(full, kind="window", window_tokens=100, v_head_dim=16)
    state = StateFacts("gdn", 4, 64, 32, 4, 4, 4, 8, 8)
    return replace(
        DENSE,
        kinds=(full, window, LayerKind("state", state=state), replace(full, stores_kv=False)),
        layer_kinds=(0, 1, 1, 1, 0, 2, 3, -1),
    )


def test_layers_of_several_kinds() -> None:
    inputs = model_inputs(hybrid(), 2.0, 2.0, "floor")
    full, window, state = 2 * 2 * (16 + 8), 2 * 2 * 32, 4 * 64 * 4 + 32 * 3 * 2
    assert inputs["kv_alloc"] == {
        "kind": "hybrid", "global": 2 * full, "local": [[3 * window, 100]], "state": state,
    }  # fmt: skip
    assert inputs["kv_read"] == {
        "kind": "hybrid", "global": 3 * full, "local": [[3 * window, 99]], "state": state,
    }  # fmt: skip
    assert inputs["kv_write_per_token"] == 2 * full + 3 * window
    assert inputs["attention"] == {
        "global": 3 * 2 * 8 * 24, "local": [[3 * 2 * 8 * 32, 100]], "state": 0.0,
    }  # fmt: skip
    assert bound(hybrid(), GPU)["assumptions"]["kv_adapter"] == "hybrid"


def test_selection_counts_only_what_cannot_be_avoided() -> None:
    latent = LayerKind(
        "latent", 16, 1, head_dim=576, v_head_dim=128, kv_lora_rank=512, qk_rope_head_dim=64,
        qk_nope_head_dim=128,
    )  # fmt: skip
    sparse = replace(latent, index_heads=4, index_dim=128)
    compressed = LayerKind("compressed", 16, 1, 512, 512, window_tokens=128, compress_ratio=4)
    chunk = LayerKind("chunk", 8, 2, 16, 16, window_tokens=1024)
    costs = {
        kind: model_inputs(replace(DENSE, kinds=(layer,), layer_kinds=(0,)), 2.0, 2.0, "floor")
        for kind, layer in (
            ("latent", latent), ("sparse", sparse), ("compressed", compressed), ("chunk", chunk),
        )
    }  # fmt: skip
    assert costs["latent"]["kv_read"]["global"] == 2 * 576
    assert costs["latent"]["attention"]["global"] == 2 * 16 * (128 + 64 + 128)
    assert costs["sparse"]["kv_read"]["global"] == 2 * 128
    assert costs["sparse"]["kv_alloc"]["global"] == 2 * (576 + 128)
    assert costs["compressed"]["kv_alloc"]["global"] == 2 * 512 / 4
    assert costs["compressed"]["kv_alloc"]["local"] == [[2 * 512, 128]]
    assert costs["chunk"]["kv_alloc"]["local"] == [[2 * 2 * 32, 1024]]
    for kind in ("sparse", "compressed", "chunk"):
        assert costs[kind]["attention"] == {"global": 0.0, "local": [], "state": 0.0}


def test_a_checkpoint_in_two_precisions_counts_at_the_smaller() -> None:
    mixed = replace(MOE, checkpoint_dtype="fp8", expert_dtype="mxfp4")
    facts = bound(mixed, GPU)["assumptions"]
    assert (facts["weight_dtype"], facts["weight_bytes_per_param"]) == ("mxfp4", 0.53125)
    assert bound(mixed, GPU, weight_dtype="bf16")["assumptions"]["weight_dtype"] == "bf16"


def test_precisions_are_those_of_the_grid() -> None:
    from sieve.grid import axes

    assert {name: sizes[0] for name, sizes in axes.PRECISIONS.items()} == WEIGHT_BYTES
    assert axes.KV_BYTES.items() <= KV_BYTES.items()


def test_arithmetic_mode_follows_the_weights() -> None:
    a100 = load_gpu("A100-SXM-80GB")
    modes = [
        bound(DENSE, gpu, weight_dtype=dtype, context_tokens=2048)["assumptions"]["linear_mode"]
        for gpu, dtype in ((GPU, "fp8"), (a100, "fp8"), (a100, "int8"), (GPU, "int4"))
    ]
    assert modes == ["fp8", "bf16", "int8", "bf16"]
    cached = bound(DENSE, GPU, kv_cache_dtype="fp8")["assumptions"]
    assert (cached["attention_mode"], cached["kv_bytes_per_token"]) == ("fp8", 131_072)


def test_command_shows_gates_ceilings_and_assumptions() -> None:
    text = run(
        "qwen3-30b-a3b", "--gpu", "h100", "--tp", "2", "--ttft", "500 ms", "--batch", "64",
        "--gamma", "3", "--alpha", "0.8", "--draft", "qwen3-0.6b", "--chunk", "512",
        "--expert-traffic", "expected",
    )  # fmt: skip
    for words in (
        "2 × H100-SXM-80GB", "resident", "passed", "memory-power", "KV-aware", "estimate", "bound",
        "exact", "memory overhead 8.00 GB", "expert traffic: expected", "chunks of 512",
        "cache gate reserve", "Speculative decoding: 3 tokens drafted", "Best batch within 500 ms",
    ):  # fmt: skip
        assert words in text
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--gpu", "l40s"), "nothing can run"),
        (("--gpu", "h100", "--context", "500000"), "not one session"),
        (("--gpu", "h100", "--floor", "500"), "no batch gives each of them the floor"),
        (("--gpu", "h100", "--ttft", "0.001"), "longer than the TTFT budget"),
    ],
)
def test_command_names_each_state(args: tuple[str, ...], words: str) -> None:
    assert words in " ".join(run("qwen3-32b", *args).split())


def test_json_is_the_document() -> None:
    args = ("qwen3-32b", "--gpu", "h100", "--prompt", "4096", "--overhead-gb", "4")
    found = document(*args)
    assert found == json.loads(
        json.dumps(bound(load_model("qwen3-32b"), load_gpu("h100"), prompt_tokens=4096,
                         overhead_bytes=4e9))
    )  # fmt: skip


def test_draft_without_gamma_is_refused() -> None:
    with pytest.raises(InvalidInput, match="--gamma"):
        run("qwen3-32b", "--gpu", "h100", "--alpha", "0.5")


def test_answers_load_neither_polars_nor_numpy() -> None:
    code = (
        "import sys; from sieve.cli.bound import bound; bound('qwen3-32b', 'h100', as_json=True); "
        "assert not {'polars', 'numpy', 'pydantic', 'numba'} & {m for m in sys.modules}"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL, timeout=600)


def test_the_example_of_the_page_is_real(monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "bounds.md").read_text(encoding="utf-8")
    line = re.search(r"^\$ sieve bound (.*?)^```", page, re.DOTALL | re.MULTILINE)
    shown = re.search(r"^```text\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert line is not None
    assert shown is not None
    monkeypatch.setenv("COLUMNS", "80")
    printed = run(*shlex.split(line[1].replace("\\\n", " ")))
    assert [text.rstrip() for text in printed.splitlines()] == shown[1].splitlines()
