"""Objectives as other tools write them, turned into the texts of `sieve.spec.slo`.

| tool | form | unit | meaning here |
|---|---|---|---|
| `vllm bench serve`, AIPerf | `--goodput ttft:500 tpot:50 >=4/s` | ms | gate on requests |
| AIPerf search | `--ttft-sla-ms 500 --slo-attainment-fraction 0.95` | ms | share of requests |
| AIConfigurator | `--ttft 500 --tpot 50 --request-latency 8000` | ms | means |
| Dynamo profiler | `sla: {ttft: 500, itl: 20, statistic: mean}` | ms | as `statistic` |

The inter-token latency of one request is its mean gap between tokens: TPOT.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any, Final

from sieve.errors import Fault

GATE_METRICS: Final = {
    "ttft": "ttft", "time_to_first_token": "ttft",
    "tpot": "tpot", "itl": "tpot", "inter_token_latency": "tpot",
    "e2e": "e2e", "e2el": "e2e", "request_latency": "e2e", "e2elatency": "e2e",
    "output_tokens_per_s_per_user": "output_tokens_per_s_per_user",
    "output_token_throughput_per_user": "output_tokens_per_s_per_user",
}  # fmt: skip
"""Names of per-request limits; the last is a rate and limited from below."""

_MEANS: Final = {"--ttft": "ttft", "--tpot": "tpot", "--request-latency": "e2e"}
_EACH: Final = {
    "--ttft-sla-ms": "ttft", "--itl-sla-ms": "tpot", "--tpot-sla-ms": "tpot", "--e2e-sla-ms": "e2e",
}  # fmt: skip
_SHARE: Final = "--slo-attainment-fraction"
_REFUSED: Final = {
    "--error-rate-sla": "a replay answers every request or rejects the candidate; leave it out",
    "--search-sla": "write the limit out, such as 'ttft:p99<=500ms'",
    "--target-concurrency": "that is traffic: traffic.synthetic.arrival.closed_loop",
    "--total-gpus": "that is the fleet: fleet.max_gpus",
}


def from_flags(text: str, path: str) -> tuple[list[str], list[Fault]]:
    """Return the objectives in a line of command-line flags as texts, and every fault."""
    try:
        words = shlex.split(re.sub(r"(--[a-z0-9-]+)=", r"\1 ", text))
    except ValueError as error:
        return [], [Fault(path, f"cannot read {text!r}: {error}")]
    groups: list[tuple[str, list[str]]] = []
    for word in words:
        if word.startswith("--"):
            groups.append((word, []))
        elif groups:
            groups[-1][1].append(word)
    out: list[str] = []
    faults: list[Fault] = []
    each: list[str] = []
    share = ""
    for flag, values in groups:
        if flag in _REFUSED:
            faults.append(Fault(path, f"{flag} is no objective of sieve: {_REFUSED[flag]}"))
        elif flag == "--goodput":
            out += _goodput(values, path, faults)
        elif flag == "--strict-sla" and not values:
            continue  # every verdict is strict
        elif flag not in {*_MEANS, *_EACH, _SHARE, "--target-request-rate"}:
            known = ", ".join(["--goodput", *_MEANS, *_EACH, _SHARE, "--target-request-rate"])
            faults.append(Fault(path, f"unknown flag {flag!r}; known are {known}"))
        elif len(values) != 1:
            faults.append(Fault(path, f"{flag} takes one value, found {len(values)}"))
        elif flag in _MEANS:
            out.append(f"{_MEANS[flag]}:mean<={_ms(values[0])}")
        elif flag == "--target-request-rate":
            out.append(f"requests_per_s>={values[0]}")
        elif flag == _SHARE:
            share = values[0]
        else:
            each.append(f"{_EACH[flag]}<={_ms(values[0])}")
    if bool(each) != bool(share):
        missing = (
            f"{_SHARE}, such as {_SHARE} 0.95" if each else "the limits, such as --ttft-sla-ms"
        )
        faults.append(Fault(path, f"a limit on requests needs the share that meets it: {missing}"))
    elif each:
        out.append(f"attainment({','.join(each)})>={share}")
    return out, faults


def _goodput(values: list[str], path: str, faults: list[Fault]) -> list[str]:
    """Return the gate of `KEY:VALUE` pairs in ms and a closing `>=4/s` or `>=0.95`."""
    pairs = " ".join(values).replace(">= ", ">=").split()
    least = [word[2:] for word in pairs if word.startswith(">=")]
    limits = []
    for pair in (word for word in pairs if not word.startswith(">=")):
        key, sign, value = pair.partition(":")
        name = GATE_METRICS.get(key)
        if name is None or not sign:
            names = ", ".join(GATE_METRICS)
            faults.append(Fault(path, f"cannot read {pair!r}, expected KEY:VALUE with {names}"))
        elif name == "output_tokens_per_s_per_user":
            limits.append(f"{name}>={value}")
        else:
            limits.append(f"{name}<={_ms(value)}")
    if len(least) != 1:
        text = "--goodput counts requests; say how many are needed: --goodput ttft:500 >=4/s for "
        faults.append(Fault(path, text + "requests per second, >=0.95 for a share"))
        return []
    kind = "goodput" if least[0].endswith(("/s", "/min", "/h")) else "attainment"
    return [f"{kind}({','.join(limits)})>={least[0]}"] if limits else []


def _ms(value: str) -> str:
    """Return a number of milliseconds with its unit; a text with a unit stays."""
    return value if value[-1:].isalpha() else f"{value}ms"


def from_sla(item: Any, path: str) -> tuple[list[str], list[Fault]]:
    """Return the objectives of an `sla` mapping (ms) as texts, and every fault."""
    example = "{ttft: 500, itl: 20, statistic: mean}"
    if not isinstance(item, Mapping):
        return [], [Fault(path, f"found {item!r}, expected a mapping as {example}")]
    statistic = item.get("statistic")
    if statistic is None:
        return [], [Fault(f"{path}.statistic", f"missing; say mean or a percentile: {example}")]
    out, faults = [], []
    names = {"ttft": "ttft", "itl": "itl", "tpot": "tpot", "e2elatency": "e2e"}
    for key, value in item.items():
        name = names.get(str(key).lower())
        if name is not None:
            out.append(f"{name}:{statistic}<={_ms(str(value))}")
        elif key != "statistic":
            allowed = "ttft, itl, tpot, e2eLatency, statistic"
            faults.append(Fault(f"{path}.{key}", f"unknown key; allowed are {allowed}"))
    return out, faults
