"""Run folders: written atomically, read with care."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import sieve
from sieve.errors import ResultError, SieveError
from sieve.results import (
    RunFolder,
    clean,
    find_candidate,
    life_of,
    read_frame,
    read_result,
    to_json,
)

Make = Callable[..., dict[str, Any]]


def test_json_is_strict() -> None:
    value = {
        "nan": math.nan, "inf": -math.inf, "np": np.float64(1.5), "int": np.int64(3),
        "list": (1, np.nan, {"x": np.float32("inf")}), "text": "ü", "none": None, 5: True,
    }  # fmt: skip
    assert json.loads(to_json(value)) == {
        "nan": None, "inf": None, "np": 1.5, "int": 3, "list": [1, None, {"x": None}],
        "text": "ü", "none": None, "5": True,
    }  # fmt: skip
    assert type(clean(np.int64(3))) is int


def test_a_folder_is_created_and_written(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "a" / "b")
    folder.event("start", value=math.nan)
    folder.write_text("plan/x/serve.sh", "text\n")
    folder.write_frame("t.parquet", pl.DataFrame({"a": [1, 2]}))
    folder.close()
    assert (tmp_path / "a/b/plan/x/serve.sh").read_text(encoding="utf-8") == "text\n"
    assert read_frame(tmp_path / "a/b", "t.parquet")["a"].to_list() == [1, 2]
    (line,) = (tmp_path / "a/b/events.jsonl").read_text(encoding="utf-8").splitlines()
    event = json.loads(line)
    assert (event["event"], event["value"]) == ("start", None)
    assert sorted(p.name for p in (tmp_path / "a/b").rglob("*") if p.is_file()) == [
        "events.jsonl",
        "lock",
        "serve.sh",
        "t.parquet",
    ]


@pytest.mark.parametrize("name", ["../x", "plan/../../x", "/etc/sieve-test", ".."])
def test_a_path_outside_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    folder = RunFolder(tmp_path / "run")
    with pytest.raises(ResultError, match="leave the run folder"):
        folder.write_text(name, "text")
    folder.close()
    assert not (tmp_path / "x").exists()


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    folder = RunFolder(tmp_path / "run")
    (tmp_path / "run/plan").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ResultError, match="leave the run folder"):
        folder.write_text("plan/serve.sh", "text")
    folder.close()
    assert not any((tmp_path / "elsewhere").iterdir())


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.write_text("report.html", "old")
    with pytest.raises(UnicodeEncodeError):
        folder.write_text("report.html", "new \ud800")
    folder.close()
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == "old"
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "checkpoint", "events.jsonl", "report.html"
    ]  # fmt: skip


def test_foreign_folders_and_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    with pytest.raises(ResultError, match="is a file"):
        RunFolder(tmp_path / "file")
    with pytest.raises(ResultError, match="other files"):
        RunFolder(tmp_path)
    with pytest.raises(ResultError):
        RunFolder(tmp_path / "file" / "run")
    assert (tmp_path / "file").read_text(encoding="utf-8") == "x"
    (tmp_path / "empty").mkdir()
    RunFolder(tmp_path / "empty").close()


def test_the_old_result_goes_first_and_the_new_one_comes_last(
    tmp_path: Path, make_spec: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    sieve.run(make_spec({"grid.axes.tp": [1]}), out=tmp_path)
    assert (tmp_path / "result.json").is_file()
    written: list[str] = []
    original = RunFolder._replace

    def spy(self: RunFolder, name: str, write: Any) -> None:
        assert not (tmp_path / "result.json").exists()
        written.append(name)
        original(self, name, write)

    monkeypatch.setattr(RunFolder, "_replace", spy)
    sieve.run(make_spec({"grid.axes.tp": [1]}), out=tmp_path)
    assert written[-1] == "result.json"
    assert {"candidates.parquet", "simulations.parquet", "report.html"} < set(written)


def test_a_run_that_dies_leaves_no_result(
    tmp_path: Path, make_spec: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    sieve.run(make_spec({"grid.axes.tp": [1]}), out=tmp_path)
    original = RunFolder._replace

    def fail(self: RunFolder, name: str, write: Any) -> None:
        if name == "report.html":
            raise OSError(28, "No space left on device")
        original(self, name, write)

    monkeypatch.setattr(RunFolder, "_replace", fail)
    with pytest.raises((OSError, SieveError)):
        sieve.run(make_spec({"grid.axes.tp": [1]}), out=tmp_path)
    assert not (tmp_path / "result.json").exists()
    with pytest.raises(ResultError, match="no finished run"):
        read_result(tmp_path)


def test_a_reused_folder_keeps_nothing_of_the_run_before(tmp_path: Path, make_spec: Make) -> None:
    sieve.run(make_spec({"grid.axes.tp": [2]}), out=tmp_path)
    sieve.run(make_spec({"grid.axes.tp": [1]}), out=tmp_path)
    assert all(".tp1." in folder.name for folder in (tmp_path / "plan").iterdir())


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", "not JSON"),
        ("[1]", "not a sieve result"),
        ('{"schema_version": "2.0"}', "a newer sieve wrote it; upgrade"),
        ('{"schema_version": "0.9"}', "make it anew with `sieve run"),
        ("{}", "not a sieve result"),
        ("[" * 100_000, "not JSON"),
        ("\xff", "not JSON"),
    ],
)
def test_what_is_no_result(tmp_path: Path, content: str, complaint: str) -> None:
    (tmp_path / "result.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(ResultError, match=complaint):
        read_result(tmp_path)


def test_missing_and_damaged_tables(tmp_path: Path) -> None:
    with pytest.raises(ResultError, match="missing"):
        read_frame(tmp_path, "candidates.parquet")
    (tmp_path / "candidates.parquet").write_bytes(b"PAR1 no PAR1")
    with pytest.raises(ResultError, match="not a readable Parquet"):
        read_frame(tmp_path, "candidates.parquet")


def test_an_unknown_candidate_is_answered_with_the_nearest(small_run: Any) -> None:
    wrong = "h100-sxm-80gb.tp1.pp1.ep1.r1.bf16.kv-auto.s64.b2049"
    with pytest.raises(ResultError) as caught:
        find_candidate(small_run.candidates, wrong)
    assert "h100-sxm-80gb.tp1.pp1.ep1.r1.bf16.kv-auto.s64.b2048" in str(caught.value)


def test_the_life_of_a_ranked_candidate(small_run: Any) -> None:
    candidate_id = small_run.data["ranking"][0]["candidate_id"]
    life = life_of(small_run.folder, candidate_id)
    assert [stage["outcome"] for stage in life["stages"]] == ["passed"] * 7
    assert life["ranking"] == small_run.data["ranking"][0]
    assert sorted(row["level"] for row in life["simulations"]) == [0.5, 1.0]
    assert life["candidate"]["reason"] is None


def test_the_life_of_a_rejected_candidate(small_run: Any) -> None:
    life = life_of(small_run.folder, "h100-sxm-80gb.tp4.pp1.ep1.r1.bf16.kv-auto.s64.b2048")
    assert [stage["outcome"] for stage in life["stages"]] == ["rejected"] + ["not reached"] * 6
    assert life["ranking"] is None
    assert life["simulations"] == []
    row = life["candidate"]
    assert (row["stage"], row["kind"], row["reason"]) == (1, "infeasible", "gpu_budget")
    assert (row["observed"], row["limit"]) == (4.0, 2.0)


def test_no_run_has_no_lives(tmp_path: Path) -> None:
    with pytest.raises(ResultError, match="no finished run"):
        life_of(tmp_path, "x")


def test_a_table_of_another_schema_is_refused(tmp_path: Path) -> None:
    pl.DataFrame({"a": [1]}).write_parquet(
        tmp_path / "t.parquet", metadata={"sieve_schema_version": "2.0"}
    )
    with pytest.raises(ResultError, match=r"'2\.0', this sieve reads '1\.0': a newer sieve"):
        read_frame(tmp_path, "t.parquet")


def test_every_file_of_a_run_says_its_schema(small_run: Any) -> None:
    for path in small_run.folder.glob("*.parquet"):
        assert pl.read_parquet_metadata(path)["sieve_schema_version"] == "1.0"
    assert json.loads((small_run.folder / "result.json").read_text())["schema_version"] == "1.0"
    first = (small_run.folder / "events.jsonl").read_text().splitlines()[0]
    assert json.loads(first)["schema_version"] == "1.0"
