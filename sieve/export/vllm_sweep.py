"""`vllm bench sweep serve` of vLLM 0.33.0: both parameter files and the one command line.

The sweep starts one engine at a time. A candidate with several replicas is measured as one of them
under its share of the traffic; `--link-vars` keeps each engine to its own benchmarks by the name
that it serves. A record names candidate and level in its `label`: a sweep sets one value of
`--metadata` only.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import Any, Final

from sieve.export.bench import Bench
from sieve.export.deployment import Started
from sieve.export.options import flags_of, keywords_of
from sieve.export.traffic import TrafficFile
from sieve.export.vllm_bench import data_words, report_words
from sieve.export.vllm_bench import fits as can_replay
from sieve.export.vllm_serve import CHECKPOINT
from sieve.export.yaml_text import write_json

SERVE: Final = "serve_params.json"
BENCH: Final = "bench_params.json"
SCRIPT: Final = "sweep.sh"
TOOL: Final = "vllm bench sweep serve of vLLM 0.33.0"
_LINK: Final = "served_model_name"


def traffic_of(bench: Bench) -> TrafficFile | None:
    """Return what one engine of a candidate is sent; None where the sweep cannot measure it."""
    alone = bench.traffic if bench.deployment.replicas == 1 else bench.share
    possible = bench.deployment.nodes == 1 and alone is not None and can_replay(alone)
    return alone if possible and bench.traffic.users is None else None


def serve_params(benches: Sequence[Bench]) -> str:
    """Return `serve_params.json`: the options of each candidate by its id."""
    entries: dict[str, Any] = {}
    for bench in benches:
        deployment = bench.deployment
        entries[deployment.candidate_id] = {
            _LINK: deployment.candidate_id,
            **keywords_of(deployment.flags),
        }
    return write_json(entries)


def bench_params(benches: Sequence[Bench]) -> str:
    """Return `bench_params.json`: each candidate at each load level."""
    entries: list[dict[str, Any]] = []
    for bench in benches:
        traffic = traffic_of(bench)
        if traffic is None:
            continue
        entries += [
            {
                _LINK: bench.deployment.candidate_id,
                "dataset_path": traffic.name,
                "num_prompts": traffic.num_requests,
                "timed_trace_sec_multiplier": traffic.unit_s / level,
                "label": f"{_key(bench)}={bench.deployment.candidate_id} level={text}",
            }
            for text, level in bench.levels.items()
        ]
    return write_json(entries)


def _key(bench: Bench) -> str:
    """Return what a result says of its candidate: one replica of several is not all of it."""
    return "candidate_id" if bench.deployment.replicas == 1 else "replica_of"


def write(benches: Sequence[Bench]) -> str:
    """Return the script with the command line; it runs in the plan's folder.

    All candidates load the same model. After each benchmark the engine's caches are emptied, which
    needs its development mode.
    """
    first = benches[0]
    named = all(bench.deployment.is_named for bench in benches)
    model = str(first.deployment.model) if named else "CHECKPOINT"
    bench_words = [
        *("vllm", "bench", "serve", "--backend", "openai"),
        *("--model", model, *data_words(first.traffic, first.traffic.name, "1")),
        *("--self-timed", *report_words(first)),
        *("--metadata", f"run={first.deployment.run}"),
        *("--save-detailed",),
    ]
    serve = _command(["vllm", "serve", model], named=named)
    lines = [
        "#!/usr/bin/env bash",
        f"# {TOOL}: every candidate of the plan that one engine can stand for.",
        "# Results go to RESULT_DIR, default ./results.",
        "set -euo pipefail",
        'mkdir -p -- "${RESULT_DIR:-results}"',
        'results="$(cd -- "${RESULT_DIR:-results}" && pwd)"',
        'cd -- "$(dirname -- "$0")"',
        "export VLLM_SERVER_DEV_MODE=1",
        "exec vllm bench sweep serve \\",
        f"  --serve-cmd {serve} \\",
        f"  --bench-cmd {_command(bench_words, named=named)} \\",
        f"  --serve-params {SERVE} \\",
        f"  --bench-params {BENCH} \\",
        f"  --link-vars {_LINK}={_LINK} \\",
        "  --num-runs 1 --server-ready-timeout 3600 \\",
        f'  --output-dir "$results" --experiment-name {shlex.quote(first.deployment.run)}',
        "",
    ]
    return "\n".join(lines)


def _command(words: Sequence[str], *, named: bool) -> str:
    """Return a command line as one word of the shell; a checkpoint comes in by its variable."""
    text = shlex.join(words)
    if named:
        return shlex.quote(text)
    before, after = text.split("CHECKPOINT", 1)
    return f'{shlex.quote(before)}"$(printf %q "{CHECKPOINT}")"{shlex.quote(after)}'


def read_serve(text: str, candidate_id: str, model: str) -> Started:
    """Return what an entry of `serve_params.json` starts."""
    entry = dict(json.loads(text)[candidate_id])
    entry.pop(_LINK)
    gpus = entry["tensor_parallel_size"] * entry["pipeline_parallel_size"]
    gpus *= entry.get("data_parallel_size", 1)
    return Started(["vllm", "serve", model, *flags_of(entry)], None, 1, gpus)
