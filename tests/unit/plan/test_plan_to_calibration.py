"""What a plan's benchmark writes is matched by `sieve calibrate` to the plan's own prediction."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sieve.cli.main import app
from sieve.plan import make_plan

SLOWER = 1.05


def result_of(expected: dict[str, Any], at_load: float, **said: Any) -> dict[str, Any]:
    """Return a result of `vllm bench serve` in which every latency is 5 % longer than expected."""
    at = next(entry for entry in expected["levels"] if entry["level"] == at_load)
    values = {name: metric["expected"] for name, metric in at["metrics"].items()}
    rate, answers = values["output_tokens_per_s"], values["requests_per_s"]
    found: dict[str, Any] = {
        "date": "20261130-010203", "endpoint_type": "openai", "backend": "openai", "label": None,
        "model_id": expected["model"], "tokenizer_id": expected["model"],
        "num_prompts": at["num_requests"], "request_rate": "inf", "burstiness": 1.0,
        "max_concurrency": None, "duration": at["duration_s"], "completed": at["num_requests"],
        "failed": 0, "total_input_tokens": round(200 * answers * at["duration_s"]),
        "total_output_tokens": round(rate * at["duration_s"]), "request_throughput": answers,
        "output_throughput": rate, "total_token_throughput": rate + 200 * answers, **said,
    }  # fmt: skip
    for name in ("ttft", "tpot"):
        for statistic in ("p50", "p99"):
            key = expected["measured_as"][f"{name}_{statistic}_s"]["vllm_bench"]
            found[key] = values[f"{name}_{statistic}_s"] * 1e3 * SLOWER
        found[f"median_{name}_ms"] = found[f"mean_{name}_ms"] = found[f"p50_{name}_ms"]
    return found


def calibrate(folder: Path, run: Path, result: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    (folder / "result.json").write_text(json.dumps(result), encoding="utf-8")
    args = ["calibrate", str(folder / "result.json"), "--run", str(run), "--into"]
    done = CliRunner().invoke(app, [*args, str(folder / "calibration.json"), "--json"])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        return 2, {"message": str(done.exception)}
    return done.exit_code, json.loads(done.stdout)


def test_a_benchmark_of_the_plan_finds_its_candidate_and_level(
    small_run: Any, tmp_path: Path
) -> None:
    run = Path(small_run.folder)
    plan = make_plan(run)
    key = plan.data["runs"][0]["candidate_id"]
    expected = json.loads(plan.files[f"plan/{key}/expected.json"])
    said = {"candidate_id": key, "run": "small", "level": "0.5", "scope": "fleet"}
    code, found = calibrate(tmp_path, run, result_of(expected, 0.5, **said))
    assert code == 0, found
    (one,) = found["results"]
    assert (one["candidate_id"], one["load"]) == (key, "level 0.5")
    # A prediction of 1 where 1.05 is measured is off by 1/1.05 - 1 = -4.76 %.
    for name in ("ttft_p99", "tpot_p50"):
        assert one["metrics"][name]["error_percent"] == pytest.approx(100 * (1 / SLOWER - 1))
