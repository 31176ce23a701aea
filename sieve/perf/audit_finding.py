"""What an audit of kernel tables finds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
import polars as pl

from sieve.arrays import IntArray

ORIGIN: Final = ("source", "kernel_source")
"""Columns that tell where a row comes from."""


@dataclass(frozen=True, eq=False)
class Finding:
    """One defect of a table.

    Attributes:
        rule: name of the rule.
        op: operation.
        where: which part of the table, in words.
        detail: what was found and compared, in words.
        rows: (n,) rows of the frame that was audited; empty where it concerns no single row.
        condemns: whether step times must not use these rows.
    """

    rule: str
    op: str
    where: str
    detail: str
    rows: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))
    condemns: bool = False


def with_origin(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the frame with columns `source` and `kernel_source`, empty where it has none."""
    return frame.with_columns(
        [pl.lit("").alias(name) for name in ORIGIN if name not in frame.columns]
    )


def words(name: object) -> str:
    """Return the parts of a group's name in one text, empty ones left out."""
    parts = name if isinstance(name, tuple) else (name,)
    return " ".join(str(part) for part in parts if part not in (None, ""))


def num_rows(count: int) -> str:
    """Return a number of rows in words, such as `1 row` or `1,200 rows`."""
    return f"{count:,} row{'' if count == 1 else 's'}"
