"""The plain rules of the replay against the golden cases of `sched.continuous`.

The cases give seconds; the replay counts whole nanoseconds, so all times are stretched by 1,000 to
stay within the cases' tolerance of 1e-9.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from sieve.arrays import Requests
from sieve.sim.replay import REQUEST_EXCEEDS_CACHE, ReplaySettings, simulate

STRETCH = 1000.0
CASES = [
    case
    for case in json.loads(Path(__file__).with_name("seed_values.json").read_text())["cases"]
    if case["function"] == "sched.continuous"
    and case["inputs"].get("policy", "fcfs") == "fcfs"
    and not case["inputs"].get("preemptive")
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_golden_case(case, tables):
    given, expected = case["inputs"], case["expected"]
    rows = given["requests"]
    order = sorted(range(len(rows)), key=lambda i: (rows[i]["arrival"], i))
    requests = Requests(
        arrival_s=np.array([rows[i]["arrival"] * STRETCH for i in order]),
        input_tokens=np.array([rows[i]["prompt"] for i in order]),
        output_tokens=np.array([rows[i]["output"] for i in order]),
    )
    cost = {k: v * STRETCH for k, v in given["cost"].items()}
    table = tables.affine(
        base=cost["base"],
        per_decode=cost["per_decode"],
        per_prompt=cost["per_prefill_token"],
        per_context=cost["per_context_token"],
        max_tokens=given["token_budget"],
        max_seqs=given["max_num_seqs"],
    )
    settings = ReplaySettings(
        max_num_seqs=given["max_num_seqs"],
        max_num_batched_tokens=given["token_budget"],
        num_gpu_blocks=given.get("blocks") or 10**9,
        block_size=given.get("page_tokens", 16),
        full_reservation=True,
        chunked_prefill=given.get("chunked", True),
    )
    result = simulate(requests, table, settings)
    if "error" in expected:
        assert result.status == REQUEST_EXCEEDS_CACHE
        return
    finish, ttft = np.empty(len(rows)), np.empty(len(rows))
    finish[order] = result.finish_s / STRETCH
    ttft[order] = (result.first_token_s - result.arrival_s) / STRETCH
    assert finish == pytest.approx(expected["finish"], rel=1e-9)
    assert ttft == pytest.approx(expected["ttft"], rel=1e-9)
    assert result.makespan_s / STRETCH == pytest.approx(expected["makespan"], rel=1e-9)
    assert result.num_steps == expected["steps"]
    mean_running = result.num_request_steps / result.num_steps
    if given.get("token_budget", 0) > given["max_num_seqs"]:
        assert mean_running == pytest.approx(expected["mean_running"], rel=1e-9)


def test_there_are_cases():
    assert len(CASES) == 7
