"""Objectives: texts and mappings say the same, impossible ones are refused."""

from __future__ import annotations

from typing import Any

import pytest

from sieve.spec import LatencyLimits, Slo, SloSet
from sieve.spec.slo import parse_slos


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
