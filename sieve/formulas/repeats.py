"""Equal rows are computed once: a grid repeats the few values of its axes in every combination."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from sieve.arrays import IntArray

T = TypeVar("T", bound=np.generic)
_SAMPLE: Final = 1024


def distinct(column: npt.NDArray[T]) -> tuple[npt.NDArray[T], IntArray]:
    """Return the distinct values of a column, rising, and the place of each row among them, (n,).

    As `np.unique`, but quick where values repeat: those of some rows are tried before all rows are
    sorted.
    """
    if len(column) > _SAMPLE:
        known = np.unique(column[:: len(column) // _SAMPLE])
        place = np.minimum(np.searchsorted(known, column), len(known) - 1)
        if (known[place] == column).all():
            return known, place
    values, place = np.unique(column, return_inverse=True)
    return values, np.asarray(place, np.int64)


LEAST_ROWS: Final = 4096
"""Fewer rows are not searched for repeats."""


def condensed(columns: Mapping[str, npt.NDArray[Any]]) -> tuple[dict[str, Any], IntArray] | None:
    """Return columns of distinct rows and the place of each row among them; None if few repeat.

    Args:
        columns: (n,) arrays by name.
    """
    n = len(next(iter(columns.values())))
    if n < LEAST_ROWS:
        return None
    code, combinations = np.zeros(n, np.int64), 1
    values: dict[str, npt.NDArray[Any]] = {}
    for name, column in columns.items():
        if len(np.unique(column[:LEAST_ROWS])) * combinations > n:
            return None
        values[name], place = distinct(column)
        combinations *= len(values[name])
        if combinations > n:
            return None
        if len(values[name]) > 1:
            code = code * len(values[name]) + place
    present = np.zeros(combinations, np.bool_)
    present[code] = True
    codes = np.flatnonzero(present)
    order = np.zeros(combinations, np.int64)
    order[codes] = np.arange(len(codes))
    rows: dict[str, npt.NDArray[Any]] = {}
    for name in reversed(list(columns)):
        rows[name] = values[name][codes % len(values[name])]
        codes = codes // len(values[name])
    return rows, order[code]
