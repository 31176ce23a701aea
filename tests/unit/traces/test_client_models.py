"""Drawn readers: client models, GuideLLM's specifications and Prometheus, by what must come out."""

from __future__ import annotations

import json

import numpy as np
import polars as pl
import pytest
from scipy.special import gamma, gammainc

from sieve.errors import SieveError, TraceError
from sieve.spec import TrafficSpec
from sieve.traces import guidellm, load_traffic, servegen


def model(folder, windows, lengths, name="model"):
    """A folder with the two tables; windows are (client, start, rate, cv, pattern)."""
    folder = folder / name
    folder.mkdir()
    pl.DataFrame(windows, schema=list(servegen.WINDOW_COLUMNS), orient="row").write_csv(
        folder / "client_windows.csv"
    )
    pl.DataFrame(lengths, schema=list(servegen.LENGTH_COLUMNS), orient="row").write_csv(
        folder / "client_length_pdfs.csv"
    )
    return folder


def fixed(client=1, start=0, prompt=10, answer=7):
    return [
        (client, start, "input_tokens", prompt, 1.0),
        (client, start, "output_tokens", answer, 1.0),
    ]


def load(folder, trace, seed=0, **keys):
    return load_traffic(TrafficSpec(trace=str(trace), **keys), seed=seed, base_dir=folder)


def test_a_client_without_burstiness_sends_at_its_rate(tmp_path):
    folder = model(tmp_path, [(1, 0, 2.0, 1e-5, "Gamma"), (1, 100, 4.0, 1e-5, "Gamma")], fixed())
    got = load(tmp_path, folder)
    # 100 s of 2/s and 100 s of 4/s; a window begins anywhere in a gap.
    assert len(got) == pytest.approx(600, abs=2)
    gaps = np.diff(got.arrival_s)
    assert gaps[:195] == pytest.approx(0.5, abs=1e-3)
    assert gaps[-395:] == pytest.approx(0.25, abs=1e-3)
    assert (got.arrival_s < 99).sum() == pytest.approx(198, abs=2)
    assert set(got.input_tokens.tolist()) == {10}
    assert set(got.output_tokens.tolist()) == {7}
    assert got.arrival_s[0] == 0.0


def test_one_window_lasts_ten_minutes(tmp_path):
    folder = model(tmp_path, [(1, 0, 1.0, 1e-5, "Gamma")], fixed())
    assert len(load(tmp_path, folder)) == pytest.approx(600, abs=2)
    assert len(load(tmp_path, folder, window_s=[300, 400])) == pytest.approx(100, abs=2)
    assert len(load(tmp_path, folder, requests=25)) == 25
    with pytest.raises(
        TraceError, match=r"no request in the window; its windows run from 0 to 600 s"
    ):
        load(tmp_path, folder, window_s=[600, 700])


@pytest.mark.parametrize("pattern", ["Gamma", "Weibull", None])
@pytest.mark.parametrize("cv", [0.4, 1.0, 2.0])
def test_gaps_have_the_burstiness_that_is_stated(tmp_path, pattern, cv):
    folder = model(tmp_path, [(1, 0, 50.0, cv, pattern)], fixed())
    gaps = np.diff(load(tmp_path, folder).arrival_s)
    # 30,000 gaps: the mean is known to cv / 173, the deviation to a few per cent.
    assert gaps.mean() == pytest.approx(0.02, rel=0.04)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.06)
    if cv == 1.0:  # both are exponential then
        assert (gaps > 0.02).mean() == pytest.approx(np.exp(-1), abs=0.01)


def test_gaps_of_weibull_and_gamma_differ_in_their_tails(tmp_path):
    """A cv of 0.4 is a gamma of shape 6.25 and a Weibull of shape 2.70."""
    below = {}
    for pattern in ("Gamma", "Weibull"):
        folder = model(tmp_path, [(1, 0, 50.0, 0.4, pattern)], fixed(), pattern)
        gaps = np.diff(load(tmp_path, folder).arrival_s)
        below[pattern] = (gaps < 0.01).mean()
    assert below["Gamma"] == pytest.approx(gammainc(6.25, 3.125), abs=0.006)
    assert below["Weibull"] == pytest.approx(1 - np.exp(-((0.5 * gamma(1 + 1 / 2.70)) ** 2.70)),
                                             abs=0.006)  # fmt: skip


def test_lengths_follow_the_window_and_the_client(tmp_path):
    lengths = [*fixed(1, 0, 10), *fixed(1, 100, 20), *fixed(2, 0, 30)]
    windows = [(c, s, 1.0, 1e-5, "Gamma") for c in (1, 2) for s in (0, 100)]
    got = load(tmp_path, model(tmp_path, windows, lengths))
    early = got.arrival_s < 98
    late = got.arrival_s > 102
    # Client 2 states no second window: what it states holds.
    assert set(got.input_tokens[early].tolist()) == {10, 30}
    assert set(got.input_tokens[late].tolist()) == {20, 30}
    assert (got.input_tokens == 30).sum() == pytest.approx(200, abs=3)


def test_clients_without_lengths_take_the_mixture_by_rate(tmp_path):
    windows = [(1, 0, 3.0, 1.0, "Gamma"), (2, 0, 1.0, 1.0, "Gamma"), (3, 0, 40.0, 1.0, "Gamma")]
    lengths = [*fixed(1, 0, 10), *fixed(2, 0, 20)]
    got = load(tmp_path, model(tmp_path, windows, lengths))
    # Each of the first two, and the mixture that the third draws from, has 10 in three of four.
    assert (got.input_tokens == 10).mean() == pytest.approx(0.75, abs=0.01)
    share = float(next(n for n in got.notes if "without lengths" in n).split("%")[0])
    assert share == pytest.approx(100 * 40 / 44, abs=1)


@pytest.mark.parametrize(
    ("windows", "lengths", "part"),
    [
        ([(1, 0, -1.0, 1.0, "Gamma")], fixed(), "rate or CV is negative"),
        ([(1, 0, 1.0, 2e3, "Gamma")], fixed(), "rate or CV is negative, missing or too large"),
        ([(1, 0, 0.0, 1.0, "Gamma")], fixed(), "no client sends anything"),
        ([(1, 0, 1.0, 1.0, "Gamma")], fixed(prompt=2e7), "out of range in client_length_pdfs"),
        ([(1, 0, 1.0, 1.0, "Gamma")], fixed()[:1], "has no field output_tokens"),
        ([(1, 0, 1.0, 1.0, "Gamma")], [(1, 0, "input_tokens", 5, 0.0), *fixed()[1:]], "sum to 0"),
        ([(1, 0, 1e5, 1.0, "Gamma")], fixed(), "about 60,000,000 requests; set requests"),
    ],
)  # fmt: skip
def test_faults_of_a_client_model(tmp_path, windows, lengths, part):
    folder = model(tmp_path, windows, lengths)
    with pytest.raises(TraceError) as error:
        load(tmp_path, folder)
    assert part in str(error.value)


def test_a_client_model_has_each_table_once(tmp_path):
    folder = model(tmp_path, [(1, 0, 1.0, 1.0, "Gamma")], fixed())
    (folder / "client_length_pdfs.parquet").write_bytes(b"x")
    with pytest.raises(TraceError, match=r"2 files client_length_pdfs\.\*; expected one"):
        load(tmp_path, folder)
    (folder / "client_length_pdfs.parquet").unlink()
    (folder / "client_windows.csv").write_text("client,rate_req_per_s\n1,2\n")
    with pytest.raises(TraceError, match="column window_start_s is missing; found client"):
        load(tmp_path, folder)


def test_a_large_model_is_drawn_as_far_as_asked(tmp_path):
    folder = model(tmp_path, [(1, 0, 1e5, 1.0, "Gamma")], fixed())
    with pytest.raises(TraceError, match="for at most 20,000,000"):
        load(tmp_path, folder, requests=20_000_001)


def guide(folder, text, **keys):
    return load(folder, text, arrival={"burst": True}, **keys)


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("prompt_tokens=5,output_tokens=6", True),
        ('{"prompt_tokens": 5}', True),
        ("prompt_tokens", False),
        ("a=b", False),
        ("a: b", False),
        ("x\n\nprompt_tokens=5", False),
    ],
)
def test_what_a_specification_looks_like(text, is_one):
    assert guidellm.looks_like(text) is is_one


def test_limits_alone_are_uniform(tmp_path):
    got = guide(
        tmp_path, "prompt_tokens=10,prompt_tokens_min=4,prompt_tokens_max=7,output_tokens=3"
    )
    assert len(got) == 1000
    tokens, counts = np.unique(got.input_tokens, return_counts=True)
    assert tokens.tolist() == [4, 5, 6, 7]
    assert counts.min() > 200
    assert set(got.output_tokens.tolist()) == {3}
    assert got.prefix is None


def test_five_deviations_are_the_limits_where_none_are_given(tmp_path):
    got = guide(tmp_path, "prompt_tokens=100,prompt_tokens_stdev=10,output_tokens=9,"
                "output_tokens_stdev=9,samples=20000,turns=1")  # fmt: skip
    assert len(got) == 20_000
    assert got.input_tokens.mean() == pytest.approx(100, abs=0.5)
    assert got.input_tokens.std() == pytest.approx(10, abs=0.3)
    assert got.input_tokens.min() >= 50
    assert got.input_tokens.max() <= 150
    # At least one token: a fifth of a normal of 9 +- 9 lies below 1.5.
    assert got.output_tokens.min() == 1
    assert (got.output_tokens == 1).mean() == pytest.approx(0.2023, abs=0.01)
    assert len(guide(tmp_path, "prompt_tokens=5,output_tokens=6,samples=7", requests=3)) == 3


def test_prefix_buckets_by_weight(tmp_path):
    buckets = [
        {"bucket_weight": 300, "prefix_count": 2, "prefix_tokens": 32},
        {"prefix_tokens": 64},
        {"bucket_weight": 0, "prefix_tokens": 999},
    ]
    text = json.dumps({"prompt_tokens": 10, "output_tokens": 5, "samples": 8000,
                       "prefix_buckets": buckets})  # fmt: skip
    (tmp_path / "g.json").write_text(text)
    got = load(tmp_path, "g.json", arrival={"burst": True})
    # 300 to 100 by default, with two beginnings of 32 tokens and one of 64.
    assert set(got.input_tokens.tolist()) == {42, 74}
    assert (got.input_tokens == 42).mean() == pytest.approx(0.75, abs=0.02)
    ends = zip(got.prefix.start[:-1], got.prefix.start[1:], strict=True)
    chains = [tuple(got.prefix.ids[a:b].tolist()) for a, b in ends]
    assert {len(chain) for chain in chains} == {2, 4}
    counts = {chain: chains.count(chain) / 8000 for chain in set(chains)}
    assert sorted(counts.values()) == pytest.approx([0.25, 0.375, 0.375], abs=0.02)
    assert len({i for chain in counts for i in chain}) == 2 + 2 + 4


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("prompt_tokens=5,output_tokens=6,turns=2", "turns=2; conversations"),
        ("prompt_tokens=0,output_tokens=6", "prompt_tokens is missing or 0"),
        ("prompt_tokens=5", "output_tokens is missing or 0"),
        ("prompt_tokens=5,prompt_tokens=6", "each key once"),
        ("prompt_tokens=5,output_tokens", "expected key=value"),
        ("prompt_tokens=5.5,output_tokens=6", "prompt_tokens is '5.5'"),
        ("prompt_tokens=1e300,output_tokens=6", "expected a whole number"),
        ("prompt_tokens=9,prompt_tokens_min=8,prompt_tokens_max=7,output_tokens=6", "least 8"),
    ],
)
def test_faults_of_a_specification(tmp_path, text, part):
    with pytest.raises(SieveError) as error:
        guide(tmp_path, text)
    assert part in str(error.value)


@pytest.mark.parametrize(
    ("buckets", "part"),
    [
        ("x", "no list of mappings"),
        ([1], "no list of mappings"),
        ([{"bucket_weight": 0}], "a weight and a count above 0"),
        ([{"prefix_count": 0}], "a weight and a count above 0"),
        ([{"prefix_tokens": -1}], "prefix_buckets.prefix_tokens is -1"),
    ],
)
def test_faults_of_prefix_buckets(tmp_path, buckets, part):
    text = json.dumps({"prompt_tokens": 10, "output_tokens": 5, "prefix_buckets": buckets})
    (tmp_path / "g.json").write_text(text)
    with pytest.raises(TraceError) as error:
        load(tmp_path, "g.json", arrival={"burst": True})
    assert part in str(error.value)


def series(name, le, values, times=(100, 160), **labels):
    return {
        "metric": {"__name__": f"vllm:{name}_bucket", "le": le, **labels},
        "values": [[t, str(v)] for t, v in zip(times, values, strict=True)],
    }


def answer(*result):
    return {"status": "success", "data": {"resultType": "matrix", "result": list(result)}}


def histograms(counts=(0, 4), **labels):
    return [
        series(f"request_{kind}_tokens", le, counts, **labels)
        for kind in ("prompt", "generation")
        for le in ("8", "+Inf")
    ]


def prometheus(folder, *answers, seed=0):
    (folder / "p.json").write_text("".join(json.dumps(a) + "\n" for a in answers))
    return load(folder, "p.json", seed=seed, format="prometheus")


def test_requests_of_all_instances_and_answers_add_up(tmp_path):
    got = prometheus(tmp_path, answer(*histograms((3, 7), instance="a")),
                     answer(*histograms((0, 2), instance="b")))  # fmt: skip
    assert len(got) == 6
    assert got.arrival_s[0] == 0.0
    assert got.arrival_s[-1] < 60
    assert ((got.input_tokens >= 1) & (got.input_tokens <= 8)).all()


def test_lengths_of_a_bucket_are_all_those_between_its_edges(tmp_path):
    result = [
        series(f"request_{kind}_tokens", le, (0, n))
        for kind in ("prompt", "generation")
        for le, n in (("3", 0), ("7", 400), ("+Inf", 400))
    ]
    got = prometheus(tmp_path, answer(*result))
    assert sorted(set(got.input_tokens.tolist())) == [4, 5, 6, 7]


def test_one_moment_has_no_rate(tmp_path):
    result = [
        series(f"request_{kind}_tokens", le, (4,), times=(100,))
        for kind in ("prompt", "generation")
        for le in ("8", "+Inf")
    ]
    with pytest.raises(TraceError, match="has one moment; a range and a step are needed"):
        prometheus(tmp_path, answer(*result))


def test_gauges_and_the_cache_are_told(tmp_path):
    extra = [
        {"metric": {"__name__": "vllm:num_requests_running"}, "values": [[100, "3"], [160, "4"]]},
        {"metric": {"__name__": "vllm:prefix_cache_queries_total"},
         "values": [[100, "50"], [160, "250"]]},
        {"metric": {"__name__": "vllm:prefix_cache_hits_total"},
         "values": [[100, "10"], [160, "60"]]},
    ]  # fmt: skip
    notes = prometheus(tmp_path, answer(*histograms(), *extra)).notes
    assert "prefix cache: 25.0% of queried tokens hit; not replayed" in notes
    assert "3.5 requests running on average, all instances together" in notes


def test_faults_of_an_answer_name_the_result(tmp_path):
    bad = series("x", "8", (1, 2), times=(160, 100))
    for result, part in (
        ([bad], "line 1, result 1: the clock goes back"),
        ([series("x", "8", (1, 2)), bad], "line 1, result 2: the clock goes back"),
        ([series("x", "8", (-1, 2))], "result 1: holds a value that is no counter"),
        (histograms((4, 4)), "no request finished in the range"),
        ([series("request_prompt_tokens", "0", (1, 2))], "has le 0; expected > 0"),
        ([series("request_prompt_tokens", "8", (1, 2))], 'lacks le="+Inf"'),
    ):
        with pytest.raises(TraceError) as error:
            prometheus(tmp_path, answer(*result), answer())
        assert part in str(error.value), part
