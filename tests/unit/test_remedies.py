"""What would turn a near miss into an answer, and that every proposal is what a run would find."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import polars as pl
import pytest

import sieve
from sieve.api import prepare
from sieve.grid import changed
from sieve.parallel import LocalExecutor
from sieve.remedies import changes_of
from sieve.report.answer import fix_words
from sieve.spec import load_spec

Make = Callable[..., dict[str, Any]]
ONE: dict[str, Any] = {"grid.axes.tp": [1], "grid.axes.weight_dtype": ["bf16"]}


def rows_of(spec: dict[str, Any]) -> tuple[Any, Any]:
    return prepare(load_spec(spec), LocalExecutor())


@pytest.mark.parametrize(
    ("axis", "value"),
    [
        ("replicas", 2), ("tp", 2), ("kv_cache_dtype", "fp8"), ("weight_dtype", "fp8"),
        ("max_num_seqs", 32), ("max_num_batched_tokens", 4096), ("weight_dtype", "int4"),
    ],
)  # fmt: skip
def test_a_changed_candidate_is_the_grids_own(make_spec: Make, axis: str, value: Any) -> None:
    context, grid = rows_of(make_spec(ONE))
    wanted = rows_of(make_spec({**ONE, f"grid.axes.{axis}": [value]}))[1].candidates
    found = changed(grid.candidates, {axis: value}, context.options)
    assert found.select(sorted(found.columns)).equals(wanted.select(sorted(wanted.columns)))


def test_the_id_of_a_changed_candidate_names_the_block_of_one_rank(make_spec: Make) -> None:
    changes = {**ONE, "grid.axes.block_size": [16], "grid.axes.decode_context_parallel_size": [2],
               "grid.axes.tp": [16]}  # fmt: skip
    context, grid = rows_of(make_spec(changes))
    found = changed(grid.candidates, {"replicas": 2}, context.options)
    wanted = rows_of(make_spec({**changes, "grid.axes.replicas": [2]}))[1].candidates
    assert found["candidate_id"].to_list() == wanted["candidate_id"].to_list()


def test_what_is_tried(make_spec: Make) -> None:
    context, grid = rows_of(make_spec(ONE))
    tried = list(changes_of(grid.candidates.row(0, named=True), context))
    assert dict(tried) == {
        "one more replica": {"replicas": 2},
        "tensor parallel 2": {"tp": 2},
        "FP8 KV cache": {"kv_cache_dtype": "fp8"},
        "FP8 weights": {"weight_dtype": "fp8"},
        "max_num_seqs 32": {"max_num_seqs": 32},
        "max_num_seqs 128": {"max_num_seqs": 128},
        "max_num_batched_tokens 1024": {"max_num_batched_tokens": 1024},
        "max_num_batched_tokens 4096": {"max_num_batched_tokens": 4096},
    }


def test_more_tensor_ranks_keep_experts_on_all_ranks(make_spec: Make) -> None:
    context, grid = rows_of(make_spec(ONE))
    row = grid.candidates.row(0, named=True) | {"tp": 2, "data_parallel_size": 2, "ep": 4}
    assert dict(changes_of(row, context))["tensor parallel 4"] == {"tp": 4, "ep": 8}


def test_a_fix_is_what_a_run_of_it_finds(make_spec: Make) -> None:
    # A queue that grows on one replica of one sequence at a time.
    spec = make_spec({**ONE, "grid.axes.max_num_seqs": [1], "slo": {"ttft_p99": "1000 s"},
                      "traffic.synthetic.arrival": {"poisson_per_s": 12}})  # fmt: skip
    result = sieve.run(spec)
    (miss,) = result.data["nearest_misses"]
    assert miss["num_tried"] >= 6
    fix = miss["fixes"][0]
    assert fix["verdict"] == "clears"
    assert fix["num_gpus"] == min(f["num_gpus"] for f in miss["fixes"])
    spec["grid"]["axes"] |= {
        axis: [value]
        for words, values in changes_of(result.candidates.row(0, named=True), rows_of(spec)[0])
        for axis, value in values.items()
        if words == fix["change"]
    }
    again = sieve.run(spec)
    assert again.answer["status"] == "answer"
    (row,) = again.data["ranking"]
    assert row["candidate_id"] == fix["candidate_id"]
    assert row["ttft_p99_s"]["mid"] == fix["observed"]


def test_a_fix_beyond_the_fleet_says_so_and_comes_last_of_its_verdict(make_spec: Make) -> None:
    run = sieve.run(make_spec({**ONE, "fleet.max_gpus": 1}))
    tpot = run.data["ranking"][0]["tpot_p99_s"]
    # One GPU of BF16 is just too slow; two, or FP8, halve the weights that each step reads.
    result = sieve.run(
        make_spec({**ONE, "fleet.max_gpus": 1, "slo": {"tpot_p99": tpot["mid"] * 0.95}})
    )
    (miss,) = result.data["nearest_misses"]
    assert (miss["at"], miss["stage"]) == ("middle", 5)
    order = [(f["verdict"], f["exceeds_fleet"]) for f in miss["fixes"]]
    assert order == sorted(order)  # `clears` before `point_only`, then within the fleet
    assert {f["change"] for f in miss["fixes"]} & {"FP8 weights", "tensor parallel 2"}
    for f in miss["fixes"]:
        assert f["exceeds_fleet"] == (f["num_gpus"] > 1)
        assert f["observed"] <= f["limit"]


def test_what_holds_in_the_middle_misses_at_the_pessimistic_end(make_spec: Make) -> None:
    run = sieve.run(make_spec(ONE))
    tpot = run.data["ranking"][0]["tpot_p99_s"]
    limit = (tpot["mid"] + tpot["high"]) / 2
    result = sieve.run(make_spec({**ONE, "slo": {"tpot_p99": limit}}))
    assert result.answer["status"] == "weak_evidence"
    (miss,) = result.data["nearest_misses"]
    assert (miss["at"], miss["observed"]) == ("pessimistic_end", tpot["high"])
    assert miss["fixes"]
    assert all(f["verdict"] == "clears" for f in miss["fixes"])


def test_where_nothing_helps_the_nearest_is_shown(make_spec: Make) -> None:
    result = sieve.run(make_spec({**ONE, "slo": {"tpot_p99": "1 us"}}))
    (miss,) = result.data["nearest_misses"]
    (fix,) = miss["fixes"]
    assert fix["verdict"] == "misses"
    assert fix["num_gpus"] is None  # not even one request a batch is fast enough
    assert fix_words(miss) == [f"none of {miss['num_tried']} small changes can serve this load"]


def test_an_answer_needs_no_fix(small_run: Any) -> None:
    assert small_run.data["nearest_misses"] == []


def test_words_of_a_fix() -> None:
    fix = {
        "change": "one more replica", "verdict": "clears", "num_gpus": 4, "exceeds_fleet": True,
        "limit_text": "ttft:p99<=2s", "observed": 1.5, "limit": 2.0, "unit": "s",
    }  # fmt: skip
    miss: dict[str, Any] = {"num_tried": 8, "fixes": [fix], "at": "middle"}
    assert fix_words(miss) == [
        "one more replica (4 GPUs, more than the fleet has) clears every objective; "
        "tightest ttft:p99<=2s: 1.50 s"
    ]
    fix |= {"verdict": "misses", "observed": 3.0, "num_gpus": 1, "exceeds_fleet": False}
    assert fix_words(miss) == [
        "none of 8 small changes is enough; one more replica (1 GPU) comes nearest with "
        "ttft:p99<=2s: 3.00 s, 50 % above"
    ]
    assert fix_words({"fixes": []}) == fix_words({}) == []


def test_frames_of_fixes_are_no_part_of_the_run(make_spec: Make) -> None:
    result = sieve.run(make_spec({**ONE, "slo": {"tpot_p99": "1 us"}}))
    assert len(result.candidates) == 1
    assert not any(c.startswith("resamples") for c in result.candidates.columns)
    assert isinstance(result.candidates, pl.DataFrame)
