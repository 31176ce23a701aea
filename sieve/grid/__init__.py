"""From a grid's axes to the candidate frame."""

from sieve.grid.axes import PRECISIONS
from sieve.grid.change import changed
from sieve.grid.expand import Grid, expand, require_prices
from sieve.grid.find import find

__all__ = ["PRECISIONS", "Grid", "changed", "expand", "find", "require_prices"]
