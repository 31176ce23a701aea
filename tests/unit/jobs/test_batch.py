"""`sieve batch`: bad jobs do not stop the others, finished ones are known again, bytes agree."""

from __future__ import annotations

import csv
import fcntl
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import sieve
from sieve.cli.main import main
from sieve.errors import ResultError
from sieve.jobs import batch as module
from sieve.jobs.batch import batch
from sieve.jobs.summary import COLUMNS, to_csv
from sieve.reuse import Reuse, Store


def call(monkeypatch, capsys, *args):
    monkeypatch.setattr(sys, "argv", ["sieve", *map(str, args)])
    with pytest.raises(SystemExit) as caught:
        main()
    out, err = capsys.readouterr()
    return caught.value.code, out, err


@pytest.fixture
def jobs_file(tmp_path, make_spec):
    """Three good jobs over one small spec, as a YAML file."""

    def make(*more):
        spec = make_spec()
        spec.pop("name")
        jobs = [
            {"name": "first"},
            {"name": "tight", "slo": {"ttft_p99": "1 us"}},
            {"name": "third", "set": {"fleet.max_gpus": 1}},
        ]
        path = tmp_path / "jobs.yaml"
        path.write_text(yaml.safe_dump({"defaults": spec, "jobs": [*jobs, *more]}, sort_keys=False))
        return path

    return make


def without_times(data):
    data = {key: value for key, value in data.items() if key != "elapsed_s"}
    for row in data.get("jobs", []) + data.get("stages", []):
        row.pop("elapsed_s", None)
    return data


def result(folder):
    return without_times(json.loads((folder / "result.json").read_text()))


def test_each_job_has_the_result_of_its_run_alone(tmp_path, jobs_file, make_spec):
    summary = batch(jobs_file(), out=tmp_path / "out", workers=2)
    assert [row["status"] for row in summary["jobs"]] == ["answer", "no_slo", "answer"]
    assert [row["exit_code"] for row in summary["jobs"]] == [0, 4, 0]
    assert summary["num_failed"] == 0
    alone = sieve.run(make_spec(name="first"), out=tmp_path / "alone")
    assert result(tmp_path / "out" / "first") == result(tmp_path / "alone")
    best = alone.data["ranking"][0]
    row = summary["jobs"][0]
    assert (row["candidate_id"], row["num_gpus"]) == (best["candidate_id"], best["num_gpus"])
    assert row["usd_per_mtok_mid"] == best["usd_per_mtok"]["mid"]
    assert (row["verdict"], row["evidence"]) == (best["verdict"], best["evidence"])
    with (tmp_path / "out" / "summary.csv").open() as lines:
        rows = list(csv.DictReader(lines))
    assert [r["name"] for r in rows] == ["first", "tight", "third"]
    assert rows[1]["candidate_id"] == ""


def test_any_number_of_workers_gives_the_same_bytes(tmp_path, jobs_file):
    path = jobs_file({"name": "bad", "seed": -1})
    module._reuse.cache_clear()
    one = without_times(batch(path, out=tmp_path / "one", workers=1))
    four = without_times(batch(path, out=tmp_path / "four", workers=4))
    assert one == four
    for name in ("first", "tight", "third"):
        assert result(tmp_path / "one" / name) == result(tmp_path / "four" / name)


def test_bad_jobs_are_reported_and_the_rest_finish(tmp_path, jobs_file, monkeypatch, capsys):
    path = jobs_file(
        {"name": "../x"}, {"name": "FIRST"}, {"spec": "none.yaml"}, {"modle": 1}, "text",
        {"name": "lost", "traffic": {"trace": "none.csv", "synthetic": None}},
    )  # fmt: skip
    code, out, _ = call(monkeypatch, capsys, "batch", path, "--out", tmp_path / "out", "--json")
    assert code == 7
    rows = json.loads(out)["jobs"]
    assert [row["exit_code"] for row in rows] == [0, 4, 0, 2, 2, 2, 2, 2, 2]
    words = ["cannot be a folder", "job 1 already", "no such run spec", "nearest: model", "a text"]
    for row, text in zip(rows[3:], words, strict=False):
        assert text in row["message"]
        assert f"job {row['number']}" in row["message"]
    assert "none.csv" in rows[8]["message"]
    folders = {p.name for p in (tmp_path / "out").iterdir() if p.is_dir()}
    assert folders == {"first", "tight", "third"}
    assert not (tmp_path / "x").exists()


def test_a_bug_in_one_job_has_a_traceback_and_code_7(tmp_path, jobs_file, monkeypatch, capsys):
    def broken(spec, **kwargs):
        if spec.run.name == "tight":
            raise ZeroDivisionError("of the test")
        return sieve.api.run(spec, **kwargs)

    monkeypatch.setattr(module, "run_spec", broken)
    code, out, err = call(
        monkeypatch, capsys, "batch", jobs_file(), "--out", tmp_path / "out", "--json"
    )
    assert code == 7
    assert [row["exit_code"] for row in json.loads(out)["jobs"]] == [0, 1, 0]
    assert "ZeroDivisionError: of the test" in err


def test_resume_takes_over_what_is_the_same_and_only_that(tmp_path, jobs_file, make_spec):
    out = tmp_path / "out"
    first = batch(jobs_file(), out=out)
    again = batch(jobs_file(), out=out, resume=True)
    assert [row["reused"] for row in again["jobs"]] == [True, True, True]
    for old, new in zip(first["jobs"], again["jobs"], strict=True):
        same = {"elapsed_s": 0, "reused": 0}
        assert old | same == new | same
    (out / "third" / "result.json").write_text("{}")  # damaged
    text = jobs_file().read_text().replace("1 us", "2 us")
    (tmp_path / "jobs.yaml").write_text(text)  # the same name, another content
    third = batch(tmp_path / "jobs.yaml", out=out, resume=True)
    assert [row["reused"] for row in third["jobs"]] == [True, False, False]
    assert third["jobs"][2] | same == first["jobs"][2] | same


def test_resume_notices_another_trace_under_the_same_name(tmp_path, make_spec):
    trace = tmp_path / "lengths.csv"
    spec = make_spec({"traffic.synthetic": None, "traffic.trace": "lengths.csv"}, name=None)
    spec["traffic"]["arrival"] = {"poisson_per_s": 4}
    path = tmp_path / "jobs.yaml"
    path.write_text(yaml.safe_dump({"jobs": [{**spec, "name": "a"}]}))
    trace.write_text("input_length,output_length\n" + "100,10\n" * 60)
    batch(path, out=tmp_path / "out")
    trace.write_text("input_length,output_length\n" + "900,10\n" * 60)
    again = batch(path, out=tmp_path / "out", resume=True)
    assert [row["reused"] for row in again["jobs"]] == [False]


def test_a_dry_run_checks_and_writes_nothing(tmp_path, jobs_file, monkeypatch, capsys):
    path = jobs_file({"name": "bad", "slo": {"ttft_p99": "2 parsecs"}})
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    code, out, _ = call(monkeypatch, capsys, "batch", path, "--dry-run", "--json")
    assert code == 7
    data = json.loads(out)
    assert (data["num_jobs"], data["num_bad"]) == (4, 1)
    assert "parsecs" in data["jobs"][3]["error"]
    assert sorted(tmp_path.rglob("*")) == before
    code, out, _ = call(monkeypatch, capsys, "batch", path, "--dry-run")
    assert "3 of 4 jobs can run" in out
    assert out.splitlines()[-1].endswith("--dry-run")


def test_the_table_fits_80_columns(tmp_path, jobs_file, monkeypatch, capsys):
    args = ("batch", jobs_file(), "--out", tmp_path / "out")
    for columns in (80, 160):
        monkeypatch.setenv("COLUMNS", str(columns))
        _, out, _ = call(monkeypatch, capsys, *args)
        table = out.split("Summary")[0].splitlines()
        assert max(len(line.rstrip()) for line in table) <= columns
        assert "first" in out
    assert "h100-sxm-80gb.tp1.pp1.ep1.r1" in out  # the wide one has the whole id


def test_folders_that_are_not_a_batch_are_refused(tmp_path, jobs_file):
    path = jobs_file()
    (tmp_path / "file").write_text("x")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("x")
    with pytest.raises(ResultError, match="is a file"):
        batch(path, out=tmp_path / "file")
    with pytest.raises(ResultError, match="holds other files"):
        batch(path, out=tmp_path / "full")
    with pytest.raises(ResultError, match="no such folder"):
        batch(path, out=tmp_path / "none", resume=True)
    (tmp_path / "busy").mkdir()
    with (tmp_path / "busy" / module.LOCK).open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ResultError, match="another batch"):
            batch(path, out=tmp_path / "busy")


def test_stores_keep_what_was_used_last_within_their_size():
    store: Store[str] = Store(10)
    store.put("a", "x", 4)
    store.put("b", "y", 4)
    assert store.get("a") == "x"
    store.put("c", "z", 4)  # over the limit: b was used least recently
    assert (store.get("a"), store.get("b"), store.get("c")) == ("x", None, "z")
    store.put("d", "w", 11)
    assert store.get("d") is None
    assert store.num_bytes == 8


def test_runs_that_share_stores_equal_runs_alone(make_spec):
    reuse = Reuse()
    specs = [make_spec(), make_spec({"slo.ttft_p99": "1 s"}), make_spec({"seed": 3})]
    for spec in specs:
        shared = sieve.api.run(spec, reuse=reuse)
        assert without_times(shared.data) == without_times(sieve.run(spec).data)
    assert len(reuse.tables)


@pytest.mark.ray
def test_ray_gives_the_same_bytes(tmp_path, jobs_file):
    """In a process of its own, whose token Ray keeps below another HOME."""
    path = jobs_file()
    here = without_times(batch(path, out=tmp_path / "here"))
    cache = os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))
    done = subprocess.run(
        [sys.executable, "-c", "from sieve.cli.main import main; main()", "batch", str(path),
         "--out", str(tmp_path / "there"), "--executor", "ray", "--json"],
        cwd=Path(__file__).resolve().parents[3], capture_output=True, text=True, check=False,
        env={**os.environ, "HOME": str(tmp_path), "XDG_CACHE_HOME": cache},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert without_times(json.loads(done.stdout)) == here
    for name in ("first", "tight", "third"):
        assert result(tmp_path / "here" / name) == result(tmp_path / "there" / name)
    assert batch(path, out=tmp_path / "there", resume=True)["num_reused"] == 3


@pytest.mark.parametrize("begin", ["=", "+", "-", "@", "\t=", "\r=", "\n@", " =", "\u2028=", "＝"])
def test_no_cell_of_the_summary_is_a_formula(begin):
    """What a stranger wrote into a job comes back in its message; a spreadsheet must not run it."""
    row = dict.fromkeys(COLUMNS) | {"message": f"{begin}cmd|' /C calc'!A0", "name": f"{begin}1"}
    cells = next(csv.DictReader(io.StringIO(to_csv([row]))))
    for name in ("message", "name"):
        assert cells[name].startswith("'")
        assert not set("\t\r\n\u2028") & set(cells[name])
