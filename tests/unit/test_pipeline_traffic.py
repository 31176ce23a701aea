"""Whole runs on every kind of traffic: loops, bursts, single requests, single tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import sieve
from sieve.errors import SieveError

Make = Callable[..., dict[str, Any]]
RANKING_METRICS = (
    "output_tokens_per_s", "output_tokens_per_s_per_gpu", "ttft_p50_s", "ttft_p99_s", "tpot_p50_s",
    "tpot_p99_s", "e2e_p99_s", "goodput_per_s", "slo_attainment", "usd_per_mtok",
)  # fmt: skip


def run_with(make_spec: Make, **synthetic: Any) -> Any:
    changes = {f"traffic.synthetic.{key}": value for key, value in synthetic.items()}
    return sieve.run(
        make_spec({"grid.axes.tp": [1], "grid.axes.weight_dtype": ["bf16"], **changes})
    )


def entry(result: Any) -> dict[str, Any]:
    (row,) = result.data["ranking"]
    for metric in RANKING_METRICS:
        low, mid, high = (row[metric][end] for end in ("low", "mid", "high"))
        assert (low is None) == (mid is None) == (high is None)
        assert mid is None or low <= mid <= high, metric
    return dict(row)


def test_closed_loop(make_spec: Make) -> None:
    few = run_with(make_spec, arrival={"closed_loop": 2})
    many = run_with(make_spec, arrival={"closed_loop": 16})
    assert few.exit_code == many.exit_code == 0
    tokens = [entry(result)["output_tokens_per_s"]["mid"] for result in (few, many)]
    assert tokens[1] > 2 * tokens[0]
    levels = few.simulations.sort("level")
    assert levels["level"].to_list() == [0.5, 1.0]
    assert levels["output_tokens_per_s"][0] < levels["output_tokens_per_s"][1]


def test_burst(make_spec: Make) -> None:
    row = entry(run_with(make_spec, arrival={"burst": True}))
    steady = entry(run_with(make_spec))
    assert row["ttft_p99_s"]["mid"] > steady["ttft_p99_s"]["mid"]
    assert row["output_tokens_per_s"]["mid"] > steady["output_tokens_per_s"]["mid"]


def test_one_token_answers_have_no_tpot_and_pass_it_inside_the_gates(make_spec: Make) -> None:
    gates = {
        "attainment": {"share": 0.95, "ttft": "2 s", "tpot": "50 ms"},
        "goodput": {"per_s": 0.5, "ttft": "2 s", "tpot": "50 ms"},
    }
    spec = make_spec({"grid.axes.tp": [1], "grid.axes.weight_dtype": ["bf16"],
                      "traffic.synthetic.osl": 1, "slo": gates})  # fmt: skip
    result = sieve.run(spec)
    row = entry(result)
    assert row["tpot_p99_s"] == {"low": None, "mid": None, "high": None}
    assert (row["slo_attainment"]["mid"], result.exit_code) == (1.0, 0)
    assert row["ttft_p99_s"]["mid"] == pytest.approx(row["e2e_p99_s"]["mid"])
    spec["slo"] = {"tpot_p99": "50 ms"}
    with pytest.raises(SieveError, match="every answer of the traffic has one token") as refused:
        sieve.run(spec)
    assert "slo: found tpot:p99<=50ms" in str(refused.value)


@pytest.mark.parametrize(
    "arrival", [{"poisson_per_s": 2}, {"constant_per_s": 2}, {"burst": True}, {"closed_loop": 3}]
)
def test_a_single_request(make_spec: Make, arrival: dict[str, Any]) -> None:
    result = run_with(make_spec, requests=1, arrival=arrival)
    row = entry(result)
    assert result.exit_code == 0
    assert row["ttft_p50_s"]["mid"] == row["ttft_p99_s"]["mid"] > 0
    assert row["ttft_p99_s"]["mid"] < row["e2e_p99_s"]["mid"]


def test_single_token_prompts_and_answers(make_spec: Make) -> None:
    changes = {"traffic.synthetic.osl": 1, "traffic.synthetic.isl": 1, "grid.axes.tp": [1],
               "grid.axes.weight_dtype": ["bf16"]}  # fmt: skip
    spec = make_spec({**changes, "traffic.synthetic.requests": 1, "slo": {"ttft_p99": "2 s"}})
    result = sieve.run(spec)
    assert result.exit_code == 0
    assert entry(result)["intervals"]["ttft_p99_s"]["noise"]["high"] == pytest.approx(
        entry(result)["ttft_p99_s"]["mid"]
    )


def test_the_seed_draws_the_resamples_and_nothing_that_is_pinned(make_spec: Make) -> None:
    pinned = {"grid.axes.tp": [1], "grid.axes.weight_dtype": ["bf16"],
              "traffic.synthetic.seed": 5}  # fmt: skip
    first, second = (entry(sieve.run(make_spec({**pinned, "seed": seed}))) for seed in (0, 1))
    for metric in ("ttft_p99_s", "tpot_p50_s"):
        assert first[metric]["mid"] == second[metric]["mid"]
        assert first["intervals"][metric]["model"] == second["intervals"][metric]["model"]
    drawn = [row["intervals"]["output_tokens_per_s"]["noise"] for row in (first, second)]
    assert drawn[0] != drawn[1]
