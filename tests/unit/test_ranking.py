"""Verdicts, order, ties, winners, nearest misses, and what separates the leaders."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest

from sieve.arrays import COMPONENTS
from sieve.errors import SpecError
from sieve.frames import INTERVAL_ENDS, METRICS, bound_column
from sieve.pipeline import EXIT_CODES
from sieve.ranking.answer import nearest_misses, settle, status_of, winners
from sieve.ranking.intervals import CARRYING_SHARE, evidence_shares, log_error, weakest_class
from sieve.ranking.objective import metrics_of, needs_price, sort_keys
from sieve.ranking.verdicts import Limit, limits_of, verdicts
from sieve.spec.slo import parse_slos
from stages import s6_rank

NAN = math.nan


def limits(value: Any) -> Any:
    slos, faults = parse_slos(value)
    assert not faults
    return limits_of(slos)


def frame(*rows: dict[str, Any]) -> pl.DataFrame:
    """Return rows with every metric; a number stands for low, middle and high at once."""
    out = []
    for i, given_row in enumerate(rows):
        row: dict[str, Any] = {
            "candidate_id": f"c{i}", "gpu": "G", "tp": i + 1, "pp": 1,
            "data_parallel_size": 1, "replicas": 1, "num_gpus": 1, "verdict": "clears",
            "tie_group": 1,
        }  # fmt: skip
        for metric in METRICS:
            row |= {metric: 1.0}
            row |= {bound_column(metric, end): 1.0 for end in INTERVAL_ENDS}
        for name, value in given_row.items():
            if name in METRICS:
                low, mid, high = value if isinstance(value, tuple) else (value,) * 3
                row |= {bound_column(name, f"{kind}low"): low for kind in ("", "model_", "noise_")}
                row |= {
                    bound_column(name, f"{kind}high"): high for kind in ("", "model_", "noise_")
                }
                row |= {name: mid}
            else:
                row[name] = value
        out.append(row)
    return pl.DataFrame(out, infer_schema_length=None)


@pytest.mark.parametrize(
    ("slo", "metric", "low_mid_high", "expected"),
    [
        ({"ttft_p99": 2}, "ttft_p99_s", (1.0, 1.5, 2.0), "clears"),
        ({"ttft_p99": 2}, "ttft_p99_s", (1.0, 1.5, 2.000001), "point_only"),
        ({"ttft_p99": 2}, "ttft_p99_s", (1.0, 2.0, 3.0), "point_only"),
        ({"ttft_p99": 2}, "ttft_p99_s", (1.0, 2.000001, 3.0), "misses"),
        ({"ttft_p99": 2}, "ttft_p99_s", (NAN, NAN, NAN), "misses"),
        ({"ttft_p99": 2}, "ttft_p99_s", (None, None, None), "misses"),
        ({"ttft_p99": 2}, "ttft_p99_s", (1.0, 1.5, NAN), "point_only"),
        ({"ttft_p99": 2}, "ttft_p99_s", (1.0, math.inf, math.inf), "misses"),
        ({"output_tokens_per_s": 5}, "output_tokens_per_s", (5.0, 6.0, 7.0), "clears"),
        ({"output_tokens_per_s": 5}, "output_tokens_per_s", (4.0, 5.0, 7.0), "point_only"),
        ({"output_tokens_per_s": 5}, "output_tokens_per_s", (4.0, 4.9, 7.0), "misses"),
        ({"output_tokens_per_s": 5}, "output_tokens_per_s", (NAN, NAN, NAN), "misses"),
        (
            {"attainment": {"share": 0.95, "ttft": 1}}, "slo_attainment",
            (0.95, 0.97, 1.0), "clears",
        ),
        (
            {"attainment": {"share": 0.95, "ttft": 1}}, "slo_attainment",
            (0.94, 0.97, 1.0), "point_only",
        ),
        ({"goodput": {"per_s": 4, "ttft": 1}}, "goodput_per_s", (3.0, 3.9, 5.0), "misses"),
    ],
)  # fmt: skip
def test_a_verdict_is_strict(
    slo: dict[str, Any], metric: str, low_mid_high: tuple[float, float, float], expected: str
) -> None:
    ends = (metric, bound_column(metric, "low"), bound_column(metric, "high"))
    rows = frame({metric: low_mid_high}).cast(dict.fromkeys(ends, pl.Float64))
    assert verdicts(rows, limits(slo)) == [expected]


def test_every_objective_counts() -> None:
    both = limits({"ttft_p99": 2, "tpot_p99": 1})
    rows = frame(
        {"ttft_p99_s": 1.0, "tpot_p99_s": 1.0},
        {"ttft_p99_s": (1.0, 1.0, 9.0), "tpot_p99_s": 1.0},
        {"ttft_p99_s": 1.0, "tpot_p99_s": 9.0},
        {"ttft_p99_s": (1.0, 1.0, 9.0), "tpot_p99_s": (1.0, 9.0, 9.0)},
    )
    assert verdicts(rows, both) == ["clears", "point_only", "misses", "misses"]


@pytest.mark.parametrize(
    "name",
    [
        "usd_per_mtok", "output_tokens_per_s_per_gpu", "output_tokens_per_s", "num_gpus",
        "goodput_per_s", "slo_attainment", "ttft_p99_s", "tpot_mean_s", "e2e_p95_s", "itl_p50_s",
        "e2e_p99_9_s",
    ],
)  # fmt: skip
def test_objectives(name: str) -> None:
    assert metrics_of(name, "spec") == {name: 1.0}
    assert needs_price([name]) == (name == "usd_per_mtok")


@pytest.mark.parametrize(
    ("objective", "complaint"),
    [
        ("usd_per_mtk", "did you mean 'usd_per_mtok'?"),
        ("ttft_p99", "unknown metric"),
        ([], "is empty"),
        ({}, "is empty"),
        (["num_gpus", "speed"], "'speed'"),
        ({"num_gpus": 0.0}, "above 0"),
        ({"num_gpus": -1.0}, "above 0"),
        ({"num_gpus": NAN}, "above 0"),
    ],
)
def test_what_is_no_objective(objective: Any, complaint: str) -> None:
    with pytest.raises(SpecError, match=r"rank\.objective") as caught:
        metrics_of(objective, "spec")
    assert complaint in str(caught.value)


def test_sort_keys() -> None:
    values = {
        "usd_per_mtok": np.array([2.0, 1.0, 4.0]),
        "output_tokens_per_s": np.array([100.0, 200.0, 800.0]),
    }
    (single,) = sort_keys("output_tokens_per_s", values.__getitem__, "spec")
    assert np.argsort(single).tolist() == [2, 1, 0]
    listed = sort_keys(["usd_per_mtok", "output_tokens_per_s"], values.__getitem__, "spec")
    assert [np.argsort(key).tolist() for key in listed] == [[1, 0, 2], [2, 1, 0]]
    weights = {"usd_per_mtok": 2.0, "output_tokens_per_s": 1.0}
    (weighted,) = sort_keys(weights, values.__getitem__, "spec")
    # 2 ln(cost) - ln(tokens): ln(4/100), ln(1/200), ln(16/800)
    assert weighted == pytest.approx(np.log([4 / 100, 1 / 200, 16 / 800]))
    dearer = {"usd_per_mtok": values["usd_per_mtok"] * 7, **values}
    (other_unit,) = sort_keys(weights, dearer.__getitem__, "spec")
    assert np.argsort(other_unit).tolist() == np.argsort(weighted).tolist()


def ranked(objective: Any, *rows: dict[str, Any], slo: Any = None) -> pl.DataFrame:
    slos, _ = parse_slos(slo or {"ttft_p99": 1})
    run = SimpleNamespace(rank=SimpleNamespace(objective=objective))
    context = SimpleNamespace(slos=slos, spec=SimpleNamespace(run=run, source="spec"))
    result = s6_rank.run(frame(*rows).drop("verdict", "tie_group"), context)
    assert len(result.rejected) == 0
    return result.admitted


def test_order_verdict_objective_gpus_cost_id() -> None:
    rows = ranked(
        "ttft_p50_s",
        {"candidate_id": "misses", "ttft_p99_s": 9.0, "ttft_p50_s": 0.1},
        {"candidate_id": "weak", "ttft_p99_s": (1.0, 1.0, 9.0), "ttft_p50_s": 0.1},
        {"candidate_id": "slow", "ttft_p50_s": 3.0},
        {"candidate_id": "large", "ttft_p50_s": 2.0, "num_gpus": 4, "usd_per_mtok": 1.0},
        {"candidate_id": "dear", "ttft_p50_s": 2.0, "num_gpus": 2, "usd_per_mtok": 9.0},
        {"candidate_id": "b", "ttft_p50_s": 2.0, "num_gpus": 2, "usd_per_mtok": 3.0},
        {"candidate_id": "a", "ttft_p50_s": 2.0, "num_gpus": 2, "usd_per_mtok": 3.0},
    )
    assert rows["candidate_id"].to_list() == ["a", "b", "dear", "large", "slow", "weak", "misses"]
    assert rows["verdict"].to_list() == ["clears"] * 5 + ["point_only", "misses"]
    assert rows["tie_group"].to_list() == [1, 1, 1, 1, 2, 3, 4]
    assert rows["rank"].to_list() == rows["tie_group"].to_list()


def test_a_candidate_without_the_metric_comes_last_in_its_verdict() -> None:
    rows = ranked(
        "tpot_p50_s",
        {"candidate_id": "unknown", "tpot_p50_s": NAN},
        {"candidate_id": "known", "tpot_p50_s": 5.0},
    )
    assert rows["candidate_id"].to_list() == ["known", "unknown"]
    assert rows["tie_group"].to_list() == [1, 2]


def test_larger_is_better_for_rates_and_ties_use_the_right_ends() -> None:
    rows = ranked(
        "output_tokens_per_s",
        {"candidate_id": "low", "output_tokens_per_s": (50.0, 60.0, 70.0)},
        {"candidate_id": "close", "output_tokens_per_s": (70.0, 80.0, 90.0)},
        {"candidate_id": "top", "output_tokens_per_s": (80.0, 100.0, 120.0)},
    )
    assert rows["candidate_id"].to_list() == ["top", "close", "low"]
    assert rows["tie_group"].to_list() == [1, 1, 2]


def test_a_list_is_lexicographic() -> None:
    rows = ranked(
        ["num_gpus", "e2e_p99_s"],
        {"candidate_id": "fast", "num_gpus": 2, "e2e_p99_s": 1.0},
        {"candidate_id": "slow", "num_gpus": 1, "e2e_p99_s": 9.0},
        {"candidate_id": "small", "num_gpus": 1, "e2e_p99_s": 2.0},
    )
    assert rows["candidate_id"].to_list() == ["small", "slow", "fast"]


def test_winners_come_from_the_best_verdict_present() -> None:
    table = frame(
        {"verdict": "clears", "num_gpus": 4, "output_tokens_per_s_per_gpu": 9.0,
         "usd_per_mtok": 3.0},
        {"verdict": "clears", "num_gpus": 2, "output_tokens_per_s_per_gpu": 5.0,
         "usd_per_mtok": 2.0},
        {"verdict": "point_only", "num_gpus": 1, "output_tokens_per_s_per_gpu": 99.0,
         "usd_per_mtok": 1.0},
        {"verdict": "misses", "num_gpus": 1, "output_tokens_per_s_per_gpu": 999.0,
         "usd_per_mtok": 0.1},
    )  # fmt: skip
    assert winners(table) == {"fewest_gpus": "c1", "best_per_gpu": "c0", "cheapest": "c1"}
    weak = table.filter(pl.col("verdict") != "clears")
    assert winners(weak) == dict.fromkeys(("fewest_gpus", "best_per_gpu", "cheapest"), "c2")
    none = table.filter(pl.col("verdict") == "misses")
    assert winners(none) == dict.fromkeys(("fewest_gpus", "best_per_gpu", "cheapest"))


def test_without_prices_nothing_is_cheapest() -> None:
    found = winners(frame({"usd_per_mtok": NAN}))
    assert (found["cheapest"], found["fewest_gpus"]) == (None, "c0")


@pytest.mark.parametrize(
    ("names", "kinds", "status", "code"),
    [
        (["clears", "misses"], ["infeasible"], "answer", 0),
        (["point_only", "misses"], ["infeasible"], "weak_evidence", 5),
        (["misses"], ["infeasible"], "no_slo", 4),
        ([], ["infeasible", "misses_slo"], "no_slo", 4),
        ([], ["infeasible"], "no_fit", 3),
        ([], [], "no_fit", 3),
    ],
)
def test_status_and_exit_code(names: list[str], kinds: list[str], status: str, code: int) -> None:
    table = pl.DataFrame({"verdict": pl.Series(names, dtype=pl.String)})
    rejected = pl.DataFrame({"kind": pl.Series(kinds, dtype=pl.String)})
    assert status_of(table, rejected) == status
    assert EXIT_CODES[status] == code


def test_settle_names_the_benchmark_that_separates_the_leaders() -> None:
    table = frame(
        {"usd_per_mtok": 2.0}, {"usd_per_mtok": 3.0}, {"usd_per_mtok": 9.0, "tie_group": 2}
    )
    found = settle(table, "usd_per_mtok", 500)
    assert found is not None
    assert found["candidate_ids"] == ["c0", "c1"]
    assert (found["level"], found["metric"], found["num_requests"]) == (1.0, "usd_per_mtok", 500)
    assert found["decides_at"] == pytest.approx(2.5)
    assert settle(table.filter(pl.col("candidate_id") != "c1"), "usd_per_mtok", 500) is None
    hopeless = table.with_columns(pl.lit("misses").alias("verdict"))
    assert settle(hopeless, "usd_per_mtok", 500) is None
    assert settle(table.clear(), "usd_per_mtok", 500) is None


def test_settle_weighs_the_chance_to_tell_apart_against_gpu_hours() -> None:
    near = {"tie_difference": 0.1, "tie_noise": 0.2, "tie_model": 0.0, "requests_per_s": 2.0}
    table = frame(
        {"usd_per_mtok": 2.0, "requests_per_s": 2.0, "num_gpus": 4},
        {"usd_per_mtok": 2.2, **near, "num_gpus": 12},
        {"usd_per_mtok": 2.3, **near, "num_gpus": 4},
    )
    found = settle(table, "usd_per_mtok", 1000)
    assert found is not None
    assert found["candidate_ids"] == ["c0", "c2"]  # 8 GPUs instead of 16, the same chance
    # noise 0.2 is to be half of the difference 0.1: (2 x 0.2/0.1)^2 = 16 times the requests
    assert found["num_requests"] == 16_000
    assert found["duration_s"] == pytest.approx(8000)  # at 2 a second
    assert found["gpu_hours"] == pytest.approx(8000 * 8 / 3600)
    assert found["chance"] == 1.0  # without model error; noise/4 = 0.05 lies below 0.1


def test_settle_counts_the_spread_of_the_models_error() -> None:
    table = frame(
        {"usd_per_mtok": 2.0},
        {"usd_per_mtok": 2.2, "tie_difference": 0.0, "tie_noise": 0.1, "tie_model": 0.128155},
    )
    found = settle(table, "usd_per_mtok", 1000, 0.9)
    assert found is not None
    # expected difference 0.128, noise to be half of it: (0.2/0.128155)^2 = 2.4355 times as long;
    # it then resolves 0.1/1.5606 = 0.06408; the model's deviation is 0.1 (0.128155/1.28155), so
    # the chance is 2 (1 - Phi(0.6408)) = 0.5217.
    assert found["num_requests"] == 2436
    assert found["chance"] == pytest.approx(0.5217, abs=2e-3)


REJECTED_SCHEMA: dict[str, Any] = {
    "candidate_id": pl.String, "gpu": pl.String, "tp": pl.Int64, "pp": pl.Int64,
    "data_parallel_size": pl.Int64, "replicas": pl.Int64, "num_gpus": pl.Int64,
    "stage": pl.Int64, "reason": pl.String, "observed": pl.Float64, "limit": pl.Float64,
    "unit": pl.String,
}  # fmt: skip


def frame_of_misses(*rows: dict[str, Any]) -> pl.DataFrame:
    return frame(*({"verdict": "misses", **row} for row in rows))


def test_the_nearest_of_all_hold_in_the_middle() -> None:
    rules = limits({"ttft_p99": 2, "output_tokens_per_s": 100})
    table = frame(
        {"verdict": "misses", "ttft_p99_s": 2.1, "output_tokens_per_s": 100.0},
        {"verdict": "point_only", "ttft_p99_s": (1.0, 1.9, 5.0), "output_tokens_per_s": 100.0},
        {
            "verdict": "point_only", "ttft_p99_s": (1.0, 1.9, 2.2),
            "output_tokens_per_s": (80.0, 100.0, 120.0),
        },
    )  # fmt: skip
    found = nearest_misses(table, pl.DataFrame(schema=REJECTED_SCHEMA), rules)
    assert [(row["candidate_id"], row["at"]) for row in found] == [
        ("c2", "pessimistic_end"), ("c1", "pessimistic_end"), ("c0", "middle"),
    ]  # fmt: skip
    assert (found[0]["misses"], found[0]["observed"]) == ("output_tokens_per_s>=100", 80.0)
    assert (found[1]["misses"], found[1]["observed"]) == ("ttft:p99<=2s", 5.0)
    assert found[0]["off_by_frac"] == pytest.approx(0.25)


def test_nearest_misses_by_the_worst_ratio() -> None:
    rules = limits({"ttft_p99": 2, "output_tokens_per_s": 100})
    simulated = frame_of_misses(
        {"ttft_p99_s": 6.0, "output_tokens_per_s": 90.0},  # off by 3
        {"ttft_p99_s": 1.0, "output_tokens_per_s": 80.0},  # off by 1.25
        {"ttft_p99_s": 3.0, "output_tokens_per_s": 100.0},  # off by 1.5
    )
    rejected = pl.DataFrame(
        [
            ["e0", "G", 8, 1, 1, 1, 8, 4, "bound_misses_slo", 8.0, 2.0, "ttft:p99<=2s"],
            ["e1", "G", 9, 1, 1, 1, 9, 4, "bound_misses_slo", 50.0, 100.0, "output_tokens_per_s"],
        ],
        schema=REJECTED_SCHEMA,
        orient="row",
    )
    found = nearest_misses(simulated, rejected, rules)
    assert [row["candidate_id"] for row in found] == ["c1", "c2", "c0", "e1", "e0"]
    assert [row["off_by_frac"] for row in found] == pytest.approx([0.25, 0.5, 2.0, 1.0, 3.0])
    assert found[0]["misses"] == "output_tokens_per_s>=100"
    assert (found[0]["observed"], found[0]["limit"], found[0]["stage"]) == (80.0, 100.0, 5)
    assert (found[1]["observed"], found[1]["limit"]) == (3.0, 2.0)
    assert (found[3]["observed"], found[3]["limit"], found[3]["stage"]) == (50.0, 100.0, 4)


def test_nearest_misses_show_each_family_once_and_at_most_five() -> None:
    rules = limits({"ttft_p99": 2})
    rows = [{"tp": 1 + i // 2, "ttft_p99_s": 3.0 + i} for i in range(14)]
    found = nearest_misses(frame_of_misses(*rows), pl.DataFrame(schema=REJECTED_SCHEMA), rules)
    assert [row["candidate_id"] for row in found] == ["c0", "c2", "c4", "c6", "c8"]
    early = pl.DataFrame(
        [[f"e{i}", "G", 1, 1, 1, 1, 1, 4, "bound_misses_slo", 3.0 + i, 2.0, "x"] for i in range(4)],
        schema=REJECTED_SCHEMA,
        orient="row",
    )
    found = nearest_misses(frame_of_misses(*rows).clear(), early, rules)
    assert [row["candidate_id"] for row in found] == ["e0"]


@pytest.mark.parametrize("metric", ["ttft", "tpot", "itl", "e2e"])
@pytest.mark.parametrize("end", ["low", "high"])
def test_intervals_widen_with_weaker_evidence_and_more_confidence(metric: str, end: Any) -> None:
    classes = [log_error(metric, e, 0.9, end) for e in ("measured", "extrapolated", "roofline")]
    assert 0 < classes[0] < classes[1] < classes[2]
    # Standard normal table: 1.2816 deviations at 90%, 2.3263 at 99%, one-sided.
    ratio = log_error(metric, "measured", 0.99, end) / classes[0]
    assert ratio == pytest.approx(2.3263479 / 1.2815516)


def test_evidence_is_the_weakest_class_with_a_tenth() -> None:
    shares = evidence_shares(
        np.array([6.0, 2.5, 1.0, 0.4, 0.1]),
        {
            name: {kind: 1.0}
            for name, kind in zip(
                COMPONENTS,
                ("measured", "interpolated", "extrapolated", "roofline", "roofline"),
                strict=True,
            )
        },
    )
    assert shares == pytest.approx(
        {"measured": 0.6, "interpolated": 0.25, "extrapolated": 0.1, "roofline": 0.05}
    )
    assert weakest_class(shares) == "extrapolated"
    assert weakest_class({**shares, "roofline": 0.1}) == "roofline"
    assert weakest_class({**shares, "extrapolated": 0.099}) == "interpolated"
    assert CARRYING_SHARE == 0.1
    nothing = evidence_shares(np.zeros(5), {})
    assert sum(nothing.values()) == 0


@pytest.mark.parametrize(
    ("at_most", "expected"),
    [(True, [True, True, False, False]), (False, [False, True, True, False])],
)
def test_a_limit_holds_at_its_value_and_never_for_the_unknown(
    at_most: bool, expected: list[bool]
) -> None:
    limit = Limit("x", at_most, 2.0, "x", "s")
    found = limit.holds([1.0, 2.0, 3.0, float("nan")])
    assert found.dtype == bool
    assert found.tolist() == expected
