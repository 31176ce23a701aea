"""A candidate of a grid by its id, without listing the grid."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import polars as pl

from sieve.catalog.accelerators import gpu_slug
from sieve.grid.expand import ID_PREFIXES, Grid


def find(grid: Grid, candidate_id: str) -> int | None:
    """Return the index number of the candidate with this id, None if the grid has none."""
    labels = {name: _labels(grid, name) for name in grid.index.columns}
    names = list(grid.index.columns)
    for codes in _matches(candidate_id, names, labels):
        number = sum(
            code * grid.index.strides[name] for name, code in zip(names, codes, strict=True)
        )
        found = grid.rows(np.array([number], np.int64))
        if found["candidate_id"].to_list() == [candidate_id]:
            return number
    return None


def _labels(grid: Grid, name: str) -> list[tuple[re.Pattern[str], int]]:
    """Return how each value of an axis is spelled in an id, with its code; -1 counts as 0."""
    values = grid.index.values(name)
    plain = [value[0] if isinstance(value, tuple) else value for value in values]
    if name == "gpu":
        texts = [re.escape(gpu_slug(value)) for value in plain]
    else:
        prefix = ID_PREFIXES.get(name, f"{name}-")
        # What the grid leaves open is a number that the engine sets.
        texts = [
            re.escape(prefix) + (r"\d+" if text is None else re.escape(text))
            for text in pl.Series(plain).cast(pl.String).to_list()
        ]
    known = len(grid.index.columns[name])
    return [
        (re.compile(text + r"(?:\.|$)"), code if code < known else 0)
        for code, text in enumerate(texts)
    ]


def _matches(
    text: str, names: list[str], labels: dict[str, list[tuple[re.Pattern[str], int]]]
) -> Iterator[list[int]]:
    """Yield the codes of every way to read an id as one value of each axis."""
    if not names:
        if not text:
            yield []
        return
    for pattern, code in labels[names[0]]:
        if found := pattern.match(text):
            for rest in _matches(text[found.end() :], names[1:], labels):
                yield [code, *rest]
