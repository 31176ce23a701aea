"""`aiperf profile` of AIPerf 0.13.0 on the run's traffic."""

from __future__ import annotations

from sieve.export.bench import Bench, model_word, preamble, quoted, script, users_at
from sieve.spec import LatencyLimits

FILE = "bench_aiperf.sh"
TOOL = "aiperf profile of AIPerf 0.13.0"
_FASTER = '[ "$level" = 1.0 ] || set -- --synthesis-speedup-ratio "$scale"'


def write(bench: Bench) -> str:
    """Return the script.

    At other levels than 1.0 AIPerf passes the trace through its synthesizer, which rounds times to
    milliseconds; a turn's delay stays as it is.
    """
    traffic, deployment = bench.traffic, bench.deployment
    if traffic.users is None:
        scales = {text: repr(level) for text, level in bench.levels.items()}
        timing = ["--fixed-schedule", '"$@"']
        before = ["shift $(( $# > 0 ))", _FASTER]
    else:
        users = traffic.users
        scales = {text: str(users_at(users, level)) for text, level in bench.levels.items()}
        timing = ["--no-fixed-schedule", "--concurrency", '"$scale"', "--request-count", '"$count"']
        before = []
    path = '"$plan/$traffic"' if bench.in_ms is None else f'"$plan/{bench.in_ms}"'
    words = [
        *("aiperf profile", "--model", model_word(deployment), "--url", '"${BASE_URL:?}"'),
        *("--endpoint-type", "completions", "--streaming"),
        *("--input-file", path, "--custom-dataset-type", "mooncake_trace"),
        *("--isl-block-size", str(traffic.block_tokens)),
        *timing,
        *("--extra-inputs", "ignore_eos:true"),
        *_goodput(bench.limits),
        *("--artifact-dir", '"$results/aiperf-$name"'),
    ]
    return script([*preamble(bench, TOOL, scales), *before], words)


def _goodput(limits: LatencyLimits) -> list[str]:
    named = {
        "time_to_first_token": limits.ttft_s,
        "inter_token_latency": limits.tpot_s,
        "request_latency": limits.e2e_s,
    }
    words = [f"{name}:{limit * 1e3:g}" for name, limit in named.items() if limit is not None]
    return ["--goodput", quoted(" ".join(words))] if words else []
