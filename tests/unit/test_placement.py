"""Runs whose replicas span nodes or share out their cache, from the spec to the command line."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Any

import pytest

import sieve
from sieve.errors import SpecError
from sieve.export.vllm_serve import parse_command
from sieve.fit_of import configure, fit
from sieve.spec import load_spec

Make = Callable[..., dict[str, Any]]


@pytest.fixture
def placed(make_spec: Make) -> Callable[..., Any]:
    """Run the small traffic on Qwen3-30B-A3B (48 layers, 32 heads, 4 KV heads)."""

    def run(axes: dict[str, Any], **fleet: Any) -> Any:
        axes = {
            "weight_dtype": ["bf16"], "max_num_seqs": [64], "max_num_batched_tokens": [2048], **axes
        }  # fmt: skip
        changes = {f"fleet.{key}": value for key, value in fleet.items()}
        return sieve.run(
            make_spec(
                {"model": "Qwen/Qwen3-30B-A3B", "grid": {"axes": axes}, "fleet.max_gpus": 32}
                | changes
            )
        )

    return run


def command_of(script: str) -> list[str]:
    """Return the words of the command that a script ends with."""
    command = script[script.index("exec ") :].removeprefix("exec ")
    return shlex.split(command.replace(" \\\n", " "))


def rejected(result: Any) -> dict[tuple[int, int], tuple[str, float, float]]:
    rows = result.candidates.filter(result.candidates["reason"].is_not_null())
    return {
        (row["tp"], row["pp"]): (row["reason"], row["observed"], row["limit"])
        for row in rows.iter_rows(named=True)
    }


def faults_of(spec: dict[str, Any]) -> dict[str, str]:
    with pytest.raises(SpecError) as caught:
        load_spec(spec)
    return {fault.path: fault.message for fault in caught.value.faults}


def test_stages_go_to_other_nodes_and_tensor_ranks_do_not(placed: Callable[..., Any]) -> None:
    result = placed(
        {"tp": [8, 16], "pp": [1, 2, 4]}, nodes_per_replica=2, scale_out_gbs_unidirectional=50
    )
    assert rejected(result) == {
        (8, 4): ("node", 4, 2),  # a stage of 8 on each of four nodes
        (16, 1): ("node", 16, 8),
        (16, 2): ("node", 16, 8),
        (16, 4): ("node", 16, 8),
    }
    assert {(row["tp"], row["pp"]) for row in result.data["ranking"]} == {(8, 1), (8, 2)}
    notes = [a["text"] for a in result.data["assumptions"] if a["about"] == "step time"]
    assert any("1 of its 1 sends go over the network" in note for note in notes)


def test_a_replica_on_two_nodes_is_written_out_for_each(placed: Callable[..., Any]) -> None:
    result = placed({"tp": [8], "pp": [2]}, nodes_per_replica=2, scale_out_gbs_unidirectional=50)
    (script,) = [text for name, text in result.files.items() if name.endswith("serve.sh")]
    back = parse_command(command_of(script))
    assert (back["tp"], back["pp"], back["nodes"]) == (8, 2, 2)
    assert [a["topic"] for a in result.data["advice"]] == ["scope"]


def test_tensor_ranks_across_nodes_are_allowed_and_slower(placed: Callable[..., Any]) -> None:
    fleet = {"nodes_per_replica": 2, "scale_out_gbs_unidirectional": 50, "tp_across_nodes": True}
    wide = placed({"tp": [8]}, gpus_per_node=4, **fleet).data["ranking"][0]
    near = placed({"tp": [8]}, gpus_per_node=8, **fleet).data["ranking"][0]
    assert wide["candidate_id"] == near["candidate_id"]
    assert wide["tpot_p50_s"]["mid"] > 1.2 * near["tpot_p50_s"]["mid"]


def test_a_slower_network_is_a_slower_replica(placed: Callable[..., Any]) -> None:
    times = [
        placed({"tp": [8], "pp": [2]}, nodes_per_replica=2, scale_out_gbs_unidirectional=rate)
        .data["ranking"][0]["tpot_p50_s"]["mid"]
        for rate in (50, 1.25)
    ]  # fmt: skip
    # 512 tokens x 2048 x 2 bytes at 1.25 GB/s instead of 50: 1.64 ms more for every send.
    assert times[1] > 1.2 * times[0]


def test_a_network_without_a_rate_is_asked_for(make_spec: Make) -> None:
    faults = faults_of(make_spec({"fleet.nodes_per_replica": 2}))
    assert "missing" in faults["fleet.scale_out_gbs_unidirectional"]
    faults = faults_of(make_spec({"fleet.tp_across_nodes": True}))
    assert "no effect" in faults["fleet.tp_across_nodes"]
    faults = faults_of(make_spec({"fleet.nodes_per_replica": 2, "engine": "reference"}))
    assert set(faults) == {"fleet.nodes_per_replica", "fleet.scale_out_gbs_unidirectional"}
    faults = faults_of(make_spec({"fleet.nodes_per_replica": 0}))
    assert set(faults) == {"fleet.nodes_per_replica"}


def test_context_parallelism_from_the_grid_to_the_command(placed: Callable[..., Any]) -> None:
    result = placed({"tp": [4, 8], "decode_context_parallel_size": [1, 2]})
    table = result.candidates
    by_size = {
        (row["tp"], row["decode_context_parallel_size"]): row for row in table.iter_rows(named=True)
    }
    # 4 KV heads on 4 ranks: no copies. On 8: two of each.
    lost = by_size[4, 2]
    assert (lost["reason"], lost["observed"], lost["limit"]) == ("decode_context_parallel", 4, 4)
    alone, shared = by_size[8, 1], by_size[8, 2]
    assert alone["num_gpu_blocks"] == shared["num_gpu_blocks"]
    assert shared["kv_tokens"] == 2 * alone["kv_tokens"]
    for row, size in ((alone, 1), (shared, 2)):
        found = fit(
            configure(
                "Qwen/Qwen3-30B-A3B", "H100-SXM-80GB", tp=8, dcp=size, max_num_seqs=64,
                max_num_batched_tokens=2048,
            )
        )  # fmt: skip
        assert row["kv_tokens"] == found.num_blocks * found.block_tokens
    assert shared["candidate_id"].endswith(".b2048.decode_context_parallel_size-2")
    entry = {row["candidate_id"]: row for row in result.data["ranking"]}[shared["candidate_id"]]
    assert entry["options"] == {"decode_context_parallel_size": 2}
    script = placed({"tp": [8], "decode_context_parallel_size": [2]}).files
    (text,) = [text for name, text in script.items() if name.endswith("serve.sh")]
    back = parse_command(command_of(text))
    assert (back["decode_context_parallel_size"], back["block_size"]) == (2, 32)
    assert "--block-size 16" in text


def test_the_block_of_an_option_axis_is_one_ranks(placed: Callable[..., Any]) -> None:
    result = placed({"tp": [8], "decode_context_parallel_size": [2], "block_size": [16, 32]})
    options = {row["candidate_id"]: row["options"] for row in result.data["ranking"]}
    for candidate, option in options.items():
        assert f".block_size-{option['block_size']}." in candidate
    sizes = result.candidates["kv_tokens"].to_list()
    # Twice the tokens in a block, half the blocks, one of which the engine keeps: 64 tokens fewer.
    assert 0 <= sizes[0] - sizes[1] <= 2 * 64


@pytest.mark.parametrize(("pp", "layers"), [(5, [9, 10, 10, 10, 9]), (7, [7, 7, 7, 7, 7, 7, 6])])
def test_run_and_fit_open_the_same_ledger_of_uneven_stages(
    placed: Callable[..., Any], pp: int, layers: list[int]
) -> None:
    result = placed({"tp": [1], "pp": [pp], "max_model_len": [8192]})
    (row,) = result.candidates.iter_rows(named=True)
    found = fit(
        configure(
            "Qwen/Qwen3-30B-A3B", "H100-SXM-80GB", pp=pp, weight_dtype="bf16", max_num_seqs=64,
            max_num_batched_tokens=2048, max_model_len=8192,
        )
    )  # fmt: skip
    assert sum(layers) == 48
    assert any(", ".join(map(str, layers)) in note for note in found.notes)
    assert row["num_gpu_blocks"] == found.num_blocks
    assert row["kv_block_bytes_per_gpu"] == max(layers) * 16 * 2 * 4 * 128 * 2
    notes = [a["text"] for a in result.data["assumptions"] if a["about"] == "step time"]
    assert any(f"the fullest holds {max(layers)} layers" in note for note in notes)


def test_data_parallel_ranks_from_the_grid_to_the_command(placed: Callable[..., Any]) -> None:
    result = placed(
        {"tp": [1, 2], "ep": [1, 2, 4], "data_parallel_size": [1, 2]}, max_gpus=4
    )  # fmt: skip
    rows = {
        (row["tp"], row["ep"], row["data_parallel_size"]): row
        for row in result.candidates.iter_rows(named=True)
    }
    lost = {key: row["reason"] for key, row in rows.items() if row["reason"]}
    # One rank: experts on all tensor ranks or none. Two: on the ranks of both.
    assert lost == dict.fromkeys(
        [(1, 2, 1), (1, 4, 1), (2, 4, 1), (1, 1, 2), (1, 4, 2), (2, 1, 2), (2, 2, 2)], "ep_size"
    )
    one, two = rows[1, 1, 1], rows[1, 2, 2]
    assert (one["num_gpus"], two["num_gpus"]) == (1, 2)
    found = fit(
        configure(
            "Qwen/Qwen3-30B-A3B", "H100-SXM-80GB", dp=2, ep=2, max_num_seqs=64,
            max_num_batched_tokens=2048,
        )
    )  # fmt: skip
    assert two["kv_tokens"] == found.num_blocks * found.block_tokens
    # 48 layers of 128 experts of 3 x 2048 x 768 weights of 2 bytes, half of them elsewhere.
    half = 48 * 64 * 3 * 2048 * 768 * 2
    assert one["weight_bytes_per_gpu"] - two["weight_bytes_per_gpu"] == pytest.approx(half)
    entry = {row["candidate_id"]: row for row in result.data["ranking"]}[two["candidate_id"]]
    assert entry["options"] == {"data_parallel_size": 2}
    assert entry["evidence_shares"]["extrapolated"] > 0
    notes = [a["text"] for a in result.data["assumptions"] if a["about"] == "step time"]
    assert any("2 data-parallel ranks share experts over 2 GPUs" in note for note in notes)
    alone = placed({"tp": [1], "ep": [2], "data_parallel_size": [2]})
    (script,) = [text for name, text in alone.files.items() if name.endswith("serve.sh")]
    back = parse_command(command_of(script))
    assert (back["tp"], back["ep"], back["data_parallel_size"]) == (1, 2, 2)
    assert [a["topic"] for a in alone.data["advice"]] == ["scope"]
    (same,) = alone.data["ranking"]
    assert same["ttft_p99_s"] == entry["ttft_p99_s"]
