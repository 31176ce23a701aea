"""Limits for classes of requests: forms, faults, and what they mean on a trace by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import sieve
from sieve.arrays import Requests
from sieve.errors import SpecError
from sieve.spec import LatencyLimits
from sieve.spec.slo import latency_column, parse_slos
from sieve.spec.slo_classes import RequestClass, class_faults

Make = Callable[..., dict[str, Any]]
SHORT = RequestClass("short", (("input_tokens", "<", 512),))
MAPPING = {
    "tpot_p99": "50 ms",
    "classes": {
        "short": {"where": "input_tokens<512", "ttft_p99": "2 s"},
        "long": {"where": "input_tokens>=512, total_tokens<=9000", "e2e_p95": "30 s"},
    },
}
TEXTS = [
    "tpot:p99<=50ms",
    "short(input_tokens<512): ttft:p99<=2s",
    "long(input_tokens>=512,total_tokens<=9000): e2e:p95<=30s",
]


def test_mapping_and_texts_say_the_same_and_come_back() -> None:
    slos, faults = parse_slos(MAPPING)
    assert faults == []
    assert slos.texts == TEXTS
    assert parse_slos(TEXTS) == (slos, [])
    assert [group.name for group in slos.classes] == ["short", "long"]
    assert [slo.column for slo in slos.limits] == [
        "tpot_p99_s", "ttft_p99_in_short_s", "e2e_p95_in_long_s"
    ]  # fmt: skip
    assert latency_column("output_tokens_per_s_per_user@short", "p1") == (
        "output_tokens_p1_in_short_per_s_per_user"
    )


def test_limits_of_a_class_do_not_bind_the_whole_traffic() -> None:
    slos, _ = parse_slos(MAPPING)
    assert slos.limit_on("ttft") is None
    assert slos.attainment_limits() == LatencyLimits(
        tpot_s=0.05,
        classes=(("short", LatencyLimits(ttft_s=2.0)), ("long", LatencyLimits(e2e_s=30.0))),
    )


@pytest.mark.parametrize(
    ("classes", "path", "words"),
    [
        ([], "slo.classes", "expected classes by name"),
        ({}, "slo.classes", "expected classes by name"),
        ({"short": "2 s"}, "slo.classes.short.where", "missing"),
        ({"short": {"ttft_p99": "2 s"}}, "slo.classes.short.where", "missing"),
        ({"Short": {"where": "input_tokens<5", "ttft_p99": 1}}, "slo.classes.Short", "lower-case"),
        ({"short": {"where": 5, "ttft_p99": 1}}, "slo.classes.short.where", "expected a text"),
        ({"short": {"where": "isl<5", "ttft_p99": 1}}, "slo.classes.short.where", "'isl<5'"),
        ({"short": {"where": "input_tokens==5", "ttft_p99": 1}}, "slo.classes.short.where", "=="),
        ({"short": {"where": "input_tokens<5"}}, "slo.classes.short", "no limit"),
        ({"short": {"where": "input_tokens<5", "tftt_p99": 1}},
         "slo.classes.short.tftt_p99", "unknown objective"),
        ({"short": {"where": "input_tokens<5", "itl_p99": 1}}, "slo.classes.short", "itl is not"),
        ({"short": {"where": "input_tokens<5", "requests_per_s": 1}}, "slo.classes.short", "not"),
        ({"short": {"where": "input_tokens<5", "attainment": {"share": 0.9, "ttft": 1}}},
         "slo.classes.short", "attainment is not"),
    ],
)  # fmt: skip
def test_faults_name_the_path(classes: Any, path: str, words: str) -> None:
    _, faults = parse_slos({"classes": classes})
    assert [fault.path for fault in faults] == [path]
    assert words in faults[0].message


def test_one_name_for_two_classes_is_a_fault() -> None:
    _, faults = parse_slos(["a(input_tokens<5): ttft:p99<=2s", "a(input_tokens<6): e2e:p99<=9s"])
    assert "class 'a' is two" in faults[0].message
    _, faults = parse_slos(["a(input_tokens<5): ttft:p99<=2s", "a(input_tokens<5): ttft:p99<=3s"])
    assert "limited twice" in faults[0].message


def test_a_class_without_requests_or_priorities_is_named() -> None:
    requests = Requests(np.zeros(2), np.array([600, 700]), np.array([5, 6]))
    (fault,) = class_faults((SHORT,), requests)
    assert fault.path == "slo.classes.short"
    assert "no request of the traffic is input_tokens<512" in fault.message
    assert "600 to 700 tokens" in fault.message
    (fault,) = class_faults((RequestClass("vip", (("priority", "<=", 0),)),), requests)
    assert "no priorities" in fault.message


def test_a_run_refuses_a_class_that_its_traffic_lacks(make_spec: Make) -> None:
    slo = {"classes": {"huge": {"where": "input_tokens>9000", "ttft_p99": "2 s"}}}
    with pytest.raises(SpecError, match=r"slo\.classes\.huge: no request of the traffic"):
        sieve.run(make_spec({"slo": slo}))


def test_a_run_judges_each_class_by_its_own_requests(make_spec: Make) -> None:
    """The p99 of a class is that of its requests in the replay, and decides its verdict."""
    slo = {
        "tpot_p99": "50 ms",
        "classes": {
            "short": {"where": "input_tokens<200", "e2e_p99": "1 s"},
            "long": {"where": "input_tokens>=200", "ttft_mean": "1 ms"},
        },
    }
    spec = make_spec({"slo": slo, "grid.axes.tp": [1], "grid.axes.weight_dtype": ["fp8"]})
    result = sieve.run(spec)
    first = result.data["ranking"][0]
    rows = sieve.replay(spec, first["candidate_id"]).requests
    short = rows.filter(rows["input_tokens"] < 200)["e2e_s"].to_numpy()
    long = rows.filter(rows["input_tokens"] >= 200)["ttft_s"].to_numpy()
    assert first["classes"]["short"]["e2e_p99_s"]["mid"] == pytest.approx(np.percentile(short, 99))
    assert first["classes"]["long"]["ttft_mean_s"]["mid"] == pytest.approx(long.mean())
    assert first["classes"]["short"]["verdict"] == "clears"
    assert first["classes"]["long"]["verdict"] == "misses" == first["verdict"]
    assert first["slo_attainment"]["mid"] == pytest.approx(len(short) / 100)
    assert result.ranking["verdict_in_long"][0] == "misses"
    assert result.answer["status"] == "no_slo"
