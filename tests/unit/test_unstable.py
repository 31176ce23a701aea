"""A candidate whose queue grows at level 1.0 is not replayed above it."""

from __future__ import annotations

import polars as pl
import pytest
from typer.testing import CliRunner

import sieve
from sieve.cli.main import app
from sieve.frames import UNSTABLE_BELOW
from stages import s5_simulate
from stages.s5_simulate import MAX_GROWTH

LEVELS = [0.05, 1.0, 1.25, 1.5]


@pytest.fixture(scope="module")
def overloaded(make_spec, tmp_path_factory):
    """A run in which small deployments drown at level 1.0 and large ones do not."""
    spec = make_spec(
        {
            "traffic.synthetic.requests": 400,
            "traffic.synthetic.arrival": {"poisson_per_s": 60},
            "traffic.levels": LEVELS,
            "grid.axes.tp": [1, 4],
            "grid.axes.weight_dtype": ["bf16"],
            "grid.axes.max_num_seqs": [4, 256],
            "fleet.max_gpus": 4,
        },
        slo={"ttft_p99": "2000 s"},
    )
    return sieve.run(spec, out=tmp_path_factory.mktemp("over") / "run", exhaustive=True)


def growing(result) -> set[str]:
    at_one = result.simulations.filter(pl.col("level") == 1.0)
    return set(at_one.filter(pl.col("queue_growth") > MAX_GROWTH)["candidate_id"])


def test_only_levels_above_are_left_out(overloaded) -> None:
    rows = overloaded.simulations
    unstable = growing(overloaded)
    assert 0 < len(unstable) < rows["candidate_id"].n_unique()
    skipped = rows.filter(pl.col("status") == UNSTABLE_BELOW)
    assert set(skipped["candidate_id"]) == unstable
    assert sorted(skipped["level"].unique()) == [1.25, 1.5]
    assert len(skipped) == 2 * len(unstable)
    assert len(rows) == len(LEVELS) * rows["candidate_id"].n_unique()
    assert rows["level"].to_list() == LEVELS * rows["candidate_id"].n_unique()


def test_what_was_not_replayed_has_no_numbers(overloaded) -> None:
    skipped = overloaded.simulations.filter(pl.col("status") == UNSTABLE_BELOW)
    kept = {"candidate_id", "level", "replay_of", "status"}
    for name in set(skipped.columns) - kept:
        assert skipped[name].is_null().all(), name


def test_what_was_replayed_is_as_ever(overloaded, make_spec, monkeypatch) -> None:
    monkeypatch.setattr(s5_simulate, "MAX_GROWTH", float("inf"))
    spec = {k: v for k, v in overloaded.data["spec"].items() if k != "slim"}
    everything = sieve.run(spec, exhaustive=True).simulations
    assert (everything["status"] == "").all()
    shown = overloaded.simulations.filter(pl.col("status") == "").drop("replay_of")
    same = everything.drop("replay_of").join(
        shown.select("candidate_id", "level"), on=["candidate_id", "level"], maintain_order="right"
    )
    assert same.equals(shown)


def test_a_candidate_that_is_not_replayed_further_is_explained(overloaded) -> None:
    id_ = sorted(growing(overloaded))[0]
    shown = CliRunner().invoke(app, ["explain", str(overloaded.folder), id_])
    assert shown.exit_code == 0, shown.output
    assert "not replayed where the queue grows at level 1 already" in shown.output
    assert "queue_grows_without_bound" in shown.output


def test_progress_counts_every_level(make_spec) -> None:
    seen = []
    spec = make_spec({"traffic.levels": LEVELS})
    sieve.run(spec, exhaustive=True, progress=lambda done, total: seen.append((done, total)))
    done, totals = [d for d, _ in seen], {t for _, t in seen}
    assert done == sorted(done)
    assert len(totals) == 1
    assert done[-1] == totals.pop()
