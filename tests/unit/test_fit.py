"""One deployment: its rules, its ledger, what would help; the commands on top."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from sieve.catalog.accelerators import load_gpu
from sieve.catalog.architecture import Gpu
from sieve.catalog.models import inline_model, load_model
from sieve.cli.fit import check as check_command
from sieve.cli.fit import fit as fit_command
from sieve.cli.verify_memory import memory as memory_command
from sieve.errors import CatalogError, InvalidInput
from sieve.fit_of import Fit, check, configure, document, fit
from sieve.units import GIB

APP = typer.Typer()
APP.command("fit")(fit_command)
APP.command("check")(check_command)
APP.command("memory")(memory_command)
H100 = "H100-SXM-80GB"


def judged(model: str, gpu: str = H100, **options: Any) -> Fit:
    return fit(configure(model, gpu, **options))


def broken(model: str, gpu: Gpu | str = H100, **options: Any) -> dict[str, Any]:
    found = check(configure(model, gpu, **options))
    return {rule.rule: rule for rule in found.rules if not rule.ok}


# --- validity: cases from public issue threads, the thread's number beside each


def test_13b_on_three_gpus() -> None:  # vllm#596
    rule = broken("meta-llama/Llama-2-13b-hf", tp=3)["tp_divides_heads"]
    assert (rule.observed, rule.limit) == (40, 3)
    assert rule.legal.startswith("tp 1, 2, 4, 5, 8, 10, 20, 40 by this rule; by all rules 1, 2")


def test_heads_pass_but_the_vocabulary_does_not() -> None:  # llm-d-planner#205
    found = broken("Qwen/Qwen3-14B", tp=5)
    assert "tp_divides_heads" not in found
    assert (found["vocab_tp"].observed, found["vocab_tp"].limit) == (151_936, 5)
    assert (found["kv_heads_tp"].observed, found["kv_heads_tp"].limit) == (8, 5)
    assert found["vocab_tp"].legal.endswith("by all rules 1, 2, 4, 8")


@pytest.mark.parametrize(
    ("model", "tp", "shard", "tensor"),
    [
        ("Qwen/Qwen3-235B-A22B-FP8", 8, 192, "mlp.experts.w13_weight"),  # vllm#17569
        ("Qwen/Qwen3-30B-A3B-FP8", 4, 192, "mlp.experts.w13_weight"),  # vllm#44763
        ("deepseek-ai/DeepSeek-R1", 32, 576, "mlp.gate_up_proj"),  # sglang#3345
        ("Qwen/Qwen3-Coder-480B-A35B-Instruct-FP8", 8, 320, "mlp.experts.w13_weight"),
    ],
)
def test_shards_that_are_not_whole_blocks(model: str, tp: int, shard: int, tensor: str) -> None:
    rule = broken(model, tp=tp, engine="vllm==0.19")["quant_blocks"]
    assert (rule.observed, rule.limit) == (shard, 128)
    assert tensor in rule.unit


def test_newer_engines_refine_the_blocks_of_experts() -> None:
    """gcd(128, 192) = 64 and gcd(128, 320) = 64 are served, gcd(128, 96) = 32 is not counted on."""
    assert not broken("Qwen/Qwen3-235B-A22B-FP8", tp=8)
    assert not broken("Qwen/Qwen3-Coder-480B-A35B-Instruct-FP8", tp=8)
    assert broken("Qwen/Qwen3-30B-A3B-FP8", tp=8)["quant_blocks"].observed == 96
    # Matrices outside the experts keep their blocks: 18,432 / 32 = 576.
    assert broken("deepseek-ai/DeepSeek-R1", tp=32)["quant_blocks"].observed == 576


def test_experts_are_not_sliced_under_expert_parallel() -> None:
    model = "Qwen/Qwen3-235B-A22B-Instruct-2507-FP8"
    old = broken(model, tp=8, engine="vllm==0.19")["quant_blocks"]
    assert "or tp 8 with ep 8" in old.legal
    found = check(configure(model, H100, tp=8, ep=8))
    assert found.ok
    assert any("each is copied 2 times" in note for note in found.notes)


def test_blocks_bind_only_the_form_that_has_them() -> None:
    assert not broken("Qwen/Qwen3-235B-A22B-FP8", tp=8, weight_dtype="bf16")
    assert not broken("Qwen/Qwen3-235B-A22B", tp=8)
    assert not broken("deepseek-ai/DeepSeek-R1", tp=16)


def test_narrow_experts() -> None:  # vllm#54178: width 320
    model = load_model("Qwen/Qwen3-235B-A22B-FP8")
    assert model.moe is not None
    narrow = replace(model, moe=replace(model.moe, moe_intermediate_size=320))
    for tp, shard in ((2, 160), (4, 80), (8, 40)):
        rule = {r.rule: r for r in check(configure(narrow, H100, tp=tp)).rules}["quant_blocks"]
        assert (rule.ok, rule.observed) == (False, shard)


def test_bf16_needs_a_card_that_has_it() -> None:  # bring-llms-to-nim#7
    turing = replace(load_gpu("A10-24GB"), name="turing", compute_capability=7.5)
    rule = broken("Qwen/Qwen3-8B", turing)["dtype_supported"]
    assert (rule.observed, rule.limit) == (7.5, 8.0)
    assert "fp16" in rule.legal


def test_4_bit_weights_run_unpacked_on_older_cards() -> None:  # vllm#23278
    found = check(configure("openai/gpt-oss-120b", H100))
    assert found.ok
    assert any("activations stay in 16 bits" in note for note in found.notes)


def test_long_prompts_are_cut() -> None:  # vllm#18681
    found = check(
        configure(
            "deepseek-ai/DeepSeek-R1",
            H100,
            tp=16,
            max_model_len=131_072,
            max_num_batched_tokens=32_768,
        )
    )
    assert found.ok


def test_without_chunks_the_budget_covers_the_length() -> None:
    options = {"engine": "vllm==0.6", "max_model_len": 8192}
    assert configure("Qwen/Qwen3-8B", H100, **options).max_num_batched_tokens == 8192
    rule = broken("Qwen/Qwen3-8B", max_num_batched_tokens=4096, **options)["tokens_cover_len"]
    assert rule.legal == "max_num_batched_tokens of 8192 or more"
    assert not broken("Qwen/Qwen3-8B", max_num_batched_tokens=4096, max_model_len=8192)
    # From 0.6 on prompts of long contexts were cut all the same.
    for engine, budget in (("vllm==0.5", 40_960), ("vllm==0.6", 2048)):
        assert configure("Qwen/Qwen3-8B", H100, engine=engine).max_num_batched_tokens == budget


def test_the_context_limit() -> None:
    rule = broken("Qwen/Qwen3-32B", max_model_len=65_536)["context_limit"]
    assert rule.legal == "max_model_len up to 40960"
    # A sibling's limit is not held against a later checkpoint.
    assert not broken("Qwen/Qwen3-30B-A3B-Instruct-2507", max_model_len=262_144)


def test_other_rules_say_what_is_legal() -> None:
    assert broken("Qwen/Qwen3-32B", pp=65)["pp_layers"].legal == "pp up to 64"
    assert broken("Qwen/Qwen3-32B", tp=4, ep=4)["ep_size"].legal == "ep 1"
    assert broken("Qwen/Qwen3-30B-A3B", tp=4, ep=2)["ep_size"].legal == "ep 1 or 4"
    rule = broken("Qwen/Qwen3-32B", tp=8, pp=2, gpus_per_node=8)["node"]
    assert rule.legal == "tp x pp up to 8; or nodes 2"
    placed = {"gpus_per_node": 8, "nodes": 2}
    assert "node" not in broken("Qwen/Qwen3-32B", tp=8, pp=2, **placed)
    rule = broken("Qwen/Qwen3-32B", tp=8, pp=4, **placed)["node"]
    assert (rule.observed, rule.limit) == (4, 2)
    assert rule.legal == "pp 1, 2 at tp 8 on up to 2 nodes of 8"
    rule = broken("Qwen/Qwen3-32B", tp=16, **placed)["node"]
    assert (rule.observed, rule.limit) == (16, 8)
    assert "node" not in broken("Qwen/Qwen3-32B", tp=16, tp_across_nodes=True, **placed)
    # A card of capability 9.0 has no kernels for an NVFP4 cache; its weights are not at fault.
    rule = broken("Qwen/Qwen3-32B", kv_cache_dtype="nvfp4")["dtype_supported"]
    assert rule.legal.startswith("a cache in auto, fp8")
    # Without experts one rule says so, not two.
    assert set(broken("Qwen/Qwen3-32B", tp=4, ep=2)) == {"ep_size"}
    rule = broken("Qwen/Qwen3-32B", max_num_seqs=4096, max_num_batched_tokens=2048)[
        "tokens_cover_seqs"
    ]
    assert rule.legal == "max_num_batched_tokens of 4096 or more"


def test_uneven_stages_are_allowed() -> None:
    found = check(configure("Qwen/Qwen3-14B", H100, pp=3))
    assert found.ok
    assert any("stages hold 13, 14, 13 layers" in note for note in found.notes)


def test_the_latent_needs_no_kv_heads() -> None:  # sglang#2591
    found = check(configure("deepseek-ai/DeepSeek-V3", H100, tp=8))
    assert found.ok
    assert any("does not shrink with tp" in note for note in found.notes)


# --- memory


def test_the_ledger_closes() -> None:
    found = judged("Qwen/Qwen3-32B", tp=2)
    (stage,) = found.stages
    parts = stage.weight_bytes + stage.activation_bytes + stage.non_torch_bytes + stage.graph_bytes
    assert found.graphs_inside
    assert found.budget_bytes == pytest.approx(parts + stage.kv_bytes)
    assert found.budget_bytes == pytest.approx(0.92 * load_gpu(H100).memory_bytes)
    assert found.fits
    needed = found.blocks_per_request + 1  # and the engine's null block
    assert found.margin_bytes == pytest.approx(stage.kv_bytes - needed * stage.block_bytes)


def test_what_is_missing_and_what_would_help() -> None:
    found = judged("Qwen/Qwen3-32B", "L40S-48GB", max_model_len=8192)
    assert (found.fits, found.reason) == (False, "weights_overflow")
    assert found.margin_bytes < 0
    assert {"weight_dtype fp8", "tp 2", "pp 2"} <= set(found.remedies)
    for change in ({"weight_dtype": "fp8"}, {"tp": 2}, {"pp": 2}):
        assert judged("Qwen/Qwen3-32B", "L40S-48GB", max_model_len=8192, **change).fits
    # At the full context FP8 weights alone would not do.
    full = judged("Qwen/Qwen3-32B", "L40S-48GB")
    (words,) = [words for words in full.remedies if words.startswith("weight_dtype fp8 and")]
    length = int(words.split()[4])
    options = {"weight_dtype": "fp8", "max_model_len": length}
    assert judged("Qwen/Qwen3-32B", "L40S-48GB", **options).fits


def test_too_long_a_context() -> None:
    found = judged("meta-llama/Llama-3.1-8B-Instruct", "L4-24GB")
    assert found.reason == "max_model_len"
    shorter = f"max_model_len {found.longest_len} or less"
    assert found.remedies[0] == shorter
    longest = found.longest_len
    assert judged("meta-llama/Llama-3.1-8B-Instruct", "L4-24GB", max_model_len=longest).fits
    beyond = judged("meta-llama/Llama-3.1-8B-Instruct", "L4-24GB", max_model_len=longest + 1)
    assert not beyond.fits


def test_the_utilisation_that_would_do() -> None:
    short = judged("meta-llama/Llama-3.1-8B-Instruct", "A10-24GB", max_model_len=30_000)
    (words,) = [words for words in short.remedies if words.startswith("gpu_memory_utilization")]
    share = float(words.split()[1])
    options = {"max_model_len": 30_000, "gpu_memory_utilization": share}
    assert judged("meta-llama/Llama-3.1-8B-Instruct", "A10-24GB", **options).fits


def test_three_concurrencies() -> None:
    found = judged(
        "Qwen/Qwen3.5-35B-A3B", "H100-NVL-94GB", engine="vllm==0.17", kv_cache_dtype="fp8",
        max_model_len=65_536,
    )  # fmt: skip
    assert found.concurrency_engine > 3 * found.concurrency_by_division
    assert found.concurrency_scheduler == 1024
    assert any("groups of layers" in note for note in found.notes)
    # Newer logs print concurrency times length, older ones blocks over groups.
    newer = judged("Qwen/Qwen3.5-35B-A3B", "H100-NVL-94GB", max_model_len=65_536)
    assert newer.kv_tokens == pytest.approx(newer.concurrency_engine * 65_536, rel=1e-5)
    assert found.kv_tokens == pytest.approx(found.concurrency_by_division * 65_536)


def test_the_stage_with_the_fewest_blocks_decides() -> None:
    found = judged("meta-llama/Llama-3.1-70B-Instruct", pp=3, max_model_len=8192)
    assert len(found.stages) == 3
    fewest = min(found.stages, key=lambda stage: stage.num_blocks)
    assert found.stages[found.decides] == fewest
    assert found.num_blocks == fewest.num_blocks


def test_starting_is_not_serving() -> None:
    found = judged(
        "meta-llama/Llama-3.1-8B-Instruct", gpu_memory_utilization=0.98, engine="vllm==0.19"
    )
    assert found.fits
    assert found.outside_bytes < 0
    assert any("starting is not serving" in note for note in found.notes)


def test_spare_cache_is_named() -> None:
    found = judged("Qwen/Qwen3-0.6B", max_num_seqs=16, max_model_len=2048)
    assert any("times the requests of full length" in note for note in found.notes)


def test_defaults_of_the_engine_by_card() -> None:
    hopper, ampere = configure("Qwen/Qwen3-8B", H100), configure("Qwen/Qwen3-8B", "A100-SXM-80GB")
    assert (hopper.max_num_seqs, hopper.max_num_batched_tokens) == (1024, 8192)
    assert (ampere.max_num_seqs, ampere.max_num_batched_tokens) == (256, 2048)
    assert configure("deepseek-ai/DeepSeek-V3", H100).block_size == 64
    assert configure("deepseek-ai/DeepSeek-V3", "A100-SXM-80GB").block_size == 16
    small = configure("Qwen/Qwen3-8B", H100, max_num_batched_tokens=512)
    assert small.max_num_seqs == 512  # never above the token budget
    assert (
        configure("Qwen/Qwen3-8B", H100, max_model_len=4, max_num_seqs=8).max_num_batched_tokens
        == 32
    )


def test_plain_rules_and_inline_facts() -> None:
    model = inline_model({"params": 27e9, "width": 5120, "layers": 64, "heads": 40})
    found = fit(configure(model, load_gpu(H100), engine="reference", tp=2, max_model_len=4096))
    assert found.fits
    assert found.budget_bytes == pytest.approx(0.9 * load_gpu(H100).memory_bytes)
    with pytest.raises(InvalidInput, match="give max_model_len"):
        configure(model, H100)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tp": 0}, "tp is 0"),
        ({"max_model_len": 0}, "max_model_len is 0"),
        ({"max_num_seqs": -1}, "max_num_seqs is -1"),
        ({"gpu_memory_utilization": 1.2}, "above 0, up to 1"),
        ({"weight_dtype": "int3"}, "'int3'"),
        ({"kv_cache_dtype": "fp6"}, "'fp6'"),
        ({"engine": "sglang"}, "unknown engine"),
    ],
)
def test_knobs_outside_their_range(options: dict[str, Any], words: str) -> None:
    with pytest.raises((InvalidInput, CatalogError), match=words):
        configure("Qwen/Qwen3-8B", H100, **options)


def test_every_model_has_a_ledger() -> None:
    from sieve.catalog.models import list_models

    for entry in list_models():
        found = judged(entry.name, "B200-SXM-180GB", tp=8, ep=1, max_model_len=2048)
        out = document(found)
        assert json.loads(json.dumps(out)) == out
        stage = found.stages[found.decides]
        assert stage.weight_bytes > 0
        assert stage.block_bytes > 0
        params = load_model(entry.name, any_family=True).params
        # No format takes less than half a byte; nothing is held more than twice.
        assert params / 8 * 0.4 < stage.weight_bytes < params / 8 * 2.5 + 20 * GIB


# --- commands


def run(*words: str) -> Any:
    return CliRunner().invoke(APP, list(words))


def test_fit_command() -> None:
    good = run("fit", "qwen3-8b", "--gpu", "h100-sxm", "--engine", "vllm==0.19")
    assert good.exit_code == 0
    assert "fits" in good.stdout
    assert "graphs (outside the budget)" in good.stdout
    bad = run("fit", "qwen3-32b", "--gpu", "l40s", "--json")
    assert bad.exit_code == 3
    out = json.loads(bad.stdout)
    assert (out["fits"], out["reason"]) == (False, "weights_overflow")
    assert out["margin_mib"] < 0
    assert set(out["concurrency"]) == {"by_engine", "by_division", "by_scheduler", "on_traffic"}
    shown = run("fit", "qwen3-32b", "--gpu", "l40s")
    assert "MiB are missing" in shown.stdout
    assert "would fit with" in shown.stdout


def test_check_command() -> None:
    good = run("check", "qwen3-8b", "--gpu", "h100-sxm")
    *_, verdict, following = good.stdout.splitlines()
    assert (good.exit_code, verdict) == (0, "valid")
    assert following == "Next    sieve fit qwen3-8b --gpu h100-sxm --tp 1"
    ranks = run("check", "qwen3-30b-a3b", "--gpu", "h100-sxm", "--dp", "4", "--ep", "4")
    last = "Next    sieve fit qwen3-30b-a3b --gpu h100-sxm --tp 1 --ep 4 --data-parallel-size 4"
    assert (ranks.exit_code, ranks.stdout.splitlines()[-1]) == (0, last)
    refused = run("check", "qwen3-8b", "--gpu", "h100-sxm", "--dp", "2")
    assert refused.exit_code == 3
    assert "use replicas" in " ".join(refused.stdout.split())
    old = ("--engine", "vllm==0.19")
    bad = run("check", "qwen3-235b-a22b-fp8", "--gpu", "h100-sxm", "--tp", "8", *old)
    assert bad.exit_code == 3
    assert "192 against 128" in bad.stdout
    assert "w13_weight" in bad.stdout
    as_json = run("check", "qwen3-235b-a22b-fp8", "--gpu", "h100-sxm", "--tp", "8", *old, "--json")
    rules = {rule["rule"]: rule for rule in json.loads(as_json.stdout)["rules"]}
    assert rules["quant_blocks"]["observed"] == 192
    assert rules["tp_divides_heads"]["ok"]


def test_an_invalid_deployment_does_not_fit() -> None:
    found = run("fit", "qwen3-14b", "--gpu", "h100-sxm", "--tp", "5")
    assert found.exit_code == 3
    assert "the engine refuses" in found.stdout
    assert "vocab_tp" in found.stdout


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"nodes": 2}, "need gpus_per_node"),
        ({"nodes": 0, "gpus_per_node": 8}, "nodes is 0"),
        ({"tp_across_nodes": True, "gpus_per_node": 8}, "no effect on one node"),
    ],
)
def test_places_that_say_nothing_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        configure("Qwen/Qwen3-8B", H100, **options)


def test_a_replica_on_several_nodes_says_so() -> None:
    found = judged(
        "Qwen/Qwen3-32B", tp=16, pp=2, gpus_per_node=8, nodes=4, tp_across_nodes=True,
        max_model_len=8192,
    )  # fmt: skip
    assert found.fits
    assert any("spans 4 nodes, 8 GPUs on each" in note for note in found.notes)
    assert any("tp 16 spans nodes" in note for note in found.notes)


def test_options_of_the_commands() -> None:
    words = ["fit", "qwen3-30b-a3b", "--gpu", "h100-sxm", "--pp", "2", "--max-model-len", "8192"]
    out = json.loads(run(*words, "--pp-layer-partition", "16,32", "--json").stdout)
    assert out["configuration"]["pp_layer_partition"] == [16, 32]
    assert [stage["stage"] for stage in out["stages"]] == [0, 1]
    bad = run(*words, "--pp-layer-partition", "16;32")
    assert bad.exit_code != 0
    place = ["--gpus-per-node", "8", "--nodes", "2"]
    assert (
        run("check", "qwen3-32b", "--gpu", "h100-sxm", "--tp", "8", "--pp", "2", *place).exit_code
        == 0
    )
