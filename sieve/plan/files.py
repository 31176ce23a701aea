"""Every file of a plan as text; each engine target is read back and held to its candidate."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

import polars as pl

from sieve.arrays import Requests
from sieve.export import (
    aiperf,
    compose,
    dynamo,
    guidellm,
    kserve,
    kserve_classic,
    kubernetes,
    leader_worker_set,
    llm_d,
    ray_serve,
    traffic,
    vllm_bench,
    vllm_sweep,
)
from sieve.export.bench import Bench, level_text
from sieve.export.deployment import Deployment, Started, check, read_script
from sieve.export.vllm_serve import CHECKPOINT, serve_script
from sieve.export.yaml_text import write_json
from sieve.plan.run_facts import RunFacts


class Target(Protocol):
    """A module that writes a candidate for one system and reads it back."""

    FILE: str

    def fits(self, deployment: Deployment) -> bool:
        """Tell whether the system can express the candidate."""
        ...

    def write(self, deployment: Deployment) -> str:
        """Return the text."""
        ...

    def read(self, text: str) -> Started:
        """Return what the text starts."""
        ...


_TARGETS: Final = (
    kubernetes, leader_worker_set, kserve, kserve_classic, llm_d, ray_serve, dynamo,
)  # fmt: skip
_IN_MS: Final = "traffic_ms.jsonl"
_BASE_PERCENTILES: Final = ("50", "90", "95", "99")


@dataclass(frozen=True)
class Traffic:
    """The traffic files of a plan.

    Attributes:
        whole: what the whole fleet gets.
        shares: what one of so many replicas gets.
        texts: text by name.
        in_ms: name of the traffic in milliseconds, where `whole` is in seconds.
    """

    whole: traffic.TrafficFile
    shares: Mapping[int, traffic.TrafficFile]
    texts: Mapping[str, str]
    in_ms: str | None


def traffic_files(requests: Requests, replicas: Sequence[int], routing: str) -> Traffic:
    """Return the traffic as files, also one replica's share where requests are dealt in turn."""
    whole = traffic.file_of(requests)
    texts = {whole.name: traffic.lines_of(requests, whole)}
    in_ms = None if whole.format == "mooncake_trace" else _IN_MS
    if in_ms is not None:
        texts[in_ms] = traffic.lines_of(requests, whole, unit_s=1e-3)
    shares = {}
    for count in sorted({n for n in replicas if n > 1}) if routing == "round_robin" else ():
        share = traffic.replica_share(requests, count)
        if share is not None:
            shares[count] = traffic.file_of(share, f"traffic_1of{count}.jsonl")
            texts[shares[count].name] = traffic.lines_of(share, shares[count])
    return Traffic(whole, shares, texts, in_ms)


def bench_of(facts: RunFacts, deployment: Deployment, files: Traffic) -> Bench:
    """Return the benchmark of a candidate."""
    key = pl.col("candidate_id") == deployment.candidate_id
    levels = sorted(facts.simulations.filter(key)["level"].to_list())
    asked = [slo.statistic for slo in facts.slos.limits if re.match(r"p\d", slo.statistic)]
    numbers = {*_BASE_PERCENTILES, *(text[1:].replace("_", ".") for text in asked)}
    return Bench(
        deployment=deployment,
        traffic=files.whole,
        share=files.shares.get(deployment.replicas) if deployment.data_parallel == 1 else None,
        levels={level_text(level): level for level in levels},
        limits=facts.slos.request_limits(),
        percentiles=tuple(sorted(numbers, key=float)),
        in_ms=files.in_ms,
    )


def candidate_files(
    bench: Bench, expectation: Mapping[str, Any], gpus_per_host: int
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the files of one candidate by name, and what was left out with the reason.

    Raises:
        ExportError: a target would not start what was evaluated.
    """
    deployment = bench.deployment
    script = serve_script(
        deployment.row, deployment.model or CHECKPOINT, deployment.checkpoint_dtype,
        deployment.engine, nodes=deployment.nodes,
    )  # fmt: skip
    check(deployment, "serve.sh", script, read_script)
    out = {"serve.sh": script}
    left_out: dict[str, str] = {}
    reason = "it cannot replay turns that wait for the answer before"
    if vllm_bench.fits(bench.traffic):
        out[vllm_bench.FILE] = vllm_bench.write(bench)
    else:
        left_out["vllm bench serve"] = f"{reason}; {vllm_bench.FILE} runs AIPerf"
        out[vllm_bench.FILE] = aiperf.write(bench)
    out[aiperf.FILE] = aiperf.write(bench)
    if guidellm.fits(bench.traffic):
        out[guidellm.FILE] = guidellm.write(bench)
    else:
        left_out[guidellm.FILE] = reason
    text = compose.write(deployment, gpus_per_host)
    check(deployment, compose.FILE, text, compose.read)
    out[f"manifests/{compose.FILE}"] = text
    for target in _TARGETS:
        if not target.fits(deployment):
            left_out[target.FILE] = _why_not(target.FILE, deployment)
            continue
        text = target.write(deployment)
        check(deployment, target.FILE, text, target.read)
        out[f"manifests/{target.FILE}"] = text
    out["expected.json"] = write_json(expectation)
    return out, left_out


def _why_not(name: str, deployment: Deployment) -> str:
    if name == leader_worker_set.FILE:
        return "one node is enough"
    if name in {kserve.FILE, llm_d.FILE}:
        return "a name holds {{, which the system would take for a template"
    if name == ray_serve.FILE:
        return "data-parallel ranks need another builder there"
    return f"a replica spans {deployment.nodes} nodes, which it cannot express here"


def sweep_files(benches: Sequence[Bench]) -> dict[str, str]:
    """Return the parameter files of the sweep and its command; no command where none can run."""
    able = [bench for bench in benches if vllm_sweep.traffic_of(bench) is not None]
    params = vllm_sweep.serve_params(able)
    for bench in able:
        deployment = bench.deployment
        read = partial(
            vllm_sweep.read_serve,
            candidate_id=deployment.candidate_id,
            model=deployment.model or CHECKPOINT,
        )
        check(deployment, vllm_sweep.SERVE, params, read)
    out = {vllm_sweep.SERVE: params, vllm_sweep.BENCH: vllm_sweep.bench_params(able)}
    if able:
        out[vllm_sweep.SCRIPT] = vllm_sweep.write(able)
    return out
