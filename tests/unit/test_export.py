"""The emitted command line, parsed back, is the evaluated candidate; nothing escapes a comment."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sieve.errors import ExportError
from sieve.export.vllm_serve import parse_command, serve_command, serve_script

ROW: dict[str, Any] = {
    "candidate_id": "h100-sxm-80gb.tp4.pp2.ep1.r2.bf16.kv-fp8.s256.b8192", "gpu": "H100-SXM-80GB",
    "tp": 4, "pp": 2, "ep": 1, "replicas": 2, "weight_dtype": "bf16", "kv_cache_dtype": "fp8",
    "max_num_seqs": 256, "max_num_batched_tokens": 8192, "max_model_len": 4096,
    "gpu_memory_utilization": 0.92, "block_size": 16, "enable_chunked_prefill": True,
    "enable_prefix_caching": True, "async_scheduling": True, "long_prefill_token_threshold": 0,
}  # fmt: skip
IN_COMMAND = (
    "tp", "pp", "ep", "kv_cache_dtype", "max_num_seqs", "max_num_batched_tokens", "max_model_len",
    "gpu_memory_utilization", "block_size", "enable_chunked_prefill", "enable_prefix_caching",
    "async_scheduling", "long_prefill_token_threshold",
)  # fmt: skip
HOSTILE = ["a b", "x'; touch pwned; '", "$(touch pwned)", "`touch pwned`", "a\nb", 'q"q', "é", "-x"]


def command_of(script: str) -> list[str]:
    """Return the words of the command that a script runs, read as a shell would."""
    (start,) = [i for i, line in enumerate(script.split("\n")) if line.startswith("exec ")]
    command = "\n".join(script.split("\n")[start:]).removeprefix("exec ")
    return shlex.split(command.replace(" \\\n", " "))  # shlex keeps a continued line's break


def test_the_documented_flags_of_one_candidate() -> None:
    assert serve_command(ROW, "meta-llama/Llama-3.1-70B", "bf16") == [
        "vllm", "serve", "meta-llama/Llama-3.1-70B",
        "--tensor-parallel-size", "4", "--pipeline-parallel-size", "2",
        "--max-num-seqs", "256", "--max-num-batched-tokens", "8192", "--max-model-len", "4096",
        "--gpu-memory-utilization", "0.92", "--block-size", "16", "--kv-cache-dtype", "fp8",
        "--dtype", "bfloat16", "--enable-chunked-prefill", "--enable-prefix-caching",
        "--async-scheduling", "--scheduling-policy", "fcfs",
    ]  # fmt: skip


@given(
    tp=st.integers(1, 64), pp=st.integers(1, 8), expert=st.booleans(),
    kv=st.sampled_from(["auto", "bfloat16", "fp8", "fp8_e5m2"]),
    seqs=st.integers(1, 4096), tokens=st.integers(1, 10**6),
    length=st.none() | st.integers(1, 10**7),
    chunked=st.booleans(), cached=st.booleans(), ahead=st.booleans(),
    threshold=st.integers(0, 10**6), share=st.floats(0.01, 1.0),
    dtype=st.sampled_from(["bf16", "fp16", "fp8"]),
    model=st.text(min_size=1, max_size=40).filter(lambda t: "\0" not in t),
)  # fmt: skip
@settings(deadline=None, derandomize=True, max_examples=60)
def test_parsed_back_it_is_the_candidate(
    tp: int, pp: int, expert: bool, kv: str, seqs: int, tokens: int, length: int | None,
    share: float, dtype: str, model: str, chunked: bool, cached: bool, ahead: bool, threshold: int,
) -> None:  # fmt: skip
    row = ROW | {
        "tp": tp, "pp": pp, "ep": tp if expert else 1, "kv_cache_dtype": kv, "max_num_seqs": seqs,
        "max_num_batched_tokens": tokens, "max_model_len": length,
        "gpu_memory_utilization": share, "weight_dtype": dtype, "enable_chunked_prefill": chunked,
        "enable_prefix_caching": cached, "async_scheduling": ahead,
        "long_prefill_token_threshold": threshold,
    }  # fmt: skip
    back = parse_command(serve_command(row, model, "bf16"))
    assert back["model"] == model
    assert back["weight_dtype"] == dtype
    for name in IN_COMMAND:
        assert back.get(name) == row[name], name


@pytest.mark.parametrize("model", HOSTILE)
def test_a_hostile_model_name_stays_one_word(model: str) -> None:
    words = command_of(serve_script(ROW, model, "bf16", "vllm"))
    assert words[:3] == ["vllm", "serve", model]
    assert parse_command(words)["tp"] == 4


@pytest.mark.parametrize("model", HOSTILE)
def test_a_shell_runs_nothing_else(tmp_path: Path, model: str) -> None:
    fake = tmp_path / "vllm"
    fake.write_text('#!/bin/sh\nprintf "%s\\n" "$2" > args\n', encoding="utf-8")
    fake.chmod(0o755)
    script = tmp_path / "serve.sh"
    script.write_text(serve_script(ROW, model, "bf16", "vllm"), encoding="utf-8")
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    subprocess.run(["bash", script], cwd=tmp_path, env=env, check=True, timeout=20)
    assert (tmp_path / "args").read_text(encoding="utf-8") == f"{model}\n"
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize("break_", ["\n", "\r", "\r\n", "\u2028", "\x0b", "\x85"])
@pytest.mark.parametrize("key", ["gpu", "weight_dtype", "candidate_id"])
def test_a_comment_cannot_be_left(key: str, break_: str) -> None:
    row = ROW | {key: f"x{break_}touch pwned"}
    lines = serve_script(row, "m", "bf16", "vllm").splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("set -euo"))
    assert all(line.startswith("#") for line in lines[:first])


def test_context_parallelism_is_spelled_out_with_the_block_of_one_rank() -> None:
    row = ROW | {"decode_context_parallel_size": 2, "block_size": 32}
    args = serve_command(row, "m", "bf16")
    assert args[args.index("--decode-context-parallel-size") + 1] == "2"
    assert args[args.index("--block-size") + 1] == "16"
    back = parse_command(args)
    assert (back["decode_context_parallel_size"], back["block_size"]) == (2, 32)
    assert "--decode-context-parallel-size" not in serve_command(ROW, "m", "bf16")


def test_data_parallel_ranks_share_the_experts_of_all_their_gpus() -> None:
    row = ROW | {"tp": 2, "data_parallel_size": 4, "ep": 8}
    args = serve_command(row, "m", "bf16")
    assert args[args.index("--data-parallel-size") + 1] == "4"
    assert "--enable-expert-parallel" in args
    back = parse_command(args)
    assert (back["tp"], back["data_parallel_size"], back["ep"]) == (2, 4, 8)
    assert f"on {2 * row['pp'] * 4} x" in serve_script(row, "m", "bf16", "vllm")
    assert "--data-parallel-size" not in serve_command(ROW, "m", "bf16")
    assert parse_command(serve_command(ROW, "m", "bf16"))["data_parallel_size"] == 1


@pytest.mark.parametrize(("rank", "headless"), [("0", False), ("1", True)])
def test_a_replica_on_two_nodes_starts_on_each(tmp_path: Path, rank: str, headless: bool) -> None:
    fake = tmp_path / "vllm"
    fake.write_text('#!/bin/sh\nprintf "%s\\n" "$@" > args\n', encoding="utf-8")
    fake.chmod(0o755)
    script = tmp_path / "serve.sh"
    script.write_text(serve_script(ROW, "m", "bf16", "vllm", nodes=2), encoding="utf-8")
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "NODE_RANK": rank, "MASTER_ADDR": "10.0.0.7"}
    subprocess.run(["bash", script], cwd=tmp_path, env=env, check=True, timeout=20)
    args = (tmp_path / "args").read_text(encoding="utf-8").split()
    for flag, value in (("--nnodes", "2"), ("--node-rank", rank), ("--master-addr", "10.0.0.7")):
        assert args[args.index(flag) + 1] == value
    assert ("--headless" in args) is headless
    assert parse_command(serve_command(ROW, "m", "bf16", nodes=2))["nodes"] == 2
    lost = subprocess.run(
        ["bash", script], cwd=tmp_path, env={"PATH": env["PATH"]}, check=False, timeout=20,
        capture_output=True, text=True,
    )  # fmt: skip
    assert lost.returncode != 0
    assert "NODE_RANK" in lost.stderr


def test_a_script_says_what_it_is() -> None:
    script = serve_script(ROW, "m", "bf16", "vllm")
    assert script.startswith("#!/usr/bin/env bash\n")
    assert script.endswith("\n")
    assert ROW["candidate_id"] in script
    assert "One of 2 replicas, on 8 x H100-SXM-80GB" in script
    alone = serve_script(ROW | {"replicas": 1}, "m", "bf16", "vllm")
    assert "# The only replica, on 8 x H100-SXM-80GB." in alone
    assert "reference" not in script
    assert "engine: reference" in serve_script(ROW, "m", "bf16", "reference")


def test_experts_are_spread_over_all_ranks() -> None:
    words = serve_command(ROW | {"ep": 4}, "m", "bf16")
    assert "--enable-expert-parallel" in words
    assert parse_command(words)["ep"] == 4


@pytest.mark.parametrize(
    ("dtype", "checkpoint", "flags"),
    [
        ("bf16", "bf16", ["--dtype", "bfloat16"]),
        ("fp16", "bf16", ["--dtype", "float16"]),
        ("fp8", "bf16", ["--quantization", "fp8"]),
        ("fp8", "fp8", []),
        ("mxfp4", "mxfp4", []),
    ],
)
def test_weight_precision(dtype: str, checkpoint: str, flags: list[str]) -> None:
    words = serve_command(ROW | {"weight_dtype": dtype}, "m", checkpoint)
    start = words.index("--kv-cache-dtype") + 2
    assert words[start : words.index("--enable-chunked-prefill")] == flags


@pytest.mark.parametrize(
    ("dtype", "checkpoint"),
    [
        ("int8", "bf16"),
        ("int4", "bf16"),
        ("nvfp4", "bf16"),
        ("bf16", "fp8"),
        ("bf16", "int4"),
        ("fp8", "mxfp4"),
        ("fp8", "int4"),
    ],
)
def test_a_precision_that_no_flag_produces_is_said(dtype: str, checkpoint: str) -> None:
    row = ROW | {"weight_dtype": dtype}
    try:
        script = serve_script(row, "m", checkpoint, "vllm")
    except ExportError:
        return
    assert "checkpoint" in script


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["vllm"],
        ["vllm", "serve"],
        ["python", "-m", "vllm"],
        ["vllm", "serve", "m", "--unknown-flag"],
        ["vllm", "serve", "m", "--max-num-seqs"],
        ["vllm", "serve", "m", "--max-num-seqs", "many"],
        ["vllm", "serve", "m", "--dtype", "float8"],
        ["vllm", "serve", "m", "--dtype"],
    ],
)
def test_what_is_no_command_of_ours(words: list[str]) -> None:
    with pytest.raises(ExportError):
        parse_command(words)


def test_every_finalists_script_is_its_row(small_run: Any) -> None:
    rows = {row["candidate_id"]: row for row in small_run.candidates.iter_rows(named=True)}
    scripts = {p: t for p, t in small_run.files.items() if p.endswith("serve.sh")}
    answer = small_run.answer
    finalists = {answer["fewest_gpus"], answer["best_per_gpu"], answer["cheapest"]}
    finalists |= set(answer["tie_group"][:5])
    assert {path.split("/")[1] for path in scripts} == finalists
    for path, text in scripts.items():
        _, candidate_id, name = path.split("/")
        assert name == "serve.sh"
        back = parse_command(command_of(text))
        assert back["model"] == "Qwen/Qwen3-8B"
        for column in (*IN_COMMAND, "weight_dtype"):
            assert back[column] == rows[candidate_id][column], column
