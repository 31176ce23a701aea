"""`sieve fit` and `sieve check`: one deployment's memory and validity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from sieve.cli.completing import (
    complete_engine,
    complete_gpu,
    complete_kv_dtype,
    complete_model,
    complete_weight_dtype,
)
from sieve.cli.following import next_command, options
from sieve.cli.output import JsonFlag, print_json

if TYPE_CHECKING:
    from sieve.fit_of import Check

NOTHING_FITS = 3

Model = Annotated[
    str,
    typer.Argument(
        help="Catalogue name, alias, or a path to a config.json.",
        metavar="MODEL",
        autocompletion=complete_model,
    ),
]
GpuName = Annotated[
    str,
    typer.Option(
        "--gpu", help="GPU of the catalogue; aliases are accepted.", autocompletion=complete_gpu
    ),
]
Tp = Annotated[int, typer.Option("--tp", help="Tensor parallel size.")]
Pp = Annotated[int, typer.Option("--pp", help="Pipeline parallel size.")]
Ep = Annotated[int, typer.Option("--ep", help="Expert parallel size: 1 or tp.")]
WeightDtype = Annotated[
    str,
    typer.Option(
        "--weight-dtype",
        help="auto (as published), bf16, fp8, int8, int4, ...",
        autocompletion=complete_weight_dtype,
    ),
]
KvDtype = Annotated[
    str,
    typer.Option(
        "--kv-cache-dtype",
        help="auto, fp8, ... as the engine has it.",
        autocompletion=complete_kv_dtype,
    ),
]
ModelLen = Annotated[
    int | None, typer.Option("--max-model-len", help="Default: the model's limit.")
]
Seqs = Annotated[int | None, typer.Option("--max-num-seqs", help="Default: the engine's.")]
Tokens = Annotated[
    int | None, typer.Option("--max-num-batched-tokens", help="Default: the engine's.")
]
Share = Annotated[
    float | None,
    typer.Option(
        "--gpu-memory-utilization", help="Share of the card's memory. Default: the engine's."
    ),
]
BlockSize = Annotated[int | None, typer.Option("--block-size", help="Default: the engine's.")]
Eager = Annotated[bool, typer.Option("--enforce-eager", help="No CUDA graphs.")]
Node = Annotated[
    int, typer.Option("--gpus-per-node", help="Also require tp x pp within a node of this size.")
]
Nodes = Annotated[
    int,
    typer.Option("--nodes", help="Most such nodes that one replica may span, its stages whole."),
]
Across = Annotated[
    bool, typer.Option("--tp-across-nodes", help="Let tensor ranks span nodes too; slow.")
]
Partition = Annotated[
    str | None,
    typer.Option(
        "--pp-layer-partition",
        help="Layers of each stage, such as 16,32 (VLLM_PP_LAYER_PARTITION). Default: even.",
        metavar="N,N,...",
    ),
]
Dcp = Annotated[
    int,
    typer.Option(
        "--decode-context-parallel-size",
        help="Ranks that share out the tokens of a sequence.",
    ),
]
Dp = Annotated[
    int,
    typer.Option(
        "--data-parallel-size",
        "--dp",
        help="Engines that share the experts in lock step; --ep is then tp x dp.",
    ),
]
Engine = Annotated[
    str,
    typer.Option(
        "--engine",
        help="vllm, vllm==0.19, ..., or reference.",
        autocompletion=complete_engine,
    ),
]

Isl = Annotated[
    float | None,
    typer.Option("--isl", help="Mean prompt tokens of the traffic, for its concurrency."),
]
Osl = Annotated[float | None, typer.Option("--osl", help="Mean answer tokens of the traffic.")]
CalibrationFile = Annotated[
    Path | None,
    typer.Option(
        "--calibration", help="Corrections from start-up logs, as `sieve calibrate` writes them."
    ),
]

_NODE: Final = 8
"""Cards of a node, as most that are sold have."""


def _layers(text: str | None) -> tuple[int, ...]:
    """Return the layers of each stage from `16,32`."""
    from sieve.errors import InvalidInput

    if text is None:
        return ()
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) < 6 for part in parts):
        raise InvalidInput(
            f"--pp-layer-partition: found {text!r}, expected whole numbers with commas, as 16,32"
        )
    return tuple(int(part) for part in parts)


def _given(values: Mapping[str, Any]) -> list[object]:
    """Return the options that are not at their default as words, the tensor ranks always."""
    usual = {"pp": 1, "ep": 1, "data_parallel_size": 1, "decode_context_parallel_size": 1,
             "weight_dtype": "auto", "kv_cache_dtype": "auto", "gpus_per_node": 0, "nodes": 1,
             "engine": "vllm"}  # fmt: skip
    return options(**{k: v for k, v in values.items() if k not in usual or v != usual[k]})


def _remedy(check: Check, remedies: Sequence[str] = ()) -> dict[str, Any]:
    """Return the option to change: the first remedy of the ledger, or tensor ranks that are legal.

    Empty where nothing is wrong, and where no single change is known.
    """
    from sieve.fit_of.rules import legal_sizes, rules_of

    c = check.configuration
    if remedies:
        pairs = [part.split()[:2] for part in remedies[0].split(" and ")]
        change: dict[str, Any] = dict(pairs)
        return {**change, "ep": change["tp"]} if "tp" in change and c.ep > 1 else change
    if check.ok:
        return {}
    legal = legal_sizes(c, rules_of(c), "tp")
    if not legal:
        return {}
    size = min(legal, key=lambda size: (size < c.tp, abs(size - c.tp)))
    return {"tp": size, "ep": size * c.dp} if c.ep > 1 else {"tp": size}


def _next_gpu(model: str, engine: str, weight_dtype: str, kv_cache_dtype: str) -> None:
    """Suggest the smallest card with measured kernels of which eight start the model."""
    from sieve.catalog.accelerators import list_gpus
    from sieve.fit_of import configure
    from sieve.fit_of import fit as judge

    kept: dict[str, Any] = {
        "weight_dtype": weight_dtype,
        "kv_cache_dtype": kv_cache_dtype,
        "engine": engine,
    }
    cards = [gpu for gpu in list_gpus() if gpu.kernel_system]
    for gpu in sorted(cards, key=lambda gpu: (gpu.memory_bytes, gpu.name)):
        if judge(configure(model, gpu.name, tp=_NODE, **kept)).fits:
            next_command("fit", model, "--gpu", gpu.name, *_given({"tp": _NODE, **kept}))
            return
    next_command("gpus")


def fit(
    model: Model,
    gpu: GpuName,
    tp: Tp = 1,
    pp: Pp = 1,
    ep: Ep = 1,
    weight_dtype: WeightDtype = "auto",
    kv_cache_dtype: KvDtype = "auto",
    max_model_len: ModelLen = None,
    max_num_seqs: Seqs = None,
    max_num_batched_tokens: Tokens = None,
    gpu_memory_utilization: Share = None,
    block_size: BlockSize = None,
    enforce_eager: Eager = False,
    decode_context_parallel_size: Dcp = 1,
    data_parallel_size: Dp = 1,
    gpus_per_node: Node = 0,
    nodes: Nodes = 1,
    tp_across_nodes: Across = False,
    pp_layer_partition: Partition = None,
    engine: Engine = "vllm",
    isl: Isl = None,
    osl: Osl = None,
    calibration: CalibrationFile = None,
    as_json: JsonFlag = False,
) -> None:
    """Open the memory ledger of one deployment: does it start, and what does its cache hold.

    Exit code 0: it fits; 3: it does not.

    Example: `sieve fit llama-3.1-8b-instruct --gpu h100-sxm --engine vllm==0.19`
    """
    from sieve.fit_of import configure, document
    from sieve.fit_of import fit as judge
    from sieve.memory.corrections import read_corrections

    result = judge(
        configure(
            model, gpu, engine=engine, tp=tp, pp=pp, ep=ep, weight_dtype=weight_dtype,
            kv_cache_dtype=kv_cache_dtype, max_model_len=max_model_len, max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens, block_size=block_size,
            gpu_memory_utilization=gpu_memory_utilization, enforce_eager=enforce_eager,
            gpus_per_node=gpus_per_node, nodes=nodes, tp_across_nodes=tp_across_nodes,
            dcp=decode_context_parallel_size, dp=data_parallel_size,
            pp_layer_partition=_layers(pp_layer_partition),
            corrections=() if calibration is None else read_corrections(calibration),
        ),
        isl=isl, osl=osl,
    )  # fmt: skip
    if as_json:
        print_json(document(result))
    else:
        from sieve.report.fit import print_fit

        print_fit(result)
        given = {
            "pp": pp,
            "ep": ep,
            "data_parallel_size": data_parallel_size,
            "decode_context_parallel_size": decode_context_parallel_size,
            "weight_dtype": weight_dtype,
            "kv_cache_dtype": kv_cache_dtype,
            "max_model_len": max_model_len,
            "max_num_seqs": max_num_seqs,
            "max_num_batched_tokens": max_num_batched_tokens,
            "gpus_per_node": gpus_per_node,
            "nodes": nodes,
            "tp_across_nodes": tp_across_nodes,
            "pp_layer_partition": pp_layer_partition,
            "engine": engine,
            "gpu_memory_utilization": gpu_memory_utilization,
            "block_size": block_size,
            "enforce_eager": enforce_eager,
            "isl": isl,
            "osl": osl,
            "calibration": calibration,
        }
        change = _remedy(result.check, result.remedies)
        if change:
            next_command("fit", model, "--gpu", gpu, *_given({"tp": tp, **given, **change}))
        elif result.fits:
            next_command("run", "chat", "--set", f"model={model}", "--set", f"fleet.gpus=[{gpu}]")
        else:
            _next_gpu(model, engine, weight_dtype, kv_cache_dtype)
    if not result.fits:
        raise typer.Exit(NOTHING_FITS)


def check(
    model: Model,
    gpu: GpuName,
    tp: Tp = 1,
    pp: Pp = 1,
    ep: Ep = 1,
    weight_dtype: WeightDtype = "auto",
    kv_cache_dtype: KvDtype = "auto",
    max_model_len: ModelLen = None,
    max_num_seqs: Seqs = None,
    max_num_batched_tokens: Tokens = None,
    decode_context_parallel_size: Dcp = 1,
    data_parallel_size: Dp = 1,
    gpus_per_node: Node = 0,
    nodes: Nodes = 1,
    tp_across_nodes: Across = False,
    pp_layer_partition: Partition = None,
    engine: Engine = "vllm",
    as_json: JsonFlag = False,
) -> None:
    """Hold one deployment to every validity rule of the engine.

    Exit code 0: it is valid; 3: a rule is broken, named with its numbers and the legal values.

    Example: `sieve check qwen3-235b-a22b-fp8 --gpu h100-sxm --tp 8`
    """
    from sieve.fit_of import check as judge
    from sieve.fit_of import configure, document

    result = judge(
        configure(
            model, gpu, engine=engine, tp=tp, pp=pp, ep=ep, weight_dtype=weight_dtype,
            kv_cache_dtype=kv_cache_dtype, max_model_len=max_model_len, max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens, gpus_per_node=gpus_per_node,
            nodes=nodes, tp_across_nodes=tp_across_nodes, dcp=decode_context_parallel_size,
            dp=data_parallel_size, pp_layer_partition=_layers(pp_layer_partition),
        )
    )  # fmt: skip
    if as_json:
        print_json(document(result))
    else:
        from sieve.report.fit import print_check

        print_check(result)
        given = {
            "pp": pp,
            "ep": ep,
            "data_parallel_size": data_parallel_size,
            "decode_context_parallel_size": decode_context_parallel_size,
            "weight_dtype": weight_dtype,
            "kv_cache_dtype": kv_cache_dtype,
            "max_model_len": max_model_len,
            "max_num_seqs": max_num_seqs,
            "max_num_batched_tokens": max_num_batched_tokens,
            "gpus_per_node": gpus_per_node,
            "nodes": nodes,
            "tp_across_nodes": tp_across_nodes,
            "pp_layer_partition": pp_layer_partition,
            "engine": engine,
        }
        change = _remedy(result)
        if result.ok or change:
            command = "fit" if result.ok else "check"
            next_command(command, model, "--gpu", gpu, *_given({"tp": tp, **given, **change}))
        else:
            _next_gpu(model, engine, weight_dtype, kv_cache_dtype)
    if not result.ok:
        raise typer.Exit(NOTHING_FITS)
