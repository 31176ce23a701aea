"""`vllm bench serve` of vLLM 0.33.0 on the run's traffic."""

from __future__ import annotations

from sieve.export.bench import Bench, model_word, preamble, quoted, script, users_at
from sieve.export.traffic import TrafficFile
from sieve.spec import LatencyLimits

FILE = "bench.sh"
TOOL = "vllm bench serve of vLLM 0.33.0"


def fits(traffic: TrafficFile) -> bool:
    """Tell whether the tool can replay the traffic: it knows no turns that wait."""
    return not traffic.has_sessions


def write(bench: Bench) -> str:
    """Return the script."""
    traffic = bench.traffic
    if traffic.users is None:
        scales = {text: repr(traffic.unit_s / level) for text, level in bench.levels.items()}
        timing = ["--self-timed", "--timed-trace-sec-multiplier", '"$scale"']
    else:
        users = traffic.users
        scales = {text: str(users_at(users, level)) for text, level in bench.levels.items()}
        timing = ["--no-self-timed", "--request-rate", "inf", "--max-concurrency", '"$scale"']
    deployment = bench.deployment
    words = [
        "vllm bench serve",
        *("--backend", "openai", "--base-url", '"${BASE_URL:?}"'),
        *("--model", model_word(deployment)),
        *data_words(traffic, '"$plan/$traffic"', '"$count"'),
        *timing,
        *report_words(bench),
        *("--save-result", "--save-detailed", "--result-dir", '"$results"'),
        *("--result-filename", '"$name.json"'),
        *("--metadata", '"$key="' + quoted(deployment.candidate_id)),
        *(quoted(f"run={deployment.run}"), '"level=$level"', '"scope=$scope"'),
    ]
    return script(preamble(bench, TOOL, scales), words)


def data_words(traffic: TrafficFile, path: str, count: str) -> list[str]:
    """Return the options that name the traffic."""
    return [
        *("--dataset-name", "timed_trace", "--dataset-path", path),
        *("--timed-trace-chunk-hash-size", str(traffic.block_tokens)),
        *("--timed-trace-label-hash-ids", traffic.blocks),
        *("--num-prompts", count),
    ]


def report_words(bench: Bench) -> list[str]:
    """Return the options that say what is reported."""
    goodput = goodput_words(bench.limits)
    return [
        *("--percentile-metrics", "ttft,tpot,itl,e2el"),
        *("--metric-percentiles", ",".join(bench.percentiles)),
        *(["--goodput", *goodput] if goodput else []),
        *("--temperature", "0"),
    ]


def goodput_words(limits: LatencyLimits) -> list[str]:
    """Return the limits as `ttft:2000`, in milliseconds."""
    named = {"ttft": limits.ttft_s, "tpot": limits.tpot_s, "e2el": limits.e2e_s}
    return [f"{name}:{limit * 1e3:g}" for name, limit in named.items() if limit is not None]
