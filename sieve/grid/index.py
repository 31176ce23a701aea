"""A grid as a mixed-radix index: every combination of axis values is a whole number.

The first axis changes slowest. Combinations that a condition rules out keep their number and are
no candidates: where a conditional axis does not apply, its first value stands for `otherwise` and
the others for nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np

from sieve.arrays import BoolArray, IntArray
from sieve.errors import Fault, InvalidInput, SpecError
from sieve.grid.axes import Axis

LARGEST: Final = 2**62
"""Combinations that an index can number."""
SEATS: Final = "max_num_seqs"
"""The axis whose values stay in one block: stage 4 compares candidates along it."""
MAX_TOGETHER: Final = 2_000_000
"""Combinations of the axes that stay in one block."""
_COUNTED_AT_ONCE: Final = 4_000_000


@dataclass(frozen=True, eq=False)
class GridIndex:
    """The combinations of a grid by number.

    Attributes:
        columns: values by axis, in the order of the candidate id.
        axes: the axes but `gpu`, with their conditions.
        conditional: names of conditional axes, each after those that its condition is on.
        moe: whether the model has experts.
    """

    columns: Mapping[str, Sequence[Any]]
    axes: Mapping[str, Axis]
    conditional: tuple[str, ...]
    moe: bool

    @cached_property
    def size(self) -> int:
        """Numbers of the index: candidates, and combinations that conditions rule out."""
        return math.prod(len(values) for values in self.columns.values())

    @cached_property
    def strides(self) -> dict[str, int]:
        """Distance in the index between two neighbouring values of each axis."""
        strides, step = {}, 1
        for name in reversed(list(self.columns)):
            strides[name] = step
            step *= len(self.columns[name])
        return strides

    def values(self, name: str) -> list[Any]:
        """Return the values of an axis by code; the last also stands for code -1."""
        table = list(self.columns[name])
        if name in self.conditional:
            table.append(self.axes[name].otherwise)
        return table

    def codes(self, numbers: IntArray) -> dict[str, IntArray]:
        """Return for each axis the value's place for the numbers that are candidates.

        Code -1 stands for `otherwise`.
        """
        codes = {
            name: (numbers // self.strides[name]) % len(values)
            for name, values in self.columns.items()
        }
        return self._kept(codes)

    def number(self, codes: Mapping[str, IntArray]) -> IntArray:
        """Return the index number of each candidate, (n,)."""
        total = np.zeros(len(codes["gpu"]), np.int64)
        for name, step in self.strides.items():
            total += np.maximum(codes[name], 0) * step
        return total

    def _kept(self, codes: dict[str, IntArray]) -> dict[str, IntArray]:
        """Return the codes of candidates, -1 where a condition does not hold."""
        if not self.conditional:
            return codes
        keep = self._apply(codes)
        return {name: values[keep] for name, values in codes.items()}

    def _apply(self, codes: dict[str, IntArray]) -> BoolArray:
        """Put -1 where a condition does not hold, and return which combinations are candidates."""
        keep = np.ones(len(next(iter(codes.values()))), np.bool_)
        for name in self.conditional:
            holds = np.ones(len(keep), np.bool_)
            for key, allowed in (self.axes[name].when or {}).items():
                if key == "model.moe":
                    holds &= self.moe in allowed
                else:
                    # Code -1 finds the last entry: the other axis' own `otherwise`.
                    table = [_plain(value) in allowed for value in self.values(key)]
                    holds &= np.array(table)[codes[key]]
            keep &= holds | (codes[name] == 0)
            codes[name] = np.where(holds, codes[name], -1)
        return keep

    @cached_property
    def num_candidates(self) -> int:
        """Candidates of the grid: combinations that no condition rules out."""
        involved = {
            key
            for name in self.conditional
            for key in (name, *(self.axes[name].when or {}))
            if key in self.columns
        }
        if not involved:
            return self.size
        names = [name for name in self.columns if name in involved]
        inner = math.prod(len(self.columns[name]) for name in names)
        kept = 0
        for first in range(0, inner, _COUNTED_AT_ONCE):
            rest = np.arange(first, min(first + _COUNTED_AT_ONCE, inner), dtype=np.int64)
            codes: dict[str, IntArray] = {}
            for name in reversed(names):
                codes[name] = rest % len(self.columns[name])
                rest = rest // len(self.columns[name])
            kept += int(self._apply(codes).sum())
        return kept * (self.size // inner)

    @cached_property
    def together(self) -> tuple[str, ...]:
        """Axes whose combinations stay in one block: `max_num_seqs` and what depends on it."""
        names = {SEATS}
        for name in self.conditional:
            if names & (self.axes[name].when or {}).keys():
                names.add(name)
        return tuple(name for name in self.columns if name in names)

    @cached_property
    def row_size(self) -> int:
        """Combinations of a row, which no block divides.

        Raises:
            InvalidInput: a row is larger than a block may be.
        """
        row = math.prod(len(self.columns[name]) for name in self.together)
        if row > MAX_TOGETHER:
            raise InvalidInput(
                f"the axes {', '.join(self.together)} have {row:,} combinations; those that depend "
                f"on {SEATS} and its own values may have {MAX_TOGETHER:,} at most. Shorten one"
            )
        return row

    def blocks(self, size: int) -> Iterator[tuple[int, int]]:
        """Yield ranges of rows of about `size` combinations; see `block_codes`."""
        rows = self.size // self.row_size
        step = max(1, size // self.row_size)
        for first in range(0, rows, step):
            yield first, min(first + step, rows)

    def block_codes(self, first: int, last: int) -> dict[str, IntArray]:
        """Return the codes of the candidates in a range of rows.

        A row is one combination of all axes but those of `together`, numbered like the grid.
        """
        rows = np.arange(first, last, dtype=np.int64)
        inner = self.row_size
        place = np.arange(inner, dtype=np.int64)
        codes: dict[str, IntArray] = {}
        for name in reversed(list(self.columns)):
            count = len(self.columns[name])
            if name in self.together:
                codes[name] = np.tile(place % count, last - first)
                place = place // count
            else:
                codes[name] = np.repeat(rows % count, inner)
                rows = rows // count
        return self._kept({name: codes[name] for name in self.columns})

    def cover(self, together: Sequence[str]) -> dict[str, IntArray]:
        """Return codes in which each axis takes every value, and some axes every combination."""
        mixed = [name for name in together if name in self.columns]
        combinations = math.prod(len(self.columns[name]) for name in mixed)
        longest = max(combinations, *(len(values) for values in self.columns.values()))
        rows = np.arange(longest, dtype=np.int64)
        rest = rows % combinations
        codes: dict[str, IntArray] = {}
        for name, values in self.columns.items():
            codes[name] = rows % len(values)
        for name in mixed:
            codes[name] = rest % len(self.columns[name])
            rest = rest // len(self.columns[name])
        other = {
            name: np.full(longest, -1) if name in self.conditional else values
            for name, values in codes.items()
        }
        return {name: np.concatenate([values, other[name]]) for name, values in codes.items()}


def make_index(
    columns: Mapping[str, Sequence[Any]], axes: Mapping[str, Axis], *, moe: bool, source: str
) -> GridIndex:
    """Return the index of a grid.

    Raises:
        SpecError: an axis without values, conditions in a circle, or too many combinations.
    """
    for name, values in columns.items():
        if not values:
            text = "has no values; give at least one, or leave the axis out"
            raise SpecError(source, [Fault(f"grid.axes.{name}", text)])
    index = GridIndex(columns, axes, tuple(_conditional(axes, source)), moe)
    if index.size > LARGEST:
        longest = max(columns, key=lambda name: len(columns[name]))
        text = (
            f"the axes have {index.size:.3g} combinations; an index numbers at most {LARGEST:.3g}. "
            f"Shorten an axis; the longest is {longest} with {len(columns[longest]):,} values"
        )
        raise SpecError(source, [Fault("grid.axes", text)])
    return index


def _conditional(axes: Mapping[str, Axis], source: str) -> list[str]:
    """Return the conditional axes, each after those that its condition is on."""
    waiting = {name: set(axis.when) for name, axis in axes.items() if axis.when is not None}
    order: list[str] = []
    while waiting:
        ready = [name for name, keys in waiting.items() if not keys & waiting.keys()]
        if not ready:
            path = f"grid.axes.{next(iter(waiting))}.when"
            raise SpecError(source, [Fault(path, "the conditions of these axes form a circle")])
        order += ready
        for name in ready:
            del waiting[name]
    return order


def _plain(value: Any) -> Any:
    return value[0] if isinstance(value, tuple) else value
