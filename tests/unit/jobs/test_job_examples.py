"""The examples of batch and nightly: they run, and the schedules hold commands that parse."""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import typer
import yaml
from typer.testing import CliRunner

from sieve.cli.main import app
from sieve.jobs.batch import batch, check_jobs
from sieve.jobs.job_file import read_jobs
from sieve.jobs.merge import named

ROOT = Path(__file__).resolve().parents[3]
NIGHTLY = ROOT / "examples" / "nightly"
ARGS = ["/etc/sieve/service.yaml", "/var/lib/sieve/days", "/var/lib/sieve/nights"]


def commands_of(page):
    blocks = re.findall(r"^```console\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    lines = [line for block in blocks for line in block.splitlines()]
    return [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]


@pytest.mark.parametrize("name", ["teams.yaml", "teams.csv"])
def test_example_jobs_are_sound(name):
    checked = check_jobs(ROOT / "examples" / "batch" / name)
    assert checked["num_bad"] == 0
    assert checked["jobs"][0]["name"] == "support-bot"


def test_the_example_of_several_models_is_six_jobs():
    checked = check_jobs(ROOT / "examples" / "batch" / "models.yaml")
    assert (checked["num_jobs"], checked["num_bad"]) == (6, 0)
    assert checked["jobs"][5]["name"] == "assistant-qwen3-30b-a3b-12"


def test_the_example_of_teams_runs(tmp_path):
    jobs = read_jobs(ROOT / "examples" / "batch" / "teams.yaml")
    short = {"traffic.levels": [1.0], "shortlist.size": 2}
    entries = []
    for item in named(jobs):
        entry = item.job.entry()
        kind = "synthetic.requests" if "synthetic" in entry.get("traffic", {}) else "requests"
        entry["set"] = {**entry.get("set", {}), **short, f"traffic.{kind}": 100}
        if "spec" in entry:
            entry["spec"] = str(ROOT / "examples" / "chat.yaml")
        entries.append(entry)
    path = tmp_path / "teams.json"
    path.write_text(json.dumps({"defaults": jobs.defaults, "jobs": entries}))
    summary = batch(path, out=tmp_path / "out")
    assert [row["message"] for row in summary["jobs"]] == [None] * 4
    assert {row["status"] for row in summary["jobs"]} <= {"answer", "weak_evidence", "no_slo"}


def test_commands_of_the_pages_run(tmp_path, monkeypatch):
    """In order, in one folder, as a reader would type them, on short traffic."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").mkdir()
    for name in ("batch", "nightly"):
        (tmp_path / "examples" / name).mkdir()
        for path in (ROOT / "examples" / name).iterdir():
            text = path.read_text().replace("trace: chat", "trace: chat, requests: 100")
            text = text.replace("requests: 2000", "requests: 100")
            (tmp_path / "examples" / name / path.name).write_text(text)
    chat = (ROOT / "examples" / "chat.yaml").read_text()
    chat = chat.replace("trace: chat ", "requests: 100\n  trace: chat ")
    (tmp_path / "examples" / "chat.yaml").write_text(chat)
    for i in (1, 2):
        rows = [f"2026-11-2{i} 00:0{k // 60}:{k % 60:02d}.0,{300 + k},{40 + i}" for k in range(120)]
        day = tmp_path / f"2026-11-2{i}.csv"
        day.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]) + "\n")
    lines = commands_of(ROOT / "docs" / "batch.md") + commands_of(ROOT / "docs" / "nightly.md")
    lines = [line for line in lines if line.startswith("sieve ")]
    assert len(lines) >= 6
    for line in lines:
        done = CliRunner().invoke(app, shlex.split(line)[1:])
        assert done.exit_code in {0, 5}, f"{line}: {done.output} {done.exception!r}"
        assert done.output


def parsed(args):
    """Return what the command line reads from the arguments of `sieve`."""
    command = typer.main.get_command(app).commands[args[0]]
    with command.make_context(args[0], list(args[1:])) as context:
        return context.params


@pytest.fixture
def shim(tmp_path):
    """Run nightly.sh with a `sieve` that notes its arguments and ends with a code."""

    def run(code, *args, **environment):
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        noted = tmp_path / "args"
        sieve = folder / "sieve"
        sieve.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {noted}\nexit {code}\n')
        sieve.chmod(0o755)
        path = f"{folder}:{os.environ['PATH']}"
        done = subprocess.run(
            ["/bin/sh", str(NIGHTLY / "nightly.sh"), *args],
            env={"PATH": path, **environment}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        return done, noted.read_text().splitlines() if noted.exists() else []

    return run


def test_the_script_asks_for_yesterday_and_quotes_its_paths(shim):
    done, args = shim(0, "/a b/service.yaml", "/da ys", "/night s", DAY="2026-11-29")
    assert (done.returncode, done.stderr) == (0, "")
    found = parsed(args)
    assert args[0] == "nightly"
    assert str(found["spec"]) == "/a b/service.yaml"
    assert str(found["traffic"]) == "/da ys/2026-11-29.csv"
    assert str(found["history"]) == "/night s"
    assert found["day"] == "2026-11-29"
    _, args = shim(0, *ARGS)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", parsed(args)["day"])


@pytest.mark.parametrize(
    ("code", "ends", "words"),
    [(0, 0, ""), (5, 0, "point estimate"), (6, 0, "another deployment"), (4, 0, "no deployment"),
     (2, 2, "failed with code 2"), (1, 1, "failed with code 1")],
)  # fmt: skip
def test_the_script_tells_and_fails_only_when_nothing_was_recorded(shim, code, ends, words):
    done, _ = shim(code, *ARGS)
    assert done.returncode == ends
    assert words in done.stderr
    assert bool(done.stderr) == (code != 0)


def test_the_script_refuses_a_wrong_count_of_arguments(shim):
    done, args = shim(0, "one")
    assert done.returncode == 2
    assert args == []


def test_the_crontab_calls_the_script():
    (line,) = [
        text for text in (NIGHTLY / "crontab").read_text().splitlines() if not text.startswith("#")
    ]
    *times, command = line.split(None, 5)
    assert len(times) == 5
    assert all(re.fullmatch(r"\*|\d+", field) for field in times)
    assert int(times[0]) < 60
    assert int(times[1]) < 24
    words = shlex.split(command)
    assert words[0].startswith("PATH=")
    assert words[1:] == ["/opt/sieve/nightly.sh", *ARGS]
    assert "%" not in command


def test_the_units_call_the_script():
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str
    unit.read(NIGHTLY / "sieve-nightly.service")
    assert set(unit.sections()) == {"Unit", "Service"}
    assert shlex.split(unit["Service"]["ExecStart"]) == ["/opt/sieve/nightly.sh", *ARGS]
    assert unit["Service"]["Type"] == "oneshot"
    timer = configparser.ConfigParser(interpolation=None)
    timer.optionxform = str
    timer.read(NIGHTLY / "sieve-nightly.timer")
    assert set(timer.sections()) == {"Unit", "Timer", "Install"}
    assert re.fullmatch(r"\*-\*-\* \d\d:\d\d:\d\d UTC", timer["Timer"]["OnCalendar"])
    assert timer["Install"]["WantedBy"] == "timers.target"


def test_the_cron_job_calls_the_script_one_at_a_time():
    job = yaml.safe_load((NIGHTLY / "cronjob.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "CronJob")
    assert job["spec"]["concurrencyPolicy"] == "Forbid"
    assert len(job["spec"]["schedule"].split()) == 5
    pod = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    assert pod["restartPolicy"] in {"Never", "OnFailure"}  # all that a Job may have
    (container,) = pod["containers"]
    assert container["command"] == ["/opt/sieve/nightly.sh"]
    spec, days, nights = container["args"]
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    assert days in mounts
    assert not mounts[nights].get("readOnly")
    assert str(Path(spec).parent) in mounts
    assert {mount["name"] for mount in mounts.values()} == {v["name"] for v in pod["volumes"]}
