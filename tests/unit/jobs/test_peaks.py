"""Peak sizing and the schedule by hour, on days that can be worked out by hand."""

from __future__ import annotations

import pytest

from sieve.jobs.peaks import plan, schedule


def day(rates, ratio=1.2):
    return {"window_rates_per_s": rates, "window_s": 900.0, "minute_ratio_p95": ratio}


def test_the_plan_is_the_percentile_times_the_allowance_of_the_days_before():
    # 40 windows, 38 at 2/s and 2 at 10/s: position 0.95 x 39 = 37.05, between 2 and 10.
    days = [day([2.0] * 19 + [10.0]), day([2.0] * 19 + [10.0], 1.5)]
    found = plan(days, day([2.0, 2.0, 4.0, 8.0]))
    assert found["p95_rate_per_s"] == pytest.approx(2 + 0.05 * 8)
    assert found["burst_allowance"] == 1.5
    assert found["planned_rate_per_s"] == pytest.approx(2.4 * 1.5)
    assert found["share_covered"] == 0.5  # 4 and 8 lie above 3.6
    assert (found["num_days"], found["num_windows"]) == (2, 40)


def test_today_does_not_move_the_plan_that_it_is_judged_by():
    days = [day([1.0, 2.0, 3.0, 4.0])]
    quiet, busy = plan(days, day([1.0])), plan(days, day([100.0]))
    assert quiet["planned_rate_per_s"] == busy["planned_rate_per_s"]
    assert (quiet["share_covered"], busy["share_covered"]) == (1.0, 0.0)


def test_without_days_before_or_rates_there_is_no_plan():
    assert plan([], day([1.0])) is None
    closed = {"window_rates_per_s": None, "window_s": 900.0, "minute_ratio_p95": None}
    assert plan([closed], day([1.0])) is None
    assert plan([day([1.0])], closed) is None


def test_hours_hold_four_windows_each():
    found = plan([day([1.0] * 4 + [5.0] * 4, 1.0)], day([1.0]))
    assert found["by_hour"] == [1.0, 5.0]


def test_a_schedule_by_hand():
    # Hours need 1, 4, 1, 1 replicas of 2 GPUs; each stays two hours: 1, 4, 4, 1.
    found = schedule([1.0, 7.5, 1.0, 1.0], 2.0, gpus_per_replica=2, start_up_s=600.0)
    assert found["replicas"] == [1, 4, 4, 1]
    # 10 replica-hours and 3 starts of a sixth of an hour, on 2 GPUs.
    assert found["gpu_hours"] == pytest.approx(2 * (10 + 3 / 6))
    assert found["gpu_hours_static"] == 2 * 16
    assert found["saved"] == pytest.approx(1 - 10.5 / 16)


def test_a_schedule_never_costs_more_than_a_fixed_number():
    found = schedule([2.0, 2.0], 2.0, gpus_per_replica=1)
    assert found["replicas"] == [1, 1]
    assert found["gpu_hours"] == found["gpu_hours_static"] == 2.0
    assert found["saved"] == 0.0
