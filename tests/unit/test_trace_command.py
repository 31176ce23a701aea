"""`sieve trace` as its users run it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from sieve.cli.main import app
from sieve.errors import SieveError
from sieve.spec import TrafficSpec
from sieve.traces import load_traffic


def run(*args):
    done = CliRunner().invoke(app, ["trace", *map(str, args)])
    if isinstance(done.exception, SieveError):
        raise done.exception
    assert done.exit_code == 0, (done.output, done.exception)
    return done.output


@pytest.fixture
def trace(tmp_path):
    rng = np.random.default_rng(0)
    at = np.cumsum(rng.exponential(0.5, 400))
    rows = "".join(
        f"2023-11-16 18:{int(t // 60):02d}:{t % 60:010.7f},{100 + i % 50},{1 + i % 20}\n"
        for i, t in enumerate(at.tolist())
    )
    path = tmp_path / "day.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows)
    return path


def test_inspect_tells_what_a_trace_is_like(trace):
    data = json.loads(run("inspect", trace, "--json", "--model", "Qwen/Qwen3-8B"))
    assert data["num_requests"] == 400
    assert data["source_format"] == "azure_csv"
    assert data["rates"]["mean_per_s"] == pytest.approx(2.0, rel=0.15)
    assert data["burstiness"]["gap_cv"] == pytest.approx(1.0, abs=0.15)
    assert data["lengths"]["input_tokens"]["mean"] == pytest.approx(124.5)
    assert sum(map(sum, data["lengths"]["joint"]["requests"])) == 400
    # Little: rate x (1 s + 50 ms x 9.5 further tokens).
    expected = data["rates"]["mean_per_s"] * 400 / 399 * (1 + 0.05 * 9.5)
    assert data["concurrency"]["mean"] == pytest.approx(expected, rel=1e-6)
    held = {row["name"]: row["ok"] for row in data["preconditions"]}
    assert held["scale_factors"] is held["order"] is held["context_limit"] is True
    assert data["pinned"]["arrival"]
    assert not data["pinned"]["prefix_blocks"]
    text = run("inspect", trace)
    assert "400 requests" in text
    assert "Preconditions" in text


def test_inspect_counts_faults_without_failing(trace):
    trace.write_text(trace.read_text() + "2023-11-16 18:59:00,-4,2\n")
    with pytest.raises(SieveError, match="line 402: ContextTokens is '-4'"):
        run("inspect", trace)
    data = json.loads(run("inspect", trace, "--json", "--on-error", "count"))
    assert data["errors"]["rows"] == 1
    assert data["num_requests"] == 400
    with pytest.raises(SieveError, match="1 rows cannot be read"):
        run("convert", trace, "--on-error", "count", "--out", trace.parent / "x.jsonl")
    assert not (trace.parent / "x.jsonl").exists()


def test_a_summary_is_small_and_draws_traffic_like_the_trace(trace):
    summary, drawn = trace.parent / "s.json", trace.parent / "d.parquet"
    run("inspect", trace, "--summary", summary)
    assert summary.stat().st_size < 10_000
    run("synth", summary, "--requests", 1000, "--out", drawn)
    got = load_traffic(TrafficSpec(trace="d.parquet"), seed=0, base_dir=trace.parent)
    assert len(got) == 1000
    assert got.rate_per_s == pytest.approx(2.0, rel=0.2)
    assert got.input_tokens.mean() == pytest.approx(124.5, rel=0.03)
    as_traffic = load_traffic(TrafficSpec(trace="s.json"), seed=0, base_dir=trace.parent)
    assert len(as_traffic) == 400
    summary.write_text(summary.read_text().replace('"cells"', '"sells"'))
    with pytest.raises(SieveError, match="damaged traffic summary"):
        run("synth", summary, "--out", drawn)


def test_convert_writes_the_same_traffic_twice(trace):
    one, two = trace.parent / "a.jsonl", trace.parent / "b.jsonl"
    written = json.loads(run("convert", trace, "--out", one, "--json"))
    assert written["written_for"] == "AIPerf 0.13.0"
    run("convert", trace, "--out", two)
    assert one.read_bytes() == two.read_bytes()
    keys = {"trace": "a.jsonl", "format": "aiperf"}
    again = load_traffic(TrafficSpec(**keys), seed=0, base_dir=trace.parent)
    first = load_traffic(TrafficSpec(trace="day.csv"), seed=0, base_dir=trace.parent)
    np.testing.assert_allclose(again.arrival_s, first.arrival_s, atol=1e-9)
    assert again.output_tokens.tolist() == first.output_tokens.tolist()


def test_synth_takes_a_spec_and_shipped_traffic(trace):
    spec = trace.parent / "spec.yaml"
    spec.write_text("requests: 30\nisl: 100\nosl: 20\narrival: {constant_per_s: 2}\n")
    out = trace.parent / "x.csv"
    run("synth", spec, "--out", out)
    got = load_traffic(TrafficSpec(trace="x.csv"), seed=0, base_dir=trace.parent)
    assert got.arrival_s.tolist() == [i / 2 for i in range(30)]
    run("synth", "coding", "--requests", 50, "--out", trace.parent / "c.jsonl")
    keys = {"trace": "c.jsonl", "format": "mooncake_trace"}
    turns = load_traffic(TrafficSpec(**keys), seed=0, base_dir=trace.parent)
    assert turns.previous is not None
    assert turns.prefix is not None


def test_the_picture_is_one_page_without_markup_of_strangers(trace):
    odd = trace.parent / "<b>x.csv"
    odd.write_bytes(trace.read_bytes())
    page = trace.parent / "p.html"
    run("inspect", odd, "--html", page)
    text = page.read_text()
    assert text.startswith("<!doctype html>")
    assert "<b>x" not in text
    assert "&lt;b&gt;x" in text
    assert "<script" not in text
    assert text.count("<svg") == 3


@pytest.mark.parametrize(
    ("args", "part"),
    [
        (["--window", "5"], "--window 5"),
        (["--column", "ts"], "--column ts"),
        (["--format", "csv"], "format"),
        (["--arrival", "poisson_per_s=x"], "poisson_per_s"),
        (["--set", "nonsense=1"], "nonsense"),
        (["--on-error", "ignore"], "on_error"),
    ],
)
def test_options_that_cannot_be_read(trace, args, part):
    with pytest.raises(SieveError, match=part):
        run("inspect", trace, *args)


def test_run_takes_every_kind_of_reader(trace):
    import sieve

    (trace.parent / "p.yaml").write_text(
        "input_tokens: {p50: 100, p99: 900}\noutput_tokens: {p50: 20, p99: 90}\nrate_per_s: 4\n"
    )
    for traffic in (
        {"trace": str(trace)},
        {"trace": str(trace.parent / "p.yaml"), "requests": 60},
        {"trace": "prompt_tokens=100,output_tokens=20", "requests": 60,
         "arrival": {"poisson_per_s": 4}},
        {"trace": str(trace), "columns": {"ts": "TIMESTAMP", "in": "ContextTokens",
                                          "out": "GeneratedTokens"}, "on_error": "skip"},
        {"trace": "coding", "requests": 40},
    ):  # fmt: skip
        spec = {
            "name": "t", "model": "openai/gpt-oss-20b", "traffic": traffic | {"levels": [1.0]},
            "slo": {"ttft_p99": "60 s"}, "fleet": {"gpus": ["H100-SXM-80GB"], "max_gpus": 1},
            "grid": {"axes": {"gpu": ["H100-SXM-80GB"], "tp": [1], "replicas": [1],
                              "max_num_seqs": [64], "max_num_batched_tokens": [8192],
                              "weight_dtype": ["mxfp4"]}},
        }  # fmt: skip
        result = sieve.run(spec)
        assert len(result.simulations) == 1, traffic
        assert Path(result.data["inputs"][0]["name"]).name == result.data["inputs"][0]["name"]


def test_synth_takes_the_traffic_of_a_run_spec_with_its_own_keys_on_top(trace):
    spec, out = trace.parent / "spec.yaml", trace.parent / "y.csv"
    spec.write_text(
        "name: x\nmodel: [Qwen/Qwen3-8B, Qwen/Qwen3-32B]\nslo: {ttft_p99: 2 s}\n"
        "fleet: {gpus: [H100-SXM-80GB]}\ntraffic:\n  synthetic:\n"
        "    {requests: 30, isl: 100, osl: 20, arrival: {constant_per_s: 2}}\n"
    )
    run("synth", spec, "--requests", 12, "--out", out)
    got = load_traffic(TrafficSpec(trace="y.csv"), seed=0, base_dir=trace.parent)
    assert got.arrival_s.tolist() == [i / 2 for i in range(12)]
    assert set(got.input_tokens) == {100}


def test_synth_takes_the_traffic_part_of_a_spec(trace):
    part, out = trace.parent / "traffic.yaml", trace.parent / "z.csv"
    part.write_text("trace: chat\nrequests: 40\n")
    run("synth", part, "--rate", 8, "--out", out)
    got = load_traffic(TrafficSpec(trace="z.csv"), seed=0, base_dir=trace.parent)
    assert len(got) == 40
    assert got.rate_per_s == pytest.approx(8, rel=0.5)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\xff\xfe\x00", "not UTF-8 text"),
        (b"", "found an empty file, expected a mapping"),
        (b"- 1\n", "found a list, expected a mapping"),
        (b"a: 1\n", "'a' is not known"),
    ],
)
def test_a_faulty_specification_is_named(trace, content, said):
    path = trace.parent / "bad.yaml"
    path.write_bytes(content)
    with pytest.raises(SieveError) as caught:
        run("synth", path, "--out", trace.parent / "o.csv")
    assert "bad.yaml" in str(caught.value)
    assert said in str(caught.value)
