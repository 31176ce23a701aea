"""Results matched to a run's candidates, learned from, used by later runs; runs compared."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

import sieve
from sieve.cli.main import app
from sieve.errors import InvalidInput, ResultError
from sieve.tracking import chunks, spread, windowed

Make = Callable[..., dict[str, Any]]
FACTORS = {"ttft": 1.3, "tpot": 1.2}


@pytest.fixture(scope="module")
def spec(make_spec: Make) -> dict[str, Any]:
    return make_spec({"grid.axes.tp": [1, 2], "grid.axes.weight_dtype": ["bf16"]})


@pytest.fixture(scope="module")
def run(spec: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "a"
    sieve.run(spec, out=folder)
    return folder


def row_of(run: Path, number: int = 0, level: float = 1.0) -> dict[str, Any]:
    import polars as pl

    return (
        pl.read_parquet(run / "simulations.parquet")
        .filter(pl.col("level") == level)
        .row(number, named=True)
    )


def bench_of(row: dict[str, Any], factors: dict[str, float] = FACTORS, **more: Any) -> Any:
    """A result that is slower than predicted by the factors, with totals that agree."""
    n, duration = 100, 40.0
    tokens_in, tokens_out = (
        round(n * row[name]) for name in ("mean_input_tokens", "mean_output_tokens")
    )
    data = {
        "model_id": "Qwen/Qwen3-8B", "num_prompts": n, "completed": n, "duration": duration,
        "request_rate": "inf", "total_input_tokens": tokens_in, "total_output_tokens": tokens_out,
        "output_throughput": tokens_out / duration, "date": "20261129-101010",
        "candidate_id": row["candidate_id"], "level": "1.0",
    }  # fmt: skip
    for kind, factor in factors.items():
        data[f"median_{kind}_ms"] = 1e3 * factor * row[f"{kind}_p50_s"]
        data[f"p99_{kind}_ms"] = 1e3 * factor * row[f"{kind}_p99_s"]
    return data | more


def call(*words: Any) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words])


def written(tmp_path: Path, data: Any, name: str = "bench.json") -> Path:
    path = tmp_path / name
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


def test_a_result_finds_its_candidate_and_its_level(run: Path, tmp_path: Path) -> None:
    for level in (0.5, 1.0):
        row = row_of(run, 1, level)
        bench = written(tmp_path, bench_of(row, level=str(level)))
        done = call("calibrate", bench, "--run", run, "--json")
        assert done.exit_code == 0, done.exception
        (entry,) = json.loads(done.stdout)["results"]
        assert entry["candidate_id"] == row["candidate_id"]
        assert entry["load"] == f"level {level:g}"
        assert entry["metrics"]["tpot_p50"]["predicted"] == pytest.approx(row["tpot_p50_s"])
        assert entry["metrics"]["tpot_p50"]["error_percent"] == pytest.approx(100 / 1.2 - 100)
    assert "Nothing was written" in call("calibrate", bench, "--run", run).stdout


def test_the_level_is_told_by_the_rate_of_answers(run: Path, tmp_path: Path) -> None:
    row = row_of(run, 0, 0.5)
    n = 100
    duration = n / row["requests_per_s"]
    tokens = round(n * row["mean_output_tokens"])
    data = bench_of(row, level="", duration=duration, request_throughput=n / duration,
                    output_throughput=tokens / duration)  # fmt: skip
    words = ("calibrate", written(tmp_path, data), "--run", run, "--json")
    (entry,) = json.loads(call(*words).stdout)["results"]
    assert entry["load"] == "level 0.5"
    (entry,) = json.loads(call(*words, "--level", "1").stdout)["results"]
    assert entry["load"] == "level 1"
    data |= {"duration": 1.0, "request_throughput": float(n), "output_throughput": float(tokens)}
    written(tmp_path, data)
    assert "give --level" in str(call(*words).exception)


def test_rates_of_one_replica_count_once_for_each(make_spec: Make, tmp_path: Path) -> None:
    """A replica of four that answers n requests in D seconds stands for 4 n in D."""
    sieve.run(make_spec({"grid.axes.replicas": [4], "fleet.max_gpus": 4}), out=tmp_path / "run")
    row = row_of(tmp_path / "run")
    assert ".r4." in row["candidate_id"]
    n = 100
    duration = 4 * n / row["requests_per_s"]
    tokens = round(n * row["mean_output_tokens"])
    data = bench_of(row, level="", duration=duration, request_throughput=n / duration,
                    output_throughput=tokens / duration)  # fmt: skip
    words = ("calibrate", written(tmp_path, data | {"scope": "replica"}), "--run",
             tmp_path / "run", "--json")  # fmt: skip
    (entry,) = json.loads(call(*words).stdout)["results"]
    found = entry["metrics"]
    assert entry["load"] == "level 1"
    assert found["requests_per_s"]["measured"] == pytest.approx(4 * n / duration)
    assert found["output_tokens_per_s"]["measured"] == pytest.approx(4 * tokens / duration)
    assert found["ttft_p50"]["measured"] == pytest.approx(1.3 * row["ttft_p50_s"])
    offered = data | {"replica_of": row["candidate_id"], "request_rate": n / duration}
    written(tmp_path, offered)
    (entry,) = json.loads(call(*words).stdout)["results"]
    assert entry["load"] == "level 1"
    assert entry["metrics"]["requests_per_s"]["measured"] == pytest.approx(4 * n / duration)
    written(tmp_path, data | {"scope": "fleet"})  # a quarter of the load: of no level
    assert "give --level" in str(call(*words).exception)


def test_labels_of_a_sweep_name_candidate_and_level(run: Path, tmp_path: Path) -> None:
    row = row_of(run, 1, 0.5)
    data = bench_of(row, run_number=0, metadata=f"candidate_id={row['candidate_id']}",
                    label="level=0.5", candidate_id="unset", level="")  # fmt: skip
    done = call("calibrate", written(tmp_path, [data]), "--run", run, "--json")
    (entry,) = json.loads(done.stdout)["results"]
    assert (entry["candidate_id"], entry["load"]) == (row["candidate_id"], "level 0.5")


def test_without_an_id_the_knobs_must_leave_one_candidate(run: Path, tmp_path: Path) -> None:
    row = row_of(run)
    data = bench_of(row)
    del data["candidate_id"]
    ambiguous = call("calibrate", written(tmp_path, data), "--run", run)
    assert isinstance(ambiguous.exception, ResultError)
    assert "fits 2 replayed candidates" in str(ambiguous.exception)
    wanted = next(r for r in (row_of(run, 0), row_of(run, 1)) if ".tp2." in r["candidate_id"])
    data = bench_of(wanted, tensor_parallel_size=2)
    del data["candidate_id"]
    done = call("calibrate", written(tmp_path, data), "--run", run, "--json")
    (entry,) = json.loads(done.stdout)["results"]
    assert entry["candidate_id"] == wanted["candidate_id"]
    assert entry["matched_by"].startswith("tp")
    named = call("calibrate", written(tmp_path, data), "--run", run, "--candidate",
                 wanted["candidate_id"], "--json")  # fmt: skip
    assert json.loads(named.stdout)["results"][0]["matched_by"].startswith("--candidate")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_id": "meta-llama/Llama-3.1-8B-Instruct"}, "is of model"),
        ({"run": "another"}, "belongs to run 'another'"),
        ({"candidate_id": "h100-sxm-80gb.tp9"}, "no candidate"),
        ({"level": "3"}, "level 3"),
        ({"level": "much"}, "expected a number"),
        ({"total_input_tokens": 200_000}, "other traffic"),
    ],
)
def test_foreign_results_are_refused_and_nothing_is_written(
    run: Path, tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    into = tmp_path / "c.json"
    good = written(tmp_path, bench_of(row_of(run, 1)), "good.json")
    bad = written(tmp_path, bench_of(row_of(run), **changes), "bad.json")
    done = call("calibrate", good, bad, "--run", run, "--into", into)
    assert isinstance(done.exception, ResultError)
    assert words in str(done.exception)
    assert "bad.json" in str(done.exception)
    assert not into.exists()
    done = call("calibrate", good, bad, "--run", run, "--into", into, "--leave-out", "--json")
    report = json.loads(done.stdout)
    assert [entry["file"] for entry in report["results"]] == ["good.json"]
    assert [entry["result"] for entry in report["refused"]] == ["bad.json"]


def test_results_that_contradict_each_other_are_refused(run: Path, tmp_path: Path) -> None:
    row = row_of(run)
    a = written(tmp_path, bench_of(row), "a.json")
    b = written(tmp_path, bench_of(row, {"ttft": 1.3, "tpot": 2.4}), "b.json")
    done = call("calibrate", a, b, "--run", run, "--into", tmp_path / "c.json")
    assert "a.json and b.json measure one point" in str(done.exception)
    assert not (tmp_path / "c.json").exists()


def test_a_result_outside_any_run_needs_to_say_its_gpu(run: Path, tmp_path: Path) -> None:
    row = row_of(run)
    data = bench_of(row, request_rate=4.0)
    done = call("calibrate", written(tmp_path, data), "--json")
    (entry,) = json.loads(done.stdout)["results"]
    assert entry["matched_by"] == "axes of its candidate id"
    assert entry["place"]["gpu"] == "H100-SXM-80GB"
    assert entry["place"]["weight_dtype"] == "bf16"
    done = call("calibrate", written(tmp_path, data), "--tp", 8)
    assert "says tp 1, but --tp is 8" in str(done.exception)
    done = call("calibrate", written(tmp_path, data), "--gpu", "l40s")
    assert "--gpu is l40s" in str(done.exception)
    more = data | {"candidate_id": f"{data['candidate_id']}.block_size-32"}
    done = call("calibrate", written(tmp_path, more))
    assert "further options (block_size-32)" in str(done.exception)
    del data["candidate_id"]
    done = call("calibrate", written(tmp_path, data))
    assert "give --gpu" in str(done.exception)
    done = call("calibrate", written(tmp_path, data), "--gpu", "h100-sxm", "--json")
    assert json.loads(done.stdout)["results"][0]["place"]["tp"] == 1


@pytest.fixture(scope="module")
def learned(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("learned")
    paths = [
        written(folder, bench_of(row_of(run, i, level), level=str(level)), f"{i}-{level}.json")
        for i in (0, 1)
        for level in (0.5, 1.0)
    ]
    done = call("calibrate", *paths, "--run", run, "--into", folder / "c.json")
    assert done.exit_code == 0, done.exception
    return folder / "c.json"


def test_a_later_run_uses_what_was_learned_and_says_so(
    run: Path, learned: Path, spec: dict[str, Any], tmp_path: Path
) -> None:
    result = sieve.run(spec, calibration=learned, out=tmp_path / "b")
    before = json.loads((run / "result.json").read_text(encoding="utf-8"))
    raw = {entry["candidate_id"]: entry for entry in before["ranking"]}
    for entry in result.data["ranking"]:
        fix = entry["calibration"]
        assert 1.0 < math.exp(fix["correction_tpot"]) < FACTORS["tpot"], "shrunk towards 1"
        ratio = entry["tpot_p50_s"]["mid"] / raw[entry["candidate_id"]]["tpot_p50_s"]["mid"]
        assert ratio == pytest.approx(math.exp(fix["correction_tpot"]))
        p50 = raw[entry["candidate_id"]]["ttft_p50_s"]["mid"] + fix["correction_host_s"]
        assert entry["ttft_p50_s"]["mid"] == pytest.approx(p50 * math.exp(fix["correction_ttft"]))
        assert fix["calibration_points"] == 4
        assert fix["basis_tpot"] is None, "four points bear no interval of their own"
    assert result.data["inputs"][-1]["name"] == "calibration"
    texts = [a["text"] for a in result.data["assumptions"] if a["about"] == "calibration"]
    assert any("4 measured points hold" in text for text in texts)
    assert any("else uncalibrated" in text for text in texts)
    page = (tmp_path / "b" / "report.html").read_text(encoding="utf-8")
    assert "4 measured points hold" in page
    again = sieve.run(spec, calibration=learned, executor="local")
    for data in (again.data, result.data):
        data["elapsed_s"] = 0.0
        for stage in data["stages"]:
            stage["elapsed_s"] = 0.0
    assert again.data == result.data
    # Predictions before the correction are known again, so the run can be calibrated against.
    bench = written(tmp_path, bench_of(row_of(run)))
    done = call("calibrate", bench, "--run", tmp_path / "b", "--json")
    cell = json.loads(done.stdout)["results"][0]["metrics"]["tpot_p50"]
    assert cell["predicted"] == pytest.approx(row_of(run)["tpot_p50_s"])


def test_jobs_of_a_batch_take_a_calibration(
    spec: dict[str, Any], learned: Path, tmp_path: Path
) -> None:
    """Their own before the defaults', those before the option's; null stands for none."""
    path = tmp_path / "jobs.json"
    (tmp_path / "own.json").write_bytes(learned.read_bytes())
    jobs = [
        {"name": "own", "calibration": "own.json"},
        {"name": "none", "calibration": None},
        {"name": "option"},
        {"name": "lost", "calibration": "absent.json"},
        {"name": "wrong", "calibration": 3},
    ]
    spec = {key: value for key, value in spec.items() if key != "name"}
    path.write_text(json.dumps({"defaults": spec, "jobs": jobs}), encoding="utf-8")
    sieve.batch(path, out=tmp_path / "out", calibration=learned, workers=1)

    def corrected(name: str) -> bool:
        result = json.loads((tmp_path / "out" / name / "result.json").read_text(encoding="utf-8"))
        return "calibration" in result["ranking"][0]

    assert [corrected(name) for name in ("own", "none", "option")] == [True, False, True]
    again = sieve.batch(path, out=tmp_path / "out", calibration=learned, workers=1, resume=True)
    rows = {row["name"]: row for row in again["jobs"]}
    assert [rows[name]["reused"] for name in ("own", "none", "option")] == [True] * 3
    assert rows["lost"]["exit_code"] == rows["wrong"]["exit_code"] == 2
    assert "absent.json" in rows["lost"]["message"]
    assert "expected the path" in rows["wrong"]["message"]
    # Another content under the same name, and no option: both are other questions.
    text = json.loads(learned.read_text(encoding="utf-8"))
    (tmp_path / "own.json").write_text(json.dumps(text, indent=4), encoding="utf-8")
    other = sieve.batch(path, out=tmp_path / "out", workers=1, resume=True)
    rows = {row["name"]: row for row in other["jobs"]}
    assert [rows[name]["reused"] for name in ("own", "none", "option")] == [False, True, False]
    assert not corrected("option")
    with pytest.raises(ResultError, match="absent"):
        sieve.batch(path, out=tmp_path / "new", calibration=tmp_path / "absent.json")
    assert not (tmp_path / "new").exists()


def test_a_night_takes_a_calibration_and_another_one_is_another_night(
    spec: dict[str, Any], learned: Path, tmp_path: Path
) -> None:
    path = tmp_path / "service.yaml"
    path.write_text(yaml.safe_dump(spec), encoding="utf-8")
    rows = [f"2026-11-16 00:{i // 60:02d}:{i % 60:02d},500,60" for i in range(300)]
    day = tmp_path / "day.csv"
    day.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]), encoding="utf-8")
    words = ("nightly", path, "--traffic", day, "--history", tmp_path / "nights", "--json")
    first = json.loads(call(*words).stdout)
    assert first["inputs"]["calibration_sha256"] is None
    second = json.loads(call(*words, "--calibration", learned).stdout)
    digest = hashlib.sha256(learned.read_bytes()).hexdigest()
    assert second["inputs"]["calibration_sha256"] == digest
    assert (second["night"], second["repeated"], second["searched"]) == (2, False, True)
    assert any("calibration" in reason for reason in second["why"])
    run = tmp_path / "nights" / second["run"] / "result.json"
    result = json.loads(run.read_text(encoding="utf-8"))
    assert result["ranking"][0]["calibration"] is not None
    assert json.loads(call(*words, "--calibration", learned).stdout)["repeated"]
    assert isinstance(call(*words, "--calibration", tmp_path / "no").exception, ResultError)


def test_the_plain_rules_take_no_calibration(learned: Path, make_spec: Make) -> None:
    spec = make_spec({"engine": "reference", "grid.axes.weight_dtype": ["bf16"]})
    with pytest.raises(InvalidInput, match="reference"):
        sieve.run(spec, calibration=learned)


def test_runs_are_compared(run: Path, learned: Path, spec: dict[str, Any], tmp_path: Path) -> None:
    same = json.loads(call("compare", run, run, "--json").stdout)
    assert same["same"]
    assert not any(entry["moved"] for entry in same["candidates"])
    fastest = min(row_of(run, i)["tpot_p99_s"] for i in (0, 1))
    spec = spec | {"slo": spec["slo"] | {"tpot_p99": f"{fastest * 1e3:.6f} ms"}, "seed": 1}
    sieve.run(spec, calibration=learned, out=tmp_path / "b")
    report = json.loads(call("compare", run, tmp_path / "b", "--json").stdout)
    assert not report["same"]
    assert {row["key"] for row in report["spec"]} >= {"seed", "slo"}
    assert "calibration" in {row["key"] for row in report["inputs"]}
    status = next(row for row in report["answer"] if row["key"] == "status")
    assert (status["first"], status["second"]) == ("answer", "no_slo")
    entry = report["candidates"][0]
    assert entry["verdict"] == ["clears", "misses"]
    cell = entry["metrics"]["tpot_p50_s"]
    assert cell["change"] == pytest.approx(cell["second"]["mid"] / cell["first"]["mid"] - 1)
    assert cell["change"] > 0
    shown = call("compare", run, tmp_path / "b").stdout
    assert "status: answer -> no_slo" in shown
    assert "verdict clears -> misses" in shown


def test_damaged_runs_are_not_compared(run: Path, tmp_path: Path) -> None:
    data = json.loads((run / "result.json").read_text(encoding="utf-8"))
    del data["ranking"][0]["verdict"]
    written(tmp_path, data, "result.json")
    done = call("compare", run, tmp_path)
    assert isinstance(done.exception, ResultError)
    assert "ranking[0]: 'verdict' is missing" in str(done.exception)
    assert isinstance(call("compare", run, tmp_path / "none").exception, ResultError)


def test_tokens_are_spread_and_counted_in_windows() -> None:
    """By hand: two requests, one of one token at 1 s, one of 4 tokens from 0 s to 3 s."""
    times, tokens = spread(np.array([1.0, 0.0]), np.array([1.0, 3.0]), np.array([1, 4]))
    assert times.tolist() == [1.0, 0.0, 1.0, 2.0, 3.0]
    rates, durations = windowed([(times, tokens)], 2.0)
    assert durations.tolist() == [2.0, 1.0]
    assert rates[0].tolist() == [3 / 2, 2 / 1], "an event at the end is in the last window"


def test_windows_agree_with_the_formula() -> None:
    from sieve.evaluate import evaluate

    rng = np.random.default_rng(2)
    times = np.sort(rng.uniform(0, 1000, 500))
    tokens = rng.integers(1, 5, 500).astype(float)
    rates, durations = windowed([(times, tokens)], 120.0)
    known = evaluate(
        "sizing.windows", {"events": np.stack([times, tokens], 1).tolist(), "width": 120}
    )
    assert rates[0] == pytest.approx(known["rates"])
    assert durations == pytest.approx(known["durations"])


def test_chunks_of_several_tokens_share_them_out() -> None:
    from sieve.calibration.readers import Series

    one = np.array([1.0])
    series = Series(np.array([0.0]), one, np.array([3.0]), np.array([9]), np.array([6]),
                    ((0.5, 1.5),))  # fmt: skip
    times, tokens = chunks(series)
    assert times.tolist() == [1.0, 1.5, 3.0]
    assert tokens.tolist() == [2.0, 2.0, 2.0]


def test_throughput_is_tracked_over_a_run(run: Path, spec: dict[str, Any], tmp_path: Path) -> None:
    """Answers that the replay gives itself leave no error; the same at half the speed do."""
    page = tmp_path / "spec.yaml"
    page.write_text(yaml.safe_dump(spec), encoding="utf-8")
    rng = np.random.default_rng(0)
    n = 60
    start = np.cumsum(rng.exponential(0.5, n))
    prompt, answer = rng.integers(50, 400, n), rng.integers(5, 40, n)
    ttft, gap = np.full(n, 0.05), 0.01
    data = bench_of(
        row_of(run), num_prompts=n, completed=n, total_input_tokens=int(prompt.sum()),
        total_output_tokens=int(answer.sum()), output_throughput=float(answer.sum()) / 40.0,
        input_lens=prompt.tolist(), output_lens=answer.tolist(), ttfts=ttft.tolist(),
        start_times=start.tolist(), itls=[[gap] * int(a - 1) for a in answer],
    )  # fmt: skip
    bench = written(tmp_path, data)
    done = call("verify", "tracking", bench, "--spec", page, "--window", 5, "--json")
    assert done.exit_code == 0, done.exception
    report = json.loads(done.stdout)
    measured = sum(w["measured_tokens_per_s"] * w["duration_s"] for w in report["windows"])
    predicted = sum(w["predicted_tokens_per_s"] * w["duration_s"] for w in report["windows"])
    assert measured == pytest.approx(answer.sum()), "nothing is trimmed"
    assert predicted == pytest.approx(answer.sum())
    summary = report["summary"]
    assert summary["mean_error"] == pytest.approx(0.0, abs=1e-9), "the same tokens in all"
    assert summary["cancellation"] == pytest.approx(summary["wape"], abs=1e-9)
    assert 0 < summary["wape"] < 0.2
    assert "cancellation" in call("verify", "tracking", bench, "--spec", page).stdout
    plain = {k: v for k, v in data.items() if k != "start_times"}
    done = call("verify", "tracking", written(tmp_path, plain), "--spec", page)
    assert "--save-detailed" in str(done.exception)


def test_commands_of_the_page_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In order, in one folder, with a result made for the recommended candidate."""
    import re
    import shlex

    root = Path(__file__).resolve().parents[2]
    text = (root / "docs" / "calibrate.md").read_text(encoding="utf-8")
    lines = [
        line.removeprefix("$ ")
        for block in re.findall(r"^```console\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
        for line in block.splitlines()
        if line.startswith("$ sieve ")
    ]
    assert len(lines) >= 7
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(root / "examples")
    small = ["--set", "traffic.requests=100", "--set", "traffic.levels=[1.0]",
             "--set", "shortlist.size=3"]  # fmt: skip
    for line in lines:
        words = shlex.split(line)[1:]
        done = call(*words, *(small if words[0] == "run" else ()))
        assert done.exit_code in {0, 4, 5}, f"{line}: {done.output} {done.exception!r}"
        assert done.output
        if not Path("bench.json").exists():
            run = Path("reports/runs/chat")
            data = json.loads((run / "result.json").read_text(encoding="utf-8"))
            wanted = data["ranking"][0]["candidate_id"]
            rows = (row_of(run, i) for i in range(3))
            row = next(row for row in rows if row["candidate_id"] == wanted)
            _write_examples(row, tmp_path)


def _write_examples(row: dict[str, Any], folder: Path) -> None:
    n = 20
    prompt, answer = round(row["mean_input_tokens"]), round(row["mean_output_tokens"])
    ttft, gap = row["ttft_p50_s"] * 1.2, row["tpot_p50_s"] * 1.1
    data = bench_of(
        row, {}, model_id="Qwen/Qwen3-32B", request_rate=12.0, num_prompts=n, completed=n,
        total_input_tokens=n * prompt, total_output_tokens=n * answer, duration=100.0,
        output_throughput=n * answer / 100.0, median_ttft_ms=1e3 * ttft, mean_ttft_ms=1e3 * ttft,
        median_tpot_ms=1e3 * gap, input_lens=[prompt] * n, output_lens=[answer] * n,
        ttfts=[ttft] * n, start_times=[float(i) for i in range(n)],
        itls=[[gap] * (answer - 1)] * n,
    )  # fmt: skip
    written(folder, data)
    written(folder, {k: v for k, v in data.items() if k != "candidate_id"}, "other.json")
    cells = {
        "source": "mine", "model": "Qwen/Qwen3-8B", "gpu": "H100-SXM-80GB", "num_gpus": "1",
        "tp": "1", "pp": "1", "dp": "1", "ep": "1", "weight_precision": "bf16",
        "kv_precision": "", "engine": "vllm", "engine_version": "0.19.0", "isl_mean": "500",
        "osl_mean": "50", "length_distribution": "fixed", "concurrency": "4",
        "request_rate": "closed-loop", "max_num_seqs": "", "max_num_batched_tokens": "",
        "prefix_hit_rate": "0", "notes": "n=40", "ttft_mean_ms": "60", "tpot_mean_ms": "9",
    }  # fmt: skip
    table = [",".join(cells), ",".join(cells.values())]
    (folder / "my_runs.csv").write_text("\n".join(table) + "\n", encoding="utf-8")
