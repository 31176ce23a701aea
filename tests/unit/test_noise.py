"""The block bootstrap against resampling written out, and against known spreads."""

from __future__ import annotations

import numpy as np
import pytest

from sieve.ranking import noise


def test_equal_arguments_give_equal_draws_and_others_do_not() -> None:
    first = noise.draw.__wrapped__(500, 7)
    again = noise.draw.__wrapped__(500, 7)
    assert np.array_equal(first.count, again.count)
    assert not np.array_equal(first.count, noise.draw.__wrapped__(500, 8).count)


@pytest.mark.parametrize("n", [1, 2, 3, 7, 19, 40, 41, 100, 1999, 10_000, 200_000])
def test_a_resample_is_as_long_as_the_trace_to_a_piece(n: int) -> None:
    draws = noise.draw(n, 0)
    assert n * draws.count.shape[1] <= noise.FINEST
    assert len(draws.piece) == n
    assert (np.diff(draws.piece) >= 0).all()
    assert set(draws.piece) == set(range(draws.count.shape[1]))
    assert draws.count.shape[0] == noise.RESAMPLES
    size = draws.total(np.ones(n))
    # blocks of a tenth or 300 requests, rounded to whole blocks
    assert (abs(size / n - 1) <= 0.3).all()
    assert size.mean() == pytest.approx(n, rel=0.05)


def test_every_piece_is_drawn_equally_often() -> None:
    count = noise.draw(4000, 1).count
    assert count.mean(axis=0) == pytest.approx(count.mean(), rel=0.25)


@pytest.mark.parametrize("n", [3, 50, 1234])
@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_statistics_are_those_of_the_requests_written_out(n: int, missing: float) -> None:
    rng = np.random.default_rng(n)
    values = np.round(rng.lognormal(0, 1, n), 1)  # with equal values
    values[rng.random(n) < missing] = np.nan
    draws = noise.draw(n, 2, 40)
    found = noise.statistics(draws, values, ["mean", "p1", "p50", "p99", "p99.9"])
    for r in range(40):
        drawn = np.repeat(values, draws.count[r][draws.piece].astype(int))
        drawn = drawn[~np.isnan(drawn)]
        if not len(drawn):
            assert all(np.isnan(sample[r]) for sample in found.values())
            continue
        assert found["mean"][r] == pytest.approx(drawn.mean())
        for q in (1, 50, 99, 99.9):
            assert found[f"p{q}"][r] == pytest.approx(np.percentile(drawn, q))


def test_weights_count_a_value_several_times() -> None:
    rng = np.random.default_rng(5)
    values, weight = rng.random(60), rng.integers(0, 9, 60).astype(float)
    draws = noise.draw(60, 0, 20)
    found = noise.statistics(draws, values, ["mean", "p90"], weight)
    for r in range(20):
        times = draws.count[r][draws.piece] * weight
        drawn = np.repeat(values, times.astype(int))
        assert found["p90"][r] == pytest.approx(np.percentile(drawn, 90))
        assert found["mean"][r] == pytest.approx(drawn.mean())


def test_without_a_value_the_statistic_is_unknown() -> None:
    found = noise.statistics(noise.draw(30, 0), np.full(30, np.nan), ["mean", "p50"])
    assert all(np.isnan(sample).all() for sample in found.values())


def test_the_spread_of_a_mean_of_independent_values() -> None:
    # The deviation of the mean of n independent standard normal values is 1/sqrt(n).
    values = np.random.default_rng(1).normal(0, 1, 6000)
    spread = noise.statistics(noise.draw(6000, 0), values, ["mean"])["mean"].std()
    assert spread == pytest.approx(1 / np.sqrt(6000), rel=0.35)


def test_blocks_see_that_neighbours_are_alike() -> None:
    # Groups of 50 equal values: the mean's deviation is that of n/50 independent values, sqrt(50)
    # as much as independent resampling would say.
    values = np.repeat(np.random.default_rng(2).normal(0, 1, 120), 50)
    spread = noise.statistics(noise.draw(6000, 0), values, ["mean"])["mean"].std()
    assert spread == pytest.approx(1 / np.sqrt(120), rel=0.35)


def test_rates_of_timed_arrivals_vary_with_the_answers_only() -> None:
    draws = noise.draw(400, 0)
    finish = np.linspace(1, 100, 400)
    requests, tokens = noise.rate_factors(draws, np.full(400, 10), finish, open_loop=True)
    assert requests.tolist() == [1.0] * noise.RESAMPLES
    assert tokens == pytest.approx(np.ones(noise.RESAMPLES))
    mixed = np.random.default_rng(0).integers(1, 100, 400)
    requests, tokens = noise.rate_factors(draws, mixed, finish, open_loop=True)
    assert requests.std() == 0.0
    assert tokens.std() > 0


def test_a_closed_loop_at_an_even_pace_has_an_even_rate() -> None:
    draws = noise.draw(400, 0)
    finish = np.arange(1.0, 401.0)
    requests, tokens = noise.rate_factors(draws, np.full(400, 10), finish, open_loop=False)
    assert requests == pytest.approx(np.ones(noise.RESAMPLES))
    assert tokens == pytest.approx(np.ones(noise.RESAMPLES))


def test_students_quantile_for_few_blocks() -> None:
    # Tables of Student: 1.383 at 90 % with 9 degrees, 1.3104 with 29 (made of 30 blocks, roughly);
    # normal: 1.28155.
    assert noise.width_factor(10, 0.9) == pytest.approx(1.383 / 1.28155 * (10 / 9) ** 0.5, rel=1e-3)
    assert noise.width_factor(30, 0.9) == pytest.approx(
        1.3104 / 1.28155 * (30 / 29) ** 0.5, rel=1e-3
    )
    assert noise.width_factor(100_000, 0.9) == pytest.approx(1.0, rel=1e-4)


def test_ends_reach_as_far_up_as_down() -> None:
    draws = noise.Draws(np.zeros(1, np.int64), np.ones((1, 1)), 1_000_000)
    sample = 2.0 ** np.linspace(-1, 0.5, 1001)  # quantiles 2^-0.85 and 2^0.35
    found = noise.ends(draws, {"x": sample}, {"x": 1.0}, 0.9)
    assert found["x"] == pytest.approx((2**-0.85, 2**0.85), rel=1e-4)


def test_the_larger_distance_may_be_upwards_or_past_whole_multiples() -> None:
    draws = noise.Draws(np.zeros(1, np.int64), np.ones((1, 1)), 1_000_000)
    sample = 3.0 ** np.linspace(-0.1, 0.5, 1001)  # quantiles 3^-0.04 and 3^0.44 = 1.62
    found = noise.ends(draws, {"x": sample}, {"x": 1.0}, 0.9)
    assert found["x"] == pytest.approx((3**-0.44, 3**0.44), rel=1e-4)


def test_ends_of_a_share_stay_shares_and_unknown_stays_unknown() -> None:
    draws = noise.Draws(np.zeros(1, np.int64), np.ones((1, 1)), 1_000_000)
    share = {"slo_attainment": np.linspace(0.8, 1.0, 1001), "y": np.full(5, np.nan)}
    found = noise.ends(draws, share, {"slo_attainment": 0.95, "y": 1.0}, 0.9)
    assert found["slo_attainment"] == pytest.approx((0.82, 1.0), rel=1e-4)
    assert np.isnan(found["y"]).all()


def test_the_logarithm_of_resamples_over_the_value() -> None:
    found = noise.log_ratio(np.array([3.0, 1.0, 0.5, 0.0]), 2.0)
    expected = np.log([1.5, 0.5, 0.25, noise.SMALLEST / 2.0])
    np.testing.assert_allclose(found, expected, rtol=1e-12)
