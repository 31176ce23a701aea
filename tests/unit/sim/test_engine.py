"""Scenarios small enough to follow by hand, and laws of the replay for random ones."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sieve.errors import TraceError
from sieve.sim._kernels import engine as kernel
from sieve.sim._kernels.layout import LOG_LENGTH, PREEMPTED, RECORD_TABLES, RECORD_TURNS
from sieve.sim.engine import run_engine, step_arguments
from sieve.sim.recorded import step_records, summary_record
from sieve.sim.scenario import Scenario, read_recording, table_width
from sieve.sim.scenario_input import engine_input, engine_settings, replay_scenario
from sieve.sim.traffic_input import request_input

CONFIG = {
    "block_size": 16,
    "num_gpu_blocks": 64,
    "max_num_seqs": 4,
    "max_num_active_seqs": None,
    "max_num_batched_tokens": 64,
    "max_model_len": 512,
    "enable_chunked_prefill": True,
    "enable_prefix_caching": True,
    "long_prefill_token_threshold": 0,
    "long_prefill_token_threshold_adaptive": False,
    "policy": "fcfs",
    "watermark": 0.0,
    "reserve_full_isl": True,
    "prefill_schedule_interval": 1,
    "async_scheduling": False,
    "pipeline_parallel_size": 1,
    "speculative": None,
    "groups": [{"type": "full"}],
}


def scenario(requests, *, detail="full", time_model=None, **config):
    raw = {
        "name": "test",
        "detail": detail,
        "config": CONFIG | config,
        "requests": [{"id": f"r{i}", "arrival_step": 0} | r for i, r in enumerate(requests)],
    }
    if time_model:
        raw["time_model"] = time_model
        for request in raw["requests"]:
            request.setdefault("arrival_time", request.pop("arrival_step"))
    return Scenario.model_validate(raw)


def replay(case):
    result = replay_scenario(case, RECORD_TABLES if case.detail == "full" else RECORD_TURNS)
    return step_records(case, result), summary_record(case, result)


def scheduled(case):
    return [step["scheduled"] for step in replay(case)[0]]


# ---- By hand


def test_a_prompt_is_cut_to_the_budget_and_then_decodes():
    case = scenario([{"prompt_len": 100, "output_len": 3}])
    assert scheduled(case) == [{"r0": 64}, {"r0": 36}, {"r0": 1}, {"r0": 1}]
    steps, summary = replay(case)
    assert [step["free"] for step in steps] == [59, 56, 56, 56]  # 4, then 7 blocks of 63
    assert steps[-1]["finished"] == {"r0": "length"}
    assert steps[-1]["free_end"] == 63
    assert summary["requests"]["r0"]["first_token_step"] == 1


def test_an_equal_prompt_recomputes_its_last_block():
    case = scenario(
        [
            {"prompt": [["a", 48]], "output_len": 1},
            {"prompt": [["a", 48]], "output_len": 1, "arrival_step": 1},
        ]
    )
    steps, _ = replay(case)
    assert steps[1]["new"] == {"r1": 32}  # two of three whole blocks: one token must be computed
    assert steps[1]["scheduled"] == {"r1": 16}


def test_content_of_an_answer_is_found_by_the_next_turn():
    case = scenario(
        [
            {"prompt": [["a", 20]], "output_len": 29},
            {
                "prompt": [["a", 20], ["out:r0", 29], ["b", 10]],
                "output_len": 1, "after": "r0", "delay_steps": 0, "arrival_step": None,
            },
        ]
    )  # fmt: skip
    _, summary = replay(case)
    # 48 tokens computed: the last token is never computed, so three blocks are registered.
    assert summary["requests"]["r1"]["cached"] == 48


def test_the_last_admitted_is_preempted_and_resumes_with_its_tokens():
    case = scenario(
        [{"prompt_len": 30, "output_len": 20}, {"prompt_len": 30, "output_len": 20}],
        num_gpu_blocks=7, enable_prefix_caching=False,
    )  # fmt: skip
    steps, summary = replay(case)
    assert [step["preempted"] for step in steps if "preempted" in step] == [["r1"]]
    resumed = next(step for step in steps if "resumed" in step)
    assert resumed["resumed"] == {"r1": 0}
    assert resumed["scheduled"]["r1"] > 30
    assert summary["requests"]["r1"]["out"] == 20


def test_a_prompt_larger_than_the_cache_stalls_and_says_who_is_left():
    case = scenario(
        [{"prompt_len": 200, "output_len": 2}, {"prompt_len": 5, "output_len": 2}],
        num_gpu_blocks=8,
    )
    _, summary = replay(case)
    assert summary["stalled"]
    assert summary["left_waiting"] == ["r0", "r1"]
    assert summary["left_running"] == []


def test_a_live_lock_is_an_error():
    # Without the full-sequence check a chunk is admitted, preempts itself and starts again.
    case = scenario(
        [{"prompt_len": 200, "output_len": 2}],
        num_gpu_blocks=8, enable_prefix_caching=False, reserve_full_isl=False,
    )  # fmt: skip
    with pytest.raises(TraceError, match="no progress"):
        replay_scenario(case)


def test_prompts_that_the_front_end_refuses_are_rejected():
    case = scenario(
        [{"prompt_len": 512, "output_len": 1}, {"prompt_len": 511, "output_len": 9}],
        num_gpu_blocks=100, max_num_batched_tokens=512,
    )  # fmt: skip
    steps, summary = replay(case)
    assert steps[0]["rejected"] == ["r0"]
    assert summary["requests"]["r0"]["finish_reason"] == "rejected"
    assert summary["requests"]["r1"]["out"] == 1  # cut at max_model_len


def test_only_rejected_requests_leave_an_idle_record():
    steps, summary = replay(scenario([{"prompt_len": 0, "output_len": 1}]))
    assert steps == [{"step": 0, "rejected": ["r0"], "idle": True}]
    assert summary["steps"] == 0


def test_time_is_the_formula_in_whole_nanoseconds():
    case = scenario([{"prompt_len": 10, "output_len": 2}], time_model={"a": 100, "b": 10, "c": 1})
    steps, summary = replay(case)
    assert [(s["start"], s["end"]) for s in steps] == [(0, 210), (210, 331)]
    assert summary["requests"]["r0"]["finish_time"] == 331


def test_no_requests_at_all():
    steps, summary = replay(scenario([]))
    assert steps == []
    assert summary["requests"] == {}


def test_drafts_past_the_end_are_cut():
    speculative = {"method": "eagle", "k": 3, "accept": [3]}
    case = scenario([{"prompt_len": 10, "output_len": 6}], speculative=speculative)
    steps, summary = replay(case)
    assert [step["scheduled"]["r0"] for step in steps] == [10, 4, 4]
    assert [step.get("accepted") for step in steps] == [None, {"r0": 3}, {"r0": 3}]
    assert summary["requests"]["r0"]["out"] == 6


def test_private_requests_equal_the_scenario():
    rng = np.random.default_rng(3)
    prompt, output = rng.integers(1, 120, 60), rng.integers(1, 40, 60)
    arrival = np.sort(rng.integers(0, 80, 60))
    rows = [
        {"prompt_len": int(p), "output_len": int(o), "arrival_step": int(a)}
        for p, o, a in zip(prompt, output, arrival, strict=True)
    ]
    for caching in (True, False):
        case = scenario(rows, num_gpu_blocks=18, enable_prefix_caching=caching)
        data = request_input(engine_settings(case.config), arrival, prompt, output)
        result, expected = run_engine(data), replay_scenario(case)
        np.testing.assert_array_equal(result.results, expected.results)
        np.testing.assert_array_equal(result.counters, expected.counters)
        assert result.counters[PREEMPTED] > 0
        assert len(result.log) == 0


# ---- Laws


@st.composite
def cases(draw):
    n = draw(st.integers(1, 25))
    block_size = draw(st.sampled_from([4, 16]))
    max_model_len = draw(st.integers(8, 200))
    rows = []
    for i in range(n):
        shared = draw(st.integers(0, 60))
        own = draw(st.integers(1, 80))
        row = {
            "prompt": [[f"doc{draw(st.integers(0, 1))}", shared], [f"in:r{i}", own]],
            "output_len": draw(st.integers(1, 40)),
            "priority": draw(st.integers(0, 2)),
        }
        if i and draw(st.integers(0, 3)) == 0:
            earlier = draw(st.integers(0, i - 1))
            row |= {"after": f"r{earlier}", "delay_steps": draw(st.integers(0, 5))}
            row["arrival_step"] = None
            row["prompt"] = [*rows[earlier]["prompt"], [f"out:r{earlier}", 5], ["more", own]]
        else:
            row["arrival_step"] = draw(st.integers(0, 40))
        rows.append(row)
    is_async = draw(st.booleans())
    groups = draw(
        st.sampled_from(
            [[0], [0], [0], [0, 12], [0, 12, 40], [12], [24, 24]],
        )
    )
    drafter = {"method": draw(st.sampled_from(["ngram", "eagle"])), "k": 2, "accept": [2, 0, 1]}
    stages = draw(st.sampled_from([1, 1, 2, 3]))
    policy = draw(st.sampled_from(["fcfs", "priority"]))
    return scenario(
        rows,
        block_size=block_size,
        max_model_len=max_model_len,
        # Every request fits alone, so none can live-lock.
        num_gpu_blocks=len(groups) * (-(-max_model_len // block_size) + 2)
        + draw(st.integers(1, 20)),
        max_num_seqs=draw(st.integers(1, 8)),
        max_num_batched_tokens=draw(st.integers(8, 100)),
        enable_prefix_caching=draw(st.booleans()),
        policy=policy,
        long_prefill_token_threshold=draw(st.sampled_from([0, 0, 9])),
        long_prefill_token_threshold_adaptive=draw(st.booleans()),
        watermark=draw(st.sampled_from([0.0, 0.0, 0.1])),
        # Equals can preempt each other for ever under priority if prompts are admitted in parts.
        reserve_full_isl=policy == "priority" or draw(st.booleans()),
        prefill_schedule_interval=draw(st.sampled_from([1, 1, 3])),
        async_scheduling=is_async,
        pipeline_parallel_size=stages,
        speculative=drafter if draw(st.booleans()) and (is_async or stages == 1) else None,
        groups=[{"type": "sliding", "window": w} if w else {"type": "full"} for w in groups],
    )


@settings(max_examples=150, deadline=None)
@given(case=cases())
def test_requests_tokens_and_blocks_are_conserved(case):
    steps, summary = replay(case)
    config = case.config
    rows = {row.id: row for row in case.requests}
    ended = [r for step in steps for r in step.get("finished", {})]
    assert len(ended) == len(set(ended))
    assert not summary["stalled"]

    for name, one in summary["requests"].items():
        if one.get("finish_reason") == "length":
            room = config.max_model_len - one["prompt"]
            assert one["out"] == min(rows[name].output_len, room)
            assert one["first_step"] <= one["first_token_step"] <= one["finish_step"]
        else:
            assert one["out"] == 0
            assert name not in ended
    rejected = {
        name for name, one in summary["requests"].items() if one.get("finish_reason") == "rejected"
    }
    never = {name for name, row in rows.items() if never_comes(row, rows, rejected)}
    assert set(ended) | rejected | never == set(rows)

    calls = [step for step in steps if "scheduled" in step]
    assert summary["steps"] == len(calls)
    assert summary["tokens"] == sum(sum(step["scheduled"].values()) for step in calls)
    assert summary["request_steps"] == sum(len(step["scheduled"]) for step in calls)
    usable = config.num_gpu_blocks - 1
    tables = {}
    for step in calls:
        assert all(tokens >= 1 for tokens in step["scheduled"].values())
        assert sum(step["scheduled"].values()) <= config.max_num_batched_tokens
        assert len(step["running"]) <= config.running_limit
        assert set(step["scheduled"]) <= set(step["running"])
        for name in step.get("preempted", ()):
            tables.pop(name, None)
        tables |= step.get("tables", {})
        for name in step.get("finished", {}):
            tables.pop(name, None)
        held = set()
        for table in tables.values():
            for blocks in table if len(config.groups) > 1 else [table]:
                held.update(b for b in blocks if b)
        free = step["free_queue"]
        assert len(free) == len(set(free)) == step["free_end"]
        assert 0 not in free
        assert len(free) + len(held) <= usable
        assert not held & set(free) or len(config.groups) > 1 or config.groups[0].type == "sliding"
    assert not calls or calls[-1]["free_end"] == usable


def never_comes(row, rows, rejected):
    return row.after is not None and (
        row.after in rejected or never_comes(rows[row.after], rows, rejected)
    )


@settings(max_examples=60, deadline=None)
@given(case=cases())
def test_recording_changes_nothing(case):
    silent, loud = replay_scenario(case), replay_scenario(case, RECORD_TABLES)
    np.testing.assert_array_equal(silent.results, loud.results)
    counted = np.arange(len(silent.counters)) != LOG_LENGTH
    np.testing.assert_array_equal(silent.counters[counted], loud.counters[counted])


@settings(max_examples=15, deadline=None)
@given(case=cases())
def test_compiled_equals_interpreted(case):
    data = engine_input(case, RECORD_TABLES)
    compiled = run_engine(data)
    results, counters, log, *_ = kernel.replay.py_func(*step_arguments(data))
    np.testing.assert_array_equal(results, compiled.results)
    np.testing.assert_array_equal(counters, compiled.counters)
    np.testing.assert_array_equal(log[: counters[LOG_LENGTH]], compiled.log)


# ---- The recorded form


def lines(**changes):
    case = {
        "name": "x",
        "note": "",
        "detail": "normal",
        "config": dict(CONFIG),
        "requests": [{"id": "a", "arrival_step": 0, "prompt_len": 5, "output_len": 2}],
    }
    header = {
        "type": "header",
        "schema": "vllm-scheduler-trace/1",
        "vllm_version": "0.33.0",
        "in_flight_batches": 1,
        "scenario": case,
    }
    summary = {"type": "summary", "requests": {}}
    for path, value in changes.items():
        target = header
        *parents, last = path.split("__")
        for key in parents:
            target = target[int(key)] if isinstance(target, list) else target[key]
        target[last] = value
    return [header, {"type": "step", "step": 0}, summary]


def write(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_a_recording_is_read_plain_and_gzip(tmp_path):
    plain = write(tmp_path / "a.jsonl", lines())
    packed = tmp_path / "a.jsonl.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert read_recording(plain).scenario == read_recording(packed).scenario


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema": "vllm-scheduler-trace/2"}, "line 1: schema is .*/2"),
        ({"in_flight_batches": 3}, "in_flight_batches is 3; .* has 1"),
        ({"scenario__config__block_size": 0}, "config.block_size is 0"),
        ({"scenario__config__block_size": "16"}, 'config.block_size is "16"'),
        ({"scenario__config__kv_connector": "x"}, "config.kv_connector is not a key"),
        ({"scenario__config__policy": "lottery"}, 'config.policy is "lottery"'),
        ({"scenario__config__groups": [{"type": "mamba"}]}, 'groups.0.type is "mamba"'),
        ({"scenario__config__groups": [{"type": "sliding"}]}, "groups.0: a window is given"),
        ({"scenario__requests__0__prompt": [["a", 1]]}, "either prompt_len or prompt"),
        ({"scenario__requests__0__arrival_time": 3}, "must be `arrival_step`"),
        ({"scenario__requests__0__after": "b"}, "either arrival_step or after"),
        ({"scenario__requests__0__prompt_len": -1}, "prompt_len is -1"),
        ({"scenario__config__speculative": {"method": "medusa", "k": 1, "accept": [1]}}, "medusa"),
        ({"scenario__config__max_model_len": 10**9}, "max_model_len is 1000000000"),
    ],
)
def test_what_is_no_scenario_is_refused(tmp_path, changes, message):
    path = write(tmp_path / "bad.jsonl", lines(**changes))
    with pytest.raises(TraceError, match=message) as caught:
        read_recording(path, "bad.jsonl")
    assert str(caught.value).startswith("bad.jsonl, line 1: ")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "the file is empty"),
        ("{}\n", "line 1: the first record has type null"),
        ("[1]\n", "line 1: expected a JSON object"),
        ("{nope\n", "line 1: no JSON"),
        ("a,b\n1,2\n", "line 1: no JSON"),
    ],
)
def test_other_files_are_refused(tmp_path, content, message):
    path = tmp_path / "bad.jsonl"
    path.write_text(content)
    with pytest.raises(TraceError, match=message):
        read_recording(path)


def test_faults_behind_the_header_name_their_line(tmp_path):
    header, step, summary = lines()
    for records, message in [
        ([header, step], "line 2: the file ends without"),
        ([header, summary, step], "line 3: a record after the summary"),
        ([header, {"type": "note"}, summary], 'line 2: type is "note"'),
        ([header, {"type": "step"}, summary], "line 2: step is null"),
        ([header, {"type": "summary"}], "line 2: the summary has no"),
    ]:
        with pytest.raises(TraceError, match=message):
            read_recording(write(tmp_path / "bad.jsonl", records))


def test_a_missing_file_and_broken_gzip_are_refused(tmp_path):
    with pytest.raises(TraceError, match="no such file"):
        read_recording(tmp_path / "none.jsonl")
    with pytest.raises(TraceError, match="not a regular file"):
        read_recording(tmp_path)
    broken = tmp_path / "broken.jsonl.gz"
    broken.write_bytes(gzip.compress(json.dumps(lines()[0]).encode())[:40])
    with pytest.raises(TraceError, match="cannot be read"):
        read_recording(broken)


def test_drafts_on_a_synchronous_pipeline_are_refused():
    case = scenario(
        [{"prompt_len": 1, "output_len": 1}],
        pipeline_parallel_size=2, speculative={"method": "ngram", "k": 1, "accept": [1]},
    )  # fmt: skip
    with pytest.raises(TraceError, match="replayed only with async_scheduling"):
        replay_scenario(case)


def test_two_equal_ids_and_tables_too_large_are_refused():
    row = {"prompt_len": 1, "output_len": 1}
    with pytest.raises(TraceError, match="two requests have the id"):
        replay_scenario(scenario([row | {"id": "a"}, row | {"id": "a"}]))
    huge = scenario(
        [{"prompt_len": 9_000_000, "output_len": 1}] * 40,
        block_size=1, max_model_len=10_000_000, max_num_seqs=40,
    )  # fmt: skip
    assert table_width(huge) == 9_000_003
    with pytest.raises(TraceError, match="block tables would need"):
        replay_scenario(huge)
