"""Static and continuous batching against schedules by hand, loops written differently, and laws."""

from __future__ import annotations

from fractions import Fraction
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sieve.errors import InvalidInput
from sieve.formulas import sched_batching
from sieve.formulas.sched_batching import continuous, static

quick = settings(deadline=None, derandomize=True, max_examples=150)
KEYS = ("base", "per_decode", "per_prefill_token", "per_context_token")
Row = tuple[float, int, int, int]  # arrival, prompt, output, priority


def cost(*values: float) -> dict[str, float]:
    return dict(zip(KEYS, (*values, 0.0, 0.0, 0.0, 0.0), strict=False))


UNIT = cost(1.0)


def rows(*triples: tuple[float, int, int]) -> list[dict[str, Any]]:
    return [{"arrival": a, "prompt": p, "output": o} for a, p, o in triples]


def as_requests(found: list[Row]) -> list[dict[str, Any]]:
    return [{"arrival": a, "prompt": p, "output": o, "priority": q} for a, p, o, q in found]


# Eighths are exact in binary, so loops over fractions and over floats agree on who has arrived.
EIGHTHS = st.integers(0, 80).map(lambda i: i / 8)
ROW = st.tuples(EIGHTHS, st.integers(1, 40), st.integers(1, 12), st.integers(-2, 2))
ROWS = st.lists(ROW, min_size=1, max_size=9)
NOW = ROWS.map(lambda found: [(0, p, o, q) for _, p, o, q in found])
COST = st.tuples(*[st.integers(0, 8).map(lambda i: i / 8)] * 4).map(lambda c: cost(*c))


# --- by hand ---------------------------------------------------------------------------------


def test_a_chunked_schedule_by_hand() -> None:
    """Budget 4, two seats; A 6+2, B 3+1, C 2+2.

    1: A 4. 2: A 2 (token 1), B 2. 3: A decodes, ends; B 1 (token 1), ends; no seat for C.
    4: C 2 (token 1). 5: C decodes, ends.
    """
    found = continuous({
        "requests": rows((0, 6, 2), (0, 3, 1), (0, 2, 2)),
        "max_num_seqs": 2, "token_budget": 4, "cost": UNIT,
    })  # fmt: skip
    assert found["finish"] == [3, 3, 5]
    assert found["ttft"] == [2, 3, 4]
    assert (found["steps"], found["mean_running"]) == (5, 7 / 5)
    assert (found["makespan"], found["output_tok_s"]) == (5, 1.0)


def test_the_cost_of_each_iteration_by_hand() -> None:
    """One request 3+3: prompt pass, then decoders that read 4 and 5 tokens."""
    found = continuous({
        "requests": rows((2, 3, 3)), "max_num_seqs": 1, "token_budget": 8,
        "cost": cost(1, 10, 100, 1000),
    })  # fmt: skip
    ends = list(accumulate([1 + 300, 1 + 10 + 4000, 1 + 10 + 5000], initial=2))
    assert found["ttft"] == [ends[1] - 2]
    assert found["finish"] == [ends[3]]
    assert found["e2e"] == [found["makespan"]] == [ends[3] - 2]


def test_idle_time_is_jumped_over() -> None:
    found = continuous({
        "requests": rows((100, 1, 1), (5, 1, 1)), "max_num_seqs": 4, "token_budget": 8,
        "cost": UNIT,
    })  # fmt: skip
    assert found["finish"] == [101, 6]
    assert (found["steps"], found["makespan"], found["mean_running"]) == (2, 96, 1)


def test_the_head_of_the_line_blocks_but_a_passed_over_request_does_not() -> None:
    """A holds 2 of 3 blocks; B needs 2 and waits; C needs 1.

    In line C waits behind B. Preemptive seating passes over B, whose blocks are lacking.
    """
    requests = rows((0, 30, 2), (1, 30, 2), (1, 14, 2))
    common = {"requests": requests, "max_num_seqs": 3, "token_budget": 64, "cost": UNIT}
    line = continuous({**common, "blocks": 3})
    assert line["finish"] == [2, 4, 4]
    seats = continuous({**common, "blocks": 3, "policy": "srtf", "preemptive": True})
    # At 1: A has 1 left and keeps its seat; B, first by id, finds one block; C takes it.
    assert seats["finish"] == [2, 4, 3]


def test_unchunked_a_long_prompt_waits_for_the_budget() -> None:
    """A decodes and leaves 7 of 8; B's prompt of 8 waits although C's would fit."""
    found = continuous({
        "requests": rows((0, 8, 3), (0, 8, 1), (0, 1, 1)),
        "max_num_seqs": 3, "token_budget": 8, "cost": UNIT, "chunked": False,
    })  # fmt: skip
    assert found["ttft"] == [1, 4, 5]


def test_a_preempted_request_keeps_its_prompt() -> None:
    """One seat, budget 4. A 8+3 runs two chunks; B 4+1 comes at 1 and takes the seat once."""
    found = continuous({
        "requests": rows((0, 8, 3), (1, 4, 1)),
        "max_num_seqs": 1, "token_budget": 4, "cost": UNIT, "policy": "srtf", "preemptive": True,
    })  # fmt: skip
    assert found["finish"] == [5, 2]
    assert found["ttft"] == [3, 1]
    assert found["steps"] == 5


def test_an_arrival_that_rounding_puts_late_is_not_missed() -> None:
    """Ten steps of 0.1 end at 0.9999999999999999; the request of second 1 is there."""
    found = continuous({
        "requests": rows((0, 1, 11), (1, 1, 1)), "max_num_seqs": 2, "token_budget": 8,
        "cost": cost(0.1),
    })  # fmt: skip
    assert found["ttft"][1] == pytest.approx(0.1)


def test_the_origin_of_time_does_not_matter() -> None:
    """The second request comes 1 ms after the first iteration has begun, not with it."""
    for start in (0, -64, 2**31):
        found = continuous({
            "requests": rows((start, 1, 2), (start + 2**-10, 1, 1)), "max_num_seqs": 2,
            "token_budget": 8, "cost": cost(2**-12),
        })  # fmt: skip
        assert found["e2e"] == [2**-11, 2**-12]
        assert (found["steps"], found["makespan"]) == (3, 2**-10 + 2**-12)


def test_a_cost_of_nothing_has_no_rate() -> None:
    given_ = {"requests": rows((0, 1, 1)), "cost": cost(0)}
    assert static({**given_, "max_batch": 1})["output_tok_s"] is None
    found = continuous({**given_, "max_num_seqs": 1, "token_budget": 1})
    assert (found["output_tok_s"], found["makespan"]) == (None, 0)


def test_static_by_hand() -> None:
    """Buckets of 8 tokens: prompts 1..8 and 9..16; the first is cut after two."""
    found = static({
        "requests": rows((0, 9, 1), (0, 8, 2), (0, 2, 3), (0, 4, 1)),
        "max_batch": 2, "cost": cost(1, 10, 100, 1000), "bucket": 8,
    })  # fmt: skip
    assert found["batches"] == [[1, 2], [3], [0]]
    # Two of 8 tokens: 1 + 1600; decoders read 2 x 9 and 2 x 10 tokens.
    first = [1601, 1601 + 21 + 18_000, 1601 + 2 * 21 + 38_000]
    assert found["ttft"] == [first[2] + 401 + 901, first[0], first[0], first[2] + 401]
    assert found["finish"] == [first[2] + 401 + 901, first[2], first[2], first[2] + 401]
    assert (found["steps"], found["padding_tokens"]) == (5, 6)
    assert found["padding_fraction"] == pytest.approx(6 / 29)
    assert found["slot_utilisation"] == pytest.approx(7 / 8)


def test_p99_lies_between_the_two_slowest() -> None:
    found = static(
        {"requests": rows((0, 1, 1), (0, 1, 1), (0, 1, 1)), "max_batch": 1, "cost": UNIT}
    )
    assert found["p99_e2e"] == pytest.approx(2 + 0.98)


# --- against loops written differently -------------------------------------------------------


def replay(
    found: list[Row], *, seats: int, budget: int, costs: dict[str, float], policy: str,
    chunked: bool, blocks: int | None, page: int, preemptive: bool,
) -> tuple[list[Fraction], list[Fraction], int, int]:  # fmt: skip
    """Return first and last token times, steps and the sum of running, in exact fractions.

    One flat table of states (done prompt, done output, place in line), searched anew each step.
    """
    n = range(len(found))
    done_prompt, done_output = [0 for _ in n], [0 for _ in n]
    place: dict[int, int] = {}  # admission order of those that hold blocks
    first: dict[int, Fraction] = {}
    last: dict[int, Fraction] = {}
    needs = [-(-(p + o) // page) for _, p, o, _ in found]
    base, per_decode, per_prompt, per_context = (Fraction(costs[key]) for key in KEYS)
    t, steps, running_sum = Fraction(0), 0, 0

    def line(i: int) -> tuple[float, float, int]:
        a, _, o, q = found[i]
        return ({"fcfs": 0, "srtf": o, "priority": q}[policy], a, i)

    while len(last) < len(found):
        present = [i for i in n if i not in last and found[i][0] <= t]
        if not present:
            t = Fraction(min(found[i][0] for i in n if i not in last))
            continue
        left, tokens = budget, {}
        if preemptive:
            seated: list[int] = []
            for i in sorted(present, key=lambda i: (found[i][2] - done_output[i], line(i)[1:])):
                free = (blocks or 10**9) - sum(needs[j] for j in place)
                if len(seated) < seats and (i in place or needs[i] <= free):
                    place.setdefault(i, len(place))
                    seated.append(i)
        else:
            seated = sorted(place, key=lambda i: place[i])
        decoders = [i for i in seated if done_prompt[i] == found[i][1]][:left]
        left -= len(decoders)
        for i in seated:
            if done_prompt[i] < found[i][1]:
                tokens[i] = min(found[i][1] - done_prompt[i], left)
                left -= tokens[i]
        if not preemptive:
            for i in sorted(set(present) - set(place), key=line):
                free = (blocks or 10**9) - sum(needs[j] for j in place)
                stuck = needs[i] > free or (not chunked and found[i][1] > left)
                if len(seated) == seats or left == 0 or stuck:
                    break
                place[i] = 1 + max(place.values(), default=0)
                seated.append(i)
                tokens[i] = min(found[i][1], left)
                left -= tokens[i]
        context = sum(found[i][1] + done_output[i] for i in decoders)
        t += base + per_decode * len(decoders) + per_prompt * sum(tokens.values())
        t += per_context * context
        steps += 1
        running_sum += len(seated)
        for i, amount in tokens.items():
            done_prompt[i] += amount
        completed = [i for i in tokens if tokens[i] and done_prompt[i] == found[i][1]]
        for i in decoders + completed:
            done_output[i] += 1
            first.setdefault(i, t)
            if done_output[i] == found[i][2]:
                last[i] = t
                del place[i]
    return [first[i] for i in n], [last[i] for i in n], steps, running_sum


@given(
    found=ROWS, costs=COST, seats=st.integers(1, 5), budget=st.integers(1, 60),
    policy=st.sampled_from(["fcfs", "srtf", "priority"]), chunked=st.booleans(),
    tight=st.sampled_from([None, 0, 3]), page=st.integers(1, 16), preemptive=st.booleans(),
)  # fmt: skip
@settings(quick, max_examples=400)
def test_continuous_equals_the_other_loop(
    found: list[Row], costs: dict[str, float], seats: int, budget: int, policy: str,
    chunked: bool, tight: int | None, page: int, preemptive: bool,
) -> None:  # fmt: skip
    if preemptive:
        policy, chunked = "srtf", True
    if not chunked:
        budget = max(budget, *(p for _, p, _, _ in found))
    most = max(-(-(p + o) // page) for _, p, o, _ in found)
    blocks = None if tight is None else most + tight
    output = continuous({
        "requests": as_requests(found), "max_num_seqs": seats, "token_budget": budget,
        "cost": costs, "policy": policy, "chunked": chunked, "blocks": blocks,
        "page_tokens": page, "preemptive": preemptive,
    })  # fmt: skip
    first, last, steps, running = replay(
        found, seats=seats, budget=budget, costs=costs, policy=policy, chunked=chunked,
        blocks=blocks, page=page, preemptive=preemptive,
    )  # fmt: skip
    arrivals = [Fraction(a) for a, *_ in found]
    assert output["steps"] == steps
    assert output["mean_running"] == pytest.approx(running / steps)
    assert output["finish"] == [float(x) for x in last]
    assert output["ttft"] == [float(x - a) for x, a in zip(first, arrivals, strict=True)]
    assert output["e2e"] == [float(x - a) for x, a in zip(last, arrivals, strict=True)]
    assert output["makespan"] == float(max(last) - min(arrivals))


@given(found=NOW, costs=COST, seats=st.integers(1, 5), bucket=st.sampled_from([None, 1, 7, 40]))
@quick
def test_static_equals_a_loop_over_steps(
    found: list[Row], costs: dict[str, float], seats: int, bucket: int | None
) -> None:
    output = static(
        {"requests": as_requests(found), "max_batch": seats, "cost": costs, "bucket": bucket}
    )
    order = sorted(
        range(len(found)), key=lambda i: (0 if bucket is None else (found[i][1] - 1) // bucket, i)
    )
    assert [i for batch in output["batches"] for i in batch] == order
    t, steps = Fraction(0), 0
    base, per_decode, per_prompt, per_context = (Fraction(costs[key]) for key in KEYS)
    for batch in output["batches"]:
        n, longest = len(batch), max(found[i][1] for i in batch)
        assert n <= seats
        t += base + per_prompt * n * longest
        assert {output["ttft"][i] for i in batch} == {float(t)}
        for k in range(1, max(found[i][2] for i in batch)):
            t += base + per_decode * n + per_context * n * (longest + k)
        steps += max(found[i][2] for i in batch)
        assert {output["finish"][i] for i in batch} == {float(t)}
    assert output["steps"] == steps
    assert output["padding_fraction"] * (output["padding_tokens"] + sum(p for _, p, _, _ in found)
    ) == pytest.approx(output["padding_tokens"])  # fmt: skip
    assert 0 < output["slot_utilisation"] <= 1


# --- laws ------------------------------------------------------------------------------------


@given(
    found=NOW, seats=st.integers(1, 5), budget=st.integers(1, 60),
    policy=st.sampled_from(["fcfs", "srtf", "priority", "preemptive"]),
)  # fmt: skip
@quick
def test_tokens_are_conserved(found: list[Row], seats: int, budget: int, policy: str) -> None:
    """Priced at one second each, the tokens of a kind are the makespan, whatever the schedule."""

    def total(*prices: float) -> float:
        preemptive = policy == "preemptive"
        makespan: float = continuous({
            "requests": as_requests(found), "max_num_seqs": seats, "token_budget": budget,
            "cost": cost(*prices), "policy": "srtf" if preemptive else policy,
            "preemptive": preemptive,
        })["makespan"]  # fmt: skip
        return makespan

    assert total(0, 0, 1) == sum(p for _, p, _, _ in found)
    assert total(0, 1) == sum(o - 1 for _, _, o, _ in found)
    assert total(0, 0, 0, 1) == sum(p + k for _, p, o, _ in found for k in range(1, o))


@given(found=ROWS, costs=COST, seats=st.integers(1, 5), budget=st.integers(1, 60))
@quick
def test_first_come_first_served_starves_nobody(
    found: list[Row], costs: dict[str, float], seats: int, budget: int
) -> None:
    """First tokens come in the order of arrival, and whoever comes later delays nobody's steps."""
    given_ = {"max_num_seqs": seats, "token_budget": budget}
    output = continuous({**given_, "requests": as_requests(found), "cost": costs})
    order = sorted(range(len(found)), key=lambda i: (found[i][0], i))
    firsts = [output["ttft"][i] + found[i][0] for i in order]
    assert firsts == sorted(firsts)
    at_once = as_requests([(0, p, o, q) for _, p, o, q in found])
    whole = continuous({**given_, "requests": at_once, "cost": UNIT})["finish"]
    for k in range(1, len(found)):
        part = continuous({**given_, "requests": at_once[:k], "cost": UNIT})["finish"]
        assert part == whole[:k]


@given(found=NOW, seats=st.integers(1, 5))
@quick
def test_shortest_first_never_raises_the_mean(found: list[Row], seats: int) -> None:
    given_ = {
        "requests": as_requests(found), "max_num_seqs": seats, "token_budget": 1000, "cost": UNIT,
    }  # fmt: skip
    fcfs = continuous(given_)["mean_e2e"]
    assert continuous({**given_, "policy": "srtf"})["mean_e2e"] <= fcfs + 1e-9
    assert continuous({**given_, "policy": "srtf", "preemptive": True})["mean_e2e"] <= fcfs + 1e-9


@given(found=NOW, seats=st.integers(1, 5), bucket=st.sampled_from([None, 10]))
@quick
def test_continuous_never_takes_more_steps_than_static(
    found: list[Row], seats: int, bucket: int | None
) -> None:
    requests = as_requests(found)
    batched = static({"requests": requests, "max_batch": seats, "cost": UNIT, "bucket": bucket})
    # Bucketed batches run in another order: the same order is needed for the comparison.
    requests = [requests[i] for batch in batched["batches"] for i in batch]
    output = continuous(
        {"requests": requests, "max_num_seqs": seats, "token_budget": 1000, "cost": UNIT}
    )
    assert output["steps"] <= batched["steps"]
    assert output["mean_running"] <= seats


@given(found=ROWS, seats=st.integers(1, 5), budget=st.integers(1, 60), ample=st.booleans())
@quick
def test_times_are_in_order(found: list[Row], seats: int, budget: int, ample: bool) -> None:
    output = continuous({
        "requests": as_requests(found), "max_num_seqs": seats, "token_budget": budget,
        "cost": UNIT, "blocks": 10_000 if ample else None,
    })  # fmt: skip
    for ttft, e2e, (_, _, tokens, _) in zip(output["ttft"], output["e2e"], found, strict=True):
        assert ttft >= 1
        assert e2e - ttft >= tokens - 1
    assert min(output["e2e"]) <= output["mean_e2e"] <= max(output["e2e"])
    assert output["p99_e2e"] <= max(output["e2e"])


# --- refusals --------------------------------------------------------------------------------

CONTINUOUS: dict[str, Any] = {
    "requests": rows((0, 20, 5), (1, 30, 5)), "max_num_seqs": 2, "token_budget": 16, "cost": UNIT,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"requests": []}, "requests: has 0 entries"),
        ({"requests": [{"arrival": 0, "prompt": 1}]}, r"requests\[0\]\.output"),
        ({"requests": [{"arrival": 0, "prompt": 1, "output": 1, "prio": 1}]}, "mean 'priority'"),
        ({"requests": rows((0, 0, 5))}, r"requests\[0\]\.prompt: found 0"),
        ({"requests": rows((0, 5, 0))}, r"requests\[0\]\.output: found 0"),
        ({"requests": rows((0, 1.5, 1))}, "whole number"),
        ({"requests": 3}, "expected a list"),
        ({"requests": [3]}, "expected an object"),
        ({"max_num_seqs": 0}, "max_num_seqs: found 0"),
        ({"token_budget": -1}, "token_budget: found -1"),
        ({"cost": {"base": 1}}, "cost.per_decode"),
        ({"cost": {**UNIT, "base": -1}}, "cost.base: found -1"),
        ({"policy": "lifo"}, "'fcfs' or 'srtf' or 'priority'"),
        ({"chunked": 1}, "expected true or false"),
        ({"chunked": False}, "exceed the token budget of 16"),
        ({"blocks": 2}, r"requests\[1\]: needs 3 blocks"),
        ({"preemptive": True}, "needs policy 'srtf'"),
        ({"preemptive": True, "policy": "srtf", "chunked": False}, "needs policy 'srtf'"),
        ({"token_bugdet": 3}, "mean 'token_budget'"),
    ],
)
def test_continuous_refuses(changes: dict[str, Any], named: str) -> None:
    assert continuous(CONTINUOUS)["steps"] > 0
    with pytest.raises(InvalidInput, match=named):
        continuous({**CONTINUOUS, **changes})


def test_a_cache_of_exactly_the_longest_request_is_enough() -> None:
    assert continuous({**CONTINUOUS, "blocks": 3})["steps"] > 0


def test_static_refuses_arrivals_over_time() -> None:
    with pytest.raises(InvalidInput, match=r"requests\[1\]\.arrival: found 1"):
        static({"requests": CONTINUOUS["requests"], "max_batch": 2, "cost": UNIT})


def test_endless_work_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sched_batching, "MAX_WORK", 1000)
    with pytest.raises(InvalidInput, match="more than 1,000 request-iterations"):
        continuous({**CONTINUOUS, "requests": rows((0, 1, 5000))})
