"""Values of the stages that can be worked out beside them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest

import sieve
from sieve.arrays import Requests
from sieve.catalog.models import load_model
from sieve.spec import TrafficSpec
from sieve.traces import load_traffic
from stages.s2_memory_fit import _tokens
from stages.s4_shortlist import _of_all


def test_the_mean_batch_counts_every_iteration_of_every_request(
    small_run: Any, make_spec: Any, tmp_path: Path
) -> None:
    """A prompt takes one, or one more where the budget cut it, and each further token one."""
    keys = {k: v for k, v in make_spec()["traffic"].items() if k != "levels"}
    requests = load_traffic(TrafficSpec.model_validate(keys), seed=0, base_dir=tmp_path)
    answers, n = int(requests.output_tokens.sum()), len(requests)
    served = small_run.simulations.filter(
        (pl.col("status") == "") & (pl.col("num_preemptions") == 0)
    )
    assert len(served) > 0
    for row in served.iter_rows(named=True):
        turns = row["mean_batch"] * row["num_steps"]
        assert turns == pytest.approx(round(turns))
        assert answers <= round(turns) <= answers + n
        assert row["mean_batch"] <= row["peak_batch"] <= 64


def objective(metric: str, statistic: str, *, at_most: bool = True) -> Any:
    return SimpleNamespace(metric=metric, statistic=statistic, at_most=at_most)


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        # A quarter of all requests is of the class. If 80 % of them are below a limit, 20 % of all
        # are, whatever the others do; if 80 % of a rate are above one, 20 % of all are.
        (objective("ttft", "p80"), "p20"),
        (objective("output_tokens_per_s_per_user", "p20", at_most=False), "p73.3333"),
        (objective("e2e", "p100"), "p25"),
        (objective("tpot", "p99"), "p33"),
    ],
)
def test_a_percentile_of_a_class_is_one_of_all(wanted: Any, expected: str) -> None:
    # Two of eight are of the class; of those with more than one token, two of six.
    requests = Requests(np.zeros(8), np.ones(8, int), np.array([5, 5, 5, 5, 1, 1, 5, 5]))
    group = SimpleNamespace(members=lambda _: np.arange(8) < 2)
    assert _of_all(wanted, group, requests) == expected


def test_tokens_of_kinds_of_layers_are_those_of_mean_requests() -> None:
    model = load_model("openai/gpt-oss-20b")
    context = SimpleNamespace(is_reference=False, model=model)
    candidates = pl.DataFrame({"block_size": [16, 16]})
    blocks, held, mean = np.array([100, 90]), np.array([7, 9]), np.array([50, 80])
    # 100 blocks hold 14.28 requests of 50 tokens, 90 hold 10 of 80.
    found = _tokens(blocks, held, mean, candidates, context)
    assert found.tolist() == [714, 800]
    plain = SimpleNamespace(is_reference=True, model=model)
    assert _tokens(blocks, held, mean, candidates, plain).tolist() == [1600, 1440]


def test_a_replay_in_detail_has_the_values_of_the_run(small_run: Any, make_spec: Any) -> None:
    row = small_run.simulations.filter(pl.col("level") == 1.0).row(0, named=True)
    found = sieve.replay(make_spec(), row["candidate_id"]).data["metrics"]
    for name in ("peak_kv_usage", "mean_batch", "peak_batch", "num_steps", "makespan_s"):
        assert found[name] == row[name], name
    assert 0 < row["peak_kv_usage"] < 1
