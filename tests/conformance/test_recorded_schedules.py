"""The replay against recorded schedules of the real engine, as far as it models them.

Time is made of steps: every step lasts one second, so a step's number is its start in seconds.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from sieve.arrays import Requests
from sieve.sim.replay import ReplaySettings, simulate

FILES = sorted((Path(__file__).parent / "data").glob("*.jsonl.gz"))


def read(path):
    with gzip.open(path, "rt") as lines:
        records = [json.loads(line) for line in lines]
    return records[0]["scenario"], records[-1]


def replay(scenario, tables):
    config, rows = scenario["config"], scenario["requests"]
    clock = scenario.get("time_model")
    key = "arrival_time" if clock else "arrival_step"
    order = sorted(range(len(rows)), key=lambda i: rows[i].get(key, 0))
    prompt = [rows[i].get("prompt_len") or sum(p[-1] for p in rows[i]["prompt"]) for i in order]
    limit = config["max_model_len"]
    requests = Requests(
        arrival_s=np.array([rows[i].get(key, 0) / (1e9 if clock else 1) for i in order], float),
        input_tokens=np.array(prompt),
        output_tokens=np.array(
            [min(rows[i]["output_len"], limit - p) for i, p in zip(order, prompt, strict=True)]
        ),
    )
    # A step with prompts costs context the affine table cannot express: only step clocks are timed.
    table = tables.affine(
        base=1.0,
        max_tokens=config["max_num_batched_tokens"],
        max_seqs=config["max_num_seqs"],
    )
    settings = ReplaySettings(
        max_num_seqs=config["max_num_seqs"],
        max_num_batched_tokens=config["max_num_batched_tokens"],
        num_gpu_blocks=config["num_gpu_blocks"] - 1,  # block 0 is never handed out
        block_size=config["block_size"],
        reserve_full_isl=config["reserve_full_isl"],
        chunked_prefill=config["enable_chunked_prefill"],
    )
    return [rows[i]["id"] for i in order], simulate(requests, table, settings)


@pytest.mark.parametrize("path", [f for f in FILES if "clock" not in f.name], ids=lambda p: p.stem)
def test_schedule_is_the_engines(path, tables):
    scenario, summary = read(path)
    ids, result = replay(scenario, tables)
    recorded = summary["requests"]
    assert result.num_steps == summary["steps"]
    assert result.num_request_steps == summary["request_steps"]
    assert result.num_preemptions.tolist() == [recorded[i]["preemptions"] for i in ids]
    # Results are read one second after their step was scheduled.
    assert (result.finish_s - 1).tolist() == [recorded[i]["finish_step"] for i in ids]
    assert (result.first_token_s - 1).tolist() == [recorded[i]["first_token_step"] for i in ids]
    assert (result.scheduled_s).tolist() == [recorded[i]["first_step"] for i in ids]


def test_the_recordings_preempt():
    totals = [sum(r["preemptions"] for r in read(f)[1]["requests"].values()) for f in FILES]
    assert sum(totals) > 50, "the recordings must exercise preemption"
