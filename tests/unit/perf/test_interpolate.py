import numpy as np
import pytest

from sieve.perf.base import EXTRAPOLATED, INTERPOLATED, MEASURED
from sieve.perf.interpolate import bracket, grid_evidence, hold_utilisation, linear, refine_loglog

GRID = np.array([1.0, 2.0, 4.0])


def test_linear_returns_grid_points_exactly_and_continues_the_last_segment():
    values = np.array([0.1, 0.3, 0.7])
    np.testing.assert_array_equal(linear(GRID, GRID, values), values)
    np.testing.assert_allclose(linear([0.5, 3.0, 6.0], GRID, values), [0.1, 0.5, 1.1])


def test_linear_works_along_any_axis():
    surface = np.array([[1.0, 2.0, 4.0], [2.0, 4.0, 8.0]])
    np.testing.assert_allclose(linear([3.0], GRID, surface, 1), [[3.0], [6.0]])
    np.testing.assert_allclose(linear([1.5], np.array([1.0, 2.0]), surface, 0), [[1.5, 3.0, 6.0]])


def test_linear_repeats_a_single_value():
    np.testing.assert_array_equal(linear([1.0, 9.0], np.array([4.0]), np.array([2.0])), [2.0, 2.0])


def test_beyond_the_grid_time_follows_the_roofline():
    values = np.array([2.0, 3.0, 5.0])
    time = hold_utilisation(np.array([3.0, 8.0]), GRID, values, np.array([9.0, 7.0]), 3.5)
    np.testing.assert_allclose(time, [4.0, 10.0])


def test_evidence_tells_on_between_and_outside():
    np.testing.assert_array_equal(
        grid_evidence(np.array([0.5, 1.0, 3.0, 4.0, 5.0]), GRID),
        [EXTRAPOLATED, MEASURED, INTERPOLATED, MEASURED, EXTRAPOLATED],
    )


@pytest.mark.parametrize(
    ("value", "points"),
    [
        (2.0, [(2.0, 1.0)]),
        (np.sqrt(8.0), [(2.0, 0.5), (4.0, 0.5)]),
        (0.5, [(1.0, 1.0)]),
        (9.0, [(4.0, 1.0)]),
    ],
)
def test_bracket_weighs_by_log_distance(value, points):
    found = bracket(value, GRID)
    np.testing.assert_allclose(found, points)


def test_refining_keeps_the_points_and_follows_power_laws():
    x, y = refine_loglog(GRID, GRID**2, 3)
    assert len(x) == 9
    assert set(GRID) <= set(x)
    np.testing.assert_allclose(y, x**2)
