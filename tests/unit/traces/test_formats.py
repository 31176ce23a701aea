"""Every format that users bring: detection, units, sessions, and what is refused."""

from __future__ import annotations

import gzip
import json
import sys
import typing

import numpy as np
import polars as pl
import pytest
import zstandard

from sieve.errors import SieveError, TraceError
from sieve.spec import TrafficSpec
from sieve.spec.models import TraceFormat
from sieve.traces import load_traffic
from sieve.traces.formats import BY_FOLDER, FORMATS, canonical


def load(folder, name, content=None, seed=0, **keys):
    if content is not None:
        data = content if isinstance(content, bytes) else content.encode()
        (folder / name).write_bytes(data)
    return load_traffic(TrafficSpec(trace=name, **keys), seed=seed, base_dir=folder)


def lines(*records):
    return "".join(json.dumps(record) + "\n" for record in records)


def fault(folder, name, content, **keys):
    with pytest.raises(SieveError) as error:
        load(folder, name, content, **keys)
    return str(error.value)


def test_the_spec_names_every_format():
    names = set(typing.get_args(TraceFormat))
    assert {canonical(name) for name in names} == set(FORMATS) | set(BY_FOLDER)
    assert {alias for entry in FORMATS.values() for alias in entry.aliases} <= names


def test_azure_of_2024_has_a_time_zone(tmp_path):
    got = load(
        tmp_path, "a.csv",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2024-05-10 00:00:00.009930+00:00,2162,5\n2024-05-10 00:00:01.017335+00:00,2399,6\n",
    )  # fmt: skip
    assert got.source_format == "azure_csv"
    # 1.017335 - 0.009930
    assert got.arrival_s.tolist() == [0.0, 1.007405]
    assert got.line.tolist() == [2, 3]


BURST = (
    "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,1,2,ChatGPT,472,18,490,Conversation log\n"
    "45,2,2,ChatGPT,1087,230,1317,Conversation log\n"
    "118,1,2,GPT-4,417,0,417,API log\n"
    "120,1,2,GPT-4,417,276,693,API log\n"
)


def test_burstgpt_counts_failures_and_keeps_sessions(tmp_path):
    got = load(tmp_path, "b.csv", BURST)
    assert got.arrival_s.tolist() == [0.0, 40.0, 115.0]
    assert got.input_tokens.tolist() == [472, 1087, 417]
    assert got.num_failed == 1
    assert got.session[0] == got.session[2] != got.session[1]
    assert got.line.tolist() == [2, 3, 5]
    older = BURST.replace("Session ID,Elapsed time,", "")
    older = "\n".join(
        ",".join(c for i, c in enumerate(row.split(",")) if i not in (1, 2)) if n else row
        for n, row in enumerate(older.split("\n"))
    )
    assert load(tmp_path, "b.csv", older).session is None


def test_bailian_follows_parents(tmp_path):
    def turn(chat, parent, time, tokens, ids):
        return {"chat_id": chat, "parent_chat_id": parent, "timestamp": time, "type": "text",
                "input_length": tokens, "output_length": 9, "turn": 1, "hash_ids": ids}  # fmt: skip

    got = load(
        tmp_path, "q.jsonl",
        lines(turn(7, -1, 61.5, 20, [1, 2]), turn(8, -1, 62, 10, [5]),
              turn(9, 7, 70, 40, [1, 3, 4]), turn(11, 4, 71, 16, [6])),
    )  # fmt: skip
    assert got.arrival_s.tolist() == [0.0, 0.5, 8.5, 9.5]
    assert got.session[0] == got.session[2]
    assert len(set(got.session.tolist())) == 3
    assert got.prefix.block_tokens == 16
    assert got.prefix.ids[0] == got.prefix.ids[3]
    assert any("1 turns follow a chat that is not in the file" in note for note in got.notes)
    twice = lines(turn(7, -1, 61, 20, [1, 2]), turn(7, -1, 62, 10, [5]))
    assert "line 2: chat_id '7' is there twice" in fault(tmp_path, "q.jsonl", twice)


WEKA = {
    "id": "s1", "block_size": 64, "hash_id_scope": "local",
    "requests": [
        {"t": 0.0, "type": "n", "in": 130, "out": 10, "hash_ids": [1, 2], "think_time": 0.0,
         "api_time": 2.0},
        {"type": "subagent", "agent_id": "a", "t": 3.0, "requests": [
            {"t": 0.5, "in": 64, "out": 5, "hash_ids": [1], "think_time": 0.0},
            {"t": 4.0, "in": 128, "out": 5, "hash_ids": [1, 9], "think_time": 1.5}]},
        {"t": 12.0, "type": "n", "in": 200, "out": 20, "hash_ids": [1, 2, 3], "think_time": 10.0},
    ],
}  # fmt: skip


@pytest.mark.parametrize("form", ["object", "list", "lines", "pretty", "folder"])
def test_weka_sessions_in_every_dress(tmp_path, form):
    other = WEKA | {"id": "s2"}
    keys = {"arrival": {"constant_per_s": 0.01}}
    if form == "folder":
        (tmp_path / "sessions").mkdir()
        for session in (WEKA, other):
            (tmp_path / "sessions" / f"{session['id']}.json").write_text(
                json.dumps(session, indent=1)
            )
        got = load(tmp_path, "sessions", **keys)
    else:
        text = {
            "object": json.dumps(WEKA), "pretty": json.dumps([WEKA, other], indent=2),
            "list": json.dumps([WEKA, other]), "lines": lines(WEKA, other),
        }[form]  # fmt: skip
        got = load(tmp_path, "w.json", text, **keys)
    n = 1 if form == "object" else 2
    assert len(got) == 4 * n
    assert (got.previous >= 0).sum() == 2 * n
    # The sub-agent begins 3 + 0.5 s after its session; the sessions are 100 s apart.
    assert sorted(set(got.arrival_s.tolist())) == [0.0, 3.5, 100.0, 103.5][: 2 * n]
    follow = np.flatnonzero(got.previous >= 0)
    assert sorted(got.delay_s[follow].tolist()) == sorted([1.5, 10.0] * n)
    # Equal numbers in one session are one block, in two sessions two.
    assert len(np.unique(got.prefix.ids)) == 4 * n
    assert len(np.unique(got.session)) == n


@pytest.mark.parametrize("first", [500, 0, -501])
def test_blocks_of_sessions_stay_apart_whatever_their_numbers(tmp_path, first):
    ids = [first, first + 1, first + 7]
    turns = [
        {"t": 0.0, "in": 128, "out": 1, "hash_ids": ids[:2]},
        {"t": 9.0, "in": 192, "out": 1, "hash_ids": ids, "think_time": 1.0},
    ]
    sessions = [WEKA | {"id": f"s{i}", "requests": turns} for i in range(5)]
    keys = {"arrival": {"constant_per_s": 0.01}}
    prefix = load(tmp_path, "w.json", lines(*sessions), **keys).prefix
    chains = [tuple(prefix.ids[a:b]) for a, b in zip(prefix.start, prefix.start[1:], strict=False)]
    long = {chain for chain in chains if len(chain) == 3}
    assert len(long) == 5
    assert {chain for chain in chains if len(chain) == 2} == {chain[:2] for chain in long}
    assert len(set().union(*long)) == 15


def test_weka_needs_session_starts(tmp_path):
    assert "traffic.arrival: {poisson_per_s" in fault(tmp_path, "w.json", json.dumps(WEKA))
    bad = json.dumps(WEKA | {"requests": [{"t": 0, "in": 5, "out": "x"}]})
    message = fault(tmp_path, "w.json", bad, arrival={"poisson_per_s": 1.0})
    assert 'entry 1, request 1: out is "x"' in message


def test_llmservingsim_counts_nanoseconds(tmp_path):
    got = load(
        tmp_path, "l.jsonl",
        lines({"input_toks": 5, "output_toks": 6, "arrival_time_ns": 10**9, "input_tok_ids": []},
              {"input_toks": 7, "output_toks": 8, "arrival_time_ns": 3 * 10**9}),
    )  # fmt: skip
    assert got.arrival_s.tolist() == [0.0, 2.0]


OWN = "arrival_s,input_tokens,output_tokens,session_id,delay_s,request_id\n"


def test_own_table_waits_where_a_delay_stands(tmp_path):
    got = load(tmp_path, "o.csv", OWN + "1.5,10,2,a,,x\n,30,3,a,0.25,y\n2,5,5,,,z\n")
    assert got.source_format == "sieve_table"
    assert got.previous.tolist() == [-1, 0, -1]
    assert got.delay_s.tolist() == [0.0, 0.25, 0.0]
    assert got.arrival_s.tolist() == [0.0, 0.0, 0.5]


def test_own_table_refuses_what_it_does_not_know(tmp_path):
    message = fault(tmp_path, "o.csv", "arrival_s,input_tokens,output_tokens,sesion_id\n1,2,3,a\n")
    assert "column sesion_id is not known; did you mean session_id?" in message
    twice = fault(tmp_path, "o.csv", OWN + "1,10,2,,,x\n2,30,3,,,x\n")
    assert "line 3: request_id 'x' is there twice" in twice
    frame = pl.DataFrame(
        {
            "arrival_s": [0.0, 1.0],
            "input_tokens": [20, 20],
            "output_tokens": [1, 1],
            "prefix_block_ids": [[1, 2], [1, 3]],
        }
    )
    frame.write_parquet(tmp_path / "o.parquet")
    assert "without prefix_block_tokens" in fault(tmp_path, "o.parquet", None)


LOG = "when,prompt tokens,answer,user\n1000,10,2,a\n3500,20,4,b\n"
MAPPED = {"ts": "when", "in": "prompt tokens", "out": "answer", "session": "user"}


def test_access_log_is_read_as_said(tmp_path):
    got = load(tmp_path, "log.csv", LOG, columns=MAPPED, time_unit="ms")
    assert got.arrival_s.tolist() == [0.0, 2.5]
    assert got.session.tolist() == [0, 1]
    as_json = lines({"t": {"x": 1}, "when": "2026-01-01T00:00:00Z", "i": 3, "o": 4},
                    {"when": "2026-01-01T00:00:02.5Z", "i": 5, "o": 6})  # fmt: skip
    got = load(tmp_path, "log.jsonl", as_json, columns={"ts": "when", "in": "i", "out": "o"})
    assert got.arrival_s.tolist() == [0.0, 2.5]


@pytest.mark.parametrize(
    ("columns", "keys", "part"),
    [
        (MAPPED, {}, "column when does not state its unit"),
        (MAPPED | {"in": "prompt"}, {}, "did you mean prompt tokens?"),
        (MAPPED | {"price": "answer"}, {}, "'price' is no role"),
        ({"ts": "when"}, {}, "needs columns for input, output"),
        (MAPPED | {"blocks": "user"}, {"time_unit": "ms"}, "set block_tokens"),
    ],
)
def test_access_log_faults(tmp_path, columns, keys, part):
    assert part in fault(tmp_path, "log.csv", LOG, columns=columns, **keys)


def test_dialogues_take_recorded_lengths_or_say_what_they_need(tmp_path):
    told = json.dumps([
        {"id": "1", "conversations": [{"from": "human", "value": "x" * 40},
                                      {"from": "gpt", "value": "y" * 80}]},
        {"id": "2", "conversations": [{"from": "human", "value": "only a question"}]},
    ])  # fmt: skip
    keys = {"arrival": {"burst": True}}
    assert "tokens depend on the model's tokenizer" in fault(tmp_path, "s.json", told, **keys)
    got = load(tmp_path, "s.json", told, characters_per_token=4.0, **keys)
    assert (got.input_tokens.tolist(), got.output_tokens.tolist()) == ([10], [20])
    assert any("estimates: 4 characters a token, as declared" in note for note in got.notes)
    assert any("1 entries with fewer than two turns" in note for note in got.notes)
    counted = json.dumps([{"conversations": [], "prompt_tokens": 7, "completion_tokens": 8}])
    assert load(tmp_path, "s.json", counted, **keys).input_tokens.tolist() == [7]
    custom = lines({"prompt": "abcdefgh", "output_tokens": 3})
    got = load(tmp_path, "c.jsonl", custom, characters_per_token=4.0, **keys)
    assert (got.input_tokens.tolist(), got.output_tokens.tolist()) == ([2], [3])
    assert "output_tokens is None" in fault(tmp_path, "c.jsonl", lines({"prompt": "a"}), **keys)


def test_guidellm_traces_are_seconds(tmp_path):
    text = lines({"timestamp": 1, "input_length": 600, "output_length": 2, "hash_ids": [1, 2]},
                 {"timestamp": 3, "input_length": 9, "output_length": 2})  # fmt: skip
    got = load(tmp_path, "g.jsonl", text, format="guidellm_mooncake")
    assert got.arrival_s.tolist() == [0.0, 2.0]
    assert got.prefix.block_tokens == 512
    csv = "timestamp,input_length,output_length\n1,5,6\n4,7,8\n"
    assert load(tmp_path, "g.csv", csv, format="guidellm_trace").arrival_s.tolist() == [0.0, 3.0]


def test_guidellm_specifications_as_text_file_and_json(tmp_path):
    text = "prompt_tokens=100,prompt_tokens_stdev=10,output_tokens=50,samples=400,prefix_tokens=32"
    keys = {"arrival": {"poisson_per_s": 5.0}}
    inline = load_traffic(TrafficSpec(trace=text, **keys), seed=0, base_dir=tmp_path)
    assert len(inline) == 400
    # The prefix stands before the prompt: 132 on average, standard error 0.5.
    assert inline.input_tokens.mean() == pytest.approx(132, abs=2.5)
    assert set(inline.output_tokens.tolist()) == {50}
    assert np.diff(inline.prefix.start).tolist() == [2] * 400
    pairs = dict(pair.split("=") for pair in text.split(","))
    for name, content in (("g.yaml", "\n".join(f"{k}: {v}" for k, v in pairs.items())),
                          ("g.json", json.dumps({k: int(v) for k, v in pairs.items()})),
                          ("g.txt", text)):  # fmt: skip
        got = load(tmp_path, name, content, **keys)
        assert got.input_tokens.tolist() == inline.input_tokens.tolist(), name
    assert "states no arrivals" in fault(tmp_path, text, None)
    assert "'prompt' is not known" in fault(tmp_path, "g.yaml", "prompt_tokens: 1\nprompt: 2\n")


TABLE = {"input_tokens": {"p50": 1000, "p90": 4000, "p99": 9000},
         "output_tokens": {"p50": 200, "p95": 900}, "rate_per_s": 4}  # fmt: skip


@pytest.mark.parametrize("form", ["json", "yaml", "csv"])
def test_percentiles_are_met(tmp_path, form):
    content = {
        "json": json.dumps(TABLE),
        "yaml": json.dumps(TABLE)[1:-1].replace('"', "").replace(", output", "\noutput")
        .replace(", rate", "\nrate"),
        "csv": "metric,p50,p90,p95,p99\ninput_tokens,1000,4000,,9000\noutput_tokens,200,,900,\n"
               "rate_per_s,4,,,\n",
    }[form]  # fmt: skip
    got = load(tmp_path, f"p.{form}", content, requests=20_000)
    for p, expected in ((50, 1000), (90, 4000), (99, 9000)):
        assert np.percentile(got.input_tokens, p) == pytest.approx(expected, rel=0.01)
    assert np.percentile(got.output_tokens, 95) == pytest.approx(900, rel=0.01)
    assert got.rate_per_s == pytest.approx(4.0)


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"rate_per_s": None}, "one of rate_per_s and concurrency"),
        ({"concurrency": 5}, "one of rate_per_s and concurrency"),
        ({"input_tokens": {"p50": 10, "p90": 5}}, "fall with rising percentile"),
        ({"input_tokens": {"p50": 10}}, "two or more"),
        ({"input_tokens": {"p50": -1, "p90": 5}}, "p50 is -1"),
        ({"input_tokens": {"p50": 5, "p90": 8, "max": 7}}, "max 7 is below the highest percentile"),
        ({"p50": 5}, "'p50' is not known"),
    ],
)
def test_percentile_faults(tmp_path, change, part):
    table = {k: v for k, v in (TABLE | change).items() if v is not None}
    assert part in fault(tmp_path, "p.json", json.dumps(table), format="percentiles")


def matrix(name, counts, times, **labels):
    """Cumulative buckets of a histogram: counts[le] at each time."""
    return [
        {"metric": {"__name__": f"vllm:{name}_bucket", "le": le, "instance": "a", **labels},
         "values": [[t, str(v)] for t, v in zip(times, values, strict=True)]}
        for le, values in counts.items()
    ]  # fmt: skip


def prometheus(result):
    return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}})


def test_prometheus_histograms_become_lengths_and_rates(tmp_path):
    times = [1000, 1060, 1120]
    buckets = {"100": [5, 35, 35], "1000": [5, 65, 80], "+Inf": [5, 65, 80]}
    result = matrix("request_prompt_tokens", buckets, times)
    # The second process was restarted in between: its counter begins at 0 again.
    result += matrix("request_generation_tokens",
                     {"10": [50, 60, 8], "+Inf": [50, 100, 20]}, times)  # fmt: skip
    got = load(tmp_path, "p.json", prometheus(result))
    # 60 requests finished in the first minute, 15 in the second; 30 of 75 up to 100 tokens.
    assert len(got) == 75
    assert (got.arrival_s < 60).sum() == pytest.approx(60, abs=1)
    assert (got.input_tokens <= 100).sum() == pytest.approx(30, abs=2)
    assert got.input_tokens.max() <= 1000
    assert any("lie above the largest bucket (10)" in note for note in got.notes)
    vector = json.dumps({"status": "success", "data": {"resultType": "vector", "result": []}})
    assert "no range query" in fault(tmp_path, "p.json", vector)
    message = fault(tmp_path, "p.json", prometheus(result[:3]))
    assert "no vllm:request_generation_tokens_bucket" in message


def test_a_client_model_has_its_rate_and_its_lengths(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    pl.DataFrame({
        "client": [1, 1, 2, 2], "window_start_s": [0, 600, 0, 600],
        "rate_req_per_s": [2.0, 4.0, 1.0, 0.0], "cv": [1.0, 2.0, 1.5, 0.0],
        "pattern": ["Gamma", "Gamma", "Weibull", None],
    }).write_parquet(folder / "client_windows.parquet")  # fmt: skip
    pl.DataFrame({
        "client": [1, 1, 1], "window_start": [0, 0, 0],
        "field": ["input_tokens", "input_tokens", "output_tokens"], "value": [10.0, 20.0, 7.0],
        "prob": [0.25, 0.75, 1.0],
    }).write_parquet(folder / "client_length_pdfs.parquet")  # fmt: skip
    sizes, second = [], []
    for seed in range(8):
        got = load(tmp_path, "model", seed=seed)
        sizes.append(len(got))
        second.append((got.arrival_s >= 600).sum())
    # 600 s x (2 + 1) + 600 s x 4 expected; the deviation of a mean of 8 is below 2 %.
    assert np.mean(sizes) == pytest.approx(4200, rel=0.05)
    assert np.mean(second) == pytest.approx(2400, rel=0.08)
    assert set(got.input_tokens.tolist()) == {10, 20}
    assert (got.input_tokens == 20).mean() == pytest.approx(0.75, abs=0.04)
    assert any("clients without lengths" in note for note in got.notes)
    part = load(tmp_path, "model/client_windows.parquet", window_s=[600, 700])
    assert part.arrival_s[-1] < 100


def test_inputs_alone_need_stated_answers(tmp_path):
    csv = "input_length\n100\n200\n"
    keys = {"arrival": {"burst": True}}
    assert "no output_length" in fault(tmp_path, "i.csv", csv, **keys)
    got = load(tmp_path, "i.csv", csv, osl=30, **keys)
    assert got.output_tokens.tolist() == [30, 30]


def test_packed_files_are_read(tmp_path):
    assert len(load(tmp_path, "b.csv.gz", gzip.compress(BURST.encode()))) == 3
    packed = zstandard.compress(BURST.encode())
    assert len(load(tmp_path, "b.csv.zst", packed)) == 3
    head, tail = BURST[:40].encode(), BURST[40:].encode()
    frames = zstandard.compress(head) + zstandard.compress(tail)
    assert len(load(tmp_path, "b.csv.zst", frames)) == 3
    for damaged in (packed[:-9], packed[:5], frames[:-1], packed[:-4] + b"oops"):
        with pytest.raises(TraceError, match="damaged zstd"):
            load(tmp_path, "b.csv.zst", damaged)


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="Python itself reads zstd")
def test_without_the_package_a_zstd_file_says_what_to_install(tmp_path, monkeypatch):
    packed = zstandard.compress(BURST.encode())
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(TraceError, match=r"sieve-sizing\[zst\]"):
        load(tmp_path, "b.csv.zst", packed)
