"""Interpolation on measured grids, vectorised over the points asked for."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sieve.arrays import FloatArray, IntArray
from sieve.perf.base import EXTRAPOLATED, INTERPOLATED, MEASURED, Timing


def linear(x: npt.ArrayLike, grid: FloatArray, values: FloatArray, axis: int = -1) -> FloatArray:
    """Return `values` at x along `axis`: linear between, first value below, last segment above.

    Args:
        x: (n,) points.
        grid: (g,) rising.
        values: array with g entries along `axis`.
        axis: axis of the grid.

    Returns:
        `values` with `axis` replaced by n entries; grid points come back exactly.
    """
    points = np.atleast_1d(np.asarray(x, np.float64))
    table = np.moveaxis(values, axis, -1)
    if len(grid) == 1:
        return np.moveaxis(np.repeat(table, len(points), axis=-1), -1, axis)
    i = np.clip(np.searchsorted(grid, points, side="right") - 1, 0, len(grid) - 2)
    u = np.maximum((points - grid[i]) / (grid[i + 1] - grid[i]), 0.0)
    result = np.where(u == 1.0, table[..., i + 1], table[..., i] * (1 - u) + table[..., i + 1] * u)
    return np.moveaxis(result, -1, axis)


def hold_utilisation(
    x: npt.ArrayLike,
    grid: FloatArray,
    values: FloatArray,
    roofline: FloatArray,
    roofline_at_end: float,
) -> FloatArray:
    """Return `values` at x: linear inside the grid, in proportion to the roofline above it.

    Args:
        x: (n,) points.
        grid: (g,) rising.
        values: (g,) seconds.
        roofline: (n,) seconds of the roofline at x.
        roofline_at_end: seconds of the roofline at the grid's end.
    """
    points = np.asarray(x, np.float64)
    inside = np.interp(points, grid, values)
    above = values[-1] * roofline / roofline_at_end
    return np.asarray(np.where(points > grid[-1], above, inside), np.float64)


def grid_evidence(x: npt.ArrayLike, grid: FloatArray) -> IntArray:
    """Return (n,) evidence classes of points on, between and outside the points of a grid."""
    points = np.asarray(x, np.float64)
    nearest = grid[np.clip(np.searchsorted(grid, points), 0, len(grid) - 1)]
    outside = (points < grid[0]) | (points > grid[-1])
    inside = np.where(nearest == points, MEASURED, INTERPOLATED)
    return np.asarray(np.where(outside, EXTRAPOLATED, inside), np.int64)


def prompt_curve(
    lengths: FloatArray,
    grid: FloatArray,
    fine: FloatArray,
    values: FloatArray,
    work: FloatArray,
    quality: int,
    share: FloatArray | float = 1.0,
) -> tuple[Timing, Timing]:
    """Return the times of prompts without their offset, and the offset (one point).

    Args:
        lengths: (np,) tokens, from 0.
        grid: (g,) measured lengths.
        fine: (f,) the same, or with points between.
        values: (f,) rising seconds there.
        work: (np,) work at `lengths`, that at the grid's end being 1: the curve's continuation.
        quality: least class of evidence.
        share: of the times at `lengths` that counts, offset included.
    """
    time = np.where(lengths > grid[-1], values[-1] * work, np.interp(lengths, fine, values))
    evidence = np.maximum(grid_evidence(lengths, grid), quality)
    evidence[lengths == 0] = quality
    time = np.where(lengths > 0, time * share - values[0], 0.0)
    return Timing.of(np.maximum(time, 0.0), evidence), Timing.of(values[0], quality)


def bracket(value: float, grid: FloatArray) -> list[tuple[float, float]]:
    """Return grid points around `value` with weights in log distance; one outside the grid."""
    i = int(np.searchsorted(grid, value))
    if i < len(grid) and grid[i] == value:
        return [(float(value), 1.0)]
    if i in {0, len(grid)}:
        return [(float(grid[min(i, len(grid) - 1)]), 1.0)]
    low, high = float(grid[i - 1]), float(grid[i])
    u = float(np.log(value / low) / np.log(high / low))
    return [(low, 1 - u), (high, u)]


def refine_loglog(
    grid: FloatArray, values: FloatArray, points_per_segment: int
) -> tuple[FloatArray, FloatArray]:
    """Return a grid with points added evenly in log between, values linear in log-log.

    Args:
        grid: (g,) rising, positive.
        values: (g,) positive.
        points_per_segment: points added to each segment.

    Returns:
        The finer grid and its values; the given points are among them unchanged.
    """
    steps = np.arange(points_per_segment + 1) / (points_per_segment + 1)
    log_x, log_y = np.log(grid), np.log(values)
    fine_x = np.exp(log_x[:-1, None] + np.diff(log_x)[:, None] * steps)
    fine_y = np.exp(log_y[:-1, None] + np.diff(log_y)[:, None] * steps)
    fine_x[:, 0], fine_y[:, 0] = grid[:-1], values[:-1]
    return np.append(fine_x.ravel(), grid[-1]), np.append(fine_y.ravel(), values[-1])
