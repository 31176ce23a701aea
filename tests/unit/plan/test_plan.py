"""`sieve plan` on real runs: whole, exact, priced; refused where a folder is not a run's own."""

from __future__ import annotations

import json
import math
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

import sieve
from sieve.cli.main import app
from sieve.errors import ExportError, InvalidInput, ResultError
from sieve.plan import make_plan
from sieve.plan.choose import load_points
from sieve.plan.expected import band, measured_as

MOE = {
    "name": "moe", "model": "Qwen/Qwen3-30B-A3B",
    "traffic": {"trace": "chat", "requests": 60, "rate_per_s": 2},
    "slo": {"ttft_p99": "20 s", "tpot_p99": "200 ms", "attainment": {"share": 0.9, "ttft": "20 s"}},
    "fleet": {"gpus": ["H200-SXM-141GB", "H100-SXM-80GB"], "max_gpus": 8},
    "grid": {"axes": {
        "tp": [2, 4], "pp": [1, 2], "ep": [1, 4], "replicas": [1, 2],
        "weight_dtype": ["bf16", "fp8"], "kv_cache_dtype": ["fp8"],
        "max_num_seqs": [64], "max_num_batched_tokens": [8192],
        "enable_prefix_caching": [False], "async_scheduling": [True, False],
    }},
}  # fmt: skip
NODES = {
    "name": "nodes", "model": "deepseek-ai/DeepSeek-V3",
    "traffic": {"trace": "chat", "requests": 60, "rate_per_s": 1, "levels": [0.5, 1.0]},
    "slo": {"ttft_p99": "60 s", "tpot_p99": "500 ms"},
    "fleet": {"gpus": ["H200-SXM-141GB"], "max_gpus": 32, "nodes_per_replica": 2,
              "scale_out_gbs_unidirectional": 50.0},
    "grid": {"axes": {
        "tp": [8], "pp": [2], "ep": [1, 8], "replicas": [1, 2], "weight_dtype": ["fp8"],
        "kv_cache_dtype": ["auto"], "max_num_seqs": [64], "max_num_batched_tokens": [8192],
        "block_size": [64],
    }},
}  # fmt: skip
HYBRID = {
    "name": "hybrid", "model": "Qwen/Qwen3-Next-80B-A3B-Instruct",
    "traffic": {"synthetic": {"requests": 60, "isl": 1000, "osl": 100,
                              "arrival": {"closed_loop": 8}}},
    "slo": {"ttft_p99": "60 s", "tpot_p99": "500 ms"},
    "fleet": {"gpus": ["H100-SXM-80GB"], "max_gpus": 8}, "shortlist": {"exhaustive_below": 100},
    "grid": {"axes": {
        "tp": [4], "pp": [1, 2], "ep": [1, 4], "replicas": [1, 2], "weight_dtype": ["bf16", "int4"],
        "kv_cache_dtype": ["fp8"], "max_num_seqs": [64], "max_num_batched_tokens": [4096],
        "gpu_memory_utilization": [0.9], "long_prefill_token_threshold": [0, 512],
    }},
}  # fmt: skip


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory, small_run: Any) -> dict[str, Path]:
    """Finished runs, planned with every ranked candidate."""
    out = {"small": Path(small_run.folder)}
    for spec in (MOE, NODES, HYBRID):
        name = str(spec["name"])
        out[name] = tmp_path_factory.mktemp(name) / "run"
        sieve.run(spec, out=out[name])
    for folder in out.values():
        make_plan(folder, top=40).save(folder)
    return out


KINDS = ("small", "moe", "nodes", "hybrid")


def load(folder: Path, name: str) -> Any:
    return json.loads((folder / name).read_text(encoding="utf-8"))


@pytest.mark.parametrize("kind", KINDS)
def test_the_plan_is_whole(folders: dict[str, Path], kind: str) -> None:
    """Every ranked candidate has its files, and plan.json lists what is there."""
    folder = folders[kind]
    plan = load(folder, "plan/plan.json")
    ranked = [entry["candidate_id"] for entry in load(folder, "result.json")["ranking"]]
    assert set(ranked) <= {entry["candidate_id"] for entry in plan["candidates"]}
    for entry in plan["candidates"]:
        place = folder / entry["folder"]
        for name in ("serve.sh", "bench.sh", "expected.json"):
            assert (place / name).is_file(), name
        written = {path.name for path in (place / "manifests").iterdir()}
        assert {"compose.yaml", "ray-serve.yaml", "dynamo.yaml", "llm-d-values.yaml"} <= written
        assert ("leader-worker-set.yaml" in written) is (kind == "nodes")
        assert ("kubernetes.yaml" in written) is (kind != "nodes")
        assert not written & set(entry["left_out"])
    assert all((folder / name).is_file() for name in plan["files"])
    there = {str(p.relative_to(folder)) for p in (folder / "plan").rglob("*") if p.is_file()}
    assert there == set(plan["files"])


@pytest.mark.parametrize("kind", KINDS)
def test_expected_values_are_those_of_the_run(folders: dict[str, Path], kind: str) -> None:
    folder = folders[kind]
    simulations = pl.read_parquet(folder / "simulations.parquet")
    for entry in load(folder, "result.json")["ranking"]:
        key = entry["candidate_id"]
        expected = load(folder, f"plan/{key}/expected.json")
        assert expected["candidate_id"] == key
        at = {level["level"]: level for level in expected["levels"]}
        rows = simulations.filter(pl.col("candidate_id") == key)
        assert sorted(at) == sorted(rows["level"].to_list())
        for row in rows.iter_rows(named=True):
            level = at[row["level"]]
            assert level["duration_s"] == pytest.approx(row["makespan_s"])
            assert level["gpu_hours"] == pytest.approx(row["makespan_s"] * entry["num_gpus"] / 3600)
            assert level["metrics"]["ttft_p99_s"]["expected"] == row["ttft_p99_s"]
        for metric in ("tpot_p99_s", "output_tokens_per_s", "usd_per_mtok"):
            value = at[1.0]["metrics"][metric]
            assert [value[e] for e in ("low", "expected", "high")] == [
                entry[metric][e] for e in ("low", "mid", "high")
            ]
            assert value["accept_low"] <= value["low"] <= value["high"] <= value["accept_high"]


def test_a_band_adds_interval_and_rig_as_squares() -> None:
    """ln 1.2 and ln 1.15 make sqrt(0.1823^2 + 0.1398^2) = 0.2297: 100 ms to 125.8 ms."""
    low, high = band("ttft_p99_s", 0.1, 0.1, 0.12)
    assert high == pytest.approx(0.1 * math.exp(math.hypot(math.log(1.2), math.log(1.15))))
    assert high == pytest.approx(0.1258, abs=1e-4)
    assert low == pytest.approx(0.1 / 1.15)
    assert band("slo_attainment", 0.97, 0.95, 1.0) == (0.95, 1.0)
    assert band("ttft_p99_s", None, 0.1, 0.2) == (None, None)
    assert band("tpot_p99_s", 0.1, 0.2, 0.3) == (None, None)


def test_names_in_other_tools() -> None:
    """As the result formats of vLLM 0.33, AIPerf 0.13 and GuideLLM 0.8 spell them."""
    assert measured_as("ttft_p99_s") == {
        "vllm_bench": "p99_ttft_ms",
        "aiperf": "time_to_first_token.p99",
        "guidellm": "metrics.time_to_first_token_ms.successful.percentiles.p99",
    }
    assert measured_as("e2e_mean_s")["vllm_bench"] == "mean_e2el_ms"
    assert measured_as("output_tokens_per_s")["vllm_bench"] == "output_throughput"
    assert measured_as("usd_per_mtok")["vllm_bench"] is None


@pytest.mark.parametrize("kind", KINDS)
def test_the_runs_follow_the_method(folders: dict[str, Path], kind: str) -> None:
    """The incumbent first and last; the tie's pair; points over the load; totals add up."""
    folder = folders[kind]
    plan, result = load(folder, "plan/plan.json"), load(folder, "result.json")
    runs, first = plan["runs"], result["ranking"][0]["candidate_id"]
    assert (runs[0]["candidate_id"], runs[-1]["candidate_id"]) == (first, first)
    assert runs[0]["level"] == runs[-1]["level"] == 1.0
    assert [run["number"] for run in runs] == [*range(1, len(runs) + 1)]
    settle = result["answer"]["settle"]
    if settle is not None:
        for key in settle["candidate_ids"]:
            (run,) = [
                r for r in runs
                if r["candidate_id"] == key and any(x["kind"] == "settle" for x in r["reasons"])
            ]  # fmt: skip
            assert run["num_requests"] >= settle["num_requests"]
    loads = {r["level"] for r in runs if any(x["kind"] == "load" for x in r["reasons"])}
    served = {
        level for level, _ in load_points(pl.read_parquet(folder / "simulations.parquet"), first)
    }
    assert loads >= served
    for name in ("gpu_hours", "usd", "duration_s"):
        assert plan["totals"][name] == pytest.approx(sum(run[name] for run in runs))
    price = {e["candidate_id"]: e for e in result["ranking"]}
    for run in runs:
        entry = price[run["candidate_id"]]
        hourly = entry["usd_per_mtok"]["mid"] * entry["output_tokens_per_s"]["mid"] * 3600 / 1e6
        assert run["usd"] == pytest.approx(run["gpu_hours"] / entry["num_gpus"] * hourly)


def test_each_recommended_gpu_gets_points_over_the_load(folders: dict[str, Path]) -> None:
    plan = load(folders["moe"], "plan/plan.json")
    recommended = {
        entry["gpu"] for entry in plan["candidates"]
        if any(role.startswith("recommended") for role in entry["roles"])
    }  # fmt: skip
    assert recommended
    by_id = {entry["candidate_id"]: entry["gpu"] for entry in plan["candidates"]}
    for gpu in recommended:
        levels = {
            run["level"] for run in plan["runs"]
            if by_id[run["candidate_id"]] == gpu
            and any(reason["kind"] == "load" for reason in run["reasons"])
        }  # fmt: skip
        assert 3 <= len(levels) <= 5


def test_an_overloaded_level_is_no_load_point() -> None:
    frame = pl.DataFrame(
        {
            "candidate_id": ["a"] * 4,
            "level": [0.5, 1.0, 1.5, 2.0],
            "status": ["", "", "", "request_exceeds_cache"],
            "queue_growth": [0.0, 0.01, 0.5, 0.0],
        }
    )
    assert load_points(frame, "a") == [(0.5, "low"), (1.0, "near saturation")]


def test_seven_levels_make_five_points_with_both_ends() -> None:
    levels = [0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0]
    frame = pl.DataFrame(
        {"candidate_id": ["a"] * 7, "level": levels, "status": [""] * 7, "queue_growth": [0.0] * 7}
    )
    found = [level for level, _ in load_points(frame, "a")]
    assert len(found) == 5
    assert (found[0], found[-1]) == (0.25, 2.0)
    assert 1.0 in found


def test_the_same_run_gives_the_same_bytes(folders: dict[str, Path]) -> None:
    one, other = make_plan(folders["moe"]), make_plan(folders["moe"])
    assert one.files == other.files
    assert list(one.files)[-1] == "plan/plan.json"


def invoke(*args: str) -> Any:
    return CliRunner().invoke(app, ["plan", *args])


def test_the_command_prints_a_table_and_json(folders: dict[str, Path]) -> None:
    shown = invoke(str(folders["small"]))
    assert shown.exit_code == 0
    assert "GPU-hours" in shown.stdout
    *_, first, last_line = shown.stdout.splitlines()
    assert first == "First   copy the run's folder to the machine that has the GPUs and vLLM"
    last = shlex.split(last_line)
    assert last[:2] == ["Next", "bash"]
    assert Path(last[2]).name == "serve.sh"
    assert Path(last[2]).is_file()
    document = json.loads(invoke(str(folders["small"]), "--json").stdout)
    assert document == load(folders["small"], "plan/plan.json")
    page = (folders["small"] / "plan" / "plan.md").read_text(encoding="utf-8")
    assert "sieve calibrate results/*.json --run . --into calibration.json" in page


@pytest.mark.parametrize(
    ("changes", "code", "status", "words"),
    [
        ({"slo": {"tpot_p99": "0.1 ms", "ttft_p99": "1 ms"}}, 4, "no_slo", "nothing to measure"),
        ({"model": "deepseek-ai/DeepSeek-V3"}, 3, "no_fit", "Nothing fits"),
    ],
)
def test_where_nothing_is_ranked_it_says_why(
    make_spec: Callable[..., dict[str, Any]], tmp_path: Path, changes: dict[str, Any], code: int,
    status: str, words: str,
) -> None:  # fmt: skip
    folder = tmp_path / "run"
    result = sieve.run(make_spec(changes), out=folder)
    assert result.answer["status"] == status
    assert not result.data["ranking"]
    done = invoke(str(folder), "--json")
    assert done.exit_code == code
    assert invoke(str(folder)).stdout.splitlines()[-1] == f"Next    sieve explain {folder}"
    document = json.loads(done.stdout)
    assert words in document["notes"][0]
    assert document["runs"] == []
    assert not (folder / "plan" / "plan.json").exists()


@pytest.mark.parametrize(
    ("share", "code", "status"), [(1.02, 5, "weak_evidence"), (0.5, 4, "no_slo")]
)
def test_where_nothing_clears_it_plans_the_nearest_with_a_note(
    make_spec: Callable[..., dict[str, Any]], small_run: Any, tmp_path: Path, share: float,
    code: int, status: str,
) -> None:  # fmt: skip
    """A TTFT limit just above the best middle leaves stretch candidates; half of it, none."""
    best = min(entry["ttft_p99_s"]["mid"] for entry in small_run.data["ranking"])
    folder = tmp_path / "run"
    spec = make_spec({"slo": {"ttft_p99": best * share}, "shortlist.exhaustive_below": 100})
    result = sieve.run(spec, out=folder)
    if status == "no_slo" and not result.data["ranking"]:
        pytest.fail("the objective must leave candidates to rank")
    assert result.answer["status"] == status
    done = invoke(str(folder), "--json")
    assert done.exit_code == code
    document = json.loads(done.stdout)
    assert document["runs"]
    assert "measure" in document["notes"][0].lower()


def test_a_named_checkpoint_stands_in_for_what_no_flag_makes(
    make_spec: Callable[..., dict[str, Any]], folders: dict[str, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    sieve.run(make_spec({"grid.axes.weight_dtype": ["int4"]}), out=folder)
    plan = make_plan(folder)
    first = plan.data["candidates"][0]["candidate_id"]
    assert "CHECKPOINT" in plan.data["placeholders"]
    assert [run["serve_needs"] for run in plan.data["runs"]] == [["CHECKPOINT"]] * len(
        plan.data["runs"]
    )
    *_, before, last = invoke(str(folder)).stdout.splitlines()
    assert before == "First   fill in CHECKPOINT; the next line starts with it"
    assert last.startswith("Next    CHECKPOINT=FILL_IN bash ")
    named = make_plan(folder, model="me/my-int4")
    assert "CHECKPOINT" not in named.data["placeholders"]
    assert "vllm serve me/my-int4" in named.files[f"plan/{first}/serve.sh"]
    assert "hf://me/my-int4" in named.files[f"plan/{first}/manifests/kserve-llm.yaml"]
    ranking = load(folders["hybrid"], "result.json")["ranking"]
    assert {entry["weight_dtype"] for entry in ranking} == {"bf16", "int4"}
    with pytest.raises(ExportError, match="one checkpoint"):
        make_plan(folders["hybrid"], top=40, model="me/my-int4")


@pytest.mark.parametrize(("top", "model"), [(0, None), (101, None), (3, ""), (3, "-x"), (3, "a\0")])
def test_options_that_cannot_be(folders: dict[str, Path], top: int, model: str | None) -> None:
    with pytest.raises(InvalidInput, match="found --"):
        make_plan(folders["small"], top=top, model=model)


def change_result(change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        path = folder / "result.json"
        data = json.loads(path.read_text(encoding="utf-8"))
        change(data)
        path.write_text(json.dumps(data), encoding="utf-8")

    return edit


def change_table(
    name: str, change: Callable[[pl.DataFrame], pl.DataFrame]
) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        change(pl.read_parquet(folder / name)).write_parquet(folder / name)

    return edit


def put(data: dict[str, Any], path: str, value: Any) -> None:
    *parents, last = path.split(".")
    place: Any = data
    for part in parents:
        place = place[int(part)] if isinstance(place, list) else place[part]
    place[last] = value


def set_to(path: str, value: Any) -> Callable[[Path], None]:
    return change_result(lambda data: put(data, path, value))


BROKEN: dict[str, Callable[[Path], None]] = {
    "no result": lambda folder: (folder / "result.json").unlink(),
    "cut result": lambda folder: (folder / "result.json").write_text(
        (folder / "result.json").read_text(encoding="utf-8")[:5000], encoding="utf-8"
    ),
    "foreign result": lambda folder: (folder / "result.json").write_text(
        '{"a": 1}', encoding="utf-8"
    ),
    "a list": lambda folder: (folder / "result.json").write_text("[]", encoding="utf-8"),
    "earlier version": change_result(lambda data: data.pop("serving")),
    "another schema": set_to("schema_version", "2.0"),
    "a hostile run name": set_to("spec.name", "a'; touch pwned; '"),
    "a hostile id": set_to("ranking.0.candidate_id", "../../escape"),
    "another number of sequences": set_to("ranking.0.max_num_seqs", 1),
    "another verdict": set_to("ranking.0.verdict", "point_only"),
    "an unknown verdict": set_to("ranking.0.verdict", "wins"),
    "a text for a number": set_to("ranking.0.tp", "2"),
    "not a number": set_to("ranking.0.usd_per_mtok.mid", math.nan),
    "another cost": set_to("ranking.0.usd_per_mtok.mid", 0.01),
    "an answer that is not ranked": set_to("answer.cheapest", "nobody"),
    "another objective": set_to("spec.slo", ["ttft:p101<=1s"]),
    "a hostile version": set_to("serving.engine_version", "0.33; rm -rf /"),
    "ranked twice": change_result(lambda data: data["ranking"].append(data["ranking"][0])),
    "no candidates": lambda folder: (folder / "candidates.parquet").unlink(),
    "cut candidates": lambda folder: (folder / "candidates.parquet").write_bytes(b"PAR1xxxx"),
    "other axes": change_table(
        "candidates.parquet", lambda f: f.with_columns(pl.lit(7, pl.Int64).alias("max_num_seqs"))
    ),
    "a candidate short": change_table(
        "candidates.parquet", lambda f: f.filter(pl.col("rank").is_null())
    ),
    "no replays": change_table("simulations.parquet", lambda f: f.head(0)),
    "other replays": change_table(
        "simulations.parquet", lambda f: f.with_columns(pl.col("output_tokens_per_s") * 1.01)
    ),
    "no traffic": lambda folder: (folder / "traffic.parquet").unlink(),
    "other traffic": change_table(
        "traffic.parquet", lambda f: f.with_columns(pl.col("output_tokens") + 1)
    ),
    "less traffic": change_table("traffic.parquet", lambda f: f.head(50)),
    "hostile traffic": change_table(
        "traffic.parquet", lambda f: f.with_columns(pl.lit(-5, pl.Int64).alias("input_tokens"))
    ),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_folder_that_is_not_the_runs_own_is_refused(
    folders: dict[str, Path], tmp_path: Path, fault: str
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(folders["small"], folder, ignore=shutil.ignore_patterns("plan"))
    BROKEN[fault](folder)
    before = sorted(p.relative_to(folder) for p in folder.rglob("*"))
    with pytest.raises(ResultError) as caught:
        make_plan(folder)
    assert str(folder) in str(caught.value)
    done = invoke(str(folder))
    assert isinstance(done.exception, ResultError)
    assert sorted(p.relative_to(folder) for p in folder.rglob("*")) == before


@pytest.mark.parametrize("place", ["nowhere", "a file"])
def test_what_is_no_folder(tmp_path: Path, place: str) -> None:
    (tmp_path / "a file").write_text("x", encoding="utf-8")
    with pytest.raises(ResultError, match="no such folder"):
        make_plan(tmp_path / place)


def test_a_run_that_stopped_early_has_no_plan(
    make_spec: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    sieve.run(make_spec(), out=tmp_path / "run", stop_after=4)
    with pytest.raises(ResultError, match="stopped after stage 4"):
        make_plan(tmp_path / "run")


def test_a_fault_while_writing_leaves_no_plan_that_looks_whole(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    """The place of a candidate's folder is taken by a file: what lists the plan is not there."""
    folder = tmp_path / "run"
    shutil.copytree(folders["small"], folder)
    made = make_plan(folder)
    first = folder / made.data["candidates"][0]["folder"]
    shutil.rmtree(first)
    first.write_text("in the way", encoding="utf-8")
    with pytest.raises(ResultError, match="cannot be written"):
        made.save(folder)
    assert not (folder / "plan" / "plan.json").exists()
    assert not list(folder.rglob(".part-*"))


def test_a_plan_that_leads_outside_is_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    folder, outside = tmp_path / "run", tmp_path / "outside"
    shutil.copytree(folders["small"], folder, ignore=shutil.ignore_patterns("plan"))
    outside.mkdir()
    (folder / "plan").symlink_to(outside)
    with pytest.raises(ResultError, match="leave the run folder"):
        make_plan(folder).save(folder)
    assert not list(outside.iterdir())


def test_measured_results_beside_the_plan_stay(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(folders["small"], folder)
    (folder / "plan" / "results").mkdir()
    (folder / "plan" / "results" / "mine.json").write_text("{}", encoding="utf-8")
    make_plan(folder, top=1).save(folder)
    assert (folder / "plan" / "results" / "mine.json").read_text(encoding="utf-8") == "{}"


def test_traffic_of_a_file_needs_the_file_no_more(
    make_spec: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    rng = np.random.default_rng(3)
    lines = [
        json.dumps({"timestamp": 500.0 * i, "input_length": int(n), "output_length": 20,
                    "hash_ids": [*range(int(-(-n // 512)))]})
        for i, n in enumerate(rng.integers(1, 3000, 80))
    ]  # fmt: skip
    trace = tmp_path / "trace.jsonl"
    trace.write_text("\n".join(lines), encoding="utf-8")
    traffic = {"trace": str(trace), "format": "mooncake_trace"}
    sieve.run(make_spec({"traffic": traffic}), out=tmp_path / "run")
    trace.unlink()
    plan = make_plan(tmp_path / "run")
    written = [json.loads(line) for line in plan.files["plan/traffic.jsonl"].splitlines()]
    wanted = [json.loads(line) for line in lines]
    assert [line["input_length"] for line in written] == [line["input_length"] for line in wanted]
    assert written[3]["timestamp"] == pytest.approx(1500.0)
    # All prompts begin alike, as far as each goes.
    assert all(
        a == b
        for line in written
        for a, b in zip(
            line["hash_ids"], max((w["hash_ids"] for w in written), key=len), strict=False
        )
    )
    assert plan.data["traffic"]["blocks_key"] == "hash_ids"
