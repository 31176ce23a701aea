"""From a grid's axes to the candidate frame."""

from sieve.grid.axes import PRECISIONS
from sieve.grid.change import changed
from sieve.grid.expand import Grid, expand, require_prices

__all__ = ["PRECISIONS", "Grid", "changed", "expand", "require_prices"]
