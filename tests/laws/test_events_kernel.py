"""The kernels without a loop over requests decide as the step kernel does, to the byte.

The step kernel is held to the recordings of the real engine elsewhere; here both get the same
scenarios, the recorded ones and random ones, under a clock in whole nanoseconds and under a
step-time table.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sieve.arrays import RooflineCost
from sieve.sim._kernels import engine, layout
from sieve.sim.engine import (
    EngineResult,
    _result,
    has_events_form,
    has_pipeline_form,
    run_events,
    run_pipeline,
    step_arguments,
)
from sieve.sim.engine_input import EngineInput
from sieve.sim.scenario import Scenario, read_recording
from sieve.sim.scenario_input import engine_input
from sieve.sim.traffic_input import clock_of

FILES = sorted((Path(__file__).parents[1] / "conformance/data/vllm_scheduler").glob("*.gz"))
COLUMNS = [
    layout.OUT, layout.PREEMPTIONS, layout.ARRIVAL, layout.CACHED, layout.FIRST_TOKEN_NS,
    layout.FINISH_NS, layout.REJECTED, layout.SCHEDULED_NS,
]  # fmt: skip
COUNTERS = [i for i in range(layout.NUM_COUNTERS) if i != layout.TIGHT_STEPS]
GROUPS = 12
PER_GROUP = 40


FORMS = ("linear", "straight", "curved", "roofline")


def timed(data: EngineInput, tables: Any, *, form: str, transfer: float = 0.0) -> EngineInput:
    """Return the scenario with a clock: arrivals in steps become microseconds.

    `curved` has attention on grids of several segments, in `roofline` memory or matrices decide.
    """
    if data.settings[layout.CLOCK] == layout.CLOCK_STEPS:
        data = replace(
            data,
            arrival=np.where(data.arrival >= 0, data.arrival * 1000, -1),
            delay=data.delay * 1000,
        )
        data.settings[layout.CLOCK] = layout.CLOCK_LINEAR
        data.settings[layout.STEP_BASE_NS] = 1000
        data.settings[layout.STEP_TOKEN_NS] = 3
        data.settings[layout.STEP_CONTEXT_NS] = 1
    if form == "linear":
        return data
    seats = int(data.settings[layout.MAX_RUNNING])
    costs = tables.affine(
        base=1e-6, per_token=3e-9, per_context=1e-11, per_decode=5e-9, per_prompt=2e-9,
        max_tokens=int(data.settings[layout.TOKEN_BUDGET]), max_seqs=seats, transfer=transfer,
    )  # fmt: skip
    if form != "straight":
        batch, context = np.array([1.0, 3.0, 8.0]), np.array([4.0, 20.0, 50.0, 120.0])
        length = np.array([0.0, 10.0, 40.0, 130.0])
        costs = replace(
            costs, decode_batch=batch, decode_context=context,
            decode_attention_s=1e-9 * np.sqrt(batch)[:, None] * context**1.3,
            prefill_length=length, prefill_attention_s=1e-10 * length**2, prefill_floor_s=4e-8,
            host_mixed_s=1.5e-6, head_s=7e-9 * np.sqrt(np.arange(len(costs.head_s))),
        )  # fmt: skip
    if form == "roofline":
        sweep = 2e-8 * np.minimum(np.arange(len(costs.token_s)), 9.0)
        costs = replace(
            costs,
            roofline=RooflineCost(
                sweep_s=sweep, kv_read_s_per_token=1e-10, kv_write_s_per_token=2e-10,
                linear_s_per_token=2e-8, attention_s_per_pair=3e-12,
            ),
        )  # fmt: skip
    data.settings[layout.CLOCK] = layout.CLOCK_TABLE
    longest = int((data.prompt + data.output).max(initial=0))
    return replace(data, clock=clock_of(costs, seats, longest))


def check(data: EngineInput) -> Any:
    """Replay with the step kernel and with the other, with and without runs of calls at once."""
    expected = _result(engine.replay(*step_arguments(data)))
    for macro in (1, 0):
        data.settings[layout.MACRO] = macro
        got = run_events(data)
        assert got is not None
        if expected.counters[layout.STATUS] == layout.STATUS_LIVE_LOCK:
            assert got.counters[layout.STATUS] == layout.STATUS_LIVE_LOCK
            continue
        assert_equal(got, expected)
    return expected


def assert_equal(got: EngineResult, expected: EngineResult) -> None:
    np.testing.assert_array_equal(got.results[:, COLUMNS], expected.results[:, COLUMNS])
    np.testing.assert_array_equal(got.counters[COUNTERS], expected.counters[COUNTERS])
    for name in ("component_s", "gaps", "samples", "left_waiting", "left_running"):
        assert getattr(got, name).tobytes() == getattr(expected, name).tobytes(), name


@pytest.mark.parametrize("form", FORMS)
def test_recorded_scenarios(tables, form):
    inputs = [timed(engine_input(read_recording(f).scenario), tables, form=form) for f in FILES]
    fitting = [data for data in inputs if has_events_form(data)]
    assert len(fitting) >= 50
    preempted = sum(int(check(data).counters[layout.PREEMPTED]) for data in fitting)
    assert preempted > 500, "the scenarios must exercise preemption"


def rows_of(rng: random.Random) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    spread, now = rng.choice([3, 10, 40, 150]), 0
    for i in range(rng.randint(1, rng.choice([6, 30, 80]))):
        row: dict[str, Any] = {"id": f"r{i}", "output_len": rng.randint(1, rng.choice([2, 10, 60]))}
        length = rng.randint(1, rng.choice([8, 30, 120]))
        if rng.random() < 0.35:
            row["prompt_len"] = length
        else:
            row["prompt"] = [
                [rng.choice(["s", "s", "u", "v", f"x{i}"]), rng.randint(1, max(1, length // 2))]
                for _ in range(rng.randint(1, 3))
            ]
        if i and rng.random() < 0.25:
            before = rows[rng.randrange(i)]
            row |= {"after": before["id"], "delay_steps": rng.randint(0, 5)}
            if "prompt" in before and rng.random() < 0.6:
                answer = [f"out:{before['id']}", before["output_len"]]
                row["prompt"] = [*before["prompt"], answer, [f"y{i}", rng.randint(1, 10)]]
                row.pop("prompt_len", None)
        else:
            now += rng.randint(0, spread) if rng.random() < 0.7 else 0
            row["arrival_step"] = now // 8
        rows.append(row)
    return rows


def random_case(seed: int, stages: int = 1) -> EngineInput:
    rng = random.Random(seed)
    size, longest = rng.choice([2, 4, 4, 16]), rng.randint(16, 200)
    seats = rng.choice([1, 2, 3, 5, 8, 16])
    least = -(-longest // size)
    config = {
        "block_size": size,
        "num_gpu_blocks": rng.choice([least + 2, least + rng.randint(1, 20), 3 * least, 1000]),
        "max_num_seqs": seats,
        "max_num_active_seqs": None,
        "max_num_batched_tokens": max(seats, rng.randint(4, rng.choice([16, 64, 200]))),
        "max_model_len": longest,
        "enable_chunked_prefill": rng.random() < 0.85,
        "enable_prefix_caching": rng.random() < 0.7,
        "long_prefill_token_threshold": 0,
        "long_prefill_token_threshold_adaptive": False,
        "policy": "fcfs",
        "watermark": rng.choice([0, 0, 0.1]),
        "reserve_full_isl": rng.random() < 0.8,
        "prefill_schedule_interval": 1,
        "async_scheduling": rng.random() < 0.5,
        "pipeline_parallel_size": stages,
        "speculative": None,
        "groups": [{"type": "full"}],
    }
    case = {"name": "random", "detail": "normal", "config": config, "requests": rows_of(rng)}
    data = engine_input(Scenario.model_validate(case))
    data.settings[layout.PATIENCE] = 5000
    if rng.random() < 0.15:
        data.settings[layout.MAX_WAIT_NS] = rng.choice([1000, 20_000, 100_000])
    if rng.random() < 0.15 and all("after" not in row for row in case["requests"]):
        data.settings[layout.USERS] = rng.randint(1, 8)
    if rng.random() < 0.1:
        data.settings[layout.FULL_RESERVATION] = 1
    return data


@pytest.mark.parametrize("group", range(GROUPS))
def test_random_scenarios(tables, group):
    checked = preempted = hits = 0
    for seed in range(group * PER_GROUP, (group + 1) * PER_GROUP):
        data = timed(random_case(seed), tables, form=FORMS[seed % 4])
        if has_events_form(data):
            result = check(data)
            checked += 1
            preempted += int(result.counters[layout.PREEMPTED])
            hits += int(result.results[:, layout.CACHED].clip(0).sum())
    assert checked > PER_GROUP // 2
    assert preempted > 0
    assert hits > 0


def test_what_it_cannot_decide_goes_to_the_step_kernel(tables):
    data = timed(random_case(3), tables, form="straight")
    assert has_events_form(data)
    for column, value in (
        (layout.PRIORITY, 1), (layout.THRESHOLD, 8), (layout.PREFILL_INTERVAL, 2),
        (layout.PIPELINE, 2), (layout.MACRO, 0), (layout.RECORD, layout.RECORD_STEPS),
        (layout.MAX_RUNNING, 10**6),
    ):  # fmt: skip
        before = data.settings[column]
        data.settings[column] = value
        assert not has_events_form(data)
        data.settings[column] = before
    assert has_events_form(data)


def test_a_prompt_with_text_still_being_generated_goes_to_the_step_kernel():
    rows = [
        {"id": "a", "arrival_step": 0, "prompt_len": 8, "output_len": 40},
        {"id": "b", "arrival_step": 5, "prompt": [["in:a", 8], ["out:a", 20]], "output_len": 2},
    ]
    config = {
        "block_size": 4, "num_gpu_blocks": 100, "max_num_seqs": 4, "max_num_active_seqs": None,
        "max_num_batched_tokens": 64, "max_model_len": 200, "enable_chunked_prefill": True,
        "enable_prefix_caching": True, "long_prefill_token_threshold": 0,
        "long_prefill_token_threshold_adaptive": False, "policy": "fcfs", "watermark": 0.0,
        "reserve_full_isl": True, "prefill_schedule_interval": 1, "async_scheduling": False,
        "pipeline_parallel_size": 1, "speculative": None, "groups": [{"type": "full"}],
    }  # fmt: skip
    case = {"name": "early", "detail": "normal", "config": config, "requests": rows}
    data = engine_input(Scenario.model_validate(case))
    data.settings[layout.CLOCK] = layout.CLOCK_LINEAR
    assert data.shared.early_output
    assert not has_events_form(data)
    rows[1] |= {"after": "a", "delay_steps": 1}
    del rows[1]["arrival_step"]
    data = engine_input(Scenario.model_validate(case))
    data.settings[layout.CLOCK] = layout.CLOCK_LINEAR
    assert has_events_form(data)


@pytest.mark.parametrize("group", range(GROUPS))
def test_random_pipelines(tables, group):
    decided = left = ahead = seated = 0
    for seed in range(group * PER_GROUP, (group + 1) * PER_GROUP):
        transfer = (0.0, 3e-7)[seed // 4 % 2]
        data = random_case(seed, stages=2 + seed % 3)
        data = timed(data, tables, form=FORMS[seed % 4], transfer=transfer)
        if not has_pipeline_form(data):
            continue
        got = run_pipeline(data)
        expected = _result(engine.replay(*step_arguments(data)))
        if got is None:
            left += 1
            status = expected.counters[layout.STATUS]
            assert status != 0 or expected.counters[layout.PREEMPTED] > 0
            continue
        decided += 1
        ahead += int(data.settings[layout.ASYNC])
        seated += int(expected.counters[layout.PEAK_RUNNING] == data.settings[layout.MAX_RUNNING])
        assert_equal(got, expected)
    assert decided > PER_GROUP // 5
    assert min(left, ahead, seated) > 0


def test_a_pipeline_that_shares_prompts_goes_step_by_step(tables):
    data = timed(random_case(4, stages=2), tables, form="straight")
    data.settings[[layout.CACHING, layout.FULL_RESERVATION]] = 0
    assert has_pipeline_form(data)
    for column, value in (
        (layout.PRIORITY, 1), (layout.THRESHOLD, 8), (layout.FULL_RESERVATION, 1),
        (layout.PIPELINE, 1), (layout.MACRO, 0), (layout.RECORD, layout.RECORD_STEPS),
    ):  # fmt: skip
        before = data.settings[column]
        data.settings[column] = value
        assert not has_pipeline_form(data)
        data.settings[column] = before
    data.settings[layout.CACHING] = 1
    assert has_pipeline_form(data) == (data.shared.num_keys == 0)
