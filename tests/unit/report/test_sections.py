from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import polars as pl
import pytest
from typer.testing import CliRunner

from sieve.cli.main import app
from sieve.errors import ResultError, SieveError
from sieve.report import behaviour
from sieve.report.rewrite import figures_of, report_of
from sieve.report.sensitivity import sensitivity

MAX_BYTES = 6_000_000


@pytest.fixture
def run_copy(small_run: Any, tmp_path: Path) -> Path:
    return Path(shutil.copytree(small_run.folder, tmp_path / "run"))


def test_the_report_written_anew_is_the_report_of_the_run(run_copy: Path) -> None:
    before = (run_copy / "report.html").read_bytes()
    (run_copy / "report.html").unlink()
    done = CliRunner().invoke(app, ["report", str(run_copy)])
    assert done.exit_code == 0, done.output
    assert (run_copy / "report.html").read_bytes() == before
    assert len(before) < MAX_BYTES
    assert not list(run_copy.glob(".part-*"))


def test_figures_are_files_of_their_own(run_copy: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(
        app, ["report", str(run_copy), "--figures", str(tmp_path / "f"), "--json"]
    )
    assert done.exit_code == 0, done.output
    paths = [Path(p) for p in json.loads(done.stdout)["figures"]]
    assert {
        "intervals.svg", "pareto-num-gpus.svg", "time-mean-running.svg", "funnel-stages.svg",
        "memory-ledgers.svg",
    } <= {p.name for p in paths}  # fmt: skip
    for path in paths:
        root = ET.fromstring(path.read_text(encoding="utf-8"))
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert float(root.attrib["width"]) > 0
        assert "var(" not in path.read_text(encoding="utf-8")


def test_a_figure_escapes_what_it_says(run_copy: Path) -> None:
    result = json.loads((run_copy / "result.json").read_text(encoding="utf-8"))
    result["ranking"][0]["gpu"] = "</text><script>alert(1)</script>"
    (run_copy / "result.json").write_text(json.dumps(result), encoding="utf-8")
    drawn = figures_of(run_copy)["intervals.svg"]
    assert "<script" not in drawn
    assert "&lt;script&gt;" in drawn
    ET.fromstring(drawn)


@pytest.mark.parametrize(
    "broken",
    [
        {"spec": []}, {"answer": None}, {"ranking": 3}, {"ranking": [1]}, {"stages": {}},
        {"schema_version": "2.0"},
    ],
)  # fmt: skip
def test_a_result_that_is_none_is_refused(run_copy: Path, broken: dict[str, Any]) -> None:
    result = json.loads((run_copy / "result.json").read_text(encoding="utf-8")) | broken
    (run_copy / "result.json").write_text(json.dumps(result), encoding="utf-8")
    with pytest.raises(ResultError, match=r"result\.json"):
        report_of(run_copy)


def test_a_run_without_timeline_still_has_its_report(run_copy: Path) -> None:
    (run_copy / "timeline.parquet").unlink()
    page = report_of(run_copy)
    assert "The leader over time" not in page
    assert "Which knob matters" in page


def test_a_script_outside_the_run_is_not_shown(run_copy: Path, tmp_path: Path) -> None:
    secret = tmp_path / "serve.sh"
    secret.write_text("secret words", encoding="utf-8")
    result = json.loads((run_copy / "result.json").read_text(encoding="utf-8"))
    result["ranking"][0]["candidate_id"] = "../.."
    (run_copy / "result.json").write_text(json.dumps(result), encoding="utf-8")
    assert "secret words" not in report_of(run_copy)


def test_the_timeline_counts_every_request_once(small_run: Any) -> None:
    timeline = small_run.timeline
    assert timeline["num_requests"].sum() == 100
    assert timeline["candidate_id"].unique().to_list() == [
        small_run.data["ranking"][0]["candidate_id"]
    ]
    assert timeline["kv_usage"].drop_nulls().is_between(0.0, 1.0).all()
    tokens = timeline["output_tokens_per_s"].sum() * float(timeline["window_s"][0])
    requests = small_run.simulations.filter(level=1.0)
    wanted = requests["output_tokens_per_s"][0] * requests["makespan_s"][0]
    assert tokens == pytest.approx(wanted, rel=1e-6)


def test_windows_without_numbers_draw_nothing() -> None:
    assert behaviour.over_time(None) is None
    assert behaviour.over_time(pl.DataFrame({"start_s": [0.0, 1.0]})) is None
    empty = {"start_s": [0.0, 1.0], "max_num_seqs": [8, 8], "window_s": [1.0, 1.0]}
    unknown: dict[str, list[Any]] = {
        name: [None, None] for name in ("mean_waiting", "mean_running", "kv_usage", "ttft_p99_s")
    }
    assert behaviour.over_time(pl.DataFrame({**empty, **unknown})) is None


def test_the_knob_that_doubles_the_cost_comes_first() -> None:
    """Two knobs, costs by hand: tp 1 and 2 cost 1 and 2 USD at best, the batch 1 % at most."""
    rows = [
        ("a", 1, 64, -1.00, None, None), ("b", 2, 64, -2.00, "not_selected", "not_selected"),
        ("c", 1, 128, -1.01, "not_selected", "not_selected"),
        ("d", 2, 128, -2.02, "misses_slo", "bound_misses_slo"),
    ]  # fmt: skip
    frame = pl.DataFrame(
        rows, schema=["candidate_id", "tp", "max_num_seqs", "score", "kind", "reason"], orient="row"
    ).with_columns(stage=pl.lit(4), observed=pl.lit(3.0), limit=pl.lit(2.0), unit=pl.lit("s"))
    result = {"spec": {"rank": {"objective": "usd_per_mtok"}}}
    found = sensitivity(result, frame, frame.row(0, named=True))
    assert found is not None
    spreads = {k["axis"]: k["spread"] for k in found["knobs"]}
    assert spreads == {"tp": pytest.approx(1.0), "max_num_seqs": pytest.approx(0.01)}
    assert [k["axis"] for k in found["knobs"]] == ["tp", "max_num_seqs"]
    assert "TP (100 %)" in found["sentence"]
    assert [c["change"] for c in found["changes"]] == ["TP 1 to 2", "max_num_seqs 64 to 128"]
    assert found["changes"][0]["value"] == "2.00 USD at best"


def test_one_change_that_breaks_an_objective_says_by_how_much() -> None:
    frame = pl.DataFrame(
        {
            "candidate_id": ["a", "b"], "tp": [1, 2], "score": [-1.0, -2.0],
            "kind": [None, "misses_slo"], "reason": [None, "bound_misses_slo"],
            "stage": [None, 4], "observed": [None, 3.0], "limit": [None, 2.0],
            "unit": [None, "ttft:p99<=2s"],
        }
    )  # fmt: skip
    result = {"spec": {"rank": {"objective": "usd_per_mtok"}}}
    found = sensitivity(result, frame, frame.row(0, named=True))
    assert found is not None
    (change,) = found["changes"]
    assert change["fate"] == "stage 4: bound_misses_slo"
    assert "Found 3.00 s, limit 2 s." in change["why"]


def test_where_an_objective_breaks_is_marked(small_run: Any) -> None:
    page = small_run.report()
    assert "breaks at" not in page  # nothing breaks in the small run
    result = json.loads(json.dumps(small_run.data))
    worst = small_run.simulations["ttft_p99_high_s"].max()
    result["spec"]["slo"] = [f"ttft:p99<={worst * 0.999:.9f}s"]
    from sieve.report.html import render_report

    marked = render_report(result, small_run.candidates, small_run.simulations)
    assert len(re.findall(r"breaks at \d", marked)) >= 1


def test_errors_of_the_report_say_what_to_do(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert isinstance(done.exception, SieveError)
    assert "no finished run here" in str(done.exception)
