"""The `vllm serve` command line of a candidate (flags of vLLM 0.33.0), and reading it back."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from sieve.errors import ExportError
from sieve.frames import engine_option, gpus_per_replica

WRITTEN_FOR: Final = "vLLM 0.33.0"
_VALUE_FLAGS: Final = {
    "--tensor-parallel-size": ("tp", int),
    "--pipeline-parallel-size": ("pp", int),
    "--max-num-seqs": ("max_num_seqs", int),
    "--max-num-batched-tokens": ("max_num_batched_tokens", int),
    "--max-model-len": ("max_model_len", int),
    "--gpu-memory-utilization": ("gpu_memory_utilization", float),
    "--block-size": ("block_size", int),
    "--kv-cache-dtype": ("kv_cache_dtype", str),
}
_CONTEXT_PARALLEL: Final = "--decode-context-parallel-size"
_DATA_PARALLEL: Final = "--data-parallel-size"
_NODE_RANK: Final = "${NODE_RANK:?}"
_MASTER_ADDR: Final = "${MASTER_ADDR:?}"
_REST: Final = "$@"
_SWITCHES: Final = ("enable_chunked_prefill", "enable_prefix_caching", "async_scheduling")
_THRESHOLD: Final = "--long-prefill-token-threshold"
_PLAIN: Final = {"bf16": "bfloat16", "fp16": "float16"}
CHECKPOINT: Final = "${CHECKPOINT:?}"
"""Stands for a checkpoint that the user must name; the script stops when it is not set."""
_OF_THE_SHELL: Final = frozenset({CHECKPOINT, _NODE_RANK, _MASTER_ADDR, _REST})


def serve_command(
    row: Mapping[str, Any], model: str, checkpoint_dtype: str, *, nodes: int = 1
) -> list[str]:
    """Return the argument list that starts one replica of a candidate, every option spelled out.

    Where no flag makes the precision from the published weights, the model is the placeholder
    `CHECKPOINT`: the user must name a checkpoint that already has it.

    Args:
        row: a row of the candidate frame.
        model: hub id or path that the engine loads.
        checkpoint_dtype: precision of the published weights.
        nodes: that the replica spans; with several the rank of the node and the address of the
            first are variables of the shell.
    """
    placeholder = model == CHECKPOINT or needs_checkpoint(row["weight_dtype"], checkpoint_dtype)
    args = ["vllm", "serve", CHECKPOINT if placeholder else model]
    for flag, (column, _) in _VALUE_FLAGS.items():
        if row[column] is not None:
            args += [flag, _text(engine_option(row, column))]
    shared = row.get("decode_context_parallel_size", 1)
    if shared > 1:
        args += [_CONTEXT_PARALLEL, str(shared)]
    if row.get("data_parallel_size", 1) > 1:
        args += [_DATA_PARALLEL, str(row["data_parallel_size"])]
    if row["ep"] > 1:
        args.append("--enable-expert-parallel")
    if row["weight_dtype"] in _PLAIN:
        args += ["--dtype", _PLAIN[row["weight_dtype"]]]
    elif row["weight_dtype"] == "fp8" and checkpoint_dtype != "fp8":
        args += ["--quantization", "fp8"]
    args += [_switch(name, on=bool(row[name])) for name in _SWITCHES]
    if row["long_prefill_token_threshold"]:
        args += [_THRESHOLD, str(row["long_prefill_token_threshold"])]
    args += ["--scheduling-policy", "fcfs"]
    if nodes > 1:
        args += ["--nnodes", str(nodes), "--node-rank", _NODE_RANK, "--master-addr", _MASTER_ADDR]
    return args


def _switch(name: str, *, on: bool) -> str:
    return ("--" if on else "--no-") + name.replace("_", "-")


def _text(value: Any) -> str:
    return repr(value) if isinstance(value, float) else str(value)


def needs_checkpoint(weight_dtype: str, checkpoint_dtype: str) -> bool:
    """Tell whether no flag of the engine makes this precision from the published weights.

    The engine casts between 16-bit formats and quantises 16-bit weights to FP8 while loading;
    it does not dequantise, and other formats need a checkpoint of their own.
    """
    if weight_dtype == checkpoint_dtype:
        return False
    return checkpoint_dtype not in _PLAIN or weight_dtype not in {*_PLAIN, "fp8"}


def parse_command(args: Sequence[str]) -> dict[str, Any]:
    """Return the candidate columns that a `vllm serve` argument list sets.

    Raises:
        ExportError: not a `vllm serve` line, or a flag this module does not write.
    """
    if list(args[:2]) != ["vllm", "serve"] or len(args) < 3:
        raise ExportError(f"found {shlex.join(args[:3])!r}, expected vllm serve MODEL")
    row: dict[str, Any] = {
        "model": args[2],
        "ep": 1,
        "decode_context_parallel_size": 1,
        "data_parallel_size": 1,
        "long_prefill_token_threshold": 0,
    }
    expert_parallel = False
    rest = list(args[3:])
    while rest:
        flag = rest.pop(0)
        if flag in _VALUE_FLAGS:
            column, kind = _VALUE_FLAGS[flag]
            row[column] = _value(flag, rest, kind)
        elif flag == "--dtype":
            names = {v: k for k, v in _PLAIN.items()}
            row["weight_dtype"] = _value(flag, rest, names.__getitem__)
        elif flag == "--quantization":
            row["weight_dtype"] = _value(flag, rest, str)
        elif flag == "--scheduling-policy":
            row["scheduling_policy"] = _value(flag, rest, str)
        elif flag == _CONTEXT_PARALLEL:
            row["decode_context_parallel_size"] = _value(flag, rest, int)
        elif flag == _DATA_PARALLEL:
            row["data_parallel_size"] = _value(flag, rest, int)
        elif flag == "--nnodes":
            row["nodes"] = _value(flag, rest, int)
        elif flag in {"--node-rank", "--master-addr", "--port", "--served-model-name"}:
            _value(flag, rest, str)  # of one node or of the address, not of the candidate
        elif flag in {_REST, "--headless"}:
            continue
        elif flag == _THRESHOLD:
            row["long_prefill_token_threshold"] = _value(flag, rest, int)
        elif flag == "--enable-expert-parallel":
            expert_parallel = True
        elif (switch := _read_switch(flag)) is not None:
            row[switch[0]] = switch[1]
        else:
            raise ExportError(f"unknown flag {flag!r} in a vllm serve command")
    if expert_parallel:
        row["ep"] = row["tp"] * row["data_parallel_size"]
    if "block_size" in row:
        row["block_size"] *= row["decode_context_parallel_size"]
    return row


def _read_switch(flag: str) -> tuple[str, bool] | None:
    """Return option and value of a switch, or None for another flag."""
    for name in _SWITCHES:
        for on in (True, False):
            if flag == _switch(name, on=on):
                return name, on
    return None


def _value(flag: str, rest: list[str], kind: Callable[[str], Any]) -> Any:
    """Take the value of a flag off the list and read it."""
    if not rest:
        raise ExportError(f"{flag} has no value")
    text = rest.pop(0)
    try:
        return kind(text)
    except (ValueError, KeyError):
        raise ExportError(f"{flag}: cannot read {text!r}") from None


def serve_script(
    row: Mapping[str, Any], model: str, checkpoint_dtype: str, engine: str, *, nodes: int = 1
) -> str:
    """Return `serve.sh`: comments, then the command of one replica, or of each of its nodes."""
    args = serve_command(row, model, checkpoint_dtype, nodes=nodes)
    lines = [
        "#!/usr/bin/env bash",
        f"# {_comment(row['candidate_id'])}",
        f"# Flags of {WRITTEN_FOR}.",
    ]
    if engine == "reference":
        lines.append(
            "# Evaluated under the plain rules of `engine: reference`, not as a real engine."
        )
    replicas = row["replicas"]
    where = f"on {gpus_per_replica(row)} x {_comment(row['gpu'])}"
    lines.append(
        f"# One of {replicas} replicas, {where}; start each on its own GPUs behind a round-robin "
        "router."
        if replicas > 1
        else f"# The only replica, {where}."
    )
    if model == CHECKPOINT:
        lines.append(
            f"# The model was given as facts: set CHECKPOINT to one with "
            f"{_comment(row['weight_dtype'])} weights."
        )
    elif needs_checkpoint(row["weight_dtype"], checkpoint_dtype):
        lines.append(
            f"# Set CHECKPOINT to a checkpoint of {_comment(model)} with "
            f"{_comment(row['weight_dtype'])} weights: no flag makes them from "
            f"{_comment(checkpoint_dtype)}."
        )
    before = []
    if nodes > 1:
        lines.append(
            f"# The replica spans {nodes} nodes: run this on each, with NODE_RANK from 0 to "
            f"{nodes - 1} and MASTER_ADDR the address of the node with rank 0."
        )
        before = ['if [ "${NODE_RANK:?}" -gt 0 ]; then set -- --headless "$@"; fi']
        args.append(_REST)
    command = " \\\n  ".join(_grouped(args))
    return "\n".join([*lines, "set -euo pipefail", *before, f"exec {command}", ""])


def _grouped(args: Sequence[str]) -> list[str]:
    """Return shell-quoted pieces, one flag with its value a line."""
    model = f'"{CHECKPOINT}"' if args[2] == CHECKPOINT else shlex.quote(args[2])
    pieces = [f"{shlex.join(args[:2])} {model}"]
    for arg in args[3:]:
        if arg.startswith("--"):
            pieces.append(shlex.quote(arg))
        else:
            pieces[-1] += f' "{arg}"' if arg in _OF_THE_SHELL else f" {shlex.quote(arg)}"
    return pieces


def _comment(text: str) -> str:
    """Return text that cannot leave a comment line."""
    return " ".join(str(text).split())
