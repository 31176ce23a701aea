"""Shipped traffic against the traces that it stands for.

The expected figures are those stored in the summaries and, where SIEVE_DATA names the folder with
the original traces, those of the traces themselves.
"""

import os
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from sieve.resources import package_data
from sieve.spec.models import TrafficSpec
from sieve.traces import build, load_traffic
from sieve.traces.summary import Summary, gap_cv, length_stats, log_correlation

DATA = os.environ.get("SIEVE_DATA")
needs_data = pytest.mark.skipif(
    not DATA, reason="SIEVE_DATA is not set: it names the folder with the original traces"
)
TOLERANCE = {"mean": 0.03, "p50": 0.03, "p95": 0.03, "p99": 0.05}
SEEDS = [0, 1, 2, 3, 4]


def shipped(name):
    path = package_data("traces", "data", f"{name}.json")
    return Summary.from_json(path.read_text(encoding="utf-8"), name)


def drawn(name, seed):
    spec = TrafficSpec(trace=name, requests=20_000)
    return load_traffic(spec, seed=seed, base_dir=Path())


def azure_trace():
    """Arrivals in seconds, input and output lengths, read without any part of sieve."""
    frame = pl.read_csv(Path(DATA) / build.CHAT_FILE)
    time = frame["TIMESTAMP"].str.head(26).str.to_datetime("%Y-%m-%d %H:%M:%S%.f", time_unit="us")
    tenth_us = frame["TIMESTAMP"].str.tail(1).cast(pl.Int64)
    ticks = (time.dt.epoch("us") * 10 + tenth_us).to_numpy()
    lengths = (frame[c].to_numpy() for c in ("ContextTokens", "GeneratedTokens"))
    return (ticks - ticks[0]) / 1e7, *lengths


def reasoning_lengths():
    frame = pl.read_parquet(Path(DATA) / build.REASONING_FILE)
    return frame["input_length"].to_numpy(), frame["output_length"].to_numpy()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", ["chat", "rag", "reasoning"])
def test_drawn_lengths_match_the_summary(name, seed):
    summary, requests = shipped(name), drawn(name, seed)
    for axis in ("input_tokens", "output_tokens"):
        expected, got = getattr(summary, axis), length_stats(getattr(requests, axis))
        for statistic, tolerance in TOLERANCE.items():
            assert getattr(got, statistic) == pytest.approx(
                getattr(expected, statistic), rel=tolerance
            ), (axis, statistic)
    assert log_correlation(requests) == pytest.approx(summary.log_correlation, abs=0.05)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", ["chat", "rag", "reasoning"])
def test_drawn_arrivals_match_the_summary(name, seed):
    summary, requests = shipped(name), drawn(name, seed)
    assert requests.rate_per_s == pytest.approx(summary.rate_per_s, rel=0.03)
    assert gap_cv(requests.arrival_s) == pytest.approx(summary.gap_cv, rel=0.10)


def test_published_figures_of_the_chat_trace():
    summary = shipped("chat")
    # One hour, 19,366 requests; figures of the data set as published.
    assert summary.num_requests == 19_366
    assert sum(window.num_requests for window in summary.windows) == 19_366
    assert summary.rate_per_s == pytest.approx(5.53, abs=0.005)
    assert summary.gap_cv == pytest.approx(1.09, abs=0.005)
    assert summary.dispersion == pytest.approx(1.39, abs=0.01)
    assert summary.input_tokens.mean == pytest.approx(1155, abs=0.5)
    assert summary.output_tokens.mean == pytest.approx(211, abs=0.5)


def test_reasoning_says_that_its_arrivals_are_stated():
    summary = shipped("reasoning")
    assert "not measured" in summary.origin.arrivals
    assert (summary.rate_per_s, summary.gap_cv) == (2.0, 1.5)
    assert any("not measured" in note for note in drawn("reasoning", 0).notes)


def test_summaries_are_small_and_name_their_source():
    for name in ("chat", "coding", "rag", "reasoning"):
        size = package_data("traces", "data", f"{name}.json").stat().st_size
        assert size < 60_000
        assert len(shipped(name).origin.sha256) == 64
        assert shipped(name).origin.licence in {"CC-BY-4.0", "Apache-2.0"}


@pytest.mark.parametrize("seed", SEEDS)
def test_coding_sessions_grow_as_those_of_the_trace(seed):
    summary, requests = shipped("coding"), drawn("coding", seed)
    assert requests.input_tokens.mean() == pytest.approx(summary.input_tokens.mean, rel=0.05)
    assert np.median(requests.input_tokens) == pytest.approx(summary.input_tokens.p50, rel=0.1)
    assert np.percentile(requests.input_tokens, 95) == pytest.approx(
        summary.input_tokens.p95, rel=0.03
    )
    assert requests.output_tokens.mean() == pytest.approx(summary.output_tokens.mean, rel=0.05)
    assert requests.input_tokens.max() <= 120_000
    reused = 1 - requests.prefix.fewest_computed().sum() / requests.input_tokens.sum()
    # Sessions that begin after a pause start cold: less than the trace's 95.5 %.
    assert 0.85 < reused < summary.sessions.hit_ratio
    assert any("not measured" in note for note in requests.notes)


@needs_data
@pytest.mark.parametrize("seed", SEEDS)
def test_chat_matches_the_trace_itself(seed):
    arrival_s, *lengths = azure_trace()
    requests = drawn("chat", seed)
    for original, got in zip(lengths, (requests.input_tokens, requests.output_tokens), strict=True):
        assert got.mean() == pytest.approx(original.mean(), rel=0.03)
        for q, tolerance in ((50, 0.03), (95, 0.03), (99, 0.05)):
            expected = np.percentile(original, q)
            assert np.percentile(got, q) == pytest.approx(expected, rel=tolerance)
    gap, got_gap = np.diff(arrival_s), np.diff(requests.arrival_s)
    assert 1 / got_gap.mean() == pytest.approx(1 / gap.mean(), rel=0.03)
    assert got_gap.std() / got_gap.mean() == pytest.approx(gap.std() / gap.mean(), rel=0.10)
    correlation = np.corrcoef(np.log(lengths[0]), np.log(lengths[1]))[0, 1]
    assert log_correlation(requests) == pytest.approx(correlation, abs=0.05)


@needs_data
def test_chat_has_the_dispersion_of_the_trace_over_minutes():
    arrival_s, *_ = azure_trace()
    got_s = drawn("chat", 0).arrival_s
    for width_s, tolerance in ((20, 0.2), (60, 0.2), (180, 0.2)):
        ratios = []
        for times in (arrival_s, got_s):
            whole = int(3500 // width_s)
            counts = np.histogram(times, bins=whole, range=(0, whole * width_s))[0]
            ratios.append(counts.var() / counts.mean())
        assert ratios[1] == pytest.approx(ratios[0], rel=tolerance), width_s


@needs_data
@pytest.mark.parametrize("seed", SEEDS)
def test_reasoning_lengths_match_the_data_set_itself(seed):
    requests = drawn("reasoning", seed)
    for original, got in zip(
        reasoning_lengths(), (requests.input_tokens, requests.output_tokens), strict=True
    ):
        assert got.mean() == pytest.approx(original.mean(), rel=0.03)
        for q, tolerance in ((50, 0.03), (95, 0.03), (99, 0.05)):
            expected = np.percentile(original, q)
            assert np.percentile(got, q) == pytest.approx(expected, rel=tolerance)


@needs_data
def test_the_reader_agrees_with_an_independent_one():
    arrival_s, input_tokens, output_tokens = azure_trace()
    spec = TrafficSpec(trace=str(Path(DATA).resolve() / build.CHAT_FILE))
    requests = load_traffic(spec, seed=0, base_dir=Path())
    np.testing.assert_array_equal(requests.arrival_s, arrival_s)
    np.testing.assert_array_equal(requests.input_tokens, input_tokens)
    np.testing.assert_array_equal(requests.output_tokens, output_tokens)


@needs_data
def test_shipped_summaries_are_what_the_build_writes():
    for make, name in (
        (build.chat, build.CHAT_FILE),
        (build.reasoning, build.REASONING_FILE),
        (build.rag, build.RAG_FILE),
    ):
        summary = make(build.read_file(Path(DATA) / name, name))
        path = package_data("traces", "data", f"{summary.name}.json")
        assert path.read_text(encoding="utf-8") == summary.to_json()
