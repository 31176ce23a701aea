"""Result files of benchmark tools: figures as the tool wrote them, and what is refused."""

from __future__ import annotations

import copy
import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sieve.calibration.readers import read_results
from sieve.calibration.readers.detect import kind_of
from sieve.errors import ResultError

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def put(data: Any, name: str = "result.json") -> Path:
        path = tmp_path / name
        text = data if isinstance(data, str) else json.dumps(data)
        path.write_text(text, encoding="utf-8")
        return path

    return put


def bench(**changes: Any) -> dict[str, Any]:
    """Four requests of 10 tokens each in 2 s: 20 tokens per second, 2 requests per second."""
    return {
        "date": "20261129-101010", "backend": "vllm", "model_id": "Qwen/Qwen3-8B",
        "num_prompts": 4, "request_rate": 2.0, "max_concurrency": None, "duration": 2.0,
        "completed": 4, "failed": 0, "total_input_tokens": 400, "total_output_tokens": 40,
        "request_throughput": 2.0, "output_throughput": 20.0, "total_token_throughput": 220.0,
        "mean_ttft_ms": 110.0, "median_ttft_ms": 100.0, "p99_ttft_ms": 200.0,
        "mean_tpot_ms": 20.0, "median_tpot_ms": 19.0, "p99_tpot_ms": 30.0,
        "mean_itl_ms": 20.0, "median_itl_ms": 19.0, "p99_itl_ms": 31.0,
        "mean_e2el_ms": 290.0, "median_e2el_ms": 280.0, "p99_e2el_ms": 400.0,
        "candidate_id": "h100-sxm-80gb.tp1.pp1.ep1.r1.bf16.kv-auto.s64.b2048", "level": "1.0",
    } | changes  # fmt: skip


def detailed() -> dict[str, Any]:
    """Two requests: at 0 s (first token 0.1, then 2 gaps of 0.2), at 1 s (0.3, one gap of 0.5)."""
    return bench(
        num_prompts=2, completed=2, duration=2.0, total_input_tokens=30, total_output_tokens=5,
        request_throughput=1.0, output_throughput=2.5, total_token_throughput=17.5,
        mean_ttft_ms=200.0, median_ttft_ms=200.0, p99_ttft_ms=298.0, mean_e2el_ms=650.0,
        median_e2el_ms=650.0, p99_e2el_ms=798.0,
        input_lens=[20, 10], output_lens=[2, 3], ttfts=[0.3, 0.1], start_times=[11.0, 10.0],
        itls=[[0.5], [0.2, 0.2]], errors=["", ""],
    )  # fmt: skip


def test_a_result_of_vllm_bench(write: Write) -> None:
    (found,) = read_results(write(bench()))
    assert (found.source_format, found.model, found.date) == (
        "vllm_bench", "Qwen/Qwen3-8B", "20261129-101010",
    )  # fmt: skip
    assert found.measured["ttft"] == pytest.approx(0.110)
    assert found.measured["ttft_p50"] == pytest.approx(0.100), "median_* is p50"
    assert found.measured["tpot_p99"] == pytest.approx(0.030)
    assert found.measured["output_tokens_per_s"] == 20.0
    assert (found.input_tokens, found.output_tokens) == (100.0, 10.0)
    assert (found.rate_per_s, found.users, found.load) == (2.0, None, "2 requests/s")
    assert found.metadata["candidate_id"].startswith("h100")
    assert found.metadata["level"] == "1.0"


def test_a_rate_of_inf_with_a_cap_is_a_closed_loop(write: Write) -> None:
    (found,) = read_results(write(bench(request_rate="inf", max_concurrency=8)))
    assert (found.users, found.load) == (8, "8 users")


def test_requests_of_a_detailed_result_in_the_order_they_were_sent(write: Write) -> None:
    (found,) = read_results(write(detailed()))
    assert found.series is not None
    assert found.series.start_s.tolist() == [0.0, 1.0]
    assert found.series.first_s == pytest.approx([0.1, 1.3])
    assert found.series.end_s == pytest.approx([0.5, 1.8])
    assert found.series.output_tokens.tolist() == [3, 2]


def test_appended_results_are_one_result_each(write: Write) -> None:
    body = "\n".join(json.dumps(bench(request_rate=rate)) for rate in (1.0, 2.0))
    found = read_results(write(body))
    assert [result.rate_per_s for result in found] == [1.0, 2.0]
    assert found[0].where != found[1].where


def test_a_sweep_as_json_and_as_table(write: Write, tmp_path: Path) -> None:
    records = [bench(run_number=i, max_num_seqs=2**i, tensor_parallel_size=2) for i in range(2)]
    (path := tmp_path / "summary.csv").write_text("")
    with path.open("w", newline="") as handle:
        table = csv.DictWriter(handle, list(records[0]))
        table.writeheader()
        table.writerows(records)
    for found in (read_results(write(records, "summary.json")), read_results(path)):
        assert [r.source_format for r in found] == ["vllm_sweep"] * 2
        assert [int(r.metadata["max_num_seqs"]) for r in found] == [1, 2]
        assert found[0].measured["tpot_p50"] == pytest.approx(0.019)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"output_throughput": 24.0}, "output_throughput is 24"),
        ({"duration": 1.0}, "output_throughput"),
        ({"request_throughput": 3.0}, "request_throughput"),
        ({"total_token_throughput": 100.0}, "total_token_throughput"),
        ({"completed": 5}, "request_throughput"),
        ({"p99_tpot_ms": 10.0}, "p99_tpot_ms"),
        ({"mean_e2el_ms": 50.0}, "mean_e2el_ms"),
        ({"completed": 0}, "no request was answered"),
        ({"duration": -1}, "duration"),
        ({"median_ttft_ms": "fast"}, "median_ttft_ms"),
        ({"median_ttft_ms": True}, "median_ttft_ms"),
        ({"max_concurrency": 1, "mean_e2el_ms": 5000.0, "median_e2el_ms": 5000.0,
          "p99_e2el_ms": 6000.0}, "max_concurrency"),
    ],
)  # fmt: skip
def test_an_edited_or_empty_result_is_refused_by_name(
    write: Write, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(ResultError, match=words) as caught:
        read_results(write(bench(**changes), "mine.json"))
    assert "mine.json" in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("output_lens", [2, 4], "total_output_tokens"),
        ("output_lens", [2], "output_lens"),
        ("ttfts", [0.3, 0.3], "mean_ttft_ms"),
        ("output_lens", [5, 0], "completed"),
        ("start_times", [11.0, -1.0], "below 0"),
        ("ttfts", ["a", "b"], "numbers only"),
    ],
)
def test_lists_of_a_detailed_result_must_agree_with_its_totals(
    write: Write, key: str, value: list[Any], words: str
) -> None:
    with pytest.raises(ResultError, match=words):
        read_results(write(detailed() | {key: value}))


def aiperf() -> dict[str, Any]:
    def metric(unit: str, avg: float, spread: float = 0.5, **more: Any) -> dict[str, Any]:
        low, high = avg * (1 - spread), avg * (1 + spread)
        ranks = {"min": low, "p50": avg * 0.95, "p90": avg * 1.2, "p99": avg * 1.4, "max": high}
        return {"unit": unit, "avg": avg, **ranks, **more}

    return {
        "schema_version": "1.4", "aiperf_version": "0.13.0", "benchmark_id": "x",
        "time_to_first_token": metric("ms", 200.0, count=50, sum=10_000.0),
        "inter_token_latency": metric("ms", 20.0),
        "request_latency": metric("sec", 2.0),
        "request_throughput": {"unit": "requests/sec", "avg": 5.0},
        "request_count": {"unit": "requests", "avg": 50},
        "output_token_throughput": {"unit": "tokens/sec", "avg": 500.0},
        "output_sequence_length": metric("tokens", 100.0),
        "input_sequence_length": metric("tokens", 1000.0),
        "min_request_timestamp": {"unit": "ns", "avg": 1e18},
        "max_response_timestamp": {"unit": "ns", "avg": 1e18 + 1e10},
        "input_config": {"endpoint": {"model_names": ["Qwen/Qwen3-8B"]},
                         "loadgen": {"concurrency": 10}},
    }  # fmt: skip


def test_a_result_of_aiperf(write: Write) -> None:
    (found,) = read_results(write(aiperf()))
    assert (found.source_format, found.source_version) == ("aiperf", "0.13.0")
    assert found.measured["ttft"] == pytest.approx(0.2)
    assert found.measured["tpot_p50"] == pytest.approx(0.019)
    assert found.measured["e2e_p99"] == pytest.approx(2.8), "seconds stay seconds"
    assert (found.model, found.users, found.num_requests) == ("Qwen/Qwen3-8B", 10, 50)
    assert found.duration_s == pytest.approx(10.0)


def test_genai_perf_has_the_same_shape_without_a_version(write: Write) -> None:
    old = {k: v for k, v in aiperf().items() if k not in {"schema_version", "aiperf_version"}}
    (found,) = read_results(write(old))
    assert (found.source_format, found.source_version) == ("genai_perf", "")


@pytest.mark.parametrize(
    ("tag", "change", "words"),
    [
        ("time_to_first_token", {"sum": 20_000.0}, "sum"),
        ("time_to_first_token", {"unit": "hours"}, "unit"),
        ("inter_token_latency", {"p99": 1.0}, "p99"),
        ("request_throughput", {"avg": 7.0}, "request_throughput"),
        ("output_token_throughput", {"avg": 900.0}, "output_token_throughput"),
        ("request_count", {"avg": 0}, "empty result"),
    ],
)
def test_an_edited_result_of_aiperf_is_refused(
    write: Write, tag: str, change: dict[str, Any], words: str
) -> None:
    data = aiperf()
    data[tag] |= change
    with pytest.raises(ResultError, match=words):
        read_results(write(data))


def test_another_schema_of_aiperf_is_refused(write: Write) -> None:
    with pytest.raises(ResultError, match="schema_version"):
        read_results(write(aiperf() | {"schema_version": "2.0"}))


def test_requests_of_aiperf_one_a_line(write: Write) -> None:
    def line(start_ns: float, ttft_ms: float, latency_ms: float, tokens: int) -> dict[str, Any]:
        values = {"time_to_first_token": (ttft_ms, "ms"), "request_latency": (latency_ms, "ms"),
                  "output_sequence_length": (tokens, "tokens"),
                  "input_sequence_length": (7, "tokens")}  # fmt: skip
        return {
            "metadata": {"request_start_ns": start_ns, "benchmark_phase": "profiling"},
            "metrics": {k: {"value": v, "unit": unit} for k, (v, unit) in values.items()},
            "error": None,
        }

    failed = {"metadata": {"request_start_ns": 1e18}, "metrics": {}, "error": {"code": 500}}
    rows = [line(1e18 + 1e9, 100, 500, 5), line(1e18, 200, 400, 3), failed]
    (found,) = read_results(write("\n".join(map(json.dumps, rows)), "profile_export.jsonl"))
    assert found.series is not None
    assert found.series.start_s == pytest.approx([0.0, 1.0])
    assert found.series.end_s == pytest.approx([0.4, 1.5])
    assert found.measured["tpot"] == pytest.approx(0.1), "both have 100 ms a token"
    assert "1 requests failed" in found.notes[0]


def guidellm() -> dict[str, Any]:
    def summary(mean: float, count: int = 40) -> dict[str, Any]:
        ranks = {"p01": mean * 0.6, "p50": mean * 0.9, "p95": mean * 1.5, "p99": mean * 1.8}
        part = {"mean": mean, "median": mean * 0.9, "min": mean * 0.5, "max": mean * 2,
                "count": count, "total_sum": mean * count, "percentiles": ranks}  # fmt: skip
        return {"successful": part, "incomplete": {}, "errored": {}, "total": part}

    return {
        "metadata": {"guidellm_version": "0.8.1"},
        "config": {"backend": {"model": "Qwen/Qwen3-8B"}},
        "benchmarks": [
            {
                "type_": "generative_benchmark",
                "config": {"strategy": {"type_": "concurrent", "streams": 16}},
                "metrics": {
                    "time_to_first_token_ms": summary(100.0),
                    "inter_token_latency_ms": summary(10.0),
                    "time_per_output_token_ms": summary(30.0),
                    "request_latency": summary(3.0),
                    "output_tokens_per_second": summary(800.0, 0),
                    "requests_per_second": summary(8.0, 0),
                    "prompt_token_count": summary(500.0),
                    "output_token_count": summary(100.0),
                },
            }
        ],
    }


def test_a_report_of_guidellm_and_its_trap(write: Write) -> None:
    (found,) = read_results(write(guidellm()))
    assert (found.source_format, found.source_version) == ("guidellm", "0.8.1")
    assert found.measured["tpot"] == pytest.approx(0.010), "not time_per_output_token_ms, 30 ms"
    assert found.measured["ttft_p50"] == pytest.approx(0.09)
    assert found.measured["e2e"] == pytest.approx(3.0)
    assert (found.users, found.model, found.where) == (16, "Qwen/Qwen3-8B", "benchmarks[0]")
    assert any("time_per_output_token_ms" in note for note in found.notes)


@pytest.mark.parametrize("labels", [["candidate_id=c", "level=0.5"], {"candidate_id": "c",
                                                                      "level": "0.5"}])  # fmt: skip
def test_labels_of_guidellm_name_the_candidate(write: Write, labels: Any) -> None:
    report = guidellm()
    report["config"]["labels"] = labels
    (found,) = read_results(write(report))
    assert found.metadata == {"candidate_id": "c", "level": "0.5"}


def test_an_edited_or_empty_report_of_guidellm_is_refused(write: Write) -> None:
    edited = guidellm()
    edited["benchmarks"][0]["metrics"]["time_to_first_token_ms"]["successful"]["mean"] = 150.0
    with pytest.raises(ResultError, match="total_sum"):
        read_results(write(edited))
    with pytest.raises(ResultError, match="empty"):
        read_results(write(guidellm() | {"benchmarks": []}))
    none = copy.deepcopy(guidellm())
    none["benchmarks"][0]["metrics"]["time_to_first_token_ms"] = {"successful": {"count": 0}}
    none["benchmarks"][0]["metrics"]["request_latency"] = {"successful": {"count": 0}}
    with pytest.raises(ResultError, match="no successful request"):
        read_results(write(none))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("", "is empty"),
        ("[]", "list is empty"),
        ('{"a": 1}', "not a result that sieve knows"),
        ('{"output_throughput": ', "not JSON"),
        ('{"output_throughput": NaN}', "NaN"),
        ("output_throughput,completed,duration\n", "table is empty"),
        ("[" * 100_000, "not"),
    ],
)
def test_what_is_no_result_is_refused(write: Write, body: str, words: str) -> None:
    path = write(body)

    def read() -> None:
        if kind_of(path) == "results":
            read_results(path)
        raise ResultError("a log, but not one of a start-up")

    with pytest.raises(ResultError, match=words):
        read()


def test_a_folder_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.json"):
        with pytest.raises(ResultError, match="expected a result"):
            kind_of(path)


def test_files_are_told_apart_by_content(write: Write) -> None:
    assert kind_of(write("INFO 11-29 10:10:10 starting\n", "a")) == "log"
    assert kind_of(write("[gpu0] INFO starting\n", "b")) == "log"
    assert kind_of(write(bench(), "c")) == "results"
    assert kind_of(write("source,model,gpu,isl_mean\n", "d")) == "measured"


def test_series_is_kept_as_arrays(write: Write) -> None:
    (found,) = read_results(write(detailed()))
    assert found.series is not None
    assert isinstance(found.series.start_s, np.ndarray)
    assert found.series.gaps_s == ((0.2, 0.2), (0.5,))
