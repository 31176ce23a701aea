"""`sieve bound`: what the hardware cannot exceed."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from sieve.cli.completing import (
    complete_gpu,
    complete_kv_dtype,
    complete_model,
    complete_weight_dtype,
)
from sieve.cli.following import next_command, options
from sieve.cli.output import JsonFlag
from sieve.errors import InvalidInput


def bound(
    model: Annotated[
        str,
        typer.Argument(
            help="Model name, or a path of its config.json.",
            metavar="MODEL",
            autocompletion=complete_model,
        ),
    ],
    gpu: Annotated[
        str, typer.Option(help="GPU name, as in `sieve gpus`.", autocompletion=complete_gpu)
    ],
    num_gpus: Annotated[
        int, typer.Option("--num-gpus", "--tp", help="GPUs that hold the model together.")
    ] = 1,
    weight_dtype: Annotated[
        str | None,
        typer.Option(
            help="Precision of the weights; default the checkpoint's.",
            autocompletion=complete_weight_dtype,
        ),
    ] = None,
    kv_cache_dtype: Annotated[
        str, typer.Option(help="Precision of the cache.", autocompletion=complete_kv_dtype)
    ] = "auto",
    context: Annotated[
        int | None,
        typer.Option(help="Tokens reserved for a session; default 100,000 or the model's limit."),
    ] = None,
    read_context: Annotated[
        int | None, typer.Option(help="Cached tokens that a decode step reads of a session.")
    ] = None,
    overhead_gb: Annotated[
        float, typer.Option(help="Memory of a GPU that holds neither weights nor cache, in GB.")
    ] = 8.0,
    floor: Annotated[float, typer.Option(help="Tokens/s that every session must get.")] = 20.0,
    prompt: Annotated[
        int | None, typer.Option(help="Prompt length in tokens; default 2,048.")
    ] = None,
    chunk: Annotated[
        int | None, typer.Option(help="Prompt tokens in one iteration; default the whole prompt.")
    ] = None,
    ttft: Annotated[
        str | None, typer.Option(help="Longest prefill, in seconds or as `500 ms`.", metavar="TIME")
    ] = None,
    expert_traffic: Annotated[
        str, typer.Option(help="floor (a bound) or expected (an estimate).")
    ] = "floor",
    batch: Annotated[
        list[int] | None, typer.Option(help="Show this batch too; may be repeated.")
    ] = None,
    gamma: Annotated[
        int | None, typer.Option(help="Tokens drafted a pass: adds speculative decoding.")
    ] = None,
    alpha: Annotated[
        float, typer.Option(help="Probability that a drafted token is accepted.")
    ] = 1.0,
    draft: Annotated[
        str | None, typer.Option(help="Model that drafts; default a draft without cost.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Tell the ceilings of decode and prefill, what limits them, and what they assume.

    Exit code 0 for every answer, "does not fit" included; 2: bad input.

    Examples: `sieve bound qwen3-32b --gpu h100` | `sieve bound qwen3-32b --gpu h100 --num-gpus 2
    --context 8192 --prompt 4096 --ttft "500 ms" --batch 64`
    """
    from sieve.bounds_of import Speculation
    from sieve.bounds_of import bound as ceilings
    from sieve.catalog.accelerators import load_gpu
    from sieve.catalog.models import load_model
    from sieve.units import GB, parse_quantity

    if gamma is None and (draft is not None or alpha != 1.0):
        raise InvalidInput("--draft and --alpha need --gamma, the number of drafted tokens")
    speculation = None
    if gamma is not None:
        speculation = Speculation(
            gamma, alpha, None if draft is None else load_model(draft, any_family=True)
        )
    result = ceilings(
        load_model(model, any_family=True),
        load_gpu(gpu),
        num_gpus=num_gpus,
        weight_dtype=weight_dtype,
        kv_cache_dtype=kv_cache_dtype,
        context_tokens=context,
        read_context_tokens=read_context,
        overhead_bytes=overhead_gb * GB,
        floor_tokens_per_s=floor,
        prompt_tokens=prompt,
        chunk_tokens=chunk,
        ttft_s=None if ttft is None else parse_quantity(ttft, "s"),
        expert_traffic=expert_traffic,
        batches=batch or (),
        speculation=speculation,
    )
    if as_json:
        # All of it is finite already; `print_json` loads what takes longer than the answer.
        text = json.dumps(result, indent=1, ensure_ascii=False, allow_nan=False)
        sys.stdout.write(text + "\n")
        return
    from sieve.report.bound import print_bound

    print_bound(result)
    kept = options(
        weight_dtype=weight_dtype,
        kv_cache_dtype=None if kv_cache_dtype == "auto" else kv_cache_dtype,
    )
    next_command("fit", model, "--gpu", gpu, "--tp", num_gpus, *kept)
