"""`sieve replay`: which candidate, what is shown, what is written, what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml
from typer.testing import CliRunner

from sieve import detail
from sieve.cli.main import app
from sieve.errors import InvalidInput, ResultError, SieveError

Make = Callable[..., dict[str, Any]]
ONE = "tp=1,weight_dtype=fp8"


def test_axes_or_an_id_name_one_candidate(make_spec: Make) -> None:
    by_axes = detail.replay(make_spec(), ONE)
    by_id = detail.replay(make_spec(), by_axes.data["candidate_id"])
    assert by_axes.data == by_id.data
    assert "tp1" in by_axes.data["candidate_id"]
    assert "fp8" in by_axes.data["candidate_id"]


def test_it_is_the_replay_of_the_run(make_spec: Make) -> None:
    import sieve

    result = sieve.run(make_spec(), exhaustive=True)
    row = next(r for r in result.data["ranking"] if r["tp"] == 2 and r["weight_dtype"] == "bf16")
    metrics = detail.replay(make_spec(), row["candidate_id"]).data["metrics"]
    for name in ("ttft_p99_s", "tpot_p50_s", "output_tokens_per_s", "slo_attainment"):
        assert metrics[name] == row[name]["mid"]
    assert metrics["ttft_p99_high_s"] == row["ttft_p99_s"]["high"]


def test_rows_of_requests_windows_and_iterations_agree(make_spec: Make) -> None:
    report = detail.replay(make_spec(), ONE, record_steps=True, window_s=10.0)
    assert report.steps is not None
    assert len(report.requests) == 100
    assert report.windows["num_requests"].sum() == 100
    assert len(report.steps) == report.data["metrics"]["num_steps"]
    assert report.data["metrics"]["ttft_mean_s"] == pytest.approx(report.requests["ttft_s"].mean())
    decoded = report.steps["decode_tokens"].sum()
    assert decoded == (report.requests["output_tokens"] - 1).sum()


def test_disciplines_side_by_side(make_spec: Make) -> None:
    rows = detail.replay(make_spec(), ONE, compare=True).data["disciplines"]
    assert [row["discipline"] for row in rows] == ["fcfs", "shortest_first", "buckets", "static"]
    fcfs, static = rows[0], rows[-1]
    # A padded batch keeps early answers waiting for its longest one.
    assert static["e2e_mean_s"] > fcfs["e2e_mean_s"]
    assert 0 < static["padding_share"] < 1
    assert 0 < static["slot_share"] < 1


def test_a_warm_up_is_left_out_of_the_counts(make_spec: Make) -> None:
    report = detail.replay(make_spec(), ONE, warm_up_s=5.0)
    late = report.requests.filter(pl.col("arrival_s") >= 5.0)
    assert report.data["num_counted"] == len(late) < 100
    assert report.data["metrics"]["ttft_mean_s"] == pytest.approx(late["ttft_s"].mean())


@pytest.mark.parametrize(
    ("candidate", "message"),
    [
        ("h100-sxm-80gb.tp9", "no candidate 'h100-sxm-80gb.tp9' in this grid; nearest: h100-"),
        ("tp=3", "'tp=3': no candidate of the grid has it; there: 1, 2, 4"),
        ("tpp=1", "'tpp=1': unknown axis; nearest: pp, tp, ep"),
        ("tp=1", "'tp=1' fits 2 candidates; add one of weight_dtype, as in weight_dtype=bf16"),
        ("tp=4,weight_dtype=bf16", "does not reach the replay: stage 1 validity"),
    ],
)
def test_what_names_no_candidate_is_refused(make_spec: Make, candidate: str, message: str) -> None:
    with pytest.raises(InvalidInput) as error:
        detail.replay(make_spec(), candidate)
    assert message in str(error.value)


@pytest.mark.parametrize(
    "keys",
    [
        {"window_s": 0.0}, {"window_s": float("nan")}, {"warm_up_s": -1.0}, {"warm_up_s": 1e9},
        {"max_wait_s": 0.0}, {"level": 0.0}, {"level": float("inf")},
    ],
)  # fmt: skip
def test_numbers_without_sense_are_refused(make_spec: Make, keys: dict[str, float]) -> None:
    with pytest.raises(SieveError):
        detail.replay(make_spec(), ONE, **keys)


def test_an_overload_is_named_and_can_be_cut_short(make_spec: Make) -> None:
    report = detail.replay(make_spec(), ONE, level=90.0, max_wait_s=0.05)
    assert report.data["metrics"]["status"] == "max_wait_exceeded"
    assert report.requests["finish_s"].null_count() > 0


def invoke(spec: dict[str, Any], folder: Path, *args: str) -> Any:
    path = folder / "spec.yaml"
    path.write_text(yaml.safe_dump(spec))
    return CliRunner().invoke(app, ["replay", str(path), "--candidate", ONE, *args])


def test_the_command_prints_and_writes(make_spec: Make, tmp_path: Path) -> None:
    steps, requests = tmp_path / "steps.parquet", tmp_path / "requests.csv"
    done = invoke(
        make_spec(), tmp_path, "--steps", str(steps), "--requests", str(requests), "--compare"
    )
    assert done.exit_code == 0, done.output
    assert max(len(line) for line in done.output.splitlines()) <= 80 + len(str(tmp_path))
    for words in ("TTFT", "Over time", "Disciplines", "asynchronous", "Iterations"):
        assert words in done.output
    assert pl.read_parquet(steps)["decode_seqs"].max() > 0
    assert len(pl.read_csv(requests)) == 100


def test_json_is_one_document(make_spec: Make, tmp_path: Path) -> None:
    done = invoke(make_spec(), tmp_path, "--json")
    assert json.loads(done.stdout)["metrics"]["num_steps"] > 0


def test_a_table_needs_a_known_ending(make_spec: Make, tmp_path: Path) -> None:
    report = detail.replay(make_spec(), ONE)
    with pytest.raises(ResultError, match=r"ends in \.parquet or \.csv"):
        detail.write_table(report.requests, tmp_path / "r.xls")
    with pytest.raises(ResultError, match="no folder"):
        detail.write_table(report.requests, tmp_path / "none" / "r.csv")
    assert list(tmp_path.iterdir()) == []
