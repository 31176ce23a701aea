"""Reading measured points: what is taken, what is skipped and why, what is refused."""

from __future__ import annotations

import json

import pytest

from sieve.calibration.observations import read_observations
from sieve.errors import ResultError

HEADER = "model,gpu,num_gpus,tp,isl_mean,osl_mean,concurrency,max_num_seqs,total_tok_s,notes\n"
BENCH = {
    "model_id": "meta-llama/Llama-2-7b-hf",
    "completed": 100,
    "duration": 50.0,
    "total_input_tokens": 20_000,
    "total_output_tokens": 10_000,
    "total_token_throughput": 600.0,
    "max_concurrency": 16,
    "mean_tpot_ms": 10.0,
    "mean_ttft_ms": 500.0,
}


@pytest.fixture
def read(tmp_path):
    def call(text, name="data.csv"):
        path = tmp_path / name
        path.write_text(text)
        return read_observations([path])

    return call


def test_a_row(read):
    got = read(f"{HEADER}m,H100-SXM-80GB,1,1,128,64,8,256,1000,free text\n").rows[0]
    assert (got.model, got.gpu, got.isl, got.osl, got.batch) == ("m", "H100-SXM-80GB", 128, 64, 8)
    assert (got.tokens_per_s, got.batch_from, got.throughput_from) == (1000, "concurrency", "total")
    assert got.place == "data.csv:2"


@pytest.mark.parametrize(
    ("cells", "batch", "source"),
    [
        ("8,256,1,x; mean running=7.5, max running=8", 7.5, "running"),
        ("8,256,1,", 8, "concurrency"),
        (",256,1,", 256, "max_num_seqs"),
    ],
)
def test_the_batch_is_the_best_known(read, cells, batch, source):
    got = read(f"{HEADER}m,,1,1,128,64,{cells}\n").rows[0]
    assert (got.batch, got.batch_from) == (batch, source)


@pytest.mark.parametrize(
    ("columns", "cells", "rate", "source"),
    [
        ("output_tok_s_total", "100", 100 * 192 / 64, "output"),
        ("e2e_mean_s", "2", 8 * 192 / 2, "latency"),
        ("ttft_mean_ms,tpot_mean_ms", "370,10", 8 * 192 / (0.37 + 63 * 0.01), "latency"),
        ("ttft_p50_ms,tpot_p50_ms", "370,10", 8 * 192 / (0.37 + 63 * 0.01), "latency"),
    ],
)
def test_the_rate_is_the_best_known(read, columns, cells, rate, source):
    text = f"model,isl_mean,osl_mean,concurrency,{columns}\nm,128,64,8,{cells}\n"
    got = read(text).rows[0]
    assert got.tokens_per_s == pytest.approx(rate)
    assert got.throughput_from == source


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("m,,4,4,128,64,8,,10,", "num_gpus is 4"),
        ("m,,1,2,128,64,8,,10,", "tp is 2"),
        ("m,,1,1,,64,8,,10,", "isl_mean"),
        ("m,,1,1,128,0,8,,10,", "osl_mean"),
        ("m,,1,1,128,64,inf,,10,", "no batch"),
        ("m,,1,1,128,64,8,,,", "no rate"),
        (",,1,1,128,64,8,,10,", "model is missing"),
        ("m,,1,1,128,64,8,,10,nsys profiler attached (slower)", "profiler"),
        ("m,,1,1,128,64,8,,10,replicas_on_one_gpu=2 with CUDA MPS", "replicas"),
        ("m,,1,1,128,64,8,,10,SPECULATIVE_DECODING", "speculative"),
    ],
)
def test_other_rows_are_skipped_with_a_reason(read, row, reason):
    got = read(f"{HEADER}{row}\n")
    assert not got.rows
    assert reason in got.skipped[0].reason
    assert got.skipped[0].place == "data.csv:2"


def test_one_replica_and_no_speculation_are_plain(read):
    text = f"{HEADER}m,,1,1,128,64,8,,10,replicas_on_one_gpu=1; no speculative decoding\n"
    assert len(read(text).rows) == 1


def test_gpu_names_become_the_catalogues(read):
    got = read(f"{HEADER}m,h100_sxm,1,1,1,1,1,,1,\nm,Unheard-Of 9,1,1,1,1,1,,1,\n").rows
    assert [row.gpu for row in got] == ["H100-SXM-80GB", "Unheard-Of 9"]


def test_a_bench_result(read):
    got = read(json.dumps(BENCH), "bench.json").rows[0]
    assert (got.isl, got.osl, got.batch, got.tokens_per_s) == (200, 100, 16, 600)
    assert (got.tpot_s, got.batch_from) == (0.01, "concurrency")


def test_an_open_loop_takes_its_batch_from_littles_law(read):
    """2 requests/s that each take 0.5 s + 99 x 10 ms are 2.98 in flight."""
    result = {**BENCH, "max_concurrency": None, "request_rate": 2.0}
    got = read(json.dumps(result), "bench.json").rows[0]
    assert got.batch == pytest.approx(2 * (0.5 + 0.99))
    assert got.batch_from == "littles_law"
    exact = read(json.dumps({**result, "mean_e2el_ms": 1000.0}), "bench.json").rows[0]
    assert exact.batch == pytest.approx(2.0)


def test_results_appended_to_one_file(read):
    lines = "\n".join(json.dumps({**BENCH, "max_concurrency": n}) for n in (1, 2, 4))
    assert [row.batch for row in read(lines, "bench.json").rows] == [1, 2, 4]
    listed = json.dumps([BENCH, {**BENCH, "tensor_parallel_size": "2"}])
    got = read(listed, "bench.json")
    assert (len(got.rows), len(got.skipped)) == (1, 1)


@pytest.mark.parametrize(
    "changes",
    [
        {"model_id": None},
        {"completed": 0},
        {"duration": "nan"},
        {"max_concurrency": None, "mean_ttft_ms": None},
        {"spec_decode_num_drafts": 7},
        {"dp": 2},
    ],
)
def test_unusable_bench_results_are_skipped(read, changes):
    got = read(json.dumps({**BENCH, **changes}), "bench.json")
    assert not got.rows
    assert got.skipped[0].place == "bench.json[0]"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("data.csv", "a,b\n1,2\n"),
        ("data.csv", ""),
        ("bench.json", "{"),
        ("bench.json", '{"a": 1}'),
        ("bench.json", "[7]"),
        ("bench.json", "[" * 100_000),
    ],
)
def test_other_files_are_refused_by_name(read, name, text):
    with pytest.raises(ResultError, match=name):
        read(text, name)


def test_unreadable_files_are_refused(tmp_path):
    with pytest.raises(ResultError, match="cannot be read"):
        read_observations([tmp_path / "none.csv"])
    with pytest.raises(ResultError, match="at least one"):
        read_observations([])
    (tmp_path / "bytes.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ResultError, match="not a text file"):
        read_observations([tmp_path / "bytes.csv"])


def test_inputs_carry_their_checksum(read):
    got = read(HEADER)
    assert got.inputs[0]["name"] == "data.csv"
    assert len(got.inputs[0]["sha256"]) == 64
