"""Equal rows are computed once: a grid repeats the few values of its axes in every combination."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from sieve.arrays import IntArray, distinct

LEAST_ROWS: Final = 4096
"""Below, repeats are not worth looking for."""
Columns = Mapping[str, npt.NDArray[Any]]


def condensed(columns: Columns) -> tuple[dict[str, Any], IntArray] | None:
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
