"""Validity rules: each with a candidate that passes, one that fails, and the two numbers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sieve.catalog.architecture import ModelArchitecture, MoeFacts
from sieve.catalog.engines import load_engine
from sieve.errors import InvalidInput
from sieve.validity.rules import RULES, Candidates, check

MODEL = ModelArchitecture(
    name="m", architecture="LlamaForCausalLM", num_hidden_layers=62, num_kv_layers=62,
    hidden_size=5120, num_attention_heads=40, num_key_value_heads=8, head_dim=128,
    intermediate_size=13824, ffn_projections=3, vocab_size=32000, tie_word_embeddings=False,
    max_position_embeddings=4096, moe=None, params=13e9, active_params=13e9,
)  # fmt: skip
EXPERTS = replace(
    MODEL, num_attention_heads=64, moe=MoeFacts(60, 4, 1408, shared_intermediate_size=5632)
)
BLOCKS = replace(
    MODEL, num_attention_heads=64, quant_block=128, moe=MoeFacts(128, 8, 1536), hidden_size=4096
)
GOLDEN = Path(__file__).parents[1] / "golden" / "seed_values.json"
STAGE1 = [
    case
    for case in json.loads(GOLDEN.read_text(encoding="utf-8"))["cases"]
    if case["function"] == "sizing.stage1"
]


def candidates(model: ModelArchitecture = MODEL, **changes: Any) -> Candidates:
    columns: dict[str, Any] = {
        "tp": [1], "pp": [1], "ep": [1], "replicas": [1], "max_num_seqs": [64],
        "max_num_batched_tokens": [2048], "max_model_len": [4096], "rates_known": [True],
        "compute_capability": [9.0], "needs_capability": [8.0], "dcp": [1],
        "dp": [1],
    }  # fmt: skip
    facts = {
        "gpus_per_node": 8, "max_gpus": 16, "longest_request": 1000, "chunked_prefill": True,
        "nodes_per_replica": 1, "tp_across_nodes": False, "context_parallel": "attention",
        "data_parallel": "experts",
    }  # fmt: skip
    for name, value in changes.items():
        if name in facts:
            facts[name] = value
        else:
            columns[name] = value if isinstance(value, list) else [value]
    n = max(len(c) for c in columns.values())
    return Candidates(
        model=model,
        **{k: np.array(c * n if len(c) == 1 else c) for k, c in columns.items()},
        **facts,
    )


@pytest.mark.parametrize(
    ("rule", "model", "passing", "failing", "observed", "limit"),
    [
        ("tp_divides", MODEL, {"tp": 8}, {"tp": 3}, 40, 3),
        ("tp_divides", replace(MODEL, hidden_size=5121), {"tp": 1}, {"tp": 2}, 5121, 2),
        ("tp_divides_heads", MODEL, {"tp": 5}, {"tp": 16}, 40, 16),
        ("kv_heads_tp", MODEL, {"tp": 4}, {"tp": 5}, 8, 5),
        ("kv_heads_tp", MODEL, {"tp": 16}, {"tp": 12}, 8, 12),
        ("tp_divides_width", MODEL, {"tp": 4}, {"tp": 3}, 5120, 3),
        ("tp_divides_width", MODEL, {"tp": 8}, {"tp": 5}, 13824, 5),
        ("tp_divides_width", EXPERTS, {"tp": 8, "ep": 8}, {"tp": 10, "ep": 10}, 5632, 10),
        (
            "tp_divides_width",
            replace(EXPERTS, moe=MoeFacts(60, 4, 1404)),
            {"tp": 8, "ep": 8},
            {"tp": 8, "ep": 1},
            1404,
            8,
        ),
        ("ep_size", EXPERTS, {"tp": 4, "ep": 4}, {"tp": 4, "ep": 2}, 2, 4),
        ("ep_size", MODEL, {"tp": 4, "ep": 1}, {"tp": 4, "ep": 4}, 4, 1),
        ("ep_size", EXPERTS, {"tp": 2, "dp": 2, "ep": 4}, {"tp": 2, "dp": 2, "ep": 2}, 2, 4),
        ("ep_size", EXPERTS, {"tp": 1, "dp": 4, "ep": 4}, {"tp": 1, "dp": 4, "ep": 1}, 1, 4),
        ("data_parallel", EXPERTS, {"dp": 4}, {"dp": 4, "pp": 2}, 2, 1),
        ("data_parallel", EXPERTS, {"dp": 4}, {"dp": 4, "data_parallel": "none"}, 4, 1),
        ("data_parallel", MODEL, {"dp": 1}, {"dp": 4}, 4, 1),
        ("node", EXPERTS, {"tp": 2, "dp": 4}, {"tp": 2, "dp": 8}, 16, 8),
        (
            "node",
            EXPERTS,
            {"tp": 4, "dp": 2, "nodes_per_replica": 2},
            {"tp": 4, "dp": 4, "nodes_per_replica": 2},
            16,
            8,
        ),
        ("gpu_budget", EXPERTS, {"tp": 4, "dp": 4}, {"tp": 4, "dp": 5}, 20, 16),
        ("ep_divides_experts", EXPERTS, {"tp": 4, "ep": 4}, {"tp": 8, "ep": 8}, 60, 8),
        ("pp_divides", MODEL, {"pp": 2}, {"pp": 4}, 62, 4),
        ("pp_layers", MODEL, {"pp": 62}, {"pp": 63}, 63, 62),
        # 8 KV heads on 16 ranks: two copies of each, which two ranks may share out, not four.
        ("decode_context_parallel", MODEL, {"tp": 16, "dcp": 1}, {"tp": 16, "dcp": 4}, 4, 2),
        ("decode_context_parallel", MODEL, {"tp": 16, "dcp": 1}, {"tp": 8, "dcp": 2}, 8, 8),
        ("node", MODEL, {"tp": 4, "pp": 2}, {"tp": 4, "pp": 4}, 16, 8),
        # Two nodes of 8: two stages of 8 ranks stand, four of them need four nodes.
        (
            "node",
            MODEL,
            {"tp": 8, "pp": 2, "nodes_per_replica": 2},
            {"tp": 8, "pp": 4, "nodes_per_replica": 2},
            4,
            2,
        ),
        # Tensor ranks stay in a node unless told otherwise: 16 against 8.
        (
            "node",
            MODEL,
            {"tp": 16, "nodes_per_replica": 2, "tp_across_nodes": True},
            {"tp": 16, "nodes_per_replica": 2},
            16,
            8,
        ),
        ("gpu_budget", MODEL, {"tp": 4, "replicas": 4}, {"tp": 4, "replicas": 5}, 20, 16),
        ("vocab_tp", replace(MODEL, vocab_size=151936), {"tp": 8}, {"tp": 5}, 151936, 5),
        ("quant_blocks", BLOCKS, {"tp": 4}, {"tp": 8}, 192, 128),
        (
            "tokens_cover_len",
            MODEL,
            {"chunked_prefill": True},
            {"chunked_prefill": False},
            2048,
            4096,
        ),
        ("context_limit", MODEL, {"max_model_len": 4096}, {"max_model_len": 4097}, 4097, 4096),
        (
            "tokens_cover_seqs",
            MODEL,
            {"max_num_batched_tokens": 64},
            {"max_num_batched_tokens": 63},
            63,
            64,
        ),
        ("rates_known", MODEL, {"rates_known": True}, {"rates_known": False}, 0, 1),
        (
            "dtype_supported",
            MODEL,
            {"needs_capability": 9.0},
            {"needs_capability": 10.0},
            9.0,
            10.0,
        ),
        ("model_len", MODEL, {"max_model_len": 1000}, {"max_model_len": 999}, 1000, 999),
    ],
)
def test_each_rule(
    rule: str,
    model: ModelArchitecture,
    passing: dict[str, Any],
    failing: dict[str, Any],
    observed: float,
    limit: float,
) -> None:
    good = check(candidates(model, **passing), [rule])
    assert good.reason.tolist() == [""]
    assert np.isnan(good.observed).all()
    assert np.isnan(good.limit).all()
    bad = check(candidates(model, **failing), [rule])
    assert bad.reason.tolist() == [rule]
    assert (bad.observed.tolist(), bad.limit.tolist()) == ([observed], [limit])
    assert bad.unit[0] != ""


def test_every_rule_has_a_case_here_and_is_used_by_an_engine() -> None:
    marks = [m for m in test_each_rule.pytestmark if m.name == "parametrize"]
    assert {case[0] for case in marks[0].args[1]} == set(RULES)
    used = {*load_engine("vllm").rules, *load_engine("reference").rules}
    assert used == set(RULES)


def test_an_unknown_limit_of_the_model_is_no_limit() -> None:
    assert check(candidates(max_model_len=0, longest_request=10**6), ["model_len"]).reason == [""]


def test_an_unknown_capability_is_not_held_against_a_gpu() -> None:
    found = check(candidates(compute_capability=float("nan")), ["dtype_supported"])
    assert found.reason.tolist() == [""]


def test_the_first_broken_rule_is_the_reason() -> None:
    both = candidates(tp=[16, 3, 8], pp=[4, 1, 1], replicas=[1, 9, 1])
    found = check(both, ["tp_divides", "node", "gpu_budget"])
    assert found.reason.tolist() == ["tp_divides", "tp_divides", ""]
    assert check(both, ["node", "gpu_budget", "tp_divides"]).reason.tolist() == [
        "node",
        "gpu_budget",
        "",
    ]


def test_an_engine_that_names_an_unknown_rule_is_refused() -> None:
    with pytest.raises(InvalidInput, match="tp_fits"):
        check(candidates(), ["tp_fits"])


@pytest.mark.parametrize("case", STAGE1, ids=[case["id"] for case in STAGE1])
def test_golden_cases_of_the_plain_rules(case: dict[str, Any]) -> None:
    given = case["inputs"]
    model = replace(
        MODEL, num_attention_heads=given["heads"], hidden_size=given["width"],
        num_hidden_layers=given["layers"],
    )  # fmt: skip
    found = check(
        candidates(
            model, tp=given["tp"], pp=given["pp"], replicas=given["replicas"],
            gpus_per_node=given.get("node_gpus", 8), max_gpus=given["gpu_budget"],
        ),
        load_engine("reference").rules,
    )  # fmt: skip
    assert (found.reason[0] or None) == case["expected"]["reason"]
    assert (found.reason[0] == "") == case["expected"]["ok"]
