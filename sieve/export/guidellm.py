"""`guidellm run` of GuideLLM 0.8.1 on the run's traffic; its times are seconds."""

from __future__ import annotations

import json
from typing import Any

from sieve.export.bench import Bench, preamble, quoted, script, users_at
from sieve.export.traffic import SHARED_BLOCKS, TrafficFile
from sieve.spec import LatencyLimits

FILE = "bench_guidellm.sh"
TOOL = "guidellm run of GuideLLM 0.8.1"


def fits(traffic: TrafficFile) -> bool:
    """Tell whether the tool can replay the traffic: these trace kinds have no waiting turns."""
    return not traffic.has_sessions


def write(bench: Bench) -> str:
    """Return the script; the model's name is asked from the server.

    The paths are the script's own variables, so the JSON is put together by the shell from parts
    that hold no quotes of their own but the folder's name, which must be free of them.
    """
    traffic, deployment = bench.traffic, bench.deployment
    data: dict[str, Any] = {"kind": "trace_synthetic"}
    if traffic.blocks == SHARED_BLOCKS:
        data = {"kind": "mooncake", "hash_id_block_size": traffic.block_tokens}
    if traffic.users is None:
        scales = {text: repr(traffic.unit_s / level) for text, level in bench.levels.items()}
        profile = quoted('{"kind": "replay", "schedule_turn": "timestamp"}')
        scale = '"$scale"'
    else:
        users = traffic.users
        scales = {text: str(users_at(users, level)) for text, level in bench.levels.items()}
        profile = quoted('{"kind": "concurrent", "streams": [') + '"$scale"' + quoted("]}")
        scale = quoted(repr(traffic.unit_s))
    head = json.dumps(data)[:-1] + ', "source": {"kind": "json_file", "path": "'
    data_word = quoted(head) + '"$traffic"' + quoted('"}, "time_scale": ') + scale + quoted("}")
    backend = quoted('{"kind": "openai_http", "request_format": "/v1/completions", "target": "')
    output = quoted('{"kind": "json", "path": "') + '"guidellm-$name.json"' + quoted('"}')
    words = [
        "guidellm run",
        *("--backend", backend + '"${BASE_URL:?}"' + quoted('"}')),
        *("--profile", profile, "--data", data_word),
        *("--constraint", '"kind=max_requests,count=$count"'),
        *_metrics(bench.limits),
        *("--output", output),
        *("--label", '"$key="' + quoted(deployment.candidate_id)),
        *("--label", quoted(f"run={deployment.run}")),
        *("--label", '"level=$level"', "--label", '"scope=$scope"'),
    ]
    # Relative names keep folders with quotes in their names out of the JSON.
    before = ['ln -sf -- "$plan/$traffic" "$results/$traffic"', 'cd -- "$results"']
    return script([*preamble(bench, TOOL, scales), *before], words)


def _metrics(limits: LatencyLimits) -> list[str]:
    named = {"ttft_ms": limits.ttft_s, "tpot_ms": limits.tpot_s, "e2el_ms": limits.e2e_s}
    slo = {name: limit * 1e3 for name, limit in named.items() if limit is not None}
    if not slo:
        return []
    return ["--metrics", quoted(json.dumps({"kind": "generative", "slo": slo}))]
