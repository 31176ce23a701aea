"""The time that replays take, before they are made."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

import sieve
from sieve import pipeline
from sieve.api import prepare
from sieve.dry import dry_run
from sieve.parallel import LocalExecutor
from sieve.perf.replay_cost import EVENTS, PIPELINE, STEPS, ReplayCost
from sieve.pipeline import exhaustive_cost, run_stages
from sieve.spec import load_spec

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def cost_of(spec) -> ReplayCost:
    context, grid = prepare(load_spec(spec), LocalExecutor(1))
    return exhaustive_cost(run_stages(grid.candidates, context, stop_after=4), context)


def test_every_survivor_and_level_counts(make_spec):
    result = sieve.run(make_spec(), exhaustive=True, stop_after=5)
    cost = cost_of(make_spec())
    assert cost.num_replays == len(result.simulations) > 0
    assert cost.num_candidates * 2 == cost.num_replays
    counts = dry_run(make_spec(), exhaustive=True)
    assert counts["num_replays"] == counts["exhaustive"]["num_replays"] == cost.num_replays


def test_the_parts_add_up_for_a_burst_of_one_candidate(make_spec):
    """100 requests at once: no span, so no iterations are expected before they all came."""
    spec = make_spec(
        {"traffic.synthetic.arrival": {"closed_loop": 1}, "traffic.levels": [1.0],
         "traffic.synthetic.osl": 10, "grid.axes.tp": [1], "grid.axes.weight_dtype": ["bf16"]}
    )  # fmt: skip
    fixed, request, step, engine, _ = EVENTS
    # One user, one engine, 100 answers of ten tokens: at most 1,000 iterations.
    assert cost_of(spec).core_s == pytest.approx(fixed + 100 * request + 1000 * step + engine)
    spec["grid"]["axes"] |= {"pp": [2], "tp": [1]}
    fixed, request, step, engine, _ = PIPELINE
    # Two stages: a call for each of them a token.
    expected = fixed + 100 * request + 2000 * step + engine
    assert cost_of(spec).core_s == pytest.approx(expected)
    spec["grid"]["axes"] |= {"long_prefill_token_threshold": [64]}
    fixed, request, step, engine, pair = STEPS
    expected = fixed + 100 * request + 1000 * step + engine + 1100 * pair
    assert cost_of(spec).core_s == pytest.approx(expected)


def test_seats_that_never_bind_cost_nothing(make_spec):
    few = cost_of(make_spec({"grid.axes.max_num_seqs": [512]}))
    many = cost_of(make_spec({"grid.axes.max_num_seqs": [256, 512, 1024]}))
    assert many.num_replays == 3 * few.num_replays
    assert many.core_s == pytest.approx(few.core_s)


def test_threads_share_all_but_the_interpreter():
    cost = ReplayCost(1, 1, core_s=10.0, serial_s=4.0)
    assert [cost.elapsed_s(n) for n in (1, 2, 8)] == [10.0, 5.0, 4.0]


def test_a_sample_of_kinds_stands_for_all(monkeypatch):
    spec = yaml.safe_load((EXAMPLES / "reference_27b.yaml").read_text(encoding="utf-8"))
    sampled = cost_of(spec)
    monkeypatch.setattr(pipeline, "_KINDS", 10**9)
    whole = cost_of(spec)
    assert (sampled.num_candidates, sampled.num_replays) == (
        whole.num_candidates,
        whole.num_replays,
    )
    assert sampled.core_s == pytest.approx(whole.core_s, rel=0.05)
    assert sampled.core_s != whole.core_s
