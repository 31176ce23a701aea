"""Whole runs on a small spec: what is promised about `result.json`, tables and answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import sieve
from sieve.dry import dry_run
from sieve.errors import InvalidInput, NotYetError, SieveError
from sieve.frames import METRICS, bound_column

Make = Callable[..., dict[str, Any]]
AXES = (
    "gpu", "tp", "pp", "ep", "replicas", "weight_dtype", "kv_cache_dtype", "max_num_seqs",
    "max_num_batched_tokens",
)  # fmt: skip
RANKING_METRICS = (
    "output_tokens_per_s", "output_tokens_per_s_per_gpu", "ttft_p50_s", "ttft_p99_s", "tpot_p50_s",
    "tpot_p99_s", "e2e_p99_s", "goodput_per_s", "slo_attainment", "usd_per_mtok",
)  # fmt: skip
KINDS = {None, "exact", "statistical", "practical"}
EVIDENCE = {"measured", "interpolated", "extrapolated", "roofline"}


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: without_times(v) for k, v in value.items() if k != "elapsed_s"}
    return [without_times(v) for v in value] if isinstance(value, list) else value


def test_the_keys_of_a_result(small_run: Any) -> None:
    data = small_run.data
    assert {
        "schema_version", "sieve_version", "spec", "inputs", "assumptions", "stages", "answer",
        "ranking", "nearest_misses", "elapsed_s",
    } <= set(data)  # fmt: skip
    assert data["sieve_version"] == sieve.__version__
    assert data["schema_version"].split(".")[0] == "1"
    assert data["elapsed_s"] > 0
    assert data["spec"]["name"] == "small"
    assert len(data["inputs"]) >= 4
    for entry in data["inputs"]:
        assert set(entry) >= {"name", "sha256"}
        assert len(entry["sha256"]) == 64
        assert set(entry["sha256"]) <= set("0123456789abcdef")
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    on_disk = json.loads((small_run.folder / "result.json").read_text(encoding="utf-8"))
    assert on_disk == data


def test_the_stages_of_a_result(small_run: Any) -> None:
    stages = small_run.data["stages"]
    assert [(s["number"], s["name"]) for s in stages] == [
        (1, "validity"), (2, "memory_fit"), (3, "batch_sizing"), (4, "shortlist"), (5, "simulate"),
        (6, "rank"), (7, "confirm"),
    ]  # fmt: skip
    for stage in stages:
        assert set(stage) >= {
            "number", "name", "num_in", "num_admitted", "num_rejected", "reasons", "elapsed_s",
        }  # fmt: skip
        assert stage["num_in"] == stage["num_admitted"] + stage["num_rejected"]
        assert sum(stage["reasons"].values()) == stage["num_rejected"]
        assert stage["elapsed_s"] >= 0
    assert stages[0]["num_in"] == 6
    assert stages[0]["reasons"] == {"gpu_budget": 2}  # TP 4 on a fleet of 2


def test_the_ranking_of_a_result(small_run: Any) -> None:
    ranking = small_run.data["ranking"]
    assert len(ranking) == 4
    for row in ranking:
        assert set(row) >= {
            "rank", "tie_group", "candidate_id", "num_gpus", "verdict", "evidence",
            "evidence_shares", *AXES, *RANKING_METRICS,
        }  # fmt: skip
        assert row["verdict"] in {"clears", "point_only", "misses"}
        for metric in RANKING_METRICS:
            assert set(row[metric]) == {"low", "mid", "high"}
            assert row[metric]["low"] <= row[metric]["mid"] <= row[metric]["high"], metric
            for source in ("model", "noise"):
                ends = row["intervals"][metric][source]
                slack = 1e-9 * row[metric]["mid"]
                assert row[metric]["low"] <= ends["low"] + slack, (metric, source)
                assert ends["high"] - slack <= row[metric]["high"], (metric, source)
        assert row["tie"] in KINDS
        assert isinstance(row["pareto"], bool)
        assert row["evidence"] in EVIDENCE
        assert set(row["evidence_shares"]) <= EVIDENCE
        assert sum(row["evidence_shares"].values()) == pytest.approx(1.0)
        assert row["evidence_shares"][row["evidence"]] >= 0.1
        assert row["num_gpus"] == row["tp"] * row["pp"] * row["replicas"]
        per_gpu = row["output_tokens_per_s"]["mid"] / row["num_gpus"]
        assert row["output_tokens_per_s_per_gpu"]["mid"] == pytest.approx(per_gpu)
        # 3.60 USD an hour is a thousandth of a dollar a second
        cost = 0.001 * row["num_gpus"] * 1e6 / row["output_tokens_per_s"]["mid"]
        assert row["usd_per_mtok"]["mid"] == pytest.approx(cost)
        assert row["ttft_p50_s"]["mid"] <= row["ttft_p99_s"]["mid"] <= row["e2e_p99_s"]["mid"]
        assert 0 <= row["slo_attainment"]["mid"] <= 1
    assert any(row["pareto"] for row in ranking)
    costs = [row["usd_per_mtok"]["mid"] for row in ranking if row["verdict"] == "clears"]
    assert costs == sorted(costs)
    assert [row["tie_group"] for row in ranking] == sorted(row["tie_group"] for row in ranking)
    assert ranking[0]["rank"] == ranking[0]["tie_group"] == 1


def test_the_answer_of_a_result(small_run: Any) -> None:
    answer, ranking = small_run.data["answer"], small_run.data["ranking"]
    assert set(answer) >= {
        "status", "fewest_gpus", "best_per_gpu", "cheapest", "tie_group", "settle",
    }  # fmt: skip
    assert (answer["status"], small_run.exit_code) == ("answer", 0)
    clears = {row["candidate_id"]: row for row in ranking if row["verdict"] == "clears"}
    assert clears[answer["fewest_gpus"]]["num_gpus"] == min(r["num_gpus"] for r in clears.values())
    cheapest = min(row["usd_per_mtok"]["mid"] for row in clears.values())
    assert clears[answer["cheapest"]]["usd_per_mtok"]["mid"] == cheapest
    best = max(row["output_tokens_per_s_per_gpu"]["mid"] for row in clears.values())
    assert clears[answer["best_per_gpu"]]["output_tokens_per_s_per_gpu"]["mid"] == best
    assert answer["tie_group"] == [r["candidate_id"] for r in ranking if r["tie_group"] == 1]
    assert small_run.data["nearest_misses"] == []


def test_one_row_per_candidate(small_run: Any) -> None:
    table = pl.read_parquet(small_run.folder / "candidates.parquet")
    assert len(table) == 6
    assert table["candidate_id"].n_unique() == 6
    assert {*AXES, "stage", "kind", "reason", "observed", "limit", "unit"} <= set(table.columns)
    lost = table.filter(pl.col("tp") == 4)
    assert lost.select("stage", "kind", "reason", "observed", "limit").unique().rows() == [
        (1, "infeasible", "gpu_budget", 4.0, 2.0)
    ]
    kept = table.filter(pl.col("tp") < 4)
    for name in ("stage", "kind", "reason", "observed", "limit", "unit"):
        assert kept[name].null_count() == 4
    assert small_run.candidates.equals(table)


def test_one_row_per_candidate_and_level(small_run: Any) -> None:
    table = pl.read_parquet(small_run.folder / "simulations.parquet")
    ids = [row["candidate_id"] for row in small_run.data["ranking"]]
    assert sorted(table.select("candidate_id", "level").rows()) == sorted(
        (candidate_id, level) for candidate_id in ids for level in (0.5, 1.0)
    )
    columns = {bound_column(metric, end) for metric in METRICS for end in ("low", "high")}
    assert {*METRICS, *columns} <= set(table.columns)
    assert {
        "ttft_p99_high_s", "output_tokens_low_per_s", "slo_attainment_low", "usd_per_mtok_low",
    } <= set(table.columns)  # fmt: skip
    at_one = {r["candidate_id"]: r for r in table.filter(level=1.0).iter_rows(named=True)}
    for row in small_run.data["ranking"]:
        for metric in RANKING_METRICS:
            assert at_one[row["candidate_id"]][metric] == pytest.approx(row[metric]["mid"])


def test_the_other_files_of_a_run(small_run: Any) -> None:
    events = [
        json.loads(line)
        for line in (small_run.folder / "events.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    names = [event["event"] for event in events if event["event"] != "progress"]
    assert names == ["start", *["stage"] * 7, "end"]  # progress comes with time, not with work
    assert "<html" in (small_run.folder / "report.html").read_text(encoding="utf-8").lower()
    assert not [p for p in small_run.folder.rglob("*") if p.name.startswith(".part-")]


def test_the_ranking_is_a_frame(small_run: Any) -> None:
    frame = small_run.ranking
    assert isinstance(frame, pl.DataFrame)
    assert len(frame) == 4
    assert {"candidate_id", "ttft_p99_s_low", "ttft_p99_s_mid", "ttft_p99_s_high"} <= set(
        frame.columns
    )
    pandas = frame.to_pandas()
    assert pandas["candidate_id"].tolist() == frame["candidate_id"].to_list()
    assert len(small_run.candidates.to_pandas()) == 6
    assert "<table" in small_run._repr_html_()


def test_a_result_can_be_saved_later(small_run: Any, make_spec: Make, tmp_path: Path) -> None:
    result = sieve.run(make_spec())
    assert result.folder is None
    folder = result.save(tmp_path / "later")
    assert folder == tmp_path / "later"
    first = json.loads((small_run.folder / "result.json").read_text(encoding="utf-8"))
    again = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    assert without_times(first) == without_times(again)


@pytest.mark.parametrize("last", [1, 3, 4, 5])
def test_stop_after(make_spec: Make, tmp_path: Path, last: int) -> None:
    result = sieve.run(make_spec(), stop_after=last, out=tmp_path)
    assert [stage["number"] for stage in result.data["stages"]] == list(range(1, last + 1))
    assert result.data["answer"]["status"] is None
    assert (result.data["ranking"], result.exit_code) == ([], 0)
    assert len(result.candidates) == 6
    assert len(result.simulations) == (8 if last >= 5 else 0)
    assert (tmp_path / "result.json").is_file()
    assert len(result.ranking) == 0


@pytest.mark.parametrize("last", [0, 8, -1])
def test_a_stage_that_does_not_exist(make_spec: Make, last: int) -> None:
    with pytest.raises(SieveError, match="1 to 7"):
        sieve.run(make_spec(), stop_after=last)


def test_exhaustive_replays_every_survivor(make_spec: Make) -> None:
    spec = make_spec({"shortlist": {"size": 1, "per_family": 1}})
    assert len(sieve.run(spec).data["ranking"]) == 1
    assert len(sieve.run(spec, exhaustive=True).data["ranking"]) == 4


def test_a_dry_run_counts(make_spec: Make) -> None:
    counts = dry_run(make_spec())
    assert counts["num_candidates"] == 6
    assert [stage["number"] for stage in counts["stages"]] == [1, 2, 3, 4]
    assert counts["num_replays"] == 8  # 4 candidates at 2 levels
    assert counts["estimated_s"] > 0


def test_nothing_fits(make_spec: Make, tmp_path: Path) -> None:
    result = sieve.run(make_spec(model="meta-llama/Llama-3.1-405B-Instruct"), out=tmp_path)
    assert (result.answer["status"], result.exit_code) == ("no_fit", 3)
    assert result.data["ranking"] == []
    assert result.answer["tie_group"] == []
    assert result.answer["fewest_gpus"] is result.answer["cheapest"] is None
    assert set(result.candidates["kind"]) == {"infeasible"}
    assert (tmp_path / "result.json").is_file()
    assert len(result.ranking) == 0


@pytest.mark.parametrize(
    ("slo", "stage"),
    [({"tpot_p99": "1 us"}, 3), ({"ttft_p99": "1 us"}, 4), ({"output_tokens_per_s": 1e6}, 4)],
)
def test_nothing_meets_the_objectives(make_spec: Make, slo: dict[str, Any], stage: int) -> None:
    result = sieve.run(make_spec(slo=slo))
    assert (result.answer["status"], result.exit_code) == ("no_slo", 4)
    assert 1 <= len(result.data["nearest_misses"]) <= 5
    for miss in result.data["nearest_misses"]:
        assert miss["stage"] == stage
        assert {"candidate_id", "observed", "limit"} <= set(miss)
    assert result.answer["cheapest"] is None


def test_a_nearest_miss_of_a_bound_says_which_objective(make_spec: Make) -> None:
    result = sieve.run(make_spec(slo={"ttft_p99": "1 us"}))
    assert all("ttft" in json.dumps(miss) for miss in result.data["nearest_misses"])


def test_between_middle_and_high_the_evidence_is_weak(make_spec: Make, small_run: Any) -> None:
    rows = small_run.data["ranking"]
    mid = min(row["tpot_p99_s"]["mid"] for row in rows)
    high = min(row["tpot_p99_s"]["high"] for row in rows)
    assert mid < high
    result = sieve.run(make_spec(slo={"tpot_p99": (mid + high) / 2}))
    assert (result.answer["status"], result.exit_code) == ("weak_evidence", 5)
    assert result.data["ranking"][0]["verdict"] == "point_only"
    assert "clears" not in {row["verdict"] for row in result.data["ranking"]}
    assert result.answer["fewest_gpus"] is not None
    assert result.answer["tie_group"][0] == result.data["ranking"][0]["candidate_id"]
    for miss in result.data["nearest_misses"]:
        assert miss["off_by_frac"] is None or miss["off_by_frac"] >= 0
    just = sieve.run(make_spec(slo={"tpot_p99": high * 1.000001}))
    assert just.answer["status"] == "answer"
    below = sieve.run(make_spec(slo={"tpot_p99": mid * 0.999}))
    assert (below.answer["status"], below.exit_code) == ("no_slo", 4)


def test_requests_beyond_the_cache_are_infeasible(make_spec: Make) -> None:
    spec = make_spec(
        {
            "model": "Qwen/Qwen3-32B",
            "grid.axes.tp": [1],
            "grid.axes.weight_dtype": ["bf16"],
            "grid.axes.gpu_memory_utilization": [0.85],
            "traffic.synthetic.requests": 20,
            "traffic.synthetic.isl": {"distribution": "uniform", "min": 100, "max": 39_000},
            "slo": {"ttft_p99": "1000 s"},
        }
    )
    result = sieve.run(spec)
    stage = result.data["stages"][4]
    assert stage["reasons"] == {"request_exceeds_cache": 1}
    (row,) = result.candidates.to_dicts()
    assert (row["stage"], row["kind"]) == (5, "infeasible")
    assert row["observed"] > row["limit"] > 0
    assert (result.answer["status"], result.exit_code) == ("no_fit", 3)


def test_a_queue_that_grows_is_no_answer_but_a_near_miss(make_spec: Make) -> None:
    spec = make_spec(
        {
            "grid.axes.tp": [1],
            "grid.axes.weight_dtype": ["bf16"],
            "grid.axes.max_num_seqs": [1],
            "traffic.synthetic.arrival": {"poisson_per_s": 50},
            "slo": {"ttft_p99": "1000 s"},
        }
    )
    result = sieve.run(spec)
    assert result.data["stages"][4]["reasons"] == {"queue_grows_without_bound": 1}
    (row,) = result.candidates.to_dicts()
    assert (row["stage"], row["kind"]) == (5, "misses_slo")
    assert row["observed"] > row["limit"]
    assert (result.answer["status"], result.exit_code) == ("no_slo", 4)
    (miss,) = result.data["nearest_misses"]
    assert miss["candidate_id"] == row["candidate_id"]
    assert len(result.simulations) == 2
    # It waits, so it meets no steady objective: it cannot be off by less than nothing.
    assert miss["off_by_frac"] is None or miss["off_by_frac"] >= 0


@pytest.mark.parametrize(
    "objective",
    [
        "num_gpus", "output_tokens_per_s_per_gpu", "ttft_p99_s", "itl_p95_s", "goodput_per_s",
        ["num_gpus", "e2e_p95_s"], {"ttft_p99_s": 1, "usd_per_mtok": 2.0},
    ],
    ids=str,
)  # fmt: skip
def test_objectives(make_spec: Make, objective: Any) -> None:
    result = sieve.run(make_spec({"rank.objective": objective}))
    assert result.exit_code == 0
    leaders = [row["num_gpus"] for row in result.data["ranking"]]
    if objective == "num_gpus" or isinstance(objective, list):
        assert leaders == sorted(leaders)
    if objective == "ttft_p99_s":
        times = [row["ttft_p99_s"]["mid"] for row in result.data["ranking"]]
        assert times == sorted(times)


def test_whole_nodes_are_paid(make_spec: Make, small_run: Any) -> None:
    result = sieve.run(make_spec({"fleet.billing": "node", "fleet.gpus_per_node": 8}))
    by_gpu = {r["candidate_id"]: r["usd_per_mtok"]["mid"] for r in small_run.data["ranking"]}
    for row in result.data["ranking"]:
        paid = by_gpu[row["candidate_id"]] * 8 / row["num_gpus"]
        assert row["usd_per_mtok"]["mid"] == pytest.approx(paid)


def test_an_unpriced_gpu_is_refused_only_when_money_counts(make_spec: Make) -> None:
    facts = {
        "name": "Bespoke", "memory_gb": 80, "mem_bw_gbs": 2000, "bf16_dense_tflops": 300,
        "scale_up_gbs_unidirectional": 100,
    }  # fmt: skip
    changes = {
        "fleet.gpus": [facts], "fleet.usd_per_gpu_hour": None, "grid.axes.weight_dtype": ["bf16"],
    }  # fmt: skip
    with pytest.raises(SieveError, match="Bespoke"):
        sieve.run(make_spec(changes))
    result = sieve.run(make_spec({**changes, "rank.objective": "num_gpus"}))
    assert result.answer["cheapest"] is None
    assert result.data["ranking"][0]["usd_per_mtok"] == {"low": None, "mid": None, "high": None}
    assert result.data["ranking"][0]["evidence"] == "roofline"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"grid.axes.kv_cache_dtype": ["nvfp4"]}, "nvfp4"),
    ],
)
def test_parts_of_the_contract_that_come_later_are_refused(
    make_spec: Make, changes: dict[str, Any], named: str
) -> None:
    with pytest.raises(NotYetError, match=named):
        sieve.run(make_spec(changes))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"fleet.routing": "session"}, "needs sessions"),
        ({"fleet.routing": "prefix_affinity"}, "which prompts begin alike"),
        ({"fleet.routing": "least_loaded", "grid.axes.pp": [1, 2]}, "without pipelines"),
        (
            {
                "fleet.routing": "least_loaded",
                "traffic.synthetic.arrival": {"closed_loop": 8},
            },
            "open-loop traffic",
        ),
        ({"fleet.routing": "least_loaded", "model": "google/gemma-3-4b-it"}, "kinds of cache"),
    ],
)
def test_a_router_that_cannot_be_replayed_is_refused(
    make_spec: Make, changes: dict[str, Any], named: str
) -> None:
    with pytest.raises(InvalidInput, match=named):
        sieve.run(make_spec(changes))


def test_a_router_that_looks_at_replicas_changes_the_replay(make_spec: Make) -> None:
    changes = {
        "grid.axes.tp": [1], "grid.axes.replicas": [2], "grid.axes.max_num_seqs": [4],
        "traffic.synthetic.arrival": {"poisson_per_s": 40},
    }  # fmt: skip
    dealt = sieve.run(make_spec(changes)).data["ranking"][0]["ttft_p99_s"]["mid"]
    routed = sieve.run(make_spec(changes | {"fleet.routing": "least_loaded"}))
    assert routed.data["ranking"][0]["ttft_p99_s"]["mid"] != dealt


def test_a_grid_without_a_weight_precision(make_spec: Make) -> None:
    result = sieve.run(make_spec({"grid.axes.weight_dtype": None}))
    assert {row["weight_dtype"] for row in result.data["ranking"]} == {"bf16"}


def test_a_folder_named_like_a_catalogue_model_is_not_what_was_evaluated(
    make_spec: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "Qwen" / "Qwen3-8B").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    result = sieve.run(make_spec())
    assert result.data["spec"]["model"] == "Qwen/Qwen3-8B"
    assert all("serve Qwen/Qwen3-8B" in text for text in result.files.values())
    assert "config.json of the user" not in json.dumps(result.data["assumptions"])


def test_prices_not_given_are_marked_as_assumed(make_spec: Make) -> None:
    result = sieve.run(make_spec({"fleet.usd_per_gpu_hour": None}), stop_after=1)
    assumed = json.dumps(result.data["assumptions"])
    assert "USD per GPU-hour" in assumed
    assert "assumed" in assumed
    own = json.dumps(sieve.run(make_spec(), stop_after=1).data["assumptions"])
    assert "USD per GPU-hour" not in own


def test_callbacks_see_every_stage_and_replay(make_spec: Make) -> None:
    stages: list[str] = []
    done: list[tuple[int, int]] = []
    sieve.run(
        make_spec(),
        on_stage=lambda record: stages.append(str(record["name"])),
        progress=lambda n, total: done.append((n, total)),
    )
    assert stages[0] == "validity"
    assert len(stages) == 7
    assert [n for n, _ in done] == list(range(1, 9))
    assert {total for _, total in done} == {8}
