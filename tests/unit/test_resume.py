"""A run that is killed loses only the work in flight; its folder belongs to one run at a time."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sieve
from sieve.api import prepare
from sieve.arrays import Requests
from sieve.checkpoint import Ledger
from sieve.errors import InvalidInput, ResultError
from sieve.parallel import LocalExecutor
from sieve.perf import cache
from sieve.pipeline import run_stages
from sieve.reuse import Reuse
from sieve.sim.replay import ReplaySettings, simulate
from sieve.sim.stored import decode, digest, encode, replay_key
from sieve.spec import load_spec

KEYS = ["a" * 64, "b" * 64, "c" * 64]


@pytest.mark.parametrize("users", [None, 7])
def test_a_stored_replay_comes_back_to_the_bit(tables, users):
    rng = np.random.default_rng(3)
    arrival = np.zeros(400) if users else np.cumsum(rng.exponential(0.005, 400))
    requests = Requests(
        arrival, rng.integers(1, 900, 400), rng.integers(1, 90, 400), closed_loop_users=users
    )
    settings = ReplaySettings(
        max_num_seqs=24, max_num_batched_tokens=512, num_gpu_blocks=150, block_size=16
    )
    table = tables.affine(base=0.01, per_token=1e-5, per_context=1e-7)
    result = simulate(requests, table, settings, 2)
    assert result.num_preemptions.sum() > 0
    again = decode(encode(result))
    for field in fields(result):
        one, two = getattr(result, field.name), getattr(again, field.name)
        if field.name in {"samples", "steps"}:
            continue
        if isinstance(one, np.ndarray):
            assert one.tobytes() == two.tobytes(), field.name
        else:
            assert one == two, field.name
    with pytest.raises(ValueError, match="not a stored replay"):
        decode(b"nonsense")


def test_a_key_changes_with_all_that_a_replay_depends_on(tables):
    requests = Requests(np.array([0.0, 1.0]), np.array([5, 6]), np.array([7, 8]))
    later = Requests(np.array([0.0, 2.0]), np.array([5, 6]), np.array([7, 8]))
    named = Requests(np.array([0.0, 1.0]), np.array([5, 6]), np.array([7, 8]), source="other")
    assert digest(requests) != digest(later)
    assert digest(requests) == digest(named)
    assert digest(tables.affine(base=0.1)) != digest(tables.affine(base=0.2))
    settings = ReplaySettings(8, 512, 100, 16)
    base = replay_key("r", "t", settings, 1, "code")
    others = [
        replay_key("q", "t", settings, 1, "code"), replay_key("r", "u", settings, 1, "code"),
        replay_key("r", "t", ReplaySettings(9, 512, 100, 16), 1, "code"),
        replay_key("r", "t", settings, 2, "code"), replay_key("r", "t", settings, 1, "newer"),
    ]  # fmt: skip
    assert len({base, *others}) == 6


def test_a_ledger_gives_back_what_was_put(tmp_path):
    path = tmp_path / "replays.ledger"
    with Ledger(path) as ledger:
        for i, key in enumerate(KEYS):
            ledger.put(key, bytes([i]) * (i * 1000))
    with Ledger(path) as ledger:
        assert [ledger.get(key) for key in KEYS] == [bytes([i]) * (i * 1000) for i in range(3)]
        assert (len(ledger), ledger.num_damaged, ledger.get("d" * 64)) == (3, 0, None)


@pytest.mark.parametrize("cut", [1, 20, 70, 85, 200])
def test_a_line_that_was_cut_off_is_passed_over(tmp_path, cut):
    path = tmp_path / "replays.ledger"
    with Ledger(path) as ledger:
        for key in KEYS:
            ledger.put(key, os.urandom(300))
    path.write_bytes(path.read_bytes()[:-cut])
    with Ledger(path) as ledger:
        assert ledger.get(KEYS[2]) is None
        assert (len(ledger), ledger.num_damaged) == (2, 1)
        ledger.put(KEYS[2], b"again")
    with Ledger(path) as ledger:
        assert ledger.get(KEYS[2]) == b"again"
        assert len(ledger) == 3


def test_damage_anywhere_in_a_line_is_noticed(tmp_path):
    path = tmp_path / "replays.ledger"
    with Ledger(path) as ledger:
        ledger.put(KEYS[0], b"x" * 30)
        ledger.put(KEYS[1], b"y" * 30)
    whole = path.read_bytes()
    line = whole.index(b"\n")
    for place in range(line + 1):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 5]) + whole[place + 1 :])
        with Ledger(path) as ledger:
            assert ledger.get(KEYS[0]) is None, place
            assert place == line or ledger.get(KEYS[1]) == b"y" * 30


def without_clock(folder: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((folder / "result.json").read_text())
    del data["elapsed_s"]
    for stage in data["stages"]:
        del stage["elapsed_s"]
    return data


SPEC = {
    "name": "resume",
    "model": "Qwen/Qwen3-8B",
    "traffic": {"trace": "chat", "requests": 1500, "rate_per_s": 10, "levels": [0.5, 1.0, 1.5]},
    "slo": {"ttft_p99": "2 s", "tpot_p99": "40 ms"},
    "fleet": {"gpus": ["H100-SXM-80GB"], "max_gpus": 4},
    "shortlist": {"size": 40, "per_family": 20},
}


def command(spec: Path, out: Path, *flags: str) -> list[str]:
    main = "from sieve.cli.main import main; main()"
    return [sys.executable, "-c", main, "run", str(spec), "--out", str(out), *flags]


def test_killed_at_any_moment_a_run_is_finished_with_the_same_result(tmp_path):
    spec, out = tmp_path / "spec.yaml", tmp_path / "run"
    spec.write_text(json.dumps(SPEC))
    sieve.run(SPEC, out=tmp_path / "whole")
    sizes = [0]
    ledger = out / "checkpoint" / "replays.ledger"
    for lines in (0, 3, 8):
        process = subprocess.Popen(
            command(spec, out, "--resume"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        wanted = sizes[-1] + lines
        until = time.monotonic() + 120
        while time.monotonic() < until and process.poll() is None:
            found = ledger.read_bytes().count(b"\n") if ledger.exists() else -1
            if found >= wanted:
                break
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        assert not (out / "result.json").exists()
        sizes.append(ledger.read_bytes().count(b"\n"))
    assert sizes[-1] >= 11
    done = subprocess.run(
        command(spec, out, "--resume"), capture_output=True, text=True, check=False
    )
    assert done.returncode in {0, 4, 5}, done.stderr
    assert without_clock(out) == without_clock(tmp_path / "whole")
    for file in ("candidates.parquet", "simulations.parquet"):
        assert (out / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()
    end = json.loads((out / "events.jsonl").read_text().splitlines()[-1])
    assert end["event"] == "end"
    assert end["num_replays_reused"] >= 10


def events(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


def replays_of(spec: dict[str, Any], out: Path, monkeypatch, **options: Any) -> int:
    """Run and return how many replays were made."""
    from sieve.sim import alike

    made = []
    real = alike.simulate
    with monkeypatch.context() as patch:
        patch.setattr(alike, "simulate", lambda *a, **k: made.append(1) or real(*a, **k))
        sieve.run(spec, out=out, **options)
    return len(made)


def test_another_objective_uses_the_replays_again(make_spec, tmp_path, monkeypatch):
    out = tmp_path / "run"
    spec = make_spec({"shortlist.preview": 0})
    first = replays_of(spec, out, monkeypatch)
    assert first > 0
    tighter = make_spec(
        {
            "shortlist.preview": 0,
            "slo": {"e2e_p99": "1.5 s", "attainment": {"share": 0.9, "ttft": "1 s"}},
        }
    )
    assert replays_of(tighter, out, monkeypatch, resume=True) == 0
    fresh = sieve.run(tighter, out=tmp_path / "fresh")
    assert fresh.simulations.equals(sieve.run(tighter, out=out, resume=True).simulations)
    assert without_clock(out) == without_clock(tmp_path / "fresh")
    busier = make_spec({"shortlist.preview": 0, "traffic.synthetic.arrival": {"poisson_per_s": 5}})
    assert replays_of(busier, out, monkeypatch, resume=True) == first
    # Without --resume nothing is taken over.
    assert replays_of(spec, out, monkeypatch) == first


def test_damaged_replays_are_made_again(make_spec, tmp_path, monkeypatch):
    out, ledger = tmp_path / "run", tmp_path / "run" / "checkpoint" / "replays.ledger"
    spec = make_spec({"shortlist.preview": 0})
    first = replays_of(spec, out, monkeypatch)
    before = without_clock(out)
    content = bytearray(ledger.read_bytes())
    content[200] ^= 1
    content[-9] ^= 1
    ledger.write_bytes(content)
    again = replays_of(spec, out, monkeypatch, resume=True)
    assert (again, first > 2) == (2, True)
    assert without_clock(out) == before
    assert events(out)[-1]["num_replays_damaged"] == 2


def test_a_second_run_into_one_folder_is_refused(make_spec, tmp_path):
    out = tmp_path / "run"
    sieve.run(make_spec(), out=out)
    before = (out / "result.json").read_bytes()
    with (out / "checkpoint" / "lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for resume in (False, True):
            with pytest.raises(ResultError, match="another run is writing"):
                sieve.run(make_spec(), out=out, resume=resume)
    assert (out / "result.json").read_bytes() == before
    sieve.run(make_spec(), out=out)


def test_resume_needs_the_folder(make_spec):
    with pytest.raises(InvalidInput, match="--out"):
        sieve.run(make_spec(), resume=True)


def test_a_run_without_a_folder_keeps_nothing(make_spec):
    context, grid = prepare(load_spec(make_spec()), LocalExecutor(1))
    assert context.ledger is None
    assert not run_stages(grid.candidates, context, stop_after=5).ranked.is_empty()


def test_another_traffic_uses_the_step_tables_again(make_spec, monkeypatch):
    made: list[object] = []
    build = cache.build_step_table

    def counted(*args: object, **options: object) -> object:
        made.append(args)
        return build(*args, **options)

    monkeypatch.setattr(cache, "build_step_table", counted)
    reuse = Reuse()
    sieve.run(make_spec(), reuse=reuse)
    first = len(made)
    assert first > 0
    busier = make_spec({"traffic.synthetic.arrival": {"poisson_per_s": 5}})
    again = sieve.run(busier, reuse=reuse)
    assert len(made) == first
    fresh = sieve.run(busier)
    assert len(made) > first
    assert again.candidates.equals(fresh.candidates)
