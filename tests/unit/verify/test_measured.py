"""`sieve verify measured`: what is read, refused, skipped, replayed, and how it is scored."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from sieve.cli.verify_measured import measured
from sieve.errors import ResultError
from sieve.perf.front_end import chat_latency_s, request_work_s, through_one_server
from sieve.verify.measured import errors_by_metric, missed, verify_measured
from sieve.verify.measured_replay import Replays
from sieve.verify.measured_rows import METRIC_COLUMNS, NEEDED, read_rows
from sieve.verify.measured_setup import setup_of

APP = typer.Typer()
APP.command()(measured)
ROW = dict.fromkeys((*NEEDED, *METRIC_COLUMNS, "grade", "eligible"), "") | {
    "source": "mine", "model": "Qwen/Qwen3-8B", "gpu": "H100-SXM-80GB", "num_gpus": "1", "tp": "1",
    "pp": "1", "dp": "1", "weight_precision": "bf16", "engine": "vllm", "engine_version": "0.18.0",
    "isl_mean": "512", "osl_mean": "64", "length_distribution": "fixed", "concurrency": "4",
    "request_rate": "closed-loop", "prefix_hit_rate": "0", "ttft_mean_ms": "40",
    "tpot_mean_ms": "7.5", "notes": "n=16", "eligible": "1",
}  # fmt: skip


def written(folder: Path, *changes: dict[str, str]) -> Path:
    path = folder / "runs.csv"
    with path.open("w", encoding="utf-8", newline="") as handle:
        out = csv.DictWriter(handle, fieldnames=list({**ROW, **(changes[0] if changes else {})}))
        out.writeheader()
        out.writerows({**ROW, **change} for change in changes)
    return path


def test_the_form_of_the_answer(tmp_path: Path) -> None:
    report = verify_measured(written(tmp_path, {}, {"eligible": "0"}), eligible_only=True)
    assert set(report) == {"summary", "by", "rows", "skipped"}
    assert set(report["by"]) == {"source", "gpu", "model", "regime"}
    assert report["summary"]["rows"] == report["summary"]["predicted"] == 1
    assert report["skipped"] == [{"row": 3, "reason": "not marked eligible"}]
    assert set(report["summary"]["metrics"]) == {"ttft", "tpot"}
    assert set(report["summary"]["metrics"]["tpot"]) == {
        "rows", "mape", "median_ape", "bias", "coverage",
    }  # fmt: skip
    row = report["rows"][0]
    assert (row["row"], row["file"], row["source"]) == (2, "runs.csv", "mine")
    assert (row["regime"], row["eligible"]) == ("closed loop", True)
    tpot = row["tpot"]
    assert tpot["measured"] == pytest.approx(0.0075)
    assert tpot["low"] < tpot["predicted"] < tpot["high"]
    # 16 GB of weights over 3.35 TB/s take 4.9 ms; an H100 reaches about 0.8 of that.
    assert 0.0049 < tpot["predicted"] < 0.010


def test_errors_are_shares_of_the_measured_value() -> None:
    def row(measured: float, predicted: float) -> dict[str, Any]:
        cell = {"measured": measured, "predicted": predicted, "low": 0.9, "high": 1.1}
        return {"row": 1, "tpot": cell}

    found = errors_by_metric([row(1.0, 1.1), row(1.0, 0.8), row(2.0, 2.1)])["tpot"]
    assert found["rows"] == 3
    assert found["mape"] == pytest.approx((10 + 20 + 5) / 3)
    assert found["median_ape"] == pytest.approx(10)
    assert found["bias"] == pytest.approx(5)
    assert found["coverage"] == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tpot_mean_ms": "nan"}, "row 2, tpot_mean_ms: found 'nan'"),
        ({"tpot_mean_ms": "0.0075"}, "row 2, tpot_mean_ms: found '0.0075'.*check the unit"),
        ({"ttft_mean_ms": "fast"}, "row 2, ttft_mean_ms: found 'fast'"),
        ({"e2e_mean_s": "1e9"}, "row 2, e2e_mean_s: .*check the unit"),
        ({"tp": "1.5"}, "row 2, tp: found '1.5'; allowed is a whole number"),
        ({"isl_mean": "-3"}, "row 2, isl_mean: found '-3'"),
        ({"speed": "3"}, "row 1: unknown columns speed"),
    ],
)
def test_what_cannot_be_is_refused_with_row_and_field(
    tmp_path: Path, change: dict[str, str], words: str
) -> None:
    with pytest.raises(ResultError, match=words):
        read_rows(written(tmp_path, change))


def test_missing_columns_and_broken_rows_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("model,gpu\nA,B\n")
    with pytest.raises(ResultError, match="missing columns source"):
        read_rows(path)
    path = written(tmp_path, {})
    path.write_text(path.read_text() + "too,short\n")
    with pytest.raises(ResultError, match="row 3: has more or fewer cells"):
        read_rows(path)
    with pytest.raises(ResultError, match="cannot be read"):
        read_rows(tmp_path / "nowhere.csv")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"engine": "sglang"}, "only vLLM is replayed"),
        ({"osl_mean": ""}, "osl_mean is not stated"),
        ({"weight_precision": ""}, "weight_precision is not stated"),
        ({"request_rate": "as it comes"}, "the load is not known"),
        ({"prefix_hit_rate": "0.4"}, "prefix cache hits"),
        ({"length_distribution": "shared-prefix-multi-turn"}, "not described by a row"),
        ({"model": "someone/unheard-of"}, "unknown model"),
        ({"gpu": "GT-9000"}, "unknown"),
        ({"notes": "scheduler_steps=8; n=16"}, "multi-step is not replayed"),
        ({"ttft_mean_ms": "", "tpot_mean_ms": ""}, "no latency or throughput"),
        ({"model": "meta-llama/Llama-3.1-405B-Instruct"}, "the memory ledger finds room"),
    ],
)
def test_a_row_that_cannot_be_replayed_says_why(
    tmp_path: Path, change: dict[str, str], reason: str
) -> None:
    report = verify_measured(written(tmp_path, change))
    assert report["rows"] == []
    assert report["summary"]["rows"] == 1
    assert report["summary"]["metrics"] == {}
    assert reason in report["skipped"][0]["reason"]
    assert report["skipped"][0]["row"] == 2
    assert missed(report) == ["1 rows were not replayed"]


def test_data_parallel_rows_share_experts_or_nothing(tmp_path: Path) -> None:
    shared = {"model": "Qwen/Qwen3-30B-A3B", "num_gpus": "4", "tp": "1", "dp": "2", "ep": "2"}
    setup = setup_of(read_rows(written(tmp_path, shared))[0])
    assert (setup.dp, setup.ep, setup.replicas) == (2, 2, 2)
    unsaid = setup_of(read_rows(written(tmp_path, shared | {"ep": ""}))[0])
    assert (unsaid.dp, unsaid.ep) == (2, 2)
    assert any("dealt out over the 2 GPUs" in note for note in unsaid.assumed)
    # Engines without experts are replicas.
    dense = shared | {"model": "Qwen/Qwen3-8B", "num_gpus": "2", "ep": ""}
    setup = setup_of(read_rows(written(tmp_path, dense))[0])
    assert (setup.dp, setup.ep, setup.replicas) == (1, 1, 2)
    report = verify_measured(written(tmp_path, shared | {"num_gpus": "3"}))
    assert "no multiple of tp x pp x dp" in report["skipped"][0]["reason"]
    (row,) = verify_measured(written(tmp_path, shared))["rows"]
    assert row["tpot"]["predicted"] > 0


def test_checkpoint_names_lead_to_the_catalogue_with_the_reason(tmp_path: Path) -> None:
    rows = read_rows(written(tmp_path, {"model": "Qwen/Qwen3-8B-FP8", "weight_precision": "fp8"}))
    setup = setup_of(rows[0])
    assert setup.model.name == "Qwen/Qwen3-8B"
    assert any("suffix '-FP8' dropped" in words for words in setup.assumed)


def test_every_regime_becomes_its_traffic(tmp_path: Path) -> None:
    rows = read_rows(
        written(
            tmp_path, {}, {"request_rate": "inf", "concurrency": ""},
            {"request_rate": "4", "concurrency": "", "notes": "n=2000"},
            {"request_rate": "offline batch", "concurrency": "32", "notes": ""},
        )
    )  # fmt: skip
    assert [row.regime for row in rows] == ["closed loop", "burst", "open loop", "static batch"]
    closed, burst, opened, batch = (setup_of(row).requests for row in rows)
    assert closed.closed_loop_users == 4
    assert len(closed) == len(burst) == 16
    assert burst.arrival_s.max() == 0
    # 2,000 exponential gaps: the mean rate lies within 3/sqrt(2000), 7 %.
    assert opened.rate_per_s == pytest.approx(4.0, rel=0.07)
    assert len(batch) == 32


def test_stated_spans_of_lengths_are_drawn(tmp_path: Path) -> None:
    notes = "lengths uniform in 0.8..1.0 x nominal; num_prompts=10x concurrency"
    (row,) = read_rows(written(tmp_path, {"isl_mean": "921.6", "notes": notes}))
    requests = setup_of(row).requests
    assert len(requests) == 40
    assert requests.input_tokens.min() >= 819
    assert requests.input_tokens.max() <= 1024


def test_means_in_p50_columns_are_scored_as_means(tmp_path: Path) -> None:
    change = {"source": "aiconfigurator_silicon", "tpot_mean_ms": "", "tpot_p50_ms": "8"}
    (row,) = read_rows(written(tmp_path, change))
    assert row.measured["tpot"] == pytest.approx(0.008)
    assert "tpot_p50" not in row.measured


def test_a_front_end_hands_a_burst_on_one_by_one() -> None:
    left = through_one_server(np.array([0.0, 0.0, 5.0]), np.array([1.0, 2.0, 0.5]))
    np.testing.assert_allclose(left, [1.0, 3.0, 5.5])


def test_long_prompts_take_the_front_end_longer() -> None:
    short, long = request_work_s(np.array([0, 10_000]))
    c = Replays().constants
    assert short == pytest.approx(c.request_s)
    assert long - short == pytest.approx(10_000 * c.request_token_s)
    assert chat_latency_s() == c.chat_s


def test_asynchronous_scheduling_saves_the_hosts_time(tmp_path: Path) -> None:
    rows = read_rows(written(tmp_path, {"engine_version": "0.11"}, {"engine_version": "0.16"}))
    replays = Replays()
    (sync, _, _), (ahead, _, _) = (replays.predict(setup_of(row)) for row in rows)
    saved = replays.constants.sync_step_s + 4 * replays.constants.sync_sequence_s
    assert sync["tpot"] - ahead["tpot"] == pytest.approx(saved, rel=0.2)


def test_the_command(tmp_path: Path) -> None:
    path = written(tmp_path, {})
    shown = CliRunner().invoke(APP, [str(path)])
    assert shown.exit_code == 0
    assert "1 of 1 rows replayed" in shown.output
    document = json.loads(CliRunner().invoke(APP, [str(path), "--json"]).output)
    assert document["summary"]["predicted"] == 1
    far = written(tmp_path, {"tpot_mean_ms": "75"})
    assert CliRunner().invoke(APP, [str(far), "--strict"]).exit_code == 8
    assert CliRunner().invoke(APP, [str(far)]).exit_code == 0
