"""`sieve verify scheduler`: what it compares, what it prints, and its exit codes."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from sieve.cli.verify import app
from sieve.errors import TraceError
from sieve.verify.scheduler import MISSING, first_difference, verify_schedules

RECORDED = Path(__file__).parents[2] / "conformance" / "data" / "vllm_scheduler"
SMALL = RECORDED / "035_full_hit.jsonl.gz"

main = typer.Typer()
main.add_typer(app, name="verify")


def run(*args):
    return CliRunner().invoke(main, ["verify", "scheduler", *map(str, args)])


def altered(tmp_path, change):
    """Return a copy of a recording whose records `change` has edited."""
    with gzip.open(SMALL, "rt") as recorded:
        records = [json.loads(line) for line in recorded]
    change(records)
    path = tmp_path / "altered.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_an_exact_recording():
    report = verify_schedules(SMALL)
    assert report.as_dict() == {"scenarios": 1, "exact": 1, "steps": 52, "failures": []}


def test_a_difference_in_a_step_is_reported_once(tmp_path):
    def change(records):
        records[3]["free"] += 1
        records[9]["free"] += 1

    report = verify_schedules(altered(tmp_path, change)).as_dict()
    (failure,) = report["failures"]
    assert report["exact"] == 0
    assert failure["scenario"] == "035_full_hit"
    assert failure["field"] == "free"
    assert failure["expected"] == failure["got"] + 1


@pytest.mark.parametrize(
    ("change", "step", "field"),
    [
        (lambda r: r[-1].update(tokens=1), None, "tokens"),
        (lambda r: r[-1].update(left="x"), None, "left"),
        (lambda r: next(iter(r[-1]["requests"].values())).update(out=0), None, "requests.r0.out"),
        (lambda r: r[-1]["requests"].update(zz={}), None, "requests.zz"),
        (lambda r: r.pop(-2), 79, "record"),
        (lambda r: r.insert(-1, {"type": "step", "step": 999, "scheduled": {}}), 999, "record"),
    ],
)
def test_every_record_is_compared(tmp_path, change, step, field):
    (failure,) = verify_schedules(altered(tmp_path, change)).failures
    assert failure.field == field
    assert step is None or failure.step is not None


def test_the_order_of_a_mapping_is_a_decision():
    def one(**fields):
        return [{"step": 0} | fields]

    summary = {"requests": {}}
    ab, ba = {"a": 1, "b": 2}, {"b": 2, "a": 1}
    failure = first_difference("x", one(scheduled=ab), summary, one(scheduled=ba), summary)
    assert failure is not None
    assert failure.field == "scheduled"
    assert not first_difference("x", one(computed=ab), summary, one(computed=ba), summary)
    extra = first_difference("x", one(), summary, one(preempted=["a"]), summary)
    assert extra is not None
    assert (extra.expected, extra.got) == (MISSING, ["a"])


def test_a_live_lock_is_a_failure_not_an_error(tmp_path):
    def change(records):
        config = records[0]["scenario"]["config"]
        config.update(num_gpu_blocks=3, reserve_full_isl=False, enable_prefix_caching=False)
        config.update(max_num_batched_tokens=16)

    (failure,) = verify_schedules(altered(tmp_path, change)).failures
    assert failure.field == "replay"
    assert "no progress" in failure.got


def test_json_is_one_document():
    result = run(SMALL, "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["exact"] == 1


def test_people_get_a_table_and_the_first_differences(tmp_path):
    def change(records):
        records[0]["scenario"]["name"] = "bad\x1b[31m"
        records[3]["free"] += 1

    result = run(altered(tmp_path, change))
    assert result.exit_code == 0
    assert "prefix caching" in result.stdout
    assert "expected" in result.stdout
    assert "\x1b" not in result.stdout
    lines = result.stdout.splitlines()
    assert all(len(line) <= 80 for line in lines if not line.startswith("Next"))


def test_strict_turns_a_difference_into_exit_code_8(tmp_path):
    path = altered(tmp_path, lambda records: records[3].update(free=0))
    assert run(path, "--strict").exit_code == 8
    assert run(path, "--strict", "--json").exit_code == 8
    assert run(path).exit_code == 0
    assert run(SMALL, "--strict").exit_code == 0


def test_a_folder_is_read_whole_and_other_files_in_it_are_left_alone(tmp_path):
    for name in ("001_plain_decode", "103_sliding_only"):
        (tmp_path / f"{name}.jsonl.gz").write_bytes((RECORDED / f"{name}.jsonl.gz").read_bytes())
    (tmp_path / "README.md").write_text("not a recording")
    report = verify_schedules(tmp_path)
    assert [outcome.scenario for outcome in report.outcomes] == [
        "001_plain_decode",
        "103_sliding_only",
    ]
    assert [row[0] for row in report.by_feature()] == ["prefix caching", "hybrid"]


def test_what_cannot_be_read_is_an_error(tmp_path):
    with pytest.raises(TraceError, match="no recorded schedules in this folder"):
        verify_schedules(tmp_path)
    with pytest.raises(TraceError, match="no such file"):
        verify_schedules(tmp_path / "none")
    (tmp_path / "a.jsonl").write_text("{}\n")
    with pytest.raises(TraceError, match=r"a\.jsonl, line 1"):
        verify_schedules(tmp_path)
