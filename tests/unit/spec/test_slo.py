"""Objectives: texts and mappings say the same, impossible ones are refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sieve.arrays import Requests
from sieve.spec import LatencyLimits, Slo, SloSet
from sieve.spec.slo import parse_slos
from sieve.spec.slo_traffic import traffic_faults


def read(value: Any) -> SloSet:
    slos, faults = parse_slos(value)
    assert faults == []
    return slos


def faults_of(value: Any) -> dict[str, str]:
    _, faults = parse_slos(value)
    return {fault.path: fault.message for fault in faults}


MAPPING = {
    "ttft_p99": "2 s",
    "tpot_p99": "50 ms",
    "e2e_mean": 30,
    "itl_p99_9": "1 s",
    "output_tokens_per_s": 5000,
    "attainment": {"share": 0.95, "ttft": "2 s", "tpot": "50 ms"},
    "goodput": {"per_s": 4, "ttft": "2 s", "e2e": "1 min"},
}
TEXTS = [
    "ttft:p99<=2s",
    " tpot:p99 <= 50 ms ",
    "e2e:mean<=30",
    "itl:p99.9<=1000ms",
    "output_tokens_per_s>=5000",
    "attainment(ttft<=2s,tpot<=50ms)>=0.95",
    "goodput(ttft <= 2s, e2e<=60s) >= 4/s",
]


def test_both_forms_are_equal() -> None:
    assert read(MAPPING) == read(TEXTS)


def test_what_they_say() -> None:
    slos = read(MAPPING)
    assert slos.limits == (
        Slo("ttft", "p99", at_most=True, limit=2.0),
        Slo("tpot", "p99", at_most=True, limit=0.05),
        Slo("e2e", "mean", at_most=True, limit=30.0),
        Slo("itl", "p99.9", at_most=True, limit=1.0),
        Slo("output_tokens_per_s", "", at_most=False, limit=5000.0),
    )
    assert slos.attainment == (0.95, LatencyLimits(ttft_s=2.0, tpot_s=0.05))
    assert slos.goodput == (4.0, LatencyLimits(ttft_s=2.0, e2e_s=60.0))
    assert [slo.column for slo in slos.limits] == [
        "ttft_p99_s",
        "tpot_p99_s",
        "e2e_mean_s",
        "itl_p99_9_s",
        "output_tokens_per_s",
    ]


def test_the_texts_written_are_read_back() -> None:
    slos = read(MAPPING)
    assert read(slos.texts) == slos


@pytest.mark.parametrize(
    ("alias", "plain"),
    [
        ("time_to_first_token_p99", "ttft_p99"),
        ("inter_token_latency_p99", "itl_p99"),
        ("request_latency_p99", "e2e_p99"),
        ("e2el_p99", "e2e_p99"),
    ],
)
def test_names_of_other_tools(alias: str, plain: str) -> None:
    assert read({alias: "2 s"}) == read({plain: "2 s"})


@pytest.mark.parametrize(
    ("value", "path", "complaint"),
    [
        ({"ttft_p99": 0}, "slo.ttft_p99", "above 0"),
        ({"ttft_p99": "-1 s"}, "slo.ttft_p99", "above 0"),
        ({"ttft_p99": "2 kg"}, "slo.ttft_p99", "'kg'"),
        ({"ttft_p99": "2/s"}, "slo.ttft_p99", "'/s'"),
        ({"ttft_p99": float("nan")}, "slo.ttft_p99", "finite"),
        ({"ttft_p99": float("inf")}, "slo.ttft_p99", "finite"),
        ({"ttft_p99": True}, "slo.ttft_p99", "expected a number"),
        ({"ttft_p99": None}, "slo.ttft_p99", "expected a number"),
        ({"ttft": "2 s"}, "slo.ttft", "statistic"),
        ({"ttft_p0": "2 s"}, "slo.ttft_p0", "percentile"),
        ({"tftt_p99": "2 s"}, "slo.tftt_p99", "unknown objective"),
        ({"output_tokens_per_s": 0}, "slo.output_tokens_per_s", "above 0"),
        ({"output_tokens_per_s": "5 s"}, "slo.output_tokens_per_s", "'s'"),
        ({"attainment": {"share": 1.5, "ttft": 1}}, "slo.attainment.share", "at most 1"),
        ({"attainment": {"share": "150%", "ttft": 1}}, "slo.attainment.share", "at most 1"),
        ({"attainment": {"share": 0, "ttft": 1}}, "slo.attainment.share", "above 0"),
        ({"attainment": {"share": -0.1, "ttft": 1}}, "slo.attainment.share", "above 0"),
        ({"attainment": {"ttft": 1}}, "slo.attainment.share", "missing"),
        ({"attainment": {"share": 0.9}}, "slo.attainment", "at least one limit"),
        ({"attainment": 0.9}, "slo.attainment", "expected a mapping"),
        ({"attainment": {"share": 0.9, "ttft": 1, "foo": 1}}, "slo.attainment.foo", "unknown key"),
        ({"goodput": {"per_s": 0, "ttft": 1}}, "slo.goodput.per_s", "above 0"),
        ({"goodput": {"share": 0.9, "ttft": 1}}, "slo.goodput.share", "unknown key"),
        (["ttft:p99>=2s"], "slo[0]", "limited with <="),
        (["output_tokens_per_s<=5"], "slo[0]", "limited with >="),
        (["ttft p99 < 2"], "slo[0]", "cannot read"),
        (["attainment(ttft)>=0.9"], "slo[0]", "cannot read 'ttft'"),
        (["attainment(ttft<=1s)>=1.1"], "slo[0].share", "at most 1"),
        ([5], "slo[0]", "expected a text"),
        ("ttft_p99", "slo", "expected a mapping or a list"),
        (["ttft:p99<=1s", "ttft:p99<=2s"], "slo", "limited twice"),
    ],
)
def test_faults_are_named_with_their_path(value: Any, path: str, complaint: str) -> None:
    faults = faults_of(value)
    assert path in faults
    assert complaint in faults[path]


def test_every_fault_at_once() -> None:
    value = {"ttft_p99": 0, "tpot_p99": "x", "foo": 1, "attainment": {"share": 2, "ttft": -1}}
    assert set(faults_of(value)) == {
        "slo.ttft_p99",
        "slo.tpot_p99",
        "slo.foo",
        "slo.attainment.share",
        "slo.attainment.ttft",
    }


def test_a_second_gate_of_a_kind_is_refused_like_a_second_limit() -> None:
    assert faults_of(["goodput(ttft<=1s)>=4/s", "goodput(ttft<=2s)>=1/s"])


def test_a_share_of_one_is_allowed() -> None:
    assert read({"attainment": {"share": 1, "ttft": "1 s"}}).attainment is not None


def test_request_limits_come_from_the_gate_or_the_tightest_limits() -> None:
    assert read(MAPPING).request_limits() == LatencyLimits(ttft_s=2.0, e2e_s=60.0)
    only = {k: v for k, v in MAPPING.items() if k != "goodput"}
    assert read(only).request_limits() == LatencyLimits(ttft_s=2.0, tpot_s=0.05)
    plain = read({"ttft_p99": 2, "ttft_p50": 1, "e2e_p99": 9})
    assert plain.request_limits() == LatencyLimits(ttft_s=1.0, e2e_s=9.0)


def test_rates_and_the_rate_of_a_user() -> None:
    slos = read({
        "output_tokens_per_s_per_gpu": 900, "requests_per_s": "4/s",
        "output_tokens_p1_per_s_per_user": 20,
    })  # fmt: skip
    assert [slo.column for slo in slos.limits] == [
        "output_tokens_per_s_per_gpu", "requests_per_s", "output_tokens_p1_per_s_per_user",
    ]  # fmt: skip
    assert [slo.unit for slo in slos.limits] == ["tokens/s", "requests/s", "tokens/s"]
    assert not any(slo.at_most for slo in slos.limits)
    assert read(slos.texts) == slos
    assert read(["output_token_throughput_per_user:p1>=20"]).limits == slos.limits[2:]
    assert "statistic" in faults_of(["output_token_throughput_per_user>=20"])["slo[0]"]


def test_units_and_statistics_of_other_tools() -> None:
    plain = read({"ttft_p99": "500 ms", "tpot_mean": "50 ms", "e2e_p50": "8 s"})
    assert read({"ttft_p99_ms": 500, "tpot_avg_ms": 50, "e2el_median_ms": 8000}) == plain


@pytest.mark.parametrize(
    ("text", "native"),
    [
        (
            "--goodput ttft:500 tpot:50 e2el:8000 >=4/s",
            ["goodput(ttft<=500ms,tpot<=50ms,e2e<=8s)>=4/s"],
        ),
        (
            "--goodput 'time_to_first_token:500 inter_token_latency:50 request_latency:8000' "
            ">= 0.95",
            ["attainment(ttft<=500ms,tpot<=50ms,e2e<=8s)>=0.95"],
        ),
        (
            "--goodput output_token_throughput_per_user:20 >=4/s",
            ["goodput(tpot<=50ms)>=4/s"],
        ),
        (
            "--ttft-sla-ms 500 --itl-sla-ms=40 --slo-attainment-fraction 0.95",
            ["attainment(ttft<=500ms,tpot<=40ms)>=0.95"],
        ),
        (
            "--ttft 500 --tpot 50 --request-latency 8000 --strict-sla --target-request-rate 5",
            ["ttft:mean<=500ms", "tpot:mean<=50ms", "e2e:mean<=8s", "requests_per_s>=5"],
        ),
    ],
)
def test_flags_of_other_tools(text: str, native: list[str]) -> None:
    assert read([text]) == read(native)


def test_mappings_of_other_tools() -> None:
    guide = {"goodput": {"ttft_ms": 500, "tpot_ms": 50, "e2el_ms": 8000, "target_attainment": 0.9}}
    assert read(guide) == read(["attainment(ttft<=500ms,tpot<=50ms,e2e<=8s)>=0.9"])
    profiler = {"sla": {"ttft": 500, "itl": 20, "e2eLatency": 8000, "statistic": "p95"}}
    assert read(profiler) == read(["ttft:p95<=500ms", "itl:p95<=20ms", "e2e:p95<=8s"])


@pytest.mark.parametrize(
    ("value", "path", "complaint"),
    [
        (["--goodput ttft:500"], "slo[0]", "say how many are needed"),
        (["--goodput tfft:500 >=4/s"], "slo[0]", "cannot read 'tfft:500'"),
        (["--ttft-sla-ms 500"], "slo[0]", "--slo-attainment-fraction 0.95"),
        (["--slo-attainment-fraction 0.9"], "slo[0]", "needs the share"),
        (["--error-rate-sla 0.01"], "slo[0]", "leave it out"),
        (["--total-gpus 8"], "slo[0]", "fleet.max_gpus"),
        (["--target-concurrency 8"], "slo[0]", "closed_loop"),
        (["--ttft 500 600"], "slo[0]", "takes one value"),
        (["--tfft 500"], "slo[0]", "unknown flag"),
        (["--ttft 'x"], "slo[0]", "cannot read"),
        ({"sla": {"ttft": 500}}, "slo.sla.statistic", "missing"),
        ({"sla": {"ttft": 500, "x": 1, "statistic": "mean"}}, "slo.sla.x", "unknown key"),
        ({"sla": 5}, "slo.sla", "expected a mapping"),
        ({"ttft_p100": "2 s"}, "slo.ttft_p100", "below p100"),
        ({"ttft_p150": "2 s"}, "slo.ttft_p150", "below p100"),
        (["ttft:p1000<=2s"], "slo[0]", "below p100"),
        (["output_tokens_per_s_per_user:p1<=20"], "slo[0]", "limited with >="),
        (["goodput(output_tokens_per_s_per_user<=20)>=4/s"], "slo[0]", "limited with >="),
        ({"goodput": {"per_s": 4, "tpot": 1, "itl": 1}}, "slo.goodput.itl", "limited twice"),
        (["goodput(ttft<=1s,ttft<=2s)>=4/s"], "slo[0]", "limited twice"),
        ({"ttft_p99": 1, "time_to_first_token_p99": 2}, "slo", "limited twice"),
        ({"ttft_p99": 1, "ttft_p99_ms": 500}, "slo", "limited twice"),
    ],
)
def test_what_other_tools_write_and_cannot_be_meant(value: Any, path: str, complaint: str) -> None:
    faults = faults_of(value)
    assert path in faults
    assert complaint in faults[path]


def test_each_gate_has_its_own_limits() -> None:
    slos = read(MAPPING)
    assert slos.attainment_limits() == LatencyLimits(ttft_s=2.0, tpot_s=0.05)
    assert slos.request_limits() == LatencyLimits(ttft_s=2.0, e2e_s=60.0)
    only = read({"goodput": {"per_s": 4, "ttft": 1}})
    assert only.attainment_limits() == only.request_limits() == LatencyLimits(ttft_s=1.0)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ({"tpot_p99": 1}, False),
        ({"itl_p99": 1}, False),
        ({"output_tokens_p1_per_s_per_user": 1}, False),
        ({"goodput": {"per_s": 4, "tpot": 1}}, False),
        ({"attainment": {"share": 0.9, "tpot": 1}}, False),
        ({"attainment": {"share": 0.9, "tpot": 1, "ttft": 1}}, True),
        ({"ttft_p99": 1, "e2e_mean": 1, "requests_per_s": 1}, True),
    ],
)
def test_one_token_answers_show_no_gaps(value: Any, shown: bool) -> None:
    slos = read(value)
    ones = Requests(np.zeros(2), np.ones(2, np.int64), np.array([1, 1]))
    assert (traffic_faults(slos, ones) == []) is shown
    assert traffic_faults(slos, replace(ones, output_tokens=np.array([1, 2]))) == []
