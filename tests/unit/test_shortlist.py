"""Stages 3 and 4: batch, bounds, diversity."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from math import exp
from typing import Any

import numpy as np
import polars as pl
import pytest

from sieve.api import prepare
from sieve.context import RunContext
from sieve.parallel import make_executor
from sieve.pipeline import Outcome, run_stages
from sieve.ranking.intervals import log_error
from sieve.spec import load_spec
from stages import s4_shortlist

Make = Callable[..., dict[str, Any]]


def outcome_of(
    spec: dict[str, Any], stop_after: int = 4, **options: Any
) -> tuple[RunContext, Outcome]:
    context, grid = prepare(load_spec(spec), make_executor("local"), **options)
    return context, run_stages(grid.candidates, context, stop_after=stop_after)


@pytest.fixture
def many(make_spec: Make) -> dict[str, Any]:
    """Four families of at least eight candidates."""
    return make_spec(
        {
            "fleet.max_gpus": 8,
            "grid.axes.tp": [1, 2],
            "grid.axes.replicas": [1, 2],
            "grid.axes.kv_cache_dtype": ["auto", "fp8"],
            "grid.axes.max_num_batched_tokens": [2048, 8192],
            "shortlist": {"size": 6, "per_family": 2},
        }
    )


def families(outcome: Outcome) -> Counter[tuple[Any, ...]]:
    return Counter(outcome.ranked.select("gpu", "tp", "pp", "replicas").rows())


def test_size_and_diversity(many: dict[str, Any]) -> None:
    _, outcome = outcome_of(many)
    assert len(outcome.ranked) == 6
    assert max(families(outcome).values()) == 2
    last = outcome.stages[-1]
    assert last["reasons"] == {"not_selected": last["num_in"] - 6}
    rest = outcome.rejected.filter(stage=4)
    assert set(rest["kind"]) == {"not_selected"}
    assert (rest["observed"] == rest["score"]).all()
    assert set(rest["limit"]) == {outcome.ranked["score"].min()}


def test_everything_is_replayed_when_few_remain_or_when_asked(many: dict[str, Any]) -> None:
    assert len(outcome_of(many, exhaustive=True)[1].ranked) == 32
    many["shortlist"]["exhaustive_below"] = 32
    assert len(outcome_of(many)[1].ranked) == 32
    many["shortlist"]["exhaustive_below"] = 31
    assert len(outcome_of(many)[1].ranked) == 6


def test_a_bound_rejects_only_beyond_the_optimistic_end(make_spec: Make) -> None:
    spec = make_spec({"slo": {"ttft_p99": "1 us"}})
    _, outcome = outcome_of(spec)
    assert outcome.stages[3]["reasons"] == {"bound_misses_slo": 4}
    lost = outcome.rejected.filter(stage=4)
    assert set(lost["kind"]) == {"misses_slo"}
    assert (lost["observed"] > lost["limit"]).all()
    assert set(lost["limit"]) == {1e-6}
    _, outcome = outcome_of(make_spec({"slo": {"output_tokens_per_s": 1e7}}))
    lost = outcome.rejected.filter(stage=4)
    assert (lost["observed"] < lost["limit"]).all()


def test_no_candidate_that_meets_the_objective_when_replayed_was_cut(many: dict[str, Any]) -> None:
    many["slo"] = {"tpot_p99": "1 s", "ttft_p99": "100 s"}
    _, everything = outcome_of(many, stop_after=5, exhaustive=True)
    assert len(everything.ranked) == 32
    middle = {name: everything.ranked[name].median() for name in ("tpot_p99_s", "ttft_p99_s")}
    many["slo"] = {"tpot_p99": middle["tpot_p99_s"], "ttft_p99": middle["ttft_p99_s"]}
    _, cut = outcome_of(many, exhaustive=True)
    thrown_out = set(cut.rejected.filter(kind="misses_slo")["candidate_id"])
    good = everything.ranked.filter(
        (pl.col("tpot_p99_s") <= middle["tpot_p99_s"])
        & (pl.col("ttft_p99_s") <= middle["ttft_p99_s"])
    )
    assert len(good) > 0
    assert not thrown_out & set(good["candidate_id"])


def test_the_plain_batch_by_hand(make_spec: Make) -> None:
    spec = make_spec(
        {
            "engine": "reference",
            "model": {
                "name": "27b", "params": 27e9, "width": 5120, "layers": 64, "heads": 24,
                "kv_layers": 16, "kv_heads": 4, "head_dim": 256,
            },
            "traffic.synthetic.isl": 1000, "traffic.synthetic.osl": 100,
            "slo": {"tpot_p99": "50 ms"},
            "fleet.gpus": [{"name": "card", "like": "H100-SXM-80GB", "memory_gb": 80,
                            "mem_bw_gbs": 3350}],
            "fleet.usd_per_gpu_hour": None,
            "grid.axes.tp": [1], "grid.axes.weight_dtype": ["bf16"],
            "grid.axes.max_num_seqs": [256],
        }
    )  # fmt: skip
    _, outcome = outcome_of(spec)
    row = outcome.ranked.row(0, named=True)
    # Pages: (72e9 - 54e9) / 1,048,576 = 17,166; 172 kept back; ceil(1100 / 16) = 69 a request.
    assert row["num_gpu_blocks"] == 17_166 - 172
    # TPOT: 3.35e12 x 0.05 s - 54e9 bytes are far more than 246 requests of 65,536 x 1,100 bytes.
    assert (row["batch"], row["batch_limit"]) == (16_994 // 69, "pages")
    assert row["batch"] == 246
    # Between the cache of the prompt alone and that of the finished request is the mean read.
    low, high = 54e9 + 246 * 65_536 * 1000, 54e9 + 246 * 65_536 * 1100
    assert low / 3.35e12 <= row["bound_tpot_s"] <= high / 3.35e12
    assert row["score"] == pytest.approx(246 / row["bound_tpot_s"])


@pytest.mark.parametrize(
    ("changes", "batch", "binding"),
    [
        ({"grid.axes.max_num_seqs": [7]}, 7, "max_num_seqs"),
        ({"traffic.synthetic.isl": 20_000, "grid.axes.max_num_seqs": [1000]}, None, "pages"),
    ],
)
def test_what_binds_the_batch(
    make_spec: Make, changes: dict[str, Any], batch: int | None, binding: str
) -> None:
    _, outcome = outcome_of(make_spec({"grid.axes.tp": [1], **changes}), stop_after=3)
    for row in outcome.ranked.iter_rows(named=True):
        assert row["batch_limit"] == binding
        assert batch is None or row["batch"] == batch


def test_a_batch_of_zero_names_the_limit(make_spec: Make) -> None:
    _, outcome = outcome_of(make_spec({"slo": {"tpot_p99": "1 us"}}))
    assert outcome.stages[2]["reasons"] == {"tpot": 4}
    assert set(outcome.rejected.filter(stage=3)["kind"]) == {"misses_slo"}
    spec = make_spec(
        {
            "model": "Qwen/Qwen3-32B", "fleet.gpus": ["H100-SXM-80GB"],
            "grid.axes.tp": [1], "grid.axes.weight_dtype": ["bf16"],
            "grid.axes.gpu_memory_utilization": [0.85],
            "traffic.synthetic.isl": 39_000, "traffic.synthetic.osl": 1000,
        }
    )  # fmt: skip
    _, outcome = outcome_of(spec)
    assert outcome.stages[2]["reasons"] == {"pages": 1}
    (lost,) = outcome.rejected.filter(stage=3).to_dicts()
    assert (lost["kind"], lost["limit"]) == ("infeasible", 40_000.0)
    assert lost["observed"] < 40_000


def test_the_saturation_advisor_may_size_the_batch(make_spec):
    """Its limit is one more: no candidate's batch grows, and some are bound by it."""
    import sieve

    plain = sieve.run(make_spec(), stop_after=3).candidates
    spec = make_spec({"batch_sizing": "slim", "slo": {"e2e_p99": "60 s"}})
    advised = sieve.run(spec, stop_after=3).candidates
    both = plain.join(advised, on="candidate_id", suffix="_slim")
    both = both.drop_nulls(["batch", "batch_slim"])
    assert not both.is_empty()
    assert (both["batch_slim"] <= both["batch"]).all()
    assert set(advised["batch_limit"].drop_nulls()) <= {"pages", "tpot", "max_num_seqs", "slim"}


def test_the_optimistic_end_is_the_lower_one_of_the_weaker_evidence(many: dict[str, Any]) -> None:
    context, outcome = outcome_of(many, stop_after=3)
    confidence = context.spec.run.rank.confidence
    for sign, evidence, end in ((1, "extrapolated", "low"), (-1, "interpolated", "high")):
        ends = s4_shortlist._estimates(outcome.ranked, context, sign=sign).ends
        for found, metric in ((ends.step, "tpot"), (ends.prompt, "ttft")):
            assert found == exp(sign * log_error(metric, evidence, confidence, end))
    assert log_error("tpot", "extrapolated", confidence, "low") != log_error(
        "tpot", "extrapolated", confidence, "high"
    )


def test_of_equal_candidates_the_one_with_more_capacity_goes_first(many: dict[str, Any]) -> None:
    context, outcome = outcome_of(many, stop_after=3)
    scored = s4_shortlist.score(outcome.ranked, context)
    capacity = scored.hopeful["bound_output_tokens_per_s"].to_numpy()
    assert len(np.unique(capacity)) > 1
    # Smaller margins go first.
    assert (np.argsort(scored.margins[-1], kind="stable") == np.argsort(-capacity)).all()
