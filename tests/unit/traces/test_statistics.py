"""What `sieve trace inspect` tells of a trace, by hand-made traffic."""

from __future__ import annotations

import numpy as np
import pytest

from sieve.arrays import PrefixBlocks, Requests
from sieve.traces.statistics import describe, preconditions


def traffic(arrival_s, input_tokens=None, output_tokens=None, **more):
    n = len(arrival_s)
    return Requests(
        np.asarray(arrival_s, np.float64),
        np.full(n, 10) if input_tokens is None else np.asarray(input_tokens, np.int64),
        np.full(n, 3) if output_tokens is None else np.asarray(output_tokens, np.int64),
        source="hand", **more,
    )  # fmt: skip


def told(requests, tpot_s=0.5, ttft_s=2.0):
    return describe(requests, tpot_s=tpot_s, ttft_s=ttft_s)


@pytest.mark.parametrize("seconds", [61, 90, 119, 120, 121, 600])
def test_a_steady_trace_has_one_rate_everywhere(seconds):
    rates = told(traffic(np.arange(seconds)))["rates"]
    assert rates["span_s"] == seconds - 1
    assert rates["mean_per_s"] == 1.0
    assert rates["peak_minute_per_s"] == 1.0
    # 60 rows at most: windows of 1, 10 or 60 s.
    width = 1.0 if seconds <= 61 else 10.0
    assert rates["window_s"] == width
    assert rates["windows_per_s"][:-1] == [1.0] * (len(rates["windows_per_s"]) - 1)
    assert sum(rates["windows_per_s"]) * width == seconds


def test_a_trace_of_less_than_a_minute_has_its_own_rate_as_peak():
    rates = told(traffic([0, 1, 2, 4], [10, 20, 30, 40], [1, 2, 3, 6]))["rates"]
    assert rates["peak_minute_per_s"] == 1.0  # 4 requests in 4 s
    assert rates["mean_per_s"] == 0.75  # 3 gaps in 4 s
    assert rates["input_tokens_per_s"] == 25.0
    assert rates["output_tokens_per_s"] == 3.0
    assert rates["unit"] == "requests/s"


def test_the_busiest_minute_is_found():
    # One a second for three minutes, and 60 more in the second of them.
    busy = np.sort(np.concatenate([np.arange(180.0), 60 + np.arange(60.0)]))
    assert told(traffic(busy))["rates"]["peak_minute_per_s"] == 2.0


def test_rows_get_wider_until_sixty_suffice():
    widths = {
        span: told(traffic([0, span / 2, span]))["rates"]["window_s"]
        for span in (60, 60.5, 600, 601, 3600, 3601, 18_000, 18_001, 60 * 86400, 61 * 86400)
    }
    assert list(widths.values()) == [
        1.0, 10.0, 10.0, 60.0, 60.0, 300.0, 300.0, 900.0, 86400.0, 61 * 86400 / 60
    ]  # fmt: skip


def test_burstiness_of_gaps_one_nine_and_none():
    found = told(traffic([0, 1, 10, 10]))["burstiness"]
    assert found["longest_gap_s"] == 9.0
    assert found["share_at_same_moment"] == pytest.approx(1 / 3)
    # Gaps 1, 9, 0: mean 10/3, variance 82/3 - 100/9 = 146/9.
    assert found["gap_cv"] == pytest.approx(np.sqrt(146 / 9) / (10 / 3))


def test_concurrency_by_littles_law():
    # 2 s to the first token and 0.5 s for each further one: 4, 2 and 3 s of service in 10 s.
    found = told(traffic([0, 1, 10], output_tokens=[5, 1, 3]))["concurrency"]
    assert found["mean"] == pytest.approx(0.9)
    assert found["mean_service_s"] == pytest.approx(3.0)
    assert found["peak"] == 2
    # One that ends as the next arrives is gone.
    assert told(traffic([0, 4, 8], output_tokens=[5, 5, 5]))["concurrency"]["peak"] == 1


def test_concurrency_where_nobody_can_tell_it_from_rates():
    loop = told(traffic([0, 0], closed_loop_users=7))
    assert (loop["concurrency"]["mean"], loop["rates"], loop["burstiness"]) == (7.0, None, None)
    assert loop["pinned"]["arrival"] is False
    burst = told(traffic([0, 0, 0]))["concurrency"]
    assert (burst["mean"], burst["assumption"]) == (3.0, "all requests arrive at once")


def sessions():
    return traffic(
        [0, 0, 0, 5], output_tokens=[5, 1, 3, 3],
        previous=np.array([-1, 0, 1, -1]), delay_s=np.array([0.0, 2.0, 4.0, 0.0]),
    )  # fmt: skip


def test_chains_of_turns():
    data = told(sessions())
    assert data["sessions"] == {
        "num_sessions": 2, "mean_turns": 2.0, "p50_turns": 2.0, "p95_turns": pytest.approx(2.9),
        "max_turns": 3, "p50_pause_s": 3.0, "p90_pause_s": pytest.approx(3.8),
        "p99_pause_s": pytest.approx(3.98),
    }  # fmt: skip
    # Only two arrivals are stated: those of the sessions.
    assert data["rates"]["unit"] == "session starts/s"
    assert data["rates"]["mean_per_s"] == pytest.approx(1 / 5)
    assert data["concurrency"]["mean"] is None
    assert data["concurrency"]["mean_service_s"] == pytest.approx((4 + 2 + 3 + 3) / 4)
    assert data["pinned"]["session"] is True


def test_sessions_without_waits_count_their_requests():
    data = told(traffic([0, 1, 2, 3], session=np.array([-1, 4, 4, 9])))
    assert data["sessions"]["num_sessions"] == 2
    assert data["sessions"]["mean_turns"] == 1.5
    assert "p50_pause_s" not in data["sessions"]
    assert told(traffic([0, 1]))["sessions"] is None


def test_lengths_and_their_joint_table():
    found = told(traffic([0, 1, 2], [5, 9, 16], [1, 3, 3]))["lengths"]
    # Powers of two: 4 to 7, 8 to 15, 16 to 31; 1, 2 to 3.
    assert found["joint"] == {
        "input_tokens_from": [4, 8, 16], "output_tokens_from": [1, 2],
        "requests": [[1, 0], [0, 1], [0, 1]],
    }  # fmt: skip
    assert found["input_tokens"]["percentiles"]["p50"] == 9.0
    assert found["input_tokens"]["percentiles"]["p75"] == 12.5
    assert found["output_tokens"]["percentiles"]["p25"] == 2.0
    assert "log_correlation" not in told(traffic([0]))["lengths"]


def test_shared_blocks():
    prompt = np.full(2, 20)
    blocks = PrefixBlocks(10, np.array([0, 2, 4]), np.array([0, 1, 0, 2]), prompt)
    data = told(traffic([0, 1], prompt, prefix=blocks))
    assert data["prefix"]["distinct_blocks"] == 3
    assert data["prefix"]["unlimited_hit_ratio"] == 0.25  # one block of four is there already
    assert data["prefix"]["method"].endswith("blocks in the order of arrival")
    assert data["pinned"]["prefix_blocks"] is True
    assert told(traffic([0, 1]))["prefix"] is None
    none = PrefixBlocks(10, np.array([0, 0, 0]), np.zeros(0, np.int64), prompt)
    assert told(traffic([0, 1], prompt, prefix=none))["prefix"] is None


def held(requests, *, scaled=False, max_model_len=None, model=None):
    rows = preconditions(requests, scaled=scaled, max_model_len=max_model_len, model=model)
    return {row["name"]: row for row in rows}


def test_preconditions_of_a_plain_trace():
    rows = held(traffic([0.1, 0.35, 1.77]))
    assert all(rows[name]["ok"] for name in ("scale_factors", "order", "failed_requests", "gaps",
                                             "faulty_rows", "time_resolution"))  # fmt: skip
    assert rows["context_limit"]["ok"] is None
    assert "gaps" not in held(traffic([0.0, 3.0]))
    assert "gaps" not in held(traffic([0.0, 3.0, 4.0], closed_loop_users=2))


@pytest.mark.parametrize(("pause_s", "ok"), [(59.0, True), (59.9, True), (60.1, False)])
def test_a_pause_of_a_minute_is_told(pause_s, ok):
    # 200 arrivals 0.1 s apart around one pause: 50 mean gaps are less than a minute.
    arrival = np.arange(200) * 0.1
    arrival[100:] += pause_s - 0.1
    row = held(traffic(arrival))["gaps"]
    assert row["ok"] is ok
    assert row["detail"] == f"longest pause {pause_s:.4g} s, expected up to 60 s"


def test_a_slow_trace_may_pause_for_fifty_of_its_gaps():
    # 101 arrivals in 1000 s: a mean gap of 10 s, so 500 s are expected.
    for pause_s, ok in ((499.0, True), (501.0, False)):
        rest = (1000 - pause_s) / 99
        gaps = np.full(100, rest)
        gaps[50] = pause_s
        row = held(traffic(np.concatenate([[0.0], np.cumsum(gaps)])))["gaps"]
        assert (row["ok"], row["detail"].split(", ")[1]) == (ok, "expected up to 500 s")


def test_what_was_left_out_or_changed_is_told():
    rows = held(
        traffic([0, 1, 2], num_failed=2, notes=("lines were not in order of arrival; sorted",
                                                "3 rows left out (skip)")), scaled=True,
    )  # fmt: skip
    failed = {name for name, row in rows.items() if row["ok"] is False}
    assert failed >= {"scale_factors", "order", "failed_requests", "faulty_rows"}
    assert rows["failed_requests"]["detail"] == "2 requests without an answer left out"


def test_the_longest_request_is_held_against_the_model():
    requests = traffic([0, 1], [100, 50], [5, 60])
    for limit, ok in ((109, False), (110, True), (111, True)):
        row = held(requests, max_model_len=limit, model="m")["context_limit"]
        assert row["ok"] is ok
        assert row["detail"] == f"longest request 110 tokens, m takes {limit}"
