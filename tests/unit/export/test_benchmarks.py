"""The benchmark scripts, run against stand-ins for the tools, pass exactly what they should."""

from __future__ import annotations

import json
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sieve.calibration.readers.result import metadata_of
from sieve.export import aiperf, guidellm, vllm_bench, vllm_sweep
from sieve.export.bench import Bench
from sieve.export.deployment import Deployment
from sieve.export.traffic import TrafficFile
from sieve.export.vllm_serve import parse_command
from sieve.spec import LatencyLimits

ROW: dict[str, Any] = {
    "candidate_id": "h100-sxm-80gb.tp2.pp1.ep1.r2.fp8.kv-fp8.s64.b2048", "gpu": "H100-SXM-80GB",
    "tp": 2, "pp": 1, "ep": 1, "replicas": 2, "weight_dtype": "fp8", "kv_cache_dtype": "fp8",
    "max_num_seqs": 64, "max_num_batched_tokens": 2048, "max_model_len": 4096,
    "gpu_memory_utilization": 0.92, "block_size": 16, "enable_chunked_prefill": True,
    "enable_prefix_caching": False, "async_scheduling": True, "long_prefill_token_threshold": 0,
    "decode_context_parallel_size": 1,
}  # fmt: skip
OPEN = TrafficFile(
    "traffic.jsonl", "mooncake_trace", 1e-3, 512, "prompt_blocks", 1000, None, has_sessions=False
)
HOSTILE = ["a b", "x'; touch pwned; '", "$(touch pwned)", "`touch pwned`", 'q"q', "a\nb", "é"]


def bench(model: str | None = "org/model", **changes: Any) -> Bench:
    deployment = Deployment(ROW, model, "bf16", "vllm", "0.33", 1, "run-1")
    given = Bench(
        deployment=deployment,
        traffic=OPEN,
        share=replace(OPEN, name="traffic_1of2.jsonl", num_requests=500),
        levels={"0.5": 0.5, "1.0": 1.0, "1.25": 1.25},
        limits=LatencyLimits(ttft_s=2.0, tpot_s=0.05),
    )
    return replace(given, **changes)


def run_script(
    folder: Path, text: str, tool: str, *args: str, check: bool = True, **env: str
) -> list[str]:
    """Return the words that a tool is called with by a script in `plan/<candidate>/`."""
    place = folder / "pl'an" / "candidate"
    place.mkdir(parents=True, exist_ok=True)
    fake = folder / "bin" / tool
    fake.parent.mkdir(exist_ok=True)
    fake.write_text(f'#!/bin/sh\nprintf "%s\\0" "$@" > "{folder}/words"\n', encoding="utf-8")
    fake.chmod(0o755)
    (place / "run.sh").write_text(text, encoding="utf-8")
    given = {"PATH": f"{fake.parent}:/usr/bin:/bin", "BASE_URL": "http://h:8000", **env}
    done = subprocess.run(
        ["bash", place / "run.sh", *args], cwd=folder, env=given, check=False, timeout=300,
        capture_output=True, text=True,
    )  # fmt: skip
    if not check:
        return [str(done.returncode), done.stderr]
    assert done.returncode == 0, done.stderr
    assert not (folder / "pwned").exists()
    return (folder / "words").read_text(encoding="utf-8").split("\0")[:-1]


def value(words: list[str], flag: str) -> str:
    return words[words.index(flag) + 1]


def test_vllm_replays_the_traffic_at_a_level(tmp_path: Path) -> None:
    """At 1.25 times the load a millisecond of the trace is 1 ms / 1.25 = 0.8 ms."""
    words = run_script(tmp_path, vllm_bench.write(bench()), "vllm", "1.25")
    assert words[:2] == ["bench", "serve"]
    assert value(words, "--base-url") == "http://h:8000"
    assert value(words, "--dataset-name") == "timed_trace"
    assert value(words, "--dataset-path") == f"{tmp_path}/pl'an/traffic.jsonl"
    assert value(words, "--timed-trace-label-hash-ids") == "prompt_blocks"
    assert value(words, "--num-prompts") == "1000"
    assert "--self-timed" in words
    assert float(value(words, "--timed-trace-sec-multiplier")) == pytest.approx(0.0008)
    start = words.index("--goodput")
    assert words[start + 1 : start + 3] == ["ttft:2000", "tpot:50"]
    assert words[words.index("--metadata") + 1 :] == [
        f"candidate_id={ROW['candidate_id']}", "run=run-1", "level=1.25", "scope=fleet",
    ]  # fmt: skip


@pytest.mark.parametrize(("args", "level"), [((), "1.0"), (("1",), "1"), (("0.5",), "0.5")])
def test_a_level_may_be_left_out(tmp_path: Path, args: tuple[str, ...], level: str) -> None:
    words = run_script(tmp_path, vllm_bench.write(bench()), "vllm", *args)
    assert f"level={level}" in words
    assert float(value(words, "--timed-trace-sec-multiplier")) == 0.001 / float(level)


@pytest.mark.parametrize("level", ["2", "", "-1", "1.0; touch pwned", "*"])
def test_another_level_is_refused_before_anything_runs(tmp_path: Path, level: str) -> None:
    code, words = run_script(tmp_path, vllm_bench.write(bench()), "vllm", level, check=False)
    if level == "":
        assert code == "0"  # an empty argument is the default
        return
    assert code == "2"
    assert "expected one of 0.5 1.0 1.25" in words


def test_one_replica_gets_its_share(tmp_path: Path) -> None:
    words = run_script(tmp_path, vllm_bench.write(bench()), "vllm", SCOPE="replica")
    assert value(words, "--dataset-path").endswith("/traffic_1of2.jsonl")
    assert value(words, "--num-prompts") == "500"
    assert "scope=replica" in words
    assert f"replica_of={ROW['candidate_id']}" in words
    assert f"candidate_id={ROW['candidate_id']}" not in words
    alone = vllm_bench.write(bench(share=None))
    code, said = run_script(tmp_path, alone, "vllm", SCOPE="replica", check=False)
    assert (code, "not one of this candidate" in said) == ("2", True)


def test_a_closed_loop_has_users_and_no_times(tmp_path: Path) -> None:
    """Ten users at 1.25 times the load are 12.5, rounded to 13 as in a replay."""
    loop = bench(traffic=replace(OPEN, users=10), share=None)
    words = run_script(tmp_path, vllm_bench.write(loop), "vllm", "1.25")
    assert value(words, "--max-concurrency") == "13"
    assert value(words, "--request-rate") == "inf"
    assert "--no-self-timed" in words
    words = run_script(tmp_path, aiperf.write(loop), "aiperf", "1.25")
    assert value(words, "--concurrency") == "13"
    assert "--fixed-schedule" not in words
    words = run_script(tmp_path, guidellm.write(loop), "guidellm", "1.25")
    assert json.loads(value(words, "--profile")) == {"kind": "concurrent", "streams": [13]}


def test_aiperf_replays_the_same_file(tmp_path: Path) -> None:
    words = run_script(tmp_path, aiperf.write(bench()), "aiperf")
    assert words[0] == "profile"
    assert value(words, "--input-file") == f"{tmp_path}/pl'an/traffic.jsonl"
    assert value(words, "--custom-dataset-type") == "mooncake_trace"
    assert "--synthesis-speedup-ratio" not in words
    assert value(words, "--goodput") == "time_to_first_token:2000 inter_token_latency:50"
    words = run_script(tmp_path, aiperf.write(bench()), "aiperf", "1.25")
    assert value(words, "--synthesis-speedup-ratio") == "1.25"


def test_guidellm_counts_seconds(tmp_path: Path) -> None:
    """Its times are seconds: 0.001 s a unit, a fifth shorter at 1.25 times the load."""
    words = run_script(tmp_path, guidellm.write(bench()), "guidellm", "1.25")
    data = json.loads(value(words, "--data"))
    assert data["kind"] == "trace_synthetic"
    assert data["source"] == {"kind": "json_file", "path": "traffic.jsonl"}
    assert data["time_scale"] == pytest.approx(0.0008)
    assert json.loads(value(words, "--backend"))["target"] == "http://h:8000"
    assert json.loads(value(words, "--metrics"))["slo"] == {"ttft_ms": 2000.0, "tpot_ms": 50.0}
    assert value(words, "--constraint") == "kind=max_requests,count=1000"
    shared = bench(traffic=replace(OPEN, blocks="hash_ids"))
    words = run_script(tmp_path, guidellm.write(shared), "guidellm")
    assert json.loads(value(words, "--data"))["kind"] == "mooncake"


def test_who_cannot_replay_sessions_says_so() -> None:
    sessions = replace(OPEN, has_sessions=True)
    assert not vllm_bench.fits(sessions)
    assert not guidellm.fits(sessions)
    assert vllm_sweep.traffic_of(bench(traffic=sessions, share=None)) is None


@pytest.mark.parametrize("model", HOSTILE)
def test_a_hostile_model_is_one_word(tmp_path: Path, model: str) -> None:
    words = run_script(tmp_path, vllm_bench.write(bench(model)), "vllm")
    assert value(words, "--model") == model
    words = run_script(tmp_path, aiperf.write(bench(model)), "aiperf")
    assert value(words, "--model") == model
    run_script(tmp_path, guidellm.write(bench(model)), "guidellm")
    words = run_script(tmp_path, vllm_sweep.write([bench(model)]), "vllm")
    assert shlex.split(value(words, "--serve-cmd")) == ["vllm", "serve", model]
    assert value(shlex.split(value(words, "--bench-cmd")), "--model") == model


def test_a_checkpoint_comes_from_the_environment(tmp_path: Path) -> None:
    script = vllm_bench.write(bench(None))
    code, said = run_script(tmp_path, script, "vllm", check=False)
    assert code != "0"
    assert "CHECKPOINT" in said
    words = run_script(tmp_path, script, "vllm", CHECKPOINT="my model")
    assert value(words, "--model") == "my model"
    words = run_script(tmp_path, vllm_sweep.write([bench(None)]), "vllm", CHECKPOINT="my 'model")
    assert shlex.split(value(words, "--serve-cmd")) == ["vllm", "serve", "my 'model"]


def applied(command: list[str], overrides: dict[str, Any]) -> list[str]:
    """Return a command with a sweep's overrides, as the documentation of the sweep states them.

    Underscores become dashes, switches `--x` or `--no-x`; a flag that is there gets the value,
    another is added.
    """
    out = list(command)
    for key, given in overrides.items():
        flag = "--" + key.replace("_", "-")
        if isinstance(given, bool):
            out.append(flag if given else "--no-" + flag[2:])
        elif flag in out:
            out[out.index(flag) + 1] = str(given)
        else:
            out += [flag, str(given)]
    return out


def test_the_sweep_starts_the_candidate_and_sends_its_share(tmp_path: Path) -> None:
    words = run_script(tmp_path, vllm_sweep.write([bench()]), "vllm", "--")
    serve = json.loads(vllm_sweep.serve_params([bench()]))[ROW["candidate_id"]]
    started = applied(shlex.split(value(words, "--serve-cmd")), serve)
    back = parse_command(started)
    for name in ("tp", "pp", "max_num_seqs", "max_num_batched_tokens", "enable_prefix_caching"):
        assert back[name] == ROW[name]
    assert back["weight_dtype"] == "fp8"
    entries = json.loads(vllm_sweep.bench_params([bench()]))
    assert [entry["label"] for entry in entries] == [
        f"replica_of={ROW['candidate_id']} level={level}" for level in ("0.5", "1.0", "1.25")
    ]
    sent = applied(shlex.split(value(words, "--bench-cmd")), entries[0])
    assert value(sent, "--dataset-path") == "traffic_1of2.jsonl"
    assert value(sent, "--num-prompts") == "500"
    assert float(value(sent, "--timed-trace-sec-multiplier")) == 0.002
    start = sent.index("--metadata")
    assert sent[start + 1] == "run=run-1"
    assert value(words, "--link-vars") == "served_model_name=served_model_name"
    assert value(sent, "--served-model-name") == value(started, "--served-model-name")


def test_what_a_sweep_says_of_its_candidate_is_read_back() -> None:
    """A record holds the bench's overrides, its label among them."""
    alone = replace(bench().deployment, row=ROW | {"replicas": 1})
    entries = json.loads(vllm_sweep.bench_params([bench(deployment=alone)]))
    said = metadata_of({"run": "run-1", "max_num_seqs": 64, **entries[0]})
    assert (said["candidate_id"], said["run"]) == (ROW["candidate_id"], "run-1")
    assert float(said["level"]) == 0.5
    of_two = json.loads(vllm_sweep.bench_params([bench()]))
    shared = metadata_of(of_two[0])
    assert (shared["candidate_id"], shared["scope"]) == (ROW["candidate_id"], "replica")
    said = metadata_of({"replica_of": "x", "level": "1.0"})
    assert said == {"candidate_id": "x", "scope": "replica", "level": "1.0"}
